use super::*;
use crate::error::Claim;
use crate::pipeline::{LayoutConfig, Layouter};
use crate::types::{CodecSpec, DType, Piece, ServerId, Span};

fn reduce(op: Op, weight: f64) -> Demand {
    Demand::Reduce { op, weight }
}

#[test]
fn a_tensor_is_declared_once_and_then_submitted_round_after_round() {
    let mut registry = Registry::new(WorkerId(0));
    let spec = tensor("w", 100);
    assert_eq!(registry.lookup(&spec), Ok(Lookup::Unknown));
    registry.declaring(7, std::slice::from_ref(&spec));
    assert_eq!(registry.lookup(&spec), Ok(Lookup::Declaring));
    assert_eq!(registry.handle_declared(7, Ok(layout(std::slice::from_ref(&spec)))), [spec.key()]);
    assert_eq!(registry.lookup(&spec), Ok(Lookup::Ready));
    for round in 0..3 {
        let submitted = registry.submit(Time::ZERO, spec.key(), reduce(Op::Sum, 1.0), 100 + round).unwrap();
        assert_eq!((submitted.round, submitted.shares), (Round(round), 1));
        assert_eq!(submitted.ready[0].tickets, [100 + round]);
    }
    assert_eq!(registry.name_of(spec.key()), Some("w"));
}

#[test]
fn a_large_tensor_is_ready_part_by_part() {
    let mut registry = ready(&[tensor("w", 1000)]);
    let submitted = registry.submit(Time::ZERO, TensorKey::of("w"), reduce(Op::Mean, 1.0), 1).unwrap();
    assert_eq!(submitted.shares, 4, "4000 bytes in parts of 1024 at most");
    assert_eq!(submitted.ready.iter().map(|part| part.layout.bytes()).sum::<u64>(), 4000);
    assert!(submitted.ready.iter().all(|part| part.demand.op() == Some(Op::Mean) && part.tickets == [1]));
}

#[test]
fn all_ranks_send_parts_in_the_same_order() {
    let specs = [tensor("w", 1000)];
    for rank in [0, 1, 4] {
        let mut registry = Registry::new(WorkerId(rank));
        registry.declaring(1, &specs);
        registry.handle_declared(1, Ok(layout(&specs)));
        let submitted = registry.submit(Time::ZERO, specs[0].key(), reduce(Op::Sum, 1.0), 1).unwrap();
        let order: Vec<u32> = submitted.ready.iter().map(|part| part.layout.part.index).collect();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}

#[test]
fn an_empty_tensor_is_ready_with_no_parts() {
    let mut registry = ready(&[tensor("empty", 0)]);
    let submitted = registry.submit(Time::ZERO, TensorKey::of("empty"), reduce(Op::Sum, 1.0), 1).unwrap();
    assert_eq!(submitted, Submitted { name: Arc::from("empty"), round: Round(0), shares: 0, ready: Vec::new() });
}

#[test]
fn another_dtype_shape_or_codec_than_before_is_refused_on_this_worker_already() {
    let registry = ready(&[tensor("w", 100)]);
    let error = registry.lookup(&tensor("w", 101)).unwrap_err();
    let said = "tensor w: worker 0 used it with shape [100] before, and now with shape [101]";
    assert!(error.to_string().starts_with(said), "{error}");
    let half = TensorSpec { dtype: DType::F16, ..tensor("w", 100) };
    assert!(matches!(registry.lookup(&half), Err(Error::Mismatch { field, .. }) if field == "dtype"));
    let coded = tensor("w", 100).with_codec(CodecSpec::F16);
    assert!(matches!(registry.lookup(&coded), Err(Error::Mismatch { field, .. }) if field == "codec"));
}

#[test]
fn a_shared_part_is_ready_when_all_its_tensors_were_submitted_for_the_round() {
    let mut registry = ready(&[tensor("a", 1), tensor("b", 2), tensor("c", 3)]);
    let [a, b, c] = ["a", "b", "c"].map(TensorKey::of);
    assert_eq!(registry.submit(Time::ZERO, c, reduce(Op::Sum, 1.0), 30).unwrap().ready, []);
    assert_eq!(registry.submit(Time::ZERO, a, reduce(Op::Sum, 1.0), 10).unwrap().ready, []);
    assert_eq!(
        registry.submit(Time::ZERO, a, reduce(Op::Sum, 1.0), 11).unwrap().round,
        Round(1),
        "a runs one round ahead"
    );
    assert_eq!(registry.waiting_for(30), ["b"]);
    assert_eq!(registry.waiting_for(11), ["b", "c"]);
    let submitted = registry.submit(Time::ZERO, b, reduce(Op::Sum, 1.0), 20).unwrap();
    assert_eq!(submitted.ready.len(), 1);
    assert_eq!((submitted.ready[0].round, submitted.ready[0].tickets.as_slice()), (Round(0), [10, 20, 30].as_slice()));
    assert_eq!(registry.waiting_for(30), Vec::<String>::new());
    registry.submit(Time::ZERO, b, reduce(Op::Sum, 1.0), 21).unwrap();
    assert_eq!(registry.submit(Time::ZERO, c, reduce(Op::Sum, 1.0), 31).unwrap().ready[0].tickets, [11, 21, 31]);
}

#[test]
fn a_round_that_waits_in_vain_is_given_up_and_names_what_is_missing() {
    let mut registry = ready(&[tensor("a", 1), tensor("b", 2), tensor("c", 3)]);
    let [a, b, c] = ["a", "b", "c"].map(TensorKey::of);
    let at = |seconds| Time::ZERO + std::time::Duration::from_secs(seconds);
    registry.submit(at(1), a, reduce(Op::Sum, 1.0), 10).unwrap();
    registry.submit(at(2), a, reduce(Op::Sum, 1.0), 11).unwrap();
    registry.submit(at(3), b, reduce(Op::Sum, 1.0), 20).unwrap();
    assert_eq!(registry.oldest_incomplete(), Some(at(1)));
    let (part, error) = registry.give_up_oldest(at(9)).unwrap();
    assert_eq!((part.round, part.tickets.as_slice()), (Round(0), [10, 20].as_slice()));
    let text = error.to_string();
    assert!(text.starts_with("round 0: a, b waited 8.0 s for c on worker 0"), "{text}");
    assert!(text.contains("prefix"), "{text}");
    assert_eq!(
        registry.submit(at(9), c, reduce(Op::Max, 1.0), 30),
        Err(error),
        "too late, and another reduction does not matter"
    );
    assert_eq!(registry.oldest_incomplete(), Some(at(2)), "round 1 waits still");
    registry.submit(at(9), b, reduce(Op::Sum, 1.0), 21).unwrap();
    let submitted = registry.submit(at(9), c, reduce(Op::Sum, 1.0), 31).unwrap();
    assert_eq!((submitted.round, submitted.ready.len()), (Round(1), 1), "what came too late was counted");
    assert_eq!((registry.oldest_incomplete(), registry.give_up_oldest(at(9))), (None, None));
}

#[test]
fn the_names_of_many_missing_tensors_are_shortened() {
    let specs: Vec<TensorSpec> = (10..26).map(|index| tensor(&index.to_string(), 1)).collect();
    let mut registry = ready(&specs);
    registry.submit(Time::ZERO, specs[0].key(), reduce(Op::Sum, 1.0), 1).unwrap();
    let (_, error) = registry.give_up_oldest(Time::ZERO).unwrap();
    assert!(error.to_string().contains("11, 12, 13, 14, 15, 16, 17, 18 and 7 more"), "{error}");
}

#[test]
fn tensors_that_share_a_part_are_reduced_alike() {
    let mut registry = ready(&[tensor("a", 1), tensor("b", 2)]);
    registry.submit(Time::ZERO, TensorKey::of("a"), reduce(Op::WeightedMean, 2.0), 1).unwrap();
    let error = registry.submit(Time::ZERO, TensorKey::of("b"), reduce(Op::WeightedMean, 3.0), 2).unwrap_err();
    assert!(
        error.to_string().contains("tensor b, round 0: weighted mean with weight 3, but it shares a part with a"),
        "{error}"
    );
    assert!(matches!(
        registry.submit(Time::ZERO, TensorKey::of("b"), reduce(Op::Sum, 2.0), 2),
        Err(Error::InvalidArgument { .. })
    ));
    let agreed = registry.submit(Time::ZERO, TensorKey::of("b"), reduce(Op::WeightedMean, 2.0), 2).unwrap();
    assert_eq!((agreed.round, agreed.ready.len()), (Round(0), 1), "a refused submission does not count");
}

#[test]
fn a_reduction_without_meaning_is_refused() {
    let spec = TensorSpec { dtype: DType::I32, ..tensor("counts", 4) };
    let mut registry = ready(std::slice::from_ref(&spec));
    assert!(matches!(
        registry.submit(Time::ZERO, spec.key(), reduce(Op::WeightedMean, 1.0), 1),
        Err(Error::InvalidArgument { .. })
    ));
}

#[test]
fn nothing_is_submitted_before_its_layout_is_known() {
    let mut registry = Registry::new(WorkerId(0));
    let error = registry.submit(Time::ZERO, TensorKey::of("w"), reduce(Op::Sum, 1.0), 1).unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition { .. }));
}

#[test]
fn a_forgotten_tensor_takes_those_along_that_share_its_part() {
    let mut registry = ready(&[tensor("a", 1), tensor("b", 2), tensor("large", 1000)]);
    let [a, b, large] = ["a", "b", "large"].map(TensorKey::of);
    registry.submit(Time::ZERO, b, reduce(Op::Sum, 1.0), 20).unwrap();
    let mut failed = registry.handle_forget(a, mismatch());
    failed.sort_unstable();
    let mut expected = [a, b];
    expected.sort_unstable();
    assert_eq!(failed, expected);
    assert_eq!(registry.submit(Time::ZERO, b, reduce(Op::Sum, 1.0), 21), Err(mismatch()));
    assert_eq!(registry.lookup(&tensor("a", 1)), Err(mismatch()));
    assert_eq!(registry.waiting_for(20), Vec::<String>::new());
    assert!(registry.submit(Time::ZERO, large, reduce(Op::Sum, 1.0), 1).is_ok());
}

#[test]
fn a_refused_declaration_fails_its_tensors_with_the_cause() {
    let mut registry = Registry::new(WorkerId(0));
    registry.declaring(1, &[tensor("a", 1)]);
    assert_eq!(registry.handle_declared(1, Err(mismatch())), [TensorKey::of("a")]);
    assert_eq!(registry.submit(Time::ZERO, TensorKey::of("a"), reduce(Op::Sum, 1.0), 1), Err(mismatch()));
    assert_eq!(registry.handle_declared(1, Err(mismatch())), [], "answered once");
}

#[test]
fn a_declaration_that_failed_for_a_passing_reason_may_be_repeated() {
    let mut registry = Registry::new(WorkerId(0));
    let unreachable = Error::Unavailable { what: "coordinator".to_owned(), cause: "connection lost".to_owned() };
    registry.declaring(1, &[tensor("a", 1)]);
    registry.handle_declared(1, Err(unreachable.clone()));
    assert_eq!(registry.submit(Time::ZERO, TensorKey::of("a"), reduce(Op::Sum, 1.0), 1), Err(unreachable));
    assert_eq!(registry.lookup(&tensor("a", 1)), Ok(Lookup::Unknown));
}

#[test]
fn a_layout_that_does_not_tile_the_tensor_fails_it() {
    let spec = tensor("w", 1000);
    let good = layout(std::slice::from_ref(&spec));
    let mut holes = good.clone();
    holes.remove(1);
    let mut outside = good.clone();
    outside[3].pieces[0].span.bytes += 4;
    let mut overflow = good.clone();
    overflow[3].pieces[0].span.offset = u64::MAX;
    let mut other_type = good.clone();
    other_type[0].dtype = DType::F64;
    let mut twice = good.clone();
    twice[0].pieces.push(Piece { tensor: spec.key(), span: Span { offset: 0, bytes: 4 } });
    let mut empty = good.clone();
    empty[0].pieces.clear();
    for layouts in [holes, outside, overflow, other_type, twice, empty, Vec::new()] {
        let mut registry = Registry::new(WorkerId(0));
        registry.declaring(1, std::slice::from_ref(&spec));
        assert_eq!(registry.handle_declared(1, Ok(layouts.clone())), [spec.key()]);
        assert!(matches!(registry.lookup(&spec), Err(Error::Protocol { .. })), "{layouts:?}");
    }
}

#[test]
fn a_part_may_hold_tensors_that_this_worker_did_not_declare() {
    let both = [tensor("mine", 1), tensor("theirs", 2)];
    let mut registry = Registry::new(WorkerId(1));
    registry.declaring(1, &both[..1]);
    registry.handle_declared(1, Ok(layout(&both)));
    assert_eq!(registry.submit(Time::ZERO, both[0].key(), reduce(Op::Sum, 1.0), 5).unwrap().ready, []);
    assert_eq!(registry.waiting_for(5), ["a tensor that other workers declare and this worker does not"]);
    registry.declaring(2, &both[1..]);
    registry.handle_declared(2, Ok(layout(&both)));
    assert_eq!(registry.submit(Time::ZERO, both[1].key(), reduce(Op::Sum, 1.0), 6).unwrap().ready[0].tickets, [5, 6]);
}

#[test]
fn tensors_of_a_call_that_fill_a_part_are_one_submission_in_piece_order() {
    let specs = [tensor("a", 1), tensor("large", 1000), tensor("b", 2)];
    let mut registry = ready(&specs);
    let [a, large, b] = &specs;
    for round in 0..2 {
        // The part is complete with its last tensor, so it takes that tensor's place in the order.
        let units = admit_all(&registry, &[b, large, a]).unwrap();
        let [Unit::Alone { member: 1, known: Lookup::Ready }, Unit::Whole(whole)] = &units[..] else {
            panic!("{units:?}");
        };
        assert_eq!(whole.members, [2, 0], "a lies before b");
        let submitted = registry.submit_whole(whole.clone(), reduce(Op::Sum, 1.0), 7);
        assert_eq!((submitted.round, submitted.shares, &*submitted.name), (Round(round), 1, "a"));
        assert_eq!(submitted.ready[0].tickets, [7], "one for all");
        assert_eq!(registry.waiting_for(7), Vec::<String>::new());
    }
    assert_eq!(
        registry.submit(Time::ZERO, a.key(), reduce(Op::Sum, 1.0), 8).unwrap().round,
        Round(2),
        "each was counted"
    );
}

#[test]
fn tensors_whose_part_needs_more_than_the_call_brings_are_submitted_one_by_one() {
    let specs = [tensor("a", 1), tensor("b", 2), tensor("c", 3)];
    let mut registry = ready(&specs);
    let [a, b, c] = &specs;
    assert_eq!(members_alone(&registry, &[c, b]), [0, 1], "a is missing");
    registry.submit(Time::ZERO, a.key(), reduce(Op::Sum, 1.0), 1).unwrap();
    assert_eq!(members_alone(&registry, &[a, b, c]), [1, 2, 0], "a runs one round ahead, and completes nothing");
    registry.submit(Time::ZERO, b.key(), reduce(Op::Sum, 1.0), 2).unwrap();
    registry.submit(Time::ZERO, c.key(), reduce(Op::Sum, 1.0), 3).unwrap();
    let units = admit_all(&registry, &[a, b, c]).unwrap();
    assert!(matches!(&units[..], [Unit::Whole(whole)] if whole.members == [0, 1, 2]), "{units:?}");
}

#[test]
fn a_round_that_was_begun_one_by_one_is_not_completed_as_a_whole() {
    let specs = [tensor("a", 1), tensor("b", 2), tensor("new", 3)];
    let mut registry = ready(&specs[..2]);
    let [a, b, new] = &specs;
    registry.submit(Time::ZERO, a.key(), reduce(Op::Sum, 1.0), 1).unwrap();
    assert_eq!(members_alone(&registry, &[b, new]), [0, 1]);
    let other_weight = registry.admit_all([(b.key(), b)].into_iter(), reduce(Op::Sum, 2.0)).unwrap_err();
    assert!(other_weight.to_string().contains("tensor b, round 0"), "{other_weight}");
    let wrong = admit_all(&registry, &[b, &tensor("a", 9)]).unwrap_err();
    assert!(matches!(wrong, Error::Mismatch { tensor, .. } if tensor == "a".into()));
}

fn admit_all(registry: &Registry, tensors: &[&TensorSpec]) -> Result<Vec<Unit>> {
    registry.admit_all(tensors.iter().map(|spec| (spec.key(), *spec)), reduce(Op::Sum, 1.0))
}

/// The members of a call of which none are submitted together, in the order of their submission.
fn members_alone(registry: &Registry, tensors: &[&TensorSpec]) -> Vec<usize> {
    let member = |unit| match unit {
        Unit::Alone { member, .. } => member,
        Unit::Whole(whole) => panic!("{whole:?}"),
    };
    admit_all(registry, tensors).unwrap().into_iter().map(member).collect()
}

fn ready(specs: &[TensorSpec]) -> Registry {
    let mut registry = Registry::new(WorkerId(0));
    registry.declaring(1, specs);
    registry.handle_declared(1, Ok(layout(specs)));
    registry
}

fn layout(specs: &[TensorSpec]) -> Vec<PartLayout> {
    let config = LayoutConfig { partition_bytes: 1024, fuse_bytes: 64, part_bytes_min: 1024, pipeline_bytes_min: 1024 };
    let layouts = Layouter::new(config, vec![1.0], 1).declare(specs, true).unwrap();
    assert!(layouts.iter().all(|layout| layout.server == ServerId(0)));
    layouts
}

fn tensor(name: &str, len: u64) -> TensorSpec {
    TensorSpec::new(name, DType::F32, vec![len])
}

fn mismatch() -> Error {
    Error::Mismatch {
        tensor: "a".into(),
        field: "shape".to_owned(),
        first: Claim { worker: WorkerId(0), value: "[1]".to_owned() },
        second: Claim { worker: WorkerId(1), value: "[2]".to_owned() },
    }
}
