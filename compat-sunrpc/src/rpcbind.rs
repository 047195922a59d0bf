//! Finding and registering programs: the portmapper (version 2, RFC 1833 section 3) and rpcbind
//! (versions 3 and 4, section 2).
//!
//! Both are program 100000 at port 111. Version 2 knows IPv4 ports; the others know *universal
//! addresses* of named networks (`tcp`, `udp6`, `local`): an address and two numbers for the port, as in
//! `127.0.0.1.4.210`.

use crate::client::{CallError, Client};
use std::net::{IpAddr, SocketAddr};
use xdr::rpc::Caller;
use xdr::{Decode, DecodeError, Encode, EncodeError, Sink, Source};

/// The program.
pub const PROGRAM: u32 = 100_000;
/// Where it is.
pub const PORT: u16 = 111;

const SET: u32 = 1;
const UNSET: u32 = 2;
const GET: u32 = 3;
const DUMP: u32 = 4;
const GET_TIME: u32 = 6;
/// Longest string of a mapping.
const MAX_STRING: u32 = 1024;

/// A protocol as the portmapper numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// 6.
    Tcp,
    /// 17.
    Udp,
}

impl Protocol {
    fn number(self) -> u32 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }
}

/// A mapping of the portmapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// As IP numbers them: 6 TCP, 17 UDP.
    pub protocol: u32,
    /// Port; 0 where it is asked for.
    pub port: u32,
}

impl Encode for Mapping {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        [self.program, self.version, self.protocol, self.port]
            .iter()
            .try_for_each(|it| it.encode(sink))
    }
}

impl Decode for Mapping {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Mapping, DecodeError> {
        Ok(Mapping {
            program: u32::decode(source)?,
            version: u32::decode(source)?,
            protocol: u32::decode(source)?,
            port: u32::decode(source)?,
        })
    }
}

/// A mapping of rpcbind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Name of the network: `tcp`, `udp`, `tcp6`, `udp6`, `local`.
    pub netid: String,
    /// Universal address; empty where it is asked for.
    pub address: String,
    /// Who owns it: `superuser`, or a user's number. Only rpcbind's word counts.
    pub owner: String,
}

impl Encode for Binding {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        self.program.encode(sink)?;
        self.version.encode(sink)?;
        for text in [&self.netid, &self.address, &self.owner] {
            xdr::put_string(sink, text, MAX_STRING)?;
        }
        Ok(())
    }
}

impl Decode for Binding {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Binding, DecodeError> {
        Ok(Binding {
            program: u32::decode(source)?,
            version: u32::decode(source)?,
            netid: xdr::get_string(source, MAX_STRING)?,
            address: xdr::get_string(source, MAX_STRING)?,
            owner: xdr::get_string(source, MAX_STRING)?,
        })
    }
}

/// XDR's linked list: each element after a 1, and a 0 at the end.
struct List<T>(Vec<T>);

impl<T: Decode> Decode for List<T> {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<List<T>, DecodeError> {
        let mut list = Vec::new();
        while bool::decode(source)? {
            source.charge(size_of::<T>())?;
            list.push(T::decode(source)?);
        }
        Ok(List(list))
    }
}

/// A string as a call's only argument or result.
struct Text(String);

impl Decode for Text {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Text, DecodeError> {
        xdr::get_string(source, MAX_STRING).map(Text)
    }
}

/// Version 2.
#[derive(Debug)]
pub struct Portmapper<'c>(pub &'c Client);

impl Portmapper<'_> {
    fn call<A: Encode, R: Decode>(&self, procedure: u32, arguments: &A) -> Result<R, CallError> {
        self.0.call(PROGRAM, 2, procedure, arguments)
    }

    /// Registers a port; false when another is registered.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn set(
        &self,
        program: u32,
        version: u32,
        protocol: Protocol,
        port: u16,
    ) -> Result<bool, CallError> {
        let mapping = Mapping { program, version, protocol: protocol.number(), port: port.into() };
        self.call(SET, &mapping)
    }

    /// Forgets a version of a program, for every protocol; false when that is refused. Of one that it
    /// does not know rpcbind says true.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn unset(&self, program: u32, version: u32) -> Result<bool, CallError> {
        self.call(UNSET, &Mapping { program, version, protocol: 0, port: 0 })
    }

    /// The port of a program; `None` when it is not registered.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn port(
        &self,
        program: u32,
        version: u32,
        protocol: Protocol,
    ) -> Result<Option<u16>, CallError> {
        let mapping = Mapping { program, version, protocol: protocol.number(), port: 0 };
        let port: u32 = self.call(GET, &mapping)?;
        Ok(u16::try_from(port).ok().filter(|&port| port != 0))
    }

    /// All mappings.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn dump(&self) -> Result<Vec<Mapping>, CallError> {
        self.call(DUMP, &()).map(|List(all)| all)
    }
}

/// Version 3 or 4.
#[derive(Debug)]
pub struct Rpcbind<'c> {
    /// At rpcbind.
    pub client: &'c Client,
    /// 3 or 4.
    pub version: u32,
}

impl Rpcbind<'_> {
    fn call<A: Encode, R: Decode>(&self, procedure: u32, arguments: &A) -> Result<R, CallError> {
        self.client.call(PROGRAM, self.version, procedure, arguments)
    }

    /// Registers an address; false when that is refused.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn set(&self, binding: &Binding) -> Result<bool, CallError> {
        self.call(SET, binding)
    }

    /// Forgets a version of a program on a network, on all when `netid` is empty.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn unset(&self, program: u32, version: u32, netid: &str) -> Result<bool, CallError> {
        self.call(UNSET, &Binding { program, version, netid: netid.into(), ..Binding::default() })
    }

    /// The universal address of a program on a network; `None` when it is not registered.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn address(
        &self,
        program: u32,
        version: u32,
        netid: &str,
    ) -> Result<Option<String>, CallError> {
        let asked = Binding { program, version, netid: netid.into(), ..Binding::default() };
        let Text(address) = self.call(GET, &asked)?;
        Ok(Some(address).filter(|it| !it.is_empty()))
    }

    /// All mappings.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn dump(&self) -> Result<Vec<Binding>, CallError> {
        self.call(DUMP, &()).map(|List(all)| all)
    }

    /// The time at the server, seconds since 1970.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn time(&self) -> Result<u32, CallError> {
        self.call(GET_TIME, &())
    }
}

/// A socket's address as a universal address (RFC 5665).
#[must_use]
pub fn universal(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// A universal address of an IP network as a socket's.
#[must_use]
pub fn from_universal(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let ip: IpAddr = ip.parse().ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_are_those_of_rfc_5665() {
        for (address, text) in [("127.0.0.1:1234", "127.0.0.1.4.210"), ("[::1]:111", "::1.0.111")] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(universal(address), text);
            assert_eq!(from_universal(text), Some(address));
        }
        for nonsense in ["", "1.2", "127.0.0.1.4.256", "/run/rpcbind.sock", "host.0.1"] {
            assert_eq!(from_universal(nonsense), None, "{nonsense}");
        }
    }
}
