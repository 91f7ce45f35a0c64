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
    /// Of a part of f32, only its largest elements travel, with their places. The others count as zero.
    TopK = 5,
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
const TABLE: [Row; 5] = [
    Row { encoding: Encoding::Plain, name: "none", dtypes: &DType::ALL, parameters: &[] },
    Row { encoding: Encoding::F16, name: "fp16", dtypes: &[DType::F32, DType::F64], parameters: &[] },
    Row { encoding: Encoding::BF16, name: "bf16", dtypes: &[DType::F32, DType::F64], parameters: &[] },
    Row {
        encoding: Encoding::Int8,
        name: "int8",
        dtypes: &[DType::F32, DType::F64],
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 256 }],
    },
    Row {
        encoding: Encoding::TopK,
        name: "topk",
        dtypes: &[DType::F32],
        // In millionths of the elements of a part. From a fifth on, int8 has no more bytes and loses less.
        parameters: &[Parameter { name: "k", range: (1, 250_000), default: 10_000 }],
    },
];

/// A codec with its parameters.
///
/// A declaration names the codec of a tensor's parts. All workers declare the same one. A body is encoded with the tensor's codec, or
/// [`PLAIN`](Self::PLAIN). Users write it as `fp16`, or with parameters as `int8:block=256`, or `bf16:feedback=1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CodecSpec {
    encoding: Encoding,
    /// In the order of the codec's row; those that it does not have are 0.
    parameters: [u32; Self::PARAMETERS_MAX],
    /// Whether its bodies have error feedback; see [`codec::feedback`](crate::codec::feedback). Never of [`PLAIN`](Self::PLAIN).
    feedback: bool,
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
        Self { encoding, parameters: [0; Self::PARAMETERS_MAX], feedback: false }
    }

    /// The codec `encoding` where nobody names its parameters.
    pub fn of(encoding: Encoding) -> Self {
        let mut spec = Self::without_parameters(encoding);
        for (value, parameter) in spec.parameters.iter_mut().zip(encoding.row().parameters) {
            *value = parameter.default;
        }
        spec
    }

    /// The codec with this [wire code](Self::code) and all of its parameters, as they travel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such code, for another number of parameters, or one out of its range.
    pub fn from_wire(code: u8, parameters: &[u32]) -> Result<Self> {
        let spec = Self::with_parameters(Self::encoding_of(code)?, parameters)?;
        Ok(Self { feedback: code & FEEDBACK != 0, ..spec })
    }

    /// How many bytes of parameters follow this [wire code](Self::code).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such code.
    pub fn parameter_bytes_of(code: u8) -> Result<usize> {
        Ok(Self::of(Self::encoding_of(code)?).parameter_bytes())
    }

    /// The encoding of a wire code.
    fn encoding_of(code: u8) -> Result<Encoding> {
        let known = Encoding::from_code(code & !FEEDBACK);
        known.filter(|encoding| code & FEEDBACK == 0 || *encoding != Encoding::Plain).ok_or_else(|| {
            let what = format!("there is no codec with the code {code}");
            Error::InvalidArgument { what, hint: "use the same version everywhere".to_owned() }
        })
    }

    /// The codec `encoding` with all of its parameters, without error feedback.
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

    /// The byte that says on the wire which codec it is, and whether it has error feedback. Its parameters follow elsewhere.
    pub const fn code(self) -> u8 {
        self.encoding as u8 | if self.feedback { FEEDBACK } else { 0 }
    }

    /// Whether its bodies have error feedback.
    pub const fn has_feedback(self) -> bool {
        self.feedback
    }

    /// Whether the answers of servers have error feedback: where they lose anything. Those that vary in length do not.
    pub const fn has_answer_feedback(self) -> bool {
        self.has_feedback() && !self.varies()
    }

    /// The same codec without error feedback.
    #[must_use]
    pub const fn without_feedback(self) -> Self {
        Self { feedback: false, ..self }
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
            Encoding::Int8 | Encoding::TopK => false,
        }
    }

    /// Whether its bodies vary in length. Then it may also refuse elements, which travel plain.
    pub const fn varies(self) -> bool {
        match self.encoding {
            Encoding::Plain | Encoding::F16 | Encoding::BF16 | Encoding::Int8 => false,
            Encoding::TopK => true,
        }
    }

    /// Whether it encodes elements of type `dtype`. Only f32 has error feedback.
    pub fn encodes(self, dtype: DType) -> bool {
        self.encoding.row().dtypes.contains(&dtype) && (!self.feedback || dtype == DType::F32)
    }

    /// This codec if it encodes `dtype`; without its error feedback if it encodes it then; else [`PLAIN`](Self::PLAIN): integers, and elements
    /// that are already as narrow, travel unchanged.
    #[must_use]
    pub fn for_dtype(self, dtype: DType) -> Self {
        let candidates = [self, self.without_feedback()];
        candidates.into_iter().find(|codec| codec.encodes(dtype)).unwrap_or(Self::PLAIN)
    }

    /// How a round with `op` encodes. [`PLAIN`](Self::PLAIN) where it means nothing: every worker gets the bits of a broadcast's root, and
    /// elements that [`Encoding::TopK`] leaves out are zero in a sum, but no candidates for a minimum or maximum. Only a sum and a mean have
    /// error feedback, because only there what is late is as good as what is in time.
    #[must_use]
    pub const fn for_op(self, op: Op) -> Self {
        match (op, self.encoding) {
            (Op::Broadcast { .. }, _) | (Op::Min | Op::Max, Encoding::TopK) => Self::PLAIN,
            (Op::Sum | Op::Mean, _) => self,
            (Op::Min | Op::Max | Op::WeightedMean, _) => self.without_feedback(),
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
            .chain(self.feedback.then(|| format!("{FEEDBACK_NAME}=1")))
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
            if parameter.trim() == FEEDBACK_NAME && row.encoding != Encoding::Plain {
                spec.feedback = match value.trim() {
                    "0" => false,
                    "1" => true,
                    _ => return Err(unknown()),
                };
                continue;
            }
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
    if encoding == Encoding::Plain {
        return format!("{encoding} has no parameters");
    }
    let parameters = encoding.row().parameters;
    let texts = parameters.iter().map(|parameter| format!("{}={}", parameter.name, parameter.default));
    let texts = texts.chain([format!("{FEEDBACK_NAME}=1")]);
    format!("for example {encoding}:{}", texts.collect::<Vec<_>>().join(","))
}

/// The name of the parameter that every codec has but the plain one: 1 for error feedback, 0 for none.
const FEEDBACK_NAME: &str = "feedback";

/// The bit of a wire code that says that bodies have error feedback.
const FEEDBACK: u8 = 1 << 7;

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
            assert_eq!(CodecSpec::from_wire(spec.code(), spec.parameters()), Ok(spec));
            assert!(encoding.row().parameters.len() <= CodecSpec::PARAMETERS_MAX);
        }
        assert_eq!([0, TABLE.len() as u8 + 1].map(Encoding::from_code), [None; 2]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_there_are() {
        let error = "fp8".parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("none, fp16, bf16, int8, topk"), "{error}");
    }

    #[test]
    fn parameters_that_a_codec_does_not_have_are_refused() {
        for (text, hint) in [
            ("fp16:", "for example fp16:feedback=1"),
            ("fp16:block=3", "for example fp16:feedback=1"),
            ("none:x", "none has no parameters"),
            ("none:feedback=1", "none has no parameters"),
        ] {
            let error = text.parse::<CodecSpec>().unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
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
    fn error_feedback_is_a_parameter_of_every_codec_that_loses_something() {
        for encoding in Encoding::all().filter(|encoding| *encoding != Encoding::Plain) {
            let without = CodecSpec::of(encoding);
            let with: CodecSpec = format!("{encoding}: feedback = 1").parse().unwrap();
            assert_eq!((with.has_feedback(), with.without_feedback()), (true, without));
            assert_eq!(with.to_string(), format!("{encoding}:feedback=1"));
            assert_eq!(format!("{encoding}:feedback=0").parse(), Ok(without));
            assert_eq!(CodecSpec::from_wire(with.code(), with.parameters()), Ok(with));
            assert_eq!(CodecSpec::parameter_bytes_of(with.code()), Ok(with.parameter_bytes()));
            for text in ["feedback", "feedback=2", "feedback=true", "feedback="] {
                let error = format!("{encoding}:{text}").parse::<CodecSpec>().unwrap_err().to_string();
                assert!(error.contains("feedback=1"), "{error}");
            }
        }
        let large: CodecSpec = "int8:feedback=1,block=1024".parse().unwrap();
        assert_eq!((large.to_string().as_str(), large.parameters()), ("int8:block=1024,feedback=1", &[1024][..]));
    }

    #[test]
    fn a_wire_code_that_no_codec_has_is_refused() {
        let beyond = TABLE.len() as u8 + 1;
        for code in [0, beyond, FEEDBACK, FEEDBACK | Encoding::Plain as u8, FEEDBACK | beyond] {
            assert!(CodecSpec::from_wire(code, &[]).is_err() && CodecSpec::parameter_bytes_of(code).is_err(), "{code}");
        }
    }

    #[test]
    fn only_sums_and_means_of_f32_have_error_feedback() {
        let with: CodecSpec = "bf16:feedback=1".parse().unwrap();
        assert_eq!(DType::ALL.map(|dtype| with.for_dtype(dtype).has_feedback()), DType::ALL.map(|it| it == DType::F32));
        assert_eq!(with.for_dtype(DType::F64), CodecSpec::BF16);
        assert_eq!(with.for_dtype(DType::I32), CodecSpec::PLAIN);
        assert_eq!([Op::Sum, Op::Mean].map(|op| with.for_op(op)), [with; 2]);
        assert_eq!([Op::Min, Op::Max, Op::WeightedMean].map(|op| with.for_op(op)), [CodecSpec::BF16; 3]);
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
    fn a_codec_is_not_applied_where_it_means_nothing() {
        let topk = CodecSpec::of(Encoding::TopK);
        for codec in [CodecSpec::BF16, topk] {
            assert_eq!(codec.for_op(Op::Broadcast { root: WorkerId(0) }), CodecSpec::PLAIN);
            assert_eq!([Op::Sum, Op::Mean, Op::WeightedMean].map(|op| codec.for_op(op)), [codec; 3]);
        }
        assert_eq!([Op::Min, Op::Max].map(|op| topk.for_op(op)), [CodecSpec::PLAIN; 2]);
        assert_eq!([Op::Min, Op::Max].map(|op| CodecSpec::BF16.for_op(op)), [CodecSpec::BF16; 2]);
    }
}
