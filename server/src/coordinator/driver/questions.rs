//! The requests for the status that wait, in the order in which they came.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradlane_core::transport::quic::control::Waiting;
use gradlane_core::types::LinkId;

/// Requests for the status. There is at most one of each link, because a link is read no further before its answer is written.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<VecDeque<(LinkId, Waiting)>>);

impl Questions {
    /// A node asks. Returns whether nobody else waits, so that the driver has to be told.
    pub(super) fn ask(&self, link: LinkId, waiting: Waiting) -> bool {
        let mut asked = self.lock();
        asked.push_back((link, waiting));
        asked.len() == 1
    }

    /// The next request.
    pub(super) fn next(&self) -> Option<(LinkId, Waiting)> {
        self.lock().pop_front()
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(LinkId, Waiting)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
