//! A worker's side of its exchanges: drives the machines of `core::transport::exchange` as the transports of the product do.
//!
//! What a worker's thread may find in any order comes here in an order that the seed decides: the end of a push is told before or after
//! its answer, memory is back at once or later, bytes come in pieces.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Loan, Returned};
use gradlane_core::sched::TaskId;
use gradlane_core::transport::exchange::{Arrival, WorkerExchange, broken_off, costs_the_link, of_the_link};
use gradlane_core::transport::{Answer, Pull, Torn};
use gradlane_core::types::{DeviceKind, Done, ExchangeId, LinkId};
use gradlane_core::wire::{Request, Response, Sum, Value};

use super::network::StreamEnd;
use super::worker::{Buffer, Region, check};
use super::world::{Address, Context, Input};

/// The exchanges of one worker.
#[derive(Debug)]
pub(super) struct Transport {
    me: Address,
    flights: BTreeMap<ExchangeId, Flight>,
    ended: Receiver<Ending>,
    end: Sender<Ending>,
    /// Links whose server broke the protocol.
    broken: Vec<(LinkId, Error)>,
}

/// How a push or its exchange ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The contribution was handed over.
    Pushed { task: TaskId, exchange: ExchangeId },
    /// The sum lies where it was wanted.
    Sum { task: TaskId, header: Sum },
    /// A parameter was used, and its value lies where it was wanted, if it was.
    Value { task: TaskId, header: Value },
    /// The server's reason not to give it.
    Rejected { task: TaskId, error: Error },
    /// The exchange failed.
    Torn { task: TaskId, error: Error, landed: u64 },
}

struct Flight {
    link: LinkId,
    task: TaskId,
    state: WorkerExchange,
    arrival: Arrival,
    returned: Receiver<Returned>,
    /// Where the sum lands.
    into: Vec<Buffer>,
    /// Bytes of the answer that were read, of those that came, and the end of the stream.
    read: usize,
    came: usize,
    end: Option<StreamEnd>,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { link, task, state, read, came, .. } = self;
        let (ended, lent) = (state.has_ended(), state.is_lent());
        write!(f, "{task:?} on {link:?}, ended {ended}, lent {lent}, read {read} of {came}")
    }
}

impl Transport {
    /// No exchanges.
    pub(super) fn new(me: Address) -> Self {
        let (end, ended) = channel();
        Self { me, flights: BTreeMap::new(), ended, end, broken: Vec::new() }
    }

    /// What ended since the last call. The ends of pushes may come last, because another thread may tell them.
    pub(super) fn endings(&self, context: &mut Context) -> Vec<Ending> {
        let mut endings: Vec<Ending> = self.ended.try_iter().collect();
        if endings.len() > 1 && context.random.chance(50) {
            endings.sort_by_key(|ending| matches!(ending, Ending::Pushed { .. }));
        }
        endings
    }

    /// The links whose server broke the protocol since the last call. Their exchanges have ended.
    pub(super) fn broken(&mut self) -> Vec<(LinkId, Error)> {
        std::mem::take(&mut self.broken)
    }

    /// How many exchanges have not ended.
    pub(super) fn open(&self) -> usize {
        self.flights.len()
    }

    /// The exchanges that have not ended.
    pub(super) fn describe(&self) -> String {
        format!("{:?}", self.flights.values())
    }

    /// Sends the contribution of a task from where it lies, waits for the sum, and lands it in `into`. The worker knows the exchange by the
    /// name `exchange`.
    pub(super) fn push(
        &mut self,
        context: &mut Context,
        (link, exchange): (LinkId, ExchangeId),
        task: TaskId,
        header: Request,
        body: Vec<(Buffer, Region)>,
        into: Vec<(Buffer, Region)>,
    ) -> ExchangeId {
        let (give_back, returned) = channel();
        let regions = body.iter().map(|(memory, region)| memory.lend(region.span)).collect();
        let loan = Loan::new(regions, move |proof| drop(give_back.send(proof)));
        let memory = body.into_iter().map(|(memory, _)| memory).collect();
        let id = context.open_exchange(self.me, link, &header, loan.into_pieces(), Some(memory));
        let (end, tell) = (self.end.clone(), self.end.clone());
        let pushed = Done::new(move |outcome: Result<()>| {
            if outcome.is_ok() {
                drop(tell.send(Ending::Pushed { task, exchange }));
            }
        });
        let done = Done::new(move |outcome| drop(end.send(ending_of(task, outcome))));
        let pull = Pull { into: into.iter().map(|(memory, region)| memory.lend(region.span)).collect(), done };
        let defect = context.plan.defect;
        let flight = Flight {
            link,
            task,
            state: WorkerExchange::new(header, pushed, Some(pull)).planted(defect),
            arrival: Arrival::default().planted(defect),
            returned,
            into: into.into_iter().map(|(memory, _)| memory).collect(),
            read: 0,
            came: 0,
            end: None,
        };
        self.flights.insert(id, flight);
        self.take_back(id);
        id
    }

    /// Gives an exchange up.
    pub(super) fn abandon(&mut self, context: &mut Context, id: ExchangeId) {
        if self.flights.contains_key(&id) {
            context.reset_exchange(self.me, id);
            self.end(context, id, Error::Cancelled);
        }
    }

    /// The contribution was handed over.
    pub(super) fn pushed(&mut self, id: ExchangeId) {
        if let Some(done) = self.flights.get_mut(&id).and_then(|flight| flight.state.handed_over()) {
            done.ok(());
        }
    }

    /// Nothing refers to the memory of the contribution any more.
    pub(super) fn returned(&mut self, context: &mut Context, id: ExchangeId) {
        context.release_body(id);
        self.take_back(id);
        self.read(context, id);
    }

    /// The server does not want the rest of the contribution.
    pub(super) fn stopped(&mut self, context: &mut Context, id: ExchangeId) {
        if self.flights.contains_key(&id) {
            self.give_back(context, id);
            self.pushed(id);
            self.read(context, id);
        }
    }

    /// More of the answer arrived.
    pub(super) fn arrived(&mut self, context: &mut Context, id: ExchangeId, bytes: usize, end: Option<StreamEnd>) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        (flight.came, flight.end) = (bytes, end);
        self.read(context, id);
    }

    /// The exchange broke off.
    pub(super) fn torn(&mut self, context: &mut Context, id: ExchangeId, error: Error) {
        if self.flights.contains_key(&id) {
            self.end(context, id, error);
        }
    }

    /// A link ended, and its exchanges with it.
    pub(super) fn lose(&mut self, context: &mut Context, link: LinkId, reason: &Error) {
        let of_link = self.flights.iter().filter(|(_, flight)| flight.link == link);
        for id in of_link.map(|(id, _)| *id).collect::<Vec<ExchangeId>>() {
            self.end(context, id, of_the_link(reason, "a server"));
        }
    }

    /// Reads what came of an answer and can be used now, and reports the end of the exchange.
    fn read(&mut self, context: &mut Context, id: ExchangeId) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let link = flight.link;
        if !flight.state.has_ended() {
            let outcome = flight.take_in(context, self.me, id);
            if flight.arrival.refuses_body() {
                if context.random.chance(50) {
                    self.pushed(id);
                }
                self.give_back(context, id);
            }
            match outcome {
                Ok(None) => return self.report(id),
                Ok(Some(answer)) => {
                    self.flights.get_mut(&id).expect("found above").state.end(Ok(answer));
                    self.give_back(context, id);
                }
                Err(error) => {
                    context.reset_exchange(self.me, id);
                    self.end(context, id, error.clone());
                    if costs_the_link(&error) {
                        self.lose(context, link, &error);
                        self.broken.push((link, error));
                    }
                }
            }
        }
        self.report(id);
    }

    fn end(&mut self, context: &mut Context, id: ExchangeId, error: Error) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.state.end(Err(error));
        self.give_back(context, id);
        self.report(id);
    }

    /// The transport lets go of the contribution: at once, as QUIC does, or when the peer has let go of it, as in shared memory.
    fn give_back(&mut self, context: &mut Context, id: ExchangeId) {
        let is_lent = self.flights.get(&id).is_some_and(|flight| flight.state.is_lent());
        if is_lent && context.random.chance(50) {
            context.release_body(id);
            context.cut_body(id);
            self.take_back(id);
        } else if is_lent {
            let after = context.random.millis(0, 3);
            context.post(self.me, after, Input::Returned { exchange: id });
        }
    }

    fn take_back(&mut self, id: ExchangeId) {
        if let Some(flight) = self.flights.get_mut(&id)
            && let Ok(proof) = flight.returned.try_recv()
        {
            flight.state.returned(proof);
        }
    }

    fn report(&mut self, id: ExchangeId) {
        if self.flights.get(&id).is_some_and(|flight| flight.state.is_over()) {
            let Flight { state, arrival, .. } = self.flights.remove(&id).expect("found above");
            state.report(arrival.landed());
        }
    }
}

impl Flight {
    /// The answer, if all of it came.
    fn take_in(&mut self, context: &mut Context, me: Address, id: ExchangeId) -> Result<Option<Answer>> {
        const PEER: &str = "a server";
        while self.state.place(&mut self.arrival, PEER)? {
            let left = self.came - self.read;
            if left == 0 {
                return match self.end {
                    Some(StreamEnd::Whole) => self.arrival.finish(None, PEER).map(Some),
                    Some(StreamEnd::Reset) => Err(broken_off()),
                    None => Ok(None),
                };
            }
            let chunk = context.answer_of(id, self.read, self.read + left.min(self.arrival.wants().max(1)));
            let landed = self.arrival.landed();
            self.arrival.take(&chunk, PEER)?;
            self.read += chunk.len();
            if self.arrival.landed() > landed {
                self.into.iter().for_each(|memory| check(context, me, memory, DeviceKind::Host, "landed in"));
            }
        }
        Ok(None)
    }
}

fn ending_of(task: TaskId, outcome: std::result::Result<Answer, Torn>) -> Ending {
    match outcome {
        Ok(Answer::Response(Response::Sum(header))) => Ending::Sum { task, header },
        Ok(Answer::Response(Response::Value(header))) => Ending::Value { task, header },
        Ok(Answer::Response(Response::Rows(_))) => unreachable!("no table is simulated"),
        Ok(Answer::Reject(error)) => Ending::Rejected { task, error },
        Err(Torn { error, landed }) => Ending::Torn { task, error, landed },
    }
}
