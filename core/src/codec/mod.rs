//! Codecs: how the elements of a part become the bytes of a body, and how a server adds bodies without making them elements first.
//!
//! ```text
//!  worker                                     server                                worker
//!  elements ──encode──► body ═══════► body ──start, add──► sum (f32) ──finish──► body ═══► body ──decode──► elements
//! ```
//! So the wire form is rounded twice, whatever the number of workers: each contribution once, and the sum once. Ranks of one machine reduce
//! before they encode, so that a machine's contribution is encoded once. Where nothing travels between machines, nothing is encoded.
//!
//! A tensor's codec is agreed at its declaration ([`TensorSpec::codec`](crate::types::TensorSpec::codec)).
//!
//! # Where it works
//! A worker's COMPRESS and DECOMPRESS call [`Codec::encode`] and [`Codec::decode`] on whole parts, or a device does as much in its copies
//! ([`pipeline::plan`](crate::pipeline::plan) says when). The body lies in memory of the engine's own, from which it is pushed and where
//! the sum lands. Credit, checksums, resumed bodies and the blocks of a server count bytes of the body. Parts are cut by bytes of elements,
//! because ranks of one machine and copies of devices work on elements; so a part of 4 MiB has a body of 2 MiB, and placement counts it so.
//!
//! # How later codecs fit
//! - **Blocks.** [`Codec::unit`] is the smallest run that is encoded on its own: one element for a cast, a block with its scale for a
//!   quantiser, the whole part for a sparsifier. A server adds, and sends back, whole units; so sums of casts and quantisers flow block by
//!   block as plain ones do.
//! - **Variable length.** [`Codec::body_bytes`] is exact or a bound. A receiver calls [`BodyBytes::check`] with the length that a header
//!   announces, before it reserves memory or reads a byte. COMPRESS and the servers' sums take exact lengths only: the first codec with a
//!   bound has to bring a length for each contribution there.
//! - **State.** A codec has none: the methods take `&self`. Error feedback is a buffer of f32 beside the (tensor, part) that is added to
//!   the elements before `encode`, and becomes their difference from `decode` after it. Both ends need only these two methods for it, so
//!   that it wraps any codec. Its owner drops it with the name and when the layout or the set of workers changes.
//! - **Randomness.** A codec that draws random numbers gets its seed, made of part and round, where it is made ([`of`]): equal on all
//!   workers and in a repeat.
//! - **A value that it cannot hold.** Casts carry NaN and infinities. A codec that cannot reports it from `encode`, and that body is sent
//!   plain, as its header can say. A server refuses bodies of several encodings in one round, until there is such a codec.

mod interface;

mod cast;

pub use cast::Cast;
pub use interface::{BodyBytes, Codec, Coding, Malformed, Unit};

use std::num::NonZeroU32;

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

impl Coding {
    /// How a part is encoded that `ranks` ranks have reduced; `None` where its body is plain.
    ///
    /// # Panics
    /// If `encoding` does not encode that type.
    pub fn of(encoding: Encoding, dtype: DType, op: Op, ranks: NonZeroU32) -> Option<Self> {
        let divisor = of(encoding, dtype)?.divisor(op, ranks);
        Some(Self { dtype, encoding, divisor })
    }

    /// What encodes and decodes it.
    pub fn codec(&self) -> Box<dyn Codec> {
        of(self.encoding, self.dtype).expect("made by `of`, of a part that is not plain")
    }
}

/// The bytes of a body with the elements of `part_bytes` bytes of `dtype`.
///
/// # Panics
/// If `encoding` does not encode that type.
pub fn body_bytes(encoding: Encoding, dtype: DType, part_bytes: u64) -> BodyBytes {
    of(encoding, dtype).map_or(BodyBytes::Exact(part_bytes), |codec| codec.body_bytes(part_bytes / dtype.bytes()))
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
