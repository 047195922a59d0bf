//! Names and numbers: who exports, under which name, with which rights.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// Number the daemon gives to one client connection (one process). Unique for a daemon's
/// lifetime and kept over its hot restart; unlike a process id it is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Number the daemon gives to one export. Never used again by the same daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExportId(pub u64);

/// Number the daemon gives to one import-export mapping. Never used again by the same daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkId(pub u64);

/// Number a client chooses to match an answer to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A process as others see it: the kernel's view (`SO_PEERCRED`) at the time it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerInfo {
    /// The daemon's number for the process.
    pub client: ClientId,
    /// Process id in the daemon's pid namespace.
    pub pid: u32,
    /// Effective user id when it connected.
    pub uid: u32,
    /// Effective group id when it connected.
    pub gid: u32,
}

/// Text names that begin with this are the daemon's own: nobody else may export under one.
pub const RESERVED: &str = "vmmcd/";

/// Longest text name of an export, in bytes of UTF-8.
pub const NAME_MAX_BYTES: usize = 255;

/// Name of an export (V7).
///
/// A number is unique per exporting *process*, as in the SHRIMP base library, so an importer
/// gives the process too. A text is unique per *node*, so it suffices alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Name {
    /// Chosen by the exporter, unique in its process.
    Number(u32),
    /// Chosen by the exporter, unique on the node; 1 to [`NAME_MAX_BYTES`] bytes, no NUL or
    /// control characters.
    Text(String),
}

impl From<u32> for Name {
    fn from(number: u32) -> Self {
        Name::Number(number)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Name::Text(text.to_owned())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Name::Text(text)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Number(number) => write!(f, "#{number}"),
            Name::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl Name {
    /// Whether the name is one of the daemon's own ([`RESERVED`]).
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        matches!(self, Name::Text(text) if text.starts_with(RESERVED))
    }

    /// Whether the name may be used: see [`Name::Text`]. Numbers always may.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match self {
            Name::Number(_) => true,
            Name::Text(text) => {
                !text.is_empty()
                    && text.len() <= NAME_MAX_BYTES
                    && !text.chars().any(char::is_control)
            }
        }
    }
}

bitflags! {
    /// What an importer may do with an export.
    ///
    /// A processor has no write-only pages: who may write can also read. The safe API still
    /// refuses a read through an import that was not granted [`Rights::READ`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct Rights: u32 {
        /// Deliberate update into the buffer, with or without notification.
        const WRITE = 1;
        /// Remote read of the buffer.
        const READ = 2;
        /// Automatic update binding to the buffer (V12).
        const BIND = 4;
    }
}

impl Rights {
    /// The words for these rights: `write`, `read`, `bind`.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        [(Rights::WRITE, "write"), (Rights::READ, "read"), (Rights::BIND, "bind")]
            .into_iter()
            .filter(move |&(right, _)| self.contains(right))
            .map(|(_, word)| word)
    }
}

/// `write+read`, or `nothing`.
impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, word) in self.words().enumerate() {
            write!(f, "{}{word}", if at == 0 { "" } else { "+" })?;
        }
        if self.words().next().is_none() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// Whom a [`Grant`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Who {
    /// Every process that can reach the daemon.
    Anyone,
    /// Processes of the exporter's own user.
    SameUser,
    /// Processes of this effective user id.
    User(u32),
    /// Processes with this group id, effective or supplementary; of another node the effective one alone counts, and only of users that
    /// are mapped to their own number.
    Group(u32),
    /// The process with this id, as the daemon sees it, for as long as it lives.
    Process(u32),
}

/// One entry of an export's access list. A caller's rights are the union of all entries that
/// match it; an export without entries can be imported by nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// Whom this entry is for.
    pub who: Who,
    /// What they may do.
    pub rights: Rights,
}

/// A secret that an importer must present when the export asks for one, on top of a matching
/// [`Grant`]. Compared in constant time, never logged.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(pub [u8; 16]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Whether two tokens are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, other: &Token) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0u8, |acc, (a, b)| acc | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_shown_as_words() {
        assert_eq!(Rights::all().to_string(), "write+read+bind");
        assert_eq!(Rights::READ.to_string(), "read");
        assert_eq!(Rights::empty().to_string(), "nothing");
    }
}
