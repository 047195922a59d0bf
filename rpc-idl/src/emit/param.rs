//! A parameter under the name that it has in the generated code.

use crate::ast::Direction;
use crate::model::{Parameter, Procedure};

/// See the module.
pub(super) struct Param<'m> {
    pub(super) name: String,
    pub(super) idl: &'m Parameter,
}

impl Param<'_> {
    pub(super) fn goes_in(&self) -> bool {
        self.idl.direction != Direction::Out
    }

    pub(super) fn comes_out(&self) -> bool {
        self.idl.direction != Direction::In
    }

    pub(super) fn is_out(&self) -> bool {
        self.idl.direction == Direction::Out
    }

    /// Whether the handler has a copy of it, which is stored for the reply.
    pub(super) fn is_copied(&self, procedure: &Procedure) -> bool {
        procedure.copyin && self.is_bulk() && self.idl.direction == Direction::InOut
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.idl.bulk.is_some()
    }
}
