//! The C structures of libtirpc that are its binary interface (`<rpc/xdr.h>`, `clnt.h`, `svc.h`,
//! `auth.h`, `rpc_msg.h`; x86-64), with the offsets asserted. Names are libtirpc's.

mod auth;
mod clnt;
mod msg;
mod svc;
mod xdr;

pub(crate) use auth::{Auth, AuthOps, OpaqueAuth};
pub(crate) use clnt::{Client, ClntOps, RpcErr, Timeval, control, stat};
pub(crate) use msg::{CallBody, RpcMsg, accept, reply};
pub(crate) use svc::{Netbuf, Svcauth, SvcauthOps, Svcxprt, SvcxprtExt, XpOps, XpOps2, xprt};
pub(crate) use xdr::{Xdr, XdrOps, XdrProc, op};

/// C's `bool_t`.
pub(crate) type Bool = i32;
/// `TRUE`.
pub(crate) const TRUE: Bool = 1;
/// `FALSE`.
pub(crate) const FALSE: Bool = 0;
