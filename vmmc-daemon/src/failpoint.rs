//! Named points at which tests kill the daemon, as `kill -9` would.
//!
//! `VMMCD_FAILPOINT=name` arms one. Unarmed, a point costs one load and a compare. An unknown name is
//! an error at start, so that a test cannot pass because of a typing mistake.

use std::sync::OnceLock;

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
    /// The old daemon has sent part of its descriptors to its successor.
    TakeoverHalfSent = "takeover-half-sent",
    /// The old daemon has sent everything; the successor has not confirmed.
    TakeoverSent = "takeover-sent",
    /// The successor has everything; it has not confirmed.
    TakeoverReceived = "takeover-received",
    /// The service manager keeps part of the descriptors, and no state.
    StoreHalfSent = "store-half-sent",
}

static ARMED: OnceLock<Option<Failpoint>> = OnceLock::new();

/// Arms the point that `VMMCD_FAILPOINT` names, if any.
///
/// # Errors
/// The name, when there is no such point.
pub fn arm_from_env() -> Result<(), String> {
    let armed = match std::env::var("VMMCD_FAILPOINT") {
        Err(_) => None,
        Ok(name) if name.is_empty() => None,
        Ok(name) => match ALL.iter().find(|(known, _)| *known == name) {
            Some((_, point)) => Some(*point),
            None => return Err(name),
        },
    };
    let _ = ARMED.set(armed);
    Ok(())
}

/// Kills the process if `point` is armed.
#[inline]
pub fn hit(point: Failpoint) {
    if ARMED.get().is_some_and(|armed| *armed == Some(point)) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
