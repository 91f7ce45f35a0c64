//! The 64 bytes that open each direction of an exchange, as an enum. Each variant holds only the fields that it uses.
//!
//! [`bytes`] writes and reads them; the doc of the parent module shows the layout.

use crate::error::{Error, Result};
use crate::types::{CodecSpec, DType, Epoch, Op, PartId, Participants, Round, WorkerSet};

mod bytes;

pub use bytes::HeaderReader;

/// Bytes of an encoded header, without what may follow: the set of workers of a partial sum ([`Contributors`]), and the [`Participants`] of
/// a request that is not of all workers.
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
    /// Server to worker; an encoded error follows.
    Reject(Reject),
}

/// The headers that begin an exchange. Workers send them.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// A contribution, or a question for the sum.
    Contribute(Contribute),
    /// A refusal to contribute.
    Withdraw(Withdraw),
}

/// The headers that answer an exchange. Servers send them.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// The sum follows.
    Sum(Sum),
    /// An error follows.
    Reject(Reject),
}

/// What an exchange is about. Every header has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// What the server does with the contribution.
    pub service: Service,
    /// The membership in which the sender believes.
    pub epoch: Epoch,
    /// Which part of which tensor.
    pub part: PartId,
    /// Which sum of that part.
    pub round: Round,
    /// How often the round of this part was started again because a contributor died. It is always 0 if a death ends the job. It is always
    /// 0 in requests, because their epoch tells the attempts apart. A server refuses any value in a request except 0 and its own.
    pub attempt: u16,
}

/// The services that servers offer. The set is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Adds parts of equal length, element by element.
    DenseSum,
    /// A service that this version does not have, by its code. The header is still read, so that a server can refuse this one exchange
    /// without closing the link.
    Unknown(u8),
}

/// A worker's contribution to a round, or its question for the sum.
#[derive(Clone, PartialEq, Debug)]
pub struct Contribute {
    /// What it is about.
    pub target: Target,
    /// The element type of the part.
    pub dtype: DType,
    /// How the part is reduced.
    pub op: Op,
    /// The workers from which the round is due, and those that get the sum; as its tensor was declared.
    pub participants: Participants,
    /// This worker's weight in a weighted mean; 1 for the other reductions.
    pub weight: f64,
    /// Which of two exchanges on one link goes first; higher is sooner. 0 to [`URGENCY_MAX`].
    pub urgency: u8,
    /// Bytes of the part in its own element type, whatever the encoding of the body.
    pub part_bytes: u64,
    /// What follows.
    pub contribution: Contribution,
}

/// What follows the header of a [`Contribute`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contribution {
    /// No body: the worker only asks for the sum, as the receivers of a broadcast do.
    Nothing,
    /// The contribution, unchanged since the worker submitted it.
    First {
        /// What follows.
        body: Body,
        /// CRC-32C of the body, if the worker computed it.
        checksum: Option<u32>,
    },
    /// A repeat, after a part of the sum overwrote the contribution. It has no checksum, because its front is overwritten.
    Resumed {
        /// What follows.
        body: Body,
        /// Bytes of the sum that landed. This many bytes at the front of the body are worthless.
        landed: u64,
    },
}

/// Bytes that follow a header, and how they encode a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body {
    /// The number of bytes.
    pub bytes: u64,
    /// Their encoding.
    pub codec: CodecSpec,
}

/// A worker will not contribute to a round. An encoded error with the reason follows.
#[derive(Clone, PartialEq, Debug)]
pub struct Withdraw {
    /// What it is about.
    pub target: Target,
    /// The element type of the part that the worker would have sent.
    pub dtype: DType,
    /// How the part would have been reduced. If the server hears of the round for the first time, it learns from this which workers owe a
    /// body.
    pub op: Op,
    /// As in [`Contribute::participants`].
    pub participants: Participants,
    /// Bytes of the error.
    pub error_bytes: u64,
}

/// The sum of a round. A participant that does not receive the sum gets one of no bytes, as soon as the sum exists.
#[derive(Clone, PartialEq, Debug)]
pub struct Sum {
    /// What it is about.
    pub target: Target,
    /// Bytes of the part in its own element type, whatever the encoding of the body; 0 if the sum goes to another worker.
    pub part_bytes: u64,
    /// What follows.
    pub body: Body,
    /// The divisor of the sum; 1 if the reduction does not divide.
    pub divisor: f64,
    /// Which workers are in it.
    pub contributors: Contributors,
    /// Whether the server still wants the rest of the contribution, because it has not received all of it.
    pub early: bool,
    /// Whether the CRC-32C of the body follows the body, as 4 bytes in little-endian order.
    pub checksum: bool,
}

/// Which workers are in a sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contributors {
    /// Each worker that the view of the header's epoch makes due for the round: all participants, or the root of a broadcast.
    Due,
    /// These only. The set follows the 64 bytes of the header; it may be empty.
    Only(WorkerSet),
}

/// There is no sum. An encoded error with the reason follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// What it is about.
    pub target: Target,
    /// Bytes of the error.
    pub error_bytes: u64,
}

impl Header {
    /// What it is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Contribute(header) => header.target,
            Self::Withdraw(header) => header.target,
            Self::Sum(header) => header.target,
            Self::Reject(header) => header.target,
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
        }
    }
}

fn bad_kind(problem: &str, peer: &str) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: "kind".to_owned(), problem: problem.to_owned() }
}

impl Request {
    /// What it is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Contribute(header) => header.target,
            Self::Withdraw(header) => header.target,
        }
    }

    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.body_bytes(),
            Self::Withdraw(header) => header.error_bytes,
        }
    }

    /// Bytes of the part; 0 for a withdrawal, which moves none.
    pub fn part_bytes(&self) -> u64 {
        match self {
            Self::Contribute(header) => header.part_bytes,
            Self::Withdraw(_) => 0,
        }
    }

    /// Which of two exchanges on one link goes first. A withdrawal is small, and other workers wait for it, so it goes before all bodies.
    pub fn urgency(&self) -> u8 {
        match self {
            Self::Contribute(header) => header.urgency,
            Self::Withdraw(_) => URGENCY_MAX,
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

impl Contribute {
    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        self.body().map_or(0, |body| body.bytes)
    }

    /// What follows the header, if anything does.
    pub fn body(&self) -> Option<Body> {
        match self.contribution {
            Contribution::Nothing => None,
            Contribution::First { body, .. } | Contribution::Resumed { body, .. } => Some(body),
        }
    }
}

impl Body {
    /// Elements in the part's own type.
    pub const fn plain(bytes: u64) -> Self {
        Self { bytes, codec: CodecSpec::PLAIN }
    }
}

impl Service {
    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::DenseSum => 1,
            Self::Unknown(code) => code,
        }
    }

    /// The service with this wire code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::DenseSum,
            code => Self::Unknown(code),
        }
    }

    /// The answer of a server to `peer`, if it asked for a service that the server does not have.
    pub fn refusal(code: u8, peer: &str) -> Error {
        Error::Incompatible {
            field: "service".to_owned(),
            ours: "1 (dense sum)".to_owned(),
            peer: peer.to_owned(),
            theirs: code.to_string(),
        }
    }
}

impl Sum {
    /// Bytes that follow the body: its checksum, where there is one.
    pub fn trailer_bytes(&self) -> usize {
        if self.checksum { size_of::<u32>() } else { 0 }
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.contributors.as_bytes().len()
    }
}

impl Contributors {
    /// What follows the fixed 64 bytes.
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Due => &[],
            Self::Only(workers) => workers.as_bytes(),
        }
    }
}

impl From<Request> for Header {
    fn from(request: Request) -> Self {
        match request {
            Request::Contribute(header) => Self::Contribute(header),
            Request::Withdraw(header) => Self::Withdraw(header),
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
