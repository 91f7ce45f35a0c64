//! The state that a server's links share. Any thread changes it by commands. The listener's thread changes it by messages of workers.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::inbound::Received;
use super::layout::Message;
use super::link::{LingeringLinks, Link, Pumped, Sent};
use super::outbound::Piece;
use super::poller::Poller;
use super::server_tables::{Discarded, Exchange, ServerTables};
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::SharedBacking;
use crate::mem::Copies;
use crate::transport::exchange::{ServerExchange, reject_of};
use crate::transport::{Inbox, Incoming, Outgoing};
use crate::types::{ExchangeId, LinkId, NodeId};
use crate::wire::Reply;
use crate::wire::header::HEADER_BYTES;

/// Shared by the listener's thread, its outbox, and the threads that greet.
pub(super) struct ServerState {
    inbox: Inbox,
    pub(super) poller: Poller,
    pub(super) credentials: Credentials,
    /// Sums that lie here are not copied.
    shared_memory: Arc<SharedBacking>,
    pub(super) copies: Copies,
    /// How many greetings go on.
    pub(super) greeting: AtomicUsize,
    pub(super) over: AtomicBool,
    pub(super) lingering: LingeringLinks,
    tables: Mutex<ServerTables>,
}

impl ServerState {
    pub(super) fn new(
        credentials: &Credentials,
        shared_memory: &Arc<SharedBacking>,
        copies: &Copies,
        inbox: Inbox,
    ) -> Result<Self> {
        Ok(Self {
            inbox,
            poller: Poller::new()?,
            credentials: credentials.clone(),
            shared_memory: Arc::clone(shared_memory),
            copies: copies.clone(),
            greeting: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            lingering: LingeringLinks::default(),
            tables: Mutex::new(ServerTables::default()),
        })
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, ServerTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a command, on any thread.
    pub(super) fn send(&self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Accept { exchange } => self.accept(exchange),
            Outgoing::Answer { exchange, header } => self.answer(exchange, &Reply::Response(header)),
            Outgoing::Block { exchange, block } => self.block(exchange, block.len(), |link| {
                let place = link.show(&self.shared_memory, &block);
                (Bytes::from_owner(block), place)
            }),
            Outgoing::End { exchange, checksum } => {
                self.end(exchange, |name| Some(Message::End { exchange: name, checksum }));
            }
            Outgoing::Reject { exchange, about, error } => {
                let (header, body) = reject_of(about, &error);
                self.answer(exchange, &Reply::Reject(header));
                self.block(exchange, body.len(), |_| (Bytes::from(body), None));
                self.end(exchange, |_| None);
            }
            // Bytes that this server has not read lie in the worker's segment, which has a fixed size.
            Outgoing::Grant { .. } => {}
            Outgoing::Disconnect { link, reason } => {
                if let Some(entry) = self.tables().links.get(&link) {
                    entry.link.fail(reason);
                }
                self.poller.wake();
            }
        }
    }

    fn accept(&self, id: ExchangeId) {
        let mut tables = self.tables();
        let Some(exchange) = tables.exchanges.get_mut(&id) else { return };
        if !exchange.state.accept() {
            return;
        }
        let chunks = std::mem::take(&mut exchange.held);
        let (link, name, left) = (Arc::clone(&exchange.link), exchange.name, exchange.state.body_left());
        let told = !chunks.is_empty();
        if told {
            tables.events.push_back(Incoming::Body { exchange: id, chunks });
            tables.urgent = true;
        }
        drop(tables);
        if left > 0 {
            link.post_quietly(&Message::Accept { exchange: name });
        }
        if told {
            self.poller.wake();
        }
    }

    /// Begins an answer. A message has no space for the set of contributors, so the set is sent before the body.
    fn answer(&self, id: ExchangeId, header: &Reply) {
        let mut set = Bytes::from(header.encode());
        let head = *set.split_to(HEADER_BYTES).first_chunk().expect("a header has so many bytes");
        let mut tables = self.tables();
        let Some(exchange) = tables.exchanges.get_mut(&id) else { return };
        if let Err(reason) = exchange.state.answer(header) {
            drop(tables);
            return self.break_off(id, reason);
        }
        let refused = exchange.state.refuses_body().then(|| std::mem::take(&mut exchange.held));
        let (link, name) = (Arc::clone(&exchange.link), exchange.name);
        let (urgency, accepted) = (exchange.urgency, exchange.accepted);
        // Under the lock, because a message of the worker about this exchange must find its answer begun.
        let mut outbound = link.outbound();
        let posted = outbound.post(&Message::Answer { exchange: name, header: head });
        outbound.begin(name, urgency, accepted);
        outbound.extend(name, (!set.is_empty()).then_some((set, None)));
        drop(outbound);
        drop(tables);
        drop(refused);
        // The bytes wake the worker, so this message does not.
        if let Err(error) = posted {
            link.fail(error);
            self.poller.wake();
        }
    }

    fn block(&self, id: ExchangeId, bytes: usize, piece: impl FnOnce(&Link) -> Piece) {
        let Some((link, name, is_last)) = self.apply(id, |state| state.block(bytes)) else { return };
        let piece = piece(&link);
        link.outbound().extend(name, [piece]);
        // The end follows the last bytes at once, and a worker that wakes twice for a small sum takes twice as long.
        self.pump(&link, is_last);
    }

    fn end(&self, id: ExchangeId, message: impl FnOnce(u64) -> Option<Message>) {
        let Some((link, name, _)) = self.apply(id, ServerExchange::end) else { return };
        let ended = link.outbound().end(name, message(name));
        match ended {
            Ok(true) => self.through(link.id, Sent::Whole(name)),
            Ok(false) => {}
            Err(error) => {
                link.fail(error);
                self.poller.wake();
            }
        }
        link.wake_reader();
    }

    /// Applies `command` to an exchange. Returns its result, with the link and the worker's number of the exchange. A command out of turn ends
    /// the exchange.
    fn apply<T>(
        &self,
        id: ExchangeId,
        command: impl FnOnce(&mut ServerExchange) -> Result<T>,
    ) -> Option<(Arc<Link>, u64, T)> {
        let mut tables = self.tables();
        let exchange = tables.exchanges.get_mut(&id)?;
        match command(&mut exchange.state) {
            Ok(made) => Some((Arc::clone(&exchange.link), exchange.name, made)),
            Err(reason) => {
                drop(tables);
                self.break_off(id, reason);
                None
            }
        }
    }

    fn break_off(&self, id: ExchangeId, reason: Error) {
        let mut tables = self.tables();
        let Some(exchange) = tables.forget(id) else { return };
        tables.events.push_back(Incoming::Torn { exchange: id, reason });
        tables.urgent = true;
        drop(tables);
        exchange.link.give_up(exchange.name);
        exchange.link.post(&Message::Break { exchange: exchange.name });
        self.poller.wake();
    }

    /// Sends as much as there is room for.
    pub(super) fn pump(&self, link: &Link, quietly: bool) {
        let Pumped { sent, unfinished } = link.pump(None, quietly);
        sent.into_iter().for_each(|sent| self.through(link.id, sent));
        if unfinished {
            self.poller.wake();
        }
    }

    fn through(&self, link: LinkId, sent: Sent) {
        let Sent::Whole(name) = sent else { return };
        let mut tables = self.tables();
        let Some(id) = tables.links.get(&link).and_then(|entry| entry.exchanges.get(&name)).copied() else { return };
        let ended = tables.forget(id);
        tables.events.push_back(Incoming::Answered { exchange: id });
        drop(tables);
        drop(ended);
        // This event is not urgent: a worker that has its sum soon pushes again, which wakes the thread anyway.
        self.poller.wake_soon();
    }

    /// Handles a message of the worker at the other end of `link`.
    pub(super) fn receive(&self, link: &Link, received: Received) {
        let outcome = self.tables().receive(link, received);
        match outcome {
            Ok(Discarded { exchange: Some(exchange), .. }) => {
                link.give_up(exchange.name);
            }
            Ok(Discarded { exchange: None, .. }) => {}
            Err(error) => link.fail(error),
        }
    }

    /// Ends a link and all its exchanges.
    pub(super) fn down(&self, link: &Arc<Link>, reason: &Error) {
        self.poller.events.forget(link);
        let mut tables = self.tables();
        let Some(entry) = tables.links.remove(&link.id) else { return };
        if let Some(process) = link.process() {
            self.poller.events.watch_process(link.id, process);
            tables.unlinked.insert(link.id, (entry.node, Arc::clone(process)));
        }
        let ended: Vec<Exchange> = entry
            .exchanges
            .values()
            .filter_map(|id| {
                let exchange = tables.exchanges.remove(id)?;
                tables.events.push_back(Incoming::Torn { exchange: *id, reason: reason.clone() });
                Some(exchange)
            })
            .collect();
        tables.events.push_back(Incoming::LinkDown { link: link.id, reason: reason.clone() });
        drop(tables);
        for exchange in ended {
            link.give_up(exchange.name);
        }
        self.lingering.keep(link);
    }

    /// The process of a peer without a link connected again, so its new link shows its end.
    pub(super) fn forget_unlinked(&self, node: NodeId, link: &Link) {
        let Some(pid) = link.process().map(|process| process.pid) else { return };
        self.tables().unlinked.retain(|_, (former, process)| {
            let stays = (*former, process.pid) != (node, pid);
            if !stays {
                self.poller.events.forget_process(process);
            }
            stays
        });
    }

    /// The process of a peer without a link has ended.
    pub(super) fn process_ended(&self, id: LinkId) {
        let mut tables = self.tables();
        if let Some((node, process)) = tables.unlinked.remove(&id) {
            self.poller.events.forget_process(&process);
            tables.events.push_back(Incoming::ProcessEnded { node, pid: process.pid });
        }
    }

    pub(super) fn deliver(&self) -> bool {
        let mut any = false;
        loop {
            let mut tables = self.tables();
            let Some(event) = tables.events.pop_front() else {
                tables.urgent = false;
                return any;
            };
            let wanted = match &event {
                // Not expected any more if the exchange was answered meanwhile, and not early.
                Incoming::Body { exchange, .. } => {
                    tables.exchanges.get(exchange).is_some_and(|exchange| exchange.state.wants_body())
                }
                Incoming::LinkUp { .. }
                | Incoming::LinkDown { .. }
                | Incoming::ProcessEnded { .. }
                | Incoming::Opened { .. }
                | Incoming::Torn { .. }
                | Incoming::Answered { .. } => true,
            };
            drop(tables);
            any = true;
            if wanted {
                (self.inbox)(event);
            }
        }
    }
}
