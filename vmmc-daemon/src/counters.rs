//! What the broker counted, as `shrimp stat` shows it.

macro_rules! counters {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// One counter; its name in a snapshot is in the table below.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counter { $($name),* }
        const NAMES: &[&str] = &[$($text),*];
    };
}

counters! {
    Clients = "clients_total",
    Exports = "exports_total",
    Imports = "imports_total",
    Deaths = "deaths",
    Malformed = "malformed",
    OtherVersion = "other_version",
    NotReading = "cut_off_not_reading",
    RefusedNameTaken = "refused_name_taken",
    RefusedBadName = "refused_bad_name",
    RefusedProcessNeeded = "refused_process_needed",
    RefusedNoSuchExport = "refused_no_such_export",
    RefusedNotPermitted = "refused_not_permitted",
    RefusedBadToken = "refused_bad_token",
    RefusedNoRights = "refused_no_rights",
    RefusedQuota = "refused_quota",
    RefusedBadLength = "refused_bad_length",
    RefusedBadSegment = "refused_bad_segment",
    RefusedTooManyGrants = "refused_too_many_grants",
    RefusedNotYours = "refused_not_yours",
    RefusedNotAdministrator = "refused_not_administrator",
    Cancelled = "cancelled",
    RefusedInternal = "refused_internal",
    Pairs = "pairs",
    Carried = "carried",
    Crossed = "crossed",
    Attached = "attached",
    Pumped = "pumps",
    EndedRingBytes = "ended_ring_bytes",
    NotPairedNoPartner = "not_paired_no_partner",
    NotPairedNotEstablished = "not_paired_not_established",
    NotPairedOtherNamespace = "not_paired_other_namespace",
    NotPairedPolicy = "not_paired_policy",
    NotPairedQuota = "not_paired_quota",
    NotPairedConflict = "not_paired_conflict",
    NotPairedOtherVersion = "not_paired_other_version",
    NotPairedResources = "not_paired_resources",
    NotPairedRemote = "not_paired_remote",
    Takeovers = "takeovers",
    Resumed = "clients_resumed",
    Restored = "links_restored",
    DescriptorShortages = "descriptor_shortages",
}

use vmmc::control::message::{NotPairedReason, Refusal};

/// All counters, zero at the start, kept over a takeover.
#[derive(Clone, Debug)]
pub(crate) struct Counters([u64; NAMES.len()]);

impl Default for Counters {
    fn default() -> Self {
        Counters([0; NAMES.len()])
    }
}

impl Counters {
    pub(crate) fn add(&mut self, counter: Counter) {
        if let Some(value) = self.0.get_mut(counter as usize) {
            *value += 1;
        }
    }

    /// Adds what a client claims to have counted: any number.
    pub(crate) fn add_claimed(&mut self, counter: Counter, amount: u64) {
        if let Some(value) = self.0.get_mut(counter as usize) {
            *value = value.saturating_add(amount);
        }
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.add(match refusal {
            Refusal::NameTaken { .. } => Counter::RefusedNameTaken,
            Refusal::BadName { .. } => Counter::RefusedBadName,
            Refusal::ProcessNeeded { .. } => Counter::RefusedProcessNeeded,
            Refusal::NoSuchExport { .. } => Counter::RefusedNoSuchExport,
            Refusal::NotPermitted { .. } => Counter::RefusedNotPermitted,
            Refusal::BadToken { .. } => Counter::RefusedBadToken,
            Refusal::NoRights => Counter::RefusedNoRights,
            Refusal::Quota { .. } => Counter::RefusedQuota,
            Refusal::BadLength { .. } => Counter::RefusedBadLength,
            Refusal::BadSegment { .. } => Counter::RefusedBadSegment,
            Refusal::TooManyGrants { .. } => Counter::RefusedTooManyGrants,
            Refusal::NotYours { .. } => Counter::RefusedNotYours,
            Refusal::NotAdministrator { .. } => Counter::RefusedNotAdministrator,
            Refusal::Cancelled => Counter::Cancelled,
            _ => Counter::RefusedInternal,
        });
    }

    pub(crate) fn not_paired(&mut self, reason: NotPairedReason) {
        self.add(match reason {
            NotPairedReason::NoPartner => Counter::NotPairedNoPartner,
            NotPairedReason::NotEstablished => Counter::NotPairedNotEstablished,
            NotPairedReason::OtherNamespace => Counter::NotPairedOtherNamespace,
            NotPairedReason::Policy => Counter::NotPairedPolicy,
            NotPairedReason::Quota => Counter::NotPairedQuota,
            NotPairedReason::Conflict => Counter::NotPairedConflict,
            NotPairedReason::OtherVersion => Counter::NotPairedOtherVersion,
            NotPairedReason::Resources => Counter::NotPairedResources,
            NotPairedReason::Remote => Counter::NotPairedRemote,
        });
    }

    /// Names and values, in the order of the table.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        NAMES.iter().zip(self.0).map(|(name, value)| ((*name).to_owned(), value)).collect()
    }

    /// Takes over the values of a predecessor; names it does not know are dropped.
    pub(crate) fn restore(&mut self, values: &[(String, u64)]) {
        for (name, value) in values {
            if let Some(i) = NAMES.iter().position(|known| known == name)
                && let Some(slot) = self.0.get_mut(i)
            {
                *slot = *value;
            }
        }
    }
}
