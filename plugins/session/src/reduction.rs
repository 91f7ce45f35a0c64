//! How tensors are reduced and parameters are used, in the engine's types. This is the one place where names and numbers of the interfaces become these types.

use std::time::Duration;

use gradlane_abi::{GradlaneAccess, GradlaneDtype, GradlaneOp, Unknown};
use gradlane_core::engine::{BatchSubmission, Member, Memory, Submission};
use gradlane_core::types::{Access, Average, CodecChoice, DType, Op, Priority, TensorSpec, Update, WorkerId};
use gradlane_core::{Error, Result};

use crate::batch::Batch;

/// How tensors are reduced: all that a call says, except for the tensors' memory, names, element types and shapes.
///
/// Python, the C interface and, through that, the op libraries build this value.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduction {
    /// How contributions become one result.
    pub op: Op,
    /// This worker's weight in a weighted mean; 1 elsewhere.
    pub weight: f64,
    /// Higher goes first.
    pub priority: Priority,
    /// How tensors travel between machines.
    pub codec: CodecChoice,
    /// The ranks that take part; `None` for all workers.
    pub members: Option<Vec<u32>>,
    /// The rank that alone gets the result; `None` if all that take part get it.
    pub receiver: Option<u32>,
    /// For the whole operation; `None` takes the job's step timeout.
    pub timeout: Option<Duration>,
}

impl Reduction {
    /// The engine's submission of a tensor, by its [declaration](crate::Session::declaration), from the first memory into the second one.
    pub fn submission(&self, tensor: TensorSpec, (source, destination): (Memory, Memory)) -> Submission {
        let Self { op, weight, priority, timeout, .. } = *self;
        Submission { tensor, source, destination, op, weight, priority, timeout }
    }

    /// The engine's submission of a batch. The codec and the workers that take part are those of the batch's tensors, and the priorities
    /// are those of `members`.
    pub fn of_batch<'batch>(&self, batch: &'batch Batch, members: Vec<Member>) -> BatchSubmission<'batch> {
        let Self { op, weight, timeout, .. } = *self;
        BatchSubmission { batch: batch.tensors(), members, op, weight, timeout }
    }
}

/// The reduction `op`. `root` is the rank whose bytes a broadcast sends to all; other reductions have none.
pub(crate) const fn op_of(op: GradlaneOp, root: u32) -> Op {
    match op {
        GradlaneOp::Sum => Op::Sum,
        GradlaneOp::Mean => Op::Mean,
        GradlaneOp::Min => Op::Min,
        GradlaneOp::Max => Op::Max,
        GradlaneOp::WeightedMean => Op::WeightedMean,
        GradlaneOp::Broadcast => Op::Broadcast { root: WorkerId(root) },
    }
}

/// The use `access` of a parameter.
pub(crate) const fn access_of(access: GradlaneAccess) -> Access {
    match access {
        GradlaneAccess::Init => Access::Init,
        GradlaneAccess::PushAdd => Access::Push(Update::Add),
        GradlaneAccess::PushAssign => Access::Push(Update::Assign),
        GradlaneAccess::Pull => Access::Pull,
        GradlaneAccess::PushPullAdd => Access::PushPull(Update::Add),
        GradlaneAccess::PushPullAssign => Access::PushPull(Update::Assign),
        GradlaneAccess::PushStep => Access::Push(Update::Step),
        GradlaneAccess::PushPullStep => Access::PushPull(Update::Step),
        GradlaneAccess::PullEma => Access::PullAverage(Average::Ema),
        GradlaneAccess::PullWindow => Access::PullAverage(Average::Window),
    }
}

/// The element type `dtype`.
pub(crate) const fn dtype_of(dtype: GradlaneDtype) -> DType {
    match dtype {
        GradlaneDtype::Float32 => DType::F32,
        GradlaneDtype::Float64 => DType::F64,
        GradlaneDtype::Float16 => DType::F16,
        GradlaneDtype::Bfloat16 => DType::BF16,
        GradlaneDtype::Int32 => DType::I32,
        GradlaneDtype::Int64 => DType::I64,
        GradlaneDtype::Int8 => DType::I8,
        GradlaneDtype::Uint8 => DType::U8,
    }
}

/// The reduction with this name; see [`op_of`].
///
/// # Errors
/// [`Error::InvalidArgument`] if there is none.
pub fn op_named(name: &str, root: u32) -> Result<Op> {
    GradlaneOp::named(name).map(|op| op_of(op, root)).map_err(invalid)
}

/// The use of a parameter with this name.
///
/// # Errors
/// [`Error::InvalidArgument`] if there is none.
pub fn access_named(name: &str) -> Result<Access> {
    GradlaneAccess::named(name).map(access_of).map_err(invalid)
}

/// The element type with this name.
///
/// # Errors
/// [`Error::InvalidArgument`] if there is none.
pub fn dtype_named(name: &str) -> Result<DType> {
    GradlaneDtype::named(name).map(dtype_of).map_err(invalid)
}

/// The codec that is written like this, for the tensors that the text says: its name, and behind a colon its parameters and the words of
/// [`CodecChoice`], such as `int8:block=512`.
///
/// # Errors
/// [`Error::InvalidArgument`] if there is none, or it has no such parameters.
pub fn codec_named(text: &str) -> Result<CodecChoice> {
    text.parse()
}

fn invalid(unknown: Unknown) -> Error {
    let Unknown { what, hint } = unknown;
    Error::InvalidArgument { what, hint }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Encoding;

    use super::*;

    #[test]
    fn the_interfaces_and_the_engine_have_the_same_element_types_with_the_same_names() {
        assert_eq!(GradlaneDtype::ALL.map(dtype_of), DType::ALL);
        for dtype in GradlaneDtype::ALL {
            assert_eq!(dtype_of(dtype).name(), dtype.name());
            assert_eq!(dtype_of(dtype).bytes(), dtype.bytes() as u64, "{}", dtype.name());
            assert_eq!(dtype_named(dtype.name()), Ok(dtype_of(dtype)));
        }
    }

    #[test]
    fn every_codec_of_the_engine_is_read_by_its_name() {
        let names = Encoding::all().map(|encoding| encoding.to_string());
        let found = names.map(|name| codec_named(&name).map(|found| (found.codec.encoding(), found.to_string())));
        let due = Encoding::all().map(|encoding| Ok((encoding, encoding.to_string())));
        assert_eq!(found.collect::<Vec<_>>(), due.collect::<Vec<_>>());
    }

    #[test]
    fn the_interfaces_and_the_engine_have_the_same_reductions() {
        let root = WorkerId(3);
        let all = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean, Op::Broadcast { root }];
        assert_eq!(GradlaneOp::ALL.map(|op| op_of(op, root.0)), all);
        for op in GradlaneOp::ALL {
            assert_eq!(op_named(op.name(), root.0), Ok(op_of(op, root.0)));
        }
    }

    #[test]
    fn the_interfaces_and_the_engine_have_the_same_uses_of_parameters() {
        assert_eq!(GradlaneAccess::ALL.map(access_of), Access::ALL);
        for access in GradlaneAccess::ALL {
            assert_eq!(access_named(access.name()), Ok(access_of(access)));
        }
    }

    #[test]
    fn an_unknown_name_is_an_invalid_argument() {
        for error in [op_named("product", 0).err(), dtype_named("bool").err(), codec_named("fp8").err()] {
            assert!(matches!(error, Some(Error::InvalidArgument { .. })), "{error:?}");
        }
    }
}
