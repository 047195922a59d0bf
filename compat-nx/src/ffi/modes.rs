//! I/O modes: which bytes of a file a request of a node is for.
//!
//! | mode | pointer | a request |
//! |---|---|---|
//! | `UNIX`, `ASYNC` | each node's own | the kernel's |
//! | `LOG` | the kernel's, of the open file that all nodes have ([`super::together`]) | the kernel's: first come, first served |
//! | `RECORD` | each node's own, all at the same place | node i of n, of `len` bytes: at `i * len` from there; then the pointer goes on by `n * len`. Nobody waits |
//! | `SYNC` | the same | the nodes say how long theirs are, each moves its bytes behind those of lower nodes, and they say what came of it |
//! | `GLOBAL` | the same | node 0 does it, and the others get what it has read |
//!
//! The pointers are those of the open files, so lseek(2) sets them: in all nodes to the same place, or the next request of `SYNC` and
//! `GLOBAL` says who stands elsewhere. A stream (a pipe, a terminal) has no place: in `SYNC` and `GLOBAL` node 0's is used, in the
//! others each node's own. Standard input, output and error are streams here also where they are files: whoever
//! started us goes on with their pointers.
//!
//! The mode is noted in the open file itself, where the signal of asynchronous files is kept, which such files do not use: so it goes
//! with copies of the descriptor, ends with the file, and no later file of the same number has it. That of standard input,
//! output and error, which are other programs' open files, too, is in memory.

use super::inside::Inside;
use super::together::{Say, Step, differ, from_first, meet, same_file, team};
use super::{Failure, errno};
use crate::engine::Engine;
use libc::iovec;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

pub(super) const UNIX: i32 = 0;
pub(super) const LOG: i32 = 1;
pub(super) const SYNC: i32 = 2;
pub(super) const RECORD: i32 = 3;
pub(super) const GLOBAL: i32 = 4;
pub(super) const ASYNC: i32 = 5;

/// fcntl(2): the signal of an asynchronous file.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// The signal that `UNIX` would be noted as. All are real-time signals of the kernel's.
const SIGNAL: i32 = 58;

/// Modes of descriptors 0 to 2.
static STANDARD: [AtomicI32; 3] = [const { AtomicI32::new(UNIX) }; 3];

/// Length of the last record of each file, for [`next`]; held while a node takes its place for one.
static RECORDS: Mutex<Option<HashMap<c_int, i64>>> = Mutex::new(None);

pub(super) fn check(mode: i32) -> Result<(), Failure> {
    if (UNIX..=ASYNC).contains(&mode) {
        return Ok(());
    }
    Err(Failure::System(errno::EQPARAM, format!("I/O mode {mode}; give {UNIX} to {ASYNC}")))
}

pub(super) fn check_open(fd: c_int) -> Result<(), Failure> {
    // SAFETY: any number may be asked for.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 { Err(bad(fd)) } else { Ok(()) }
}

fn bad(fd: c_int) -> Failure {
    Failure::last(format!("descriptor {fd}"))
}

fn standard(fd: c_int) -> Option<&'static AtomicI32> {
    STANDARD.get(usize::try_from(fd).ok()?)
}

/// Notes the mode of an open file.
pub(super) fn note(fd: c_int, mode: i32) -> Result<(), Failure> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&fd);
    if let Some(standard) = standard(fd) {
        standard.store(mode, Ordering::Relaxed);
        return Ok(());
    }
    let signal = if mode == UNIX { 0 } else { SIGNAL + mode };
    // SAFETY: any number may be asked for.
    if unsafe { libc::fcntl(fd, F_SETSIG, signal) } < 0 { Err(bad(fd)) } else { Ok(()) }
}

/// The mode of an open file.
pub(super) fn mode(fd: c_int) -> Result<i32, Failure> {
    if let Some(standard) = standard(fd) {
        return check_open(fd).map(|()| standard.load(Ordering::Relaxed));
    }
    // SAFETY: any number may be asked for.
    let signal = unsafe { libc::fcntl(fd, F_GETSIG) };
    if signal < 0 {
        return Err(bad(fd));
    }
    let mode = signal - SIGNAL;
    Ok(if (LOG..=ASYNC).contains(&mode) { mode } else { UNIX })
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    /// Where its pointer is; below 0: it is a stream, or is taken for one.
    pub(super) at: i64,
    pub(super) dev: i64,
    pub(super) ino: i64,
    /// For reading, writing or both.
    pub(super) access: i64,
}

impl File {
    pub(super) const NONE: File = File { at: -1, dev: 0, ino: 0, access: 0 };

    pub(super) fn is_file(self) -> bool {
        self.at >= 0
    }
}

fn stat(fd: c_int) -> Result<libc::stat, Failure> {
    // SAFETY: an all-zero stat is a valid value to fill in.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 { Err(bad(fd)) } else { Ok(stat) }
}

pub(super) fn look(fd: c_int) -> Result<File, Failure> {
    let stat = stat(fd)?;
    let at = match stat.st_mode & libc::S_IFMT {
        _ if standard(fd).is_some() => -1,
        // SAFETY: any number may be asked for.
        libc::S_IFREG | libc::S_IFBLK => unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) },
        _ => -1,
    };
    // SAFETY: as above.
    let access = i64::from(unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE);
    Ok(File { at, dev: stat.st_dev as i64, ino: stat.st_ino as i64, access })
}

pub(super) fn seek_to(fd: c_int, at: i64) -> Result<(), Failure> {
    // SAFETY: any number may be asked for.
    if unsafe { libc::lseek(fd, at, libc::SEEK_SET) } < 0 { Err(bad(fd)) } else { Ok(()) }
}

fn set_flags(fd: c_int, change: impl Fn(c_int) -> c_int) -> Result<c_int, Failure> {
    // SAFETY: any number may be asked for.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, change(flags)) } < 0 {
        return Err(bad(fd));
    }
    Ok(flags)
}

/// What is written goes to the end of the file, whoever writes.
pub(super) fn append(fd: c_int) -> Result<(), Failure> {
    set_flags(fd, |flags| flags | libc::O_APPEND).map(drop)
}

/// A file that is appended to has its pointer at its end instead: the kernel would write at the end whatever place is named.
pub(super) fn end_appending(fd: c_int) -> Result<(), Failure> {
    let before = set_flags(fd, |flags| flags & !libc::O_APPEND)?;
    if before & libc::O_APPEND != 0 && look(fd)?.is_file() {
        // SAFETY: any number may be asked for.
        unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    }
    Ok(())
}

/// The same file, opened once more.
pub(super) fn reopen(fd: c_int) -> Result<OwnedFd, Failure> {
    // SAFETY: any number may be asked for.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let name = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    // SAFETY: a string.
    let again = unsafe { libc::open(name.as_ptr(), (flags & !libc::O_NOFOLLOW) | libc::O_CLOEXEC) };
    super::together::owned(again, &format!("descriptor {fd}, opened anew"))
}

/// Where this node's next request will be, as far as that is known, and the size of the file.
pub(super) fn next(fd: c_int) -> Result<(i64, i64), Failure> {
    let size = stat(fd)?.st_size;
    // SAFETY: any number may be asked for.
    let at = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    if at < 0 {
        return Err(bad(fd));
    }
    let Some(engine) = team().filter(|_| mode(fd).is_ok_and(|mode| mode == RECORD)) else {
        return Ok((at, size));
    };
    let records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let last = records.as_ref().and_then(|records| records.get(&fd)).copied().unwrap_or(0);
    Ok((at.saturating_add(last.saturating_mul(engine.node().into())), size))
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    Read,
    Write,
}

impl Way {
    fn steps(self) -> (Step, Step) {
        match self {
            Way::Read => (Step::Read, Step::Got),
            Way::Write => (Step::Write, Step::Wrote),
        }
    }
}

/// Moves what a node asks for, as the mode of the file has it; answers how many bytes.
///
/// # Safety
/// `count` elements of memory of the caller, at `iov`, that may be read or written.
pub(super) unsafe fn transfer(
    way: Way,
    fd: c_int,
    iov: *const iovec,
    count: Result<c_int, Failure>,
    what: &str,
) -> Result<i32, Failure> {
    let mode = mode(fd).unwrap_or(UNIX);
    let is_common = !matches!(mode, UNIX | ASYNC);
    let Some(engine) = is_common.then(team).flatten() else {
        return moved(by_kernel(way, fd, iov, count?), what);
    };
    if mode == LOG {
        let count = count?;
        if way == Way::Read && !engine.is_on_one_machine() && look(fd)?.is_file() {
            let why = "M_LOG has no common pointer for reads on several machines";
            return Err(Failure::System(libc::ENOSYS, why.into()));
        }
        return moved(by_kernel(way, fd, iov, count), what);
    }
    let _inside = Inside::begin()?;
    // SAFETY: the caller's word.
    let pieces = count.and_then(|count| unsafe { Pieces::new(iov, count) });
    let all = match mode {
        RECORD => by_record(engine, way, fd, pieces?, what),
        SYNC => in_turn(engine, way, fd, pieces, what),
        _ => as_one(engine, way, fd, pieces, what),
    };
    all.map(|bytes| bytes.min(i32::MAX as usize) as i32)
}

fn by_kernel(way: Way, fd: c_int, iov: *const iovec, count: c_int) -> isize {
    match way {
        // SAFETY: the caller's memory; the kernel checks it.
        Way::Read => unsafe { libc::readv(fd, iov, count) },
        // SAFETY: as above.
        Way::Write => unsafe { libc::writev(fd, iov, count) },
    }
}

fn moved(result: isize, what: &str) -> Result<i32, Failure> {
    super::io::bytes(result, what)
}

/// Memory of the caller.
struct Pieces {
    list: Vec<iovec>,
    len: usize,
}

impl Pieces {
    /// # Safety
    /// As [`transfer`].
    unsafe fn new(iov: *const iovec, count: c_int) -> Result<Pieces, Failure> {
        let fault = |errno| Failure::System(errno, "the memory of the request".into());
        let count = usize::try_from(count).map_err(|_| fault(libc::EINVAL))?;
        if count > libc::UIO_MAXIOV as usize {
            return Err(fault(libc::EINVAL));
        }
        if iov.is_null() && count > 0 {
            return Err(fault(libc::EFAULT));
        }
        // SAFETY: the caller's word.
        let list: Vec<iovec> =
            (0..count).map(|at| unsafe { iov.wrapping_add(at).read_unaligned() }).collect();
        if list.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
            return Err(fault(libc::EFAULT));
        }
        let len = list.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len));
        let len = len.filter(|&len| len <= i32::MAX as usize).ok_or(fault(libc::EINVAL))?;
        Ok(Pieces { list, len })
    }

    /// Without its first bytes.
    fn skip(&mut self, mut bytes: usize) {
        for piece in &mut self.list {
            let part = bytes.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            piece.iov_len -= part;
            bytes -= part;
        }
        self.list.retain(|piece| piece.iov_len > 0);
    }

    /// A copy.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        for piece in &self.list {
            let start = bytes.len();
            bytes.resize(start + piece.iov_len, 0);
            let room: *mut u8 = bytes[start..].as_mut_ptr();
            // SAFETY: so much is readable by the caller's word, and there is room; a new vector is not the caller's.
            unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast(), room, piece.iov_len) };
        }
        bytes
    }

    /// Fills its beginning.
    fn fill(&self, mut bytes: &[u8]) {
        for piece in &self.list {
            let (part, rest) = bytes.split_at(bytes.len().min(piece.iov_len));
            // SAFETY: so much is writable by the caller's word; the bytes are our own vector's.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len())
            };
            bytes = rest;
        }
    }
}

/// Moves all, from a place on, or until the file ends.
fn at_place(
    way: Way,
    fd: c_int,
    mut pieces: Pieces,
    at: i64,
    what: &str,
) -> Result<usize, Failure> {
    let mut done = 0;
    pieces.skip(0);
    while !pieces.list.is_empty() {
        let (list, count) = (pieces.list.as_ptr(), pieces.list.len() as c_int);
        let place = at.saturating_add(done as i64);
        let result = match way {
            // SAFETY: the caller's memory; the kernel checks it.
            Way::Read => unsafe { libc::preadv(fd, list, count, place) },
            // SAFETY: as above.
            Way::Write => unsafe { libc::pwritev(fd, list, count, place) },
        };
        match usize::try_from(result) {
            Ok(0) => break,
            Ok(part) => {
                done += part;
                pieces.skip(part);
            }
            Err(_) if done > 0 => break,
            Err(_) => return Err(Failure::last(what)),
        }
    }
    Ok(done)
}

fn by_record(
    engine: &Engine,
    way: Way,
    fd: c_int,
    pieces: Pieces,
    what: &str,
) -> Result<usize, Failure> {
    if !look(fd)?.is_file() {
        let (list, count) = (pieces.list.as_ptr(), pieces.list.len() as c_int);
        return moved(by_kernel(way, fd, list, count), what).map(|bytes| bytes as usize);
    }
    let len = pieces.len as i64;
    let at = {
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        let File { at, .. } = look(fd)?;
        // Whatever comes of it: the next record is where the others take it to be.
        seek_to(fd, at.saturating_add(len * i64::from(engine.nodes())))?;
        records.get_or_insert_default().insert(fd, len);
        at
    };
    at_place(way, fd, pieces, at.saturating_add(len * i64::from(engine.node())), what)
}

/// All nodes' requests, when all have come to one: how long each is, and where all files stand if none is a stream.
fn requests(
    engine: &Engine,
    way: Way,
    mode: i32,
    fd: c_int,
    pieces: Result<&Pieces, Failure>,
) -> Result<(Vec<usize>, Option<i64>), Failure> {
    let own = pieces.and_then(|pieces| Ok((pieces.len as i64, look(fd)?)));
    let all = meet(engine, way.steps().0, mode, own)?;
    same_file(engine, &all)?;
    let lens = all.iter().map(Say::bytes).collect();
    let place = |said: &Say| Some(said.file.at).filter(|&at| at >= 0);
    let Some(first) = all.first().and_then(place) else { return Ok((lens, None)) };
    for (node, said) in all.iter().enumerate() {
        match place(said) {
            None => return Ok((lens, None)),
            Some(at) if at != first => {
                return Err(differ(format!(
                    "node {node} stands at {at} in the file, node 0 at {first}; all nodes must seek to the same place"
                )));
            }
            Some(_) => {}
        }
    }
    Ok((lens, Some(first)))
}

/// What came of a request in every node, if it went well in all.
fn results(
    engine: &Engine,
    way: Way,
    mode: i32,
    own: Result<usize, Failure>,
) -> Result<Vec<usize>, Failure> {
    let own = own.map(|bytes| (bytes as i64, File::NONE));
    let all = meet(engine, way.steps().1, mode, own)?;
    Ok(all.iter().map(Say::bytes).collect())
}

fn in_turn(
    engine: &Engine,
    way: Way,
    fd: c_int,
    pieces: Result<Pieces, Failure>,
    what: &str,
) -> Result<usize, Failure> {
    let (lens, at) = requests(engine, way, SYNC, fd, pieces.as_ref().map_err(Failure::clone))?;
    let pieces = pieces?;
    let me = engine.node() as usize;
    let Some(at) = at else { return in_turn_by_first(engine, way, fd, &pieces, &lens, what) };
    let before: usize = lens.iter().take(me).sum();
    let own = at_place(way, fd, pieces, at.saturating_add(before as i64), what);
    let moved = results(engine, way, SYNC, own)?;
    seek_to(fd, at.saturating_add(moved.iter().sum::<usize>() as i64))?;
    Ok(moved.get(me).copied().unwrap_or(0))
}

/// A stream: node 0 has the others' bytes, and moves them in turn.
fn in_turn_by_first(
    engine: &Engine,
    way: Way,
    fd: c_int,
    pieces: &Pieces,
    lens: &[usize],
    what: &str,
) -> Result<usize, Failure> {
    let me = engine.node() as usize;
    let is_first = me == 0;
    if way == Way::Write {
        let mut all = engine.collect(&pieces.to_bytes(), lens)?;
        let own = if is_first { write_all(fd, &mut all, what) } else { Ok(0) };
        results(engine, way, SYNC, own)?;
        return Ok(pieces.len);
    }
    let mut all = Vec::new();
    let mut counts = Vec::new();
    let own = match is_first {
        true => lens.iter().try_for_each(|&len| {
            let start = all.len();
            all.resize(start + len, 0);
            let count = read_once(fd, &mut all[start..], what)?;
            all.truncate(start + count);
            counts.extend_from_slice(&(count as u32).to_ne_bytes());
            Ok(())
        }),
        false => Ok(()),
    };
    let total = results(engine, way, SYNC, own.map(|()| all.len()))?.first().copied().unwrap_or(0);
    let counts = from_first(engine, &counts, 4 * lens.len())?;
    let all = from_first(engine, &all, total)?;
    let count = |count: &[u8]| count.try_into().map_or(0, u32::from_ne_bytes) as usize;
    let start: usize = counts.chunks_exact(4).take(me).map(count).sum();
    let len = counts.chunks_exact(4).nth(me).map_or(0, count);
    pieces.fill(all.get(start..start + len).unwrap_or_default());
    Ok(len)
}

fn write_all(fd: c_int, bytes: &mut [u8], what: &str) -> Result<usize, Failure> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        let piece = iovec { iov_base: rest.as_mut_ptr().cast::<c_void>(), iov_len: rest.len() };
        done += moved(waiting(Way::Write, fd, piece), what)? as usize;
    }
    Ok(done)
}

/// For all nodes: what has been moved for others is not to be lost, so a signal is no error, nor that a stream is not ready.
fn waiting(way: Way, fd: c_int, piece: iovec) -> isize {
    loop {
        let result = by_kernel(way, fd, &raw const piece, 1);
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) if result < 0 => {}
            Some(libc::EAGAIN) if result < 0 => {
                let events = if way == Way::Read { libc::POLLIN } else { libc::POLLOUT };
                let mut entry = libc::pollfd { fd, events, revents: 0 };
                // SAFETY: one entry on this stack.
                unsafe { libc::poll(&raw mut entry, 1, -1) };
            }
            _ => return result,
        }
    }
}

fn read_once(fd: c_int, room: &mut [u8], what: &str) -> Result<usize, Failure> {
    let piece = iovec { iov_base: room.as_mut_ptr().cast::<c_void>(), iov_len: room.len() };
    moved(waiting(Way::Read, fd, piece), what).map(|bytes| bytes as usize)
}

fn as_one(
    engine: &Engine,
    way: Way,
    fd: c_int,
    pieces: Result<Pieces, Failure>,
    what: &str,
) -> Result<usize, Failure> {
    let (lens, at) = requests(engine, way, GLOBAL, fd, pieces.as_ref().map_err(Failure::clone))?;
    let pieces = pieces?;
    for (node, &len) in lens.iter().enumerate() {
        if len != lens[0] {
            let first = lens[0];
            return Err(differ(format!(
                "node {node} asks for {len} bytes, node 0 for {first}; in M_GLOBAL all nodes must do the same"
            )));
        }
    }
    let is_first = engine.node() == 0;
    let mut bytes = if is_first { pieces.to_bytes() } else { Vec::new() };
    let own = match way {
        _ if !is_first => Ok(0),
        Way::Read => read_place(fd, &mut bytes, at, what),
        Way::Write => write_place(fd, &mut bytes, at, what),
    };
    let moved = results(engine, way, GLOBAL, own)?.first().copied().unwrap_or(0);
    if way == Way::Read {
        let bytes = from_first(engine, bytes.get(..moved).unwrap_or_default(), moved)?;
        pieces.fill(&bytes);
    }
    if let Some(at) = at {
        seek_to(fd, at.saturating_add(moved as i64))?;
    }
    Ok(moved)
}

fn whole(bytes: &mut [u8]) -> Pieces {
    let iov_base = bytes.as_mut_ptr().cast::<c_void>();
    Pieces { list: vec![iovec { iov_base, iov_len: bytes.len() }], len: bytes.len() }
}

fn read_place(fd: c_int, room: &mut [u8], at: Option<i64>, what: &str) -> Result<usize, Failure> {
    match at {
        Some(at) => at_place(Way::Read, fd, whole(room), at, what),
        None => read_once(fd, room, what),
    }
}

fn write_place(fd: c_int, bytes: &mut [u8], at: Option<i64>, what: &str) -> Result<usize, Failure> {
    match at {
        Some(at) => at_place(Way::Write, fd, whole(bytes), at, what),
        None => write_all(fd, bytes, what),
    }
}
