//! How an import is asked for, and waited for.

use super::{Import, ImportDraft, ImportSpec, LinkOwner};
use crate::control::message::{RemoteCaller, Request};
use crate::error::ImportError;
use crate::handler::Called;
use crate::id::{Name, RequestId, Rights, Token};
use crate::node::NodeInner;
use crate::node::control::Draft;
use crate::node::remote::{Adopted, Asked, Finished};
use crate::notify::{Handler, Notification};
use crate::wait::deadline_after;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An import in the making; see [`crate::Node::import`].
#[must_use]
pub struct ImportBuilder {
    node: Arc<NodeInner>,
    spec: ImportSpec,
    /// The exporter's node, when it is another one.
    remote: Option<String>,
    timeout: Option<Duration>,
    handler: Option<Handler>,
}

impl std::fmt::Debug for ImportBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportBuilder").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl ImportBuilder {
    pub(crate) fn new(node: Arc<NodeInner>, name: Name) -> ImportBuilder {
        let (rights, process, token, caller) = (Rights::WRITE, None, None, None);
        let spec = ImportSpec { process, name, rights, token, strict: false, caller };
        ImportBuilder { node, spec, remote: None, timeout: None, handler: None }
    }

    /// The exporting process; needed with a number, which is unique per process only.
    pub fn process(mut self, pid: u32) -> Self {
        self.spec.process = Some(pid);
        self
    }

    /// The exporter's node, by its name in the cluster file of this node's daemon; this node unless said
    /// otherwise. What is the same and what is not over the network: [`crate::transport::net`].
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.remote = Some(name.into());
        self
    }

    /// Imports in the name of a process of another node: the rights are those of `caller`. For a
    /// node's network interface, which the daemon knows; anybody else is cut off.
    pub fn on_behalf_of(mut self, caller: RemoteCaller) -> Self {
        self.spec.caller = Some(caller);
        self
    }

    /// What the import is for; [`Rights::WRITE`] unless said otherwise. All are granted or none.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.spec.rights = rights;
        self
    }

    /// The secret that the exporter asks for.
    pub fn token(mut self, token: Token) -> Self {
        self.spec.token = Some(token);
        self
    }

    /// Refuses deliberate updates that are not of whole words of four bytes, in offset, length and the source's address: what the
    /// paper's hardware could do (H11). Automatic update has no such limit there either. Off unless said otherwise.
    pub fn strict(mut self, strict: bool) -> Self {
        self.spec.strict = strict;
        self
    }

    /// How long to wait for the export to appear (V1), or for a daemon that is lost; without this, for ever, and 10 s
    /// for the daemon. Zero: do not wait. For the word of another node five seconds more, if it is out of reach.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Calls `handler` when the link closes: the exporter unexported or died (V26).
    pub fn handler(mut self, handler: impl FnMut(Notification) + Send + 'static) -> Self {
        self.handler = Some(Box::new(handler));
        self
    }

    /// Imports; blocks until the name is exported or the timeout is over.
    ///
    /// # Errors
    /// See [`ImportError`]. Nothing is mapped then.
    pub fn open(self) -> Result<Import, ImportError> {
        self.node.local.check()?;
        // Only who reads what this node's daemon says: the control thread hears the rest while another one's is waited for.
        let _quiet = if self.remote.is_none() { self.node.control.quiet() } else { None };
        self.start()?.wait()
    }

    /// Starts importing and returns at once.
    ///
    /// # Errors
    /// [`ImportError::System`], [`ImportError::Forked`]; all else comes later.
    pub fn start(self) -> Result<PendingImport, ImportError> {
        self.node.local.check()?;
        let timeout_ms = match self.timeout {
            None => u32::MAX,
            Some(timeout) => u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        };
        if let Some(remote) = self.remote {
            let asked = Asked::ask(&self.node, remote, self.spec, timeout_ms, self.handler)?;
            let wanted = Some(Wanted::Elsewhere(Box::new(asked)));
            return Ok(PendingImport::new(self.node, wanted, self.timeout));
        }
        let (segment, known_to) = self.node.spares.segment_for(&self.spec)?;
        let file = segment.file.clone();
        let draft = ImportDraft {
            local: self.node.local.clone(),
            spec: self.spec.clone(),
            segment,
            handler: self.handler.map(Called::new),
        };
        let spec = self.spec;
        let request = self.node.control.ask(
            &self.node,
            |request| spec.request(request, timeout_ms, None, known_to),
            vec![file],
            Draft::Import(Box::new(draft)),
        );
        let wanted = Some(Wanted::Here(request));
        Ok(PendingImport::new(self.node, wanted, self.timeout))
    }
}

/// An import that may not be granted yet. Dropping it cancels.
#[derive(Debug)]
#[must_use]
pub struct PendingImport {
    node: Arc<NodeInner>,
    /// `None` once it was answered.
    wanted: Option<Wanted>,
    done: Option<Import>,
    /// Told again to whoever asks again.
    failed: Option<ImportError>,
    /// Since when, and how long, a daemon that is lost is waited for.
    patience: (Instant, Duration),
}

/// Who is to answer.
#[derive(Debug)]
enum Wanted {
    /// This node's daemon.
    Here(RequestId),
    /// Another node's.
    Elsewhere(Box<Asked>),
}

impl PendingImport {
    fn new(node: Arc<NodeInner>, wanted: Option<Wanted>, timeout: Option<Duration>) -> Self {
        let patience = (Instant::now(), timeout.unwrap_or(Duration::MAX));
        PendingImport { node, wanted, done: None, failed: None, patience }
    }

    /// Length of the buffer in bytes; 0 until the import is granted.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // 0 says "not yet", not "empty"
    pub fn len(&self) -> usize {
        self.done.as_ref().map_or(0, Import::len)
    }

    /// Whether it is granted by now; does not wait, but for the interface of another node, which opens a link that was granted:
    /// a round trip, and longer where what this process has sent there before is held back.
    ///
    /// # Errors
    /// See [`ImportError`]; the import has failed then, and every later call says so.
    pub fn poll(&mut self) -> Result<bool, ImportError> {
        self.wait_for(Some(Duration::ZERO))
    }

    /// Waits until it is granted, or `timeout` is over: then false, and the import goes on. As [`PendingImport::poll`] it may take
    /// longer once another node has granted it.
    ///
    /// # Errors
    /// See [`ImportError`]; the import has failed then, and every later call says so.
    pub fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, ImportError> {
        let Some(wanted) = self.wanted.take() else {
            return self.failed.clone().map_or(Ok(self.done.is_some()), Err);
        };
        let outcome = self.hear(wanted, deadline_after(timeout));
        self.failed = outcome.as_ref().err().cloned();
        outcome
    }

    fn hear(&mut self, wanted: Wanted, deadline: Option<Instant>) -> Result<bool, ImportError> {
        self.node.local.check()?;
        match wanted {
            Wanted::Here(request) => {
                let control = &self.node.control;
                let answer = control.answer_within(&self.node, request, deadline, self.patience);
                let Some(answer) = answer else {
                    self.wanted = Some(Wanted::Here(request));
                    return Ok(false);
                };
                self.done = Some(Import::from_answer(&self.node, answer)?);
            }
            Wanted::Elsewhere(mut asked) => {
                let inner = loop {
                    if !asked.is_answered(deadline)? {
                        self.wanted = Some(Wanted::Elsewhere(asked));
                        return Ok(false);
                    }
                    match asked.finish(&self.node)? {
                        Finished::Link(inner) => break inner,
                        Finished::Again(question) => asked = question,
                        Finished::Orphan(orphan) => match orphan.adopt(&self.node, deadline)? {
                            Adopted::Asked(question) => asked = question,
                            Adopted::NotYet(orphan) => {
                                self.wanted = Some(Wanted::Elsewhere(orphan));
                                return Ok(false);
                            }
                        },
                    }
                };
                let owner = Arc::new(LinkOwner { node: self.node.clone(), inner });
                self.done = Some(Import { owner });
            }
        }
        Ok(true)
    }

    /// Waits until it is granted or refused.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn wait(mut self) -> Result<Import, ImportError> {
        self.wait_for(None)?;
        self.done.take().ok_or(ImportError::Cancelled)
    }

    /// Gives it up. Nothing stays behind, also if it was granted meanwhile.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for PendingImport {
    fn drop(&mut self) {
        // Another node's daemon is told by the end of the conversation.
        let Some(Wanted::Here(request)) = self.wanted else { return };
        if self.node.local.check().is_err() {
            return;
        }
        // First, so that it is not asked again behind the cancellation.
        let answer = self.node.control.abandon(request);
        self.node.control.tell(Request::CancelImport { request });
        // Granted already: taking it closes it. Granted later: the answer finds nobody, and closes it.
        if let Some(answer) = answer {
            drop(Import::from_answer(&self.node, answer));
        }
    }
}
