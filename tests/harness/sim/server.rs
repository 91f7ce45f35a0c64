//! Drives the node of a server and its store, as the data plane and the lanes of a server do: with real bodies and the real arithmetic, behind
//! simulated links.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::cluster::MemberEvent;
use gradlane_core::codec::feedback::Start;
use gradlane_core::config::verdict_time;
use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::transport::exchange::{ServerExchange, reject_of};
use gradlane_core::types::{Epoch, ExchangeId, LinkId, PartId, Round, Span, TensorKey, Time, WorkerId};
use gradlane_core::wire::{About, HeaderReader, Hold, Reply, Request, Target};
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::{Command, Feedback, Route, SlotId, Step, ValueStep, Work};
use gradlane_server::node::event::Event;
use gradlane_server::node::store::Store;
use gradlane_server::node::{Node, NodeConfig};

use super::checkers::Checker;
use super::member::{MemberDriver, pid};
use super::workload::timing;
use super::world::{Address, Context, Input, Process, Who};

/// A running server.
pub(super) struct ServerProcess {
    me: Address,
    member: MemberDriver,
    node: Node,
    links: BTreeSet<LinkId>,
    lost: BTreeSet<LinkId>,
    /// Exchanges that have not ended on this side.
    served: BTreeMap<ExchangeId, Served>,
    /// Where the bodies of exchanges go.
    routes: BTreeMap<ExchangeId, Route>,
    store: Store,
    /// By part the round whose answer used the residual last, and whether it was whole.
    fed: BTreeMap<PartId, (Round, bool)>,
    /// When an exchange of each sum was last open.
    read: BTreeMap<SlotId, Time>,
    /// Whether it was asked to stop, and has not.
    draining: bool,
    /// Whether it has stopped because it was asked to.
    has_stopped: bool,
    /// Names that have ended, and how many parts they had in all lives until then.
    over: BTreeMap<TensorKey, u32>,
}

/// An exchange that has not ended on this side.
struct Served {
    link: LinkId,
    header: Request,
    /// The membership in which it was opened.
    opened: Option<Epoch>,
    state: ServerExchange,
    /// Bytes of its body that were passed on.
    passed: u64,
    /// Whether the server has given an answer after which it wants no more of the body.
    is_answered: bool,
}

impl ServerProcess {
    /// A server that joins.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let config = NodeConfig {
            deterministic: context.plan.settings.deterministic,
            stall_warn: timing::STALL_WARN,
            step_timeout: timing::STEP,
            contact: timing::contact(context.plan.classes.survivors, verdict_time(timing::DEAD)),
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
            served: BTreeMap::new(),
            routes: BTreeMap::new(),
            store: Store::new(resources),
            fed: BTreeMap::new(),
            read: BTreeMap::new(),
            draining: false,
            has_stopped: false,
            over: BTreeMap::new(),
        };
        this.settle(context);
        this
    }

    /// What must hold at the end, when the job ended with `cause` as far as the coordinator lives to know.
    pub(super) fn inspect(&self, context: &mut Context, cause: Option<&Result<()>>) {
        if self.has_stopped {
            return;
        }
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
            context.go_on();
            let events = self.member.drain(context);
            let command = self.node.next_command();
            if events.is_empty() && command.is_none() {
                break;
            }
            for event in events {
                context.log.note(context.now, self.me.who, "member", &[], || format!("{event:?}"));
                if let MemberEvent::Ended { keys, below } = &event {
                    self.over.extend(keys.iter().map(|key| (*key, *below)));
                }
                self.node.handle_member(event);
            }
            if let Some(command) = command {
                self.carry_out(context, command);
            }
        }
        self.check_bounds(context);
        if self.draining && self.node.is_drained() {
            (self.draining, self.has_stopped) = (false, true);
            let open = self.served.values().filter(|served| !served.state.is_complete()).count();
            if open > 0 {
                let text = format!("{} is drained, and {open} exchanges have no answer", self.me.who);
                context.witness.fail(context.now, Checker::Exchange, text);
            }
            self.node.handle_stop();
            self.settle(context);
        }
    }

    fn carry_out(&mut self, context: &mut Context, command: Command) {
        context.log.note(context.now, self.me.who, "decides", &[], || format!("{command:?}"));
        match command {
            Command::Step(work) => {
                self.note_round(context, &work);
                self.check_residual(context, &work);
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
                    self.accept(context, exchange);
                }
            }
            Command::Accept { exchange } => self.accept(context, exchange),
            Command::Unroute { exchange } => drop(self.routes.remove(&exchange)),
            Command::Grant { .. } | Command::Timed { .. } => {}
            Command::Reject { exchange, about, error } => {
                let is_short = matches!(&error, Error::Exhausted { .. })
                    || matches!(&error, Error::FailedPrecondition { what, .. } if what.contains("memory of the server for tensors"));
                if let Some(entry) = context.exchange(exchange).filter(|_| is_short) {
                    let worker = entry.worker.who;
                    context.witness.refused(worker, about.part.key);
                }
                self.reject(context, exchange, about, &error);
            }
            Command::Disconnect { link, reason } => self.disconnect(context, link, reason),
            Command::Short { .. } => {}
            Command::Stalled { stall } => self.member.member.report_stall(stall),
            Command::Archive(_) | Command::Obeyed { .. } => unreachable!("nobody asks for a checkpoint"),
            Command::Measured { squares } => {
                self.member.member.report_squares(squares);
                // More often than chance would have it.
                if !context.healed() && context.random.chance(25) {
                    context.lose(self.me.who, Who::Coordinator, true);
                }
            }
        }
    }

    /// A round of a clock is merged or applied.
    fn note_round(&self, context: &mut Context, work: &Work) {
        let Work::Parameter { part, step } = work else { return };
        match step {
            ValueStep::Merge { round, gradients, clips, .. } if !gradients.is_empty() => {
                context.witness.merges(self.me.who, *part, *round, gradients, *clips);
            }
            ValueStep::Apply { round, factor, .. } => context.witness.applies(self.me.who, *part, *round, *factor),
            _ => {}
        }
    }

    /// A residual goes on from a whole sum. The one before is put back only if all that contribute have not used the sum of the round before.
    fn check_residual(&mut self, context: &mut Context, work: &Work) {
        let Work::Sum { slot, step } = work else { return };
        let SlotId { part, round } = *slot;
        match step {
            Step::Publish { residual: Some(Feedback { start, is_held, is_given: false }), .. } => {
                let before = self.fed.insert(part, (round, false));
                let holds = |least: Hold| {
                    let all = self.served.values().filter(|served| !served.is_answered);
                    let all = all.filter_map(|served| match &served.header {
                        Request::Contribute(header) if (header.target.part, header.target.round) == (part, round) => {
                            Some(header.hold)
                        }
                        _ => None,
                    });
                    all.into_iter().all(|hold| hold >= least)
                };
                let is_right = match start {
                    Start::Zero => true,
                    Start::Kept => before.is_some_and(|(_, is_whole)| is_whole),
                    Start::Before => before == Some((Round(round.0.wrapping_sub(1)), true)) && holds(Hold::TakenBack),
                };
                if !is_right || (*is_held && !holds(Hold::Before)) {
                    let text = format!(
                        "{}: the answer of {round} of part {part} begins with {start:?}, held {is_held}, after {before:?}",
                        self.me.who
                    );
                    context.witness.fail(context.now, Checker::Sum, text);
                }
            }
            Step::Seal => {
                if let Some((_, is_whole)) = self.fed.get_mut(&part).filter(|(fed, _)| *fed == round) {
                    *is_whole = true;
                }
            }
            Step::DropResidual => drop(self.fed.remove(&part)),
            Step::Begin(_) | Step::Receive { .. } | Step::Publish { .. } | Step::Answer { .. } | Step::Drop => {}
            Step::TakeGift { .. } | Step::DropGift | Step::AnswerResidual { .. } => {
                let text = format!("{}: a residual of part {part} is used, for which nobody asked", self.me.who);
                context.witness.fail(context.now, Checker::Sum, text);
            }
        }
    }

    fn lose(&mut self, link: LinkId) {
        let open = self.served.iter().filter(|(_, served)| served.link == link);
        let open: Vec<ExchangeId> = open.map(|(exchange, _)| *exchange).collect();
        for exchange in open {
            self.served.remove(&exchange);
            self.node.handle_torn(exchange);
        }
        if self.links.remove(&link) {
            self.node.handle_link_down(link);
        }
        self.lost.insert(link);
    }

    fn disconnect(&mut self, context: &mut Context, link: LinkId, reason: Error) {
        self.lose(link);
        context.send_link(self.me, link, Input::LinkLost { link, error: reason });
    }

    /// A worker broke the protocol, which costs it its link.
    fn break_with(&mut self, context: &mut Context, link: LinkId, error: &Error) {
        context.log.note(context.now, self.me.who, "closes", &[link.0], || format!("{error}"));
        self.disconnect(context, link, error.told_to_peer());
    }

    /// Does what the store wants: with exchanges that are still open, and in its own time.
    fn say(&mut self, context: &mut Context, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { route, exchange, receipt } => {
                    let after = context.random.millis(0, 2);
                    context.post(self.me, after, Input::Receipt { route, exchange, receipt });
                }
                Event::Squares { part, round, sum } => {
                    let after = context.random.millis(0, 2);
                    context.post(self.me, after, Input::Squares { part, round, sum });
                }
                Event::Served(_) | Event::Waits(_) => unreachable!("no table is simulated"),
                Event::Send(Outgoing::Answer { exchange, header }) => {
                    self.answer(context, exchange, &Reply::Response(header));
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    if self.order(context, exchange, |state| state.block(block.len())).is_some() {
                        context.write_block(exchange, &block);
                    }
                }
                Event::Send(Outgoing::End { exchange, checksum }) => self.finish(context, exchange, checksum),
                Event::Send(Outgoing::Reject { exchange, about, error }) => {
                    self.reject(context, exchange, about, &error);
                }
                Event::Send(_) | Event::Frozen { .. } => {}
            }
        }
    }

    /// Applies a command to an exchange that has not ended. A command out of turn tears it.
    fn order<T>(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        command: impl FnOnce(&mut ServerExchange) -> Result<T>,
    ) -> Option<T> {
        let state = &mut self.served.get_mut(&exchange)?.state;
        // A worker may begin anew what was answered and has not reached it.
        let is_complete = state.is_complete();
        let error = match command(state) {
            Ok(outcome) => return Some(outcome),
            Err(error) => error,
        };
        if let Error::Internal { what } = &error
            && !is_complete
        {
            context.witness.fail(context.now, Checker::Exchange, format!("{}: {what}", self.me.who));
        }
        context.reset_exchange(self.me, exchange);
        self.served.remove(&exchange);
        self.node.handle_torn(exchange);
        None
    }

    fn accept(&mut self, context: &mut Context, exchange: ExchangeId) {
        if self.order(context, exchange, |state| Ok(state.accept())) == Some(true) {
            context.accept(exchange);
        }
    }

    fn answer(&mut self, context: &mut Context, exchange: ExchangeId, reply: &Reply) {
        if self.order(context, exchange, |state| state.answer(reply)).is_none() {
            return;
        }
        let Some(served) = self.served.get_mut(&exchange) else { return };
        served.is_answered = !reply.is_early();
        if served.state.refuses_body() && served.state.body_left() > 0 {
            context.stop_body(exchange);
        }
        context.begin_answer(exchange, reply);
    }

    fn finish(&mut self, context: &mut Context, exchange: ExchangeId, checksum: u32) {
        if let Some(bytes) = self.order(context, exchange, ServerExchange::end) {
            context.write_answer(exchange, checksum.to_le_bytes()[..bytes].to_vec());
            context.finish_answer(exchange);
            context.may_kill(self.me.who);
        }
    }

    fn reject(&mut self, context: &mut Context, exchange: ExchangeId, about: About, error: &Error) {
        let (header, body) = reject_of(about, error);
        self.answer(context, exchange, &Reply::Reject(header));
        if self.order(context, exchange, |state| state.block(body.len())).is_some() {
            context.write_answer(exchange, body);
            self.finish(context, exchange, 0);
        }
    }

    fn handle_exchange(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
        match input {
            Input::Opened { exchange } => self.open(context, exchange),
            Input::Body { exchange, span } => self.receive(context, exchange, span),
            Input::Receipt { route, exchange, receipt } => {
                self.node.handle_receipt(now, route, exchange, receipt.into());
            }
            Input::Squares { part, round, sum } => self.node.handle_squares(part, round, sum),
            // After the whole body it says only that the worker has its memory back.
            Input::BodyCut { exchange } => {
                let is_torn = |served: &Served| served.state.wants_body() && served.state.body_left() > 0;
                if self.served.get(&exchange).is_some_and(is_torn) {
                    self.served.remove(&exchange);
                    self.node.handle_torn(exchange);
                }
            }
            Input::ExchangeTorn { exchange, .. } if self.served.remove(&exchange).is_some() => {
                self.node.handle_torn(exchange);
            }
            Input::Answered { exchange } if self.served.remove(&exchange).is_some() => {
                self.node.handle_answered(exchange);
            }
            _ => {}
        }
    }

    /// A header arrives, in pieces.
    fn open(&mut self, context: &mut Context, exchange: ExchangeId) {
        let Some((link, bytes)) = context.exchange(exchange).map(|entry| (entry.link, entry.header.clone())) else {
            return;
        };
        if !self.links.contains(&link) {
            return;
        }
        let (mut reader, mut rest) = (HeaderReader::default(), bytes.as_slice());
        while reader.missing() > 0 && !rest.is_empty() {
            let most = reader.missing().min(rest.len()) as u64;
            let piece = if context.random.chance(90) { most } else { context.random.between(1, most) };
            let (now, later) = rest.split_at(piece as usize);
            reader.take(now);
            rest = later;
        }
        let header = reader.finish("a worker").and_then(|header| header.into_request("a worker"));
        match header {
            Ok(header) => {
                let state = ServerExchange::new(&header).planted(context.plan.defect);
                self.node.handle_opened(context.now, link, exchange, &header);
                let opened = self.node.view().map(|view| view.epoch);
                self.served.insert(exchange, Served { link, header, opened, state, passed: 0, is_answered: false });
            }
            // What no worker sends comes from an intruder.
            Err(error) => self.break_with(context, link, &error),
        }
    }

    /// Bytes of a body arrive. They are passed on if they are still wanted.
    fn receive(&mut self, context: &mut Context, exchange: ExchangeId, span: Span) {
        let Some(served) = self.served.get_mut(&exchange) else { return };
        if !served.state.wants_body() {
            return;
        }
        let (chunk, is_last) = context.body_of(exchange, span);
        let taken = served.state.received(chunk.len(), "a worker");
        let taken = taken.and_then(|()| if is_last { served.state.body_ended("a worker") } else { Ok(()) });
        if let Err(error) = taken {
            let link = served.link;
            return self.break_with(context, link, &error);
        }
        served.passed += chunk.len() as u64;
        if served.is_answered || served.passed > served.header.body_bytes() {
            let text = format!("{} is passed bytes of a body that nobody wants", self.me.who);
            context.witness.fail(context.now, Checker::Exchange, text);
        }
        let Some(route) = self.routes.get(&exchange).copied() else {
            return self.node.handle_body(context.now, exchange, &[chunk.into()]);
        };
        let mut events = Vec::new();
        self.store.receive(route, exchange, &[chunk], &mut |event| events.push(event));
        self.say(context, events);
    }

    /// Nothing of an earlier membership may have an effect, but for rounds of workers of which none was lost since.
    fn check_epoch(&self, context: &mut Context, exchange: ExchangeId) {
        let (Some(served), Some(view)) = (self.served.get(&exchange), self.node.view()) else { return };
        let epoch = served.header.about().epoch;
        let then = context.witness.workers_in(epoch);
        let is_left = |rank: WorkerId| view.workers().any(|member| member.index == rank.0) || !then.contains(&rank.0);
        let goes_on = match &served.header {
            Request::Contribute(push) if served.opened == Some(epoch) => {
                let all = || then.iter().copied().map(WorkerId).all(is_left);
                push.participants.members().map_or_else(all, |members| members.iter().all(is_left))
            }
            _ => false,
        };
        if epoch != view.epoch && !goes_on {
            let text = format!("{} let a push of {epoch} in while in {}", self.me.who, view.epoch);
            context.witness.fail(context.now, Checker::Fencing, text);
        }
    }

    fn check_bounds(&mut self, context: &mut Context) {
        let open = self.served.values().filter_map(|served| served.header.target());
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
        if let Some(part) =
            self.store.values().parts().find(|part| self.over.get(&part.key).is_some_and(|below| part.index < *below))
        {
            let text = format!("{} keeps part {part} of a parameter whose name has ended", self.me.who);
            context.witness.fail(context.now, Checker::Growth, text);
        }
        let pending = self.node.progress().pending as usize;
        if pending > self.served.len() {
            let open = self.served.len();
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
            Input::ProcessEnded { gone } => self.member.member.report_end(context.node_of(gone), pid(gone)),
            Input::Drain => {
                self.node.handle_drain();
                self.draining = true;
                context.witness.drains();
            }
            Input::AskToLeave => unreachable!("only workers are asked to leave"),
            Input::Opened { .. }
            | Input::Body { .. }
            | Input::BodyCut { .. }
            | Input::Receipt { .. }
            | Input::Squares { .. }
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
            | Input::Stopped { .. }
            | Input::Returned { .. }
            | Input::Bell { .. }
            | Input::Copied { .. }
            | Input::Near { .. }
            | Input::NeighbourLost { .. }
            | Input::Caller { .. }
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
