//! Packets for disabled pages (H13): held back with everything behind them, until the page is enabled, or for as long as the
//! cluster file lets an exporter hold its senders up. Then the link is ended, and what is behind goes on.

use super::Connection;
use super::packet::Packet;
use crate::net::interface::count;
use std::time::Instant;
use vmmc::control::message::CloseReason;
use vmmc::{Import, Landed, Node};

/// A packet that is held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frozen {
    since: Instant,
    /// For a page that is known to be disabled: [`vmmc::Import::disables`] when that was found.
    disabled: Option<u32>,
    /// The exporter has been told of that.
    told: bool,
}

impl Connection {
    /// A page is disabled, or may be ([`Landed::Unheard`]): whether the packet waits, of which the exporter of a disabled one is
    /// told, and again when it has disabled some again: it may wait for being told. False: it has waited for long enough, and
    /// its link has ended.
    pub(super) fn holds(&mut self, packet: &mut Packet, why: Landed, node: &Node) -> bool {
        let header = packet.header;
        let new = || Frozen { since: Instant::now(), disabled: None, told: false };
        let frozen = packet.frozen.get_or_insert_with(new);
        let import = self.slots.get(&header.slot).and_then(|slot| slot.import.as_ref());
        let disables = import.map(Import::disables).filter(|_| why == Landed::Disabled);
        if disables.is_some() && frozen.disabled != disables {
            (frozen.disabled, frozen.told) = (disables, false);
            node.counters().add(count::FROZEN, 1);
            tracing::debug!(
                node = self.origin.node,
                pid = self.origin.pid,
                page = header.page,
                "packet for a disabled page; held back"
            );
        }
        if self.rules.freeze_limit.is_some_and(|limit| frozen.since.elapsed() >= limit) {
            node.counters().add(count::FROZEN_ENDED, 1);
            tracing::warn!(
                node = self.origin.node,
                pid = self.origin.pid,
                page = header.page,
                held = ?frozen.since.elapsed(),
                "packet for a disabled page; link ended, so that others go on"
            );
            self.end_slot(header.slot, CloseReason::Disabled);
            return false;
        }
        if frozen.disabled.is_some()
            && !frozen.told
            && let Some(import) = import
        {
            frozen.told = import.tell_frozen(header.byte(), header.len);
        }
        true
    }

    /// When the packet that is held back has waited for long enough.
    pub(in crate::net::interface) fn held_until(&self) -> Option<Instant> {
        let frozen = self.packet.as_ref()?.frozen?;
        frozen.since.checked_add(self.rules.freeze_limit?)
    }

    /// Ends a link of this node's own accord; its exporter finds it unimported.
    fn end_slot(&mut self, number: u32, reason: CloseReason) {
        drop(self.let_go(number)); // which closes the link
        self.say_closed(number, reason);
    }
}
