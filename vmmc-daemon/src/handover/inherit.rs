//! The broker that goes on where its predecessor stopped.

use super::state::{
    ButtonState, ClientState, ExportState, LinkState, OutState, PairState, PendingState, Slot,
    StageState, WaitingState,
};
use super::{Inherited, TakeOverError};
use crate::broker::{Broker, BrokerError, Options};
use crate::client::{Attached, Client, Introduced, OutFd, Pending, Stage};
use crate::doorbell::{Button, Doorbell, Kept, Shared};
use crate::links::Link;
use crate::listener::{Listener, OwnedName};
use crate::pairing::{End, Pair, Waiting};
use crate::policy::{Entry, start_time};
use crate::registry::{Export, WaitFor};
use crate::timers::Timer;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::{QuotaKind, Role};
use vmmc::id::{ClientId, PeerInfo};
use vmmc::sys::{Fd, process};

impl Broker {
    /// The broker that goes on where the predecessor stopped, which is told to leave.
    ///
    /// # Errors
    /// When the state does not fit together; the predecessor then goes on.
    pub fn inherit(
        inherited: Inherited,
        options: Options,
        stop: Option<Fd>,
    ) -> Result<Broker, TakeOverError> {
        let (state, fds, taken) = inherited.into_parts();
        let mut fds = Fds { all: fds, buttons: HashMap::new() };
        let name = match state.listener.name {
            None => None,
            Some((path, lock)) => {
                let path = PathBuf::from(std::ffi::OsString::from_vec(path));
                Some(OwnedName::new(path, fds.take(lock)?))
            }
        };
        let socket = fds.take(state.listener.socket)?;
        let listener = Listener { socket, name, incarnation: state.incarnation };
        let system = |BrokerError::System { call, errno }| TakeOverError::System { call, errno };
        let mut broker = Broker::new(listener, options, stop).map_err(system)?;
        broker.last_id = state.last_id;
        broker.counters.restore(&state.counters);
        broker.counters.add(crate::counters::Counter::Takeovers);
        let mut pendings = Vec::new();
        for client in state.clients {
            broker.inherit_client(client, &mut fds, &mut pendings)?;
        }
        for export in state.exports {
            broker.inherit_export(export, &mut fds)?;
        }
        for link in state.links {
            broker.inherit_link(&link, &mut fds)?;
        }
        pendings.sort_unstable_by_key(|(_, pending)| pending.place);
        for (client, pending) in pendings {
            broker.inherit_pending(client, pending, &mut fds)?;
        }
        for waiting in state.waiting {
            broker.inherit_waiting(waiting, &fds)?;
        }
        for pair in state.pairs {
            broker.inherit_pair(pair, &mut fds)?;
        }
        broker.pairing.plain = state.plain.into();
        broker.watch_idleness();
        if let Some(taken) = taken {
            taken.confirm()?;
        }
        // An epoll descriptor knows a button by its number in whoever has put it in. Not those of which the doorbell's owner has yet
        // to be told: they are put in when that is sent.
        let queued = broker.clients.values().flat_map(|client| &client.queue);
        let unheard = queued.flat_map(|message| &message.fds).filter_map(|fd| match fd {
            OutFd::Install(button) => Some(Arc::as_ptr(button.shared())),
            _ => None,
        });
        let unheard = unheard.collect::<HashSet<_>>();
        let kept = broker.kept_buttons().map(Kept::button);
        kept.filter(|button| !unheard.contains(&Arc::as_ptr(button.shared())))
            .for_each(|button| drop(button.install()));
        Ok(broker)
    }

    fn inherit_client(
        &mut self,
        state: ClientState,
        fds: &mut Fds,
        pendings: &mut Vec<(ClientId, PendingState)>,
    ) -> Result<(), TakeOverError> {
        let id = state.peer.client;
        let socket = fds.take(state.socket)?;
        let pidfd = fds.take(state.pidfd)?;
        let started = start_time(state.peer.pid).filter(|_| !process::has_ended(&pidfd));
        let mut client = Client::new((socket, pidfd), state.peer, state.groups, started);
        client.stage = match state.stage {
            StageState::Handshake => Stage::Handshake,
            StageState::Hello => Stage::Hello,
            StageState::Leaving => Stage::Leaving,
            StageState::Welcome { role, program, session, attached } => {
                let attached = match attached {
                    None => None,
                    Some((page, doorbell)) => {
                        let owner = state.peer.uid;
                        let doorbell =
                            doorbell.map(|slot| fds.doorbell(slot, owner)).transpose()?;
                        Some(Attached { page: fds.get(page)?, doorbell })
                    }
                };
                if role != Role::Tool {
                    self.quotas.take_over(state.peer.uid, QuotaKind::Clients, 1);
                }
                Stage::Welcome(Introduced { role, program, session, attached })
            }
        };
        for (packet, out) in state.queue {
            let out = out
                .into_iter()
                .map(|fd| {
                    Ok(match fd {
                        OutState::Same(slot) => OutFd::Same(fds.get(slot)?),
                        OutState::Owned(slot, uid) => OutFd::Owned(fds.shared(slot, uid)?),
                        OutState::ReadOnly(slot) => OutFd::ReadOnly(fds.get(slot)?),
                        OutState::Line(slot, uid) => OutFd::Line(fds.shared(slot, uid)?),
                        OutState::Button(button) => OutFd::Button(fds.button(button)?),
                        OutState::Install(button) => OutFd::Install(fds.button(button)?),
                    })
                })
                .collect::<Result<_, TakeOverError>>()?;
            client.push(packet, out);
        }
        for (other, introduced, buttons) in state.acquaintances {
            let buttons = buttons.into_iter().map(|button| fds.kept(button));
            let buttons = buttons.collect::<Result<Vec<_>, TakeOverError>>()?;
            client.acquaintances.inherit(
                other,
                introduced,
                buttons.into_iter().flatten().collect(),
            );
            self.watch_parting(id, other);
        }
        pendings.extend(state.pending.into_iter().map(|pending| (id, pending)));
        self.quotas.take_over_socket(state.peer.uid);
        self.watch_client(id, &mut client)
            .map_err(|errno| TakeOverError::System { call: "epoll_ctl", errno })?;
        self.await_hello(id, &mut client);
        self.clients.insert(id, client);
        // Not sent from here: the predecessor may still go on. The loop sees room to send.
        self.watch_output(id);
        Ok(())
    }

    fn inherit_export(&mut self, state: ExportState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let owner = self
            .clients
            .get_mut(&state.owner)
            .ok_or_else(|| TakeOverError::BadState("export without its process".to_owned()))?;
        owner.exports.insert(state.export);
        let PeerInfo { uid, pid, .. } = owner.peer;
        self.quotas.take_over(uid, QuotaKind::Exports, 1);
        self.quotas.take_over(uid, QuotaKind::Bytes, state.len);
        let entries = state.entries.into_iter();
        let export = Export {
            owner: state.owner,
            name: state.name,
            len: state.len,
            memory: fds.get(state.memory)?,
            entries: entries.map(|(grant, started)| Entry { grant, started }).collect(),
            token: state.token,
            restored: state.restored,
            touched: state.touched,
            withdrawn: state.withdrawn,
            links: HashSet::new(),
        };
        self.registry.insert(state.export, pid, export);
        Ok(())
    }

    fn inherit_link(&mut self, state: &LinkState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let lost = |what: &str| TakeOverError::BadState(format!("link without its {what}"));
        let segment = state.segment.map(|slot| fds.get(slot)).transpose()?;
        let export = self.registry.exports.get_mut(&state.export).ok_or_else(|| lost("export"))?;
        let importer = self.clients.get_mut(&state.importer).ok_or_else(|| lost("importer"))?;
        export.links.insert(state.link);
        importer.imports.insert(state.link);
        importer.acquaintances.link(state.exporter);
        let importer_uid = importer.peer.uid;
        self.quotas.take_over(importer_uid, QuotaKind::Imports, 1);
        let exporter = self.clients.get_mut(&state.exporter).ok_or_else(|| lost("exporter"))?;
        exporter.acquaintances.link(state.importer);
        let link = Link {
            export: state.export,
            importer: state.importer,
            importer_uid,
            payer: importer_uid, // links for other nodes end with the daemon that made them
            exporter: state.exporter,
            rights: state.rights,
            segment,
        };
        self.links.insert(state.link, link);
        Ok(())
    }

    fn inherit_pending(
        &mut self,
        id: ClientId,
        state: PendingState,
        fds: &mut Fds,
    ) -> Result<(), TakeOverError> {
        let now = Instant::now();
        let segment = fds.get(state.segment)?;
        let queue = WaitFor {
            name: state.name.clone(),
            process: state.process,
            restore: state.restore.is_some(),
        };
        let place = self.registry.wait(queue, id, state.request);
        let timer = state.left_ms.map(|left| {
            self.timers.add(now + Duration::from_millis(left), Timer::Import(id, state.request))
        });
        let pending = Pending {
            name: state.name,
            process: state.process,
            rights: state.rights,
            token: state.token,
            restore: state.restore,
            known_to: state.known_to,
            segment,
            since: now.checked_sub(Duration::from_millis(state.waited_ms)).unwrap_or(now),
            place,
            timer,
            caller: None,
        };
        if let Some(client) = self.clients.get_mut(&id) {
            self.quotas.take_over(client.peer.uid, QuotaKind::Imports, 1);
            client.pending.insert(state.request, pending);
        }
        Ok(())
    }

    fn inherit_waiting(&mut self, state: WaitingState, fds: &Fds) -> Result<(), TakeOverError> {
        let Some(client) = self.clients.get_mut(&state.client) else { return Ok(()) };
        client.sockets.insert(state.cookie);
        let uid = client.peer.uid;
        self.quotas.take_over(uid, QuotaKind::Connections, 1);
        let due = Instant::now() + Duration::from_millis(state.left_ms);
        let waiting = Waiting {
            client: state.client,
            uid,
            endpoint: state.endpoint.into(),
            shape: state.shape,
            timer: self.timers.add(due, Timer::Pairing(state.cookie)),
            elsewhere: state.elsewhere,
            // Not handed over either; it is the careful guess.
            is_bound: true,
            prolonged: false,
            bell: state.bell.map(|bell| fds.doorbell(bell, uid)).transpose()?,
            on_trial: None,
        };
        self.pairing.insert_waiting(state.cookie, waiting);
        Ok(())
    }

    fn inherit_pair(&mut self, state: PairState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let segment = fds.get(state.segment)?;
        let [one, other] = &state.ends;
        let mut bells = Vec::new();
        for bell in [one.bell, other.bell] {
            bells.push(bell.map(|bell| fds.kept(bell)).transpose()?.flatten());
        }
        let mut bells = bells.into_iter();
        let ends = state.ends.map(|end| {
            self.quotas.take_over(end.uid, QuotaKind::Connections, 1);
            for holder in &end.holders {
                if let Some(client) = self.clients.get_mut(holder) {
                    client.sockets.insert(end.cookie);
                }
            }
            End {
                cookie: end.cookie,
                endpoint: end.endpoint.into(),
                uid: end.uid,
                first: end.first,
                owner: end.owner,
                holders: end.holders.into_iter().collect(),
                bell: bells.next().flatten(),
            }
        });
        let linger = state.linger_ms.map(|left| {
            let due = Instant::now() + Duration::from_millis(left);
            self.timers.add(due, Timer::PairLinger(state.number))
        });
        let pair = Pair { segment, shape: state.shape, ring_len: state.ring_len, ends, linger };
        self.pairing.insert_pair(state.number, pair);
        Ok(())
    }
}

/// The list of descriptors as it came.
struct Fds {
    all: Vec<Option<Arc<Fd>>>,
    /// Of one descriptor there is one button, which knows whether it is in its doorbell.
    buttons: HashMap<Slot, Button>,
}

impl Fds {
    fn get(&self, slot: Slot) -> Result<Arc<Fd>, TakeOverError> {
        self.all
            .get(slot as usize)
            .and_then(Clone::clone)
            .ok_or_else(|| TakeOverError::BadState(format!("descriptor {slot} is missing")))
    }

    /// One that a process of that user's has, or has the other end of.
    fn shared(&self, slot: Slot, uid: u32) -> Result<Arc<Shared>, TakeOverError> {
        Ok(Arc::new(Shared::new(self.get(slot)?, (uid, uid))))
    }

    fn doorbell(&self, slot: Slot, owner: u32) -> Result<Doorbell, TakeOverError> {
        Ok(Doorbell::inherit(self.get(slot)?, owner))
    }

    fn button(&mut self, state: ButtonState) -> Result<Button, TakeOverError> {
        if let Some(known) = self.buttons.get(&state.button) {
            return Ok(known.clone());
        }
        let doorbell = self.doorbell(state.doorbell, state.owner)?;
        let button = Button::inherit(self.get(state.button)?, doorbell, state.ringer);
        self.buttons.insert(state.button, button.clone());
        Ok(button)
    }

    /// A button that another user has as well.
    fn kept(&mut self, state: ButtonState) -> Result<Option<Kept>, TakeOverError> {
        Ok(self.button(state)?.kept())
    }

    /// One that is used once only.
    fn take(&mut self, slot: Slot) -> Result<Fd, TakeOverError> {
        self.all
            .get_mut(slot as usize)
            .and_then(Option::take)
            .and_then(Arc::into_inner)
            .ok_or_else(|| TakeOverError::BadState(format!("descriptor {slot} is missing")))
    }
}
