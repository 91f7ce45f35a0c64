//! A member that breaks the rules: an authenticated connection on which tests send any bytes at all.

use std::time::Duration;

use crossbeam_channel::bounded;
use tokio::time::timeout;

use super::closing::{CLOSE_ORDERLY, connection_error};
use super::dial::Dialer;
use super::endpoint;
use super::settings::Settings;
use super::{socket, tls};
use crate::error::{Error, Result};
use crate::transport::identity::Credentials;

/// Writes `bytes` on a stream to `address` and ends it; says why the other side closed the connection. Blocks at most `patience`.
pub fn write(address: &str, credentials: &Credentials, bytes: Vec<u8>, patience: Duration) -> Error {
    converse(address, credentials, bytes, patience).unwrap_or_else(|error| error)
}

fn converse(address: &str, credentials: &Credentials, bytes: Vec<u8>, patience: Duration) -> Result<Error> {
    let settings = Settings::default();
    let tls = tls::client(credentials)?;
    let (sender, outcome) = bounded(1);
    let (address, of_dialer) = (address.to_owned(), settings.clone());
    let serve = move |endpoint: quinn::Endpoint| async move {
        let dialer = Dialer { endpoint: endpoint.clone(), tls, credentials: None, settings: of_dialer };
        let told = timeout(patience, async {
            let dialed = dialer.dial(&address, VICTIM, patience).await?;
            let (mut stream, _answer) = dialed.stream;
            // The other side may close before all is written; why, is heard below.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
            Ok(connection_error(&dialed.connection.closed().await, VICTIM))
        });
        let timed_out = |_| Err(Error::Timeout { what: format!("harming {address}"), waited: patience });
        let _ = sender.send(told.await.unwrap_or_else(timed_out));
        endpoint.close(CLOSE_ORDERLY, b"");
        endpoint.wait_idle().await;
    };
    let thread = endpoint::start("vandal", socket::bind_any(1 << 20)?, &settings, None, serve)?;
    let outcome = outcome.recv().map_err(|_| Error::Internal { what: "the vandal fell silent".to_owned() })?;
    thread.join(patience);
    outcome
}

const VICTIM: &str = "the victim";
