//! What the fuzzer reaches of this module, whose decoders are private. Each function takes any bytes and panics if a rule is broken.

use rustls::pki_types::CertificateDer;

use super::certificate::{PeerIdentity, public_key_hash};
use super::enrolment::{Answer, Request};
use super::exchange::Arrival;
use super::identity::Authority;
use super::invitation::Invitation;
use crate::error::Error;
use crate::mem::borrow::region_of;
use crate::mem::{Loan, Returned};
use crate::types::Role;
use crate::wire;

pub use super::shm::fuzzing::{Deed, Wanted, shm_link, shm_message};

/// The file of an invitation has one form, but for space.
pub fn invitation(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(invitation) = Invitation::parse(text) {
        let written = invitation.text();
        assert!(Invitation::parse(&written) == Some(invitation), "{written}");
    }
}

/// A certificate of anybody: it is read or refused.
pub fn certificate(bytes: &[u8]) {
    let certificate = CertificateDer::from(bytes);
    let hash = public_key_hash(&certificate);
    if let Ok(identity) = PeerIdentity::of(&certificate) {
        assert_eq!(hash, Ok(identity.node.0), "who a process is comes from its key");
    }
    assert!(hash.is_ok() || !PeerIdentity::subject_is(&certificate, "gradlane job fuzz"), "what is read is whole");
}

/// What a newcomer sends. A request that can be read is put to the `authority`, by a newcomer that knows the job's secret where the first
/// byte of its proof is even.
pub fn enrolment_request(authority: &Authority, bytes: &[u8]) {
    match Request::read(bytes, PEER) {
        Ok(request) => {
            assert_eq!(request.bytes(), bytes, "a request has one form");
            let knows = request.proof[0].is_multiple_of(2);
            let certified = authority.admit(request.signing_request, request.role, PEER, |_| knows);
            if let Ok(certificate) = certified {
                assert!(knows, "a stranger is not certified");
                let identity = PeerIdentity::of(&certificate).expect("the authority names its members");
                assert_eq!((identity.role, identity.job.as_str()), (request.role, authority.job()));
                assert!(identity.role != Role::Coordinator);
            }
        }
        Err(error) => must_blame_the_peer(&error),
    }
}

/// What a coordinator answers.
pub fn enrolment_answer(bytes: &[u8]) {
    match Answer::read(bytes, PEER) {
        Ok(Answer::Refused(_)) => {}
        Ok(answer @ Answer::Issued { certificate, authority }) => {
            assert_eq!(answer.bytes(), bytes, "an answer has one form");
            self::certificate(certificate);
            self::certificate(authority);
        }
        Err(error) => must_blame_the_peer(&error),
    }
}

/// The answer of an exchange, in pieces of `piece` bytes, to a worker that has `room` bytes for the sum.
pub fn answer(piece: usize, room: usize, bytes: &[u8]) {
    let mut memory = vec![0; room];
    let (give_back, returned) = std::sync::mpsc::channel::<Returned>();
    drop(Loan::new(Vec::new(), move |proof| drop(give_back.send(proof))));
    let mut arrival = Arrival::default();
    let mut rest = bytes;
    loop {
        if arrival.needs_place() {
            // What the checks of an exchange refuse: a sum of another length than is wanted.
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
        Ok(super::Answer::Sum(sum)) => {
            assert!(arrival.wants() == 0 && sum.body.bytes == room as u64);
            let crc = wire::checksum(0, &memory);
            let trailer = &bytes[..bytes.len() - rest.len()];
            assert!(!sum.checksum || trailer.ends_with(&crc.to_le_bytes()), "a sum with a wrong checksum is refused");
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
