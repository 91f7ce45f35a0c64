//! What it means that a frame is sent.

use gradlane_core::local::failpoint::Failpoint;
use gradlane_core::wire::Frame;

/// Where a coordinator is that has told a member this.
pub(super) fn told(frame: &Frame) -> Option<Failpoint> {
    match frame {
        Frame::View(_) => Some(Failpoint::ViewTold),
        Frame::Boundary { .. } => Some(Failpoint::BoundaryTold),
        Frame::Passed { .. } => Some(Failpoint::PassedTold),
        Frame::Restore { .. } => Some(Failpoint::RestoreTold),
        _ => None,
    }
}

/// Whether somebody who gets the frame may act upon what is written down.
pub(super) fn tells(frame: &Frame) -> bool {
    !matches!(frame, Frame::HeartbeatAck { .. } | Frame::Status(_) | Frame::Forming(_) | Frame::StallNotice { .. })
}
