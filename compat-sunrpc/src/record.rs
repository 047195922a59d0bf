//! Record marking (RFC 5531, section 11): records over a byte stream, in fragments with a word before each
//! (bit 31: last of the record; the rest: length in bytes).

use std::io::{ErrorKind, Read, Write};
use xdr::Limits;

const LAST: u32 = 1 << 31;
/// Longest record taken by default.
pub(crate) const MAX_RECORD: usize = 64 << 20;
/// Memory is claimed as bytes come, in steps of this size at most.
const STEP: usize = 64 << 10;

/// What the values of a record of that length may take.
pub(crate) fn limits(max_record: usize) -> Limits {
    match max_record > MAX_RECORD {
        // A list takes thrice what its bytes do.
        true => Limits { memory: max_record.saturating_mul(3), ..Limits::DEFAULT },
        false => Limits::DEFAULT,
    }
}

/// Takes a stream of fragments apart; keeps what has come of a record while more is waited for.
#[derive(Debug)]
pub(crate) struct RecordReader {
    record: Vec<u8>,
    head: [u8; 4],
    head_len: usize,
    /// Bytes of the fragment that have not come yet.
    left: usize,
    last: bool,
    limit: usize,
}

impl RecordReader {
    /// For records up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> RecordReader {
        RecordReader { record: Vec::new(), head: [0; 4], head_len: 0, left: 0, last: false, limit }
    }

    /// Longest record taken, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Reads until a record is whole; `None` when the stream ends between records. A read that
    /// would block, or is timed out, comes out as an error, and the next call goes on where this
    /// one stopped.
    pub(crate) fn next(&mut self, stream: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
        let wrong = |what: String| std::io::Error::new(ErrorKind::InvalidData, what);
        loop {
            if self.left > 0 {
                let step = self.left.min(STEP);
                let at = self.record.len();
                self.record.resize(at + step, 0);
                let target = self.record.get_mut(at..).unwrap_or_default();
                let got = stream.read(target);
                self.record.truncate(at + *got.as_ref().unwrap_or(&0));
                match got {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(got) => self.left -= got,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if self.left == 0 && self.last {
                    self.last = false;
                    return Ok(Some(std::mem::take(&mut self.record)));
                }
                continue;
            }
            let rest = self.head.get_mut(self.head_len..).unwrap_or_default();
            match stream.read(rest) {
                Ok(0) if self.head_len == 0 && self.record.is_empty() => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.head_len += got,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.head_len < self.head.len() {
                continue;
            }
            let word = u32::from_be_bytes(self.head);
            self.head_len = 0;
            self.last = word & LAST != 0;
            self.left = (word & !LAST) as usize;
            if self.left == 0 {
                return Err(wrong("an empty fragment".into()));
            }
            if self.left > self.limit - self.record.len().min(self.limit) {
                let limit = self.limit;
                return Err(wrong(format!("a record longer than {limit} bytes; raise the limit")));
            }
        }
    }
}

/// Writes a record as one fragment. Its first four bytes must have been left free for the word.
pub(crate) fn write(stream: &mut impl Write, record: &mut [u8]) -> std::io::Result<()> {
    let len = record.len().saturating_sub(4);
    let word = u32::try_from(len).ok().filter(|len| len & LAST == 0);
    let (Some(word), Some(head)) = (word, record.first_chunk_mut::<4>()) else {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "a record longer than 2 GiB"));
    };
    *head = (word | LAST).to_be_bytes();
    stream.write_all(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives a few bytes at a time, and says that it would block in between.
    struct Dripping<'a>(&'a [u8], usize, bool);
    impl Read for Dripping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.2 = !self.2;
            if self.2 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let len = buffer.len().min(self.1);
            self.0.read(&mut buffer[..len])
        }
    }

    proptest! {
        #[test]
        fn records_come_whole_however_they_are_cut(
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..6),
            cut in 1usize..40, drip in 1usize..20,
        ) {
            let mut bytes = Vec::new();
            for record in &records {
                let pieces: Vec<&[u8]> = record.chunks(cut).collect();
                for (at, piece) in pieces.iter().enumerate() {
                    let last = if at + 1 == pieces.len() { LAST } else { 0 };
                    bytes.extend((piece.len() as u32 | last).to_be_bytes());
                    bytes.extend_from_slice(piece);
                }
            }
            let mut reader = RecordReader::new(1000);
            let mut stream = Dripping(&bytes, drip, false);
            let mut got = Vec::new();
            loop {
                match reader.next(&mut stream) {
                    Ok(Some(record)) => got.push(record),
                    Ok(None) => break,
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            prop_assert_eq!(got, records);
        }

        #[test]
        fn any_bytes_end_in_records_or_an_error(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = RecordReader::new(100);
            let mut rest = &noise[..];
            while let Ok(Some(record)) = reader.next(&mut rest) {
                prop_assert!(record.len() <= 100);
            }
        }
    }

    #[test]
    fn a_record_beyond_the_limit_and_an_empty_fragment_are_refused() {
        let error = |bytes: &[u8]| RecordReader::new(10).next(&mut &bytes[..]).unwrap_err();
        assert!(error(&[0x80, 0, 0, 11]).to_string().contains("10 bytes"));
        assert!(error(&[0x7f, 0xff, 0xff, 0xff]).to_string().contains("10 bytes"));
        assert_eq!(error(&[0x80, 0, 0, 0]).kind(), ErrorKind::InvalidData);
        assert_eq!(error(&[0x80, 0, 0, 5, 1]).kind(), ErrorKind::UnexpectedEof);
    }
}
