//! The thread of an endpoint; for quinn's async layer with one runtime, one socket, one driver.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use quinn::{Endpoint, Runtime, ServerConfig, TokioRuntime};

use super::settings::Settings;
use super::socket::BatchedSocket;
use crate::error::{Error, Result};

/// A thread that runs one endpoint until its future ends.
#[derive(Debug)]
pub(super) struct EndpointThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Receiver<()>,
    /// The process that has the thread: a fork's child inherits this value, but no threads.
    process: u32,
}

impl EndpointThread {
    /// Runs `serve` with an endpoint on `socket`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread or no event queue.
    pub(super) fn start<F>(
        name: &str,
        socket: UdpSocket,
        settings: &Settings,
        server: Option<ServerConfig>,
        serve: impl FnOnce(Endpoint) -> F + Send + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = ()>,
    {
        let config = settings.endpoint();
        let (started, starting) = bounded(1);
        let thread = Self::run(name, move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            runtime.block_on(async {
                let socket = TokioRuntime.wrap_udp_socket(socket);
                let endpoint = socket.and_then(|socket| {
                    let socket = Arc::new(BatchedSocket(socket));
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
        let outcome = starting.recv().map_err(|_| Error::Internal { what: format!("thread {name} panicked") })?;
        outcome.map_err(|error| io("starting an endpoint", &error))?;
        Ok(thread)
    }

    /// Runs `body` on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(super) fn run(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (ending, ended) = bounded::<()>(0);
        let body = move || {
            // Dropped when the thread ends, however it ends.
            let _ending = ending;
            body();
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| io("starting a thread", &error))?;
        Ok(Self { thread: Mutex::new(Some(thread)), ended, process: std::process::id() })
    }

    /// Whether the thread can still be spoken to: not in the child of a fork.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Waits for the thread, at most `patience`; a thread that does not end in time goes on alone. On the thread itself, as when a
    /// callback drops its transport, it does not wait.
    pub(super) fn join(&self, patience: Duration) {
        if !self.is_ours() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        if thread.thread().id() == thread::current().id() {
            return;
        }
        // The channel carries nothing: it is disconnected when the thread ends.
        match self.ended.recv_timeout(patience) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) | Ok(()) => {
                tracing::warn!(?patience, thread = thread.thread().name(), "an endpoint did not stop in time");
            }
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => drop(thread.join()),
        }
    }
}

fn io(what: &str, error: &std::io::Error) -> Error {
    Error::Io { what: what.to_owned(), cause: error.to_string() }
}

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
