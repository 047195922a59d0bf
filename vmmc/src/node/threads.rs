//! The threads that a node makes: one that listens to the daemon, one for handlers if wanted.

use super::{Node, NodeInner};
use crate::sync::{AtomicBool, Ordering};
pub(crate) use crate::sys::thread::spawn_quiet;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The control thread: handles what the daemon says when no caller is listening, and finds the
/// daemon again when it is lost. It keeps no node alive.
pub(super) fn start_control(node: &Arc<NodeInner>) -> Result<(), rustix::io::Errno> {
    let node = Arc::downgrade(node);
    spawn_quiet("vmmc-control", move || while control_turn(&node) {}).map(drop)
}

/// False when the node is gone.
fn control_turn(node: &Weak<NodeInner>) -> bool {
    let Some((connection, deadline)) =
        node.upgrade().map(|node| (node.control.connection(), node.claims_end()))
    else {
        return false;
    };
    match connection {
        Some(connection) => {
            // Without a strong reference, or the node could not end while the daemon is silent.
            connection.wait_in_turn(deadline);
            let Some(node) = node.upgrade() else { return false };
            node.control.receive(&node, &connection);
            node.end_unclaimed();
        }
        None => {
            let Some(node) = node.upgrade() else { return false };
            if node.control.is_shut() {
                return false;
            }
            node.reconnect();
        }
    }
    true
}

/// Runs handlers until it is dropped; made by [`Node::start_handler_thread`].
#[derive(Debug)]
pub struct HandlerThread {
    stop: Arc<AtomicBool>,
    node: Weak<NodeInner>,
    thread: Option<JoinHandle<()>>,
}

impl HandlerThread {
    pub(super) fn start(node: &Arc<NodeInner>) -> Result<HandlerThread, rustix::io::Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, node) = (stop.clone(), Arc::downgrade(node));
        let local = node.upgrade().map(|node| node.local.clone());
        let weak = node.clone();
        let thread = spawn_quiet("vmmc-handlers", move || {
            let Some(local) = local else { return };
            loop {
                // Asleep it holds the hub only: the node may end meanwhile, and wakes it then.
                let ticket = local.hub.prepare();
                let Some(node) = weak.upgrade() else { return };
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let moved = node.collect();
                if moved || node.inbox.is_runnable() {
                    // Handlers may wait, and so may others meanwhile: they lead then.
                    drop(ticket);
                    if moved {
                        local.hub.wake_all(); // not all of it is for handlers
                    }
                    node.dispatch();
                    continue;
                }
                drop(node);
                if weak.strong_count() == 0 || ticket.sleep(None).is_err() {
                    return;
                }
            }
        })?;
        Ok(HandlerThread { stop, node, thread: Some(thread) })
    }
}

impl Drop for HandlerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(node) = self.node.upgrade() else { return };
        if node.local.check().is_err() {
            return; // a forked child has no such thread
        }
        node.local.hub.wake_all();
        let thread = self.thread.take();
        // A handler may drop its own thread's handle: that thread cannot wait for itself.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

const _: fn() = || {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Node>();
};
