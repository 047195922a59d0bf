//! After a crash of the daemon: what its clients say to the next one, and what they hear.
//!
//! Links need no daemon, so a crash stops nothing that is set up. The next daemon starts with empty tables and
//! a new *incarnation*; its clients fill the tables again. Nothing here is needed after `vmmcd
//! --replace`: there the successor inherits the very sockets, and clients notice nothing.
//!
//! # What a client does
//! 1. Its socket ends (end of file, `ECONNRESET` or `EPIPE`). It connects again, starting a
//!    daemon if it may, and shakes hands.
//! 2. [`Hello`] with `resume: Some(Resume { client, session })` as last welcomed, and both descriptors
//!    again, as the first time (the same process page, the same doorbell).
//! 3. [`Welcome`]: `client` is the old number if it was still free, else a new one. `session` and
//!    `incarnation` are new: keep them for the next time. `resumed` is false: everything is to be announced.
//! 4. For each live export: [`Request::Export`] with `restore: Some(old number)` and the same
//!    memory. [`Event::Exported`] carries the old number if it was free (it is, unless somebody
//!    lies), else a new one. A refusal (`NameTaken`, when somebody was faster; quotas) means the
//!    export is gone: treat it as revoked.
//! 5. For each live import: [`Request::Import`] with `restore: Some(link)`, its link segment,
//!    and name, process, rights and token as at first. `timeout_ms` is raised to [`GRACE`] if less. It is matched
//!    only with an export of that name that was itself announced with `restore`, so never with another
//!    memory that happens to have the name.
//!    * [`Event::Imported`] with the same `link` and the same `export`: the link lives on; the
//!      descriptors are what the client has already: close them. (Another `export`, or exporter
//!      `pid`: it is not the memory that is mapped. Send [`Request::CloseLink`] and end the link as
//!      [`CloseReason::PeerDied`]. Another `link`: its number was taken; take the new number.)
//!    * [`Event::Refused`]: the exporter did not come back in time, or no longer grants the
//!      rights. End the link as [`CloseReason::PeerDied`].
//! 6. Imports that were waiting when the daemon died are sent again as they were, without
//!    `restore`, with what is left of their timeout.
//!
//! Processes are introduced to each other anew, with the first link that comes back: a client keeps what
//! its links use, and forgets the rest of what the daemon of before introduced, before it hears
//! of any link from this one.
//!
//! Steps 4 and 5 in this order, all requests at once, without waiting for each answer.
//!
//! # What an exporter hears
//! [`Event::LinkOpened`] for each link that its importer has announced again. What makes it the same link is
//! its segment: the same file, from a process of the same `importer.pid`, for the same export.
//! * There is such a link: it lives on, under the number of this message (the old one, as a rule);
//!   close the descriptors, and ring the importer once.
//! * There is none: a new link. If its number is that of another link, which nobody has claimed yet,
//!   that one keeps waiting for its claim.
//!
//! A link that no `LinkOpened` has confirmed within [`EXPORTER_GRACE`] after the exporter's
//! [`Welcome`] is ended by the exporter itself as [`CloseReason::PeerDied`]; the daemon knows
//! nothing of it. A `LinkOpened` that comes later is that of a new link as far as the exporter is
//! concerned.
//!
//! # Numbers
//! Numbers are made of the incarnation and a count, so those of before a crash never meet new ones. Only numbers of
//! earlier incarnations are accepted back. They are not secrets and prove nothing: every right is checked
//! again against the kernel's word on who asks. What a liar can gain is the number itself,
//! before its owner comes back: then the owner gets another one, and its link goes on under that.
//!
//! # Sockets
//! Upgraded TCP connections live on without the daemon; the next one does not know them
//! (`AttachSocket` answers `Conflict`), and nothing is announced again.
//!
//! [`Hello`]: vmmc::control::message::Hello
//! [`Welcome`]: vmmc::control::message::Welcome
//! [`Request::Export`]: vmmc::control::message::Request::Export
//! [`Request::Import`]: vmmc::control::message::Request::Import
//! [`Request::CloseLink`]: vmmc::control::message::Request::CloseLink
//! [`Event::Exported`]: vmmc::control::message::Event::Exported
//! [`Event::Imported`]: vmmc::control::message::Event::Imported
//! [`Event::Refused`]: vmmc::control::message::Event::Refused
//! [`Event::LinkOpened`]: vmmc::control::message::Event::LinkOpened
//! [`CloseReason::PeerDied`]: vmmc::control::message::CloseReason::PeerDied

use std::time::Duration;

/// How long a restored import waits for its exporter to come back.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long an exporter waits for its importers to come back. Longer than [`GRACE`]: importers may find the
/// daemon later than the exporter did.
pub const EXPORTER_GRACE: Duration = Duration::from_secs(5);
