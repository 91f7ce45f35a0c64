//! Entry points of the fuzzer to this module, whose decoders are private. Each function takes any bytes and panics if a rule is broken.

use rustls::pki_types::CertificateDer;

use super::authority::Authority;
use super::certificate::{PeerIdentity, public_key_hash};
use super::enrolment::{Answer, Request};
use super::invitation::Invitation;
use crate::error::Error;
use crate::types::Role;

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

/// The request of a newcomer. A request that can be read is given to the `authority`. The newcomer knows the job's secret if the first byte of
/// its proof is even.
pub fn enrolment_request(authority: &Authority, bytes: &[u8]) {
    match Request::read(bytes, PEER) {
        Ok(request) => {
            assert_eq!(request.bytes(), bytes, "a request has one form");
            let knows = request.proof[0].is_multiple_of(2);
            let certified = authority.admit(request.signing_request, request.role, PEER, |_| knows, None);
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

/// The answer of a coordinator.
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

fn must_blame_the_peer(error: &Error) {
    assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{error}");
}

const PEER: &str = "the peer";
