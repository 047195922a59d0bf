//! What `shrimp run --hosts` and the part of it that runs on another node tell each other.
//!
//! Over that one's standard input go [`Frame`]s: first what to run, then the standard input of node 0, signals, and what
//! supervisors of other hosts say. The end of it tells that the application is to end, whoever was killed.
//!
//! Over its standard output come, after a [`GREETING`], [`Said`]s: the output of its nodes, and what its supervisor says. What
//! comes before the greeting is the remote shell's. Its standard error is what it is.
//!
//! A frame is a kind (u8), a length (u32, little-endian) and so many bytes. Version 3: shares of
//! version 2 did not hear what had been printed, and those of version 1 had another kind and no greeting.

use nx::job::supervise::others::{Down, Up};
use serde::{Deserialize, Serialize};
use std::io::{Error, Read, Result, Write};

/// Longest frame: far more than any command line.
const MAX: u32 = 8 << 20;

const INPUT: u8 = 2;
const INPUT_END: u8 = 3;
const SIGNAL: u8 = 4;
const SHARE: u8 = 5;
const OUTPUT_END: u8 = 6;
const DOWN: u8 = 7;
const PRINTED: u8 = 8;

const OUTPUT: u8 = 1;
const UP: u8 = 2;
const MORE: u8 = 3;

/// What a share begins with once it knows what to run. The last byte before the newline is the version.
pub(super) const GREETING: &[u8] = b"\0shrimp share 3\n";

/// What one host runs of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    /// [`nx::Job::to_word`]. A secret: it is in no command line.
    pub(super) job: String,
    /// [`nx::Job::hosts`].
    pub(super) hosts: Vec<String>,
    /// The first of its nodes.
    pub(super) first: u32,
    /// How many; their numbers follow each other.
    pub(super) count: u32,
    /// Program and arguments, in bytes.
    pub(super) words: Vec<Vec<u8>>,
    /// Where to run it.
    pub(super) directory: Vec<u8>,
    /// Settings of the environment.
    pub(super) settings: Vec<(String, String)>,
    /// Whether lines begin with node and host.
    pub(super) label: bool,
    /// Milliseconds; see `--grace`.
    pub(super) grace_ms: u64,
}

/// To a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The first one.
    Share(Box<Share>),
    /// Standard input for node 0. One at a time: the next one when the share asks for [`Said::More`], so that what else is to
    /// be told does not wait for a node that does not read.
    Input(Vec<u8>),
    /// There is no more of it.
    InputEnd,
    /// A signal for every node, by number.
    Signal(i32),
    /// Nobody reads the output of its nodes any more.
    OutputEnd,
    /// So many bytes of its nodes' output have been printed.
    Printed(u32),
    /// For its supervisor.
    Down(Down),
}

/// From a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Whole lines of its nodes.
    Output(Vec<u8>),
    /// Its node has taken what there was of input.
    More,
    /// From its supervisor.
    Up(Up),
}

fn bad(what: &str) -> Error {
    Error::other(format!("{what}; is it the same version of shrimp on all nodes?"))
}

fn write(to: &mut impl Write, kind: u8, body: &[u8]) -> Result<()> {
    let len = u32::try_from(body.len()).ok().filter(|len| *len <= MAX);
    let len = len.ok_or_else(|| bad("too long for a frame"))?;
    let mut frame = vec![kind];
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(body);
    to.write_all(&frame)
}

fn read(from: &mut impl Read) -> Result<Option<(u8, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX {
        return Err(bad("a frame of impossible length"));
    }
    let mut body = vec![0; len as usize];
    from.read_exact(&mut body)?;
    Ok(Some((kind[0], body)))
}

impl Frame {
    /// Writes it whole.
    pub(super) fn write(&self, to: &mut impl Write) -> Result<()> {
        match self {
            Frame::Share(share) => {
                write(to, SHARE, &serde_json::to_vec(share).map_err(Error::other)?)
            }
            Frame::Input(bytes) => write(to, INPUT, bytes),
            Frame::InputEnd => write(to, INPUT_END, &[]),
            Frame::Signal(number) => write(to, SIGNAL, &number.to_le_bytes()),
            Frame::OutputEnd => write(to, OUTPUT_END, &[]),
            Frame::Printed(bytes) => write(to, PRINTED, &bytes.to_le_bytes()),
            Frame::Down(down) => write(to, DOWN, &serde_json::to_vec(down).map_err(Error::other)?),
        }
    }

    /// Reads the next; `None` at the end.
    pub(super) fn read(from: &mut impl Read) -> Result<Option<Frame>> {
        let Some((kind, body)) = read(from)? else { return Ok(None) };
        Ok(Some(match kind {
            SHARE => Frame::Share(serde_json::from_slice(&body).map_err(Error::other)?),
            INPUT => Frame::Input(body),
            INPUT_END => Frame::InputEnd,
            SIGNAL => {
                let number = body.first_chunk().ok_or_else(|| bad("no signal"))?;
                Frame::Signal(i32::from_le_bytes(*number))
            }
            OUTPUT_END => Frame::OutputEnd,
            PRINTED => {
                let bytes = body.first_chunk().ok_or_else(|| bad("no number of bytes"))?;
                Frame::Printed(u32::from_le_bytes(*bytes))
            }
            DOWN => Frame::Down(serde_json::from_slice(&body).map_err(Error::other)?),
            _ => return Err(bad("a frame of no kind")),
        }))
    }
}

impl Said {
    /// Writes it whole, and flushes.
    pub(super) fn write(&self, to: &mut impl Write) -> Result<()> {
        match self {
            Said::Output(bytes) => write(to, OUTPUT, bytes),
            Said::More => write(to, MORE, &[]),
            Said::Up(up) => write(to, UP, &serde_json::to_vec(up).map_err(Error::other)?),
        }?;
        to.flush()
    }

    /// Reads the next; `None` at the end.
    pub(super) fn read(from: &mut impl Read) -> Result<Option<Said>> {
        let Some((kind, body)) = read(from)? else { return Ok(None) };
        Ok(Some(match kind {
            OUTPUT => Said::Output(body),
            MORE => Said::More,
            UP => Said::Up(serde_json::from_slice(&body).map_err(Error::other)?),
            _ => return Err(bad("a frame of no kind")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nx::job::supervise::others::Word;

    #[test]
    fn frames_are_read_as_they_were_written_and_nonsense_is_refused() {
        let share = Share {
            job: "id:2:00".into(),
            hosts: vec!["a".into(), "b".into()],
            first: 1,
            count: 1,
            words: vec![b"./prog".to_vec(), vec![0xff]],
            directory: b"/".to_vec(),
            settings: vec![("NX_X".into(), "1".into())],
            label: true,
            grace_ms: 5000,
        };
        let frames = [
            Frame::Share(Box::new(share)),
            Frame::Input(vec![7; 3]),
            Frame::InputEnd,
            Frame::Signal(2),
            Frame::OutputEnd,
            Frame::Printed(70_000),
            Frame::Down(Down::AllHeard { id: 7 }),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut from).unwrap(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
        for wrong in
            // The second is what version 1 begins with.
            [
                &[9, 0, 0, 0, 0][..],
                &[1, 2, 0, 0, 0, b'{', b'}'],
                &[SIGNAL, 1, 0, 0, 0, 1],
                &[INPUT, 0xff, 0xff, 0xff, 0xff],
            ]
        {
            assert!(Frame::read(&mut &wrong[..]).is_err(), "{wrong:?}");
        }
        assert!(Frame::read(&mut &[INPUT, 5, 0][..]).is_err(), "cut off");
        let word = Word::Ending(vec![(3, 77)]);
        let said =
            [Said::Output(b"line\n".to_vec()), Said::More, Said::Up(Up::Tell { id: 1, word })];
        let mut bytes = Vec::new();
        said.iter().for_each(|said| said.write(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for said in said {
            assert_eq!(Said::read(&mut from).unwrap(), Some(said));
        }
        assert!(Said::read(&mut &[9, 0, 0, 0, 0][..]).is_err());
    }
}
