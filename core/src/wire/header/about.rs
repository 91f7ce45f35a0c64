//! What every header says, whatever its service.

use crate::error::Error;
use crate::types::{Epoch, PartId};

/// What an exchange of any service is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About {
    /// What the server does with the part.
    pub service: Service,
    /// The membership in which the sender believes.
    pub epoch: Epoch,
    /// Which part of which tensor.
    pub part: PartId,
}

/// The services that servers offer. The set is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Adds parts of equal length, element by element.
    DenseSum,
    /// Keeps parts, which each worker changes and reads by itself.
    Parameter,
    /// Keeps rows by id.
    Table,
    /// A service that this version does not have, by its code.
    Unknown(u8),
}

impl Service {
    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::DenseSum => 1,
            Self::Parameter => 2,
            Self::Table => 3,
            Self::Unknown(code) => code,
        }
    }

    /// The service with this wire code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::DenseSum,
            2 => Self::Parameter,
            3 => Self::Table,
            code => Self::Unknown(code),
        }
    }

    /// The answer of a server to `peer`, if it asked for a service that the server does not have.
    pub fn refusal(self, peer: &str) -> Error {
        Error::Incompatible {
            field: "service".to_owned(),
            ours: "1 (dense sum), 2 (parameter), 3 (table)".to_owned(),
            peer: peer.to_owned(),
            theirs: self.code().to_string(),
        }
    }
}
