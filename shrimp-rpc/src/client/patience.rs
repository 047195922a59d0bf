//! Waiting for the replies to the many messages of a call or a reply in pieces: one time limit for all of them, and a
//! cancellation at any of them.

use super::limit::Limit;
use super::{Mode, Taken};
use crate::error::CallError;
use crate::layout::Turn;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Limit,
    /// The first message: a cancellation at any later one is this call's.
    began: Turn,
}

impl Patience {
    /// Of a call that has that limit, from the message of that turn on.
    pub(super) fn new(limit: Limit, began: Turn) -> Patience {
        Patience { limit, began }
    }

    /// Waits for the reply to the last message, as long as there is time.
    pub(super) async fn await_reply(
        self,
        taken: &mut Taken<'_>,
        mode: Mode,
    ) -> Result<u64, CallError> {
        if mode == Mode::Async {
            return taken.await_reply(self.limit, mode).await;
        }
        let node = taken.binding().node();
        let reply = taken.lane_mut().wait_longer(node, self.limit, self.began);
        // Also while that one was made, and is here.
        match reply {
            Ok(_) if taken.lane().is_cancelled(self.began) => {
                Err(CallError::Cancelled { sent: true })
            }
            reply => reply,
        }
    }
}
