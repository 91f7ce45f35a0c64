//! The beginning of a link: both processes prove their identity and exchange their segments.
//!
//! ```text
//!  worker                                                                   server
//!     │  mutual TLS 1.3, protocol `gradlane-local/1`, the job's authority      │
//!     │ ───── layout; segment and waker as descriptors ──────────────────────► │
//!     │ ◄──── layout; segment and waker as descriptors, or why not ─────────── │
//! ```
//! The socket proves that both processes run as one user. Their certificates prove which processes of the job they are, as on QUIC. TLS is
//! not used afterwards, because no other process can map the segments. The descriptors come with the TLS record that announces them.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::AlertDescription;

use super::layout::{LAYOUT, SEGMENT_BYTES};
use super::link::Parts;
use super::memory::Memory;
use super::wakeup::{self, Waker, Wakeup};
use crate::error::{Error, Result};
use crate::identity::{Credentials, PeerIdentity, SERVER_NAME};
use crate::local::failpoint::{Failpoint, reach};
use crate::local::{Connection, Received, Segment, Shown};
use crate::mem::Copies;
use crate::transport::exchange::bad;
use crate::transport::quic::closing::{auth_error, refused_by_peer, refused_by_us};
use crate::transport::quic::tls::{Admission, client_config, server_config};
use crate::types::Role;
use crate::wire::reject;

/// The protocol of links in shared memory.
const ALPN: &[u8] = b"gradlane-local/1";
/// How long one message may take. A greeting has at most [`MESSAGES_MAX`] of them.
const STEP: Duration = Duration::from_secs(3);
const MESSAGES_MAX: usize = 8;
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Connects to the server whose socket is at `socket_path`. Messages call it `name`. `judge` decides whether its identity is the right one.
///
/// # Errors
/// [`Error::Unavailable`] if no process listens there or the server ends, [`Error::Auth`] if one side does not accept the other.
pub(super) fn connect(
    socket_path: &Path,
    name: &str,
    credentials: &Credentials,
    copies: &Copies,
    judge: impl FnOnce(&PeerIdentity) -> Result<()>,
) -> Result<Parts> {
    let present = || {
        let (mut handshake, identity) = Handshake::with_server(socket_path, name, credentials)?;
        judge(&identity)?;
        let ours = Ours::new()?;
        handshake.present(&ours)?;
        let theirs = handshake.receive()?;
        Ok(handshake.link(ours, theirs, copies))
    };
    // The server checks this process's certificate before it answers, so the answer may say that the certificate has expired.
    present().map_err(|error| credentials.explain(error))
}

/// Greets a process that connected to the socket. `name` makes its name for messages from its identity.
///
/// # Errors
/// As for [`connect`]; the peer was told.
pub(super) fn welcome(
    connection: Connection,
    credentials: &Credentials,
    copies: &Copies,
    name: impl FnOnce(&PeerIdentity) -> String,
) -> Result<(Parts, PeerIdentity)> {
    let config = server_config(credentials, Admission::Members, &[ALPN])?;
    let tls = rustls::ServerConnection::new(Arc::new(config)).map_err(failed)?;
    let mut handshake = Handshake { connection, tls: tls.into(), peer: "a process of this machine".to_owned() };
    let identity = handshake.shake_hands()?;
    handshake.peer = name(&identity);
    let allowed = identity.must_be(Role::Worker);
    let parts = allowed.and_then(|()| handshake.receive()).and_then(|theirs| Ok((Ours::new()?, theirs)));
    let (ours, theirs) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            let _ = handshake.refuse(&error);
            return Err(error);
        }
    };
    handshake.present(&ours)?;
    Ok((handshake.link(ours, theirs, copies), identity))
}

/// Sends `text` and `fds` in place of a greeting, as a broken process might.
///
/// # Errors
/// Why the server refused.
#[cfg(any(test, feature = "testing"))]
pub(super) fn misbehave(
    socket_path: &Path,
    credentials: &Credentials,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let (mut handshake, _) = Handshake::with_server(socket_path, "the victim", credentials)?;
    handshake.send(text, fds)?;
    handshake.receive().map(drop)
}

/// Whether there is memory for a link.
///
/// # Errors
/// [`Error::Exhausted`] if there is not.
pub(in crate::transport) fn check_memory() -> Result<()> {
    Ours::new().map(drop)
}

/// What this side contributes to a link.
struct Ours {
    segment: Segment,
    wakeup: Wakeup,
    /// Given to the peer.
    waker: Waker,
}

impl Ours {
    fn new() -> Result<Self> {
        let segment = Segment::create_to_show(SEGMENT_BYTES as u64)?;
        let (wakeup, waker) = wakeup::pair()?;
        Ok(Self { segment, wakeup, waker })
    }
}

/// What the peer contributes to a link.
struct Theirs {
    segment: Shown,
    waker: Waker,
}

/// A connection on which a greeting goes on.
struct Handshake {
    connection: Connection,
    tls: rustls::Connection,
    /// The other side, for messages.
    peer: String,
}

impl Handshake {
    fn with_server(socket_path: &Path, name: &str, credentials: &Credentials) -> Result<(Self, PeerIdentity)> {
        let connection = Connection::connect(socket_path, STEP)?;
        let server = SERVER_NAME.try_into().expect("a name");
        let tls = rustls::ClientConnection::new(Arc::new(client_config(credentials, ALPN)?), server).map_err(failed)?;
        let mut handshake = Self { connection, tls: tls.into(), peer: name.to_owned() };
        let identity = handshake.shake_hands()?;
        Ok((handshake, identity))
    }

    fn shake_hands(&mut self) -> Result<PeerIdentity> {
        for _ in 0..MESSAGES_MAX {
            self.flush(&[])?;
            if !self.tls.is_handshaking() {
                let certificate = self.tls.peer_certificates().and_then(|chain| chain.first());
                let certificate = certificate.ok_or_else(|| bad(&self.peer, "certificate", "is missing"))?;
                return PeerIdentity::of(certificate);
            }
            if !self.receive_records()?.is_empty() {
                return Err(bad(&self.peer, "handshake", "comes with file descriptors"));
            }
        }
        Err(bad(&self.peer, "handshake", format!("has not ended after {MESSAGES_MAX} messages")))
    }

    /// Sends what TLS has to send, in one message.
    fn flush(&mut self, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).expect("a vector takes everything");
        }
        if records.is_empty() {
            return Ok(());
        }
        self.connection.send(&records, fds, STEP).map_err(|error| self.gone(error))
    }

    /// Receives one message for TLS. Returns the descriptors that came with it.
    fn receive_records(&mut self) -> Result<Vec<OwnedFd>> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let heard = self.connection.recv(&mut buffer, STEP).map_err(|error| self.gone(error))?;
        let Some(Received { bytes, fds }) = heard else {
            return Err(Error::Unavailable { what: self.peer.clone(), cause: "it closed the connection".to_owned() });
        };
        let mut records = &buffer[..bytes];
        while !records.is_empty() {
            let taken = self.tls.read_tls(&mut records);
            let processed = taken
                .map_err(|error| bad(&self.peer, "TLS record", error.to_string()))
                .and_then(|_| self.tls.process_new_packets().map_err(|error| tls_error(&error, &self.peer)));
            if let Err(error) = processed {
                // Sends the alert that tells the peer the reason.
                let _ = self.flush(&[]);
                return Err(error);
            }
        }
        Ok(fds)
    }

    fn send(&mut self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.tls.writer().write_all(text).expect("TLS buffers a short text");
        self.flush(fds)
    }

    fn present(&mut self, ours: &Ours) -> Result<()> {
        let mut text = vec![PRESENT];
        text.extend_from_slice(&LAYOUT.to_le_bytes());
        self.send(&text, &[ours.segment.fd(), ours.waker.fd()])?;
        reach(Failpoint::Greets);
        Ok(())
    }

    fn refuse(&mut self, error: &Error) -> Result<()> {
        let mut text = vec![REFUSE];
        text.extend_from_slice(&reject::to_body(error));
        self.send(&text, &[])
    }

    fn receive(&mut self) -> Result<Theirs> {
        let mut fds = self.receive_records()?;
        let mut text = Vec::new();
        // Ends with "would block" when all that came was read.
        let _ = self.tls.reader().read_to_end(&mut text);
        match text.split_first() {
            Some((&PRESENT, layout)) if *layout == LAYOUT.to_le_bytes() => {}
            Some((&PRESENT, layout)) => {
                return Err(Error::Incompatible {
                    field: "layout of shared memory".to_owned(),
                    ours: LAYOUT.to_string(),
                    peer: self.peer.clone(),
                    theirs: layout
                        .first_chunk()
                        .map_or_else(|| "none".to_owned(), |layout| u32::from_le_bytes(*layout).to_string()),
                });
            }
            Some((&REFUSE, body)) => return Err(reject::from_body(body, &self.peer).unwrap_or_else(|error| error)),
            Some(_) | None => return Err(bad(&self.peer, "greeting", "begins with an unknown byte")),
        }
        let (Some(waker), Some(segment), None) = (fds.pop(), fds.pop(), fds.pop()) else {
            return Err(bad(&self.peer, "greeting", "does not come with exactly two file descriptors"));
        };
        let waker = Waker::shown(waker).ok_or_else(|| bad(&self.peer, "waker", "is not a connected stream socket"))?;
        Ok(Theirs { segment: Shown::map(segment, SEGMENT_BYTES as u64)?, waker })
    }

    fn link(self, ours: Ours, theirs: Theirs, copies: &Copies) -> Parts {
        let process = self.connection.peer_process();
        let memory = Memory::new(ours.segment, theirs.segment, theirs.waker, copies.clone());
        Parts {
            connection: self.connection,
            wakeup: ours.wakeup,
            #[cfg(any(test, feature = "testing"))]
            waker: ours.waker,
            process,
            memory,
        }
    }

    fn gone(&self, error: Error) -> Error {
        match error {
            Error::Unavailable { cause, .. } => Error::Unavailable { what: self.peer.clone(), cause },
            Error::Timeout { .. } => {
                Error::Unavailable { what: self.peer.clone(), cause: "it does not answer".to_owned() }
            }
            other => other,
        }
    }
}

pub(super) const PRESENT: u8 = 1;
const REFUSE: u8 = 2;

fn tls_error(error: &rustls::Error, peer: &str) -> Error {
    match error {
        rustls::Error::AlertReceived(alert) => refused_by_peer(u8::from(*alert), peer, &error.to_string()),
        rustls::Error::InvalidCertificate(cause) => {
            refused_by_us(u8::from(AlertDescription::from(cause.clone())), peer, &error.to_string())
        }
        rustls::Error::NoCertificatesPresented => auth_error(116, format!("{peer} showed no certificate")),
        other => bad(peer, "TLS record", other.to_string()),
    }
}

fn failed(error: rustls::Error) -> Error {
    Error::Internal { what: format!("TLS for shared memory: {error}") }
}
