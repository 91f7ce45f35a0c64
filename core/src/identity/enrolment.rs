//! The messages of enrolment, as bytes. The QUIC transport says what they mean and sends them.

use crate::error::{Error, Result};
use crate::types::Role;
use crate::wire::reject;

/// What a newcomer sends: version, role, proof, signing request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// What it wants to be.
    pub(crate) role: Role,
    /// That it knows a secret.
    pub(crate) proof: &'a [u8; PROOF_BYTES],
    /// Its key, in DER.
    pub(crate) signing_request: &'a [u8],
}

/// What the coordinator answers.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// Certificates in DER: that of the newcomer, and that of the authority.
    Issued { certificate: &'a [u8], authority: &'a [u8] },
    /// Why not.
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
            Some(role @ (Role::Worker | Role::Server | Role::Observer)) => role,
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

fn bad(peer: &str, field: &str, problem: impl Into<String>) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.into() }
}

const VERSION: u8 = 1;
const ISSUED: u8 = 1;
const REFUSED: u8 = 2;
/// Of HMAC-SHA256.
pub(crate) const PROOF_BYTES: usize = 32;
