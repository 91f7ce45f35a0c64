//! The fields of the frames of the store.

use super::fields::Field;
use crate::error::Result;
use crate::types::{StoreAnswer, StoreAsk};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{STORE_KEY_BYTES_MAX, STORE_KEYS_MAX, STORE_VALUE_BYTES_MAX};

impl Field for StoreAsk {
    fn write(&self, writer: &mut Writer) {
        writer.u8(match self {
            Self::Put { .. } => ask::PUT,
            Self::Add { .. } => ask::ADD,
            Self::Append { .. } => ask::APPEND,
            Self::Get { .. } => ask::GET,
            Self::Delete { .. } => ask::DELETE,
            Self::Dir { .. } => ask::DIR,
        });
        writer.text(self.key(), usize::MAX);
        match self {
            Self::Put { key: _, value, expected } => {
                write_value(writer, value);
                writer.option(expected.as_ref(), |writer, expected| write_value(writer, expected));
            }
            Self::Add { key: _, amount } => writer.u64(amount.cast_unsigned()),
            Self::Append { key: _, value } => write_value(writer, value),
            Self::Get { key: _, wait } => writer.option(wait.as_ref(), |writer, wait| writer.duration(*wait)),
            Self::Delete { key: _, is_prefix } => writer.flag(*is_prefix),
            Self::Dir { prefix: _ } => {}
        }
    }

    /// Whether a key may be empty is for the store to say.
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("request to the store")?;
        let key = reader.text(STORE_KEY_BYTES_MAX, "key")?;
        match code {
            ask::PUT => {
                let value = read_value(reader)?;
                Ok(Self::Put { key, value, expected: reader.option("expected value", read_value)? })
            }
            ask::ADD => Ok(Self::Add { key, amount: reader.u64("amount")?.cast_signed() }),
            ask::APPEND => Ok(Self::Append { key, value: read_value(reader)? }),
            ask::GET => Ok(Self::Get { key, wait: reader.option("wait", |reader| reader.duration("wait"))? }),
            ask::DELETE => Ok(Self::Delete { key, is_prefix: reader.flag("whether it is a prefix")? }),
            ask::DIR => Ok(Self::Dir { prefix: key }),
            code => Err(reader.bad("request to the store", format!("is {code}"))),
        }
    }
}

impl Field for StoreAnswer {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Done => writer.u8(answer::DONE),
            Self::Value(value) => {
                writer.u8(answer::VALUE);
                writer.option(value.as_ref(), |writer, value| write_value(writer, value));
            }
            Self::Number(number) => {
                writer.u8(answer::NUMBER);
                writer.u64(number.cast_unsigned());
            }
            Self::Keys(keys) => {
                writer.u8(answer::KEYS);
                writer.list(keys, |writer, key| writer.text(key, usize::MAX));
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.u8("answer of the store")? {
            answer::DONE => Ok(Self::Done),
            answer::VALUE => Ok(Self::Value(reader.option("value", read_value)?)),
            answer::NUMBER => Ok(Self::Number(reader.u64("number")?.cast_signed())),
            answer::KEYS => {
                let keys = reader.list(STORE_KEYS_MAX, "keys", |reader| reader.text(STORE_KEY_BYTES_MAX, "key"))?;
                Ok(Self::Keys(keys))
            }
            code => Err(reader.bad("answer of the store", format!("is {code}"))),
        }
    }
}

/// The codes of the requests; they never change.
mod ask {
    pub(super) const PUT: u8 = 1;
    pub(super) const ADD: u8 = 2;
    pub(super) const APPEND: u8 = 3;
    pub(super) const GET: u8 = 4;
    pub(super) const DELETE: u8 = 5;
    pub(super) const DIR: u8 = 6;
}

/// The codes of the answers; they never change.
mod answer {
    pub(super) const DONE: u8 = 1;
    pub(super) const VALUE: u8 = 2;
    pub(super) const NUMBER: u8 = 3;
    pub(super) const KEYS: u8 = 4;
}

fn write_value(writer: &mut Writer, value: &[u8]) {
    writer.list_len(value.len());
    writer.raw(value);
}

fn read_value(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    let bytes = reader.list_len(STORE_VALUE_BYTES_MAX, "value")?;
    reader.raw(bytes, "value").map(<[u8]>::to_vec)
}
