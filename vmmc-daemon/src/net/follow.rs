//! The cluster file while the daemon runs: when it has been written anew, the nodes that it names now count from then on.
//! No restart is needed to add one, and no link ends. One that is no longer named is not asked any more; links with it go on, and whoever
//! knows the key may still come from there. All else that the file says counts from the daemon's next start on.

use super::cluster::Cluster;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use vmmc::sys::thread::spawn_quiet;

/// Starts to look. It is the directory that is watched: editors put another file in the place of the first.
///
/// # Errors
/// No thread or descriptor to be had, or the directory has gone.
pub(super) fn follow(cluster: Arc<Cluster>) -> rustix::io::Result<()> {
    let path = cluster.path();
    let directory = path.parent().ok_or(Errno::NOENT)?;
    let watch = inotify::init(CreateFlags::CLOEXEC)?;
    let written = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, directory, written)?;
    spawn_quiet("net-cluster", move || look(&cluster, &watch)).map(drop)
}

fn look(cluster: &Cluster, watch: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        match events.next() {
            Ok(event) => {
                let named = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                // What was missed because too much happened may have been it.
                let may_be = named == cluster.path().file_name()
                    || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                if may_be {
                    read_again(cluster);
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!(%errno, "the cluster file is not looked at any more: a change counts from the next start on");
                return;
            }
        }
    }
}

fn read_again(cluster: &Cluster) {
    match cluster.read_again() {
        Ok(change) if change.is_none() => {}
        Ok(change) => {
            let super::cluster::Change { added, removed, moved, ignored } = change;
            tracing::info!(?added, ?removed, ?moved, "the cluster file names other nodes");
            if !ignored.is_empty() {
                tracing::warn!(
                    ?ignored,
                    "what else changed in the cluster file counts from the next start on"
                );
            }
        }
        Err(error) => {
            tracing::error!(%error, "the cluster file cannot be read again; all stays as it was")
        }
    }
}
