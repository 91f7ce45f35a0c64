//! Samples of each message. The tests of this module share them, and the fuzzer starts from them.

use std::time::Duration;

use super::Frame;
use super::frame::{
    AckTimes, Forming, Health, Hold, Join, MemberStatus, Names, Progress, Stall, Status, Waiting, WaitingTensor, Waits,
};
use crate::error::{Claim, ERRORS, Error, ErrorKind, FieldSource, Tensors};
use crate::types::{
    Address, CheckpointAsk, Checkpointed, ClockKey, ClockStep, Closing, Control, ControlAnswer, ControlCommand, DType,
    Epoch, Fate, GivenSetting, Half, Holdings, Incarnation, LoadAsk, MachineId, Member, Missing, Mode, NodeId,
    Optimizer, Order, PartId, PartLayout, Passage, Phase, Piece, Plan, Process, Recipient, Role, Round, Rule, SaveAsk,
    Scheme, ServerId, Setup, Span, Squares, Stats, StepReport, StoreAnswer, StoreAsk, SumId, TableFile, Task,
    TensorKey, TensorKind, TensorSpec, Tick, Ticked, Time, View, Wiring, WorkerId, WorkersKey, Written,
};

mod headers;
mod values;

pub use headers::headers;
use values::mode;
pub(super) use values::participants;

fn mode_of(text: &str, clock: &str) -> Mode {
    Mode { clock: Some(ClockKey::of(clock)), ..mode(text) }
}

/// At least one frame of each kind, in the order of the declaration.
pub fn frames() -> Vec<Frame> {
    vec![
        Frame::Join(Join {
            process: Process { wiring: Wiring { pcie_group: 2, holds: false }, ..process(Role::Worker) },
            requested: Some(1),
            epoch: None,
            workers: 2,
            servers: 0,
        }),
        Frame::Join(Join {
            process: process(Role::Server),
            requested: None,
            epoch: Some(Epoch { term: 3, number: 2 }),
            workers: 0,
            servers: 1,
        }),
        Frame::Heartbeat { sent: Time(5), progress: progress() },
        Frame::Declare { request: 9, tensors: vec![TensorSpec::new("w", DType::F16, vec![3, 4])], fuse: true },
        Frame::Declare {
            request: 9,
            tensors: vec![TensorSpec::new("w", DType::F16, vec![3]).with_participants(participants())],
            fuse: false,
        },
        Frame::Declare { request: 9, tensors: vec![TensorSpec::parameter("p", DType::F32, vec![3])], fuse: false },
        Frame::Declare {
            request: 9,
            tensors: vec![TensorSpec::parameter("p", DType::F32, vec![3]).with_rule(Rule::of(Optimizer::Lion))],
            fuse: false,
        },
        Frame::Undeclare { request: 11, names: vec!["w".to_owned()] },
        Frame::Barrier { request: 10, name: "end".to_owned(), timeout: Duration::from_nanos(6) },
        store(StoreAsk::Put { key: "k".to_owned(), value: b"v1".to_vec(), expected: Some(b"v".to_vec()) }),
        store(StoreAsk::Put { key: "k".to_owned(), value: Vec::new(), expected: None }),
        store(StoreAsk::Add { key: "n".to_owned(), amount: -2 }),
        store(StoreAsk::Append { key: "k".to_owned(), value: b"v".to_vec() }),
        store(StoreAsk::Get { key: "k".to_owned(), wait: None }),
        store(StoreAsk::Get { key: "k".to_owned(), wait: Some(Duration::from_nanos(6)) }),
        store(StoreAsk::Delete { key: "k".to_owned(), is_prefix: true }),
        store(StoreAsk::Dir { prefix: String::new() }),
        Frame::Tick {
            request: 13,
            tick: Tick {
                clock: "c".to_owned(),
                mode: mode_of("ssp:bound=4", "c"),
                round: 7,
                samples: 32,
                leaves: false,
                wait: Some(Duration::from_secs(1)),
            },
        },
        Frame::Tick {
            request: 14,
            tick: Tick {
                clock: "c".to_owned(),
                mode: mode_of("async", "c"),
                round: 1,
                samples: 0,
                leaves: true,
                wait: None,
            },
        },
        Frame::Steps(StepReport { begun: 13, change: 2, stands: true, rests: false, leaves: true }),
        Frame::Holdings(Holdings {
            epoch: Epoch { term: 1, number: 2 },
            has: vec![sum_id(1)],
            knows: vec![sum_id(2)],
            wants: vec![sum_id(3), sum_id(4)],
        }),
        Frame::Restored { epoch: Epoch { term: 1, number: 2 } },
        Frame::Stall(stall()),
        Frame::Waits(vec![Waiting { more: 7, ..stall().into() }]),
        Frame::Leave,
        Frame::Fail { cause: "c".to_owned() },
        Frame::Saw { node: NodeId([9; 32]), pid: 77 },
        Frame::StatusRequest,
        Frame::Renew,
        Frame::Metrics(stats()),
        Frame::Setup(setup()),
        Frame::View(view(Phase::Running)),
        Frame::View(view(Phase::Aborted(Error::Cancelled))),
        Frame::View(view(Phase::FormsAgain)),
        Frame::View(view(Phase::Restores(Error::Cancelled))),
        Frame::Refused(Error::Fenced { current: Epoch { term: 1, number: 2 } }),
        Frame::HeartbeatAck {
            sent: Time(5),
            times: AckTimes { received: Time(6), answered: Time(7), began_unix_ns: 8 },
        },
        Frame::Declared { request: 9, outcome: Ok(vec![part()]) },
        Frame::Declared { request: 9, outcome: Err(Error::Cancelled) },
        Frame::Undeclared { request: 11 },
        Frame::Ended { keys: vec![TensorKey(8)], below: 7 },
        Frame::Forget { key: TensorKey(8), error: Error::Cancelled },
        Frame::BarrierDone { request: 10, outcome: Ok(()) },
        Frame::BarrierDone { request: 10, outcome: Err(Error::Cancelled) },
        stored(Ok(StoreAnswer::Done)),
        stored(Ok(StoreAnswer::Value(None))),
        stored(Ok(StoreAnswer::Value(Some(b"v".to_vec())))),
        stored(Ok(StoreAnswer::Number(-1))),
        stored(Ok(StoreAnswer::Keys(["k", "n"].map(str::to_owned).to_vec()))),
        stored(Err(Error::Cancelled)),
        Frame::Boundary { change: 2, limit: None, hold: None },
        Frame::Boundary { change: 2, limit: Some(13), hold: Some(hold()) },
        Frame::Passed {
            change: 2,
            outcome: Ok(Passage {
                step: 13,
                workers: [1, 9].into_iter().map(WorkerId).collect(),
                leaves: true,
                forms_again: true,
            }),
        },
        Frame::Passed { change: 2, outcome: Err(Error::Cancelled) },
        Frame::Ticked { request: 13, outcome: Ok(Ticked { round: 7, step: 20, ahead: 2, fate: Fate::DroppedLate }) },
        Frame::Close(Closing {
            clock: ClockKey(9),
            round: 7,
            half: Half::Workers { workers: [WorkerId(0), WorkerId(2)].into_iter().collect(), clips: true, samples: 96 },
        }),
        Frame::Restore { epoch: Epoch { term: 1, number: 2 }, sums: vec![sum_id(1)], lost: vec![sum_id(2)] },
        Frame::StallNotice { tensor: "w".to_owned(), stall: stall(), detail: "d".to_owned() },
        Frame::Status(Status {
            view: View { members: vec![member(Role::Worker)], ..view(Phase::Forming) },
            members: vec![MemberStatus {
                health: Health::Suspect,
                silent: Duration::from_nanos(3),
                progress: Progress::default(),
                placed_bytes: 4096,
                placed_parts: 2,
            }],
            imbalance_milli: 1250,
            hold: Some(hold()),
            waits: Box::new(Waits {
                tensors: vec![WaitingTensor {
                    tensor: "w".to_owned(),
                    told_by: "server 1".to_owned(),
                    age: Duration::from_nanos(4),
                    waiting: stall().into(),
                }],
                unheard: Names { listed: vec!["server 0".to_owned()], more: 1 },
            }),
        }),
        Frame::Forming(Forming {
            speaks: true,
            missing: Names { listed: vec!["worker 1".to_owned()], more: 7 },
            joined: Names { listed: vec!["worker 0 on h (pid 3)".to_owned()], more: 0 },
        }),
        Frame::Renewed { outcome: Ok(vec![0x30, 0x82]) },
        Frame::Renewed { outcome: Err(Error::Cancelled) },
        Frame::WorkersKey(WorkersKey([0xcd; 32])),
        Frame::Squares(Squares { clock: ClockKey(9), round: 7, sum: 1.5 }),
        Frame::Close(Closing { clock: ClockKey(9), round: 7, half: Half::Norm(f64::INFINITY) }),
        Frame::Checkpoint {
            request: 15,
            ask: CheckpointAsk::Save(SaveAsk {
                path: "p".to_owned(),
                keep: Some(3),
                notes: "{}".to_owned(),
                tables_apart: true,
                wait: Duration::from_secs(1),
            }),
        },
        Frame::Checkpoint {
            request: 16,
            ask: CheckpointAsk::Load(LoadAsk {
                path: "p".to_owned(),
                checkpoint: Some(4),
                missing: Missing::Zero,
                ignore_extra: true,
                with_state: false,
                if_any: true,
                wait: Duration::from_secs(1),
            }),
        },
        Frame::Obeyed {
            order: 5,
            outcome: Ok(Written {
                table: Some(TableFile { name: "t".to_owned(), bytes: 6, checksum: 7 }),
                files: 3,
                bytes: 8,
                rounds: vec![ClockStep { clock: ClockKey(9), step: 7, samples: 2 }],
            }),
        },
        Frame::Obeyed { order: 5, outcome: Err(Error::Cancelled) },
        Frame::Checkpointed { request: 15, outcome: Ok(saved()) },
        Frame::Order(Order { number: 5, task: Task::Save { directory: "d".to_owned(), checkpoint: 4, plan: plan() } }),
        Frame::Order(Order {
            number: 6,
            task: Task::Read { directory: "d".to_owned(), with_state: true, plan: plan() },
        }),
        Frame::Order(Order {
            number: 6,
            task: Task::Apply { bases: vec![ClockStep { clock: ClockKey(9), step: 3, samples: 2 }] },
        }),
        Frame::Order(Order { number: 6, task: Task::Cancel }),
        control(Recipient::Server(ServerId(2)), ControlCommand::Stats),
        control(Recipient::Worker(WorkerId(1)), ControlCommand::Log { filter: "info".to_owned() }),
        control(Recipient::Coordinator, ControlCommand::Save { path: "p".to_owned(), keep: Some(3) }),
        control(Recipient::Coordinator, ControlCommand::SetRate { tensor: "w".to_owned(), rate: 0.5, step: Some(40) }),
        control(
            Recipient::Worker(WorkerId(1)),
            ControlCommand::Dump {
                tensor: "w".to_owned(),
                round: 7,
                directory: "d".to_owned(),
                wait: Duration::from_secs(1),
            },
        ),
        control(Recipient::Worker(WorkerId(1)), ControlCommand::DumpRecorder { directory: "d".to_owned() }),
        control(
            Recipient::Server(ServerId(2)),
            ControlCommand::Timeline { directory: "d".to_owned(), from: 700, steps: Some(3) },
        ),
        control(Recipient::Server(ServerId(2)), ControlCommand::StopTimeline),
        control(Recipient::Coordinator, ControlCommand::Unknown { code: 200, fields: vec![1, 2] }),
        Frame::Commanded { number: 19, outcome: Ok(ControlAnswer::Stats(stats())) },
        Frame::Commanded { number: 19, outcome: Err(Error::Cancelled) },
        Frame::Controlled { request: 18, outcome: Ok(ControlAnswer::Done) },
        Frame::Controlled { request: 18, outcome: Ok(ControlAnswer::RateSet { step: Some(40) }) },
        Frame::Controlled { request: 18, outcome: Ok(ControlAnswer::Dumped { files: vec!["f".to_owned()] }) },
        Frame::Controlled { request: 18, outcome: Ok(ControlAnswer::Saved(saved())) },
        Frame::Command { number: 19, command: ControlCommand::Drain },
    ]
}

fn control(recipient: Recipient, command: ControlCommand) -> Frame {
    Frame::Control { request: 18, control: Control { recipient, wait: Duration::from_secs(1), command } }
}

fn stats() -> Stats {
    Stats { scope: "worker".to_owned(), label: "0".to_owned(), values: vec![("pushes".to_owned(), 3)] }
}

fn setup() -> Setup {
    let [name, value, origin] = ["s", "v", "o"].map(str::to_owned);
    Setup { versions: vec![("p".to_owned(), "3.1".to_owned())], settings: vec![GivenSetting { name, value, origin }] }
}

fn saved() -> Checkpointed {
    Checkpointed {
        checkpoint: 4,
        directory: "p/checkpoint-4".to_owned(),
        tensors: 2,
        bytes: 8,
        files: 4,
        steps: vec![ClockStep { clock: ClockKey(9), step: 7, samples: 2 }],
        notes: "{}".to_owned(),
    }
}

fn hold() -> Hold {
    let lost = Names { listed: vec!["worker 2 on h (pid 3): gone".to_owned()], more: 1 };
    Hold { there: 2, needed: 4, lost, patience: Duration::from_nanos(6) }
}

fn sum_id(round: u64) -> SumId {
    SumId { part: PartId { key: TensorKey(8), index: 3 }, round: Round(round) }
}

fn store(ask: StoreAsk) -> Frame {
    Frame::Store { request: 12, ask }
}

fn stored(outcome: crate::Result<StoreAnswer>) -> Frame {
    Frame::StoreDone { request: 12, outcome }
}

/// One error of each variant, in the order of the declaration. Each text is the name of its field.
pub fn errors() -> Vec<Error> {
    let error = |kind: &ErrorKind| Error::from_fields(kind.wire_code, &mut SampleFields).expect("samples never end");
    ERRORS.iter().filter_map(error).collect()
}

struct SampleFields;

impl FieldSource for SampleFields {
    type Fault = std::convert::Infallible;

    fn text(&mut self, field: &str) -> Result<String, Self::Fault> {
        Ok(field.to_owned())
    }

    fn tensors(&mut self, _: &str) -> Result<Tensors, Self::Fault> {
        Ok(Tensors::Keyed(TensorKey(8)))
    }

    fn claim(&mut self, field: &str) -> Result<Claim, Self::Fault> {
        Ok(Claim { worker: WorkerId(1), value: field.to_owned() })
    }

    fn round(&mut self, _: &str) -> Result<Round, Self::Fault> {
        Ok(Round(7))
    }

    fn ranks(&mut self, _: &str) -> Result<Vec<WorkerId>, Self::Fault> {
        Ok(vec![WorkerId(1), WorkerId(2)])
    }

    fn members(&mut self, field: &str) -> Result<Vec<String>, Self::Fault> {
        Ok(vec![field.to_owned(), "server 1".to_owned()])
    }

    fn duration(&mut self, _: &str) -> Result<Duration, Self::Fault> {
        Ok(Duration::from_millis(10))
    }

    fn number(&mut self, _: &str) -> Result<u32, Self::Fault> {
        Ok(5)
    }

    fn epoch(&mut self, _: &str) -> Result<Epoch, Self::Fault> {
        Ok(Epoch { term: 2, number: 3 })
    }
}

fn plan() -> Plan {
    Plan { tensors: vec![TensorSpec::parameter("p", DType::F16, vec![3, 4])], parts: vec![part()] }
}

/// A part of one piece: elements 4 to 12 of a tensor of half floats.
pub(super) fn part() -> PartLayout {
    PartLayout {
        part: PartId { key: TensorKey(8), index: 1 },
        dtype: DType::F16,
        kind: TensorKind::PLAIN_SUM,
        server: ServerId(2),
        pieces: vec![Piece { tensor: TensorKey(8), span: Span { offset: 8, bytes: 16 } }],
    }
}

fn view(phase: Phase) -> View {
    let members = vec![member(Role::Worker), member(Role::Server)];
    View {
        job: "j".to_owned(),
        epoch: Epoch { term: 1, number: 2 },
        phase,
        formed_before: 3,
        formed_servers: 2,
        formed_together: true,
        recovers: true,
        members,
    }
}

fn member(role: Role) -> Member {
    Member { process: process(role), node: NodeId([0xab; 32]), index: 0, first_round: Round(9) }
}

fn process(role: Role) -> Process {
    let mut addresses = vec![Address::new(Scheme::Shm, "/s")];
    if role == Role::Server {
        addresses.extend(
            [(1, "n1:9"), (1, "n1-ib:9"), (9, "?")].map(|(code, at)| Address::new(Scheme::from_code(code), at)),
        );
    }
    Process { host: "n1".to_owned(), pid: 77, addresses, machine: MachineId(6), ..Process::new(role, Incarnation(7)) }
}

fn progress() -> Progress {
    Progress { last: Some((TensorKey(8), Round(4))), pending: 3, bytes_in_flight: 4096 }
}

fn stall() -> Stall {
    Stall {
        part: PartId { key: TensorKey(8), index: 1 },
        round: Round(4),
        missing: vec![WorkerId(1)],
        waited: Duration::from_nanos(2),
    }
}
