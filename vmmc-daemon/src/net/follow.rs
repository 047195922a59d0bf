//! The cluster file while the daemon runs: when it has been written anew, the nodes that it names now count from then on.
//! No restart is needed to add one, and no link ends. One that is no longer named is not asked any more; links with it go on, and whoever
//! knows the key may still come from there. All else that the file says counts from the daemon's next start on.

use super::cluster::Cluster;
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vmmc::sys::thread::spawn_quiet;

/// Starts to look. It is the directory that is watched: editors put another file in the place of the first. Where the
/// file is a symbolic link, that of what it leads to is, too.
///
/// # Errors
/// No thread or descriptor to be had, or the directory has gone.
pub(super) fn follow(cluster: Arc<Cluster>) -> rustix::io::Result<()> {
    let watch = inotify::init(CreateFlags::CLOEXEC)?;
    let file = File::new(cluster.path().to_owned(), &watch)?;
    spawn_quiet("net-cluster", move || look(&cluster, &watch, file)).map(drop)
}

/// The file by the name that was given.
struct File {
    path: PathBuf,
    /// What it leads to.
    target: PathBuf,
    /// Which file that is, and of when.
    seen: Option<(u64, u64, i64, i64)>,
}

impl File {
    fn new(path: PathBuf, watch: impl AsFd) -> rustix::io::Result<File> {
        watch_directory(&watch, &path)?;
        let mut file = File { target: path.clone(), path, seen: None };
        file.lead(watch);
        Ok(file)
    }

    /// Looks where it leads now. Whether that is another file, or of another time.
    fn lead(&mut self, watch: impl AsFd) -> bool {
        let target = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        if target != self.target {
            // Where it is not to be had, a new link is noticed still.
            let _ = watch_directory(watch, &target);
            self.target = target;
        }
        let seen = std::fs::metadata(&self.path).ok();
        let seen = seen.map(|it| (it.dev(), it.ino(), it.mtime(), it.mtime_nsec()));
        seen != std::mem::replace(&mut self.seen, seen)
    }

    /// Whether something has happened to it.
    fn is_meant(&mut self, event: &Event<'_>, watch: impl AsFd) -> bool {
        let named = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
        // What was missed because too much happened may have been it.
        let is_any = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        let is_it = named == self.path.file_name() || named == self.target.file_name();
        if event.events().contains(ReadFlags::CREATE) && !self.path.is_symlink() {
            return false; // it is still to be written
        }
        // A link on the way to it may have been put in the place of another.
        let is_other = self.lead(watch);
        is_any || is_it || is_other
    }
}

fn watch_directory(watch: impl AsFd, of: &Path) -> rustix::io::Result<()> {
    let directory = of.parent().ok_or(Errno::NOENT)?;
    let changed = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
    inotify::add_watch(watch, directory, changed).map(drop)
}

fn look(cluster: &Cluster, watch: &OwnedFd, mut file: File) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        match events.next() {
            Ok(event) => {
                if file.is_meant(&event, watch) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Whether anything that has happened since is meant.
    fn is_changed(file: &mut File, watch: &OwnedFd) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        let mut is_changed = false;
        while let Ok(event) = events.next() {
            is_changed |= file.is_meant(&event, watch);
        }
        is_changed
    }

    fn followed(path: &Path) -> (File, OwnedFd) {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        (File::new(path.to_owned(), &watch).unwrap(), watch)
    }

    #[test]
    fn a_file_is_followed_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("it"), directory.path().join("other"));
        std::fs::write(&path, "1").unwrap();
        let (mut file, watch) = followed(&path);
        std::fs::write(&other, "2").unwrap();
        assert!(!is_changed(&mut file, &watch));
        std::fs::write(&path, "1").unwrap();
        assert!(is_changed(&mut file, &watch), "written");
        std::fs::rename(&other, &path).unwrap();
        assert!(is_changed(&mut file, &watch), "another in its place");
        assert!(!is_changed(&mut file, &watch));
    }

    #[test]
    fn where_links_lead_is_followed_too() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for version in ["v1", "v2"] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("it"), "1").unwrap();
        }
        // As a container's configuration is laid out.
        symlink("v1", at("data")).unwrap();
        symlink("data/it", at("it")).unwrap();
        let (mut file, watch) = followed(&at("it"));
        std::fs::write(at("v1/it"), "2").unwrap();
        assert!(is_changed(&mut file, &watch), "what it leads to is written");
        std::fs::write(at("v2/it"), "2").unwrap();
        assert!(!is_changed(&mut file, &watch), "another version");
        symlink("v2", at("next")).unwrap();
        std::fs::rename(at("next"), at("data")).unwrap();
        assert!(is_changed(&mut file, &watch), "a link on the way leads elsewhere");
        std::fs::write(at("v2/it"), "3").unwrap();
        assert!(is_changed(&mut file, &watch), "and what that leads to is written");
    }
}
