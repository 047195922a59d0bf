//! Outward: a process of this node asks for an import from another one.
//!
//! One thread per question, for as long as it is open: an import may wait for its export for ever.
//! It ends when either side hangs up. The connection to the other daemon is kept for the next question
//! ([`super::idle`]).

use super::address::Address;
use super::places::Places;
use super::secure::{PATIENCE, Secure, SecureError};
use super::{Service, lifelines, owner};
use crate::requests::random_bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use vmmc::control::codec;
use vmmc::control::message::{MAX_PACKET_LEN, Refusal};
use vmmc::control::network::{
    Accepted, Answered, Ask, Lasting, Meeting, Opening, Origin, Pass, Purpose, Question, Resumed,
    TAKEN, Told, Wanted,
};
use vmmc::id::PeerInfo;
use vmmc::sys::thread::spawn_quiet;
use vmmc::sys::{Fd, packet};
use vmmc::transport::tcp::seal::SealKeys;

/// Questions at once.
const MAX: usize = 4096;
/// Of them those of one user.
const MAX_EACH: usize = MAX / 4;

/// How long a process has to take another connection that was made after a cut.
const TAKING: Duration = Duration::from_secs(5);

/// How long a process's connections outlast that there is no way to the node, in seconds.
const PATIENCE_S: u32 = 10;
/// The same of carried ones: as Linux has it for TCP (`net.ipv4.tcp_retries2`).
const CARRIED_PATIENCE_S: u32 = 924;

/// Handshakes of one user's questions with a node at once, more wait: the node takes some more from one address, and then none.
const HANDSHAKES: usize = 32;

/// Places of open questions.
#[derive(Debug)]
pub(super) struct Turns {
    all: Places<()>,
    /// Of each user.
    users: Places<u32>,
    /// Of a user to a node, whose connection is being made.
    handshakes: Places<(String, u32)>,
}

impl Default for Turns {
    fn default() -> Turns {
        let (all, users) = (Places::new(MAX), Places::new(MAX_EACH));
        Turns { all, users, handshakes: Places::new(HANDSHAKES) }
    }
}

/// Serves one conversation.
pub(super) fn start(service: Service, caller: PeerInfo, process: Fd) -> Result<(), Refusal> {
    let Turns { all, users, .. } = &*service.turns;
    let Some(turn) = users.take(&caller.uid).zip(all.take(&())) else {
        let why = format!(
            "ask another node: {MAX_EACH} imports of user {}, or {MAX} in all, wait for other nodes already",
            caller.uid
        );
        return Err(Refusal::Internal { why });
    };
    service.lifelines.expect(caller);
    let thread = spawn_quiet("net-ask", move || {
        let _turn = turn;
        // Closed before the turn ends: what lies in it unread may keep the close waiting.
        let process = process;
        serve(&service, caller, &process);
    });
    match thread {
        Ok(_) => Ok(()),
        Err(errno) => Err(Refusal::Internal { why: format!("make a thread ({errno})") }),
    }
}

fn serve(service: &Service, caller: PeerInfo, process: &Fd) {
    let mut buffer = [0; MAX_PACKET_LEN];
    let Some(len) = hear(process, &mut buffer, PATIENCE) else {
        return; // it changed its mind
    };
    let ask = match codec::decode::<Question>(buffer.get(..len).unwrap_or_default()) {
        Ok(Question::Import(ask)) => ask,
        Ok(Question::Resume { node, pass, position }) => {
            return resume(service, caller, &node, (pass, position), process);
        }
        Err(_) => {
            tracing::warn!(pid = caller.pid, "not a question about another node");
            return;
        }
    };
    let node = ask.node.clone();
    let (told, connection) = match import(service, caller, ask, process) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(refusal) => (Told::Refused(refusal), None),
    };
    let (connection, meeting, seal, lasting) = match connection {
        Some(Made { stream, meeting, seal, lasting }) => (Some(stream), meeting, seal, lasting),
        None => (None, None, None, None),
    };
    let answered = Answered { told, meeting, seal, lasting };
    hand_over(service, caller, (&node, connection), &answered, process);
}

/// Answers, with a data connection if there is one.
fn hand_over(
    service: &Service,
    caller: PeerInfo,
    (node, connection): (&str, Option<TcpStream>),
    answer: &impl Serialize,
    process: &Fd,
) {
    if let Some(stream) = &connection {
        service.lifelines.keep(caller, node, stream);
    }
    let mut buffer = [0; MAX_PACKET_LEN];
    let Ok(answer) = codec::encode(answer, &mut buffer) else {
        tracing::error!(node, "an answer to a process is too long; it was not sent");
        return;
    };
    let fds: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
    if packet::send(process, answer, &fds, SendFlags::empty()).is_err() {
        lifelines::end(caller.uid, connection.into_iter().collect()); // nobody has it but us
    }
}

/// Another data connection in the place of one that was cut.
fn resume(
    service: &Service,
    caller: PeerInfo,
    node: &str,
    (pass, position): (Pass, u64),
    process: &Fd,
) {
    let resumed = seal_keys(service).map(|seal| {
        let purpose = Purpose::Resume { pass, position, seal: seal.clone() };
        (open_data(service, caller, node, purpose), seal)
    });
    let (answer, connection) = match resumed {
        Ok((Ok(Ok((accepted, stream))), seal)) => {
            (Resumed::Back { position: accepted.position, seal }, Some(stream))
        }
        Ok((Ok(Err(why)), _)) => {
            tracing::info!(node, pid = caller.pid, why, "a data connection cannot go on");
            (Resumed::Never, None)
        }
        Ok((Err(error), _)) => {
            tracing::debug!(node, pid = caller.pid, %error, "no way to go on after a cut");
            // Where nobody listens the interface has ended, and its links with it.
            (if is_refused(&error) { Resumed::Never } else { Resumed::NotNow }, None)
        }
        Err(_) => (Resumed::Never, None),
    };
    let copy = connection.as_ref().and_then(|stream| stream.try_clone().ok());
    hand_over(service, caller, (node, connection), &answer, process);
    let Some(copy) = copy else { return };
    let mut said = [0];
    let _ = set_socket_timeout(process, Timeout::Recv, Some(TAKING));
    match packet::receive(process, &mut said, RecvFlags::empty()) {
        Ok(Some(_)) if said == [TAKEN] => {}
        // It has gone, or given up: its links would stay as long as the process.
        Ok(None) | Err(Errno::CONNRESET) => lifelines::end(caller.uid, vec![copy]),
        // It asks again, or has stood still: to the interface that is another cut.
        Ok(Some(_)) | Err(_) => lifelines::cut(caller.uid, copy),
    }
}

/// What the other node says of a data connection, and the connection; or why it does not want it.
type Opened = Result<(Accepted, TcpStream), String>;

/// Makes a data connection for a process.
fn open_data(
    service: &Service,
    caller: PeerInfo,
    node: &str,
    purpose: Purpose,
) -> Result<Opened, SecureError> {
    let mut data = connect(service, node, caller.uid)?;
    data.send(&Opening { to: node.to_owned(), origin: origin(service, caller), purpose })?;
    let mut accepted = data.receive::<Accepted>(Some(PATIENCE))?;
    match accepted.refused.take() {
        Some(why) => Ok(Err(why)),
        None => Ok(Ok((accepted, data.into_data()?))),
    }
}

/// How a connection goes on after a cut. Where this daemon carries connections of programs that are to find it as lasting as TCP, which is
/// patient and keeps what it has sent, so is it; processes are told of a node that is gone within half a minute.
fn lasting(caller: PeerInfo, pass: Pass) -> Lasting {
    let carries = caller.pid == std::process::id();
    let patience_s = if carries { CARRIED_PATIENCE_S } else { PATIENCE_S };
    Lasting { pass, patience_s, keeps_all: carries }
}

/// Keys for a new connection, where the cluster file says that it is sealed.
fn seal_keys(service: &Service) -> Result<Option<SealKeys>, Refusal> {
    Ok(match service.cluster.seals() {
        true => Some(SealKeys { to_interface: random_bytes()?, to_process: random_bytes()? }),
        false => None,
    })
}

/// Receives the question, which a process asks as soon as it can; its length.
fn hear(process: &Fd, buffer: &mut [u8], patience: Duration) -> Option<usize> {
    set_socket_timeout(process, Timeout::Recv, Some(patience)).ok()?;
    let heard = packet::receive(process, buffer, RecvFlags::empty()).ok()?;
    heard.map(|(len, _)| len)
}

/// A data connection for the process.
struct Made {
    stream: TcpStream,
    /// The other end of its fabric.
    meeting: Option<Meeting>,
    /// With what it is sealed.
    seal: Option<SealKeys>,
    /// How it goes on after a cut.
    lasting: Option<Lasting>,
}

/// What was told, and a data connection.
type Found = (Told, Option<Made>);

/// A new connection to another node's daemon, for a user. A daemon that is being replaced listens to nobody for a moment, which
/// is waited for.
pub(super) fn connect(service: &Service, node: &str, uid: u32) -> Result<Secure, SecureError> {
    let nodes = service.cluster.nodes();
    let Some(address) = nodes.get(node) else { return Err(no_address()) };
    let _turn = service.turns.handshakes.wait(&(node.to_owned(), uid));
    let mut refused = None;
    let mut hung_up = false;
    loop {
        let result = connect_now(service, address);
        let again = match &result {
            Err(error) if is_refused(error) => {
                refused.get_or_insert_with(Instant::now).elapsed() < REPLACING
            }
            // One that leaves hangs up on who was greeting it, once; who has another key does so each time.
            Err(error) if is_end(error) => !std::mem::replace(&mut hung_up, true),
            _ => false,
        };
        if !again {
            return result;
        }
        std::thread::sleep(AGAIN);
    }
}

fn no_address() -> SecureError {
    std::io::Error::other("the name has no address").into()
}

fn connect_now(service: &Service, address: &Address) -> Result<Secure, SecureError> {
    let cluster = &service.cluster;
    let mut failed = None;
    for address in address.look_up()? {
        match Secure::connect(address, cluster.key.as_ref()) {
            Ok(made) => return Ok(made),
            // Refused it is when all have refused: it may listen where there is no way now.
            Err(error) if failed.as_ref().is_none_or(is_refused) => failed = Some(error),
            Err(_) => {}
        }
    }
    Err(failed.unwrap_or_else(no_address))
}

/// Whether nobody listens there.
fn is_refused(error: &SecureError) -> bool {
    matches!(error, SecureError::Io(why) if why.kind() == ErrorKind::ConnectionRefused)
}

/// Whether its daemon has hung up.
fn is_end(error: &SecureError) -> bool {
    let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    match error {
        SecureError::HungUp => true,
        SecureError::Io(why) => ends.contains(&why.kind()),
        _ => false,
    }
}

/// The names of nodes, or as many as an answer has room for, and a mark that there are more.
fn some<'n>(names: impl Iterator<Item = &'n String>) -> Vec<String> {
    /// Bytes of names in an answer.
    const MOST: usize = MAX_PACKET_LEN / 4;
    let mut left = MOST;
    let mut known = Vec::new();
    for name in names {
        match left.checked_sub(name.len() + 2) {
            Some(rest) => left = rest,
            None => {
                known.push("…".to_owned());
                break;
            }
        }
        known.push(name.clone());
    }
    known
}

/// Who asks, as other nodes are told.
pub(super) fn origin(service: &Service, caller: PeerInfo) -> Origin {
    Origin {
        node: service.cluster.node.clone(),
        client: caller.client.0,
        pid: caller.pid,
        uid: caller.uid,
        gid: caller.gid,
    }
}

/// Asks the other node. `None`: the process has hung up.
fn import(
    service: &Service,
    caller: PeerInfo,
    ask: Ask,
    process: &Fd,
) -> Result<Option<Found>, Refusal> {
    let Service { cluster, idle, .. } = service;
    let nodes = cluster.nodes();
    let Some(address) = nodes.get(&ask.node) else {
        if ask.node == cluster.node {
            return Err(Refusal::OwnNode { node: ask.node.clone() });
        }
        return Err(Refusal::UnknownNode { node: ask.node.clone(), known: some(nodes.keys()) });
    };
    let failed = |error: SecureError| Refusal::NodeUnreachable {
        node: ask.node.clone(),
        why: format!("{address}: {error}"),
    };
    let origin = origin(service, caller);
    let connect = || connect(service, &ask.node, caller.uid);
    let opening = |purpose| Opening { to: ask.node.clone(), origin: origin.clone(), purpose };
    let mut returns = Returns::new(&ask.wanted);
    let ask_in = |other, returns: &Returns| {
        question(other, &opening(Purpose::Import(returns.wanted(&ask.wanted))), process)
    };
    let kept = idle.take(&ask.node).map(|kept| ask_in(kept, &returns));
    let told = match kept {
        Some(Ok(told)) => told,
        // It was closed meanwhile, or while the question waited there, or there was none.
        kept => {
            if let Some(Err(error)) = &kept
                && returns.asked.elapsed() >= AGAIN
            {
                returns.note(error);
            }
            loop {
                let new = match connect() {
                    Ok(new) => new,
                    Err(_) if returns.may(process) => continue,
                    Err(error) => return Err(failed(error)),
                };
                returns.asked = Instant::now();
                match ask_in(new, &returns) {
                    Ok(told) => break told,
                    Err(error) if returns.note(&error) && returns.may(process) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
    };
    let Some((mut told, connection)) = told else { return Ok(None) };
    if let Told::Granted(grant) = &told
        && cluster.key.is_none()
    {
        let vouched = owner::vouches(connection.stream(), grant.exporter.uid);
        vouched.map_err(|why| Refusal::NodeUnreachable { node: ask.node.clone(), why })?;
    }
    idle.put(&ask.node, connection);
    if let Told::Granted(grant) = &mut told {
        grant.exporter = cluster.counts_as(&ask.node, grant.exporter);
    }
    if matches!(told, Told::Refused(_)) || !ask.connect {
        return Ok(Some((told, None)));
    }
    let seal = seal_keys(service)?;
    // A fabric's memory is registered for one connection.
    let lasting = match ask.meeting {
        None => Some(lasting(caller, Pass(random_bytes()?))),
        Some(_) => None,
    };
    let purpose = Purpose::Data { meeting: ask.meeting, seal: seal.clone(), lasting };
    let opened = open_data(service, caller, &ask.node, purpose).map_err(failed)?;
    let unwanted = |why| Refusal::NodeUnreachable { node: ask.node.clone(), why };
    let (accepted, stream) = opened.map_err(unwanted)?;
    Ok(Some((told, Some(Made { stream, meeting: accepted.meeting, seal, lasting }))))
}

/// How long another node's daemon that ends while a question waits there may take to come back, or its successor.
const RETURNING: Duration = Duration::from_secs(5);
/// How long one that is being replaced does not listen, at most.
const REPLACING: Duration = Duration::from_secs(1);
/// Between two looks for it.
const AGAIN: Duration = Duration::from_millis(50);

/// A question to another node whose daemon may be replaced, or started anew, while the question waits there.
struct Returns {
    /// Until when the importer waits; `None`: for ever.
    until: Option<Instant>,
    /// When the question was last asked.
    asked: Instant,
    /// When the daemon was first lost, after it had stood for long.
    lost: Option<Instant>,
}

impl Returns {
    fn new(wanted: &Wanted) -> Returns {
        let patience = Duration::from_millis(wanted.timeout_ms.into());
        let now = Instant::now();
        let until = (wanted.timeout_ms < u32::MAX).then(|| now + patience);
        Returns { until, asked: now, lost: None }
    }

    /// What is asked, with the time that is left.
    fn wanted(&self, wanted: &Wanted) -> Wanted {
        let left = self.until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout_ms = left.map_or(u32::MAX, |left| left.as_millis() as u32);
        Wanted { timeout_ms, ..wanted.clone() }
    }

    /// Whether one that is not there, or ends again, may be looked for once more, after a moment: the process has not hung up, and
    /// has time.
    fn may(&self, process: &Fd) -> bool {
        let now = Instant::now();
        let returns = self.lost.is_some_and(|at| at + RETURNING > now);
        returns && self.until.is_none_or(|at| at > now) && !hangs_up(process)
    }

    /// The question was not answered, by this error: whether that is the daemon's end.
    fn note(&mut self, error: &SecureError) -> bool {
        let is_end = is_end(error);
        if is_end && (self.lost.is_none() || self.asked.elapsed() >= RETURNING) {
            self.lost = Some(Instant::now());
        }
        is_end
    }
}

/// Waits a moment; whether the process has hung up by then.
fn hangs_up(process: &Fd) -> bool {
    let time = Timespec { tv_sec: 0, tv_nsec: AGAIN.subsec_nanos().into() };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}

/// Asks one question. `None`: the process has hung up.
fn question(
    mut other: Secure,
    wanted: &Opening,
    process: &Fd,
) -> Result<Option<(Told, Secure)>, SecureError> {
    other.send(wanted)?;
    // The answer may take for ever; the process may have had enough before.
    loop {
        let mut fds =
            [PollFd::new(other.stream(), PollFlags::IN), PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => break,
            Ok(_) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
    let told = other.receive(Some(PATIENCE))?;
    Ok(Some((told, other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_nothing_is_not_waited_for() {
        let (ours, theirs) = packet::pair().unwrap();
        assert_eq!(hear(&ours, &mut [0; 8], Duration::from_millis(1)), None);
        packet::send(&theirs, b"now", &[], SendFlags::empty()).unwrap();
        assert_eq!(hear(&ours, &mut [0; 8], Duration::from_secs(3600)), Some(3));
    }
}
