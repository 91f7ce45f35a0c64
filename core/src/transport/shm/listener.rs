//! A server's side: one thread for all links. Answers are sent by whoever gives them.
//!
//! ```text
//!  exchange   Open ──► Opened ──► bytes wait ──Accept──► Body … ──► Answer, Block …, End ──► all in the ring ──► Answered
//!                                     └──────────Answer without EARLY, Reject: what comes is dropped──────────────┘
//!             Abandon, the link is lost: Torn, from every state after Opened
//! ```
//! Events wait in one queue, which the thread empties without holding a lock: so a receiver may call the outbox, and the outbox may be
//! called under whatever lock the receiver takes.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::greeting;
use super::inbound::Received;
use super::layout::{EXCHANGES_MAX, Message, bad};
use super::link::{Ended, Link, Pumped, Sent};
use super::outbound::Piece;
use super::poller::{Happening, Poller, Side, run};
use crate::error::{Error, Result};
use crate::local::{OwnThread, PrivateSocket, SharedGround};
use crate::mem::{Copies, Frozen};
use crate::transport::exchange::{broken_off, reject_of};
use crate::transport::quic::Credentials;
use crate::transport::{Inbox, Incoming, Listener, Outgoing};
use crate::types::{ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Header, Reply};

/// Listens at a new socket in a new directory below `parent`, where only processes of this user reach it. Peers must show a certificate
/// of the same job. The listener's address is the path of the socket.
///
/// Sums that lie in memory of `ground` are read there by the workers; others are copied first.
///
/// # Errors
/// [`Error::Io`] if the system refuses.
pub fn bind(
    parent: &Path,
    credentials: &Credentials,
    ground: &Arc<SharedGround>,
    copies: &Copies,
    inbox: Inbox,
) -> Result<Listener> {
    let door = PrivateSocket::listen(parent)?;
    let path = door.path().display().to_string();
    let poller = Poller::new()?;
    poller.watch_door(door.fd())?;
    let hall = Arc::new(Hall {
        inbox,
        poller,
        credentials: credentials.clone(),
        ground: Arc::clone(ground),
        copies: copies.clone(),
        greeting: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        ended: Ended::default(),
        state: Mutex::new(State::default()),
    });
    // Of the thread: a fork's child, which drops everything else, must not remove it.
    let serving = Serving { hall: Arc::clone(&hall), door };
    let thread = Arc::new(OwnThread::start("gradlane-shm", move || run(&serving))?);
    let (outbox, stopping) = (Arc::new(Outbox { hall, thread: Arc::clone(&thread) }), thread);
    let stopped = Arc::clone(&outbox);
    Ok(Listener {
        address: path,
        outbox: Box::new(move |outgoing| outbox.send(outgoing)),
        stop: Box::new(move |patience| {
            stopped.stop();
            stopping.join(patience);
        }),
    })
}

/// The way into the hall from other threads. Dropping it ends the thread.
struct Outbox {
    hall: Arc<Hall>,
    thread: Arc<OwnThread>,
}

impl Outbox {
    fn send(&self, outgoing: Outgoing) {
        if self.thread.is_ours() {
            self.hall.send(outgoing);
        }
    }

    fn stop(&self) {
        if self.thread.is_ours() {
            self.hall.state().stopping = true;
            self.hall.poller.wake();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What all links share.
struct Hall {
    inbox: Inbox,
    poller: Poller,
    credentials: Credentials,
    ground: Arc<SharedGround>,
    copies: Copies,
    /// How many processes are being greeted.
    greeting: AtomicUsize,
    over: AtomicBool,
    ended: Ended,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<LinkId, Entry>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    events: VecDeque<Incoming>,
    /// Whether an event came from another thread that the server should hear of at once.
    urgent: bool,
    names_given: u64,
    stopping: bool,
}

struct Entry {
    link: Arc<Link>,
    /// The exchanges by the worker's names.
    exchanges: BTreeMap<u64, ExchangeId>,
    /// The last name that the worker gave.
    last: u64,
}

struct Exchange {
    link: Arc<Link>,
    /// The worker's name for it.
    name: u64,
    /// Of the request; the answer goes by it.
    urgency: u8,
    body_left: u64,
    intake: Intake,
    /// Whether the worker takes the whole answer at once.
    accepted: bool,
    answered: bool,
    /// Bytes of the answer for which there were no blocks yet.
    answer_left: u64,
}

/// What becomes of a body.
enum Intake {
    /// The bytes wait where they lie.
    Hold(Vec<Bytes>),
    Accept,
    Refuse,
}

impl Hall {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a command, on any thread.
    fn send(&self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Accept { exchange } => self.accept(exchange),
            Outgoing::Answer { exchange, header } => self.answer(exchange, &Reply::Sum(header)),
            Outgoing::Block { exchange, block } => self.block(exchange, block),
            Outgoing::End { exchange, checksum } => {
                self.end(exchange, |name| Some(Message::End { exchange: name, checksum }));
            }
            Outgoing::Reject { exchange, target, error } => {
                if self.state().exchanges.get(&exchange).is_some_and(|exchange| exchange.answered) {
                    return self.break_off(exchange);
                }
                let (header, body) = reject_of(target, &error);
                self.answer(exchange, &Reply::Reject(header));
                self.send_bytes(exchange, (Bytes::from(body), None));
                self.end(exchange, |_| None);
            }
            Outgoing::Disconnect { link, reason } => {
                if let Some(entry) = self.state().links.get(&link) {
                    entry.link.fail(reason);
                }
                self.poller.wake();
            }
        }
    }

    fn accept(&self, id: ExchangeId) {
        let mut state = self.state();
        let Some(exchange) = state.exchanges.get_mut(&id) else { return };
        let Intake::Hold(held) = &mut exchange.intake else { return };
        let chunks = std::mem::take(held);
        exchange.intake = Intake::Accept;
        let (link, name, left) = (Arc::clone(&exchange.link), exchange.name, exchange.body_left);
        let told = !chunks.is_empty();
        if told {
            state.events.push_back(Incoming::Body { exchange: id, chunks });
            state.urgent = true;
        }
        drop(state);
        if left > 0 {
            link.post_quietly(&Message::Accept { exchange: name });
        }
        if told {
            self.poller.wake();
        }
    }

    /// Begins an answer. What the message has no room for, a set of contributors, goes ahead of the body.
    fn answer(&self, id: ExchangeId, header: &Reply) {
        let mut set = Bytes::from(header.encode());
        let head = *set.split_to(HEADER_BYTES).first_chunk().expect("a header has so many bytes");
        let mut state = self.state();
        let Some(exchange) = state.exchanges.get_mut(&id).filter(|exchange| !exchange.answered) else { return };
        exchange.answered = true;
        exchange.answer_left = header.body_bytes();
        let refused = (!header.is_early()).then(|| std::mem::replace(&mut exchange.intake, Intake::Refuse));
        let (link, name) = (Arc::clone(&exchange.link), exchange.name);
        let (urgency, accepted) = (exchange.urgency, exchange.accepted);
        // Under the lock: what the worker says of the exchange meanwhile must find it.
        let mut outbound = link.outbound();
        let posted = outbound.post(&Message::Answer { exchange: name, header: head });
        outbound.begin(name, urgency, accepted);
        outbound.extend(name, (!set.is_empty()).then_some((set, None)));
        drop(outbound);
        drop(state);
        drop(refused);
        // The worker wakes for the bytes.
        if let Err(error) = posted {
            link.fail(error);
            self.poller.wake();
        }
    }

    fn block(&self, id: ExchangeId, block: Frozen) {
        let Some((link, _)) = self.answering(id) else { return };
        let place = link.show(&self.ground, &block);
        self.send_bytes(id, (Bytes::from_owner(block), place));
    }

    fn send_bytes(&self, id: ExchangeId, piece: Piece) {
        let mut state = self.state();
        let Some(exchange) = state.exchanges.get_mut(&id).filter(|exchange| exchange.answered) else { return };
        exchange.answer_left = exchange.answer_left.saturating_sub(piece.0.len() as u64);
        // The last bytes are followed by the end at once, and a worker that wakes twice for a small sum takes twice as long.
        let (link, name, last) = (Arc::clone(&exchange.link), exchange.name, exchange.answer_left == 0);
        drop(state);
        link.outbound().extend(name, [piece]);
        self.pump(&link, last);
    }

    fn end(&self, id: ExchangeId, message: impl FnOnce(u64) -> Option<Message>) {
        let Some((link, name)) = self.answering(id) else { return };
        let ended = link.outbound().end(name, message(name));
        match ended {
            Ok(true) => self.through(link.id, Sent::Whole(name)),
            Ok(false) => {}
            Err(error) => {
                link.fail(error);
                self.poller.wake();
            }
        }
        link.nudge();
    }

    fn answering(&self, id: ExchangeId) -> Option<(Arc<Link>, u64)> {
        let state = self.state();
        let exchange = state.exchanges.get(&id).filter(|exchange| exchange.answered)?;
        Some((Arc::clone(&exchange.link), exchange.name))
    }

    fn break_off(&self, id: ExchangeId) {
        let mut state = self.state();
        let Some(exchange) = state.forget(id) else { return };
        state.events.push_back(Incoming::Torn { exchange: id, reason: broken_off() });
        state.urgent = true;
        drop(state);
        exchange.link.give_up(exchange.name);
        exchange.link.post(&Message::Break { exchange: exchange.name });
        self.poller.wake();
    }

    /// Sends what there is room for.
    fn pump(&self, link: &Link, quietly: bool) {
        let Pumped { sent, unfinished } = link.pump(None, quietly);
        sent.into_iter().for_each(|sent| self.through(link.id, sent));
        if unfinished {
            self.poller.wake();
        }
    }

    fn through(&self, link: LinkId, sent: Sent) {
        let Sent::Whole(name) = sent else { return };
        let mut state = self.state();
        let Some(id) = state.links.get(&link).and_then(|entry| entry.exchanges.get(&name)).copied() else { return };
        let ended = state.forget(id);
        state.events.push_back(Incoming::Answered { exchange: id });
        drop(state);
        drop(ended);
        // Nobody waits for it, and who has the sum soon pushes again, which wakes the thread anyway.
        self.poller.wake_soon();
    }

    /// What the worker at the other end of `link` says.
    fn receive(&self, link: &Link, received: Received) {
        let outcome = self.state().receive(link, received);
        match outcome {
            Ok(Discarded { exchange: Some(exchange), .. }) => {
                link.give_up(exchange.name);
            }
            Ok(Discarded { exchange: None, .. }) => {}
            Err(error) => link.fail(error),
        }
    }

    /// Ends a link and all its exchanges.
    fn down(&self, link: &Arc<Link>, reason: &Error) {
        self.poller.forget(link);
        let mut state = self.state();
        let Some(entry) = state.links.remove(&link.id) else { return };
        let ended: Vec<Exchange> = entry
            .exchanges
            .values()
            .filter_map(|id| {
                let exchange = state.exchanges.remove(id)?;
                state.events.push_back(Incoming::Torn { exchange: *id, reason: reason.clone() });
                Some(exchange)
            })
            .collect();
        state.events.push_back(Incoming::LinkDown { link: link.id, reason: reason.clone() });
        drop(state);
        for exchange in ended {
            link.give_up(exchange.name);
        }
        self.ended.keep(link);
    }

    fn deliver(&self) -> bool {
        let mut any = false;
        loop {
            let mut state = self.state();
            let Some(event) = state.events.pop_front() else {
                state.urgent = false;
                return any;
            };
            let wanted = match &event {
                // Answered meanwhile, and not early: nobody expects it any more.
                Incoming::Body { exchange, .. } => {
                    state.exchanges.get(exchange).is_some_and(|exchange| matches!(exchange.intake, Intake::Accept))
                }
                Incoming::LinkUp { .. }
                | Incoming::LinkDown { .. }
                | Incoming::Opened { .. }
                | Incoming::Torn { .. }
                | Incoming::Answered { .. } => true,
            };
            drop(state);
            any = true;
            if wanted {
                (self.inbox)(event);
            }
        }
    }
}

impl State {
    fn name(&mut self) -> u64 {
        self.names_given += 1;
        self.names_given
    }

    fn forget(&mut self, id: ExchangeId) -> Option<Exchange> {
        let exchange = self.exchanges.remove(&id)?;
        if let Some(entry) = self.links.get_mut(&exchange.link.id) {
            entry.exchanges.remove(&exchange.name);
        }
        Some(exchange)
    }

    /// What is returned is to be dropped without the lock.
    fn receive(&mut self, link: &Link, received: Received) -> Result<Discarded> {
        let (name, peer) = (received.exchange(), &link.peer);
        let entry = self.links.get_mut(&link.id).expect("a link is up while it receives");
        if let Received::Open(_, header) = &received {
            if name != entry.last + 1 {
                return Err(bad(peer, "exchange", format!("is {name} after {}", entry.last)));
            }
            if entry.exchanges.len() >= EXCHANGES_MAX {
                return Err(bad(peer, "exchange", format!("is one more than the {EXCHANGES_MAX} allowed at once")));
            }
            let header = Header::decode(header, peer)?.into_request(peer)?;
            entry.last = name;
            let id = ExchangeId(self.name());
            let entry = self.links.get_mut(&link.id).expect("found above");
            entry.exchanges.insert(name, id);
            let exchange = Exchange {
                link: Arc::clone(&entry.link),
                name,
                urgency: header.urgency(),
                body_left: header.body_bytes(),
                intake: Intake::Hold(Vec::new()),
                accepted: false,
                answered: false,
                answer_left: 0,
            };
            self.exchanges.insert(id, exchange);
            self.events.push_back(Incoming::Opened { link: link.id, exchange: id, header });
            return Ok(Discarded::default());
        }
        if name == 0 || name > entry.last {
            return Err(bad(peer, "exchange", format!("is {name}, which was not opened")));
        }
        // One that is over on this side: the worker could not know.
        let Some(id) = entry.exchanges.get(&name).copied() else {
            let bytes = if let Received::Data(_, bytes) = received { Some(bytes) } else { None };
            return Ok(Discarded { _bytes: bytes, ..Discarded::default() });
        };
        let exchange = self.exchanges.get_mut(&id).expect("a link's exchanges exist");
        match received {
            Received::Open(..) => unreachable!("handled above"),
            Received::Data(_, bytes) => {
                let left = exchange.body_left.checked_sub(bytes.len() as u64);
                exchange.body_left = left.ok_or_else(|| bad(peer, "body", "is longer than announced"))?;
                match &mut exchange.intake {
                    Intake::Hold(held) => held.push(bytes),
                    Intake::Accept => match self.events.back_mut() {
                        Some(Incoming::Body { exchange, chunks }) if *exchange == id => chunks.push(bytes),
                        _ => self.events.push_back(Incoming::Body { exchange: id, chunks: vec![bytes] }),
                    },
                    Intake::Refuse => return Ok(Discarded { _bytes: Some(bytes), ..Discarded::default() }),
                }
            }
            Received::Accept(_) => {
                exchange.accepted = true;
                exchange.link.outbound().accept(name);
            }
            Received::Abandon(_) => {
                let reason = Error::Unavailable { what: peer.to_string(), cause: "it gave the exchange up".to_owned() };
                self.events.push_back(Incoming::Torn { exchange: id, reason });
                return Ok(Discarded { exchange: self.forget(id), ..Discarded::default() });
            }
            Received::Answer(..) | Received::End(..) | Received::Break(_) => {
                return Err(bad(peer, "kind", "is one that only a server sends"));
            }
        }
        Ok(Discarded::default())
    }
}

/// What is dropped when nothing is locked, as that calls back.
#[derive(Default)]
struct Discarded {
    /// One that the worker gave up.
    exchange: Option<Exchange>,
    /// Bytes that nobody wants.
    _bytes: Option<Bytes>,
}

/// The hall and what only its thread has.
struct Serving {
    hall: Arc<Hall>,
    door: PrivateSocket,
}

impl Serving {
    /// Greets whoever is at the door, on a thread of its own: a silent one must not hold up the links.
    fn greet(&self) {
        let connection = match self.door.accept(Duration::ZERO) {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, "a process of this machine cannot connect"),
        };
        let hall = Arc::clone(&self.hall);
        if hall.greeting.fetch_add(1, Ordering::Relaxed) >= GREETINGS_MAX {
            hall.greeting.fetch_sub(1, Ordering::Relaxed);
            return tracing::debug!("turned away: too many processes connect at once");
        }
        let greet = move || {
            let welcomed = greeting::welcome(connection, &hall.credentials, &hall.copies, |identity| {
                format!("{} {} on this machine", identity.role, identity.node)
            });
            hall.greeting.fetch_sub(1, Ordering::Relaxed);
            match welcomed {
                Ok((parts, identity)) => {
                    let mut state = hall.state();
                    if state.stopping {
                        return;
                    }
                    let id = LinkId(state.name());
                    let peer = format!("{} {} on this machine", identity.role, identity.node);
                    let link = Arc::new(Link::new(id, peer.into(), parts));
                    if let Err(error) = hall.poller.watch(&link) {
                        return tracing::warn!(%error, "a process of this machine cannot connect");
                    }
                    state.links.insert(id, Entry { link, exchanges: BTreeMap::new(), last: 0 });
                    let address = "this machine".to_owned();
                    state.events.push_back(Incoming::LinkUp { link: id, node: identity.node, address });
                    state.urgent = true;
                    drop(state);
                    hall.poller.wake();
                }
                // Who leaves before it has said who it is only looked whether somebody listens.
                Err(error) if error.retryable() => tracing::debug!(%error, "a process of this machine left"),
                Err(error) => tracing::warn!(%error, "refused a process of this machine"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gradlane-greet".to_owned()).spawn(greet) {
            self.hall.greeting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "a process of this machine cannot connect");
        }
    }

    fn drain(&self, link: &Link) -> bool {
        let mut any = false;
        while let Some(received) = link.receive() {
            any = true;
            self.hall.receive(link, received);
        }
        if any {
            link.received_some();
            // Whoever pushes again has read the sums of before.
            link.take_back();
        }
        any
    }
}

impl Side for Serving {
    fn poller(&self) -> &Poller {
        &self.hall.poller
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.hall.state().links.values().map(|entry| Arc::clone(&entry.link)).collect()
    }

    fn turn(&self, links: &[Arc<Link>]) -> bool {
        let hall = &self.hall;
        let mut any = false;
        for link in links {
            any |= self.drain(link);
            if link.outbound().has_work() {
                hall.pump(link, false);
            }
            if let Some(error) = link.defect() {
                tracing::warn!(peer = %link.peer, %error, "closing a link");
                link.close(Some(&error));
                hall.down(link, &error);
                any = true;
            }
        }
        any |= hall.deliver();
        hall.ended.let_go();
        if hall.state().stopping {
            for link in self.links() {
                link.close(None);
                hall.down(&link, &Error::Cancelled);
            }
            hall.deliver();
            hall.over.store(true, Ordering::Release);
        }
        any
    }

    fn has_work(&self) -> bool {
        let state = self.hall.state();
        state.urgent || state.stopping
    }

    fn has_leisurely_work(&self) -> bool {
        !self.hall.state().events.is_empty()
    }

    fn happened(&self, happening: Happening) {
        match happening {
            Happening::Door => self.greet(),
            Happening::End(id) => {
                let Some(link) = self.hall.state().links.get(&id).map(|entry| Arc::clone(&entry.link)) else { return };
                self.drain(&link);
                let Some(reason) = link.defect().or_else(|| link.farewell()) else { return };
                link.close(None);
                self.hall.down(&link, &reason);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.hall.over.load(Ordering::Acquire)
    }
}

/// Processes that are greeted at once.
const GREETINGS_MAX: usize = 64;
