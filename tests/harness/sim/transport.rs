//! A worker's side of its exchanges, with the contract of `core::transport`: a push is handed over, a pull lands the sum where it goes,
//! and memory is held until one of them reports the end.

use std::collections::BTreeMap;

use gradlane_core::Error;
use gradlane_core::sched::TaskId;
use gradlane_core::types::{ExchangeId, LinkId};
use gradlane_core::wire::{Flags, Header, HeaderKind, reject};

use super::checkers::Checker;
use super::engine::Region;
use super::worker::Buffer;
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
    Sum { task: TaskId, header: Header },
    /// The server's reason not to give it.
    Rejected { task: TaskId, error: Error },
    /// The exchange failed.
    Torn { task: TaskId, error: Error, landing_begun: bool },
}

#[derive(Debug)]
struct Flight {
    link: LinkId,
    task: TaskId,
    push: Header,
    /// What the transport may read or write.
    regions: Vec<Region>,
    state: State,
}

/// ```text
/// Pushing ──handed over──► Idle ──pull──► Pulling ──answer──► Landing ──► (gone)
///                           └─answer or failure─► Arrived ──pull──► (as if it arrived then)
/// ```
#[derive(Debug)]
enum State {
    Pushing,
    Idle,
    Arrived(Arrival),
    Pulling { into: Vec<Region> },
    Landing { into: Vec<Region>, sum: Header },
}

#[derive(Debug)]
enum Arrival {
    Answer,
    Torn(Error),
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
        header: Header,
        body: Vec<u8>,
        regions: Vec<Region>,
    ) -> ExchangeId {
        let exchange = context.open_exchange(self.me, link, header.encode(), body, false);
        if header.body_bytes() == 0 {
            // Nothing that a server would have to take in.
            context.post(self.me, std::time::Duration::ZERO, Input::Pushed { exchange });
        }
        self.flights.insert(exchange, Flight { link, task, push: header, regions, state: State::Pushing });
        exchange
    }

    /// Waits for the sum and lands it.
    pub(super) fn pull(&mut self, context: &mut Context, exchange: ExchangeId, task: TaskId, into: Vec<Region>) {
        let Some(flight) = self.flights.get_mut(&exchange) else {
            let error = Error::FailedPrecondition { what: "the exchange has ended".to_owned(), hint: String::new() };
            return self.endings.push(Ending::Torn { task, error, landing_begun: false });
        };
        match std::mem::replace(&mut flight.state, State::Pulling { into }) {
            State::Idle => {}
            State::Arrived(Arrival::Answer) => {
                context.post(self.me, std::time::Duration::ZERO, Input::Answer { exchange })
            }
            State::Arrived(Arrival::Torn(error)) => self.tear(exchange, error),
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

    /// The answer begins to arrive.
    pub(super) fn answered(&mut self, context: &mut Context, exchange: ExchangeId, memory: &mut [Buffer]) {
        // An answer may come before the server took the body in; then nobody wants the rest of it.
        self.pushed(exchange);
        let Some(flight) = self.flights.get_mut(&exchange) else { return };
        let into = match &flight.state {
            State::Pulling { into } => into.clone(),
            State::Idle => return flight.state = State::Arrived(Arrival::Answer),
            State::Arrived(_) | State::Landing { .. } => return,
            State::Pushing => unreachable!("handed over above"),
        };
        let entry = context.exchange(exchange).expect("it is open here");
        let (header, body) = entry.answer.clone().expect("an answer arrived");
        let header = Header::decode(&header, "a server").expect("a server sends what a worker reads");
        let task = flight.task;
        if header.kind == HeaderKind::Reject {
            let error = reject::from_body(&body, "a server").unwrap_or_else(|error| error);
            self.flights.remove(&exchange);
            return self.endings.push(Ending::Rejected { task, error });
        }
        let landing: u64 = into.iter().map(|region| region.span.bytes).sum();
        let push = &flight.push;
        if (header.part, header.round, header.dtype, header.bytes) != (push.part, push.round, push.dtype, landing) {
            let (peer, field) = ("a server".to_owned(), "part or round".to_owned());
            let error = Error::Protocol { peer, field, problem: "is another".to_owned() };
            return self.tear(exchange, error);
        }
        let torn_at = context.landing_cut(exchange);
        let cut = torn_at.unwrap_or_else(|| context.random.below(body.len() as u64 + 1) as usize);
        write(context, self.me, memory, &into, 0, &body[..cut]);
        self.flights.get_mut(&exchange).expect("found above").state = State::Landing { into, sum: header };
        let after = context.random.millis(0, 20);
        let next = match torn_at {
            Some(_) => {
                let (what, cause) = ("the exchange".to_owned(), "stream reset".to_owned());
                Input::ExchangeTorn { exchange, error: Error::Unavailable { what, cause } }
            }
            None => Input::Landed { exchange },
        };
        context.post(self.me, after, next);
    }

    /// The rest of the sum arrived.
    pub(super) fn landed(&mut self, context: &mut Context, exchange: ExchangeId, memory: &mut [Buffer]) {
        let Some(Flight { state: State::Landing { into, sum }, task, .. }) = self.flights.get(&exchange) else {
            return;
        };
        let (into, sum, task) = (into.clone(), *sum, *task);
        let (_, body) = context.exchange(exchange).and_then(|entry| entry.answer.clone()).expect("it landed");
        write(context, self.me, memory, &into, 0, &body);
        if sum.flags.contains(Flags::CHECKSUM) && crc32c::crc32c(&body) != sum.checksum {
            let (tensor, from) = (sum.part.to_string(), "a server".to_owned());
            return self.tear(exchange, Error::Checksum { tensor, round: sum.round, from });
        }
        self.flights.remove(&exchange);
        self.endings.push(Ending::Sum { task, header: sum });
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
            State::Pulling { .. } => Ending::Torn { task, error, landing_begun: false },
            State::Landing { .. } => Ending::Torn { task, error, landing_begun: true },
            // Nobody waits for it yet; whoever pulls hears of it.
            State::Idle => return flight.state = State::Arrived(Arrival::Torn(error)),
            State::Arrived(Arrival::Answer) => return flight.state = State::Arrived(Arrival::Torn(error)),
            State::Arrived(Arrival::Torn(_)) => return,
        };
        self.flights.remove(&exchange);
        self.endings.push(ending);
    }
}

/// Writes a run of the sum, which begins at `from`, to where it goes.
fn write(context: &mut Context, me: Address, memory: &mut [Buffer], into: &[Region], from: usize, bytes: &[u8]) {
    let mut rest = &bytes[from..];
    for Region { buffer, span } in into {
        let (now, after) = rest.split_at(rest.len().min(span.bytes as usize));
        let buffer = &mut memory[*buffer];
        if !now.is_empty() && !buffer.lent {
            let text = format!("{}: a sum lands in memory that was given back", me.who);
            context.witness.fail(context.now, Checker::Memory, text);
        }
        buffer.bytes[span.offset as usize..][..now.len()].copy_from_slice(now);
        rest = after;
    }
}
