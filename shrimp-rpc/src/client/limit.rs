//! The time that a call may take, from its first moment to its last: the wait for a lane, which may have to be bound anew, the call
//! itself, and all pieces of it and of its reply share one deadline. With a limit for each message a server that
//! lets each come at the last moment kept its client for days. Without a limit no clock is read.

use super::clock_ns;
use crate::error::{CallError, ConnectError};
use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Nanoseconds from beginning to end; 0: any time.
    whole: u64,
    /// When it is over, in nanoseconds of the monotonic clock; 0: never.
    deadline: u64,
}

impl Limit {
    const NONE: Limit = Limit { whole: 0, deadline: 0 };

    /// So many nanoseconds from now on; 0: any time.
    #[inline(always)] // between two flags
    pub(super) fn begin(nanoseconds: u64) -> Limit {
        if nanoseconds == 0 { Limit::NONE } else { Limit::from_now(nanoseconds) }
    }

    #[cold] // reads the clock
    fn from_now(nanoseconds: u64) -> Limit {
        Limit { whole: nanoseconds, deadline: clock_ns().saturating_add(nanoseconds) }
    }

    /// When it is over, on the monotonic clock; 0: never.
    #[inline]
    pub(super) fn deadline(self) -> u64 {
        self.deadline
    }

    /// What is left; `None`: any time.
    pub(super) fn left(self) -> Option<Duration> {
        let left = |at: u64| Duration::from_nanos(at.saturating_sub(clock_ns()));
        (self.deadline != 0).then(|| left(self.deadline))
    }

    /// Ends after so long, if it does not sooner.
    pub(super) fn within(self, time: Duration) -> Limit {
        let at = clock_ns().saturating_add(nanoseconds(Some(time)));
        Limit { deadline: if self.deadline == 0 { at } else { self.deadline.min(at) }, ..self }
    }

    pub(super) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// What a call that was sent fails by when it is over.
    pub(super) fn late(self) -> CallError {
        CallError::TimedOut { after: Duration::from_nanos(self.whole), sent: true, unbound: None }
    }

    /// What a call fails by that could not be bound in its time.
    #[cold]
    pub(super) fn late_unbound(self, why: ConnectError) -> CallError {
        let after = Duration::from_nanos(self.whole);
        CallError::TimedOut { after, sent: false, unbound: Some(Box::new(why)) }
    }
}

/// A limit as a number for [`Limit::begin`].
pub(super) fn nanoseconds(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_begins_at_once_and_none_never_ends() {
        assert_eq!(Limit::begin(0), Limit::NONE);
        assert_eq!((Limit::NONE.left(), Limit::NONE.is_over()), (None, false));
        let long = Limit::begin(nanoseconds(Some(Duration::MAX)));
        assert!(!long.is_over() && long.left().is_some());
        let part = long.within(Duration::ZERO);
        assert_eq!(part.left(), Some(Duration::ZERO));
        assert_eq!(part.within(Duration::MAX), part);
        let short = Limit::begin(nanoseconds(Some(Duration::ZERO)));
        while !short.is_over() {}
        assert_eq!(short.left(), Some(Duration::ZERO));
        assert!(matches!(short.late(), CallError::TimedOut { after, .. } if after.as_nanos() == 1));
    }
}
