//! How tensors lie in parts, and which server sums which part. Decided once, by the coordinator, at the first declaration of a name.

use std::fmt;

use super::{DType, Encoding, PartId, ServerId, Span, TensorKey};

/// What a worker declares of a tensor. Its first use on any worker fixes dtype, shape and codec for the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// Equal on all workers.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in elements; empty for a scalar.
    pub shape: Vec<u64>,
    /// How its parts travel between machines; an encoding of `dtype`.
    pub codec: Encoding,
}

impl TensorSpec {
    /// A tensor that travels as it is.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<u64>) -> Self {
        Self { name: name.into(), dtype, shape, codec: Encoding::Plain }
    }

    /// The same with a codec, where that encodes its elements; else it travels as it is.
    #[must_use]
    pub fn with_codec(self, codec: Encoding) -> Self {
        Self { codec: codec.for_dtype(self.dtype), ..self }
    }

    /// Its key.
    pub fn key(&self) -> TensorKey {
        TensorKey::of(&self.name)
    }

    /// Its length, or `None` above 2^64 bytes.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.bytes(), |bytes, dimension| bytes.checked_mul(*dimension))
    }
}

/// A run of a tensor's bytes within a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Whose bytes.
    pub tensor: TensorKey,
    /// Which bytes of that tensor.
    pub span: Span,
}

/// One part: its pieces in the order in which they travel, and the server that sums them.
///
/// A large tensor has many parts of one piece each; several small ones share a part of several pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartLayout {
    /// Its identity.
    pub part: PartId,
    /// Element type of all its pieces.
    pub dtype: DType,
    /// The codec of all its tensors.
    pub codec: Encoding,
    /// Who sums it.
    pub server: ServerId,
    /// What it consists of; never empty.
    pub pieces: Vec<Piece>,
}

impl PartLayout {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.span.bytes).sum()
    }

    /// Elements of all pieces.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.bytes()
    }
}

impl fmt::Display for PartLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} {} {} B", self.part, self.dtype, self.bytes())?;
        if self.codec != Encoding::Plain {
            write!(f, " as {}", self.codec)?;
        }
        write!(f, " on {}", self.server)?;
        self.pieces
            .iter()
            .try_for_each(|piece| write!(f, " | {} [{}, {})", piece.tensor, piece.span.offset, piece.span.end()))
    }
}
