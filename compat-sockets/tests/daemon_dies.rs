//! The daemon is killed while it gives the bytes of a ring back to TCP: nothing is lost, nothing comes
//! twice, and nobody waits for ever.
//!
//! The case `inetd_orphaned` hands a connection with 59 KiB unread in the ring to a program without the
//! library, while the other end makes no call; so the daemon is asked, and dies at the named point. Once
//! the other program runs, the other end goes on, and finds out what is left to be sent.
#![allow(missing_docs)]

mod common;

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $point:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            common::outlives_the_daemon("processes", "processes/inetd_orphaned", $point);
        }
    )*};
}

points! {
    before_anything_changed = "pump-claimed",
    before_a_byte_was_sent = "pump-begun",
    with_a_part_sent = "pump-half-sent",
    with_everything_sent_and_nothing_said = "pump-sent",
}
