//! The fields of a dump, each of which may be missing or another kind of value.

use serde_json::{Map, Value};

/// The fields of a dump, or of an entry in it.
pub(super) type Fields = Map<String, Value>;

/// An entry with fields.
pub(super) fn object(value: &Value) -> Result<&Fields, String> {
    value.as_object().ok_or_else(|| "one of its entries has no fields".to_owned())
}

/// A list.
pub(super) fn list<'a>(value: &'a Fields, name: &str) -> Result<&'a [Value], String> {
    let list = value.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| format!("it has no list {name}"))
}

/// A list of ranks. What cannot be one is left out.
pub(super) fn ranks(value: &Fields, name: &str) -> Result<impl Iterator<Item = u32>, String> {
    Ok(list(value, name)?.iter().filter_map(Value::as_u64).filter_map(|rank| u32::try_from(rank).ok()))
}

/// A number.
pub(super) fn number(value: &Fields, name: &str) -> Result<u64, String> {
    optional(value, name).ok_or_else(|| format!("it has no number {name}"))
}

/// A number that may be missing.
pub(super) fn optional(value: &Fields, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

/// A number that fits into 32 bits; `None` if it is missing, or does not fit.
pub(super) fn small(value: &Fields, name: &str) -> Option<u32> {
    optional(value, name).and_then(|number| u32::try_from(number).ok())
}

/// A text.
pub(super) fn text_of(value: &Fields, name: &str) -> Result<String, String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("it has no text {name}"))
}

/// The name of a tensor, which an event gives by its position in `tensors`.
pub(super) fn tensor<'a>(tensors: &'a [Value], position: &Value) -> Result<&'a str, String> {
    let name = position.as_u64().and_then(|at| tensors.get(usize::try_from(at).ok()?)?.as_str());
    name.ok_or_else(|| "one of its events is of a tensor that it does not name".to_owned())
}

/// What is wrong with an event that is shorter than those of its kind.
pub(super) fn short() -> String {
    "one of its events has not enough fields".to_owned()
}

/// What is wrong with an event whose fields are other kinds of values.
pub(super) fn other() -> String {
    "one of its events has other fields".to_owned()
}
