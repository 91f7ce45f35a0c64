//! The participants behind the header of a request.
//!
//! `u16` bytes of the set of members, 0 for all workers; `u16` rank of the receiver plus one, 0 for all members; the set. Nothing follows a
//! header if everybody takes part and gets the sums.

use crate::types::{Participants, WorkerId, WorkerSet};

/// Bytes before the set of members.
pub(super) const PREFIX_BYTES: usize = 4;

/// Bytes of the participants.
pub(super) fn bytes(participants: &Participants) -> usize {
    if participants.is_everybody() {
        return 0;
    }
    PREFIX_BYTES + participants.members().map_or(0, |members| members.as_bytes().len())
}

/// The participants as they follow the header.
pub(super) fn encode(participants: &Participants) -> Vec<u8> {
    if participants.is_everybody() {
        return Vec::new();
    }
    let set = participants.members().map_or(&[][..], WorkerSet::as_bytes);
    let len = u16::try_from(set.len()).expect("at most 512 bytes");
    // A rank that no worker has stays one that no worker has.
    let receiver = participants.receiver().map_or(0, |receiver| u16::try_from(receiver.0 + 1).unwrap_or(u16::MAX));
    [&len.to_le_bytes()[..], &receiver.to_le_bytes(), set].concat()
}

/// Reads what follows a header with participants.
///
/// # Errors
/// What is wrong with them.
pub(super) fn decode(bytes: &[u8]) -> Result<Participants, String> {
    let no_set = || format!("are no set in {} bytes", bytes.len());
    let ([low, high, below, above], set) = bytes.split_first_chunk::<PREFIX_BYTES>().ok_or_else(no_set)?;
    let announced = usize::from(u16::from_le_bytes([*low, *high]));
    let members = WorkerSet::from_bytes(set).filter(|_| announced == set.len()).ok_or_else(no_set)?;
    let participants = if members.is_empty() { Participants::ALL } else { Participants::of(members) };
    let participants = match u16::from_le_bytes([*below, *above]).checked_sub(1) {
        Some(receiver) => participants.with_receiver(WorkerId(receiver.into())),
        None => participants,
    };
    if participants.is_everybody() {
        return Err("are all workers, which need not be said".to_owned());
    }
    participants.check("of the header").map_err(|error| error.to_string())?;
    Ok(participants)
}
