//! Many rounds: a worker may run ahead, and no round ever shows bytes of another.

use gradlane_core::engine::{Engine, Handle};
use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::digits;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        a_worker_that_runs_ahead_gets_the_sum_of_each_round,
        fifty_rounds_of_several_tensors_count_every_worker_once;
}

fn a_worker_that_runs_ahead_gets_the_sum_of_each_round(over: Over) {
    const ROUNDS: u64 = 8;
    const LEN: usize = 50_000;
    let cluster = Cluster::with(over, 2, 1, &SMALL_PARTS);
    let submit_all = |engine: &Engine| {
        let tensor = |round| Tensor::new("a", digits::contribution(engine.rank().0, "a", round, LEN));
        let mut tensors: Vec<Tensor> = (0..ROUNDS).map(tensor).collect();
        let handles: Vec<Handle> =
            tensors.iter_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap()).collect();
        (tensors, handles)
    };
    // All rounds of the fast worker are submitted before the first of the slow one.
    let fast = submit_all(&cluster.workers[0]);
    assert!(fast.1.iter().all(|handle| handle.outcome().is_none()));
    for (tensors, handles) in [submit_all(&cluster.workers[1]), fast] {
        for ((round, tensor), handle) in (0..).zip(&tensors).zip(handles) {
            handle.wait(Some(PATIENCE)).unwrap();
            digits::check(&tensor.data, 2, "a", round).unwrap();
        }
    }
}

fn fifty_rounds_of_several_tensors_count_every_worker_once(over: Over) {
    const TENSORS: [(&str, usize); 5] =
        [("conv1", 9_408), ("bn1", 64), ("fc", 70_000), ("bias", 1), ("embedding", 40_001)];
    let cluster = Cluster::with(over, 3, 2, &SMALL_PARTS);
    let wrong = all(&cluster.workers, |engine| -> Result<(), String> {
        for round in 0..50 {
            let of =
                |(name, len): (&str, usize)| Tensor::new(name, digits::contribution(engine.rank().0, name, round, len));
            let mut tensors = TENSORS.map(of);
            let handles = tensors.each_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap());
            for handle in handles {
                handle.wait(Some(PATIENCE)).map_err(|error| error.to_string())?;
            }
            tensors.iter().try_for_each(|tensor| digits::check(&tensor.data, 3, &tensor.spec.name, round))?;
        }
        Ok(())
    });
    assert_eq!(wrong, vec![Ok(()); 3]);
}
