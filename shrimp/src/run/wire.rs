//! What `shrimp run --hosts` tells the part of it that runs on another node, over that one's standard
//! input: first what to run, then the standard input of node 0 and signals. The end of it tells that the
//! application is to end, whoever was killed.
//!
//! A frame is a kind (u8), a length (u32, little-endian) and so many bytes.

use serde::{Deserialize, Serialize};
use std::io::{Error, Read, Result, Write};

/// Longest frame: far more than any command line.
const MAX: u32 = 8 << 20;

const SHARE: u8 = 1;
const INPUT: u8 = 2;
const INPUT_END: u8 = 3;
const SIGNAL: u8 = 4;

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

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The first one.
    Share(Box<Share>),
    /// Standard input for node 0.
    Input(Vec<u8>),
    /// There is no more of it.
    InputEnd,
    /// A signal for every node, by number.
    Signal(i32),
}

fn bad(what: &str) -> Error {
    Error::other(format!("{what}; is it the same version of shrimp on all nodes?"))
}

impl Frame {
    /// Writes it whole.
    pub(super) fn write(&self, to: &mut impl Write) -> Result<()> {
        let (kind, body) = match self {
            Frame::Share(share) => (SHARE, serde_json::to_vec(share).map_err(Error::other)?),
            Frame::Input(bytes) => (INPUT, bytes.clone()),
            Frame::InputEnd => (INPUT_END, Vec::new()),
            Frame::Signal(number) => (SIGNAL, number.to_le_bytes().to_vec()),
        };
        let len = u32::try_from(body.len()).ok().filter(|len| *len <= MAX);
        let len = len.ok_or_else(|| bad("too long for a frame"))?;
        let mut frame = vec![kind];
        frame.extend_from_slice(&len.to_le_bytes());
        frame.extend_from_slice(&body);
        to.write_all(&frame)
    }

    /// Reads the next; `None` at the end.
    pub(super) fn read(from: &mut impl Read) -> Result<Option<Frame>> {
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
        Ok(Some(match kind {
            [SHARE] => Frame::Share(serde_json::from_slice(&body).map_err(Error::other)?),
            [INPUT] => Frame::Input(body),
            [INPUT_END] => Frame::InputEnd,
            [SIGNAL] => {
                let number = body.first_chunk().ok_or_else(|| bad("no signal"))?;
                Frame::Signal(i32::from_le_bytes(*number))
            }
            _ => return Err(bad("a frame of no kind")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut from).unwrap(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
        for wrong in
            [&[9, 0, 0, 0, 0][..], &[SIGNAL, 1, 0, 0, 0, 1], &[INPUT, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(Frame::read(&mut &wrong[..]).is_err(), "{wrong:?}");
        }
        assert!(Frame::read(&mut &[INPUT, 5, 0][..]).is_err(), "cut off");
    }
}
