//! Link segments of links that have ended, for the next link to the same exporter.
//!
//! To make a segment and map it is a third of what an import costs. It may be taken again when nothing of the
//! earlier link is left at either end, and by the same two processes alone: the exporter may have it mapped still, so
//! vmmcd grants no other process's export with it ([`Request::Import::known_to`]).
//!
//! [`Request::Import::known_to`]: crate::control::message::Request::Import::known_to

use super::{ImportInner, ImportSpec};
use crate::error::SystemError;
use crate::id::{ClientId, Name, PeerInfo};
use crate::sync::{Mutex, Ordering};
use crate::sys::Fd;
use crate::transport::shm::segment::LinkSegment;
use std::collections::VecDeque;
use std::sync::Arc;

/// Segments kept, 8 KiB and a descriptor each. The exporter is done with one some time after its link has ended.
const KEPT: usize = 8;

/// A segment that this process has made.
#[derive(Clone, Debug)]
pub(crate) struct OwnSegment {
    pub(crate) mapped: Arc<LinkSegment>,
    pub(crate) file: Arc<Fd>,
}

impl OwnSegment {
    /// One that nobody else has.
    pub(crate) fn fresh() -> Result<OwnSegment, SystemError> {
        let (segment, file) = LinkSegment::create()?;
        Ok(OwnSegment { mapped: Arc::new(segment), file: Arc::new(file) })
    }
}

#[derive(Debug)]
struct Spare {
    /// What it was imported as, and who exported it.
    name: Name,
    exporter: PeerInfo,
    segment: OwnSegment,
}

impl Spare {
    /// Whether an import will be of the same exporter, as far as one can tell.
    fn suits(&self, spec: &ImportSpec) -> bool {
        spec.process.map_or(self.name == spec.name, |process| self.exporter.pid == process)
    }
}

/// See the module. Oldest first.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<VecDeque<Spare>>);

impl Spares {
    /// A segment for an import, and who knows it already.
    pub(crate) fn segment_for(
        &self,
        spec: &ImportSpec,
    ) -> Result<(OwnSegment, Option<PeerInfo>), SystemError> {
        match self.take(spec) {
            Some(Spare { segment, exporter, .. }) => Ok((segment, Some(exporter))),
            None => Ok((OwnSegment::fresh()?, None)),
        }
    }

    fn take(&self, spec: &ImportSpec) -> Option<Spare> {
        // Another node's process is served by this node's interface, and nobody knows which one comes next.
        if spec.caller.is_some() {
            return None;
        }
        let mut spares = self.0.lock();
        let at = spares.iter_mut().position(|spare| {
            // The last one here to have it: nobody stores to it any more.
            spare.suits(spec)
                && Arc::get_mut(&mut spare.segment.mapped).is_some_and(|segment| segment.is_done())
        })?;
        let mut spare = spares.remove(at)?;
        Arc::get_mut(&mut spare.segment.mapped)?.renew();
        Some(spare)
    }

    /// Keeps the segment of an import that this process has ended.
    pub(crate) fn keep(&self, import: &ImportInner) {
        let Some(segment) = import.segment.clone() else { return };
        // What is not taken again is not kept (see `take`), nor what the exporter may be done with and have opened anew.
        if import.spec.caller.is_some() || import.claimed.load(Ordering::Relaxed) {
            return;
        }
        let (name, exporter) = (import.spec.name.clone(), import.peer.info);
        let mut spares = self.0.lock();
        spares.push_back(Spare { name, exporter, segment });
        if spares.len() > KEPT {
            drop(spares.pop_front());
        }
    }

    /// Drops those that are known to a process that is gone, or to any.
    pub(crate) fn forget(&self, gone: Option<ClientId>) {
        self.0.lock().retain(|spare| gone.is_some_and(|gone| spare.exporter.client != gone));
    }
}
