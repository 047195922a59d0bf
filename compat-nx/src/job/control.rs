//! The channel from a process of an application to its supervisor.
//!
//! A `SOCK_SEQPACKET` pair; each packet is one [`Message`], postcard-encoded. The supervisor says
//! [`Message::Ending`] only. The end of file tells either side that the other is gone.

use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc::sys::{Fd, packet};

/// Longest packet.
pub const MAX_PACKET: usize = 4096;

/// Longest text of [`Message::Abort`]; a longer one is cut at a character.
pub const MAX_TEXT: usize = 2048;

/// The host process, in [`Message::Kill`].
pub const HOST: i32 = -2;

/// Longest [`Order`]: arguments and environment, as much as goes.
pub const MAX_ORDER: usize = 1 << 20;

/// A program to start on another host, as the first process of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Which host.
    pub host: String,
    /// Which node.
    pub node: u32,
    /// Its process type.
    pub ptype: i32,
    /// A path, or a name that is searched for.
    pub path: Vec<u8>,
    /// Its arguments, its own name among them.
    pub arguments: Vec<Vec<u8>>,
    /// What its place is: variables of [`env`](super::env).
    pub place: Vec<(String, String)>,
    /// Its environment, `NAME=value` each.
    pub environment: Vec<Vec<u8>>,
    /// Whether that is all of it, and not what comes on top of the host's own. `VMMC_` variables are always the host's own.
    pub whole: bool,
    /// Where it begins.
    pub directory: Vec<u8>,
}

/// What became of an [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It runs, with this process id on its host.
    Started(i32),
    /// It does not, by this number of the system's.
    Failed(i32),
    /// It has ended like this; the last answer.
    Ended(super::supervise::Ended),
}

/// What a process tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// This process is the host: it starts the nodes itself.
    Host,
    /// This process started another one. The packet carries its pidfd and its control channel.
    Add {
        /// Node of the new process; -1 for a host.
        node: i32,
        /// Its process type.
        ptype: i32,
        /// Its process id, for people.
        pid: i32,
    },
    /// This process wants a program started on another host: an [`Order`] of so many bytes. The packet carries a file that
    /// holds it, and a socket for the [`Answer`]s; when that one is closed, the new process is ended.
    Load {
        /// At most [`MAX_ORDER`].
        len: u32,
    },
    /// `setptype`: the process is known by another type from now on.
    Ptype(i32),
    /// The application cannot go on: everyone is to end, the launcher with this code.
    Abort {
        /// 1 to 255.
        code: u8,
        /// Why, without a newline at the end. Empty: the process has said all itself.
        text: String,
    },
    /// Another node has gone without a word: this process ends with this code. The cause is the end
    /// of that node, of which the supervisor hears by itself.
    Lost {
        /// Which node.
        node: u32,
        /// 1 to 255.
        code: u8,
    },
    /// `killproc` and `killcube`: end these processes; -1 is all.
    Kill {
        /// Node, -1 for all, or [`HOST`].
        node: i32,
        /// Process type, -1 for all.
        ptype: i32,
    },
    /// The process leaves in the ordinary way, by `exit` or by returning from `main`.
    Finished,
    /// From the supervisor: this process is about to be ended because another one asked for it; the
    /// rest goes on.
    Ending {
        /// Its node. Of an application on several machines two processes may have one id.
        node: u32,
        /// Its process id.
        pid: i32,
    },
    /// This process is about to reap others, and nobody can tell after that how they ended. The packet carries a socket, to
    /// which goes a byte when the supervisor has looked at all that have ended by now.
    Reaping,
}

/// Makes a channel: the process's end, the supervisor's end.
///
/// # Errors
/// As socketpair(2): no descriptors left.
pub fn pair() -> rustix::io::Result<(Fd, Fd)> {
    packet::pair()
}

/// Whether an inherited descriptor is a control channel and not something else that took its
/// number after a program between closed it.
#[must_use]
pub fn is_channel(fd: BorrowedFd<'_>) -> bool {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
}

/// Tells the supervisor; waits when its queue is full.
///
/// # Errors
/// As sendmsg(2): `EPIPE` or `ECONNRESET` when the supervisor is gone.
pub fn tell(
    channel: impl AsFd,
    message: &Message,
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut buffer = [0; MAX_PACKET];
    let short;
    let message = match message {
        Message::Abort { code, text } if text.len() > MAX_TEXT => {
            let cut = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            short = Message::Abort { code: *code, text: text[..cut].to_owned() };
            &short
        }
        message => message,
    };
    let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| rustix::io::Errno::MSGSIZE)?;
    packet::send(channel, bytes, fds, rustix::net::SendFlags::empty())
}

/// The same without waiting: who does not listen misses it.
pub fn try_tell(channel: impl AsFd, message: &Message) {
    let mut buffer = [0; MAX_PACKET];
    if let Ok(bytes) = postcard::to_slice(message, &mut buffer) {
        let _ = packet::send(channel, bytes, &[], rustix::net::SendFlags::DONTWAIT);
    }
}

/// What one side finds on a channel.
#[derive(Debug)]
pub enum Heard {
    /// A message, and the descriptors that came with it.
    Message(Message, packet::Fds),
    /// Nothing at the moment.
    Nothing,
    /// The process has closed its end, or does not follow the protocol.
    Closed,
}

/// Looks for a message without waiting. A packet that is no message closes the channel.
#[must_use]
pub fn hear(channel: impl AsFd) -> Heard {
    let mut buffer = [0; MAX_PACKET];
    let mut receive = || packet::receive(&channel, &mut buffer, rustix::net::RecvFlags::DONTWAIT);
    let received = match receive() {
        // Said once, when the other side has gone with something of ours unread; its last words are behind that.
        Err(rustix::io::Errno::CONNRESET) => receive(),
        received => received,
    };
    match received {
        Ok(Some((len, fds))) => match postcard::from_bytes(&buffer[..len]) {
            Ok(message) => Heard::Message(message, fds),
            Err(_) => Heard::Closed,
        },
        Err(rustix::io::Errno::AGAIN) => Heard::Nothing,
        Ok(None) | Err(_) => Heard::Closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_told_with_its_descriptors() {
        let (process, supervisor) = pair().unwrap();
        let all = [
            Message::Host,
            Message::Add { node: -1, ptype: 7, pid: 1 },
            Message::Load { len: 5 },
            Message::Ptype(3),
            Message::Abort { code: 1, text: "why".into() },
            Message::Lost { node: 2, code: 1 },
            Message::Kill { node: -1, ptype: -1 },
            Message::Finished,
            Message::Reaping,
            Message::Ending { node: 1, pid: 9 },
        ];
        for message in &all {
            tell(&process, message, &[process.as_fd()]).unwrap();
        }
        for message in all {
            let Heard::Message(heard, mut fds) = hear(&supervisor) else { panic!() };
            assert_eq!(heard, message);
            assert!(is_channel(fds.take().unwrap().as_fd()));
        }
        assert!(matches!(hear(&supervisor), Heard::Nothing));
        drop(process);
        assert!(matches!(hear(&supervisor), Heard::Closed));
    }

    #[test]
    fn the_last_words_of_one_that_has_not_read_all_are_heard() {
        let (process, supervisor) = pair().unwrap();
        try_tell(&supervisor, &Message::Ending { node: 1, pid: 9 });
        tell(&process, &Message::Finished, &[]).unwrap();
        drop(process);
        assert!(matches!(hear(&supervisor), Heard::Message(Message::Finished, _)));
        assert!(matches!(hear(&supervisor), Heard::Closed));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_nonsense_closes_the_channel() {
        let (process, supervisor) = pair().unwrap();
        let text = format!("x{}", "é".repeat(MAX_TEXT));
        tell(&process, &Message::Abort { code: 1, text: text.clone() }, &[]).unwrap();
        let Heard::Message(Message::Abort { text: cut, .. }, _) = hear(&supervisor) else {
            panic!()
        };
        assert!(cut.len() >= MAX_TEXT - 1 && cut.len() <= MAX_TEXT && text.starts_with(&cut));
        packet::send(&process, &[0xff; 30], &[], rustix::net::SendFlags::empty()).unwrap();
        assert!(matches!(hear(&supervisor), Heard::Closed));
    }

    #[test]
    fn a_file_or_another_socket_is_no_channel() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_channel(file.as_fd()));
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_channel(stream.as_fd()));
    }
}
