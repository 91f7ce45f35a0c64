//! The calls of a transport's users, on their way to the thread of its driver.

use std::time::Duration;

use crate::error::Error;
use crate::local::OwnThread;
use crate::mem::Region;
use crate::transport::exchange::{PullEnd, link_gone, unknown_exchange};
use crate::transport::{LinkLost, Peer, Push};
use crate::types::{Done, ExchangeId, LinkId};

/// A running driver.
pub(super) struct DriverHandle {
    /// Hands a call to the thread, or refuses it if the thread has ended.
    pub(super) calls: Box<dyn Fn(Call) + Send + Sync>,
    /// Ends after [`Call::Shutdown`].
    pub(super) thread: OwnThread,
}

/// One call. A driver answers it or refuses it.
pub(super) enum Call {
    Connect { peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId> },
    Push { link: LinkId, exchange: ExchangeId, push: Push, done: Done<()> },
    Pull { exchange: ExchangeId, pull: Pull },
    Abandon { exchange: ExchangeId },
    Disconnect { link: LinkId },
    Shutdown { patience: Duration },
}

/// Where a sum is wanted, and the callback that reports it.
pub(super) struct Pull {
    pub(super) into: Vec<Region>,
    pub(super) end: PullEnd,
}

impl Call {
    /// Answers the call for a transport that is shut down.
    pub(super) fn refuse(self) {
        match self {
            Self::Connect { done, .. } => done.err(Error::Cancelled),
            Self::Push { done, .. } => done.err(link_gone()),
            Self::Pull { pull, .. } => pull.end.torn(unknown_exchange()),
            Self::Abandon { .. } | Self::Disconnect { .. } | Self::Shutdown { .. } => {}
        }
    }
}
