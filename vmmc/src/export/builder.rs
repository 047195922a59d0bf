//! How memory is exported.

use super::{Export, ExportDraft, ExportSpec, Mode};
use crate::error::ExportError;
use crate::handler::Called;
use crate::id::{Grant, Name, Rights, Token, Who};
use crate::mem::Region;
use crate::node::NodeInner;
use crate::node::control::{Answer, Draft, Failure};
use crate::notify::Notification;
use crate::sync::Mutex;
use std::sync::Arc;

/// An export in the making; see [`crate::Node::export`].
#[derive(Debug)]
#[must_use]
pub struct ExportBuilder {
    node: Arc<NodeInner>,
    region: Region,
    name: Option<Name>,
    grants: Vec<Grant>,
    token: Option<Token>,
    mode: Mode,
}

impl ExportBuilder {
    pub(crate) fn new(node: Arc<NodeInner>, region: Region) -> ExportBuilder {
        ExportBuilder {
            node,
            region,
            name: None,
            grants: Vec::new(),
            token: None,
            mode: Mode::Ignore,
        }
    }

    /// The name: a text, unique on the node, or a number, unique in this process (V7).
    pub fn name(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lets `who` do `rights`. May be repeated; without any, nobody can import.
    pub fn grant(mut self, who: Who, rights: Rights) -> Self {
        self.grants.push(Grant { who, rights });
        self
    }

    /// Asks importers for a secret, on top of a grant.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Calls `handler` with each notification (V19), and with the end of each link (V26). It runs in the
    /// thread that dispatches (see [`crate::Node::dispatch`]), after the data is in memory, one
    /// handler at a time in the process; it may send and signal, and should be brief.
    pub fn handler(mut self, handler: impl FnMut(Notification) + Send + 'static) -> Self {
        self.mode = Mode::Handler(Called::new(Box::new(handler)));
        self
    }

    /// Keeps notifications for [`Export::next_notification`]. They are fetched, not delivered, so
    /// [`crate::Node::block_notifications`] does not concern them.
    pub fn queue(mut self) -> Self {
        self.mode = Mode::Queue(Mutex::default());
        self
    }

    /// Makes the export known. Blocks until the daemon has answered.
    ///
    /// # Errors
    /// See [`ExportError`]; the region is dropped.
    pub fn open(self) -> Result<Export, ExportError> {
        self.node.local.check()?;
        let name = self.name.ok_or(ExportError::NoName)?;
        let spec = ExportSpec { name, grants: self.grants, token: self.token };
        let draft = ExportDraft {
            local: self.node.local.clone(),
            spec: spec.clone(),
            file: self.region.file().clone(),
            len: self.region.len(),
            mode: self.mode,
        };
        let (file, len) = (draft.file.clone(), draft.len as u64);
        let make = |request| spec.request(request, len, None);
        let control = &self.node.control;
        let _quiet = control.quiet();
        let id = control.ask(&self.node, make, vec![file], Draft::Export(Box::new(draft)));
        match control.answer(&self.node, id) {
            Answer::Exported(inner) => {
                Ok(Export { node: self.node, inner, region: Some(self.region) })
            }
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Failed(Failure::Daemon(error)) => Err(error.into()),
            _ => {
                Err(crate::error::DaemonError::Nonsense { what: "something else to Export" }.into())
            }
        }
    }
}
