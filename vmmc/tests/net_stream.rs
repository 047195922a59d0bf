//! A stream between nodes while its links are cut and daemons are killed: every byte arrives, once, in its place.
//!
//! The import's end says that it is not known what arrived; what is on its way then may still land. So the sender
//! begins again at the first piece that was not acknowledged, and not before the receiver has seen the end of
//! the link before (its last importer is the new one).

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/restart.rs"]
mod restart;

use cluster::{KEY, Place, address_of, node};
use common::{PATIENCE, export};
use proxy::Proxy;
use restart::restart;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use vmmc::error::WaitError;
use vmmc::{Export, Import, Node, Rights};

/// Bytes of a piece, and pieces in the buffer.
const PIECE: usize = 1 << 20;
const PIECES: u64 = 4;
/// After the pieces: how many were written, how many were taken, which link the receiver knows, and a
/// word for each link, by which it makes itself known.
const WRITTEN: usize = PIECES as usize * PIECE;
const TAKEN: usize = WRITTEN + 64;
const KNOWN: usize = WRITTEN + 128;
const LINKS: usize = WRITTEN + 4096;
const LEN: usize = LINKS + 8 * MAX_LINKS;
const MAX_LINKS: usize = 4096;

/// Words of no pattern that a lost, doubled or misplaced byte would leave alone.
fn fill(piece: &mut [u8], number: u64) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in piece.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes());
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.fold(0, |sum: u64, word| sum.rotate_left(5) ^ word.wrapping_mul(0x2545_f491_4f6c_dd1d))
}

fn at(number: u64) -> usize {
    (number % PIECES) as usize * PIECE
}

/// Takes `total` pieces, and checks each.
fn receive(export: &Export, total: u64) {
    let (mut found, mut expected) = (vec![0; PIECE], vec![0; PIECE]);
    let (mut taken, mut link) = (0, 0);
    let written = export.flag64(WRITTEN).unwrap();
    let mut last = Instant::now();
    while taken < total {
        assert!(last.elapsed() < PATIENCE.unwrap(), "nothing after {taken} pieces, link {link}");
        if export.flag64(LINKS + 8 * link).unwrap().load().unwrap() != 0 {
            // Everything of the links before it has landed when they have ended here.
            if export.importers().len() == 1 {
                link += 1;
                export.flag64(KNOWN).unwrap().store(link as u64).unwrap();
                last = Instant::now();
            }
            std::thread::yield_now();
            continue;
        }
        if written.load().unwrap() <= taken {
            std::thread::yield_now();
            continue;
        }
        export.read(at(taken), &mut found).unwrap();
        fill(&mut expected, taken);
        assert_eq!(checksum(&found), checksum(&expected), "piece {taken}");
        taken += 1;
        export.flag64(TAKEN).unwrap().store(taken).unwrap();
        last = Instant::now();
    }
}

/// Opens link number `link`, and says how many pieces were taken before it. `None`: it ended at once.
fn begin(node: &Node, link: usize) -> Option<(Import, u64)> {
    let import = node.import("x").node("a").rights(Rights::WRITE | Rights::READ);
    let import = import.timeout(PATIENCE.unwrap()).open().ok()?;
    import.flag64(LINKS + 8 * link).unwrap().store(1).ok()?;
    let known = import.flag64(KNOWN).unwrap();
    let known = known.wait_until(|known| known > link as u64, PATIENCE);
    assert!(!matches!(known, Err(WaitError::TimedOut { .. })), "link {link} is not taken up");
    known.ok()?;
    let mut taken = [0; 8];
    import.read(TAKEN, &mut taken).ok()?;
    Some((import, u64::from_ne_bytes(taken)))
}

/// How far the stream and what breaks it have come. Neither leaves the other behind.
struct Progress {
    sent: AtomicU64,
    broken: AtomicU64,
    /// Pieces between two breakages.
    every: u64,
}

impl Progress {
    /// Waits, before this piece is sent, until what was due half an interval ago is broken.
    fn wait_for_breakage(&self, number: u64) {
        let start = Instant::now();
        let is_ahead =
            || number >= (self.broken.load(Ordering::Acquire) + 1) * self.every + self.every / 2;
        while is_ahead() {
            assert!(start.elapsed() < PATIENCE.unwrap(), "nothing breaks before piece {number}");
            std::thread::yield_now();
        }
    }
}

/// Sends piece after piece over one link; how many were acknowledged when all were, or it ended.
fn send_over(import: &Import, mut number: u64, total: u64, progress: &Progress) -> u64 {
    let mut piece = vec![0; PIECE];
    let taken = import.flag64(TAKEN).unwrap();
    while number < total {
        progress.wait_for_breakage(number);
        fill(&mut piece, number);
        if import.send(at(number), &piece).is_err()
            || import.flag64(WRITTEN).unwrap().store(number + 1).is_err()
            || import.fence().is_err()
        {
            return number;
        }
        // As many may be on their way as the buffer has places.
        let wanted = (number + 1).saturating_sub(PIECES - 1);
        match taken.wait_until(|taken| taken >= wanted, PATIENCE) {
            Ok(_) => {}
            Err(WaitError::TimedOut { .. }) => panic!("piece {number} is not taken"),
            Err(_) => return number,
        }
        number += 1;
        progress.sent.store(number, Ordering::Release);
    }
    number
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Streams `total` pieces; after each `every`-th something is broken. How many links it took.
fn stream(total: u64, every: u64) -> usize {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let mut a = node("a", &address, &[], Some(KEY));
    let mut b = node("b", &address_of("b"), &[("a", proxy.address())], Some(KEY));
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", LEN);
    let progress = Progress { sent: AtomicU64::new(0), broken: AtomicU64::new(0), every };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when an assertion ends this: nobody waits for a thread that goes on for ever.
        let finished = SetWhenDropped(&done);
        let breaker = scope.spawn(|| breakages(&mut a, &mut b, &proxy, &progress, &done));
        let sender = scope.spawn(|| {
            let (mut links, mut number) = (0, 0);
            while number < total {
                assert!(links < MAX_LINKS, "no link holds");
                if let Some((import, taken)) = begin(&importer, links) {
                    number = send_over(&import, taken, total, &progress);
                }
                // Its word says so only if it came so far.
                if export_knows(&export, links) {
                    links += 1;
                }
            }
            links
        });
        receive(&export, total);
        let links = sender.join().unwrap();
        drop(finished);
        breaker.join().unwrap();
        let broken = progress.broken.load(Ordering::Acquire);
        assert!(broken >= total / every - 1, "{broken} breakages");
        links
    })
}

/// Whether a link's word has come: the next link needs another.
fn export_knows(export: &Export, link: usize) -> bool {
    export.flag64(LINKS + 8 * link).unwrap().load().unwrap() != 0
}

/// Cuts the link, in the middle of a piece or between pieces, kills the importer's daemon and the
/// exporter's, in turn.
fn breakages(a: &mut Place, b: &mut Place, proxy: &Proxy, progress: &Progress, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        let broken = progress.broken.load(Ordering::Acquire);
        if progress.sent.load(Ordering::Acquire) < (broken + 1) * progress.every {
            std::thread::yield_now();
            continue;
        }
        match broken % 4 {
            0 => proxy.cut(),
            1 => proxy.cut_after(PIECE as u64 / 3),
            2 => restart(b),
            _ => restart(a),
        }
        progress.broken.store(broken + 1, Ordering::Release);
    }
}

#[test]
fn a_stream_survives_cuts_and_restarts() {
    assert!(stream(80, 8) > 4, "links were cut");
}

#[test]
#[ignore = "10 GB; VMMC_STREAM_MIB gives another length"]
fn ten_gigabytes_survive_cuts_and_restarts() {
    let length = std::env::var("VMMC_STREAM_MIB").ok().map(|text| text.parse().unwrap());
    let total = length.unwrap_or(10 << 10);
    let start = Instant::now();
    let links = stream(total, 100);
    println!("{total} MiB over {links} links in {:?}", start.elapsed());
}
