//! Codecs: how the elements of a part become the bytes of a body, and how a server adds bodies without first decoding them to elements.
//!
//! ```text
//!  worker                                     server                                worker
//!  elements ──encode──► body ═══════► body ──start, add──► sum (f32) ──finish──► body ═══► body ──decode──► elements
//! ```
//! Only [`Lossless`] has sums of other types: those in which plain elements are added.
//!
//! So values are rounded to the wire form twice, whatever the number of workers: each contribution once, and the sum once. Ranks of one
//! machine reduce before they encode, so a machine's contribution is encoded once. If nothing travels between machines, nothing is encoded.
//!
//! A tensor's codec is agreed at its declaration ([`TensorSpec::codec`](crate::types::TensorSpec::codec)).
//!
//! # Where it works
//! A worker's COMPRESS and DECOMPRESS call [`Codec::encode`] and [`Codec::decode`] on whole parts, or a device does the same in its copies
//! ([`pipeline::plan`](crate::pipeline::plan) says when). The body lies in the engine's own memory. It is pushed from there, and the sum
//! lands there. Checksums, resumed bodies and the blocks of a server count bytes of the body. Parts are cut by bytes of elements, because
//! ranks of one machine and copies of devices work on elements. So a part of 4 MiB may have a body of 2 MiB, and placement counts these
//! 2 MiB.
//!
//! # What a codec is
//! - **Units.** [`Codec::unit`] is the smallest run that is encoded on its own: one element for a cast, a block with its scale for a
//!   quantiser, a part for [`TopK`], [`RandomK`], [`OneBit`],
//!   [`Dithering`] and [`Lossless`]. No unit spans two tensors that share a part.
//! - **Lengths.** [`Codec::body_bytes`] is exact, or a bound for bodies that vary. A server checks the length that a header announces before
//!   it reserves memory, a worker before the sum lands. Of a body that varies, memory, credit and placement count the bound, which is the
//!   length of the elements; headers, metrics and the wire have the true length. A repeat has the length of the first attempt. A copy from a
//!   device has as many bytes as [`Codec::encoded_bytes_max`] says, because the host learns the length with it.
//! - **Where sums flow.** Where the length is exact, a server adds whole units as they come and sends whole units back, so sums flow block
//!   by block, as plain ones do. Where it varies, a server collects each contribution, adds it at once, and answers when the sum is whole,
//!   because only then is its length known.
//! - **Refusals.** A codec of bodies that vary may refuse elements ([`Refusal`]): these travel plain, and the header says both the codec and
//!   that it was refused. A server adds such a contribution to the others, and sends the sum plain if the codec refuses the sum.
//! - **Values that cannot be encoded.** [`Lossless`] and casts hold NaN and infinities. A block with such a value is decoded as NaN, and no other block is.
//!   All that [`RandomK`] and [`OneBit`] send of a part with such a value is NaN. [`TopK`] and [`Dithering`] refuse a part with such
//!   a value.
//! - **Chance.** A codec that rounds by chance, or draws places, draws from the [`Seed`] alone. So all workers draw alike, and a repeat makes
//!   the same body, whichever thread encodes it.
//! - **Tools.** An encoder gets a [`Seed`] of the part and the round, and scratch memory ([`Workspace`]) that is kept from call to call.
//! - **State.** A codec has none: the methods take `&self`. What outlives a body is kept beside it: see below.
//!
//! # State
//! There is one kind: the residual of [error feedback](feedback), an f32 for each element, of tensors whose codec says `feedback=1`
//! ([`CodecSpec::has_feedback`]). It wraps any codec and lies in host memory. Sums and means of f32 use it.
//!
//! | | of the contributions | of the answers |
//! |---|---|---|
//! | belongs to | a part, on the worker that encodes it for its machine | a part, on its server |
//! | who decides | `worker::residuals`, by [`Action::Encode`](crate::worker::Action::Encode) and [`Command::DropResidual`](crate::worker::Command::DropResidual) | the aggregator of the server's node, with the steps of a sum |
//! | who has the memory | the engine | the store of sums; a sum while it flows |
//! | bounded by | the declared tensors; the metric `residual_bytes` shows it | the budget of the node |
//! | begins at zero | with the first body; after a round without a sum; in the round after a sum of other workers than the sum before | with the first sum; after a round that failed or restarted while its sum flowed; with a sum of other workers than the sum before |
//! | ends | with the name; with the job; if another rank of the machine becomes the owner | with the name; with the rounds of a membership |
//!
//! A part is encoded once a round, and a repeat sends the same body again. So no residual is used twice for one round.

mod interface;
mod tools;

mod deflate;

mod blocks;
mod cast;
mod dithering;
mod lossless;
mod onebit;
mod randomk;
mod rows;
mod stored;
mod topk;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub mod feedback;

pub use blocks::Blocks;
pub use cast::Cast;
pub use dithering::Dithering;
pub use interface::{BodyBytes, Codec, Coding, Malformed, Refusal, Unit};
pub use lossless::Lossless;
pub use onebit::OneBit;
pub use randomk::RandomK;
pub use rows::RowCodec;
pub use stored::{Rounding, StoredRows};
pub use tools::{Seed, Tools, Workspace};
pub use topk::TopK;

use std::num::NonZeroU32;
use std::ops::Deref;

use crate::types::{CodecSpec, DType, Encoding, Op};

/// One of the codecs, as a value of a few bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnyCodec {
    /// See [`Cast`].
    Cast(Cast),
    /// See [`Blocks`].
    Blocks(Blocks),
    /// See [`Dithering`].
    Dithering(Dithering),
    /// See [`Lossless`].
    Lossless(Lossless),
    /// See [`OneBit`].
    OneBit(OneBit),
    /// See [`RandomK`].
    RandomK(RandomK),
    /// See [`TopK`].
    TopK(TopK),
}

impl Deref for AnyCodec {
    type Target = dyn Codec;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Cast(codec) => codec,
            Self::Blocks(codec) => codec,
            Self::Dithering(codec) => codec,
            Self::Lossless(codec) => codec,
            Self::OneBit(codec) => codec,
            Self::RandomK(codec) => codec,
            Self::TopK(codec) => codec,
        }
    }
}

/// What makes bodies with `codec` of elements of type `dtype`. `None` if bodies are plain and need no codec.
///
/// # Panics
/// If it does not encode that type; see [`CodecSpec::for_dtype`].
pub fn of(codec: CodecSpec, dtype: DType) -> Option<AnyCodec> {
    assert!(codec.encodes(dtype), "codec {codec} does not encode {dtype}");
    match codec.encoding() {
        Encoding::Plain => None,
        Encoding::F16 | Encoding::BF16 => Some(AnyCodec::Cast(Cast::new(codec, dtype))),
        Encoding::Int8 | Encoding::Int4 | Encoding::Fp8E4M3 | Encoding::Fp8E5M2 => {
            Some(AnyCodec::Blocks(Blocks::new(codec, dtype)))
        }
        Encoding::Dithering => Some(AnyCodec::Dithering(Dithering::new(codec, dtype))),
        Encoding::Lossless => Some(AnyCodec::Lossless(Lossless::new(dtype))),
        Encoding::OneBit => Some(AnyCodec::OneBit(OneBit::new(codec, dtype))),
        Encoding::RandomK => Some(AnyCodec::RandomK(RandomK::new(codec, dtype))),
        Encoding::TopK => Some(AnyCodec::TopK(TopK::new(codec, dtype))),
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
    pub fn codec(&self) -> AnyCodec {
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
    use crate::reduce::Kernels;
    use crate::types::{PartId, Round, TensorKey};

    #[test]
    fn every_codec_but_plain_makes_bodies_of_every_type_that_it_encodes() {
        for codec in Encoding::all().map(CodecSpec::of) {
            for dtype in DType::ALL.into_iter().filter(|dtype| codec.encodes(*dtype)) {
                let found = of(codec, dtype).map(|codec| codec.spec());
                assert_eq!(found, (!codec.is_plain()).then_some(codec), "{codec} of {dtype}");
                let due = body_bytes(codec, dtype, 64);
                assert_eq!(codec.varies(), due == BodyBytes::AtMost(64), "{codec} of {dtype}: {due:?}");
                assert!(codec.varies() || matches!(due, BodyBytes::Exact(_)), "{codec} of {dtype}: {due:?}");
            }
        }
    }

    #[test]
    fn bodies_are_those_of_a_script_that_shares_no_code() {
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = hex.as_bytes().as_chunks::<2>().0;
            digits.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
        };
        let lines: Vec<&str> = include_str!("vectors/bodies.txt").lines().collect();
        assert!(lines.len() >= 20, "{} bodies", lines.len());
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let &[spec, round, elements, body] = &words[..] else { panic!("four words: {line}") };
            let (elements, due) = (bytes(elements), bytes(body));
            let codec = of(spec.parse().unwrap(), DType::F32).unwrap();
            let seed = Seed::of(PartId { key: TensorKey(5), index: 6 }, Round(round.parse().unwrap()));
            for kernels in Kernels::all() {
                let mut body = vec![0; due.len()];
                let tools = Tools { kernels, seed, workspace: &mut Workspace::default() };
                assert_eq!(codec.encode(tools, 1.0, &elements, &mut body), Ok(due.len()), "{spec}");
                assert_eq!(body, due, "{spec} {kernels}");
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
