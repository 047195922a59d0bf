//! The offer of a channel, on the RPC connection itself: procedure 0 with a private auth flavor.
//!
//! ```text
//!   credential of the call     flavor FLAVOR, body: magic u32, version u32, layout u32, 0 u32
//!   verifier of the answer     flavor FLAVOR, body: magic u32, version u32 [, port u32]
//! ```
//!
//! A port is in answers over UDP, and in those only: where the server takes the connection that a
//! channel needs, on the loopback address. Words are big-endian. A server without us answers `AUTH_REJECTEDCRED`, and the connection stays
//! usable. The answer is never longer than the question.

use crate::abi::{Auth, AuthOps, Bool, FALSE, OpaqueAuth, TRUE, Xdr, XdrProc};
use crate::channel::segment;
use std::ffi::{c_char, c_long, c_void};

/// The auth flavor of an offer: not assigned by IANA (unconfirmed: the registry grows).
pub(crate) const FLAVOR: i32 = 390_999;
/// "VRPC".
const MAGIC: u32 = u32::from_be_bytes(*b"VRPC");
/// Version of the offer.
const VERSION: u32 = 1;
/// Program that is never asked: rpcbind.
pub(crate) const RPCBIND: u32 = 100_000;

const QUESTION: [u32; 4] = [MAGIC, VERSION, segment::VERSION, 0];
const ANSWER: [u32; 2] = [MAGIC, VERSION];

/// The words of an `opaque_auth` of our flavor; none of another.
///
/// # Safety
/// `auth` must be what libtirpc decoded: `oa_length` readable bytes at `oa_base`.
unsafe fn words(auth: &OpaqueAuth) -> Vec<u32> {
    if auth.oa_flavor != FLAVOR || auth.oa_base.is_null() || !auth.oa_length.is_multiple_of(4) {
        return Vec::new();
    }
    // SAFETY: the caller's word.
    let bytes =
        unsafe { std::slice::from_raw_parts(auth.oa_base.cast::<u8>(), auth.oa_length as usize) };
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

/// Whether a call's credential offers a channel that we understand.
///
/// # Safety
/// As [`words`].
pub(crate) unsafe fn is_offer(credential: &OpaqueAuth) -> bool {
    // SAFETY: passed on.
    unsafe { words(credential) == QUESTION }
}

/// The body of the credential that makes the offer.
pub(crate) fn question() -> Vec<u8> {
    QUESTION.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Whether the body of a verifier of our flavor accepts an offer on this connection.
pub(crate) fn is_answer(body: &[u8]) -> bool {
    body == ANSWER.map(u32::to_be_bytes).as_flattened()
}

/// The body of the verifier that accepts one, with a port for one that came over UDP.
pub(crate) fn answer(port: Option<u16>) -> Vec<u8> {
    ANSWER.into_iter().chain(port.map(u32::from)).flat_map(u32::to_be_bytes).collect()
}

/// Calls `with` with the verifier that accepts an offer, with a port for one that came over UDP.
pub(crate) fn accepting<R>(port: Option<u16>, with: impl FnOnce(OpaqueAuth) -> R) -> R {
    let mut body = answer(port);
    with(OpaqueAuth {
        oa_flavor: FLAVOR,
        oa_base: body.as_mut_ptr().cast::<c_char>(),
        oa_length: body.len() as u32,
    })
}

/// Credentials that make the offer.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Offer {
    auth: Auth,
    /// What the server answered.
    answer: Vec<u32>,
}

impl Offer {
    pub(crate) fn new() -> Offer {
        let auth = Auth {
            ah_cred: OpaqueAuth::NULL,
            ah_verf: OpaqueAuth::NULL,
            ah_key: [0; 2],
            ah_ops: &raw const OPS,
            ah_private: std::ptr::null_mut(),
        };
        Offer { auth, answer: Vec::new() }
    }

    /// For `cl_auth`. The offer must outlive its use.
    pub(crate) fn as_auth(&mut self) -> *mut Auth {
        std::ptr::from_mut(self).cast()
    }

    /// Whether the server accepts, on this connection.
    pub(crate) fn is_accepted(&self) -> bool {
        self.answer == ANSWER
    }

    /// The port that a server accepts at, asked over UDP.
    pub(crate) fn port(&self) -> Option<u16> {
        let (port, answer) = self.answer.split_last()?;
        if answer == ANSWER { u16::try_from(*port).ok() } else { None }
    }
}

static OPS: AuthOps = AuthOps {
    ah_nextverf: next_verifier,
    ah_marshal: marshal,
    ah_validate: validate,
    ah_refresh: refresh,
    ah_destroy: destroy,
    ah_wrap: pass,
    ah_unwrap: pass,
};

unsafe extern "C" fn next_verifier(_: *mut Auth) {}

unsafe extern "C" fn refresh(_: *mut Auth, _: *mut c_void) -> Bool {
    FALSE
}

unsafe extern "C" fn destroy(_: *mut Auth) {}

unsafe extern "C" fn pass(
    _: *mut Auth,
    xdr: *mut Xdr,
    procedure: Option<XdrProc>,
    at: *mut c_void,
) -> Bool {
    // SAFETY: the caller of the operation answers for both.
    unsafe { crate::handle::call(procedure, xdr, at) }
}

/// Credential and an empty verifier.
unsafe extern "C" fn marshal(_: *mut Auth, xdr: *mut Xdr) -> Bool {
    let length = (4 * QUESTION.len()) as u32;
    let head = [FLAVOR as u32, length];
    let words = head.iter().chain(&QUESTION).chain(&[0, 0]);
    for &word in words {
        let word = c_long::from(word);
        // SAFETY: libtirpc's own handle, with operations.
        let ops = unsafe { (*xdr).x_ops };
        // SAFETY: as above.
        let put = unsafe { (*ops).x_putlong };
        // SAFETY: a pointer to a long, as the operation expects.
        if unsafe { put(xdr, &raw const word) } == FALSE {
            return FALSE;
        }
    }
    TRUE
}

unsafe extern "C" fn validate(auth: *mut Auth, verifier: *mut OpaqueAuth) -> Bool {
    // SAFETY: libtirpc passes what it decoded.
    let verifier = unsafe { verifier.read() };
    // SAFETY: as above.
    let answer = unsafe { words(&verifier) };
    let accepted = answer.starts_with(&ANSWER);
    // SAFETY: `auth` is the first field of an `Offer`, whose address `as_auth` gave.
    unsafe { (*auth.cast::<Offer>()).answer = answer };
    Bool::from(accepted)
}
