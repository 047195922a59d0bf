//! What is timed by one operation after another.

use super::LEN;
use super::world::{World, import};
use crate::perf::peer::Kind;
use vmmc::Combining;

/// Stores in one sample of automatic update.
pub(super) const STORES: usize = 512;
const _: () = assert!(STORES * 64 <= LEN, "they fit");

/// What is measured by the time of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Tcp(Kind),
    Send,
    SendThenFence,
    /// As `Send`, over a provider of libfabric.
    Over(&'static str),
    Read,
    Bulk {
        combine: bool,
    },
    Sparse {
        combine: bool,
    },
    Import,
}

pub(super) const SUBJECTS: &[(&str, &str, Subject)] = &[
    ("tcp_spin", "bare TCP 8 B, both sides poll", Subject::Tcp(Kind::TcpSpin)),
    ("tcp_block", "bare TCP 8 B, blocking", Subject::Tcp(Kind::TcpBlock)),
    ("send", "DU of 8 B, acknowledged", Subject::Send),
    ("send_ofi_net", "the same, over libfabric's net", Subject::Over("net")),
    ("send_ofi_rxm", "the same, over libfabric's tcp;ofi_rxm", Subject::Over("tcp;ofi_rxm")),
    ("send_fence", "DU of 8 B, then a fence", Subject::SendThenFence),
    ("read", "remote read of 8 B", Subject::Read),
    ("bulk_combined", "AU, consecutive words, combining", Subject::Bulk { combine: true }),
    ("bulk", "AU, consecutive words, not combining", Subject::Bulk { combine: false }),
    ("sparse_combined", "AU, a word per line, combining", Subject::Sparse { combine: true }),
    ("sparse", "AU, a word per line, not combining", Subject::Sparse { combine: false }),
    ("import", "import and unimport", Subject::Import),
];

impl Subject {
    /// The provider of libfabric over which it goes.
    pub(super) fn provider(self) -> Option<&'static str> {
        match self {
            Subject::Over(provider) => Some(provider),
            _ => None,
        }
    }

    /// Of how many parts the time of an operation is: half a round trip; one of many stores; a whole operation.
    pub(super) fn parts(self) -> f64 {
        match self {
            Subject::Tcp(_)
            | Subject::Send
            | Subject::SendThenFence
            | Subject::Over(_)
            | Subject::Read => 2.0,
            Subject::Bulk { .. } | Subject::Sparse { .. } => STORES as f64,
            Subject::Import => 1.0,
        }
    }
}

impl World {
    /// One operation.
    pub(super) fn play(&self, subject: Subject) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        match subject {
            Subject::Tcp(_) => {}
            Subject::Send | Subject::Over(_) => {
                self.import.send_fenced(0, &[7; 8]).map_err(|error| text(&error))?;
            }
            Subject::SendThenFence => {
                self.import.send(0, &[7; 8]).map_err(|error| text(&error))?;
                self.import.fence().map_err(|error| text(&error))?;
            }
            Subject::Read => {
                self.import.read(0, &mut [0; 8]).map_err(|error| text(&error))?;
            }
            Subject::Bulk { combine } => self.stores(8, combine)?,
            Subject::Sparse { combine } => self.stores(64, combine)?,
            Subject::Import => drop(import(&self.importer)?),
        }
        Ok(())
    }

    /// [`STORES`] words of 8 bytes, `stride` apart, and a fence.
    fn stores(&self, stride: usize, combine: bool) -> Result<(), String> {
        let combining = if combine { Combining::ON } else { Combining::OFF };
        let writer = self.import.auto_update(combining).map_err(|error| error.to_string())?;
        for i in 0..STORES {
            writer.store(i * stride, &i.to_ne_bytes()).map_err(|error| error.to_string())?;
        }
        writer.fence().map_err(|error| error.to_string())
    }
}
