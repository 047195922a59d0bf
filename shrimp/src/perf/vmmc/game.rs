//! The ping-pong of figure 3, both sides, through the public interface of `vmmc`.
//!
//! Each side exports a buffer, imports the other's and binds it. A message of `size` bytes is
//! followed by a flag word that holds its number:
//!
//! ```text
//!   up to 48 bytes:  message ends at 48, flag at 48: one cache line
//!   more:            message at 0, flag right after it, 8-byte aligned
//! ```
//!
//! | strategy | sender | receiver |
//! |---|---|---|
//! | R | stores the bare word: no call of ours | polls the bare word |
//! | AU word | stores the flag, which is the message | polls it |
//! | AU-1copy | copies into the bound range | uses the message in place |
//! | AU-2copy | the same | copies it to private memory |
//! | DU-0copy | one send from where the message lies | uses it in place |
//! | DU-1copy | the same | copies it to private memory |
//!
//! R is played on the very line of the other games: how long a line travels depends on where in the
//! last-level cache its address falls, which between two lines is a tenth and more.
//!
//! *In place* means that the receiver's own code does not touch the bytes, as in the paper.

use crate::exit::{Coded, Context, Exit, Failure};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use vmmc::config::{DaemonStart, WaitChoice, WaitPolicy};
use vmmc::counters::index;
use vmmc::error::{
    AccessError, BindError, ExportError, FlagError, ImportError, RegionError, SendError, WaitError,
};
use vmmc::sync::Ordering;
use vmmc::word::{MappedU32, Word as _};
use vmmc::{Binding, Config, Export, Flag, Import, Node, Region, Rights, Who};

/// Longest message.
pub(super) const LARGEST: usize = 1 << 20;
/// Room for the message and its flag.
const LEN: usize = LARGEST + 4096;
/// Messages up to here end at the flag, in one cache line.
const SHORT: usize = 48;
/// Sent instead of a number to end a game.
const STOP: u32 = u32::MAX;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) enum Strategy {
    #[serde(rename = "R")]
    Bare,
    #[serde(rename = "AU-word")]
    AuWord,
    #[serde(rename = "AU-1copy")]
    Au1,
    #[serde(rename = "AU-2copy")]
    Au2,
    #[serde(rename = "DU-0copy")]
    Du0,
    #[serde(rename = "DU-1copy")]
    Du1,
}

impl Strategy {
    /// The four of figure 3.
    pub(super) const FIGURE: [Strategy; 4] =
        [Strategy::Au1, Strategy::Au2, Strategy::Du0, Strategy::Du1];

    pub(super) fn name(self) -> &'static str {
        match self {
            Strategy::Bare => "R",
            Strategy::AuWord => "AU-word",
            Strategy::Au1 => "AU-1copy",
            Strategy::Au2 => "AU-2copy",
            Strategy::Du0 => "DU-0copy",
            Strategy::Du1 => "DU-1copy",
        }
    }

    fn parse(text: &str) -> Option<Strategy> {
        [Strategy::Bare, Strategy::AuWord]
            .into_iter()
            .chain(Strategy::FIGURE)
            .find(|one| one.name() == text)
    }

    /// Copies per message that the paper gives it (M1).
    pub(super) fn copies(self) -> u32 {
        match self {
            Strategy::Bare | Strategy::AuWord | Strategy::Du0 => 0,
            Strategy::Au1 | Strategy::Du1 => 1,
            Strategy::Au2 => 2,
        }
    }

    fn is_automatic(self) -> bool {
        matches!(self, Strategy::Bare | Strategy::AuWord | Strategy::Au1 | Strategy::Au2)
    }

    fn receiver_copies(self) -> bool {
        matches!(self, Strategy::Au2 | Strategy::Du1)
    }
}

/// What may go wrong in a game.
#[derive(Debug, thiserror::Error)]
pub(super) enum GameError {
    #[error("vmmc: {0}; this is a bug, or something ended the peer")]
    Vmmc(Box<dyn std::error::Error + Send + Sync>),
    #[error("the peer said {0:?}; this is a bug")]
    Peer(String),
}

impl Coded for GameError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

macro_rules! from {
    ($($error:ty),*) => { $(
        impl From<$error> for GameError {
            fn from(error: $error) -> GameError {
                GameError::Vmmc(error.into())
            }
        }
    )* };
}
from!(
    AccessError,
    BindError,
    ExportError,
    FlagError,
    ImportError,
    RegionError,
    SendError,
    WaitError,
    vmmc::mem::OutOfBounds
);

/// Where a message of `size` bytes begins, and where its flag is.
fn place(size: usize) -> (usize, usize) {
    if size <= SHORT {
        (SHORT - size.next_multiple_of(8), SHORT)
    } else {
        (0, size.next_multiple_of(8))
    }
}

/// A node at the daemon of `socket`. With `spin`, waits poll for ever: both sides have a
/// processor.
pub(super) fn connect(socket: &Path, spin: bool) -> Result<Node, Failure> {
    let mut config = Config::from_env()?;
    config.socket = Some(socket.to_owned());
    config.daemon = DaemonStart::Never;
    if spin {
        config.wait = WaitChoice::Fixed(WaitPolicy::Spin);
    }
    Ok(Node::builder().config(config).program("shrimp perf").connect()?)
}

/// One side of the game.
pub(super) struct Side {
    node: Node,
    binding: Binding,
    import: Import,
    export: Export,
    /// What is sent, and where received messages are copied to.
    source: Vec<u8>,
    target: Vec<u8>,
    /// Whether the other side may be asleep.
    wake: bool,
}

/// A word of a mapping, as `vmmc` hands it out.
type Word<'a> = Flag<'a, MappedU32<'a>>;

/// One game: a strategy, a size, and what is looked up once for both.
pub(super) struct Game<'a> {
    strategy: Strategy,
    /// Where messages begin.
    at: usize,
    binding: &'a Binding,
    import: &'a Import,
    export: &'a Export,
    message: &'a [u8],
    /// Where received messages are copied to; as long as the message.
    target: &'a mut [u8],
    /// The flag of the other side, and ours.
    theirs: Word<'a>,
    ours: Word<'a>,
    /// The same two words, bare.
    bare_theirs: MappedU32<'a>,
    bare_ours: MappedU32<'a>,
    wake: bool,
    /// Number of the last message of this side.
    number: u32,
}

impl Side {
    /// Exports `ours`, imports `theirs`, binds it.
    pub(super) fn new(node: Node, ours: &str, theirs: &str, wake: bool) -> Result<Side, GameError> {
        let export = node
            .export(Region::new(LEN)?)
            .name(ours)
            .grant(Who::SameUser, Rights::WRITE | Rights::READ | Rights::BIND)
            .open()?;
        let rights = Rights::WRITE | Rights::READ | Rights::BIND;
        let import = node.import(theirs).rights(rights).open()?;
        let binding = import.bind(0..LEN)?;
        // Neither zero nor a small number: never taken for a flag.
        let source = vec![0xa5; LARGEST];
        let target = vec![0; LARGEST];
        Ok(Side { node, binding, import, export, source, target, wake })
    }

    /// Bytes this process copied so far, and bytes it sent by deliberate update.
    pub(super) fn copied_and_sent(&self) -> (u64, u64) {
        let counters = self.node.counters();
        (counters.get(index::COPIED_BYTES), counters.get(index::SEND_BYTES))
    }

    /// The whole buffer of the other side, as bound.
    pub(super) fn bound(&self) -> vmmc::mem::View<'_> {
        self.binding.view()
    }

    /// Sets the board. Both sides must have done so before the first message: it wipes what
    /// earlier games left where the flag will be.
    pub(super) fn game(&mut self, strategy: Strategy, size: usize) -> Result<Game<'_>, GameError> {
        let (at, flag_at) = place(size);
        self.export.write(flag_at, &[0; 4])?;
        Ok(Game {
            strategy,
            at,
            binding: &self.binding,
            import: &self.import,
            export: &self.export,
            message: self.source.get(..size).unwrap_or_default(),
            target: self.target.get_mut(..size).unwrap_or_default(),
            theirs: if strategy.is_automatic() {
                self.binding.flag32(flag_at)?
            } else {
                self.import.flag32(flag_at)?
            },
            ours: self.export.flag32(flag_at)?,
            bare_theirs: self.binding.view().word32(flag_at)?,
            bare_ours: self.export.view().word32(flag_at)?,
            wake: self.wake,
            number: 0,
        })
    }
}

impl Game<'_> {
    #[inline]
    fn send(&self, number: u32) -> Result<(), GameError> {
        match self.strategy {
            Strategy::Bare if !self.wake => {
                self.bare_theirs.store(number, Ordering::Release);
                return Ok(());
            }
            Strategy::Bare | Strategy::AuWord => {}
            Strategy::Au1 | Strategy::Au2 => self.binding.write(self.at, self.message)?,
            Strategy::Du0 | Strategy::Du1 => self.import.send(self.at, self.message)?,
        }
        if self.wake {
            self.theirs.signal(number)?
        } else {
            self.theirs.store(number)?
        }
        Ok(())
    }

    /// Waits for message `number`, or for the end of the game (false).
    #[inline]
    fn receive(&mut self, number: u32) -> Result<bool, GameError> {
        let wanted = |value| value == number || value == STOP;
        let found = if self.strategy == Strategy::Bare && !self.wake {
            loop {
                let value = self.bare_ours.load(Ordering::Acquire);
                if wanted(value) {
                    break value;
                }
                std::hint::spin_loop();
            }
        } else {
            self.ours.wait_until(wanted, None)?
        };
        if found == STOP {
            return Ok(false);
        }
        if self.strategy.receiver_copies() {
            self.export.read(self.at, self.target)?;
        }
        Ok(true)
    }

    /// One round trip, begun here.
    #[inline]
    pub(super) fn round_trip(&mut self) -> Result<(), GameError> {
        self.number += 1;
        self.send(self.number)?;
        self.receive(self.number).map(drop)
    }

    /// Ends the game for the other side.
    pub(super) fn stop(&self) -> Result<(), GameError> {
        Ok(self.theirs.signal(STOP)?)
    }

    /// Answers round trips until the other side stops.
    fn answer(&mut self) -> Result<(), GameError> {
        for number in 1.. {
            if !self.receive(number)? {
                break;
            }
            self.send(number)?;
        }
        Ok(())
    }
}

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// The daemon's socket.
    socket: PathBuf,
    /// Name of our export, and of the other side's.
    ours: String,
    theirs: String,
    /// Poll for ever.
    #[arg(long)]
    spin: bool,
}

/// `shrimp __perf-vmmc-peer`: reads `STRATEGY SIZE` lines, says `ready`, plays, says
/// `done COPIED SENT`.
pub(crate) fn serve(args: &PeerArgs) -> Result<(), Failure> {
    let node = connect(&args.socket, args.spin)?;
    let mut side = Side::new(node, &args.ours, &args.theirs, !args.spin)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context(|| "reading what to play".into())?;
        let mut words = line.split_whitespace();
        let strategy = words.next().and_then(Strategy::parse);
        let size = words.next().and_then(|word| word.parse::<usize>().ok());
        let (Some(strategy), Some(size @ 1..=LARGEST)) = (strategy, size) else {
            return Err(GameError::Peer(line).into());
        };
        let mut game = side.game(strategy, size)?;
        say("ready")?;
        game.answer()?;
        let (copied, sent) = side.copied_and_sent();
        say(&format!("done {copied} {sent}"))?;
    }
    Ok(())
}

fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context(|| "telling the parent".into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_shares_a_cache_line_with_its_flag_and_a_long_one_ends_at_it() {
        for size in [1, 4, 8, 16, 32, SHORT] {
            let (at, flag) = place(size);
            assert!(at + size <= flag && flag + 4 <= 64);
            assert_eq!(at % 8, 0);
        }
        for size in [SHORT + 1, 64, 100, 4096, LARGEST] {
            let (at, flag) = place(size);
            assert_eq!(at, 0);
            assert!(flag >= size && flag < size + 8 && flag % 8 == 0 && flag + 4 <= LEN);
        }
    }

    #[test]
    fn automatic_update_has_one_copy_more_than_deliberate_update() {
        assert_eq!(Strategy::Au1.copies(), Strategy::Du0.copies() + 1);
        assert_eq!(Strategy::Au2.copies(), Strategy::Du1.copies() + 1);
        for strategy in Strategy::FIGURE {
            assert_eq!(Strategy::parse(strategy.name()), Some(strategy));
        }
    }
}
