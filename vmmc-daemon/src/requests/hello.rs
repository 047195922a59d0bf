//! A client introduces itself.

use super::passed::attach;
use crate::broker::Broker;
use crate::client::{Introduced, Stage};
use crate::counters::Counter;
use crate::failpoint::{Failpoint, hit};
use crate::receive::Fds;
use crate::sayings::of_client;
use vmmc::control::message::{Event, Hello, QuotaKind, Refusal, Role, Welcome};
use vmmc::id::{ClientId, RequestId, Token};

/// Longest program name kept, in bytes.
const PROGRAM_MAX: usize = 63;

impl Broker {
    /// Introduces a client; its number from now on.
    pub(crate) fn hello(&mut self, id: ClientId, hello: Hello, fds: &mut Fds) -> ClientId {
        let welcome = self.try_hello(id, &hello, fds);
        match welcome {
            Ok(welcome) => {
                hit(Failpoint::HelloAccepted);
                let id = welcome.client;
                self.send(id, &Event::Welcome(welcome), Vec::new());
                id
            }
            Err(refusal) => {
                of_client(|untold| {
                    tracing::info!(client = id.0, %refusal, untold, "refused at hello");
                });
                // Surplus descriptors are no fault of their own here.
                fds.discard();
                self.refuse(id, RequestId(0), refusal);
                if let Some(client) = self.clients.get_mut(&id) {
                    client.stage = Stage::Leaving;
                }
                self.flush(id);
                id
            }
        }
    }

    fn try_hello(
        &mut self,
        id: ClientId,
        hello: &Hello,
        fds: &mut Fds,
    ) -> Result<Welcome, Refusal> {
        let gone = || Refusal::Internal { why: "find the client".to_owned() };
        let attached = match hello.role {
            Role::Tool => None,
            Role::Process | Role::Sockets | Role::Rpc => Some(attach(hello.role, fds)?),
        };
        let peer = self.caller(id).ok_or_else(gone)?.peer;
        let session = Token(random_bytes()?);
        if hello.role != Role::Tool {
            self.quotas.take(peer.uid, QuotaKind::Clients, 1)?;
            self.counters.add(Counter::Clients);
        }
        let mut program = hello.program.clone();
        program.truncate((0..=PROGRAM_MAX).rfind(|&at| program.is_char_boundary(at)).unwrap_or(0));
        let introduced = Introduced { role: hello.role, program, session, attached };
        let client = self.clients.get_mut(&id).ok_or_else(gone)?;
        tracing::debug!(
            client = id.0,
            pid = peer.pid,
            uid = peer.uid,
            role = ?hello.role,
            program = introduced.program,
            "hello"
        );
        client.stage = Stage::Welcome(introduced);
        if let Some(key) = client.nascent_timer.take() {
            self.timers.cancel(key);
        }
        let mut number = id;
        if let Some(resume) = hello.resume
            && self.renumber(id, resume.client)
        {
            self.counters.add(Counter::Resumed);
            number = resume.client;
        }
        Ok(Welcome {
            client: number,
            session,
            incarnation: self.incarnation,
            resumed: false,
            wake_cost_ns: self.options.wake_cost.as_nanos() as u64,
            ring_len: self.options.ring_len,
            carries: self.carries(),
            crosses: self.crossings.is_some(),
        })
    }
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0u8; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(len) if len == N => Ok(bytes),
        _ => Err(Refusal::Internal { why: "get random bytes".to_owned() }),
    }
}
