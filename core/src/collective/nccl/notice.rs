//! What the first rank tells the others, so that they can connect: the id under which they do, and its version of NCCL.

use super::comm::ID_BYTES;
use super::library::{Library, Version};
use crate::error::Error;

/// The notice of the first rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) id: [u8; ID_BYTES],
    pub(super) version: Version,
}

impl Notice {
    pub(super) fn bytes(&self) -> Vec<u8> {
        [&self.id[..], &self.version.0.to_le_bytes()].concat()
    }

    /// The notice in these bytes; `None` if they are of another length.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (id, version) = bytes.split_first_chunk()?;
        Some(Self { id: *id, version: Version(u32::from_le_bytes(version.try_into().ok()?)) })
    }

    /// Ranks with different versions of NCCL do not understand each other.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if this rank's library has another version.
    pub(super) fn check(&self, ours: &Library) -> Result<(), Error> {
        if self.version == ours.version {
            return Ok(());
        }
        Err(Error::FailedPrecondition {
            what: format!("this worker has {ours}, and the first worker of its machine has NCCL {}", self.version),
            hint: "install the same version for all workers of the machine, or name one library with nccl_lib"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_reads_back_and_nothing_else_is_one() {
        let notice = Notice { id: [7; ID_BYTES], version: Version(22809) };
        let bytes = notice.bytes();
        assert_eq!(Notice::read(&bytes), Some(notice));
        assert_eq!(Notice::read(&bytes[1..]), None);
        assert_eq!(Notice::read(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(Notice::read(&[]), None);
    }
}
