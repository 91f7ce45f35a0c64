//! The operations of the engine that make up the other collectives than all-reduce: the same as in `gradlane/_collectives.py`.
//!
//! Reduce-scatter is one reduction for each worker, which alone gets the sum. All-gather is one broadcast from each worker. All-to-all is
//! one broadcast between each two workers in each direction, and a copy of the own part.

use std::ops::Range;

use gradlane_core::engine::Submission;
use gradlane_core::types::{DType, Op, Participants, Priority, TensorSpec, WorkerId};

use crate::team::buffers::{Memory, Set};
use crate::team::collective::{Collective, part};
use crate::team::orders::{Case, Tensor};

/// What one worker does for an exchange.
pub(super) struct Operations {
    /// Tensors and the bytes of them that go from the contribution to the same place of the result.
    copies: Vec<(usize, Range<usize>)>,
    operations: Vec<Operation>,
}

/// An operation of the engine, with the bytes of a tensor's memory at its ends.
struct Operation {
    tensor: usize,
    spec: TensorSpec,
    op: Op,
    priority: Priority,
    source: (Memory, Range<usize>),
    destination: (Memory, Range<usize>),
}

impl Operations {
    /// Those of worker `rank` of `ranks`. All-reduce has none, because the engine does it with a whole tensor.
    pub(super) fn of(case: &Case, rank: u32, ranks: u32) -> Self {
        let mut all = Self { copies: Vec::new(), operations: Vec::new() };
        for (index, tensor) in case.tensors.iter().enumerate() {
            let place = Place { index, tensor, dtype: case.dtype(), rank, ranks };
            match case.collective {
                Collective::AllReduce => {}
                Collective::ReduceScatter => {
                    all.operations.extend((0..ranks).map(|member| place.reduction(member, case.op())));
                }
                Collective::AllGather => all.operations.extend((0..ranks).map(|member| place.broadcast(member))),
                Collective::AllToAll => {
                    all.copies.push((index, place.part(rank)));
                    for other in (0..ranks).filter(|other| *other != rank) {
                        all.operations.extend([place.message(rank, other), place.message(other, rank)]);
                    }
                }
            }
        }
        all
    }

    /// The tensors to declare.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        self.operations.iter().map(|operation| operation.spec.clone()).collect()
    }

    /// Does the copies, and returns the submissions in their order.
    pub(super) fn begin(&self, set: &mut Set) -> impl Iterator<Item = Submission> {
        // Before the operations, because then the rest of the result belongs to the engine.
        for (tensor, bytes) in &self.copies {
            set.copy(*tensor, bytes.clone());
        }
        self.operations.iter().map(move |operation| {
            let mut region =
                |(memory, bytes): &(Memory, Range<usize>)| set.region(operation.tensor, *memory, bytes.clone()).into();
            Submission {
                tensor: operation.spec.clone(),
                source: region(&operation.source),
                destination: region(&operation.destination),
                op: operation.op,
                weight: 1.0,
                priority: operation.priority,
                timeout: None,
            }
        })
    }
}

/// A tensor of a case on one worker.
struct Place<'case> {
    index: usize,
    tensor: &'case Tensor,
    dtype: DType,
    rank: u32,
    ranks: u32,
}

impl Place<'_> {
    /// The reduction of the part of `member`, which gets the sum. The others name the source as destination, which does not change.
    fn reduction(&self, member: u32, op: Op) -> Operation {
        let source = (Memory::Contribution, self.part(member));
        let destination = if member == self.rank { (Memory::Result, self.part(member)) } else { source.clone() };
        let participants = Participants::ALL.with_receiver(WorkerId(member));
        self.operation(&format!(">{member}"), participants, op, source, destination)
    }

    /// The broadcast of the part of `member` to all.
    fn broadcast(&self, member: u32) -> Operation {
        let destination = (Memory::Result, self.part(member));
        let source = if member == self.rank { (Memory::Contribution, self.part(member)) } else { destination.clone() };
        let op = Op::Broadcast { root: WorkerId(member) };
        self.operation(&format!("<{member}"), Participants::ALL, op, source, destination)
    }

    /// The message of worker `origin` to worker `to`; this worker is one of the two.
    fn message(&self, origin: u32, to: u32) -> Operation {
        let end = if origin == self.rank {
            (Memory::Contribution, self.part(to))
        } else {
            (Memory::Result, self.part(origin))
        };
        let members = [origin, to].into_iter().map(WorkerId).collect();
        let participants = Participants::of(members).with_receiver(WorkerId(to));
        let op = Op::Broadcast { root: WorkerId(origin) };
        self.operation(&format!(".{origin}>{to}"), participants, op, end.clone(), end)
    }

    fn operation(
        &self,
        suffix: &str,
        participants: Participants,
        op: Op,
        source: (Memory, Range<usize>),
        destination: (Memory, Range<usize>),
    ) -> Operation {
        let name = format!("{}{suffix}", self.tensor.name);
        let elements = self.tensor.elements / u64::from(self.ranks);
        let spec = TensorSpec::new(name, self.dtype, vec![elements]).with_participants(participants);
        Operation { tensor: self.index, spec, op, priority: Priority(self.tensor.priority), source, destination }
    }

    /// The bytes of the part of `rank`.
    fn part(&self, rank: u32) -> Range<usize> {
        let elements = usize::try_from(self.tensor.elements).expect("it fits in memory");
        let (part, bytes) = (part(elements, rank, self.ranks), self.dtype.bytes() as usize);
        part.start * bytes..part.end * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Point;

    #[test]
    fn each_worker_takes_part_in_a_reduction_or_a_broadcast_for_each_worker() {
        assert_eq!(
            shown(Collective::ReduceScatter),
            ["t>0 C0..8 to C0..8", "t>1 C8..16 to R8..16", "t>2 C16..24 to C16..24"]
        );
        assert_eq!(
            shown(Collective::AllGather),
            ["t<0 R0..8 to R0..8", "t<1 C8..16 to R8..16", "t<2 R16..24 to R16..24"]
        );
    }

    #[test]
    fn each_worker_exchanges_messages_with_the_others_and_copies_its_own_part() {
        let messages =
            ["t.1>0 C0..8 to C0..8", "t.0>1 R0..8 to R0..8", "t.1>2 C16..24 to C16..24", "t.2>1 R16..24 to R16..24"];
        assert_eq!(shown(Collective::AllToAll), messages);
        let all = operations(Collective::AllToAll);
        assert_eq!(all.copies, [(0, 8..16)]);
        let sent = &all.operations[2].spec.participants;
        assert_eq!(sent.to_string(), "workers {1, 2}, sums to worker 2");
    }

    /// Names, and bytes of the ends in the contribution (C) and in the result (R).
    fn shown(collective: Collective) -> Vec<String> {
        let end = |(memory, bytes): &(Memory, Range<usize>)| match memory {
            Memory::Contribution => format!("C{bytes:?}"),
            Memory::Result => format!("R{bytes:?}"),
        };
        let show = |operation: &Operation| {
            let name = operation.spec.name.strip_prefix(collective.name()).expect("the collective comes first");
            let name = name.replace(".float32.24.0", "t");
            format!("{name} {} to {}", end(&operation.source), end(&operation.destination))
        };
        operations(collective).operations.iter().map(show).collect()
    }

    /// Those of worker 1 of 3, of six elements.
    fn operations(collective: Collective) -> Operations {
        let point = Point { bytes: 24, dtype: DType::F32, op: Op::Sum };
        Operations::of(&Case::of_parts(collective, point, 1, 3).unwrap(), 1, 3)
    }
}
