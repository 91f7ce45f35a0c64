//! Names that end.
//!
//! A worker that uses a name no more *undeclares* it. When every worker has, the name ends: it costs nothing any more, neither here nor on a
//! server, and may be declared again as a new tensor.
//!
//! ```text
//!  declared ──undeclared by some workers──► (still known) ──undeclared by all──► ended ──declared──► (a new tensor, with new parts)
//! ```
//! A worker may declare the name again before the others have undeclared it. Its declaration then waits until they have. It has no deadline
//! here: what the worker submitted has one.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Defect, TensorKey, TensorSpec, Time, WorkerId, WorkerSet, planted};
use gradlane_core::wire::limits;

use super::lately::Lately;
use super::registry::{Ended, Registry};

/// What is known about names that end, beside the registry.
#[derive(Debug)]
pub(super) struct Endings {
    /// The latest request of each worker. A repeat must not be taken for a new one, because the name may live again.
    latest: BTreeMap<WorkerId, u64>,
    waiting: BTreeMap<(WorkerId, u64), Waiting>,
    /// How much of it each worker has.
    held: BTreeMap<WorkerId, Held>,
    /// The bytes of declarations that one worker may let wait.
    bytes_max: usize,
    /// What ended lately, for servers that may have missed it.
    told: Lately<Ended>,
    defect: Option<Defect>,
}

/// A declaration that waits until names end.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Waiting {
    pub(super) tensors: Vec<TensorSpec>,
    pub(super) fuse: bool,
}

/// The declarations of one worker that wait.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    tensors: usize,
    bytes: usize,
}

/// What the declarations of all workers may hold, in a job that has not very many.
const BYTES_MAX: usize = 256 << 20;
/// What those of one worker may hold in any job: some ten thousand tensors.
const BYTES_OF_WORKER_MIN: usize = 1 << 20;

impl Endings {
    /// Nothing ended, in a job of so many workers. A server that was away for `remember` is given up.
    pub(super) fn new(workers: u32, remember: Duration, defect: Option<Defect>) -> Self {
        let share = BYTES_MAX / (workers as usize).max(1);
        Self {
            latest: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: BTreeMap::new(),
            bytes_max: share.clamp(BYTES_OF_WORKER_MIN, limits::FRAME_BYTES_MAX),
            told: Lately::new(remember),
            defect,
        }
    }

    /// `worker` uses these names no more. Returns what ended because of it, in a job of these `workers`. A repeat of a request changes
    /// nothing.
    pub(super) fn undeclare(
        &mut self,
        now: Time,
        registry: &mut Registry,
        worker: WorkerId,
        request: u64,
        names: &[String],
        workers: &WorkerSet,
    ) -> Option<Ended> {
        if self.latest.get(&worker).is_some_and(|latest| request <= *latest) {
            return None;
        }
        self.latest.insert(worker, request);
        let keys = registry.release(worker, names);
        let only_this = WorkerSet::from_iter([worker]);
        let due = if planted(self.defect, Defect::NameEndsEarly) { &only_this } else { workers };
        self.end(now, registry, &keys, due)
    }

    /// Only these workers are left. Returns what ended because of it.
    pub(super) fn go_on(&mut self, now: Time, registry: &mut Registry, workers: &WorkerSet) -> Option<Ended> {
        self.waiting.retain(|(worker, _), _| workers.contains(*worker));
        self.held.retain(|worker, _| workers.contains(*worker));
        let keys = registry.released();
        self.end(now, registry, &keys, workers)
    }

    /// Keeps a declaration until the names that its worker has undeclared end. Returns it if there is nothing to wait for.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if too many tensors wait.
    pub(super) fn wait(
        &mut self,
        registry: &Registry,
        worker: WorkerId,
        request: u64,
        declaration: Waiting,
    ) -> Result<Option<Waiting>> {
        if !registry.is_released(worker, &declaration.tensors) {
            return Ok(Some(declaration));
        }
        // A repeat takes the place of the first one.
        self.take((worker, request));
        let (held, more) = (self.held.get(&worker).copied().unwrap_or_default(), declaration.size());
        let (tensors, bytes) = (held.tensors + more.tensors, held.bytes + more.bytes);
        if tensors > limits::TENSORS_MAX || bytes > self.bytes_max {
            return Err(Error::Exhausted {
                what: "tensors that wait until every worker has undeclared their names".to_owned(),
                limit: format!("{} or {} B of names and shapes for a worker", limits::TENSORS_MAX, self.bytes_max),
                hint: "undeclare a name on every worker before you use it again".to_owned(),
            });
        }
        self.held.insert(worker, Held { tensors, bytes });
        self.waiting.insert((worker, request), declaration);
        Ok(None)
    }

    /// Takes a declaration out of those that wait.
    fn take(&mut self, of: (WorkerId, u64)) -> Option<Waiting> {
        let waiting = self.waiting.remove(&of)?;
        let (held, less) = (self.held.get_mut(&of.0).expect("its declaration was counted"), waiting.size());
        *held = Held { tensors: held.tensors - less.tensors, bytes: held.bytes - less.bytes };
        Some(waiting)
    }

    /// A declaration that need not wait any more, with its worker and request.
    pub(super) fn next_ready(&mut self, registry: &Registry) -> Option<(WorkerId, u64, Waiting)> {
        let is_ready = |(of, waiting): &(&(WorkerId, u64), &Waiting)| !registry.is_released(of.0, &waiting.tensors);
        let of = self.waiting.iter().find(is_ready).map(|(of, _)| *of)?;
        let waiting = self.take(of).expect("found above");
        Some((of.0, of.1, waiting))
    }

    /// What ended lately, for a server that has connected again.
    pub(super) fn lately(&self) -> impl Iterator<Item = &Ended> {
        self.told.iter()
    }

    fn end(&mut self, now: Time, registry: &mut Registry, keys: &[TensorKey], workers: &WorkerSet) -> Option<Ended> {
        let ended = registry.end(keys, workers)?;
        self.told.push(now, ended.clone());
        Some(ended)
    }
}

impl Waiting {
    /// What it holds in memory.
    fn size(&self) -> Held {
        let bytes = |spec: &TensorSpec| {
            let members = spec.participants.members().map_or(0, |members| members.as_bytes().len());
            size_of::<TensorSpec>() + spec.name.len() + size_of_val(&spec.shape[..]) + members
        };
        let own = size_of::<((WorkerId, u64), Self)>();
        Held { tensors: self.tensors.len(), bytes: own + self.tensors.iter().map(bytes).sum::<usize>() }
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::pipeline::LayoutConfig;
    use gradlane_core::types::{DType, Epoch, Incarnation, Member, NodeId, Phase, Process, Role, Round, View};

    use super::*;

    #[test]
    fn a_name_ends_when_every_worker_has_undeclared_it() {
        let mut job = Job::new();
        let first = job.declare(0, "a", 10).unwrap();
        assert_eq!(job.undeclare(0, 1, "a"), None);
        assert_eq!(job.undeclare(1, 1, "a"), Some(Ended { keys: vec![TensorKey::of("a")], below: 1 }));
        let second = job.declare(1, "a", 20).expect("another shape is no mismatch");
        assert!(second > first, "no part comes twice");
        assert_eq!(job.registry.placement().loads()[0].parts, 1, "the old part costs nothing");
    }

    #[test]
    fn tensors_that_share_a_part_end_together() {
        let mut job = Job::new();
        job.registry.declare(Time::ZERO, WorkerId(0), &[spec("a", 1), spec("b", 1)], true).0.unwrap();
        for worker in [0, 1] {
            assert_eq!(job.undeclare(worker, 1, "a"), None);
        }
        assert_eq!(job.undeclare(0, 2, "b"), None);
        let ended = job.undeclare(1, 2, "b").expect("both");
        assert_eq!(ended.keys.len(), 2);
    }

    #[test]
    fn a_repeat_does_not_end_the_next_life_of_a_name() {
        let mut job = Job::new();
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 1, "a");
        job.undeclare(1, 1, "a").expect("ended");
        job.declare(0, "a", 10).unwrap();
        job.undeclare(1, 2, "a");
        assert_eq!(job.undeclare(0, 1, "a"), None, "said in the life before");
        assert!(job.undeclare(0, 2, "a").is_some());
    }

    #[test]
    fn a_declaration_waits_for_the_end_of_the_name() {
        let mut job = Job::new();
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 1, "a");
        let again = Waiting { tensors: vec![spec("a", 20)], fuse: false };
        let other = Waiting { tensors: vec![spec("b", 1)], fuse: false };
        let mut wait = |worker, request, declaration: &Waiting| {
            job.endings.wait(&job.registry, WorkerId(worker), request, declaration.clone()).unwrap()
        };
        assert_eq!(wait(0, 2, &again), None);
        assert_eq!(wait(0, 2, &again), None, "repeated after a reconnection");
        assert_eq!(wait(0, 3, &other), Some(other.clone()), "nothing to wait for");
        assert_eq!(wait(1, 1, &again), Some(again.clone()), "this worker has not undeclared it");
        assert_eq!(job.endings.next_ready(&job.registry), None);
        job.undeclare(1, 2, "a").expect("ended");
        assert_eq!(job.endings.next_ready(&job.registry), Some((WorkerId(0), 2, again)));
        assert_eq!(job.endings.next_ready(&job.registry), None);
    }

    #[test]
    fn a_lost_worker_need_not_undeclare() {
        let mut job = Job::new();
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 1, "a");
        let survivors = WorkerSet::from_iter([WorkerId(0)]);
        assert!(job.endings.go_on(Time::ZERO, &mut job.registry, &survivors).is_some());
    }

    #[test]
    fn what_ended_is_remembered_as_long_as_a_server_may_be_away() {
        let mut job = Job::new();
        for (at, name) in [(0, "a"), (9, "b"), (12, "c")] {
            let now = Time::ZERO + Duration::from_secs(at);
            job.declare(0, name, 1).unwrap();
            for worker in [0, 1] {
                let names = [name.to_owned()];
                job.endings.undeclare(now, &mut job.registry, WorkerId(worker), at + 1, &names, &both());
            }
        }
        let known: Vec<TensorKey> = job.endings.lately().flat_map(|ended| ended.keys.clone()).collect();
        assert_eq!(known, [TensorKey::of("b"), TensorKey::of("c")]);
    }

    #[test]
    fn what_a_worker_lets_wait_is_bounded() {
        let mut job = Job::new();
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 1, "a");
        let many = Waiting { tensors: vec![spec("a", 10); limits::TENSORS_MAX], fuse: false };
        assert_eq!(job.endings.wait(&job.registry, WorkerId(0), 2, many.clone()), Ok(None));
        let refused = job.endings.wait(&job.registry, WorkerId(0), 3, many);
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
    }

    #[test]
    fn the_bytes_of_what_a_worker_lets_wait_are_bounded_and_freed_with_it() {
        let mut job = Job::new();
        job.endings = Endings::new(8192, Duration::from_secs(10), None);
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 1, "a");
        let deep = TensorSpec::new("a", DType::F32, vec![1; limits::DIMENSIONS_MAX]);
        let large = Waiting { tensors: vec![deep; 1000], fuse: false };
        let wait = |job: &mut Job, request| {
            job.endings.wait(&job.registry, WorkerId(0), request, large.clone()).map(|ready| ready.is_none())
        };
        assert_eq!(wait(&mut job, 2), Ok(true));
        assert_eq!(wait(&mut job, 2), Ok(true), "a repeat is no second one");
        assert!(matches!(wait(&mut job, 3), Err(Error::Exhausted { .. })));
        job.undeclare(1, 1, "a").expect("ended");
        assert_eq!(job.endings.next_ready(&job.registry).map(|(_, request, _)| request), Some(2));
        job.declare(0, "a", 10).unwrap();
        job.undeclare(0, 4, "a");
        assert_eq!(wait(&mut job, 5), Ok(true), "there is room again");
    }

    #[test]
    fn a_name_that_nobody_declared_or_that_another_tensor_has_does_not_end() {
        let mut job = Job::new();
        assert_eq!(job.undeclare(0, 1, "unknown"), None);
        assert_eq!(job.undeclare(1, 1, "unknown"), None);
    }

    struct Job {
        registry: Registry,
        endings: Endings,
    }

    impl Job {
        fn new() -> Self {
            let member = |role, index: u8| Member {
                process: Process::new(role, Incarnation(u128::from(index))),
                node: NodeId([index; 32]),
                index: 0,
                first_round: Round(0),
            };
            let view = View::plain(
                "test",
                Epoch { term: 1, number: 1 },
                Phase::Running,
                vec![member(Role::Worker, 1), member(Role::Server, 2)],
            );
            let registry = Registry::new(LayoutConfig::default(), &view, Duration::from_secs(10));
            Self { registry, endings: Endings::new(2, Duration::from_secs(10), None) }
        }

        /// Returns the index of the tensor's only part.
        fn declare(&mut self, worker: u32, name: &str, len: u64) -> Result<u32> {
            let (outcome, _) = self.registry.declare(Time::ZERO, WorkerId(worker), &[spec(name, len)], false);
            outcome.map(|layouts| layouts[0].part.index)
        }

        fn undeclare(&mut self, worker: u32, request: u64, name: &str) -> Option<Ended> {
            let names = [name.to_owned()];
            self.endings.undeclare(Time::ZERO, &mut self.registry, WorkerId(worker), request, &names, &both())
        }
    }

    fn both() -> WorkerSet {
        WorkerSet::from_iter([WorkerId(0), WorkerId(1)])
    }

    fn spec(name: &str, len: u64) -> TensorSpec {
        TensorSpec::new(name, DType::F32, vec![len])
    }
}
