//! Named points at which tests kill the daemon, as `kill -9` would, or stop it, so that others can be
//! killed while it stands there.
//!
//! `VMMCD_FAILPOINT=name` arms one. `name:stop` stops there, once, until SIGCONT; `name:stop:3` does
//! so when the point is reached for the third time. Unarmed, a point costs one load and a compare.
//! What cannot be understood is an error at start, so that a test cannot pass because of a typing
//! mistake.

use rustix::process::{Signal, getpid, kill_process};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

macro_rules! failpoints {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// The points, in the order in which things happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Failpoint { $($(#[$doc])* $name),* }
        /// All points with the names that `VMMCD_FAILPOINT` takes.
        pub const ALL: &[(&str, Failpoint)] = &[$(($text, Failpoint::$name)),*];
    };
}

failpoints! {
    /// A client has been welcomed in the daemon's tables; it has not been told.
    HelloAccepted = "hello-accepted",
    /// An export is in the tables; the exporter has not been told.
    ExportRegistered = "export-registered",
    /// An import is in the tables; neither side has been told.
    ImportGranted = "import-granted",
    /// The importer has its answer; the exporter has not heard of the link.
    ImportedSent = "imported-sent",
    /// Both sides have been told of a link.
    LinkOpenedSent = "link-opened-sent",
    /// An export is withdrawn; the exporter has not been told.
    Unexported = "unexported",
    /// An export is revoked; no importer has been told.
    Revoked = "revoked",
    /// Two ends of a TCP connection have been matched; neither has been told.
    PairMade = "pair-made",
    /// One end has its segment; the other has not.
    PairHalfSent = "pair-half-sent",
    /// A pump has claimed a ring's bytes; nothing else has changed.
    PumpClaimed = "pump-claimed",
    /// A pump has ended the ring part; nothing was sent.
    PumpBegun = "pump-begun",
    /// A pump has sent a part of the bytes.
    PumpHalfSent = "pump-half-sent",
    /// A pump has sent all bytes; the sender cannot know.
    PumpSent = "pump-sent",
    /// The old daemon has sent part of its descriptors to its successor.
    TakeoverHalfSent = "takeover-half-sent",
    /// The old daemon has sent everything; the successor has not confirmed.
    TakeoverSent = "takeover-sent",
    /// The successor has everything; it has not confirmed.
    TakeoverReceived = "takeover-received",
    /// The service manager keeps part of the descriptors, and no state.
    StoreHalfSent = "store-half-sent",
}

/// What happens at which point.
#[derive(Debug)]
struct Armed {
    point: Failpoint,
    what: Act,
}

#[derive(Debug)]
enum Act {
    Die,
    /// After it was passed so many times less one.
    Stop(AtomicU32),
}

impl FromStr for Armed {
    type Err = ();
    fn from_str(text: &str) -> Result<Armed, ()> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let (_, point) = ALL.iter().find(|(known, _)| *known == name).ok_or(())?;
        let what = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Act::Die,
            (Some("stop"), None, _) => Act::Stop(AtomicU32::new(1)),
            (Some("stop"), Some(time), None) => match time.parse() {
                Ok(time @ 1..) => Act::Stop(AtomicU32::new(time)),
                _ => return Err(()),
            },
            _ => return Err(()),
        };
        Ok(Armed { point: *point, what })
    }
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Arms the point that `VMMCD_FAILPOINT` names, if any.
///
/// # Errors
/// The value, when it does not name a point or what to do there.
pub fn arm_from_env() -> Result<(), String> {
    let armed = match std::env::var("VMMCD_FAILPOINT") {
        Err(_) => None,
        Ok(value) if value.is_empty() => None,
        Ok(value) => Some(value.parse().map_err(|()| value)?),
    };
    let _ = ARMED.set(armed);
    Ok(())
}

/// Kills or stops the process if `point` is armed. Only the main thread may pass a point: it is
/// the one that a signal to the process stops at once.
#[inline]
pub fn hit(point: Failpoint) {
    if let Some(Some(armed)) = ARMED.get()
        && armed.point == point
    {
        act(&armed.what);
    }
}

#[cold]
fn act(what: &Act) {
    let signal = match what {
        Act::Die => Signal::KILL,
        Act::Stop(left) => {
            let last = |left: u32| left.checked_sub(1);
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last) {
                Ok(1) => Signal::STOP,
                _ => return,
            }
        }
    };
    let _ = kill_process(getpid(), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_a_point_and_what_to_do_there_or_is_refused() {
        for (name, point) in ALL {
            let armed: Armed = name.parse().unwrap();
            assert!(armed.point == *point && matches!(armed.what, Act::Die));
        }
        let stops = |value: &str, time| match value.parse::<Armed>().unwrap().what {
            Act::Stop(left) => assert_eq!(left.into_inner(), time),
            Act::Die => panic!("{value} dies"),
        };
        stops("revoked:stop", 1);
        stops("revoked:stop:3", 3);
        for value in ["", "revoke", "revoked:", "revoked:die", "revoked:stop:", "revoked:stop:0"] {
            assert!(value.parse::<Armed>().is_err(), "{value}");
        }
        assert!("revoked:stop:1:".parse::<Armed>().is_err());
    }
}
