//! Limits on what a peer may ask for. Every length is checked against one of them before memory is allocated.

use crate::error::{Error, Result};
use crate::types::{Address, TensorSpec, WorkerSet};

/// Bytes of a tensor's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;
/// Tensors of one job.
pub const TENSORS_MAX: usize = 65_536;
/// Parts of one job: at 64 KiB, the smallest part, this allows 32 GiB of tensors. One frame can answer a declaration of all of them.
pub const PARTS_MAX: usize = 1 << 19;
/// The last round of a part: 8,900 years at 1,000 rounds a second. Rounds can be added to without an overflow.
pub const ROUND_MAX: u64 = 1 << 48;
/// Members of one job, workers and servers together.
pub const MEMBERS_MAX: usize = WorkerSet::WORKERS_MAX;
/// Bytes of one part. A part has about 4 MiB per local rank.
pub const PART_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one body. A codec may make a body of small blocks longer than its part.
pub const BODY_BYTES_MAX: u64 = 2 * PART_BYTES_MAX;
/// Bytes of one control frame: a declaration of `TENSORS_MAX` names fits.
pub const FRAME_BYTES_MAX: usize = 32 << 20;
/// Addresses of one process.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of the place of an address. A host name has at most 253, and the path of a socket 107.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// Bytes of a free text in a frame: a cause, a host name.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// Bytes of a certificate; those of a job's authority have some 500.
pub const CERTIFICATE_BYTES_MAX: usize = 4_096;
/// Bytes of an error that follows a header: the body of a reject or of a withdrawal.
pub const REJECT_BYTES_MAX: u64 = 64 << 10;
/// Barriers at which one worker waits at once.
pub const BARRIERS_MAX: usize = 64;

/// Checks that `name`, the name of `what`, can be sent.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty or too long name.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::InvalidArgument {
            what: format!("{what} without a name"),
            hint: "give it one, equal on all workers".to_owned(),
        });
    }
    if name.len() > NAME_BYTES_MAX {
        let start: String = name.chars().take(40).collect();
        return Err(Error::InvalidArgument {
            what: format!("the name \"{start}…\" of {what} has {} bytes", name.len()),
            hint: format!("use at most {NAME_BYTES_MAX}"),
        });
    }
    Ok(())
}

/// Checks that a process can announce `addresses`. The sender checks first, because a longer place would be cut.
///
/// # Errors
/// [`Error::InvalidArgument`] if there are too many, or one is too long or empty.
pub fn check_addresses(addresses: &[Address]) -> Result<()> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(Error::InvalidArgument {
            what: format!("{} addresses of one process", addresses.len()),
            hint: format!("announce at most {ADDRESSES_MAX}"),
        });
    }
    let cannot_be_sent = |address: &&Address| address.at.is_empty() || address.at.len() > ADDRESS_BYTES_MAX;
    match addresses.iter().find(cannot_be_sent) {
        None => Ok(()),
        Some(address) => Err(Error::InvalidArgument {
            what: format!("an address of {} bytes: {address}", address.at.len()),
            hint: format!("use 1 to {ADDRESS_BYTES_MAX} bytes; `advertise` sets the host of a server's address"),
        }),
    }
}

/// Checks that one frame can declare `tensors`. The sender checks first, because a frame that the reader refuses costs the connection. The
/// receiver checks again, because it trusts no peer.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the tensor.
pub fn check_tensors(tensors: &[TensorSpec]) -> Result<()> {
    // An upper bound of the frame's other bytes besides names and dimensions: this many for each tensor, and once for the frame.
    const OVERHEAD_BYTES: usize = 32;
    let mut bytes = OVERHEAD_BYTES;
    for spec in tensors {
        check_name("a tensor", &spec.name)?;
        if spec.shape.len() > DIMENSIONS_MAX {
            return Err(Error::InvalidArgument {
                what: format!("tensor {}: {} dimensions", spec.name, spec.shape.len()),
                hint: format!("flatten it to at most {DIMENSIONS_MAX}"),
            });
        }
        if spec.bytes().is_none() {
            return Err(Error::InvalidArgument {
                what: format!("tensor {}: {:?} {} has more than 2^64 bytes", spec.name, spec.shape, spec.dtype),
                hint: "check its shape".to_owned(),
            });
        }
        if !spec.kind.codec().encodes(spec.dtype) {
            return Err(Error::InvalidArgument {
                what: format!("tensor {}: codec {} of {}", spec.name, spec.kind.codec(), spec.dtype),
                hint: "leave the codec out".to_owned(),
            });
        }
        spec.participants.check(&spec.name)?;
        let members = spec.participants.members().map_or(0, |members| members.as_bytes().len());
        bytes += OVERHEAD_BYTES + spec.name.len() + spec.shape.len() * size_of::<u64>() + members;
    }
    if tensors.len() > TENSORS_MAX || bytes > FRAME_BYTES_MAX {
        return Err(Error::InvalidArgument {
            what: format!("{} tensors in one declaration", tensors.len()),
            hint: format!("declare at most {TENSORS_MAX}, or fewer with long names and shapes, at once"),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CodecSpec, DType, Scheme, TensorKind};

    fn spec(name: &str, shape: &[u64]) -> TensorSpec {
        TensorSpec::new(name, DType::F32, shape.to_vec())
    }

    #[test]
    fn addresses_that_their_reader_would_refuse_are_found_before_they_are_sent() {
        let address = |bytes: usize| Address::new(Scheme::Quic, "n".repeat(bytes));
        assert_eq!(check_addresses(&vec![address(ADDRESS_BYTES_MAX); ADDRESSES_MAX]), Ok(()));
        for (refused, why) in [
            (vec![address(1); ADDRESSES_MAX + 1], "9 addresses"),
            (vec![address(1), address(ADDRESS_BYTES_MAX + 1)], "513 bytes"),
            (vec![address(0)], "0 bytes"),
        ] {
            let error = check_addresses(&refused).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_declaration_that_its_reader_would_refuse_is_found_before_it_is_sent() {
        assert_eq!(check_tensors(&[spec("a", &[]), spec("b", &[3, 0, 5])]), Ok(()));
        for (refused, why) in [
            (spec("", &[1]), "without a name"),
            (spec(&"n".repeat(NAME_BYTES_MAX + 1), &[1]), "257 bytes"),
            (spec("deep", &[1; DIMENSIONS_MAX + 1]), "65 dimensions"),
            (spec("huge", &[u64::MAX, 2]), "2^64"),
            (
                TensorSpec {
                    kind: TensorKind::Sum { codec: CodecSpec::F16 },
                    ..TensorSpec::new("narrow", DType::F16, vec![1])
                },
                "codec fp16 of float16",
            ),
        ] {
            let error = check_tensors(&[spec("a", &[1]), refused]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = check_tensors(&vec![spec("a", &[1]); TENSORS_MAX + 1]).unwrap_err().to_string();
        assert!(error.contains("65537 tensors"), "{error}");
    }
}
