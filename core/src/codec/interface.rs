//! The interface of a codec: the terms and operations that all codecs share.

use std::fmt;
use std::num::NonZeroU32;

use super::tools::Tools;
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op, Round};

/// How many bytes a body has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyBytes {
    /// Always this number. Such a codec encodes every value.
    Exact(u64),
    /// Any number up to this one, which is the length of the elements themselves: a codec refuses elements that it does not shorten, and
    /// refused elements travel plain. So one bound holds for encoded and for plain bodies.
    AtMost(u64),
}

impl BodyBytes {
    /// The size of a buffer that holds any such body.
    pub const fn max(self) -> u64 {
        match self {
            Self::Exact(bytes) | Self::AtMost(bytes) => bytes,
        }
    }

    /// Whether a body can have `bytes` bytes.
    ///
    /// # Errors
    /// [`Malformed`] with both lengths.
    pub fn check(self, bytes: u64) -> Result<(), Malformed> {
        let problem = match self {
            Self::Exact(exact) if bytes != exact => format!("is {bytes} instead of {exact}"),
            Self::AtMost(most) if bytes > most => format!("is {bytes} where {most} are the most"),
            Self::Exact(_) | Self::AtMost(_) => return Ok(()),
        };
        Err(Malformed { problem })
    }
}

/// A run of elements that is encoded on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Its number of elements.
    pub len: u64,
    /// Its largest number of bytes in the body.
    pub bytes: u64,
}

/// How the elements of a part are encoded on their way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Coding {
    /// The type of the elements.
    pub dtype: DType,
    /// Their encoding on the wire.
    pub codec: CodecSpec,
    /// The divisor of the elements before they are encoded: see [`Codec::divisor`].
    pub divisor: f64,
}

/// A body that no encoder makes. The caller adds its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Malformed {}

/// Why a codec does not encode some elements. They travel plain, and the header says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is a NaN or an infinity among them, which the wire form does not have.
    NotFinite,
    /// The wire form would not be shorter than the elements.
    NotShorter,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFinite => "there is a NaN or an infinity among the elements",
            Self::NotShorter => "the elements would not get shorter",
        })
    }
}

/// An encoding of elements of one type.
///
/// Elements and bodies are little-endian bytes at any address; the sum has its own [type](Self::sum_type). Every call may be cut into runs of whole
/// [units](Self::unit). The caller chooses the [`Kernels`]. The choice changes no bit of the result, except the payload of a NaN.
///
/// A codec is a small value, so callers make one when they need it. It keeps nothing between calls.
///
/// # Panics
/// All methods on buffers panic if the lengths of the buffers do not fit together. A body from a peer passes [`BodyBytes::check`] before.
pub trait Codec: fmt::Debug + Send + Sync {
    /// The encoding that it produces.
    fn spec(&self) -> CodecSpec;

    /// The bytes of a body of `len` elements.
    fn body_bytes(&self, len: u64) -> BodyBytes;

    /// The most bytes that [`encode`](Self::encode) makes of `len` elements in this round. A sum may have more, up to
    /// [`body_bytes`](Self::body_bytes).
    fn encoded_bytes_max(&self, len: u64, _round: Round) -> u64 {
        self.body_bytes(len).max()
    }

    /// The smallest run of a part of `len` elements that is encoded on its own.
    fn unit(&self, len: u64) -> Unit;

    /// The type of the elements of a sum.
    fn sum_type(&self) -> DType {
        DType::F32
    }

    /// The divisor of the sum of `ranks` ranks before encoding. It keeps the sum in the range of the wire form if the mean is in that
    /// range. It is a power of two, so the division loses nothing. The server multiplies by it: it passes the divisor as the contribution's
    /// weight to [`start`](Self::start) and [`add`](Self::add). It is 1 where the wire form has the range of f32, in which ranks add.
    fn divisor(&self, _op: Op, _ranks: NonZeroU32) -> f64 {
        1.0
    }

    /// Encodes elements divided by `divisor`. Returns how many bytes of `body` it used. `body` has room for [`BodyBytes::max`].
    ///
    /// # Errors
    /// [`Refusal`] if the elements must travel plain. Then `body` has any content. A codec of bodies of an exact length refuses nothing.
    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal>;

    /// Whether a body of `len` elements has content that an encoder makes. Then no other method returns an error for it.
    ///
    /// # Errors
    /// [`Malformed`] if the body has the right length but wrong content.
    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed>;

    /// Decodes a body, or as many of its units as fill `elements`.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed>;

    /// Makes the first contribution the sum, and overwrites the old content of the sum: `weight` times the elements of `body`.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed>;

    /// Folds a further contribution into the sum, in its type: `weight` times the elements of `body`.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed>;

    /// Divides the sum as `op` says and encodes it, which rounds it once. Returns how many bytes of `body` it used.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal>;
}
