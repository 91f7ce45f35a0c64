//! The control stream between a node and its coordinator: [`Frame`]s both ways, on threads that data never delays.
//!
//! A node has a [`ControlLink`], the coordinator a [`ControlListener`]. Each link is one connection with one stream, which the node opens with
//! one byte, the protocol's version. Frames arrive in the order in which they were sent. A link ends with a reason that the peer is told. The
//! listener also serves enrolment, on the same port.
//!
//! Each frame comes with a [`Waiting`]. A link is not read further while too many of its frames wait, so that a peer cannot fill the memory.

mod frames;
mod link;
mod listener;

#[cfg(test)]
pub(super) use frames::WAITING_FRAMES_MAX;
pub use link::ControlLink;
pub use listener::{ControlListener, Newcomers};

use tokio::sync::OwnedSemaphorePermit;

use crate::error::Error;
use crate::types::{LinkId, NodeId, Role};
use crate::wire::Frame;

/// What happens on a node's link. Delivered on the link's thread, so the receiver must not block.
#[derive(Debug)]
pub enum ControlEvent {
    /// The coordinator let this node in.
    Connected,
    /// The coordinator sent a frame.
    Frame(Frame, Waiting),
    /// The link ended, or could not be made. The last event.
    Closed(Error),
}

/// What happens at the coordinator's listener. Delivered on the listener's thread, so the receiver must not block.
#[derive(Debug)]
pub enum ControlIncoming {
    /// A node connected.
    Up {
        /// The connection.
        link: LinkId,
        /// The identity of the node, from its certificate.
        node: NodeId,
        /// The role of the node, from its certificate.
        role: Role,
        /// Its network address, for messages.
        address: String,
    },
    /// A node sent a frame.
    Frame {
        /// The connection.
        link: LinkId,
        /// The frame.
        frame: Frame,
        /// Drop it once the frame is handled.
        waiting: Waiting,
    },
    /// A node is gone. The last event of this link.
    Down {
        /// The connection.
        link: LinkId,
        /// Why.
        reason: Error,
    },
}

/// The share of a frame in the limit of its link's queue. Drop it once the frame is handled. A link is not read further while its frames
/// hold the whole limit.
#[derive(Debug)]
pub struct Waiting {
    _permit: OwnedSemaphorePermit,
}
