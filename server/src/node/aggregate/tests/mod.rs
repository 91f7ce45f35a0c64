//! The dense sum's specification, one behaviour a test.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Code, Error};
use gradlane_core::types::{
    CodecSpec, DType, Encoding, Epoch, ExchangeId, Incarnation, LinkId, MachineId, Member, NodeId, Op, PartId,
    Participants, Phase, Process, Role, Round, TensorKey, Time, View, Waited, WorkerId, WorkerSet,
};
use gradlane_core::wire::frame::Progress;
use gradlane_core::wire::{Body, Contribute, Contribution, Contributors, Hold, Request, Sum, Target, Withdraw, reject};

use crate::node::command::{Command, Order, Receipt, Route, Shortage, SlotId, Step, SumSpec, Upload, Work};
use crate::node::config::NodeConfig;
use crate::node::machine::Node;

mod broadcast;
mod callers;
mod counting;
mod draining;
mod failing;
mod flowing;
mod giving;
mod lateness;
mod membership;
mod memory;
mod participants;
mod patience;
mod repeating;
mod residual;
mod restoring;
mod survivors;
mod window;
mod withdrawing;

/// A node with its workers and a clock. The test plays the driver of the sums: it says when a contribution is whole.
struct World {
    node: Node,
    now: Time,
    exchanges: BTreeMap<ExchangeId, (SlotId, WorkerId)>,
}

impl World {
    fn of(workers: u32) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u32, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        let mut world = Self { node: Node::new(config), now: Time::ZERO, exchanges: BTreeMap::new() };
        world.view(workers, 1, Phase::Running);
        world
    }

    /// One worker, which contributes from this round on.
    fn beginning_at(round: u64) -> Self {
        let mut world = Self { node: Node::new(config()), now: Time::ZERO, exchanges: BTreeMap::new() };
        let mut view = view(1, 1, Phase::Running);
        view.members[0].first_round = Round(round);
        world.follow(view);
        world
    }

    fn view(&mut self, workers: u32, number: u32, phase: Phase) {
        self.follow(view(workers, number, phase));
    }

    fn follow(&mut self, view: View) {
        self.node.handle_member(MemberEvent::View(view));
    }

    /// A header arrives.
    fn open(&mut self, rank: u32, header: Contribute) -> ExchangeId {
        let exchange = ExchangeId(self.exchanges.len() as u64 + 1);
        self.exchanges
            .insert(exchange, (SlotId { part: header.target.part, round: header.target.round }, WorkerId(rank)));
        self.request(rank, exchange, Request::Contribute(header));
        exchange
    }

    fn request(&mut self, rank: u32, exchange: ExchangeId, header: Request) {
        let link = LinkId(rank.into());
        self.node.handle_link_up(link, node(rank));
        self.node.handle_opened(self.now, link, exchange, &header);
    }

    /// What an exchange brought makes its worker's contribution whole, or not.
    fn receipt(&mut self, exchange: ExchangeId, receipt: Receipt) {
        let (slot, worker) = self.exchanges[&exchange];
        self.node.handle_receipt(self.now, Route::Sum { slot, worker }, exchange, receipt.into());
    }

    fn whole(&mut self, exchange: ExchangeId) {
        self.receipt(exchange, Receipt::Whole);
    }

    /// A header and its body arrive.
    fn push(&mut self, rank: u32, header: Contribute) -> ExchangeId {
        let exchange = self.open(rank, header);
        self.whole(exchange);
        exchange
    }

    fn everybody(&mut self, header: Contribute) -> Vec<ExchangeId> {
        let workers = u32::try_from(self.node.services.sums.workers().len()).unwrap();
        (0..workers).map(|rank| self.push(rank, header.clone())).collect()
    }

    fn torn(&mut self, exchange: ExchangeId) {
        self.node.handle_torn(exchange);
    }

    fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.node.handle_timeout(self.now);
    }

    /// The commands, but for those about routes, links and metrics.
    fn commands(&mut self) -> Vec<Command> {
        let is_other = |command: &Command| {
            matches!(
                command,
                Command::Accept { .. } | Command::Unroute { .. } | Command::Grant { .. } | Command::Timed { .. }
            )
        };
        self.all_commands().into_iter().filter(|command| !is_other(command)).collect()
    }

    fn all_commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.node.next_command()).collect()
    }

    fn nobody_waits(&self) -> bool {
        self.node.waiting_rounds() == 0
    }

    fn progress(&self) -> Progress {
        self.node.progress()
    }
}

pub(crate) const EPOCH: Epoch = Epoch { term: 1, number: 1 };

pub(crate) fn config() -> NodeConfig {
    NodeConfig {
        deterministic: false,
        stall_warn: Duration::from_secs(10),
        step_timeout: Duration::from_secs(60),
        contact: None,
        memory_bytes_max: 1 << 20,
        unread_bytes_max: 1 << 30,
        block_bytes_max: 0,
        block_bytes_min: 0,
        defect: None,
    }
}

pub(crate) fn node(rank: u32) -> NodeId {
    NodeId([u8::try_from(rank).unwrap(); 32])
}

pub(crate) fn view(workers: u32, number: u32, phase: Phase) -> View {
    let member = |index| Member {
        process: Process::new(Role::Worker, Incarnation(1)),
        node: node(index),
        index,
        first_round: Round(0),
    };
    let members = (0..workers).map(member).collect();
    View::plain("job", Epoch { term: 1, number }, phase, members)
}

pub(crate) fn header(round: u64) -> Contribute {
    Contribute {
        target: target(round),
        dtype: DType::F32,
        op: Op::Sum,
        participants: Participants::ALL,
        weight: 1.0,
        urgency: 0,
        waited: Waited::default(),
        part_bytes: 16,
        hold: Hold::No,
        is_given: false,
        contribution: Contribution::First { body: Body::plain(16), checksum: None },
    }
}

/// What answers [`header`].
pub(crate) fn sum(round: u64) -> Sum {
    Sum {
        target: target(round),
        attempt: 0,
        part_bytes: 16,
        body: Body::plain(16),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    }
}

/// The withdrawal of [`header`].
pub(crate) fn withdraw(round: u64) -> Withdraw {
    let participants = Participants::ALL;
    Withdraw { target: target(round), dtype: DType::F32, op: Op::Sum, participants, error_bytes: 99 }
}

fn target(round: u64) -> Target {
    let SlotId { part, round } = slot(round);
    Target { epoch: EPOCH, part, round }
}

/// The same header for a part, and a body, of so many bytes.
pub(crate) fn sized(part_bytes: u64, header: Contribute) -> Contribute {
    let contribution = Contribution::First { body: Body::plain(part_bytes), checksum: None };
    Contribute { part_bytes, contribution, ..header }
}

/// The same header of a worker whose codec halves the body.
fn halved(codec: CodecSpec, header: Contribute) -> Contribute {
    let body = Body { bytes: header.part_bytes / 2, codec, refused: false };
    Contribute { contribution: Contribution::First { body, checksum: None }, ..header }
}

/// The same header of a tensor with topk: an encoded body of so many bytes, or with `None` one that was refused.
fn sparse(bytes: Option<u64>, header: Contribute) -> Contribute {
    let (bytes, refused) = (bytes.unwrap_or(header.part_bytes), bytes.is_none());
    let body = Body { bytes, codec: CodecSpec::of(Encoding::TopK), refused };
    Contribute { contribution: Contribution::First { body, checksum: None }, ..header }
}

/// The same header with a checksum.
pub(crate) fn checked(checksum: u32, header: Contribute) -> Contribute {
    let contribution = Contribution::First { body: Body::plain(header.part_bytes), checksum: Some(checksum) };
    Contribute { contribution, ..header }
}

/// The same header for another part of the tensor.
pub(crate) fn in_part(index: u32, header: Contribute) -> Contribute {
    let part = PartId { index, ..header.target.part };
    Contribute { target: Target { part, ..header.target }, ..header }
}

/// The same header of a worker that believes in another membership.
pub(crate) fn in_epoch(epoch: Epoch, header: Contribute) -> Contribute {
    Contribute { target: Target { epoch, ..header.target }, ..header }
}

/// The same header of a repeat, after so many bytes of the sum landed on the contribution.
pub(crate) fn again(landed: u64, header: Contribute) -> Contribute {
    let contribution = Contribution::Resumed { body: Body::plain(header.part_bytes), landed };
    Contribute { contribution, ..header }
}

/// A repeat after so many bytes of the sum landed on the contribution.
fn resumed(round: u64, landed: u64) -> Contribute {
    again(landed, header(round))
}

fn broadcast(round: u64) -> Contribute {
    Contribute { op: Op::Broadcast { root: WorkerId(0) }, ..header(round) }
}

fn receiver(round: u64) -> Contribute {
    Contribute { contribution: Contribution::Nothing, ..broadcast(round) }
}

fn weighted(weight: f64) -> Contribute {
    Contribute { op: Op::WeightedMean, weight, ..header(0) }
}

pub(crate) fn slot(round: u64) -> SlotId {
    SlotId { part: PartId { key: TensorKey(1), index: 0 }, round: Round(round) }
}

/// A step of the sum of round 0.
fn step(step: Step) -> Command {
    Command::Step(Work::Sum { slot: slot(0), step })
}

fn drops(round: u64) -> Command {
    Command::Step(Work::Sum { slot: slot(round), step: Step::Drop })
}

fn steps(commands: &[Command]) -> impl Iterator<Item = &Step> {
    commands.iter().filter_map(|command| match command {
        Command::Step(Work::Sum { step, .. }) => Some(step),
        Command::Step(Work::Parameter { .. } | Work::Table { .. }) => panic!("{command:?}"),
        Command::Reject { .. }
        | Command::Short { .. }
        | Command::Measured { .. }
        | Command::Timed { .. }
        | Command::Stalled { .. }
        | Command::Archive(_)
        | Command::Obeyed { .. }
        | Command::Accept { .. }
        | Command::Unroute { .. }
        | Command::Grant { .. }
        | Command::Disconnect { .. } => None,
    })
}

/// Exchanges whose body is received.
fn received(commands: &[Command]) -> Vec<ExchangeId> {
    let receives = |step: &Step| if let Step::Receive { exchange, .. } = step { Some(*exchange) } else { None };
    steps(commands).filter_map(receives).collect()
}

/// Exchanges to which a sum goes, in whatever order.
fn answered(commands: &[Command]) -> Vec<ExchangeId> {
    let answer = |step: &Step| if let Step::Answer { exchange, .. } = step { Some(*exchange) } else { None };
    let mut answered: Vec<ExchangeId> = steps(commands).filter_map(answer).collect();
    answered.sort_unstable();
    answered
}

fn seals(commands: &[Command]) -> usize {
    steps(commands).filter(|step| **step == Step::Seal).count()
}

fn errors(commands: &[Command]) -> impl Iterator<Item = &Error> {
    commands.iter().filter_map(|command| match command {
        Command::Reject { error, .. } => Some(error),
        Command::Step(_)
        | Command::Short { .. }
        | Command::Measured { .. }
        | Command::Timed { .. }
        | Command::Stalled { .. }
        | Command::Archive(_)
        | Command::Obeyed { .. }
        | Command::Accept { .. }
        | Command::Unroute { .. }
        | Command::Grant { .. }
        | Command::Disconnect { .. } => None,
    })
}

fn rejected(commands: &[Command]) -> Vec<Code> {
    errors(commands).map(Error::code).collect()
}
