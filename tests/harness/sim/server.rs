//! Drives the node of a server and its store, as the data plane and the lanes of a server do: with real bodies and the real arithmetic, behind
//! simulated links.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, LinkId, PartId, Time};
use gradlane_core::wire::{About, Header, Reject, Request, Target, reject};
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::{Command, Route, SlotId, Work};
use gradlane_server::node::event::Event;
use gradlane_server::node::store::Store;
use gradlane_server::node::{Node, NodeConfig};

use super::checkers::Checker;
use super::member::MemberDriver;
use super::workload::timing;
use super::world::{Address, Context, Input, Process};

/// A running server.
pub(super) struct ServerProcess {
    me: Address,
    member: MemberDriver,
    node: Node,
    links: BTreeSet<LinkId>,
    lost: BTreeSet<LinkId>,
    /// Exchanges that have not ended on this side.
    headers: BTreeMap<ExchangeId, (LinkId, Request)>,
    /// Where the bodies of exchanges go.
    routes: BTreeMap<ExchangeId, Route>,
    store: Store,
    /// When an exchange of each sum was last open.
    read: BTreeMap<SlotId, Time>,
}

impl ServerProcess {
    /// A server that joins.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let config = NodeConfig {
            deterministic: context.plan.settings.deterministic,
            stall_warn: timing::STALL_WARN,
            step_timeout: timing::STEP,
            memory_bytes_max: context.plan.settings.memory_bytes_max,
            // The network of the simulation has no windows.
            unread_bytes_max: 0,
            block_bytes_max: context.plan.settings.block_bytes_max,
            block_bytes_min: 64,
            defect: context.plan.defect,
        };
        let resources = SumResources {
            kernels: Kernels::portable(),
            pool: Pool::new(),
            copies: Copies::default(),
            defect: context.plan.defect,
        };
        let mut this = Self {
            me,
            member: MemberDriver::new(context, me),
            node: Node::new(config),
            links: BTreeSet::new(),
            lost: BTreeSet::new(),
            headers: BTreeMap::new(),
            routes: BTreeMap::new(),
            store: Store::new(resources),
            read: BTreeMap::new(),
        };
        this.settle(context);
        this
    }

    /// What must hold at the end, when the job ended with `cause` as far as the coordinator lives to know.
    pub(super) fn inspect(&self, context: &mut Context, cause: Option<&Result<()>>) {
        let ended = self.node.state().outcome();
        context.witness.process_ended(self.me, ended.as_ref(), cause);
        if ended.is_none() || self.node.view().is_none() {
            return;
        }
        let left = (self.store.sums().len(), self.store.values().len(), self.node.progress().bytes_in_flight);
        if left != (0, 0, 0) {
            let text = format!("{}: after the end, sums, values and booked bytes are {left:?}", self.me.who);
            context.witness.fail(context.now, Checker::Memory, text);
        }
    }

    /// Carries out what both machines want, until neither wants anything.
    fn settle(&mut self, context: &mut Context) {
        loop {
            let events = self.member.drain(context);
            let command = self.node.next_command();
            if events.is_empty() && command.is_none() {
                break;
            }
            for event in events {
                context.log.note(context.now, self.me.who, "member", &[], || format!("{event:?}"));
                self.node.handle_member(event);
            }
            if let Some(command) = command {
                self.carry_out(context, command);
            }
        }
        self.check_bounds(context);
    }

    fn carry_out(&mut self, context: &mut Context, command: Command) {
        context.log.note(context.now, self.me.who, "decides", &[], || format!("{command:?}"));
        match command {
            Command::Step(work) => {
                let received = work.receives();
                if let Some((exchange, route)) = received {
                    self.check_epoch(context, exchange);
                    self.routes.insert(exchange, route);
                }
                // A change of a parameter that was admitted goes on in a later view.
                if let (Work::Sum { .. }, Some((exchange, _))) = (&work, work.answers()) {
                    self.check_epoch(context, exchange);
                }
                let mut events = Vec::new();
                self.store.step(work, &mut |event| events.push(event));
                self.say(context, events);
                if let Some((exchange, _)) = received {
                    context.accept(exchange);
                }
            }
            Command::Accept { exchange } => context.accept(exchange),
            Command::Unroute { exchange } => drop(self.routes.remove(&exchange)),
            Command::Grant { .. } => {}
            Command::Reject { exchange, about, error } => {
                let is_short = matches!(&error, Error::Exhausted { .. })
                    || matches!(&error, Error::FailedPrecondition { what, .. } if what.contains("memory of the server for tensors"));
                if let Some(entry) = context.exchange(exchange).filter(|_| is_short) {
                    let worker = entry.worker.who;
                    context.witness.refused(worker, about.part.key);
                }
                self.reject(context, exchange, about, &error);
            }
            Command::Disconnect { link, reason } => {
                self.lose(link);
                context.send_link(self.me, link, Input::LinkLost { link, error: reason });
            }
            Command::Short { .. } => {}
            Command::Stalled { stall } => self.member.member.report_stall(stall),
        }
    }

    fn lose(&mut self, link: LinkId) {
        let open = self.headers.iter().filter(|(_, (of, _))| *of == link);
        let open: Vec<ExchangeId> = open.map(|(exchange, _)| *exchange).collect();
        for exchange in open {
            self.headers.remove(&exchange);
            self.node.handle_torn(exchange);
        }
        if self.links.remove(&link) {
            self.node.handle_link_down(link);
        }
        self.lost.insert(link);
    }

    /// Does what the store wants: with exchanges that are still open, and in its own time.
    fn say(&mut self, context: &mut Context, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { route, exchange, receipt } => {
                    let after = context.random.millis(0, 2);
                    context.post(self.me, after, Input::Receipt { route, exchange, receipt });
                }
                Event::Send(Outgoing::Answer { exchange, header }) if self.headers.contains_key(&exchange) => {
                    context.answer(exchange, header.encode());
                }
                Event::Send(Outgoing::Block { exchange, block }) if self.headers.contains_key(&exchange) => {
                    context.extend_answer(exchange, &block);
                }
                Event::Send(Outgoing::End { exchange, checksum }) if self.headers.contains_key(&exchange) => {
                    context.end_answer(exchange, checksum);
                }
                Event::Send(Outgoing::Reject { exchange, about, error }) => {
                    self.reject(context, exchange, about, &error);
                }
                Event::Send(_) => {}
            }
        }
    }

    fn reject(&mut self, context: &mut Context, exchange: ExchangeId, about: About, error: &Error) {
        if self.headers.contains_key(&exchange) {
            let body = reject::to_body(error);
            let header = Reject { about, error_bytes: body.len() as u64 };
            context.reject(exchange, header.encode().to_vec(), &body);
        }
    }

    fn handle_exchange(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
        match input {
            Input::Opened { exchange } => {
                let Some((link, bytes)) = context.exchange(exchange).map(|entry| (entry.link, entry.header.clone()))
                else {
                    return;
                };
                if !self.links.contains(&link) {
                    return;
                }
                let header = Header::decode(&bytes, "a worker").and_then(|header| header.into_request("a worker"));
                // What no worker sends comes from an intruder.
                let Ok(header) = header else { return context.reset_exchange(self.me, exchange) };
                self.node.handle_opened(now, link, exchange, &header);
                self.headers.insert(exchange, (link, header));
            }
            Input::Body { exchange, span } if self.headers.contains_key(&exchange) => {
                let chunk = context.body_of(exchange, span);
                let Some(route) = self.routes.get(&exchange).copied() else {
                    return self.node.handle_body(now, exchange, &[chunk.into()]);
                };
                let mut events = Vec::new();
                self.store.receive(route, exchange, &[chunk], &mut |event| events.push(event));
                self.say(context, events);
            }
            Input::Receipt { route, exchange, receipt } => {
                self.node.handle_receipt(now, route, exchange, receipt);
            }
            Input::ExchangeTorn { exchange, .. } if self.headers.remove(&exchange).is_some() => {
                self.node.handle_torn(exchange);
            }
            Input::Answered { exchange } if self.headers.remove(&exchange).is_some() => {
                self.node.handle_answered(exchange);
            }
            _ => {}
        }
    }

    /// Nothing of an earlier membership may have an effect.
    fn check_epoch(&self, context: &mut Context, exchange: ExchangeId) {
        let (Some((_, header)), Some(view)) = (self.headers.get(&exchange), self.node.view()) else { return };
        let epoch = header.about().epoch;
        if epoch != view.epoch {
            let text = format!("{} let a push of {epoch} in while in {}", self.me.who, view.epoch);
            context.witness.fail(context.now, Checker::Fencing, text);
        }
    }

    fn check_bounds(&mut self, context: &mut Context) {
        let open = self.headers.values().filter_map(|(_, header)| header.target());
        let open: BTreeSet<SlotId> = open.map(|Target { part, round, .. }| SlotId { part, round }).collect();
        let held: BTreeSet<SlotId> = self.store.sums().slots().collect();
        self.read.retain(|slot, _| held.contains(slot));
        let mut rounds: BTreeMap<PartId, usize> = BTreeMap::new();
        for slot in held {
            let read = self.read.entry(slot).or_insert(context.now);
            if open.contains(&slot) {
                *read = context.now;
            }
            if context.now.since(*read) > timing::STEP * 2 {
                let text = format!("{} keeps a sum of part {} that nobody reads", self.me.who, slot.part);
                context.witness.fail(context.now, Checker::Growth, text);
            }
            *rounds.entry(slot.part).or_default() += 1;
        }
        if let Some((part, alive)) = rounds.into_iter().find(|(_, alive)| *alive > 2) {
            let text = format!("{} keeps {alive} rounds of part {part}", self.me.who);
            context.witness.fail(context.now, Checker::Rounds, text);
        }
        let pending = self.node.progress().pending as usize;
        if pending > self.headers.len() {
            let open = self.headers.len();
            let text = format!("{} remembers {pending} exchanges of which {open} are open", self.me.who);
            context.witness.fail(context.now, Checker::Growth, text);
        }
    }
}

impl Process for ServerProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
        match input {
            Input::Timer => {
                self.node.handle_timeout(now);
                let progress = self.node.progress();
                self.member.handle(context, Input::Timer, progress);
            }
            // Lost before it was up: who dialled knows or will find out.
            Input::LinkDialled { link, .. } if self.lost.contains(&link) => {}
            Input::LinkDialled { link, from } => {
                self.links.insert(link);
                self.node.handle_link_up(link, context.node_of(from));
                context.send_link(self.me, link, Input::LinkReady { link });
            }
            Input::LinkLost { link, .. } => self.lose(link),
            Input::Opened { .. }
            | Input::Body { .. }
            | Input::Receipt { .. }
            | Input::Answered { .. }
            | Input::ExchangeTorn { .. } => self.handle_exchange(context, input),
            Input::ControlDialled { .. }
            | Input::ControlUp { .. }
            | Input::ControlFailed { .. }
            | Input::ControlClosed { .. }
            | Input::Frame { .. } => {
                let progress = self.node.progress();
                self.member.handle(context, input, progress);
            }
            Input::LinkReady { .. }
            | Input::LinkFailed { .. }
            | Input::Pushed { .. }
            | Input::Answer { .. }
            | Input::Returned { .. }
            | Input::Bell { .. }
            | Input::Copied { .. }
            | Input::Near { .. }
            | Input::NeighbourLost { .. }
            | Input::Script => {}
        }
        self.settle(context);
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.member.poll_timeout(), self.node.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.node.state().has_ended()
    }

    fn describe(&self) -> String {
        let phase = self.node.view().map(|view| &view.phase);
        format!("phase {phase:?}, {:?}", self.node.progress())
    }
}
