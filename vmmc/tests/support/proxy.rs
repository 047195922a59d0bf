//! A TCP proxy that can cut, hold, delay and crawl, listen and change: what a network does, on demand.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::sys::socket::reset;

#[derive(Debug, Default)]
struct State {
    open: Mutex<Vec<TcpStream>>,
    held: AtomicBool,
    /// Bytes a read takes at most; 0: as many as come.
    crawl: AtomicUsize,
    /// Longest time for which a piece is kept, in nanoseconds.
    delay: AtomicU64,
    /// Bytes until the cut, plus 1; 0: no cut is planned.
    left: AtomicU64,
    /// What has gone to the target, while somebody listens.
    heard: Mutex<Option<Vec<u8>>>,
    /// The next byte to the target, and back from it, is another.
    spoils: [AtomicBool; 2],
    /// What goes to the target next, goes twice.
    repeats: AtomicBool,
    /// Planned cuts are resets.
    resets: AtomicBool,
    /// Nobody comes through who comes now.
    barred: AtomicBool,
}

impl State {
    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            if self.resets.load(Ordering::SeqCst) {
                reset(&stream);
            }
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// See the module.
pub struct Proxy {
    address: String,
    state: Arc<State>,
}

impl Proxy {
    /// A proxy to an address; lives until the process ends.
    pub fn to(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State::default());
        let (target, shared) = (target.to_owned(), state.clone());
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let Ok(from) = from else { return };
                if shared.barred.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(to) = TcpStream::connect(&target) else { continue };
                from.set_nodelay(true).unwrap();
                to.set_nodelay(true).unwrap();
                let mut open = shared.open.lock().unwrap();
                open.retain(|stream| stream.peer_addr().is_ok());
                open.extend([from.try_clone().unwrap(), to.try_clone().unwrap()]);
                drop(open);
                let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
                let (there, back) = (shared.clone(), shared.clone());
                std::thread::spawn(move || pump(&there, from, to, true));
                std::thread::spawn(move || pump(&back, back_from, back_to, false));
            }
        });
        Proxy { address, state }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.state.cut();
    }

    /// The same by an RST, which no end has sent.
    pub fn reset(&self) {
        self.state.resets.store(true, Ordering::SeqCst);
        self.state.cut();
        self.state.resets.store(false, Ordering::SeqCst);
    }

    /// From now on, planned cuts are such resets.
    pub fn resets(&self) {
        self.state.resets.store(true, Ordering::SeqCst);
    }

    /// Whether connections that come from now on are closed at once.
    pub fn bar(&self, whether: bool) {
        self.state.barred.store(whether, Ordering::SeqCst);
    }

    /// Ends all connections once so many more bytes have gone to the target.
    pub fn cut_after(&self, bytes: u64) {
        self.state.left.store(bytes + 1, Ordering::SeqCst);
    }

    /// From now on nothing that comes to the ends of the connections which are open now is heard, nor answered: as when
    /// both nodes' cables are pulled. Later ones work.
    pub fn vanish(&self) {
        for stream in self.state.open.lock().unwrap().iter() {
            deafen(stream);
        }
    }

    /// Passes at most so many bytes at a time.
    pub fn crawl(&self, bytes: usize) {
        self.state.crawl.store(bytes, Ordering::SeqCst);
    }

    /// Keeps each piece, which is cut anywhere, for up to so long, either way.
    pub fn delay(&self, most: Duration) {
        self.state.delay.store(most.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Keeps what goes to the target from now on.
    pub fn listen(&self) {
        *self.state.heard.lock().unwrap() = Some(Vec::new());
    }

    /// What has gone to the target since.
    pub fn heard(&self) -> Vec<u8> {
        self.state.heard.lock().unwrap().take().unwrap_or_default()
    }

    /// Changes a bit of what goes to the target next, or comes back from it.
    pub fn spoil(&self, to_target: bool) {
        self.state.spoils[usize::from(to_target)].store(true, Ordering::SeqCst);
    }

    /// Passes what goes to the target next twice.
    pub fn repeat(&self) {
        self.state.repeats.store(true, Ordering::SeqCst);
    }

    /// Passes nothing more.
    pub fn hold(&self) {
        self.state.held.store(true, Ordering::SeqCst);
    }

    pub fn go_on(&self) {
        self.state.held.store(false, Ordering::SeqCst);
    }

    /// While held: waits until a sender's kernel has no room left, and says how much it took.
    pub fn fills(&self, patience: Duration) -> u64 {
        use rustix::io::ioctl_fionread;
        let start = Instant::now();
        let (mut last, mut same) = (0, 0);
        while same < 20 {
            assert!(start.elapsed() < patience, "it never fills");
            std::thread::sleep(Duration::from_millis(10));
            let open = self.state.open.lock().unwrap();
            let now = open.iter().filter_map(|it| ioctl_fionread(it).ok()).max().unwrap_or(0);
            drop(open);
            same = if now == last && now > 0 { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        let mut open = self.state.open.lock().unwrap();
        open.retain(|stream| stream.peer_addr().is_ok());
        open.len() / 2
    }
}

/// From now on nothing that comes to a socket is heard, nor acknowledged.
pub fn deafen(socket: impl AsFd) {
    // "Take nothing of the packet."
    let mut nothing = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: nothing.as_mut_ptr() };
    // SAFETY: the option takes a program of so many instructions, which the kernel copies.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn pump(state: &State, mut from: TcpStream, mut to: TcpStream, forward: bool) {
    let mut buffer = vec![0; 64 * 1024];
    // Marsaglia's xorshift: no two pumps alike, and the same in each run.
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(from.peer_addr().map_or(0, |it| it.port()));
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit.max(1)
    };
    loop {
        while state.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let delay = state.delay.load(Ordering::SeqCst);
        let most = match state.crawl.load(Ordering::SeqCst) {
            0 if delay > 0 => 1 + below(buffer.len() as u64) as usize,
            0 => buffer.len(),
            most => most,
        };
        let len = match from.read(&mut buffer[..most]) {
            Ok(0) => break,
            // As it was ended there, so here.
            Err(_) => return reset(&to),
            Ok(len) => len,
        };
        std::thread::sleep(Duration::from_nanos(below(delay)));
        let mut pass = len;
        if state.spoils[usize::from(forward)].swap(false, Ordering::SeqCst) {
            buffer[len - 1] ^= 4;
        }
        if forward {
            if let Some(heard) = &mut *state.heard.lock().unwrap() {
                heard.extend_from_slice(&buffer[..len]);
            }
            let left = state.left.load(Ordering::SeqCst);
            if left > 0 {
                pass = len.min(left as usize - 1);
                state.left.store(left - pass as u64, Ordering::SeqCst);
            }
        }
        let times = 1 + usize::from(forward && state.repeats.swap(false, Ordering::SeqCst));
        if (0..times).any(|_| to.write_all(&buffer[..pass]).is_err()) {
            break;
        }
        if forward && state.left.load(Ordering::SeqCst) == 1 {
            state.left.store(0, Ordering::SeqCst);
            state.cut();
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
