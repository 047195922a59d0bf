//! Exports, their names, and the imports that wait for a name.

use crate::policy::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use vmmc::id::{ClientId, ExportId, LinkId, Name, RequestId, Token};
use vmmc::sys::Fd;

/// One export.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) owner: ClientId,
    pub(crate) name: Name,
    pub(crate) len: u64,
    /// The exporter's own open file description, read-write.
    pub(crate) memory: Arc<Fd>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) token: Option<Token>,
    /// Announced again after a crash: links of before may be restored.
    pub(crate) restored: bool,
    /// Somebody has imported it, or may have: its pages must be revoked.
    pub(crate) touched: bool,
    /// No longer in the tables of names; only its links are left.
    pub(crate) withdrawn: bool,
    pub(crate) links: HashSet<LinkId>,
}

/// What an import waits for; there is one queue for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WaitFor {
    pub(crate) name: Name,
    /// Exported by this process, or any.
    pub(crate) process: Option<u32>,
    /// Announced again after a crash.
    pub(crate) restore: bool,
}

/// All exports. A text is unique on the node; a number in one process (V7), and so has a table by process
/// id. Waiting imports are kept in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) exports: HashMap<ExportId, Export>,
    texts: HashMap<String, ExportId>,
    numbers: HashMap<(u32, u32), ExportId>,
    waiting: HashMap<WaitFor, BTreeMap<u64, (ClientId, RequestId)>>,
    next_wait: u64,
}

impl Registry {
    /// The live export of that name, of process `process` if given.
    pub(crate) fn find(&self, name: &Name, pid: Option<u32>) -> Option<ExportId> {
        match name {
            Name::Text(text) => self.texts.get(text).copied(),
            Name::Number(number) => self.numbers.get(&(pid?, *number)).copied(),
        }
    }

    /// Adds an export whose name [`Registry::find`] did not find.
    pub(crate) fn insert(&mut self, id: ExportId, pid: u32, export: Export) {
        if !export.withdrawn {
            match &export.name {
                Name::Text(text) => self.texts.insert(text.clone(), id),
                Name::Number(number) => self.numbers.insert((pid, *number), id),
            };
        }
        self.exports.insert(id, export);
    }

    /// Takes the name away: no import finds the export from now on.
    pub(crate) fn withdraw(&mut self, id: ExportId, pid: u32) {
        let Some(export) = self.exports.get_mut(&id) else { return };
        if std::mem::replace(&mut export.withdrawn, true) {
            return;
        }
        match &export.name {
            Name::Text(text) => self.texts.remove(text),
            Name::Number(number) => self.numbers.remove(&(pid, *number)),
        };
    }

    /// Puts an import in its queue. The number returned names its place there.
    pub(crate) fn wait(&mut self, queue: WaitFor, client: ClientId, request: RequestId) -> u64 {
        self.next_wait += 1;
        self.waiting.entry(queue).or_default().insert(self.next_wait, (client, request));
        self.next_wait
    }

    /// Takes an import out of its queue.
    pub(crate) fn stop_waiting(&mut self, queue: &WaitFor, place: u64) {
        if let Some(waiting) = self.waiting.get_mut(queue) {
            waiting.remove(&place);
            if waiting.is_empty() {
                self.waiting.remove(queue);
            }
        }
    }

    /// Who waits for an export that has just come, of that process: first come first. Each of them gets
    /// its answer now, so nobody pays twice for one that waits.
    pub(crate) fn waiters(
        &self,
        name: &Name,
        pid: u32,
        restored: bool,
    ) -> Vec<(ClientId, RequestId)> {
        let mut found = BTreeMap::new();
        for process in [None, Some(pid)] {
            for restore in [false, true] {
                let queue = WaitFor { name: name.clone(), process, restore };
                if let Some(waiting) = self.waiting.get(&queue).filter(|_| restored || !restore) {
                    found.extend(waiting);
                }
            }
        }
        found.into_values().collect()
    }
}
