//! The tables of a server's links and exchanges, and the changes that a worker's messages make.
//!
//! Everything here runs under the lock of [`ServerState`](super::server_state). Dropping bytes or an exchange calls back. So they are
//! returned as [`Discarded`], and the caller drops them without the lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::inbound::Received;
use super::layout::EXCHANGES_MAX;
use super::link::Link;
use crate::error::{Error, Result};
use crate::local::PeerProcess;
use crate::transport::Incoming;
use crate::transport::exchange::{ServerExchange, bad};
use crate::types::{ExchangeId, LinkId, NodeId};
use crate::wire::{HeaderReader, Request};

#[derive(Default)]
pub(super) struct ServerTables {
    pub(super) links: BTreeMap<LinkId, Entry>,
    pub(super) exchanges: BTreeMap<ExchangeId, Exchange>,
    /// By the last link: peers without one, whose processes have not ended.
    pub(super) unlinked: BTreeMap<LinkId, (NodeId, Arc<PeerProcess>)>,
    pub(super) events: VecDeque<Incoming>,
    /// Whether another thread added an event that the server must get at once.
    pub(super) urgent: bool,
    pub(super) names_given: u64,
    pub(super) stopping: bool,
}

pub(super) struct Entry {
    pub(super) link: Arc<Link>,
    /// The worker at the other end.
    pub(super) node: NodeId,
    /// The exchanges by the numbers that the worker gave.
    pub(super) exchanges: BTreeMap<u64, ExchangeId>,
    /// Exchanges whose header is not complete.
    pub(super) opening: BTreeMap<u64, Opening>,
    /// The last number that the worker gave.
    pub(super) last: u64,
}

/// An exchange whose header is not complete. Its participants come after the message that opens it.
#[derive(Default)]
pub(super) struct Opening {
    header: HeaderReader,
    /// Whether the worker said that it takes the whole answer.
    accepted: bool,
}

pub(super) struct Exchange {
    pub(super) link: Arc<Link>,
    /// The worker's number for it.
    pub(super) name: u64,
    /// The urgency of the request, which the answer has too.
    pub(super) urgency: u8,
    pub(super) state: ServerExchange,
    /// Bytes of a body that the server has not accepted. They stay in the segment.
    pub(super) held: Vec<Bytes>,
    /// Whether the worker said that it takes the whole answer.
    pub(super) accepted: bool,
}

impl Entry {
    pub(super) fn new(link: Arc<Link>, node: NodeId) -> Self {
        Self { link, node, exchanges: BTreeMap::new(), opening: BTreeMap::new(), last: 0 }
    }
}

impl ServerTables {
    pub(super) fn name(&mut self) -> u64 {
        self.names_given += 1;
        self.names_given
    }

    pub(super) fn forget(&mut self, id: ExchangeId) -> Option<Exchange> {
        let exchange = self.exchanges.remove(&id)?;
        if let Some(entry) = self.links.get_mut(&exchange.link.id) {
            entry.exchanges.remove(&exchange.name);
        }
        Some(exchange)
    }

    /// Enters a message. The caller releases the lock and then drops the result.
    pub(super) fn receive(&mut self, link: &Link, received: Received) -> Result<Discarded> {
        let (name, peer) = (received.exchange(), &link.peer);
        let entry = self.links.get_mut(&link.id).expect("a link is up while it receives");
        if let Received::Open(_, header) = &received {
            if name != entry.last + 1 {
                return Err(bad(peer, "exchange", format!("is {name}, but the one after {} was due", entry.last)));
            }
            if entry.exchanges.len() + entry.opening.len() >= EXCHANGES_MAX {
                return Err(bad(
                    peer,
                    "exchange",
                    format!("is one more than the {EXCHANGES_MAX} that may be open at once"),
                ));
            }
            entry.last = name;
            let mut opening = Opening::default();
            opening.header.take(header);
            if opening.header.missing() > 0 {
                entry.opening.insert(name, opening);
            } else {
                self.open(link, name, opening)?;
            }
            return Ok(Discarded::default());
        }
        if name == 0 || name > entry.last {
            return Err(bad(peer, "exchange", format!("is {name}, which was not opened")));
        }
        let received = match entry.opening.get_mut(&name) {
            None => received,
            Some(opening) => match opening.proceed(received, peer)? {
                Proceeded::Waits => return Ok(Discarded::default()),
                Proceeded::GivenUp => {
                    entry.opening.remove(&name);
                    return Ok(Discarded::default());
                }
                Proceeded::Whole(rest) => {
                    let opening = entry.opening.remove(&name).expect("found above");
                    self.open(link, name, opening)?;
                    if rest.is_empty() {
                        return Ok(Discarded { _bytes: Some(rest), ..Discarded::default() });
                    }
                    Received::Data(name, rest)
                }
            },
        };
        let entry = self.links.get_mut(&link.id).expect("found above");
        // The exchange has ended on this side, and the worker did not know yet.
        let Some(id) = entry.exchanges.get(&name).copied() else {
            let bytes = if let Received::Data(_, bytes) = received { Some(bytes) } else { None };
            return Ok(Discarded { _bytes: bytes, ..Discarded::default() });
        };
        let exchange = self.exchanges.get_mut(&id).expect("a link's exchanges exist");
        match received {
            Received::Open(..) => unreachable!("handled above"),
            Received::Data(_, bytes) => {
                exchange.state.received(bytes.len(), peer)?;
                if exchange.state.refuses_body() {
                    return Ok(Discarded { _bytes: Some(bytes), ..Discarded::default() });
                }
                match self.events.back_mut() {
                    _ if !exchange.state.wants_body() => exchange.held.push(bytes),
                    Some(Incoming::Body { exchange, chunks }) if *exchange == id => chunks.push(bytes),
                    _ => self.events.push_back(Incoming::Body { exchange: id, chunks: vec![bytes] }),
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
                return Err(bad(peer, "kind", "is a message that only a server may send"));
            }
        }
        Ok(Discarded::default())
    }

    /// Begins an exchange whose header is complete.
    fn open(&mut self, link: &Link, name: u64, Opening { header, accepted }: Opening) -> Result<()> {
        let header: Request = header.finish(&link.peer)?.into_request(&link.peer)?;
        let id = ExchangeId(self.name());
        let entry = self.links.get_mut(&link.id).expect("a link is up while it receives");
        entry.exchanges.insert(name, id);
        let exchange = Exchange {
            link: Arc::clone(&entry.link),
            name,
            urgency: header.urgency(),
            state: ServerExchange::new(&header),
            held: Vec::new(),
            accepted,
        };
        self.exchanges.insert(id, exchange);
        self.events.push_back(Incoming::Opened { link: link.id, exchange: id, header });
        Ok(())
    }
}

/// The state of a header after one more message.
enum Proceeded {
    /// More of it must come.
    Waits,
    /// It is complete. These bytes came after it.
    Whole(Bytes),
    /// The worker gave the exchange up.
    GivenUp,
}

impl Opening {
    fn proceed(&mut self, received: Received, peer: &str) -> Result<Proceeded> {
        match received {
            Received::Data(_, mut bytes) => {
                // In two steps, because the first bytes say how many follow.
                while self.header.missing() > 0 && !bytes.is_empty() {
                    let wanted = self.header.missing().min(bytes.len());
                    self.header.take(&bytes.split_to(wanted));
                }
                Ok(if self.header.missing() > 0 { Proceeded::Waits } else { Proceeded::Whole(bytes) })
            }
            Received::Accept(_) => {
                self.accepted = true;
                Ok(Proceeded::Waits)
            }
            Received::Abandon(_) => Ok(Proceeded::GivenUp),
            Received::Open(..) => unreachable!("handled before"),
            Received::Answer(..) | Received::End(..) | Received::Break(_) => {
                Err(bad(peer, "kind", "is a message that only a server may send"))
            }
        }
    }
}

/// Things that the caller drops after it has released the lock.
#[derive(Default)]
pub(super) struct Discarded {
    /// An exchange that the worker gave up.
    pub(super) exchange: Option<Exchange>,
    /// Bytes of an exchange that has ended or was answered.
    _bytes: Option<Bytes>,
}
