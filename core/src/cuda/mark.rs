//! Points in the work of a device, and who is told of them; defined in builds without CUDA too.

use std::fmt;
#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::event::Event;
use crate::error::Result;
use crate::mem::Ordinal;

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

impl Mark {
    /// The device of the stream; `None` if there is nothing to wait for.
    pub fn device(&self) -> Option<Ordinal> {
        match self {
            Self::Reached => None,
            #[cfg(feature = "cuda")]
            Self::Event(event) => Some(event.context().device()),
        }
    }

    /// Makes later work of `stream`, a stream of the framework on the same device, wait for this point; 0 is the default stream. May be
    /// called on the caller's thread: it takes a few microseconds and does not wait.
    ///
    /// # Errors
    /// [`FailedPrecondition`](crate::Error::FailedPrecondition) while the stream is captured into a graph,
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if there is no such stream any more, [`Device`](crate::Error::Device) if the
    /// device failed.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is nothing to wait for"))]
    pub fn precede(&self, stream: u64) -> Result<()> {
        match self {
            Self::Reached => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Event(event) => event.context().let_wait(stream, event),
        }
    }

    /// Whether the point is reached, or never will be because the device failed. Any thread may ask; it does not wait for the point.
    pub fn is_reached(&self) -> bool {
        match self {
            Self::Reached => true,
            #[cfg(feature = "cuda")]
            Self::Event(event) => {
                event.context().within(|| event.is_reached("the work before an operation")).unwrap_or(true)
            }
        }
    }

    /// Whether both are one point of a stream.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reached, Self::Reached) => true,
            #[cfg(feature = "cuda")]
            (Self::Event(one), Self::Event(other)) => std::sync::Arc::ptr_eq(one, other),
            #[cfg(feature = "cuda")]
            (Self::Reached, Self::Event(_)) | (Self::Event(_), Self::Reached) => false,
        }
    }

    /// Whether the later one of two marks stands for both, because they are points of one stream.
    fn is_of_same_stream(&self, other: &Self) -> bool {
        match (self, other) {
            #[cfg(feature = "cuda")]
            (Self::Event(one), Self::Event(other)) => {
                (one.context().device(), one.stream()) == (other.context().device(), other.stream())
            }
            _ => true,
        }
    }
}

/// The marks after the work of an operation: the latest one of each stream.
#[derive(Clone, Default, Debug)]
pub struct Marks(Vec<Mark>);

impl Marks {
    /// Adds a mark, which comes after those of its stream that were added before.
    pub fn add(&mut self, mark: Mark) {
        if matches!(mark, Mark::Reached) {
            return;
        }
        match self.0.iter_mut().find(|known| known.is_of_same_stream(&mark)) {
            Some(known) => *known = mark,
            None => self.0.push(mark),
        }
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|mark| self.add(mark));
    }

    /// The marks.
    pub fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter()
    }
}

/// Tells the submitter of an operation on a device, once, that all work of the operation is on streams: the mark after that work.
///
/// The operation's `Done` says later whether the work succeeded, always after this. Nothing is told if the operation failed before all work
/// was on streams, or if its device has no streams.
#[derive(Default)]
pub struct OnIssue(Option<Box<dyn FnOnce(Mark) + Send>>);

impl OnIssue {
    /// Calls `tell` on the thread that puts the work on a stream. `tell` must not block.
    pub fn new(tell: impl FnOnce(Mark) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    /// Tells nobody.
    pub fn nobody() -> Self {
        Self(None)
    }

    /// All work is on streams, before `mark`.
    pub fn issued(self, mark: Mark) {
        if let Some(tell) = self.0 {
            tell(mark);
        }
    }
}

impl fmt::Debug for OnIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnIssue" } else { "OnIssue(nobody)" })
    }
}
