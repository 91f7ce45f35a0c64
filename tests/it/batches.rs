//! Many tensors submitted in one call: each is a tensor like any other, and all of them have one outcome.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use gradlane_core::engine::{Batch, BatchSubmission, Engine, Handle, Member};
use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_core::{Error, Result};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;

matrix! {
    [over_shm, over_quic]:
        a_thousand_small_tensors_that_nobody_declared_travel_in_few_messages,
        batches_of_any_sizes_have_the_right_sums_whatever_order_and_company_others_choose,
        a_batch_that_is_cancelled_ends_those_of_the_others_and_no_other_round;
    [locally, over_shm, over_quic]:
        workers_whose_batches_disagree_all_learn_about_which_tensor,
        a_batch_resolves_once_and_only_when_its_last_tensor_has,
        a_batch_that_is_cancelled_or_late_gives_all_its_memory_back;
}

fn a_thousand_small_tensors_that_nobody_declared_travel_in_few_messages(over: Over) {
    const LEN: usize = 1024;
    let cluster = Cluster::start(over, 2, 3);
    let sums = all(&cluster.workers, |engine| {
        let rank = engine.rank().0 as f32;
        let mut tensors: Vec<Tensor> =
            (0..1000).map(|index| Tensor::new(&format!("t{index}"), vec![index as f32 + rank; LEN])).collect();
        for _ in 0..2 {
            submit(engine, &mut tensors, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap();
        }
        tensors.iter().map(|tensor| tensor.data[LEN - 1]).collect::<Vec<_>>()
    });
    let expected = |index: usize| 2.0 * (2.0 * index as f32 + 1.0);
    assert!(sums.iter().all(|sums| sums.iter().enumerate().all(|(index, sum)| *sum == expected(index))));
    for engine in &cluster.workers {
        let pushes = engine.metrics().pushes.load(Relaxed);
        assert!(pushes <= 8, "{pushes} pushes in two rounds: small neighbours share parts");
        assert_eq!((engine.metrics().submissions.load(Relaxed), engine.metrics().resolved.load(Relaxed)), (2000, 2000));
    }
}

fn batches_of_any_sizes_have_the_right_sums_whatever_order_and_company_others_choose(over: Over) {
    const ROUNDS: u64 = 4;
    for (seed, machines) in [(1, None), (2, None), (3, Some(["a", "a", "a"])), (4, Some(["a", "a", "b"]))] {
        let cluster = match machines {
            None => Cluster::with(over, 3, 2, &SMALL_PARTS),
            Some(machines) => Cluster::on(over, &machines, 2, &SMALL_PARTS),
        };
        let lengths = lengths(&mut Random::new(seed));
        let outcomes = all(&cluster.workers, |engine| {
            let rank = u64::from(engine.rank().0);
            let mut random = Random::new(seed ^ rank << 32);
            let contribution = |index: usize, rank: u64| (index % 50) as f32 * 3.0 + rank as f32;
            let mut tensors: Vec<Tensor> = lengths
                .iter()
                .enumerate()
                .map(|(index, len)| Tensor::new(&format!("t{index}"), vec![0.0; *len]))
                .collect();
            for round in 0..ROUNDS {
                for (index, tensor) in tensors.iter_mut().enumerate() {
                    tensor.data.fill(contribution(index, rank));
                }
                // The first worker submits in one call, the second in two, the third each alone, in an order of its own.
                let mut ordered: Vec<_> = random.order(tensors.len()).into_iter().zip(&mut tensors).collect();
                ordered.sort_by_key(|(position, _)| *position);
                let mut ordered: Vec<&mut Tensor> = ordered.into_iter().map(|(_, tensor)| tensor).collect();
                let calls = [1, 2, ordered.len()][rank as usize % 3];
                let length = ordered.len().div_ceil(calls);
                let handles: Vec<Handle> = ordered
                    .chunks_mut(length)
                    .map(|chunk| submit_each(engine, chunk.iter_mut().map(|tensor| &mut **tensor), Op::Sum).unwrap())
                    .collect();
                handles.iter().try_for_each(|handle| handle.wait(Some(PATIENCE)))?;
                for (index, tensor) in tensors.iter().enumerate() {
                    let expected: f32 = (0..3).map(|rank| contribution(index, rank)).sum();
                    assert!(
                        tensor.data.iter().all(|sum| *sum == expected),
                        "seed {seed}, round {round}, tensor {index}"
                    );
                }
            }
            Ok::<(), Error>(())
        });
        assert_eq!(outcomes, vec![Ok(()); 3], "seed {seed}");
    }
}

#[test]
fn a_batch_with_a_bad_member_is_refused_by_its_name_and_nothing_is_submitted() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let engine = &cluster.workers[0];
    Tensor::new("known", vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap();
    let before = engine.metrics().submissions.load(Relaxed);
    let good = || Tensor::new("good", vec![1_f32; 8]);
    for (bad, op, complaint) in [
        (Tensor::shaped("short", vec![9], vec![1_f32; 8]), Op::Sum, "tensor short: shape [9]"),
        (Tensor::new("known", vec![1_f32; 9]), Op::Sum, "tensor known: "),
        (Tensor::new("good", vec![1_f32; 8]), Op::Sum, "tensor good comes twice"),
        (Tensor::new("other", vec![1_f32; 8]), Op::Broadcast { root: WorkerId(1) }, "a broadcast from worker 1"),
    ] {
        let error = submit(engine, &mut [good(), bad], op).unwrap_err();
        assert!(error.to_string().contains(complaint), "{complaint}: {error}");
    }
    let batch = Batch::new(vec![good().spec]).unwrap();
    let nothing = BatchSubmission { batch: &batch, members: Vec::new(), op: Op::Sum, weight: 1.0, timeout: None };
    let error = engine.push_pull_all(nothing, |_| {}).unwrap_err();
    assert!(error.to_string().contains("the memory of 0 tensors for a batch of 1"), "{error}");

    assert_eq!(engine.metrics().submissions.load(Relaxed), before);
    assert!(!engine.layout().contains("good"), "not even declared");
    good().reduce(engine, Op::Sum).unwrap();
}

fn workers_whose_batches_disagree_all_learn_about_which_tensor(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "5s")]);
    let errors = all(&cluster.workers, |engine| {
        let len = 10 + engine.rank().0 as usize;
        let mut tensors = vec![Tensor::new("a", vec![1_f32; 8]), Tensor::new("b", vec![1_f32; len])];
        submit(engine, &mut tensors, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, Error::Mismatch { tensor, .. } if *tensor == "b".into()), "{error}");
    }
    let after = all(&cluster.workers, |engine| Tensor::new("c", vec![1_f32; 8]).reduce(engine, Op::Sum));
    assert_eq!(after, vec![Ok(()); 2]);
}

fn a_batch_resolves_once_and_only_when_its_last_tensor_has(over: Over) {
    // More than what shares a part with others: the other worker submits each alone.
    const LEN: usize = 100_000;
    let cluster = Cluster::start(over, 2, 1);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let mut tensors: Vec<Tensor> = (0..3).map(|index| Tensor::new(&format!("t{index}"), vec![1_f32; LEN])).collect();
    let (told, tidings) = mpsc::channel();
    let batch = Batch::new(tensors.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
    let submission = BatchSubmission {
        batch: &batch,
        members: members(&mut tensors, Op::Sum),
        op: Op::Sum,
        weight: 1.0,
        timeout: None,
    };
    let handle = ours.push_pull_all(submission, move |id| told.send(id).unwrap()).unwrap();
    for index in 0..3 {
        assert_eq!(handle.outcome(), None);
        Tensor::new(&format!("t{index}"), vec![2_f32; LEN]).reduce(theirs, Op::Sum).unwrap();
    }
    assert_eq!(handle.wait(Some(PATIENCE)), Ok(()));
    assert_eq!(tidings.recv_timeout(PATIENCE), Ok(handle.id()));
    assert!(tidings.recv().is_err(), "told once");
    assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 3.0));
}

fn a_batch_that_is_cancelled_or_late_gives_all_its_memory_back(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let engine = &cluster.workers[0];
    let mut tensors: Vec<Tensor> =
        (0..20).map(|index| Tensor::new(&format!("t{index}"), vec![1_f32; 10_000])).collect();
    let handle = submit(engine, &mut tensors, Op::Sum).unwrap();
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
    let mut late: Vec<Tensor> = (0..20).map(|index| Tensor::new(&format!("late{index}"), vec![1_f32; 10])).collect();
    let batch = Batch::new(late.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
    let timeout = Some(Duration::from_millis(50));
    let submission =
        BatchSubmission { batch: &batch, members: members(&mut late, Op::Sum), op: Op::Sum, weight: 1.0, timeout };
    let error = engine.reduce_all(submission, Some(PATIENCE)).unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }) && error.to_string().contains("tensor late"), "{error}");
    assert_eq!(engine.metrics().submissions.load(Relaxed), engine.metrics().resolved.load(Relaxed));
}

fn a_batch_that_is_cancelled_ends_those_of_the_others_and_no_other_round(over: Over) {
    // Nothing else would end the wait within the hour.
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1 h")]);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let make = || (0..20).map(|index| Tensor::new(&format!("t{index}"), vec![1_f32; 10])).collect::<Vec<_>>();
    let begin = |engine: &Engine, tensors: &mut [Tensor]| submit(engine, tensors, Op::Sum).unwrap();
    let ended = |handle: Handle| handle.wait(Some(PATIENCE));
    // The first batch declares its tensors, and the others find them.
    assert_eq!(all(&cluster.workers, |engine| ended(begin(engine, &mut make()))), [Ok(()), Ok(())]);
    let [mut first, mut second] = [make(), make()];
    // The second round is not pushed before the first is summed, for which the other worker is missing.
    let [summed, cancelled] = [begin(ours, &mut first), begin(ours, &mut second)];
    cancelled.cancel();
    assert_eq!(ended(cancelled), Err(Error::Cancelled));
    assert_eq!([ended(begin(theirs, &mut make())), ended(summed)], [Ok(()), Ok(())]);
    match ended(begin(theirs, &mut make())).unwrap_err() {
        Error::Stalled { tensor, missing, .. } => {
            assert!(tensor.to_string().contains("t0 + t1 + "), "all that share the part: {tensor}");
            assert_eq!(missing, [ours.rank()]);
        }
        other => panic!("{other}"),
    }
    assert_eq!(all(&cluster.workers, |engine| ended(begin(engine, &mut make()))), [Ok(()), Ok(())]);
    assert!(first.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 2.0));
    for engine in [ours, theirs] {
        assert_eq!(engine.metrics().submissions.load(Relaxed), engine.metrics().resolved.load(Relaxed));
    }
}

#[test]
fn what_an_ended_job_is_given_in_one_call_fails_by_its_handle() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    cluster.workers[0].shutdown(PATIENCE).unwrap();
    let mut tensors = [Tensor::new("a", vec![1_f32; 10]), Tensor::new("b", vec![1_f32; 10])];
    let error = submit(&cluster.workers[0], &mut tensors, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition { .. }), "{error}");
}

fn submit(engine: &Engine, tensors: &mut [Tensor], op: Op) -> Result<Handle> {
    submit_each(engine, tensors.iter_mut(), op)
}

fn submit_each<'a>(engine: &Engine, tensors: impl Iterator<Item = &'a mut Tensor>, op: Op) -> Result<Handle> {
    let submissions: Vec<_> = tensors.map(|tensor| tensor.submission(op)).collect();
    let batch = Batch::new(submissions.iter().map(|submission| submission.tensor.clone()).collect())?;
    let member = |submission: gradlane_core::engine::Submission| Member {
        source: submission.source,
        destination: submission.destination,
        priority: Priority::default(),
    };
    let members = submissions.into_iter().map(member).collect();
    engine.push_pull_all(BatchSubmission { batch: &batch, members, op, weight: 1.0, timeout: None }, |_| {})
}

fn members(tensors: &mut [Tensor], op: Op) -> Vec<Member> {
    let member = |tensor: &mut Tensor| {
        let submission = tensor.submission(op);
        Member { source: submission.source, destination: submission.destination, priority: submission.priority }
    };
    tensors.iter_mut().map(member).collect()
}

/// A few dozen lengths, empty to several parts.
fn lengths(random: &mut Random) -> Vec<usize> {
    (0..40).map(|_| random.pick(&[0, 1, 100, 3000, 5000, 40_000])).collect()
}
