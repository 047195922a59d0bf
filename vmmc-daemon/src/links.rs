//! Granted imports.

use std::collections::HashMap;
use std::sync::Arc;
use vmmc::id::{ClientId, ExportId, LinkId, Rights};
use vmmc::layout::link;
use vmmc::sys::Fd;

/// One granted import: a mapping of an export in another process (or the same one).
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) export: ExportId,
    pub(crate) importer: ClientId,
    /// Of the process that imports.
    pub(crate) importer_uid: u32,
    /// Whose quota it counts in: that user's, or the one's that another node's process is here.
    pub(crate) payer: u32,
    pub(crate) exporter: ClientId,
    pub(crate) rights: Rights,
    /// Kept to read the importer's statistics, which the daemon trusts for nothing; not kept when
    /// descriptors are scarce.
    pub(crate) segment: Option<Arc<Fd>>,
}

impl Link {
    /// Transfers and bytes by the importer's own count.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.segment.as_ref().map_or((0, 0), |segment| {
            (read_u64(segment, link::SENDS as u64), read_u64(segment, link::BYTES as u64))
        })
    }
}

/// A word of a segment that others write, by `pread`: the daemon maps nobody's memory.
pub(crate) fn read_u64(segment: &Fd, at: u64) -> u64 {
    read(segment, at).map_or(0, u64::from_ne_bytes)
}

/// The same of half as many bytes.
pub(crate) fn read_u32(segment: &Fd, at: u64) -> u32 {
    read(segment, at).map_or(0, u32::from_ne_bytes)
}

fn read<const LEN: usize>(segment: &Fd, at: u64) -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let len = rustix::io::pread(segment, &mut bytes, at).ok()?;
    (len == LEN).then_some(bytes)
}

/// All links.
pub(crate) type Links = HashMap<LinkId, Link>;
