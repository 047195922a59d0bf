//! Programs that a host process on another host starts here (`nx_load`).

use super::nodes::{Later, library_path};
use nx::job::control::{Answer, Order};
use nx::job::supervise::Member;
use nx::job::supervise::others::{Ticket, Up};
use std::ffi::OsString;
use std::io::{Error, Read, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

/// Starts them.
pub(super) struct Starter {
    pub(super) later: Later,
    /// Variables besides our own.
    pub(super) environment: Vec<(String, String)>,
    pub(super) label: bool,
    /// What became of them goes there.
    pub(super) up: mpsc::Sender<Up>,
}

impl Starter {
    /// Starts one, and says what became of it. Its end is the supervisor's to tell, by the same way.
    pub(super) fn obey(&self, ticket: Ticket, order: Order) {
        let say = |answer| {
            let _ = self.up.send(Up::Answer { ticket, answer });
        };
        match self.start(ticket, order) {
            Ok((pid, member)) => {
                say(Answer::Started(pid)); // before its end can be told
                self.later.inbox.add(member);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                say(Answer::Failed(errno));
            }
        }
    }

    fn start(&self, ticket: Ticket, order: Order) -> Result<(i32, Member)> {
        let Order { host, node, ptype, path, arguments, place, environment, whole, directory } =
            order;
        let directory = PathBuf::from(OsString::from_vec(directory));
        let path = file(&directory, PathBuf::from(OsString::from_vec(path)))?;
        let mut command = Command::new(&path);
        let mut words = arguments.into_iter().map(OsString::from_vec);
        if let Some(name) = words.next() {
            command.arg0(name);
        }
        command.args(words).current_dir(&directory).stdin(Stdio::null());
        let own = |name: &OsString| name.as_bytes().starts_with(b"VMMC_");
        if whole {
            command.env_clear().envs(std::env::vars_os().filter(|(name, _)| own(name)));
        } else {
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        }
        command.envs(library_path().map(|path| ("LD_LIBRARY_PATH", path)));
        for pair in environment {
            let at = pair.iter().position(|&byte| byte == b'=').filter(|&at| at > 0);
            let Some(at) = at else { continue };
            let (name, value) = pair.split_at(at);
            let name = OsString::from_vec(name.to_vec());
            if !own(&name) {
                command.env(name, OsString::from_vec(value.get(1..).unwrap_or_default().to_vec()));
            }
        }
        command.envs(place);
        let prefix = if self.label { format!("[{node}@{host}] ") } else { String::new() };
        let Later { start, sources, .. } = &self.later;
        let (pid, control) = start.run(&mut command, &prefix, sources)?;
        let member = Member::child(Some(node), ptype, pid, Some(control))?.ordered(ticket);
        Ok((pid.as_raw_nonzero().get(), member))
    }
}

/// The file that is meant: a path, or a name of the directory's, or else one that is searched for. An executable file that
/// is no program is refused: it would be given to a shell.
fn file(directory: &Path, path: PathBuf) -> Result<PathBuf> {
    let here = directory.join(&path);
    let named = !path.as_os_str().as_bytes().contains(&b'/');
    let path = if named && !here.exists() { path } else { here };
    let mut head = Vec::new();
    if let Ok(file) = std::fs::File::open(&path) {
        let read = file.take(4).read_to_end(&mut head).is_ok();
        let executable = crate::elf::search(path.as_os_str()).is_ok();
        if read && executable && !is_program(&head) {
            return Err(Error::from_raw_os_error(libc::ENOEXEC));
        }
    }
    Ok(path)
}

fn is_program(head: &[u8]) -> bool {
    head == b"\x7fELF" || head.starts_with(b"#!")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_name_is_a_file_of_the_directory_first_and_no_text_goes_to_a_shell() {
        let directory = tempfile::tempdir().unwrap();
        let find = |name: &str| file(directory.path(), name.into());
        assert_eq!(find("true").unwrap(), Path::new("true"));
        assert_eq!(find("./true").unwrap(), directory.path().join("./true"));
        assert_eq!(find("/bin/true").unwrap(), Path::new("/bin/true"));
        let here = directory.path().join("true");
        for (text, good) in [("#!/bin/sh\n", true), ("\x7fELF...", true), ("", false), ("a", false)]
        {
            std::fs::write(&here, text).unwrap();
            std::fs::set_permissions(&here, PermissionsExt::from_mode(0o700)).unwrap();
            let found = find("true").map_err(|error| error.raw_os_error());
            assert_eq!(found, if good { Ok(here.clone()) } else { Err(Some(libc::ENOEXEC)) });
        }
    }
}
