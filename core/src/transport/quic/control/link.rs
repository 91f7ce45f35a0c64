//! A node's end of the control stream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quinn::Endpoint;
use tokio::select;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::super::closing::{CLOSE_ORDERLY, close_with, written};
use super::super::dial::Dialer;
use super::super::endpoint;
use super::super::settings::Settings;
use super::super::tls::PeerOf;
use super::super::{socket, tls};
use super::ControlEvent;
use super::frames::{Outbox, Posted, Queues, converse, outbox};
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::OwnThread;
use crate::types::Role;
use crate::wire::{Frame, VERSION, limits};

/// A link to the coordinator, on a thread of its own. Dropping it closes it.
pub struct ControlLink {
    outbox: Outbox,
    /// Ends the dialling, if it still goes on.
    closing: Arc<Notify>,
    thread: OwnThread,
}

impl ControlLink {
    /// Begins to connect to the coordinator at `address`, trying again until `patience` ends. `events` is told the outcome. It gets
    /// [`ControlEvent::Closed`] exactly once, as the last event.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread.
    pub fn dial(
        address: &str,
        credentials: &Credentials,
        patience: Duration,
        events: Box<dyn Fn(ControlEvent) + Send + Sync>,
    ) -> Result<Self> {
        let settings = Settings { socket_buffer_bytes: BUFFER_BYTES, ..Settings::default() }.for_control();
        let tls = tls::client(credentials)?;
        let socket = socket::bind_any(settings.socket_buffer_bytes)?;
        let (outbox, posted) = outbox(&Arc::new(Queues::default()));
        let closing = Arc::new(Notify::new());
        let (address, closed, of_dialer) = (address.to_owned(), Arc::clone(&closing), settings.clone());
        let credentials = Some(credentials.clone());
        let serve = move |endpoint: Endpoint| async move {
            let dialer = Dialer { endpoint: endpoint.clone(), tls, credentials, settings: of_dialer };
            let reason = live(&dialer, &address, patience, posted, &closed, &*events).await;
            endpoint.close(CLOSE_ORDERLY, b"");
            events(ControlEvent::Closed(reason));
            let _ = timeout(GOODBYE, endpoint.wait_idle()).await;
        };
        let thread = endpoint::start("gl-control", socket, settings.endpoint(), None, serve)?;
        Ok(Self { outbox, closing, thread })
    }

    /// Sends a frame after those sent before. Never blocks. Frames wait until the link is up, and are dropped after its end.
    pub fn send(&self, frame: &Frame) {
        if self.thread.is_ours() {
            self.outbox.send(frame);
        }
    }

    /// Ends the link to a peer that does not answer, without waiting for it.
    pub fn abandon(self) {
        if self.thread.is_ours() {
            self.outbox.close(None);
            self.closing.notify_one();
            self.thread.leave();
        }
    }

    /// Ends the link after the coordinator has received the frames sent before. Waits for that, at most `patience`.
    pub fn close(&self, patience: Duration) {
        if self.thread.is_ours() {
            self.outbox.close(None);
            self.closing.notify_one();
            self.thread.join(patience);
        }
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        self.close(DROP_PATIENCE);
    }
}

impl fmt::Debug for ControlLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlLink")
    }
}

async fn live(
    dialer: &Dialer,
    address: &str,
    patience: Duration,
    posted: Posted,
    closing: &Notify,
    events: &(dyn Fn(ControlEvent) + Send + Sync),
) -> Error {
    let dialed = select! {
        dialed = dialer.dial(address, COORDINATOR, patience) => dialed,
        () = closing.notified() => Err(Error::Cancelled),
    };
    let mut dialed = match dialed {
        Ok(dialed) => dialed,
        Err(error) => return error,
    };
    let wrong = match dialed.peer() {
        Ok(PeerOf::Member(identity)) if identity.role == Role::Coordinator => None,
        Ok(PeerOf::Member(identity)) => Some(format!("the process at {address} is a {}", identity.role)),
        Ok(PeerOf::Newcomer(_)) => Some(format!("the process at {address} is no member of the job")),
        Err(error) => return error,
    };
    if let Some(problem) = wrong {
        let hint = "use the join string that the coordinator printed: it holds the coordinator's address".to_owned();
        let error = Error::Auth { problem, hint };
        close_with(&dialed.connection, &error);
        return error;
    }
    // The coordinator sees the stream with its first byte.
    if let Err(error) = written(dialed.stream.0.write_all(&[VERSION]).await, COORDINATOR) {
        return error;
    }
    events(ControlEvent::Connected);
    let heard = |frame, waiting| events(ControlEvent::Frame(frame, waiting));
    converse(&dialed.connection, dialed.stream, posted, COORDINATOR, limits::FRAME_BYTES_MAX, heard).await
}

const COORDINATOR: &str = "the coordinator";
/// For frames; data has larger ones.
pub(super) const BUFFER_BYTES: usize = 2 << 20;
/// For the end of a connection to reach the peer.
const GOODBYE: Duration = Duration::from_millis(500);
/// How long dropping a link waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
