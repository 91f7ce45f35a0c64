//! The protocol between the benchmark and its ranks: one JSON object per line. Orders go to a rank's standard input, reports come from its
//! standard output. Ranks of peers (Gloo, MPI) obey the same orders, so that all contenders do the same work in the same order.

use gradlane_core::types::{CodecSpec, DType, Op, Priority, TensorSpec, WorkerId};
use serde::{Deserialize, Serialize};

use super::collective::Collective;
use crate::arguments::Point;

/// An order to a rank. The end of standard input is the last order: leave.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Join the other ranks. Each contender does this in its own way.
    Join {
        /// This rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
        /// Addresses, settings and so on, by name.
        with: std::collections::BTreeMap<String, String>,
    },
    /// Allocate the memory of a case, and free that of the case before.
    Prepare(Case),
    /// Measure the case once.
    Repeat(Repeat),
    /// Report the processor time so far.
    Usage,
}

/// What the ranks exchange, and how.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Case {
    /// The tensors of one exchange, in the order in which they are submitted.
    pub(crate) tensors: Vec<Tensor>,
    /// Their type, by its name.
    pub(crate) dtype: String,
    /// The codec of all of them, as text; nothing if they travel plain. See [`Coded`](super::coded::Coded) for their elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) codec: Option<String>,
    /// sum, mean, min, max, broadcast (from rank 0), or [`NO_OP`].
    pub(crate) op: String,
    /// What the ranks do together.
    #[serde(default)]
    pub(crate) collective: Collective,
    /// Sets of memory for the tensors, used in turns, so that many exchanges can be timed at once and verified afterwards.
    pub(crate) sets: usize,
    /// Whether small neighbouring tensors may share parts, as those of a model do.
    pub(crate) fuse: bool,
    /// Whether all tensors are submitted in one call, by contenders that have such a call.
    #[serde(default)]
    pub(crate) together: bool,
    /// Which way bytes go.
    pub(crate) mode: Mode,
    /// Bytes of less urgent tensors that are under way while the case is measured.
    pub(crate) backlog_bytes: u64,
}

/// Which way bytes go in an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// A push and its answer in one exchange, for all tensors at once: bytes go both ways at the same time.
    PushPull,
    /// All pushes; when all are acknowledged, all pulls.
    PushThenPull,
    /// Pushes that are acknowledged without a body.
    PushOnly,
    /// Pulls of what was pushed before.
    PullOnly,
}

impl Mode {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PushPull => "push-pull",
            Self::PushThenPull => "push-then-pull",
            Self::PushOnly => "push-only",
            Self::PullOnly => "pull-only",
        }
    }
}

/// The operation of a case without a reduction. In a [`Case::raw`], every rank gets back what it pushed.
pub(crate) const NO_OP: &str = "none";

/// One tensor of a case.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Tensor {
    /// Equal on all ranks, and unique in the run.
    pub(crate) name: String,
    /// Its length.
    pub(crate) elements: u64,
    /// Its priority; higher goes first.
    pub(crate) priority: i32,
}

/// One repetition: `warmup` exchanges, then `iterations` timed ones.
///
/// They are timed in batches of [`Case::sets`], back to back within a batch. Before each batch, an exchange of a few bytes serves as a
/// barrier. After it, each rank verifies every element of every sum and writes the contributions again. Neither is timed.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Repeat {
    pub(crate) in_place: bool,
    pub(crate) warmup: u32,
    pub(crate) iterations: u32,
    /// Whether sums are verified. If not, the contributions are not written again either, and values in place grow without meaning.
    pub(crate) check: bool,
    /// Change an element of one sum before it is verified, to test that the benchmark notices.
    pub(crate) spoil: bool,
}

/// The answer of a rank.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The order was carried out.
    Done,
    /// The repetition's figures on this rank.
    Measured(Measured),
    /// Processor time of this process, user and system, since it started.
    Usage {
        /// In seconds.
        cpu_seconds: f64,
    },
    /// The order failed.
    Failed {
        /// The reason, as text.
        error: String,
    },
}

/// One repetition on one rank.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
pub(crate) struct Measured {
    /// The time of each timed exchange.
    pub(crate) seconds: Vec<f64>,
    /// Processor time of this process within the timed batches.
    pub(crate) cpu_seconds: f64,
    /// Bytes that the network interfaces of this process's network namespace sent within the timed batches.
    pub(crate) sent_bytes: u64,
    /// Bytes that these interfaces received.
    pub(crate) received_bytes: u64,
    /// Bytes of bodies that were pushed and pulled within them; nothing if this rank does not count them.
    #[serde(default)]
    pub(crate) body_bytes: Option<u64>,
    /// Elements with a wrong value.
    pub(crate) wrong: u64,
    /// The place and the value of the first of them.
    pub(crate) wrong_at: Option<String>,
    /// Batches during which the backlog ended, so that some of their exchanges ran without it.
    #[serde(default)]
    pub(crate) late: u64,
}

/// The time of each exchange of a repetition on its slowest rank.
pub(crate) fn slowest(ranks: &[Measured]) -> Vec<f64> {
    let exchanges = ranks.iter().map(|rank| rank.seconds.len()).min().unwrap_or(0);
    let slowest = |index: usize| ranks.iter().map(|rank| rank.seconds[index]).fold(0.0, f64::max);
    (0..exchanges).map(slowest).collect()
}

impl Case {
    /// A case of `inflight` equal tensors.
    pub(crate) fn single(name: &str, bytes: u64, dtype: DType, op: Op, inflight: u32) -> Self {
        let tensor = |index| Tensor {
            name: format!("{name}.{dtype}.{bytes}.{index}"),
            elements: bytes / dtype.bytes(),
            priority: Priority::default().0,
        };
        Self::of((0..inflight).map(tensor).collect(), dtype, op_name(op)).with_sets()
    }

    /// A case of `inflight` equal tensors of `bytes` in another collective than all-reduce, among `ranks`. Bytes that do not make whole
    /// elements for each rank are left out.
    ///
    /// # Errors
    /// If no elements are left.
    pub(crate) fn of_parts(collective: Collective, point: Point, inflight: u32, ranks: u32) -> Result<Self, String> {
        let Point { bytes, dtype, op } = point;
        let elements = collective.whole_parts(bytes / dtype.bytes(), ranks);
        if elements == 0 {
            return Err(format!(
                "{} of {bytes} bytes among {ranks} workers: there is not one {dtype} element for each; choose a larger -b",
                collective.name()
            ));
        }
        let single = Self::single(collective.name(), elements * dtype.bytes(), dtype, op, inflight);
        let op = if collective.reduces() { single.op } else { NO_OP.to_owned() };
        Ok(Self { op, collective, ..single })
    }

    /// A case of all tensors of a model, submitted from the last to the first, as a backward pass makes gradients. The tensor that the next
    /// forward pass needs first is most urgent.
    pub(crate) fn model(specs: &[TensorSpec], dtype: DType, op: Op) -> Self {
        let tensor = |(position, spec): (usize, &TensorSpec)| Tensor {
            name: format!("{}.{dtype}", spec.name),
            elements: spec.shape.iter().product(),
            priority: Priority::of_position(position).0,
        };
        let tensors: Vec<Tensor> = specs.iter().enumerate().rev().map(tensor).collect();
        Self { fuse: true, ..Self::of(tensors, dtype, op_name(op)) }.with_sets()
    }

    /// A case of `count` equal tensors that are submitted in one call.
    pub(crate) fn batch(bytes: u64, dtype: DType, count: u32) -> Self {
        Self { sets: 1, fuse: true, together: true, ..Self::single("batch", bytes, dtype, Op::Sum, count) }
    }

    /// A case that moves bytes without summation.
    pub(crate) fn raw(bytes: u64, inflight: u32, mode: Mode) -> Self {
        Self { op: NO_OP.to_owned(), mode, ..Self::single("message", bytes, DType::U8, Op::Sum, inflight) }
    }

    /// The same case, measured during a backlog of `backlog_bytes` of less urgent tensors, a few exchanges at a time.
    pub(crate) fn under_backlog(self, backlog_bytes: u64) -> Self {
        Self { backlog_bytes, sets: EXCHANGES_A_BACKLOG, ..self }
    }

    /// The same tensors with a codec, under names of their own, because a name has one codec.
    pub(crate) fn with_codec(mut self, codec: CodecSpec) -> Self {
        if codec.is_plain() {
            return self;
        }
        for tensor in &mut self.tensors {
            tensor.name = format!("{}.{codec}", tensor.name);
        }
        Self { codec: Some(codec.to_string()), ..self }
    }

    fn of(tensors: Vec<Tensor>, dtype: DType, op: &str) -> Self {
        Self {
            tensors,
            dtype: dtype.name().to_owned(),
            codec: None,
            op: op.to_owned(),
            collective: Collective::AllReduce,
            sets: 1,
            fuse: false,
            together: false,
            mode: Mode::PushPull,
            backlog_bytes: 0,
        }
    }

    /// Bytes of all tensors of one exchange on one rank.
    pub(crate) fn bytes(&self) -> u64 {
        self.elements() * self.dtype().bytes()
    }

    /// Elements of it.
    pub(crate) fn elements(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements).sum()
    }

    /// The element type.
    ///
    /// # Panics
    /// If the benchmark wrote another name.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype.parse().expect("written from a type")
    }

    /// The codec; plain if it names none.
    ///
    /// # Panics
    /// If the benchmark wrote another name.
    pub(crate) fn codec(&self) -> CodecSpec {
        self.codec.as_ref().map_or(CodecSpec::PLAIN, |codec| codec.parse().expect("written from a codec"))
    }

    /// The operation.
    ///
    /// # Panics
    /// If the benchmark wrote another name.
    pub(crate) fn op(&self) -> Op {
        match self.op.as_str() {
            "broadcast" | NO_OP => Op::Broadcast { root: WorkerId(0) },
            name => crate::arguments::parse_op(name).expect("written from an operation"),
        }
    }

    /// Busbw divided by algbw among `ranks`, as nccl-tests defines it.
    pub(crate) fn bus_factor(&self, ranks: u32) -> f64 {
        match (self.collective, self.op()) {
            // Every byte moves once.
            (Collective::AllReduce, Op::Broadcast { .. }) => 1.0,
            (collective, _) => collective.bus_factor(ranks),
        }
    }

    /// Whether every rank gets back what it pushed.
    pub(crate) fn echoes(&self) -> bool {
        self.op == NO_OP && self.collective == Collective::AllReduce
    }

    /// As many sets as stay small together, because the benchmark measures exchanges and not the distance to memory.
    fn with_sets(self) -> Self {
        let sets = (SETS_BYTES / self.bytes().max(1)).clamp(1, SETS_MAX);
        Self { sets: usize::try_from(sets).expect("few"), ..self }
    }
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Sum => "sum",
        Op::Mean => "mean",
        Op::Min => "min",
        Op::Max => "max",
        Op::Broadcast { .. } => "broadcast",
        Op::WeightedMean => unreachable!("no argument names it"),
    }
}

/// Urgent exchanges during one backlog: so few that the backlog lasts longer.
const EXCHANGES_A_BACKLOG: usize = 4;
/// The most bytes of all sets of a case, unless a single set is larger.
const SETS_BYTES: u64 = 4 << 20;
const SETS_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tensors_have_many_sets_and_large_ones_have_one() {
        let sets = |bytes| Case::single("t", bytes, DType::F32, Op::Sum, 1).sets;
        assert_eq!([4 << 10, 1 << 20, 4 << 20, 64 << 20].map(sets), [64, 4, 1, 1]);
    }

    #[test]
    fn every_rank_has_whole_elements_of_each_tensor() {
        let point = |bytes| Point { bytes, dtype: DType::F32, op: Op::Max };
        let scatter = Case::of_parts(Collective::ReduceScatter, point(64), 2, 3).unwrap();
        assert_eq!((scatter.tensors[1].elements, scatter.op.as_str()), (15, "max"));
        assert_eq!(Case::of_parts(Collective::AllGather, point(64), 1, 4).unwrap().op, NO_OP);
        let problem = Case::of_parts(Collective::AllToAll, point(8), 1, 3).unwrap_err();
        assert!(
            problem.contains("all-to-all of 8 bytes among 3 workers") && problem.contains("larger -b"),
            "{problem}"
        );
    }

    #[test]
    fn a_broadcast_moves_every_byte_once() {
        let mut case = Case::single("t", 64, DType::F32, Op::Sum, 1);
        assert_eq!(case.bus_factor(4), 1.5);
        case.op = "broadcast".to_owned();
        assert_eq!(case.bus_factor(4), 1.0);
        let point = Point { bytes: 64, dtype: DType::F32, op: Op::Sum };
        assert_eq!(Case::of_parts(Collective::AllGather, point, 1, 4).unwrap().bus_factor(4), 0.75);
    }

    #[test]
    fn a_model_is_submitted_from_its_end_and_its_beginning_is_most_urgent() {
        let case = Case::model(&gradlane_core::pipeline::models::vgg16(), DType::F32, Op::Sum);
        assert_eq!(case.tensors[0].name, "classifier.6.bias.float32");
        assert!(case.tensors[0].priority < case.tensors[31].priority);
        assert_eq!(case.elements(), gradlane_core::pipeline::models::VGG16_PARAMETERS);
    }

    #[test]
    fn orders_and_answers_are_lines_of_json() {
        let order = Order::Prepare(Case::single("t", 8, DType::I8, Op::Max, 2));
        let line = serde_json::to_string(&order).unwrap();
        assert!(
            line.starts_with(r#"{"do":"prepare","tensors":[{"name":"t.int8.8.0","elements":8,"priority":0}"#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order);
        let answer = Answer::Failed { error: "why".to_owned() };
        assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"is":"failed","error":"why"}"#);
    }
}
