//! The control stream between a node and its coordinator: [`Frame`]s both ways, on threads that data never delays.
//!
//! A node has a [`ControlLink`], the coordinator a [`ControlListener`]. Each link is one connection with one stream, which the node opens
//! with one byte, the protocol's version. Frames arrive in the
//! order in which they were sent; a link ends with a reason that its peer hears. The listener also serves enrolment, on the same port.
//!
//! Each frame comes with a [`Waiting`]. A link is not read further while too many of its frames wait, so that a peer cannot fill the memory.

mod frames;
mod link;
mod listener;

#[cfg(test)]
pub(super) use frames::WAITING_FRAMES_MAX;
pub use link::ControlLink;
pub use listener::ControlListener;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::Error;
use crate::types::{LinkId, NodeId, Role};
use crate::wire::Frame;

/// What happens on a node's link. Delivered on the link's thread, so the receiver must not block.
#[derive(Debug)]
pub enum ControlEvent {
    /// The coordinator let this node in.
    Connected,
    /// It said something.
    Frame(Frame, Waiting),
    /// The link ended, or did not come about. The last event.
    Closed(Error),
}

/// What happens at the coordinator's listener. Delivered on the listener's thread, so the receiver must not block.
#[derive(Debug)]
pub enum ControlIncoming {
    /// A node connected.
    Up {
        /// The connection.
        link: LinkId,
        /// Who it is, from its certificate.
        node: NodeId,
        /// What it is, from its certificate.
        role: Role,
        /// Its network address, for messages.
        address: String,
    },
    /// It said something.
    Frame {
        /// The connection.
        link: LinkId,
        /// What.
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

/// The room that a frame takes in the queue between its link and the machine that handles it. Drop it once the frame is handled: the link
/// is read no further while its frames take all the room that it has.
#[derive(Debug)]
pub struct Waiting {
    _room: OwnedSemaphorePermit,
}
