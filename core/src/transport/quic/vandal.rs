//! A peer that breaks the rules: an authenticated connection on which tests send any bytes at all, and ways to use QUIC that Gradlane does
//! not allow. [`siege`] attacks with many connections.

pub mod siege;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionError, Endpoint};
use rustls::client::Resumption;
use tokio::time::timeout;

use super::closing::{CLOSE_ORDERLY, connection_error};
use super::dial::Dialer;
use super::endpoint;
use super::settings::Settings;
use super::{socket, tls};
use crate::error::{Error, Result};
use crate::identity::{Credentials, SERVER_NAME};

/// Writes `bytes` on a stream to `address` and ends it; says why the other side closed the connection. Blocks at most `patience`.
pub fn write(address: &str, credentials: &Credentials, bytes: Vec<u8>, patience: Duration) -> Error {
    converse(address, credentials, bytes, patience).unwrap_or_else(|error| error)
}

fn converse(address: &str, credentials: &Credentials, bytes: Vec<u8>, patience: Duration) -> Result<Error> {
    let tls = tls::client(credentials)?;
    let of_dialer = address.to_owned();
    attempt(address, patience, move |endpoint| async move {
        let dialer = Dialer { endpoint, tls, credentials: None, settings: Settings::default() };
        let dialed = dialer.dial(&of_dialer, VICTIM, patience).await?;
        let (mut stream, _answer) = dialed.stream;
        // The other side may close before all is written; why, is heard below.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.finish();
        Ok(connection_error(&dialed.connection.closed().await, VICTIM))
    })
}

/// Writes `pieces` one after the other, each on a stream of its own of one connection to `address`, and reads what is answered. Blocks at
/// most `patience`.
///
/// # Errors
/// Why the connection did not live until the last answer.
pub fn ask(address: &str, credentials: &Credentials, pieces: Vec<Vec<u8>>, patience: Duration) -> Result<Vec<Vec<u8>>> {
    let tls = tls::client(credentials)?;
    let of_dialer = address.to_owned();
    attempt(address, patience, move |endpoint| async move {
        let dialer = Dialer { endpoint, tls, credentials: None, settings: Settings::default() };
        let dialed = dialer.dial(&of_dialer, VICTIM, patience).await?;
        let mut answers = Vec::new();
        for bytes in pieces {
            let (mut stream, mut answer) =
                dialed.connection.open_bi().await.map_err(|error| connection_error(&error, VICTIM))?;
            // The other side may want no more of it.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
            answers.push(answer.read_to_end(ANSWER_BYTES_MAX).await.map_err(|error| internal(&error))?);
        }
        Ok(answers)
    })
}

/// More than any reject has.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Connects to `address` twice. The second time it tries to send data with its first packet, which an attacker could replay (0-RTT). Returns
/// whether the server had given it what 0-RTT needs.
///
/// # Errors
/// Why it could not connect. [`Error::Timeout`] after `patience`.
pub fn sends_early(address: &str, credentials: &Credentials, patience: Duration) -> Result<bool> {
    let mut tls = tls::client_config(credentials, tls::ALPN)?;
    tls.resumption = Resumption::in_memory_sessions(8);
    tls.enable_early_data = true;
    let tls = QuicClientConfig::try_from(tls).map_err(|error| internal(&error))?;
    let (config, remote) = (ClientConfig::new(Arc::new(tls)), parse(address)?);
    attempt(address, patience, move |endpoint| async move {
        let connect = || endpoint.connect_with(config.clone(), remote, SERVER_NAME).map_err(|error| internal(&error));
        let first = connect()?.await.map_err(|error| connection_error(&error, VICTIM))?;
        // Tickets for later connections come after the handshake, and a stream is granted after them.
        let _stream = first.open_bi().await.map_err(|error| connection_error(&error, VICTIM))?;
        Ok(connect()?.into_0rtt().is_ok())
    })
}

/// Writes what ends any connection, and before that `moves` to another address or not.
///
/// # Errors
/// Why it could not connect, or what became of the connection, where the peer did not close it.
pub fn is_heard_after(moves: bool, address: &str, credentials: &Credentials, patience: Duration) -> Result<()> {
    let (tls, of_dialer) = (tls::client(credentials)?, address.to_owned());
    let elsewhere = socket::bind_any(1 << 20)?;
    attempt(address, patience * 2, move |endpoint| async move {
        let dialer = Dialer { endpoint: endpoint.clone(), tls, credentials: None, settings: Settings::default() };
        let dialed = dialer.dial(&of_dialer, VICTIM, patience).await?;
        if moves {
            endpoint.rebind(elsewhere).map_err(|error| internal(&error))?;
        }
        let (mut stream, _answer) = dialed.stream;
        let _ = stream.write_all(&[0xAA; 64]).await;
        match timeout(patience, dialed.connection.closed()).await {
            // A peer keeps the reason that it gave for some milliseconds. If no path to the new address was open so long, a reset is the answer.
            Ok(
                ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) | ConnectionError::Reset,
            ) => Ok(()),
            Ok(lost) => Err(connection_error(&lost, VICTIM)),
            Err(_) => Err(Error::Timeout { what: format!("being heard by {VICTIM}"), waited: patience }),
        }
    })
}

/// What becomes of `act`, with an endpoint of its own, within `patience`.
fn attempt<T: Send + 'static, F: Future<Output = Result<T>>>(
    address: &str,
    patience: Duration,
    act: impl FnOnce(Endpoint) -> F + Send + 'static,
) -> Result<T> {
    let (sender, outcome) = bounded(1);
    let address = address.to_owned();
    let serve = move |endpoint: Endpoint| async move {
        let told = timeout(patience, act(endpoint.clone()));
        let timed_out = |_| Err(Error::Timeout { what: format!("harming {address}"), waited: patience });
        let _ = sender.send(told.await.unwrap_or_else(timed_out));
        endpoint.close(CLOSE_ORDERLY, b"");
        endpoint.wait_idle().await;
    };
    let thread = endpoint::start("gl-vandal", socket::bind_any(1 << 20)?, Settings::default().endpoint(), None, serve)?;
    let outcome = outcome.recv().map_err(|_| Error::Internal { what: "the vandal fell silent".to_owned() })?;
    thread.join(patience);
    outcome
}

fn parse(address: &str) -> Result<SocketAddr> {
    address.parse().map_err(|error| internal(&error))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::Internal { what: format!("the vandal: {error}") }
}

const VICTIM: &str = "the victim";
