//! A server process: the aggregator and its sums behind links, with real bodies and the real arithmetic, as `connection` and `lanes` drive
//! them.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, LinkId, NodeId, PartId, Phase, Time, View, WorkerId};
use gradlane_core::wire::{Header, Reject, Request, Target, reject};
use gradlane_server::node::accumulator::Workshop;
use gradlane_server::node::aggregate::{Aggregator, AggregatorConfig, Command, Receipt, SlotId, Step};
use gradlane_server::node::sum::{Event, Sums};
use gradlane_server::node::withdrawals::{Letters, Word};

use super::checkers::Checker;
use super::member::MemberDriver;
use super::workload::timing;
use super::world::{Address, Context, Input, Process};

/// A running server.
pub(super) struct ServerProcess {
    me: Address,
    member: MemberDriver,
    aggregator: Aggregator,
    view: Option<View>,
    links: BTreeMap<LinkId, NodeId>,
    lost: BTreeSet<LinkId>,
    /// Exchanges that have not ended on this side.
    headers: BTreeMap<ExchangeId, (LinkId, Request)>,
    /// Where the bodies of exchanges go.
    routes: BTreeMap<ExchangeId, (SlotId, WorkerId)>,
    letters: Letters,
    sums: Sums,
    ended: Option<Result<()>>,
}

impl ServerProcess {
    /// A server that joins.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let config = AggregatorConfig {
            deterministic: context.plan.settings.deterministic,
            stall_warn: timing::STALL_WARN,
            step_timeout: timing::STEP,
            memory_bytes_max: context.plan.settings.memory_bytes_max,
            block_bytes: context.plan.settings.block_bytes,
            defect: context.plan.defect,
        };
        let workshop = Workshop {
            kernels: Kernels::portable(),
            pool: Pool::new(),
            copies: Copies::default(),
            block_bytes: context.plan.settings.block_bytes,
            defect: context.plan.defect,
        };
        let mut this = Self {
            me,
            member: MemberDriver::new(context, me),
            aggregator: Aggregator::new(config),
            view: None,
            links: BTreeMap::new(),
            lost: BTreeSet::new(),
            headers: BTreeMap::new(),
            routes: BTreeMap::new(),
            letters: Letters::default(),
            sums: Sums::new(workshop),
            ended: None,
        };
        this.settle(context);
        this
    }

    /// What must hold at the end, when the job ended with `cause` as far as the coordinator lives to know.
    pub(super) fn inspect(&self, context: &mut Context, cause: Option<&Result<()>>) {
        let ended = self.ended.as_ref();
        context.witness.process_ended(context.now, self.me, ended, cause);
        if ended.is_none() || self.view.is_none() {
            return;
        }
        let left = (self.sums.len(), self.aggregator.progress().bytes_in_flight);
        if left != (0, 0) {
            let text = format!("{}: after the end, sums and booked bytes are {left:?}", self.me.who);
            context.witness.fail(context.now, Checker::Memory, text);
        }
    }

    /// Carries out what both machines want, until neither wants anything.
    fn settle(&mut self, context: &mut Context) {
        loop {
            let events = self.member.drain(context);
            let command = self.aggregator.next_command();
            if events.is_empty() && command.is_none() {
                break;
            }
            for event in events {
                self.follow(context, event);
            }
            if let Some(command) = command {
                self.carry_out(context, command);
            }
        }
        self.check_bounds(context);
    }

    fn follow(&mut self, context: &mut Context, event: MemberEvent) {
        let now = context.now;
        context.log.note(now, self.me.who, "member", &[], || format!("{event:?}"));
        match event {
            MemberEvent::Joined { view, .. } | MemberEvent::View(view) => {
                self.aggregator.handle_view(now, &view);
                self.view = Some(view);
            }
            MemberEvent::Forget { key, error } => self.aggregator.handle_forget(now, key, error),
            MemberEvent::Failed(error @ Error::Fenced { .. }) => {
                let (what, cause) = ("the server".to_owned(), "it was given up for dead".to_owned());
                self.end(now, Phase::Aborted(Error::Unavailable { what, cause }), Err(error));
            }
            MemberEvent::Failed(error) => self.end(now, Phase::Aborted(error.clone()), Err(error)),
            MemberEvent::Left => self.end(now, Phase::Ended, Ok(())),
            MemberEvent::StallNotice { .. } | MemberEvent::Declared { .. } | MemberEvent::BarrierDone { .. } => {}
        }
    }

    fn end(&mut self, now: Time, phase: Phase, outcome: Result<()>) {
        self.ended.get_or_insert(outcome);
        if let Some(view) = &self.view {
            let view = View { phase, ..view.clone() };
            self.aggregator.handle_view(now, &view);
        }
    }

    fn carry_out(&mut self, context: &mut Context, command: Command) {
        context.log.note(context.now, self.me.who, "decides", &[], || format!("{command:?}"));
        match command {
            Command::Sum { slot, step } => {
                let mut accepted = None;
                if let Step::Receive { worker, exchange, .. } = &step {
                    self.check_epoch(context, *exchange);
                    self.routes.insert(*exchange, (slot, *worker));
                    accepted = Some(*exchange);
                }
                if let Step::Answer { exchange, .. } = &step {
                    self.check_epoch(context, *exchange);
                }
                let mut events = Vec::new();
                self.sums.step(slot, step, &mut |event| events.push(event));
                self.say(context, events);
                if let Some(exchange) = accepted {
                    context.accept(exchange);
                }
            }
            Command::Reject { exchange, target, error } => self.reject(context, exchange, target, &error),
            Command::Stalled { stall } => self.member.member.report_stall(stall),
        }
    }

    /// Does what the sums want: with exchanges that are still open, and in its own time.
    fn say(&mut self, context: &mut Context, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { slot, worker, exchange, receipt } => {
                    if receipt == Receipt::Damaged && context.network.damaged(slot.part, slot.round) {
                        // One for all: nobody has a sum of this round.
                        context.spoil(slot.part.key);
                    }
                    let after = context.random.millis(0, 2);
                    context.post(self.me, after, Input::Receipt { slot, worker, exchange, receipt });
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
                Event::Send(Outgoing::Reject { exchange, target, error }) => {
                    self.reject(context, exchange, target, &error);
                }
                Event::Send(_) => {}
            }
        }
    }

    fn reject(&mut self, context: &mut Context, exchange: ExchangeId, target: Target, error: &Error) {
        if self.headers.contains_key(&exchange) {
            let body = reject::to_body(error);
            let header = Reject { target, error_bytes: body.len() as u64 };
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
                let Some(node) = self.links.get(&link).copied() else { return };
                let header = Header::decode(&bytes, "a worker").and_then(|header| header.into_request("a worker"));
                let header = header.expect("a worker sends what a server reads");
                self.headers.insert(exchange, (link, header));
                match header {
                    Request::Contribute(header) => self.aggregator.handle_opened(now, node, exchange, &header),
                    Request::Withdraw(header) => {
                        self.letters.begin(node, exchange, header);
                        context.accept(exchange);
                    }
                }
            }
            Input::Body { exchange, span } if self.headers.contains_key(&exchange) => {
                let chunk = context.body_of(exchange, span);
                let Some((slot, worker)) = self.routes.get(&exchange).copied() else {
                    if let Some(Word { node, header, error }) = self.letters.take(exchange, &[chunk.into()]) {
                        let error = error.expect("nobody changes a letter");
                        self.aggregator.handle_given_up(now, node, exchange, &header, &error);
                    }
                    return;
                };
                let mut events = Vec::new();
                self.sums.receive(slot, worker, exchange, &[chunk], &mut |event| events.push(event));
                self.say(context, events);
            }
            Input::Receipt { slot, worker, exchange, receipt } => {
                self.aggregator.handle_receipt(now, slot, worker, exchange, receipt);
            }
            Input::ExchangeTorn { exchange, .. } if self.headers.remove(&exchange).is_some() => {
                self.letters.end(exchange);
                self.aggregator.handle_torn(now, exchange);
            }
            Input::Answered { exchange } if self.headers.remove(&exchange).is_some() => {
                self.aggregator.handle_answered(now, exchange);
            }
            _ => {}
        }
    }

    /// Nothing of an earlier membership may have an effect.
    fn check_epoch(&self, context: &mut Context, exchange: ExchangeId) {
        let (Some((_, header)), Some(view)) = (self.headers.get(&exchange), &self.view) else { return };
        if header.target().epoch != view.epoch {
            let text = format!("{} let a push of {} in while in {}", self.me.who, header.target().epoch, view.epoch);
            context.witness.fail(context.now, Checker::Fencing, text);
        }
    }

    fn check_bounds(&self, context: &mut Context) {
        let mut rounds: BTreeMap<PartId, usize> = BTreeMap::new();
        for slot in self.sums.slots() {
            *rounds.entry(slot.part).or_default() += 1;
        }
        if let Some((part, alive)) = rounds.into_iter().find(|(_, alive)| *alive > 2) {
            let text = format!("{} keeps {alive} rounds of part {part}", self.me.who);
            context.witness.fail(context.now, Checker::Rounds, text);
        }
        let pending = self.aggregator.progress().pending as usize;
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
                self.aggregator.handle_timeout(now);
                let progress = self.aggregator.progress();
                self.member.handle(context, Input::Timer, progress);
            }
            // Lost before it was up: who dialled knows or will find out.
            Input::LinkDialled { link, .. } if self.lost.contains(&link) => {}
            Input::LinkDialled { link, from } => {
                self.links.insert(link, from.who.node());
                context.send_link(self.me, link, Input::LinkReady { link });
            }
            Input::LinkLost { link, .. } => {
                let open = self.headers.iter().filter(|(_, (of, _))| *of == link);
                let open: Vec<ExchangeId> = open.map(|(exchange, _)| *exchange).collect();
                for exchange in open {
                    self.headers.remove(&exchange);
                    self.letters.end(exchange);
                    self.aggregator.handle_torn(now, exchange);
                }
                self.links.remove(&link);
                self.lost.insert(link);
            }
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
                let progress = self.aggregator.progress();
                self.member.handle(context, input, progress);
            }
            Input::LinkReady { .. }
            | Input::LinkFailed { .. }
            | Input::Pushed { .. }
            | Input::Answer { .. }
            | Input::Returned { .. }
            | Input::Bell { .. }
            | Input::Script => {}
        }
        self.settle(context);
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.member.poll_timeout(), self.aggregator.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.ended.is_some()
    }

    fn describe(&self) -> String {
        let phase = self.view.as_ref().map(|view| &view.phase);
        format!("phase {phase:?}, {:?}", self.aggregator.progress())
    }
}
