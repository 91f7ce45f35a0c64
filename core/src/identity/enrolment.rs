//! Enrolment without its connection: the messages as bytes, the proof of a secret, and the decision about a newcomer.
//!
//! `transport::quic::enroll` carries the messages and describes the protocol.

use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::pki_types::CertificateDer;

use super::authority::Authority;
use crate::error::{Error, Result};
use crate::types::Role;
use crate::wire::reject;

/// The request of a newcomer: version, role, proof, signing request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The role that the newcomer wants.
    pub(crate) role: Role,
    /// The proof that the newcomer knows a secret.
    pub(crate) proof: &'a [u8; PROOF_BYTES],
    /// The signing request for its key, in DER.
    pub(crate) signing_request: &'a [u8],
}

/// The answer of the coordinator.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// The certificates of the newcomer and of the authority, in DER.
    Issued { certificate: &'a [u8], authority: &'a [u8] },
    /// The reason of a refusal.
    Refused(Error),
}

impl<'a> Request<'a> {
    /// Reads what `peer` sent.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for another version, [`Error::Protocol`] naming the field for anything else.
    pub(crate) fn read(message: &'a [u8], peer: &str) -> Result<Self> {
        let Some((&[version, role], rest)) = message.split_first_chunk::<2>() else {
            return Err(bad(peer, "request", "is cut short"));
        };
        if version != VERSION {
            return Err(Error::Incompatible {
                field: "enrolment version".to_owned(),
                ours: VERSION.to_string(),
                peer: peer.to_owned(),
                theirs: version.to_string(),
            });
        }
        let role = match Role::from_code(role) {
            Some(role @ (Role::Worker | Role::Server | Role::Observer | Role::Admin)) => role,
            Some(Role::Coordinator) | None => return Err(bad(peer, "role", format!("is {role}"))),
        };
        let Some((proof, signing_request)) = rest.split_first_chunk::<PROOF_BYTES>() else {
            return Err(bad(peer, "proof", "is cut short"));
        };
        Ok(Self { role, proof, signing_request })
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&[VERSION, self.role as u8], &self.proof[..], self.signing_request].concat()
    }
}

impl<'a> Answer<'a> {
    /// Reads what `peer` sent.
    ///
    /// # Errors
    /// [`Error::Protocol`] naming the field.
    pub(crate) fn read(message: &'a [u8], peer: &str) -> Result<Self> {
        match message.split_first() {
            Some((&ISSUED, rest)) => {
                let cut = || bad(peer, "certificate", "is cut short");
                let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
                let length = u32::from_le_bytes(*length) as usize;
                let (certificate, authority) = rest.split_at_checked(length).ok_or_else(cut)?;
                Ok(Self::Issued { certificate, authority })
            }
            Some((&REFUSED, body)) => Ok(Self::Refused(reject::from_body(body, peer)?)),
            Some(_) | None => Err(bad(peer, "answer", "is neither a certificate nor a refusal")),
        }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Issued { certificate, authority } => {
                let length = u32::try_from(certificate.len()).expect("a certificate is short");
                [&[ISSUED], &length.to_le_bytes()[..], certificate, authority].concat()
            }
            Self::Refused(error) => [vec![REFUSED], reject::to_body(error)].concat(),
        }
    }
}

/// What lets a newcomer in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vouched {
    /// The newcomer has to prove that it knows a secret of the job.
    BySecret,
    /// The newcomer has shown a certificate of the site.
    BySite,
}

/// The key that TLS exports for one connection. Both ends compute the same one, and no other connection has it.
pub(crate) type Exported = [u8; 32];

/// Proves knowledge of `secret` to the other end of the connection with the key `exported`, for an enrolment as `role`.
pub(crate) fn prove(secret: &[u8; 16], role: Role, exported: &Exported) -> [u8; PROOF_BYTES] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &proven(role, exported));
    tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

/// The message that a proof signs.
fn proven(role: Role, exported: &Exported) -> Vec<u8> {
    [&[role as u8], &exported[..]].concat()
}

/// The coordinator's side of enrolment.
pub(crate) struct Registrar {
    terms: Terms,
}

impl Registrar {
    /// Certifies newcomers by `authority`. `takes_invited` in an elastic job: after [`close`](Self::close) it still certifies those that have an
    /// invitation or a certificate of the site, until the job is over.
    pub(crate) fn new(authority: Arc<Authority>, takes_invited: bool) -> Self {
        Self { terms: Terms { authority, takes_invited, closed: None, is_over: false } }
    }

    /// From now on no process becomes a member by the job's own secret, and none at all if the job `is_over` or takes no invited ones. A newcomer
    /// is told `why`.
    pub(crate) fn close(&mut self, why: Error, is_over: bool) {
        self.terms.closed = Some(why);
        self.terms.is_over = is_over;
    }

    /// The terms for a newcomer that comes now.
    pub(crate) fn terms(&self) -> Terms {
        self.terms.clone()
    }
}

/// The terms on which one newcomer is certified.
#[derive(Clone)]
pub(crate) struct Terms {
    authority: Arc<Authority>,
    /// Whether invited newcomers may come after the job has formed.
    takes_invited: bool,
    /// Why no process becomes a member any more by the job's own secret.
    closed: Option<Error>,
    /// Because the job is over.
    is_over: bool,
}

impl Terms {
    /// Whether the job is over, so that nobody wonders why a newcomer is refused.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The authority that certifies newcomers.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Decides about a newcomer that sent `message` over the connection with the key `exported`. Returns its certificate.
    ///
    /// # Errors
    /// [`Error::Auth`] and [`Error::Token`] as [`Authority::admit`], also for a wrong proof, the reason of [`Registrar::close`] for members, and
    /// as [`Request::read`].
    pub(crate) fn certify(
        &self,
        vouched: Vouched,
        message: &[u8],
        exported: &Exported,
        peer: &str,
    ) -> Result<CertificateDer<'static>> {
        let Request { role, proof, signing_request } = Request::read(message, peer)?;
        let closed = self.closed.as_ref().filter(|_| !role.is_guest());
        let takes_invited = self.takes_invited && !self.is_over;
        // All workers of a site have such a certificate. It must not let them give orders.
        if vouched == Vouched::BySite && role != Role::Admin {
            // A newcomer with a certificate of the site is no stranger and needs no secret. The certificate permits every other role.
            return match closed.filter(|_| !takes_invited) {
                Some(why) => Err(why.clone()),
                None => self.authority.sign(signing_request, role, peer),
            };
        }
        let proven = proven(role, exported);
        // Compares in constant time.
        let knows =
            |secret: &[u8; 16]| hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &proven, proof).is_ok();
        match closed {
            // After the proof, so that a stranger does not learn how far the job is. This uses up no invitation.
            Some(why) if !takes_invited => {
                self.authority.admit(signing_request, Role::Observer, peer, knows, None)?;
                Err(why.clone())
            }
            closed => self.authority.admit(signing_request, role, peer, knows, closed),
        }
    }
}

fn bad(peer: &str, field: &str, problem: impl Into<String>) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.into() }
}

const VERSION: u8 = 1;
const ISSUED: u8 = 1;
const REFUSED: u8 = 2;
/// Length of HMAC-SHA256.
const PROOF_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair};

    use super::super::invitation::Invitation;
    use super::*;
    use crate::identity::{PeerIdentity, wall_clock};

    const PEER: &str = "a newcomer";
    const HERE: Exported = [1; 32];

    #[test]
    fn a_proof_counts_on_its_connection_and_for_its_role_alone() {
        let (registrar, secret) = registrar();
        let proof = prove(&secret, Role::Worker, &HERE);
        let come = |role, exported: &Exported, proof: &[u8; 32]| {
            registrar.terms().certify(Vouched::BySecret, &request(role, proof), exported, PEER)
        };
        let certificate = come(Role::Worker, &HERE, &proof).unwrap();
        assert_eq!(PeerIdentity::of(&certificate).unwrap().role, Role::Worker);
        for refused in [
            come(Role::Server, &HERE, &proof),
            come(Role::Worker, &[2; 32], &proof),
            come(Role::Worker, &HERE, &prove(&[7; 16], Role::Worker, &HERE)),
        ] {
            assert!(matches!(refused, Err(Error::Auth { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_closed_job_tells_its_state_to_those_who_know_the_secret_and_still_admits_observers() {
        let (mut registrar, secret) = registrar();
        let why = Error::FailedPrecondition { what: "the job has formed".to_owned(), hint: String::new() };
        registrar.close(why.clone(), false);
        let come = |vouched, role, secret| {
            let message = request(role, &prove(secret, role, &HERE));
            registrar.terms().certify(vouched, &message, &HERE, PEER)
        };
        assert_eq!(come(Vouched::BySecret, Role::Worker, &secret), Err(why.clone()));
        assert!(matches!(come(Vouched::BySecret, Role::Worker, &[7; 16]), Err(Error::Auth { .. })));
        assert!(come(Vouched::BySecret, Role::Observer, &secret).is_ok());
        assert_eq!(come(Vouched::BySite, Role::Worker, &[7; 16]), Err(why));
        assert!(come(Vouched::BySite, Role::Observer, &[7; 16]).is_ok());
    }

    #[test]
    fn an_elastic_job_that_has_formed_takes_those_with_an_invitation_or_a_certificate_of_the_site() {
        let authority = Arc::new(Authority::create("night").unwrap());
        let mut registrar = Registrar::new(Arc::clone(&authority), true);
        let formed = Error::FailedPrecondition { what: "the job has formed".to_owned(), hint: String::new() };
        let over = Error::FailedPrecondition { what: "the job is over".to_owned(), hint: String::new() };
        registrar.close(formed, false);
        let invited = |lasts| authority.invite_here("a:1", Role::Worker, Duration::from_secs(lasts)).unwrap();
        let (own, token, unused) = (authority.join_string("a:1"), invited(3600), invited(3600));
        assert!((&token.address, token.ca_hash) == (&own.address, own.ca_hash) && token.secret != own.secret);
        let admin = authority.operators_string("a:1");
        let ended = Invitation { role: Role::Worker, uses: 1, until: 0, secret: [9; 16] };
        authority.invitations.lock().unwrap().keep_here(ended.clone(), wall_clock()).unwrap();
        let stranger = [7; 16];
        let (by_secret, by_site) = (Vouched::BySecret, Vouched::BySite);
        let come = |terms: &Terms, vouched, role, secret: [u8; 16]| {
            let message = request(role, &prove(&secret, role, &HERE));
            match terms.certify(vouched, &message, &HERE, PEER) {
                Ok(certificate) => format!("certified as {}", PeerIdentity::of(&certificate).unwrap().role),
                Err(Error::FailedPrecondition { what, .. }) => what,
                Err(Error::Token { problem, .. }) => {
                    format!("token {}", problem.replace(|c: char| c.is_ascii_digit(), ""))
                }
                Err(Error::Auth { .. }) => "unknown".to_owned(),
                Err(other) => panic!("{other:?}"),
            }
        };
        let used_up = "token is used up: it has let in as many processes as it may";
        // In this order.
        for (vouched, role, secret, due) in [
            (by_secret, Role::Worker, own.secret, "the job has formed"),
            (by_secret, Role::Worker, stranger, "unknown"),
            (by_secret, Role::Worker, ended.secret, "token ended  s ago"),
            (by_secret, Role::Server, token.secret, "token is for a worker, not for a server"),
            (by_secret, Role::Observer, token.secret, "certified as observer"),
            (by_secret, Role::Observer, own.secret, "certified as observer"),
            (by_secret, Role::Worker, token.secret, "certified as worker"),
            (by_secret, Role::Worker, token.secret, used_up),
            (by_site, Role::Worker, stranger, "certified as worker"),
            (by_site, Role::Observer, stranger, "certified as observer"),
            (by_site, Role::Admin, stranger, "unknown"),
            (by_site, Role::Admin, own.secret, "unknown"),
            (by_site, Role::Admin, admin.secret, "certified as admin"),
            (by_secret, Role::Admin, own.secret, "unknown"),
        ] {
            assert_eq!(come(&registrar.terms(), vouched, role, secret), due, "{vouched:?} {role}");
        }
        registrar.close(over, true);
        for (vouched, secret, due) in [
            (by_secret, own.secret, "the job is over"),
            (by_secret, unused.secret, "the job is over"),
            (by_secret, stranger, "unknown"),
            (by_site, stranger, "the job is over"),
        ] {
            assert_eq!(come(&registrar.terms(), vouched, Role::Worker, secret), due, "{vouched:?}");
        }
        assert_eq!(come(&registrar.terms(), by_secret, Role::Observer, own.secret), "certified as observer");
    }

    fn registrar() -> (Registrar, [u8; 16]) {
        let authority = Arc::new(Authority::create("night").unwrap());
        let secret = authority.join_string("a:1").secret;
        (Registrar::new(authority, false), secret)
    }

    fn request(role: Role, proof: &[u8; 32]) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        Request { role, proof, signing_request: request.der() }.bytes()
    }
}
