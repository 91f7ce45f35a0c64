//! The frames of the control stream between a node and the coordinator. `frame::encoding` writes and reads them.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{
    CheckpointAsk, Checkpointed, Closing, Control, ControlAnswer, ControlCommand, Epoch, Holdings, NodeId, Order,
    PartId, PartLayout, Passage, Process, Round, Setup, Squares, Stats, StepReport, StoreAnswer, StoreAsk, SumId,
    TensorKey, TensorSpec, Tick, Ticked, Time, View, WorkerId, WorkersKey, Written,
};

mod checkpoint;
mod clock;
mod control;
mod encoding;
mod fields;
mod kinds;
mod names;
mod recovery;
mod setup;
mod stepping;
mod store;
mod waiting;

pub use names::Names;

/// One message on a control stream. The connection tells who sent it.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    // From a node to the coordinator.
    /// The first frame: this process wants to be a member.
    Join(Join),
    /// Shows that the process is alive, and what it did last. `sent` comes back in the answer.
    Heartbeat {
        /// The sender's clock, echoed to measure the round trip.
        sent: Time,
        /// What the process did last.
        progress: Progress,
    },
    /// The metrics of this member, so that one address can show those of all. Comes with heartbeats; the latest counts.
    Metrics(Stats),
    /// What this member runs, and its settings. It is said once on each connection on which the member hears that the job runs; the latest counts.
    Setup(Setup),
    /// Declares tensors; answered by [`Frame::Declared`] with the same `request`. Repeating it is harmless.
    Declare {
        /// Chosen by the sender, unique within its incarnation.
        request: u64,
        /// The tensors that it will reduce.
        tensors: Vec<TensorSpec>,
        /// Whether small neighbours of this list may share parts. All of them must then be submitted in every round.
        fuse: bool,
    },
    /// This worker uses these names no more; answered by [`Frame::Undeclared`] with the same `request`. A name ends when every worker has
    /// said so. Declared again, it is a new tensor. Repeating it is harmless.
    Undeclare {
        /// Chosen by the sender, unique within its incarnation, and higher in each further [`Frame::Undeclare`].
        request: u64,
        /// The names. Tensors that share a part end together.
        names: Vec<String>,
    },
    /// Arrives at the barrier `name`; answered by [`Frame::BarrierDone`] once all workers arrived. Repeating it is harmless.
    Barrier {
        /// Chosen by the sender, unique within its incarnation.
        request: u64,
        /// Which barrier.
        name: String,
        /// How long this worker is willing to wait.
        timeout: Duration,
    },
    /// Asks the store of the job; answered by [`Frame::StoreDone`] with the same `request`. Repeating it is harmless: a change is made once.
    Store {
        /// Chosen by the sender, unique within its incarnation.
        request: u64,
        /// What it asks.
        ask: StoreAsk,
    },
    /// This worker has finished a round of a clock; answered by [`Frame::Ticked`] with the same `request`. Repeating it is harmless.
    Tick {
        /// Chosen by the sender, unique within its incarnation.
        request: u64,
        /// Which round.
        tick: Tick,
    },
    /// To save or load a checkpoint; answered by [`Frame::Checkpointed`] with the same `request`. Repeating it is harmless.
    Checkpoint {
        /// Chosen by the sender, unique within its incarnation.
        request: u64,
        /// What it asks.
        ask: CheckpointAsk,
    },
    /// A server has obeyed an order, or cannot. Repeating it is harmless.
    Obeyed {
        /// The number of the order.
        order: u64,
        /// What it has written or read, or why not.
        outcome: Result<Written>,
    },
    /// An order of an operator, whose connection is an admin's; answered by [`Frame::Controlled`] with the same `request`.
    Control {
        /// Chosen by the sender, unique on its connection.
        request: u64,
        /// The order.
        control: Control,
    },
    /// A member has obeyed a command, or cannot. Repeating it is harmless.
    Commanded {
        /// The number of the command.
        number: u64,
        /// The answer, or why there is none.
        outcome: Result<ControlAnswer>,
    },
    /// This server's share of the norm of a round, which the coordinator has closed. It is said again on each new connection, until the server
    /// hears of the norm. Repeating it is harmless.
    Squares(Squares),
    /// What this worker says of its steps. It is said again on each new connection. Repeating it is harmless.
    Steps(StepReport),
    /// A server, or the first worker of a machine, misses contributions.
    Stall(Stall),
    /// The rounds of this server that have waited for a moment, those that have waited longest. Comes with [`Frame::Metrics`], also when there is
    /// none; the latest counts.
    Waits(Vec<Waiting>),
    /// The process leaves in an orderly way.
    Leave,
    /// The process gives up its work and ends. For the job this is the loss of a member.
    Fail {
        /// Why, for people.
        cause: String,
    },
    /// What this worker has of the parts whose servers were lost, once nothing of them is under way any more. It is said again on each new
    /// connection. Repeating it is harmless.
    Holdings(Holdings),
    /// Servers have all the sums that this worker was to restore in this epoch. Repeating it is harmless.
    Restored {
        /// The epoch of [`Frame::Restore`].
        epoch: Epoch,
    },
    /// A member saw that a process of its machine has ended: the system said so.
    Saw {
        /// The process's node.
        node: NodeId,
        /// Its number, which the member it was has too.
        pid: u32,
    },
    /// Asks for the state of the job; allowed to every enrolled node. A node that is no member gets [`Frame::Status`]. A member gets
    /// [`Frame::Forming`], because all members ask again and again while the job forms.
    StatusRequest,
    /// Asks for the next certificate of this process: for the same key, role and job, which the connection's own certificate names. Only a
    /// member of the job gets one. Answered by [`Frame::Renewed`].
    Renew,

    // From the coordinator to a node.
    /// The membership. The node finds itself in it by its incarnation.
    View(View),
    /// The process cannot be a member, or is no longer one.
    Refused(Error),
    /// Answers a heartbeat.
    HeartbeatAck {
        /// The value from the heartbeat.
        sent: Time,
        /// The same moments on the coordinator's clock.
        times: AckTimes,
    },
    /// Answers a declaration: every part that holds bytes of the declared tensors.
    Declared {
        /// The request number of the declaration.
        request: u64,
        /// The parts, or why the names cannot be used.
        outcome: Result<Vec<PartLayout>>,
    },
    /// The coordinator has noted that a worker uses some names no more.
    Undeclared {
        /// The request number.
        request: u64,
    },
    /// To servers: these tensors have ended. No worker has anything under way for them. May be repeated after a reconnection.
    Ended {
        /// Which tensors.
        keys: Vec<TensorKey>,
        /// All their parts lie below this index. If a name is declared again, its parts lie above.
        below: u32,
    },
    /// This tensor failed for good on every worker.
    Forget {
        /// Which tensor.
        key: TensorKey,
        /// Why.
        error: Error,
    },
    /// Answers a barrier.
    BarrierDone {
        /// The request number of the arrival.
        request: u64,
        /// Passed, or why not.
        outcome: Result<()>,
    },
    /// The answer of the store of the job.
    StoreDone {
        /// The number of the request.
        request: u64,
        /// The answer, or why there is none.
        outcome: Result<StoreAnswer>,
    },
    /// Answers a tick.
    Ticked {
        /// The number of the request.
        request: u64,
        /// This worker may begin its next round, or why not.
        outcome: Result<Ticked>,
    },
    /// Answers a request about a checkpoint.
    Checkpointed {
        /// The number of the request.
        request: u64,
        /// The checkpoint is whole, or loaded, or why not.
        outcome: Result<Checkpointed>,
    },
    /// Answers an operator.
    Controlled {
        /// The number of the request.
        request: u64,
        /// The answer, or why there is none.
        outcome: Result<ControlAnswer>,
    },
    /// To a member: obey this command of an operator; answered by [`Frame::Commanded`]. May be repeated after a reconnection.
    Command {
        /// The number of the command. Later ones have greater numbers.
        number: u64,
        /// What to do.
        command: ControlCommand,
    },
    /// To servers: do this for a checkpoint; answered by [`Frame::Obeyed`]. May be repeated after a reconnection.
    Order(Order),
    /// To servers: how a round of a clock is closed. May be repeated after a reconnection.
    Close(Closing),
    /// To workers: the membership is to change at a boundary. A worker begins no further step than `limit` from now on, and answers with
    /// [`Frame::Steps`], which names this change. May be repeated after a reconnection.
    Boundary {
        /// The number of the change, from 1.
        change: u64,
        /// The last step that a worker may begin; until it is known, the one that it has begun.
        limit: Option<u64>,
        /// If the workers stand there until others have come.
        hold: Option<Hold>,
    },
    /// To workers: this change is over. May be repeated after a reconnection.
    Passed {
        /// The number of the change.
        change: u64,
        /// All workers stood at the boundary, or why they did not, or why a worker cannot leave.
        outcome: Result<Passage>,
    },
    /// To a worker: bring `sums`, which it has and others want, to the servers of their parts, and answer with [`Frame::Restored`]. May be
    /// repeated.
    Restore {
        /// The epoch of the holdings.
        epoch: Epoch,
        /// Which sums.
        sums: Vec<SumId>,
        /// Sums that this worker wants and nobody has: they were to go to it alone.
        lost: Vec<SumId>,
    },
    /// A tensor waits for some ranks; for the log.
    StallNotice {
        /// The tensor's name, or its key where the name is not known.
        tensor: String,
        /// What the server reported.
        stall: Stall,
        /// What the missing ranks did last.
        detail: String,
    },
    /// The state of the job.
    Status(Status),
    /// To a member: who has come and who has not, in short.
    Forming(Forming),
    /// Answers [`Frame::Renew`].
    Renewed {
        /// The certificate in DER, or why there is none.
        outcome: Result<Vec<u8>>,
    },
    /// To workers: the key that only they and the coordinator have. It comes before the first view, on each connection.
    WorkersKey(WorkersKey),
}

/// A process asks for a place in the job, or for the place that it has.
#[derive(Clone, PartialEq, Debug)]
pub struct Join {
    /// What the process says about itself.
    pub process: Process,
    /// The rank or server index that it must have; any if absent.
    pub requested: Option<u32>,
    /// The newest membership that this life of the process has seen; `None` before its job formed. A restarted coordinator uses it to
    /// refuse the members of the former job.
    pub epoch: Option<Epoch>,
    /// How many workers it believes the job has; 0 if it does not know.
    pub workers: u32,
    /// How many servers it believes the job has; 0 if it does not know.
    pub servers: u32,
}

/// What a process did last; carried by heartbeats for the stall report.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    /// The tensor it submitted last (worker) or got a contribution for (server), with its round.
    pub last: Option<(TensorKey, Round)>,
    /// Submissions not yet resolved.
    pub pending: u32,
    /// Bytes of exchanges in flight.
    pub bytes_in_flight: u64,
}

/// When a heartbeat was answered, by the coordinator's clock. From it and its own times a member knows how far that clock is ahead of its
/// own: [`Offsets`](crate::cluster::Offsets).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckTimes {
    /// When the coordinator received the heartbeat.
    pub received: Time,
    /// When it sent the answer; not before `received`.
    pub answered: Time,
    /// When its clock began, by its wall clock at its start, in nanoseconds since 1970. A coordinator that takes over has another clock.
    pub began_unix_ns: u64,
}

/// A round that waits.
#[derive(Clone, PartialEq, Debug)]
pub struct Stall {
    /// Which part.
    pub part: PartId,
    /// Which sum.
    pub round: Round,
    /// Ranks that did not contribute.
    pub missing: Vec<WorkerId>,
    /// Time since the first contribution.
    pub waited: Duration,
}

/// Who has come to a job that forms, and who has not. It is short however many members the job has.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Forming {
    /// Whether the process that asked speaks for all that wait. The others are told nothing more.
    pub speaks: bool,
    /// Processes that have not come, as `worker 2`.
    pub missing: Names,
    /// Processes that have come, as `worker 0 on host (pid 77)`.
    pub joined: Names,
}

/// The workers of a job stand behind a step until others have come, because they are too few.
#[derive(Clone, PartialEq, Debug)]
pub struct Hold {
    /// How many workers have come, with those that wait to be taken in.
    pub there: u32,
    /// How many the job needs to go on.
    pub needed: u32,
    /// Workers that were lost, such as `worker 2 on host (pid 77): killed by signal 9`.
    pub lost: Names,
    /// How long they stand there at most from now on.
    pub patience: Duration,
}

/// The state of the job as the coordinator sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// The membership.
    pub view: View,
    /// One entry per member of the view, in its order.
    pub members: Vec<MemberStatus>,
    /// The largest load of a server over its fair share, in thousandths. 1000 means even, or no tensors yet.
    pub imbalance_milli: u64,
    /// If the workers stand behind a step until others have come.
    pub hold: Option<Hold>,
    /// The tensors that wait.
    pub waits: Box<Waits>,
}

/// A round of a part for which some workers have come, and others are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Which part.
    pub part: PartId,
    /// Which round.
    pub round: Round,
    /// Time since the first contribution.
    pub waited: Duration,
    /// The first ranks that are missing, at most [`Waiting::MISSING_MAX`].
    pub missing: Vec<WorkerId>,
    /// How many are missing besides.
    pub more: u32,
}

impl Waiting {
    /// The most rounds that a member tells of at once.
    pub const TOLD_MAX: usize = 8;
    /// The most ranks that are listed.
    pub const MISSING_MAX: usize = 16;
    /// A round that has waited for less is not told of: somebody always comes last.
    pub const MOMENT: Duration = Duration::from_millis(200);
}

impl From<Stall> for Waiting {
    fn from(stall: Stall) -> Self {
        let Stall { part, round, mut missing, waited } = stall;
        let more = u32::try_from(missing.len().saturating_sub(Self::MISSING_MAX)).unwrap_or(u32::MAX);
        missing.truncate(Self::MISSING_MAX);
        Self { part, round, waited, missing, more }
    }
}

/// A tensor that waits, as a status shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingTensor {
    /// The tensors of the part, shortened.
    pub tensor: String,
    /// The member that told of it, such as `server 1`.
    pub told_by: String,
    /// How long ago the member told of it. It may have its sum since.
    pub age: Duration,
    /// What the member told.
    pub waiting: Waiting,
}

impl WaitingTensor {
    /// How long it has waited until now.
    pub fn waited(&self) -> Duration {
        self.waiting.waited + self.age
    }
}

/// The tensors that wait.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Waits {
    /// Those that have waited longest, the longest first; at most [`Waits::SHOWN_MAX`]. A tensor stands here once a round.
    pub tensors: Vec<WaitingTensor>,
    /// Servers that are there and have told nothing lately, such as `server 1`.
    pub unheard: Names,
}

impl Waits {
    /// The most tensors that are shown.
    pub const SHOWN_MAX: usize = 32;
}

/// One member's health.
#[derive(Clone, PartialEq, Debug)]
pub struct MemberStatus {
    /// Alive, suspect, dead or left.
    pub health: Health,
    /// Time since its last sign of life.
    pub silent: Duration,
    /// From its last heartbeat.
    pub progress: Progress,
    /// Bytes of the parts that a server sums; 0 for a worker.
    pub placed_bytes: u64,
    /// How many parts a server sums; 0 for a worker.
    pub placed_parts: u64,
}

/// How alive a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Health {
    /// The coordinator heard from it within the suspect time.
    Alive = 1,
    /// Silent for longer, but not yet given up.
    Suspect = 2,
    /// Given up.
    Dead = 3,
    /// Left in an orderly way.
    Left = 4,
}
