//! What the acceptor has to do, and the acceptor.

use super::Shared;
use super::accept::{self, Key, Knock, Process};
use super::leaving::{self, Leaving};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmmc::Export;

/// Work for the acceptor.
///
/// Knocks are as many as clients like: of each process so many wait, as many again are told that they are too many, and
/// further ones are not heard. No honest process has more under way than it may have bindings.
#[derive(Debug)]
pub(super) struct Tasks {
    queue: Mutex<Queue>,
    more: Condvar,
    knocks_each: usize,
}

#[derive(Debug, Default)]
struct Queue {
    /// Ends, what is to be withdrawn, the stop: no client holds them up, and they come before all knocks.
    tasks: VecDeque<Task>,
    /// Clients of this node at the door.
    at_door: VecDeque<Task>,
    /// Those of other nodes, by node, for which a thread is at work ([`answer_node`]).
    from_elsewhere: HashMap<Arc<str>, VecDeque<Task>>,
    /// How many there are, by process; of those that have any.
    knocks: HashMap<Process, usize>,
    /// Buffers that are not withdrawn yet, by process; of those that have any.
    gone: HashMap<Process, usize>,
    /// The acceptor takes nothing any more.
    closed: bool,
}

#[derive(Debug)]
pub(super) enum Task {
    Admit(Knock),
    /// One too many.
    TurnAway(Knock),
    Forget(Key),
    /// The buffer of a binding that nobody holds any more.
    Withdraw(Process, Export),
    /// The other threads have ended, and so does the acceptor once nothing is left.
    Stop,
}

impl Tasks {
    pub(super) fn new(knocks_each: usize) -> Tasks {
        Tasks { queue: Mutex::default(), more: Condvar::new(), knocks_each: knocks_each.max(1) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, task: Task) {
        self.queue().tasks.push_back(task);
        self.more.notify_one();
    }

    /// The node, if that is another one whose clients nobody answers yet: the caller sees to that ([`answer_node`]).
    #[must_use]
    pub(super) fn push_knock(&self, knock: Knock) -> Option<Arc<str>> {
        let mut queue = self.queue();
        let node = knock.node.clone();
        let waiting = queue.knocks.entry(knock.process()).or_default();
        let task = match *waiting {
            few if few < self.knocks_each => Task::Admit(knock),
            many if many < self.knocks_each.saturating_mul(2) => Task::TurnAway(knock),
            _ => return None,
        };
        *waiting += 1;
        if let Some(node) = node {
            let is_answered = queue.from_elsewhere.contains_key(&node);
            queue.from_elsewhere.entry(node.clone()).or_default().push_back(task);
            return (!is_answered).then_some(node);
        }
        queue.at_door.push_back(task);
        drop(queue);
        self.more.notify_one();
        None
    }

    /// The next client of another node at the door; `None`: nobody answers that node's clients from now on.
    fn next_of(&self, node: &str) -> Option<Task> {
        let mut queue = self.queue();
        let Some(task) = queue.from_elsewhere.get_mut(node)?.pop_front() else {
            queue.from_elsewhere.remove(node);
            return None;
        };
        queue.count_out(&task);
        Some(task)
    }

    /// The acceptor answers the clients of another node: there is no thread for them.
    fn without_thread(&self, node: &str) {
        let mut queue = self.queue();
        let waiting = queue.from_elsewhere.remove(node);
        queue.at_door.extend(waiting.into_iter().flatten());
        drop(queue);
        self.more.notify_one();
    }

    pub(super) fn push_end(&self, key: Key) {
        self.push(Task::Forget(key));
    }

    /// A buffer of that process is to be withdrawn. After the acceptor's end that is done here, and blocks.
    pub(super) fn push_gone(&self, process: Process, export: Export) {
        let mut queue = self.queue();
        if queue.closed {
            drop(queue);
            drop(export);
            return;
        }
        *queue.gone.entry(process.clone()).or_default() += 1;
        queue.tasks.push_back(Task::Withdraw(process, export));
        drop(queue);
        self.more.notify_one();
    }

    /// One of them is withdrawn.
    pub(super) fn forget_gone(&self, process: &Process) {
        count_down(&mut self.queue().gone, process.clone());
    }

    /// How many are not withdrawn yet, and how many of them are of that process.
    pub(super) fn gone(&self, process: &Process) -> (usize, usize) {
        let gone = &self.queue().gone;
        (gone.values().sum(), gone.get(process).copied().unwrap_or(0))
    }

    /// The next one; `None`: none came for so long.
    fn next(&self, patience: Option<Duration>) -> Option<Task> {
        let mut queue = self.queue();
        let mut late = false;
        loop {
            if let Some(task) = queue.tasks.pop_front().or_else(|| queue.at_door.pop_front()) {
                queue.count_out(&task);
                return Some(task);
            }
            match patience {
                _ if late => return None,
                None => queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let waited = self.more.wait_timeout(queue, patience);
                    let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    (queue, late) = (again, timeout.timed_out());
                }
            }
        }
    }

    /// Takes nothing any more, if nothing is there.
    fn close(&self) -> bool {
        let mut queue = self.queue();
        queue.closed |= queue.tasks.is_empty() && queue.at_door.is_empty();
        queue.closed
    }
}

impl Queue {
    /// A client at the door is heard.
    fn count_out(&mut self, task: &Task) {
        if let Task::Admit(knock) | Task::TurnAway(knock) = task {
            count_down(&mut self.knocks, knock.process());
        }
    }
}

fn count_down(counts: &mut HashMap<Process, usize>, process: Process) {
    if let Entry::Occupied(mut count) = counts.entry(process) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// A client at the door. One of another node is answered by a thread for that node, which lives while there are any: to answer
/// one takes as long as the node likes, and nobody else is to wait for that.
pub(super) fn push_knock(shared: &Arc<Shared>, knock: Knock) {
    let Some(node) = shared.tasks.push_knock(knock) else { return };
    let thread = std::thread::Builder::new().name("rpc-door".into());
    let (theirs, name) = (shared.clone(), node.clone());
    if thread.spawn(move || answer_node(&theirs, &name)).is_err() {
        shared.tasks.without_thread(&node);
    }
}

fn answer_node(shared: &Arc<Shared>, node: &str) {
    while let Some(task) = shared.tasks.next_of(node) {
        if !shared.is_stopping() {
            answer(shared, &task);
        }
    }
}

/// Answers a client at the door. What fails here concerns that client, which waits in vain.
fn answer(shared: &Arc<Shared>, task: &Task) {
    match task {
        Task::Admit(knock) => drop(accept::admit(shared, knock)),
        Task::TurnAway(knock) => drop(accept::turn_away(shared, knock)),
        Task::Forget(_) | Task::Withdraw(..) | Task::Stop => {}
    }
}

pub(super) fn accept_tasks(shared: &Arc<Shared>) {
    let tasks = &*shared.tasks;
    let mut leaving = Leaving::new();
    let mut stopped = false;
    while !(stopped && leaving.is_empty() && tasks.close()) {
        let patience = (stopped || !leaving.is_empty()).then_some(leaving::LOOK);
        let task = tasks.next(patience);
        leaving.look(tasks);
        let Some(task) = task else { continue };
        match task {
            // The door has ended, and so they find out.
            Task::Admit(_) | Task::TurnAway(_) if stopped => {}
            Task::Admit(_) | Task::TurnAway(_) => answer(shared, &task),
            Task::Forget(key) => accept::forget(shared, &key),
            Task::Withdraw(process, export) => leaving.begin(process, export, tasks),
            Task::Stop => {
                shared.end_all();
                stopped = true;
            }
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use vmmc::PeerInfo;
    use vmmc::id::ClientId;

    /// What waits is bounded for each process, however many connections it has, and not for all together.
    #[test]
    fn a_process_that_knocks_without_end_fills_its_own_part_of_the_queue() {
        let tasks = Tasks::new(3);
        let knock = |client: u64, pid, number| {
            let peer = PeerInfo { client: ClientId(client), pid, uid: 1, gid: 1 };
            assert!(tasks.push_knock(Knock { node: None, peer, number }).is_none());
        };
        let heard = || match tasks.next(None).unwrap() {
            Task::Admit(knock) => (knock.peer.pid, knock.number, true),
            Task::TurnAway(knock) => (knock.peer.pid, knock.number, false),
            other => panic!("{other:?}"),
        };
        (0..100).for_each(|number| knock(u64::from(number) % 7, 1, number));
        knock(50, 2, 100);
        assert_eq!([heard(), heard()], [(1, 0, true), (1, 1, true)]);
        // As many as were heard may follow.
        (200..300).for_each(|number| knock(3, 1, number));
        assert_eq!(heard(), (1, 2, true));
        assert_eq!([3, 4, 5].map(|_| heard()), [3, 4, 5].map(|number| (1, number, false)));
        assert_eq!(heard(), (2, 100, true));
        assert_eq!([heard(), heard()], [(1, 200, false), (1, 201, false)]);
        knock(3, 1, 300);
        assert_eq!(heard(), (1, 300, true));
        // To answer a knock may take long: what waits for nobody comes first.
        knock(3, 1, 301);
        tasks.push_end((None, 3, 7));
        tasks.push(Task::Stop);
        assert!(matches!(tasks.next(None), Some(Task::Forget((None, 3, 7)))));
        assert!(matches!(tasks.next(None), Some(Task::Stop)) && !tasks.close());
        assert_eq!(heard(), (1, 301, true));
        assert!(tasks.close());
        let queue = tasks.queue();
        assert!(queue.tasks.is_empty() && queue.knocks.is_empty(), "{queue:?}");
    }
}
