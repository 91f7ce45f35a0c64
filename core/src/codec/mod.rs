//! Codecs: how the elements of a part become the bytes of a body, and how a server adds bodies without making them elements first.
//!
//! ```text
//!  worker                                     server                                worker
//!  elements ──encode──► body ═══════► body ──start, add──► sum (f32) ──finish──► body ═══► body ──decode──► elements
//! ```
//! So the wire form is rounded twice, whatever the number of workers: each contribution once, and the sum once. Ranks of one machine reduce
//! before they encode, so that a machine's contribution is encoded once. Where nothing travels between machines, nothing is encoded.
//!
//! A tensor's codec is agreed at its declaration ([`TensorSpec::codec`](crate::types::TensorSpec::codec)). A body says its own encoding in
//! its header, so that a worker may send one body plain.
//!
//! # How later codecs fit
//! - **Variable length.** [`Codec::body_bytes`] is exact or a bound. A buffer is as long as the bound, [`Codec::encode`] and
//!   [`Codec::finish`] say how much of it they used, and the header carries that. A receiver calls [`BodyBytes::check`] with the length
//!   that the header announces, before it reserves memory or reads a byte.
//! - **Blocks.** [`Codec::unit`] is the smallest run that is encoded on its own: one element for a cast, a block with its scale for a
//!   quantiser, the whole part for a sparsifier. A server adds, and sends back, whole units; so sums of casts flow block by block as plain
//!   ones do.
//! - **State.** A codec has none: the methods take `&self`. Error feedback is a buffer of f32 beside the (tensor, part) that is added to
//!   the elements before `encode`, and becomes their difference from `decode` after it. Both ends need only these two methods for it, so
//!   that it wraps any codec. Its owner drops it with the name and when the layout or the set of workers changes.
//! - **Randomness.** A codec that draws random numbers gets its seed, made of part and round, where it is made ([`of`]): equal on all
//!   workers and in a repeat.
//! - **A value that it cannot hold.** Casts carry NaN and infinities. A codec that cannot reports it from `encode`, and that body is sent
//!   plain.

mod cast;

use std::fmt;
use std::num::NonZeroU32;

pub use cast::Cast;

use crate::reduce::Kernels;
use crate::types::{DType, Encoding, Op};

/// The codec that makes `encoding` of elements of type `dtype`; `None` where bodies are plain, and nothing is to be encoded.
///
/// # Panics
/// If there is none; see [`Encoding::for_dtype`].
pub fn of(encoding: Encoding, dtype: DType) -> Option<Box<dyn Codec>> {
    assert!(encoding.encodes(dtype), "codec {encoding} does not encode {dtype}");
    match encoding {
        Encoding::Plain => None,
        Encoding::F16 => Some(Box::new(Cast::new(dtype, DType::F16))),
        Encoding::BF16 => Some(Box::new(Cast::new(dtype, DType::BF16))),
    }
}

/// The bytes of a body with the elements of `part_bytes` bytes of `dtype`.
///
/// # Panics
/// If `encoding` does not encode that type.
pub fn body_bytes(encoding: Encoding, dtype: DType, part_bytes: u64) -> BodyBytes {
    of(encoding, dtype).map_or(BodyBytes::Exact(part_bytes), |codec| codec.body_bytes(part_bytes / dtype.bytes()))
}

/// How many bytes a body has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyBytes {
    /// Always so many.
    Exact(u64),
    /// So many at most.
    AtMost(u64),
}

impl BodyBytes {
    /// The bytes of a buffer that holds any such body.
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
    /// How many elements.
    pub len: u64,
    /// How many bytes of the body at most.
    pub bytes: u64,
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

/// An encoding of elements of one type.
///
/// Elements and bodies are little-endian bytes at any address; the sum is f32. Every call may be cut into runs of whole
/// [units](Self::unit). The [`Kernels`] are the caller's choice and do not change a bit of the result, except the payload of a NaN.
///
/// # Panics
/// All methods on buffers, if their lengths do not fit each other. A body from a peer passes [`BodyBytes::check`] before.
pub trait Codec: fmt::Debug + Send + Sync {
    /// What it makes.
    fn encoding(&self) -> Encoding;

    /// The bytes of a body of `len` elements.
    fn body_bytes(&self, len: u64) -> BodyBytes;

    /// The smallest run of a part of `len` elements that is encoded on its own.
    fn unit(&self, len: u64) -> Unit;

    /// What the sum of `ranks` ranks is divided by before it is encoded, so that it stays in the range of the wire form as long as their
    /// mean does: a power of two, so that the division loses nothing. The server multiplies by it: the contribution's weight in
    /// [`start`](Self::start) and [`add`](Self::add).
    fn divisor(&self, op: Op, ranks: NonZeroU32) -> f64;

    /// Encodes elements divided by `divisor`; how many bytes of `body` it used.
    fn encode(&self, kernels: Kernels, divisor: f64, elements: &[u8], body: &mut [u8]) -> usize;

    /// Decodes a body, or as many units of one as fill `elements`.
    ///
    /// # Errors
    /// [`Malformed`] where the body has the right length and is wrong all the same.
    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed>;

    /// Makes the first contribution the sum, whatever the sum held: `weight` times the elements of `body`.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed>;

    /// Folds a further contribution into the sum, in f32: `weight` times the elements of `body`.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed>;

    /// Divides the sum as `op` says and encodes it, which rounds it once; how many bytes of `body` it used.
    fn finish(&self, kernels: Kernels, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_but_plain_has_a_codec_for_every_type_that_it_encodes() {
        for encoding in Encoding::all() {
            for dtype in DType::ALL.into_iter().filter(|dtype| encoding.encodes(*dtype)) {
                let found = of(encoding, dtype).map(|codec| codec.encoding());
                assert_eq!(found, (encoding != Encoding::Plain).then_some(encoding), "{encoding} of {dtype}");
            }
        }
    }

    #[test]
    fn a_body_of_another_length_is_refused_with_both_lengths() {
        assert_eq!(body_bytes(Encoding::Plain, DType::I64, 24), BodyBytes::Exact(24));
        assert_eq!(body_bytes(Encoding::BF16, DType::F64, 24), BodyBytes::Exact(6));
        assert_eq!(BodyBytes::AtMost(20).check(3), Ok(()));
        for due in [BodyBytes::Exact(20), BodyBytes::AtMost(20)] {
            assert_eq!((due.max(), due.check(20)), (20, Ok(())));
            let problem = due.check(21).unwrap_err().to_string();
            assert!(problem.contains("21") && problem.contains("20"), "{problem}");
        }
    }

    #[test]
    #[should_panic(expected = "codec bf16 does not encode int32")]
    fn a_type_that_a_codec_does_not_encode_is_refused() {
        let _ = of(Encoding::BF16, DType::I32);
    }
}
