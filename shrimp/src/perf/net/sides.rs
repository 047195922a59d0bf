//! Where the two nodes are: on loopback addresses, or in two network namespaces that know each other.
//!
//! A socket belongs to the namespace in which its maker was at that moment. So this command goes to the near side as
//! a whole, and to the far one with a thread, for as long as it takes to make a listener there.

use crate::exit::{Coded, Context, Exit, Failure, Io};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is wrong with `--netns`.
#[derive(Debug, thiserror::Error)]
pub(super) enum SidesError {
    #[error(
        "--netns takes two names, as in --netns a,b, of namespaces that `ip netns` made and a veth pair joins"
    )]
    Names,
    #[error("{0}: no IPv4 address of global scope in that namespace; `ip -n {0} addr add`")]
    NoAddress(String),
}

impl Coded for SidesError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    /// The namespaces of the far side and of ours, if there are any.
    names: Option<[String; 2]>,
    /// Its address.
    pub(super) host: IpAddr,
    /// Ours: a fabric is reached there.
    pub(super) near: IpAddr,
}

impl Sides {
    /// As `--netns` has it; goes to the near side.
    pub(super) fn new(names: &[String]) -> Result<Sides, Failure> {
        let (far, near) = match names {
            [] => {
                let here = Ipv4Addr::LOCALHOST.into();
                return Ok(Sides { names: None, host: here, near: here });
            }
            [far, near] => (far, near),
            _ => return Err(SidesError::Names.into()),
        };
        let names = Some([far.clone(), near.clone()]);
        let sides = Sides { names, host: address(far)?, near: address(near)? };
        enter(near)?;
        Ok(sides)
    }

    pub(super) fn are_apart(&self) -> bool {
        self.names.is_some()
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        match &self.names {
            Some([far, _]) => format!("network namespaces, {} in {far}", self.host),
            None => "loopback".to_owned(),
        }
    }

    /// A listener of the far side, on a port that is free.
    pub(super) fn listen(&self) -> Result<TcpListener, Io> {
        let listen = || TcpListener::bind((self.host, 0)).context(|| "listening".into());
        let Some([far, _]) = &self.names else { return listen() };
        let listening =
            std::thread::scope(|scope| scope.spawn(|| enter(far).and_then(|()| listen())).join());
        listening.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Words before a command that is to run on the far side.
    pub(super) fn starter(&self) -> Vec<String> {
        self.names.as_ref().map_or_else(Vec::new, |[far, _]| starter(far))
    }

    /// Words before one that is to run on ours and looks at /sys, which tells of the namespace it was mounted in.
    pub(super) fn near_starter(&self) -> Vec<String> {
        self.names.as_ref().map_or_else(Vec::new, |[_, near]| starter(near))
    }

    /// A program that is `program` on the far side.
    pub(super) fn wrapped(&self, program: &Path, scratch: &Path) -> Result<PathBuf, Io> {
        if !self.are_apart() {
            return Ok(program.to_owned());
        }
        let text = format!("exec {} {program:?} \"$@\"", self.starter().join(" "));
        script(&scratch.join("far-vmmcd"), &text)
    }

    /// What runs a command on the far side as a remote shell would: `AGENT HOST COMMAND...`.
    pub(super) fn agent(&self, scratch: &Path) -> Result<PathBuf, Io> {
        let text = format!("shift\nexec {} sh -c \"$*\"", self.starter().join(" "));
        script(&scratch.join("far-shell"), &text)
    }
}

/// Writes a shell script.
fn script(path: &Path, text: &str) -> Result<PathBuf, Io> {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).context(|| format!("writing {path:?}"))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o700))
        .context(|| format!("chmod of {path:?}"))?;
    Ok(path.to_owned())
}

/// Words before a command that is to run in a namespace, with a /sys of that one.
fn starter(name: &str) -> Vec<String> {
    vec!["ip".into(), "netns".into(), "exec".into(), name.to_owned()]
}

/// The address of a namespace.
fn address(name: &str) -> Result<IpAddr, Failure> {
    let mut ip = Command::new("ip");
    ip.args(["-n", name, "-4", "-o", "addr", "show", "scope", "global"]).stderr(Stdio::inherit());
    let text = ip.output().context(|| "running ip (Debian package iproute2)".into())?.stdout;
    let text = String::from_utf8_lossy(&text);
    let found = text
        .split_ascii_whitespace()
        .find_map(|word| word.split_once('/').and_then(|(address, _)| address.parse().ok()));
    Ok(found.ok_or_else(|| SidesError::NoAddress(name.to_owned()))?)
}

/// Takes this thread into a namespace.
fn enter(name: &str) -> Result<(), Io> {
    let path = Path::new("/run/netns").join(name);
    let entered = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)));
    entered.map_err(std::io::Error::from).context(|| format!("entering {path:?} (as root)"))
}
