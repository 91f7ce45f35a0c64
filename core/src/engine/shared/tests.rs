//! A panic under the lock ends every handle.

use super::*;
use crate::config::Config;
use crate::engine::dispatcher::Dispatcher;
use crate::engine::flight::Flight;
use crate::engine::handle::Handle;
use crate::local::Progress;
use crate::mem::Copies;
use crate::runtime::exporter::tests::{exporter, get};
use crate::sched::SchedulerConfig;
use crate::transport::{Answer, LinkLost, Peer, Push, Torn};
use crate::types::{DeviceKind, Done, ExchangeId, LinkId};
use crate::worker::WorkerSettings;

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
fn an_engine_that_stopped_is_not_ready() {
    let (shared, exporter) = (shared(), exporter("127.0.0.1:0"));
    let _exposure = exporter.show(Arc::clone(&shared.probe) as _);
    shared.probe.standing.advance(Standing::Ready);
    assert!(get(&exporter, "/readyz").starts_with("HTTP/1.1 200 "));
    shared.with(|_, _| panic!("planted")).unwrap_err();
    let told = get(&exporter, "/readyz");
    assert!(told.starts_with("HTTP/1.1 503 ") && told.ends_with("worker: failed\n"), "{told}");
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
    let dispatcher = Arc::new(Dispatcher::default());
    let flight = Arc::new(Flight::new(&Config::default(), clock));
    let checks = (Checksum::Never, NanCheck::Off);
    Arc::new(Shared::new(Arc::new(Nowhere), None, metrics, clock, checks, (worker, flight), dispatcher))
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
