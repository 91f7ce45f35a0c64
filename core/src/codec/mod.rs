//! Codecs: how the elements of a part become the bytes of a body, and how a server adds bodies without first decoding them to elements.
//!
//! ```text
//!  worker                                     server                                worker
//!  elements ──encode──► body ═══════► body ──start, add──► sum (f32) ──finish──► body ═══► body ──decode──► elements
//! ```
//! So values are rounded to the wire form twice, whatever the number of workers: each contribution once, and the sum once. Ranks of one
//! machine reduce before they encode, so a machine's contribution is encoded once. If nothing travels between machines, nothing is encoded.
//!
//! A tensor's codec is agreed at its declaration ([`TensorSpec::codec`](crate::types::TensorSpec::codec)).
//!
//! # Where it works
//! A worker's COMPRESS and DECOMPRESS call [`Codec::encode`] and [`Codec::decode`] on whole parts, or a device does the same in its copies
//! ([`pipeline::plan`](crate::pipeline::plan) says when). The body lies in the engine's own memory. It is pushed from there, and the sum
//! lands there. Credit, checksums, resumed bodies and the blocks of a server count bytes of the body. Parts are cut by bytes of elements,
//! because ranks of one machine and copies of devices work on elements. So a part of 4 MiB may have a body of 2 MiB, and placement counts
//! these 2 MiB.
//!
//! # What a codec is
//! - **Units.** [`Codec::unit`] is the smallest run that is encoded on its own: one element for a cast, a block with its scale for a
//!   quantiser. A server adds whole units and sends whole units back. So sums flow block by block, as plain ones do. No unit spans two
//!   tensors that share a part.
//! - **Lengths.** [`Codec::body_bytes`] is exact for all codecs. A receiver checks the length that a header announces before it reserves
//!   memory or reads a byte.
//! - **State.** A codec has none: the methods take `&self`. So a repeat has the bits of the first body.
//! - **Values that cannot be encoded.** Casts hold NaN and infinities. A block of `int8` with such a value is decoded as NaN, and no other
//!   block is.

mod interface;

mod cast;
mod int8;

pub use cast::Cast;
pub use int8::Int8;
pub use interface::{BodyBytes, Codec, Coding, Malformed, Unit};

use std::num::NonZeroU32;

use crate::types::{CodecSpec, DType, Encoding, Op};

/// What makes bodies with `codec` of elements of type `dtype`. `None` if bodies are plain and need no codec.
///
/// # Panics
/// If it does not encode that type; see [`CodecSpec::for_dtype`].
pub fn of(codec: CodecSpec, dtype: DType) -> Option<Box<dyn Codec>> {
    assert!(codec.encodes(dtype), "codec {codec} does not encode {dtype}");
    match codec.encoding() {
        Encoding::Plain => None,
        Encoding::F16 => Some(Box::new(Cast::new(dtype, DType::F16))),
        Encoding::BF16 => Some(Box::new(Cast::new(dtype, DType::BF16))),
        Encoding::Int8 => Some(Box::new(Int8::new(codec, dtype))),
    }
}

impl Coding {
    /// How a part is encoded after `ranks` ranks have reduced it; `None` if its body is plain.
    ///
    /// # Panics
    /// If `codec` does not encode that type.
    pub fn of(codec: CodecSpec, dtype: DType, op: Op, ranks: NonZeroU32) -> Option<Self> {
        let divisor = of(codec, dtype)?.divisor(op, ranks);
        Some(Self { dtype, codec, divisor })
    }

    /// The codec that encodes and decodes it.
    pub fn codec(&self) -> Box<dyn Codec> {
        of(self.codec, self.dtype).expect("made by `of`, of a part that is not plain")
    }
}

/// The length of a body that holds the elements of `part_bytes` bytes of `dtype`.
///
/// # Panics
/// If `codec` does not encode that type.
pub fn body_bytes(codec: CodecSpec, dtype: DType, part_bytes: u64) -> BodyBytes {
    of(codec, dtype).map_or(BodyBytes::Exact(part_bytes), |codec| codec.body_bytes(part_bytes / dtype.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_but_plain_makes_bodies_of_every_type_that_it_encodes() {
        for codec in Encoding::all().map(CodecSpec::of) {
            for dtype in DType::ALL.into_iter().filter(|dtype| codec.encodes(*dtype)) {
                let found = of(codec, dtype).map(|codec| codec.spec());
                assert_eq!(found, (!codec.is_plain()).then_some(codec), "{codec} of {dtype}");
            }
        }
    }

    #[test]
    fn a_body_of_another_length_is_refused_with_both_lengths() {
        assert_eq!(body_bytes(CodecSpec::PLAIN, DType::I64, 24), BodyBytes::Exact(24));
        assert_eq!(body_bytes(CodecSpec::BF16, DType::F64, 24), BodyBytes::Exact(6));
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
        let _ = of(CodecSpec::BF16, DType::I32);
    }
}
