//! The tables of a worker's links and exchanges, and each step that changes them.
//!
//! Every method runs under the lock of [`SharedTables`](super::client_lock::SharedTables). Actions that must not happen under that lock are
//! noted in [`Noted`], and the guard of the lock carries them out afterwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::client_exchange::{Exchange, Landing, Noted, peer_of};
use super::inbound::Received;
use super::layout::{EXCHANGES_MAX, Message};
use super::link::Link;
use crate::error::{Error, Result};
use crate::transport::exchange::bad;
use crate::transport::{Answer, LinkLost, Pull};
use crate::types::{ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;

/// All links and exchanges.
#[derive(Default)]
pub(super) struct ClientTables {
    pub(super) links: BTreeMap<LinkId, Entry>,
    pub(super) exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Exchanges that the transport's thread has to look at.
    pub(super) marked: BTreeSet<ExchangeId>,
    links_made: u64,
    pub(super) dialling: usize,
    pub(super) closing: bool,
    noted: Noted,
}

/// A link.
pub(super) struct Entry {
    pub(super) link: Arc<Link>,
    pub(super) lost: LinkLost,
    /// The exchanges by the numbers that the server knows.
    exchanges: BTreeMap<u64, ExchangeId>,
    /// The last name given.
    last: u64,
    /// Exchanges that wait until fewer are open, oldest first.
    queued: VecDeque<ExchangeId>,
}

/// What the receiver of a message has to do after it has released the lock.
pub(super) enum Heard {
    /// Nothing.
    Noted,
    /// The server wants no more of this contribution.
    Refused(ExchangeId),
    /// The server broke off the sum of this exchange.
    BrokenOff(ExchangeId),
    /// The exchange has ended on this side, and the server did not know yet. To be dropped.
    Late(Received),
}

impl ClientTables {
    /// Takes the noted actions, if there are any.
    pub(super) fn take_noted(&mut self) -> Option<Noted> {
        if self.noted.is_empty() { None } else { Some(std::mem::take(&mut self.noted)) }
    }

    /// Wakes the transport's thread if it sleeps.
    pub(super) fn wake(&mut self) {
        self.noted.wakes = true;
    }

    /// Enters the link that `make` makes for a new id, and wakes the thread for it.
    ///
    /// # Errors
    /// As `make`.
    pub(super) fn connect(&mut self, lost: LinkLost, make: impl FnOnce(LinkId) -> Result<Arc<Link>>) -> Result<LinkId> {
        self.links_made += 1;
        let id = LinkId(self.links_made);
        let (exchanges, queued) = (BTreeMap::new(), VecDeque::new());
        self.links.insert(id, Entry { link: make(id)?, lost, exchanges, last: 0, queued });
        self.wake();
        Ok(id)
    }

    /// The link with this id, if it is up.
    pub(super) fn link(&self, id: LinkId) -> Option<Arc<Link>> {
        self.links.get(&id).map(|entry| Arc::clone(&entry.link))
    }

    /// Enters an exchange and begins it, unless too many are open. Returns its link and its name, which is 0 if it has not begun.
    ///
    /// # Errors
    /// The exchange itself, if its link is gone.
    pub(super) fn push(
        &mut self,
        id: ExchangeId,
        mut exchange: Exchange,
    ) -> std::result::Result<(Arc<Link>, u64), Box<Exchange>> {
        let link = exchange.link;
        let Some(entry) = self.links.get_mut(&link).filter(|entry| entry.link.defect().is_none()) else {
            return Err(Box::new(exchange));
        };
        entry.queued.push_back(id);
        exchange.meter = entry.link.meter.get().map(Arc::clone);
        let shared = Arc::clone(&entry.link);
        self.exchanges.insert(id, exchange);
        self.begin_queued(link);
        Ok((shared, self.exchanges.get(&id).map_or(0, |exchange| exchange.name)))
    }

    /// The answer of an exchange is awaited from now on.
    ///
    /// # Errors
    /// The pull itself, if the exchange is unknown or was pulled before.
    pub(super) fn pull(&mut self, link: LinkId, id: ExchangeId, pull: Pull) -> std::result::Result<(), Pull> {
        let here = |exchange: &&mut Exchange| exchange.link == link && !exchange.state.is_pulled();
        let Some(exchange) = self.exchanges.get_mut(&id).filter(here) else { return Err(pull) };
        exchange.state.pull(pull);
        if !exchange.state.is_lent() {
            let link = self.links.get(&exchange.link).map(|entry| Arc::clone(&entry.link));
            self.noted.accepted.extend(link.map(|link| (link, exchange.name)));
        }
        if exchange.has_news() {
            self.mark(id);
        }
        Ok(())
    }

    /// Ends an exchange that has not ended. Drops its body, if it has not begun. Returns its name and its link.
    pub(super) fn end(&mut self, id: ExchangeId, error: Error) -> Option<(u64, Option<Arc<Link>>)> {
        let exchange = self.exchanges.get_mut(&id)?;
        if exchange.state.has_ended() && !matches!(error, Error::Cancelled) {
            return None;
        }
        let name = exchange.stop(error, &mut self.noted);
        let link = self.links.get_mut(&exchange.link).map(|entry| {
            entry.queued.retain(|queued| *queued != id);
            Arc::clone(&entry.link)
        });
        self.marked.insert(id);
        Some((name, link))
    }

    /// Ends an exchange whose link was removed. Returns its name.
    pub(super) fn lose(&mut self, id: ExchangeId, error: Error) -> Option<u64> {
        Some(self.exchanges.get_mut(&id)?.stop(error, &mut self.noted))
    }

    /// A contribution was sent or given up, so no thread reads its memory any more. Its link may be gone.
    pub(super) fn sent(&mut self, link: LinkId, name: u64) {
        if let Some(id) = self.named(link, name) {
            self.returned(id);
        }
    }

    /// The exchange of a contribution that may not be sent, and the error with which it is to end.
    pub(super) fn refused(&mut self, link: LinkId, name: u64) -> Option<(ExchangeId, Error)> {
        let id = self.named(link, name)?;
        let look = self.exchanges.get(&id)?.look.as_ref()?;
        Some((id, look.refusal.clone()?))
    }

    /// No thread reads the memory of this contribution any more.
    pub(super) fn returned(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        exchange.returned();
        self.noted.handed_over.extend(exchange.state.handed_over());
        if exchange.state.is_pulled() && !exchange.state.has_ended() {
            let link = self.links.get(&exchange.link).map(|entry| Arc::clone(&entry.link));
            self.noted.accepted.extend(link.map(|link| (link, exchange.name)));
        }
        if exchange.has_news() {
            self.mark(id);
        }
    }

    /// Enters a message of the server at the other end of `link`.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the server must not say this.
    pub(super) fn receive(&mut self, link: &Link, received: Received) -> Result<Heard> {
        let name = received.exchange();
        let Some(entry) = self.links.get(&link.id) else { return Ok(Heard::Late(received)) };
        if name == 0 || name > entry.last {
            return Err(bad(&link.peer, "exchange", format!("is {name}, which was not opened")));
        }
        let id = entry.exchanges.get(&name).copied();
        let Some((id, exchange)) = id.and_then(|id| Some((id, self.exchanges.get_mut(&id)?))) else {
            return Ok(Heard::Late(received));
        };
        let sending = exchange.state.is_lent();
        let arriving = exchange.arriving.as_mut().expect("the thread has it back while it receives");
        let refused_before = arriving.arrival.refuses_body();
        let outcome = match received {
            Received::Answer(_, header) => arriving.begin(&header, &link.peer),
            Received::Data(_, bytes) => arriving.take(bytes, &link.peer),
            Received::End(_, checksum) => arriving.end(checksum, &link.peer),
            Received::Break(_) => return Ok(Heard::BrokenOff(id)),
            Received::Accept(_) => {
                link.outbound().accept(name);
                return Ok(Heard::Noted);
            }
            Received::Open(..) | Received::Abandon(_) => {
                Err(bad(&link.peer, "kind", "is a message that only a worker may send"))
            }
        };
        let refused = sending && !refused_before && arriving.arrival.refuses_body();
        self.marked.insert(id);
        outcome.map(|()| if refused { Heard::Refused(id) } else { Heard::Noted })
    }

    /// Takes the answer of an exchange out of the tables if bytes of it can land. An exchange that is over is forgotten instead.
    pub(super) fn take_landing(&mut self, id: ExchangeId) -> Option<Landing> {
        let exchange = self.exchanges.get_mut(&id)?;
        if !exchange.state.has_ended() {
            let link = self.links.get(&exchange.link).map(|entry| Arc::clone(&entry.link));
            let arriving = exchange.arriving.as_mut().expect("only the thread takes it");
            match exchange.state.place(&mut arriving.arrival, peer_of(link.as_ref())) {
                Ok(true) => {
                    let arriving = exchange.arriving.take().expect("seen above");
                    return Some(Landing { arriving, link });
                }
                Ok(false) => return None,
                Err(error) => exchange.fail(error, link.as_ref()),
            }
        }
        if exchange.state.is_over() {
            self.forget(id);
        }
        None
    }

    /// Puts an answer back after `step` was made. Returns whether the exchange has ended, so that the caller looks at it again.
    pub(super) fn put_back(&mut self, id: ExchangeId, landing: Landing, step: Result<Option<Answer>>) -> bool {
        let Landing { arriving, link } = landing;
        let exchange = self.exchanges.get_mut(&id).expect("only the thread forgets it");
        exchange.arriving = Some(arriving);
        match step {
            Ok(None) => {}
            Ok(Some(answer)) => exchange.state.end(Ok(answer)),
            Err(error) => exchange.fail(error, link.as_ref()),
        }
        exchange.state.has_ended()
    }

    /// Removes a link. Returns it with its exchanges, except those whose whole answer is here.
    pub(super) fn disconnect(&mut self, id: LinkId) -> Option<(Entry, Vec<ExchangeId>)> {
        let entry = self.links.remove(&id)?;
        let lost = self.exchanges.iter().filter(|(_, exchange)| exchange.link == id && !exchange.is_answered());
        Some((entry, lost.map(|(exchange, _)| *exchange).collect()))
    }

    /// The thread looks at all exchanges in this turn.
    pub(super) fn mark_all(&mut self) {
        self.marked.extend(self.exchanges.keys());
    }

    /// The thread has something to look at.
    fn mark(&mut self, id: ExchangeId) {
        self.marked.insert(id);
        self.wake();
    }

    /// Begins the exchanges that wait for a name, as far as there are names.
    fn begin_queued(&mut self, link: LinkId) {
        let Some(entry) = self.links.get_mut(&link) else { return };
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
                self.noted.handed_over.extend(exchange.state.handed_over());
                if exchange.state.is_pulled() {
                    self.noted.accepted.push((Arc::clone(&entry.link), exchange.name));
                }
                if participants.is_empty() {
                    continue;
                }
            }
            outbound.begin(exchange.name, exchange.state.push().urgency(), false);
            if let Some(look) = &exchange.look {
                outbound.look(exchange.name, Arc::clone(look), participants.len());
            }
            outbound.extend(exchange.name, std::iter::once((participants, None)).chain(body));
            if let Err(error) = outbound.end(exchange.name, None) {
                entry.link.fail(error);
            }
        }
    }

    /// The exchange with this name, also of a link that was lost meanwhile.
    fn named(&self, link: LinkId, name: u64) -> Option<ExchangeId> {
        if let Some(entry) = self.links.get(&link) {
            return entry.exchanges.get(&name).copied();
        }
        let mut orphans = self.exchanges.iter();
        orphans.find(|(_, exchange)| (exchange.link, exchange.name) == (link, name)).map(|(id, _)| *id)
    }

    /// Forgets an exchange that is over, and begins another one in its place.
    fn forget(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.remove(&id) else { return };
        let link = exchange.link;
        if let Some(entry) = self.links.get_mut(&link) {
            entry.exchanges.remove(&exchange.name);
            entry.link.outbound().forget(exchange.name);
            self.begin_queued(link);
            self.wake();
        }
        self.noted.over = Some(exchange);
    }
}
