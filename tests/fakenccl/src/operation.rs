//! Operations, and how the ranks do them together.
//!
//! A collective operation goes step by step. In each step a rank writes what it contributes into its staging memory, all meet, each takes
//! what it needs out of the others', and all meet again. Before the first step all compare what they were called for.

use std::sync::atomic::AtomicBool;

use crate::arithmetic::{Combine, Type, combine, divide, multiply, reciprocal};
use crate::codes::{Failure, INVALID_USAGE, Outcome};
use crate::meeting::{BarrierKind, Meeting};
use crate::shared::{Descriptor, STAGING, read, write};

/// What one call asks for. Addresses are those of the device.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    pub(crate) dtype: Type,
    /// Elements, as the call counts them.
    pub(crate) count: usize,
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Kind {
    AllReduce(Reduction),
    Reduce { reduction: Reduction, root: usize },
    ReduceScatter(Reduction),
    AllGather,
    Broadcast { root: usize },
    Send { to: usize },
    Receive { from: usize },
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reduction {
    Plain(Combine),
    Average,
    /// The sum of what was multiplied by each rank's factor.
    Scaled(Factor),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Factor {
    Here(Vec<u8>),
    /// In memory of the device, read when the operation is done.
    OnDevice(usize),
}

/// Where a task's memory is for the host; 0 for what this rank has none of.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

/// Where a collective operation stands among those of its communicator.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    /// Its group, among those that have collective operations.
    pub(crate) group: u64,
    /// How many of them it has.
    pub(crate) grouped: u64,
}

impl Kind {
    /// How contributions are combined, if they are.
    pub(crate) fn reduction(&self) -> Option<&Reduction> {
        match self {
            Self::AllReduce(reduction) | Self::Reduce { reduction, .. } | Self::ReduceScatter(reduction) => {
                Some(reduction)
            }
            Self::AllGather | Self::Broadcast { .. } | Self::Send { .. } | Self::Receive { .. } => None,
        }
    }
}

impl Task {
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            Kind::AllReduce(_) => "AllReduce",
            Kind::Reduce { .. } => "Reduce",
            Kind::ReduceScatter(_) => "ReduceScatter",
            Kind::AllGather => "AllGather",
            Kind::Broadcast { .. } => "Broadcast",
            Kind::Send { .. } => "Send",
            Kind::Receive { .. } => "Recv",
        }
    }

    /// Whether two ranks do it alone.
    pub(crate) fn is_a_letter(&self) -> bool {
        matches!(self.kind, Kind::Send { .. } | Kind::Receive { .. })
    }

    /// Bytes that `rank` reads and writes.
    pub(crate) fn bytes(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let bytes = self.count * self.dtype.bytes();
        match self.kind {
            Kind::AllReduce(_) => (bytes, bytes),
            Kind::Reduce { root, .. } => (bytes, if rank == root { bytes } else { 0 }),
            Kind::ReduceScatter(_) => (bytes * ranks, bytes),
            Kind::AllGather => (bytes, bytes * ranks),
            Kind::Broadcast { root } => (if rank == root { bytes } else { 0 }, bytes),
            Kind::Send { .. } => (bytes, 0),
            Kind::Receive { .. } => (0, bytes),
        }
    }

    /// Whether what is read and what is written lie apart, or one in the other as NCCL's user guide says ("In-place Operations").
    pub(crate) fn check_overlap(&self, rank: usize, ranks: usize) -> Outcome {
        let (reads, writes) = self.bytes(rank, ranks);
        let apart = self.send + reads <= self.receive || self.receive + writes <= self.send;
        let in_place = match self.kind {
            Kind::AllReduce(_) | Kind::Reduce { .. } | Kind::Broadcast { .. } => self.send == self.receive,
            Kind::ReduceScatter(_) => self.receive == self.send + rank * writes,
            Kind::AllGather => self.send == self.receive + rank * reads,
            Kind::Send { .. } | Kind::Receive { .. } => true,
        };
        if reads == 0 || writes == 0 || apart || in_place {
            return Ok(());
        }
        Err(Failure::argument(format!(
            "{}: {reads} bytes at {:#x} and {writes} at {:#x} overlap, and not as an operation in place does",
            self.name(),
            self.send,
            self.receive
        )))
    }

    /// What all ranks must agree about.
    fn descriptor(&self, Turn { number, group, grouped }: Turn) -> Descriptor {
        let reduction = |reduction: &Reduction| match reduction {
            Reduction::Plain(how) => *how as u64,
            Reduction::Average => 4,
            Reduction::Scaled(_) => 5,
        };
        let (kind, op, root) = match &self.kind {
            Kind::AllReduce(how) => (0, reduction(how), 0),
            Kind::Reduce { reduction: how, root } => (1, reduction(how), *root as u64),
            Kind::ReduceScatter(how) => (2, reduction(how), 0),
            Kind::AllGather => (3, 0, 0),
            Kind::Broadcast { root } => (4, 0, *root as u64),
            Kind::Send { to } => (5, 0, *to as u64),
            Kind::Receive { from } => (6, 0, *from as u64),
        };
        [number, kind, self.dtype as u64, op, self.count as u64, root, group, grouped]
    }
}

/// A descriptor in words.
fn words([number, kind, dtype, op, count, root, group, grouped]: Descriptor) -> String {
    const KINDS: [&str; 7] = ["AllReduce", "Reduce", "ReduceScatter", "AllGather", "Broadcast", "Send", "Recv"];
    const OPS: [&str; 6] = ["sum", "prod", "max", "min", "avg", "scaled sum"];
    let name = |names: &[&'static str], index: u64| usize::try_from(index).ok().and_then(|at| names.get(at).copied());
    let dtype = u32::try_from(dtype).ok().and_then(|dtype| Type::of(dtype).ok());
    let dtype = dtype.map_or("?".to_owned(), |dtype| format!("{dtype:?}"));
    format!(
        "operation {number}: {} of {count} {dtype}, {}, root {root}, in group {group} of {grouped}",
        name(&KINDS, kind).unwrap_or("?"),
        name(&OPS, op).unwrap_or("?")
    )
}

/// Does a collective operation.
pub(crate) fn collective(
    meeting: &Meeting,
    task: &Task,
    memory: Memory,
    factor: Option<&[u8]>,
    turn: Turn,
    aborted: &AtomicBool,
) -> Outcome {
    let (rank, ranks, shared) = (meeting.rank, meeting.ranks, &meeting.shared);
    let what = || format!("{} (operation {})", task.name(), turn.number);
    let meet = || meeting.barrier(BarrierKind::Operations, &what, aborted);
    let ours = task.descriptor(turn);
    shared.describe(rank, ours);
    meet()?;
    if let Some(other) = (0..ranks).find(|other| shared.described(*other) != ours) {
        let theirs = words(shared.described(other));
        let text = format!("rank {rank} is at {}, rank {other} at {theirs}", words(ours));
        let failure = Failure::new(INVALID_USAGE, text);
        meeting.fail(&failure);
        return Err(failure);
    }
    let size = task.dtype.bytes();
    let total = task.count * size;
    // How much of each rank's share fits a step: in a reduce-scatter a rank contributes to all of them.
    let step = STAGING / shares(task, ranks) / size * size;
    for from in (0..total).step_by(step) {
        let len = step.min(total - from);
        contribute(meeting, task, memory, factor, from, len);
        meet()?;
        take(meeting, task, memory, from, len);
        meet()?;
    }
    Ok(())
}

/// Writes this rank's bytes of a step into its staging memory.
fn contribute(meeting: &Meeting, task: &Task, memory: Memory, factor: Option<&[u8]>, from: usize, len: usize) {
    let (rank, ranks, shared) = (meeting.rank, meeting.ranks, &meeting.shared);
    match &task.kind {
        Kind::Broadcast { root } if *root != rank => {}
        Kind::ReduceScatter(_) => {
            let total = task.count * task.dtype.bytes();
            let staging = shared.staging(rank, len * ranks);
            for (other, part) in staging.chunks_exact_mut(len).enumerate() {
                read(memory.send + other * total + from, part);
            }
        }
        _ => read(memory.send + from, shared.staging(rank, len)),
    }
    let Some(reduction) = task.kind.reduction() else { return };
    let staging = shared.staging(rank, len * shares(task, ranks));
    match (reduction, factor) {
        (Reduction::Scaled(_), Some(factor)) => multiply(task.dtype, staging, factor),
        (Reduction::Average, _) if task.dtype.is_float() => {
            multiply(task.dtype, staging, &reciprocal(task.dtype, ranks));
        }
        _ => {}
    }
}

/// Takes what this rank needs out of all staging memories.
fn take(meeting: &Meeting, task: &Task, memory: Memory, from: usize, len: usize) {
    let (rank, ranks, shared) = (meeting.rank, meeting.ranks, &meeting.shared);
    let total = task.count * task.dtype.bytes();
    let reduced = |reduction: &Reduction, offset: usize| {
        let parts: Vec<&[u8]> = (0..ranks).map(|other| shared.staged(other, offset, len)).collect();
        let how = if let Reduction::Plain(how) = reduction { *how } else { Combine::Sum };
        let mut out = vec![0; len];
        combine(task.dtype, how, &parts, &mut out);
        if *reduction == Reduction::Average && !task.dtype.is_float() {
            divide(task.dtype, &mut out, ranks);
        }
        write(memory.receive + from, &out);
    };
    match &task.kind {
        Kind::AllReduce(reduction) => reduced(reduction, 0),
        Kind::Reduce { reduction, root } if *root == rank => reduced(reduction, 0),
        Kind::ReduceScatter(reduction) => reduced(reduction, rank * len),
        Kind::AllGather => {
            for other in 0..ranks {
                write(memory.receive + other * total + from, shared.staged(other, 0, len));
            }
        }
        Kind::Broadcast { root } => write(memory.receive + from, shared.staged(*root, 0, len)),
        Kind::Reduce { .. } | Kind::Send { .. } | Kind::Receive { .. } => {}
    }
}

/// How many ranks' shares a rank contributes in a step.
fn shares(task: &Task, ranks: usize) -> usize {
    if matches!(task.kind, Kind::ReduceScatter(_)) { ranks } else { 1 }
}
