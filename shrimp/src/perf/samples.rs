//! The lines in which a measuring client tells its parent what it saw: size, operations per sample,
//! samples in nanoseconds.

/// Size, batch, samples.
pub(super) type Line = (usize, u32, Vec<f64>);

/// What a line says; `None` if it is no such line.
pub(super) fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_whitespace();
    let size = words.next()?.parse().ok()?;
    let batch = words.next()?.parse().ok()?;
    let samples = words.map(str::parse).collect::<Result<Vec<f64>, _>>().ok()?;
    (!samples.is_empty()).then_some((size, batch, samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_samples_is_understood_and_nonsense_is_not() {
        assert_eq!(parse("8 12 100.5 200"), Some((8, 12, vec![100.5, 200.0])));
        assert_eq!(parse("8 12"), None);
        assert_eq!(parse("wrong answer"), None);
    }
}
