//! What it means that a frame is sent.

use gradlane_core::local::failpoint::Failpoint;
use gradlane_core::types::Time;
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::AckTimes;

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

/// The frame as it is sent at `now` by a coordinator whose clock began at `began_unix_ns`.
pub(super) fn stamped(frame: Frame, now: impl FnOnce() -> Time, began_unix_ns: u64) -> Frame {
    match frame {
        Frame::HeartbeatAck { sent, times } => {
            Frame::HeartbeatAck { sent, times: AckTimes { answered: now(), began_unix_ns, ..times } }
        }
        other => other,
    }
}

/// Whether somebody who gets the frame may act upon what is written down.
pub(super) fn tells(frame: &Frame) -> bool {
    !matches!(frame, Frame::HeartbeatAck { .. } | Frame::Status(_) | Frame::Forming(_) | Frame::StallNotice { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_heartbeat_is_stamped_as_it_is_sent() {
        let times = AckTimes { received: Time(5), answered: Time(5), began_unix_ns: 0 };
        let sent = stamped(Frame::HeartbeatAck { sent: Time(900), times }, || Time(8), 77);
        let times = AckTimes { received: Time(5), answered: Time(8), began_unix_ns: 77 };
        assert_eq!(sent, Frame::HeartbeatAck { sent: Time(900), times });
        assert_eq!(stamped(Frame::Leave, || unreachable!("no clock is read"), 77), Frame::Leave);
    }
}
