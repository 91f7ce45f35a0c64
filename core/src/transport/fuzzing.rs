//! Entry points of the fuzzer to this module, whose decoders are private. Each function takes any bytes and panics if a rule is broken.

use super::exchange::Arrival;
use crate::error::Error;
use crate::mem::borrow::region_of;
use crate::mem::{Loan, Returned};
use crate::wire;

pub use super::shm::fuzzing::{Deed, Wanted, shm_link, shm_message};

/// The answer of an exchange, in pieces of `piece` bytes, to a worker that has `room` bytes for the sum.
pub fn answer(piece: usize, room: usize, bytes: &[u8]) {
    let mut memory = vec![0; room];
    let (give_back, returned) = std::sync::mpsc::channel::<Returned>();
    drop(Loan::new(Vec::new(), move |proof| drop(give_back.send(proof))));
    let mut arrival = Arrival::default();
    let mut rest = bytes;
    loop {
        if arrival.needs_place() {
            // The checks of an exchange refuse a sum of another length.
            let Some(length) = arrival.announced_bytes().filter(|length| *length == room as u64) else { return };
            assert_eq!(length, room as u64);
            arrival.place(vec![region_of(&mut memory)], returned.try_recv().expect("nothing was lent"));
        }
        let wants = arrival.wants();
        if wants == 0 || rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(rest.len().min(wants).min(piece.max(1)));
        rest = later;
        if let Err(error) = arrival.take(now, PEER) {
            return must_blame_the_peer(&error);
        }
    }
    assert!(arrival.landed() <= room as u64);
    match arrival.finish(None, PEER) {
        Ok(super::Answer::Response(response)) => {
            assert!(arrival.wants() == 0 && response.body_bytes() == room as u64);
            let crc = wire::checksum(0, &memory);
            let trailer = &bytes[..bytes.len() - rest.len()];
            assert!(
                !response.has_checksum() || trailer.ends_with(&crc.to_le_bytes()),
                "a sum with a wrong checksum is refused"
            );
        }
        Ok(super::Answer::Reject(_)) => {}
        Err(Error::Checksum { .. }) => {}
        Err(error) => must_blame_the_peer(&error),
    }
}

fn must_blame_the_peer(error: &Error) {
    assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{error}");
}

const PEER: &str = "the peer";
