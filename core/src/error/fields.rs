//! The types that a field of an error can have. Code that writes, reads or shows errors handles these types. It need not know any variant.

use std::fmt;
use std::time::Duration;

use crate::id::{Epoch, Round, TensorKey, WorkerId};

/// One worker's side of a disagreement about a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The worker that declared the value.
    pub worker: WorkerId,
    /// The value that it declared, such as `float32` or `[64, 3, 7, 7]`.
    pub value: String,
}

/// The tensors that an error is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tensors {
    /// The process that made the error did not know them.
    Unknown,
    /// A key. Servers and the ranks of a machine know tensors by key; keys mean nothing to people.
    Keyed(TensorKey),
    /// Names. Those of tensors that share a part are joined by ` + `.
    Named(String),
}

impl From<TensorKey> for Tensors {
    fn from(key: TensorKey) -> Self {
        Self::Keyed(key)
    }
}

impl From<String> for Tensors {
    fn from(names: String) -> Self {
        Self::Named(names)
    }
}

impl From<&str> for Tensors {
    fn from(names: &str) -> Self {
        Self::Named(names.to_owned())
    }
}

impl fmt::Display for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("of unknown name"),
            Self::Keyed(key) => key.fmt(f),
            Self::Named(names) => f.write_str(names),
        }
    }
}

/// The value of one field of an error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Field<'a> {
    /// A text.
    Text(&'a str),
    /// Tensors.
    Tensors(&'a Tensors),
    /// One side of a disagreement.
    Claim(&'a Claim),
    /// The number of a sum.
    Round(Round),
    /// A list of workers.
    Ranks(&'a [WorkerId]),
    /// A list of members, each written as `worker 2` or `server 1`.
    Members(&'a [String]),
    /// A length of time.
    Duration(Duration),
    /// A count, or the number of a term.
    Number(u32),
    /// A membership.
    Epoch(Epoch),
}

/// Something that yields the fields of an error one after the other, such as the reader of a frame. `field` is the name of the field.
pub trait FieldSource {
    /// Why a field could not be read.
    type Fault;

    /// Reads a [`Field::Text`].
    fn text(&mut self, field: &str) -> Result<String, Self::Fault>;
    /// Reads a [`Field::Tensors`].
    fn tensors(&mut self, field: &str) -> Result<Tensors, Self::Fault>;
    /// Reads a [`Field::Claim`].
    fn claim(&mut self, field: &str) -> Result<Claim, Self::Fault>;
    /// Reads a [`Field::Round`].
    fn round(&mut self, field: &str) -> Result<Round, Self::Fault>;
    /// Reads a [`Field::Ranks`].
    fn ranks(&mut self, field: &str) -> Result<Vec<WorkerId>, Self::Fault>;
    /// Reads a [`Field::Members`].
    fn members(&mut self, field: &str) -> Result<Vec<String>, Self::Fault>;
    /// Reads a [`Field::Duration`].
    fn duration(&mut self, field: &str) -> Result<Duration, Self::Fault>;
    /// Reads a [`Field::Number`].
    fn number(&mut self, field: &str) -> Result<u32, Self::Fault>;
    /// Reads a [`Field::Epoch`].
    fn epoch(&mut self, field: &str) -> Result<Epoch, Self::Fault>;
}

/// A type that a field can have in the table of errors.
pub(super) trait FieldType: Sized {
    /// The field's value, for [`Error::fields`](super::Error::fields).
    fn as_field(&self) -> Field<'_>;

    /// Gives the field the names of the tensors, if it says which tensors the error is about and has no names yet.
    fn name_tensors(&mut self, _names: &str) {}

    /// Reads the field's value, for [`Error::from_fields`](super::Error::from_fields).
    fn read<S: FieldSource>(source: &mut S, field: &str) -> Result<Self, S::Fault>;
}

macro_rules! field_types {
    ($($type:ty => $kind:ident($value:ident: $shown:expr) by $read:ident;)+) => {$(
        impl FieldType for $type {
            fn as_field(&self) -> Field<'_> {
                let $value = self;
                Field::$kind($shown)
            }

            fn read<S: FieldSource>(source: &mut S, field: &str) -> Result<Self, S::Fault> {
                source.$read(field).map(Into::into)
            }
        }
    )+};
}

field_types! {
    String => Text(text: text) by text;
    Box<str> => Text(text: text) by text;
    Claim => Claim(claim: claim) by claim;
    Round => Round(round: *round) by round;
    Vec<WorkerId> => Ranks(ranks: ranks) by ranks;
    Vec<String> => Members(members: members) by members;
    Duration => Duration(duration: *duration) by duration;
    u32 => Number(number: *number) by number;
    Epoch => Epoch(epoch: *epoch) by epoch;
}

impl FieldType for Tensors {
    fn as_field(&self) -> Field<'_> {
        Field::Tensors(self)
    }

    fn name_tensors(&mut self, names: &str) {
        match self {
            Self::Unknown | Self::Keyed(_) => *self = names.into(),
            Self::Named(_) => {}
        }
    }

    fn read<S: FieldSource>(source: &mut S, field: &str) -> Result<Self, S::Fault> {
        source.tensors(field)
    }
}
