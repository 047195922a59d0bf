//! Calls over UDP: one datagram each way, repeated until it is answered.

use super::{Call, CallError, decode};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;
use xdr::{Decode, Encode, Network, Reader, Writer};

/// Longest datagram: what IPv4 carries.
const LARGEST: usize = 65_507;
/// How long the first answer is waited for; each further one twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// A socket that is connected to the server.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Datagrams {
        Datagrams { socket, buffer: vec![0; LARGEST] }
    }

    fn message<A: Encode>(call: &Call<'_, A>) -> Result<Vec<u8>, CallError> {
        let mut writer = Writer::<Network>::with_limit(LARGEST);
        call.encode(&mut writer)?;
        Ok(writer.into_bytes())
    }

    pub(super) fn send<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<(), CallError> {
        self.socket.send(&Self::message(call)?)?;
        Ok(())
    }

    pub(super) fn call<A: Encode, R: Decode>(
        &mut self,
        call: &Call<'_, A>,
    ) -> Result<R, CallError> {
        let message = Self::message(call)?;
        let mut wait = FIRST_WAIT;
        loop {
            self.socket.send(&message)?;
            let again = std::time::Instant::now() + wait;
            while let Some(left) =
                again.checked_duration_since(std::time::Instant::now()).filter(|it| !it.is_zero())
            {
                self.socket.set_read_timeout(Some(left.min(call.left()?)))?;
                match self.socket.recv(&mut self.buffer) {
                    Ok(len) => {
                        let bytes = self.buffer.get(..len).unwrap_or_default();
                        // What is no reply at all is not ours either.
                        match decode(call.head.xid, &mut Reader::<Network>::new(bytes)) {
                            Ok(Some(results)) => return Ok(results),
                            Ok(None) => {}
                            Err(_) if !bytes.starts_with(&call.head.xid.to_be_bytes()) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                        ) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            call.left()?;
            wait *= 2;
        }
    }
}
