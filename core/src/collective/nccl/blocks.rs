//! Parts of a tensor that follow each other, and that one call of NCCL carries out together.
//!
//! - The parts of a *stretch* have the same data flow. One `ncclAllReduce` reduces all of them, or one `ncclReduce` or `ncclBroadcast` moves
//!   them. A long call needs fewer launches than several short ones, and NCCL cuts it as its algorithms need it.
//! - A *block* is one part for each rank. The parts are equally long, and go to the ranks in their order. So one `ncclReduceScatter` reduces
//!   all of them in place, and one `ncclAllGather` brings their sums back. NCCL has fast algorithms for these two, while `ncclReduce` and
//!   `ncclBroadcast` send everything along one ring, from rank to rank. Layout and order make blocks the normal case. The last part of a
//!   tensor may be longer. Its end, the *tail*, is a call of its own.
//!
//! Which operations go together depends on their parts, lengths, claims and data flows alone. These are equal on all ranks; addresses are
//! not. The memory of parts that follow each other is one run on every rank, because they are spans of the one source and the one
//! destination of a submission. A part that small tensors share has no neighbour: each of these tensors has this part only. The parts of a
//! name's next life are not ready before all ranks are done with the last one.

use super::comm::Call;
use super::program::Step;
use crate::collective::{Dataflow, DeviceMemory, Ordered};
use crate::cuda::OnIssue;
use crate::error::{Error, Result};
use crate::mem::DeviceRegion;
use crate::types::Span;

/// Divides a group into operations that go together, and returns how many they are each time: `ranks` for a block, any number for a
/// stretch, 1 for an operation that goes alone.
pub(super) fn lengths(group: &[Ordered], ranks: usize) -> Vec<usize> {
    let (mut lengths, mut rest) = (Vec::new(), group);
    while !rest.is_empty() {
        let length = if rest.get(..ranks).is_some_and(is_block) { ranks } else { stretch(rest) };
        lengths.push(length);
        rest = &rest[length..];
    }
    lengths
}

/// Whether these operations, one for each rank, are a block.
fn is_block(run: &[Ordered]) -> bool {
    let [first, rest @ ..] = run else { return false };
    let goes_to = |rank: usize, dataflow: Dataflow| match (first.dataflow, dataflow) {
        (Dataflow::Reduce { taker: Some(_), .. }, Dataflow::Reduce { taker, .. }) => taker == Some(rank),
        (Dataflow::Show { taker: None, .. }, Dataflow::Show { from, taker: None }) => from == rank,
        _ => false,
    };
    let each = first.claim.bytes;
    let joins = |(index, next): (usize, &Ordered)| {
        let is_long = if index + 1 == run.len() { next.claim.bytes >= each } else { next.claim.bytes == each };
        follows(first, index, next) && is_long && goes_to(index, next.dataflow)
    };
    !rest.is_empty() && each > 0 && goes_to(0, first.dataflow) && (1..).zip(rest).all(joins)
}

/// How many operations at the beginning of a group are a stretch: 1 if the first one goes alone.
fn stretch(group: &[Ordered]) -> usize {
    let [first, rest @ ..] = group else { return 0 };
    // Every rank makes one call for each of these, and it is the same call.
    let is_common = matches!(first.dataflow, Dataflow::Reduce { .. } | Dataflow::Show { taker: None, .. });
    let joins = |(index, next): &(usize, &Ordered)| {
        is_common && follows(first, *index, next) && next.dataflow == first.dataflow
    };
    1 + (1..).zip(rest).take_while(joins).count()
}

/// Whether `next` does the same as `first`, with the part that comes `index` parts later in its tensor.
fn follows(first: &Ordered, index: usize, next: &Ordered) -> bool {
    let ((part, round), (other, other_round)) = (first.slot, next.slot);
    let is_later = other.key == part.key && u64::from(other.index) == u64::from(part.index) + index as u64;
    is_later && other_round == round && (next.claim.dtype, next.claim.op) == (first.claim.dtype, first.claim.op)
}

/// The calls for operations that go together, from those for each: one for a stretch; one for a block, and one for its tail if there is
/// one. `me` is this rank.
///
/// # Errors
/// [`Error::Internal`] if the parts do not follow each other in this rank's memory.
pub(super) fn join(mut calls: Vec<Call>, me: usize) -> Result<Vec<Call>> {
    let Call { step: first, dtype, divisor, .. } = calls[0];
    let source = whole(calls.iter().map(|call| &call.memory.source))?;
    let destination = whole(calls.iter().map(|call| &call.memory.destination))?;
    if calls.iter().all(|call| call.step == first) {
        return Ok(vec![Call { step: first, dtype, memory: memory(source, destination), divisor }]);
    }
    let each = calls[0].bytes();
    let share = Span { offset: 0, bytes: each };
    let all = Span { offset: 0, bytes: each * calls.len() as u64 };
    let own = &calls[me].memory;
    let (step, memory_of_all) = match first {
        Step::Reduce { reduction, .. } => {
            (Step::ReduceScatter(reduction), memory(source.part(all), only(&own.destination)?.part(share)))
        }
        _ => (Step::AllGather, memory(only(&own.source)?.part(share), destination.part(all))),
    };
    let block = Call { step, dtype, memory: memory_of_all, divisor: None };
    let last = calls.pop().expect("a block has two operations at least");
    let tail = Span { offset: each, bytes: last.bytes() - each };
    if tail.bytes == 0 {
        return Ok(vec![block]);
    }
    let memory = memory(only(&last.memory.source)?.part(tail), only(&last.memory.destination)?.part(tail));
    Ok(vec![block, Call { memory, ..last }])
}

/// Memory that is one run. Its marks are waited for, and its submitter is told elsewhere.
fn memory(source: DeviceRegion, destination: DeviceRegion) -> DeviceMemory {
    DeviceMemory { source: vec![source], destination: vec![destination], after: Vec::new(), issued: OnIssue::nobody() }
}

/// One run of all these, which follow each other.
fn whole<'calls>(parts: impl Iterator<Item = &'calls Vec<DeviceRegion>>) -> Result<DeviceRegion> {
    let mut all: Option<DeviceRegion> = None;
    for part in parts {
        let part = only(part)?;
        let joined = match &all {
            None => part.again(),
            Some(before)
                if before.device() == part.device() && before.address() + before.len() as u64 == part.address() =>
            {
                DeviceRegion::new(before.device(), before.address(), before.len() + part.len())
            }
            Some(_) => return Err(scattered()),
        };
        all = Some(joined);
    }
    all.ok_or_else(scattered)
}

/// The one run of a part of a single tensor.
fn only(runs: &[DeviceRegion]) -> Result<&DeviceRegion> {
    match runs {
        [run] => Ok(run),
        _ => Err(scattered()),
    }
}

fn scattered() -> Error {
    Error::Internal { what: "the parts of a tensor do not follow each other in the memory of its device".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::nccl::program::Reduction;
    use crate::collective::order::Claim;
    use crate::mem::Ordinal;
    use crate::types::{DType, DeviceKind, Op, PartId, Round, TensorKey};

    #[test]
    fn parts_of_one_tensor_for_all_ranks_in_turn_are_a_block() {
        let reduces = |takers: &[usize]| run(takers.iter().map(|taker| reduce(*taker)));
        assert_eq!(lengths(&reduces(&[0, 1, 2]), 3), [3]);
        assert_eq!(lengths(&reduces(&[1, 2, 0, 1, 2, 0, 1]), 3), [1, 1, 3, 1, 1]);
        assert_eq!(lengths(&reduces(&[0, 1, 2, 0, 1, 2]), 3), [3, 3]);
        assert_eq!(lengths(&reduces(&[0, 1]), 3), [1, 1]);
        assert_eq!(lengths(&run([show(0), show(1)].into_iter()), 2), [2]);
        assert_eq!(lengths(&[], 2), [0; 0]);
    }

    #[test]
    fn parts_of_one_tensor_with_one_data_flow_are_a_stretch() {
        let of = |dataflow, count| run(std::iter::repeat_n(dataflow, count));
        for ranks in [2, 3, 8] {
            for dataflow in
                [sum_for_all(), show(1), reduce(2), Dataflow::Reduce { of: 7, taker: Some(1), whole_of: Some(3) }]
            {
                let found = [1, 2, 5, 8].map(|count| lengths(&of(dataflow, count), ranks));
                assert_eq!(found, [[1], [2], [5], [8]], "{dataflow:?}");
            }
            for dataflow in [Dataflow::Show { from: 0, taker: Some(1) }, Dataflow::Keep { by: 0 }, Dataflow::Nothing] {
                assert_eq!(lengths(&of(dataflow, 3), ranks), [1, 1, 1], "not every rank makes a call: {dataflow:?}");
            }
        }
        let mixed = [sum_for_all(), sum_for_all(), reduce(0), reduce(1), sum_for_all(), show(0)];
        assert_eq!(lengths(&run(mixed.into_iter()), 2), [2, 2, 1, 1]);
    }

    #[test]
    fn a_stretch_ends_where_something_differs_whatever_the_lengths_and_weights() {
        let change = |change: &dyn Fn(&mut Ordered)| {
            let mut group = run(std::iter::repeat_n(sum_for_all(), 4));
            change(&mut group[2]);
            lengths(&group, 2)
        };
        assert_eq!(change(&|_| ()), [4]);
        assert_eq!([4, 4096].map(|bytes| change(&|third| third.claim.bytes = bytes)), [[4], [4]]);
        assert_eq!(change(&|third| third.weights = vec![2.0; 3]), [4], "weighed before");
        let different: [&dyn Fn(&mut Ordered); 7] = [
            &|third| third.slot.0.key = TensorKey(9),
            &|third| third.slot.0.index += 1,
            &|third| third.slot.1 = Round(8),
            &|third| third.claim.dtype = DType::I32,
            &|third| third.claim.op = Op::Mean,
            &|third| third.dataflow = Dataflow::Reduce { of: 0b111, taker: None, whole_of: None },
            &|third| third.dataflow = show(0),
        ];
        for (number, change_different) in different.iter().enumerate() {
            assert_eq!(change(change_different), [2, 1, 1], "change {number}");
        }
        let mut backwards = run(std::iter::repeat_n(sum_for_all(), 3));
        backwards.reverse();
        assert_eq!(lengths(&backwards, 2), [1, 1, 1]);
    }

    #[test]
    fn a_stretch_is_one_call_with_the_divisor_of_its_parts() {
        let reduction = Reduction::Sum;
        for step in [Step::AllReduce(reduction), Step::Reduce { reduction, root: 1 }, Step::Broadcast { root: 0 }] {
            for divisor in [None, Some(3)] {
                let mut parts = calls(&[64, 32, 8], |_| step);
                for part in &mut parts {
                    part.divisor = divisor;
                    // Out of place.
                    let run = &mut part.memory.destination[0];
                    *run = region(run.address() + 0x1000, run.len());
                }
                let joined = join(parts, 2).unwrap();
                assert_eq!(described(&joined), [(step, (0x1000, 104), (0x2000, 104))]);
                assert_eq!(joined[0].divisor, divisor);
            }
        }
    }

    #[test]
    fn whatever_differs_is_no_block() {
        let change = |change: &dyn Fn(&mut Ordered)| {
            let mut group = run([reduce(0), reduce(1)].into_iter());
            change(&mut group[1]);
            lengths(&group, 2)
        };
        assert_eq!(change(&|_| ()), [2]);
        assert_eq!(change(&|last| last.claim.bytes += 4), [2], "the tail");
        let changes: [&dyn Fn(&mut Ordered); 8] = [
            &|last| last.slot.0.key = TensorKey(9),
            &|last| last.slot.0.index += 1,
            &|last| last.slot.1 = Round(8),
            &|last| last.claim.bytes -= 4,
            &|last| last.claim.dtype = DType::I32,
            &|last| last.claim.op = Op::Max,
            &|last| last.dataflow = show(1),
            &|last| last.dataflow = Dataflow::Reduce { of: 0b11, taker: None, whole_of: Some(2) },
        ];
        for (number, different) in changes.iter().enumerate() {
            assert_eq!(change(different), [1, 1], "change {number}");
        }
        let shown = |from| Dataflow::Show { from, taker: Some(0) };
        assert_eq!(lengths(&run([shown(0), shown(1)].into_iter()), 2), [1, 1], "a broadcast of a root");
        let mut empty = run([reduce(0), reduce(1)].into_iter());
        empty.iter_mut().for_each(|ordered| ordered.claim.bytes = 0);
        assert_eq!(lengths(&empty, 2), [1, 1]);
    }

    #[test]
    fn a_block_is_one_call_in_place_and_one_for_its_tail() {
        let reduction = Reduction::Sum;
        let reduces = |last| calls(&[64, 64, last], |root| Step::Reduce { reduction, root });
        for me in 0..3 {
            let own = 0x1000 + 64 * me as u64;
            let joined = join(reduces(64), me).unwrap();
            assert_eq!(described(&joined), [(Step::ReduceScatter(reduction), (0x1000, 192), (own, 64))]);
            let joined = join(reduces(72), me).unwrap();
            let tail = (Step::Reduce { reduction, root: 2 }, (0x10c0, 8), (0x10c0, 8));
            assert_eq!(described(&joined), [(Step::ReduceScatter(reduction), (0x1000, 192), (own, 64)), tail]);
            let joined = join(calls(&[64, 72], |root| Step::Broadcast { root }), me.min(1)).unwrap();
            let own = 0x1000 + 64 * me.min(1) as u64;
            let tail = (Step::Broadcast { root: 1 }, (0x1080, 8), (0x1080, 8));
            assert_eq!(described(&joined), [(Step::AllGather, (own, 64), (0x1000, 128)), tail]);
        }
    }

    #[test]
    fn parts_that_lie_apart_are_an_error() {
        let steps: [fn(usize) -> Step; 2] = [|root| Step::Broadcast { root }, |_| Step::AllReduce(Reduction::Sum)];
        for step in steps {
            let mut apart = calls(&[64, 64], step);
            apart[1].memory.destination = vec![region(0x2000, 64)];
            assert!(matches!(join(apart, 0), Err(Error::Internal { .. })));
        }
    }

    /// A call with the address and length of what it reads and of what it writes.
    type Described = (Step, (u64, usize), (u64, usize));

    fn described(calls: &[Call]) -> Vec<Described> {
        let place = |region: &DeviceRegion| (region.address(), region.len());
        let one = |call: &Call| (call.step, place(&call.memory.source[0]), place(&call.memory.destination[0]));
        calls.iter().map(one).collect()
    }

    /// The calls for parts of these lengths, one behind the other, in place.
    fn calls(lens: &[usize], step: impl Fn(usize) -> Step) -> Vec<Call> {
        let mut address = 0x1000;
        let mut call = |(rank, len): (usize, &usize)| {
            let runs = || vec![region(address, *len)];
            let memory =
                DeviceMemory { source: runs(), destination: runs(), after: Vec::new(), issued: OnIssue::nobody() };
            address += *len as u64;
            Call { step: step(rank), dtype: DType::F32, memory, divisor: None }
        };
        lens.iter().enumerate().map(&mut call).collect()
    }

    fn region(address: u64, len: usize) -> DeviceRegion {
        DeviceRegion::new(Ordinal(0), address, len)
    }

    /// Parts of one tensor that follow each other.
    fn run(dataflows: impl Iterator<Item = Dataflow>) -> Vec<Ordered> {
        let part = |index| PartId { key: TensorKey(7), index };
        let ordered = |(index, dataflow): (u32, Dataflow)| Ordered {
            slot: (part(index), Round(4)),
            dataflow,
            claim: claim(),
            weights: vec![1.0; 3],
            memory: DeviceMemory {
                source: Vec::new(),
                destination: Vec::new(),
                after: Vec::new(),
                issued: OnIssue::nobody(),
            },
        };
        (5..).zip(dataflows).map(ordered).collect()
    }

    fn reduce(taker: usize) -> Dataflow {
        Dataflow::Reduce { of: 0b111, taker: Some(taker), whole_of: None }
    }

    fn show(from: usize) -> Dataflow {
        Dataflow::Show { from, taker: None }
    }

    fn sum_for_all() -> Dataflow {
        Dataflow::Reduce { of: 0b111, taker: None, whole_of: Some(3) }
    }

    fn claim() -> Claim {
        Claim { device: DeviceKind::Cuda, ..Claim::SUM }
    }
}
