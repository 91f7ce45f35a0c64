//! The calls that the thread of a worker's transport receives, mostly from the transport's users.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::metrics::LinkMeter;
use crate::transport::exchange::{link_gone, unknown_exchange};
use crate::transport::{LinkLost, Peer, Pull, Push};
use crate::types::{Done, ExchangeId, LinkId};

/// One call. The thread answers it or refuses it.
#[expect(clippy::large_enum_variant, reason = "most calls are pushes, whose header has the rule of a parameter")]
pub(super) enum Call {
    Connect {
        /// `host:port`.
        address: String,
        peer: Peer,
        patience: Duration,
        lost: LinkLost,
        done: Done<LinkId>,
    },
    Push {
        link: LinkId,
        exchange: ExchangeId,
        push: Push,
        done: Done<()>,
    },
    Pull {
        link: LinkId,
        exchange: ExchangeId,
        pull: Pull,
    },
    Abandon {
        link: LinkId,
        exchange: ExchangeId,
    },
    Disconnect {
        link: LinkId,
    },
    Measure {
        link: LinkId,
        meter: Arc<LinkMeter>,
    },
    Shutdown {
        patience: Duration,
    },
    /// From a helper thread that has looked up the addresses of a name.
    Resolved {
        dial: u64,
        addresses: Result<Vec<SocketAddr>>,
    },
}

impl Call {
    /// Answers the call for a transport that is shut down.
    pub(super) fn refuse(self) {
        match self {
            Self::Connect { done, .. } => done.err(Error::Cancelled),
            Self::Push { push, done, .. } => push.refuse(done, link_gone()),
            Self::Pull { pull, .. } => pull.done.err(unknown_exchange()),
            Self::Abandon { .. }
            | Self::Disconnect { .. }
            | Self::Measure { .. }
            | Self::Shutdown { .. }
            | Self::Resolved { .. } => {}
        }
    }
}
