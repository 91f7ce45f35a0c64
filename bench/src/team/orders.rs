//! What the benchmark and its ranks say to each other: one JSON object a line, orders down a rank's standard input, reports up its
//! standard output. Ranks of peers (Gloo, MPI) obey the same orders, so that all contenders do the same work in the same order.

use gradlane_core::types::{DType, Op, Priority, TensorSpec, WorkerId};
use serde::{Deserialize, Serialize};

/// What a rank is told. The end of its standard input is the last order: leave.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Find the others. What it takes is the contender's own affair.
    Join {
        /// This rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// Addresses, settings and so on, by name.
        with: std::collections::BTreeMap<String, String>,
    },
    /// Make the memory of a case; forget the one before.
    Prepare(Case),
    /// Measure the case once.
    Repeat(Repeat),
    /// Say how much processor time was used so far.
    Usage,
}

/// What is exchanged.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Case {
    /// The tensors of one exchange, in the order in which they are submitted.
    pub(crate) tensors: Vec<Tensor>,
    /// Their type, by its name.
    pub(crate) dtype: String,
    /// sum, mean, min, max, or broadcast (from rank 0).
    pub(crate) op: String,
    /// Sets of the tensors' memory that take turns, so that many exchanges can be timed in one go and verified afterwards.
    pub(crate) sets: usize,
    /// Whether small neighbours may share parts; a model's do.
    pub(crate) fuse: bool,
    /// Whether all tensors are submitted in one call, where there is such a call.
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
    /// A push and its answer in one exchange, all tensors at once: bytes go both ways at the same time.
    PushPull,
    /// All pushes, and when all are acknowledged all pulls.
    PushThenPull,
    /// Pushes that are acknowledged without a body.
    PushOnly,
    /// Pulls of what was pushed before.
    PullOnly,
}

impl Mode {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PushPull => "push-pull",
            Self::PushThenPull => "push-then-pull",
            Self::PushOnly => "push-only",
            Self::PullOnly => "pull-only",
        }
    }
}

/// The operation of a case that reduces nothing: every rank gets back what it pushed.
pub(crate) const ECHO: &str = "echo";

/// One tensor of a case.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Tensor {
    /// Equal on all ranks, unlike all others of the run.
    pub(crate) name: String,
    /// How long.
    pub(crate) elements: u64,
    /// Higher goes first.
    pub(crate) priority: i32,
}

/// One repetition: `warmup` exchanges, then `iterations` timed ones.
///
/// They are timed in batches of [`Case::sets`], back to back within a batch. Before each batch the ranks meet, by an exchange of a few
/// bytes; after it every element of every sum is verified and the contributions are written again. Neither is in the time.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Repeat {
    pub(crate) in_place: bool,
    pub(crate) warmup: u32,
    pub(crate) iterations: u32,
    /// Whether sums are verified. Without it contributions are not written again either: in place, values grow without meaning.
    pub(crate) check: bool,
    /// Spoil an element of one sum before it is verified: whether the benchmark notices is a test of the benchmark.
    pub(crate) spoil: bool,
}

/// What a rank answers.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It was done.
    Done,
    /// The repetition's figures on this rank.
    Measured(Measured),
    /// Processor time of this process, user and system, since it started.
    Usage {
        /// In seconds.
        cpu_seconds: f64,
    },
    /// It could not be done.
    Failed {
        /// Why, for people.
        error: String,
    },
}

/// One repetition on one rank.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
pub(crate) struct Measured {
    /// Of each timed exchange.
    pub(crate) seconds: Vec<f64>,
    /// Processor time of this process within the timed batches.
    pub(crate) cpu_seconds: f64,
    /// Bytes that the network interfaces of this process's network namespace sent within the timed batches.
    pub(crate) sent_bytes: u64,
    /// Bytes that they received.
    pub(crate) received_bytes: u64,
    /// Elements that were wrong.
    pub(crate) wrong: u64,
    /// Where the first of them was, and what.
    pub(crate) wrong_at: Option<String>,
    /// Batches during which the backlog ended, so that some of their exchanges were not under it.
    #[serde(default)]
    pub(crate) late: u64,
}

/// Of each exchange of the same repetition on all ranks: that of the rank for which it took longest.
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

    /// A case of all tensors of a model, submitted from the last to the first, as a backward pass makes its gradients; what the next
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

    /// A case of so many equal tensors that are submitted in one call.
    pub(crate) fn batch(bytes: u64, dtype: DType, count: u32) -> Self {
        Self { sets: 1, fuse: true, together: true, ..Self::single("batch", bytes, dtype, Op::Sum, count) }
    }

    /// A case that moves bytes and reduces nothing.
    pub(crate) fn raw(bytes: u64, inflight: u32, mode: Mode) -> Self {
        Self { op: ECHO.to_owned(), mode, ..Self::single("message", bytes, DType::U8, Op::Sum, inflight) }
    }

    /// The same case, measured while so many bytes of less urgent tensors are under way, a few exchanges at a time.
    pub(crate) fn under_backlog(self, backlog_bytes: u64) -> Self {
        Self { backlog_bytes, sets: EXCHANGES_A_BACKLOG, ..self }
    }

    fn of(tensors: Vec<Tensor>, dtype: DType, op: &str) -> Self {
        Self {
            tensors,
            dtype: dtype.name().to_owned(),
            op: op.to_owned(),
            sets: 1,
            fuse: false,
            together: false,
            mode: Mode::PushPull,
            backlog_bytes: 0,
        }
    }

    /// Bytes of one exchange of one rank.
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

    /// The operation.
    ///
    /// # Panics
    /// If the benchmark wrote another name.
    pub(crate) fn op(&self) -> Op {
        match self.op.as_str() {
            "broadcast" | ECHO => Op::Broadcast { root: WorkerId(0) },
            name => crate::arguments::parse_op(name).expect("written from an operation"),
        }
    }

    /// As many sets as together stay small: what is measured is an exchange, not how far memory is from the processor.
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

/// Urgent exchanges while one backlog is under way: few enough that it outlasts them.
const EXCHANGES_A_BACKLOG: usize = 4;
/// All sets of a case together, unless one alone is larger.
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
