//! Line graphs as SVG: sizes on a logarithmic axis, one line per subject.

use crate::exit::{Context, Io};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::path::Path;

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// (size in bytes, value).
    pub(crate) points: Vec<(f64, f64)>,
    /// A limit of the machine rather than something of ours: drawn thin and grey.
    pub(crate) limit: bool,
}

/// A corner of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corner {
    UpperLeft,
    UpperRight,
    LowerRight,
}

/// A graph.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    /// Above it.
    pub(crate) title: String,
    /// Below the title, small: machine, pinning, date.
    pub(crate) caption: String,
    /// Label of the vertical axis, with its unit.
    pub(crate) y_label: String,
    /// Whether the vertical axis is logarithmic.
    pub(crate) y_log: bool,
    /// Where there is room for the legend.
    pub(crate) legend: Corner,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

/// Colours that are told apart also by people who do not see all of them (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const LIMIT_COLOUR: RGBColor = RGBColor(120, 120, 120);
const SIZE: (u32, u32) = (900, 600);

impl Graph {
    /// Writes the graph to a file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Io> {
        self.draw(path)
            .map_err(|error| std::io::Error::other(error.to_string()))
            .context(|| format!("writing the graph {path:?}"))
    }

    fn extent(&self, of: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let all = self.series.iter().flat_map(|series| &series.points).map(of);
        let finite = all.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = finite
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if low < high { (low, high) } else { (1.0, 10.0) }
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let (low, high) = self.extent(|point| point.1);
        if self.y_log {
            self.draw_on(path, (low / 1.3..high * 1.3).log_scale())
        } else {
            self.draw_on(path, 0.0..high * 1.08)
        }
    }

    fn draw_on<Y>(&self, path: &Path, y: Y) -> Result<(), Box<dyn std::error::Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 24))?;
        let area =
            area.titled(&self.caption, ("sans-serif", 12).into_font().color(&LIMIT_COLOUR))?;
        let (low, high) = self.extent(|point| point.0);
        // Powers of two as the coordinate: then the marks fall on whole sizes.
        let x = |size: f64| size.max(1.0).log2();
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(28)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(x(low)..x(high), y)?;
        self.mesh(&mut chart, (x(high) - x(low)).round() as usize)?;
        for (i, series) in self.series.iter().enumerate() {
            let colour = if series.limit {
                LIMIT_COLOUR
            } else {
                COLOURS.get(i % COLOURS.len()).copied().unwrap_or(BLACK)
            };
            let style = colour.stroke_width(if series.limit { 1 } else { 2 });
            let points: Vec<(f64, f64)> = series
                .points
                .iter()
                .filter(|point| point.1.is_finite())
                .map(|&(size, value)| (x(size), value))
                .collect();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
            if !series.limit {
                chart.draw_series(
                    points.iter().map(|&point| Circle::new(point, 3, colour.filled())),
                )?;
            }
        }
        chart
            .configure_series_labels()
            .position(match self.legend {
                Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
                Corner::UpperRight => SeriesLabelPosition::UpperRight,
                Corner::LowerRight => SeriesLabelPosition::LowerRight,
            })
            .margin(12)
            .background_style(WHITE.mix(0.85))
            .border_style(LIMIT_COLOUR)
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
        Ok(())
    }

    fn mesh<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
        doublings: usize,
    ) -> Result<(), Box<dyn std::error::Error>> {
        chart
            .configure_mesh()
            .x_labels(doublings.clamp(2, 20))
            .x_label_formatter(&|power| {
                if (power - power.round()).abs() > 1e-6 {
                    return String::new();
                }
                let bytes = power.exp2().round() as u64;
                crate::text::size(bytes).replace("iB", "").replace(" B", "")
            })
            .y_label_formatter(&|value| {
                if *value >= 10.0 || *value == 0.0 {
                    format!("{value:.0}")
                } else {
                    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
                }
            })
            .x_desc("size (bytes)")
            .y_desc(&self.y_label)
            .axis_desc_style(("sans-serif", 16))
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_holds_its_labels_and_lines_and_missing_values_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let series = |name: &str, value: f64| Series {
            name: name.into(),
            points: (2..12).map(|i| (f64::from(1 << i), value * f64::from(i))).collect(),
            limit: false,
        };
        let mut graph = Graph {
            title: "A title".into(),
            caption: "a machine".into(),
            y_label: "microseconds".into(),
            y_log: false,
            legend: Corner::UpperLeft,
            series: vec![series("first", 1.0), series("second", f64::NAN)],
        };
        for y_log in [false, true] {
            graph.y_log = y_log;
            let path = dir.path().join("graph.svg");
            graph.write(&path).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            for word in ["A title", "a machine", "microseconds", "first", "polyline"] {
                assert!(text.contains(word), "no {word:?} in the graph");
            }
            assert!(!text.contains("NaN"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let graph = Graph {
            title: String::new(),
            caption: String::new(),
            y_label: String::new(),
            y_log: false,
            legend: Corner::UpperLeft,
            series: vec![],
        };
        let error = graph.write(Path::new("/nowhere/graph.svg")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/graph.svg"));
    }
}
