//! How work makes progress: a component's own thread does it, or a thread that waits for its result. MPI and UCX use the same word.
//!
//! A component (a transport, a collective) has a thread of its own, which sleeps while there is nothing to do. A thread that waits for a
//! handle may do that work itself, which saves two changes of thread. The engine alone decides which thread polls which component; the
//! [`Spin`] policy alone decides how long an idle thread looks for work before it sleeps.

use std::time::Duration;

mod spin;

pub(crate) use spin::Spin;

/// A component whose work any thread may do. The default does nothing, for a component whose own thread does all of it.
pub trait Progress {
    /// Does the component's work on the calling thread until `enough` returns true, at most for `patience`. May return earlier. Returns at
    /// once if another thread is polling or if the caller would gain nothing.
    fn poll(&self, _enough: &dyn Fn() -> bool, _patience: Duration) {}

    /// Announces that the calling thread is about to submit work and then to poll, so that the component wakes no other thread for it.
    /// The next call must be [`poll_announced`](Self::poll_announced).
    fn announce(&self) {}

    /// As [`poll`](Self::poll), after [`announce`](Self::announce).
    fn poll_announced(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        self.poll(enough, patience);
    }

    /// Makes a thread that polls ask `enough` again.
    fn wake(&self) {}
}
