//! The tables of the broker that hands over.

use super::state::{
    ButtonState, ClientState, EndState, ExportState, LinkState, ListenerState, OutState, PairState,
    PendingState, Slot, StageState, State, WaitingState,
};
use crate::broker::Broker;
use crate::client::{Attached, Client, Introduced, OutFd, Outgoing, Stage};
use crate::doorbell::Button;
use crate::pairing::End;
use crate::timers::TimerKey;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;
use vmmc::sys::Fd;

/// The list of descriptors while it grows; each is in it once.
#[derive(Default)]
struct Slots<'b> {
    fds: Vec<BorrowedFd<'b>>,
    known: HashMap<RawFd, Slot>,
}

impl<'b> Slots<'b> {
    fn put(&mut self, fd: &'b Fd) -> Slot {
        *self.known.entry(fd.as_raw_fd()).or_insert_with(|| {
            self.fds.push(fd.as_fd());
            (self.fds.len() - 1) as Slot
        })
    }

    fn put_out(&mut self, fd: &'b OutFd) -> OutState {
        match fd {
            OutFd::Same(fd) => OutState::Same(self.put(fd)),
            OutFd::Owned(fd) => OutState::Owned(self.put(fd.fd()), fd.users().0),
            OutFd::ReadOnly(fd) => OutState::ReadOnly(self.put(fd)),
            OutFd::Line(line) => OutState::Line(self.put(line.fd()), line.users().0),
            OutFd::Button(button) => OutState::Button(self.put_button(button)),
            OutFd::Install(button) => OutState::Install(self.put_button(button)),
        }
    }

    fn put_button(&mut self, it: &'b Button) -> ButtonState {
        let (owner, ringer) = it.shared().users();
        let (button, doorbell) = (self.put(it.shared().fd()), self.put(it.doorbell().fd()));
        ButtonState { button, doorbell, owner, ringer }
    }
}

fn left_ms(key: TimerKey) -> u64 {
    key.0.saturating_duration_since(Instant::now()).as_millis() as u64
}

impl Broker {
    /// Everything that a successor needs.
    pub(super) fn state<'b>(&'b self) -> (State, Vec<BorrowedFd<'b>>) {
        let mut slots = Slots::default();
        let listener = ListenerState {
            socket: slots.put(&self.listener.socket),
            name: self
                .listener
                .name
                .as_ref()
                .map(|name| (name.path.as_os_str().as_bytes().to_vec(), slots.put(&name.lock))),
        };
        let clients =
            self.clients.values().map(|client| client_state(client, &mut slots)).collect();
        let exports = self
            .registry
            .exports
            .iter()
            .map(|(&export, known)| ExportState {
                export,
                owner: known.owner,
                name: known.name.clone(),
                len: known.len,
                memory: slots.put(&known.memory),
                entries: known.entries.iter().map(|it| (it.grant, it.started)).collect(),
                token: known.token,
                restored: known.restored,
                touched: known.touched,
                withdrawn: known.withdrawn,
            })
            .collect();
        let links = self
            .links
            .iter()
            .map(|(&link, known)| LinkState {
                link,
                export: known.export,
                importer: known.importer,
                exporter: known.exporter,
                rights: known.rights,
                segment: known.segment.as_ref().map(|segment| slots.put(segment)),
            })
            .collect();
        let waiting = self
            .pairing
            .waiting
            .iter()
            .map(|(&cookie, waiting)| WaitingState {
                cookie,
                client: waiting.client,
                endpoint: waiting.endpoint.into(),
                shape: waiting.shape,
                left_ms: left_ms(waiting.timer),
                elsewhere: waiting.elsewhere,
                bell: waiting.bell.as_ref().map(|bell| slots.put(bell.fd())),
            })
            .collect();
        let end = |end: &'b End, slots: &mut Slots<'b>| EndState {
            cookie: end.cookie,
            endpoint: end.endpoint.into(),
            uid: end.uid,
            first: end.first,
            owner: end.owner.clone(),
            holders: end.holders.iter().copied().collect(),
            bell: end.bell.as_ref().map(|bell| slots.put_button(bell.button())),
        };
        let pairs = self
            .pairing
            .pairs
            .iter()
            .map(|(&number, pair)| PairState {
                number,
                segment: slots.put(&pair.segment),
                shape: pair.shape,
                ring_len: pair.ring_len,
                ends: [end(&pair.ends[0], &mut slots), end(&pair.ends[1], &mut slots)],
                linger_ms: pair.linger.map(left_ms),
            })
            .collect();
        let state = State {
            incarnation: self.incarnation,
            last_id: self.last_id,
            counters: self.counters.all(),
            manager: crate::notify::manager(),
            listener,
            clients,
            exports,
            links,
            waiting,
            pairs,
            plain: self.pairing.plain.iter().cloned().collect(),
        };
        (state, slots.fds)
    }
}

fn client_state<'b>(client: &'b Client, slots: &mut Slots<'b>) -> ClientState {
    let stage = match &client.stage {
        Stage::Handshake => StageState::Handshake,
        Stage::Hello => StageState::Hello,
        Stage::Leaving => StageState::Leaving,
        Stage::Welcome(Introduced { role, program, session, attached }) => StageState::Welcome {
            role: *role,
            program: program.clone(),
            session: *session,
            attached: attached.as_ref().map(|Attached { page, doorbell }| {
                (slots.put(page), doorbell.as_ref().map(|doorbell| slots.put(doorbell.fd())))
            }),
        },
    };
    let pending = client
        .pending
        .iter()
        .filter(|(_, pending)| pending.caller.is_none())
        .map(|(&request, pending)| PendingState {
            request,
            name: pending.name.clone(),
            process: pending.process,
            rights: pending.rights,
            token: pending.token,
            restore: pending.restore,
            known_to: pending.known_to,
            segment: slots.put(&pending.segment),
            waited_ms: pending.since.elapsed().as_millis() as u64,
            left_ms: pending.timer.map(left_ms),
            place: pending.place,
        })
        .collect();
    let queue = client
        .queue
        .iter()
        .map(|Outgoing { packet, fds, .. }| {
            (packet.clone(), fds.iter().map(|fd| slots.put_out(fd)).collect())
        })
        .collect();
    ClientState {
        peer: client.peer,
        groups: client.groups.clone(),
        socket: slots.put(&client.socket),
        pidfd: slots.put(&client.pidfd),
        stage,
        pending,
        acquaintances: client
            .acquaintances
            .all()
            .map(|(other, introduced, kept)| {
                let kept = kept.iter().map(|kept| slots.put_button(kept.button()));
                (other, introduced, kept.collect())
            })
            .collect(),
        queue,
    }
}
