//! What all nodes do together to a file: open it, set its mode, agree on a request.
//!
//! Each step is one global operation in which every node says what it does and to which file ([`Say`]), also that it cannot. So all
//! go on, or all have an error: the node's own, or that of the first that has one. How they come to one
//! file pointer, for [`modes::LOG`], on one machine:
//!
//! ```text
//!   node 0                                     others
//!   (1)                                        make a socket each, and say its name
//!   (2) sends its own open file to each name
//!   (3) says whether that went well            the same
//!   (4)                                        put what they have got in the place of their own
//! ```
//!
//! After that the kernel keeps the pointer, and whatever reads and writes there is atomic.

use super::inside::Inside;
use super::modes::{self, File};
use super::process::own;
use super::{Failure, errno};
use crate::engine::Engine;
use crate::error::NxError;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use vmmc::sys::packet;

/// The engine, where there are other nodes and this process is a node.
pub(super) fn team() -> Option<&'static Engine> {
    own().filter(|engine| engine.nodes() > 1 && engine.node() < engine.nodes())
}

/// Who hears of an error of this node's alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnError {
    /// It ends the application: nobody need be told before.
    EndsAll,
    /// It is answered: the others must not wait in vain.
    IsAnswered,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(i64)]
pub(super) enum Step {
    OpenNew,
    SetMode,
    Place,
    Share,
    Shared,
    Read,
    Wrote,
    Write,
    Got,
}

/// What a node says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Say {
    /// 0, or why this node cannot.
    error: i64,
    step: i64,
    mode: i64,
    /// Bytes, or what the step needs.
    value: i64,
    pub(super) file: File,
}

/// Words of a [`Say`].
const WORDS: usize = 8;

impl Say {
    fn to_bytes(self) -> [u8; 8 * WORDS] {
        let File { at, dev, ino, access } = self.file;
        let words = [self.error, self.step, self.mode, self.value, at, dev, ino, access];
        let mut bytes = [0; 8 * WORDS];
        for (room, word) in bytes.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Say {
        let mut words =
            bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, i64::from_ne_bytes));
        let mut next = || words.next().unwrap_or(0);
        let [error, step, mode, value] = [next(), next(), next(), next()];
        let [at, dev, ino, access] = [next(), next(), next(), next()];
        Say { error, step, mode, value, file: File { at, dev, ino, access } }
    }
}

impl Say {
    /// The value as a number of bytes; it is another process's word.
    pub(super) fn bytes(&self) -> usize {
        self.value.clamp(0, i32::MAX.into()) as usize
    }
}

/// Wrong use: what nodes do not have in common.
pub(super) fn differ(why: String) -> Failure {
    Failure::System(errno::EQPARAM, why)
}

/// A failure of a node, as the others have it.
fn of_node(node: usize, error: i64) -> Failure {
    let error = error as c_int;
    match error {
        150.. => Failure::System(error, format!("node {node}: {}", errno::text(error))),
        _ => Failure::System(error, format!("node {node}")),
    }
}

/// Waits until all nodes have come to a step, each with a value and a file, or with a failure. Returns what they say.
pub(super) fn meet(
    engine: &Engine,
    step: Step,
    mode: i32,
    own: Result<(i64, File), Failure>,
) -> Result<Vec<Say>, Failure> {
    let error = own.as_ref().err().map_or(0, |failure| failure.errno().into());
    let (value, file) = *own.as_ref().unwrap_or(&(0, File::NONE));
    let say = Say { error, step: step as i64, mode: mode.into(), value, file };
    let lens = vec![8 * WORDS; engine.nodes() as usize];
    let all = engine.collect(&say.to_bytes(), &lens);
    own?;
    let all: Vec<Say> = all?.chunks_exact(8 * WORDS).map(Say::from_bytes).collect();
    if let Some((node, said)) = all.iter().enumerate().find(|(_, said)| said.error != 0) {
        return Err(of_node(node, said.error));
    }
    for (node, said) in all.iter().enumerate() {
        if said.step != say.step {
            return Err(differ(format!("node {node} does something else to a file")));
        }
        if said.mode != say.mode {
            let [its, own] = [said.mode, say.mode];
            return Err(differ(format!(
                "node {node} has I/O mode {its}, this one {own}; all nodes must have the same"
            )));
        }
    }
    Ok(all)
}

/// Whether all nodes mean the same file, and are to do the same with it. Streams have no such thing.
pub(super) fn same_file(engine: &Engine, all: &[Say]) -> Result<(), Failure> {
    let mut files = all.iter().enumerate().filter(|(_, said)| said.file.is_file());
    let Some((one, first)) = files.next() else { return Ok(()) };
    for (node, said) in files {
        // Numbers of files are a machine's own.
        let [its, ones] = [said, first].map(|said| (said.file.dev, said.file.ino));
        if its != ones && engine.is_on_one_machine() {
            return Err(differ(format!("node {node} has another file than node {one}")));
        }
        if said.file.access != first.file.access {
            return Err(differ(format!(
                "node {node} has opened the file for something else than node {one}"
            )));
        }
    }
    Ok(())
}

/// Opens a file in every node by `open`, which gets the flags, and sets its mode. Where it must not be there node 0 makes it.
pub(super) fn open(
    flags: c_int,
    mode: i32,
    on_error: OnError,
    open: impl Fn(c_int) -> Result<OwnedFd, Failure>,
) -> Result<OwnedFd, Failure> {
    let _inside = Inside::begin()?;
    let right = modes::check(mode);
    let Some(engine) = team() else {
        right?;
        let fd = open(flags)?;
        return modes::note(fd.as_raw_fd(), mode).map(|()| fd);
    };
    let is_new = flags & libc::O_EXCL != 0;
    let waits = is_new && engine.node() > 0;
    let mut opened = right.and_then(|()| if waits { Ok(None) } else { open(flags).map(Some) });
    if on_error == OnError::EndsAll {
        opened = Ok(opened?);
    }
    if is_new {
        let own = opened.as_ref().map(|_| (0, File::NONE)).map_err(Failure::clone);
        meet(engine, Step::OpenNew, mode, own)?;
        if waits {
            opened = open(flags & !(libc::O_EXCL | libc::O_TRUNC)).map(Some);
        }
    }
    let fd = opened.as_ref().map_or(-1, |fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd));
    let ready = opened.as_ref().map(drop).map_err(Failure::clone);
    set_mode_of(engine, fd, mode, false, ready)?;
    match opened? {
        Some(fd) => Ok(fd),
        None => unreachable!("whoever waits has opened it then"),
    }
}

/// Sets the mode of an open file in every node.
pub(super) fn set_mode(fd: c_int, mode: i32, on_error: OnError) -> Result<(), Failure> {
    let _inside = Inside::begin()?;
    let ready = modes::check(mode).and_then(|()| modes::check_open(fd));
    let Some(engine) = team() else {
        ready?;
        return modes::note(fd, mode);
    };
    if on_error == OnError::EndsAll {
        ready?;
        return set_mode_of(engine, fd, mode, true, Ok(()));
    }
    set_mode_of(engine, fd, mode, true, ready)
}

/// `inherited`: the open file may be another process's, too.
fn set_mode_of(
    engine: &Engine,
    fd: c_int,
    mode: i32,
    inherited: bool,
    ready: Result<(), Failure>,
) -> Result<(), Failure> {
    let own = ready.and_then(|()| Ok((modes::mode(fd)?.into(), modes::look(fd)?)));
    let all = meet(engine, Step::SetMode, mode, own)?;
    let is_common = !matches!(mode, modes::UNIX | modes::ASYNC);
    if is_common {
        same_file(engine, &all)?;
    }
    let is_file = all.iter().all(|said| said.file.is_file());
    let is_shared = mode == modes::LOG && all.iter().all(|said| said.value == mode.into());
    if !is_file || is_shared {
        return modes::note(fd, mode);
    }
    // All have come: nobody moves a common pointer any more.
    let before = modes::mode(fd)?;
    let own = if inherited { make_own(fd, before) } else { Ok(()) };
    let appends = matches!(mode, modes::UNIX | modes::ASYNC | modes::LOG)
        && (before != modes::LOG || engine.is_on_one_machine());
    let own = own.and_then(|()| if appends { Ok(()) } else { modes::end_appending(fd) });
    let own = own.and_then(|()| Ok((0, modes::look(fd)?)));
    let all = meet(engine, Step::Place, mode, own)?;
    if is_common {
        modes::seek_to(fd, all.first().map_or(0, |said| said.file.at))?;
    }
    if mode == modes::LOG {
        share_pointer(engine, fd)?;
    }
    modes::note(fd, mode)
}

/// Opens a file once more in its place, with a pointer that no other process has.
fn make_own(fd: c_int, before: i32) -> Result<(), Failure> {
    let at = modes::look(fd)?.at;
    match modes::reopen(fd) {
        Ok(own) => {
            replace(fd, own.as_fd())?;
            modes::note(fd, before)?;
            modes::seek_to(fd, at)
        }
        // The pointer is the node's own already, unless another process has it by a fork.
        Err(_) if before != modes::LOG => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Puts an open file in the place of a descriptor.
fn replace(fd: c_int, by: BorrowedFd<'_>) -> Result<(), Failure> {
    // SAFETY: any number may be asked for.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    let cloexec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the caller of the call that we are in has given us its descriptor for this.
    if unsafe { libc::dup3(by.as_raw_fd(), fd, cloexec) } < 0 {
        return Err(Failure::last(format!("descriptor {fd}")));
    }
    Ok(())
}

/// Gives all nodes the open file of node 0.
fn share_pointer(engine: &Engine, fd: c_int) -> Result<(), Failure> {
    if !engine.is_on_one_machine() {
        return modes::append(fd);
    }
    let socket = if engine.node() == 0 { Ok(None) } else { Door::new().map(Some) };
    let (door, own) = match socket {
        Ok(Some(door)) => (Some(door.0), Ok((door.1, File::NONE))),
        Ok(None) => (None, Ok((0, File::NONE))),
        Err(failure) => (None, Err(failure)),
    };
    let all = meet(engine, Step::Share, modes::LOG, own)?;
    let sent = match &door {
        Some(_) => Ok(()),
        None => all.iter().skip(1).try_for_each(|said| send(fd, said.value)),
    };
    meet(engine, Step::Shared, modes::LOG, sent.map(|()| (0, File::NONE)))?;
    let got = door.map_or(Ok(()), |door| receive(fd, &door));
    meet(engine, Step::Shared, modes::LOG, got.map(|()| (0, File::NONE)))?;
    Ok(())
}

/// A socket that another node sends an open file to, and its name.
struct Door(OwnedFd, i64);

fn address(name: i64) -> rustix::io::Result<rustix::net::SocketAddrUnix> {
    let mut bytes = *b"nx-file-........";
    bytes[8..].copy_from_slice(&name.to_ne_bytes());
    rustix::net::SocketAddrUnix::new_abstract_name(&bytes)
}

fn datagrams() -> rustix::io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn no_file(errno: rustix::io::Errno) -> Failure {
    Failure::System(errno.raw_os_error(), "the common file of M_LOG".into())
}

impl Door {
    fn new() -> Result<Door, Failure> {
        let mut name = [0; 8];
        let mut open = || {
            rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
            let name = i64::from_ne_bytes(name);
            let socket = datagrams()?;
            rustix::net::bind(&socket, &address(name)?)?;
            Ok(Door(socket, name))
        };
        open().map_err(no_file)
    }
}

/// Sends an open file to a name.
fn send(fd: c_int, name: i64) -> Result<(), Failure> {
    // SAFETY: open, as the caller has looked, and during this call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let send = || {
        let socket = datagrams()?;
        rustix::net::connect(&socket, &address(name)?)?;
        packet::send(&socket, b"file", &[file], rustix::net::SendFlags::DONTWAIT)
    };
    send().map_err(no_file)
}

/// Takes the open file that has been sent, and no other that somebody else may have sent.
fn receive(fd: c_int, door: &OwnedFd) -> Result<(), Failure> {
    let own = modes::look(fd)?;
    loop {
        let got = packet::receive(door, &mut [0; 8], rustix::net::RecvFlags::DONTWAIT);
        let Some((_, mut fds)) = got.map_err(no_file)? else { continue };
        let Some(file) = fds.take() else { continue };
        let its = modes::look(file.as_fd().as_raw_fd())?;
        if (its.dev, its.ino) == (own.dev, own.ino) {
            return replace(fd, file.as_fd());
        }
    }
}

/// An open file of what open(2) answered.
pub(super) fn owned(fd: c_int, what: &str) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(Failure::last(what));
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What node 0 has, to all: `len` bytes.
pub(super) fn from_first(engine: &Engine, bytes: &[u8], len: usize) -> Result<Vec<u8>, NxError> {
    let mut lens = vec![0; engine.nodes() as usize];
    if let Some(first) = lens.first_mut() {
        *first = len;
    }
    engine.collect(if engine.node() == 0 { bytes } else { &[] }, &lens)
}
