//! The process page: what one process lets everyone it is linked with read about it.
//!
//! ```text
//!     0  head: magic, version, length
//!    64  pid u32 · role u32 (see Role)
//!   128  armed u32      generation of the sleep in progress, 0 while awake   (doorbell)
//!   132  cpu u32        processor the process last prepared to sleep on, u32::MAX unknown
//!   136  guards u32     exports with disabled pages; while there are any, the node's interface writes
//!                       over no link that this process has not heard of
//!   192  notes made u64    how many notes were ever made
//!   256  names          64 x 24 bytes, NUL-padded UTF-8: what counter k counts; empty: unused
//!  2048  counters       16 stripes x 64 u64: counter k = sum over stripes; a thread writes the
//!                       stripe it was given, so counting needs no locked instruction
//! 10240  notes          128 x (subject u64, counter plus one u64): see `vmmc::notes`
//! ```
//!
//! One writer, the process itself. Sealed with `F_SEAL_FUTURE_WRITE` after it mapped the page, so
//! no importer can ever write it: a hostile one cannot disarm somebody else's doorbell.

/// "VMMCPAGE" in ASCII.
pub const MAGIC: u64 = u64::from_be_bytes(*b"VMMCPAGE");
/// Offset of the owner's process id, `u32`.
pub const PID: usize = 64;
/// Offset of the doorbell's armed word, `u32`.
pub const ARMED: usize = 128;
/// Offset of the processor number, `u32`.
pub const CPU: usize = 132;
/// Offset of the number of exports with disabled pages, `u32`.
pub const GUARDS: usize = 136;
/// Offset of the number of notes ever made, `u64`.
pub const NOTES_MADE: usize = 192;
/// Offset of the counter names.
pub const NAMES: usize = 256;
/// Length of one counter name, in bytes.
pub const NAME_LEN: usize = 24;
/// Number of counters.
pub const COUNTERS: usize = 64;
/// Offset of the counter stripes.
pub const STRIPES_AT: usize = 2048;
/// Number of stripes; the last one is shared by all threads beyond the first fifteen.
pub const STRIPES: usize = crate::sync::STRIPES;
/// Length of one stripe in bytes: whole lines, so stripes share none.
pub const STRIPE_LEN: usize = COUNTERS * 8;
/// Offset of the notes ([`crate::notes`]). Zero where an older program has no notes.
pub const NOTES_AT: usize = 10 * 1024;
/// Number of notes.
pub const NOTES: usize = 128;
/// Length of a process page in bytes.
pub const LEN: usize = 12 * 1024;

const _: () = assert!(NAMES + COUNTERS * NAME_LEN <= STRIPES_AT, "names run into the counters");
const _: () = assert!(STRIPES_AT + STRIPES * STRIPE_LEN <= NOTES_AT, "counters run into the notes");
const _: () = assert!(STRIPE_LEN.is_multiple_of(super::LINE), "two threads would share a line");
