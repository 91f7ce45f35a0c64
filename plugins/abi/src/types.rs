//! The numbers and structures of the C interface.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

/// The version of this interface. It grows when a function or structure changes so that programs must be compiled again.
pub const GRADLANE_ABI_VERSION: u32 = 1;

/// An unlimited time, in milliseconds.
pub const GRADLANE_FOREVER: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// A session: the membership of this process in a job. 0 is never a session.
pub type GradlaneSession = u64;

/// A submitted operation. 0 is never an operation.
pub type GradlaneOperation = u64;

/// Runs once when an operation has ended, or is given up because the engine's threads are stuck: then `gradlane_poll` says
/// `GRADLANE_STATUS_PENDING` or `GRADLANE_STATUS_UNRESPONSIVE`, and the memory stays in use. It runs on a thread of the library. It may call
/// any function of this library except `gradlane_shutdown` of its own session. It must return soon, because it delays other callbacks, and
/// it must not throw. `operation` may already be released.
pub type GradlaneCallback = Option<unsafe extern "C" fn(user: *mut c_void, operation: GradlaneOperation)>;

/// Element types. 16-bit floats are added in float32 and rounded once. Integer sums wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneDtype {
    /// IEEE 754 single precision.
    Float32 = 1,
    /// IEEE 754 double precision.
    Float64 = 2,
    /// IEEE 754 half precision.
    Float16 = 3,
    /// bfloat16.
    Bfloat16 = 4,
    /// Signed 32 bits.
    Int32 = 5,
    /// Signed 64 bits.
    Int64 = 6,
    /// Signed 8 bits.
    Int8 = 7,
    /// Unsigned 8 bits.
    Uint8 = 8,
}

/// How the contributions of all workers become one result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneOp {
    /// The sum.
    Sum = 1,
    /// The sum divided by the number of workers.
    Mean = 2,
    /// The smallest; NaN wins.
    Min = 3,
    /// The largest; NaN wins.
    Max = 4,
    /// The mean with the weights `weight`. Floating point only.
    WeightedMean = 5,
    /// The bytes of the worker `root`.
    Broadcast = 6,
}

/// What a worker does with a parameter: a tensor that servers keep, and that each worker changes and reads by itself, at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneAccess {
    /// Gives it its first value, unless it has one.
    Init = 1,
    /// Adds to it, element by element.
    PushAdd = 2,
    /// Takes its place.
    PushAssign = 3,
    /// Reads it.
    Pull = 4,
    /// Adds to it, and reads the value that this makes.
    PushPullAdd = 5,
    /// Takes its place, and reads the value that this makes.
    PushPullAssign = 6,
    /// Is a gradient, by which the rule of the parameter changes it.
    PushStep = 7,
    /// Is a gradient, and reads the value that the rule makes.
    PushPullStep = 8,
    /// Reads the exponential average of its values, which its rule keeps.
    PullEma = 9,
    /// Reads the mean of its last values, which its rule keeps.
    PullWindow = 10,
}

/// What became of a change of a parameter. A higher one is worse for its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneFate {
    /// It was done, or there was nothing to change.
    Accepted = 0,
    /// It is kept until its round is closed.
    Kept = 1,
    /// It was multiplied by 1 / (1 + lag), and done.
    Scaled = 2,
    /// It was not done, because its lag is above what the mode allows.
    DiscardedStale = 3,
    /// It was not done, because its round was closed without this worker.
    DroppedLate = 4,
}

/// The memory of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneMemory {
    /// Memory of this process.
    Host = 0,
    /// Memory of the CUDA device `device`.
    Cuda = 1,
}

/// A setting, with its name in the configuration file, or one of `rank`, `size`, `local_rank`, `servers` and `coordinator` (a `host:port`
/// or a join string).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneSetting {
    /// UTF-8, ended by a zero.
    pub name: *const c_char,
    /// UTF-8, ended by a zero.
    pub value: *const c_char,
}

/// The declaration of a name, equal on all workers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneTensor {
    /// `sizeof(GradlaneTensor)`; in an array all are equal.
    pub struct_size: usize,
    /// UTF-8, ended by a zero, at most 256 bytes.
    pub name: *const c_char,
    /// Dimensions in elements; NULL for a scalar.
    pub shape: *const u64,
    /// The number of dimensions, at most 64.
    pub dimensions: usize,
    /// How the tensor travels between machines: NULL or "none" for the bytes as they are, or a codec with its parameters, such as "bf16" or
    /// "int8:block=512". With "fp16" and "bf16", integers and types that are as narrow travel as they are; with other codecs they are an
    /// error, unless "fallback=1" is among the parameters. With "min_bytes=8192" smaller tensors, and those with fewer than two dimensions,
    /// travel as they are. So does a broadcast in any case.
    pub codec: *const c_char,
    /// A `GradlaneDtype`.
    pub dtype: u32,
    /// Always 0.
    pub reserved: u32,
}

/// One tensor to reduce. A field of zero has its usual meaning, so a structure may be set to zero bytes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneSubmission {
    /// `sizeof(GradlaneSubmission)`; in an array all are equal.
    pub struct_size: usize,
    /// UTF-8, ended by a zero, at most 256 bytes. The first use of a name fixes dtype, shape, codec, members and receiver on all
    /// workers that take part.
    pub name: *const c_char,
    /// Dimensions in elements; NULL for a scalar.
    pub shape: *const u64,
    /// The number of dimensions, at most 64.
    pub dimensions: usize,
    /// How the tensor travels between machines: NULL or "none" for the bytes as they are, or a codec with its parameters, such as "bf16" or
    /// "int8:block=512". With "fp16" and "bf16", integers and types that are as narrow travel as they are; with other codecs they are an
    /// error, unless "fallback=1" is among the parameters. With "min_bytes=8192" smaller tensors, and those with fewer than two dimensions,
    /// travel as they are. So does a broadcast in any case.
    pub codec: *const c_char,
    /// This worker's contribution: contiguous, in C order. It must stay valid, and nothing else may write to it, until the operation has
    /// ended.
    pub source: *mut c_void,
    /// The memory for the result, as long as the source and on the same device or host. If it is NULL or equal to `source`, the result
    /// replaces the contribution; otherwise the two must not overlap. It must stay valid, and nothing else may read or write it, until the
    /// operation has ended.
    pub destination: *mut c_void,
    /// Bytes of the tensor: the product of the dimensions times the size of an element.
    pub bytes: usize,
    /// For memory of a device: the `CUstream` whose work so far must end before the source is read. 0 is the default stream.
    pub source_stream: u64,
    /// The same for the destination; ignored if the result replaces the contribution.
    pub destination_stream: u64,
    /// Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    pub timeout_ms: u64,
    /// This worker's weight in a `GRADLANE_OP_WEIGHTED_MEAN`, zero or positive; ignored otherwise.
    pub weight: f64,
    /// A `GradlaneDtype`.
    pub dtype: u32,
    /// A `GradlaneOp`.
    pub op: u32,
    /// The rank whose bytes a `GRADLANE_OP_BROADCAST` sends to all; ignored otherwise.
    pub root: u32,
    /// Higher goes first; only the order matters.
    pub priority: i32,
    /// A `GradlaneMemory`.
    pub memory: u32,
    /// The device's ordinal in this process; ignored for host memory.
    pub device: u32,
    /// Called when the operation has ended; NULL for no call.
    pub callback: GradlaneCallback,
    /// The last argument of `callback`.
    pub user: *mut c_void,
    /// The ranks of the workers that take part, in any order, this one among them; only these are waited for. NULL for all workers. A
    /// tensor with members is declared by its first use.
    pub members: *const u32,
    /// The number of `members`; 0 for all workers.
    pub member_count: usize,
    /// 0: all workers that take part get the result. 1: the rank `receiver` alone, and nothing changes on the others.
    pub has_receiver: u32,
    /// The rank that gets the result; ignored unless `has_receiver` is 1.
    pub receiver: u32,
}

/// One use of a parameter. A field of zero has its usual meaning, so a structure may be set to zero bytes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneParameterUse {
    /// `sizeof(GradlaneParameterUse)`.
    pub struct_size: usize,
    /// UTF-8, ended by a zero, at most 256 bytes. The first use of a name on any worker fixes dtype and shape on all workers.
    pub name: *const c_char,
    /// Dimensions in elements, none of them 0; NULL for a scalar.
    pub shape: *const u64,
    /// The number of dimensions, at most 64.
    pub dimensions: usize,
    /// The value or the change: contiguous, in C order. Of a pull, the memory for the value. It must stay valid, and
    /// nothing else may write to it, until the operation has ended; where a value lands in it, nothing else may read it either.
    pub value: *mut c_void,
    /// Of a push_pull, the memory for the value, as long as the change and on the same device or host. If it is NULL or equal to `value`,
    /// the value replaces the change; otherwise the two must not overlap. Ignored otherwise.
    pub into: *mut c_void,
    /// Bytes of the parameter: the product of the dimensions times the size of an element.
    pub bytes: usize,
    /// For memory of a device: the `CUstream` whose work so far must end before `value` is used. 0 is the default stream.
    pub value_stream: u64,
    /// The same for `into`.
    pub into_stream: u64,
    /// Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    pub timeout_ms: u64,
    /// A `GradlaneDtype`.
    pub dtype: u32,
    /// A `GradlaneAccess`.
    pub access: u32,
    /// Higher goes first; only the order matters.
    pub priority: i32,
    /// A `GradlaneMemory`.
    pub memory: u32,
    /// The device's ordinal in this process; ignored for host memory.
    pub device: u32,
    /// Always 0.
    pub reserved: u32,
    /// Called when the operation has ended; NULL for no call.
    pub callback: GradlaneCallback,
    /// The last argument of `callback`.
    pub user: *mut c_void,
    /// How gradients change the parameter, such as `sgd:lr=0.1,momentum=0.9`, in every use of it and equal on all workers; NULL if they do
    /// not.
    pub rule: *const c_char,
    /// When changes are done, such as `async:max_staleness=8`, `ssp:bound=4`, `sync` or `k_of_n:k=3`, in every use of it and equal on all
    /// workers; NULL for `async`.
    pub mode: *const c_char,
    /// The name of the clock that the mode follows, see `gradlane_tick`; NULL for none, which only `async` allows.
    pub clock: *const c_char,
    /// In mode `sync` or `k_of_n`: of a gradient, the round to which it belongs, from 1, otherwise the last round that this worker has finished,
    /// whose changes a value must have. In other modes, the global step as the last tick has told it. 0 without a clock.
    pub clock_at: u64,
}

/// What a use of a parameter has come to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneEffect {
    /// The version that was made or read; of a parameter in several parts, the lowest of theirs.
    pub version: u64,
    /// A `GradlaneFate`; of several parts, the worst.
    pub fate: u32,
    /// The versions between the one from which the change was computed and the one to which it came; of several parts, the most.
    pub lag: u32,
}

/// Where a worker stands after a tick.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneTicked {
    /// The round that is finished; the next one is one more.
    pub round: u64,
    /// The global step: the rounds that were closed, or without those the ticks of all workers.
    pub step: u64,
    /// How many rounds the slowest worker is behind this one.
    pub ahead: u64,
    /// A `GradlaneFate`: accepted, or dropped because the round was closed without this worker.
    pub fate: u64,
}

/// A checkpoint that is whole.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneCheckpoint {
    /// Its number: those of one directory count from 1.
    pub number: u64,
    /// How many tensors were written, or read.
    pub tensors: u64,
    /// The bytes of their values.
    pub bytes: u64,
    /// How many files it has.
    pub files: u64,
}

/// What becomes of a parameter that a checkpoint lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GradlaneMissing {
    /// Nothing is loaded.
    Refuse = 1,
    /// It keeps the value that it has, or waits for its first one.
    Leave = 2,
    /// Its value is zero.
    Zero = 3,
}

/// What `gradlane_begin_step` says. A program sets `struct_size`, and the library the other fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneStep {
    /// In: `sizeof(GradlaneStep)`.
    pub struct_size: usize,
    /// Out: 1 if this worker has left the job, as it was told, and has begun no step; else 0.
    pub has_left: u32,
    /// Out: 1 if other workers than in the step before train from this step on, or the job has formed again; else 0. The same on all workers.
    pub has_changed: u32,
    /// Out: 1 if the job has formed again with workers that have come, since the step before, or before the first step of this worker; else 0.
    /// Then the state of the training must be brought to them.
    pub formed_again: u32,
    /// Out: the number of workers that train.
    pub size: u32,
    /// Out: this worker's rank. It stays until the job forms again.
    pub rank: u32,
    /// Out: the place of this worker among those that train, from 0 and without gaps.
    pub index: u32,
    /// Out: the lowest rank of those that train, which can be the root of a broadcast. Below it are only ranks of workers that are gone.
    pub lowest_rank: u32,
    /// Always 0.
    pub reserved: u32,
}

impl GradlaneStep {
    /// Nothing to say.
    pub fn empty() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            has_left: 0,
            has_changed: 0,
            formed_again: 0,
            size: 0,
            rank: 0,
            index: 0,
            lowest_rank: 0,
            reserved: 0,
        }
    }
}

impl GradlaneSubmission {
    /// A submission of nothing: of its fields only the size is not zero.
    pub fn empty() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: null(),
            shape: null(),
            dimensions: 0,
            codec: null(),
            source: null_mut(),
            destination: null_mut(),
            bytes: 0,
            source_stream: 0,
            destination_stream: 0,
            timeout_ms: 0,
            weight: 0.0,
            dtype: 0,
            op: 0,
            root: 0,
            priority: 0,
            memory: 0,
            device: 0,
            callback: None,
            user: null_mut(),
            members: null(),
            member_count: 0,
            has_receiver: 0,
            receiver: 0,
        }
    }
}

impl GradlaneParameterUse {
    /// A use of nothing: of its fields only the size is not zero.
    pub fn empty() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: null(),
            shape: null(),
            dimensions: 0,
            value: null_mut(),
            into: null_mut(),
            bytes: 0,
            value_stream: 0,
            into_stream: 0,
            timeout_ms: 0,
            dtype: 0,
            access: 0,
            priority: 0,
            memory: 0,
            device: 0,
            reserved: 0,
            callback: None,
            user: null_mut(),
            rule: null(),
            mode: null(),
            clock: null(),
            clock_at: 0,
        }
    }
}
