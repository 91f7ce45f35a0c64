//! A worker's side of its exchanges, with the contract of `core::transport`: a push is handed over, a pull lands the sum where it goes,
//! and memory is held until one of them reports the end.

use std::collections::BTreeMap;

use gradlane_core::Error;
use gradlane_core::sched::TaskId;
use gradlane_core::types::{DeviceKind, ExchangeId, LinkId};
use gradlane_core::wire::{Header, Reply, Request, Response, Sum, Value, reject};

use super::checkers::Checker;
use super::worker::{Buffer, Region};
use super::world::{Address, Context, Input};

/// The exchanges of one worker.
#[derive(Debug)]
pub(super) struct Transport {
    me: Address,
    flights: BTreeMap<ExchangeId, Flight>,
    endings: Vec<Ending>,
}

/// How a push or a pull ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The contribution was handed over, or the exchange failed before.
    Pushed { task: TaskId, outcome: Result<(), Error> },
    /// The sum lies where it was wanted.
    Sum { task: TaskId, header: Sum },
    /// A parameter was used, and its value lies where it was wanted, if it was.
    Value { task: TaskId, header: Value },
    /// The server's reason not to give it.
    Rejected { task: TaskId, error: Error },
    /// The exchange failed.
    Torn { task: TaskId, error: Error, landed: u64 },
}

#[derive(Debug)]
struct Flight {
    link: LinkId,
    task: TaskId,
    push: Request,
    /// What the transport may read or write.
    regions: Vec<Region>,
    /// Nothing refers to the contribution's memory any more.
    returned: bool,
    /// Bytes of the answer that came, and whether those are all; nothing before its header.
    arrived: Option<(usize, bool)>,
    state: State,
}

/// ```text
/// Pushing ──handed over──► Idle ──pull──► Pulling ──the sum begins──► Landing ──all of it came──► (gone)
///                           └─failure─► Failed ──pull──► (gone)
/// ```
#[derive(Debug)]
enum State {
    Pushing,
    Idle,
    Failed(Error),
    Pulling { into: Vec<Region> },
    Landing { into: Vec<Region>, response: Response, landed: usize },
}

impl Transport {
    /// No exchanges.
    pub(super) fn new(me: Address) -> Self {
        Self { me, flights: BTreeMap::new(), endings: Vec::new() }
    }

    /// What ended since the last call.
    pub(super) fn endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// How many exchanges have not ended.
    pub(super) fn open(&self) -> usize {
        self.flights.len()
    }

    /// Whether an exchange may touch this buffer.
    pub(super) fn holds(&self, buffer: usize) -> bool {
        self.flights.values().any(|flight| flight.regions.iter().any(|region| region.buffer == buffer))
    }

    /// Sends a contribution.
    pub(super) fn push(
        &mut self,
        context: &mut Context,
        link: LinkId,
        task: TaskId,
        header: Request,
        body: Vec<u8>,
        regions: Vec<Region>,
    ) -> ExchangeId {
        let exchange = context.open_exchange(self.me, link, &header, body, false);
        if header.body_bytes() == 0 {
            // Nothing that a server would have to take in.
            context.post(self.me, std::time::Duration::ZERO, Input::Pushed { exchange });
        }
        let (returned, arrived, state) = (header.body_bytes() == 0, None, State::Pushing);
        self.flights.insert(exchange, Flight { link, task, push: header, regions, returned, arrived, state });
        exchange
    }

    /// Waits for the sum and lands it.
    pub(super) fn pull(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        task: TaskId,
        into: Vec<Region>,
        memory: &mut [Buffer],
    ) {
        let Some(flight) = self.flights.get_mut(&exchange) else {
            let error = Error::FailedPrecondition { what: "the exchange has ended".to_owned(), hint: String::new() };
            return self.endings.push(Ending::Torn { task, error, landed: 0 });
        };
        match std::mem::replace(&mut flight.state, State::Pulling { into }) {
            State::Idle => self.proceed(context, exchange, memory),
            State::Failed(error) => self.tear(exchange, error),
            State::Pushing | State::Pulling { .. } | State::Landing { .. } => {
                unreachable!("pulled once, after the push")
            }
        }
    }

    /// Gives an exchange up.
    pub(super) fn abandon(&mut self, context: &mut Context, exchange: ExchangeId) {
        if self.flights.contains_key(&exchange) {
            context.reset_exchange(self.me, exchange);
            let after = context.random.millis(0, 3);
            context.post(self.me, after, Input::ExchangeTorn { exchange, error: Error::Cancelled });
        }
    }

    /// The contribution was handed over.
    pub(super) fn pushed(&mut self, exchange: ExchangeId) {
        let Some(flight) = self.flights.get_mut(&exchange) else { return };
        if let State::Pushing = flight.state {
            flight.state = State::Idle;
            self.endings.push(Ending::Pushed { task: flight.task, outcome: Ok(()) });
        }
    }

    /// The contribution was acknowledged to its last byte.
    pub(super) fn returned(&mut self, context: &mut Context, exchange: ExchangeId, memory: &mut [Buffer]) {
        if let Some(flight) = self.flights.get_mut(&exchange) {
            flight.returned = true;
            self.proceed(context, exchange, memory);
        }
    }

    /// More of the answer arrived.
    pub(super) fn arrived(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        bytes: usize,
        ended: bool,
        memory: &mut [Buffer],
    ) {
        let Some(flight) = self.flights.get_mut(&exchange) else { return };
        flight.arrived = Some((bytes, ended));
        let answer = context.exchange(exchange).and_then(|entry| entry.answer.as_ref()).expect("it arrived");
        if !reply_of(&answer.header).is_early() {
            // Nobody wants the rest of the body.
            flight.returned = true;
            self.pushed(exchange);
        }
        self.proceed(context, exchange, memory);
    }

    /// Takes of the answer what has come, if somebody waits for it and where it goes is free.
    fn proceed(&mut self, context: &mut Context, exchange: ExchangeId, memory: &mut [Buffer]) {
        let Some(flight) = self.flights.get_mut(&exchange) else { return };
        let Some((bytes, ended)) = flight.arrived else { return };
        let entry = context.exchange(exchange).expect("it is open here");
        let answer = entry.answer.as_ref().expect("some of it arrived");
        let task = flight.task;
        if let State::Pulling { into } = &flight.state {
            let header = match reply_of(&answer.header) {
                Reply::Response(header) => header,
                Reply::Reject(_) => {
                    let error = reject::from_body(&answer.body, "a server").unwrap_or_else(|error| error);
                    self.flights.remove(&exchange);
                    return self.endings.push(Ending::Rejected { task, error });
                }
            };
            let landing: u64 = into.iter().map(|region| region.span.bytes).sum();
            let (got, due) = (header.target(), flight.push.target().map(|due| (due.part, due.round, landing)));
            if Some((got.part, got.round, header.body_bytes())) != due {
                let (peer, field) = ("a server".to_owned(), "part or round".to_owned());
                let error = Error::Protocol { peer, field, problem: "is another".to_owned() };
                return self.tear(exchange, error);
            }
            flight.state = State::Landing { into: into.clone(), response: header, landed: 0 };
        }
        let State::Landing { into, response, landed } = &mut flight.state else { return };
        if !flight.returned {
            return;
        }
        let (response, from, into) = (response.clone(), *landed, into.clone());
        let (body, end) = (answer.body[..bytes].to_vec(), answer.end);
        let cut = context.landing_cut(exchange).map(|cut| cut.clamp(from, bytes));
        let until = cut.unwrap_or(bytes);
        write(context, self.me, memory, &into, from, &body[..until]);
        let flight = self.flights.get_mut(&exchange).expect("found above");
        flight.state = State::Landing { into, response: response.clone(), landed: until };
        if cut.is_some() {
            context.reset_exchange(self.me, exchange);
            let (what, cause) = ("the exchange".to_owned(), "stream reset".to_owned());
            return self.tear(exchange, Error::Unavailable { what, cause });
        }
        if !ended {
            return;
        }
        if response.has_checksum() && Some(crc32c::crc32c(&body)) != end {
            let (target, from) = (response.target(), "a server".to_owned());
            return self.tear(exchange, Error::Checksum { tensor: target.part.to_string(), round: target.round, from });
        }
        self.flights.remove(&exchange);
        self.endings.push(match response {
            Response::Sum(header) => Ending::Sum { task, header },
            Response::Value(header) => Ending::Value { task, header },
        });
    }

    /// The exchange broke off.
    pub(super) fn torn(&mut self, exchange: ExchangeId, error: Error) {
        if self.flights.contains_key(&exchange) {
            self.tear(exchange, error);
        }
    }

    /// A link ended, and its exchanges with it.
    pub(super) fn lose(&mut self, link: LinkId, error: &Error) {
        let of_link = self.flights.iter().filter(|(_, flight)| flight.link == link);
        let exchanges: Vec<ExchangeId> = of_link.map(|(exchange, _)| *exchange).collect();
        for exchange in exchanges {
            self.tear(exchange, error.clone());
        }
    }

    fn tear(&mut self, exchange: ExchangeId, error: Error) {
        let flight = self.flights.get_mut(&exchange).expect("the caller found it");
        let task = flight.task;
        let ending = match flight.state {
            State::Pushing => Ending::Pushed { task, outcome: Err(error) },
            State::Pulling { .. } => Ending::Torn { task, error, landed: 0 },
            State::Landing { landed, .. } => Ending::Torn { task, error, landed: landed as u64 },
            // Nobody waits for it yet; whoever pulls hears of it.
            State::Idle => return flight.state = State::Failed(error),
            State::Failed(_) => return,
        };
        self.flights.remove(&exchange);
        self.endings.push(ending);
    }
}

fn reply_of(header: &[u8]) -> Reply {
    let header = Header::decode(header, "a server").and_then(|header| header.into_reply("a server"));
    header.expect("a server sends what a worker reads")
}

/// Writes what came of the sum to where it goes, but for the first `from` bytes, which lie there already.
fn write(context: &mut Context, me: Address, memory: &mut [Buffer], into: &[Region], from: usize, sum: &[u8]) {
    let mut at = 0;
    for Region { buffer, span } in into {
        let length = span.bytes as usize;
        let (begin, end) = (from.clamp(at, at + length), sum.len().clamp(at, at + length));
        let buffer = &mut memory[*buffer];
        if begin < end {
            if !buffer.lent || buffer.place != DeviceKind::Host {
                let text = format!("{}: a sum lands in memory that was given back, or that is a device's", me.who);
                context.witness.fail(context.now, Checker::Memory, text);
            }
            buffer.bytes[span.offset as usize..][begin - at..end - at].copy_from_slice(&sum[begin..end]);
        }
        at += length;
    }
}
