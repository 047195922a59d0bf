//! Global operations (table 1.6).

use super::errno::EQMSGLONG;
use super::message::{source, target};
use super::process::engine;
use super::{Code, Failure, Ints, calls, inside, length, null};
use crate::engine::{Element, Reduction};
use crate::error::NxError;
use crate::unconfirmed::NCNT_UNIT;
use std::ffi::{c_long, c_void};

fn reduce<T: Element>(op: Reduction, x: *mut T, n: i32, work: *mut T) -> Result<(), Failure> {
    let engine = engine()?;
    let n = length(n)?;
    if n > 0 && (x.is_null() || work.is_null()) {
        return Err(NxError::NullBuffer { len: n * size_of::<T>() }.into());
    }
    // SAFETY: both arrays have n elements, as NX has it.
    unsafe { engine.reduce(op, x, n, work) }.map_err(|error| in_elements(error, n, size_of::<T>()))
}

/// Programs count elements.
fn in_elements(error: NxError, n: usize, size: usize) -> Failure {
    match error {
        NxError::OtherLength { node, given, expected } if expected == n * size => {
            let why = format!(
                "node {node} gave {} elements, and this node {n}; all nodes must give the same n",
                given / size
            );
            Failure::System(EQMSGLONG, why)
        }
        error => error.into(),
    }
}

fn reduce_ints(op: Reduction, x: Ints, n: i32, work: Ints) -> Result<(), Failure> {
    match (x, work) {
        (Ints::Long(x), Ints::Long(work)) => reduce::<c_long>(op, x, n, work),
        (Ints::Int(x), Ints::Int(work)) => reduce::<i32>(op, x, n, work),
        // One entry point has one width.
        _ => Err(Failure::System(libc::EINVAL, "arrays of two widths".into())),
    }
}

macro_rules! reductions {
    ($($name:ident, $under:ident, $fortran:ident ($type:ty, $op:ident);)*) => { calls! { $(
        fn $name, $under, $fortran: (x: ptr, n: int, work: ptr) -> void {
            reduce::<$type>(Reduction::$op, x.cast(), n, work.cast())
        }
    )* } };
}

mod floats {
    use super::*;
    reductions! {
        gdsum, _gdsum, gdsum_ (f64, Sum);
        gdprod, _gdprod, gdprod_ (f64, Product);
        gdhigh, _gdhigh, gdhigh_ (f64, High);
        gdlow, _gdlow, gdlow_ (f64, Low);
        gssum, _gssum, gssum_ (f32, Sum);
        gsprod, _gsprod, gsprod_ (f32, Product);
        gshigh, _gshigh, gshigh_ (f32, High);
        gslow, _gslow, gslow_ (f32, Low);
    }
}

macro_rules! int_reductions {
    ($($name:ident, $under:ident, $fortran:ident [$name32:ident, $under32:ident] ($op:ident);)*) => { calls! { $(
        fn $name, $under, $fortran [$name32, $under32]: (x: ints, n: int, work: ints) -> void {
            reduce_ints(Reduction::$op, x, n, work)
        }
    )* } };
}

mod integers {
    use super::*;
    int_reductions! {
        gisum, _gisum, gisum_ [nx32_gisum, _nx32_gisum] (Sum);
        giprod, _giprod, giprod_ [nx32_giprod, _nx32_giprod] (Product);
        gihigh, _gihigh, gihigh_ [nx32_gihigh, _nx32_gihigh] (High);
        gilow, _gilow, gilow_ [nx32_gilow, _nx32_gilow] (Low);
        giand, _giand, giand_ [nx32_giand, _nx32_giand] (And);
        gior, _gior, gior_ [nx32_gior, _nx32_gior] (Or);
        gixor, _gixor, gixor_ [nx32_gixor, _nx32_gixor] (Xor);
        gland, _gland, gland_ [nx32_gland, _nx32_gland] (LogicalAnd);
        glor, _glor, glor_ [nx32_glor, _nx32_glor] (LogicalOr);
        glxor, _glxor, glxor_ [nx32_glxor, _nx32_glxor] (LogicalXor);
    }
}

type Combine = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_long;

calls! {
    fn gsync, _gsync, gsync_: () -> void { Ok(engine()?.gsync()?) }

    fn gopf, _gopf, gopf_: (x: ptr, xlen: int, work: ptr, code: code) -> void {
        let engine = engine()?;
        let len = length(xlen)?;
        if len > 0 && (x.is_null() || work.is_null()) {
            return Err(NxError::NullBuffer { len }.into());
        }
        if code.is_none() {
            return Err(NxError::BadHandler.into());
        }
        let (Code::Value(address) | Code::Reference(address)) = code;
        // SAFETY: not null; the program says that it is such a function.
        let function = unsafe { std::mem::transmute::<*mut c_void, Combine>(address) };
        let mut combine = |x: *mut c_void, work: *mut c_void| {
            // SAFETY: as above.
            inside::outside(|| unsafe { function(x, work) });
        };
        // SAFETY: both have xlen bytes, as NX has it.
        Ok(unsafe { engine.gopf(x, len, work, &mut combine) }?)
    }

    fn gcol, _gcol, gcol_ [nx32_gcol, _nx32_gcol]: (x: ptr, xlen: int, y: ptr, ylen: int, ncnt: ints) -> void {
        let engine = engine()?;
        if ncnt.is_null() {
            return Err(null("ncnt, the length of all")); // before any other node is met
        }
        // SAFETY: the buffers are the caller's for the call.
        let total = unsafe { engine.gcol(source(x, xlen)?, target(y, ylen)?) }?;
        // SAFETY: it is one integer.
        unsafe { ncnt.set(0, i32::try_from(total / NCNT_UNIT).unwrap_or(i32::MAX)) };
        Ok(())
    }

    fn gcolx, _gcolx, gcolx_ [nx32_gcolx, _nx32_gcolx]: (x: ptr, xlens: ints, y: ptr) -> void {
        let engine = engine()?;
        if xlens.is_null() {
            return Err(null("xlens, a length for each node"));
        }
        let mut lens = Vec::new();
        for node in 0..engine.nodes() as usize {
            // SAFETY: one length for each node, as NX has it.
            lens.push(length(unsafe { xlens.get(node) })?);
        }
        let own = lens.get(engine.node() as usize).copied().unwrap_or(0);
        let all: usize = lens.iter().sum();
        if (own > 0 && x.is_null()) || (all > 0 && y.is_null()) {
            return Err(NxError::NullBuffer { len: all }.into());
        }
        // SAFETY: x and y have the lengths told.
        Ok(unsafe { engine.gcolx(x.cast(), &lens, y.cast()) }?)
    }

    fn gsendx, _gsendx, gsendx_ [nx32_gsendx, _nx32_gsendx]: (
        type_: int, buf: ptr, count: int, nodes: ints, nnodes: int,
    ) -> void {
        let engine = engine()?;
        let number = length(nnodes)?;
        if number > 0 && nodes.is_null() {
            return Err(null(&format!("the list of {number} nodes")));
        }
        // SAFETY: as many nodes as told.
        let list: Vec<i32> = (0..number).map(|index| unsafe { nodes.get(index) }).collect();
        // SAFETY: the buffer is the caller's for the call.
        Ok(unsafe { engine.gsendx(type_, source(buf, count)?, &list) }?)
    }
}

/// The iPSC/860's Fortran name of `gopf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _gopf_(
    x: *mut c_void,
    xlen: *const i32,
    work: *mut c_void,
    code: *mut c_void,
) {
    // SAFETY: Fortran passes the address of an INTEGER.
    let xlen = unsafe { super::deref(xlen) };
    super::plain("gopf", || body::gopf(x, xlen, work, Code::Reference(code)));
}
