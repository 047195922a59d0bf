//! The safe interface: NX for Rust programs.
//!
//! Memory of an operation that goes on after its call belongs to the operation: [`Nx::isend`], [`Nx::irecv`],
//! [`Nx::hsend`] and [`Nx::hrecv`] take a vector, and give it back when it is theirs no more. Forgotten
//! (`mem::forget`), it stays where it is for ever. Calls that borrow memory are done with it when they return, also with
//! an error: when the job ends with a message on its way into it, that is cut off first.
#![allow(unsafe_code)] // calls of the engine's raw interface; each block has its proof

use crate::engine::types::INVALID_PTYPE;
use crate::engine::{Element, Engine, Reduction};
use crate::error::{NxError, StartError};
use crate::job::{Job, JobError};
use crate::{Dest, Info, Mid, Outcome, Select, Source, Target};
use std::ffi::c_void;

/// This process's part of a job. All methods may be called from any thread.
///
/// Process types are those of this process unless a method says otherwise: a job whose processes do not
/// set any need not know them.
#[derive(Debug)]
pub struct Nx {
    engine: Engine,
}

/// Why a program could not join its job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Nobody started this process as part of a job.
    #[error("this process is not part of a job; start it with `shrimp run -n N -- program`")]
    NoJob,
    /// The launcher's variables are nonsense.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Joining failed.
    #[error(transparent)]
    Start(#[from] StartError),
}

fn source(data: &[u8]) -> Source {
    Source { start: data.as_ptr(), len: data.len() }
}

fn target(room: &mut [u8]) -> Target {
    Target { start: room.as_mut_ptr(), len: room.len() }
}

/// Most elements whose reduction allocates nothing.
const FEW: usize = 8;

impl Nx {
    /// Joins the job that this process was started for. Blocks until all other processes are there.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join() -> Result<Nx, JoinError> {
        let job = Job::from_env()?.ok_or(JoinError::NoJob)?;
        Ok(Nx { engine: Engine::start(&job)? })
    }

    /// The same engine's whole interface.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// This process's node number (`mynode`).
    #[must_use]
    pub fn node(&self) -> i32 {
        self.engine.node()
    }

    /// Number of nodes (`numnodes`).
    #[must_use]
    pub fn nodes(&self) -> i32 {
        self.engine.nodes()
    }

    /// Process type (`myptype`), `None` before it is set.
    #[must_use]
    pub fn ptype(&self) -> Option<i32> {
        Some(self.engine.ptype()).filter(|&ptype| ptype != INVALID_PTYPE)
    }

    /// The host process's node number, if there is one.
    #[must_use]
    pub fn host(&self) -> Option<i32> {
        self.engine.host()
    }

    /// Sets the process type (`setptype`).
    ///
    /// # Errors
    /// As [`Engine::set_ptype`].
    pub fn set_ptype(&self, ptype: i32) -> Result<(), NxError> {
        self.engine.set_ptype(ptype)
    }

    fn to(&self, node: i32) -> Dest {
        Dest { node, ptype: self.engine.ptype() }
    }

    /// Sends to `node`, to all other nodes if it is -1. Returns when `data` may be changed.
    ///
    /// # Errors
    /// As [`Engine::csend`].
    #[inline]
    pub fn csend(&self, type_: i32, data: &[u8], node: i32) -> Result<(), NxError> {
        self.csend_to(type_, data, self.to(node))
    }

    /// The same, with the process type of the receiver.
    ///
    /// # Errors
    /// As [`Engine::csend`].
    #[inline]
    pub fn csend_to(&self, type_: i32, data: &[u8], to: Dest) -> Result<(), NxError> {
        // SAFETY: borrowed for the call.
        unsafe { self.engine.csend(type_, source(data), to) }
    }

    /// Sends to a list of nodes.
    ///
    /// # Errors
    /// As [`Engine::gsendx`].
    pub fn gsendx(&self, type_: i32, data: &[u8], nodes: &[i32]) -> Result<(), NxError> {
        // SAFETY: borrowed for the call.
        unsafe { self.engine.gsendx(type_, source(data), nodes) }
    }

    /// Receives a message of the types of `typesel` (see [`Select`]) into `room`.
    ///
    /// # Errors
    /// As [`Engine::crecv`].
    #[inline]
    pub fn crecv(&self, typesel: i32, room: &mut [u8]) -> Result<Info, NxError> {
        self.crecvx(Select::types(typesel), room)
    }

    /// The same, with the source selected, too.
    ///
    /// # Errors
    /// As [`Engine::crecv`].
    #[inline]
    pub fn crecvx(&self, select: Select, room: &mut [u8]) -> Result<Info, NxError> {
        // SAFETY: borrowed exclusively for the call.
        unsafe { self.engine.crecv(select, target(room)) }
    }

    /// Sends to `node`, and receives (`csendrecv`).
    ///
    /// # Errors
    /// As [`Engine::csendrecv`].
    pub fn csendrecv(
        &self,
        type_: i32,
        data: &[u8],
        node: i32,
        select: Select,
        room: &mut [u8],
    ) -> Result<Info, NxError> {
        // SAFETY: both are borrowed for the call, `room` exclusively.
        unsafe { self.engine.csendrecv(type_, source(data), self.to(node), select, target(room)) }
    }

    /// Starts sending. The bytes belong to the transfer until [`Sending::wait`] gives them back.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn isend(&self, type_: i32, data: Vec<u8>, node: i32) -> Result<Sending<'_>, NxError> {
        // SAFETY: the vector's bytes stay where they are, unchanged, until `Transfer` frees them
        // after the operation's end. Forgotten, they stay for ever.
        let mid = unsafe { self.engine.isend(type_, source(&data), self.to(node)) }?;
        Ok(Sending(Transfer { engine: &self.engine, mid: Some(mid), bytes: data }))
    }

    /// Starts receiving into `room`, as long as that is.
    ///
    /// # Errors
    /// As [`Engine::irecv`].
    pub fn irecv(&self, select: Select, mut room: Vec<u8>) -> Result<Receiving<'_>, NxError> {
        // SAFETY: as in `isend`; nobody else touches them.
        let mid = unsafe { self.engine.irecv(select, target(&mut room), None) }?;
        Ok(Receiving(Transfer { engine: &self.engine, mid: Some(mid), bytes: room }))
    }

    /// Starts sending, and runs `handler` in the handler thread when the bytes are free again (`hsend`).
    ///
    /// # Errors
    /// As [`Engine::hsend`].
    pub fn hsend(
        &self,
        type_: i32,
        data: Vec<u8>,
        node: i32,
        handler: impl FnOnce(Result<Info, NxError>, Vec<u8>) + Send + 'static,
    ) -> Result<(), NxError> {
        let raw = source(&data);
        // SAFETY: the bytes belong to the handler, which the operation keeps until they are sent.
        unsafe {
            let handler = Box::new(move |result| handler(result, data));
            self.engine.hsend(type_, raw, self.to(node), handler)
        }
    }

    /// Runs `handler` in the handler thread when a message has come into `room` (`hrecv`), also while this
    /// thread computes. Once. Never, if the job ends before the message comes. A handler that panics ends the job for
    /// this process ([`NxError::HandlerPanicked`]).
    ///
    /// # Errors
    /// As [`Engine::hrecv`]. The handler gets [`NxError::MessageTooLong`] with the beginning of a message that the room is too
    /// short for.
    pub fn hrecv(
        &self,
        select: Select,
        mut room: Vec<u8>,
        handler: impl FnOnce(Result<Info, NxError>, Vec<u8>) + Send + 'static,
    ) -> Result<(), NxError> {
        let raw = target(&mut room);
        // SAFETY: the bytes belong to the handler, which gets them when the message is there; a
        // receive that is taken back drops the handler and with it the bytes.
        unsafe { self.engine.hrecv(select, raw, Box::new(move |result| handler(result, room))) }
    }

    /// Takes back the posted [`Nx::hrecv`]s of this type selector; their handlers are dropped. Returns how many there were.
    ///
    /// # Errors
    /// As [`Engine::cancel_hrecv`].
    pub fn cancel_hrecv(&self, typesel: i32) -> Result<usize, NxError> {
        self.engine.cancel_hrecv(typesel)
    }

    /// Masks (true) or allows (false) handlers; returns what was before. As [`Engine::masktrap`].
    pub fn masktrap(&self, mask: bool) -> bool {
        self.engine.masktrap(mask)
    }

    /// Whether such a message is here (`iprobex`).
    ///
    /// # Errors
    /// As [`Engine::iprobe`].
    pub fn iprobe(&self, select: Select) -> Result<Option<Info>, NxError> {
        self.engine.iprobe(select)
    }

    /// Waits until such a message is here (`cprobex`).
    ///
    /// # Errors
    /// As [`Engine::cprobe`].
    pub fn cprobe(&self, select: Select) -> Result<Info, NxError> {
        self.engine.cprobe(select)
    }

    /// Throws away the messages that are here and selected (`flushmsg`).
    ///
    /// # Errors
    /// As [`Engine::flushmsg`].
    pub fn flushmsg(&self, select: Select) -> Result<(), NxError> {
        self.engine.flushmsg(select)
    }

    /// A turn of the protocol, and the processor to others.
    pub fn flick(&self) {
        self.engine.flick();
    }

    /// Waits until all nodes are here.
    ///
    /// # Errors
    /// As [`Engine::gsync`].
    pub fn gsync(&self) -> Result<(), NxError> {
        self.engine.gsync()
    }

    /// Combines `x` of all nodes, element by element; all get the result.
    ///
    /// # Errors
    /// As [`Engine::reduce`].
    pub fn reduce<T: Element>(&self, op: Reduction, x: &mut [T]) -> Result<(), NxError> {
        let (mut few, mut many);
        let work = match *x {
            [first, ..] if x.len() <= FEW => {
                few = [first; FEW];
                &mut few[..]
            }
            _ => {
                many = x.to_vec();
                &mut many[..]
            }
        };
        // SAFETY: both are borrowed exclusively for the call, `x.len()` long at least, and different.
        unsafe { self.engine.reduce(op, x.as_mut_ptr(), x.len(), work.as_mut_ptr()) }
    }

    /// The same with an operation of the program's own (`gopf`), which must be associative and commutative: `combine(x, y)`
    /// leaves its result in `x`; both are as long as `x` is here.
    ///
    /// # Errors
    /// As [`Engine::gopf`].
    ///
    /// # Panics
    /// When `combine` does; the other nodes then wait for this one, or hear that it has gone.
    pub fn gopf<T: Element>(
        &self,
        x: &mut [T],
        mut combine: impl FnMut(&mut [T], &[T]),
    ) -> Result<(), NxError> {
        let mut work = x.to_vec();
        let (len, bytes) = (x.len(), size_of_val(x));
        let mut both = |x: *mut c_void, work: *mut c_void| {
            // SAFETY: the vector below, `len` long, borrowed exclusively by the call, which uses it through this
            // pointer alone and not while this runs.
            let x = unsafe { std::slice::from_raw_parts_mut(x.cast::<T>(), len) };
            // SAFETY: as above. All bits are values of `T`, so what other nodes sent is one.
            combine(x, unsafe { std::slice::from_raw_parts(work.cast::<T>(), len) });
        };
        let (x, work) = (x.as_mut_ptr().cast(), work.as_mut_ptr().cast());
        // SAFETY: both are `bytes` long, borrowed exclusively for the call, and different.
        unsafe { self.engine.gopf(x, bytes, work, &mut both) }
    }

    /// What all nodes have, in node order (`gcol`). `most` is the most that all can have together.
    ///
    /// # Errors
    /// As [`Engine::gcol`].
    pub fn gcol(&self, mine: &[u8], most: usize) -> Result<Vec<u8>, NxError> {
        let all = self.engine.gather(mine)?;
        self.engine.fits(all.len(), most)?;
        Ok(all)
    }

    /// What all nodes have, in node order, where every node knows how much that is: `lens` bytes, of which
    /// `mine` are this node's (`gcolx`).
    ///
    /// # Errors
    /// As [`Engine::gcolx`]; [`NxError::BadLength`] also when `mine` is not as long as `lens` says.
    pub fn gcolx(&self, mine: &[u8], lens: &[usize]) -> Result<Vec<u8>, NxError> {
        let (node, nodes) = (self.engine.node() as usize, self.engine.nodes() as usize);
        if lens.len() != nodes {
            return Err(NxError::BadLength { len: lens.len() as i64 });
        }
        if lens.get(node).is_some_and(|&len| len != mine.len()) {
            return Err(NxError::BadLength { len: mine.len() as i64 });
        }
        self.engine.collect(mine, lens)
    }

    /// Leaves in order (also done by a drop): waits until what was sent no longer needs this
    /// process.
    pub fn leave(self) {
        drop(self);
    }
}

/// Bytes that an operation under way uses.
struct Transfer<'e> {
    engine: &'e Engine,
    /// `None` once it is over.
    mid: Option<Mid>,
    bytes: Vec<u8>,
}

/// Without the bytes, which are the operation's.
impl std::fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("mid", &self.mid).field("len", &self.bytes.len()).finish()
    }
}

impl Transfer<'_> {
    fn wait(&mut self) -> Result<Outcome, NxError> {
        let Some(mid) = self.mid else { unreachable!("waiting takes the transfer") };
        let outcome = self.engine.msgwait(mid);
        if outcome.is_ok() || matches!(outcome, Err(NxError::MessageTooLong { .. })) {
            self.mid = None;
        }
        outcome
    }

    fn is_done(&self) -> bool {
        self.mid.is_none_or(|mid| self.engine.is_done(mid))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let Some(mid) = self.mid else { return };
        if self.engine.msgcancel(mid).is_err() {
            // The job has ended with the operation under way: the bytes stay its own.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// A send under way. Dropping it takes it back, or waits until it can no longer be.
#[derive(Debug)]
#[must_use]
pub struct Sending<'e>(Transfer<'e>);

impl Sending<'_> {
    /// Waits until the bytes may be used again, and gives them back.
    ///
    /// # Errors
    /// As [`Engine::msgwait`].
    pub fn wait(mut self) -> Result<Vec<u8>, NxError> {
        self.0.wait()?;
        Ok(std::mem::take(&mut self.0.bytes))
    }

    /// Whether [`Sending::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

/// A receive under way. Dropping it takes it back.
#[derive(Debug)]
#[must_use]
pub struct Receiving<'e>(Transfer<'e>);

impl Receiving<'_> {
    /// Waits for the message; gives the room back, as long as it was.
    ///
    /// # Errors
    /// As [`Engine::msgwait`].
    pub fn wait(mut self) -> Result<(Info, Vec<u8>), NxError> {
        match self.0.wait()? {
            Outcome::Received(info) => Ok((info, std::mem::take(&mut self.0.bytes))),
            Outcome::Sent => unreachable!("a receive ends with its message"),
        }
    }

    /// Whether [`Receiving::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}
