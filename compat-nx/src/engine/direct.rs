//! From user memory to user memory: windows of the receiver's, pushed into by one sender.
//!
//! A *window* is the whole pages of a buffer, exported in place to the one process that sends large
//! messages into it (N21), or gets them from it; the bytes before its first and behind its last page go by the safe copy,
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
//! Only the sender decides which of the two happens, with its staged word, so both sides agree. Where the sender's buffer is in
//! a window of its own, too, the scout says where, and both copy: see [`super::share`]. That is faster than two copies from
//! `NX_SHARE` bytes on, and pushing alone from `NX_DIRECT` on.
//!
//! **Memory that the program has given back.** A window outlives the receive, and the program may
//! unmap its buffer meanwhile (`free` does) and get other memory at the same address. Bytes put
//! into the window then would reach nobody. So before each `go` the receiver asks the kernel whether the
//! buffer's pages are still those of the window's file. Where it cannot be asked (before Linux 6.11), the
//! receiver writes a fresh number into each page through a second mapping of the window, in bytes that
//! the message will cover, and looks for it in the buffer itself: for 4 MiB 36 microseconds where the
//! question takes 3. A window that fails is forgotten, and what is there now may become another. Bytes that are to be sent
//! cannot be written over: the sender's own windows are only where the kernel can be asked.
//!
//! Often only some of the pages were given back: an allocator cuts off the end of its heap, and lets it grow again. The others are
//! *left*: still of the window's file, though no message comes that way. They are noted, so that they can be part of
//! another window, and that a forked child gets its own.
#![allow(unsafe_code)] // remaps memory of the program; each block has its proof

use super::mappings::{Asker, Backing, File, backing_at, first_of, is_private_memory};
use super::peer::Own;
use super::types::{Source, Target};
use super::{fork, layout, noted, stacks};
use crate::error::NxError;
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc::{Export, Import, Node, Region, Rights, Who};

/// Most windows of a process.
const MOST: usize = 64;
/// Large messages between two looks for windows whose memory the program has given back; fewer while there are as many windows as may
/// be.
const SWEEPS: [u32; 2] = [256, 16];
/// Most buffers whose uses are counted.
const MOST_COUNTED: usize = 1024;
/// Windows are whole pages of this size: the smallest of all supported machines.
pub(super) const PAGE: usize = 4096;

/// A window of this process.
#[derive(Debug)]
struct Window {
    /// `None` once it was found stale: its number stays taken.
    open: Option<Open>,
}

/// A window that lies in the pages of one to be made.
struct Inside {
    other: u32,
    number: usize,
    start: usize,
    len: usize,
    file: File,
}

#[derive(Debug)]
struct Open {
    start: usize,
    len: usize,
    export: Export,
    /// What it was mapped to when it was made.
    backing: Backing,
    /// The second mapping, where the kernel cannot be asked.
    alias: Option<Import>,
    /// Its row in the table for forked children.
    noted: noted::Noted,
    /// Messages were only sent from it so far: it gives way to one that they are received into.
    only_sent: bool,
    /// Messages under way that their receiver may read in it.
    offered: u32,
    /// The program has given its memory back; it stays open for those messages.
    is_stale: bool,
}

/// Where pages may be that were left of a window.
#[derive(Debug)]
struct Left {
    range: Range<usize>,
    file: File,
    /// The window's row in the table for forked children.
    noted: noted::Noted,
}

impl Left {
    fn is_there(&self) -> bool {
        first_of(self.range.clone(), self.file).is_some()
    }
}

impl Open {
    /// Ends it, as what may be left of it.
    fn abandon(self) -> Left {
        let Open { start, len, export, backing, noted, .. } = self;
        export.abandon();
        Left { range: start..start + len, file: backing.file, noted }
    }
}

/// All windows of a process, and which buffers were used how often.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// By the other process, in the order of their numbers.
    of: HashMap<u32, Vec<Window>>,
    left: Vec<Left>,
    uses: HashMap<(u32, usize), Uses>,
    open: usize,
    /// Large messages since the last look for stale ones.
    unswept: u32,
    nonce: u64,
    /// Made when first needed; `Some(None)`: the kernel cannot be asked.
    asker: Option<Option<Asker>>,
}

/// How often a buffer was used since it last had a window, or could not get one.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    count: u32,
    /// Windows of it whose memory the program had given back when it was used again, and those that could not be made.
    vain: u32,
    /// Longest message that its windows were too short for.
    beyond: usize,
}

impl Uses {
    /// Whether the buffer is worth a window. A window that was made in vain, or tried, cost more than one copy: each time four
    /// times as many uses are asked for, so that a buffer which is new memory every time goes by the safe copy.
    fn are_enough(self, after: u32) -> bool {
        let asked = after.saturating_add(1).saturating_mul(4u32.saturating_pow(self.vain));
        self.count >= asked
    }
}

/// Where in a window a part of a message is, or belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// Number of the window, counted by its owner per other process.
    pub(super) window: u32,
    /// Where in the window.
    pub(super) offset: u64,
    /// First byte of the message that is there.
    pub(super) first: u64,
    /// How many bytes are there.
    pub(super) len: u64,
}

impl Spot {
    /// All whole pages of a message of `total` bytes, the first of which is its byte `first`.
    pub(super) fn of(window: u32, offset: u64, first: u64, total: u64) -> Spot {
        let page = PAGE as u64;
        Spot { window, offset, first, len: total.saturating_sub(first) / page * page }
    }
}

fn name(own: &Own, owner: u32, other: u32, window: usize) -> String {
    format!("nx/{}/{other}>{owner}/window/{window}", own.id)
}

/// What the windows are made with.
pub(super) struct Maker<'e> {
    pub(super) node: &'e Node,
    pub(super) own: &'e Own,
    /// The other process.
    pub(super) other: u32,
    /// Its process id.
    pub(super) pid: u32,
    /// `NX_DIRECT_AFTER`.
    pub(super) after: u32,
    /// `NX_DIRECT_CHECK`: the kernel is not asked.
    pub(super) by_pages: bool,
    /// Whether a message of a process may be on its way into a window of its.
    pub(super) is_busy: &'e dyn Fn(u32, u32) -> bool,
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
    ) -> (Option<Spot>, u64) {
        let Some((first, inner)) = pages(room.start.addr(), len.min(room.len)) else {
            return (None, 0);
        };
        if len > room.len {
            return (None, 0);
        }
        self.sweep_at_times(maker);
        let mut trips = 0;
        let mut found = self.find(maker.other, first, inner);
        if let Some(number) = found {
            if self.is_current(maker.other, number, first, inner) {
                self.note_receive(maker.other, number);
            } else {
                self.forget_stale(maker.other, number, first);
                found = None;
            }
        }
        if found.is_none() && self.is_worth_one(maker, first, inner) {
            (found, trips) = self.make(maker, first, inner, false);
        }
        let spot =
            found.and_then(|number| self.spot(maker.other, number, first, room.start.addr(), len));
        (spot, trips)
    }

    /// Where the other process may read a message itself, if its memory has a window or is worth one, and if
    /// [`Windows::confirm`] says so afterwards. The window stays open until [`Windows::end_offer`]. The second value is the number
    /// of trips to the daemon made.
    pub(super) fn offer(&mut self, maker: &Maker<'_>, data: Source) -> (Option<Spot>, u64) {
        let start = data.start.addr();
        let Some((first, inner)) = pages(start, data.len) else { return (None, 0) };
        self.sweep_at_times(maker);
        let mut trips = 0;
        let mut found = self.find(maker.other, first, inner);
        if found.is_none() && self.can_ask(maker) && self.is_worth_one(maker, first, inner) {
            (found, trips) = self.make(maker, first, inner, true);
        }
        let spot = found.and_then(|number| self.spot(maker.other, number, first, start, data.len));
        if let Some(open) = found.and_then(|number| self.open_mut(maker.other, number)) {
            open.offered += 1;
        }
        (spot, trips)
    }

    /// The message that was offered is sent: its receiver needs to read no more of it.
    pub(super) fn end_offer(&mut self, other: u32, offer: &Spot) {
        let number = offer.window as usize;
        let Some(open) = self.open_mut(other, number) else { return };
        open.offered -= 1;
        if open.offered == 0
            && open.is_stale
            && let Some(left) = self.forget(other, number)
        {
            self.leave(left);
        }
    }

    /// Whether what was offered is in the window still.
    pub(super) fn confirm(&mut self, other: u32, offer: &Spot) -> bool {
        let number = offer.window as usize;
        let Some(open) = self.open(other, number).filter(|open| open.alias.is_none()) else {
            return false;
        };
        let first = open.start + offer.offset as usize;
        let is_current = self.is_current(other, number, first, offer.len as usize);
        if !is_current {
            self.forget_stale(other, number, first);
        }
        is_current
    }

    fn spot(
        &self,
        other: u32,
        number: usize,
        first: usize,
        start: usize,
        total: usize,
    ) -> Option<Spot> {
        let open = self.open(other, number)?;
        let offset = (first - open.start) as u64;
        Some(Spot::of(number as u32, offset, (first - start) as u64, total as u64))
    }

    fn open(&self, other: u32, number: usize) -> Option<&Open> {
        self.of.get(&other)?.get(number)?.open.as_ref()
    }

    fn open_mut(&mut self, other: u32, number: usize) -> Option<&mut Open> {
        self.of.get_mut(&other)?.get_mut(number)?.open.as_mut()
    }

    fn find(&self, other: u32, first: usize, len: usize) -> Option<usize> {
        self.of.get(&other)?.iter().position(|window| {
            window.open.as_ref().is_some_and(|open| {
                !open.is_stale && open.start <= first && first + len <= open.start + open.len
            })
        })
    }

    fn note_receive(&mut self, other: u32, number: usize) {
        if let Some(open) = self.open_mut(other, number) {
            open.only_sent = false;
        }
    }

    /// Of a window whose memory at `first` is no more the window's. One with messages under way, from other memory of it, is
    /// forgotten when they are sent.
    fn forget_stale(&mut self, other: u32, number: usize, first: usize) {
        if let Some(open) = self.open_mut(other, number).filter(|open| open.offered > 0) {
            open.is_stale = true;
        } else if let Some(left) = self.forget(other, number) {
            self.leave(left);
        }
        self.note_vain(other, first);
    }

    /// Notes what may be left of a window.
    fn leave(&mut self, left: Left) {
        if left.is_there() {
            self.left.push(left);
        }
    }

    fn note_vain(&mut self, other: u32, first: usize) {
        let uses = self.uses.entry((other, first)).or_default();
        *uses = Uses { count: 0, vain: uses.vain.saturating_add(1), ..*uses };
    }

    fn can_ask(&mut self, maker: &Maker<'_>) -> bool {
        self.asker.get_or_insert_with(|| Asker::new().filter(|_| !maker.by_pages)).is_some()
    }

    /// Whether the pages are still the window's: see the module.
    fn is_current(&mut self, other: u32, number: usize, first: usize, len: usize) -> bool {
        // Not by `open`: other fields change meanwhile.
        let Some(open) = self.of.get(&other).and_then(|of| of.get(number)?.open.as_ref()) else {
            return false;
        };
        let offset = first - open.start;
        if let Some(alias) = &open.alias {
            self.nonce = self.nonce.wrapping_add(0x9e37_79b9_7f4a_7c15);
            return has_numbers(alias, offset, first, len, self.nonce);
        }
        let asker = self.asker.get_or_insert_default();
        Asker::ask(asker, first, len, open.backing.at(offset))
    }

    fn sweep_at_times(&mut self, maker: &Maker<'_>) {
        let [every, soon] = SWEEPS;
        self.unswept += 1;
        let due = if self.open < MOST { every } else { soon };
        if self.unswept >= due {
            self.sweep(maker, &(0..0));
        }
    }

    /// Forgets the windows whose memory the program has given back and may never use for messages again: they would keep it from
    /// the system, and other buffers from having windows. Not those that reach into `but`.
    fn sweep(&mut self, maker: &Maker<'_>, but: &Range<usize>) {
        self.unswept = 0;
        let mut idle = Vec::new();
        for (&other, of) in &self.of {
            for (number, window) in of.iter().enumerate() {
                let Some(open) = &window.open else { continue };
                // To look page by page writes to it.
                let reaches_in = but.start < open.start + open.len && open.start < but.end;
                if open.alias.is_none()
                    && !reaches_in
                    && open.offered == 0
                    && !(maker.is_busy)(other, number as u32)
                {
                    idle.push((other, number, open.start, open.len));
                }
            }
        }
        for (other, number, start, len) in idle {
            if self.is_current(other, number, start, len) {
                continue;
            }
            if !self.can_ask(maker) {
                return; // it is not known
            }
            self.forget_stale(other, number, start);
        }
    }

    /// Counts a use of the buffer: anew, if it is for a longer message than before.
    fn is_worth_one(&mut self, maker: &Maker<'_>, first: usize, len: usize) -> bool {
        if self.open >= MOST {
            return false;
        }
        if self.uses.len() >= MOST_COUNTED {
            self.uses.clear();
        }
        let uses = self.uses.entry((maker.other, first)).or_default();
        if uses.beyond < len {
            (uses.beyond, uses.count) = (len, 0);
        }
        uses.count = uses.count.saturating_add(1);
        uses.are_enough(maker.after)
    }

    /// The windows that lie in these pages and give way: the other's that nothing is on its way into or from, and for a buffer that
    /// is to be received into those that messages were only sent from, whomever to. Of those whose pages are not all theirs any more
    /// the rest is noted.
    fn inside(&mut self, maker: &Maker<'_>, first: usize, len: usize, sends: bool) -> Vec<Inside> {
        let range = first..first + len;
        let mut inside = Vec::new();
        for (&other, of) in &self.of {
            for (number, window) in of.iter().enumerate() {
                let Some(open) = &window.open else { continue };
                let (start, len) = (open.start, open.len);
                let lies = range.start <= start && start + len <= range.end;
                let gives_way = lies && (other == maker.other || open.only_sent && !sends);
                // To look page by page writes to all of it.
                let reaches_in = range.start < start + len && start < range.end;
                let may_look = lies || reaches_in && open.alias.is_none();
                if may_look && open.offered == 0 && !(maker.is_busy)(other, number as u32) {
                    let file = open.backing.file;
                    inside.push((gives_way, Inside { other, number, start, len, file }));
                }
            }
        }
        let mut is_current = |it: &Inside| self.is_current(it.other, it.number, it.start, it.len);
        let (mut inside, stale): (Vec<_>, Vec<_>) =
            inside.into_iter().partition(|(_, it)| is_current(it));
        for (_, it) in stale {
            if let Some(left) = self.forget(it.other, it.number) {
                self.leave(left);
            }
        }
        inside.retain(|(gives_way, _)| *gives_way);
        inside.into_iter().map(|(_, it)| it).collect()
    }

    /// Makes a window; its number, and the trips to the daemon made. A failure (memory that cannot be remapped, no descriptors)
    /// means: by the safe copy, and not to be tried again soon.
    fn make(
        &mut self,
        maker: &Maker<'_>,
        start: usize,
        len: usize,
        sends: bool,
    ) -> (Option<usize>, u64) {
        let made = self.try_make(maker, start, len, sends);
        let by_pages = matches!(self.asker, Some(None));
        if made.is_none() {
            self.note_vain(maker.other, start);
        }
        (made, (1 + u64::from(by_pages)) * u64::from(made.is_some()))
    }

    fn try_make(
        &mut self,
        maker: &Maker<'_>,
        start: usize,
        len: usize,
        sends: bool,
    ) -> Option<usize> {
        let number = self.of.get(&maker.other).map_or(0, Vec::len);
        if number >= MOST_NUMBERS as usize {
            return None; // the other would take it for nonsense
        }
        if self.left.len() >= MOST {
            self.left.retain(Left::is_there);
        }
        if self.left.len() >= MOST {
            return None;
        }
        let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start))?;
        self.sweep(maker, &(start..start + len));
        // Those of shorter messages end: memory is in one at a time.
        let inside = self.inside(maker, start, len, sends);
        let left = self.left.iter().map(|left| left.file);
        let theirs: Vec<_> = inside.iter().map(|it| it.file).chain(left).collect();
        if stacks::are_in(&(start..start + len)) || !is_private_memory(start, len, &theirs) {
            return None;
        }
        // Until it is noted.
        let out = fork::Out::keep()?;
        let forgotten: Vec<_> =
            inside.iter().filter_map(|it| self.forget(it.other, it.number)).collect();
        // SAFETY: whole pages of private writable memory, or of windows that have ended, inside the room of a receive under way:
        // nobody touches it meanwhile, no reference into it exists; or inside what is being sent: nobody writes to it
        // meanwhile, and the only reference is the one that the engine makes for the length of a copy. That it stays is not promised,
        // and is why windows are checked before use and forgotten rather than dropped when stale.
        let region = match unsafe { Region::adopt(pointer, len) } {
            Ok(region) => region,
            Err(_) => {
                self.left.extend(forgotten);
                return None;
            }
        };
        self.left.retain(Left::is_there);
        let backing = backing_at(start)?;
        let noted = noted::add(start, len, backing.file)?;
        drop(out);
        let name = name(maker.own, maker.own.number, maker.other, number);
        let own = std::process::id();
        // A process of another node cannot be named; who has the job's token is one of the job.
        let other = match maker.own.elsewhere(maker.other) {
            None => Who::Process(maker.pid),
            Some(_) => Who::SameUser,
        };
        let export = maker
            .node
            .export(region)
            .name(name.as_str())
            .grant(other, Rights::WRITE | Rights::READ)
            .grant(Who::Process(own), Rights::WRITE)
            .token(maker.own.token)
            .open()
            .ok()?;
        let alias = match self.can_ask(maker) {
            true => None,
            false => {
                let alias = maker.node.import(name.as_str()).token(maker.own.token);
                Some(alias.timeout(std::time::Duration::ZERO).open().ok()?)
            }
        };
        let (offered, is_stale, only_sent) = (0, false, sends);
        let open = Open { start, len, export, backing, alias, noted, only_sent, offered, is_stale };
        self.of.entry(maker.other).or_default().push(Window { open: Some(open) });
        self.open += 1;
        Some(number)
    }

    /// A window whose memory the program has given back, or is to be another's: nothing at its addresses is touched.
    /// What is returned is what may be left of it.
    fn forget(&mut self, other: u32, number: usize) -> Option<Left> {
        let open = self.of.get_mut(&other)?.get_mut(number)?.open.take()?;
        self.open -= 1;
        Some(open.abandon())
    }

    /// Ends a window that a message may be on its way into, whose receive is given up: the room is the program's again. Whoever
    /// sends there from here on reaches nobody; who is in the middle of it is waited for, `VMMC_DRAIN_MS` at most.
    pub(super) fn revoke(&mut self, sender: u32, number: u32, room: Target) {
        let number = number as usize;
        let open = self.open(sender, number).map(|open| (open.start, open.len));
        let Some((start, len)) = open else { return };
        let inside = room.start.addr() <= start && start + len <= room.start.addr() + room.len;
        // Only what is inside may be looked at: it can take stores.
        let is_current = inside && self.is_current(sender, number, start, len);
        let window = self.of.get_mut(&sender).and_then(|of| of.get_mut(number));
        let Some(open) = window.and_then(|window| window.open.take()) else { return };
        self.open -= 1;
        match (is_current, inside) {
            // Nobody else uses these pages, which may be swapped therefore: also a sender that is stopped in the middle keeps
            // the old ones.
            (true, true) => drop(open.export),
            _ => self.leave(open.abandon()),
        }
    }

    /// Ends the windows. Their memory stays what it is, the program's with its bytes: it may have been
    /// freed and be in use for something else by now, so that nothing may be remapped any more.
    pub(super) fn close_all(&mut self) {
        for window in self.of.values_mut().flatten() {
            if let Some(open) = window.open.take() {
                std::mem::forget(open.export);
                std::mem::forget(open.noted); // children go on getting private copies
            }
        }
        for left in self.left.drain(..) {
            std::mem::forget(left.noted);
        }
        self.open = 0;
        self.uses.clear();
    }
}

/// Writes a number into each page of a window through its second mapping, and looks for it in the buffer.
fn has_numbers(alias: &Import, offset: usize, first: usize, len: usize, nonce: u64) -> bool {
    let Some(there) = alias.proxy_ptr() else { return false };
    // SAFETY: the import maps `alias.len()` bytes there as long as it lives.
    let alias = unsafe { View::from_raw(there, alias.len()) };
    let Some(buffer) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(first)) else {
        return false;
    };
    // SAFETY: inside the room of a receive under way: mapped, by the caller's word, whatever the
    // program did to the window's pages. Nothing else touches it meanwhile.
    let buffer = unsafe { View::from_raw(buffer, len) };
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

/// The windows of one other process that this one has imported.
#[derive(Debug, Default)]
pub(super) struct Targets {
    imports: HashMap<u32, Arc<Import>>,
    /// Messages since the last look for those that their owner has forgotten.
    unswept: u32,
}

/// Windows that one process may make for another, stale ones included.
const MOST_NUMBERS: u32 = 65_536;

impl Targets {
    /// The window; whether it had to be imported. `None` when it is gone: the safe copy does it then.
    pub(super) fn window(
        &mut self,
        node: &Node,
        own: &Own,
        owner: u32,
        spot: &Spot,
        len: usize,
    ) -> Result<Option<(Arc<Import>, bool)>, NxError> {
        let fault = |what| NxError::PeerFault { node: owner, what };
        let end = spot.first.checked_add(spot.len);
        if spot.window >= MOST_NUMBERS || end.is_none_or(|end| end > len as u64) {
            return Err(fault("a place in a window that does not fit the message"));
        }
        self.unswept += 1;
        if self.unswept >= SWEEPS[0] {
            self.sweep();
        }
        let (import, made) = match self.imports.get(&spot.window) {
            // Its number never comes again.
            Some(import) if import.check_open().is_err() => return Ok(None),
            Some(import) => (import.clone(), false),
            None => {
                let import = own
                    .import(node, owner, name(own, owner, own.number, spot.window as usize))
                    .rights(Rights::WRITE | Rights::READ)
                    .timeout(std::time::Duration::ZERO)
                    .open();
                let Ok(import) = import else { return Ok(None) };
                let import = Arc::new(import);
                self.sweep();
                self.imports.insert(spot.window, import.clone());
                (import, true)
            }
        };
        let end = spot.offset.checked_add(spot.len);
        if end.is_none_or(|end| end > import.len() as u64) {
            return Err(fault("a place beyond its window"));
        }
        Ok(Some((import, made)))
    }

    /// Of those that the owner has forgotten nothing is kept.
    fn sweep(&mut self) {
        self.unswept = 0;
        self.imports.retain(|_, import| import.check_open().is_ok());
    }
}

impl Spot {
    /// Writes a go record; its first word last.
    pub(super) fn write(self, peer: &super::peer::Peer, block: u32) {
        let at = layout::GO + layout::GO_LEN * block as usize;
        for (i, word) in [self.offset, self.first, self.len].into_iter().enumerate() {
            peer.out.say64(at + 8 + 8 * i, word);
        }
        // PAIRS(go): with the acquire in `read`.
        peer.out.say64(at, u64::from(self.window) + 1);
    }

    /// The go record, if it is there.
    pub(super) fn read(peer: &super::peer::Peer, block: u32) -> Option<Spot> {
        let at = layout::GO + layout::GO_LEN * block as usize;
        // PAIRS(go): with the release in `write`.
        let window = peer.in64(at).load(Ordering::Acquire).checked_sub(1)?;
        let word = |i: usize| peer.in64(at + 8 * i).load(Ordering::Relaxed);
        Some(Spot {
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
}
