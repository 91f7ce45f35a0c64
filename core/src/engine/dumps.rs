//! What operators want to see of the tensors of this worker: its contribution to a round, and the sum that it gets.
//!
//! As long as nobody has asked, a submission costs the look at one flag.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::local::{confined, private_file};
use crate::types::{ControlAnswer, Round, TensorKey, TensorSpec, Time, WorkerId};

/// The rounds that operators have asked for and that have not begun.
#[derive(Default, Debug)]
pub(super) struct Dumps {
    is_on: AtomicBool,
    asked: Mutex<Vec<Asked>>,
    /// The allowed directory, by the setting `dump_dir`.
    directory: OnceLock<PathBuf>,
}

/// A round that an operator has asked for.
#[derive(Debug)]
pub(super) struct Asked {
    /// The number of the command.
    pub(super) number: u64,
    pub(super) key: TensorKey,
    pub(super) round: Round,
    /// Nobody waits for it any more.
    pub(super) until: Time,
    /// Where the files go, with the name of the directory below the allowed one.
    pub(super) directory: PathBuf,
}

impl Dumps {
    /// Files go below this directory; below the one in which the process runs if this is never said.
    pub(super) fn allow(&self, directory: PathBuf) {
        let _ = self.directory.set(directory);
    }

    /// The place of a directory below the allowed one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a path that leads out of it; [`Error::Io`].
    pub(super) fn place(&self, directory: &str) -> Result<PathBuf> {
        confined::below_dump_dir(self.directory.get().map(PathBuf::as_path), directory)
    }

    /// An operator asks for a round.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if [`ASKED_MAX`] have not begun.
    pub(super) fn ask(&self, now: Time, asked: Asked) -> Result<()> {
        let mut all = self.waiting(now);
        if all.len() >= ASKED_MAX {
            return Err(Error::Exhausted {
                what: "dumps of rounds that have not begun".to_owned(),
                limit: ASKED_MAX.to_string(),
                hint: "wait until some of these rounds have begun".to_owned(),
            });
        }
        all.push(asked);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether nobody has asked for anything. A submission that is made at the same time may miss what is asked.
    pub(super) fn is_off(&self) -> bool {
        !self.is_on.load(Ordering::Relaxed)
    }

    /// Whether somebody has asked for a round of this tensor.
    pub(super) fn wants(&self, now: Time, key: TensorKey) -> bool {
        self.waiting(now).iter().any(|asked| asked.key == key)
    }

    /// A round of a tensor begins: takes what was asked of it.
    pub(super) fn take(&self, now: Time, key: TensorKey, round: Round) -> Option<Asked> {
        let mut all = self.waiting(now);
        let at = all.iter().position(|asked| (asked.key, asked.round) == (key, round))?;
        let taken = all.remove(at);
        self.is_on.store(!all.is_empty(), Ordering::Relaxed);
        Some(taken)
    }

    /// What somebody still waits for.
    fn waiting(&self, now: Time) -> MutexGuard<'_, Vec<Asked>> {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|asked| asked.until > now);
        self.is_on.store(!all.is_empty(), Ordering::Relaxed);
        all
    }
}

/// What was seen of a round.
pub(super) struct Seen {
    pub(super) tensor: TensorSpec,
    pub(super) rank: WorkerId,
    /// The elements of this worker, before they are encoded or weighted.
    pub(super) contribution: Vec<u8>,
    /// The elements of the result; `None` if this worker gets none.
    pub(super) sum: Option<Vec<u8>>,
}

/// Writes the files of a dump: the bytes of the elements as they lie in memory, little-endian, and their description in JSON.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn write(asked: &Asked, seen: &Seen) -> Result<ControlAnswer> {
    let Seen { tensor, rank, contribution, sum } = seen;
    confined::make(&asked.directory, asked.directory.display())?;
    let stem = format!("{}-round-{}-worker-{}", file_name(&tensor.name), asked.round.0, rank.0);
    let (of_contribution, of_sum) = (format!("{stem}.contribution"), format!("{stem}.sum"));
    let description = serde_json::json!({
        "tensor": tensor.name,
        "dtype": tensor.dtype.to_string(),
        "shape": tensor.shape,
        "round": asked.round.0,
        "worker": rank.0,
        "byte_order": "little",
        "contribution": of_contribution,
        "sum": sum.as_ref().map(|_| &of_sum),
    });
    let (of_both, description) = (format!("{stem}.json"), format!("{description:#}\n"));
    let mut files = vec![(&of_contribution, contribution.as_slice())];
    files.extend(sum.iter().map(|sum| (&of_sum, sum.as_slice())));
    // Last, so that its presence says that the others are whole.
    files.push((&of_both, description.as_bytes()));
    let mut written = Vec::new();
    for (name, content) in files {
        let path = asked.directory.join(name);
        private_file::write(&path, content)?;
        written.push(path.display().to_string());
    }
    Ok(ControlAnswer::Dumped { files: written })
}

/// The name of a tensor as a part of a file's name. The description has the whole name.
fn file_name(tensor: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = tensor.chars().map(plain).take(NAME_CHARS_MAX).collect();
    // No hidden file, and no way up.
    name.trim_start_matches('.').to_owned()
}

/// Rounds that are asked for at once.
const ASKED_MAX: usize = 16;
/// Characters of a tensor's name in the name of a file.
const NAME_CHARS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::local::confined::below_dump_dir as place;
    use crate::types::DType;

    const KEY: TensorKey = TensorKey(5);

    fn asked(number: u64, round: u64, directory: &Path) -> Asked {
        Asked { number, key: KEY, round: Round(round), until: Time(100), directory: directory.to_owned() }
    }

    #[test]
    fn a_round_is_taken_once_and_then_nothing_is_asked() {
        let dumps = Dumps::default();
        assert!(dumps.is_off());
        dumps.ask(Time(1), asked(1, 7, Path::new("d"))).unwrap();
        assert!(!dumps.is_off() && dumps.wants(Time(1), KEY) && !dumps.wants(Time(1), TensorKey(6)));
        assert!(dumps.take(Time(1), KEY, Round(6)).is_none());
        assert_eq!(dumps.take(Time(1), KEY, Round(7)).map(|asked| asked.number), Some(1));
        assert!(dumps.is_off());
    }

    #[test]
    fn the_directory_of_the_setting_is_made_and_nothing_lies_outside_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let named = dir.path().join("not/there");
        let found = place(Some(&named), "night").unwrap();
        assert!(named.is_dir() && found == named.canonicalize().unwrap().join("night"));
        assert!(matches!(place(Some(&named), "../night"), Err(Error::InvalidArgument { .. })));
        assert!(!named.join("../night").exists());
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = place(Some(&dir.path().join("file/below")), "night").unwrap_err().to_string();
        assert!(error.contains("making dump_dir"), "{error}");
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten_and_the_rest_is_bounded() {
        let dumps = Dumps::default();
        for number in 0..ASKED_MAX as u64 {
            dumps.ask(Time(1), asked(number, number, Path::new("d"))).unwrap();
        }
        let refused = dumps.ask(Time(1), asked(99, 99, Path::new("d")));
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
        assert!(!dumps.wants(Time(100), KEY) && dumps.is_off());
    }

    #[test]
    fn the_files_hold_the_bytes_and_say_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let tensor = TensorSpec::new("../layer 1", DType::F32, vec![2, 1]);
        let seen = Seen { tensor, rank: WorkerId(3), contribution: vec![1; 8], sum: Some(vec![2; 8]) };
        let ControlAnswer::Dumped { files } = write(&asked(1, 7, &dir.path().join("look")), &seen).unwrap() else {
            panic!("it was dumped");
        };
        let read = |at: usize| std::fs::read(&files[at]).unwrap();
        assert_eq!((read(0), read(1)), (vec![1; 8], vec![2; 8]));
        let name = |at: usize| Path::new(&files[at]).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name(0), "_layer_1-round-7-worker-3.contribution");
        let description: serde_json::Value = serde_json::from_slice(&read(2)).unwrap();
        assert_eq!(description["shape"], serde_json::json!([2, 1]));
        assert_eq!((&description["sum"], &description["dtype"]), (&name(1).into(), &"float32".into()));
    }

    #[test]
    fn a_directory_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(place(Some(dir.path()), "look").unwrap().ends_with("look"));
        for outside in ["../look", "/etc", "", "."] {
            let refused = place(Some(dir.path()), outside);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{outside:?}: {refused:?}");
        }
    }
}
