//! Frames over a fabric: a byte stream each way, by remote writes alone.
//!
//! ```text
//!      sender                                            interface
//!   outgoing area  -- fi_writedata(record, number) -->  incoming FIFO  --> checked, then exported pages
//!   freed up to    <-- fi_writedata(8 bytes, number) --  taken up to
//! ```
//!
//! Each end has memory that its peer writes, and nobody else: a key of random bits opens it, which
//! only the peer was told, sealed. That is the paper's incoming FIFO: what lies in it is checked
//! against the page tables and only then moved on, so that rights, disabled pages and back-pressure are those
//! of the other engines, and hardware that knows nothing of pages cannot go around them. The price is one copy by
//! the receiving interface; where that has opened windows to the pages, long messages go past it
//! ([`Fifo::write_window`]).
//!
//! A stream is cut into **records**: length and number, eight bytes, little-endian; then the bytes, filled up to
//! a multiple of eight. A record never wraps around the end; one of no bytes fills a rest of eight. Each
//! record is one remote write, from the same place of the sender's own copy of the memory, and its number
//! comes with it in the completion ([`Happened::Arrived`]). Records are taken in the order of
//! their numbers, in whatever order the fabric delivers them: none is relied upon. Room is given back by
//! the number of the last record taken, at the latest when a quarter of the memory is owed.

mod owed;

use crate::control::network::{FabricAt, Meeting};
use crate::fabric::{Domain, Endpoint, FabricError, Happened, PIECE, Target};
use crate::mem::View;
use crate::sys::mmap::GuardedMapping;
use crate::transport::net::vain;
use crate::transport::ofi::receipts::has_ended;
use owed::Open;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes on their way at once, in each direction.
pub const LEN: usize = 512 * 1024;
/// Where, behind the FIFO, room is given back; what is written there is of no account.
const CELL: usize = LEN;
const AREA: usize = LEN + 4096;
/// Bytes in front of a record.
const HEAD: usize = 8;
/// Longest record: a long transfer is put and taken at the same time.
const MAX_RECORD: usize = 64 * 1024;
/// Room that may be owed.
const OWED: u64 = LEN as u64 / 4;
/// In the completion's 32 bits: room is given back, and no record has come.
const FREED: u32 = 1 << 31;
/// Numbers of records wrap around here.
const NUMBERS: u32 = FREED - 1;
/// How long a fabric may take to carry the first record each way. Long: of many connections that are made at once on few processors each
/// has its turn.
const GREETING: Duration = Duration::from_secs(60);

/// One end of it. Like a socket that never waits: `Errno::AGAIN` says that there is nothing or no room
/// now, another error that the connection is lost.
#[derive(Debug)]
pub struct Fifo {
    endpoint: Endpoint,
    provider: String,
    /// See [`vain`].
    is_vain: bool,
    // Outgoing. Positions count all bytes ever, and are taken modulo `LEN`.
    tail: u64,
    head: u64,
    /// Number of the next record.
    sent: u32,
    /// Number of the first record whose room is not free again.
    freed: u32,
    /// Where the records from `freed` on end.
    ends: VecDeque<u64>,
    /// Number of the first record that is not known to have come.
    known: u32,
    receipts: Open,
    // Incoming.
    /// Where the record that is being taken begins.
    place: u64,
    /// First byte not yet taken of it, and bytes left; `None`: it is not known to be here.
    record: Option<(usize, usize)>,
    /// Its number.
    taken: u32,
    /// All records before this number have come, and of those behind, these.
    come: u32,
    early: BTreeSet<u32>,
    /// Bytes taken whose room has not been given back.
    owed: u64,
    /// Why the provider cannot be used at all, found out by the first record.
    unfit: Option<FabricError>,
}

/// Why two ends have not met over a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The provider has not what it takes.
    #[error(transparent)]
    Unfit(FabricError),
    /// Nothing came, or the connection was lost.
    #[error("{0}")]
    Lost(Errno),
}

fn lost(error: &FabricError) -> Errno {
    match error {
        FabricError::Nonsense { .. } => Errno::PROTO,
        FabricError::Refused { .. } => Errno::ACCESS,
        _ => Errno::CONNRESET,
    }
}

fn next(number: u32) -> u32 {
    number.wrapping_add(1) & NUMBERS
}

/// How far `number` is ahead of `from`.
fn ahead(number: u32, from: u32) -> u32 {
    number.wrapping_sub(from) & NUMBERS
}

impl Fifo {
    /// An end on an address of this machine. [`Fifo::meet`] and [`Fifo::join`] must follow.
    ///
    /// # Errors
    /// No library, no such provider.
    pub fn open(at: &FabricAt) -> Result<Fifo, FabricError> {
        Fifo::within(&Domain::open(&at.provider, at.local, at.notice)?, &at.provider)
    }

    fn within(domain: &Arc<Domain>, provider: &str) -> Result<Fifo, FabricError> {
        Ok(Fifo {
            endpoint: Endpoint::open(domain, AREA)?,
            provider: provider.to_owned(),
            is_vain: false,
            tail: 0,
            head: 0,
            sent: 0,
            freed: 0,
            ends: VecDeque::new(),
            known: 0,
            receipts: Open::default(),
            place: 0,
            record: None,
            taken: 0,
            come: 0,
            early: BTreeSet::new(),
            owed: 0,
            unfit: None,
        })
    }

    /// What the other end must be told.
    ///
    /// # Errors
    /// As libfabric says.
    pub fn meeting(&self) -> Result<Meeting, FabricError> {
        let Target { key, base } = self.endpoint.target();
        let address = self.endpoint.address()?;
        Ok(Meeting { provider: self.provider.clone(), address, key, base })
    }

    /// Says who the other end is.
    ///
    /// # Errors
    /// It cannot be reached from here.
    pub fn meet(&mut self, peer: &Meeting) -> Result<(), FabricError> {
        if peer.provider != self.provider {
            return Err(FabricError::Nonsense { what: "another provider than ours" });
        }
        self.endpoint.connect(&peer.address, Target { key: peer.key, base: peer.base })
    }

    /// Waits until the fabric has carried something each way, a record of no bytes: fabrics connect when they are
    /// first used. `socket` ends with the other end. One end speaks `first`, and the other
    /// only when it has heard that: two connections made towards each other at once have been seen to carry
    /// nothing (libfabric's `net`).
    ///
    /// # Errors
    /// See [`JoinError`]; `TIMEDOUT`.
    pub fn join(&mut self, socket: impl AsFd, first: bool) -> Result<(), JoinError> {
        let joined = self.try_to_join(socket, first);
        joined.map_err(|errno| self.unfit.take().map_or(JoinError::Lost(errno), JoinError::Unfit))
    }

    fn try_to_join(&mut self, socket: impl AsFd, first: bool) -> Result<(), Errno> {
        let end = Instant::now() + GREETING;
        while !((first || self.is_greeted()?) && self.greet()? && self.is_greeted()?) {
            if Instant::now() >= end {
                return Err(Errno::TIMEDOUT);
            }
            if has_ended(&socket) {
                return Err(Errno::CONNRESET);
            }
            // While its connection is being made, a provider need not tell of progress.
            if self.may_sleep() {
                let wait = self.wait_fd();
                let slice = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = poll(&mut [PollFd::new(&wait, PollFlags::IN)], Some(&slice));
            }
        }
        self.is_vain = self.looks_vain()?;
        Ok(())
    }

    /// Whether the descriptor is readable though there is nothing to do.
    fn looks_vain(&mut self) -> Result<bool, Errno> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..vain::LOOKS {
            self.poll()?;
            let readable = || {
                let wait = self.wait_fd();
                poll(&mut [PollFd::new(&wait, PollFlags::IN)], Some(&at_once)) != Ok(0)
            };
            if self.may_sleep() && !readable() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether [`Fifo::wait_fd`] is readable for nothing ([`vain`]).
    #[must_use]
    pub fn is_vain(&self) -> bool {
        self.is_vain
    }

    fn greet(&mut self) -> Result<bool, Errno> {
        self.poll()?;
        Ok(self.sent > 0 || self.record(&[], 0, 0)?)
    }

    fn is_greeted(&mut self) -> Result<bool, Errno> {
        self.poll()?;
        Ok(self.come > 0)
    }

    /// Readable when there may be something to do. Before sleeping on it: [`Fifo::may_sleep`]. See [`Fifo::is_vain`].
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.wait_fd()
    }

    /// Whether a wait would notice what comes next.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.endpoint.may_sleep()
    }

    /// Makes progress; whether room has been freed.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn poll(&mut self) -> Result<bool, Errno> {
        let before = self.head;
        let Fifo { endpoint, come, early, .. } = self;
        let (mut fault, mut taken) = (false, None);
        let polled = endpoint.poll(|happened| match happened {
            Happened::Sent => {}
            Happened::Arrived(data) if data & FREED != 0 => {
                let up_to = data & NUMBERS;
                taken = taken.filter(|&other| ahead(other, up_to) < NUMBERS / 2).or(Some(up_to));
            }
            Happened::Arrived(number) => {
                // Eight bytes at least for each: more than this cannot be on their way.
                fault |= ahead(number, *come) as usize > LEN / HEAD || !early.insert(number);
                while early.remove(come) {
                    *come = next(*come);
                }
            }
        });
        polled.map_err(|error| self.lose(error))?;
        if fault {
            return Err(Errno::PROTO);
        }
        if let Some(taken) = taken {
            self.free(taken);
        }
        self.give_back()?;
        Ok(self.head != before)
    }

    /// Remembers why the provider is of no use, if it is.
    #[cold]
    fn lose(&mut self, error: FabricError) -> Errno {
        let errno = lost(&error);
        self.unfit = Some(error).filter(|error| matches!(error, FabricError::Unfit { .. }));
        errno
    }

    /// All records before this number have been taken. An older number that came late, or nonsense, frees nothing.
    fn free(&mut self, taken: u32) {
        let Fifo { head, sent, freed, ends, .. } = self;
        let count = ahead(taken, *freed);
        if count > ahead(*sent, *freed) {
            return;
        }
        for end in ends.drain(..(count as usize).min(ends.len())) {
            *head = end;
        }
        *freed = taken;
        self.arrived(taken);
    }

    /// All records before this number have come, unless it is older than what is known, or nonsense.
    fn arrived(&mut self, come: u32) {
        if ahead(come, self.known) <= ahead(self.sent, self.known) {
            self.known = come;
        }
    }

    /// Gives room back, if enough is owed.
    fn give_back(&mut self) -> Result<(), Errno> {
        if self.owed >= OWED {
            let written = self.endpoint.write(CELL, HEAD, FREED | self.taken);
            if written.map_err(|error| lost(&error))? {
                self.owed = 0;
            }
        }
        Ok(())
    }

    /// Sends what it has room for of the pieces, and says how much that was.
    ///
    /// # Errors
    /// `AGAIN`: no room. Others: the connection is lost.
    pub fn send(&mut self, pieces: &[&[u8]]) -> Result<usize, Errno> {
        let mut skip = 0;
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        while skip < total {
            let put = match self.put(pieces, skip, total - skip)? {
                Some(put) => put,
                None => {
                    if !self.poll()? {
                        break;
                    }
                    continue;
                }
            };
            skip += put;
        }
        if skip == 0 && total > 0 { Err(Errno::AGAIN) } else { Ok(skip) }
    }

    /// One record of up to `wanted` bytes of the pieces, from `skip` on. `None`: no room.
    fn put(
        &mut self,
        pieces: &[&[u8]],
        skip: usize,
        wanted: usize,
    ) -> Result<Option<usize>, Errno> {
        let at = (self.tail % LEN as u64) as usize;
        let free = LEN - (self.tail - self.head) as usize;
        let room = free.min(LEN - at);
        if room < HEAD {
            return Ok(None);
        }
        let len = (room - HEAD).min(wanted).min(MAX_RECORD);
        if len == 0 && LEN - at != HEAD {
            return Ok(None);
        }
        Ok(self.record(pieces, skip, len)?.then_some(len))
    }

    /// One record of `len` bytes, for which there is room. False: the fabric takes nothing now.
    fn record(&mut self, pieces: &[&[u8]], skip: usize, len: usize) -> Result<bool, Errno> {
        if self.endpoint.may_overtake() {
            return Ok(false); // what was written to a window comes before it
        }
        let at = (self.tail % LEN as u64) as usize;
        let outgoing = self.endpoint.outgoing();
        let outside = |_| Errno::INVAL; // cannot be: `room` is there
        let head = (len as u32, self.sent);
        outgoing.write(at, &head.0.to_le_bytes()).map_err(outside)?;
        outgoing.write(at + 4, &head.1.to_le_bytes()).map_err(outside)?;
        let (mut skip, mut filled) = (skip, 0);
        for piece in pieces {
            let Some(rest) = piece.get(skip..) else {
                skip -= piece.len();
                continue;
            };
            skip = 0;
            let part = rest.get(..rest.len().min(len - filled)).unwrap_or_default();
            outgoing.write(at + HEAD + filled, part).map_err(outside)?;
            filled += part.len();
        }
        let bytes = (HEAD + len).next_multiple_of(HEAD);
        let written = self.endpoint.write(at, bytes, self.sent);
        if !written.map_err(|error| self.lose(error))? {
            return Ok(false);
        }
        self.tail += bytes as u64;
        self.ends.push_back(self.tail);
        self.sent = next(self.sent);
        Ok(true)
    }

    /// Bytes that could be on their way besides what is.
    #[must_use]
    pub fn room(&self) -> usize {
        LEN - (self.tail - self.head) as usize
    }

    /// Whether something could be sent now.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn has_room(&mut self) -> Result<bool, Errno> {
        self.poll()?;
        Ok(self.room() > 2 * HEAD && !self.endpoint.may_overtake())
    }

    // ---- past the FIFO ----

    /// Lets the other end write to a mapping by itself; see [`Endpoint::open_window`].
    ///
    /// # Errors
    /// As libfabric says.
    pub fn open_window(
        &mut self,
        pages: GuardedMapping,
        len: usize,
    ) -> Result<(usize, Target), FabricError> {
        self.endpoint.open_window(pages, len)
    }

    /// See [`Endpoint::cover_window`].
    ///
    /// # Errors
    /// As libfabric says.
    pub fn cover_window(&mut self, number: usize) -> Result<(), FabricError> {
        self.endpoint.cover_window(number)
    }

    /// See [`Endpoint::shut_window`].
    ///
    /// # Errors
    /// As libfabric says.
    pub fn shut_window(&mut self, number: usize) -> Result<(), FabricError> {
        self.endpoint.shut_window(number)
    }

    /// Writes what there is room for of the bytes to a window of the other end's. What is sent later comes after it. `begins`: it
    /// may lie over what was written so before.
    ///
    /// # Errors
    /// `AGAIN`: no room. `ACCESS`: an earlier one was refused. Others: the connection is lost.
    pub fn write_window(
        &mut self,
        window: Target,
        at: u64,
        bytes: &[u8],
        begins: bool,
    ) -> Result<usize, Errno> {
        let (mut done, mut polled) = (0, false);
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let piece = rest.get(..PIECE).unwrap_or(rest);
            let (at, begins) = (at.wrapping_add(done as u64), begins && done == 0);
            let written = self.endpoint.write_window(window, at, piece, begins);
            if written.map_err(|error| lost(&error))? {
                (done, polled) = (done + piece.len(), false);
            } else if polled {
                break;
            } else {
                self.poll()?;
                polled = true;
            }
        }
        if done == 0 { Err(Errno::AGAIN) } else { Ok(done) }
    }

    /// Places for writes to windows that are free, as last heard.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.endpoint.places()
    }

    /// Whether something could be written to a window now.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn has_place(&mut self) -> Result<bool, Errno> {
        self.poll()?;
        Ok(self.endpoint.has_place())
    }

    /// Bytes that have come and are not taken yet: as many as lie together.
    ///
    /// # Errors
    /// `AGAIN`: none. Others: the connection is lost.
    pub fn front(&mut self) -> Result<View<'_>, Errno> {
        let mut polled = false;
        while self.record.is_none_or(|(_, left)| left == 0) {
            if self.record.is_some() {
                self.finish_record()?;
            }
            if self.taken == self.come {
                if polled {
                    return Err(Errno::AGAIN);
                }
                polled = true;
                self.poll()?;
                continue;
            }
            self.begin_record()?;
        }
        let (at, left) = self.record.unwrap_or_default();
        self.endpoint.incoming().slice(at, left).map_err(|_| Errno::PROTO)
    }

    /// Says that so many bytes of the front are done with.
    pub fn take(&mut self, count: usize) {
        if let Some((at, left)) = &mut self.record {
            let count = count.min(*left);
            *at += count;
            *left -= count;
        }
    }

    /// Takes bytes by copying them.
    ///
    /// # Errors
    /// As [`Fifo::front`].
    pub fn receive(&mut self, room: &mut [u8]) -> Result<usize, Errno> {
        let front = self.front()?;
        let len = front.len().min(room.len());
        let part = room.get_mut(..len).unwrap_or_default();
        front.read(0, part).map_err(|_| Errno::PROTO)?;
        self.take(len);
        Ok(len)
    }

    /// Reads the head of the next record, which the peer may write at any time: once.
    fn begin_record(&mut self) -> Result<(), Errno> {
        let at = (self.place % LEN as u64) as usize;
        let mut head = [0u8; HEAD];
        self.endpoint.incoming().read(at, &mut head).map_err(|_| Errno::PROTO)?;
        let [a, b, c, d, e, f, g, h] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let number = u32::from_le_bytes([e, f, g, h]);
        if number != self.taken || len > MAX_RECORD || len > LEN - at - HEAD {
            return Err(Errno::PROTO);
        }
        let bytes = (HEAD + len).next_multiple_of(HEAD) as u64;
        self.place += bytes;
        self.owed += bytes;
        self.record = Some((at + HEAD, len));
        Ok(())
    }

    fn finish_record(&mut self) -> Result<(), Errno> {
        self.record = None;
        self.taken = next(self.taken);
        self.give_back()
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests;
