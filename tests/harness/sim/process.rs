//! A process of the world: which one it is, what reaches it, and the place where it runs, sleeps or ran.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::pipeline::Stage;
use gradlane_core::sched::TaskId;
use gradlane_core::types::{ExchangeId, LinkId, PartId, Role, Span, Time};
use gradlane_server::node::command::{Receipt, Route};

use super::network::StreamEnd;
use super::worker::Note;
use super::world::Context;

/// A process of the world, whichever of its lives. The number of a worker or server is not its rank, which the coordinator gives it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    /// The one coordinator.
    Coordinator,
    /// A server, by number.
    Server(u32),
    /// A worker, by number.
    Worker(u32),
}

impl Who {
    /// What its certificate is for.
    pub(super) fn role(self) -> Role {
        match self {
            Self::Coordinator => Role::Coordinator,
            Self::Server(_) => Role::Server,
            Self::Worker(_) => Role::Worker,
        }
    }
}

/// One life of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Address {
    /// Which process.
    pub(super) who: Who,
    /// Counts its starts.
    pub(super) life: u32,
}

/// Something that reaches a process. A connection or exchange that is over by then is ignored by it.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A machine wants to be told the time.
    Timer,
    /// A member dialled the coordinator.
    ControlDialled { control: u64, from: Address },
    /// The coordinator was reached.
    ControlUp { control: u64 },
    /// The coordinator was not reached in time.
    ControlFailed { control: u64 },
    /// The control connection ended.
    ControlClosed { control: u64, error: Error },
    /// A control frame.
    Frame { control: u64, bytes: Vec<u8> },
    /// A worker dialled a server.
    LinkDialled { link: LinkId, from: Address },
    /// The server was reached.
    LinkReady { link: LinkId },
    /// The server was not reached in time.
    LinkFailed { link: LinkId },
    /// The link ended.
    LinkLost { link: LinkId, error: Error },
    /// A contribution was handed over.
    Pushed { exchange: ExchangeId },
    /// A header came in at a server.
    Opened { exchange: ExchangeId },
    /// Some bytes of a body came in at a server.
    Body { exchange: ExchangeId, span: Span },
    /// A worker sends no more of a body.
    BodyCut { exchange: ExchangeId },
    /// A server's thread says what became of a contribution.
    Receipt { route: Route, exchange: ExchangeId, receipt: Receipt },
    /// The squares of a gradient on their way from a server's store to its node.
    Squares { part: PartId, round: u64, sum: f64 },
    /// All of a contribution was acknowledged: nothing refers to its memory any more.
    Returned { exchange: ExchangeId },
    /// The server does not want the rest of a contribution.
    Stopped { exchange: ExchangeId },
    /// So many bytes of an answer have come in at a worker so far, and perhaps the end of the stream.
    Answer { exchange: ExchangeId, bytes: usize, end: Option<StreamEnd> },
    /// An answer was handed over.
    Answered { exchange: ExchangeId },
    /// A stream was reset.
    ExchangeTorn { exchange: ExchangeId, error: Error },
    /// A stage's bell rang.
    Bell { stage: Stage },
    /// A device has copied what a task moves.
    Copied { task: TaskId },
    /// Another rank of this machine says something.
    Near { from: Address, team: Arc<[Address]>, note: Note },
    /// The process of another rank of this machine is gone.
    NeighbourLost { gone: Address },
    /// The system shows that a process of this machine has ended.
    ProcessEnded { gone: Address },
    /// A worker is asked to leave.
    AskToLeave,
    /// A server is asked to stop.
    Drain,
    /// A caller's thread looks for short tasks of a stage.
    Caller { stage: Stage, bytes_max: u64 },
    /// The training loop may go on.
    Script,
}

/// A process as the world drives it.
pub(super) trait Process {
    /// Something happened to it.
    fn handle(&mut self, context: &mut Context, input: Input);
    /// When it wants [`Input::Timer`].
    fn poll_timeout(&self) -> Option<Time>;
    /// Whether it has nothing left to do.
    fn is_finished(&self) -> bool;
    /// What it waits for.
    fn describe(&self) -> String;
}

/// A place where a process runs, or ran.
pub(super) struct Slot<P> {
    /// Absent before its start and after its death.
    pub(super) process: Option<P>,
    address: Address,
    paused: bool,
    backlog: VecDeque<Input>,
    armed: Option<Time>,
}

impl<P: Process> Slot<P> {
    pub(super) fn new(who: Who) -> Self {
        let address = Address { who, life: 0 };
        Self { process: None, address, paused: false, backlog: VecDeque::new(), armed: None }
    }

    pub(super) fn start(
        &mut self,
        context: &mut Context,
        address: Address,
        new: impl FnOnce(&mut Context, Address) -> P,
    ) {
        *self = Self { address, ..Self::new(address.who) };
        self.process = Some(new(context, address));
        self.arm(context);
    }

    pub(super) fn deliver(&mut self, context: &mut Context, life: u32, input: Input) {
        if life != self.address.life {
            return;
        }
        if self.paused {
            return self.backlog.push_back(input);
        }
        let Some(process) = &mut self.process else { return };
        if let Input::Timer = input {
            self.armed = self.armed.filter(|at| *at > context.world);
            if process.poll_timeout().is_none_or(|due| due > context.now) {
                return self.arm(context);
            }
        }
        process.handle(context, input);
        self.arm(context);
    }

    /// Wakes the process when it wants to be woken, a little late as threads are.
    pub(super) fn arm(&mut self, context: &mut Context) {
        let Some(due) = self.process.as_ref().and_then(Process::poll_timeout) else { return };
        let due = context.clock(self.address.who).world(due);
        if self.armed.is_none_or(|armed| due < armed) {
            let at = due.max(context.world) + Duration::from_micros(context.random.below(500));
            self.armed = Some(at);
            context.post_at(self.address, at, Input::Timer);
        }
    }

    /// Something reaches the present life.
    pub(super) fn deliver_now(&mut self, context: &mut Context, input: Input) {
        self.deliver(context, self.address.life, input);
    }

    pub(super) fn pause(&mut self) -> Option<Address> {
        let runs = self.process.is_some() && !std::mem::replace(&mut self.paused, true);
        runs.then_some(self.address)
    }

    pub(super) fn resume(&mut self, context: &mut Context, address: Address) {
        if address != self.address {
            return;
        }
        self.paused = false;
        while let Some(input) = self.backlog.pop_front() {
            self.deliver(context, address.life, input);
        }
    }

    pub(super) fn kill(&mut self) -> Option<Address> {
        self.process.take().map(|_| self.address)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.process.as_ref().is_none_or(Process::is_finished)
    }

    pub(super) fn unfinished(&self) -> Option<(Who, String)> {
        let process = self.process.as_ref().filter(|process| !process.is_finished())?;
        Some((self.address.who, process.describe()))
    }
}

impl Who {
    /// The worker with this [`number`](Self::number).
    pub(super) fn of_worker(number: u64) -> Self {
        let who = Self::Worker((number - Self::Worker(0).number()) as u32);
        assert_eq!(who.number(), number, "the number of a worker");
        who
    }

    /// A number that no other process has.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Coordinator => 0,
            Self::Server(number) => 100 + u64::from(number),
            Self::Worker(number) => 200 + u64::from(number),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.pad("coordinator"),
            Self::Server(number) => f.pad(&format!("server#{number}")),
            Self::Worker(number) => f.pad(&format!("worker#{number}")),
        }
    }
}
