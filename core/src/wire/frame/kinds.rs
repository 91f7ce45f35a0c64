//! The fields of declarations and layouts of tensors, and of what servers do with them.

use super::fields::Field;
use crate::error::{Error, Result};
use crate::types::{
    CodecSpec, DType, Mode, PartId, PartLayout, Participants, Piece, Rule, ServerId, Span, TableSpec, TensorKey,
    TensorKind, TensorSpec,
};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{DIMENSIONS_MAX, NAME_BYTES_MAX, PART_BYTES_MAX, TENSORS_MAX};

impl Field for TensorSpec {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.name, usize::MAX);
        self.dtype.write(writer);
        self.kind.write(writer);
        writer.list(&self.shape, |writer, dimension| writer.u64(*dimension));
        self.participants.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let name = reader.text(NAME_BYTES_MAX, "tensor name")?;
        let (dtype, kind) = read_form(reader)?;
        let shape = reader.list(DIMENSIONS_MAX, "shape", |reader| reader.u64("dimension"))?;
        if let Some(rule) = kind.rule().filter(|rule| *rule != rule.of_shape(&shape) || !rule.suits(&shape)) {
            return Err(reader.bad("rule", format!("is {rule} of shape {shape:?}")));
        }
        if let Some(spec) = kind.table().filter(|spec| shape != [u64::from(TableSpec::SHARDS), spec.dim]) {
            return Err(reader.bad("table", format!("is {spec} of shape {shape:?}")));
        }
        Ok(Self { name, dtype, shape, kind, participants: Participants::read(reader)? })
    }
}

impl Field for TensorKind {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Sum { codec } => {
                writer.u8(kind_code::SUM);
                codec.write(writer);
            }
            Self::Parameter { rule, mode } => {
                writer.u8(kind_code::PARAMETER);
                writer.option(rule.as_ref(), |writer, rule| rule.write(writer));
                mode.write(writer);
            }
            Self::Table { spec } => {
                writer.u8(kind_code::TABLE);
                writer.text(&spec.to_string(), TableSpec::TEXT_BYTES_MAX);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.u8("tensor kind")? {
            kind_code::SUM => Ok(Self::Sum { codec: CodecSpec::read(reader)? }),
            kind_code::PARAMETER => {
                Ok(Self::Parameter { rule: reader.option("rule", Rule::read)?, mode: Mode::read(reader)? })
            }
            kind_code::TABLE => {
                let text = reader.text(TableSpec::TEXT_BYTES_MAX, "table")?;
                let spec: TableSpec = text.parse().map_err(|error: Error| reader.bad("table", error.to_string()))?;
                if spec.to_string() != text {
                    return Err(reader.bad("table", format!("is {text} in place of {spec}")));
                }
                Ok(Self::Table { spec })
            }
            code => Err(reader.bad("tensor kind", format!("is {code}"))),
        }
    }
}

/// The codes of the kinds of tensors; they never change.
mod kind_code {
    pub(super) const SUM: u8 = 1;
    pub(super) const PARAMETER: u8 = 2;
    pub(super) const TABLE: u8 = 3;
}

impl Field for CodecSpec {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.code());
        let words: Vec<u32> = self.words().collect();
        writer.list(&words, |writer, word| writer.u32(*word));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("codec")?;
        let parameters = reader.list(Self::WORDS_MAX, "codec parameters", |reader| reader.u32("codec parameter"))?;
        Self::from_wire(code, &parameters).map_err(|error| reader.bad("codec", error.to_string()))
    }
}

impl Field for Rule {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.code());
        let settings: Vec<f64> = self.settings().collect();
        writer.list(&settings, |writer, setting| writer.u64(setting.to_bits()));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("rule")?;
        let settings = reader.list(Self::SETTINGS_MAX, "settings of a rule", |reader| reader.u64("setting"))?;
        let settings: Vec<f64> = settings.into_iter().map(f64::from_bits).collect();
        Self::from_wire(code, &settings).map_err(|error| reader.bad("rule", error.to_string()))
    }
}

/// Reads an element type, and a kind whose codec encodes it, or whose rule changes it.
fn read_form(reader: &mut Reader<'_>) -> Result<(DType, TensorKind)> {
    let (dtype, kind) = (DType::read(reader)?, TensorKind::read(reader)?);
    if !kind.codec().encodes(dtype) {
        return Err(reader.bad("codec", format!("is {} of {dtype}", kind.codec())));
    }
    if let Some(rule) = kind.rule().filter(|rule| !rule.changes(dtype)) {
        return Err(reader.bad("rule", format!("is {rule} of {dtype}")));
    }
    if kind.table().is_some() && dtype != DType::F32 {
        return Err(reader.bad("dtype", format!("is {dtype} of a table")));
    }
    Ok((dtype, kind))
}

impl Field for PartLayout {
    fn write(&self, writer: &mut Writer) {
        self.part.write(writer);
        self.dtype.write(writer);
        self.kind.write(writer);
        writer.u32(self.server.0);
        writer.list(&self.pieces, |writer, piece| {
            writer.u64(piece.tensor.0);
            writer.u64(piece.span.offset);
            writer.u64(piece.span.bytes);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let part = PartId::read(reader)?;
        let (dtype, kind) = read_form(reader)?;
        let layout = Self {
            part,
            dtype,
            kind,
            server: ServerId(reader.u32("server")?),
            pieces: reader.list(TENSORS_MAX, "pieces", |reader| {
                let tensor = TensorKey(reader.u64("tensor key")?);
                let span = Span { offset: reader.u64("piece offset")?, bytes: reader.u64("piece length")? };
                Ok(Piece { tensor, span })
            })?,
        };
        if layout.pieces.is_empty() {
            return Err(reader.bad("pieces", "are none"));
        }
        let element = kind.table().map_or(dtype.bytes(), |spec| spec.shard_bytes());
        if let (Some(spec), [piece]) = (kind.table(), layout.pieces.as_slice())
            && (piece.span.bytes == 0 || piece.span.end() > spec.shard_bytes() * u64::from(TableSpec::SHARDS))
        {
            return Err(reader.bad("pieces", "are no shards of a table"));
        }
        if layout.pieces.iter().any(|Piece { span, .. }| {
            span.offset.checked_add(span.bytes).is_none() || span.offset % element != 0 || span.bytes % element != 0
        }) {
            return Err(reader.bad("pieces", format!("do not lie on elements of {}", layout.dtype)));
        }
        let bytes = layout.pieces.iter().try_fold(0_u64, |bytes, piece| bytes.checked_add(piece.span.bytes));
        if bytes.is_none_or(|bytes| bytes > PART_BYTES_MAX) {
            return Err(reader.bad("pieces", format!("are longer than {PART_BYTES_MAX} bytes")));
        }
        Ok(layout)
    }
}
