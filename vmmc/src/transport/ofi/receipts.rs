//! What is said over the socket beside a fabric: nothing, unless one end has sent something that it does not know to have come.
//!
//! A fabric may lose its own connection and tell nobody (libfabric's `net`), or make a new one and lose what went with the
//! old one (`ofi_rxm`). So who has sent asks a while later ([`silence::LOOK`]), over the socket, which records have come and which are taken.
//! Where two answers that are [`silence::LIMIT`] apart say that the same ones have not, the fabric has lost them, and the connection
//! ends. An end that does not answer is judged by nobody: it may be stopped. A node that has vanished acknowledges no question.
//!
//! ```text
//!   u32 kind: 0 a question, 1 an answer · u32 first record that has not come · u32 first that is not taken     little-endian
//! ```

use crate::transport::net::silence::{self, Owed};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::AsFd;
use std::time::Instant;

/// Bytes of a saying.
const LEN: usize = 12;

/// What one end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saying {
    /// Which records have come?
    Ask,
    /// All before `come` have, all before `taken` are taken.
    Answer {
        /// Number of a record.
        come: u32,
        /// Number of a record.
        taken: u32,
    },
}

impl Saying {
    fn encode(self) -> [u8; LEN] {
        let words = match self {
            Saying::Ask => [0, 0, 0],
            Saying::Answer { come, taken } => [1, come, taken],
        };
        let mut bytes = [0; LEN];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&u32::to_le_bytes(word));
        }
        bytes
    }

    fn decode(bytes: [u8; LEN]) -> Option<Saying> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let numbers = [[e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes);
        match (u32::from_le_bytes([a, b, c, d]), numbers) {
            (0, [0, 0]) => Some(Saying::Ask),
            (1, [come, taken]) => Some(Saying::Answer { come, taken }),
            _ => None,
        }
    }
}

/// Something that is asked for receipts: [`super::fifo::Fifo`].
pub trait Carrier {
    /// Whether something may not have come.
    ///
    /// # Errors
    /// The connection is lost.
    fn is_owed(&mut self) -> Result<bool, Errno>;
    /// A question, unless one is open.
    fn ask(&mut self) -> Option<Saying>;
    /// Hears what the other end says, and answers.
    ///
    /// # Errors
    /// What was sent is lost; nonsense.
    fn hear(&mut self, saying: Saying, now: Instant) -> Result<Option<Saying>, Errno>;
}

/// Receives of one look at the socket.
const MOST_HEARD: usize = 16;

/// One end's reading of the socket.
#[derive(Debug, Default)]
pub struct Receipts {
    /// Part of a saying.
    part: [u8; LEN],
    filled: usize,
}

impl Receipts {
    /// Hears what is said over the socket, and answers. Does not wait, and leaves what is more than a few for the next time: who
    /// says without end is not to keep others waiting.
    ///
    /// # Errors
    /// The socket has ended; what was sent is lost; nonsense.
    pub fn hear(&mut self, socket: impl AsFd, carrier: &mut impl Carrier) -> Result<(), Errno> {
        for _ in 0..MOST_HEARD {
            let room = self.part.get_mut(self.filled..).unwrap_or_default();
            match rustix::net::recv(&socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((len, _)) => self.filled += len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
            if self.filled == LEN {
                self.filled = 0;
                let saying = Saying::decode(self.part).ok_or(Errno::PROTO)?;
                if let Some(answer) = carrier.hear(saying, Instant::now())? {
                    say(&socket, answer)?;
                }
            }
        }
        Ok(())
    }
}

/// An end that does not read what it is told is told nothing more, and has no use of the connection.
fn say(socket: impl AsFd, saying: Saying) -> Result<(), Errno> {
    let bytes = saying.encode();
    match rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        LEN => Ok(()),
        _ => Err(Errno::NOBUFS),
    }
}

/// Looks after an end that something was sent to a while ago.
///
/// # Errors
/// The connection is lost.
pub fn look(socket: impl AsFd, carrier: &mut impl Carrier) -> Result<Owed, Errno> {
    if silence::owed(&socket) == Owed::Lost {
        return Ok(Owed::Lost);
    }
    if !carrier.is_owed()? {
        return Ok(Owed::Nothing);
    }
    if let Some(question) = carrier.ask() {
        say(socket, question)?;
    }
    Ok(Owed::Something)
}

/// Whether the other end has ended the socket. What it says there is left.
#[must_use]
pub(super) fn has_ended(socket: impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = rustix::net::recv(socket, &mut [0u8], flags);
    !matches!(peeked, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Counts questions, and answers them.
    #[derive(Default)]
    struct Asked(Vec<Saying>);

    impl Carrier for Asked {
        fn is_owed(&mut self) -> Result<bool, Errno> {
            Ok(true)
        }
        fn ask(&mut self) -> Option<Saying> {
            Some(Saying::Ask)
        }
        fn hear(&mut self, saying: Saying, _: Instant) -> Result<Option<Saying>, Errno> {
            self.0.push(saying);
            Ok((saying == Saying::Ask).then_some(Saying::Answer { come: 7, taken: 5 }))
        }
    }

    fn pair() -> (rustix::fd::OwnedFd, rustix::fd::OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_question_is_answered_and_the_answer_heard() {
        let (a, b) = pair();
        let (mut at_a, mut at_b) = (Asked::default(), Asked::default());
        let (mut hears_a, mut hears_b) = (Receipts::default(), Receipts::default());
        assert_eq!(look(&a, &mut at_a), Ok(Owed::Something));
        hears_b.hear(&b, &mut at_b).unwrap();
        hears_a.hear(&a, &mut at_a).unwrap();
        assert_eq!(at_b.0, [Saying::Ask]);
        assert_eq!(at_a.0, [Saying::Answer { come: 7, taken: 5 }]);
        drop(b);
        assert_eq!(hears_a.hear(&a, &mut at_a), Err(Errno::CONNRESET));
    }

    #[test]
    fn sayings_may_come_byte_by_byte_and_many_at_once() {
        let (a, b) = pair();
        let (mut heard, mut hears) = (Asked::default(), Receipts::default());
        let sayings =
            [Saying::Answer { come: 1, taken: u32::MAX }, Saying::Answer { come: 2, taken: 0 }];
        let bytes: Vec<u8> = sayings.iter().flat_map(|saying| saying.encode()).collect();
        for byte in &bytes {
            rustix::io::write(&a, &[*byte]).unwrap();
            hears.hear(&b, &mut heard).unwrap();
        }
        rustix::io::write(&a, &bytes).unwrap();
        hears.hear(&b, &mut heard).unwrap();
        assert_eq!(heard.0, sayings.repeat(2));
    }

    #[test]
    fn nonsense_ends_the_connection() {
        for bytes in [[2, 0, 0], [0, 1, 0], [0, 0, 1], [u32::MAX; 3]] {
            let (a, b) = pair();
            rustix::io::write(&a, bytes.map(u32::to_le_bytes).as_flattened()).unwrap();
            let heard = Receipts::default().hear(&b, &mut Asked::default());
            assert_eq!(heard, Err(Errno::PROTO), "{bytes:?}");
        }
    }

    /// An end that asks and does not listen.
    #[test]
    fn who_does_not_read_its_answers_is_told_no_more() {
        let (a, b) = pair();
        rustix::net::sockopt::set_socket_send_buffer_size(&b, 1).unwrap();
        let mut hears = Receipts::default();
        let ended = (0..100_000).find_map(|_| {
            rustix::io::write(&a, &Saying::Ask.encode()).unwrap();
            hears.hear(&b, &mut Asked::default()).err()
        });
        assert_eq!(ended, Some(Errno::AGAIN));
    }
}
