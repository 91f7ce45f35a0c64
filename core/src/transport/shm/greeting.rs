//! How a link begins: who the two processes are, and the exchange of their segments.
//!
//! ```text
//!  worker                                                                   server
//!     │  mutual TLS 1.3, protocol `gradlane-local/1`, the job's authority      │
//!     │ ───── layout; segment and bell as descriptors ───────────────────────► │
//!     │ ◄──── layout; segment and bell as descriptors, or why not ──────────── │
//! ```
//! The socket already proves that both run as one user; which of the job's processes they are, their certificates prove, as on QUIC. TLS
//! is not used for anything afterwards: what nobody else can map needs no encryption. The descriptors come with the record that announces
//! them.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::AlertDescription;

use super::bell::{Ear, Rope, bell};
use super::layout::{LAYOUT, SEGMENT_BYTES};
use super::link::Parts;
use super::memory::Memory;
use crate::error::{Error, Result};
use crate::identity::{Credentials, PeerIdentity, SERVER_NAME};
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

/// Connects to the server whose socket is at `socket_path`, called `name` in messages; who it is, the caller judges by `judge`.
///
/// # Errors
/// [`Error::Unavailable`] if nobody listens there or the server ends, [`Error::Auth`] if one side does not accept the other.
pub(super) fn connect(
    socket_path: &Path,
    name: &str,
    credentials: &Credentials,
    copies: &Copies,
    judge: impl FnOnce(&PeerIdentity) -> Result<()>,
) -> Result<Parts> {
    let present = || {
        let (mut talk, identity) = Talk::with_server(socket_path, name, credentials)?;
        judge(&identity)?;
        let ours = Ours::new()?;
        talk.present(&ours)?;
        let theirs = talk.receive()?;
        Ok(talk.link(ours, theirs, copies))
    };
    // The server has looked at this process's certificate only when it answers.
    present().map_err(|error| credentials.explain(error))
}

/// Greets a process that came to the socket. Once it has told who it is, `name` names it for messages.
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
    let mut talk = Talk { connection, tls: tls.into(), peer: "a process of this machine".to_owned() };
    let identity = talk.shake_hands()?;
    talk.peer = name(&identity);
    let allowed = identity.must_be(Role::Worker);
    let parts = allowed.and_then(|()| talk.receive()).and_then(|theirs| Ok((Ours::new()?, theirs)));
    let (ours, theirs) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            let _ = talk.refuse(&error);
            return Err(error);
        }
    };
    talk.present(&ours)?;
    Ok((talk.link(ours, theirs, copies), identity))
}

/// Says `text` and shows `fds` where a greeting is due, as a broken process might.
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
    let (mut talk, _) = Talk::with_server(socket_path, "the victim", credentials)?;
    talk.say(text, fds)?;
    talk.receive().map(drop)
}

/// Whether there is memory for a link.
///
/// # Errors
/// [`Error::Exhausted`] if there is not.
pub(in crate::transport) fn check_memory() -> Result<()> {
    Ours::new().map(drop)
}

/// What this side brings.
struct Ours {
    segment: Segment,
    ear: Ear,
    /// For the peer.
    rope: Rope,
}

impl Ours {
    fn new() -> Result<Self> {
        let segment = Segment::create_to_show(SEGMENT_BYTES as u64)?;
        let (ear, rope) = bell()?;
        Ok(Self { segment, ear, rope })
    }
}

/// What the peer brings.
struct Theirs {
    segment: Shown,
    rope: Rope,
}

struct Talk {
    connection: Connection,
    tls: rustls::Connection,
    /// The other side, for messages.
    peer: String,
}

impl Talk {
    fn with_server(socket_path: &Path, name: &str, credentials: &Credentials) -> Result<(Self, PeerIdentity)> {
        let connection = Connection::connect(socket_path, STEP)?;
        let server = SERVER_NAME.try_into().expect("a name");
        let tls = rustls::ClientConnection::new(Arc::new(client_config(credentials, ALPN)?), server).map_err(failed)?;
        let mut talk = Self { connection, tls: tls.into(), peer: name.to_owned() };
        let identity = talk.shake_hands()?;
        Ok((talk, identity))
    }

    fn shake_hands(&mut self) -> Result<PeerIdentity> {
        for _ in 0..MESSAGES_MAX {
            self.flush(&[])?;
            if !self.tls.is_handshaking() {
                let certificate = self.tls.peer_certificates().and_then(|chain| chain.first());
                let certificate = certificate.ok_or_else(|| bad(&self.peer, "certificate", "is missing"))?;
                return PeerIdentity::of(certificate);
            }
            if !self.hear()?.is_empty() {
                return Err(bad(&self.peer, "handshake", "comes with descriptors"));
            }
        }
        Err(bad(&self.peer, "handshake", "does not end"))
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

    /// Receives one message for TLS, and what came with it.
    fn hear(&mut self) -> Result<Vec<OwnedFd>> {
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
                // The alert that tells the peer.
                let _ = self.flush(&[]);
                return Err(error);
            }
        }
        Ok(fds)
    }

    fn say(&mut self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.tls.writer().write_all(text).expect("TLS buffers a short text");
        self.flush(fds)
    }

    fn present(&mut self, ours: &Ours) -> Result<()> {
        let mut text = vec![PRESENT];
        text.extend_from_slice(&LAYOUT.to_le_bytes());
        self.say(&text, &[ours.segment.fd(), ours.rope.fd()])
    }

    fn refuse(&mut self, error: &Error) -> Result<()> {
        let mut text = vec![REFUSE];
        text.extend_from_slice(&reject::to_body(error));
        self.say(&text, &[])
    }

    fn receive(&mut self) -> Result<Theirs> {
        let mut fds = self.hear()?;
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
            Some(_) | None => return Err(bad(&self.peer, "greeting", "is none")),
        }
        let (Some(rope), Some(segment), None) = (fds.pop(), fds.pop(), fds.pop()) else {
            return Err(bad(&self.peer, "greeting", "comes without its two descriptors"));
        };
        let rope = Rope::shown(rope).ok_or_else(|| bad(&self.peer, "bell", "is none"))?;
        Ok(Theirs { segment: Shown::map(segment, SEGMENT_BYTES as u64)?, rope })
    }

    fn link(self, ours: Ours, theirs: Theirs, copies: &Copies) -> Parts {
        let life = self.connection.peer_process();
        let memory = Memory::new(ours.segment, theirs.segment, theirs.rope, copies.clone());
        Parts {
            connection: self.connection,
            ear: ours.ear,
            #[cfg(any(test, feature = "testing"))]
            rope: ours.rope,
            life,
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
