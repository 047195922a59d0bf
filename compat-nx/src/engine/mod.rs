//! The protocol: one [`Engine`] per process, every NX operation a method of it.
//!
//! All methods may be called from any thread, handlers included. Methods that take raw memory
//! ([`Source`], [`Target`]) are `unsafe`; `crate::Nx` is the safe interface over them.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

pub mod types;

use crate::error::{NxError, StartError};
use crate::job::Job;
use std::ffi::c_void;
use types::{Dest, Handler, Info, InfoTarget, Mid, Outcome, Select, Source, Target};

/// Binary operations of the global reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// `g?sum`.
    Sum,
    /// `g?prod`.
    Product,
    /// `g?high`.
    High,
    /// `g?low`.
    Low,
    /// `giand`.
    And,
    /// `gior`.
    Or,
    /// `gixor`.
    Xor,
    /// `gland`.
    LogicalAnd,
    /// `glor`.
    LogicalOr,
    /// `glxor`.
    LogicalXor,
}

/// What reductions work on. `i64` is C's `long`, `i32` Fortran's INTEGER and LOGICAL.
pub trait Element: Copy + Send + 'static {
    /// `a op b`; `None` when the operation makes no sense for the type (bits of a float).
    fn combine(op: Reduction, a: Self, b: Self) -> Option<Self>;
}

/// This process's part of a job.
#[derive(Debug)]
pub struct Engine {}

#[allow(clippy::missing_safety_doc, missing_docs, unused_variables)]
impl Engine {
    /// Joins the job: connects to the daemon and to every other process. Blocks until all are there.
    pub fn start(job: &Job) -> Result<Engine, StartError> {
        Err(StartError::BadJob { node: job.node, size: job.size })
    }

    /// Leaves in order: waits until what was sent no longer needs this process. Others go on.
    pub fn leave(&self) {}

    // ---- who is who
    /// This process's node number.
    #[must_use]
    pub fn node(&self) -> i32 {
        0
    }
    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> i32 {
        0
    }
    /// The host process's node number, if there is one.
    #[must_use]
    pub fn host(&self) -> Option<i32> {
        None
    }
    /// Process type, [`types::INVALID_PTYPE`] before it is set.
    #[must_use]
    pub fn ptype(&self) -> i32 {
        -1
    }
    pub fn set_ptype(&self, ptype: i32) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }

    // ---- send
    /// Returns when the buffer may be used again.
    pub unsafe fn csend(&self, type_: i32, data: Source, to: Dest) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `data` until the id is done.
    pub unsafe fn isend(&self, type_: i32, data: Source, to: Dest) -> Result<Mid, NxError> {
        Err(NxError::NotStarted)
    }
    pub unsafe fn hsend(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        handler: Handler,
    ) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// To a list of nodes, of this process's own ptype.
    pub unsafe fn gsendx(&self, type_: i32, data: Source, nodes: &[i32]) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }

    // ---- receive
    /// `crecv`, `crecvx`.
    pub unsafe fn crecv(&self, select: Select, room: Target) -> Result<Info, NxError> {
        Err(NxError::NotStarted)
    }
    /// `irecv`, `irecvx`; `info` is written at completion.
    pub unsafe fn irecv(
        &self,
        select: Select,
        room: Target,
        info: Option<InfoTarget>,
    ) -> Result<Mid, NxError> {
        Err(NxError::NotStarted)
    }
    pub unsafe fn hrecv(
        &self,
        select: Select,
        room: Target,
        handler: Handler,
    ) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `hrecv(typesel, 0, 0, NULL)`: takes back the posted handler receives of that selector.
    /// Returns how many.
    pub fn cancel_hrecv(&self, typesel: i32) -> Result<usize, NxError> {
        Err(NxError::NotStarted)
    }
    pub unsafe fn csendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
    ) -> Result<Info, NxError> {
        Err(NxError::NotStarted)
    }
    pub unsafe fn isendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
    ) -> Result<Mid, NxError> {
        Err(NxError::NotStarted)
    }
    pub unsafe fn hsendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
        handler: Handler,
    ) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }

    // ---- probe
    pub fn cprobe(&self, select: Select) -> Result<Info, NxError> {
        Err(NxError::NotStarted)
    }
    pub fn iprobe(&self, select: Select) -> Result<Option<Info>, NxError> {
        Err(NxError::NotStarted)
    }

    // ---- message ids
    /// Waits, and frees the id. `MessageTooLong` also frees it.
    pub fn msgwait(&self, mid: Mid) -> Result<Outcome, NxError> {
        Err(NxError::NotStarted)
    }
    /// `Some` when done: the id is free then.
    pub fn msgdone(&self, mid: Mid) -> Result<Option<Outcome>, NxError> {
        Err(NxError::NotStarted)
    }
    pub fn msgignore(&self, mid: Mid) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    pub fn msgcancel(&self, mid: Mid) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `None` for -1.
    pub fn msgmerge(&self, one: Option<Mid>, other: Option<Mid>) -> Result<Option<Mid>, NxError> {
        Err(NxError::NotStarted)
    }
    /// Throws away arrived messages of these types from there; -1 for any.
    pub fn flushmsg(&self, select: Select) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }

    // ---- handlers
    /// Masks (true) or allows (false) handlers; returns the previous state. Masking waits for a
    /// handler that runs now. Inside a handler it only keeps the value.
    pub fn masktrap(&self, mask: bool) -> bool {
        false
    }

    // ---- global operations; all nodes must call
    pub fn gsync(&self) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `gdsum` and its like. `x` and `work`: `n` elements each, alignment any.
    pub unsafe fn reduce<T: Element>(
        &self,
        op: Reduction,
        x: *mut T,
        n: usize,
        work: *mut T,
    ) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `gopf`: `combine(x, work)` leaves its result in `x`.
    pub unsafe fn gopf(
        &self,
        x: *mut c_void,
        len: usize,
        work: *mut c_void,
        combine: &mut dyn FnMut(*mut c_void, *mut c_void),
    ) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }
    /// `gcol`: concatenates in node order; returns the total length. `y` too short: `MessageTooLong`.
    pub unsafe fn gcol(&self, x: Source, y: Target) -> Result<usize, NxError> {
        Err(NxError::NotStarted)
    }
    /// `gcolx`: the same with known lengths, one per node.
    pub unsafe fn gcolx(&self, x: *const u8, lens: &[usize], y: *mut u8) -> Result<(), NxError> {
        Err(NxError::NotStarted)
    }

    // ---- other
    /// A turn of the protocol, and a pause for others (`flick`).
    pub fn flick(&self) {}
}
