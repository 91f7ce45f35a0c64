//! A point in the work of a device; defined in builds without CUDA too.

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::event::Event;

/// A point in the work of a device's stream. When it is reached, all earlier work of that stream is done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mark {
    /// Nothing to wait for.
    Reached,
    /// A point of a stream's work.
    #[cfg(feature = "cuda")]
    Event(Arc<Event>),
}
