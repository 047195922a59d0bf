//! Windows: where the fabric writes to exported pages by itself, without a packet (`vmmc/src/transport/net/connection/direct.rs`).
//!
//! A window is opened when its link is, and shut when the sender says that it writes no more: it has unimported, has heard of an
//! unexport, or has been asked because the exporter disables a page, of which no fabric knows. Then its key opens nothing. Until
//! the sender has said so, what it wrote while its library had not heard yet must not be refused, which would cost its
//! connection: it goes to the pages while the exporter waits for it, and to nobody's pages after that, for a while.

use super::{Connection, Window};
use crate::net::interface::count;
use std::time::{Duration, Instant};
use vmmc::control::network::Mask;
use vmmc::transport::net::frame::{Header, Kind, window_body};
use vmmc::{Import, Node};

/// How long a sender may take to answer a recall: the exporter waits for it, `VMMC_DRAIN_MS` at most (a second).
const RECALL: Duration = Duration::from_millis(500);

/// How long a sender may take to say that it has heard of the end of a link. Nobody waits for it, but what it writes meanwhile is
/// kept in memory of this process.
const ENDED: Duration = Duration::from_secs(2);

impl Connection {
    /// Opens a window to the pages of a slot, if the fabric may and can, and says so.
    pub(super) fn open_window(&mut self, number: u32, mask: Mask, node: &Node) {
        let Some(slot) = self.slots.get_mut(&number).filter(|_| self.rules.direct) else { return };
        let Some(import) = slot.import.as_ref() else { return };
        let Some(opened) = self.wire.open_window(import) else { return };
        let (window, target) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                import.cover();
                tracing::info!(node = self.origin.node, pid = self.origin.pid, why, "packets only");
                return;
            }
        };
        slot.window = Some(Window { number: window, until: None });
        self.windows.insert(number);
        node.counters().add(count::WINDOWS, 1);
        let header = Header::new(Kind::Window, number, slot.generation);
        let body = window_body(target.key, target.base, mask);
        self.say(&Header { len: body.len() as u64, ..header }, &body);
    }

    /// Takes the import of a slot whose link is over, before its sender has said that it has heard that.
    pub(super) fn let_go(&mut self, number: u32) -> Option<Import> {
        let slot = self.slots.get_mut(&number)?;
        let import = slot.import.take()?;
        if let Some(window) = &mut slot.window {
            self.wire.cover_window(window.number);
            window.until = Some(Instant::now() + ENDED);
        }
        Some(import)
    }

    /// The sender writes no more by itself, or may not.
    pub(super) fn shut_window(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(window) = slot.window.take() else { return };
        self.windows.remove(&number);
        self.wire.shut_window(window.number);
        if let Some(import) = &slot.import {
            import.cover();
        }
    }

    /// Looks after windows that are to be shut; until when it need not do that again.
    pub(in crate::net::interface) fn recall_windows(&mut self, node: &Node) -> Option<Instant> {
        let now = Instant::now();
        let (mut asked, mut late, mut next) = (Vec::new(), Vec::new(), None);
        for &number in &self.windows {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(window) = &mut slot.window else { continue };
            match window.until {
                None if slot.import.as_ref().is_some_and(Import::is_recalled) => {
                    asked.push(Header::new(Kind::Recall, number, slot.generation));
                    window.until = Some(now + RECALL);
                }
                Some(end) if end <= now => late.push(number),
                _ => {}
            }
            next = next.into_iter().chain(window.until.filter(|&end| end > now)).min();
        }
        for header in asked {
            node.counters().add(count::RECALLS, 1);
            self.say(&header, &[]);
        }
        for number in late {
            let (name, pid) = (&self.origin.node, self.origin.pid);
            tracing::warn!(
                node = name,
                pid,
                "a sender does not say that it writes no more; window shut"
            );
            self.shut_window(number);
        }
        next
    }

    /// Whether it has windows.
    pub(in crate::net::interface) fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }
}
