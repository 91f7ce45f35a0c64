//! One link of a worker: its connection, and the order in which its exchanges write.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quinn_proto::{Connection, ConnectionHandle, Dir, StreamId};

use super::driver::{TurnEnd, keep_ahead, let_ahead};
use super::exchange::Exchange;
use super::metered::{Metered, Rest};
use super::turns::Share;
use super::urgency::{Classes, Handed, precedence};
use crate::transport::{LinkLost, Peer};
use crate::types::ExchangeId;
use crate::wire::Request;

/// A link that is up.
pub(super) struct Link {
    pub(super) handle: ConnectionHandle,
    pub(super) peer: Peer,
    /// The stream whose grant proved that the server accepts this worker. The first exchange uses it.
    first_stream: Option<StreamId>,
    pub(super) lost: LinkLost,
    pushes: u32,
    pub(super) streams: BTreeMap<StreamId, ExchangeId>,
    /// Exchanges with something to write, the most urgent first.
    writers: BTreeSet<(Reverse<i32>, ExchangeId)>,
    /// Bytes of all its exchanges.
    bytes_open: u64,
    /// Exchanges whose contribution the server has not acknowledged.
    pub(super) pushing: Classes,
    /// Bytes of these exchanges that quinn-proto was given and has not sent.
    pub(super) handed: Handed,
    /// Whether the server allows no more streams, and an exchange waits for one.
    lacks_streams: bool,
    /// Absent until somebody wants to know.
    pub(super) metered: Option<Metered>,
}

impl Link {
    pub(super) fn new(handle: ConnectionHandle, peer: Peer, first_stream: StreamId, lost: LinkLost) -> Self {
        Self {
            handle,
            peer,
            first_stream: Some(first_stream),
            lost,
            pushes: 0,
            streams: BTreeMap::new(),
            writers: BTreeSet::new(),
            bytes_open: 0,
            pushing: Classes::default(),
            handed: Handed::default(),
            lacks_streams: false,
            metered: None,
        }
    }

    /// Adds an exchange that has written nothing. Returns its precedence.
    pub(super) fn enter(&mut self, id: ExchangeId, push: &Request) -> i32 {
        self.pushes = self.pushes.wrapping_add(1);
        let precedence = precedence(push.urgency(), self.pushes);
        self.writers.insert((Reverse(precedence), id));
        self.pushing.enter(precedence);
        self.bytes_open += push.part_bytes();
        precedence
    }

    /// Removes an exchange that is over.
    pub(super) fn leave(&mut self, id: ExchangeId, exchange: &Exchange) {
        self.writers.remove(&(Reverse(exchange.precedence), id));
        self.bytes_open -= exchange.state.push().part_bytes();
        if let Some(stream) = exchange.stream {
            self.streams.remove(&stream);
        }
    }

    /// Opens streams and writes, the most urgent exchange first.
    pub(super) fn write(&mut self, connection: &mut Connection, exchanges: &mut BTreeMap<ExchangeId, Exchange>) {
        let writers = std::mem::take(&mut self.writers);
        let mut may_open = true;
        let_ahead(connection);
        let mut is_ahead = true;
        for (precedence, id) in writers {
            if is_ahead && !self.pushing.is_ahead(precedence.0) {
                keep_ahead(connection);
                is_ahead = false;
            }
            let Some(exchange) = exchanges.get_mut(&id) else { continue };
            if exchange.stream.is_none() && exchange.state.is_pushing() && may_open {
                exchange.stream = self.first_stream.take().or_else(|| connection.streams().open(Dir::Bi));
                may_open = exchange.stream.is_some();
                if let Some(stream) = exchange.stream {
                    let _ = connection.send_stream(stream).set_priority(precedence.0);
                    self.streams.insert(stream, id);
                }
            }
            let written = exchange.write(connection);
            self.handed.took(precedence.0, written as u64);
            if let Some(metered) = &mut self.metered {
                metered.limits.wrote(written as u64);
            }
            if exchange.state.is_pushing() {
                self.writers.insert((precedence, id));
            }
        }
        self.lacks_streams = !may_open;
        keep_ahead(connection);
    }

    /// Its connection has sent so many bytes.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.handed.sent(bytes);
        if let Some(metered) = &mut self.metered {
            metered.limits.sent(bytes);
        }
    }

    /// Its connection had a turn, which began at `now`.
    pub(super) fn had_turn(&mut self, connection: &Connection, now: Instant, end: TurnEnd) {
        if let Some(metered) = &mut self.metered {
            let rest = match (self.writers.is_empty(), self.pushing.is_empty()) {
                (false, _) => Rest::Kept { lacks_streams: self.lacks_streams },
                (true, false) => Rest::Unacknowledged,
                (true, true) => Rest::Nothing,
            };
            metered.had_turn(connection, now, end, rest);
        }
    }

    /// How much the link has to send. The urgency is that of the bytes that it sends next. Bytes that wait for an acknowledgement do not count.
    pub(super) fn share(&self) -> Share {
        let next = self.writers.first().map(|(Reverse(precedence), _)| *precedence);
        Share { urgency: self.handed.most_urgent(next, &self.pushing), bytes: self.bytes_open, open: self.bytes_open }
    }
}
