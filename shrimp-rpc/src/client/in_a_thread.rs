//! What a future waits for that only a thread can do, as binding is: one is made for it.
//!
//! A thread that panics has an outcome, too, or its future would wait for ever.

use crate::error::TransportError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What `work` comes to, which may block.
///
/// # Errors
/// [`TransportError::Thread`], [`TransportError::Panicked`].
pub(super) async fn in_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TransportError> {
    let outcome = Arc::new(Outcome { state: Mutex::new(State { result: None, waker: None }) });
    let tell = outcome.clone();
    std::thread::Builder::new()
        .name("rpc-bind".into())
        .spawn(move || {
            // What it leaves half done is not seen by anybody: it is all its own.
            let result = catch_unwind(AssertUnwindSafe(work));
            tell.set(result.map_err(|_| TransportError::Panicked));
        })
        .map_err(|error| TransportError::Thread(error.kind()))?;
    std::future::poll_fn(|cx| outcome.poll(cx)).await
}

/// The result of another thread.
#[derive(Debug)]
struct Outcome<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

impl<T> Outcome<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, result: T) {
        let mut state = self.state();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state); // who is woken may poll in this thread
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        let mut state = self.state();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::task::Wake;

    /// Says that it was woken.
    struct Bell(Mutex<mpsc::Sender<()>>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().send(());
        }
    }

    /// What becomes of a future of that work, which waits until it is polled.
    fn outcome_of(
        work: impl FnOnce() -> u32 + Send + 'static,
    ) -> Result<Result<u32, TransportError>, mpsc::RecvError> {
        let (ring, rung) = mpsc::channel();
        let (go_on, may) = mpsc::channel::<()>();
        let waker = Waker::from(Arc::new(Bell(Mutex::new(ring))));
        let mut future = Box::pin(in_a_thread(move || {
            let _ = may.recv();
            work()
        }));
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        go_on.send(()).unwrap();
        rung.recv()?;
        match poll() {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => panic!("woken for nothing"),
        }
    }

    #[test]
    fn a_future_whose_thread_panics_is_told() {
        assert_eq!(outcome_of(|| 7).unwrap().unwrap(), 7);
        let panicked = outcome_of(|| panic!("as a test wants it")).unwrap();
        assert!(matches!(panicked, Err(TransportError::Panicked)), "{panicked:?}");
    }
}
