//! Limits on what a peer may ask for. Every length is checked against one of them before memory is allocated.

use crate::error::{Error, Result};
use crate::types::{Address, Ask, CheckpointAsk, LoadAsk, SaveAsk, StoreAsk, TensorSpec, WorkerSet};

/// Bytes of a tensor's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;
/// Tensors of one job.
pub const TENSORS_MAX: usize = 65_536;
/// Parts of one job: at 64 KiB, the smallest part, this allows 32 GiB of tensors. One frame can answer a declaration of all of them.
pub const PARTS_MAX: usize = 1 << 19;
/// The last round of a part: 8,900 years at 1,000 rounds a second. Rounds can be added to without an overflow.
pub const ROUND_MAX: u64 = (1 << 40) - 1;
/// Members of one job, workers and servers together.
pub const MEMBERS_MAX: usize = WorkerSet::WORKERS_MAX;
/// Bytes of one part. A part has about 4 MiB per local rank.
pub const PART_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one body. A codec may make a body of small blocks longer than its part.
pub const BODY_BYTES_MAX: u64 = 2 * PART_BYTES_MAX;
/// Bytes of the name of a member in an error, such as `worker 12`, with what is said of it.
pub const MEMBER_BYTES_MAX: usize = 124;
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
/// Clocks of one job.
pub const CLOCKS_MAX: usize = 4_096;
/// Bytes of the path of a checkpoint.
pub const CHECKPOINT_PATH_BYTES_MAX: usize = 4_096;
/// Bytes of the notes that are saved with a checkpoint.
pub const NOTES_BYTES_MAX: usize = 64 << 10;
/// Bytes of the fields of an operator's command. A dump has a name and a path.
pub const CONTROL_FIELDS_BYTES_MAX: usize = 8_192;
/// Bytes of the filter of a log.
pub const LOG_FILTER_BYTES_MAX: usize = 4_096;
/// Files that one dump writes.
pub const CONTROL_FILES_MAX: usize = 16;
/// Numbers of the metrics of one member. A server of 256 ranks with 256 lanes has some 2,400: seven for each rank, two for each lane, and a
/// hundred more. A worker with 64 servers that reduces with 255 others on its machine has some 3,200.
pub const STATS_MAX: usize = 8_192;
/// Versions that one process tells: of its software and its hardware.
pub const SETUP_VERSIONS_MAX: usize = 32;
/// Settings that one process tells; there are fewer.
pub const SETUP_SETTINGS_MAX: usize = 256;
/// Bytes of each text of a version or a setting. So the setup of a process has some 200 KiB at most, and one KiB mostly.
pub const SETUP_TEXT_BYTES_MAX: usize = 256;
/// Barriers at which one worker waits at once.
pub const BARRIERS_MAX: usize = 64;
/// Bytes of a key of the store. Libraries put prefixes of prefixes before their keys.
pub const STORE_KEY_BYTES_MAX: usize = 1_024;
/// Bytes of a value of the store.
pub const STORE_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the store of a job: its keys and values, and [`STORE_ENTRY_BYTES`] for each key. One frame can list all keys.
pub const STORE_BYTES_MAX: usize = 16 << 20;
/// What each key of the store counts besides its bytes, because an entry needs memory also if it is empty.
pub const STORE_ENTRY_BYTES: usize = 64;
/// Keys of the store of a job, which follows from the bytes.
pub const STORE_KEYS_MAX: usize = STORE_BYTES_MAX / STORE_ENTRY_BYTES;
/// Workers' requests that wait at the same time for a key of the store. A worker has no more requests of any kind under way.
pub const STORE_WAITS_MAX: usize = 4_096;
/// Changes of the store that one worker has under way at once. The coordinator remembers the answers of so many.
pub const STORE_CHANGES_MAX: usize = 256;

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

/// Checks that a request to the store, or to a clock, can be sent.
///
/// # Errors
/// As [`check_store_ask`]; [`Error::InvalidArgument`] for a clock without a name or with a long one, a mode that has no meaning, round 0, a
/// tick that does not wait for the end of its round, and a path of a checkpoint that is empty or too long; [`Error::Exhausted`] for long
/// notes.
pub fn check_ask(ask: &Ask) -> Result<()> {
    let tick = match ask {
        Ask::Store(ask) => return check_store_ask(ask),
        Ask::Tick(tick) => tick,
        Ask::Checkpoint(ask) => return check_checkpoint_ask(ask),
    };
    check_name("a clock", &tick.clock)?;
    tick.mode.check()?;
    let refuse = |what: &str, hint: &str| {
        let what = format!("clock {}: {what}", tick.clock);
        Err(Error::InvalidArgument { what, hint: hint.to_owned() })
    };
    match tick.round {
        0 if !tick.leaves => refuse("round 0", "rounds count from 1"),
        round if round > ROUND_MAX => refuse(&format!("round {round}"), &format!("use at most {ROUND_MAX}")),
        _ if tick.mode.rounds().is_some() && tick.wait.is_none() && !tick.leaves => {
            refuse("a tick that does not wait", "in a mode with rounds a worker waits until its round is closed")
        }
        _ => Ok(()),
    }
}

fn check_checkpoint_ask(ask: &CheckpointAsk) -> Result<()> {
    let (path, notes) = match ask {
        CheckpointAsk::Save(SaveAsk { keep: Some(0), .. }) => {
            return Err(Error::InvalidArgument {
                what: "keeping 0 checkpoints".to_owned(),
                hint: "keep at least the one that is saved".to_owned(),
            });
        }
        CheckpointAsk::Save(SaveAsk { path, notes, .. }) => (path, notes.len()),
        CheckpointAsk::Load(LoadAsk { path, .. }) => (path, 0),
    };
    if path.is_empty() || path.len() > CHECKPOINT_PATH_BYTES_MAX || path.contains('\0') {
        return Err(Error::InvalidArgument {
            what: format!("a path of a checkpoint of {} bytes", path.len()),
            hint: format!("give a directory, in 1 to {CHECKPOINT_PATH_BYTES_MAX} bytes and without a NUL"),
        });
    }
    if notes > NOTES_BYTES_MAX {
        return Err(Error::Exhausted {
            what: format!("{notes} bytes of notes of a checkpoint"),
            limit: format!("{NOTES_BYTES_MAX} bytes"),
            hint: "keep large values in parameters, or in files of your own".to_owned(),
        });
    }
    Ok(())
}

/// Checks that a request to the store can be sent. The sender checks first, because a frame that the reader refuses costs the connection.
///
/// # Errors
/// [`Error::InvalidArgument`] for a key that is empty or too long, [`Error::Exhausted`] for a value that is too long.
pub fn check_store_ask(ask: &StoreAsk) -> Result<()> {
    let key = ask.key();
    let may_be_empty = matches!(ask, StoreAsk::Dir { .. } | StoreAsk::Delete { is_prefix: true, .. });
    if key.is_empty() && !may_be_empty {
        return Err(Error::InvalidArgument {
            what: "an empty key of the store".to_owned(),
            hint: "give it at least one character".to_owned(),
        });
    }
    if key.len() > STORE_KEY_BYTES_MAX {
        let start: String = key.chars().take(40).collect();
        return Err(Error::InvalidArgument {
            what: format!("the key \"{start}…\" of the store has {} bytes", key.len()),
            hint: format!("use at most {STORE_KEY_BYTES_MAX}"),
        });
    }
    let values = match ask {
        StoreAsk::Put { value, expected, .. } => [Some(value), expected.as_ref()],
        StoreAsk::Append { value, .. } => [Some(value), None],
        StoreAsk::Add { .. } | StoreAsk::Get { .. } | StoreAsk::Delete { .. } | StoreAsk::Dir { .. } => [None, None],
    };
    values.into_iter().flatten().try_for_each(|value| check_store_value(key, value.len()))
}

/// Checks that `key` may have a value of so many bytes.
///
/// # Errors
/// [`Error::Exhausted`] if not.
pub fn check_store_value(key: &str, bytes: usize) -> Result<()> {
    if bytes <= STORE_VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Exhausted {
        what: format!("{bytes} bytes as the value of key {key:?} of the store"),
        limit: format!("{STORE_VALUE_BYTES_MAX} bytes"),
        hint: "cut it into values under several keys, or broadcast it as a tensor".to_owned(),
    })
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
    fn a_request_to_the_store_that_its_reader_would_refuse_is_found_before_it_is_sent() {
        let put = |key: &str, bytes: usize, expected: Option<usize>| {
            let (value, expected) = (vec![0; bytes], expected.map(|bytes| vec![0; bytes]));
            StoreAsk::Put { key: key.to_owned(), value, expected }
        };
        let longest = "k".repeat(STORE_KEY_BYTES_MAX);
        for accepted in [
            put(&longest, STORE_VALUE_BYTES_MAX, Some(STORE_VALUE_BYTES_MAX)),
            StoreAsk::Dir { prefix: String::new() },
            StoreAsk::Delete { key: String::new(), is_prefix: true },
        ] {
            assert_eq!(check_store_ask(&accepted), Ok(()));
        }
        for (refused, why) in [
            (put("", 0, None), "an empty key"),
            (StoreAsk::Delete { key: String::new(), is_prefix: false }, "an empty key"),
            (put(&format!("{longest}k"), 0, None), "1025 bytes; use at most 1024"),
            (
                put("a", STORE_VALUE_BYTES_MAX + 1, None),
                "65537 bytes as the value of key \"a\" of the store: limit 65536",
            ),
            (put("a", 0, Some(STORE_VALUE_BYTES_MAX + 1)), "65537 bytes as the value"),
            (StoreAsk::Append { key: "a".to_owned(), value: vec![0; 70_000] }, "70000 bytes as the value"),
        ] {
            let error = check_store_ask(&refused).unwrap_err().to_string();
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
