//! Where somebody ends, and in which jobs.

use gradlane_core::local::failpoint::Failpoint::{self, *};
use gradlane_tests::over::Over::{self, Quic, Shm};

/// A process of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    /// One that stays to the end, if nothing happens to it.
    Worker,
    /// The worker that leaves at a boundary.
    Leaver,
    Server,
    Coordinator,
    /// The coordinator that is started in the place of one that was killed.
    NextCoordinator,
}

/// Who ends, and where: when it comes there for the first time up to the `often`th time, as the seed says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) who: Who,
    pub(super) point: Failpoint,
    pub(super) often: u64,
}

/// Into which parts tensors are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parts {
    /// Seven of each large tensor.
    Small,
    /// So few that a part does not fit into one piece of shared memory.
    Large,
}

/// A job of three workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// The last one is what the case is about. Those before it are killed, so that it comes to its place.
    pub(super) victims: &'static [Victim],
    pub(super) servers: u32,
    pub(super) steps: u64,
    /// Of its large tensors.
    pub(super) elements: usize,
    pub(super) parts: Parts,
    /// Worker 2 leaves behind one of the first steps.
    pub(super) leaves: bool,
    /// The first server is asked to stop after some steps.
    pub(super) asks: bool,
    /// Whether other processes must be slower or faster than this machine may be for the victim to come to its place.
    pub(super) may_miss: bool,
    pub(super) over: &'static [Over],
}

impl Case {
    const fn of(victims: &'static [Victim]) -> Self {
        let (servers, steps, elements) = (2, 10, 100_000);
        let (parts, over) = (Parts::Small, BOTH);
        Self { victims, servers, steps, elements, parts, leaves: false, asks: false, may_miss: false, over }
    }

    const fn over(self, over: &'static [Over]) -> Self {
        Self { over, ..self }
    }

    const fn large(self) -> Self {
        Self { elements: 1_000_000, steps: 4, parts: Parts::Large, ..self }
    }

    const fn leaves(self) -> Self {
        Self { leaves: true, ..self }
    }

    const fn asks(self) -> Self {
        Self { asks: true, ..self }
    }

    /// With another server, because two are lost, and maybe too quick for the victim.
    const fn recovers(self) -> Self {
        Self { servers: 3, may_miss: true, ..self }
    }
}

const BOTH: &[Over] = &[Shm, Quic];

const fn worker(point: Failpoint, often: u64) -> Victim {
    Victim { who: Who::Worker, point, often }
}

const fn leaver(point: Failpoint) -> Victim {
    Victim { who: Who::Leaver, point, often: 1 }
}

const fn server(point: Failpoint, often: u64) -> Victim {
    Victim { who: Who::Server, point, often }
}

const fn coordinator(point: Failpoint, often: u64) -> Victim {
    Victim { who: Who::Coordinator, point, often }
}

const fn next(point: Failpoint, often: u64) -> Victim {
    Victim { who: Who::NextCoordinator, point, often }
}

/// All of them.
pub(super) const CASES: &[Case] = &[
    // A worker, in steps in which nothing else happens.
    Case::of(&[worker(Joined, 1)]),
    Case::of(&[worker(Greets, 2)]).over(&[Shm]),
    Case::of(&[worker(StepBegins, 8)]),
    Case::of(&[worker(PushBegins, 90)]),
    Case::of(&[worker(BytesLeave, 60)]).large(),
    Case::of(&[worker(Pushed, 90)]),
    Case::of(&[worker(SumFlows, 10)]).large(),
    Case::of(&[worker(SumCame, 90)]),
    Case::of(&[worker(SumLanded, 60)]),
    // A server, in such steps.
    Case::of(&[server(Greets, 3)]).over(&[Shm]),
    Case::of(&[server(PeerCame, 3)]),
    Case::of(&[server(HeaderHeard, 140)]),
    Case::of(&[server(BodyFlows, 140)]),
    Case::of(&[server(Adds, 140)]),
    Case::of(&[server(BodyWhole, 140)]),
    Case::of(&[server(Publishes, 40)]),
    Case::of(&[server(Answers, 140)]),
    Case::of(&[server(BytesLeave, 60)]),
    Case::of(&[server(Answered, 140)]),
    Case::of(&[server(SumTaken, 140)]),
    Case::of(&[server(Drains, 1)]).asks(),
    // The last views come with the loss of a worker.
    Case::of(&[worker(StepBegins, 4), server(ViewHeard, 1)]),
    // A coordinator, which is started again.
    Case::of(&[coordinator(RecordMade, 12)]),
    Case::of(&[coordinator(RecordKept, 6)]),
    Case::of(&[coordinator(ViewTold, 5)]),
    Case::of(&[coordinator(RecordKept, 6), next(Resumed, 1)]),
    Case::of(&[coordinator(RecordKept, 6), next(ViewTold, 3)]),
    Case::of(&[worker(StepBegins, 4), coordinator(ViewTold, 9)]),
    // Somebody while a worker leaves at a boundary.
    Case::of(&[worker(BoundaryHeard, 1)]).leaves(),
    Case::of(&[worker(LimitHeard, 1)]).leaves(),
    Case::of(&[worker(Stands, 1)]).leaves(),
    Case::of(&[worker(PassedHeard, 1)]).leaves(),
    Case::of(&[leaver(BoundaryHeard)]).leaves(),
    Case::of(&[leaver(Stands)]).leaves(),
    Case::of(&[leaver(PassedHeard)]).leaves(),
    Case::of(&[coordinator(BoundaryTold, 6)]).leaves(),
    Case::of(&[coordinator(PassedTold, 3)]).leaves(),
    // Somebody while the workers bring sums of a lost server to others.
    Case::of(&[server(Answers, 140), worker(ViewHeard, 1)]).recovers(),
    Case::of(&[server(Answered, 140), worker(HoldingsKnown, 1)]).recovers(),
    Case::of(&[server(Answered, 140), worker(RestoreHeard, 1)]).recovers(),
    Case::of(&[server(Answered, 140), worker(RestoreBegins, 1)]).recovers(),
    Case::of(&[server(Answered, 140), worker(Restored, 1)]).recovers(),
    Case::of(&[server(Answered, 140), server(ViewHeard, 1)]).recovers(),
    Case::of(&[server(Answered, 140), server(RestoreOpened, 1)]).recovers(),
    Case::of(&[server(Answered, 140), coordinator(RestoreTold, 2)]).recovers(),
    Case::of(&[server(BodyFlows, 140), coordinator(ViewTold, 9)]).recovers(),
];
