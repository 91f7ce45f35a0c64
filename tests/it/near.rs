//! Servers and workers of one machine, as processes: what those that are killed leave behind.

use std::path::Path;
use std::sync::Arc;

use gradlane_core::device::Device;
use gradlane_core::local::PrivateSocket;
use gradlane_core::types::Op;
use gradlane_core::{Code, engine::Engine};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_tests::cluster::{PATIENCE, Tensor, all, config, worker_with};
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::Process;
use tempfile::TempDir;

use crate::actors::server;

matrix! {
    [over_shm, over_quic]:
        a_server_that_is_killed_among_bodies_is_lost_to_its_workers_and_its_socket_is_cleared_away;
}

#[test]
fn a_server_that_is_killed_while_it_reads_what_is_staged_is_lost_to_its_workers() {
    let Job { workers, mut victim, coordinator: _coordinator, runtime_dir: _runtime_dir } =
        Job::start(Over::Shm, || Some(TestDevice::start()));
    let warm = all(&workers, |engine| {
        let mut tensor = Tensor::new("warm", vec![1_f32; 100_000]);
        engine.reduce(tensor.on_device(Op::Sum), Some(PATIENCE)).map(|()| tensor.data)
    });
    assert_eq!(warm, vec![Ok(vec![2_f32; 100_000]); 2]);

    // The other worker contributes nothing, so that what is staged stays so until the server is gone.
    let mut tensor = Tensor::new("large", vec![1_f32; 4 << 20]);
    let handle = workers[0].push_pull(tensor.on_device(Op::Sum), |_| {}).unwrap();
    eventually("a contribution is staged", || (metric(&workers[0], "pushes") > 1).then_some(()));
    assert_eq!(workers[0].metrics().copied_bytes(), 0, "it is lent");
    kill(&mut victim);
    let error = handle.wait(Some(PATIENCE)).expect_err("nobody adds it");
    assert_eq!(error.code(), Code::Aborted, "{error}");
    assert!(error.to_string().contains("server 0"), "{error}");
    drop(workers);
    assert_eq!(tensor.data, vec![1_f32; 4 << 20], "no sum, and no other bytes either");
}

fn a_server_that_is_killed_among_bodies_is_lost_to_its_workers_and_its_socket_is_cleared_away(over: Over) {
    let Job { workers, mut victim, coordinator: _coordinator, runtime_dir } = Job::start(over, || None);
    let warm = all(&workers, |engine| Tensor::new("warm", vec![1_f32; 1000]).reduce(engine, Op::Sum));
    assert_eq!(warm, vec![Ok(()); 2]);
    let has_socket = usize::from(over == Over::Shm);
    assert_eq!(sockets(runtime_dir.path()), has_socket);

    let mut tensors: Vec<Tensor> = (0..2).map(|_| Tensor::new("large", vec![1_f32; 16 << 20])).collect();
    let handles: Vec<_> =
        workers.iter().zip(&mut tensors).map(|(engine, tensor)| tensor.push_pull(engine, Op::Sum).unwrap()).collect();
    kill(&mut victim);
    for handle in handles {
        let error = handle.wait(Some(PATIENCE)).expect_err("64 MiB take longer than a signal");
        assert_eq!(error.code(), Code::Aborted, "{error}");
        assert!(error.to_string().contains("server 0"), "{error}");
    }
    drop(workers);

    assert_eq!(sockets(runtime_dir.path()), has_socket, "what SIGKILL leaves: a name, and no memory");
    let next = PrivateSocket::listen(runtime_dir.path()).unwrap();
    assert_eq!(sockets(runtime_dir.path()), 1, "cleared away by the next one");
    drop(next);
    assert_eq!(sockets(runtime_dir.path()), 0);
}

/// Two workers of this process, and a server of another.
struct Job {
    workers: Vec<Engine>,
    victim: Process,
    coordinator: CoordinatorNode,
    /// Where the server has its socket, if it has one.
    runtime_dir: TempDir,
}

impl Job {
    /// Starts it; each worker gets a device of its own.
    fn start(over: Over, device: impl Fn() -> Option<Arc<TestDevice>> + Sync) -> Self {
        let runtime_dir = tempfile::tempdir().unwrap();
        let runtime = runtime_dir.path().to_str().unwrap();
        let settings = [("runtime_dir", runtime), ("suspect_timeout", "1s"), ("dead_timeout", "3s")];
        let config = config(over, &settings);
        let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 2, 1), &config, None).unwrap();
        let victim = server(over, coordinator.join_string(), 0, &settings);
        let join = |rank| {
            let device = device().map(|device| device as Arc<dyn Device>);
            worker_with(&config, coordinator.join_string(), Some(rank), 2, device).unwrap()
        };
        let workers = std::thread::scope(|scope| {
            let join = &join;
            let starting = [0, 1].map(|rank| scope.spawn(move || join(rank)));
            starting.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        Self { workers, victim, coordinator, runtime_dir }
    }
}

fn metric(engine: &Engine, name: &str) -> u64 {
    engine.metrics().instance(0).number(name).expect("a metric")
}

fn kill(victim: &mut Process) {
    victim.signal("KILL");
    assert_eq!(victim.end().code, None);
}

/// How many sockets there are.
fn sockets(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}
