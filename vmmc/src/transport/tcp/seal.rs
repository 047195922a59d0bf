//! The bytes of a data connection over TCP, sealed: what an eavesdropper reads is noise, and what he changes is found.
//!
//! ```text
//!   record   length of the rest u16 (network order) | 1 to 16384 bytes, encrypted | tag, 16 bytes
//! ```
//!
//! ChaCha20-Poly1305 (RFC 8439). Each direction has a key of its own, made for this connection by the daemon that
//! opens it and sent within the sealed set-up; the nonce is the record's number, which never comes twice: a record
//! that is missing, repeated or moved does not open. The length is what the tag covers beside the bytes.

use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Most bytes of a record, sealed into it.
const MOST: usize = 16 << 10;
const LENGTH: usize = 2;
const TAG: usize = 16;

/// Both keys of a connection. Never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealKeys {
    /// Of what the importing process sends.
    pub to_interface: [u8; 32],
    /// Of what the interface sends.
    pub to_process: [u8; 32],
}

impl std::fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKeys(..)")
    }
}

/// A cipher, and the number of the next record.
struct Numbered {
    cipher: ChaCha20Poly1305,
    next: u64,
}

impl Numbered {
    fn new(key: &[u8; 32]) -> Numbered {
        Numbered { cipher: ChaCha20Poly1305::new(Key::from_slice(key)), next: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        for (to, from) in nonce.iter_mut().skip(4).zip(self.next.to_le_bytes()) {
            *to = from;
        }
        self.next += 1;
        nonce.into()
    }
}

impl std::fmt::Debug for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbered").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Seals what is sent.
#[derive(Debug)]
pub struct Sealer {
    cipher: Numbered,
    /// A record on its way, of which the first `sent` bytes are gone.
    record: Vec<u8>,
    sent: usize,
    /// Bytes that are sealed in it.
    holds: usize,
}

impl Sealer {
    /// With a direction's key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Sealer {
        Sealer { cipher: Numbered::new(key), record: Vec::new(), sent: 0, holds: 0 }
    }

    /// Sends a record of the first bytes of two pieces; how many. `write` sends what there is room for.
    ///
    /// # Errors
    /// As `write`. After [`Errno::AGAIN`] the caller must come again with the same bytes, though there may be more of
    /// them by then: a part of their record may be gone.
    pub fn send(
        &mut self,
        front: &[u8],
        back: &[u8],
        mut write: impl FnMut(&[u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        if self.sent == self.record.len() {
            self.seal(front, back);
        }
        while let Some(rest) = self.record.get(self.sent..).filter(|rest| !rest.is_empty()) {
            self.sent += write(rest)?;
        }
        Ok(self.holds)
    }

    fn seal(&mut self, front: &[u8], back: &[u8]) {
        let front = front.get(..front.len().min(MOST)).unwrap_or_default();
        let back = back.get(..back.len().min(MOST - front.len())).unwrap_or_default();
        let holds = front.len() + back.len();
        let length = ((holds + TAG) as u16).to_be_bytes();
        self.record.clear();
        self.record.extend_from_slice(&length);
        self.record.extend_from_slice(front);
        self.record.extend_from_slice(back);
        let nonce = self.cipher.nonce();
        let bytes = self.record.get_mut(LENGTH..).unwrap_or_default();
        match self.cipher.cipher.encrypt_in_place_detached(&nonce, &length, bytes) {
            Ok(tag) => self.record.extend_from_slice(&tag),
            Err(_) => unreachable!("a record is shorter than what the cipher can take"),
        }
        (self.sent, self.holds) = (0, holds);
    }
}

/// Opens what comes.
#[derive(Debug)]
pub struct Opener {
    cipher: Numbered,
    /// What has come, records whole or not, from `at` on.
    raw: Vec<u8>,
    at: usize,
    /// An open record, within `raw`: first byte and bytes that nobody has taken.
    open: (usize, usize),
    /// One did not open: none behind it is to.
    broken: bool,
}

impl Opener {
    /// With a direction's key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Opener {
        Opener { cipher: Numbered::new(key), raw: Vec::new(), at: 0, open: (0, 0), broken: false }
    }

    /// Whether a wait on the socket would notice what comes next: nothing lies here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.1 == 0 && self.whole().is_none()
    }

    /// Whether something was changed on its way, or is no record.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Length of the record that is here whole, after its length word.
    fn whole(&self) -> Option<usize> {
        let rest = self.raw.get(self.at..)?;
        let len = usize::from(u16::from_be_bytes(*rest.first_chunk::<LENGTH>()?));
        (rest.len() >= LENGTH + len).then_some(len)
    }

    /// Bytes that are here and open; empty at the end of the connection. `read` receives what is there.
    ///
    /// # Errors
    /// As `read`, [`Errno::AGAIN`] also when a record is not here whole; [`Errno::BADMSG`] when one was changed on
    /// its way, or is none: the connection is of no more use.
    pub fn front(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<&[u8], Errno> {
        while self.open.1 == 0 {
            if self.broken {
                return Err(Errno::BADMSG);
            }
            if let Some(len) = self.whole() {
                self.broken = self.open(len).is_err();
                continue;
            }
            self.raw.drain(..self.at);
            self.at = 0;
            let filled = self.raw.len();
            self.raw.resize(filled + MOST, 0);
            let got = read(self.raw.get_mut(filled..).unwrap_or_default());
            self.raw.truncate(filled + *got.as_ref().unwrap_or(&0));
            if got? == 0 {
                // Half a record before the end is no end that anybody sent, and is one.
                return Ok(&[]);
            }
        }
        let (at, len) = self.open;
        Ok(self.raw.get(at..at + len).unwrap_or_default())
    }

    fn open(&mut self, len: usize) -> Result<(), Errno> {
        let Some(holds) = len.checked_sub(TAG).filter(|holds| (1..=MOST).contains(holds)) else {
            return Err(Errno::BADMSG);
        };
        let nonce = self.cipher.nonce();
        let first = self.at + LENGTH;
        let length = (len as u16).to_be_bytes();
        let record = self.raw.get_mut(first..first + len).unwrap_or_default();
        let Some((bytes, tag)) = record.split_at_mut_checked(holds) else {
            return Err(Errno::BADMSG);
        };
        let tag = Tag::clone_from_slice(tag);
        let opened = self.cipher.cipher.decrypt_in_place_detached(&nonce, &length, bytes, &tag);
        opened.map_err(|_| Errno::BADMSG)?;
        self.at = first + len;
        self.open = (first, holds);
        Ok(())
    }

    /// So many of the bytes of [`Opener::front`] are taken.
    pub fn take(&mut self, count: usize) {
        let (at, len) = self.open;
        let count = count.min(len);
        self.open = (at + count, len - count);
    }

    /// Takes bytes by copying them; 0 at the end.
    ///
    /// # Errors
    /// As [`Opener::front`].
    pub fn receive(
        &mut self,
        room: &mut [u8],
        read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let front = self.front(read)?;
        let len = front.len().min(room.len());
        for (to, from) in room.iter_mut().zip(front) {
            *to = *from;
        }
        self.take(len);
        Ok(len)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const KEY: [u8; 32] = [7; 32];

    /// A connection that takes and gives a few bytes at a time, as `steps` says; 0: none now.
    #[derive(Default)]
    struct Pipe {
        bytes: VecDeque<u8>,
        steps: VecDeque<usize>,
        ended: bool,
    }

    impl Pipe {
        fn step(&mut self) -> usize {
            self.steps.pop_front().unwrap_or(usize::MAX)
        }

        fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            let len = bytes.len().min(self.step());
            self.bytes.extend(bytes.iter().take(len));
            if len == 0 { Err(Errno::AGAIN) } else { Ok(len) }
        }

        fn read(&mut self, room: &mut [u8]) -> Result<usize, Errno> {
            let len = room.len().min(self.step()).min(self.bytes.len());
            for (to, from) in room.iter_mut().zip(self.bytes.drain(..len)) {
                *to = from;
            }
            if len == 0 && !self.ended { Err(Errno::AGAIN) } else { Ok(len) }
        }
    }

    proptest! {
        /// However the kernel cuts them, the bytes come out as they went in.
        #[test]
        fn what_was_sealed_opens_however_it_was_cut(
            pieces in prop::collection::vec((0usize..40_000, 0usize..100), 1..6),
            cuts in prop::collection::vec(0usize..20_000, 0..60),
            rooms in prop::collection::vec(1usize..30_000, 1..20),
        ) {
            let (mut sealer, mut opener) = (Sealer::new(&KEY), Opener::new(&KEY));
            let mut pipe = Pipe { steps: cuts.into(), ..Pipe::default() };
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            let mut rooms = rooms.into_iter().cycle();
            for (turn, (front, back)) in pieces.into_iter().enumerate() {
                let front: Vec<u8> = (0..front).map(|i| (i + turn) as u8).collect();
                let back = vec![turn as u8; back];
                let all = [front.as_slice(), &back].concat();
                expected.extend_from_slice(&all);
                let mut sent = 0;
                while sent < all.len() {
                    let front = front.get(sent..).unwrap_or_default();
                    let back = &back[sent.saturating_sub(all.len() - back.len())..];
                    match sealer.send(front, back, |bytes| pipe.write(bytes)) {
                        Ok(len) => sent += len,
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                    let mut room = vec![0; rooms.next().unwrap()];
                    match opener.receive(&mut room, |room| pipe.read(room)) {
                        Ok(len) => found.extend_from_slice(&room[..len]),
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                }
            }
            pipe.ended = true;
            pipe.steps.clear();
            let mut room = vec![0; 5000];
            loop {
                let len = opener.receive(&mut room, |room| pipe.read(room)).unwrap();
                if len == 0 {
                    break;
                }
                found.extend_from_slice(&room[..len]);
            }
            prop_assert!(opener.is_empty());
            prop_assert_eq!(found, expected);
        }
    }

    /// Two records.
    fn sealed() -> Vec<u8> {
        let (mut sealer, mut pipe) = (Sealer::new(&KEY), Pipe::default());
        for text in [b"first record", b"other record"] {
            sealer.send(text, &[], |bytes| pipe.write(bytes)).unwrap();
        }
        pipe.bytes.into()
    }

    fn opens(bytes: &[u8], key: &[u8; 32]) -> Result<Vec<u8>, Errno> {
        let mut pipe = Pipe { bytes: bytes.iter().copied().collect(), ..Pipe::default() };
        pipe.ended = true;
        let (mut opener, mut found, mut room) = (Opener::new(key), Vec::new(), [0; 100]);
        loop {
            match opener.receive(&mut room, |room| pipe.read(room))? {
                0 => return Ok(found),
                len => found.extend_from_slice(&room[..len]),
            }
        }
    }

    #[test]
    fn what_was_changed_repeated_left_out_or_sealed_with_another_key_does_not_open() {
        let bytes = sealed();
        assert_eq!(opens(&bytes, &KEY).unwrap(), b"first recordother record");
        assert_eq!(opens(&bytes, &[8; 32]), Err(Errno::BADMSG));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            // A length that promises more than comes is an end within a record.
            let opened = opens(&changed, &KEY);
            let end_in_a_record = matches!(&opened, Ok(found) if found.len() < 24);
            assert!(opened == Err(Errno::BADMSG) || end_in_a_record, "{at}: {opened:?}");
        }
        let half = bytes.len() / 2;
        assert_eq!(opens(&bytes[half..], &KEY), Err(Errno::BADMSG), "the first is missing");
        let twice = [&bytes[..half], &bytes[..half]].concat();
        assert_eq!(opens(&twice, &KEY), Err(Errno::BADMSG));
        assert!(!bytes.windows(6).any(|window| window == b"record"), "it can be read");
    }

    #[test]
    fn lengths_that_no_record_has_are_refused() {
        for len in [0u16, 15, 16, 16_401, u16::MAX] {
            let mut bytes = len.to_be_bytes().to_vec();
            bytes.resize(2 + usize::from(len), 0);
            assert_eq!(opens(&bytes, &KEY), Err(Errno::BADMSG), "{len}");
        }
    }
}
