//! Workers that disagree about a tensor are told so, all of them and by name; calls without meaning are refused at once.

use gradlane_core::Error;
use gradlane_core::engine::{Batch, BatchSubmission, Member, Submission};
use gradlane_core::types::{DType, Op, TensorSpec, WorkerId};
use gradlane_tests::cluster::{Cluster, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        workers_that_want_different_reductions_all_learn_both,
        a_broadcast_about_which_workers_disagree_fails_on_its_root_too,
        a_disagreement_about_one_tensor_leaves_the_others_alone,
        memory_in_use_is_refused_until_its_operation_has_ended;
}

#[test]
fn workers_that_declare_different_shapes_all_learn_both() {
    let cluster = Cluster::start(Over::Quic, 3, 1);
    let errors = all(&cluster.workers, |engine| {
        let len = if engine.rank().0 == 1 { 11 } else { 10 };
        Tensor::new("fc.weight", vec![1_f32; len]).reduce(engine, Op::Sum).unwrap_err()
    });
    for error in errors {
        let Error::Mismatch { tensor, field, first, second } = &error else { panic!("{error}") };
        assert_eq!((tensor, field.as_str()), (&"fc.weight".into(), "shape"));
        let mut values = [first.value.as_str(), second.value.as_str()];
        values.sort_unstable();
        assert_eq!(values, ["[10]", "[11]"]);
        assert!(error.to_string().contains("worker 1 has shape [11]"), "{error}");
    }
}

#[test]
fn workers_that_declare_different_dtypes_all_learn_both() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let errors = all(&cluster.workers, |engine| match engine.rank() {
        WorkerId(0) => Tensor::new("a", vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap_err(),
        WorkerId(_) => Tensor::new("a", vec![1_i32; 8]).reduce(engine, Op::Sum).unwrap_err(),
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("worker 0 has dtype float32") && text.contains("worker 1 has dtype int32"), "{text}");
    }
}

fn workers_that_want_different_reductions_all_learn_both(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let errors = all(&cluster.workers, |engine| {
        let op = if engine.rank().0 == 0 { Op::Sum } else { Op::Max };
        Tensor::new("a", vec![1_f32; 8]).reduce(engine, op).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.starts_with("tensor a: "), "{text}");
        assert!(text.contains("worker 0 has op sum") && text.contains("worker 1 has op max"), "{text}");
    }
}

fn a_broadcast_about_which_workers_disagree_fails_on_its_root_too(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let from = |root| Op::Broadcast { root: WorkerId(root) };
    let outcomes = all(&cluster.workers, |engine| {
        let floats = |name, len| Tensor::new(name, vec![1_f32; len]);
        match engine.rank() {
            WorkerId(0) => ["root", "op", "shape", "dtype"].map(|name| floats(name, 8).reduce(engine, from(0))),
            WorkerId(_) => [
                floats("root", 8).reduce(engine, from(1)),
                floats("op", 8).reduce(engine, Op::Sum),
                floats("shape", 9).reduce(engine, from(0)),
                Tensor::new("dtype", vec![1_i32; 8]).reduce(engine, from(0)),
            ],
        }
    });
    for (outcome, wrong) in outcomes.iter().flat_map(|outcomes| outcomes.iter().zip(["op", "op", "shape", "dtype"])) {
        assert!(matches!(outcome, Err(Error::Mismatch { field, .. }) if field == wrong), "{wrong}: {outcome:?}");
    }
}

fn a_disagreement_about_one_tensor_leaves_the_others_alone(over: Over) {
    let cluster = Cluster::start(over, 2, 2);
    let sums = all(&cluster.workers, |engine| {
        let len = 10 + engine.rank().0 as usize;
        let (mut bad, mut good) = (Tensor::new("bad", vec![1_f32; len]), Tensor::new("good", vec![1_f32; 1000]));
        let refused = bad.push_pull(engine, Op::Sum).unwrap();
        let (before, refused) = (good.reduce(engine, Op::Sum), refused.wait(None));
        let after = Tensor::new("later", vec![1_f32; 10]).reduce(engine, Op::Sum);
        assert!(matches!(refused, Err(Error::Mismatch { .. })), "{refused:?}");
        assert_eq!((before, after), (Ok(()), Ok(())));
        good.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

fn memory_in_use_is_refused_until_its_operation_has_ended(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let [zero, one] = &cluster.workers[..] else { unreachable!("two") };
    let mut tensor = Tensor::new("first", vec![1_f32; 100]);
    let mut other = Tensor::new("other", vec![1_f32; 100]);
    let first = tensor.push_pull(zero, Op::Sum).unwrap();
    let named = |name: &str| TensorSpec::new(name, DType::F32, vec![100]);
    let batch = Batch::new(vec![named("other"), named("again")]).unwrap();
    let again = Submission { tensor: named("again"), ..tensor.submission(Op::Sum) };
    let refused = zero.push_pull(again, |_| {}).unwrap_err().to_string();
    assert!(refused.contains("tensor again: its memory is in use for tensor first"), "{refused}");
    let member = |tensor: &mut Tensor<f32>| {
        let Submission { source, destination, priority, .. } = tensor.submission(Op::Sum);
        Member { source, destination, priority }
    };
    let members = vec![member(&mut other), member(&mut tensor)];
    let all = BatchSubmission { batch: &batch, members, op: Op::Sum, weight: 1.0, timeout: None };
    let refused = zero.push_pull_all(all, |_| {}).unwrap_err().to_string();
    assert!(refused.contains("tensor again: its memory is in use for tensor first"), "{refused}");
    Tensor::new("first", vec![1_f32; 100]).reduce(one, Op::Sum).unwrap();
    assert_eq!(first.wait(None), Ok(()));
    let mut theirs = Tensor::new("other", vec![1_f32; 100]);
    let begun = theirs.push_pull(one, Op::Sum).unwrap();
    assert_eq!(other.reduce(zero, Op::Sum), Ok(()), "what was refused with another tensor was not taken");
    assert_eq!(begun.wait(None), Ok(()));
    assert_eq!((tensor.data[0], other.data[0]), (2.0, 2.0));
}

#[test]
fn a_worker_that_contradicts_itself_is_refused_at_its_call() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let engine = &cluster.workers[0];
    Tensor::new("a", vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap();
    let error = Tensor::new("a", vec![1_f32; 9]).reduce(engine, Op::Sum).unwrap_err();
    assert!(error.to_string().contains("shape [8]") && error.to_string().contains("shape [9]"), "{error}");
}

#[test]
fn calls_without_meaning_are_refused_at_once() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let engine = &cluster.workers[0];
    let refused = |submission: Submission, what: &str| {
        let error = engine.push_pull(submission, |_| {}).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(what), "{what}: {error}");
    };
    let mut floats = Tensor::new("floats", vec![1_f32; 8]);
    let mut integers = Tensor::new("integers", vec![1_i32; 8]);
    let mut short = Tensor::shaped("short", vec![9], vec![1_f32; 8]);
    let mut endless = Tensor::shaped("endless", vec![u64::MAX, 2], vec![1_f32; 8]);
    refused(short.submission(Op::Sum), "buffers of 32 and 32 bytes");
    refused(endless.submission(Op::Sum), "buffers of 32 and 32 bytes");
    refused(integers.submission(Op::WeightedMean), "a weighted mean of int32");
    refused(floats.submission(Op::Broadcast { root: WorkerId(1) }), "a broadcast from worker 1");
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        refused(Submission { weight, ..floats.submission(Op::WeightedMean) }, "weight");
    }
}
