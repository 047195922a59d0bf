//! Entry points of table 1.7: starting applications, and asking about them.

use super::app::{
    Become, init, parameter, path_of, rectangle, shape_of, size_of_nodes, start, wait_all,
};
use super::spawn::Program;
use super::start::Arguments;
use super::strings::{fortran_string, string};
use super::{Failure, Ints};
use crate::job::switches::Shape;
use std::ffi::{c_char, c_int, c_long, c_ulong};

/// Takes the switches out of the program's arguments, if it gives them, and begins.
///
/// # Safety
/// `argc` and `argv` must be as `main` has them, or null.
unsafe fn init_with(
    wanted: Option<Shape>,
    argc: *mut c_int,
    argv: *mut *mut c_char,
) -> Result<i32, Failure> {
    // SAFETY: passed on.
    let mut arguments = unsafe { Arguments::new(argc, argv) };
    let given = (!argc.is_null()).then_some(&mut arguments);
    init(wanted, given)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve(
    _partition: *mut c_char,
    size: c_long,
    _account: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
) -> c_long {
    // SAFETY: passed on.
    super::under(|| unsafe { init_with(size_of_nodes(size as i32)?, argc, argv) })
}

/// Fortran has no arguments to take switches from: size alone counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_(
    _partition: *mut c_char,
    size: *const i32,
    _account: *mut c_char,
) -> i32 {
    // SAFETY: Fortran passes the address of an INTEGER.
    let size = unsafe { super::deref(size) };
    super::under(|| init(size_of_nodes(size)?, None)) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_rect(
    _partition: *mut c_char,
    _anchor: c_long,
    rows: c_long,
    columns: c_long,
    _account: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
) -> c_long {
    // SAFETY: passed on.
    super::under(|| unsafe { init_with(shape_of(rows as i32, columns as i32)?, argc, argv) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_rect_(
    _partition: *mut c_char,
    _anchor: *const i32,
    rows: *const i32,
    columns: *const i32,
    _account: *mut c_char,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let rows = unsafe { super::deref(rows) };
    // SAFETY: as above.
    let columns = unsafe { super::deref(columns) };
    super::under(|| init(shape_of(rows, columns)?, None)) as i32
}

/// The shape that a list of attributes asks for.
fn attributes(words: &[c_long]) -> Result<Option<Shape>, Failure> {
    let (mut size, mut rectangle) = (None::<Shape>, None::<Shape>);
    for pair in words.chunks_exact(2) {
        match pair[0] as i32 {
            -1 => {
                return match (size, rectangle) {
                    (Some(size), Some(rectangle)) if size.nodes() != rectangle.nodes() => {
                        let Shape { rows, columns } = rectangle;
                        let nodes = size.nodes();
                        Err(parameter(format!("{nodes} nodes in {rows} rows of {columns}")))
                    }
                    _ => Ok(rectangle.or(size)),
                };
            }
            1 => size = size_of_nodes(pair[1] as i32)?, // NX_ATTR_SZ
            2 => {
                // NX_ATTR_RECT: two integers, rows and columns.
                let [rows, columns] = two_integers(pair[1] as usize)?;
                rectangle = shape_of(rows, columns)?;
            }
            3..=22 => {}
            other => {
                let why = format!("attribute {other} is not known; the list ends with NX_ATTR_END");
                return Err(parameter(why));
            }
        }
    }
    Err(parameter("no NX_ATTR_END after twelve attributes"))
}

/// Two integers of the program's. Read by the kernel: where the end of a list was left out, what follows may be anything.
fn two_integers(at: usize) -> Result<[i32; 2], Failure> {
    use std::os::fd::AsRawFd;
    const LEN: usize = 8;
    let pipe = || -> std::io::Result<[u8; LEN]> {
        let (mut reader, writer) = std::io::pipe()?;
        // SAFETY: what cannot be read is an error, EFAULT.
        let wrote = unsafe { libc::write(writer.as_raw_fd(), at as *const _, LEN) };
        if wrote != LEN as isize {
            return Err(std::io::Error::last_os_error());
        }
        let mut bytes = [0; LEN];
        std::io::Read::read_exact(&mut reader, &mut bytes)?;
        Ok(bytes)
    };
    let [a, b, c, d, e, f, g, h] = pipe().map_err(|error| {
        Failure::System(super::errno::EQPBUF, format!("rows and columns: {error}"))
    })?;
    Ok([i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])])
}

/// As [`nx_initve`], with pairs of attribute and value after `argv`, up to `NX_ATTR_END`.
///
/// Variadic in C. Declared with twelve pairs' worth of words, the register and stack passing is
/// the same on x86-64 and AArch64; words after the end are never looked at.
#[allow(clippy::too_many_arguments)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_attr(
    _partition: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
    w0: c_long,
    w1: c_long,
    w2: c_long,
    w3: c_long,
    w4: c_long,
    w5: c_long,
    w6: c_long,
    w7: c_long,
    w8: c_long,
    w9: c_long,
    w10: c_long,
    w11: c_long,
    w12: c_long,
    w13: c_long,
    w14: c_long,
    w15: c_long,
    w16: c_long,
    w17: c_long,
    w18: c_long,
    w19: c_long,
    w20: c_long,
    w21: c_long,
    w22: c_long,
    w23: c_long,
) -> c_long {
    let words = [
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19,
        w20, w21, w22, w23,
    ];
    super::under(|| {
        let wanted = attributes(&words)?;
        // SAFETY: as main has them, or null.
        let mut arguments = unsafe { Arguments::new(argc, argv) };
        let given = (!argc.is_null()).then_some(&mut arguments);
        init(wanted, given)
    })
}

macro_rules! starts {
    ($($nfork:ident $load:ident $loadve:ident $int:ty, $kind:ident;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $nfork(nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int) -> c_long {
            let (nodes, pids) = (Ints::$kind(nodes), Ints::$kind(pids));
            super::under(|| start(nodes, nnodes as i32, ptype as i32, pids, &Become::Copy))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $load(nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int, path: *mut c_char) -> c_long {
            let null = std::ptr::null_mut();
            // SAFETY: passed on.
            unsafe { $loadve(nodes, nnodes, ptype, pids, path, null, null) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $loadve(
            nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int, path: *mut c_char,
            argv: *mut *mut c_char, envp: *mut *mut c_char,
        ) -> c_long {
            let (nodes, pids) = (Ints::$kind(nodes), Ints::$kind(pids));
            super::under(|| {
                // SAFETY: a string or null.
                let path = path_of(unsafe { string(path) })?;
                let program = Become::Program(Program { path, argv, envp });
                start(nodes, nnodes as i32, ptype as i32, pids, &program)
            })
        }
    )* };
}

starts! {
    nx_nfork nx_load nx_loadve c_long, Long;
    nx32_nx_nfork nx32_nx_load nx32_nx_loadve i32, Int;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_nfork_(
    nodes: *mut i32,
    nnodes: *const i32,
    ptype: *const i32,
    pids: *mut i32,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let nnodes = unsafe { super::deref(nnodes) };
    // SAFETY: as above.
    let ptype = unsafe { super::deref(ptype) };
    super::under(|| start(Ints::Int(nodes), nnodes, ptype, Ints::Int(pids), &Become::Copy)) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_load_(
    nodes: *mut i32,
    nnodes: *const i32,
    ptype: *const i32,
    pids: *mut i32,
    path: *const c_char,
    len: c_long,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let nnodes = unsafe { super::deref(nnodes) };
    // SAFETY: as above.
    let ptype = unsafe { super::deref(ptype) };
    // SAFETY: Fortran passes the string's own length.
    let path = unsafe { fortran_string(path, len) };
    super::under(|| {
        let null = std::ptr::null_mut();
        let program = Program { path: path_of(Some(path))?, argv: null, envp: null };
        start(Ints::Int(nodes), nnodes, ptype, Ints::Int(pids), &Become::Program(program))
    }) as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_waitall() -> c_long {
    super::under(wait_all)
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_waitall_() -> i32 {
    super::under(wait_all) as i32
}

/// Priorities are the kernel's business: accepted, without effect.
fn priority(group: i32, priority: i32) -> Result<i32, Failure> {
    if group < 0 || priority < 0 {
        let why = format!("process group {group}, priority {priority}; give 0 or more");
        return Err(parameter(why));
    }
    Ok(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_pri(group: c_long, level: c_long) -> c_long {
    super::under(|| priority(group as i32, level as i32))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_pri_(group: *const i32, level: *const i32) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let group = unsafe { super::deref(group) };
    // SAFETY: as above.
    let level = unsafe { super::deref(level) };
    super::under(|| priority(group, level)) as i32
}

/// Whether there is such a process; 0 is the caller.
fn is_process(pid: libc::pid_t) -> Result<(), Failure> {
    // SAFETY: a signal of 0 only asks.
    if pid == 0 || (pid > 0 && unsafe { libc::kill(pid, 0) } == 0) {
        return Ok(());
    }
    let why = format!("process {pid} is not there; 0 is the caller");
    Err(Failure::System(super::errno::EQNOPROC, why))
}

/// The nodes of the application in an array that the caller frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_nodes(
    pid: libc::pid_t,
    list: *mut *mut c_int,
    count: *mut c_ulong,
) -> c_long {
    super::under(|| {
        let size = super::process::seat()?.size as usize;
        is_process(pid)?;
        if list.is_null() || count.is_null() {
            return Err(super::null("the list of nodes and their number"));
        }
        // SAFETY: any size may be asked for.
        let array = unsafe { libc::malloc(size * size_of::<c_int>()) }.cast::<c_int>();
        if array.is_null() {
            return Err(Failure::last("malloc"));
        }
        for node in 0..size {
            // SAFETY: within the array.
            let place = unsafe { array.add(node) };
            // SAFETY: as above.
            unsafe { place.write(node as c_int) };
        }
        // SAFETY: the caller's variable.
        unsafe { list.write(array) };
        // SAFETY: as above.
        unsafe { count.write(size as c_ulong) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_rect(rows: *mut c_long, columns: *mut c_long) -> c_long {
    super::under(|| rectangle(Ints::Long(rows), Ints::Long(columns)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx32_nx_app_rect(rows: *mut i32, columns: *mut i32) -> c_long {
    super::under(|| rectangle(Ints::Int(rows), Ints::Int(columns)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_rect_(rows: *mut i32, columns: *mut i32) -> i32 {
    super::under(|| rectangle(Ints::Int(rows), Ints::Int(columns))) as i32
}
