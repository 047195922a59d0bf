//! What section 4.1 says of figure 4, with this machine's figures: what NX adds to a word by automatic update, where the
//! copy of a small send costs more than a second transfer, and the step where the protocol changes.

use super::{LONGEST, Measured, rank, value};
use crate::exit::{Coded, Exit};
use crate::text;
use nx::engine::settings::Settings;

/// The game of a word by automatic update, which is no game of NX.
pub(super) const AU_WORD: &str = "au-word";

/// Subjects, by their place.
const AU: usize = 0;
const DU_1COPY: usize = 1;
const DU_2COPY: usize = 2;

/// What a small message may add to the word, in words (M12).
const ADDED: f64 = 2.0;

/// The settings of NX in this process's environment are not understood.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct SettingsError(#[from] nx::StartError);

impl Coded for SettingsError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Where the protocol of two nodes changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches {
    /// The longest message that goes through a packet buffer.
    slot: usize,
    /// The shortest that may go from user memory to user memory.
    direct: usize,
}

impl Switches {
    /// As the nodes that are measured have them, in the environment of this process.
    pub(super) fn of_nodes() -> Result<Switches, SettingsError> {
        let settings = Settings::from_env()?;
        Ok(Switches { slot: settings.longest_in_a_slot(2), direct: settings.share })
    }

    /// The lengths before and behind each, and what changes there.
    fn steps(self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let all = [
            ("from a packet buffer to a scout", self.slot, self.slot + 1),
            ("from a safe copy to user memory", self.direct.saturating_sub(64), self.direct),
        ];
        all.into_iter().filter(|(_, _, behind)| *behind <= LONGEST)
    }

    /// These lengths, as arguments.
    pub(super) fn lens(self) -> Vec<String> {
        self.steps().flat_map(|(_, a, b)| [a, b]).map(|len| len.to_string()).collect()
    }
}

/// The lines that could be measured.
pub(super) fn render(lens: &[usize], measured: &Measured, switches: &Switches) -> String {
    let small = value(measured, "pingpong", AU, rank::SHORT);
    let mut shown = added(small, value(measured, AU_WORD, AU, 4));
    let ratios: Vec<(usize, f64)> = (lens.iter().copied())
        .filter(|len| (1..=switches.slot).contains(len))
        .map(|len| {
            let time = |subject| value(measured, "pingpong", subject, len);
            (len, time(DU_1COPY) / time(DU_2COPY))
        })
        .filter(|(_, ratio)| !ratio.is_nan())
        .collect();
    shown += &copies(&ratios);
    for (what, before, behind) in switches.steps() {
        let time = |len| value(measured, "pingpong", AU, len);
        shown += &step(what, (before, time(before)), (behind, time(behind)));
    }
    shown
}

/// N8.
fn added(small: f64, word: f64) -> String {
    if small.is_nan() || word.is_nan() {
        return String::new();
    }
    format!(
        "8 B one way, of a word by automatic update without NX ({}): {} more, {} of it (budget {ADDED})\n",
        text::nanos(word),
        text::nanos((small - word).max(0.0)),
        text::three((small - word).max(0.0) / word),
    )
}

/// N7: times of two transfers without a copy, in those of one transfer after a copy, by length.
fn copies(ratios: &[(usize, f64)]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let size = |len: usize| text::size(len as u64);
    let each: Vec<String> = ratios
        .iter()
        .map(|&(len, ratio)| format!("{} {}", size(len), text::three(ratio)))
        .collect();
    // Pairs of neighbours of which one is faster by a copy and the other without.
    let turns: Vec<String> = ratios
        .windows(2)
        .filter_map(|two| match *two {
            [(a, before), (b, behind)] if (before > 1.0) != (behind > 1.0) => {
                Some(format!("{} and {}", size(a), size(b)))
            }
            _ => None,
        })
        .collect();
    let copied_first = ratios.first().is_some_and(|&(_, ratio)| ratio > 1.0);
    let verdict = match (turns.as_slice(), copied_first) {
        ([], true) => "the second transfer costs more at all of them".to_owned(),
        ([], false) => "the copy costs more at all of them".to_owned(),
        ([one], true) => {
            format!("the copy costs more than the second transfer from between {one} on")
        }
        (many, _) => format!("no single crossover: it turns between {}", many.join(", ")),
    };
    format!("DU-1copy, in the times of DU-2copy: {}; {verdict}\n", each.join(", "))
}

/// N17.
fn step(what: &str, before: (usize, f64), behind: (usize, f64)) -> String {
    if before.1.is_nan() || behind.1.is_nan() {
        return String::new();
    }
    format!(
        "the step {what}, {} to {} B: {} to {}, {} times\n",
        before.0,
        behind.0,
        text::nanos(before.1),
        text::nanos(behind.1),
        text::three(behind.1 / before.1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossover_is_found_and_none_or_several_are_not_taken_for_one() {
        let verdict = |ratios: &[(usize, f64)]| copies(ratios);
        let one = verdict(&[(8, 1.2), (1024, 1.1), (4000, 0.9)]);
        assert!(one.contains("from between 1 KiB and 3.91 KiB on"), "{one}");
        assert!(one.contains("8 B 1.20, 1 KiB 1.10, 3.91 KiB 0.90"), "{one}");
        assert!(verdict(&[(8, 1.2), (64, 1.1)]).contains("the second transfer costs more at all"));
        assert!(verdict(&[(8, 0.9)]).contains("the copy costs more at all"));
        assert!(verdict(&[(8, 0.9), (64, 1.1)]).contains("no single crossover"));
        assert!(verdict(&[(8, 1.1), (64, 0.9), (99, 1.1)]).contains("no single crossover"));
        assert_eq!(verdict(&[]), "");
    }

    #[test]
    fn what_was_not_measured_has_no_line() {
        let switches = Switches { slot: 8232, direct: 65536 };
        assert_eq!(render(&[8, 64], &Measured::new(), &switches), "");
        let mut measured = Measured::new();
        for (game, number, ns) in [
            ("pingpong", 8, 150.0),
            (AU_WORD, 4, 100.0),
            ("pingpong", 8232, 1000.0),
            ("pingpong", 8233, 1300.0),
        ] {
            measured.insert((game.into(), AU, number), vec![ns]);
        }
        let text = render(&[8, 64], &measured, &switches);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "8 B one way, of a word by automatic update without NX (100 ns): 50.0 ns more, 0.50 of it (budget 2)",
                "the step from a packet buffer to a scout, 8232 to 8233 B: 1.00 us to 1.30 us, 1.30 times",
            ]
        );
    }

    #[test]
    fn the_lengths_beside_the_switches_are_played_where_there_are_any() {
        let switches = Switches { slot: 8232, direct: 65536 };
        assert_eq!(switches.lens(), ["8232", "8233", "65472", "65536"]);
        let off = Switches { slot: 8232, direct: usize::MAX };
        assert_eq!(off.lens(), ["8232", "8233"]);
    }
}
