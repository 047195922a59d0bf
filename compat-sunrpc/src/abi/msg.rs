//! `<rpc/rpc_msg.h>`: a call or a reply as `xdr_callmsg` and `xdr_replymsg` fill it.

use super::{OpaqueAuth, XdrProc};
use std::ffi::{c_int, c_void};

/// `struct rpc_msg`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RpcMsg {
    pub(crate) rm_xid: u32,
    pub(crate) rm_direction: c_int,
    pub(crate) ru: Body,
}

/// The two kinds of body.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Body {
    pub(crate) call: CallBody,
    pub(crate) reply: ReplyBody,
}

/// `struct call_body`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CallBody {
    pub(crate) cb_rpcvers: u32,
    pub(crate) cb_prog: u32,
    pub(crate) cb_vers: u32,
    pub(crate) cb_proc: u32,
    pub(crate) cb_cred: OpaqueAuth,
    pub(crate) cb_verf: OpaqueAuth,
}

/// `struct reply_body`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ReplyBody {
    pub(crate) rp_stat: c_int,
    pub(crate) ru: Reply,
}

/// The two kinds of reply.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Reply {
    /// For [`reply::ACCEPTED`].
    pub(crate) accepted: AcceptedReply,
    /// For [`reply::DENIED`].
    pub(crate) rejected: RejectedReply,
}

/// `struct rejected_reply` of an authentication error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RejectedReply {
    pub(crate) rj_stat: c_int,
    pub(crate) rj_why: c_int,
}

/// `struct accepted_reply`; `results` is valid for [`accept::SUCCESS`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AcceptedReply {
    pub(crate) ar_verf: OpaqueAuth,
    pub(crate) ar_stat: c_int,
    pub(crate) results_where: *mut c_void,
    pub(crate) results_proc: Option<XdrProc>,
}

/// `enum msg_type` and `enum reply_stat`.
pub(crate) mod reply {
    pub(crate) const DIRECTION: i32 = 1;
    pub(crate) const ACCEPTED: i32 = 0;
    pub(crate) const DENIED: i32 = 1;
    /// `enum reject_stat`.
    pub(crate) const AUTH_ERROR: i32 = 1;
    /// `enum auth_stat`.
    pub(crate) const AUTH_REJECTEDCRED: i32 = 2;
}

/// `enum accept_stat`.
pub(crate) mod accept {
    pub(crate) const SUCCESS: i32 = 0;
}

impl RpcMsg {
    /// A successful reply to be encoded, or to be decoded into.
    pub(crate) fn accepted(verf: OpaqueAuth, results: Option<XdrProc>, at: *mut c_void) -> RpcMsg {
        let accepted = AcceptedReply {
            ar_verf: verf,
            ar_stat: accept::SUCCESS,
            results_where: at,
            results_proc: results,
        };
        let reply = ReplyBody { rp_stat: reply::ACCEPTED, ru: Reply { accepted } };
        RpcMsg { rm_xid: 0, rm_direction: reply::DIRECTION, ru: Body { reply } }
    }
}

impl RpcMsg {
    /// What a server says to a flavor that it does not know.
    pub(crate) fn rejected() -> RpcMsg {
        let mut message = RpcMsg::accepted(OpaqueAuth::NULL, None, std::ptr::null_mut());
        let rejected =
            RejectedReply { rj_stat: reply::AUTH_ERROR, rj_why: reply::AUTH_REJECTEDCRED };
        let reply = ReplyBody { rp_stat: reply::DENIED, ru: Reply { rejected } };
        message.ru = Body { reply };
        message
    }
}

const _: () = assert!(size_of::<RpcMsg>() == 72);
const _: () = assert!(size_of::<CallBody>() == 64 && size_of::<ReplyBody>() == 56);
