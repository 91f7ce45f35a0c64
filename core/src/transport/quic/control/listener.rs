//! The coordinator's end of all control streams. Newcomers enrol here too.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::super::admission::{AdmissionControl, Arrival, Gatekeeper, now};
use super::super::closing::{
    CLOSE_ORDERLY, close_for_fault, close_with, connection_error, early_end, read_exact_error,
};
use super::super::endpoint;
use super::super::enroll;
use super::super::settings::Settings;
use super::super::socket;
use super::super::tls::{Admission, certificate};
use super::frames::{Outbox, Queues, converse, outbox};
use super::link::BUFFER_BYTES;
use super::{ControlIncoming, Waiting};
use crate::error::{Error, Result};
use crate::identity::enrolment::{Registrar, Vouched};
use crate::identity::{Authority, Credentials, PeerIdentity, Renewal, Site};
use crate::local::OwnThread;
use crate::types::{LinkId, Role, Time};
use crate::wire::{Frame, check_version};

/// Who may enrol at a listener beside the processes that know the job's own secret, which may until the job has formed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Newcomers<'a> {
    /// Those that have a certificate of this site may.
    pub site: Option<&'a Site>,
    /// Whether those that the site or an invitation lets in may also after the job has formed, because it is elastic.
    pub after_forming: bool,
}

/// The coordinator's listener for control streams, on a thread of its own. Dropping it closes all links.
pub struct ControlListener {
    address: String,
    commands: UnboundedSender<Command>,
    registrar: Arc<Mutex<Registrar>>,
    refused: Arc<AtomicU64>,
    thread: OwnThread,
}

impl ControlListener {
    /// Listens at `address`, `ip:port`; port 0 takes any free one. Lets in members of the authority's job. Those that know a secret of the job may
    /// enrol, and others as `newcomers` says.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `address` is not one, [`Error::Io`] if it is taken.
    pub fn bind(
        address: &str,
        authority: Arc<Authority>,
        settings: &Settings,
        newcomers: Newcomers<'_>,
        events: Box<dyn Fn(ControlIncoming) + Send + Sync>,
    ) -> Result<Self> {
        let settings = Settings { socket_buffer_bytes: BUFFER_BYTES, ..settings.clone() }.for_control();
        let credentials = authority.credentials(Role::Coordinator)?;
        let renewing = keep_certified(credentials.clone(), Arc::clone(&authority));
        let socket = socket::bind(socket::parse(address)?, settings.socket_buffer_bytes)?;
        let io = |error: std::io::Error| Error::Io { what: address.to_owned(), cause: error.to_string() };
        let address = socket.local_addr().map_err(io)?.to_string();
        let admission = newcomers.site.map_or(Admission::MembersAndNewcomers, Admission::MembersAndSite);
        let (admission_control, server) = AdmissionControl::new(&credentials, &settings, admission)?;
        let endpoint = settings.endpoint_with(&authority.reset_key());
        let (commands, inbox) = mpsc::unbounded_channel();
        let registrar = Arc::new(Mutex::new(Registrar::new(Arc::clone(&authority), newcomers.after_forming)));
        let refused = Arc::<AtomicU64>::default();
        let state = ServerState {
            events: events.into(),
            registrar: Arc::clone(&registrar),
            refused: Arc::clone(&refused),
            gatekeeper: admission_control.gatekeeper().clone(),
            authority,
            outboxes: BTreeMap::new(),
            queues: Arc::default(),
            tasks: JoinSet::new(),
            links: 0,
        };
        let weak = commands.downgrade();
        let serve = move |endpoint| async move {
            // Ends with the thread's runtime.
            tokio::spawn(renewing);
            run(endpoint, admission_control, state, weak, inbox).await;
        };
        let thread = endpoint::start("gl-coord", socket, endpoint, Some(server), serve)?;
        Ok(Self { address, commands, registrar, refused, thread })
    }

    /// Where it listens, `ip:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a frame to a node, after those sent before. Never blocks; a link that has ended is ignored.
    pub fn send(&self, link: LinkId, frame: Frame) {
        let _ = self.commands.send(Command::Send { link, frame });
    }

    /// The frame was handled, so the link may be read further. This takes effect after the frames that were sent before, so that a link is not
    /// read faster than its answers are sent.
    pub fn handled(&self, frame: Waiting) {
        let _ = self.commands.send(Command::Handled(frame));
    }

    /// Sends a node its next certificate, as [`Frame::Renewed`]. Key, role and job are those of the certificate that the node showed.
    pub fn certify(&self, link: LinkId) {
        let _ = self.commands.send(Command::Certify { link });
    }

    /// Certifies no more members, unless [`Newcomers::after_forming`] and the job is not over. Processes that enrol from now on in vain are told
    /// `why`. If the job `is_over`, this side has said so once, and logs them for debugging only.
    pub fn close_enrolment(&self, why: Error, is_over: bool) {
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner).close(why, is_over);
    }

    /// The number of newcomers that were refused, which goes on growing.
    pub fn enrolments_refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.refused)
    }

    /// Ends a link after the node has received the frames sent before. The node is told the reason.
    pub fn close(&self, link: LinkId, reason: Error) {
        let _ = self.commands.send(Command::Close { link, reason });
    }

    /// Ends without telling any peer, like a process that is killed.
    #[cfg(test)]
    pub(in super::super) fn vanish(self) {
        let _ = self.commands.send(Command::Vanish);
        self.thread.join(DROP_PATIENCE);
    }

    /// Ends all links after the nodes have received the frames sent before. Waits for that, at most `patience`.
    pub fn stop(&self, patience: Duration) {
        if self.thread.is_ours() {
            let _ = self.commands.send(Command::Stop(patience));
            self.thread.join(patience);
        }
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        self.stop(DROP_PATIENCE);
    }
}

impl fmt::Debug for ControlListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ControlListener({})", self.address)
    }
}

enum Command {
    Send {
        link: LinkId,
        frame: Frame,
    },
    Close {
        link: LinkId,
        reason: Error,
    },
    Certify {
        link: LinkId,
    },
    Handled(Waiting),
    Stop(Duration),
    #[cfg(test)]
    Vanish,
    // From the tasks of the listener itself.
    Down {
        link: LinkId,
    },
}

/// A node that is connected.
struct Node {
    outbox: Outbox,
    /// The certificate that it showed.
    certificate: CertificateDer<'static>,
}

/// All links. Owned by the listener's thread.
struct ServerState {
    events: Arc<dyn Fn(ControlIncoming) + Send + Sync>,
    /// Locked for one look-up, never across a call or an await.
    registrar: Arc<Mutex<Registrar>>,
    /// Counts the newcomers that were refused.
    refused: Arc<AtomicU64>,
    gatekeeper: Gatekeeper,
    authority: Arc<Authority>,
    outboxes: BTreeMap<LinkId, Node>,
    queues: Arc<Queues>,
    tasks: JoinSet<()>,
    links: u64,
}

async fn run(
    endpoint: Endpoint,
    admission_control: AdmissionControl,
    mut state: ServerState,
    own_commands: mpsc::WeakUnboundedSender<Command>,
    mut commands: UnboundedReceiver<Command>,
) {
    let (arriving, mut arrivals) = mpsc::channel(ARRIVALS_MAX);
    tokio::spawn(admission_control.watch(endpoint.clone(), arriving));
    let patience = loop {
        select! {
            command = commands.recv() => match command {
                Some(Command::Send { link, frame }) => {
                    if let Some(to) = state.outboxes.get(&link) {
                        to.outbox.send(&frame);
                    }
                }
                Some(Command::Close { link, reason }) => {
                    if let Some(to) = state.outboxes.get(&link) {
                        to.outbox.close(Some(reason));
                    }
                }
                Some(Command::Certify { link }) => {
                    if let Some(to) = state.outboxes.get(&link) {
                        let outcome = state.authority.renew(&to.certificate).map(|certificate| certificate.to_vec());
                        to.outbox.send(&Frame::Renewed { outcome });
                    }
                }
                Some(Command::Handled(waiting)) => drop(waiting),
                Some(Command::Down { link }) => drop(state.outboxes.remove(&link)),
                Some(Command::Stop(patience)) => break patience,
                #[cfg(test)]
                Some(Command::Vanish) => return,
                None => break GOODBYE,
            },
            Some(arrival) = arrivals.recv() => match arrival {
                Arrival::Member(connection, identity) => state.member(connection, identity, own_commands.clone()),
                Arrival::Newcomer(connection, began, vouched) => state.newcomer(connection, began, vouched),
            },
        }
        while state.tasks.try_join_next().is_some() {}
    };
    let closing = async {
        state.outboxes.values().for_each(|to| to.outbox.close(None));
        while state.tasks.join_next().await.is_some() {}
        endpoint.close(CLOSE_ORDERLY, b"");
        endpoint.wait_idle().await;
    };
    if timeout(patience, closing).await.is_err() {
        tracing::debug!(?patience, "a node did not confirm the end of its link");
    }
}

impl ServerState {
    fn member(&mut self, connection: Connection, identity: PeerIdentity, commands: mpsc::WeakUnboundedSender<Command>) {
        let certificate = match certificate(connection.peer_identity()) {
            Ok(certificate) => certificate,
            Err(error) => return close_with(&connection, &error),
        };
        self.links += 1;
        let link = LinkId(self.links);
        let (outbox, posted) = outbox(&self.queues);
        self.outboxes.insert(link, Node { outbox, certificate });
        let events = Arc::clone(&self.events);
        self.tasks.spawn(async move {
            let address = connection.remote_address().to_string();
            let peer = format!("{} {} at {address}", identity.role, identity.node);
            events(ControlIncoming::Up { link, node: identity.node, role: identity.role, address });
            connection.set_max_concurrent_bi_streams(VarInt::from_u32(1));
            let opened = timeout(FIRST_WORD, greeted(&connection, &peer)).await;
            let silent = || Error::Timeout {
                what: format!("waiting for {peer} to open its control stream"),
                waited: FIRST_WORD,
            };
            let reason = match opened.unwrap_or_else(|_| Err(silent())) {
                Ok(stream) => {
                    let heard = |frame, waiting| events(ControlIncoming::Frame { link, frame, waiting });
                    converse(&connection, stream, posted, &peer, BYTES_MAX_BEFORE_JOIN, heard).await
                }
                Err(error) => {
                    close_for_fault(&connection, &error);
                    error
                }
            };
            if let Some(commands) = commands.upgrade() {
                let _ = commands.send(Command::Down { link });
            }
            events(ControlIncoming::Down { link, reason });
        });
    }

    fn newcomer(&mut self, connection: Connection, began: Instant, vouched: Vouched) {
        let Some(admitted) = self.gatekeeper.enrol(now(), began) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let hint = "this process asks again by itself".to_owned();
            let (what, limit) = ("enrolments at once".to_owned(), "as many as there are places for".to_owned());
            return close_with(&connection, &Error::Exhausted { what, limit, hint });
        };
        let held = self.gatekeeper.hold(admitted);
        let (registrar, gatekeeper) = (Arc::clone(&self.registrar), self.gatekeeper.clone());
        let refusals = Arc::clone(&self.refused);
        let task = self.tasks.spawn(async move {
            // Moves the whole value into the task, so that the place is free when the task ends. Without this line only its fields are copied.
            let held = held;
            let remote = connection.remote_address();
            let terms = registrar.lock().unwrap_or_else(PoisonError::into_inner).terms();
            let refused = || gatekeeper.give_way(now(), held.place);
            let served = timeout_at(held.until.into(), enroll::serve(&terms, vouched, &connection, refused)).await;
            match served.unwrap_or_else(|_| {
                Err(early_end("enrolment", "was not completed before its deadline", &remote.to_string()))
            }) {
                Ok(()) => {
                    gatekeeper.proven(remote.ip());
                    tracing::info!(%remote, "enrolled");
                }
                Err(error) => {
                    refusals.fetch_add(1, Ordering::Relaxed);
                    match terms.is_over() {
                        true => tracing::debug!(%remote, %error, "refused"),
                        false => gatekeeper.log_refusal(now(), remote, &error),
                    }
                    // Does nothing if the newcomer has closed the connection.
                    close_for_fault(&connection, &error);
                }
            }
        });
        self.gatekeeper.works_for(admitted.place, task);
    }
}

/// Renews the coordinator's own certificate for ever.
async fn keep_certified(own: Credentials, authority: Arc<Authority>) {
    let (began, mut renewal) = (now(), Renewal::default());
    loop {
        let time = Time::ZERO + now().saturating_duration_since(began);
        let due = renewal.next(time, own.renewal_in()).since(time);
        if !due.is_zero() {
            // The calendar may jump while this sleeps, so it is looked at again after `LOOK_EVERY`.
            sleep(due.min(LOOK_EVERY)).await;
            continue;
        }
        renewal.attempted(time, own.validity().lifetime());
        match authority.renew(&own.certificate()).and_then(|certificate| own.renew(certificate.to_vec())) {
            Ok(()) => renewal.succeeded(),
            Err(error) => tracing::warn!(%error, "the coordinator's certificate is not renewed"),
        }
    }
}

/// The stream of a node, after its version was read and checked.
async fn greeted(connection: &Connection, peer: &str) -> Result<(SendStream, RecvStream)> {
    let (sender, mut receiver) = connection.accept_bi().await.map_err(|lost| connection_error(&lost, peer))?;
    let mut version = [0];
    receiver.read_exact(&mut version).await.map_err(|error| read_exact_error(error, "version", peer))?;
    check_version(version[0], peer)?;
    Ok((sender, receiver))
}

/// The longest frame before a join. A join holds two texts of up to 4 KiB. So observers and strangers cost little memory.
const BYTES_MAX_BEFORE_JOIN: usize = 16 << 10;
/// Peers whose handshake has succeeded and that are not served yet. Further peers wait at the gate.
const ARRIVALS_MAX: usize = 64;
/// How often to compare the coordinator's own certificate with the calendar.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// For a member to open its stream.
const FIRST_WORD: Duration = Duration::from_secs(3);
/// How long the peers get to notice the end, if no caller says how long.
const GOODBYE: Duration = Duration::from_millis(500);
/// How long dropping the listener waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
