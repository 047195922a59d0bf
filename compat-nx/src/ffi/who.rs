//! Process information and control (table 1.1).

use super::app;
use super::process::{self, engine, engine_unlocked, part, seat};
use super::{Failure, calls};
use crate::error::NxError;
use crate::job::control::{self, Message};
use crate::job::supervise::Who;
use crate::unconfirmed::host_number;
use std::ffi::c_long;

fn kill(node: i32, ptype: i32) -> Result<(), Failure> {
    let place = seat()?;
    let last = if place.host { host_number(place.size) } else { place.size - 1 };
    if node < -1 || node > last as i32 {
        return Err(NxError::BadNode { node, last }.into());
    }
    if ptype < -1 {
        return Err(NxError::BadPtype { ptype }.into());
    }
    let engine = engine_unlocked()?;
    let host = host_number(place.size);
    let is_host = place.node == host;
    let all = node == -1 && ptype <= 0;
    let own = (node == place.node as i32 || (node == -1 && !is_host))
        && (ptype < 0 || engine.ptype() == ptype);
    if !all && !own {
        let engine = process::engine()?;
        engine.wait_for_all()?; // their types are known
        if !engine.has_any(node, ptype) {
            let why = format!("node {node} has no process of type {ptype}");
            return Err(Failure::System(super::errno::EQNOPROC, why));
        }
    }
    let whom = if node == host as i32 { control::HOST } else { node };
    let mut part = part();
    if let Some(control) = &part.control {
        control::tell(control, &Message::Kill { node: whom, ptype }, &[]).map_err(|errno| {
            Failure::System(errno.raw_os_error(), "telling the launcher".into())
        })?;
    } else if !own || all {
        let by = Who {
            node: (!is_host).then_some(place.node),
            ptype: engine.ptype(),
            pid: std::process::id() as i32,
        };
        match &mut part.launcher {
            _ if app::kill(by, whom, ptype) => {}
            Some(launcher) if all => {
                let _ = process::begins_to_end();
                launcher.abort(137, "killproc(-1, -1)", process::flushing());
            }
            _ if all => kill_this(),
            _ => {
                let why = "needs `shrimp run`; mpiexec and srun only end all";
                let what = format!("killing node {node} alone {why}");
                return Err(Failure::System(libc::ENOSYS, what));
            }
        }
    } else {
        kill_this();
    }
    drop(part);
    if all || own {
        // We are one of them: nothing after this line may run.
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn kill_this() {
    let own = rustix::process::getpid();
    let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
}

/// Lowest d with 2^d at least the number of nodes.
fn dimension(nodes: u32) -> i32 {
    nodes.next_power_of_two().trailing_zeros() as i32
}

fn inverse_gray(code: i32) -> i32 {
    let mut value = code as u32;
    for shift in [1, 2, 4, 8, 16] {
        value ^= value >> shift;
    }
    value as i32
}

/// -1 before it is set.
fn ptype() -> Result<i32, Failure> {
    let first = if process::running().is_none() { app::first_ptype() } else { None };
    first.map_or_else(|| Ok(engine_unlocked()?.ptype()), Ok)
}

fn set_ptype(ptype: i32) -> Result<(), Failure> {
    if !app::set_first_ptype(ptype)? {
        engine()?.set_ptype(ptype)?;
    }
    if let Some(control) = &part().control {
        let _ = control::tell(control, &Message::Ptype(ptype), &[]);
    }
    Ok(())
}

calls! {
    fn mynode, _mynode, mynode_: () -> long { Ok(seat()?.node as i32) }
    fn numnodes, _numnodes, numnodes_: () -> long { Ok(seat()?.size as i32) }
    fn myptype, _myptype, myptype_: () -> long { ptype() }
    fn mypid, _mypid, mypid_: () -> long { ptype() }
    fn setptype, _setptype, setptype_: (ptype: int) -> void { set_ptype(ptype) }
    fn setpid, _setpid, setpid_: (pid: int) -> void { set_ptype(pid) }
    fn nodedim, _nodedim, nodedim_: () -> long { Ok(dimension(seat()?.size)) }
    fn mypart, _mypart, mypart_ [nx32_mypart, _nx32_mypart]: (rows: ints, columns: ints) -> long {
        app::rectangle(rows, columns)
    }
    fn gray, _gray, gray_: (number: int) -> long { Ok(number ^ (number >> 1)) }
    fn ginv, _ginv, ginv_: (code: int) -> long { Ok(inverse_gray(code)) }
    fn killcube, _killcube, killcube_: (node: int, pid: int) -> void { kill(node, pid) }
    fn killproc, _killproc, killproc_: (node: int, pid: int) -> void { kill(node, pid) }
    fn flick, _flick, flick_: () -> void {
        engine()?.flick();
        Ok(())
    }
    fn led, _led, led_: (state: int) -> void { Ok(()) }
}

/// Number of the controlling process: the number of nodes. `_myhost` is negative without one.
#[unsafe(no_mangle)]
pub extern "C" fn myhost() -> c_long {
    super::plain("myhost", || Ok(host_number(seat()?.size) as i32)).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn _myhost() -> c_long {
    super::under(|| {
        let seat = seat()?;
        if seat.host {
            Ok(host_number(seat.size) as i32)
        } else {
            Err(Failure::System(super::errno::EQNOPROC, "host".into()))
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn myhost_() -> i32 {
    super::plain("myhost", || Ok(host_number(seat()?.size) as i32))
}

/// The physical node: there are no others than the logical ones.
#[unsafe(no_mangle)]
pub extern "C" fn _myphysnode() -> c_long {
    super::under(|| Ok(seat()?.node as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn _mydirect() -> c_long {
    super::under(|| Ok(seat()?.node as i32))
}

/// An internal symbol that some programs touch.
#[unsafe(no_mangle)]
pub extern "C" fn mcmsg_wire() -> c_long {
    app::debug("mcmsg_wire");
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_codes_of_neighbours_differ_in_one_bit_and_ginv_inverts() {
        for number in 0..4096_i32 {
            let code = number ^ (number >> 1);
            let next = (number + 1) ^ ((number + 1) >> 1);
            assert_eq!((code ^ next).count_ones(), 1);
            assert_eq!(inverse_gray(code), number);
        }
    }

    #[test]
    fn the_dimension_is_that_of_the_smallest_cube_that_holds_all() {
        assert_eq!([1, 2, 3, 4, 5, 8, 16].map(dimension), [0, 1, 2, 2, 3, 3, 4]);
    }
}
