//! A node whose handler answers messages, while its program waits for something else.
#![allow(unsafe_code)] // the room of a posted receive

use super::library::Library;
use super::rank::SHORT;
use std::ffi::c_long;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Type of the messages for the handler, and of its answers.
pub(super) const ASKS: c_long = 2;
pub(super) const ANSWERS: c_long = 3;

static LIBRARY: OnceLock<Library> = OnceLock::new();
/// Where the messages go. Only the library looks at it.
static ROOM: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(size_of::<AtomicU64>() == SHORT, "the room is of a short message");

extern "C" fn handle(_: c_long, _: c_long, node: c_long, _: c_long) {
    let Some(library) = LIBRARY.get() else { return };
    post(library);
    library.csend(ANSWERS, &mut [1; SHORT], node);
}

fn post(library: &Library) {
    // SAFETY: the room is a static that nothing else reads or writes.
    unsafe { library.hrecv(ASKS, ROOM.as_ptr().cast(), SHORT, Some(handle)) }
}

/// On node 1 a handler is posted as long as this lives.
#[derive(Debug)]
pub(super) struct Handled<'l>(&'l Library);

impl Handled<'_> {
    pub(super) fn begin(library: &Library) -> Handled<'_> {
        if library.node() == 1 {
            post(LIBRARY.get_or_init(|| *library));
        }
        Handled(library)
    }

    /// When all nodes are through.
    pub(super) fn end(self) {
        self.0.gsync();
        if self.0.node() == 1 {
            // SAFETY: takes the handler back, with no room.
            unsafe { self.0.hrecv(ASKS, std::ptr::null_mut(), 0, None) }
        }
    }
}
