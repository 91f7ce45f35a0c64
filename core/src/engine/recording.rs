//! The timeline of this worker: its begin and its end, as the program, the settings or an operator want them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::shared::Shared;
use super::trace::Window;
use crate::error::{Error, Result};

impl Shared {
    /// Records the steps of `window` at `place`, and returns the path of the file; see [`Timeline::start`](super::trace::Timeline::start).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the first step has begun, or a timeline is being recorded; [`Error::Io`].
    pub(super) fn record_timeline(self: &Arc<Self>, place: &Path, window: Window) -> Result<PathBuf> {
        let Some(timeline) = self.timeline.get() else {
            return Err(Error::FailedPrecondition {
                what: "the worker has just started".to_owned(),
                hint: "ask again".to_owned(),
            });
        };
        let (rank, step) = self.look(|state| (state.worker.rank(), state.step.map(|round| round.0)));
        if let Some(step) = step.filter(|step| *step >= window.from && window.from > 0) {
            return Err(Error::FailedPrecondition {
                what: format!("step {} has begun", window.from),
                hint: format!("this worker is at step {step}; give a later one to be in time"),
            });
        }
        let path = timeline.start_within(place, rank, window)?;
        self.with(|state, now| state.trace(now, Some((Arc::clone(timeline), window))))?;
        Ok(path)
    }

    /// Completes the file. Does nothing if no timeline is being recorded.
    pub(super) fn stop_timeline(self: &Arc<Self>) {
        self.report(|state, now| state.trace(now, None));
        if let Some(timeline) = self.timeline.get() {
            timeline.stop();
        }
    }
}
