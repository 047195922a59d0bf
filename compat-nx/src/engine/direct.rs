//! From user memory to user memory: windows of the receiver's, pushed into by one sender.
//!
//! A *window* is the whole pages of a receive buffer, exported in place to the one process that sends large
//! messages into it (N21); the bytes before its first and behind its last page go by the safe copy,
//! so that no neighbour of the buffer is ever shared. Making one costs trips to the daemon for both, so
//! it is made when a buffer is used again (`NX_DIRECT_AFTER`), and kept (N12).
//!
//! ```text
//!   sender                                   receiver
//!   scout ------------------------------->   matches a receive; its buffer has a window
//!   copies to its safe copy ...              go := where (release)
//!   sees go between two pieces:
//!     staged := DIRECT
//!     sends from user memory, all of it
//!     staged := DIRECT | DONE ------------>  complete
//!   or has copied all before it saw go:
//!     staged := length, and returns ------>  fetches the safe copy
//! ```
//!
//! Only the sender decides which of the two happens, with its staged word, so both sides agree.
//!
//! **Memory that the program has given back.** A window outlives the receive, and the program may
//! unmap its buffer meanwhile (`free` does) and get other memory at the same address. Bytes put
//! into the window then would reach nobody. So before each `go` the receiver writes a fresh number
//! into each page through a second mapping of the window, in bytes that the message will cover, and
//! looks for it in the buffer itself. A window that fails is forgotten.
#![allow(unsafe_code)] // remaps memory of the program; each block has its proof

use super::peer::Own;
use super::types::Target;
use super::{fork, layout};
use crate::error::NxError;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc::{Export, Import, Node, Region, Rights, Who};

/// Most windows of a process.
const MOST: usize = 64;
/// Most buffers whose uses are counted.
const MOST_COUNTED: usize = 1024;
/// Windows are whole pages of this size: the smallest of all supported machines.
const PAGE: usize = 4096;

/// A window of the receiver's.
#[derive(Debug)]
struct Window {
    /// `None` once it was found stale: its number stays taken.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    start: usize,
    len: usize,
    export: Export,
    /// The second mapping.
    alias: Import,
    /// Its row in the table for forked children.
    row: usize,
}

/// All windows of a process, and which buffers were used how often.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// By sender, in the order of their numbers.
    of: HashMap<u32, Vec<Window>>,
    uses: HashMap<(u32, usize), u32>,
    open: usize,
    nonce: u64,
}

/// What a go record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Go {
    /// Number of the window, counted by the receiver per sender.
    pub(super) window: u32,
    /// Where in the window.
    pub(super) offset: u64,
    /// First byte of the message that goes there.
    pub(super) first: u64,
    /// How many bytes go there.
    pub(super) len: u64,
}

fn name(own: &Own, receiver: u32, sender: u32, window: usize) -> String {
    format!("nx/{}/{sender}>{receiver}/window/{window}", own.id)
}

/// What the windows are made with.
pub(super) struct Maker<'e> {
    pub(super) node: &'e Node,
    pub(super) own: &'e Own,
    pub(super) sender: u32,
    /// The sender's process id.
    pub(super) pid: u32,
    /// `NX_DIRECT_AFTER`.
    pub(super) after: u32,
}

/// The whole pages of `len` bytes at `start`.
fn pages(start: usize, len: usize) -> Option<(usize, usize)> {
    let first = start.checked_next_multiple_of(PAGE)?;
    let end = start.checked_add(len)? / PAGE * PAGE;
    (end > first).then(|| (first, end - first))
}

impl Windows {
    /// Where the sender may put a message of `len` bytes for this room, if the room has a window or is
    /// worth one. The second value is the number of trips to the daemon made.
    pub(super) fn open_for(
        &mut self,
        maker: &Maker<'_>,
        room: Target,
        len: usize,
    ) -> (Option<Go>, u64) {
        let Some((first, inner)) = pages(room.start.addr(), len.min(room.len)) else {
            return (None, 0);
        };
        if len > room.len {
            return (None, 0);
        }
        let mut trips = 0;
        let mut found = self.find(maker.sender, first, inner);
        if let Some(number) = found
            && !self.is_current(maker.sender, number, first, inner)
        {
            self.forget(maker.sender, number);
            found = None;
        }
        if found.is_none() && self.is_worth_one(maker, first) {
            // A failure (memory that cannot be remapped, no descriptors) means: by the safe copy.
            found = self.make(maker, first, inner);
            trips = 2 * u64::from(found.is_some());
        }
        let go = found.and_then(|number| {
            let open = self.of.get(&maker.sender)?.get(number)?.open.as_ref()?;
            Some(Go {
                window: number as u32,
                offset: (first - open.start) as u64,
                first: (first - room.start.addr()) as u64,
                len: inner as u64,
            })
        });
        (go, trips)
    }

    fn find(&self, sender: u32, first: usize, len: usize) -> Option<usize> {
        self.of.get(&sender)?.iter().position(|window| {
            window
                .open
                .as_ref()
                .is_some_and(|open| open.start <= first && first + len <= open.start + open.len)
        })
    }

    /// Whether the pages are still the window's: see the module.
    fn is_current(&mut self, sender: u32, number: usize, first: usize, len: usize) -> bool {
        self.nonce = self.nonce.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let nonce = self.nonce;
        let Some(open) = self.of.get(&sender).and_then(|of| of.get(number)?.open.as_ref()) else {
            return false;
        };
        let Some(alias) = open.alias.proxy_ptr() else { return false };
        // SAFETY: the import maps `alias.len()` bytes there as long as it lives.
        let alias = unsafe { View::from_raw(alias, open.alias.len()) };
        let Some(buffer) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(first)) else {
            return false;
        };
        // SAFETY: inside the room of a receive under way: mapped, by the caller's word, whatever the
        // program did to the window's pages. Nothing else touches it meanwhile.
        let buffer = unsafe { View::from_raw(buffer, len) };
        let offset = first - open.start;
        let each = |step: &dyn Fn(usize, u64) -> bool| {
            (0..len).step_by(PAGE).all(|at| step(at, nonce ^ at as u64))
        };
        each(&|at, number| {
            let word = alias.word64(offset + at);
            word.map(|word| word.store(number, Ordering::Relaxed)).is_ok()
        }) && {
            vmmc::sync::fence(Ordering::SeqCst);
            each(&|at, number| {
                buffer.word64(at).is_ok_and(|word| word.load(Ordering::Relaxed) == number)
            })
        }
    }

    /// Counts a use of the buffer.
    fn is_worth_one(&mut self, maker: &Maker<'_>, first: usize) -> bool {
        if self.open >= MOST {
            return false;
        }
        if self.uses.len() >= MOST_COUNTED {
            self.uses.clear();
        }
        let uses = self.uses.entry((maker.sender, first)).or_default();
        *uses = uses.saturating_add(1);
        *uses > maker.after
    }

    fn make(&mut self, maker: &Maker<'_>, start: usize, len: usize) -> Option<usize> {
        if !is_private_memory(start, len) {
            return None;
        }
        let windows = self.of.entry(maker.sender).or_default();
        let number = windows.len();
        let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start))?;
        // SAFETY: whole pages of private writable memory inside the room of a receive under way:
        // nobody touches it meanwhile, no reference into it exists. That it stays is not promised,
        // and is why windows are checked before use and forgotten rather than dropped when stale.
        let region = unsafe { Region::adopt(pointer, len) }.ok()?;
        let row = fork::add(start, len, inode_at(start)?)?;
        let name = name(maker.own, maker.own.number, maker.sender, number);
        let own = std::process::id();
        // A process of another node cannot be named; who has the job's token is one of the job.
        let sender = match maker.own.elsewhere(maker.sender) {
            None => Who::Process(maker.pid),
            Some(_) => Who::SameUser,
        };
        let export = maker
            .node
            .export(region)
            .name(name.as_str())
            .grant(sender, Rights::WRITE)
            .grant(Who::Process(own), Rights::WRITE)
            .token(maker.own.token)
            .open()
            .ok()?;
        let alias = maker
            .node
            .import(name.as_str())
            .token(maker.own.token)
            .timeout(std::time::Duration::ZERO)
            .open()
            .ok()?;
        windows.push(Window { open: Some(Open { start, len, export, alias, row }) });
        self.open += 1;
        Some(number)
    }

    /// A window whose memory the program has given back: nothing of it is touched again.
    fn forget(&mut self, sender: u32, number: usize) {
        if let Some(open) =
            self.of.get_mut(&sender).and_then(|of| of.get_mut(number)).and_then(|it| it.open.take())
        {
            self.open -= 1;
            fork::remove(open.row);
            std::mem::forget(open.export); // a drop would remap the addresses, which are others' now
        }
    }

    /// Ends the windows. Their memory stays what it is, the program's with its bytes: it may have been
    /// freed and be in use for something else by now, so that nothing may be remapped any more.
    pub(super) fn close_all(&mut self) {
        for window in self.of.values_mut().flatten() {
            if let Some(open) = window.open.take() {
                std::mem::forget(open.export);
            }
        }
        self.open = 0;
        self.uses.clear();
    }
}

/// A line of `/proc/self/maps`.
struct Mapping {
    start: usize,
    end: usize,
    private_rw: bool,
    inode: u64,
    is_stack: bool,
}

fn mappings() -> Vec<Mapping> {
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        let inode = fields.nth(2)?.parse().ok()?;
        Some(Mapping {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            private_rw: rights.starts_with("rw") && rights.ends_with('p'),
            inode,
            is_stack: fields.next() == Some("[stack]"),
        })
    };
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Whether mappings that `accept` cover the range without a gap.
fn covered(start: usize, len: usize, accept: impl Fn(&Mapping) -> bool) -> bool {
    let mut at = start;
    for mapping in mappings() {
        if at < start + len && mapping.start <= at && at < mapping.end {
            if !accept(&mapping) {
                return false;
            }
            at = mapping.end;
        }
    }
    at >= start + len
}

/// Memory that may be remapped: private and writable, and not the stack, which grows.
fn is_private_memory(start: usize, len: usize) -> bool {
    covered(start, len, |mapping| mapping.private_rw && !mapping.is_stack)
}

pub(super) fn covers(start: usize, len: usize, inode: u64) -> bool {
    covered(start, len, |mapping| mapping.inode == inode)
}

fn inode_at(start: usize) -> Option<u64> {
    mappings().into_iter().find(|it| it.start <= start && start < it.end).map(|it| it.inode)
}

/// The windows of one receiver that this process, the sender, has imported.
#[derive(Debug, Default)]
pub(super) struct Targets {
    imports: HashMap<u32, Arc<Import>>,
}

/// Windows that one receiver may make, stale ones included.
const MOST_NUMBERS: u32 = 65_536;

impl Targets {
    /// The window; whether it had to be imported. `None` when it is gone: the safe copy does it then.
    pub(super) fn window(
        &mut self,
        node: &Node,
        own: &Own,
        receiver: u32,
        go: &Go,
        len: usize,
    ) -> Result<Option<(Arc<Import>, bool)>, NxError> {
        let fault = |what| NxError::PeerFault { node: receiver, what };
        let end = go.first.checked_add(go.len);
        if go.window >= MOST_NUMBERS || end.is_none_or(|end| end > len as u64) {
            return Err(fault("a reply that does not fit the message"));
        }
        let (import, made) = match self.imports.get(&go.window) {
            Some(import) => (import.clone(), false),
            None => {
                let import = own
                    .import(node, receiver, name(own, receiver, own.number, go.window as usize))
                    .timeout(std::time::Duration::ZERO)
                    .open();
                let Ok(import) = import else { return Ok(None) };
                let import = Arc::new(import);
                self.imports.insert(go.window, import.clone());
                (import, true)
            }
        };
        let end = go.offset.checked_add(go.len);
        if end.is_none_or(|end| end > import.len() as u64) {
            return Err(fault("a reply beyond its window"));
        }
        Ok(Some((import, made)))
    }
}

impl Go {
    /// Writes the record; its first word last.
    pub(super) fn write(self, peer: &super::peer::Peer, block: u32) {
        let at = layout::GO + layout::GO_LEN * block as usize;
        for (i, word) in [self.offset, self.first, self.len].into_iter().enumerate() {
            peer.out.say64(at + 8 + 8 * i, word);
        }
        // PAIRS(go): with the acquire in `read`.
        peer.out.say64(at, u64::from(self.window) + 1);
    }

    /// The record, if it is there.
    pub(super) fn read(peer: &super::peer::Peer, block: u32) -> Option<Go> {
        let at = layout::GO + layout::GO_LEN * block as usize;
        // PAIRS(go): with the release in `write`.
        let window = peer.in64(at).load(Ordering::Acquire).checked_sub(1)?;
        let word = |i: usize| peer.in64(at + 8 * i).load(Ordering::Relaxed);
        Some(Go {
            window: u32::try_from(window).unwrap_or(u32::MAX),
            offset: word(1),
            first: word(2),
            len: word(3),
        })
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_inside_the_buffer_are_taken() {
        assert_eq!(pages(PAGE, 2 * PAGE), Some((PAGE, 2 * PAGE)));
        assert_eq!(pages(PAGE + 1, 2 * PAGE), Some((2 * PAGE, PAGE)));
        assert_eq!(pages(PAGE - 1, PAGE), None);
        assert_eq!(pages(usize::MAX - 5, 3), None);
    }

    #[test]
    fn stacks_and_what_is_not_mapped_are_not_remapped() {
        let heap = vec![1u8; 64 * PAGE];
        let (start, len) = pages(heap.as_ptr().addr(), heap.len()).unwrap();
        assert!(is_private_memory(start, len));
        assert!(!is_private_memory(0, PAGE));
        assert!(!is_private_memory(start, usize::MAX / 2));
    }
}
