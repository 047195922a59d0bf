//! Shapes of shared memory: offsets, magic numbers, versions. No algorithms.
//!
//! Two kinds of segment are ours; an export's own bytes have no shape that we know of.
//!
//! | segment | made by | written by | mapped by others |
//! |---|---|---|---|
//! | [`page`] process page | each client, at connect | that client | read-only, sealed so |
//! | [`link`] link segment | importer, one per import | importer and exporter, separate lines | the exporter alone |
//!
//! All integers are native-endian (one machine), naturally aligned. Words with different
//! writers are [`LINE`] bytes apart: 128, because x86-64 prefetches lines in pairs.

pub mod link;
pub mod page;

/// Distance between words with different writers, in bytes.
pub const LINE: usize = 128;

/// Version of every shape in this module. A change to any of them raises it; segments of
/// another version are refused with both numbers in the message.
pub const VERSION: u32 = 5;

/// Length of the common head of every segment: magic (8), version (4), length (4).
pub const HEAD_LEN: usize = 16;
/// Offset of the magic number, `u64`, written last (release) by the maker.
pub const HEAD_MAGIC: usize = 0;
/// Offset of the version, `u32`.
pub const HEAD_VERSION: usize = 8;
/// Offset of the segment's length in bytes, `u32`.
pub const HEAD_BYTES: usize = 12;
