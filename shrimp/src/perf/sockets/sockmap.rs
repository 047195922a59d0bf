//! The kernel's own short cut, to compare with: TCP sockets in a BPF map (`SOCKHASH`), and a program of ten
//! instructions that puts what one of them sends straight into the receive queue of the other, past the rest of TCP.
//! Both ends must take part and somebody with `CAP_BPF` and `CAP_NET_ADMIN` must load it, as daemons do that accelerate
//! container networks.
//!
//! Structures and numbers: `linux/bpf.h`. A socket's key is its own port; the program looks for the key that is the
//! other end's.
#![allow(unsafe_code)] // bpf(2) has no safe form

use crate::exit::{Context, Io};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const SOCKHASH: u32 = 18;
const PROG_TYPE_SK_MSG: u32 = 16;
const ATTACH_SK_MSG_VERDICT: u32 = 7;
const CALL_MSG_REDIRECT_HASH: i32 = 71;
const F_INGRESS: i32 = 1;
/// Where the other end's port is in the program's `struct sk_msg_md`, in network byte order.
const REMOTE_PORT: i16 = 60;

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_len: u32,
    value_len: u32,
    most: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 4],
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct ProgAttach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// bpf(2).
///
/// # Safety
/// `attributes` must be what `command` takes, with addresses that are valid for the call.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    let len = size_of::<T>();
    // SAFETY: the caller's promise.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), len) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as RawFd) }
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: just given by the kernel, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = value.to_ne_bytes();
    u64::from_ne_bytes([code, from << 4 | to, low, high, a, b, c, d])
}

/// `return bpf_msg_redirect_hash(msg, map, &ntohl(msg->remote_port), BPF_F_INGRESS)`
fn program(map: RawFd) -> [u64; 10] {
    [
        instruction(0x61, 0, 1, REMOTE_PORT, 0), // r0 = *(u32 *)(r1 + REMOTE_PORT)
        instruction(0xdc, 0, 0, 0, 32),          // r0 = be32(r0)
        instruction(0x63, 10, 0, -4, 0),         // *(u32 *)(r10 - 4) = r0
        instruction(0xbf, 3, 10, 0, 0),          // r3 = r10
        instruction(0x07, 3, 0, 0, -4),          // r3 += -4
        instruction(0x18, 2, 1, 0, map),         // r2 = map, in two words
        0,
        instruction(0xb7, 4, 0, 0, F_INGRESS), // r4 = F_INGRESS
        instruction(0x85, 0, 0, 0, CALL_MSG_REDIRECT_HASH), // call
        instruction(0x95, 0, 0, 0, 0),         // exit
    ]
}

/// A map with its program.
#[derive(Debug)]
pub(super) struct Sockmap {
    map: OwnedFd,
    _program: OwnedFd,
}

impl Sockmap {
    /// Loads it.
    pub(super) fn load() -> io::Result<Sockmap> {
        let wanted = MapCreate { kind: SOCKHASH, key_len: 4, value_len: 4, most: 64, flags: 0 };
        // SAFETY: all by value.
        let map = owned(unsafe { bpf(MAP_CREATE, &wanted) }?);
        let instructions = program(map.as_raw_fd());
        let wanted = ProgLoad {
            kind: PROG_TYPE_SK_MSG,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr().expose_provenance() as u64,
            license: c"MIT".as_ptr().expose_provenance() as u64,
            log: [0; 4],
            kernel: 0,
            flags: 0,
            name: *b"shrimp_perf\0\0\0\0\0",
            interface: 0,
            attach: ATTACH_SK_MSG_VERDICT,
        };
        // SAFETY: the instructions and the text outlive the call.
        let program = owned(unsafe { bpf(PROG_LOAD, &wanted) }?);
        let (target, number) = (map.as_raw_fd() as u32, program.as_raw_fd() as u32);
        let wanted = ProgAttach { target, program: number, kind: ATTACH_SK_MSG_VERDICT, flags: 0 };
        // SAFETY: all by value.
        unsafe { bpf(PROG_ATTACH, &wanted) }?;
        Ok(Sockmap { map, _program: program })
    }

    /// The map's number in programs that `start` starts.
    pub(super) fn lend<T>(&self, start: impl FnOnce(RawFd) -> T) -> Result<T, Io> {
        let flags = |flags| {
            rustix::io::fcntl_setfd(&self.map, flags)
                .context(|| "handing a socket map to a program".into())
        };
        flags(rustix::io::FdFlags::empty())?;
        let started = start(self.map.as_raw_fd());
        flags(rustix::io::FdFlags::CLOEXEC)?;
        Ok(started)
    }
}

/// Puts a connected socket into the map that was lent to this program.
pub(super) fn enter(map: RawFd, stream: &TcpStream) -> io::Result<()> {
    let key = u32::from(stream.local_addr()?.port());
    let value = stream.as_raw_fd();
    let wanted = MapUpdate {
        map: map as u32,
        pad: 0,
        key: std::ptr::from_ref(&key).expose_provenance() as u64,
        value: std::ptr::from_ref(&value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: key and value outlive the call.
    unsafe { bpf(MAP_UPDATE, &wanted) }.map(drop)
}
