//! The state of a job, for those who are no members of it.

use std::time::Duration;

use crossbeam_channel::unbounded;

use super::Clock;
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::transport::quic::control::{ControlEvent, ControlLink};
use crate::wire::frame::{Frame, Status};

/// Asks the coordinator at `address` for the state of the job, without being a member of it.
///
/// # Errors
/// [`Error::Timeout`] after `patience`, or the reason why the connection failed.
pub fn status(address: &str, credentials: &Credentials, patience: Duration) -> Result<Status> {
    let (sender, received) = unbounded();
    let link = ControlLink::dial(
        address,
        credentials,
        patience,
        Box::new(move |event| {
            let _ = sender.send(event);
        }),
    )?;
    let clock = Clock::start();
    let due = clock.instant(clock.now() + patience);
    loop {
        match received.recv_deadline(due) {
            Ok(ControlEvent::Connected) => link.send(&Frame::StatusRequest),
            Ok(ControlEvent::Frame(Frame::Status(status), _)) => return Ok(status),
            Ok(ControlEvent::Frame(Frame::Refused(error), _) | ControlEvent::Closed(error)) => return Err(error),
            Ok(ControlEvent::Frame(..)) => {}
            Err(_) => {
                return Err(Error::Timeout { what: format!("asking {address} for its status"), waited: patience });
            }
        }
    }
}
