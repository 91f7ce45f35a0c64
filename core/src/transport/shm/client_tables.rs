//! The tables of a worker's links and exchanges, and what follows when an exchange begins, was handed over, or ends.
//!
//! Everything here runs under the lock of [`ClientState`](super::client_state). Reports, and messages that wake a thread, must not run
//! under it, so they come back as [`Effects`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, mpsc};

use bytes::Bytes;

use super::landing::Arriving;
use super::layout::{EXCHANGES_MAX, Message};
use super::link::Link;
use super::outbound::Piece;
use crate::mem::Returned;
use crate::transport::LinkLost;
use crate::transport::exchange::WorkerExchange;
use crate::types::{Done, ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;

/// All links and exchanges.
#[derive(Default)]
pub(super) struct ClientTables {
    pub(super) links: BTreeMap<LinkId, Entry>,
    pub(super) exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Exchanges that the thread has to look at.
    pub(super) marked: BTreeSet<ExchangeId>,
    pub(super) links_made: u64,
    pub(super) dialling: usize,
    pub(super) closing: bool,
}

/// A link.
pub(super) struct Entry {
    pub(super) link: Arc<Link>,
    pub(super) lost: LinkLost,
    /// By the names that the server knows.
    pub(super) exchanges: BTreeMap<u64, ExchangeId>,
    /// The last name given.
    pub(super) last: u64,
    /// Exchanges for which there was no name, oldest first.
    pub(super) queued: VecDeque<ExchangeId>,
}

/// An exchange, until both its reports are made.
pub(super) struct Exchange {
    pub(super) link: LinkId,
    /// What the server calls it; 0 until it may begin.
    pub(super) name: u64,
    /// The body of one that may not begin yet.
    pub(super) body: Vec<Piece>,
    pub(super) state: WorkerExchange,
    /// Where the proof comes that nobody reads the caller's memory any more.
    pub(super) returned: mpsc::Receiver<Returned>,
    /// Absent while the thread lands a sum.
    pub(super) arriving: Option<Arriving>,
}

/// What is to be done without the lock.
#[derive(Default)]
pub(super) struct Effects {
    /// Contributions that were handed over.
    pub(super) done: Vec<Done<()>>,
    /// The server may send the whole sum.
    pub(super) accept: Option<(Arc<Link>, u64)>,
    /// The thread has something to look at.
    pub(super) marked: bool,
}

impl Exchange {
    /// Whether the thread has something to do for it.
    pub(super) fn has_news(&self) -> bool {
        self.state.has_ended() || self.arriving.as_ref().is_none_or(Arriving::has_news)
    }

    /// Nobody reads the caller's memory any more.
    fn returned(&mut self) {
        if self.state.is_lent() {
            // The proof is here, or a thread that ends the exchange drops the last piece just now. It needs no lock for that.
            self.state.returned(self.returned.recv().expect("a loan returns"));
        }
    }

    /// Reports the end of an exchange that is over.
    pub(super) fn report(self) {
        self.state.report(self.arriving.map_or(0, |arriving| arriving.arrival.landed()));
    }

    /// Whether the answer is here whole, whatever becomes of the link.
    pub(super) fn is_answered(&self) -> bool {
        !self.state.has_ended() && self.arriving.as_ref().is_some_and(Arriving::is_whole)
    }
}

impl ClientTables {
    /// Begins what waits for a name, as far as there are any.
    pub(super) fn begin_queued(&mut self, link: LinkId) -> Effects {
        let mut effects = Effects::default();
        let Some(entry) = self.links.get_mut(&link) else { return effects };
        while entry.exchanges.len() < EXCHANGES_MAX
            && let Some(id) = entry.queued.pop_front()
        {
            let Some(exchange) = self.exchanges.get_mut(&id) else { continue };
            entry.last += 1;
            exchange.name = entry.last;
            entry.exchanges.insert(entry.last, id);
            let body = std::mem::take(&mut exchange.body);
            // A message has no room for the participants, so they go ahead of the body.
            let mut participants = Bytes::from(exchange.state.push().encode());
            let header = *participants.split_to(HEADER_BYTES).first_chunk().expect("a header has so many bytes");
            let mut outbound = entry.link.outbound();
            if let Err(error) = outbound.post(&Message::Open { exchange: exchange.name, header }) {
                entry.link.fail(error);
            }
            if body.is_empty() {
                exchange.returned();
                effects.done.extend(exchange.state.handed_over());
                if participants.is_empty() {
                    continue;
                }
            }
            outbound.begin(exchange.name, exchange.state.push().urgency(), false);
            outbound.extend(exchange.name, std::iter::once((participants, None)).chain(body));
            if let Err(error) = outbound.end(exchange.name, None) {
                entry.link.fail(error);
            }
        }
        effects
    }

    /// The memory of an exchange is not read any more.
    pub(super) fn through(&mut self, id: ExchangeId) -> Effects {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return Effects::default() };
        exchange.returned();
        let mut effects = Effects::default();
        effects.done.extend(exchange.state.handed_over());
        if exchange.state.is_pulled() && !exchange.state.has_ended() {
            let link = self.links.get(&exchange.link).map(|entry| Arc::clone(&entry.link));
            effects.accept = link.map(|link| (link, exchange.name));
        }
        effects.marked = exchange.has_news();
        if effects.marked {
            self.marked.insert(id);
        }
        effects
    }

    /// The exchange with this name, also of a link that was lost meanwhile.
    pub(super) fn named(&self, link: LinkId, name: u64) -> Option<ExchangeId> {
        if let Some(entry) = self.links.get(&link) {
            return entry.exchanges.get(&name).copied();
        }
        let mut orphans = self.exchanges.iter();
        orphans.find(|(_, exchange)| (exchange.link, exchange.name) == (link, name)).map(|(id, _)| *id)
    }

    /// Forgets an exchange that was found; another may begin in its place.
    pub(super) fn forget(&mut self, id: ExchangeId) -> (Exchange, Effects) {
        let exchange = self.exchanges.remove(&id).expect("found by the caller");
        let Some(entry) = self.links.get_mut(&exchange.link) else { return (exchange, Effects::default()) };
        entry.exchanges.remove(&exchange.name);
        entry.link.outbound().forget(exchange.name);
        let mut effects = if entry.queued.is_empty() { Effects::default() } else { self.begin_queued(exchange.link) };
        effects.marked = true;
        (exchange, effects)
    }
}
