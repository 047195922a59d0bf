//! NX switches among a program's arguments: `prog -sz 16 -pt 0 its own arguments`.
//!
//! They may stand anywhere before a `--`, and are gone before the program looks. Their order and
//! number do not matter; of two the last one holds. What concerns partitions and the message
//! coprocessor of the Paragon is accepted and ignored.

/// What the switches ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `-sz N` or `-sz HxW`.
    pub size: Option<Shape>,
    /// `-pt ptype`.
    pub ptype: Option<i32>,
    /// `-on nodespec`: the nodes to load on, ascending, each once.
    pub on: Option<Vec<u32>>,
    /// `-mbf`: bytes for message buffers, all peers together.
    pub buffers: Option<u64>,
    /// `-mea`: bytes for message buffers of each peer.
    pub each: Option<u64>,
    /// `-sth`: bytes that may be sent before the receiver must answer.
    pub threshold: Option<u64>,
    /// `-pkt`: bytes of a packet.
    pub packet: Option<u64>,
    /// `-noc`: number of correspondents.
    pub correspondents: Option<u64>,
    /// Switches that were accepted and have no effect here, as given.
    pub ignored: Vec<String>,
}

/// The nodes of an application, as a number or a rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows; 1 for a plain number.
    pub rows: u32,
    /// Nodes in a row.
    pub columns: u32,
}

impl Shape {
    /// A row of `nodes`.
    #[must_use]
    pub fn row(nodes: u32) -> Shape {
        Shape { rows: 1, columns: nodes }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(self) -> u32 {
        self.rows.saturating_mul(self.columns)
    }

    /// Reads `16` or `4x4`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Shape> {
        let number = |text: &str| text.parse().ok().filter(|&number: &u32| number > 0);
        let shape = match text.split_once(['x', 'X']) {
            None => Shape::row(number(text)?),
            Some((rows, columns)) => Shape { rows: number(rows)?, columns: number(columns)? },
        };
        (shape.nodes() <= super::MAX_NODES).then_some(shape)
    }
}

/// A switch whose value is missing or not understood.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{switch} {value:?}: expected {expected}; an argument of the program's own goes after --")]
pub struct SwitchError {
    /// The switch.
    pub switch: &'static str,
    /// What follows it; empty if nothing does.
    pub value: String,
    /// What may.
    pub expected: &'static str,
}

/// Switches that have no effect, and whether a value follows.
const IGNORED: [(&str, bool); 9] = [
    ("-pn", true),
    ("-pri", true),
    ("-mex", true),
    ("-sct", true),
    ("-gth", true),
    ("-nd", true),
    ("-plk", false),
    ("-rlx", false),
    (";", false),
];

/// Takes the switches out of `arguments` (the program's name among them, which is never a
/// switch). Answers them and the indices of the arguments that stay.
///
/// # Errors
/// [`SwitchError`] for the first value that is not understood.
pub fn take(arguments: &[&[u8]]) -> Result<(Switches, Vec<usize>), SwitchError> {
    let mut switches = Switches::default();
    let mut kept = Vec::with_capacity(arguments.len());
    let mut index = 0;
    while index < arguments.len() {
        let argument = arguments[index];
        if index > 0 && argument == b"--" {
            kept.extend(index..arguments.len());
            break;
        }
        let value = arguments.get(index + 1).map(|value| String::from_utf8_lossy(value));
        let value = value.as_deref();
        let taken = if index == 0 { 0 } else { switches.one(argument, value)? };
        if taken == 0 {
            kept.push(index);
        }
        index += taken.max(1);
    }
    Ok((switches, kept))
}

impl Switches {
    /// Takes one switch; answers how many arguments it was, 0 if it is none.
    fn one(&mut self, argument: &[u8], value: Option<&str>) -> Result<usize, SwitchError> {
        let bytes = "a number of bytes, such as 65536 or 64k";
        match argument {
            b"-sz" => {
                let expected =
                    "a number of nodes such as 16, or a rectangle such as 4x4 (at most 4096 nodes)";
                self.size = Some(read("-sz", value, Shape::parse, expected)?);
            }
            b"-pt" => {
                let ptype = |text: &str| text.parse().ok().filter(|&ptype: &i32| ptype >= 0);
                self.ptype = Some(read("-pt", value, ptype, "a process type, 0 or more")?);
            }
            b"-on" => {
                let expected = "nodes such as 3, 0..3 or 0,2,4..7";
                self.on = Some(read("-on", value, nodes, expected)?);
            }
            b"-mbf" => self.buffers = Some(read("-mbf", value, amount, bytes)?),
            b"-mea" => self.each = Some(read("-mea", value, amount, bytes)?),
            b"-sth" => self.threshold = Some(read("-sth", value, amount, bytes)?),
            b"-pkt" => self.packet = Some(read("-pkt", value, amount, bytes)?),
            b"-noc" => self.correspondents = Some(read("-noc", value, amount, "a number")?),
            other => return Ok(self.ignore(other, value)),
        }
        Ok(2)
    }

    fn ignore(&mut self, argument: &[u8], value: Option<&str>) -> usize {
        let Some((name, valued)) = IGNORED.iter().find(|(name, _)| name.as_bytes() == argument)
        else {
            return 0;
        };
        match value.filter(|_| *valued) {
            Some(value) => {
                self.ignored.push(format!("{name} {value}"));
                2
            }
            None => {
                self.ignored.push((*name).to_owned());
                1
            }
        }
    }
}

fn read<T>(
    switch: &'static str,
    value: Option<&str>,
    parse: impl FnOnce(&str) -> Option<T>,
    expected: &'static str,
) -> Result<T, SwitchError> {
    let bad = || SwitchError { switch, value: value.unwrap_or_default().to_owned(), expected };
    value.and_then(parse).ok_or_else(bad)
}

/// `4096`, `64k`, `2m`.
fn amount(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// `3`, `0..3`, `0,2,4..7`.
fn nodes(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let number = |text: &str| text.parse().ok().filter(|&node: &u32| node < super::MAX_NODES);
        match part.split_once("..") {
            None => all.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return None;
                }
                all.extend(first..=last);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> (Switches, Vec<String>) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let (switches, kept) = take(&words).unwrap();
        (switches, kept.iter().map(|&at| String::from_utf8_lossy(words[at]).into()).collect())
    }

    #[test]
    fn switches_go_and_the_programs_own_arguments_stay_in_order() {
        let (switches, kept) = split("prog -n -sz 2x3 in.dat -pt 4 -v -on 0,2..3,2 -x");
        assert_eq!(kept, ["prog", "-n", "in.dat", "-v", "-x"]);
        assert_eq!(switches.size, Some(Shape { rows: 2, columns: 3 }));
        assert_eq!(switches.ptype, Some(4));
        assert_eq!(switches.on, Some(vec![0, 2, 3]));
    }

    #[test]
    fn every_switch_of_the_list_is_taken_with_its_value() {
        let line = "p -pn part -pri 3 -mbf 1m -mea 64k -sth 10 -pkt 1792 -noc 4 -mex 1 -sct 2 -gth 3 -nd 2x2:4 -plk -rlx ; end";
        let (switches, kept) = split(line);
        assert_eq!(kept, ["p", "end"]);
        assert_eq!(switches.buffers, Some(1 << 20));
        assert_eq!(switches.each, Some(64 << 10));
        assert_eq!((switches.threshold, switches.packet), (Some(10), Some(1792)));
        assert_eq!(switches.correspondents, Some(4));
        let ignored = "-pn part,-pri 3,-mex 1,-sct 2,-gth 3,-nd 2x2:4,-plk,-rlx,;";
        assert_eq!(switches.ignored.join(","), ignored);
    }

    #[test]
    fn after_two_dashes_nothing_is_ours_nor_is_the_programs_name() {
        let (switches, kept) = split("-sz -- -sz 4");
        assert_eq!(kept, ["-sz", "--", "-sz", "4"]);
        assert_eq!(switches, Switches::default());
    }

    #[test]
    fn a_missing_or_bad_value_is_named() {
        for (line, switch) in [
            ("p -sz", "-sz"),
            ("p -sz 0", "-sz"),
            ("p -sz four", "-sz"),
            ("p -sz 4x", "-sz"),
            ("p -sz 5000", "-sz"),
            ("p -sz 65536x65536", "-sz"),
            ("p -pt -1", "-pt"),
            ("p -on 3..1", "-on"),
            ("p -on 0..99999999", "-on"),
            ("p -mbf 1g", "-mbf"),
            ("p -mbf 99999999999999999999", "-mbf"),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            assert_eq!(take(&words).unwrap_err().switch, switch, "{line}");
        }
    }
}
