//! One time limit for the many messages of a call or a reply in pieces. With one for each message a server
//! that lets each come at the last moment keeps its client for days.

use super::{Mode, Taken};
use crate::error::CallError;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
}

impl Patience {
    /// From now on.
    pub(super) fn new(timeout: Option<Duration>) -> Patience {
        Patience { timeout, deadline: vmmc::wait::deadline_after(timeout) }
    }

    /// Waits for the reply to the last message, as long as there is time.
    pub(super) async fn await_reply(
        self,
        taken: &mut Taken<'_>,
        mode: Mode,
    ) -> Result<u64, CallError> {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        taken.await_reply(left, mode).await.map_err(|error| match error {
            CallError::TimedOut { after } => {
                CallError::TimedOut { after: self.timeout.unwrap_or(after) }
            }
            error => error,
        })
    }
}
