//! What the leader has to tell all others once: the name under which the ranks' devices find each other.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::layout::NOTICE_BYTES_MAX;

/// A short notice in the shared memory of a machine's ranks, written once by the first of them.
#[derive(Clone, Debug)]
pub struct Bulletin(Arc<Board>);

/// How often a reader looks whether it shall give up.
const LOOK: Duration = Duration::from_millis(50);

impl Bulletin {
    /// The longest notice in bytes.
    pub const BYTES_MAX: usize = NOTICE_BYTES_MAX;

    pub(super) const fn new(board: Arc<Board>) -> Self {
        Self(board)
    }

    /// Puts the notice up, for the first rank. Only the first one counts.
    ///
    /// # Panics
    /// If it is empty or longer than [`BYTES_MAX`](Self::BYTES_MAX).
    pub fn post(&self, notice: &[u8]) {
        self.0.post(notice);
    }

    /// The notice; `None` if nobody has put it up within `patience`, or before `gives_up` says that nobody waits for it any more.
    pub fn read(&self, patience: Duration, gives_up: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        let mut left = patience;
        loop {
            if let Some(notice) = self.0.notice() {
                return Some(notice);
            }
            if left.is_zero() || gives_up() || self.0.broken().is_some() {
                return None;
            }
            let nap = left.min(LOOK);
            // Too long only if it is woken early for nothing, which nobody does.
            if !self.0.await_notice(nap) {
                left -= nap;
            }
        }
    }
}
