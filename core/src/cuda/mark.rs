//! A point in the work of a device, whether the build has CUDA or not.

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::event::Event;

/// A point in the work of a device's stream. What was submitted to that stream before has been done when it is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mark {
    /// Nothing to wait for.
    Reached,
    /// A point of a stream's work.
    #[cfg(feature = "cuda")]
    Event(Arc<Event>),
}
