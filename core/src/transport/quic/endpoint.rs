//! The thread of an endpoint of quinn's async layer: one runtime, one socket, one driver.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use quinn::{Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime};

use super::socket::PlainSocket;
use crate::error::{Error, Result};
use crate::local::OwnThread;

/// Starts a thread that runs `serve` with an endpoint on `socket`, until its future ends.
///
/// # Errors
/// [`Error::Io`] if the system gives no thread or no event queue.
pub(super) fn start<F>(
    name: &str,
    socket: UdpSocket,
    config: EndpointConfig,
    server: Option<ServerConfig>,
    serve: impl FnOnce(Endpoint) -> F + Send + 'static,
) -> Result<OwnThread>
where
    F: Future<Output = ()>,
{
    let (started, starting) = bounded(1);
    let thread = OwnThread::start(name, move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        runtime.block_on(async {
            let socket = TokioRuntime.wrap_udp_socket(socket);
            let endpoint = socket.and_then(|socket| {
                let socket = Arc::new(PlainSocket(socket));
                Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
            });
            match endpoint {
                Ok(endpoint) => {
                    let _ = started.send(Ok(()));
                    serve(endpoint).await;
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        // A name that is still being resolved must not hold the thread up.
        runtime.shutdown_background();
    })?;
    let outcome = starting.recv_timeout(STARTING).map_err(|error| match error {
        RecvTimeoutError::Disconnected => Error::Internal { what: format!("thread {name} panicked") },
        RecvTimeoutError::Timeout => Error::Timeout { what: format!("starting thread {name}"), waited: STARTING },
    })?;
    outcome.map_err(|error| Error::Io { what: "starting an endpoint".to_owned(), cause: error.to_string() })?;
    Ok(thread)
}

/// Longer than the thread needs to begin.
const STARTING: Duration = Duration::from_secs(30);

/// The addresses of `host:port`.
pub(super) async fn resolve(address: &str, what: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let found = tokio::net::lookup_host(address).await;
    let unavailable = |cause: String| Error::Unavailable { what: format!("{what} at {address}"), cause };
    let found: Vec<SocketAddr> = found.map_err(|error| unavailable(error.to_string()))?.collect();
    if found.is_empty() {
        return Err(unavailable("its name has no address".to_owned()));
    }
    Ok(found)
}
