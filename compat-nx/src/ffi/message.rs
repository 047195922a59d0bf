//! Sending, receiving, probing, message ids (tables 1.2 and 1.3).

use super::process::{engine, engine_to_look};
use super::{Failure, Ints, calls, info, length};
use crate::engine::types::{Dest, Info, Mid, Outcome, Select, Source, Target};
use crate::error::NxError;
use std::ffi::c_void;

/// Bytes to send.
pub(super) fn source(buf: *mut c_void, count: i32) -> Result<Source, Failure> {
    Ok(Source { start: buf.cast(), len: length(count)? })
}

/// Room for a message.
pub(super) fn target(buf: *mut c_void, count: i32) -> Result<Target, Failure> {
    Ok(Target { start: buf.cast(), len: length(count)? })
}

/// Notes what a receive found, also when the message was too long for the buffer.
#[inline(always)]
fn noted(result: Result<Info, NxError>, array: Option<Ints>) -> Result<Info, Failure> {
    if let Ok(info) | Err(NxError::MessageTooLong { info, .. }) = &result {
        note(info, array);
    }
    Ok(result?)
}

fn note(info: &Info, array: Option<Ints>) {
    match array {
        None => info::set(info),
        // SAFETY: the x-calls' last argument has 8 elements.
        Some(array) => unsafe { info::fill(array, info) },
    }
}

fn count_of(info: &Info) -> i32 {
    i32::try_from(info.count).unwrap_or(i32::MAX)
}

fn ended(outcome: Result<Outcome, NxError>) -> Result<(), Failure> {
    match outcome {
        Ok(Outcome::Received(found)) => noted(Ok(found), None).map(|_| ()),
        Ok(Outcome::Sent) => Ok(()),
        Err(error) => noted(Err(error), None).map(|_| ()),
    }
}

/// The last argument of the x-calls: they have it to be filled in, and a message is not taken by one that cannot.
fn array(info: Ints) -> Result<Ints, Failure> {
    if info.is_null() { Err(super::null("info; msginfo serves")) } else { Ok(info) }
}

fn id(mid: i32) -> Option<Mid> {
    (mid != -1).then_some(Mid(mid))
}

calls! {
    #[inline(always)] // a call and its frame less between two short messages
    fn csend, _csend, csend_: (type_: int, buf: ptr, count: int, node: int, ptype: int) -> void {
        // SAFETY: the buffer is the caller's for the call.
        Ok(unsafe { engine()?.csend(type_, source(buf, count)?, Dest { node, ptype }) }?)
    }

    #[inline(always)] // as csend
    fn crecv, _crecv, crecv_: (typesel: int, buf: ptr, count: int) -> void {
        // SAFETY: the buffer is the caller's for the call.
        noted(unsafe { engine()?.crecv(Select::types(typesel), target(buf, count)?) }, None).map(|_| ())
    }

    fn crecvx, _crecvx, crecvx_ [nx32_crecvx, _nx32_crecvx]: (
        typesel: int, buf: ptr, count: int, nodesel: int, ptypesel: int, info: ints,
    ) -> void {
        let select = Select { typesel, node: nodesel, ptype: ptypesel };
        let (engine, info) = (engine()?, array(info)?);
        // SAFETY: the buffer is the caller's for the call.
        noted(unsafe { engine.crecv(select, target(buf, count)?) }, Some(info)).map(|_| ())
    }

    fn csendrecv, _csendrecv, csendrecv_: (
        type_: int, sbuf: ptr, scount: int, node: int, ptype: int, typesel: int, rbuf: ptr, rcount: int,
    ) -> long {
        let (data, room) = (source(sbuf, scount)?, target(rbuf, rcount)?);
        let to = Dest { node, ptype };
        // SAFETY: the buffers are the caller's for the call.
        let result = unsafe { engine()?.csendrecv(type_, data, to, Select::types(typesel), room) };
        noted(result, None).map(|info| count_of(&info))
    }

    fn cprobe, _cprobe, cprobe_: (typesel: int) -> void {
        noted(engine()?.cprobe(Select::types(typesel)), None).map(|_| ())
    }

    fn cprobex, _cprobex, cprobex_ [nx32_cprobex, _nx32_cprobex]: (
        typesel: int, nodesel: int, ptypesel: int, info: ints,
    ) -> void {
        let select = Select { typesel, node: nodesel, ptype: ptypesel };
        let (engine, info) = (engine()?, array(info)?);
        noted(engine.cprobe(select), Some(info)).map(|_| ())
    }

    fn iprobe, _iprobe, iprobe_: (typesel: int) -> long {
        let Some(engine) = engine_to_look()? else { return Ok(0) };
        let found = engine.iprobe(Select::types(typesel))?;
        if let Some(found) = &found {
            note(found, None);
        }
        Ok(i32::from(found.is_some()))
    }

    fn iprobex, _iprobex, iprobex_ [nx32_iprobex, _nx32_iprobex]: (
        typesel: int, nodesel: int, ptypesel: int, info: ints,
    ) -> long {
        let info = array(info)?;
        let Some(engine) = engine_to_look()? else { return Ok(0) };
        let found = engine.iprobe(Select { typesel, node: nodesel, ptype: ptypesel })?;
        if let Some(found) = &found {
            note(found, Some(info));
        }
        Ok(i32::from(found.is_some()))
    }

    fn isend, _isend, isend_: (type_: int, buf: ptr, count: int, node: int, ptype: int) -> long {
        // SAFETY: the buffer is the engine's until the id is done, as NX has it.
        Ok(unsafe { engine()?.isend(type_, source(buf, count)?, Dest { node, ptype }) }?.0)
    }

    fn irecv, _irecv, irecv_: (typesel: int, buf: ptr, count: int) -> long {
        // SAFETY: the buffer is the engine's until the id is done, as NX has it.
        Ok(unsafe { engine()?.irecv(Select::types(typesel), target(buf, count)?, None) }?.0)
    }

    fn irecvx, _irecvx, irecvx_ [nx32_irecvx, _nx32_irecvx]: (
        typesel: int, buf: ptr, count: int, nodesel: int, ptypesel: int, info: ints,
    ) -> long {
        let select = Select { typesel, node: nodesel, ptype: ptypesel };
        let (engine, info) = (engine()?, array(info)?);
        // SAFETY: buffer and array are the engine's until the id is done, as NX has it.
        Ok(unsafe { engine.irecv(select, target(buf, count)?, Some(info::target(info))) }?.0)
    }

    fn isendrecv, _isendrecv, isendrecv_: (
        type_: int, sbuf: ptr, scount: int, node: int, ptype: int, typesel: int, rbuf: ptr, rcount: int,
    ) -> long {
        let (data, room) = (source(sbuf, scount)?, target(rbuf, rcount)?);
        let to = Dest { node, ptype };
        // SAFETY: the buffers are the engine's until the id is done, as NX has it.
        Ok(unsafe { engine()?.isendrecv(type_, data, to, Select::types(typesel), room) }?.0)
    }

    fn msgwait, _msgwait, msgwait_: (mid: int) -> void { ended(engine()?.msgwait(Mid(mid))) }

    fn msgdone, _msgdone, msgdone_: (mid: int) -> long {
        let Some(engine) = engine_to_look()? else { return Ok(0) };
        match engine.msgdone(Mid(mid)) {
            Ok(None) => Ok(0),
            Ok(Some(outcome)) => ended(Ok(outcome)).map(|()| 1),
            Err(error) => ended(Err(error)).map(|()| 1),
        }
    }

    fn msgcancel, _msgcancel, msgcancel_: (mid: int) -> void { Ok(engine()?.msgcancel(Mid(mid))?) }

    fn msgignore, _msgignore, msgignore_: (mid: int) -> void { Ok(engine()?.msgignore(Mid(mid))?) }

    fn msgmerge, _msgmerge, msgmerge_: (one: int, other: int) -> long {
        Ok(engine()?.msgmerge(id(one), id(other))?.map_or(-1, |merged| merged.0))
    }

    fn flushmsg, _flushmsg, flushmsg_: (typesel: int, node: int, ptype: int) -> void {
        let engine = engine()?;
        let last = engine.host().unwrap_or(engine.nodes() - 1);
        if node < -1 || node > last {
            return Err(NxError::BadNode { node, last: last as u32 }.into());
        }
        if ptype < -1 {
            return Err(NxError::BadPtype { ptype }.into());
        }
        crate::engine::check_typesel(typesel)?;
        Ok(engine.flushmsg(Select { typesel, node, ptype })?)
    }
}
