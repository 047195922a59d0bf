//! Outward: a process of this node asks for an import from another one.
//!
//! One thread per question, for as long as it is open: an import may wait for its export for ever.
//! It ends when either side hangs up.

use super::cluster::Cluster;
use super::secure::{PATIENCE, Secure, SecureError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vmmc::control::codec;
use vmmc::control::message::{MAX_PACKET_LEN, Refusal};
use vmmc::control::network::{Accepted, Answered, Ask, Meeting, Opening, Origin, Purpose, Told};
use vmmc::id::PeerInfo;
use vmmc::sys::thread::spawn_quiet;
use vmmc::sys::{Fd, packet};

/// Questions at once.
const MAX: usize = 1024;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Counts an open question.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let before = OPEN.fetch_add(1, Ordering::AcqRel);
        let turn = Turn;
        (before < MAX).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves one conversation.
pub(super) fn start(cluster: Arc<Cluster>, caller: PeerInfo, process: Fd) -> Result<(), Refusal> {
    let Some(turn) = Turn::take() else {
        let why = format!("ask another node: {MAX} imports from other nodes wait already");
        return Err(Refusal::Internal { why });
    };
    let thread = spawn_quiet("net-ask", move || {
        let _turn = turn;
        serve(&cluster, caller, &process);
    });
    match thread {
        Ok(_) => Ok(()),
        Err(errno) => Err(Refusal::Internal { why: format!("make a thread ({errno})") }),
    }
}

fn serve(cluster: &Cluster, caller: PeerInfo, process: &Fd) {
    let mut buffer = [0; MAX_PACKET_LEN];
    let Ok(Some((len, _))) = packet::receive(process, &mut buffer, RecvFlags::empty()) else {
        return; // it changed its mind
    };
    let Ok(ask) = codec::decode::<Ask>(buffer.get(..len).unwrap_or_default()) else {
        tracing::warn!(pid = caller.pid, "not a question about another node");
        return;
    };
    let (told, connection) = match import(cluster, caller, ask, process) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(refusal) => (Told::Refused(refusal), None),
    };
    let (connection, meeting) = connection.unzip();
    let mut buffer = [0; MAX_PACKET_LEN];
    let answered = Answered { told, meeting: meeting.flatten() };
    let Ok(answer) = codec::encode(&answered, &mut buffer) else { return };
    let fds: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
    let _ = packet::send(process, answer, &fds, SendFlags::empty());
}

/// What was told, and a data connection with the other end of its fabric.
type Found = (Told, Option<(std::net::TcpStream, Option<Meeting>)>);

/// Asks the other node. `None`: the process has hung up.
fn import(
    cluster: &Cluster,
    caller: PeerInfo,
    ask: Ask,
    process: &Fd,
) -> Result<Option<Found>, Refusal> {
    let Some(&address) = cluster.nodes.get(&ask.node) else {
        let known = cluster.nodes.keys().cloned().collect();
        return Err(Refusal::UnknownNode { node: ask.node.clone(), known });
    };
    let failed = |error: SecureError| Refusal::NodeUnreachable {
        node: ask.node.clone(),
        why: format!("{address}: {error}"),
    };
    let origin = Origin {
        node: cluster.node.clone(),
        client: caller.client.0,
        pid: caller.pid,
        uid: caller.uid,
        gid: caller.gid,
    };
    let open = |purpose| -> Result<Secure, SecureError> {
        let mut secure = Secure::connect(address, cluster.key.as_ref())?;
        secure.send(&Opening { to: ask.node.clone(), origin: origin.clone(), purpose })?;
        Ok(secure)
    };
    let mut question = open(Purpose::Import(ask.wanted.clone())).map_err(failed)?;
    // The answer may take for ever; the process may have had enough before.
    loop {
        let mut fds =
            [PollFd::new(question.stream(), PollFlags::IN), PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => break,
            Ok(_) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(failed(std::io::Error::from(errno).into())),
        }
    }
    let mut told = question.receive::<Told>(Some(PATIENCE)).map_err(failed)?;
    if let Told::Granted(grant) = &mut told {
        grant.exporter = cluster.counts_as(&ask.node, grant.exporter);
    }
    if matches!(told, Told::Refused(_)) || !ask.connect {
        return Ok(Some((told, None)));
    }
    let mut data = open(Purpose::Data(ask.meeting)).map_err(failed)?;
    let accepted = data.receive::<Accepted>(Some(PATIENCE)).map_err(failed)?;
    if let Some(why) = accepted.refused {
        return Err(Refusal::NodeUnreachable { node: ask.node.clone(), why });
    }
    let stream = data.into_stream();
    let plain = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
    plain.map_err(|error| failed(error.into()))?;
    Ok(Some((told, Some((stream, accepted.meeting)))))
}
