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

/// Starts to look. It is directories that are watched: editors put another file in the place of the first, and of the symbolic
/// links on the way to it each may be put in the place of another.
///
/// # Errors
/// No thread or descriptor to be had, or the directory has gone.
pub(super) fn follow(cluster: Arc<Cluster>) -> rustix::io::Result<()> {
    let watch = inotify::init(CreateFlags::CLOEXEC)?;
    let file = File::new(cluster.path().to_owned(), &watch)?;
    spawn_quiet("net-cluster", move || look(&cluster, &watch, file)).map(drop)
}

/// Symbolic links on the way to a file, as the kernel follows at most.
const MOST_LINKS: usize = 40;

/// The file by the name that was given.
struct File {
    path: PathBuf,
    /// Each link on the way there, and what it leads to ([`way`]).
    hops: Vec<PathBuf>,
    /// Which file that is.
    seen: Option<(u64, u64)>,
}

impl File {
    fn new(path: PathBuf, watch: impl AsFd) -> rustix::io::Result<File> {
        watch_directory(&watch, &path)?;
        let mut file = File { hops: Vec::new(), path, seen: None };
        file.seen = file.lead(watch);
        Ok(file)
    }

    /// Looks where it leads now, and to which file.
    fn lead(&mut self, watch: impl AsFd) -> Option<(u64, u64)> {
        self.hops = way(&self.path);
        for hop in &self.hops {
            // Where one is not to be had, what leads there is watched still.
            let _ = watch_directory(&watch, hop);
        }
        std::fs::metadata(&self.path).ok().map(|it| (it.dev(), it.ino()))
    }

    /// Whether something has happened to it.
    fn is_meant(&mut self, event: &Event<'_>, watch: impl AsFd) -> bool {
        let now = self.lead(watch);
        let named = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
        let target = self.hops.last().and_then(|target| target.file_name());
        let is_link = |hop: &PathBuf| hop.is_symlink() && hop.file_name() == named;
        if event.events().contains(ReadFlags::CREATE)
            && named == target
            && !self.hops.iter().any(is_link)
        {
            self.seen = now; // it is still to be written, which is told
            return false;
        }
        let is_other = now != std::mem::replace(&mut self.seen, now);
        let is_it = named == self.path.file_name() || named == target;
        // What was missed because too much happened may have been it.
        is_other || is_it || event.events().contains(ReadFlags::QUEUE_OVERFLOW)
    }
}

/// Each symbolic link on the way to a file, and the file, whose directories tell of them.
fn way(path: &Path) -> Vec<PathBuf> {
    let (mut path, mut hops) = (path.to_owned(), Vec::new());
    for _ in 0..MOST_LINKS {
        let mut parts: Vec<&Path> = path.ancestors().collect();
        parts.reverse();
        let Some(link) = parts.into_iter().find(|part| part.is_symlink()) else { break };
        let Ok(target) = std::fs::read_link(link) else { break };
        let rest = path.strip_prefix(link).unwrap_or(Path::new(""));
        let around = link.parent().unwrap_or(Path::new("/"));
        let mut next = around.join(target);
        if !rest.as_os_str().is_empty() {
            next.push(rest);
        }
        hops.push(link.to_owned());
        path = next;
    }
    hops.push(path);
    hops
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

    #[test]
    fn a_link_in_another_directory_is_followed_and_a_file_is_read_when_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for place in ["etc", "opt", "opt/v1", "opt/v2"] {
            std::fs::create_dir(at(place)).unwrap();
        }
        for version in ["opt/v1/it", "opt/v2/it"] {
            std::fs::write(at(version), "1").unwrap();
        }
        symlink("v1", at("opt/now")).unwrap();
        symlink(at("opt/now/it"), at("etc/it")).unwrap();
        let (mut file, watch) = followed(&at("etc/it"));
        symlink("v2", at("opt/next")).unwrap();
        std::fs::rename(at("opt/next"), at("opt/now")).unwrap();
        assert!(is_changed(&mut file, &watch), "the link in the middle leads elsewhere");
        let half = std::fs::File::create(at("opt/v2/it")).unwrap();
        std::fs::write(at("opt/v2/other"), "").unwrap();
        assert!(!is_changed(&mut file, &watch), "still being written");
        drop(half);
        assert!(is_changed(&mut file, &watch));
        std::fs::remove_file(at("opt/now")).unwrap();
        symlink("v1", at("opt/now")).unwrap();
        assert!(is_changed(&mut file, &watch), "a link that was made anew");
        std::fs::remove_file(at("etc/it")).unwrap();
        symlink(at("opt/v2/it"), at("etc/it")).unwrap();
        assert!(is_changed(&mut file, &watch), "one of the file's name");
    }
}
