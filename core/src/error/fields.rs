//! The types that a field of an error can have. Code that writes, reads or shows errors handles these types. It need not know any variant.

use std::time::Duration;

use crate::id::{Epoch, Round, WorkerId};

/// One worker's side of a disagreement about a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The worker that declared the value.
    pub worker: WorkerId,
    /// The value that it declared, such as `float32` or `[64, 3, 7, 7]`.
    pub value: String,
}

/// The value of one field of an error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Field<'a> {
    /// A text.
    Text(&'a str),
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

    /// Calls `change` with each text that the field holds.
    fn each_text(&mut self, change: &mut dyn FnMut(&mut String));

    /// Reads the field's value, for [`Error::from_fields`](super::Error::from_fields).
    fn read<S: FieldSource>(source: &mut S, field: &str) -> Result<Self, S::Fault>;
}

macro_rules! field_types {
    ($($type:ty => $kind:ident($value:ident: $shown:expr) by $read:ident $(with texts $change:ident: $each:expr)?;)+) => {$(
        impl FieldType for $type {
            fn as_field(&self) -> Field<'_> {
                let $value = self;
                Field::$kind($shown)
            }

            fn each_text(&mut self, _change: &mut dyn FnMut(&mut String)) {
                $(
                    let ($value, $change) = (self, _change);
                    $each
                )?
            }

            fn read<S: FieldSource>(source: &mut S, field: &str) -> Result<Self, S::Fault> {
                source.$read(field)
            }
        }
    )+};
}

field_types! {
    String => Text(text: text) by text with texts change: change(text);
    Claim => Claim(claim: claim) by claim with texts change: change(&mut claim.value);
    Round => Round(round: *round) by round;
    Vec<WorkerId> => Ranks(ranks: ranks) by ranks;
    Vec<String> => Members(members: members) by members with texts change: members.iter_mut().for_each(change);
    Duration => Duration(duration: *duration) by duration;
    u32 => Number(number: *number) by number;
    Epoch => Epoch(epoch: *epoch) by epoch;
}
