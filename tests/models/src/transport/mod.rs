//! What threads of a transport share.

pub mod exchange {
    //! Errors of a peer that breaks the protocol.
    use crate::error::Error;

    /// The peer said something that cannot be.
    pub fn bad(peer: &str, field: &str, problem: String) -> Error {
        Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem }
    }
}

pub mod shm;
