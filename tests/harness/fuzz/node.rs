//! A server's node and its sums under any sequence of events: members, and processes that are none. Every process may send any header
//! about any round at any time, break off anywhere, and say the same again. Names end and come again. The driver obeys the node, as in a
//! server.
//!
//! The bodies of f32 sums say who sent them and for which round, so every byte of a sum is checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Error;
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{
    CodecSpec, DType, Epoch, ExchangeId, Incarnation, LinkId, Op, PartId, Participants, Phase, Round, TensorKey, Time,
    View, WorkerId,
};
use gradlane_core::wire::{
    About, Body, Contribute, Contribution, Contributors, Header, Request, Service, Sum, Target, Withdraw, checksum,
    reject, samples,
};
use gradlane_server::node::Node;
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::{Command, Receipt, SlotId, Step};
use gradlane_server::node::sum::{Event, Sums};

use super::input::Input;
use super::members::{node_config, node_id, view};
use super::{Kind, Memory, Target as FuzzTarget, random_inputs};

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
    sums: Sums,
    now: Time,
    view: View,
    /// Who is at the other end of each link.
    links: BTreeMap<LinkId, u8>,
    links_made: u64,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    opened: u64,
    routes: BTreeMap<ExchangeId, (SlotId, WorkerId)>,
    /// Names that have ended: all their parts lie below this index, and those of their next life lie above.
    ended: BTreeMap<TensorKey, u32>,
    /// Receipts on their way from a lane to the node.
    receipts: VecDeque<(SlotId, WorkerId, ExchangeId, Receipt)>,
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
    Begun(Sum, u64),
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
            sums: Sums::new(resources),
            now: Time(1),
            view,
            links: BTreeMap::new(),
            links_made: 0,
            exchanges: BTreeMap::new(),
            opened: 0,
            routes: BTreeMap::new(),
            ended: BTreeMap::new(),
            receipts: VecDeque::new(),
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
                if let Some((slot, worker, exchange, receipt)) = self.receipts.pop_front() {
                    self.node.handle_receipt(self.now, slot, worker, exchange, receipt);
                }
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
                4..=17 => self.end_name(input),
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

    fn target(&self, input: &mut Input<'_>) -> Target {
        let Epoch { term, number } = self.view.epoch;
        let chosen = input.byte();
        let key = key(input);
        // Mostly of the present life of the name, and sometimes of one that has ended.
        let life = if chosen & 0x0e == 0x0e { 0 } else { self.ended.get(&key).copied().unwrap_or(0) };
        Target {
            epoch: Epoch { term, number: if chosen & 0x70 == 0x70 { number.wrapping_sub(1) } else { number } },
            part: PartId { key, index: life + u32::from(chosen & 1) },
            round: Round(u64::from(input.below(4))),
        }
    }

    fn contribute(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let target = self.target(input);
        let form = input.byte();
        if form == 0xff {
            let service = Service::Unknown(input.byte().max(2));
            return self.open(link, Request::Unknown(About { service, ..target.about() }));
        }
        // Mostly the same form, so that rounds complete.
        let (dtype, codec) = match form & 7 {
            0 => (DType::F16, CodecSpec::PLAIN),
            1 => (DType::F32, CodecSpec::BF16),
            2 => (DType::I32, CodecSpec::PLAIN),
            _ => (DType::F32, CodecSpec::PLAIN),
        };
        let op = match form >> 3 & 7 {
            0 => Op::Mean,
            1 => Op::Max,
            2 => Op::WeightedMean,
            3 => Op::Broadcast { root: WorkerId(u32::from(form >> 6)) },
            _ => Op::Sum,
        };
        if op.check(dtype).is_err() {
            return;
        }
        let part_bytes = input.pick(&[256_u64, 256, 256, 64, 16, 40_000]) / dtype.bytes() * dtype.bytes();
        let bytes = gradlane_core::codec::body_bytes(codec, dtype, part_bytes).max();
        let body = Body { bytes, codec };
        let kind = input.byte();
        let who = self.links[&link];
        let contribution = match kind & 15 {
            0 | 1 => Contribution::Nothing,
            2 | 3 => Contribution::Resumed { body, landed: bytes.min(u64::from(kind >> 4) * 16) },
            4 => Contribution::First { body, checksum: Some(7) },
            5 | 6 => {
                let whole: Vec<u8> = pattern(who, &target, 0).take(usize::try_from(bytes).expect("small")).collect();
                Contribution::First { body, checksum: Some(checksum(0, &whole)) }
            }
            _ => Contribution::First { body, checksum: None },
        };
        let weight = if op == Op::WeightedMean { f64::from(kind >> 4) } else { 1.0 };
        let (urgency, participants) = (kind & 7, participants(input));
        let header = Contribute { target, dtype, op, participants, weight, urgency, part_bytes, contribution };
        self.open(link, Request::Contribute(header));
    }

    fn withdraw(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let target = self.target(input);
        let error_bytes = u64::from(input.byte());
        let (dtype, op, participants) = (DType::F32, Op::Sum, participants(input));
        self.open(link, Request::Withdraw(Withdraw { target, dtype, op, participants, error_bytes }));
    }

    /// A header of any bytes that the decoder lets through.
    fn raw(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let mut bytes = Header::Contribute(a_contribution()).encode();
        for _ in 0..input.below(6) {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
        }
        if let Ok(header) = Header::decode(&bytes, "a peer").and_then(|header| header.into_request("a peer")) {
            self.open(link, header);
        }
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
        let who = self.links[&exchange.link];
        let from = exchange.sent;
        exchange.sent += bytes;
        let target = exchange.header.target();
        let landed = match exchange.header {
            Request::Contribute(Contribute { contribution: Contribution::Resumed { landed, .. }, .. }) => landed,
            Request::Contribute(_) | Request::Withdraw(_) | Request::Unknown(_) => 0,
        };
        let is_withdrawal = matches!(exchange.header, Request::Withdraw(_));
        let error = reject::to_body(&samples::errors()[0]);
        let chunk: Vec<u8> = (from..from + bytes)
            .map(|at| match at {
                // What a sum has overwritten.
                at if at < landed => 0x7f,
                at if is_withdrawal => error.get(usize::try_from(at).expect("small")).copied().unwrap_or(0),
                at => pattern(who, &target.expect("only sums are accepted"), at).next().expect("it does not end"),
            })
            .collect();
        let chunk = Bytes::from(chunk);
        match self.routes.get(&id).copied() {
            Some((slot, worker)) => {
                let mut events = Vec::new();
                self.sums.receive(slot, worker, id, &[chunk], &mut |event| events.push(event));
                self.say(events);
            }
            None => self.node.handle_body(self.now, id, &[chunk]),
        }
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
        self.sums.slots().for_each(|slot| *rounds.entry(slot.part).or_default() += 1);
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
            Command::Sum { slot, step } => {
                let has_ended = self.ended.get(&slot.part.key).is_some_and(|below| slot.part.index < *below);
                assert!(!has_ended || step == Step::Drop, "{step:?} of {slot:?}, whose name has ended");
                if let Step::Receive { worker, exchange, .. } = &step {
                    self.check_sender(*exchange, *worker);
                    let epoch = self.exchanges[exchange].header.about().epoch;
                    assert_eq!(Some(epoch), self.node.view().map(|view| view.epoch), "a push of another epoch");
                    self.routes.insert(*exchange, (slot, *worker));
                    self.exchanges.get_mut(exchange).expect("nothing is received of what has ended").accepted = true;
                }
                // What was admitted goes on in a later epoch with the same workers.
                if let Step::Answer { worker, exchange, .. } = &step {
                    self.check_sender(*exchange, *worker);
                }
                let mut events = Vec::new();
                self.sums.step(slot, step, &mut |event| events.push(event));
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
            Command::Stalled { stall } => {
                assert!(!stall.missing.is_empty(), "a stall names who is missing");
            }
        }
    }

    fn say(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { slot, worker, exchange, receipt } => {
                    self.receipts.push_back((slot, worker, exchange, receipt));
                }
                Event::Send(Outgoing::Answer { exchange, header }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    assert!(matches!(open.answer, Answer::None), "an exchange is answered once");
                    let asked = open.header.target().map(|asked| (asked.part, asked.round));
                    assert_eq!(Some((header.target.part, header.target.round)), asked, "the sum of another round");
                    assert_eq!(Header::decode(&header.encode(), "us"), Ok(Header::Sum(header.clone())));
                    open.answer = Answer::Begun(header, 0);
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    let Answer::Begun(header, sent) = &mut open.answer else { panic!("a block without an answer") };
                    let view = self.node.view().expect("it has joined");
                    check_sum(&open.header, header, view, *sent, &block);
                    *sent += block.len() as u64;
                    assert!(*sent <= header.body.bytes, "more blocks than were announced");
                }
                Event::Send(Outgoing::End { exchange, .. }) => {
                    let Some(open) = self.exchanges.get_mut(&exchange) else { continue };
                    let Answer::Begun(header, sent) = &open.answer else { panic!("an end without an answer") };
                    assert_eq!(*sent, header.body.bytes, "an end before all blocks");
                    open.answer = Answer::Whole;
                }
                Event::Send(Outgoing::Reject { error, .. }) => panic!("a sum was lost: {error}"),
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
    fn check_sender(&self, exchange: ExchangeId, worker: WorkerId) {
        let open = self.exchanges.get(&exchange).expect("it is open");
        let node = node_id(self.links[&open.link]);
        let view = self.node.view().expect("it has joined");
        let member = view.workers().find(|member| member.node == node);
        assert_eq!(member.map(|member| member.index), Some(worker.0), "a push of a stranger");
    }

    /// Every link breaks and the job ends: nothing is left.
    fn end(mut self) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        links.into_iter().for_each(|link| self.lose(link));
        self.settle();
        while let Some((slot, worker, exchange, receipt)) = self.receipts.pop_front() {
            self.node.handle_receipt(self.now, slot, worker, exchange, receipt);
            self.settle();
        }
        self.node.handle_member(MemberEvent::Failed(Error::Cancelled));
        self.settle();
        let mut seen = BTreeSet::new();
        while let Some(due) = self.node.poll_timeout().filter(|_| seen.len() < 100) {
            assert!(seen.insert(due), "the same timeout again and again");
            self.now = self.now.max(due);
            self.node.handle_timeout(self.now);
            self.settle();
        }
        if self.node.view().is_some() {
            let progress = self.node.progress();
            assert_eq!((self.sums.len(), progress.pending, progress.bytes_in_flight), (0, 0, 0), "something is left");
        }
    }
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

/// Mostly all workers, so that they agree.
fn participants(input: &mut Input<'_>) -> Participants {
    let members = |ranks: &[u32]| Participants::of(ranks.iter().copied().map(WorkerId).collect());
    match input.byte() {
        0..8 => members(&[0, 1]),
        8..16 => members(&[0, 1]).with_receiver(WorkerId(1)),
        16..24 => Participants::ALL.with_receiver(WorkerId(0)),
        24..28 => members(&[1, 9]),
        _ => Participants::ALL,
    }
}

fn a_contribution() -> Contribute {
    let found = samples::headers().into_iter().find_map(|header| match header {
        Header::Contribute(header) => Some(header),
        _ => None,
    });
    let header = found.expect("there are contributions among the samples");
    let epoch = Epoch { term: 1, number: 1 };
    let part = PartId { key: TensorKey(0), index: 0 };
    Contribute { target: Target { epoch, part, round: Round(1) }, ..header }
}
