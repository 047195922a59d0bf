//! The C functions we export: thin, one file per group.
//!
//! Each decides with one table look-up whether the call concerns an upgraded (or upgradable)
//! socket; everything else goes straight to the C library's function of the same name. No entry
//! allocates on the data path, keeps a lock across a call that blocks, or can panic; `errno` is
//! only touched when a call fails.
//!
//! They are `C-unwind` because a cancelled thread unwinds through them.
//!
//! Variadic functions are declared with fixed `usize` arguments: on x86-64 and AArch64 Linux the
//! register passing is the same.

mod aliases;
mod asynchronous;
pub(crate) mod data;
mod inq;
pub(crate) mod lifecycle;
pub(crate) mod options;
mod process;
mod readiness;
mod stdio;
mod syscall;
mod variadic;

/// Declares exported functions. In unit tests they are ordinary functions, so that the test
/// program's own calls are not interposed.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
        #[allow(unreachable_pub)] // the C linker is who reaches it
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $ret)? $body
    )*};
}
pub(crate) use export;
