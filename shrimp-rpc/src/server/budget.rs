//! Memory for calls and replies in pieces, and for what replies to other nodes are put together in: how much all clients may take, and how much one process of them.
//!
//! The first piece of a call says how long all of it is, and a client that never sends the rest, or never fetches the
//! rest of a reply, keeps that memory. So whatever is kept is charged, and given back when it is dropped: to
//! the process, which may take half of what all may, and to all. A process is what the daemon vouches for; a
//! binding costs a greedy one nothing, and nor does closing it: a deferred call keeps its memory, and with it
//! the account, which the process has again when it returns.

use super::accept::Process;
use crate::config::Settings;
use crate::error::NoRoom;
use crate::memory::Memory;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use vmmc::mem::View;
use vmmc::sync::{AtomicUsize, Ordering};

/// What is taken, and how much may be.
#[derive(Debug)]
struct Purse {
    used: AtomicUsize,
    max: usize,
    whose: &'static str,
}

impl Purse {
    fn new(max: usize, whose: &'static str) -> Purse {
        Purse { used: AtomicUsize::new(0), max, whose }
    }

    fn take(&self, len: usize) -> Result<(), NoRoom> {
        let sum = |used: usize| used.checked_add(len).filter(|sum| *sum <= self.max);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum) {
            Ok(_) => Ok(()),
            Err(used) => Err(NoRoom { len, used, max: self.max, whose: self.whose }),
        }
    }

    fn give_back(&self, len: usize) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }
}

/// Of all clients of a server.
#[derive(Debug)]
pub(super) struct Budget {
    all: Purse,
    /// What one process may take.
    each: usize,
    /// Those that a binding, or memory that is charged, still holds.
    accounts: Mutex<HashMap<Process, Weak<Account>>>,
}

impl Budget {
    pub(super) fn new(settings: &Settings) -> Arc<Budget> {
        // One call, its reply with INOUT data, and what that is put together in for another node, always fit.
        let least = settings.call_max.saturating_mul(3).saturating_add(settings.buffer_len);
        let all = Purse::new(settings.pieces_max.max(least), "all clients");
        Arc::new(Budget { each: (all.max / 2).max(least), all, accounts: Mutex::default() })
    }

    /// The account of a process: the same as long as anything is charged to it.
    pub(super) fn account(self: &Arc<Self>, process: Process) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&process).and_then(Weak::upgrade) {
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = Account::new(self);
        accounts.insert(process, Arc::downgrade(&account));
        account
    }
}

/// Of one client process.
#[derive(Debug)]
pub(super) struct Account {
    own: Purse,
    budget: Arc<Budget>,
}

impl Account {
    fn new(budget: &Arc<Budget>) -> Arc<Account> {
        let own = Purse::new(budget.each, "this client process");
        Arc::new(Account { own, budget: budget.clone() })
    }

    pub(super) fn take(self: &Arc<Self>, len: usize) -> Result<Charge, NoRoom> {
        self.own.take(len)?;
        if let Err(full) = self.budget.all.take(len) {
            self.own.give_back(len);
            return Err(full);
        }
        Ok(Charge { account: self.clone(), len })
    }
}

/// So much of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    len: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.own.give_back(self.len);
        self.account.budget.all.give_back(self.len);
    }
}

/// Memory that is charged to a client's process.
#[derive(Debug)]
pub(crate) struct Kept {
    memory: Memory,
    _charge: Charge,
}

impl Kept {
    /// Memory that is written before it is read; nothing is allocated when there is no room for it.
    pub(super) fn new(len: usize, account: &Arc<Account>) -> Result<Kept, NoRoom> {
        let charge = account.take(len)?;
        Ok(Kept { memory: Memory::to_be_written(len), _charge: charge })
    }

    /// Memory that is there already.
    pub(super) fn charge(memory: Memory, account: &Arc<Account>) -> Result<Kept, NoRoom> {
        let charge = account.take(memory.view().len())?;
        Ok(Kept { memory, _charge: charge })
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.memory.view()
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_half_and_all_take_all_and_what_is_dropped_is_there_again() {
        let mut settings = Settings::from_lookup(&|_| None);
        (settings.call_max, settings.pieces_max, settings.buffer_len) = (10, 100, 0);
        let budget = Budget::new(&settings);
        let [one, two, three] = [0; 3].map(|_| Account::new(&budget));
        let full = |len, used, max, whose| NoRoom { len, used, max, whose };
        let first = one.take(50).unwrap();
        assert_eq!(one.take(1).unwrap_err(), full(1, 50, 50, "this client process"));
        let _second = two.take(45).unwrap();
        assert_eq!(three.take(6).unwrap_err(), full(6, 95, 100, "all clients"));
        let third = three.take(5).unwrap();
        drop(first);
        drop(third);
        assert!(three.take(50).is_ok(), "what was refused was charged");
        assert_eq!(one.take(usize::MAX).unwrap_err().used, 0);
    }

    #[test]
    fn a_process_has_one_account_until_nothing_is_charged_to_it() {
        let mut settings = Settings::from_lookup(&|_| None);
        (settings.call_max, settings.pieces_max, settings.buffer_len) = (10, 100, 0);
        let budget = Budget::new(&settings);
        let account = |pid| budget.account((None, pid));
        let kept = account(1).take(50).unwrap();
        assert_eq!(account(1).take(1).unwrap_err().used, 50);
        assert!(
            account(2).take(1).is_ok() && budget.account((Some("far".into()), 1)).take(1).is_ok()
        );
        drop(kept);
        assert!(account(1).take(50).is_ok());
        drop(account(3));
        assert_eq!(budget.accounts.lock().unwrap().len(), 1, "those of who has gone are dropped");
    }

    #[test]
    fn the_longest_call_and_its_reply_always_fit() {
        let mut settings = Settings::from_lookup(&|_| None);
        (settings.call_max, settings.pieces_max, settings.buffer_len) = (10, 0, 0);
        let one = Account::new(&Budget::new(&settings));
        assert!(Kept::new(30, &one).is_ok());
        assert!(Kept::new(31, &one).is_err());
    }
}
