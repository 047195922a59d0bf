//! A connection between two daemons: proved, then encrypted.
//!
//! ```text
//!   maker                                       other
//!   "VMMN" version 0 0   ----------------->
//!   Noise message 1      ----------------->     wrong key: closed, logged
//!                        <-----------------     "VMMN" version 0 0
//!                        <-----------------     Noise message 2
//!   messages, each encrypted, in both directions
//! ```
//!
//! The handshake is `Noise_NNpsk0`: each side proves by its message that it knows the cluster key, and no
//! recording of it is of use later, because both give a fresh key of their own. Nothing is acted upon before
//! it is complete. The versions go in clear, so that two versions can tell each other, and are part
//! of what is proved. No clock takes part.

use super::cluster::KEY_LEN;
use serde::{Serialize, de::DeserializeOwned};
use snow::{Builder, HandshakeState, TransportState};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use vmmc::control::network::WIRE_VERSION;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 4] = *b"VMMN";
const PREAMBLE_LEN: usize = 8;
/// Longest message, in bytes before encryption.
pub const MAX_MESSAGE: usize = 8192;
/// What encryption adds.
const TAG_LEN: usize = 16;

/// How long the kernel of the other side may take to be reached.
const REACH: Duration = Duration::from_secs(5);
/// How long the other side may take for the handshake, all of it, and for an answer that needs nobody else. Nodes that
/// start together keep each other busy: on a slow machine a handshake of sixteen took more than five seconds.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Why two daemons do not talk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecureError {
    /// The connection.
    #[error("{}; is its vmmcd running, and its address right in the cluster file?", in_words(.0))]
    Io(std::io::Error),
    /// Nothing came in time.
    #[error(
        "it does not answer; is its vmmcd running and its machine not overloaded, and is its address right in the cluster file?"
    )]
    Silent,
    /// The other side is something else.
    #[error("what listens there is no vmmcd; is its address right in the cluster file?")]
    NotOurs,
    /// Another version.
    #[error(
        "it speaks version {theirs} between nodes, we speak {ours}; run the same vmmcd on both"
    )]
    Version {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
    },
    /// The other side closed the connection instead of proving that it knows the key.
    #[error(
        "it hung up on our proof: the cluster keys differ, or its vmmcd is ending; copy the same key file to both nodes"
    )]
    HungUp,
    /// The proof is wrong.
    #[error("the cluster keys differ; copy the same key file to both nodes")]
    Key,
    /// A message that is none.
    #[error("a message that cannot be read")]
    Malformed,
    /// Without a key, and not on this machine.
    #[error("{0} is not a loopback address, and there is no cluster key")]
    NotLoopback(SocketAddr),
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it has ended meanwhile".to_owned(),
        _ => error.to_string(),
    }
}

impl SecureError {
    /// The same of who has come to us.
    #[must_use]
    pub fn of_visitor(&self) -> String {
        match self {
            SecureError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                "it hung up before it had proved anything".to_owned()
            }
            SecureError::Io(error) => error.to_string(),
            SecureError::Silent => "it proved nothing in time".to_owned(),
            SecureError::NotOurs => "it does not speak as a vmmcd does".to_owned(),
            other => other.to_string(),
        }
    }
}

impl From<std::io::Error> for SecureError {
    fn from(error: std::io::Error) -> SecureError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => SecureError::Silent,
            _ => SecureError::Io(error),
        }
    }
}

/// Reads that may take until an instant, all together: who sends byte by byte gains no time.
struct Patient<'s> {
    stream: &'s TcpStream,
    until: Option<Instant>,
}

impl<'s> Patient<'s> {
    fn new(stream: &'s TcpStream, patience: Option<Duration>) -> Patient<'s> {
        Patient { stream, until: patience.map(|patience| Instant::now() + patience) }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        self.stream.read(buffer)
    }
}

fn preamble(version: u16) -> [u8; PREAMBLE_LEN] {
    let [v0, v1] = version.to_le_bytes();
    let [m0, m1, m2, m3] = MAGIC;
    [m0, m1, m2, m3, v0, v1, 0, 0]
}

fn check_preamble(bytes: [u8; PREAMBLE_LEN]) -> Result<(), SecureError> {
    let [m0, m1, m2, m3, v0, v1, ..] = bytes;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(SecureError::NotOurs);
    }
    match u16::from_le_bytes([v0, v1]) {
        WIRE_VERSION => Ok(()),
        theirs => Err(SecureError::Version { ours: WIRE_VERSION, theirs }),
    }
}

/// A connection on which both sides have proved that they know the key.
#[derive(Debug)]
pub struct Secure {
    stream: TcpStream,
    noise: Box<TransportState>,
}

impl Secure {
    /// Connects to another daemon.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn connect(
        address: SocketAddr,
        key: Option<&[u8; KEY_LEN]>,
    ) -> Result<Secure, SecureError> {
        key_for(address, key)?;
        Secure::open(TcpStream::connect_timeout(&address, REACH)?, key)
    }

    /// Speaks first on a connection to another daemon.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn open(mut stream: TcpStream, key: Option<&[u8; KEY_LEN]>) -> Result<Secure, SecureError> {
        let key = key_for(stream.peer_addr()?, key)?;
        prepare(&stream)?;
        let mut noise = builder(&key)?.build_initiator().map_err(|_| SecureError::Key)?;
        // A daemon that refuses our proof says nothing and closes.
        let hung_up = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                SecureError::HungUp
            }
            _ => error.into(),
        };
        stream.write_all(&preamble(WIRE_VERSION)).map_err(hung_up)?;
        write_handshake(&mut stream, &mut noise)?;
        let mut theirs = [0; PREAMBLE_LEN];
        let mut input = Patient::new(&stream, Some(PATIENCE));
        input.read_exact(&mut theirs).map_err(hung_up)?;
        check_preamble(theirs)?;
        read_handshake(&mut input, &mut noise)?;
        Secure::finish(stream, noise)
    }

    /// Answers another daemon that has connected.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn accept(
        mut stream: TcpStream,
        key: Option<&[u8; KEY_LEN]>,
    ) -> Result<Secure, SecureError> {
        let key = key_for(stream.peer_addr()?, key)?;
        prepare(&stream)?;
        let mut theirs = [0; PREAMBLE_LEN];
        let until = Instant::now() + PATIENCE;
        Patient { stream: &stream, until: Some(until) }.read_exact(&mut theirs)?;
        if let Err(error) = check_preamble(theirs) {
            if matches!(error, SecureError::Version { .. }) {
                // So that both can say it. What it has sent is read, or the answer would be lost
                // in a reset.
                let _ = stream.write_all(&preamble(WIRE_VERSION));
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                let _ = stream.read(&mut [0; 256]);
            }
            return Err(error);
        }
        let mut noise = builder(&key)?.build_responder().map_err(|_| SecureError::Key)?;
        read_handshake(&mut Patient { stream: &stream, until: Some(until) }, &mut noise)?;
        stream.write_all(&preamble(WIRE_VERSION))?;
        write_handshake(&mut stream, &mut noise)?;
        Secure::finish(stream, noise)
    }

    fn finish(stream: TcpStream, noise: HandshakeState) -> Result<Secure, SecureError> {
        let noise = noise.into_transport_mode().map_err(|_| SecureError::Key)?;
        Ok(Secure { stream, noise: Box::new(noise) })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`SecureError::Io`]; [`SecureError::Malformed`] for one too long.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), SecureError> {
        let plain = postcard::to_stdvec(message).map_err(|_| SecureError::Malformed)?;
        if plain.len() > MAX_MESSAGE {
            return Err(SecureError::Malformed);
        }
        let mut sealed = vec![0; plain.len() + TAG_LEN];
        let len =
            self.noise.write_message(&plain, &mut sealed).map_err(|_| SecureError::Malformed)?;
        write_block(&mut self.stream, sealed.get(..len).unwrap_or_default())
    }

    /// Receives a message, waiting for `patience` at most, or for ever.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<M, SecureError> {
        let mut input = Patient::new(&self.stream, patience);
        let sealed = read_block(&mut input, MAX_MESSAGE + TAG_LEN)?;
        let mut plain = vec![0; sealed.len()];
        let len =
            self.noise.read_message(&sealed, &mut plain).map_err(|_| SecureError::Malformed)?;
        match postcard::take_from_bytes(plain.get(..len).unwrap_or_default()) {
            Ok((message, [])) => Ok(message),
            _ => Err(SecureError::Malformed),
        }
    }

    /// The connection itself.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The connection, for what follows by other means, without time limits, also of what is not acknowledged. Nothing of that
    /// has been read yet.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn into_data(self) -> std::io::Result<TcpStream> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        rustix::net::sockopt::set_tcp_user_timeout(&self.stream, 0)?;
        Ok(self.stream)
    }
}

/// Without a key the proof is by an empty one, and only on this machine.
fn key_for(address: SocketAddr, key: Option<&[u8; KEY_LEN]>) -> Result<[u8; KEY_LEN], SecureError> {
    match key {
        Some(key) => Ok(*key),
        None if address.ip().is_loopback() => Ok([0; KEY_LEN]),
        None => Err(SecureError::NotLoopback(address)),
    }
}

fn builder(key: &[u8; KEY_LEN]) -> Result<Builder<'_>, SecureError> {
    let pattern = PATTERN.parse().map_err(|_| SecureError::Key)?;
    // The versions of both are equal, or we would not be here.
    static PROLOGUE: [u8; PREAMBLE_LEN] = {
        let [v0, v1] = WIRE_VERSION.to_le_bytes();
        [b'V', b'M', b'M', b'N', v0, v1, 0, 0]
    };
    Builder::new(pattern)
        .prologue(&PROLOGUE)
        .and_then(|builder| builder.psk(0, key))
        .map_err(|_| SecureError::Key)
}

/// A connection on which nothing came for so long is asked for a sign of life, again after [`KEEP_INTERVAL`], and so often.
const KEEP_IDLE: Duration = Duration::from_secs(5);
const KEEP_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_COUNT: u32 = 3;

/// Small messages go at once; a node that is gone is noticed, on an idle connection, and where something that was sent is not
/// acknowledged: the kernel asks for no sign of life then, and tries for a quarter of an hour.
fn prepare(stream: &TcpStream) -> Result<(), SecureError> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let io = std::io::Error::from;
    sockopt::set_socket_keepalive(stream, true).map_err(io)?;
    sockopt::set_tcp_keepidle(stream, KEEP_IDLE).map_err(io)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_INTERVAL).map_err(io)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_COUNT).map_err(io)?;
    let gone = KEEP_IDLE + KEEP_INTERVAL * KEEP_COUNT;
    sockopt::set_tcp_user_timeout(stream, gone.as_millis() as u32).map_err(io)?;
    Ok(())
}

fn write_handshake(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), SecureError> {
    let mut message = [0; 128];
    let len = noise.write_message(&[], &mut message).map_err(|_| SecureError::Key)?;
    write_block(stream, message.get(..len).unwrap_or_default())
}

fn read_handshake(input: &mut Patient<'_>, noise: &mut HandshakeState) -> Result<(), SecureError> {
    let message = read_block(input, 128)?;
    let mut payload = [0; 128];
    match noise.read_message(&message, &mut payload) {
        Ok(0) => Ok(()),
        _ => Err(SecureError::Key),
    }
}

fn write_block(stream: &mut TcpStream, block: &[u8]) -> Result<(), SecureError> {
    let len = u16::try_from(block.len()).map_err(|_| SecureError::Malformed)?;
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(block);
    Ok(stream.write_all(&bytes)?)
}

fn read_block(input: &mut Patient<'_>, max: usize) -> Result<Vec<u8>, SecureError> {
    let mut len = [0; 2];
    input.read_exact(&mut len)?;
    let len = usize::from(u16::from_le_bytes(len));
    if len > max {
        return Err(SecureError::Malformed);
    }
    let mut block = vec![0; len];
    input.read_exact(&mut block)?;
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const KEY: [u8; KEY_LEN] = [7; KEY_LEN];

    fn both(
        maker: Option<[u8; KEY_LEN]>,
        other: Option<[u8; KEY_LEN]>,
    ) -> (Result<Secure, SecureError>, Result<Secure, SecureError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            Secure::accept(listener.accept().unwrap().0, other.as_ref())
        });
        let made = Secure::connect(address, maker.as_ref());
        (made, thread.join().unwrap())
    }

    #[test]
    fn who_knows_the_key_can_talk_and_who_does_not_is_refused_on_both_sides() {
        let (made, other) = both(Some(KEY), Some(KEY));
        let (mut made, mut other) = (made.unwrap(), other.unwrap());
        made.send(&"hello".to_owned()).unwrap();
        assert_eq!(other.receive::<String>(None).unwrap(), "hello");
        other.send(&7u32).unwrap();
        assert_eq!(made.receive::<u32>(None).unwrap(), 7);
        for wrong in [Some([8; KEY_LEN]), None] {
            let (made, other) = both(wrong, Some(KEY));
            assert!(matches!(made, Err(SecureError::HungUp)), "{made:?}");
            assert!(matches!(other, Err(SecureError::Key)), "{other:?}");
        }
        let (made, other) = both(None, None);
        assert!(made.is_ok() && other.is_ok(), "loopback needs no key");
    }

    #[test]
    fn a_recorded_handshake_and_message_are_of_no_use() {
        // What the maker sent, byte by byte, is played to a second daemon.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = std::thread::spawn(move || {
            let real = TcpListener::bind("127.0.0.1:0").unwrap();
            let real_address = real.local_addr().unwrap();
            let other = std::thread::spawn(move || {
                let mut other = Secure::accept(real.accept().unwrap().0, Some(&KEY)).unwrap();
                other.receive::<String>(None).unwrap()
            });
            let (mut from, _) = listener.accept().unwrap();
            let mut to = TcpStream::connect(real_address).unwrap();
            let mut back = (to.try_clone().unwrap(), from.try_clone().unwrap());
            let backwards = std::thread::spawn(move || std::io::copy(&mut back.0, &mut back.1));
            let mut recorded = Vec::new();
            let mut buffer = [0; 512];
            while let Ok(len) = from.read(&mut buffer) {
                if len == 0 {
                    break;
                }
                recorded.extend_from_slice(&buffer[..len]);
                to.write_all(&buffer[..len]).unwrap();
            }
            assert_eq!(other.join().unwrap(), "pay");
            to.shutdown(std::net::Shutdown::Both).unwrap();
            let _ = backwards.join().unwrap();
            recorded
        });
        let mut made = Secure::connect(address, Some(&KEY)).unwrap();
        made.send(&"pay".to_owned()).unwrap();
        made.stream().shutdown(std::net::Shutdown::Write).unwrap();
        drop(made);
        let recorded = recorder.join().unwrap();
        let again = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut player = TcpStream::connect(again.local_addr().unwrap()).unwrap();
        player.write_all(&recorded).unwrap();
        player.shutdown(std::net::Shutdown::Write).unwrap();
        // The first message proves the key; what follows was made for another fresh key.
        let heard = Secure::accept(again.accept().unwrap().0, Some(&KEY));
        let heard = heard.and_then(|mut heard| heard.receive::<String>(None));
        assert!(matches!(heard, Err(SecureError::Malformed)), "{heard:?}");
    }

    #[test]
    fn who_sends_byte_by_byte_gains_no_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut dripping = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // For as long as somebody listens.
        let drip = std::thread::spawn(move || while dripping.write_all(&[1]).is_ok() {});
        let mut input = Patient::new(&stream, Some(Duration::from_millis(20)));
        let mut byte = [0];
        let end = loop {
            match input.read_exact(&mut byte) {
                Ok(()) => {}
                Err(error) => break SecureError::from(error),
            }
        };
        assert!(matches!(end, SecureError::Silent), "{end:?}");
        drop(stream);
        drip.join().unwrap();
    }

    #[test]
    fn another_version_is_told_by_number_and_another_protocol_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut player = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        player.write_all(&preamble(WIRE_VERSION + 1)).unwrap();
        let heard = Secure::accept(listener.accept().unwrap().0, None);
        let theirs = WIRE_VERSION + 1;
        assert!(matches!(heard, Err(SecureError::Version { theirs: it, .. }) if it == theirs));
        let mut answer = [0; PREAMBLE_LEN];
        player.read_exact(&mut answer).unwrap();
        assert_eq!(answer, preamble(WIRE_VERSION));
        let mut player = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        player.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let heard = Secure::accept(listener.accept().unwrap().0, None);
        assert!(matches!(heard, Err(SecureError::NotOurs)));
    }
}
