//! The fields of what servers do with a tensor.

use super::fields::Field;
use crate::error::{Error, Result};
use crate::types::{CodecSpec, DType, Mode, Rule, TableSpec, TensorKind};
use crate::wire::codec::{Reader, Writer};

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
pub(super) fn read_form(reader: &mut Reader<'_>) -> Result<(DType, TensorKind)> {
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
