//! A worker's machines and what joins them, as `engine::{shared, links}` do: registry, scheduler, connections to servers. Memory is a
//! table of buffers instead of the caller's, and effects are left to the worker process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::{Duty, Lookup, Pipeline, ReadyPart, Registry, Route, Stage, Topology};
use gradlane_core::sched::{Command, GroupId, Scheduler, SchedulerConfig, TaskId, TaskSpec};
use gradlane_core::types::{
    DeviceKind, Epoch, ExchangeId, LinkId, Op, Priority, Round, ServerId, Span, TensorKey, TensorSpec, Time, View,
    WorkerId,
};
use gradlane_core::wire::frame::Progress;
use gradlane_core::wire::reject;

use super::workload::Plan;

/// The machines of one worker.
pub(super) struct Engine {
    pub(super) registry: Registry,
    pub(super) scheduler: Scheduler,
    pub(super) links: BTreeMap<ServerId, ServerLink>,
    pub(super) rank: WorkerId,
    pub(super) view: Option<View>,
    pub(super) ended: Option<Error>,
    /// By number: submissions that are not resolved.
    pub(super) tickets: BTreeMap<u64, Ticket>,
    /// By tensor: submissions that wait for the answer to their declaration, oldest first.
    pub(super) parked: BTreeMap<TensorKey, Vec<Parked>>,
    pub(super) payloads: BTreeMap<TaskId, Payload>,
    groups: BTreeMap<GroupId, u64>,
    last: Option<(TensorKey, Round)>,
    effects: Vec<Effect>,
    requests: u64,
    numbers: u64,
}

/// One submission.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) key: TensorKey,
    pub(super) name: Arc<str>,
    /// Of the contribution, in the worker's memory.
    pub(super) source: usize,
    /// Of the result; may be the same.
    pub(super) destination: usize,
    pub(super) op: Op,
    pub(super) weight: f64,
    pub(super) priority: Priority,
    pub(super) submitted: Time,
    pub(super) deadline: Option<Time>,
    pub(super) group: Option<GroupId>,
}

/// A submission that waits for a declaration; it keeps its place if it is given up meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    ticket: u64,
    op: Op,
    weight: f64,
}

/// A run of bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// Which buffer.
    pub(super) buffer: usize,
    /// Which of its bytes.
    pub(super) span: Span,
}

/// What a task moves.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) part: ReadyPart,
    pub(super) source: Vec<Region>,
    pub(super) destination: Vec<Region>,
    pub(super) exchange: Option<ExchangeId>,
    /// Why the round is given up, if the task only tells that.
    pub(super) letter: Option<Vec<u8>>,
}

/// `Dialling → Up → Waiting → Dialling …`, and `Dialling → Waiting` when a dial fails.
#[derive(Debug)]
pub(super) struct ServerLink {
    pub(super) address: String,
    pub(super) state: LinkState,
    backoff: Duration,
}

/// See [`ServerLink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    Dialling(Option<LinkId>),
    Up(LinkId),
    Waiting { until: Time },
}

/// What the worker process must do.
#[derive(Debug)]
pub(super) enum Effect {
    Ring(Stage),
    Abandon(ExchangeId),
    Resolve {
        ticket: u64,
        source: usize,
        destination: usize,
        outcome: Result<()>,
    },
    Dial(ServerId),
    /// The scheduler resolved a submission that it had resolved before.
    ResolvedTwice(GroupId),
}

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Engine {
    /// The machines of a worker that has not joined.
    pub(super) fn new(plan: &Plan) -> Self {
        let config = SchedulerConfig {
            credit_bytes: plan.settings.credit_bytes,
            defect: plan.defect,
            ..SchedulerConfig::default()
        };
        let pipeline = Pipeline::for_role(&Topology::flat(2, DeviceKind::Host), false);
        Self {
            registry: Registry::new(WorkerId(0)),
            scheduler: Scheduler::new(config, pipeline),
            links: BTreeMap::new(),
            rank: WorkerId(0),
            view: None,
            ended: None,
            tickets: BTreeMap::new(),
            parked: BTreeMap::new(),
            payloads: BTreeMap::new(),
            groups: BTreeMap::new(),
            last: None,
            effects: Vec::new(),
            requests: 0,
            numbers: 0,
        }
    }

    /// What the machines decided since the last call.
    pub(super) fn effects(&mut self, now: Time) -> Vec<Effect> {
        while let Some(command) = self.scheduler.next_command() {
            match command {
                Command::Wake(stage) => self.effects.push(Effect::Ring(stage)),
                Command::Abandon(task) => {
                    if let Some(exchange) = self.payloads.get(&task).and_then(|payload| payload.exchange) {
                        self.effects.push(Effect::Abandon(exchange));
                    }
                }
                Command::GiveUp { task, of, error } => {
                    let part = self.payloads[&of].part.clone();
                    self.tell_server(task, part, &error);
                }
                Command::Release(task) => drop(self.payloads.remove(&task)),
                Command::Resolved { group, outcome } => match self.groups.remove(&group) {
                    Some(ticket) => self.resolve(ticket, outcome),
                    None => self.effects.push(Effect::ResolvedTwice(group)),
                },
            }
        }
        for (server, link) in &mut self.links {
            if matches!(link.state, LinkState::Waiting { until } if until <= now) {
                link.state = LinkState::Dialling(None);
                self.effects.push(Effect::Dial(*server));
            }
        }
        std::mem::take(&mut self.effects)
    }

    /// When something is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.links.values().filter_map(|link| match link.state {
            LinkState::Waiting { until } => Some(until),
            LinkState::Dialling(_) | LinkState::Up(_) => None,
        });
        let parked = self.parked.values().flatten().filter_map(|parked| self.tickets.get(&parked.ticket)?.deadline);
        waiting.chain(parked).chain(self.scheduler.poll_timeout()).min()
    }

    /// What the coordinator is told with each heartbeat.
    pub(super) fn progress(&self) -> Progress {
        Progress { last: self.last, pending: self.tickets.len() as u32, bytes_in_flight: 0 }
    }

    /// The membership that outgoing headers carry.
    pub(super) fn epoch(&self) -> Epoch {
        self.view.as_ref().map(|view| view.epoch).unwrap_or_default()
    }

    /// Tensors of `specs` that must be declared, noted as asked for with the returned request.
    pub(super) fn declare(&mut self, specs: Vec<TensorSpec>) -> Result<(u64, Vec<TensorSpec>)> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let mut unknown = Vec::new();
        for spec in specs {
            if self.registry.lookup(&spec)? == Lookup::Unknown {
                unknown.push(spec);
            }
        }
        self.requests += 1;
        self.registry.declaring(self.requests, &unknown);
        Ok((self.requests, unknown))
    }

    /// Takes a submission in; the request with which its tensor must be declared first, if it must.
    pub(super) fn accept(&mut self, now: Time, ticket: Ticket, spec: &TensorSpec) -> (u64, Option<u64>) {
        self.numbers += 1;
        let (id, key) = (self.numbers, ticket.key);
        let parked = Parked { ticket: id, op: ticket.op, weight: ticket.weight };
        self.tickets.insert(id, ticket);
        if let Some(error) = self.ended.clone() {
            self.resolve(id, Err(error));
            return (id, None);
        }
        match self.registry.lookup(spec) {
            Err(error) => self.resolve(id, Err(error)),
            Ok(Lookup::Ready) => self.begin(now, id),
            Ok(Lookup::Declaring) => self.parked.entry(key).or_default().push(parked),
            Ok(Lookup::Unknown) => {
                self.requests += 1;
                self.registry.declaring(self.requests, std::slice::from_ref(spec));
                self.parked.entry(key).or_default().push(parked);
                return (id, Some(self.requests));
            }
        }
        (id, None)
    }

    /// Takes the coordinator's answer to a declaration.
    pub(super) fn handle_declared(
        &mut self,
        now: Time,
        request: u64,
        outcome: Result<Vec<gradlane_core::types::PartLayout>>,
    ) {
        for key in self.registry.handle_declared(request, outcome) {
            for Parked { ticket, op, weight } in self.parked.remove(&key).unwrap_or_default() {
                if self.tickets.contains_key(&ticket) {
                    self.begin(now, ticket);
                } else if let Ok(given_up) = self.registry.submit(key, op, weight, ticket) {
                    for part in given_up.ready {
                        self.give_up_part(now, &part);
                    }
                }
            }
        }
    }

    fn begin(&mut self, now: Time, id: u64) {
        let ticket = self.tickets.get_mut(&id).expect("begun once, before it resolves");
        let submitted = match self.registry.submit(ticket.key, ticket.op, ticket.weight, id) {
            Ok(submitted) => submitted,
            Err(error) => return self.resolve(id, Err(error)),
        };
        self.last = Some((ticket.key, submitted.round));
        let (name, deadline) = (Arc::clone(&ticket.name), ticket.deadline);
        let group = self.scheduler.open_group(now, name, submitted.round, submitted.shares, deadline);
        ticket.group = Some(group);
        self.groups.insert(group, id);
        for part in submitted.ready {
            self.enqueue(now, part);
        }
    }

    fn enqueue(&mut self, now: Time, part: ReadyPart) {
        let (mut groups, mut source, mut destination) = (Vec::new(), Vec::new(), Vec::new());
        let mut priority = Priority(i32::MIN);
        for (piece, ticket) in part.layout.pieces.iter().zip(&part.tickets) {
            let Some(ticket) = self.tickets.get(ticket) else { return self.give_up_part(now, &part) };
            let group = ticket.group.expect("its submission opened a group");
            if !groups.contains(&group) {
                groups.push(group);
            }
            source.push(Region { buffer: ticket.source, span: piece.span });
            destination.push(Region { buffer: ticket.destination, span: piece.span });
            priority = priority.max(ticket.priority);
        }
        let layout = &part.layout;
        let (server, bytes, round) = (layout.server, layout.bytes(), part.round);
        let spec =
            TaskSpec { part: layout.part, server, bytes, round, priority, route: Route::host(Duty::Owner), groups };
        let task = self.scheduler.submit(now, spec);
        self.payloads.insert(task, Payload { part, source, destination, exchange: None, letter: None });
    }

    /// A part of which one submission ended before the others came: they cannot be summed without it.
    fn give_up_part(&mut self, now: Time, part: &ReadyPart) {
        let layout = &part.layout;
        let (server, round, groups) = (layout.server, part.round, Vec::new());
        let priority = Priority::default();
        let spec =
            TaskSpec { part: layout.part, server, bytes: 0, round, priority, route: Route::host(Duty::Owner), groups };
        if let Some(task) = self.scheduler.give_up_round(now, spec) {
            self.tell_server(task, part.clone(), &Error::Cancelled);
        }
        let groups: Vec<GroupId> =
            part.tickets.iter().filter_map(|ticket| self.tickets.get(ticket).and_then(|other| other.group)).collect();
        for group in groups {
            self.scheduler.fail_group(now, group, Error::Cancelled);
        }
    }

    fn tell_server(&mut self, task: TaskId, part: ReadyPart, error: &Error) {
        let (source, destination, letter) = (Vec::new(), Vec::new(), Some(reject::to_body(error)));
        self.payloads.insert(task, Payload { part, source, destination, exchange: None, letter });
    }

    /// Follows a new membership.
    pub(super) fn follow(&mut self, now: Time, view: View) {
        for member in view.servers() {
            let server = ServerId(member.index);
            if self.links.get(&server).is_none_or(|link| link.address != member.process.address) {
                let (address, state) = (member.process.address.clone(), LinkState::Dialling(None));
                self.links.insert(server, ServerLink { address, state, backoff: BACKOFF_MIN });
                self.scheduler.handle_link_down(now, server);
                self.effects.push(Effect::Dial(server));
            }
        }
        self.view = Some(view);
    }

    /// A server was reached.
    pub(super) fn link_up(&mut self, now: Time, server: ServerId, link: LinkId) {
        let entry = self.links.get_mut(&server).expect("a dialled server is known");
        (entry.state, entry.backoff) = (LinkState::Up(link), BACKOFF_MIN);
        self.scheduler.handle_link_up(now, server);
    }

    /// A server was not reached, or its link was lost.
    pub(super) fn link_down(&mut self, now: Time, server: ServerId) {
        self.scheduler.handle_link_down(now, server);
        if self.ended.is_none() {
            let entry = self.links.get_mut(&server).expect("a dialled server is known");
            entry.state = LinkState::Waiting { until: now + entry.backoff };
            entry.backoff = (entry.backoff * 2).min(BACKOFF_MAX);
        }
    }

    fn resolve(&mut self, id: u64, outcome: Result<()>) {
        if let Some(ticket) = self.tickets.remove(&id) {
            if let Some(group) = ticket.group {
                self.groups.remove(&group);
            }
            let Ticket { source, destination, .. } = ticket;
            self.effects.push(Effect::Resolve { ticket: id, source, destination, outcome });
        }
    }

    /// A tensor failed for good, and with it those that share parts with it.
    pub(super) fn forget(&mut self, now: Time, key: TensorKey, error: &Error) {
        for key in self.registry.handle_forget(key, error.clone()) {
            self.parked.remove(&key);
            let of_tensor = self.tickets.iter().filter(|(_, ticket)| ticket.key == key);
            let tickets: Vec<u64> = of_tensor.map(|(id, _)| *id).collect();
            for id in tickets {
                match self.tickets[&id].group {
                    Some(group) => self.scheduler.fail_group(now, group, error.clone()),
                    None => self.resolve(id, Err(error.clone())),
                }
            }
        }
    }

    /// Fails everything, now and later.
    pub(super) fn end(&mut self, now: Time, error: &Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.scheduler.fail_all(now, error.clone());
        for Parked { ticket, .. } in std::mem::take(&mut self.parked).into_values().flatten() {
            self.resolve(ticket, Err(error.clone()));
        }
    }

    /// Gives up a submission at the caller's wish.
    pub(super) fn cancel(&mut self, now: Time, id: u64) {
        match self.tickets.get(&id).map(|ticket| ticket.group) {
            None => {}
            Some(Some(group)) => self.scheduler.cancel(now, group),
            Some(None) => self.resolve(id, Err(Error::Cancelled)),
        }
    }

    /// What is due at `now`.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.scheduler.handle_timeout(now);
        let parked = self.parked.values().flatten().map(|parked| parked.ticket);
        let late: Vec<u64> = parked
            .filter(|id| self.tickets.get(id).is_some_and(|ticket| ticket.deadline.is_some_and(|due| due <= now)))
            .collect();
        for id in late {
            let ticket = &self.tickets[&id];
            let what = format!("tensor {}: waiting for its declaration", ticket.name);
            let waited = now.since(ticket.submitted);
            self.resolve(id, Err(Error::Timeout { what, waited }));
        }
    }
}
