//! Shows the metrics and the state of this process over HTTP, for Prometheus and for probes.
//!
//! | path | answer |
//! |---|---|
//! | `/` | a page for people, where the coordinator of the job is: the whole job in one look |
//! | `/metrics` | what the workers, servers and coordinators of this process count, in Prometheus' text format |
//! | `/job` | the same of all members of a job, where its coordinator is: what they have told it lately, and who has not |
//! | `/healthz` | 200 while the process lives |
//! | `/readyz` | 200 while all of them can do their work, else 503; a line for each says how far it is |
//!
//! One thread answers, and reads only what its sources keep in atomics ([`Shown`]). So it never waits for a thread of an engine or a server,
//! and none of them waits for it. It takes a two-hundredth of a core at most, beyond what it has saved while nobody asked, and half as much again
//! for probes while others ask more than that.
//!
//! | file | decides or does |
//! |---|---|
//! | `hosts` | under which names it may be asked |
//! | `request` | what a request asks for, and whether it gets it |
//! | `answer` | the bytes of an answer |
//! | `budget` | how much of a core the thread may take |
//! | `pages` | keeps the pages that take time to make, for those who ask often |
//! | `shown` | what is asked of a part of the process |
//! | `serving` | sockets and deadlines |

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::clock::thread_cpu;
use super::{Clock, process};
use crate::config::{Config, ProcessRole};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::metrics::ExporterMetrics;

mod answer;
mod budget;
mod hosts;
mod pages;
mod request;
mod serving;
mod shown;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use shown::{Gathered, Shown, Standing, StandingCell, stats};

use budget::{Budget, PROBES_SAVED_MAX};
use hosts::{Hosts, is_host};
use pages::Pages;
use serving::{CONNECTION_TIME, Serving, ThreadCpu};

/// The exporter of this process: a thread that listens on a port. Dropping it frees the port.
///
/// A copy in a forked child does nothing: the thread and the port are the parent's.
pub struct Exporter {
    address: SocketAddr,
    shown: Arc<Parts>,
    ending: Arc<OwnedFd>,
    thread: OwnThread,
}

/// What is shown.
#[derive(Default)]
struct Parts(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    /// How many there were, for their numbers.
    count: u64,
    parts: Vec<(u64, Arc<dyn Shown>)>,
}

/// A part of this process that an exporter shows, until this is dropped. The exporter ends with its owner and the last of these.
pub struct Exposure {
    exporter: Arc<Exporter>,
    number: u64,
}

impl Exporter {
    /// The exporter that the settings ask for. `None` if they ask for none. Also `None`, with a warning, if the address cannot be used, or is one
    /// that other hosts reach without `metrics_public`. A job should not fail for its metrics; Prometheus finds that this process does not
    /// answer.
    ///
    /// # Errors
    /// [`Error::Config`] if the local rank of this worker makes a port that does not exist, or `metrics_hosts` has a text that is no host;
    /// [`Error::Io`] if the system gives no thread.
    pub fn by_settings(config: &Config) -> Result<Option<Arc<Self>>> {
        let Some(bind) = &config.metrics_bind else { return Ok(None) };
        let local_rank = match config.role {
            ProcessRole::Worker => config.local_rank.unwrap_or(0),
            ProcessRole::Server | ProcessRole::Coordinator | ProcessRole::Both => 0,
        };
        let bind = with_port_ahead(bind, local_rank)?;
        let (bound_host, _) = bind.rsplit_once(':').expect("checked with the settings");
        if let Some(text) = config.metrics_hosts.iter().find(|host| !is_host(host)) {
            return Err(Error::Config {
                knob: "metrics_hosts".to_owned(),
                problem: format!("has {text:?}, which is no host"),
                hint: "give names and addresses without ports, with commas between them".to_owned(),
            });
        }
        let this = process::host();
        let further = config.metrics_hosts.iter().map(String::as_str);
        let hosts = Hosts::new([bound_host, &this].into_iter().chain(config.advertise.as_deref()).chain(further));
        let unusable = |error: std::io::Error| {
            tracing::warn!(
                %error,
                "metrics are not shown: {bind} cannot be used; give each process of a host a port of its own (metrics_bind)"
            );
        };
        // Looked up once, so that what is checked is what is used.
        let addresses: Vec<SocketAddr> = match bind.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(error) => {
                unusable(error);
                return Ok(None);
            }
        };
        match (is_public(&addresses), config.metrics_public) {
            (false, _) => {}
            (true, true) => tracing::warn!("whoever reaches {bind} can read {READABLE}: there is no password"),
            (true, false) => {
                tracing::warn!(
                    "metrics are not shown: whoever reaches {bind} could read {READABLE}, without a password; set metrics_public=true to \
                     allow that, or bind an address of this host alone, such as 127.0.0.1:9400 (metrics_bind)"
                );
                return Ok(None);
            }
        }
        let listener = match TcpListener::bind(&addresses[..]) {
            Ok(listener) => listener,
            Err(error) => {
                unusable(error);
                return Ok(None);
            }
        };
        let exporter = Self::start(listener, hosts, CONNECTION_TIME, Box::new(thread_cpu))?;
        let url = format!("http://{}/metrics", exporter.address);
        if bind.ends_with(":0") {
            // Nobody else knows the port.
            tracing::warn!("metrics at {url}");
        } else {
            tracing::info!("metrics at {url}");
        }
        Ok(Some(Arc::new(exporter)))
    }

    fn start(listener: TcpListener, hosts: Hosts, connection_time: Duration, cpu: ThreadCpu) -> Result<Self> {
        let io =
            |error: std::io::Error| Error::Io { what: "starting to show metrics".to_owned(), cause: error.to_string() };
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let ending = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| io(error.into()))?;
        let (shown, ending) = (Arc::<Parts>::default(), Arc::new(ending));
        let read = Arc::clone(&shown);
        let serving = Serving {
            listener,
            ending: Arc::clone(&ending),
            clock: Clock::start(),
            hosts,
            shown: Box::new(move || read.lock().parts.iter().map(|(_, part)| Arc::clone(part)).collect()),
            pages: Pages::default(),
            budget: Budget::default(),
            probes: Budget::saving(PROBES_SAVED_MAX),
            probes_took: Duration::ZERO,
            counted: Duration::ZERO,
            held_back_since: None,
            cpu,
            metrics: ExporterMetrics::default(),
            connection_time,
        };
        let run = move || {
            // Its own end is all that a fault here may cost.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| serving.run())) {
                let error = Error::of_panic(&format!("thread {THREAD}"), &*panic);
                tracing::warn!(%error, "metrics are not shown any more");
            }
        };
        let thread = OwnThread::start(THREAD, run)?;
        Ok(Self { address, shown, ending, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows `shown` until the result is dropped.
    pub fn show(self: &Arc<Self>, shown: Arc<dyn Shown>) -> Exposure {
        let mut listed = self.shown.lock();
        listed.count += 1;
        let number = listed.count;
        listed.parts.push((number, shown));
        drop(listed);
        Exposure { exporter: Arc::clone(self), number }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if self.thread.is_ours() {
            // Fails only if it was done before, which the thread has seen then.
            let _ = rustix::io::write(&*self.ending, &1_u64.to_ne_bytes());
            self.thread.join(ENDING);
        }
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        // In the child of a fork, the exporter's thread may have held the lock when it was copied.
        if self.exporter.thread.is_ours() {
            self.exporter.shown.lock().parts.retain(|(number, _)| *number != self.number);
        }
    }
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether other hosts may reach one of these addresses.
fn is_public(addresses: &[SocketAddr]) -> bool {
    !addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// What is shown, in words.
const READABLE: &str = "the counters of this job, its name, its hosts, and names of tensors that wait";

/// `bind`, `host:port`, with a port that is so much higher. Port 0 stays.
///
/// # Errors
/// [`Error::Config`] if there is no such port.
pub fn with_port_ahead(bind: &str, ahead: u32) -> Result<String> {
    let (host, port) = bind.rsplit_once(':').unwrap_or((bind, "0"));
    let port = port.parse::<u16>().unwrap_or(0);
    if port == 0 {
        return Ok(format!("{host}:0"));
    }
    match u16::try_from(u32::from(port).saturating_add(ahead)) {
        Ok(port) => Ok(format!("{host}:{port}")),
        Err(_) => Err(Error::Config {
            knob: "metrics_bind".to_owned(),
            problem: format!(
                "is {bind}, and this host needs {ahead} ports above it, but the last port is {}",
                u16::MAX
            ),
            hint: "give a lower port: each process of a host takes one of its own".to_owned(),
        }),
    }
}

const THREAD: &str = "gl-metrics";
/// Longer than the thread takes to end. One that is stuck is left behind, with a warning.
const ENDING: Duration = Duration::from_secs(2);

#[cfg(test)]
pub(crate) mod tests;
