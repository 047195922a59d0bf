//! One time limit for the many messages of a call or a reply in pieces. With one for each message a server
//! that lets each come at the last moment keeps its client for days.

use super::{Mode, Taken};
use crate::error::CallError;
use crate::layout::Turn;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// The first message: a cancellation at any later one is this call's.
    began: Turn,
}

impl Patience {
    /// From now on, and from the message of that turn.
    pub(super) fn new(timeout: Option<Duration>, began: Turn) -> Patience {
        Patience { timeout, deadline: vmmc::wait::deadline_after(timeout), began }
    }

    /// Waits for the reply to the last message, as long as there is time.
    pub(super) async fn await_reply(
        self,
        taken: &mut Taken<'_>,
        mode: Mode,
    ) -> Result<u64, CallError> {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let reply = match mode {
            Mode::Async => taken.await_reply(left, mode).await,
            Mode::Block => {
                let node = taken.binding().node();
                let reply = taken.lane_mut().wait_longer(node, left, self.began);
                // Also while that one was made, and is here.
                match reply {
                    Ok(_) if taken.lane().is_cancelled(self.began) => Err(CallError::Cancelled),
                    reply => reply,
                }
            }
        };
        reply.map_err(|error| match error {
            CallError::TimedOut { after } => {
                CallError::TimedOut { after: self.timeout.unwrap_or(after) }
            }
            error => error,
        })
    }
}
