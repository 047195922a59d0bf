//! The link segment: control words and the notification queue of one import.
//!
//! ```text
//!     0  head: magic, version, length
//!   128  busy           16 x u32, by importer: slot s is odd while the thread that owns it is in
//!                       a transfer (the last slot counts instead: it is shared)
//!   256  tail u32       by importer: notifications ever queued, wrapping
//!   384  head u32       by exporter: notifications ever taken, wrapping (credit)
//!   388  state u32      by exporter: see State
//!   392  accept u32     by exporter: 1 when notifications are wanted (a handler is set and not
//!                       discarding), 0 when the importer need not queue any
//!   396  done u32       by exporter: 1 with its last access, see DONE
//!   400  exposed u32    by importer, the node interface: odd while a fabric may write to the pages by itself
//!   404  recall u32     by exporter: 1 when it must do so no more
//!   408  heard u32      by exporter: 1 when it knows of the link and its disabled bits are right
//!   412  disables u32   by exporter: how often it has disabled pages, wrapping; before their bits
//!   512  sends u64 · bytes u64 · notifies u64 · stalls u64     by importer, statistics only
//!  1024  queue          NOTIFY_SLOTS x 32 bytes, by importer:
//!                       offset u64 · len u64 · last word u64 · kind u64 (see MESSAGE, FROZEN)
//!  5120  disabled       by exporter: one bit for each `unit_pages` pages, set while the node
//!                       interface may not write to them
//! ```
//!
//! Exactly two processes map it, each can write all of it: whatever one of them finds here is
//! checked before use, and nonsense ends this link and no other.

/// "VMMCLINK" in ASCII.
pub const MAGIC: u64 = u64::from_be_bytes(*b"VMMCLINK");
/// Offset of the busy slots, `u32` each.
pub const BUSY: usize = 128;
/// Number of busy slots.
pub const BUSY_SLOTS: usize = 16;
/// Offset of the queue's tail, `u32`: next to write.
pub const TAIL: usize = 256;
/// Offset of the queue's head, `u32`: next to read.
pub const HEAD: usize = 384;
/// Offset of the link's state, `u32`.
pub const STATE: usize = 388;
/// Offset of the accept word, `u32`.
pub const ACCEPT: usize = 392;
/// Offset of the word with which the exporter says that it touches the segment no more, `u32`. The importer may then
/// make its next link to the same process of it.
pub const DONE: usize = 396;
/// Offset of the word that is odd while the node interface lets a fabric write to the pages, `u32`.
pub const EXPOSED: usize = 400;
/// Offset of the word by which the exporter ends that, `u32`; [`OPEN`] until then.
pub const RECALL: usize = 404;
/// Offset of the word by which the exporter says that it has heard of the link, `u32`: the bits of [`DISABLED`] are right.
pub const HEARD: usize = 408;
/// Offset of the exporter's count of the times that it has disabled pages, `u32`, wrapping.
pub const DISABLES: usize = 412;
/// Offset of the importer's count of transfers, `u64`.
pub const SENDS: usize = 512;
/// Offset of the importer's count of bytes, `u64`.
pub const BYTES: usize = 520;
/// Offset of the importer's count of notifications, `u64`.
pub const NOTIFIES: usize = 528;
/// Offset of the importer's count of waits for queue space, `u64`.
pub const STALLS: usize = 536;
/// Offset of the notification queue.
pub const QUEUE: usize = 1024;
/// Length of one queue entry in bytes.
pub const ENTRY_LEN: usize = 32;
/// Entries in the queue; a power of two.
pub const NOTIFY_SLOTS: u32 = 128;
/// Length of the segment in bytes.
pub const LEN: usize = 8 * 1024;
/// Kind of an entry: a message.
pub const MESSAGE: u64 = 0;
/// Kind of an entry: the node interface holds back a packet for a disabled page.
pub const FROZEN: u64 = 1;
/// Offset of the bits of disabled pages.
pub const DISABLED: usize = 5120;
/// Number of these bits.
pub const DISABLED_BITS: usize = (LEN - DISABLED) * 8;
/// Bytes in a page of the interface's tables, on every machine.
pub const PAGE: usize = 4096;

/// Pages that one bit stands for, in an export of `len` bytes.
#[must_use]
pub const fn unit_pages(len: usize) -> usize {
    len.div_ceil(PAGE).div_ceil(DISABLED_BITS)
}

/// The link is open: transfers go through. Value of the state word.
pub const OPEN: u32 = 0;
/// The exporter is unexporting: transfers in progress finish, new ones fail.
pub const CLOSING: u32 = 1;
/// The exporter's pages are gone from behind the importer's mapping.
pub const REVOKED: u32 = 2;

const _: () = assert!(NOTIFY_SLOTS.is_power_of_two(), "slots are picked by masking");
const _: () = assert!(QUEUE + NOTIFY_SLOTS as usize * ENTRY_LEN <= DISABLED, "queue into the bits");
const _: () = assert!(BUSY + BUSY_SLOTS * 4 <= TAIL, "busy slots run into the tail");
