//! A codec with its parameters: a value of a tensor's declaration, and of each body. [`codec`](crate::codec) makes the bodies.

use super::{DType, Momentum, Op};
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
    /// f32 and f64 travel as 4-bit integers, block by block with a scale: an eighth of the bytes of f32, an error of at most 1/14 of the
    /// largest magnitude of the block.
    Int4 = 6,
    /// f32 and f64 travel as 8-bit floats with 3 bits behind the point, block by block with a scale: a quarter of the bytes of f32, an error
    /// of at most 1/16 of each element that is not small in its block.
    Fp8E4M3 = 7,
    /// As [`Fp8E4M3`](Self::Fp8E4M3), with 2 bits behind the point and a larger range within a block: an error of at most 1/8 of an element.
    Fp8E5M2 = 8,
    /// Of a part of f32, elements at places that all workers draw alike travel, without these places. The others count as zero.
    RandomK = 9,
    /// Of a part of f32, the signs travel, a bit for each element, with one scale for all magnitudes.
    OneBit = 10,
    /// Elements of a part of f32 travel as one of a few levels, drawn by chance, in as few bits as these need.
    Dithering = 11,
    /// Elements of any type travel with all their bits, in fewer bytes where bytes are alike, else unchanged.
    Lossless = 12,
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
    /// Which of [`FLAGS`] it can have.
    flags: u8,
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
const TABLE: [Row; 12] = [
    Row { encoding: Encoding::Plain, name: "none", dtypes: &DType::ALL, parameters: &[], flags: 0 },
    Row { encoding: Encoding::F16, name: "fp16", dtypes: WIDE, parameters: &[], flags: FEEDBACK },
    Row { encoding: Encoding::BF16, name: "bf16", dtypes: WIDE, parameters: &[], flags: FEEDBACK | STOCHASTIC },
    Row {
        encoding: Encoding::Int8,
        name: "int8",
        dtypes: WIDE,
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 256 }],
        flags: FEEDBACK | STOCHASTIC,
    },
    Row {
        encoding: Encoding::TopK,
        name: "topk",
        dtypes: &[DType::F32],
        parameters: &[
            // In millionths of the elements of a part. From a fifth on, int8 has no more bytes and loses less.
            Parameter { name: "k", range: (1, 250_000), default: 10_000 },
            // In its place if it is not 0: elements of each part, up to those of the longest one.
            Parameter { name: "count", range: (0, 16_777_216), default: 0 },
            // Rounds of a step of the warm-up; 0 for none.
            Parameter { name: "warmup", range: (0, 1_000_000), default: 0 },
        ],
        flags: FEEDBACK,
    },
    Row {
        encoding: Encoding::Int4,
        name: "int4",
        dtypes: WIDE,
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 128 }],
        flags: FEEDBACK | STOCHASTIC,
    },
    Row {
        encoding: Encoding::Fp8E4M3,
        name: "fp8_e4m3",
        dtypes: WIDE,
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 256 }],
        flags: FEEDBACK | STOCHASTIC,
    },
    Row {
        encoding: Encoding::Fp8E5M2,
        name: "fp8_e5m2",
        dtypes: WIDE,
        parameters: &[Parameter { name: "block", range: (32, 4096), default: 256 }],
        flags: FEEDBACK | STOCHASTIC,
    },
    Row {
        encoding: Encoding::RandomK,
        name: "randomk",
        dtypes: &[DType::F32],
        // In millionths of the elements of a part.
        parameters: &[Parameter { name: "k", range: (1, 500_000), default: 10_000 }],
        flags: FEEDBACK,
    },
    Row {
        encoding: Encoding::OneBit,
        name: "onebit",
        dtypes: &[DType::F32],
        // Whether the scale is the mean of the magnitudes; else it is 1.
        parameters: &[Parameter { name: "scaling", range: (0, 1), default: 1 }],
        flags: FEEDBACK,
    },
    Row {
        encoding: Encoding::Dithering,
        name: "dithering",
        dtypes: &[DType::F32],
        // The number that gives the levels, whether these are powers of two, and the norm. Above 127 levels int8 has fewer bytes.
        parameters: &[
            Parameter { name: "s", range: (1, 127), default: 16 },
            Parameter { name: "natural", range: (0, 1), default: 0 },
            Parameter { name: "norm", range: (0, 1), default: 0 },
        ],
        flags: FEEDBACK,
    },
    Row { encoding: Encoding::Lossless, name: "lossless", dtypes: &DType::ALL, parameters: &[], flags: 0 },
];

/// The types that rounding makes shorter.
const WIDE: &[DType] = &[DType::F32, DType::F64];

/// The most powers of two that are levels of [`Encoding::Dithering`].
const NATURAL_MAX: u32 = 16;

/// The bit of a wire code that says that bodies have error feedback.
const FEEDBACK: u8 = 1 << 7;
/// The bit of a wire code that says that a momentum follows the parameters.
const MOMENTUM: u8 = 1 << 5;
/// The bit of a wire code that says that elements are rounded up or down by chance.
const STOCHASTIC: u8 = 1 << 6;

/// Parameters of many codecs that are 0 or 1: their bits in a wire code, and the names that users write.
const FLAGS: [(u8, &str); 2] = [(STOCHASTIC, "stochastic"), (FEEDBACK, "feedback")];

/// Names of a [`Momentum`], in millionths: the correction of deep gradient compression, and Nesterov's.
const MOMENTA: [&str; 2] = ["momentum", "nesterov"];

/// A codec with its parameters.
///
/// A declaration names the codec of a tensor's parts. All workers declare the same one. A body is encoded with the tensor's codec, or
/// [`PLAIN`](Self::PLAIN). Users write it as `fp16`, or with parameters as `int8:block=256`, or `bf16:feedback=1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CodecSpec {
    encoding: Encoding,
    /// In the order of the codec's row; those that it does not have are 0.
    parameters: [u32; Self::PARAMETERS_MAX],
    /// Bits of [`FLAGS`] that its row allows.
    flags: u8,
    /// Only beside [`FEEDBACK`].
    momentum: Option<Momentum>,
}

impl CodecSpec {
    /// The most parameters of a codec.
    pub const PARAMETERS_MAX: usize = 4;
    /// The most of [`words`](Self::words): the parameters and a momentum.
    pub const WORDS_MAX: usize = Self::PARAMETERS_MAX + 1;

    /// The elements unchanged.
    pub const PLAIN: Self = Self::without_parameters(Encoding::Plain);
    /// [`Encoding::F16`].
    pub const F16: Self = Self::without_parameters(Encoding::F16);
    /// [`Encoding::BF16`].
    pub const BF16: Self = Self::without_parameters(Encoding::BF16);
    /// [`Encoding::Lossless`].
    pub const LOSSLESS: Self = Self::without_parameters(Encoding::Lossless);

    const fn without_parameters(encoding: Encoding) -> Self {
        Self { encoding, parameters: [0; Self::PARAMETERS_MAX], flags: 0, momentum: None }
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
        let (parameters, momentum) = match (code & MOMENTUM != 0, parameters) {
            (true, [parameters @ .., word]) => (parameters, Some(Momentum::from_word(*word)?)),
            (true, []) => (parameters, Some(Momentum::from_word(0)?)),
            (false, parameters) => (parameters, None),
        };
        let spec = Self::with_parameters(Self::encoding_of(code)?, parameters)?;
        Ok(Self { flags: flags_of(code), momentum, ..spec })
    }

    /// How many bytes of parameters follow this [wire code](Self::code).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such code.
    pub fn parameter_bytes_of(code: u8) -> Result<usize> {
        let momentum = if code & MOMENTUM != 0 { size_of::<u32>() } else { 0 };
        Ok(Self::of(Self::encoding_of(code)?).parameter_bytes() + momentum)
    }

    /// The encoding of a wire code.
    fn encoding_of(code: u8) -> Result<Encoding> {
        let flags = flags_of(code);
        let known = Encoding::from_code(code & !flags & !MOMENTUM);
        let may_have = |encoding: &Encoding| flags & !encoding.row().flags == 0;
        let is_consistent = code & MOMENTUM == 0 || flags & FEEDBACK != 0;
        known.filter(may_have).filter(|_| is_consistent).ok_or_else(|| {
            let what = format!("there is no codec with the code {code}");
            Error::InvalidArgument { what, hint: "use the same version everywhere".to_owned() }
        })
    }

    /// The codec `encoding` with all of its parameters, without error feedback, which rounds to the nearest.
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
        spec.check()
    }

    /// Checks what its parameters must have in common.
    fn check(self) -> Result<Self> {
        let [first, second, ..] = self.parameters;
        if self.encoding == Encoding::Dithering && second == 1 && first > NATURAL_MAX {
            return Err(Error::InvalidArgument {
                what: format!("codec {self}: s is {first} where natural is 1"),
                hint: format!("the largest level is 2^(s-1), and s is at most {NATURAL_MAX}"),
            });
        }
        if self.encoding == Encoding::TopK && second > 0 && first != Self::of(Encoding::TopK).parameters[0] {
            return Err(two_shares(self));
        }
        Ok(self)
    }

    /// The codec without its parameters.
    pub const fn encoding(self) -> Encoding {
        self.encoding
    }

    /// The name of the codec without its parameters.
    pub fn name(self) -> &'static str {
        self.encoding.row().name
    }

    /// The byte that says on the wire which codec it is, whether it has error feedback, and how it rounds. Its parameters follow elsewhere.
    pub const fn code(self) -> u8 {
        self.encoding as u8 | self.flags | if self.momentum.is_some() { MOMENTUM } else { 0 }
    }

    /// Whether its bodies have error feedback; see [`codec::feedback`](crate::codec::feedback). Never of [`PLAIN`](Self::PLAIN).
    pub const fn has_feedback(self) -> bool {
        self.flags & FEEDBACK != 0
    }

    /// The momentum that workers apply before they encode; only with error feedback.
    pub const fn momentum(self) -> Option<Momentum> {
        self.momentum
    }

    /// Whether elements are rounded up or down by chance, so that they are right on average. The chance is drawn from a
    /// [`Seed`](crate::codec::Seed), so a repeat makes the same body.
    pub const fn is_stochastic(self) -> bool {
        self.flags & STOCHASTIC != 0
    }

    /// Whether the answers of servers have error feedback: where they lose anything. Those that bring all of the sum's entries do not.
    pub const fn has_answer_feedback(self) -> bool {
        self.has_feedback() && !self.is_sparse()
    }

    /// Whether some elements travel, and the others count as zero.
    pub const fn is_sparse(self) -> bool {
        matches!(self.encoding, Encoding::TopK | Encoding::RandomK)
    }

    /// Whether of two elements that differ much, the larger one is decoded as the larger.
    const fn keeps_order(self) -> bool {
        !self.is_sparse() && !matches!(self.encoding, Encoding::OneBit | Encoding::Dithering)
    }

    /// Whether its bodies depend on the part and the round as well as on the elements.
    pub const fn draws(self) -> bool {
        self.is_stochastic() || matches!(self.encoding, Encoding::RandomK | Encoding::Dithering)
    }

    /// The same codec without error feedback, and so without momentum.
    #[must_use]
    pub const fn without_feedback(self) -> Self {
        Self { flags: self.flags & !FEEDBACK, momentum: None, ..self }
    }

    /// The same codec, rounding by chance.
    ///
    /// # Panics
    /// If it does not round.
    #[must_use]
    pub const fn with_stochastic(self) -> Self {
        assert!(self.encoding.row().flags & STOCHASTIC != 0, "this codec rounds nothing");
        Self { flags: self.flags | STOCHASTIC, ..self }
    }

    /// Whether elements travel unchanged.
    pub const fn is_plain(self) -> bool {
        matches!(self.encoding, Encoding::Plain)
    }

    /// Its own parameters.
    pub fn parameters(&self) -> &[u32] {
        &self.parameters[..self.encoding.row().parameters.len()]
    }

    /// Its parameters and its momentum, as they travel behind a header.
    pub fn words(&self) -> impl Iterator<Item = u32> {
        self.parameters().iter().copied().chain(self.momentum.map(Momentum::to_word))
    }

    /// Bytes of [`words`](Self::words).
    pub fn parameter_bytes(self) -> usize {
        size_of_val(self.parameters()) + self.momentum.map_or(0, |_| size_of::<u32>())
    }

    /// Whether it encodes each element on its own. Otherwise the elements of different tensors must not share its blocks.
    pub const fn is_elementwise(self) -> bool {
        match self.encoding {
            Encoding::Plain | Encoding::F16 | Encoding::BF16 => true,
            Encoding::Int8
            | Encoding::Int4
            | Encoding::Fp8E4M3
            | Encoding::Fp8E5M2
            | Encoding::TopK
            | Encoding::RandomK
            | Encoding::OneBit
            | Encoding::Dithering
            | Encoding::Lossless => false,
        }
    }

    /// Whether its bodies vary in length. Then it may also refuse elements, which travel plain.
    pub const fn varies(self) -> bool {
        matches!(self.encoding, Encoding::TopK | Encoding::Dithering | Encoding::Lossless)
    }

    /// Whether it encodes elements of type `dtype`. Only f32 has error feedback.
    pub fn encodes(self, dtype: DType) -> bool {
        self.encoding.row().dtypes.contains(&dtype) && (!self.has_feedback() || dtype == DType::F32)
    }

    /// This codec if it encodes `dtype`; without its error feedback if it encodes it then; else [`PLAIN`](Self::PLAIN): integers, and elements
    /// that are already as narrow, travel unchanged.
    #[must_use]
    pub fn for_dtype(self, dtype: DType) -> Self {
        let candidates = [self, self.without_feedback()];
        candidates.into_iter().find(|codec| codec.encodes(dtype)).unwrap_or(Self::PLAIN)
    }

    /// How a round with `op` encodes. [`PLAIN`](Self::PLAIN) where it means nothing: every worker gets the bits of a broadcast's root, and
    /// elements that [`Encoding::TopK`] and [`Encoding::RandomK`] leave out are zero in a sum, but no candidates for a minimum or maximum.
    /// Neither are the signs of [`Encoding::OneBit`] and the levels of [`Encoding::Dithering`], which say little of an element's own
    /// magnitude. A weighted mean has the mean of what they bring.
    /// Only a sum and a mean have error feedback, because only there what is late is as good as what is in time.
    #[must_use]
    pub const fn for_op(self, op: Op) -> Self {
        match op {
            Op::Broadcast { .. } => Self::PLAIN,
            Op::Min | Op::Max if !self.keeps_order() => Self::PLAIN,
            Op::Sum | Op::Mean => self,
            Op::Min | Op::Max | Op::WeightedMean => self.without_feedback(),
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

/// A share of the elements and a number of them are both given.
fn two_shares(spec: CodecSpec) -> Error {
    let [k, count, ..] = spec.parameters;
    Error::InvalidArgument {
        what: format!("codec {}: k is {k} and count is {count}", spec.encoding),
        hint: "give k, in millionths of a part, or count, elements of each part".to_owned(),
    }
}

/// What can be written behind the name of a codec.
fn known_parameters(encoding: Encoding) -> String {
    let Row { parameters, flags, .. } = encoding.row();
    if parameters.is_empty() && *flags == 0 {
        return format!("{encoding} has no parameters");
    }
    let texts = parameters.iter().map(|parameter| format!("{}={}", parameter.name, parameter.default));
    let named = FLAGS.iter().filter(|(bit, _)| flags & bit != 0);
    let texts = texts.chain(named.map(|(_, name)| format!("{name}=1")));
    format!("for example {encoding}:{}", texts.collect::<Vec<_>>().join(","))
}

/// The bits of [`FLAGS`] in a wire code.
fn flags_of(code: u8) -> u8 {
    code & FLAGS.iter().fold(0, |all, (bit, _)| all | bit)
}

mod text;

#[cfg(test)]
mod tests;
