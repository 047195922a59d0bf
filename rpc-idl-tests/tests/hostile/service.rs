//! A service of `idl/hostile.x` that believes nothing, and notices what must never reach it.

use rpc_idl_tests::hostile::*;
use shrimp_rpc::{Bulk, BulkMut, BulkOut, Context, Fault};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Mutex;

/// Of bulk data that is none.
const NO_MARK: Fault = Fault::new(7, "no mark");

/// What `LATER` needs to be answered.
type Later = (All, Vec<i64>, HostileV1LaterReplier);

/// Blocking.
pub struct Blocking {
    later: Mutex<Sender<Later>>,
}

impl Blocking {
    pub fn new() -> Blocking {
        let (later, calls) = channel::<Later>();
        std::thread::spawn(move || {
            for (a, x, replier) in calls {
                // The client may have gone.
                let _ = replier.send(later_results(a, x));
            }
        });
        Blocking { later: Mutex::new(later) }
    }
}

/// Panics of this process.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics from here on.
pub fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
}

pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Decoded values are within the limits of the interface, or this panics.
pub fn check(a: &All) {
    assert!(a.raw.len() <= 100 && a.names.len() <= 20 && a.numbers.len() <= 50);
    assert!(a.names.iter().all(|name| name.len() <= 40));
    assert!(a.points.len() <= 10 && a.shapes.len() <= 8 && a.forest.len() <= 4);
    check_items(&a.list);
    if let Number::Case1(text) = &a.num {
        assert!(text.len() <= 10);
    }
    assert!(!matches!(a.num, Number::Default(1 | -2)), "that has an arm of its own");
}

pub fn check_items(items: &[Item]) {
    assert!(items.iter().all(|item| item.key.len() <= 40));
}

fn nodes(node: &Node) -> u32 {
    let below = [&node.left, &node.right].into_iter().flatten();
    1 + below.map(|node| nodes(node)).sum::<u32>()
}

fn trees(tree: &Tree) -> u32 {
    1 + tree.children.iter().map(trees).sum::<u32>()
}

fn pages(page: &Page) -> u32 {
    let below = [&page.left, &page.right].into_iter().flatten();
    1 + below.map(|page| pages(page)).sum::<u32>()
}

fn sum(bytes: &[u8], marks: &[Mark]) -> u64 {
    let bytes: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    bytes + marks.iter().filter(|mark| mark.set).count() as u64
}

fn sum_all(bytes: &[u8], marks: &[Mark], numbers: &[i32]) -> u64 {
    assert!(bytes.len() <= 100_000 && marks.len() <= 100 && numbers.len() <= 5000);
    sum(bytes, marks) + numbers.iter().map(|number| u64::from(*number as u32)).sum::<u64>()
}

fn later_results(a: All, mut x: Vec<i64>) -> LaterResults {
    check(&a);
    assert!(x.len() <= 5000);
    x.reverse();
    let d = vec![x.len() as f64];
    LaterResults { result: a, x, d }
}

fn turn(mut s: Vec<u8>, mut table: Vec<i32>) -> TurnReply {
    assert!(s.len() == 5000 && table.len() == 2000);
    s.reverse();
    table.reverse();
    TurnReply { result: s, table }
}

impl HostileV1 for Blocking {
    fn echo(&self, _: &Context, a: All) -> Result<All, Fault> {
        check(&a);
        Ok(a)
    }

    fn list(&self, _: &Context, items: Vec<Item>, name: String) -> Result<Vec<Item>, Fault> {
        assert!(name.len() <= 40);
        check_items(&items);
        Ok(items)
    }

    fn nest(&self, _: &Context, tree: Tree, node: Node) -> Result<u32, Fault> {
        Ok(trees(&tree) + nodes(&node))
    }

    fn sum(&self, _: &Context, data: Bulk<'_, u8>, marks: Bulk<'_, Mark>) -> Result<u64, Fault> {
        assert!(data.len() <= 100_000 && marks.len() <= 100);
        assert!(data.get(data.len()).is_none() && marks.get(marks.len()).is_none());
        // Read twice: the two may differ, and that is all.
        let _ = (data.to_vec(), marks.to_vec());
        let marks = marks.to_vec().map_err(|_| NO_MARK)?;
        Ok(sum(&data.to_vec().map_err(|_| NO_MARK)?, &marks))
    }

    fn fill(
        &self,
        _: &Context,
        count: u32,
        numbers: &mut BulkOut<'_, f64>,
        fixed: &mut BulkMut<'_, i32>,
    ) -> Result<u32, Fault> {
        let mut numbers = numbers.open(count as usize)?;
        numbers.fill(f64::from(count));
        fixed.fill(count as i32);
        Ok(count)
    }

    fn scale(
        &self,
        _: &Context,
        by: f64,
        m: &mut BulkMut<'_, f64>,
        fixed: &mut BulkMut<'_, i32>,
        marks: &mut BulkMut<'_, Mark>,
    ) -> Result<u32, Fault> {
        assert!(m.len() <= 20_000 && fixed.len() == 100 && marks.len() <= 100);
        for i in 0..m.len() {
            let Some(Ok(x)) = m.get(i) else { panic!("any bytes are a number") };
            m.set(i, x * by).expect("inside");
        }
        for i in 0..fixed.len() {
            let Some(Ok(x)) = fixed.get(i) else { panic!("any bytes are a number") };
            fixed.set(i, x.wrapping_add(1)).expect("inside");
        }
        for i in 0..marks.len() {
            let mut mark = marks.get(i).expect("inside").map_err(|_| NO_MARK)?;
            mark.set = !mark.set;
            marks.set(i, mark).expect("inside");
        }
        assert!(m.set(m.len(), 0.0).is_err() && marks.get(marks.len()).is_none());
        Ok(m.len() as u32)
    }

    fn copy(
        &self,
        _: &Context,
        data: Vec<u8>,
        marks: Vec<Mark>,
        numbers: Vec<i32>,
    ) -> Result<u64, Fault> {
        Ok(sum_all(&data, &marks, &numbers))
    }

    fn note(&self, _: &Context, line: String, data: Bulk<'_, u8>) -> Result<(), Fault> {
        assert!(line.len() <= 100 && data.len() <= 1000);
        let _ = data.to_vec();
        Ok(())
    }

    fn later(&self, a: All, x: Vec<i64>, replier: HostileV1LaterReplier) {
        self.later.lock().expect("no panic").send((a, x, replier)).expect("the thread lives");
    }

    fn large(&self, _: &Context, large: Large) -> Result<i32, Fault> {
        assert_eq!(large.bytes.len(), 4_000_000);
        Ok(large.first.wrapping_add(large.last))
    }

    fn pages(&self, _: &Context, page: Page) -> Result<u32, Fault> {
        Ok(pages(&page))
    }

    fn turn(&self, _: &Context, s: Vec<u8>, table: Vec<i32>) -> Result<TurnReply, Fault> {
        Ok(turn(s, table))
    }
}

/// In `async` code.
pub struct Async;

impl HostileV1Async for Async {
    async fn echo(&self, _: &Context, a: All) -> Result<All, Fault> {
        check(&a);
        Ok(a)
    }

    async fn list(&self, _: &Context, items: Vec<Item>, name: String) -> Result<Vec<Item>, Fault> {
        assert!(name.len() <= 40);
        check_items(&items);
        Ok(items)
    }

    async fn nest(&self, _: &Context, tree: Tree, node: Node) -> Result<u32, Fault> {
        tokio::task::yield_now().await;
        Ok(trees(&tree) + nodes(&node))
    }

    async fn sum(&self, _: &Context, data: Vec<u8>, marks: Vec<Mark>) -> Result<u64, Fault> {
        Ok(sum_all(&data, &marks, &[]))
    }

    async fn fill(&self, _: &Context, count: u32) -> Result<FillResults, Fault> {
        if count > 20_000 {
            return Err(Fault::new(Fault::BULK, "too many"));
        }
        let numbers = vec![f64::from(count); count as usize];
        Ok(FillResults { result: count, numbers, fixed: vec![count as i32; 100] })
    }

    async fn scale(
        &self,
        _: &Context,
        by: f64,
        mut m: Vec<f64>,
        mut fixed: Vec<i32>,
        mut marks: Vec<Mark>,
    ) -> Result<ScaleResults, Fault> {
        assert!(m.len() <= 20_000 && fixed.len() == 100 && marks.len() <= 100);
        tokio::task::yield_now().await;
        m.iter_mut().for_each(|x| *x *= by);
        fixed.iter_mut().for_each(|x| *x = x.wrapping_add(1));
        marks.iter_mut().for_each(|mark| mark.set = !mark.set);
        Ok(ScaleResults { result: m.len() as u32, m, fixed, marks })
    }

    async fn copy(
        &self,
        _: &Context,
        data: Vec<u8>,
        marks: Vec<Mark>,
        numbers: Vec<i32>,
    ) -> Result<u64, Fault> {
        Ok(sum_all(&data, &marks, &numbers))
    }

    async fn note(&self, _: &Context, line: String, data: Vec<u8>) -> Result<(), Fault> {
        assert!(line.len() <= 100 && data.len() <= 1000);
        Ok(())
    }

    async fn later(&self, _: &Context, a: All, x: Vec<i64>) -> Result<LaterResults, Fault> {
        tokio::task::yield_now().await;
        Ok(later_results(a, x))
    }

    async fn large(&self, _: &Context, large: Large) -> Result<i32, Fault> {
        assert_eq!(large.bytes.len(), 4_000_000);
        Ok(large.first.wrapping_add(large.last))
    }

    async fn pages(&self, _: &Context, page: Page) -> Result<u32, Fault> {
        Ok(pages(&page))
    }

    async fn turn(&self, _: &Context, s: Vec<u8>, table: Vec<i32>) -> Result<TurnReply, Fault> {
        Ok(turn(s, table))
    }
}
