//! What of the sent may be lost: asked for over the socket ([`receipts`](super::super::receipts)).

use super::{Fifo, LEN, ahead};
use crate::transport::net::silence;
use crate::transport::ofi::receipts::{Carrier, Saying};
use rustix::io::Errno;
use std::time::Instant;

/// What is open with the other end.
#[derive(Debug, Default)]
pub(super) struct Open {
    asked: Option<Asked>,
    /// What had not come by an earlier answer, and since when nothing has.
    missing: Option<(Progress, Instant)>,
}

/// A question for receipts.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Number of the next record then.
    sent: u32,
    /// Writes to windows had not been delivered then.
    windows: bool,
    progress: Progress,
}

/// What is known to have come: the first record that is not, and so many writes to windows.
type Progress = (u32, u64);

impl Fifo {
    fn progress(&self) -> Progress {
        (self.known, self.endpoint.delivered())
    }
}

impl Carrier for Fifo {
    fn is_owed(&mut self) -> Result<bool, Errno> {
        self.poll()?;
        // That room was given back may be lost as well.
        Ok(self.known != self.sent || self.endpoint.is_delivering() || self.room() < LEN / 2)
    }

    fn ask(&mut self) -> Option<Saying> {
        if self.receipts.asked.is_some() {
            return None;
        }
        let (sent, windows) = (self.sent, self.endpoint.is_delivering());
        self.receipts.asked = Some(Asked { sent, windows, progress: self.progress() });
        Some(Saying::Ask)
    }

    fn hear(&mut self, saying: Saying, now: Instant) -> Result<Option<Saying>, Errno> {
        self.poll()?;
        let Saying::Answer { come, taken } = saying else {
            return Ok(Some(Saying::Answer { come: self.come, taken: self.taken }));
        };
        let asked = self.receipts.asked.take().ok_or(Errno::PROTO)?;
        self.arrived(come);
        self.free(taken);
        let progress = self.progress();
        let records = ahead(self.sent, self.known) <= ahead(self.sent, asked.sent);
        let windows = !asked.windows || progress.1 != asked.progress.1;
        match self.receipts.missing {
            _ if records && windows => self.receipts.missing = None,
            Some((before, since)) if before == progress => {
                if now.saturating_duration_since(since) > silence::LIMIT {
                    return Err(Errno::TIMEDOUT);
                }
            }
            _ => self.receipts.missing = Some((progress, now)),
        }
        Ok(None)
    }
}
