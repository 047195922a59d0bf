//! Datagrams: one thread, one call at a time.

use super::service::{accepting, is_offer, refuse, say};
use super::{Context, Shared};
use crate::client::Transport;
use crate::counters::{self, Counter};
use crate::msg::CallHead;
use std::net::UdpSocket;
use xdr::{Network, Reader, Writer};

/// Longest datagram: what IPv4 carries.
const LARGEST: usize = 65_507;

/// Serves until the server stops. What cannot be answered is not answered.
pub(super) fn serve(shared: &Shared, socket: &UdpSocket) {
    let mut buffer = vec![0; LARGEST];
    while !shared.is_stopping() {
        // An error is of a datagram sent before (ECONNREFUSED): not of this socket.
        let Ok((len, peer)) = socket.recv_from(&mut buffer) else { continue };
        let mut arguments = Reader::<Network>::new(buffer.get(..len).unwrap_or_default());
        let fresh = || Some(Writer::<Network>::with_limit(LARGEST));
        let reply = match CallHead::read(&mut arguments) {
            Err(what) => refuse(what).and_then(|head| say(&head, fresh)),
            Ok(call) => match shared.tcp.filter(|_| shared.ring && is_offer(&call)) {
                // Who asks over UDP for a ring is told where connections are taken.
                Some(tcp) if super::reachable(tcp).ip().is_loopback() => {
                    say(&accepting(call.xid, Some(tcp.port())), fresh)
                }
                _ => {
                    counters::one(Counter::served_kernel);
                    let context =
                        |credential| Context { peer, credential, transport: Transport::Udp };
                    shared.table.serve(&call, &mut arguments, context, fresh)
                }
            },
        };
        if let Some(reply) = reply {
            let _ = socket.send_to(reply.bytes(), peer);
        }
    }
}
