//! How much output of a share may be on its way to the launcher: what the share's supervisor has to say comes behind no more than that,
//! however long nobody reads the output.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that may be on their way. One piece of output may begin below it and end above.
const LEN: usize = 256 << 10;

/// A share's side. Who prints waits for room; who reads the lifeline makes some.
#[derive(Debug, Default)]
pub(super) struct Window {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    on_the_way: usize,
    closed: bool,
}

impl Window {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for so many bytes, and takes it. False: nobody reads any more.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let full = |state: &mut State| !state.closed && state.on_the_way >= LEN;
        let mut state =
            self.changed.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        state.on_the_way += bytes;
        !state.closed
    }

    /// So many bytes have been printed.
    pub(super) fn give(&self, bytes: usize) {
        let mut state = self.state();
        state.on_the_way = state.on_the_way.saturating_sub(bytes);
        drop(state);
        self.changed.notify_all();
    }

    /// Nobody reads any more.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[test]
    fn who_prints_waits_for_room_until_some_is_given_or_nobody_reads() {
        let window = Arc::new(Window::default());
        let (took, taken) = mpsc::channel();
        let printing = window.clone();
        let printer = std::thread::spawn(move || {
            while printing.take(LEN / 2 + 1) {
                took.send(()).unwrap();
            }
        });
        let next = |long| taken.recv_timeout(Duration::from_millis(if long { 60_000 } else { 50 }));
        assert_eq!((next(true), next(true)), (Ok(()), Ok(())));
        assert_eq!(
            next(false),
            Err(mpsc::RecvTimeoutError::Timeout),
            "more than there is room for"
        );
        window.give(LEN / 2 + 1);
        assert_eq!(next(true), Ok(()));
        assert_eq!(next(false), Err(mpsc::RecvTimeoutError::Timeout));
        window.close();
        printer.join().unwrap();
    }
}
