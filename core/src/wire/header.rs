//! The headers that open each direction of an exchange, as an enum. Each variant holds only the fields that it uses.
//!
//! A header says first which service it is for, how long it is and how long its body is. The rest belongs to the service: [`sum`] has the
//! headers of the dense sum. So a server can refuse one exchange of a service that it does not have, and keep the link. [`bytes`] writes and
//! reads them; the doc of the parent module shows the layout.

use crate::error::{Error, Result};

mod about;
mod bytes;
mod sum;

pub use about::{About, Service};
pub use bytes::HeaderReader;
pub use sum::{Body, Contribute, Contribution, Contributors, Sum, Target, Withdraw};

/// Bytes of the front of a header. Every header has so many; some have more behind it.
pub const HEADER_BYTES: usize = 64;

/// The most urgent class of exchanges.
pub const URGENCY_MAX: u8 = 7;

/// Opens one direction of an exchange.
#[derive(Clone, PartialEq, Debug)]
pub enum Header {
    /// Worker to server.
    Contribute(Contribute),
    /// Worker to server; an encoded error follows.
    Withdraw(Withdraw),
    /// Server to worker; the sum follows.
    Sum(Sum),
    /// Server to worker, of any service; an encoded error follows.
    Reject(Reject),
    /// Of a service that this version does not have.
    Unknown(About),
}

/// The headers that begin an exchange. Workers send them.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// A contribution, or a question for the sum.
    Contribute(Contribute),
    /// A refusal to contribute.
    Withdraw(Withdraw),
    /// For a service that this version does not have. Nothing is known of what follows.
    Unknown(About),
}

/// The headers that answer an exchange. Servers send them.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// The sum follows.
    Sum(Sum),
    /// An error follows.
    Reject(Reject),
}

/// The server does not do what was asked. An encoded error with the reason follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// What it is about.
    pub about: About,
    /// Bytes of the error.
    pub error_bytes: u64,
}

impl Header {
    /// What it is about.
    pub fn about(&self) -> About {
        match self {
            Self::Contribute(header) => header.target.about(),
            Self::Withdraw(header) => header.target.about(),
            Self::Sum(header) => header.target.about(),
            Self::Reject(header) => header.about,
            Self::Unknown(about) => *about,
        }
    }

    /// The header as a request, which begins an exchange.
    ///
    /// # Errors
    /// [`Error::Protocol`] if `peer` sent an answer.
    pub fn into_request(self, peer: &str) -> Result<Request> {
        match self {
            Self::Contribute(header) => Ok(Request::Contribute(header)),
            Self::Withdraw(header) => Ok(Request::Withdraw(header)),
            Self::Unknown(about) => Ok(Request::Unknown(about)),
            // Whatever such a service means by it.
            Self::Reject(Reject { about: about @ About { service: Service::Unknown(_), .. }, .. }) => {
                Ok(Request::Unknown(about))
            }
            Self::Sum(_) => Err(bad_kind("is a sum where a contribution or a withdrawal was due", peer)),
            Self::Reject(_) => Err(bad_kind("is a reject where a contribution or a withdrawal was due", peer)),
        }
    }

    /// The header as a reply, which answers an exchange.
    ///
    /// # Errors
    /// [`Error::Protocol`] if `peer` sent anything but an answer.
    pub fn into_reply(self, peer: &str) -> Result<Reply> {
        match self {
            Self::Sum(header) => Ok(Reply::Sum(header)),
            Self::Reject(header) => Ok(Reply::Reject(header)),
            Self::Contribute(_) => Err(bad_kind("is a contribution where a sum or a reject was due", peer)),
            Self::Withdraw(_) => Err(bad_kind("is a withdrawal where a sum or a reject was due", peer)),
            Self::Unknown(_) => Err(bad_kind("is of a service for which nobody asked", peer)),
        }
    }
}

fn bad_kind(problem: &str, peer: &str) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: "kind".to_owned(), problem: problem.to_owned() }
}

impl Request {
    /// What it is about.
    pub fn about(&self) -> About {
        match self {
            Self::Contribute(header) => header.target.about(),
            Self::Withdraw(header) => header.target.about(),
            Self::Unknown(about) => *about,
        }
    }

    /// Which sum it is about; `None` for another service.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Contribute(header) => Some(header.target),
            Self::Withdraw(header) => Some(header.target),
            Self::Unknown(_) => None,
        }
    }

    /// Bytes that follow the header on the stream. Of an unknown service nobody knows it, and whoever sends such a request sends none.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.body_bytes(),
            Self::Withdraw(header) => header.error_bytes,
            Self::Unknown(_) => 0,
        }
    }

    /// Bytes of the part; 0 for what moves none.
    pub fn part_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.part_bytes,
            Self::Withdraw(_) | Self::Unknown(_) => 0,
        }
    }

    /// Which of two exchanges on one link goes first. A withdrawal is small, and other workers wait for it, so it goes before all bodies.
    pub fn urgency(&self) -> u8 {
        match self {
            Self::Contribute(header) => header.urgency,
            Self::Withdraw(_) => URGENCY_MAX,
            Self::Unknown(_) => 0,
        }
    }
}

impl Reply {
    /// Bytes of the sum or of the error. The set of contributors and the checksum of a sum are not counted.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Sum(header) => header.body.bytes,
            Self::Reject(header) => header.error_bytes,
        }
    }

    /// Whether the server still wants the rest of the contribution.
    pub fn is_early(&self) -> bool {
        match self {
            Self::Sum(header) => header.early,
            Self::Reject(_) => false,
        }
    }
}

impl From<Request> for Header {
    fn from(request: Request) -> Self {
        match request {
            Request::Contribute(header) => Self::Contribute(header),
            Request::Withdraw(header) => Self::Withdraw(header),
            Request::Unknown(about) => Self::Unknown(about),
        }
    }
}

impl From<Reply> for Header {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Sum(header) => Self::Sum(header),
            Reply::Reject(header) => Self::Reject(header),
        }
    }
}
