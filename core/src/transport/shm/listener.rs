//! A server's listener over shared memory: one thread for all links. The thread that gives an answer sends it.
//!
//! ```text
//!  exchange   Open ──► Opened ──► bytes wait ──Accept──► Body … ──► Answer, Block …, End ──► all in the ring ──► Answered
//!                                     └──────────Answer without EARLY, Reject: what comes is dropped──────────────┘
//!             Abandon, the link is lost: Torn, from every state after Opened
//! ```
//! Events wait in one queue. The thread delivers them without holding a lock, so a receiver may call the outbox, also under a lock of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::events::Happening;
use super::greeting;
use super::link::Link;
use super::poller::{Poller, Side, run};
use super::server_state::ServerState;
use super::server_tables::Entry;
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::{Connection, OwnThread, PrivateSocket, SharedBacking, ThreadEnd};
use crate::mem::Copies;
use crate::transport::{Inbox, Incoming, Listener, Outgoing};
use crate::types::{Address, LinkId, Scheme};

/// Listens at a new socket in a new directory below `parent`. Only processes of this user can open it. Peers must show a certificate of the
/// same job. The listener's address is the path of the socket.
///
/// Workers read sums in memory of `shared_memory` where they lie. Other sums are copied first.
///
/// # Errors
/// [`Error::Io`] if the system refuses.
pub fn bind(
    parent: &Path,
    credentials: &Credentials,
    shared_memory: &Arc<SharedBacking>,
    copies: &Copies,
    inbox: Inbox,
) -> Result<Listener> {
    let socket = PrivateSocket::listen(parent)?;
    let address = Address::new(Scheme::Shm, socket.path().display().to_string());
    let state = Arc::new(ServerState::new(credentials, shared_memory, copies, inbox)?);
    state.poller.events.watch_socket(socket.fd())?;
    // The thread owns the socket, because a fork's child has no such thread and so does not remove the socket's path.
    let serving = Serving { state: Arc::clone(&state), socket };
    let thread_end = ThreadEnd::default();
    let run = move || {
        run(&serving);
        Ok(())
    };
    let thread = Arc::new(OwnThread::start_watched("gl-shm", thread_end.clone(), run)?);
    let (outbox, stopping) = (Arc::new(Outbox { state, thread: Arc::clone(&thread) }), thread);
    let stopped = Arc::clone(&outbox);
    Ok(Listener {
        addresses: vec![address],
        outbox: Box::new(move |outgoing| outbox.send(outgoing)),
        stop: Box::new(move |patience| {
            stopped.stop();
            stopping.join(patience);
        }),
        watch: Box::new(move |ended| thread_end.watch(ended)),
    })
}

/// Carries commands from other threads into the state. Dropping it ends the thread.
struct Outbox {
    state: Arc<ServerState>,
    thread: Arc<OwnThread>,
}

impl Outbox {
    fn send(&self, outgoing: Outgoing) {
        if self.thread.is_ours() {
            self.state.send(outgoing);
        }
    }

    fn stop(&self) {
        if self.thread.is_ours() {
            self.state.tables().stopping = true;
            self.state.poller.wake();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The listener's thread: the shared state, and the socket that only this thread uses.
struct Serving {
    state: Arc<ServerState>,
    socket: PrivateSocket,
}

impl Serving {
    /// Greets the processes that have connected. One that cannot be accepted now waits until the next one connects.
    fn greet_all(&self) {
        loop {
            match self.socket.accept(Duration::ZERO) {
                Ok(Some(connection)) => self.greet(connection),
                Ok(None) => return,
                Err(error) => return tracing::warn!(%error, "a process of this machine cannot connect"),
            }
        }
    }

    /// Greets a process on a thread of its own, because a silent process must not delay the links.
    fn greet(&self, connection: Connection) {
        let state = Arc::clone(&self.state);
        if state.greeting.fetch_add(1, Ordering::Relaxed) >= GREETINGS_MAX {
            state.greeting.fetch_sub(1, Ordering::Relaxed);
            return tracing::debug!("turned away: too many processes connect at once");
        }
        let greet = move || {
            let welcomed = greeting::welcome(connection, &state.credentials, &state.copies, |identity| {
                format!("{} {} on this machine", identity.role, identity.node)
            });
            state.greeting.fetch_sub(1, Ordering::Relaxed);
            match welcomed {
                Ok((parts, identity)) => {
                    let mut tables = state.tables();
                    if tables.stopping {
                        return;
                    }
                    let id = LinkId(tables.name());
                    let peer = format!("{} {} on this machine", identity.role, identity.node);
                    let link = Arc::new(Link::new(id, peer.into(), parts));
                    if let Err(error) = state.poller.events.watch(&link) {
                        return tracing::warn!(%error, "a process of this machine cannot connect");
                    }
                    let shown = Arc::clone(&link);
                    tables.links.insert(id, Entry::new(link, identity.node));
                    let address = "this machine".to_owned();
                    tables.events.push_back(Incoming::LinkUp { link: id, node: identity.node, address });
                    tables.urgent = true;
                    drop(tables);
                    state.forget_unlinked(identity.node, &shown);
                    state.poller.wake();
                }
                // A process that leaves before it has shown its certificate only looked whether the socket is served.
                Err(error) if error.retryable() => tracing::debug!(%error, "a process of this machine left"),
                Err(error) => tracing::warn!(%error, "refused a process of this machine"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gl-greet".to_owned()).spawn(greet) {
            self.state.greeting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "a process of this machine cannot connect");
        }
    }
}

impl Side for Serving {
    fn poller(&self) -> &Poller {
        &self.state.poller
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.state.tables().links.values().map(|entry| Arc::clone(&entry.link)).collect()
    }

    fn turn(&self, links: &[Arc<Link>]) -> bool {
        let state = &self.state;
        let mut any = links.iter().filter(|link| serve(state, link)).count() > 0;
        any |= state.deliver();
        state.lingering.release();
        if state.tables().stopping {
            for link in self.links() {
                link.close(None);
                state.down(&link, &Error::Cancelled);
            }
            state.deliver();
            state.over.store(true, Ordering::Release);
        }
        any
    }

    fn has_work(&self) -> bool {
        let tables = self.state.tables();
        tables.urgent || tables.stopping
    }

    fn has_leisurely_work(&self) -> bool {
        !self.state.tables().events.is_empty()
    }

    fn happened(&self, happening: Happening) {
        match happening {
            Happening::Socket => self.greet_all(),
            Happening::Wakeup(id) => {
                if let Some(entry) = self.state.tables().links.get(&id) {
                    entry.link.clear_wakeup();
                }
            }
            Happening::Ended(id) => self.state.process_ended(id),
            Happening::End(id) => {
                let Some(link) = self.state.tables().links.get(&id).map(|entry| Arc::clone(&entry.link)) else {
                    return;
                };
                drain(&self.state, &link);
                // The next turn ends a link with a defect, and tells the peer of it.
                let Some(reason) = link.end_reason().filter(|_| link.defect().is_none()) else { return };
                link.close(None);
                self.state.down(&link, &reason);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.state.over.load(Ordering::Acquire)
    }
}

/// Does all work of a link. Returns whether there was any.
pub(super) fn serve(state: &ServerState, link: &Arc<Link>) -> bool {
    let mut any = drain(state, link);
    if link.outbound().has_work() {
        state.pump(link, false);
    }
    if let Some(error) = link.defect() {
        tracing::warn!(peer = %link.peer, %error, "closing a link");
        link.close(Some(&error));
        state.down(link, &error);
        any = true;
    }
    any
}

fn drain(state: &ServerState, link: &Link) -> bool {
    link.drain(|received| state.receive(link, received))
}

/// How many processes may be greeted at the same time.
const GREETINGS_MAX: usize = 64;
