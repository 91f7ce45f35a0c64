//! A server's node and its store under any sequence of events: members, and processes that are none. Every process may send any header
//! about any round at any time, break off anywhere, and say the same again. Names end and come again. The driver obeys the node, as in a
//! server.
//!
//! The bodies of f32 sums say who sent them and for which round, so every byte of a sum is checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Error;
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{
    ClockKey, Closing, CodecSpec, DType, ExchangeId, Half, Incarnation, LinkId, Op, PartId, Phase, TensorKey, Time,
    View, WorkerId,
};
use gradlane_core::wire::{
    About, Contribute, Contribution, Contributors, Header, Reply, Request, Response, Sum, Target, reject, samples,
};
use gradlane_server::handle::DefaultHandle;
use gradlane_server::node::Node;
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::{Archive, Command, Receipt, Route, RowsStep, Served, Step, ValueStep, Work};
use gradlane_server::node::event::Event;
use gradlane_server::node::store::Store;

use super::input::Input;
use super::members::{node_config, node_id, view};
use super::{Kind, Memory, Target as FuzzTarget, random_inputs};

mod orders;
mod requests;

pub(super) const NODE: FuzzTarget = FuzzTarget {
    name: "node",
    kind: Kind::Machine,
    check: node,
    seeds: || random_inputs(24, 400),
    memory: Memory { bytes: 4 << 20, times: 16 << 10 },
};

const WORKERS: u8 = 3;
/// Nodes of the view, and strangers.
const NODES: u16 = 5;
const EVENTS_MAX: usize = 400;
/// Of a life of a name.
const PARTS: u32 = 2;

fn node(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..EVENTS_MAX {
        if input.is_empty() {
            break;
        }
        world.event(&mut input);
        world.settle();
    }
    world.end();
}

struct World {
    node: Node,
    store: Store,
    now: Time,
    view: View,
    /// What is to be written or read, the oldest first.
    archives: Vec<Archive>,
    /// The number of the last order.
    orders: u64,
    /// Who is at the other end of each link.
    links: BTreeMap<LinkId, u8>,
    links_made: u64,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    opened: u64,
    routes: BTreeMap<ExchangeId, Route>,
    /// Names that have ended: all their parts lie below this index, and those of their next life lie above.
    ended: BTreeMap<TensorKey, u32>,
    /// Receipts and squares on their way from a lane to the node.
    told: VecDeque<Told>,
}

/// What a lane says.
enum Told {
    Receipt { route: Route, exchange: ExchangeId, receipt: Receipt },
    Squares { part: PartId, round: u64, sum: f64 },
    Served(Served),
}

struct Exchange {
    link: LinkId,
    header: Request,
    /// Of the sender's body.
    sent: u64,
    accepted: bool,
    answer: Answer,
}

enum Answer {
    None,
    /// The header, and the bytes of the blocks so far.
    Begun(Response, u64),
    /// All blocks were given.
    Whole,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let chosen = input.byte();
        let config = gradlane_server::node::NodeConfig { deterministic: chosen & 1 != 0, ..node_config() };
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect: None };
        let view = view(WORKERS, 1, Phase::Running);
        let mut node = Node::new(config);
        if chosen & 2 == 0 {
            node.handle_member(MemberEvent::Joined { index: 0, view: view.clone() });
        }
        Self {
            node,
            store: Store::new(resources).with_handle((chosen & 4 != 0).then(|| Arc::new(DefaultHandle) as _)),
            now: Time(1),
            view,
            links: BTreeMap::new(),
            links_made: 0,
            exchanges: BTreeMap::new(),
            opened: 0,
            routes: BTreeMap::new(),
            ended: BTreeMap::new(),
            told: VecDeque::new(),
            archives: Vec::new(),
            orders: 0,
        }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.below(20) {
            0 | 1 => self.connect(input.below(NODES)),
            2 => {
                if let Some(link) = self.link(input) {
                    self.lose(link);
                }
            }
            3..=7 => self.contribute(input),
            8 => self.withdraw(input),
            9 => self.raw(input),
            10..=12 => self.body(input),
            13 => {
                if let Some(exchange) = self.exchange(input) {
                    self.tear(exchange);
                }
            }
            14 => self.answered(input),
            15 | 16 => {
                self.hear();
            }
            17 => {
                let millis = u64::from(input.byte()) * 40;
                self.now = self.now + Duration::from_millis(millis);
                if self.node.poll_timeout().is_some_and(|due| due <= self.now) {
                    self.node.handle_timeout(self.now);
                }
            }
            18 => self.follow(input),
            _ => match input.below(32) {
                0 => self.node.handle_drain(),
                1 => self.node.handle_member(MemberEvent::Left),
                2 => self.node.handle_member(MemberEvent::Failed(Error::Cancelled)),
                3 => self.node.handle_stop(),
                4..=14 => self.end_name(input),
                15..=17 => {
                    let workers = [0, 1, 2].map(WorkerId).into_iter().filter(|_| input.below(3) > 0).collect();
                    let round = u64::from(input.below(6));
                    let half = match input.below(3) {
                        0 => Half::Norm(f64::from(input.byte())),
                        kind => Half::Workers { workers, clips: kind == 1, samples: input.word() },
                    };
                    let closing = Closing { clock: ClockKey(1), round, half };
                    self.node.handle_member(MemberEvent::Close(closing));
                }
                18..=21 => self.order(input),
                22..=24 => self.archived(input),
                _ => self.node.handle_member(MemberEvent::Forget { key: key(input), error: Error::Cancelled }),
            },
        }
    }

    /// A name ends, or the coordinator says again that it has.
    fn end_name(&mut self, input: &mut Input<'_>) {
        let key = key(input);
        let is_repeat = input.byte() & 3 == 0;
        let below = self.ended.entry(key).or_default();
        if !is_repeat || *below == 0 {
            *below += PARTS;
        }
        let below = *below;
        self.node.handle_member(MemberEvent::Ended { keys: vec![key], below });
    }

    fn connect(&mut self, node: u8) {
        self.links_made += 1;
        let link = LinkId(self.links_made);
        self.links.insert(link, node);
        self.node.handle_link_up(link, node_id(node));
    }

    /// Of the youngest links, because most others are gone.
    fn link(&self, input: &mut Input<'_>) -> Option<LinkId> {
        let back = usize::from(input.below(8));
        self.links.keys().rev().nth(back % self.links.len().max(1)).copied()
    }

    fn exchange(&self, input: &mut Input<'_>) -> Option<ExchangeId> {
        let back = usize::from(input.below(16));
        self.exchanges.keys().rev().nth(back % self.exchanges.len().max(1)).copied()
    }

    /// As a server reads a request: only what its decoder lets through.
    fn open(&mut self, link: LinkId, header: Request) {
        let Ok(read) = Header::decode(&header.encode(), "a peer").and_then(|read| read.into_request("a peer")) else {
            return;
        };
        assert_eq!(read, header);
        self.opened += 1;
        let exchange = ExchangeId(self.opened);
        let accepted = header.body_bytes() == 0;
        let opened = Exchange { link, header: header.clone(), sent: 0, accepted, answer: Answer::None };
        self.exchanges.insert(exchange, opened);
        self.node.handle_opened(self.now, link, exchange, &header);
        self.settle();
        if header.body_bytes() == 0 && matches!(header, Request::Withdraw(_)) && self.exchanges.contains_key(&exchange)
        {
            self.node.handle_body(self.now, exchange, &[]);
        }
    }

    /// The next bytes of a body that was accepted.
    fn body(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.exchange(input) else { return };
        let wanted = u64::from(input.byte()) * 16;
        let exchange = self.exchanges.get_mut(&id).expect("it is open");
        let bytes = wanted.min(exchange.header.body_bytes() - exchange.sent);
        if !exchange.accepted || bytes == 0 {
            return;
        }
        // All workers give the same residual.
        let is_gift = matches!(exchange.header, Request::AnswerResidual(_));
        let who = if is_gift { 0 } else { self.links[&exchange.link] };
        let from = exchange.sent;
        exchange.sent += bytes;
        let target = exchange.header.target();
        let landed = match exchange.header {
            Request::Contribute(Contribute { contribution: Contribution::Resumed { landed, .. }, .. }) => landed,
            Request::Contribute(_)
            | Request::Withdraw(_)
            | Request::Restore(_)
            | Request::AnswerResidual(_)
            | Request::Use(_)
            | Request::Rows(_)
            | Request::Unknown(_) => 0,
        };
        let is_withdrawal = matches!(exchange.header, Request::Withdraw(_));
        let error = reject::to_body(&samples::errors()[0]);
        let chunk: Vec<u8> = (from..from + bytes)
            .map(|at| match at {
                // What a sum has overwritten.
                at if at < landed => 0x7f,
                at if is_withdrawal => error.get(usize::try_from(at).expect("small")).copied().unwrap_or(0),
                at => pattern(who, &target.expect("an unknown service is not accepted"), at)
                    .next()
                    .expect("it does not end"),
            })
            .collect();
        let chunk = Bytes::from(chunk);
        match self.routes.get(&id).copied() {
            Some(route) => {
                let mut events = Vec::new();
                self.store.receive(route, id, &[chunk], &mut |event| events.push(event));
                self.say(events);
            }
            None => self.node.handle_body(self.now, id, &[chunk]),
        }
    }

    /// What a lane said next reaches the node; whether there was something.
    fn hear(&mut self) -> bool {
        match self.told.pop_front() {
            Some(Told::Receipt { route, exchange, receipt }) => {
                self.node.handle_receipt(self.now, route, exchange, receipt.into());
            }
            Some(Told::Squares { part, round, sum }) => self.node.handle_squares(part, round, sum),
            Some(Told::Served(served)) => self.node.handle_served(&served),
            None => return false,
        }
        true
    }

    fn answered(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.exchange(input) else { return };
        if matches!(self.exchanges[&id].answer, Answer::Whole) {
            self.exchanges.remove(&id);
            self.node.handle_answered(id);
        }
    }

    fn tear(&mut self, exchange: ExchangeId) {
        self.exchanges.remove(&exchange);
        self.node.handle_torn(exchange);
    }

    fn lose(&mut self, link: LinkId) {
        let open: Vec<ExchangeId> =
            self.exchanges.iter().filter(|(_, exchange)| exchange.link == link).map(|(id, _)| *id).collect();
        open.into_iter().for_each(|exchange| self.tear(exchange));
        self.links.remove(&link);
        self.node.handle_link_down(link);
    }

    /// A view: the next epoch, the same one again, or an old one; with all workers, fewer, or another life of one.
    fn follow(&mut self, input: &mut Input<'_>) {
        let chosen = input.byte();
        let number = self.view.epoch.number;
        let number = match chosen & 3 {
            0 => number,
            1 => number.saturating_sub(1),
            _ => number + 1,
        };
        let phase = if chosen >> 5 == 7 { Phase::Aborted(Error::Cancelled) } else { Phase::Running };
        let mut next = view(WORKERS, number, phase);
        match chosen >> 2 & 7 {
            0 => next.members.truncate(usize::from(WORKERS) - 1),
            1 => next.members.truncate(1),
            2 => next.members[0].process.incarnation = Incarnation(77),
            3 => next.members.clear(),
            // The last rank that the decoder of views lets through.
            4 => next.members[1].index = 4095,
            _ => {}
        }
        // The coordinator shows one view in an epoch.
        if number > self.view.epoch.number {
            self.view = next.clone();
            self.node.handle_member(MemberEvent::View(next));
        } else if number == self.view.epoch.number {
            self.node.handle_member(MemberEvent::Joined { index: 0, view: self.view.clone() });
        } else {
            self.node.handle_member(MemberEvent::View(next));
        }
    }

    /// Carries out all commands.
    fn settle(&mut self) {
        while let Some(command) = self.node.next_command() {
            self.carry_out(command);
        }
        let mut rounds: BTreeMap<PartId, usize> = BTreeMap::new();
        self.store.sums().slots().for_each(|slot| *rounds.entry(slot.part).or_default() += 1);
        assert!(rounds.values().all(|alive| *alive <= 2), "more than two rounds of a part: {rounds:?}");
        let progress = self.node.progress();
        assert!(progress.pending as usize <= self.exchanges.len(), "it remembers exchanges that have ended");
        assert!(
            progress.bytes_in_flight <= node_config().memory_bytes_max,
            "{} bytes booked",
            progress.bytes_in_flight
        );
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Step(work) => {
                let part = work.part();
                let has_ended = self.ended.get(&part.key).is_some_and(|below| part.index < *below);
                assert!(!has_ended || is_end(&work), "{work:?}, whose name has ended");
                if let Some((exchange, route)) = work.receives() {
                    let epoch = self.exchanges[&exchange].header.about().epoch;
                    assert_eq!(Some(epoch), self.node.view().map(|view| view.epoch), "a push of another epoch");
                    self.routes.insert(exchange, route);
                    self.exchanges.get_mut(&exchange).expect("nothing is received of what has ended").accepted = true;
                }
                // What was admitted goes on in a later epoch with the same workers.
                match &work {
                    Work::Sum {
                        step: Step::Receive { worker, exchange, .. } | Step::Answer { worker, exchange, .. },
                        ..
                    } => {
                        self.check_sender(*exchange, Some(*worker));
                    }
                    Work::Parameter {
                        step: ValueStep::Receive { exchange, .. } | ValueStep::Answer { exchange, .. },
                        ..
                    } => {
                        self.check_sender(*exchange, None);
                    }
                    Work::Table { step: RowsStep::Serve { exchange, .. }, .. } => self.check_sender(*exchange, None),
                    Work::Sum { .. } | Work::Parameter { .. } | Work::Table { .. } => {}
                }
                let mut events = Vec::new();
                self.store.step(work, &mut |event| events.push(event));
                self.say(events);
            }
            Command::Accept { exchange } => {
                self.exchanges.get_mut(&exchange).expect("what is accepted is open").accepted = true;
            }
            Command::Unroute { exchange } => drop(self.routes.remove(&exchange)),
            Command::Grant { link, .. } => {
                let node = self.links.get(&link).map(|who| node_id(*who));
                let is_worker =
                    self.node.view().is_some_and(|view| view.workers().any(|member| Some(member.node) == node));
                assert!(is_worker, "memory for a stranger");
            }
            Command::Reject { exchange, about, error } => self.reject(exchange, about, &error),
            Command::Disconnect { link, .. } => {
                let known = self.links.contains_key(&link);
                if known {
                    self.lose(link);
                }
            }
            Command::Short { .. } => {}
            Command::Archive(archive) => self.archives.push(archive),
            Command::Obeyed { .. } => {}
            Command::Measured { squares } => {
                assert!(squares.sum >= 0.0, "what its reader would refuse");
            }
            Command::Timed { took, last, .. } => {
                let late: Duration = last.iter().flat_map(|(_, late)| late).sum();
                assert!(took >= late, "a round lasts longer than one worker is missing");
            }
            Command::Stalled { stall } => {
                assert!(!stall.missing.is_empty(), "a stall names who is missing");
            }
        }
    }

    fn say(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { route, exchange, receipt } => {
                    self.told.push_back(Told::Receipt { route, exchange, receipt });
                }
                Event::Squares { part, round, sum } => self.told.push_back(Told::Squares { part, round, sum }),
                Event::Served(served) => self.told.push_back(Told::Served(served)),
                Event::Waits(_) => {}
                Event::Frozen { order, part, .. } => {
                    let archive = self.archives.iter().find(|archive| archive.order == order);
                    let wanted = archive.is_some_and(|archive| archive.plan.parts.iter().any(|of| of.part == part));
                    assert!(wanted, "a part is frozen for an order");
                }
                Event::Send(Outgoing::Answer { exchange, header }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    assert!(matches!(open.answer, Answer::None), "an exchange is answered once");
                    let asked = open.header.target().map(|asked| (asked.part, asked.round));
                    let target = header.target();
                    assert_eq!(Some((target.part, target.round)), asked, "the answer to another round");
                    let sent = Header::from(Reply::Response(header.clone()));
                    assert_eq!(Header::decode(&sent.encode(), "us"), Ok(sent));
                    open.answer = Answer::Begun(header, 0);
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    let Answer::Begun(header, sent) = &mut open.answer else { panic!("a block without an answer") };
                    let view = self.node.view().expect("it has joined");
                    match header {
                        Response::Sum(header) => check_sum(&open.header, header, view, *sent, &block),
                        Response::Value(_) | Response::Rows(_) => {}
                    }
                    *sent += block.len() as u64;
                    assert!(*sent <= header.body_bytes(), "more blocks than were announced");
                }
                Event::Send(Outgoing::End { exchange, .. }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    let Answer::Begun(header, sent) = &open.answer else { panic!("an end without an answer") };
                    assert_eq!(*sent, header.body_bytes(), "an end before all blocks");
                    open.answer = Answer::Whole;
                }
                Event::Send(Outgoing::Reject { error, .. }) => panic!("a sum or a value was lost: {error}"),
                Event::Send(Outgoing::Accept { .. } | Outgoing::Grant { .. } | Outgoing::Disconnect { .. }) => {}
            }
        }
    }

    fn reject(&mut self, exchange: ExchangeId, about: About, error: &Error) {
        assert!(reject::to_body(error).len() as u64 <= gradlane_core::wire::limits::REJECT_BYTES_MAX);
        // The transport ignores what has ended, and breaks off what was begun.
        if let Some(ended) = self.exchanges.remove(&exchange) {
            assert_eq!(about.part, ended.header.about().part);
            let is_useless = || self.has_gone_on(&ended);
            assert!(!matches!(ended.answer, Answer::Whole) || is_useless(), "an error after a whole sum");
            self.routes.remove(&exchange);
            // A sum that was begun breaks off, which the transport reports.
            if matches!(ended.answer, Answer::Begun(..) | Answer::Whole) {
                self.node.handle_torn(exchange);
            }
        }
    }

    /// Whether the worker of an exchange asks for the round two after it, or a later one, so that it has the sum.
    fn has_gone_on(&self, exchange: &Exchange) -> bool {
        let (Some(before), who) = (exchange.header.target(), self.links.get(&exchange.link)) else { return false };
        self.exchanges.values().any(|other| {
            let Some(next) = other.header.target() else { return false };
            next.part == before.part
                && next.round.0.saturating_sub(before.round.0) >= 2
                && self.links.get(&other.link) == who
        })
    }

    /// Nothing has an effect but what a member sends, and it counts as that member's.
    fn check_sender(&self, exchange: ExchangeId, worker: Option<WorkerId>) {
        let open = self.exchanges.get(&exchange).expect("it is open");
        let node = node_id(self.links[&open.link]);
        let view = self.node.view().expect("it has joined");
        let member = view.workers().find(|member| member.node == node);
        let rank = member.map(|member| WorkerId(member.index));
        assert!(rank.is_some() && worker.is_none_or(|worker| rank == Some(worker)), "a push of a stranger");
    }

    /// Every link breaks and the job ends: nothing is left.
    fn end(mut self) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        links.into_iter().for_each(|link| self.lose(link));
        self.settle();
        while self.hear() {
            self.settle();
        }
        self.node.handle_member(MemberEvent::Failed(Error::Cancelled));
        self.settle();
        while !self.archives.is_empty() {
            self.archived(&mut Input::new(&[1]));
            self.settle();
        }
        let mut seen = BTreeSet::new();
        while let Some(due) = self.node.poll_timeout().filter(|_| seen.len() < 100) {
            assert!(seen.insert(due), "the same timeout again and again");
            self.now = self.now.max(due);
            self.node.handle_timeout(self.now);
            self.settle();
        }
        if self.node.view().is_some() {
            let progress = self.node.progress();
            let held = (self.store.sums().len(), self.store.values().len());
            assert_eq!((held, progress.pending, progress.bytes_in_flight), ((0, 0), 0, 0), "something is left");
        }
    }
}

/// Whether a step only ends something.
fn is_end(work: &Work) -> bool {
    matches!(
        work,
        Work::Sum { step: Step::Drop | Step::DropResidual | Step::DropGift, .. }
            | Work::Parameter { step: ValueStep::Drop | ValueStep::Forget { .. } | ValueStep::Unread, .. }
            | Work::Table { step: RowsStep::Drop | RowsStep::Forget { .. } | RowsStep::Leave { .. }, .. }
    )
}

/// The bytes that a worker contributes to a round, from one place on: elements of f32 that name both.
fn pattern(who: u8, target: &Target, from: u64) -> impl Iterator<Item = u8> {
    let value = (f32::from(1_u8 << who) + 32.0 * target.round.0 as f32).to_le_bytes();
    (from..).map(move |at| value[usize::try_from(at % 4).expect("below four")])
}

/// The sum of f32 has in every element what its contributors sent for its round, and nothing else.
fn check_sum(request: &Request, header: &Sum, view: &View, from: u64, block: &[u8]) {
    let Request::Contribute(Contribute { dtype: DType::F32, op: Op::Sum, .. }) = request else { return };
    if header.body.codec != CodecSpec::PLAIN {
        return;
    }
    let members: Vec<u32> = match &header.contributors {
        Contributors::Due => view.workers().map(|member| member.index).collect(),
        Contributors::Only(workers) => workers.iter().map(|worker| worker.0).collect(),
    };
    let node_of = |index: u32| view.workers().find(|member| member.index == index).map(|member| member.node.0[0]);
    // A worker that died is in the sum, and not in the view any more. Its rank was its number, unless a view gave it the last rank.
    let values = members.iter().map(|index| {
        let who = node_of(*index).unwrap_or(u8::try_from(*index).unwrap_or(1));
        f32::from(1_u8 << who) + 32.0 * header.target.round.0 as f32
    });
    let expected = values.sum::<f32>().to_le_bytes();
    for (at, byte) in (from..).zip(block) {
        let place = usize::try_from(at % 4).expect("below four");
        assert_eq!(*byte, expected[place], "byte {at} of the sum of {members:?} for {}", header.target.round);
    }
}

fn key(input: &mut Input<'_>) -> TensorKey {
    TensorKey(u64::from(input.below(2)))
}
