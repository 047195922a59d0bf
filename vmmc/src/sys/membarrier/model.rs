//! What a membarrier is to the model checker.

use crate::sync::{AtomicU32, Ordering, fence};

/// One membarrier: a full fence passes through the code of who does not fence, at one of its points, `at`. A model is run
/// for each of them. Where that is passed before the barrier is asked for, the run says nothing: then it falls at another
/// point, in another run.
#[derive(Debug)]
pub struct Barrier {
    asked: AtomicU32,
    done: AtomicU32,
    at: u32,
}

impl Barrier {
    /// One that falls at this point.
    #[must_use]
    pub fn new(at: u32) -> Barrier {
        Barrier { asked: AtomicU32::new(0), done: AtomicU32::new(0), at }
    }

    /// Who does not fence is at this point of its code.
    pub fn passes(&self, at: u32) {
        if at == self.at && self.asked.load(Ordering::Acquire) != 0 {
            fence(Ordering::SeqCst);
            self.done.store(1, Ordering::Release);
        }
    }

    /// The other side's part. True when the barrier has been made.
    #[must_use]
    pub fn heavy(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asked.store(1, Ordering::Release);
        let done = self.done.load(Ordering::Acquire) != 0;
        fence(Ordering::SeqCst);
        done
    }
}
