//! Safe copies: memory of the sender in which one receiver reads.
//!
//! A *region* is an export of the sender's, cut into places of one size; large messages of similar
//! length share it, one after the other. It is made when first needed, and imported by the
//! receiver when a scout first names it: from then on neither goes to the daemon again (N12).
//!
//! Regions stay, but of those that nobody reads in more than [`IDLE`] bytes are given back to the system, of the one that was used
//! last never. The memory of both ends goes at once, because it is a file's that both have mapped, and comes again, zero, before the
//! next use. Not so where the receiver is on another machine: a network interface may go on reading the pages that it knows.

use super::mem;
use super::peer::Own;
use crate::error::NxError;
use std::sync::Arc;
use vmmc::control::message::Refusal;
use vmmc::error::ImportError;
use vmmc::{Export, Import, Node, Region, Rights, Who};

/// Smallest place, in bytes.
const SMALLEST: usize = 16 << 10;
/// Places above this size are not rounded to powers of two, but to multiples of it.
const ROUND: usize = 4 << 20;
/// Regions hold as many places as fit into this, at least one.
const REGION: usize = 512 << 10;
/// Most places in a region.
const MOST: usize = 16;
/// Bytes of regions that wait for their next use, for one receiver, beside the one that was used last.
const IDLE: usize = 128 << 20;

/// A region of the sender's.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) export: Arc<Export>,
    /// Size of a place.
    pub(super) place: usize,
    /// Free places, a bit each.
    free: u32,
    /// All places, a bit each.
    all: u32,
    /// Its memory was not given back.
    is_there: bool,
    /// When it was used last: see [`Stages::uses`].
    used: u64,
}

impl Stage {
    /// Bytes that are kept for nobody.
    fn idle(&self) -> usize {
        if self.is_there && self.free == self.all { self.export.len() } else { 0 }
    }
}

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: u32,
    pub(super) index: u32,
}

/// All regions for one receiver.
#[derive(Debug, Default)]
pub(super) struct Stages {
    regions: Vec<Stage>,
    /// Places taken so far.
    uses: u64,
}

fn name(own: &Own, sender: u32, receiver: u32, region: u32) -> String {
    format!("nx/{}/{sender}>{receiver}/stage/{region}", own.id)
}

/// The size of place for a message of `len` bytes.
fn place_for(len: usize) -> usize {
    if len <= ROUND {
        len.next_power_of_two().max(SMALLEST)
    } else {
        len.checked_next_multiple_of(ROUND).unwrap_or(len)
    }
}

impl Stages {
    /// A place for `len` bytes; whether a region had to be made for it. `here`: the receiver is on this machine.
    pub(super) fn take(
        &mut self,
        node: &Node,
        own: &Own,
        receiver: u32,
        here: bool,
        len: usize,
    ) -> Result<(Place, bool), NxError> {
        let wanted = place_for(len);
        let found = self.find(wanted);
        self.uses += 1;
        if let Some(stage) = found.and_then(|region| self.regions.get_mut(region)) {
            stage.used = self.uses;
        }
        if here {
            self.trim();
        }
        let region = match found {
            Some(region) => region,
            None => {
                self.make(node, own, receiver, wanted)?;
                self.regions.len() - 1
            }
        };
        let Some(stage) = self.regions.get_mut(region) else { unreachable!("found or made") };
        if !stage.is_there {
            mem::allocate(stage.export.view()).map_err(no_memory)?;
            stage.is_there = true;
        }
        let index = stage.free.trailing_zeros();
        stage.free &= !(1 << index);
        Ok((Place { region: region as u32, index }, found.is_none()))
    }

    /// A region with a free place that is at least as long as wanted, and at most twice: rather one whose memory is there, then
    /// the shortest.
    fn find(&self, wanted: usize) -> Option<usize> {
        let fits = wanted..=wanted.saturating_mul(2);
        let free = self.regions.iter().enumerate();
        let free = free.filter(|(_, it)| it.free != 0 && fits.contains(&it.place));
        free.min_by_key(|(_, it)| (!it.is_there, it.place)).map(|(region, _)| region)
    }

    fn make(&mut self, node: &Node, own: &Own, receiver: u32, place: usize) -> Result<(), NxError> {
        let places = (REGION / place).clamp(1, MOST);
        let region = Region::new(place * places).map_err(no_memory)?;
        let export = node
            .export(region)
            .name(name(own, own.number, receiver, self.regions.len() as u32))
            .grant(Who::SameUser, Rights::READ)
            .token(own.token)
            .open()
            .map_err(no_memory)?;
        let all = u32::MAX >> (32 - places as u32);
        let export = Arc::new(export);
        self.regions.push(Stage { export, place, free: all, all, is_there: true, used: self.uses });
        Ok(())
    }

    /// The region's memory, and where the place begins.
    pub(super) fn at(&self, place: Place) -> (Arc<Export>, usize) {
        match self.regions.get(place.region as usize) {
            Some(stage) => (stage.export.clone(), place.index as usize * stage.place),
            None => unreachable!("places are of regions"),
        }
    }

    /// The receiver has read what was in the place.
    pub(super) fn give_back(&mut self, place: Place, here: bool) {
        if let Some(stage) = self.regions.get_mut(place.region as usize) {
            stage.free |= 1 << place.index;
        }
        if here {
            self.trim();
        }
    }

    /// Gives memory back that was not used for longest, as long as there is too much.
    fn trim(&mut self) {
        let last = self.uses;
        let mut idle: usize =
            self.regions.iter().filter(|it| it.used != last).map(Stage::idle).sum();
        while idle > IDLE {
            let waiting = self.regions.iter_mut().filter(|it| it.used != last && it.idle() > 0);
            let Some(oldest) = waiting.min_by_key(|it| it.used) else { return };
            idle -= oldest.idle();
            // Where that fails it is there still; the others may be enough.
            mem::release(oldest.export.view());
            oldest.is_there = false;
        }
    }
}

fn no_memory(error: impl std::fmt::Display) -> NxError {
    NxError::System { what: "memory for a safe copy", reason: error.to_string() }
}

/// The regions of one sender that this process, the receiver, has imported.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    imports: Vec<Option<Arc<Import>>>,
}

/// Regions that one sender may make. Far more than an honest one does.
const MOST_REGIONS: u32 = 4096;

impl Fetched {
    /// The region; whether it had to be imported. `lost` is the error when the sender has gone, and its
    /// regions with it.
    pub(super) fn region(
        &mut self,
        node: &Node,
        own: &Own,
        sender: u32,
        region: u32,
        lost: impl FnOnce() -> NxError,
    ) -> Result<(Arc<Import>, bool), NxError> {
        let fault =
            NxError::PeerFault { node: sender, what: "a scout names a region that cannot be" };
        if region >= MOST_REGIONS {
            return Err(fault);
        }
        let index = region as usize;
        if let Some(Some(import)) = self.imports.get(index) {
            return Ok((import.clone(), false));
        }
        if self.imports.len() <= index {
            self.imports.resize(index + 1, None);
        }
        // It was exported before the scout was sent, so there is nothing to wait for.
        let import = own
            .import(node, sender, name(own, sender, own.number, region))
            .rights(Rights::READ)
            .timeout(std::time::Duration::ZERO)
            .open()
            .map_err(|error| match error {
                ImportError::Refused(Refusal::NoSuchExport { .. }) => lost(),
                error => {
                    NxError::System { what: "a sender's safe copy", reason: error.to_string() }
                }
            })?;
        let import = Arc::new(import);
        if let Some(known) = self.imports.get_mut(index) {
            *known = Some(import.clone());
        }
        Ok((import, true))
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_little_longer_than_the_message() {
        assert_eq!(place_for(1), SMALLEST);
        assert_eq!(place_for(SMALLEST + 1), 2 * SMALLEST);
        assert_eq!(place_for(ROUND), ROUND);
        assert_eq!(place_for(ROUND + 1), 2 * ROUND);
        assert_eq!(place_for(9 * ROUND - 5), 9 * ROUND);
    }
}
