//! What a handler knows of its call, and what a worker keeps from call to call.

use super::super::slot::{Ready, Slot};
use super::Cancelled;
use crate::layout::{self, Turn};
use crate::memory::{Small, copy};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use vmmc::PeerInfo;

/// Who calls, and whether it still waits.
#[derive(Debug)]
pub struct Context {
    pub(super) slot: Arc<Slot>,
    pub(super) turn: Turn,
    procedure: u32,
}

impl Context {
    /// The client's process and user, as the daemon vouches for them.
    #[must_use]
    pub fn peer(&self) -> PeerInfo {
        self.slot.peer
    }

    /// The client's node, if it is another one. Then process and number of [`Context::peer`] are that node's,
    /// and the user is whom it counts as here.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.slot.elsewhere()
    }

    /// User id of the client.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.slot.peer.uid
    }

    /// Process id of the client.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.peer.pid
    }

    /// Number of the procedure.
    #[must_use]
    pub fn procedure(&self) -> u32 {
        self.procedure
    }

    /// Whether the client has given the call up, or has gone. A long computation asks now and then.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.slot.is_given_up(self.turn)
    }

    /// Waits until nobody waits for the reply any more: the client has given the call up, or has gone, or the time is over that it
    /// said it would wait, or the call was answered (which by itself wakes nobody: who answers elsewhere ends this future too). For
    /// handlers in `async` code, which choose between this and their work, on any executor:
    ///
    /// ```no_run
    /// # async fn search(key: &str) -> u32 { key.len() as u32 }
    /// # async fn either<T>(one: impl Future<Output = T>, _: impl Future<Output = T>) -> T { one.await }
    /// # async fn find(context: &shrimp_rpc::Context, key: &str) -> Result<u32, shrimp_rpc::Fault> {
    /// let work = async { Ok(search(key).await) };
    /// let end = async {
    ///     context.cancelled().await;
    ///     Err(shrimp_rpc::Fault::new(1, "you have given up"))
    /// };
    /// either(work, end).await // `select!` of an executor's library, for example
    /// # }
    /// ```
    ///
    /// One thread of the server wakes all of these futures. While any waits, each call to this process is a wake-up more for the
    /// client that makes it. Without memory for that thread the future has itself polled again and again. Threads that would block
    /// ask [`Context::is_cancelled`] now and then.
    #[must_use = "it does nothing until it is awaited"]
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled::new(self)
    }

    /// Whether nobody waits for a reply, or there was one.
    pub(super) fn is_over(&self) -> bool {
        self.is_cancelled() || !self.slot.is_unanswered(self.turn)
    }

    /// Whether the client is there to be told anything.
    pub(crate) fn is_client_there(&self) -> bool {
        self.slot.is_open() && self.slot.reply_buffer().import().check_open().is_ok()
    }

    /// How long the client will still wait, by its own word; `None`: for ever.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        match self.slot.deadline() {
            0 => None,
            at => Some(Duration::from_nanos(at.saturating_sub(crate::client::clock_ns()))),
        }
    }
}

/// Units of the OUT data that is kept back until the reply, because the client polls that line.
pub(super) const CLOSE_UNITS: usize = 6;

/// Units of the longest reply that is stored in one go.
pub(super) const SHORT_UNITS: usize = 15;

/// What a worker keeps from call to call, so that a call moves little: all that is known of the present one, but for
/// memory that only rare calls take.
#[derive(Debug)]
pub(in crate::server) struct Desk {
    pub(super) context: Context,
    /// Where the arguments begin in our buffer, if they are there.
    pub(super) start: usize,
    pub(super) one_way: bool,
    pub(super) answered: Cell<bool>,
    /// The reply is put off: whoever has the call answers it, and nobody else.
    pub(super) put_off: Cell<bool>,
    /// Where the next block begins, from the start of the message.
    pub(super) next_block: Cell<usize>,
    /// Bytes before the flag that OUT blocks take.
    pub(super) outs: Cell<usize>,
    /// Bytes of them that are kept back.
    pub(super) close_len: Cell<usize>,
    /// Blocks taken so far: offset, bytes, and whether the handler may change them.
    pub(super) blocks: RefCell<Vec<(usize, usize, bool)>>,
    /// The OUT blocks that lie within the flag's own line, right-justified.
    pub(super) close: Small<CLOSE_UNITS>,
    /// Where a short reply is put together.
    pub(super) short: Small<SHORT_UNITS>,
}

impl Desk {
    pub(in crate::server) fn new(slot: Arc<Slot>) -> Desk {
        Desk {
            context: Context { slot, turn: Turn::NONE, procedure: 0 },
            start: layout::HEAD_LEN,
            one_way: false,
            answered: Cell::new(true),
            put_off: Cell::new(false),
            next_block: Cell::new(0),
            outs: Cell::new(0),
            close_len: Cell::new(0),
            blocks: RefCell::new(Vec::with_capacity(4)),
            close: Small::new(),
            short: Small::new(),
        }
    }

    #[inline]
    pub(in crate::server) fn is_of(&self, slot: &Arc<Slot>) -> bool {
        Arc::ptr_eq(&self.context.slot, slot)
    }

    /// For the next call of the same client.
    #[inline(always)] // between two flags
    pub(in crate::server) fn renew(&mut self, ready: &Ready) {
        self.context.turn = ready.turn;
        self.context.procedure = ready.procedure;
        self.start = ready.start;
        self.one_way = ready.one_way;
        self.answered = Cell::new(false);
        self.put_off = Cell::new(false);
        self.next_block = Cell::new(0);
        self.outs = Cell::new(0);
        self.close_len = Cell::new(0);
        self.blocks.get_mut().clear();
    }

    #[inline]
    pub(in crate::server) fn turn(&self) -> Turn {
        self.context.turn
    }

    /// Whether somebody else is to answer the call, or has.
    pub(in crate::server) fn is_put_off(&self) -> bool {
        self.put_off.get()
    }

    /// Bytes of the blocks that the client takes out of the reply to the call, if that was a good one; none of a one-way call.
    pub(in crate::server) fn bytes_of_results(&self) -> usize {
        if self.one_way {
            return 0;
        }
        let blocks = self.blocks.borrow();
        let inout = blocks.iter().filter(|(_, _, changes)| *changes).map(|(_, bytes, _)| bytes);
        self.outs.get() + inout.sum::<usize>()
    }

    #[inline]
    pub(in crate::server) fn context(&self) -> &Context {
        &self.context
    }

    #[inline]
    pub(in crate::server) fn slot(&self) -> &Slot {
        &self.context.slot
    }

    /// A desk of a call's own, with what is on this one.
    pub(super) fn take_over(&self) -> Desk {
        let Context { slot, turn, procedure } = &self.context;
        let desk = Desk {
            context: Context { slot: slot.clone(), turn: *turn, procedure: *procedure },
            start: self.start,
            one_way: self.one_way,
            answered: self.answered.clone(),
            put_off: Cell::new(false),
            next_block: self.next_block.clone(),
            outs: self.outs.clone(),
            close_len: self.close_len.clone(),
            blocks: RefCell::new(self.blocks.take()),
            close: Small::new(),
            short: Small::new(),
        };
        let _ = copy(self.close.view(), desk.close.view()); // as long
        desk
    }
}
