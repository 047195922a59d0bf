//! Handlers (table 1.4).

use super::message::{source, target};
use super::process::{engine, fatal};
use super::{Code, Failure, calls};
use crate::engine::types::{Dest, Handler, Info, Select};
use crate::error::NxError;
use crate::unconfirmed::handler_arguments;
use std::ffi::c_long;

type ByValue = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long);
type ByReference = unsafe extern "C" fn(*mut i32, *mut i32, *mut i32, *mut i32, *mut i32);

/// The program's function as the engine runs it. It always gets a fifth argument: who has four
/// parameters does not see it. What goes wrong when the call has long returned has nobody to be told, in either form of it: it ends
/// the application.
fn handler(call: &'static str, code: Code, hparam: i32) -> Result<Handler, Failure> {
    if code.is_none() {
        return Err(NxError::BadHandler.into());
    }
    let (Code::Value(address) | Code::Reference(address)) = code;
    let address = address as usize;
    let told = move |result: Result<Info, NxError>| {
        result.unwrap_or_else(|error| fatal(call, &error.into()))
    };
    Ok(match code {
        Code::Value(_) => Box::new(move |result| {
            let info = told(result);
            // SAFETY: not null; the program says that it is a handler.
            let function = unsafe { std::mem::transmute::<usize, ByValue>(address) };
            let [type_, count, node, ptype, hparam] =
                handler_arguments(&info, hparam).map(c_long::from);
            // SAFETY: as above.
            unsafe { function(type_, count, node, ptype, hparam) }
        }),
        Code::Reference(_) => Box::new(move |result| {
            let info = told(result);
            // SAFETY: as above.
            let function = unsafe { std::mem::transmute::<usize, ByReference>(address) };
            let [mut type_, mut count, mut node, mut ptype, mut hparam] =
                handler_arguments(&info, hparam);
            // SAFETY: as above; the arguments outlive the call.
            unsafe { function(&mut type_, &mut count, &mut node, &mut ptype, &mut hparam) }
        }),
    })
}

calls! {
    fn hsend, _hsend, hsend_: (type_: int, buf: ptr, count: int, node: int, ptype: int, code: code) -> void {
        let to = Dest { node, ptype };
        // SAFETY: the buffer is the engine's until the handler runs, as NX has it.
        Ok(unsafe { engine()?.hsend(type_, source(buf, count)?, to, handler("hsend", code, 0)?) }?)
    }

    fn hsendx, _hsendx, hsendx_: (
        type_: int, buf: ptr, count: int, node: int, ptype: int, code: code, hparam: int,
    ) -> void {
        let to = Dest { node, ptype };
        // SAFETY: the buffer is the engine's until the handler runs, as NX has it.
        Ok(unsafe { engine()?.hsend(type_, source(buf, count)?, to, handler("hsendx", code, hparam)?) }?)
    }

    fn hrecv, _hrecv, hrecv_: (typesel: int, buf: ptr, count: int, code: code) -> void {
        // A null pointer cannot be written in Fortran.
        let is_nothing = buf.is_null() || matches!(code, Code::Reference(_));
        if code.is_none() && is_nothing && count == 0 {
            return Ok(engine()?.cancel_hrecv(typesel).map(|_| ())?);
        }
        let room = target(buf, count)?;
        // SAFETY: the buffer is the engine's until the handler runs, as NX has it.
        Ok(unsafe { engine()?.hrecv(Select::types(typesel), room, handler("hrecv", code, 0)?) }?)
    }

    fn hrecvx, _hrecvx, hrecvx_: (
        typesel: int, buf: ptr, count: int, nodesel: int, ptypesel: int, code: code, hparam: int,
    ) -> void {
        let (room, select) = (target(buf, count)?, Select { typesel, node: nodesel, ptype: ptypesel });
        // SAFETY: the buffer is the engine's until the handler runs, as NX has it.
        Ok(unsafe { engine()?.hrecv(select, room, handler("hrecvx", code, hparam)?) }?)
    }

    fn hsendrecv, _hsendrecv, hsendrecv_: (
        type_: int, sbuf: ptr, scount: int, node: int, ptype: int, typesel: int, rbuf: ptr, rcount: int, code: code,
    ) -> void {
        let (data, room) = (source(sbuf, scount)?, target(rbuf, rcount)?);
        let (to, select) = (Dest { node, ptype }, Select::types(typesel));
        // SAFETY: the buffers are the engine's until the handler runs, as NX has it.
        Ok(unsafe { engine()?.hsendrecv(type_, data, to, select, room, handler("hsendrecv", code, 0)?) }?)
    }

    fn masktrap, _masktrap, masktrap_: (state: int) -> long {
        Ok(i32::from(engine()?.masktrap(state != 0)))
    }
}
