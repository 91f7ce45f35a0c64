//! Links that break and workers that do not come: sums stay exact, and whoever waits is told.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::engine::{Engine, Handle};
use gradlane_core::transport::quic::{QuicTransport, Settings};
use gradlane_core::types::{Op, Role, WorkerId};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all, config, worker, worker_over};
use gradlane_tests::digits;
use gradlane_tests::matrix;
use gradlane_tests::network::Relay;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

use crate::actors::worker as worker_process;

matrix! {
    [over_shm, over_quic]:
        a_worker_that_does_not_come_is_named_to_those_who_wait,
        a_root_that_sends_nothing_is_named_to_those_who_wait,
        a_root_that_dies_is_named_to_those_who_wait_for_its_broadcast,
        sums_stay_exact_when_links_are_cut_again_and_again;
}

fn a_worker_that_does_not_come_is_named_to_those_who_wait(over: Over) {
    let cluster = Cluster::with(over, 3, 1, &[("step_timeout", "2 s"), ("stall_warn", "200 ms")]);
    let errors = all(&cluster.workers[..2], |engine| Tensor::new("lonely", vec![1_f32; 10]).reduce(engine, Op::Sum));
    for error in errors {
        let Err(Error::Stalled { tensor, missing, .. }) = &error else { panic!("{error:?}") };
        assert_eq!((tensor, missing.as_slice()), (&"lonely".into(), &[WorkerId(2)][..]));
    }
    let next = all(&cluster.workers, |engine| Tensor::new("next", vec![1_f32; 10]).reduce(engine, Op::Sum));
    assert_eq!(next, vec![Ok(()); 3], "the job goes on");
}

fn a_root_that_sends_nothing_is_named_to_those_who_wait(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1 s"), ("stall_warn", "200 ms")]);
    let op = Op::Broadcast { root: WorkerId(1) };
    let error = Tensor::new("weights", vec![1_f32; 10]).reduce(&cluster.workers[0], op).unwrap_err();
    let Error::Stalled { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[WorkerId(1)]);
}

fn a_root_that_dies_is_named_to_those_who_wait_for_its_broadcast(over: Over) {
    // So patient that it is the death that is heard of, and not that nothing came.
    let config = config(over, &[]);
    let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 3, servers: 1 }).unwrap();
    let join = embedded.join_string();
    let mut root = worker_process(over, &["puppet"], join, Some(0), 3, &[]);
    let others: Vec<Engine> = std::thread::scope(|scope| {
        let joining = [1, 2].map(|rank| {
            let config = &config;
            scope.spawn(move || worker(config, join, Some(rank), 3).unwrap())
        });
        joining.into_iter().map(|other| other.join().unwrap()).collect()
    });
    assert_eq!(root.line(), "joined 0");
    let mut weights = [1, 2].map(|_| Tensor::new("weights", vec![1_f32; 10]));
    let op = Op::Broadcast { root: WorkerId(0) };
    let waiting = weights.each_mut().into_iter().zip(&others);
    let waiting: Vec<Handle> = waiting.map(|(tensor, engine)| tensor.push_pull(engine, op).unwrap()).collect();
    root.signal("KILL");
    embedded.coordinator().report_death(root.pid(), "it was killed".to_owned());
    for handle in waiting {
        let error = handle.wait(Some(PATIENCE)).unwrap_err();
        let Error::PeerLost { member, .. } = &error else { panic!("{error}") };
        assert_eq!(member, "worker 0");
    }
}

fn sums_stay_exact_when_links_are_cut_again_and_again(over: Over) {
    // A repeat says how much of the contribution the sum overwrote; with `continue` nothing was.
    for on_worker_loss in ["abort", "continue"] {
        let settings = [&SMALL_PARTS[..], &[("on_worker_loss", on_worker_loss)]].concat();
        let cut = |push| if push % 23 == 0 { Fate::Cut } else { Fate::Stay };
        let cluster = Cluster::tapped(over, 3, 2, &settings, |transport| Arc::new(Tap::new(transport, cut)));
        let wrong = all(&cluster.workers, |engine| rounds(engine, 3, 12));
        assert_eq!(wrong, vec![Ok(()); 3], "{on_worker_loss}");
        for engine in &cluster.workers {
            assert!(engine.metrics().repeats.load(Relaxed) > 0 && engine.metrics().connections.load(Relaxed) > 2);
        }
    }
}

#[test]
fn sums_stay_exact_when_the_network_goes_silent_for_a_while() {
    let config = config(Over::Quic, &SMALL_PARTS);
    let machine = CoordinatorConfig::from_config(&config, 2, 1);
    let coordinator = CoordinatorNode::start(machine, &config, None).unwrap();
    let join = coordinator.join_string();
    let server = Server::start(ServerOptions {
        // The relay takes the server's port at another address of this host.
        config: Config { advertise: Some(Relay::HOST.to_owned()), ..config.clone() },
        coordinator: join.address.clone(),
        credentials: Arc::new(coordinator.credentials(Role::Server).unwrap()),
        index: None,
    })
    .unwrap();
    let relay = Arc::new(Relay::before(server.address()));
    // What goes silent is given up soon.
    let settings = Settings {
        idle_timeout: Duration::from_millis(600),
        keep_alive: Duration::from_millis(150),
        ..Settings::from_config(&config)
    };
    let start = |rank| {
        worker_over(&config, join, Some(rank), 2, |credentials, _| {
            let relay = Arc::clone(&relay);
            let silence = move |push| {
                if push == 40 {
                    relay.cut_until_dialled();
                }
                Fate::Stay
            };
            Ok(Arc::new(Tap::new(Arc::new(QuicTransport::new(credentials, &settings)?), silence)))
        })
        .unwrap()
    };
    let workers: Vec<Engine> = std::thread::scope(|scope| {
        let starting = [0, 1].map(|rank| scope.spawn(move || start(rank)));
        starting.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let wrong = all(&workers, |engine| rounds(engine, 2, 12));
    assert_eq!(wrong, vec![Ok(()); 2]);
    let repeats: u64 = workers.iter().map(|engine| engine.metrics().repeats.load(Relaxed)).sum();
    assert!(repeats > 0 && relay.harmed() > 0);
    drop(workers);
}

/// Reduces three tensors a round and looks at every digit.
fn rounds(engine: &Engine, workers: u32, rounds: u64) -> Result<(), String> {
    for round in 0..rounds {
        let rank = engine.rank().0;
        let of = |(name, len)| Tensor::new(name, digits::contribution(rank, name, round, len));
        let mut tensors = [("a", 10), ("b", 30_000), ("c", 100_000)].map(of);
        let handles: [Handle; 3] = tensors.each_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap());
        for handle in handles {
            handle.wait(Some(PATIENCE)).map_err(|error| error.to_string())?;
        }
        tensors.iter().try_for_each(|tensor| digits::check(&tensor.data, workers, &tensor.spec.name, round))?;
    }
    Ok(())
}
