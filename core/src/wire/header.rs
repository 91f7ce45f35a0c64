//! The headers that open each direction of an exchange, as an enum. Each variant holds only the fields that it uses.
//!
//! A header says first which service it is for, how long it is and how long its body is. The rest belongs to the service: [`sum`] has the
//! headers of the dense sum, [`parameter`] those of parameters, [`table`] those of tables. So a server can refuse one exchange of a service that it does not have, and keep the link. [`bytes`] writes and
//! reads them; the doc of the parent module shows the layout.

use crate::error::{Error, Result};

mod about;
mod bytes;
mod parameter;
mod residual;
mod sum;
mod table;

pub use about::{About, Service};
pub use bytes::HeaderReader;
pub use parameter::{Sent, Use, Value};
pub use residual::{AnswerResidual, ResidualAction};
pub use sum::{Body, Contribute, Contribution, Contributors, Hold, Restore, Sum, Target, Withdraw};
pub use table::{Rows, RowsAnswer};

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
    /// Worker to server; a sum follows that another server had.
    Restore(Restore),
    /// Worker to server: a use of the residual of a part's answers.
    AnswerResidual(AnswerResidual),
    /// Server to worker; the sum follows.
    Sum(Sum),
    /// Worker to server: a use of a parameter.
    Use(Use),
    /// Server to worker: the answer to it.
    Value(Value),
    /// Worker to server: a use of rows of a table.
    Rows(Rows),
    /// Server to worker: the answer to it.
    RowsAnswer(RowsAnswer),
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
    /// A sum that another server had.
    Restore(Restore),
    /// A use of the residual of a part's answers.
    AnswerResidual(AnswerResidual),
    /// A use of a parameter.
    Use(Use),
    /// A use of rows of a table.
    Rows(Rows),
    /// For a service that this version does not have. Nothing is known of what follows.
    Unknown(About),
}

/// The headers that answer an exchange. Servers send them.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// What was asked for follows.
    Response(Response),
    /// An error follows.
    Reject(Reject),
}

/// The headers before what was asked for.
#[derive(Clone, PartialEq, Debug)]
pub enum Response {
    /// The sum follows.
    Sum(Sum),
    /// The value of a parameter follows, if it was asked for.
    Value(Value),
    /// Rows of a table, or counts, follow, if they were asked for.
    Rows(RowsAnswer),
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
            Self::Restore(header) => header.target.about(),
            Self::AnswerResidual(header) => header.target.about(),
            Self::Sum(header) => header.target.about(),
            Self::Use(header) => header.about(),
            Self::Value(header) => header.about(),
            Self::Rows(header) => header.about(),
            Self::RowsAnswer(header) => header.about(),
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
            Self::Restore(header) => Ok(Request::Restore(header)),
            Self::AnswerResidual(header) => Ok(Request::AnswerResidual(header)),
            Self::Use(header) => Ok(Request::Use(header)),
            Self::Rows(header) => Ok(Request::Rows(header)),
            Self::Unknown(about) => Ok(Request::Unknown(about)),
            // Whatever such a service means by it.
            Self::Reject(Reject { about: about @ About { service: Service::Unknown(_), .. }, .. }) => {
                Ok(Request::Unknown(about))
            }
            Self::Sum(_) => Err(bad_kind("is a sum where a request was due", peer)),
            Self::Value(_) => Err(bad_kind("is a value where a request was due", peer)),
            Self::RowsAnswer(_) => Err(bad_kind("is an answer with rows where a request was due", peer)),
            Self::Reject(_) => Err(bad_kind("is a reject where a request was due", peer)),
        }
    }

    /// The header as a reply, which answers an exchange.
    ///
    /// # Errors
    /// [`Error::Protocol`] if `peer` sent anything but an answer.
    pub fn into_reply(self, peer: &str) -> Result<Reply> {
        match self {
            Self::Sum(header) => Ok(Reply::Response(Response::Sum(header))),
            Self::Value(header) => Ok(Reply::Response(Response::Value(header))),
            Self::RowsAnswer(header) => Ok(Reply::Response(Response::Rows(header))),
            Self::Reject(header) => Ok(Reply::Reject(header)),
            Self::Contribute(_) => Err(bad_kind("is a contribution where an answer was due", peer)),
            Self::Withdraw(_) => Err(bad_kind("is a withdrawal where an answer was due", peer)),
            Self::Restore(_) => Err(bad_kind("restores a sum where an answer was due", peer)),
            Self::AnswerResidual(_) => Err(bad_kind("is a use of a residual where an answer was due", peer)),
            Self::Use(_) => Err(bad_kind("is a use of a parameter where an answer was due", peer)),
            Self::Rows(_) => Err(bad_kind("is a use of rows where an answer was due", peer)),
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
            Self::Restore(header) => header.target.about(),
            Self::AnswerResidual(header) => header.target.about(),
            Self::Use(header) => header.about(),
            Self::Rows(header) => header.about(),
            Self::Unknown(about) => *about,
        }
    }

    /// Which round of which part it is about; `None` for an unknown service.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Contribute(header) => Some(header.target),
            Self::Withdraw(header) => Some(header.target),
            Self::Restore(header) => Some(header.target),
            Self::AnswerResidual(header) => Some(header.target),
            Self::Use(header) => Some(header.target),
            Self::Rows(header) => Some(header.target),
            Self::Unknown(_) => None,
        }
    }

    /// Bytes that follow the header on the stream. Of an unknown service nobody knows it, and whoever sends such a request sends none.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.body_bytes(),
            Self::Withdraw(header) => header.error_bytes,
            Self::Restore(header) => header.body.bytes,
            Self::AnswerResidual(header) => header.body_bytes(),
            Self::Use(header) => header.body_bytes(),
            Self::Rows(header) => header.body_bytes(),
            Self::Unknown(_) => 0,
        }
    }

    /// Bytes of the part; 0 for what moves none.
    pub fn part_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.part_bytes,
            Self::Use(header) => header.part_bytes,
            Self::Restore(header) => header.part_bytes,
            Self::AnswerResidual(header) => header.part_bytes,
            Self::Withdraw(_) | Self::Rows(_) | Self::Unknown(_) => 0,
        }
    }

    /// Which of two exchanges on one link goes first. Other workers wait for a withdrawal, which is small, and for a restored sum, so these
    /// go before all other bodies.
    pub fn urgency(&self) -> u8 {
        match self {
            Self::Contribute(header) => header.urgency,
            Self::Use(header) => header.urgency,
            Self::Rows(header) => header.urgency,
            Self::Withdraw(_) | Self::Restore(_) => URGENCY_MAX,
            Self::AnswerResidual(_) | Self::Unknown(_) => 0,
        }
    }
}

impl Response {
    /// Which round of which part it is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Sum(header) => header.target,
            Self::Value(header) => header.target,
            Self::Rows(header) => header.target,
        }
    }

    /// Bytes of the sum or of the value. The set of contributors and the checksum are not counted.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Sum(header) => header.body.bytes,
            Self::Value(header) => header.part_bytes,
            Self::Rows(header) => header.body_bytes,
        }
    }

    /// Whether the CRC-32C of the body follows it.
    pub fn has_checksum(&self) -> bool {
        match self {
            Self::Sum(header) => header.checksum,
            Self::Value(header) => header.checksum,
            Self::Rows(header) => header.checksum,
        }
    }

    /// Bytes that follow the body: its checksum, where there is one.
    pub fn trailer_bytes(&self) -> usize {
        if self.has_checksum() { size_of::<u32>() } else { 0 }
    }

    /// Whether the server still wants the rest of the request's body.
    pub fn is_early(&self) -> bool {
        match self {
            Self::Sum(header) => header.early,
            Self::Value(_) | Self::Rows(_) => false,
        }
    }
}

impl Reply {
    /// Bytes of what was asked for, or of the error.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Response(header) => header.body_bytes(),
            Self::Reject(header) => header.error_bytes,
        }
    }

    /// Whether the server still wants the rest of the request's body.
    pub fn is_early(&self) -> bool {
        match self {
            Self::Response(header) => header.is_early(),
            Self::Reject(_) => false,
        }
    }
}

impl From<Request> for Header {
    fn from(request: Request) -> Self {
        match request {
            Request::Contribute(header) => Self::Contribute(header),
            Request::Withdraw(header) => Self::Withdraw(header),
            Request::Restore(header) => Self::Restore(header),
            Request::AnswerResidual(header) => Self::AnswerResidual(header),
            Request::Use(header) => Self::Use(header),
            Request::Rows(header) => Self::Rows(header),
            Request::Unknown(about) => Self::Unknown(about),
        }
    }
}

impl From<Reply> for Header {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Response(Response::Sum(header)) => Self::Sum(header),
            Reply::Response(Response::Value(header)) => Self::Value(header),
            Reply::Response(Response::Rows(header)) => Self::RowsAnswer(header),
            Reply::Reject(header) => Self::Reject(header),
        }
    }
}

impl From<Sum> for Response {
    fn from(sum: Sum) -> Self {
        Self::Sum(sum)
    }
}

impl From<Value> for Response {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl From<RowsAnswer> for Response {
    fn from(answer: RowsAnswer) -> Self {
        Self::Rows(answer)
    }
}
