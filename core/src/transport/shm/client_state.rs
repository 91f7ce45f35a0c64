//! A worker's links and exchanges. One thread serves all links and writes the sums to their destination. The thread that pushes a
//! contribution copies it into the segment, as far as there is room.
//!
//! ```text
//!  exchange   push ──► Queued (too many are open) ──► Open, bytes … ──► all in the ring: push done ──┐
//!                                                           └── Answer without EARLY: push done ─────┤
//!             pull ──────────────────────────────────────────────────────────────────────────────────┴─► landing … ──► End: pull done
//!             abandoned, Break, the link is lost: from every state, as soon as no thread copies its bytes
//! ```
//! An exchange that ends is marked, whatever the reason. Only the transport's thread reports pulls. So no pull is reported while that thread
//! writes to its memory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::client_exchange::Exchange;
use super::client_lock::SharedTables;
use super::client_tables::{Entry, Heard};
use super::events::Happening;
use super::greeting;
use super::inbound::Received;
use super::layout::Message;
use super::link::{LingeringLinks, Link, Parts, Pumped, Sent};
use super::poller::{Poller, Side};
use crate::error::{Error, Result};
use crate::identity::{Credentials, PeerIdentity};
use crate::local::PeerProcess;
use crate::local::failpoint::{Failpoint, reach};
use crate::mem::{Copies, Loan};
use crate::metrics::LinkMeter;
use crate::transport::exchange::{WorkerExchange, broken_off, link_gone, of_the_link, unknown_exchange};
use crate::transport::{LinkLost, Look, Peer, Pull, Push};
use crate::types::{Done, ExchangeId, LinkId, Role};

/// All links and exchanges.
pub(super) struct ClientState {
    credentials: Credentials,
    copies: Copies,
    over: AtomicBool,
    lingering: LingeringLinks,
    tables: SharedTables,
}

/// A dial under way. The transport waits for its end before it closes.
pub(super) struct Dial(Arc<ClientState>);

impl Dial {
    /// Connects, trying again until `patience` ends.
    pub(super) fn run(&self, path: &Path, peer: &Peer, patience: Duration, lost: LinkLost) -> Result<LinkId> {
        self.0.dial(path, peer, patience, lost)
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.0.tables.lock().dialling -= 1;
        self.0.tables.notify_dials();
    }
}

impl ClientState {
    pub(super) fn new(credentials: &Credentials, copies: &Copies) -> Result<Self> {
        Ok(Self {
            credentials: credentials.clone(),
            copies: copies.clone(),
            over: AtomicBool::new(false),
            lingering: LingeringLinks::default(),
            tables: SharedTables::new()?,
        })
    }

    /// Begins a dial. Nothing if the transport closes.
    pub(super) fn begin_dial(self: &Arc<Self>) -> Option<Dial> {
        let mut tables = self.tables.lock();
        if tables.closing {
            return None;
        }
        tables.dialling += 1;
        Some(Dial(Arc::clone(self)))
    }

    /// Connects to the socket at `path`, trying again until `patience` ends.
    fn dial(&self, path: &Path, peer: &Peer, patience: Duration, lost: LinkLost) -> Result<LinkId> {
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
            if self.tables.wait_for_close(PAUSE) {
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
        let mut tables = self.tables.lock();
        if tables.closing {
            return Err(Error::Cancelled);
        }
        tables.connect(lost, |id| {
            let link = Arc::new(Link::new(id, peer.name.as_str().into(), parts));
            self.poller().events.watch(&link)?;
            Ok(link)
        })
    }

    /// Counts in `meter` from now on what goes over a link.
    pub(super) fn measure(&self, link: LinkId, meter: Arc<LinkMeter>) {
        if let Some(link) = self.link(link) {
            let _ = link.meter.set(meter);
        }
    }

    /// Whether there is a link.
    pub(super) fn has_links(&self) -> bool {
        !self.tables.lock().links.is_empty()
    }

    pub(super) fn push(&self, link: LinkId, id: ExchangeId, mut push: Push, done: Done<()>) {
        let (sender, returned) = mpsc::channel();
        let lent = self.link(link).and_then(|link| link.lend(&push.body));
        // What is lent is not copied, so it is looked at now.
        let look = if lent.is_some() { None } else { push.look.take() };
        if let Some(Look { refusal: Some(refusal), .. }) = push.look.take_if(|look| !look.passes_all(&push.body)) {
            return push.refuse(done, refusal);
        }
        // The peer reads shown memory where it lies, so there is no loan to return.
        let loan = Loan::new(if lent.is_some() { Vec::new() } else { push.body }, move |proof| {
            let _ = sender.send(proof);
        });
        let body = lent.unwrap_or_else(|| loan.into_pieces().into_iter().map(|piece| (piece, None)).collect());
        let exchange = WorkerExchange::new(push.header, done, push.pull);
        let exchange = Exchange::new(link, (body, look), exchange, returned);
        let entered = self.tables.lock().push(id, exchange);
        match entered {
            Ok((link, name)) => {
                // Also sends exchanges that were queued before, if there is room now.
                self.pump(&link, Some(name));
                link.wake_reader();
            }
            Err(exchange) => exchange.refuse(link_gone()),
        }
    }

    pub(super) fn pull(&self, link: LinkId, id: ExchangeId, pull: Pull) {
        let entered = self.tables.lock().pull(link, id, pull);
        if let Err(pull) = entered {
            pull.done.err(unknown_exchange());
        }
    }

    /// Gives up an exchange that was pushed on `link`.
    pub(super) fn abandon(&self, link: LinkId, id: ExchangeId) {
        if self.tables.lock().exchanges.get(&id).is_some_and(|exchange| exchange.link == link) {
            self.end(id, Error::Cancelled);
        }
    }

    /// Ends an exchange without an answer, unless it has ended already. The server is told of one that this side has given up.
    pub(super) fn end(&self, id: ExchangeId, error: Error) {
        let abandoned = matches!(error, Error::Cancelled | Error::NotFinite { .. });
        let ended = self.tables.lock().end(id, error);
        let Some((name, link)) = ended else { return };
        let unsent = name == 0;
        let free = match &link {
            _ if unsent => true,
            Some(link) => link.give_up(name).unwrap_or(false),
            None => false,
        };
        if free {
            self.tables.lock().returned(id);
        }
        if let Some(link) = link.filter(|_| abandoned && !unsent) {
            link.post(&Message::Abandon { exchange: name });
        }
        self.poller().wake();
    }

    /// Ends a link on behalf of the transport's user. The thread closes it.
    pub(super) fn disconnect(&self, link: LinkId) {
        if let Some(link) = self.link(link) {
            link.fail(Error::Cancelled);
            self.poller().wake();
        }
    }

    /// Ends all exchanges and lets the thread end. Dials end soon.
    pub(super) fn close(&self) {
        let exchanges: Vec<ExchangeId> = {
            let mut tables = self.tables.lock();
            tables.closing = true;
            tables.exchanges.keys().copied().collect()
        };
        self.tables.notify_dials();
        exchanges.into_iter().for_each(|exchange| self.end(exchange, Error::Cancelled));
        self.poller().wake();
    }

    /// Waits until all dials have ended, at most for `patience`.
    pub(super) fn wait_for_dials(&self, patience: Duration) {
        self.tables.wait_for_dials(patience);
    }

    /// Sends as much as there is room for, at least until all of the exchange with this name was handed over.
    fn pump(&self, link: &Link, until: Option<u64>) {
        let Pumped { sent, unfinished } = link.pump(until, false);
        for sent in sent {
            match sent {
                Sent::Whole(name) | Sent::Dropped(name) => self.tables.lock().sent(link.id, name),
                Sent::Withheld(name) => {
                    let refused = self.tables.lock().refused(link.id, name);
                    if let Some((id, error)) = refused {
                        self.end(id, error);
                    }
                }
            }
        }
        if unfinished {
            self.poller().wake();
        }
    }

    /// Handles a message of the server at the other end of `link`.
    fn receive(&self, link: &Link, received: Received) {
        let name = received.exchange();
        let heard = self.tables.lock().receive(link, received);
        match heard {
            Ok(Heard::Noted) => {}
            Ok(Heard::Refused(id)) => {
                if link.give_up(name) == Some(true) {
                    self.tables.lock().returned(id);
                }
            }
            Ok(Heard::BrokenOff(id)) => self.end(id, broken_off()),
            Ok(Heard::Late(received)) => drop(received),
            Err(error) => link.fail(error),
        }
    }

    /// Lands the bytes that came for an exchange, or reports its end.
    fn advance(&self, id: ExchangeId) {
        let mut tables = self.tables.lock();
        while let Some(mut landing) = tables.take_landing(id) {
            let step = tables.unlocked(|| landing.advance());
            if let Ok(None) = step
                && landing.arriving.arrival.landed() > 0
            {
                reach(Failpoint::SumFlows);
            }
            if !tables.put_back(id, landing, step) {
                return;
            }
        }
    }

    /// Ends a link and all its exchanges, except those whose answer is here.
    fn down(&self, id: LinkId, reason: &Error) {
        let removed = self.tables.lock().disconnect(id);
        let Some((entry, exchanges)) = removed else { return };
        self.poller().events.forget(&entry.link);
        let error = of_the_link(reason, &entry.link.peer);
        for exchange in exchanges {
            self.lose(&entry, exchange, error.clone());
        }
        self.lingering.keep(&entry.link);
        (entry.lost)(id, reason.clone());
    }

    /// Ends an exchange with its link, which is no longer in the tables.
    fn lose(&self, entry: &Entry, id: ExchangeId, error: Error) {
        let lost = self.tables.lock().lose(id, error);
        let Some(name) = lost else { return };
        let free = name == 0 || entry.link.give_up(name) != Some(false);
        if free {
            self.tables.lock().returned(id);
            self.advance(id);
        }
    }

    fn drain(&self, link: &Link) -> bool {
        link.drain(|received| self.receive(link, received))
    }

    pub(super) fn process(&self, link: LinkId) -> Option<Arc<PeerProcess>> {
        self.link(link).and_then(|link| link.process().cloned())
    }

    fn link(&self, id: LinkId) -> Option<Arc<Link>> {
        self.tables.lock().link(id)
    }

    fn advance_marked(&self) -> bool {
        let marked = std::mem::take(&mut self.tables.lock().marked);
        let any = !marked.is_empty();
        marked.into_iter().for_each(|exchange| self.advance(exchange));
        any
    }
}

impl Side for ClientState {
    fn poller(&self) -> &Poller {
        &self.tables.poller
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.tables.lock().links.values().map(|entry| Arc::clone(&entry.link)).collect()
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
        self.lingering.release();
        if self.tables.lock().closing {
            for link in self.links() {
                link.close(None);
                self.down(link.id, &Error::Cancelled);
            }
            self.tables.lock().mark_all();
            self.advance_marked();
            // Another thread may still copy bytes of an exchange. It marks the exchange afterwards.
            self.over.store(self.tables.lock().exchanges.is_empty(), Ordering::Release);
        }
        any
    }

    fn has_work(&self) -> bool {
        let tables = self.tables.lock();
        !tables.marked.is_empty() || (tables.closing && tables.exchanges.is_empty())
    }

    fn has_leisurely_work(&self) -> bool {
        false
    }

    fn happened(&self, happening: Happening) {
        let (Happening::End(id) | Happening::Wakeup(id)) = happening else { return };
        let Some(link) = self.link(id) else { return };
        if let Happening::Wakeup(_) = happening {
            return link.clear_wakeup();
        }
        self.drain(&link);
        self.advance_marked();
        // The next turn ends a link with a defect, and tells the peer of it.
        let Some(reason) = link.end_reason().filter(|_| link.defect().is_none()) else { return };
        link.close(None);
        self.down(id, &reason);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);
