//! What a call moves, and nothing else: the caller's argument is copied into memory that both sides map, a word tells of it,
//! the handler stores what it stores, a word comes back, and the caller copies the argument out. No call by any
//! library is faster than this by more than what it moves in another way.

use super::{Cell, Handler};
use crate::cpu;
use crate::exit::{Context, Io};
use crate::perf::peer::{PAGE, PING, PONG, word};
use crate::shm::Shared;
use crate::stats::Plan;
use vmmc::mem::View;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word as _;

/// Where the length is that the handler stores, in the first page; the argument is in the next.
const STORES: usize = 512;
/// In the word of the caller: the other side ends.
const END: u32 = u32::MAX;

/// Both sides as threads on the two processors; the caller's is this one. A round of each cell.
pub(super) fn rounds(cells: &[Cell], peer: usize, plan: &Plan) -> Result<Vec<(Vec<f64>, u32)>, Io> {
    let longest = cells.iter().map(|cell| cell.bytes).max().unwrap_or(0);
    let len = PAGE + longest.next_multiple_of(PAGE);
    let made = rustix::fs::memfd_create("bare", rustix::fs::MemfdFlags::CLOEXEC);
    let file = made.and_then(|file| rustix::fs::ftruncate(&file, len as u64).map(|()| file));
    let file = file
        .map_err(std::io::Error::from)
        .context(|| format!("making {len} bytes of shared memory"))?;
    let shared = Shared::map(file, len)?;
    let view = shared.view();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(view, peer));
        let taken = cells.iter().map(|cell| round(view, *cell, plan)).collect();
        word(view, PING)?.store(END, Ordering::Release);
        server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        taken
    })
}

fn serve(view: View<'_>, peer: usize) -> Result<(), Io> {
    cpu::pin(peer)?;
    let (ping, pong, stores) = (word(view, PING)?, word(view, PONG)?, word(view, STORES)?);
    let mut seen = 0;
    loop {
        let now = ping.load(Ordering::Acquire);
        if now == seen {
            spin_hint();
            continue;
        }
        if now == END {
            return Ok(());
        }
        seen = now;
        let len = stores.load(Ordering::Relaxed) as usize;
        if len > 0 {
            argument(view, len)?.fill(0x5a);
        }
        pong.store(seen, Ordering::Release);
    }
}

fn argument(view: View<'_>, len: usize) -> Result<View<'_>, Io> {
    view.slice(PAGE, len).map_err(std::io::Error::other).context(|| "the argument".into())
}

fn round(view: View<'_>, cell: Cell, plan: &Plan) -> Result<(Vec<f64>, u32), Io> {
    let (ping, pong, stores) = (word(view, PING)?, word(view, PONG)?, word(view, STORES)?);
    let stored = if cell.handler == Handler::Writes { cell.bytes } else { 0 };
    stores.store(stored as u32, Ordering::Relaxed);
    let mut data = vec![0u8; cell.bytes];
    let argument = argument(view, cell.bytes)?;
    plan.round(|| {
        let turn = ping.load(Ordering::Relaxed).wrapping_add(1);
        argument.write(0, &data).map_err(std::io::Error::other).context(|| "copying in".into())?;
        ping.store(turn, Ordering::Release);
        while pong.load(Ordering::Acquire) != turn {
            spin_hint();
        }
        argument.read(0, &mut data).map_err(std::io::Error::other).context(|| "copying out".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_argument_goes_there_and_back_as_often_as_asked() {
        let plan = Plan {
            round: Duration::from_millis(1),
            sample: Duration::from_micros(3),
            max_samples: 100,
        };
        let cells = [
            Cell { handler: Handler::Null, bytes: 0 },
            Cell { handler: Handler::Leaves, bytes: 100 },
            Cell { handler: Handler::Writes, bytes: 5000 },
        ];
        let peer = cpu::Pair::choose().b;
        let taken = rounds(&cells, peer, &plan).unwrap();
        assert!(taken.len() == 3 && taken.iter().all(|(samples, _)| !samples.is_empty()));
    }
}
