//! What is due, and when the daemon itself is.

use super::{Broker, Doom, Ending, Fault};
use crate::timers::Timer;
use std::time::{Duration, Instant};

/// How often a daemon that would end looks whether connections that it carries, or keeps for processes that say nothing, have.
const LOOK: Duration = Duration::from_secs(1);

/// Pairs without processes that are looked at in one round: the kernel is asked for both ends of each.
const LINGERED: usize = 64;

impl Broker {
    pub(super) fn handle_timers(&mut self) {
        let now = Instant::now();
        self.placement.leave_if_due(now);
        let mut lingered = 0;
        while let Some((due, timer)) = self.timers.pop(now) {
            match timer {
                Timer::Nascent(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.nascent_timer = None;
                        self.doom(id, Doom::Fault(Fault::new("no hello in time")));
                    }
                }
                Timer::Import(id, request) => self.import_timed_out(id, request),
                Timer::Pairing(cookie) => {
                    self.pairing_timed_out(cookie, now.saturating_duration_since(due))
                }
                Timer::PairLinger(pair) => {
                    self.pair_lingered(pair);
                    lingered += 1;
                    if lingered == LINGERED {
                        // The rest is due still.
                        break;
                    }
                }
                Timer::Flush(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.retry_due = false;
                        self.flush(id);
                    }
                }
                Timer::Read(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.is_held = false;
                        self.watch_output(id);
                    }
                }
                Timer::Accept => self.set_accepting(true),
                Timer::Partings => self.end_acquaintances(),
                Timer::Watchdog => self.feed_watchdog(),
                Timer::Idle => {
                    self.idle_timer = None;
                    if self.has_guests() {
                        // Its clock stands.
                    } else if self.pairing.has_attempts() || !self.pairing.pairs.is_empty() {
                        // Looked at again: nobody tells of their end.
                        let at = Instant::now() + LOOK;
                        self.idle_timer = Some(self.timers.add(at, Timer::Idle));
                    } else {
                        self.ending = Some(Ending::Idle);
                    }
                }
            }
        }
    }

    /// Tells the service manager that the loop goes round, and when it will again.
    pub(super) fn feed_watchdog(&mut self) {
        if let Some(interval) = crate::notify::watchdog_interval() {
            crate::notify::feed_watchdog();
            self.timers.add(Instant::now() + interval, Timer::Watchdog);
        }
    }

    /// Whether there are clients besides this very process, which is one for other nodes' sake.
    fn has_guests(&self) -> bool {
        let us = std::process::id();
        self.clients.values().any(|client| client.peer.pid != us)
    }

    /// Starts or stops the clock of idleness.
    pub(crate) fn watch_idleness(&mut self) {
        let Some(after) = self.options.idle_exit else { return };
        match (!self.has_guests(), self.idle_timer) {
            (true, None) => {
                self.idle_timer = Some(self.timers.add(Instant::now() + after, Timer::Idle));
            }
            (false, Some(key)) => {
                self.timers.cancel(key);
                self.idle_timer = None;
            }
            _ => {}
        }
    }

    /// Takes the socket's name away, and puts it back if a client had connected just before: such
    /// a client would be hung up on.
    pub(super) fn hide_if_still_idle(&mut self) -> bool {
        let hidden = self.listener.hide();
        self.accept_some();
        let idle = !self.has_guests();
        if !idle && hidden {
            self.listener.show();
        }
        if idle && !hidden && self.listener.name.is_some() {
            tracing::warn!("the socket's name was gone already");
        }
        self.watch_idleness();
        idle
    }
}
