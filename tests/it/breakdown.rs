//! Threads of a process that panic or end: the process says why, and takes its place in the job with it.

use std::sync::Arc;

use gradlane_core::Error;
use gradlane_core::engine::Engine;
use gradlane_core::transport::Transport;
use gradlane_core::transport::router::Router;
use gradlane_core::types::Op;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Tensor, config, worker, worker_over};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

matrix! {
    [over_shm, over_quic]:
        a_panic_while_a_part_is_pushed_ends_every_handle_and_is_told_to_the_others,
        a_transport_whose_thread_ends_takes_its_worker_out_of_the_job;
}

fn a_panic_while_a_part_is_pushed_ends_every_handle_and_is_told_to_the_others(over: Over) {
    // The first push is made by the caller's thread because it is short, the others by the thread of the stage.
    for bytes in [16, 1 << 20] {
        let job = Job::start(over, |_| panic!("planted"));
        let mut tensors = [0, 1].map(|rank| Tensor::new("w", vec![rank as f32; bytes / 4]));
        let [mine, theirs] = &mut tensors;
        let others = theirs.push_pull(&job.other, Op::Sum).unwrap();
        let error = mine.push_pull(&job.broken, Op::Sum).and_then(|handle| handle.wait(None)).unwrap_err();
        assert!(matches!(&error, Error::Internal { what } if what.ends_with("panicked: planted")), "{error}");
        let Err(Error::PeerLost { member, cause, .. }) = &others.wait(None) else { panic!("{others:?}") };
        assert_eq!(member, "worker 0");
        assert!(cause.contains("panicked: planted"), "{cause}");
    }
}

fn a_transport_whose_thread_ends_takes_its_worker_out_of_the_job(over: Over) {
    let job = Job::start(over, |_| Fate::Stay);
    let mut tensors = [0, 1].map(|rank| Tensor::new("w", vec![rank as f32; 100]));
    let [mine, theirs] = &mut tensors;
    // Worker 1 never comes to this one.
    let waiting = mine.push_pull(&job.broken, Op::Sum).unwrap();
    let cause = Error::Io { what: "receiving from the UDP socket".to_owned(), cause: "planted".to_owned() };
    job.tap.end_thread(&cause);
    assert_eq!(waiting.wait(None), Err(cause.clone()));
    let error = theirs.reduce(&job.other, Op::Sum).unwrap_err();
    let Error::PeerLost { member, cause: told, .. } = &error else { panic!("{error}") };
    assert_eq!((member.as_str(), told), ("worker 0", &cause.to_string()));
}

/// Two workers and a server. Worker 0 has somebody at its tap.
struct Job<F> {
    // In the order in which they end.
    broken: Engine,
    other: Engine,
    tap: Arc<Tap<F>>,
    _embedded: Embedded,
}

impl<F: Fn(u64) -> Fate + Send + Sync + 'static> Job<F> {
    fn start(over: Over, before: F) -> Self {
        let config = config(over, &[]);
        let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 2, servers: 1 }).unwrap();
        let join = embedded.join_string();
        let mut tap = None;
        let (broken, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| worker(&config, join, Some(1), 2).unwrap());
            let broken = worker_over(&config, join, Some(0), 2, |credentials, copies| {
                let tapped = Arc::new(Tap::new(Arc::new(Router::new(&config, credentials, copies)?), before));
                tap = Some(Arc::clone(&tapped));
                Ok(tapped as Arc<dyn Transport>)
            });
            (broken.unwrap(), other.join().unwrap())
        });
        Self { broken, other, tap: tap.expect("the worker has a transport"), _embedded: embedded }
    }
}
