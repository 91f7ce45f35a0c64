//! A codec as callers ask for it: which of their tensors travel with it.

use std::fmt;
use std::str::FromStr;

use super::{CodecSpec, DType};
use crate::error::{Error, Result};

/// Which tensors travel with a codec.
///
/// A caller names a codec for one tensor, or for all tensors of a model. In a model some tensors are better left alone: norms, biases and
/// scalars are a small share of the bytes and a large share of the error. So a choice may leave out small tensors.
///
/// Users write it as a codec with further words: `int8:block=512,min_bytes=8192`. All workers make the same choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodecChoice {
    /// The codec.
    pub codec: CodecSpec,
    /// If it is given, only tensors with two dimensions or more, and of so many bytes at least, travel with the codec.
    pub min_bytes: Option<u64>,
    /// Whether elements that the codec does not encode travel unchanged. Else they are an error, except for those that nobody expects
    /// anything else of: with a cast, and where `min_bytes` makes a choice among tensors.
    pub fallback: bool,
}

impl CodecChoice {
    /// How a tensor travels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the codec does not encode its elements, and they may not travel unchanged.
    pub fn codec_of(self, name: &str, dtype: DType, shape: &[u64]) -> Result<CodecSpec> {
        let Self { codec, min_bytes, fallback } = self;
        let found = codec.for_dtype(dtype);
        let may_be_plain = fallback || codec.is_elementwise() || min_bytes.is_some();
        if found.is_plain() && !may_be_plain {
            return Err(Error::InvalidArgument {
                what: format!("{name} is {dtype}, which codec {codec} does not encode"),
                hint: "leave out its compression, or set compression_fallback=none to send such tensors unchanged"
                    .to_owned(),
            });
        }
        let bytes = shape.iter().fold(dtype.bytes(), |bytes, dimension| bytes.saturating_mul(*dimension));
        let is_large = |least| shape.len() >= 2 && bytes >= least;
        Ok(if min_bytes.is_none_or(is_large) { found } else { CodecSpec::PLAIN })
    }
}

impl From<CodecSpec> for CodecChoice {
    /// The codec for every tensor.
    fn from(codec: CodecSpec) -> Self {
        Self { codec, min_bytes: None, fallback: false }
    }
}

/// As it is parsed.
impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { codec, min_bytes, fallback } = self;
        let codec = codec.to_string();
        let words = min_bytes.map(|bytes| format!("{MIN_BYTES}={bytes}"));
        let words: Vec<String> = words.into_iter().chain(fallback.then(|| format!("{FALLBACK}=1"))).collect();
        let mark = match () {
            () if words.is_empty() => "",
            () if codec.contains(':') => ",",
            () => ":",
        };
        write!(f, "{codec}{mark}{}", words.join(","))
    }
}

/// The words that belong to the choice and not to the codec.
const MIN_BYTES: &str = "min_bytes";
const FALLBACK: &str = "fallback";

impl FromStr for CodecChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, words) = text.split_once(':').map_or((text, None), |(name, words)| (name, Some(words)));
        let (mut min_bytes, mut fallback, mut rest) = (None, false, Vec::new());
        for word in words.into_iter().flat_map(|words| words.split(',')) {
            let unknown = |hint: &str| Error::InvalidArgument {
                what: format!("codec {text:?}: {word:?} sets nothing"),
                hint: hint.to_owned(),
            };
            match word.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some((MIN_BYTES, value)) => {
                    min_bytes = Some(value.parse().map_err(|_| unknown("give a number of bytes"))?);
                }
                Some((FALLBACK, "0")) => fallback = false,
                Some((FALLBACK, "1")) => fallback = true,
                Some((FALLBACK, _)) => return Err(unknown("give 0 or 1")),
                _ => rest.push(word),
            }
        }
        let codec = if rest.is_empty() { name.parse()? } else { format!("{name}:{}", rest.join(",")).parse()? };
        Ok(Self { codec, min_bytes, fallback })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: &str) -> CodecChoice {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_choice_among_tensors_takes_large_matrices_only() {
        let of = |text: &str, dtype, shape: &[u64]| choice(text).codec_of("t", dtype, shape).unwrap().to_string();
        for (text, dtype, shape, due) in [
            ("int8:min_bytes=1024", DType::F32, &[16, 16][..], "int8"),
            ("int8:min_bytes=1024", DType::F32, &[15, 17], "none"),
            ("int8:min_bytes=1024", DType::F32, &[4096], "none"),
            ("int8:min_bytes=1024", DType::F32, &[], "none"),
            ("int8:min_bytes=0", DType::F32, &[1, 1], "int8"),
            ("int8:min_bytes=1024", DType::I64, &[64, 64], "none"),
            ("int8:min_bytes=1024", DType::BF16, &[64, 64], "none"),
            ("int8:block=64,min_bytes=1024", DType::F32, &[2, 2, 64], "int8:block=64"),
            ("topk:min_bytes=1024,feedback=1", DType::F32, &[64, 64], "topk:feedback=1"),
            ("int8", DType::F32, &[3], "int8"),
            ("int8:fallback=1", DType::I32, &[3], "none"),
            ("int8:fallback=1", DType::F64, &[3], "int8"),
            ("bf16:min_bytes=1024", DType::F32, &[300], "none"),
            ("bf16:min_bytes=1024", DType::F32, &[64, 64], "bf16"),
            ("bf16", DType::I32, &[3], "none"),
            ("fp16", DType::F16, &[64, 64], "none"),
            ("none", DType::I32, &[3], "none"),
        ] {
            assert_eq!(of(text, dtype, shape), due, "{text} of {dtype} {shape:?}");
        }
        let largest = choice("int8:min_bytes=1024").codec_of("t", DType::F32, &[u64::MAX, u64::MAX]);
        assert!(!largest.unwrap().is_plain(), "a length beyond 2^64 is large");
    }

    #[test]
    fn elements_that_the_asked_codec_does_not_encode_are_an_error_that_names_them() {
        for (text, dtype) in [("int8", DType::I32), ("topk", DType::F64), ("fp8_e4m3", DType::BF16)] {
            let problem = choice(text).codec_of("layer.weight", dtype, &[64, 64]).unwrap_err().to_string();
            for word in ["layer.weight", text, &dtype.to_string(), "compression_fallback"] {
                assert!(problem.contains(word), "{problem}");
            }
        }
    }

    #[test]
    fn a_choice_is_printed_as_it_is_read() {
        for text in ["none", "int8", "int8:block=64", "int8:min_bytes=8192", "int8:block=64,min_bytes=0,fallback=1"] {
            assert_eq!(choice(text).to_string(), text);
        }
        assert_eq!(choice(" bf16 ".trim()), CodecSpec::BF16.into());
        for text in
            ["int8:min_bytes=-1", "int8:min_bytes=", "int8:fallback=2", "int8:least=4", "int9:min_bytes=4", "int8:"]
        {
            assert!(text.parse::<CodecChoice>().is_err(), "{text}");
        }
    }
}
