//! What the first rank of a PCIe group has to tell the others of it once: the name under which their devices find each other.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::layout::NOTICE_BYTES_MAX;

/// A short notice in the shared memory of a machine's ranks, written once by one of them.
#[derive(Clone, Debug)]
pub struct Bulletin {
    board: Arc<Board>,
    writer: usize,
    lane: u8,
}

/// How often a reader looks whether it shall give up.
const LOOK: Duration = Duration::from_millis(50);

impl Bulletin {
    /// The longest notice in bytes.
    pub const BYTES_MAX: usize = NOTICE_BYTES_MAX;

    /// What the rank at position `writer` has to tell.
    pub(super) const fn new(board: Arc<Board>, writer: usize) -> Self {
        Self { board, writer, lane: 0 }
    }

    /// The same about another of its devices.
    pub fn about(&self, lane: u8) -> Self {
        Self { lane, ..self.clone() }
    }

    /// Puts the notice up, for the rank that has it. Only the first one counts.
    ///
    /// # Panics
    /// If it is empty or longer than [`BYTES_MAX`](Self::BYTES_MAX), or another rank's to tell.
    pub fn post(&self, notice: &[u8]) {
        assert_eq!(self.board.me, self.writer, "somebody else's notice");
        self.board.post(self.lane, notice);
    }

    /// The notice; `None` if nobody has put it up within `patience`, or before `gives_up` says that nobody waits for it any more.
    pub fn read(&self, patience: Duration, gives_up: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        let mut left = patience;
        loop {
            if let Some(notice) = self.board.notice(self.writer, self.lane) {
                return Some(notice);
            }
            if left.is_zero() || gives_up() || self.board.broken().is_some() {
                return None;
            }
            let nap = left.min(LOOK);
            // Too long only if it is woken early for nothing, which nobody does.
            if !self.board.await_notice(self.writer, self.lane, nap) {
                left -= nap;
            }
        }
    }
}
