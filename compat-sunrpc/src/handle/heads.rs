//! The heads of nearly all calls and replies, which libtirpc puts together and takes apart word by word and through
//! pointers: the same bytes at once. A head of any other form is libtirpc's own affair.

use crate::abi::{Auth, AuthOps, CallBody, OpaqueAuth, RpcMsg, accept, reply};
use crate::channel::Source;
use crate::real;
use std::sync::atomic::{AtomicPtr, Ordering};

/// RPC version 2 (RFC 5531 section 9).
const RPC_VERSION: u32 = 2;
/// The flavor of credentials and verifiers that say nothing, and then their length.
const NOTHING: [u32; 2] = [0, 0];

/// The head of a call up to its credential.
pub(crate) fn call(xid: u32, program: u32, version: u32, procedure: u32) -> [u32; 6] {
    [xid, 0, RPC_VERSION, program, version, procedure]
}

/// All of the head of a call with AUTH_NONE.
pub(crate) fn call_of_nobody(head: [u32; 6]) -> [u32; 10] {
    let [a, b, c, d, e, f] = head;
    let [flavor, len] = NOTHING;
    [a, b, c, d, e, f, flavor, len, flavor, len]
}

/// Whether credentials are libtirpc's own AUTH_NONE, which encode nothing but [`NOTHING`] twice, whatever is in
/// them, take every verifier and wrap nothing.
///
/// # Safety
/// `auth` must be a client's credentials, alive.
pub(crate) unsafe fn is_nobody(auth: *mut Auth) -> bool {
    /// Its operations; null before they were looked for, dangling where there are none.
    static OPS: AtomicPtr<AuthOps> = AtomicPtr::new(std::ptr::null_mut());
    let mut known = OPS.load(Ordering::Relaxed);
    if known.is_null() {
        // SAFETY: takes nothing; what it gives is one for all, and never freed.
        let theirs = real::authnone_create().map(|create| unsafe { create() });
        // SAFETY: null, or complete credentials.
        let theirs = theirs.and_then(|auth| unsafe { auth.as_ref() });
        known = theirs.map_or(std::ptr::dangling_mut(), |auth| auth.ah_ops.cast_mut());
        OPS.store(known, Ordering::Relaxed);
    }
    // SAFETY: the caller's word.
    std::ptr::eq(unsafe { (*auth).ah_ops }, known)
}

/// Takes the head of a call without credentials. False, and nothing has been taken: it is none.
pub(crate) fn take_call_of_nobody(source: &mut Source<'_>, message: &mut RpcMsg) -> bool {
    let Some([xid, 0, RPC_VERSION, program, version, procedure, 0, 0, 0, 0]) = take(source) else {
        source.set_position(0);
        return false;
    };
    message.rm_xid = xid;
    message.rm_direction = 0;
    // SAFETY: `xdr_callmsg` decodes into the same; its callers give memory for credentials.
    let body = unsafe { &mut message.ru.call };
    let nothing = |auth: OpaqueAuth| OpaqueAuth { oa_flavor: 0, oa_length: 0, ..auth };
    *body = CallBody {
        cb_rpcvers: RPC_VERSION,
        cb_prog: program,
        cb_vers: version,
        cb_proc: procedure,
        cb_cred: nothing(body.cb_cred),
        cb_verf: nothing(body.cb_verf),
    };
    true
}

/// The head of an accepted and successful reply without a verifier; `None` of any other.
pub(crate) fn plain_reply(message: &RpcMsg) -> Option<[u32; 6]> {
    if message.rm_direction != reply::DIRECTION {
        return None;
    }
    // SAFETY: a reply: both kinds begin with their status.
    let body = unsafe { &message.ru.reply };
    if body.rp_stat != reply::ACCEPTED {
        return None;
    }
    // SAFETY: an accepted reply.
    let accepted = unsafe { &body.ru.accepted };
    let OpaqueAuth { oa_flavor, oa_length, .. } = accepted.ar_verf;
    (accepted.ar_stat == accept::SUCCESS && oa_flavor == 0 && oa_length == 0).then_some([
        message.rm_xid,
        1,
        0,
        0,
        0,
        0,
    ])
}

/// Takes the head of such a reply. False, and nothing has been taken: it is none.
pub(crate) fn take_plain_reply(source: &mut Source<'_>) -> bool {
    let is = matches!(take(source), Some([_, 1, 0, 0, 0, 0]));
    if !is {
        source.set_position(0);
    }
    is
}

/// The next words, each loaded once; `None` when there are not so many here.
#[inline]
fn take<const N: usize>(source: &mut Source<'_>) -> Option<[u32; N]> {
    if source.here() < 4 * N {
        return None;
    }
    let mut words = [[0u8; 4]; N];
    // SAFETY: our own bytes.
    let taken = unsafe { source.fill(words.as_flattened_mut().as_mut_ptr(), 4 * N) };
    taken.then(|| words.map(u32::from_be_bytes))
}
