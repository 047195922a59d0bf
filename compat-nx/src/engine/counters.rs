//! What the engine counts, in the process page of its first node, where `shrimp stat` shows it.

use vmmc::counters::index::LIBRARY;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        counters!(@ LIBRARY; $($(#[$doc])* $name = $text),*);
        /// Names of the counters, in order from [`LIBRARY`].
        pub const NAMES: &[&str] = &[$($text),*];
    };
    (@ $at:expr; $(#[$doc:meta])* $name:ident = $text:literal $(, $($rest:tt)*)?) => {
        $(#[$doc])*
        pub const $name: usize = $at;
        $(counters!(@ $at + 1usize; $($rest)*);)?
    };
    (@ $at:expr;) => {};
}

counters! {
    /// Messages sent in one slot.
    SENT_SMALL = "nx_sent_small",
    /// Messages announced by a scout.
    SENT_LARGE = "nx_sent_large",
    /// Messages to this process itself.
    SENT_SELF = "nx_sent_self",
    /// Messages that a receive took.
    RECEIVED = "nx_received",
    /// Copies from a slot into user memory (N3).
    SLOT_COPIES = "nx_slot_copies",
    /// Messages moved out of slots or safe copies to private memory, because the sender ran out (N18).
    MOVED = "nx_moved",
    /// Bytes copied into safe copies (N10).
    STAGED_BYTES = "nx_staged_bytes",
    /// Bytes copied from safe copies into user memory.
    FETCHED_BYTES = "nx_fetched_bytes",
    /// Messages that went from user memory to user memory (N13).
    DIRECT = "nx_direct",
    /// Their bytes.
    DIRECT_BYTES = "nx_direct_bytes",
    /// Bytes that the receiver read from user memory itself, of those.
    PULLED_BYTES = "nx_pulled_bytes",
    /// Replies that told a sender where to put its message (N11).
    REPLIES = "nx_replies",
    /// Safe copies that were complete before the reply came (N14).
    SAFE_COPIES = "nx_safe_copies",
    /// Interrupts of other processes (N18, N19).
    INTERRUPTS = "nx_interrupts",
    /// Times this process was interrupted.
    INTERRUPTED = "nx_interrupted",
    /// Times a sender found no slot or block.
    STARVED = "nx_starved",
    /// Trips to the daemon after the start: exports and imports (N12).
    DAEMON_TRIPS = "nx_daemon_trips",
    /// Handlers that got something to do.
    HANDLERS = "nx_handlers",
    /// Links to other processes.
    LINKS = "nx_links",
    /// Cells of other nodes written: this one's parts of global operations.
    CELLS = "nx_cells",
}
