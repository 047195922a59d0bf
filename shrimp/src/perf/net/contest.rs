//! Automatic against deliberate update, where the one and where the other should win (M34).
//!
//! | what | by automatic update | by deliberate update |
//! |---|---|---|
//! | sparse: a key of 8 B to each of 2,048 places, 16 to a page, as a pass of Radix permutes them | a store each by the writer, each a packet, which go together; or plain stores to *tracked* memory, whose pages go as a whole | a send each; or *gathered*: place and key of all in one message, which the reader scatters, as the paper's program did |
//! | bulk: 512 KiB, as the bodies of an N-body program | stores of 64 B by the writer, a run of them, combined; or plain ones, tracked | the same stores to memory of its own, and one send; or one send of what lies there |
//!
//! Each ends when the reader has all of it in its place. The reader is this process, so that the time of scattering is in
//! that of the gathered message, and nothing overlaps it.

use super::LEN;
use super::world::World;
use crate::stats::{Latency, Plan, Rounds, ratio};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hint::black_box;
use vmmc::error::{NotTracked, SendError, SendNotifyError, TrackError};
use vmmc::mem::View;
use vmmc::{AutoUpdate, Combining, Import, Region, Tracked, Tracking};

/// What is written to. Gathered messages come behind it.
const TARGET: usize = LEN / 2;
const PAGE: usize = 4096;
const PAGES: usize = TARGET / PAGE;
/// Bytes of a key.
const KEY: usize = 8;
/// Keys, and those of them that go to one page.
const KEYS: usize = 2048;
const KEYS_PER_PAGE: usize = KEYS / PAGES;
/// Bytes of a gathered key: its place comes first.
const RECORD: usize = 8 + KEY;
/// Bytes of one store of the bulk.
const LINE: usize = 64;
const _: () = assert!(KEYS * RECORD <= LEN - TARGET, "a gathered message fits");

/// What the paper saw of whole programs: Radix and N-body, 16 nodes.
pub(super) const PAPER_SPARSE: f64 = 3.4;
pub(super) const PAPER_BULK: f64 = 0.89;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    SparseAu,
    SparseTracked,
    SparseDu,
    SparseGathered,
    BulkAu,
    BulkTracked,
    BulkDuStored,
    BulkDu,
}

const SHAPES: [(&str, &str, Shape); 8] = [
    ("sparse_au", "sparse: AU, a store each", Shape::SparseAu),
    ("sparse_au_tracked", "sparse: AU, plain stores, tracked", Shape::SparseTracked),
    ("sparse_du", "sparse: DU, a send each", Shape::SparseDu),
    ("sparse_du_gathered", "sparse: DU, gathered and scattered", Shape::SparseGathered),
    ("bulk_au", "bulk: AU, a run of stores, combined", Shape::BulkAu),
    ("bulk_au_tracked", "bulk: AU, plain stores, tracked", Shape::BulkTracked),
    ("bulk_du_stored", "bulk: DU, the same stores, then one send", Shape::BulkDuStored),
    ("bulk_du", "bulk: DU, one send of what lies there", Shape::BulkDu),
];

impl Shape {
    /// The same by automatic update: by the writer, and tracked.
    fn rivals(self) -> [Shape; 2] {
        match self {
            Shape::BulkAu | Shape::BulkTracked | Shape::BulkDuStored | Shape::BulkDu => {
                [Shape::BulkAu, Shape::BulkTracked]
            }
            _ => [Shape::SparseAu, Shape::SparseTracked],
        }
    }

    fn is_tracked(self) -> bool {
        matches!(self, Shape::SparseTracked | Shape::BulkTracked)
    }
}

/// One of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// `tcp`, or a provider of libfabric.
    pub(super) over: &'static str,
    pub(super) id: &'static str,
    pub(super) name: &'static str,
    /// Of all keys, or of the whole.
    #[serde(flatten)]
    pub(super) latency: Latency,
    /// Packets of that.
    pub(super) packets: f64,
    /// How many times as fast automatic update by the writer is, within a round; 1 for itself.
    pub(super) au_is_faster: f64,
    /// The same of tracked memory. `None`: the kernel cannot track stores.
    pub(super) tracked_is_faster: Option<f64>,
}

/// What was measured so far: rounds, and packets of one operation.
#[derive(Debug, Default)]
pub(super) struct Contest(Vec<(&'static str, [(Rounds, f64); SHAPES.len()])>);

impl Contest {
    /// Between nodes that reach each other over these.
    pub(super) fn over(names: impl Iterator<Item = &'static str>) -> Contest {
        Contest(names.map(|over| (over, Default::default())).collect())
    }

    /// One round of all.
    pub(super) fn round(
        &mut self,
        worlds: &BTreeMap<&str, &World>,
        plan: &Plan,
    ) -> Result<(), String> {
        for (over, played) in &mut self.0 {
            let Some(world) = worlds.get(over) else { continue };
            let mut table = Table::new(world)?;
            let shapes = SHAPES.iter().zip(played);
            let can = table.tracked.is_some();
            for ((_, _, shape), (rounds, packets)) in
                shapes.filter(|it| can || !it.0.2.is_tracked())
            {
                let (before, mut count) = (world.packets(), 0u64);
                let (samples, batch) = plan.round(|| {
                    count += 1;
                    table.play(*shape)
                })?;
                rounds.add(samples, batch);
                *packets = (world.packets() - before) as f64 / count as f64;
            }
        }
        Ok(())
    }

    /// The results.
    pub(super) fn finish(&self) -> Vec<Row> {
        let rows = self.0.iter().flat_map(|(over, played)| {
            let all = SHAPES.iter().zip(played).filter(|(_, (rounds, _))| !rounds.is_empty());
            all.map(move |(&(id, name, shape), (rounds, packets))| {
                let [au, tracked] = shape.rivals().map(|rival| {
                    let found = SHAPES.iter().zip(played).find(|((_, _, it), _)| *it == rival);
                    let found = found.map(|(_, (rounds, _))| rounds).filter(|it| !it.is_empty());
                    found.map(|found| ratio(rounds, found))
                });
                Row {
                    over,
                    id,
                    name,
                    latency: rounds.latency(),
                    packets: *packets,
                    au_is_faster: au.unwrap_or(f64::NAN),
                    tracked_is_faster: tracked,
                }
            })
        });
        rows.collect()
    }
}

/// Where key `i` goes: to another page than the one before it.
fn place(i: usize) -> usize {
    let mixed = i * 1103 % KEYS; // odd: every place once
    mixed % PAGES * PAGE + mixed / PAGES * (PAGE / KEYS_PER_PAGE)
}

/// Place and key of each, one behind the other.
fn gather(message: &mut [u8], key: u64) {
    for (i, record) in message.chunks_exact_mut(RECORD).enumerate() {
        let (at, value) = record.split_at_mut(RECORD - KEY);
        at.copy_from_slice(&(place(i) as u64).to_ne_bytes());
        value.copy_from_slice(&key.to_ne_bytes());
    }
}

/// Puts gathered keys in their places of `memory`. A place that is none is an error.
fn scatter(message: View<'_>, memory: View<'_>) -> Result<(), String> {
    let mut record = [0; RECORD];
    for i in 0..message.len() / RECORD {
        message.read(i * RECORD, &mut record).map_err(|error| error.to_string())?;
        let (at, key) = record.split_at(RECORD - KEY);
        let at = at.try_into().map_or(u64::MAX, u64::from_ne_bytes) as usize;
        memory.write(at, key).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Memory whose stores go to the import, where the kernel can say what was stored.
fn track(import: &Import) -> Result<Option<Tracked>, String> {
    let memory = Region::new(TARGET).map_err(|error| error.to_string())?;
    match import.track(0, memory, Tracking::PAGES) {
        Ok(tracked) => Ok(Some(tracked)),
        Err(NotTracked { reason: TrackError::System(_), .. }) => Ok(None),
        Err(NotTracked { reason, .. }) => Err(reason.to_string()),
    }
}

/// A writer, tracked memory, and what is sent.
struct Table<'w> {
    world: &'w World,
    writer: AutoUpdate,
    /// Where the kernel can.
    tracked: Option<Tracked>,
    bulk: Vec<u8>,
    /// What is sent of it by deliberate update, which the program has in memory of its own first.
    made: Vec<u8>,
    message: Vec<u8>,
    key: u64,
}

impl<'w> Table<'w> {
    fn new(world: &'w World) -> Result<Table<'w>, String> {
        let writer = world.import.auto_update(Combining::ON).map_err(|error| error.to_string())?;
        Ok(Table {
            world,
            writer,
            tracked: track(&world.import)?,
            bulk: vec![5; TARGET],
            made: vec![0; TARGET],
            message: vec![0; KEYS * RECORD],
            key: 0,
        })
    }

    /// The memory whose stores are tracked.
    fn memory(&self) -> View<'_> {
        self.tracked.as_ref().map_or_else(View::empty, Tracked::view)
    }

    fn import(&self) -> &'w Import {
        &self.world.import
    }

    /// All keys, or the whole bulk, and all of it is there.
    fn play(&mut self, shape: Shape) -> Result<(), String> {
        self.key += 1;
        let key = self.key.to_ne_bytes();
        let each = |send: &dyn Fn(usize) -> Result<(), SendNotifyError>| {
            (0..KEYS).map(place).try_for_each(send)
        };
        let (lines, _) = self.bulk.as_chunks::<LINE>();
        let mut places = (0..).step_by(LINE).zip(lines);
        let plain =
            |at, bytes: &[u8]| Ok(self.memory().write(at, bytes).map_err(SendError::from)?);
        let sent = match shape {
            Shape::SparseAu => each(&|at| self.writer.store(at, &key)),
            Shape::SparseTracked => each(&|at| plain(at, &key)),
            Shape::SparseDu => each(&|at| Ok(self.import().send(at, &key)?)),
            Shape::SparseGathered => return self.gathered(),
            Shape::BulkAu => {
                let mut run = self.writer.run().map_err(|error| error.to_string())?;
                places.try_for_each(|(at, line)| run.store(at, line))
            }
            Shape::BulkTracked => places.try_for_each(|(at, line)| plain(at, line)),
            Shape::BulkDuStored => {
                let (made, _) = self.made.as_chunks_mut::<LINE>();
                made.iter_mut().zip(lines).for_each(|(made, line)| *black_box(made) = *line);
                self.import().send(0, &self.made).map_err(SendNotifyError::from)
            }
            Shape::BulkDu => self.import().send(0, &self.bulk).map_err(SendNotifyError::from),
        };
        sent.map_err(|error| error.to_string())?;
        let fenced = match &self.tracked {
            Some(tracked) if shape.is_tracked() => tracked.fence(),
            _ => self.writer.fence(),
        };
        fenced.map_err(|error| error.to_string())
    }

    fn gathered(&mut self) -> Result<(), String> {
        gather(&mut self.message, self.key);
        self.import().send_fenced(TARGET, &self.message).map_err(|error| error.to_string())?;
        let memory = self.world.export.view();
        let message =
            memory.slice(TARGET, self.message.len()).map_err(|error| error.to_string())?;
        scatter(message, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use vmmc::sys::memfd;
    use vmmc::sys::mmap::{Access, GuardedMapping};

    #[test]
    fn keys_go_to_every_page_alike_and_never_twice_to_one_place() {
        let places: BTreeSet<usize> = (0..KEYS).map(place).collect();
        assert_eq!(places.len(), KEYS);
        for page in 0..PAGES {
            let there = places.range(page * PAGE..(page + 1) * PAGE);
            assert!(there.clone().all(|at| at % PAGE <= PAGE - KEY));
            assert_eq!(there.count(), KEYS_PER_PAGE);
        }
        for i in 1..KEYS {
            assert_ne!(place(i - 1) / PAGE, place(i) / PAGE, "no page twice in a row");
        }
    }

    #[test]
    fn what_is_gathered_is_scattered_to_where_single_stores_put_it() {
        let mut message = vec![0; KEYS * RECORD];
        gather(&mut message, 7);
        let file = memfd::create("contest", LEN as u64).unwrap();
        let pages = GuardedMapping::new(&file, LEN, Access::ReadWrite).unwrap();
        let memory = View::of(&pages);
        memory.write(TARGET, &message).unwrap();
        scatter(memory.slice(TARGET, message.len()).unwrap(), memory).unwrap();
        let mut all = vec![0; TARGET];
        memory.read(0, &mut all).unwrap();
        let mut expected = vec![0; TARGET];
        for at in (0..KEYS).map(place) {
            expected[at..at + KEY].copy_from_slice(&7u64.to_ne_bytes());
        }
        assert!(all == expected);
        memory.write(TARGET, &u64::MAX.to_ne_bytes()).unwrap();
        assert!(scatter(memory.slice(TARGET, RECORD).unwrap(), memory).is_err(), "no such place");
    }

    #[test]
    fn each_is_compared_with_automatic_update_of_the_same() {
        let mut contest = Contest::over(["tcp"].into_iter());
        let times = [10.0, 5.0, 34.0, 5.0, 100.0, 200.0, 89.0, 50.0];
        for (_, played) in &mut contest.0 {
            for ((rounds, packets), ns) in played.iter_mut().zip(times) {
                rounds.add(vec![ns], 1);
                *packets = 1.0;
            }
        }
        let rows = contest.finish();
        let faster: Vec<f64> = rows.iter().map(|row| row.au_is_faster).collect();
        assert_eq!(faster, [1.0, 0.5, 3.4, 0.5, 1.0, 2.0, 0.89, 0.5]);
        assert_eq!(rows[2].tracked_is_faster, Some(6.8));
        assert_eq!(rows[6].tracked_is_faster, Some(0.445));
    }

    #[test]
    fn what_the_kernel_cannot_track_has_no_row() {
        let mut contest = Contest::over(["tcp"].into_iter());
        for (_, played) in &mut contest.0 {
            for ((_, _, shape), (rounds, _)) in SHAPES.iter().zip(played) {
                if !shape.is_tracked() {
                    rounds.add(vec![1.0], 1);
                }
            }
        }
        let rows = contest.finish();
        assert_eq!(rows.len(), SHAPES.len() - 2);
        assert!(rows.iter().all(|row| row.tracked_is_faster.is_none()));
    }
}
