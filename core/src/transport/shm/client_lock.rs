//! The lock of a worker's tables. Actions that must not happen under the lock are carried out when it is released.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client_tables::ClientTables;
use super::poller::Poller;
use crate::error::Result;

/// The tables of a worker, and the threads that wait for them to change.
pub(super) struct SharedTables {
    pub(super) poller: Poller,
    tables: Mutex<ClientTables>,
    /// Notified when a dial has ended, and when all dials have to end.
    dials: Condvar,
}

/// The tables while a thread holds their lock.
///
/// The methods of [`ClientTables`] note the actions that must not happen under the lock: reports, messages, wake-ups, dropped bytes. This guard
/// carries them out as soon as it has released the lock, on the same thread.
pub(super) struct LockedTables<'a> {
    shared: &'a SharedTables,
    /// Absent only while the lock is released.
    held: Option<MutexGuard<'a, ClientTables>>,
}

impl SharedTables {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { poller: Poller::new()?, tables: Mutex::default(), dials: Condvar::new() })
    }

    pub(super) fn lock(&self) -> LockedTables<'_> {
        LockedTables { shared: self, held: Some(self.raw()) }
    }

    /// Waits for `pause`, or until the transport closes. Returns whether it closes.
    pub(super) fn wait_for_close(&self, pause: Duration) -> bool {
        let waiting = |tables: &mut ClientTables| !tables.closing;
        let waited = self.dials.wait_timeout_while(self.raw(), pause, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// Waits until all dials have ended, at most for `patience`.
    pub(super) fn wait_for_dials(&self, patience: Duration) {
        let waiting = |tables: &mut ClientTables| tables.dialling > 0;
        let waited = self.dials.wait_timeout_while(self.raw(), patience, waiting);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Wakes the threads that wait for dials or for the close.
    pub(super) fn notify_dials(&self) {
        self.dials.notify_all();
    }

    fn raw(&self) -> MutexGuard<'_, ClientTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockedTables<'_> {
    /// Runs `work` without the lock, and takes the lock again.
    pub(super) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.release();
        let made = work();
        self.held = Some(self.shared.raw());
        made
    }

    fn release(&mut self) {
        let Some(mut held) = self.held.take() else { return };
        let noted = held.take_noted();
        drop(held);
        if let Some(noted) = noted {
            noted.carry_out(&self.shared.poller);
        }
    }
}

impl Drop for LockedTables<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

impl Deref for LockedTables<'_> {
    type Target = ClientTables;

    fn deref(&self) -> &ClientTables {
        self.held.as_deref().expect("held between the methods of this guard")
    }
}

impl DerefMut for LockedTables<'_> {
    fn deref_mut(&mut self) -> &mut ClientTables {
        self.held.as_deref_mut().expect("held between the methods of this guard")
    }
}
