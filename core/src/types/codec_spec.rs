//! A codec with its parameters: a value of a tensor's declaration, and of each body. [`codec`](crate::codec) makes the bodies.

use std::fmt;
use std::str::FromStr;

use super::{DType, Op};
use crate::error::{Error, Result};

/// The codecs, without their parameters. The discriminants are wire codes and never change; 0 is not a code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Encoding {
    /// The elements unchanged.
    #[default]
    Plain = 1,
    /// f32 and f64 travel as f16: half the bytes of f32, 11 bits of precision, infinite from 65,520 on.
    F16 = 2,
    /// f32 and f64 travel as bfloat16: half the bytes of f32 with its range, 8 bits of precision.
    BF16 = 3,
    /// f32 and f64 travel as bytes, block by block with a scale: a quarter of the bytes of f32, an error of at most 1/254 of the largest
    /// magnitude of the block.
    Int8 = 4,
}

/// What is known of a codec without running it.
struct Row {
    encoding: Encoding,
    /// The name that users write.
    name: &'static str,
    /// The element types that it encodes.
    dtypes: &'static [DType],
    /// Its parameters, in the order in which they travel.
    parameters: &'static [Parameter],
}

/// A parameter of a codec.
struct Parameter {
    /// The name that users write.
    name: &'static str,
    /// The smallest and the largest value.
    range: (u32, u32),
    /// The value where nobody names one.
    default: u32,
}

/// To add a codec, add a variant above, a row here, and what makes its bodies to [`codec::of`](crate::codec::of).
const TABLE: [Row; 4] = [
    Row { encoding: Encoding::Plain, name: "none", dtypes: &DType::ALL, parameters: &[] },
    Row { encoding: Encoding::F16, name: "fp16", dtypes: &[DType::F32, DType::F64], parameters: &[] },
    Row { encoding: Encoding::BF16, name: "bf16", dtypes: &[DType::F32, DType::F64], parameters: &[] },
    Row {
        encoding: Encoding::Int8,
        name: "int8",
        dtypes: &[DType::F32, DType::F64],
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 256 }],
    },
];

/// A codec with its parameters.
///
/// A declaration names the codec of a tensor's parts. All workers declare the same one. A body is encoded with the tensor's codec, or
/// [`PLAIN`](Self::PLAIN). Users write it as `fp16`, or with parameters as `int8:block=256`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CodecSpec {
    encoding: Encoding,
    /// In the order of the codec's row; those that it does not have are 0.
    parameters: [u32; Self::PARAMETERS_MAX],
}

impl CodecSpec {
    /// The most parameters of a codec.
    pub const PARAMETERS_MAX: usize = 4;

    /// The elements unchanged.
    pub const PLAIN: Self = Self::without_parameters(Encoding::Plain);
    /// [`Encoding::F16`].
    pub const F16: Self = Self::without_parameters(Encoding::F16);
    /// [`Encoding::BF16`].
    pub const BF16: Self = Self::without_parameters(Encoding::BF16);

    const fn without_parameters(encoding: Encoding) -> Self {
        Self { encoding, parameters: [0; Self::PARAMETERS_MAX] }
    }

    /// The codec `encoding` where nobody names its parameters.
    pub fn of(encoding: Encoding) -> Self {
        let mut spec = Self::without_parameters(encoding);
        for (value, parameter) in spec.parameters.iter_mut().zip(encoding.row().parameters) {
            *value = parameter.default;
        }
        spec
    }

    /// The codec `encoding` with all of its parameters, as they travel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of parameters, or one out of its range.
    pub fn with_parameters(encoding: Encoding, parameters: &[u32]) -> Result<Self> {
        let due = encoding.row().parameters;
        if parameters.len() != due.len() {
            return Err(Error::InvalidArgument {
                what: format!("codec {encoding} with {} parameters instead of {}", parameters.len(), due.len()),
                hint: known_parameters(encoding),
            });
        }
        let mut spec = Self::without_parameters(encoding);
        for (index, (value, parameter)) in parameters.iter().zip(due).enumerate() {
            parameter.check(encoding, *value)?;
            spec.parameters[index] = *value;
        }
        Ok(spec)
    }

    /// The codec without its parameters.
    pub const fn encoding(self) -> Encoding {
        self.encoding
    }

    /// Whether elements travel unchanged.
    pub const fn is_plain(self) -> bool {
        matches!(self.encoding, Encoding::Plain)
    }

    /// Its parameters as they travel.
    pub fn parameters(&self) -> &[u32] {
        &self.parameters[..self.encoding.row().parameters.len()]
    }

    /// Bytes of its parameters as they travel behind a header.
    pub fn parameter_bytes(self) -> usize {
        size_of_val(self.parameters())
    }

    /// Whether it encodes each element on its own. Otherwise the elements of different tensors must not share its blocks.
    pub const fn is_elementwise(self) -> bool {
        match self.encoding {
            Encoding::Plain | Encoding::F16 | Encoding::BF16 => true,
            Encoding::Int8 => false,
        }
    }

    /// Whether it encodes elements of type `dtype`.
    pub fn encodes(self, dtype: DType) -> bool {
        self.encoding.row().dtypes.contains(&dtype)
    }

    /// This codec if it encodes `dtype`, else [`PLAIN`](Self::PLAIN): integers, and elements that are already as narrow, travel unchanged.
    #[must_use]
    pub fn for_dtype(self, dtype: DType) -> Self {
        if self.encodes(dtype) { self } else { Self::PLAIN }
    }

    /// This codec, or [`PLAIN`](Self::PLAIN) for a broadcast: every worker gets the bits of its root.
    #[must_use]
    pub const fn for_op(self, op: Op) -> Self {
        match op {
            Op::Broadcast { .. } => Self::PLAIN,
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => self,
        }
    }
}

impl Encoding {
    /// Every codec, in the order of the wire codes.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.encoding)
    }

    /// The codec with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::all().find(|encoding| *encoding as u8 == code)
    }

    const fn row(self) -> &'static Row {
        &TABLE[self as usize - 1]
    }
}

impl Parameter {
    fn check(&self, encoding: Encoding, value: u32) -> Result<()> {
        let (least, most) = self.range;
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: format!("codec {encoding}: {} is {value}", self.name),
            hint: format!("{} is {least} to {most}; {} without a word", self.name, self.default),
        })
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

/// As it is parsed. Parameters with their default are left out.
impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.parameters().iter().zip(self.encoding.row().parameters);
        let told: Vec<String> = named
            .filter(|(value, parameter)| **value != parameter.default)
            .map(|(value, parameter)| format!("{}={value}", parameter.name))
            .collect();
        if told.is_empty() {
            return self.encoding.fmt(f);
        }
        f.pad(&format!("{}:{}", self.encoding, told.join(",")))
    }
}

impl FromStr for CodecSpec {
    type Err = Error;

    /// Reads `name`, or `name:parameter=value,parameter=value`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, assignments) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let row = TABLE.iter().find(|row| row.name == name).ok_or_else(|| Error::InvalidArgument {
            what: format!("there is no codec {text:?}"),
            hint: format!("use one of {}", TABLE.each_ref().map(|row| row.name).join(", ")),
        })?;
        let mut spec = Self::of(row.encoding);
        for word in assignments.into_iter().flat_map(|assignments| assignments.split(',')) {
            let unknown = || Error::InvalidArgument {
                what: format!("codec {text:?}: {word:?} sets no parameter"),
                hint: known_parameters(row.encoding),
            };
            let (parameter, value) = word.split_once('=').ok_or_else(unknown)?;
            let index = row.parameters.iter().position(|known| known.name == parameter.trim()).ok_or_else(unknown)?;
            let value = value.trim().parse().map_err(|_| unknown())?;
            row.parameters[index].check(row.encoding, value)?;
            spec.parameters[index] = value;
        }
        Ok(spec)
    }
}

/// What can be written behind the name of a codec.
fn known_parameters(encoding: Encoding) -> String {
    let parameters = encoding.row().parameters;
    if parameters.is_empty() {
        return format!("{encoding} has no parameters");
    }
    let texts = parameters.iter().map(|parameter| format!("{}={}", parameter.name, parameter.default));
    format!("for example {encoding}:{}", texts.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    #[test]
    fn each_codec_has_its_row_and_codes_and_names_round_trip() {
        for (index, encoding) in Encoding::all().enumerate() {
            assert_eq!(encoding as usize, index + 1);
            assert_eq!(Encoding::from_code(encoding as u8), Some(encoding));
            let spec = CodecSpec::of(encoding);
            assert_eq!(spec.to_string().parse::<CodecSpec>(), Ok(spec));
            assert_eq!(CodecSpec::with_parameters(encoding, spec.parameters()), Ok(spec));
            assert!(encoding.row().parameters.len() <= CodecSpec::PARAMETERS_MAX);
        }
        assert_eq!([0, TABLE.len() as u8 + 1].map(Encoding::from_code), [None; 2]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_there_are() {
        let error = "fp8".parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("none, fp16, bf16, int8"), "{error}");
    }

    #[test]
    fn parameters_that_a_codec_does_not_have_are_refused() {
        for text in ["fp16:", "fp16:block=3", "none:x"] {
            let error = text.parse::<CodecSpec>().unwrap_err().to_string();
            assert!(error.contains("has no parameters"), "{error}");
        }
        let error = CodecSpec::with_parameters(Encoding::BF16, &[1]).unwrap_err().to_string();
        assert!(error.contains("with 1 parameters instead of 0"), "{error}");
    }

    #[test]
    fn a_parameter_is_read_and_shown_and_has_a_range() {
        let [plain, same, large]: [CodecSpec; 3] =
            ["int8", "int8:block=256", "int8: block = 1024"].map(|text| text.parse().unwrap());
        assert_eq!((plain, plain.to_string()), (same, "int8".to_owned()));
        assert_eq!((large.parameters(), large.to_string()), (&[1024][..], "int8:block=1024".to_owned()));
        for text in ["int8:block=31", "int8:block=4097"] {
            let error = text.parse::<CodecSpec>().unwrap_err().to_string();
            assert!(error.contains("block is") && error.contains("32 to 4096"), "{error}");
        }
        for text in ["int8:", "int8:block", "int8:block=x", "int8:block=-1", "int8:level=3", "int8:block=64,"] {
            let error = text.parse::<CodecSpec>().unwrap_err().to_string();
            assert!(error.contains("for example int8:block=256"), "{error}");
        }
        for parameters in [&[][..], &[0], &[256, 1]] {
            assert!(CodecSpec::with_parameters(Encoding::Int8, parameters).is_err(), "{parameters:?}");
        }
    }

    #[test]
    fn elements_that_a_codec_does_not_narrow_travel_as_they_are() {
        for codec in [CodecSpec::F16, CodecSpec::BF16] {
            for dtype in DType::ALL {
                let is_wide = matches!(dtype, DType::F32 | DType::F64);
                let expected = if is_wide { codec } else { CodecSpec::PLAIN };
                assert_eq!(codec.for_dtype(dtype), expected, "{codec} of {dtype}");
            }
        }
    }

    #[test]
    fn a_broadcast_is_not_encoded() {
        assert_eq!(CodecSpec::BF16.for_op(Op::Broadcast { root: WorkerId(0) }), CodecSpec::PLAIN);
        assert_eq!(CodecSpec::BF16.for_op(Op::Mean), CodecSpec::BF16);
    }
}
