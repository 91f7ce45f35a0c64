//! A panic under the lock ends every handle. What fails is dumped by the flight recorder.

use std::path::Path;

use serde_json::Value;

use super::*;
use crate::cluster::MemberEvent;
use crate::config::Config;
use crate::engine::dispatcher::Dispatcher;
use crate::engine::events::on_event;
use crate::engine::handle::Handle;
use crate::engine::recorder::{Flight, Recorder};
use crate::local::Progress;
use crate::mem::Copies;
use crate::metrics::{self, Cell as _};
use crate::runtime::exporter::Shown as _;
use crate::runtime::exporter::tests::{exporter, get};
use crate::sched::SchedulerConfig;
use crate::transport::{Answer, LinkLost, Peer, Push, Torn};
use crate::types::{
    DType, Demand, DeviceKind, Done, ExchangeId, InCopies, LinkId, Op, Priority, Role, Round, TensorSpec,
};
use crate::worker::{Tensor, Terms, WorkerSettings};

#[test]
fn a_panic_of_the_machine_ends_every_handle_with_a_typed_error() {
    let shared = shared();
    let handles = [1, 2].map(|id| lend(&shared, id));
    let panicked = shared.with(|_, _| panic!("planted")).unwrap_err();
    assert!(matches!(&panicked, Error::Internal { what } if what.ends_with("panicked: planted")), "{panicked}");
    for handle in handles {
        assert_eq!(handle.wait(None), Err(panicked.clone()));
    }
    assert_eq!(shared.with(|_, _| ()), Err(panicked), "nothing is accepted any more");
}

#[test]
fn a_panic_outside_the_lock_ends_every_handle_as_well() {
    let shared = shared();
    let handle = lend(&shared, 1);
    let panicked = shared.guard(|| panic!("planted")).unwrap_err();
    assert!(matches!(&panicked, Error::Internal { what } if what.ends_with("panicked: planted")), "{panicked}");
    assert_eq!(handle.wait(None), Err(panicked.clone()));
    assert_eq!(shared.guard(|| ()), Ok(()), "other threads end by themselves");
    assert_eq!(shared.with(|_, _| ()), Err(panicked));
}

#[test]
fn a_panic_of_a_thread_that_waits_for_a_handle_ends_every_handle() {
    let shared = shared();
    let waiting: Arc<dyn Progress + Send + Sync> = Arc::new(Waiting(Arc::clone(&shared)));
    let handles = [1, 2].map(|id| lend(&shared, id).polling(Arc::downgrade(&waiting)));
    for handle in handles {
        let error = handle.wait(None).unwrap_err();
        assert!(error.to_string().contains("panicked: nobody is reached"), "{error}");
    }
}

#[test]
fn a_transport_whose_thread_ended_ends_every_handle_with_its_cause() {
    let shared = shared();
    let handle = lend(&shared, 1);
    let [first, second] = ["first", "second"].map(|cause| Error::Io { what: String::new(), cause: cause.to_owned() });
    assert_eq!(shared.break_down(first.clone()), first);
    assert_eq!(shared.break_down(second), first);
    assert_eq!(handle.wait(None), Err(first));
}

#[test]
fn metrics_are_shown_while_the_lock_is_held() {
    let (shared, exporter) = (shared(), exporter("127.0.0.1:0"));
    let _exposure = exporter.show(Arc::clone(&shared.probe) as _);
    shared.probe.rank.set(3).unwrap();
    Metrics::add(&shared.metrics.submissions, 5);
    let held = shared.state.lock();
    let memory = shared.memory.write();
    assert!(get(&exporter, "/metrics").contains("gradlane_worker_submissions_total{rank=\"3\"} 5\n"));
    assert!(get(&exporter, "/readyz").ends_with("\r\n\r\nworker: joining\n"));
    drop((held, memory));
}

#[test]
fn a_step_lasts_from_the_first_sum_of_a_round_to_that_of_the_next_one() {
    let shared = shared();
    let begins = |millis: u64, round: Option<u64>| {
        let now = Time::ZERO + Duration::from_millis(millis);
        shared.with(|state, _| state.follow_step(now, round.map(Round))).unwrap();
    };
    for (millis, round) in [(10, None), (100, Some(0)), (150, Some(0)), (300, Some(1)), (310, Some(0)), (320, None)] {
        begins(millis, round);
    }
    let metrics::Value::Histogram(steps) = shared.metrics.step_duration_nanoseconds.value() else {
        panic!("a histogram")
    };
    assert_eq!((steps.count(), steps.nanoseconds), (1, 200_000_000));
}

#[test]
fn the_recorders_events_are_counted_when_somebody_asks() {
    let shared = shared();
    shared.probe.rank.set(3).unwrap();
    (0..70).for_each(|handle| shared.flight.recorder.waits(Time::ZERO, handle));
    let told = shared.probe.values().unwrap();
    let of = |name: &str| told.family(name).find(|(sink, _)| *sink == ["recorder"]).map(|(_, count)| count);
    assert_eq!((of("trace_events"), of("trace_events_lost")), (Some(70), Some(0)), "also those that were overwritten");
}

#[test]
fn an_engine_that_stopped_is_not_ready() {
    let (shared, exporter) = (shared(), exporter("127.0.0.1:0"));
    let _exposure = exporter.show(Arc::clone(&shared.probe) as _);
    shared.probe.standing.advance(Standing::Ready);
    assert!(get(&exporter, "/readyz").starts_with("HTTP/1.1 200 "));
    shared.with(|_, _| panic!("planted")).unwrap_err();
    let told = get(&exporter, "/readyz");
    assert!(told.starts_with("HTTP/1.1 503 ") && told.ends_with("worker: failed\n"), "{told}");
}

#[test]
fn the_dump_of_the_end_of_the_job_has_the_operations_that_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let shared = recorded(dir.path());
    let (id, handle) = submit(&shared);
    let lost = || Error::PeerLost { member: "worker 1".to_owned(), host: "n1".to_owned(), cause: "x".to_owned() };
    on_event(&shared, MemberEvent::Failed(lost()));
    assert_eq!(handle.wait(None), Err(lost()));
    let dump = dumped(&shared, dir.path()).expect("the end of the job");
    assert_eq!((&dump["end"]["kind"], &dump["errors"]), (&"PeerLost".into(), &serde_json::json!([])));
    let open = &dump["open"];
    assert_eq!((open.as_array().unwrap().len(), &open[0]["id"], &open[0]["tensor"]), (1, &id.into(), &"w".into()));
}

#[test]
fn an_operation_that_fails_is_dumped_unless_its_caller_wanted_its_end() {
    for (end, reason) in [
        (refuse as fn(&mut State, Time, u64), Some("an operation failed: x: full")),
        (|state, now, id| state.worker.cancel(now, id), None),
        (leave, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let shared = recorded(dir.path());
        let (id, handle) = submit(&shared);
        shared.report(|state, now| end(state, now, id));
        handle.wait(None).unwrap_err();
        let dump = dumped(&shared, dir.path());
        assert_eq!(dump.as_ref().map(|dump| dump["reason"].as_str().unwrap()), reason);
        let found = dump.map(|dump| [&dump["open"][0]["id"], &dump["errors"][0]["id"]].map(Value::clone));
        assert_eq!(found, reason.map(|_| [id.into(), id.into()]), "it is in the dump of its failure");
    }
}

fn leave(state: &mut State, now: Time, id: u64) {
    state.leave(now, Duration::ZERO);
    refuse(state, now, id);
}

/// The declaration of the tensor fails.
fn refuse(state: &mut State, now: Time, _id: u64) {
    let error = Error::Io { what: "x".to_owned(), cause: "full".to_owned() };
    state.worker.handle_declared(now, 1, Err(error));
}

/// Submits a tensor that the coordinator never answers. Returns the number of the submission.
fn submit(shared: &Arc<Shared>) -> (u64, Handle) {
    let spec = TensorSpec::new("w", DType::F32, vec![1]);
    let (key, demand) = (spec.key(), Demand::Reduce { op: Op::Sum, weight: 1.0 });
    let submit = |state: &mut State, now| {
        let in_copies = InCopies::Nothing;
        let tensor =
            Tensor { key, bytes: 4, device: None, in_copies, in_place: true, priority: Priority(0), cuts: None };
        let id = state.worker.submit(now, &spec, tensor, Terms { demand, timeout: None });
        state.record(now, id, (key, None), (&demand, 4), true);
        let (handle, done) = Handle::new(id, None, Arc::default(), |_| {});
        let taken = state.loans.take_all(std::iter::empty()).expect("nothing is in use");
        state.loans.lend(id, &taken, Vec::new(), None, done);
        (id, handle)
    };
    shared.with(submit).unwrap()
}

/// The dump of a failure, if there is one.
fn dumped(shared: &Shared, dump_dir: &Path) -> Option<Value> {
    shared.flight.settle(Duration::from_secs(60));
    let mut files = std::fs::read_dir(dump_dir.join("flight")).ok()?;
    let text = std::fs::read(files.next().expect("one file").unwrap().path()).unwrap();
    Some(serde_json::from_slice(&text).unwrap())
}

/// The handle of a submission that nothing ends.
fn lend(shared: &Arc<Shared>, id: u64) -> Handle {
    let (handle, done) = Handle::new(id, None, Arc::default(), |_| {});
    let lend = |state: &mut State, _| {
        let taken = state.loans.take_all(std::iter::empty()).expect("nothing is in use");
        state.loans.lend(id, &taken, Vec::new(), None, done);
    };
    shared.with(lend).unwrap();
    handle
}

fn shared() -> Arc<Shared> {
    shared_by(&Config::default())
}

/// One that dumps failures below this directory.
fn recorded(dump_dir: &Path) -> Arc<Shared> {
    shared_by(&Config { dump_dir: Some(dump_dir.to_owned()), ..Config::default() })
}

fn shared_by(config: &Config) -> Arc<Shared> {
    let clock = Clock::start();
    let (scheduler, stall_warn, device) = (SchedulerConfig::default(), Duration::ZERO, DeviceKind::Host);
    let worker = Worker::new(
        clock.now(),
        WorkerSettings {
            scheduler,
            stall_warn,
            bounds: Config::default().bounds(),
            contact: None,
            device,
            keeps: false,
            keeps_sums: false,
        },
    );
    let metrics = Metrics::new(&Copies::default());
    let dispatcher = Arc::new(WithoutCoordinator(Dispatcher::default()));
    let flight = Arc::new(Flight::new(config, Role::Worker, clock, Recorder::new(64)));
    let checks = (Checksum::Never, NanCheck::Off);
    Arc::new(Shared::new(Arc::new(Nowhere), None, metrics, clock, checks, (worker, flight), dispatcher))
}

/// A dispatcher whose declarations get no answer.
struct WithoutCoordinator(Dispatcher);

impl Dispatch for WithoutCoordinator {
    fn carry_out(&self, shared: &Arc<Shared>, mut effects: Vec<Effect>, here_bytes_max: u64) {
        effects.retain(|effect| !matches!(effect, Effect::Declare { .. }));
        self.0.carry_out(shared, effects, here_bytes_max);
    }
}

/// A transport that reaches nobody.
struct Nowhere;

impl Progress for Nowhere {
    fn poll(&self, _enough: &dyn Fn() -> bool, _patience: Duration) {
        panic!("nobody is reached");
    }
}

impl Transport for Nowhere {
    fn connect(&self, _peer: Peer, _timeout: Duration, _lost: LinkLost, _done: Done<LinkId>) {}
    fn push(&self, _link: LinkId, _exchange: ExchangeId, _push: Push, _done: Done<()>) {}
    fn pull(&self, _link: LinkId, _exchange: ExchangeId, _into: Vec<crate::mem::Region>, _done: Done<Answer, Torn>) {}
    fn abandon(&self, _link: LinkId, _exchange: ExchangeId) {}
    fn disconnect(&self, _link: LinkId) {}
    fn shutdown(&self, _patience: Duration) {}
}
