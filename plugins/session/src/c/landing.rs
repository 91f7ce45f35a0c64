//! Rows of tables on their way to the memory of a caller.
//!
//! The engine has rows in memory of its own when their operation ends. Who first learns of the end through the C interface copies them: a
//! call that waits, or the thread of the callbacks. An engine's thread would hold its lock during the copy.
#![expect(unsafe_code, reason = "the rows are written to the caller's memory")]

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gradlane_core::engine::{RowCounts, RowsHandle};
use gradlane_core::{Error, Result};

/// Whether rows may be written to memory of the callers of a session: until it is shut down.
#[derive(Default)]
pub(super) struct Gate(RwLock<State>);

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    Closed,
}

impl Gate {
    /// From now on nothing is written. Returns when the copies under way have ended.
    pub(super) fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = State::Closed;
    }
}

/// The answer to a use of a table.
pub(super) struct Landing {
    rows: RowsHandle,
    brings: Brings,
    gate: Arc<Gate>,
}

/// What an answer has.
pub(super) enum Brings {
    Nothing,
    Counts,
    /// Rows, and where they have to go; none once they are there.
    Rows(Mutex<Option<Memory>>),
}

/// Memory of the caller.
pub(super) struct Memory {
    first: *mut f32,
    len: usize,
}

// SAFETY: it is memory that the caller has lent to the library until the operation has ended, for any thread.
unsafe impl Send for Memory {}

impl Brings {
    /// Rows, for the `len` numbers at `first`.
    ///
    /// # Safety
    /// They are valid, aligned and used by nothing else until the operation has ended, or its session is shut down.
    pub(super) unsafe fn rows(first: *mut f32, len: usize) -> Self {
        Self::Rows(Mutex::new(if len > 0 { Some(Memory { first, len }) } else { None }))
    }
}

impl Landing {
    pub(super) fn new(rows: RowsHandle, brings: Brings, gate: &Arc<Gate>) -> Self {
        Self { rows, brings, gate: Arc::clone(gate) }
    }

    /// Writes the rows, once. Call it when the operation has ended well, before the caller learns of that.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the session was shut down before.
    pub(super) fn land(&self) -> Result<()> {
        let Brings::Rows(to) = &self.brings else { return Ok(()) };
        let state = self.gate.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        match to.take() {
            None => Ok(()),
            Some(memory) if *state == State::Closed => {
                *to = Some(memory);
                Err(Error::FailedPrecondition {
                    what: "the session was shut down before the rows were written".to_owned(),
                    hint: "wait for the operation before gradlane_shutdown".to_owned(),
                })
            }
            Some(Memory { first, len }) => {
                // SAFETY: the maker of `Brings` was promised so much memory until now, because the gate is open.
                self.rows.read_rows(unsafe { std::slice::from_raw_parts_mut(first, len) });
                Ok(())
            }
        }
    }

    /// What the servers have counted, if the use asks for that. Call it when the operation has ended well.
    pub(super) fn counts(&self) -> Option<RowCounts> {
        matches!(self.brings, Brings::Counts).then(|| self.rows.counts())
    }
}
