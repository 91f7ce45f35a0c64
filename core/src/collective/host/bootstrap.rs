//! The notices of a PCIe group in the shared memory of its ranks.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use crate::collective::device::Bootstrap;

/// A short notice in the shared memory of a machine's ranks, written once by one of them.
#[derive(Clone, Debug)]
pub(super) struct BoardBootstrap {
    board: Arc<Board>,
    writer: usize,
    device_index: u8,
}

/// How often a reader checks whether to give up.
const LOOK: Duration = Duration::from_millis(50);

impl BoardBootstrap {
    /// The notice of the rank at position `writer`.
    pub(super) const fn new(board: Arc<Board>, writer: usize) -> Self {
        Self { board, writer, device_index: 0 }
    }
}

impl Bootstrap for BoardBootstrap {
    fn about(&self, device_index: u8) -> Arc<dyn Bootstrap> {
        Arc::new(Self { device_index, ..self.clone() })
    }

    fn post(&self, notice: &[u8]) {
        assert_eq!(self.board.me, self.writer, "another rank's notice");
        self.board.post(self.device_index, notice);
    }

    fn read(&self, patience: Duration, gives_up: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        let mut left = patience;
        loop {
            if let Some(notice) = self.board.notice(self.writer, self.device_index) {
                return Some(notice);
            }
            if left.is_zero() || gives_up() || self.board.broken().is_some() {
                return None;
            }
            let nap = left.min(LOOK);
            // Only a full nap counts as waited.
            if !self.board.await_notice(self.writer, self.device_index, nap) {
                left -= nap;
            }
        }
    }
}
