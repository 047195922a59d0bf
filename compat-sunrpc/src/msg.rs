//! Messages of RFC 5531, section 9: what stands before the arguments of a call and before the results
//! of a reply, and the credentials of section 8 and appendix A.
//!
//! ```text
//!   call    xid, 0, 2, program, version, procedure, credential, verifier | arguments
//!   reply   xid, 1, 0 (accepted), verifier, 0 (success) | results
//!           xid, 1, 0, verifier, status [, lowest, highest version]
//!           xid, 1, 1 (denied), 0, lowest, highest RPC version;  or 1, 1, auth status
//! ```
//!
//! Every word is big-endian; a credential or verifier is a flavor and up to 400 bytes.

use std::ffi::OsString;
use xdr::{Decode, DecodeError, Encode, EncodeError, Reader, Sink, Source, Writer};

/// Most bytes in the body of a credential or verifier.
const MAX_AUTH: u32 = 400;
/// Longest name of a machine in AUTH_SYS.
const MAX_MACHINE: u32 = 255;
/// Most groups in AUTH_SYS.
const MAX_GROUPS: u32 = 16;
/// The version of RPC.
const RPC_VERSION: u32 = 2;

/// Numbers of the flavors that are known here.
pub mod flavor {
    /// Nobody says who they are.
    pub const NONE: u32 = 0;
    /// User, group and groups, believed.
    pub const SYS: u32 = 1;
}

/// A credential or verifier as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// See [`flavor`].
    pub flavor: u32,
    /// At most 400 bytes.
    pub body: Vec<u8>,
}

impl Encode for OpaqueAuth {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        self.flavor.encode(sink)?;
        xdr::put_opaque(sink, &self.body, MAX_AUTH)
    }
}

impl Decode for OpaqueAuth {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<OpaqueAuth, DecodeError> {
        Ok(OpaqueAuth { flavor: source.get_u32()?, body: xdr::get_opaque(source, MAX_AUTH)? })
    }
}

/// AUTH_SYS: who a process says it is. The server can only believe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthSys {
    /// Any number.
    pub stamp: u32,
    /// Name of the machine, at most 255 bytes; no particular character set.
    pub machine: Vec<u8>,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, at most 16.
    pub gids: Vec<u32>,
}

impl AuthSys {
    /// What this process is, with its first 16 groups.
    #[must_use]
    pub fn of_this_process() -> AuthSys {
        let machine: OsString =
            rustix::system::uname().nodename().to_str().map(OsString::from).unwrap_or_default();
        let mut machine = machine.into_encoded_bytes();
        machine.truncate(MAX_MACHINE as usize);
        AuthSys {
            stamp: 0,
            machine,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gids: groups(),
        }
    }
}

/// The first groups of this process, from `/proc`.
fn groups() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    let groups = line.split_whitespace().filter_map(|word| word.parse().ok());
    groups.take(MAX_GROUPS as usize).collect()
}

impl Encode for AuthSys {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        self.stamp.encode(sink)?;
        xdr::put_opaque(sink, &self.machine, MAX_MACHINE)?;
        self.uid.encode(sink)?;
        self.gid.encode(sink)?;
        xdr::put_vec(sink, &self.gids, MAX_GROUPS, |sink, gid| gid.encode(sink))
    }
}

impl Decode for AuthSys {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<AuthSys, DecodeError> {
        Ok(AuthSys {
            stamp: u32::decode(source)?,
            machine: xdr::get_opaque(source, MAX_MACHINE)?,
            uid: u32::decode(source)?,
            gid: u32::decode(source)?,
            gids: xdr::get_vec(source, MAX_GROUPS, 4, |source| u32::decode(source))?,
        })
    }
}

/// Who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// AUTH_NONE.
    #[default]
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
}

impl Credential {
    /// As it travels.
    ///
    /// # Errors
    /// A name or a list of groups that is too long.
    pub fn to_opaque(&self) -> Result<OpaqueAuth, EncodeError> {
        match self {
            Credential::None => Ok(OpaqueAuth::default()),
            Credential::Sys(sys) => {
                let mut writer = Writer::<xdr::Network>::new();
                sys.encode(&mut writer)?;
                Ok(OpaqueAuth { flavor: flavor::SYS, body: writer.into_bytes() })
            }
        }
    }

    /// What a server makes of it.
    ///
    /// # Errors
    /// [`AuthStat::BADCRED`], or [`AuthStat::REJECTEDCRED`] for a flavor that is not known here.
    pub fn from_opaque(auth: &OpaqueAuth) -> Result<Credential, AuthStat> {
        match auth.flavor {
            flavor::NONE => Ok(Credential::None),
            flavor::SYS => AuthSys::decode(&mut Reader::<xdr::Network>::new(&auth.body))
                .map(Credential::Sys)
                .map_err(|_| AuthStat::BADCRED),
            _ => Err(AuthStat::REJECTEDCRED),
        }
    }
}

/// Why credentials were refused (`auth_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStat(pub u32);

impl AuthStat {
    /// The credential is malformed.
    pub const BADCRED: AuthStat = AuthStat(1);
    /// The client must begin a new session, or the flavor is not known.
    pub const REJECTEDCRED: AuthStat = AuthStat(2);
    /// The flavor is too weak for this procedure.
    pub const TOOWEAK: AuthStat = AuthStat(5);
}

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Number of the call; the reply has it too.
    pub xid: u32,
    /// Number of the program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Number of the procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: OpaqueAuth,
    /// Proof of it.
    pub verifier: OpaqueAuth,
}

/// Why a message is no call that could be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoCall {
    /// No call, or not a whole head: nothing can be answered.
    Garbage(DecodeError),
    /// RPC of another version, to be answered as RFC 5531 says.
    OtherVersion { xid: u32, version: u32 },
}

impl Encode for CallHead {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        for word in [self.xid, 0, RPC_VERSION, self.program, self.version, self.procedure] {
            sink.put_u32(word)?;
        }
        self.credential.encode(sink)?;
        self.verifier.encode(sink)
    }
}

impl Decode for CallHead {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<CallHead, DecodeError> {
        CallHead::read(source).map_err(|error| match error {
            NoCall::Garbage(error) => error,
            NoCall::OtherVersion { version, .. } => {
                DecodeError::NotInEnum { value: version.cast_signed(), name: "rpcvers" }
            }
        })
    }
}

impl CallHead {
    /// Reads the head; what is left in the source are the arguments.
    pub(crate) fn read<S: Source + ?Sized>(source: &mut S) -> Result<CallHead, NoCall> {
        let mut word = || source.get_u32().map_err(NoCall::Garbage);
        let xid = word()?;
        match word()? {
            0 => {}
            other => {
                let value = other.cast_signed();
                return Err(NoCall::Garbage(DecodeError::NotInEnum { value, name: "msg_type" }));
            }
        }
        match word()? {
            RPC_VERSION => {}
            version => return Err(NoCall::OtherVersion { xid, version }),
        }
        let (program, version, procedure) = (word()?, word()?, word()?);
        let mut auth = || OpaqueAuth::decode(source).map_err(NoCall::Garbage);
        let (credential, verifier) = (auth()?, auth()?);
        Ok(CallHead { xid, program, version, procedure, credential, verifier })
    }
}

/// What a server says of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The results follow.
    Success,
    /// PROG_UNAVAIL: no such program here.
    NoProgram,
    /// PROG_MISMATCH: the program has other versions.
    OtherVersion {
        /// Lowest.
        low: u32,
        /// Highest.
        high: u32,
    },
    /// PROC_UNAVAIL: no such procedure.
    NoProcedure,
    /// GARBAGE_ARGS: the arguments could not be decoded.
    GarbageArguments,
    /// SYSTEM_ERR: the server could not serve the call.
    SystemError,
    /// RPC_MISMATCH: the server speaks other versions of RPC.
    OtherRpc {
        /// Lowest.
        low: u32,
        /// Highest.
        high: u32,
    },
    /// AUTH_ERROR: the credentials are refused.
    Refused(AuthStat),
}

/// The head of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Of the call.
    pub xid: u32,
    /// The server's; nothing in a denied reply.
    pub verifier: OpaqueAuth,
    /// What became of the call.
    pub status: Status,
}

impl ReplyHead {
    /// Without a verifier.
    #[must_use]
    pub fn new(xid: u32, status: Status) -> ReplyHead {
        ReplyHead { xid, verifier: OpaqueAuth::default(), status }
    }
}

impl Encode for ReplyHead {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        let words = |sink: &mut S, words: &[u32]| words.iter().try_for_each(|&w| sink.put_u32(w));
        words(sink, &[self.xid, 1])?;
        match self.status {
            Status::OtherRpc { low, high } => return words(sink, &[1, 0, low, high]),
            Status::Refused(AuthStat(why)) => return words(sink, &[1, 1, why]),
            _ => {}
        }
        sink.put_u32(0)?;
        self.verifier.encode(sink)?;
        match self.status {
            Status::NoProgram => words(sink, &[1]),
            Status::OtherVersion { low, high } => words(sink, &[2, low, high]),
            Status::NoProcedure => words(sink, &[3]),
            Status::GarbageArguments => words(sink, &[4]),
            Status::SystemError => words(sink, &[5]),
            _ => words(sink, &[0]),
        }
    }
}

impl Decode for ReplyHead {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<ReplyHead, DecodeError> {
        let unknown = |value: u32, enumeration| DecodeError::NotInEnum {
            value: value.cast_signed(),
            name: enumeration,
        };
        let xid = source.get_u32()?;
        match source.get_u32()? {
            1 => {}
            other => return Err(unknown(other, "msg_type")),
        }
        if match source.get_u32()? {
            0 => false,
            1 => true,
            other => return Err(unknown(other, "reply_stat")),
        } {
            let status = match source.get_u32()? {
                0 => Status::OtherRpc { low: source.get_u32()?, high: source.get_u32()? },
                1 => Status::Refused(AuthStat(source.get_u32()?)),
                other => return Err(unknown(other, "reject_stat")),
            };
            return Ok(ReplyHead::new(xid, status));
        }
        let verifier = OpaqueAuth::decode(source)?;
        let status = match source.get_u32()? {
            0 => Status::Success,
            1 => Status::NoProgram,
            2 => Status::OtherVersion { low: source.get_u32()?, high: source.get_u32()? },
            3 => Status::NoProcedure,
            4 => Status::GarbageArguments,
            5 => Status::SystemError,
            other => return Err(unknown(other, "accept_stat")),
        };
        Ok(ReplyHead { xid, verifier, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xdr::Network;

    fn bytes(value: &impl Encode) -> Vec<u8> {
        let mut writer = Writer::<Network>::new();
        value.encode(&mut writer).unwrap();
        writer.into_bytes()
    }

    fn status() -> impl Strategy<Value = Status> {
        prop_oneof![
            Just(Status::Success),
            Just(Status::NoProgram),
            Just(Status::NoProcedure),
            Just(Status::GarbageArguments),
            Just(Status::SystemError),
            any::<(u32, u32)>().prop_map(|(low, high)| Status::OtherVersion { low, high }),
            any::<(u32, u32)>().prop_map(|(low, high)| Status::OtherRpc { low, high }),
            any::<u32>().prop_map(|why| Status::Refused(AuthStat(why))),
        ]
    }

    fn auth() -> impl Strategy<Value = OpaqueAuth> {
        (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..=400))
            .prop_map(|(flavor, body)| OpaqueAuth { flavor, body })
    }

    proptest! {
        #[test]
        fn heads_come_back_as_they_went(
            words in any::<[u32; 4]>(), credential in auth(), verifier in auth(), status in status(),
        ) {
            let [xid, program, version, procedure] = words;
            let call = CallHead { xid, program, version, procedure, credential, verifier };
            let encoded = bytes(&call);
            let mut reader = Reader::<Network>::new(&encoded);
            prop_assert_eq!(CallHead::read(&mut reader).unwrap(), call.clone());
            prop_assert_eq!(reader.remaining(), 0);
            let denied = matches!(status, Status::OtherRpc { .. } | Status::Refused(_));
            let verifier = if denied { OpaqueAuth::default() } else { call.verifier };
            let reply = ReplyHead { xid, verifier, status };
            let encoded = bytes(&reply);
            prop_assert_eq!(ReplyHead::decode(&mut Reader::<Network>::new(&encoded)).unwrap(), reply);
        }

        /// Whatever comes, it is understood or refused, and nothing else happens.
        #[test]
        fn any_bytes_are_a_head_or_an_error(noise in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = CallHead::read(&mut Reader::<Network>::new(&noise));
            let _ = ReplyHead::decode(&mut Reader::<Network>::new(&noise));
            let _ = AuthSys::decode(&mut Reader::<Network>::new(&noise));
        }
    }

    /// CVE class of FreeBSD's inline AUTH_UNIX decoding: limits are looked at before bytes.
    #[test]
    fn auth_sys_beyond_its_limits_is_a_bad_credential() {
        let opaque = |sys: &AuthSys| {
            let mut writer = Writer::<Network>::new();
            sys.stamp.encode(&mut writer).unwrap();
            xdr::put_opaque(&mut writer, &sys.machine, u32::MAX).unwrap();
            [sys.uid, sys.gid].iter().for_each(|it| it.encode(&mut writer).unwrap());
            xdr::put_vec(&mut writer, &sys.gids, u32::MAX, |sink, it| it.encode(sink)).unwrap();
            OpaqueAuth { flavor: flavor::SYS, body: writer.into_bytes() }
        };
        let sys = |machine, gids| AuthSys {
            machine: vec![b'm'; machine],
            gids: vec![7; gids],
            ..AuthSys::default()
        };
        for good in [sys(255, 0), sys(8, 16), sys(0, 0)] {
            assert_eq!(Credential::from_opaque(&opaque(&good)), Ok(Credential::Sys(good)));
        }
        for bad in [sys(256, 0), sys(8, 17)] {
            assert_eq!(Credential::from_opaque(&opaque(&bad)), Err(AuthStat::BADCRED));
        }
        let mut short = opaque(&sys(8, 3));
        short.body.truncate(30);
        assert_eq!(Credential::from_opaque(&short), Err(AuthStat::BADCRED));
        let unknown = OpaqueAuth { flavor: 77, body: vec![] };
        assert_eq!(Credential::from_opaque(&unknown), Err(AuthStat::REJECTEDCRED));
    }
}
