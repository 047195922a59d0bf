//! One table from the engine's errors to NX error numbers.

use super::Failure;
use crate::error::NxError;
use crate::unconfirmed::perror_line;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_long};

pub(crate) const EQPBUF: c_int = 151;
pub(crate) const EQLEN: c_int = 153;
pub(crate) const EQMSGLONG: c_int = 155;
pub(crate) const EQPID: c_int = 156;
pub(crate) const EQNODE: c_int = 157;
pub(crate) const EQTYPE: c_int = 158;
pub(crate) const EQMID: c_int = 159;
pub(crate) const EQHND: c_int = 160;
pub(crate) const EQNOPROC: c_int = 161;
pub(crate) const EQUSEPID: c_int = 162;
pub(crate) const EQNOACT: c_int = 163;
pub(crate) const EQBADFIL: c_int = 164;
pub(crate) const EQPARAM: c_int = 165;
pub(crate) const EQNOMID: c_int = 174;
pub(crate) const EQNOSET: c_int = 176;

/// Names and texts, for `nx_perror`. The numbers are those of the iPSC/2; the Paragon's are unconfirmed.
const TEXTS: [(c_int, &str); 26] = [
    (EQPBUF, "bad buffer"),
    (152, "bad buffer length"),
    (EQLEN, "bad length"),
    (154, "time limit"),
    (EQMSGLONG, "message too long for the buffer"),
    (EQPID, "bad process type"),
    (EQNODE, "bad node number"),
    (EQTYPE, "bad message type"),
    (EQMID, "bad message id"),
    (EQHND, "bad handler"),
    (EQNOPROC, "no such process"),
    (EQUSEPID, "process type in use"),
    (EQNOACT, "not active"),
    (EQBADFIL, "bad file"),
    (EQPARAM, "bad parameter"),
    (170, "not permitted"),
    (171, "no memory"),
    (EQNOMID, "too many requests"),
    (175, "process type is set already"),
    (EQNOSET, "process type is not set"),
    (199, "bad node"),
    (202, "message too short"),
    // Of the system, where our words say more.
    (libc::ENOSYS, "not available on this machine"),
    (libc::EIO, "communication failed"),
    (libc::EPIPE, "another process of the application died"),
    (libc::EPROTO, "another process of the application broke the protocol"),
];

/// The number for an error.
#[must_use]
pub fn errno_of(error: &NxError) -> c_int {
    match error {
        NxError::NotStarted => EQNOACT,
        NxError::NullBuffer { .. } => EQPBUF,
        NxError::BadLength { .. } => EQLEN,
        NxError::BadNode { .. } | NxError::NoHost { .. } => EQNODE,
        NxError::BadPtype { .. } => EQPID,
        NxError::PtypeInUse { .. } => EQUSEPID,
        NxError::NoProcess { .. } => EQNOPROC,
        NxError::NoPtype => EQNOSET,
        NxError::BadType { .. } => EQTYPE,
        NxError::BadMid { .. } => EQMID,
        NxError::NoMid { .. } => EQNOMID,
        NxError::BadHandler => EQHND,
        NxError::MessageTooLong { .. }
        | NxError::NoRoomForAll { .. }
        | NxError::OtherLength { .. }
        | NxError::OtherLengths { .. } => EQMSGLONG,
        NxError::HostGlobal | NxError::OtherGlobal { .. } | NxError::BadReduction { .. } => EQPARAM,
        NxError::PeerDied { .. } | NxError::PeerLost { .. } => libc::EPIPE,
        NxError::PeerFault { .. } => libc::EPROTO,
        NxError::System { .. } | NxError::HandlerPanicked { .. } => libc::EIO,
    }
}

/// Sets the caller's `errno`.
pub(super) fn set(errno: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno }
}

thread_local! {
    /// The last failure of this thread that `errno` tells in a number of NX, or by `ENOSYS`, in words.
    static LAST: RefCell<Option<(c_int, String)>> = const { RefCell::new(None) };
}

/// Sets the caller's `errno` for a failure, and keeps its words for [`nx_perror`]. Not for a number of the system's: that
/// may come from elsewhere the next time. `ENOSYS` hardly does.
pub(super) fn set_for(failure: &Failure) {
    let errno = failure.errno();
    if errno >= EQPBUF || errno == libc::ENOSYS {
        // A thread that is ending has no words any more.
        let _ = LAST.try_with(|last| last.replace(Some((errno, failure.to_string()))));
    }
    set(errno);
}

/// What the thread's last failure of this number said.
fn words(errno: c_int) -> Option<String> {
    let of = |last: &RefCell<Option<(c_int, String)>>| last.borrow().clone();
    let (number, words) = LAST.try_with(of).ok().flatten()?;
    (number == errno).then_some(words)
}

pub(super) fn text(errno: c_int) -> String {
    match TEXTS.iter().find(|(known, _)| *known == errno) {
        Some((_, text)) => (*text).to_owned(),
        None => system_text(errno),
    }
}

/// The system's words for its own numbers.
pub(super) fn system_text(errno: c_int) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn perror(prefix: &str) {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let who = super::process::who();
    let (text, why) = (text(errno), words(errno));
    super::say(&perror_line(&who, prefix, &text, errno, why.as_deref()));
    set(errno);
}

/// Prints node, process type, `prefix` and the text of `errno`, and what the call said that set it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_perror(prefix: *const c_char) {
    // SAFETY: the caller passes a string or null.
    let prefix = unsafe { super::strings::string(prefix) };
    let _ = super::run(|| {
        perror(&prefix.unwrap_or_default());
        Ok(())
    });
}

/// As [`nx_perror`], for Fortran.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_perror_(prefix: *const c_char, len: c_long) {
    // SAFETY: Fortran passes the string's own length.
    let prefix = unsafe { super::strings::fortran_string(prefix, len) };
    let _ = super::run(|| {
        perror(&prefix);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Reduction;
    use crate::engine::types::Info;

    /// One of each variant; a new one does not compile here until it is added.
    fn all() -> Vec<NxError> {
        let known = |error: &NxError| match error {
            NxError::NotStarted
            | NxError::NullBuffer { .. }
            | NxError::BadLength { .. }
            | NxError::BadNode { .. }
            | NxError::BadPtype { .. }
            | NxError::PtypeInUse { .. }
            | NxError::NoProcess { .. }
            | NxError::NoPtype
            | NxError::BadType { .. }
            | NxError::BadMid { .. }
            | NxError::NoMid { .. }
            | NxError::BadHandler
            | NxError::MessageTooLong { .. }
            | NxError::HostGlobal
            | NxError::OtherGlobal { .. }
            | NxError::OtherLength { .. }
            | NxError::OtherLengths { .. }
            | NxError::NoRoomForAll { .. }
            | NxError::NoHost { .. }
            | NxError::BadReduction { .. }
            | NxError::PeerDied { .. }
            | NxError::PeerLost { .. }
            | NxError::PeerFault { .. }
            | NxError::HandlerPanicked { .. }
            | NxError::System { .. } => (),
        };
        let all = vec![
            NxError::NotStarted,
            NxError::NullBuffer { len: 1 },
            NxError::BadLength { len: -1 },
            NxError::BadNode { node: 9, last: 1 },
            NxError::BadPtype { ptype: -2 },
            NxError::PtypeInUse { node: 0, ptype: 1 },
            NxError::NoProcess { node: 0, ptype: 1, seconds: 60 },
            NxError::NoPtype,
            NxError::BadType { type_: -1 },
            NxError::BadMid { mid: 0 },
            NxError::NoMid { limit: 1 },
            NxError::BadHandler,
            NxError::MessageTooLong { info: Info::default(), room: 0 },
            NxError::HostGlobal,
            NxError::OtherGlobal { node: 1 },
            NxError::OtherLength { node: 1, given: 1, expected: 2 },
            NxError::OtherLengths { node: 1 },
            NxError::NoRoomForAll { all: 2, room: 1 },
            NxError::NoHost { node: 1 },
            NxError::BadReduction { op: Reduction::Xor },
            NxError::PeerDied { node: 1 },
            NxError::PeerLost { node: 1 },
            NxError::PeerFault { node: 1, what: "x" },
            NxError::HandlerPanicked { what: "x".into() },
            NxError::System { what: "x", reason: "y".into() },
        ];
        all.iter().for_each(known);
        all
    }

    #[test]
    fn every_error_has_a_number_with_a_text_of_ours() {
        for error in all() {
            let number = errno_of(&error);
            assert!(TEXTS.iter().any(|(known, _)| *known == number), "{error:?} is {number}");
            // The misuses that NX knows have NX numbers, clear of the system's.
            let ours = !matches!(
                error,
                NxError::PeerDied { .. }
                    | NxError::PeerLost { .. }
                    | NxError::PeerFault { .. }
                    | NxError::HandlerPanicked { .. }
                    | NxError::System { .. }
            );
            assert_eq!(ours, number >= 150, "{error:?} is {number}");
        }
    }

    #[test]
    fn numbers_of_errors_that_programs_tell_apart_differ() {
        let apart = [
            NxError::NullBuffer { len: 1 },
            NxError::BadLength { len: -1 },
            NxError::BadNode { node: 9, last: 1 },
            NxError::BadPtype { ptype: -2 },
            NxError::NoPtype,
            NxError::BadType { type_: -1 },
            NxError::BadMid { mid: 0 },
            NxError::NoMid { limit: 1 },
            NxError::BadHandler,
            NxError::MessageTooLong { info: Info::default(), room: 0 },
        ];
        let numbers: std::collections::HashSet<_> = apart.iter().map(errno_of).collect();
        assert_eq!(numbers.len(), apart.len());
    }
}
