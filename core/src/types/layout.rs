//! How tensors are laid out in parts, and which server sums which part. The coordinator decides this once, at the first declaration of a
//! name.

use std::fmt;

use super::{
    CodecChoice, CodecSpec, DType, Declared, Extent, Mode, PartId, Participants, Rule, ServerId, Shards, Span,
    TableSpec, TensorKey, TensorKind,
};
use crate::error::Result;

/// A worker's declaration of a tensor. The first declaration on any worker fixes dtype, shape, codec and participants for the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// Equal on all workers.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in elements; empty for a scalar.
    pub shape: Vec<u64>,
    /// What servers do with it. Its codec encodes `dtype`.
    pub kind: TensorKind,
    /// The workers that contribute to its sums, and those that get them.
    pub participants: Participants,
}

impl TensorSpec {
    /// A tensor of all workers that travels without encoding.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<u64>) -> Self {
        Self { name: name.into(), dtype, shape, kind: TensorKind::PLAIN_SUM, participants: Participants::ALL }
    }

    /// The same tensor of these participants.
    #[must_use]
    pub fn with_participants(self, participants: Participants) -> Self {
        Self { participants, ..self }
    }

    /// The same tensor with a codec, if the codec encodes its elements. Otherwise the tensor travels without encoding.
    #[must_use]
    pub fn with_codec(self, codec: CodecSpec) -> Self {
        Self { kind: TensorKind::Sum { codec: codec.for_dtype(self.dtype) }, ..self }
    }

    /// The same tensor with the codec that a caller's choice has for it.
    ///
    /// # Errors
    /// As [`CodecChoice::codec_of`].
    pub fn compressed(self, choice: CodecChoice) -> Result<Self> {
        let codec = choice.codec_of(&self.name, self.dtype, &self.shape)?;
        Ok(self.with_codec(codec))
    }

    /// A parameter: a tensor that servers keep, and that each worker changes and reads by itself.
    pub fn parameter(name: impl Into<String>, dtype: DType, shape: Vec<u64>) -> Self {
        Self { kind: TensorKind::PLAIN_PARAMETER, ..Self::new(name, dtype, shape) }
    }

    /// The same tensor as a parameter that gradients change by this rule.
    #[must_use]
    pub fn with_rule(self, rule: Rule) -> Self {
        Self { kind: TensorKind::Parameter { rule: Some(rule.of_shape(&self.shape)), mode: self.kind.mode() }, ..self }
    }

    /// The same tensor as a parameter that is changed in this mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { kind: TensorKind::Parameter { rule: self.kind.rule(), mode }, ..self }
    }

    /// A table: rows that servers keep by id, and that come and go as f32.
    pub fn table(name: impl Into<String>, spec: TableSpec) -> Self {
        let shape = vec![u64::from(TableSpec::SHARDS), spec.dim];
        Self { kind: TensorKind::Table { spec }, ..Self::new(name, DType::F32, shape) }
    }

    /// What is compared with the declarations of other workers.
    pub fn declared(&self) -> Declared<'_> {
        let (name, extent) = (Some(self.name.as_str()), Extent::Shape(&self.shape));
        Declared { name, dtype: self.dtype, extent, kind: self.kind, op: None, participants: &self.participants }
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
    /// The tensor that has these bytes.
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
    /// What servers do with all its tensors.
    pub kind: TensorKind,
    /// The server that sums it.
    pub server: ServerId,
    /// The pieces that it consists of; never empty.
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

    /// Of a part of a table: what is done with its rows, and its shards. `None` of other parts.
    pub fn rows(&self) -> Option<(TableSpec, Shards)> {
        let (spec, [piece]) = (self.kind.table()?, self.pieces.as_slice()) else { return None };
        let shards = |bytes: u64| u32::try_from(bytes / spec.shard_bytes()).expect("as many as a table has");
        Some((spec, Shards { first: shards(piece.span.offset), count: shards(piece.span.bytes) }))
    }

    /// All of it in one line, for people. `name` says how the line calls a tensor.
    pub fn described(&self, name: impl Fn(TensorKey) -> String) -> String {
        let Self { part: PartId { key, index }, dtype, kind, server, pieces } = self;
        let kind = if *kind == TensorKind::PLAIN_SUM { String::new() } else { format!(" {kind}") };
        let head = format!("part {}/{index} {dtype} {} B{kind} on {server}", name(*key), self.bytes());
        pieces.iter().fold(head, |line, Piece { tensor, span }| {
            format!("{line} | {} [{}, {})", name(*tensor), span.offset, span.end())
        })
    }
}

impl fmt::Display for PartLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described(|tensor| tensor.to_string()))
    }
}
