//! What the daemon knows: the exports that this process may see.

use super::control::{Answer, Failure};
use super::{Node, NodeInner};
use crate::control::codec;
use crate::control::message::{ExportInfo, Request, Snapshot};
use crate::error::{DaemonError, ListError, system};
use crate::id::RequestId;
use crate::sys::Fd;
use serde::de::DeserializeOwned;

/// Longest listing that is read, in bytes: the daemon is trusted, but not with all our memory.
const MAX_LISTING_LEN: u64 = 1 << 30;

impl Node {
    /// The live exports on this node that this process may see, its own included.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn list(&self) -> Result<Vec<ExportInfo>, ListError> {
        self.inner.listing(|request| Request::List { request })
    }

    /// Everything the daemon knows; all users' only for its own user and root.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn snapshot(&self) -> Result<Snapshot, ListError> {
        self.inner.listing(|request| Request::Snapshot { request })
    }
}

impl NodeInner {
    fn listing<T: DeserializeOwned>(
        &self,
        make: impl FnOnce(RequestId) -> Request,
    ) -> Result<T, ListError> {
        self.local.check()?;
        match self.control.call(self, make) {
            Answer::Listing { file, len } => read_listing(&file, len),
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Failed(Failure::Daemon(error)) => Err(error.into()),
            Answer::Failed(Failure::System(error)) => Err(error.into()),
            _ => Err(DaemonError::Nonsense { what: "something else to List" }.into()),
        }
    }
}

fn read_listing<T: DeserializeOwned>(file: &Fd, len: u64) -> Result<T, ListError> {
    let nonsense = || ListError::from(DaemonError::Nonsense { what: "an unreadable listing" });
    if len > MAX_LISTING_LEN {
        return Err(nonsense());
    }
    let mut bytes = vec![0; len as usize];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, filled as u64) {
            Ok(0) => return Err(nonsense()),
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("reading a listing")(errno).into()),
        }
    }
    codec::decode(&bytes).map_err(|_| nonsense())
}
