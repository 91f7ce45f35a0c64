//! A worker's links and exchanges. One thread serves all links and lands the sums. The thread that pushes a contribution copies it into the
//! segment, as far as there is room.
//!
//! ```text
//!  exchange   push ──► Queued (too many are open) ──► Open, bytes … ──► all in the ring: push done ──┐
//!                                                           └── Answer without EARLY: push done ─────┤
//!             pull ──────────────────────────────────────────────────────────────────────────────────┴─► landing … ──► End: pull done
//!             abandoned, Break, the link is lost: as soon as nothing is being copied, from every state
//! ```
//! The end of an exchange, for any reason, marks it. Only the transport's thread reports pulls, so that no pull is reported while the thread
//! writes to its memory.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::client_tables::{ClientTables, Effects, Entry, Exchange};
use super::events::Happening;
use super::greeting;
use super::inbound::Received;
use super::landing::Arriving;
use super::layout::Message;
use super::link::{Ended, Link, Parts, Pumped, Sent};
use super::poller::{Poller, Side};
use crate::error::{Error, Result};
use crate::mem::{Copies, Loan};
use crate::transport::exchange::{Pull, WorkerExchange, bad, broken_off, costs_the_link, link_gone, unknown_exchange};
use crate::transport::identity::{Credentials, PeerIdentity};
use crate::transport::{LinkLost, Peer, Push};
use crate::types::{Done, ExchangeId, LinkId, Role};

/// All links and exchanges.
pub(super) struct ClientState {
    pub(super) poller: Poller,
    credentials: Credentials,
    copies: Copies,
    over: AtomicBool,
    ended: Ended,
    tables: Mutex<ClientTables>,
    /// Notified when a dial has ended, and when all dials have to end.
    pub(super) dialled: Condvar,
}

impl ClientState {
    pub(super) fn new(credentials: &Credentials, copies: &Copies) -> Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            credentials: credentials.clone(),
            copies: copies.clone(),
            over: AtomicBool::new(false),
            ended: Ended::default(),
            tables: Mutex::new(ClientTables::default()),
            dialled: Condvar::new(),
        })
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, ClientTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the socket at `path`, trying again until `patience` ends.
    pub(super) fn dial(&self, path: &Path, peer: &Peer, patience: Duration, lost: LinkLost) -> Result<LinkId> {
        let mut left = patience;
        loop {
            let failure = match self.greet(path, peer) {
                Ok(parts) => return self.connected(peer, parts, lost),
                Err(error) => error,
            };
            if !failure.retryable() || left < PAUSE {
                return Err(failure);
            }
            left -= PAUSE;
            let tables = self.tables();
            let waiting = |tables: &mut ClientTables| !tables.closing;
            let waited = self.dialled.wait_timeout_while(tables, PAUSE, waiting);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closing {
                return Err(Error::Cancelled);
            }
        }
    }

    fn greet(&self, path: &Path, peer: &Peer) -> Result<Parts> {
        let judge = |identity: &PeerIdentity| {
            if identity.node == peer.node {
                return identity.must_be(Role::Server);
            }
            let (at, found) = (path.display(), format!("{} {}", identity.role, identity.node));
            Err(Error::Auth {
                problem: format!("at {at} answers {found} instead of {}, {}", peer.name, peer.node),
                hint: "another process took its address, or it was restarted: wait for the next membership".to_owned(),
            })
        };
        greeting::connect(path, &peer.name, &self.credentials, &self.copies, judge)
    }

    fn connected(&self, peer: &Peer, parts: Parts, lost: LinkLost) -> Result<LinkId> {
        let mut tables = self.tables();
        if tables.closing {
            return Err(Error::Cancelled);
        }
        tables.links_made += 1;
        let id = LinkId(tables.links_made);
        let link = Arc::new(Link::new(id, peer.name.as_str().into(), parts));
        self.poller.events.watch(&link)?;
        let (exchanges, queued) = (BTreeMap::new(), VecDeque::new());
        tables.links.insert(id, Entry { link, lost, exchanges, last: 0, queued });
        drop(tables);
        self.poller.wake();
        Ok(id)
    }

    pub(super) fn push(&self, link: LinkId, id: ExchangeId, push: Push, done: Done<()>) {
        let (sender, returned) = mpsc::channel();
        let lent = self.link(link).and_then(|link| link.lend(&push.body));
        // Memory that is shown needs no proof.
        let loan = Loan::new(if lent.is_some() { Vec::new() } else { push.body }, move |proof| {
            let _ = sender.send(proof);
        });
        let body = lent.unwrap_or_else(|| loan.into_pieces().into_iter().map(|piece| (piece, None)).collect());
        let mut tables = self.tables();
        let Some(entry) = tables.links.get_mut(&link).filter(|entry| entry.link.defect().is_none()) else {
            drop(tables);
            drop(body);
            return done.err(link_gone());
        };
        entry.queued.push_back(id);
        let shared = Arc::clone(&entry.link);
        let exchange = Exchange {
            link,
            name: 0,
            body,
            state: WorkerExchange::new(push.header, done),
            returned,
            arriving: Some(Arriving::default()),
        };
        tables.exchanges.insert(id, exchange);
        let through = tables.begin_queued(link);
        let name = tables.exchanges.get(&id).map_or(0, |exchange| exchange.name);
        drop(tables);
        self.carry_out(through);
        // Also sends what was queued before, should there be room now.
        self.pump(&shared, Some(name));
        shared.nudge();
    }

    pub(super) fn pull(&self, link: LinkId, id: ExchangeId, pull: Pull) {
        let mut tables = self.tables();
        let here = |exchange: &&mut Exchange| exchange.link == link && !exchange.state.is_pulled();
        let Some(exchange) = tables.exchanges.get_mut(&id).filter(here) else {
            drop(tables);
            return pull.done.err(unknown_exchange());
        };
        exchange.state.pull(pull);
        let (news, accepts) = (exchange.has_news(), !exchange.state.is_lent());
        let name = exchange.name;
        if news {
            tables.marked.insert(id);
        }
        let link = tables.links.get(&link).map(|entry| Arc::clone(&entry.link));
        drop(tables);
        if let Some(link) = link.filter(|_| accepts) {
            link.post_quietly(&Message::Accept { exchange: name });
        }
        if news {
            self.poller.wake();
        }
    }

    /// Gives up an exchange that was pushed on `link`.
    pub(super) fn abandon(&self, link: LinkId, id: ExchangeId) {
        if self.tables().exchanges.get(&id).is_some_and(|exchange| exchange.link == link) {
            self.end(id, Error::Cancelled);
        }
    }

    /// Ends an exchange without an answer, unless it has ended already. The server is told of one that was given up.
    pub(super) fn end(&self, id: ExchangeId, error: Error) {
        let mut tables = self.tables();
        let abandoned = matches!(error, Error::Cancelled);
        let Some(exchange) = tables.exchanges.get_mut(&id) else { return };
        if exchange.state.has_ended() && !abandoned {
            return;
        }
        exchange.state.end(Err(error));
        let (name, link, waiting) = (exchange.name, exchange.link, std::mem::take(&mut exchange.body));
        let link = tables.links.get_mut(&link).map(|entry| {
            entry.queued.retain(|queued| *queued != id);
            Arc::clone(&entry.link)
        });
        tables.marked.insert(id);
        drop(tables);
        let unsent = name == 0;
        drop(waiting);
        let free = match &link {
            _ if unsent => true,
            Some(link) => link.give_up(name).unwrap_or(false),
            None => false,
        };
        if free {
            self.through(id);
        }
        if let Some(link) = link.filter(|_| abandoned && !unsent) {
            link.post(&Message::Abandon { exchange: name });
        }
        self.poller.wake();
    }

    /// Sends as much as there is room for, at least until all of the exchange with this name was handed over.
    fn pump(&self, link: &Link, until: Option<u64>) {
        let Pumped { sent, unfinished } = link.pump(until, false);
        for sent in sent {
            let (Sent::Whole(name) | Sent::Dropped(name)) = sent;
            let mut tables = self.tables();
            let id = tables.named(link.id, name);
            let through = id.map(|id| tables.through(id)).unwrap_or_default();
            drop(tables);
            self.carry_out(through);
        }
        if unfinished {
            self.poller.wake();
        }
    }

    /// The memory of an exchange is no longer read.
    fn through(&self, id: ExchangeId) {
        // In two steps, because a callback may call the transport, which takes the lock again.
        let effects = self.tables().through(id);
        self.carry_out(effects);
    }

    fn carry_out(&self, Effects { done, accept, marked }: Effects) {
        if let Some((link, name)) = accept {
            link.post_quietly(&Message::Accept { exchange: name });
        }
        done.into_iter().for_each(|done| done.ok(()));
        if marked {
            self.poller.wake();
        }
    }

    /// Handles a message of the server at the other end of `link`.
    fn receive(&self, link: &Link, received: Received) {
        let name = received.exchange();
        let mut tables = self.tables();
        let Some(entry) = tables.links.get(&link.id) else { return };
        if name == 0 || name > entry.last {
            drop(tables);
            return link.fail(bad(&link.peer, "exchange", format!("is {name}, which was not opened")));
        }
        // The exchange has ended on this side, and the server did not know yet.
        let id = entry.exchanges.get(&name).copied();
        let Some((id, exchange)) = id.and_then(|id| Some((id, tables.exchanges.get_mut(&id)?))) else {
            drop(tables);
            return drop(received);
        };
        let sending = exchange.state.is_lent();
        let arriving = exchange.arriving.as_mut().expect("the thread has it back while it receives");
        let refused_before = arriving.arrival.refuses_body();
        let outcome = match received {
            Received::Answer(_, header) => arriving.begin(&header, &link.peer),
            Received::Data(_, bytes) => arriving.take(bytes, &link.peer),
            Received::End(_, checksum) => arriving.end(checksum, &link.peer),
            Received::Break(_) => {
                drop(tables);
                return self.end(id, broken_off());
            }
            Received::Accept(_) => {
                link.outbound().accept(name);
                return;
            }
            Received::Open(..) | Received::Abandon(_) => {
                Err(bad(&link.peer, "kind", "is one that only a worker sends"))
            }
        };
        let stop = sending && !refused_before && arriving.arrival.refuses_body();
        tables.marked.insert(id);
        drop(tables);
        match outcome {
            Ok(()) => {
                if stop && link.give_up(name) == Some(true) {
                    self.through(id);
                }
            }
            Err(error) => link.fail(error),
        }
    }

    /// Lands the bytes that came for an exchange, or reports its end.
    fn advance(&self, id: ExchangeId) {
        let mut tables = self.tables();
        loop {
            let ClientTables { links, exchanges, .. } = &mut *tables;
            let Some(exchange) = exchanges.get_mut(&id) else { return };
            if exchange.state.has_ended() {
                if exchange.state.is_over() {
                    let (exchange, through) = tables.forget(id);
                    drop(tables);
                    exchange.report();
                    self.carry_out(through);
                }
                return;
            }
            let link = links.get(&exchange.link).map(|entry| Arc::clone(&entry.link));
            let peer: &str = link.as_ref().map_or("the server", |link| &link.peer);
            let mut arriving = exchange.arriving.take().expect("only this thread takes it");
            let step = match exchange.state.place(&mut arriving.arrival, peer) {
                Ok(true) => {
                    drop(tables);
                    let step = arriving.advance(peer);
                    tables = self.tables();
                    step
                }
                Ok(false) => Ok(None),
                Err(error) => Err(error),
            };
            let exchange = tables.exchanges.get_mut(&id).expect("only this thread forgets it");
            exchange.arriving = Some(arriving);
            match step {
                Ok(None) if !exchange.state.has_ended() => return,
                Ok(None) => {}
                Ok(Some(answer)) => exchange.state.end(Ok(answer)),
                Err(error) => {
                    exchange.state.end(Err(error.clone()));
                    if let Some(link) = link.filter(|_| costs_the_link(&error)) {
                        link.fail(error);
                    }
                }
            }
        }
    }

    /// Ends a link and all its exchanges, except those whose answer is here.
    fn down(&self, id: LinkId, reason: &Error) {
        let mut tables = self.tables();
        let Some(entry) = tables.links.remove(&id) else { return };
        let exchanges: Vec<ExchangeId> = tables
            .exchanges
            .iter()
            .filter(|(_, exchange)| exchange.link == id && !exchange.is_answered())
            .map(|(exchange, _)| *exchange)
            .collect();
        drop(tables);
        self.poller.events.forget(&entry.link);
        let error = match reason {
            Error::Protocol { .. } => Error::Unavailable {
                what: entry.link.peer.to_string(),
                cause: format!("its link was closed: {reason}"),
            },
            other => other.clone(),
        };
        for exchange in exchanges {
            self.lose(&entry, exchange, error.clone());
        }
        self.ended.keep(&entry.link);
        (entry.lost)(id, reason.clone());
    }

    /// Ends an exchange with its link, which is no longer in the tables.
    fn lose(&self, entry: &Entry, id: ExchangeId, error: Error) {
        let mut tables = self.tables();
        let Some(exchange) = tables.exchanges.get_mut(&id) else { return };
        exchange.state.end(Err(error));
        let (name, body) = (exchange.name, std::mem::take(&mut exchange.body));
        drop(tables);
        drop(body);
        let free = name == 0 || entry.link.give_up(name) != Some(false);
        if free {
            self.through(id);
            self.advance(id);
        }
    }

    fn drain(&self, link: &Link) -> bool {
        link.drain(|received| self.receive(link, received))
    }

    fn link(&self, id: LinkId) -> Option<Arc<Link>> {
        self.tables().links.get(&id).map(|entry| Arc::clone(&entry.link))
    }

    fn advance_marked(&self) -> bool {
        let marked = std::mem::take(&mut self.tables().marked);
        let any = !marked.is_empty();
        marked.into_iter().for_each(|exchange| self.advance(exchange));
        any
    }
}

impl Side for ClientState {
    fn poller(&self) -> &Poller {
        &self.poller
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.tables().links.values().map(|entry| Arc::clone(&entry.link)).collect()
    }

    fn turn(&self, links: &[Arc<Link>]) -> bool {
        let mut any = false;
        for link in links {
            any |= self.drain(link);
            if link.outbound().has_work() {
                self.pump(link, None);
            }
            if let Some(error) = link.defect() {
                let told = (error != Error::Cancelled).then_some(&error);
                if told.is_some() {
                    tracing::warn!(peer = %link.peer, %error, "closing a link");
                }
                link.close(told);
                self.down(link.id, &error);
                any = true;
            }
        }
        any |= self.advance_marked();
        self.ended.let_go();
        if self.tables().closing {
            for link in self.links() {
                link.close(None);
                self.down(link.id, &Error::Cancelled);
            }
            let mut tables = self.tables();
            let ClientTables { marked, exchanges, .. } = &mut *tables;
            marked.extend(exchanges.keys());
            drop(tables);
            self.advance_marked();
            // Another thread may still copy. It marks the exchange when it is done.
            self.over.store(self.tables().exchanges.is_empty(), Ordering::Release);
        }
        any
    }

    fn has_work(&self) -> bool {
        let tables = self.tables();
        !tables.marked.is_empty() || (tables.closing && tables.exchanges.is_empty())
    }

    fn has_leisurely_work(&self) -> bool {
        false
    }

    fn happened(&self, happening: Happening) {
        let (Happening::End(id) | Happening::Rung(id)) = happening else { return };
        let link = self.tables().links.get(&id).map(|entry| Arc::clone(&entry.link));
        let Some(link) = link else { return };
        if let Happening::Rung(_) = happening {
            return link.hush();
        }
        self.drain(&link);
        self.advance_marked();
        // The next turn ends a link with a defect, and tells the peer of it.
        let Some(reason) = link.farewell().filter(|_| link.defect().is_none()) else { return };
        link.close(None);
        self.down(id, &reason);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);
