//! The file in which a coordinator keeps its records: `journal` in the state directory of its job, for this user alone.
//!
//! It begins with [`MAGIC`]. Each record follows as its length and its CRC-32C, both `u32` in little-endian order, and its bytes. A record that
//! was cut short by a crash stands at the end; nobody has been told what would follow from it, so it is left out.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gradlane_core::identity::Authority;
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::local::private_file::{self, IfOpen};
use gradlane_core::wire::checksum;
use gradlane_core::{Error, Result};

use super::super::Record;
use super::super::journal::damaged;

/// The journal of one coordinator, which has it alone. Dropping one that says nothing removes it: the job has not formed, or the coordinator
/// could not start.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Whether it was begun, and has no record yet.
    is_empty: bool,
    /// Whether something was written that may not be on the disk yet.
    is_unsynced: bool,
    /// It could not be written any more.
    is_given_up: bool,
}

impl Journal {
    /// Opens the journal in a directory of this user, or makes one, for as long as this process lives.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if another coordinator has it, [`Error::Io`] if it cannot be opened.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("journal");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|error| io("opening", &path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file, path, bytes: 0, is_empty: false, is_unsynced: false, is_given_up: false }),
            Err(TryLockError::WouldBlock) => Err(Error::FailedPrecondition {
                what: format!("another coordinator leads the job that {} belongs to", dir.display()),
                hint: "stop it first, or give this job another name or state directory".to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(io("locking", &path, &error)),
        }
    }

    /// The records that an earlier coordinator has written; further ones will follow them. None if its job had not formed.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if it is damaged; [`Error::Incompatible`] if another version has written it; [`Error::Io`] if it cannot
    /// be read.
    pub(super) fn resume(&mut self) -> Result<Vec<Record>> {
        let mut content = Vec::new();
        self.file.seek(SeekFrom::Start(0)).map_err(|error| io("reading", &self.path, &error))?;
        self.file.read_to_end(&mut content).map_err(|error| io("reading", &self.path, &error))?;
        if content.len() < MAGIC.len() && MAGIC.starts_with(&content) {
            self.begin()?;
            return Ok(Vec::new());
        }
        let (records, whole) = read(&content)?;
        if whole < content.len() {
            tracing::warn!(journal = %self.path.display(), bytes = content.len() - whole, "left out the end, which was cut short");
        }
        self.cut(whole as u64)?;
        Ok(records)
    }

    /// Begins anew: what an earlier coordinator has written counts no more.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.cut(0)?;
        self.is_empty = true;
        self.write(MAGIC).map_err(|error| io("writing", &self.path, &error))
    }

    /// Adds a record. It is on the disk once [`sync`](Self::sync) has returned. If it cannot be written, the job goes on without a journal.
    pub(super) fn add(&mut self, record: &Record) {
        if self.is_given_up {
            return;
        }
        reach(Failpoint::RecordMade);
        self.is_empty = false;
        let framed = framed(&record.encode());
        if self.bytes + framed.len() as u64 > BYTES_MAX {
            return self.give_up(&format!("it would be longer than {} GiB", BYTES_MAX >> 30));
        }
        if let Err(error) = self.write(&framed) {
            self.give_up(&error.to_string());
        }
    }

    /// Returns once everything that was added is on the disk.
    pub(super) fn sync(&mut self) {
        if !std::mem::take(&mut self.is_unsynced) || self.is_given_up {
            return;
        }
        if let Err(error) = self.file.sync_data() {
            self.give_up(&error.to_string());
        }
        reach(Failpoint::RecordKept);
    }

    /// Removes it, because the job has ended.
    pub(super) fn forget(&mut self) {
        self.is_given_up = true;
        let _ = fs::remove_file(&self.path);
    }

    /// A journal that lacks a record would lead a later coordinator astray, so it goes.
    fn give_up(&mut self, why: &str) {
        tracing::error!(
            journal = %self.path.display(),
            why,
            "cannot write the journal: the job goes on, but no other coordinator can take it up after this one"
        );
        self.forget();
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        let cut = self.file.set_len(len).and_then(|()| self.file.seek(SeekFrom::Start(len)));
        cut.map_err(|error| io("cutting", &self.path, &error))?;
        self.bytes = len;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.is_unsynced = true;
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.is_empty {
            self.forget();
        }
    }
}

/// A record as it stands in the file.
pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("a record is about as long as a frame");
    [&len.to_le_bytes()[..], &checksum(0, body).to_le_bytes(), body].concat()
}

/// Reads the records of a file, and how many bytes they and all before them take.
///
/// # Errors
/// As [`Journal::resume`].
pub(crate) fn read(content: &[u8]) -> Result<(Vec<Record>, usize)> {
    if !content.starts_with(MAGIC) {
        return Err(damaged("it does not begin as a journal does"));
    }
    let (mut records, mut at) = (Vec::new(), MAGIC.len());
    while at < content.len() {
        let rest = &content[at..];
        let Some((head, tail)) = rest.split_at_checked(8) else { break };
        let [len, crc] = [&head[..4], &head[4..]].map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
        let Some(body) = tail.get(..len as usize) else { break };
        if checksum(0, body) != crc {
            // One that was cut short is the last one.
            if tail.len() > body.len() {
                return Err(damaged(&format!("the record at byte {at} has another checksum")));
            }
            break;
        }
        records.push(Record::decode(body)?);
        at += 8 + body.len();
    }
    Ok((records, at))
}

/// The first bytes of a journal.
pub(crate) const MAGIC: &[u8] = b"gradlane journal 1\n";

/// A job with a barrier of 64 workers in each second fills it in two months.
const BYTES_MAX: u64 = 16 << 30;

fn io(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io { what: format!("{doing} {}", path.display()), cause: error.to_string() }
}

/// The journal in this directory, with the records of the job that is to go on: those of a coordinator whose secrets are still there.
pub(super) fn kept(dir: &Path, resumes: bool) -> Result<(Journal, Vec<Record>)> {
    private_file::directory(dir, IfOpen::Refuse)?;
    let mut journal = Journal::open(dir)?;
    if resumes && Authority::is_kept(dir) {
        let records = journal.resume()?;
        reach(Failpoint::Resumed);
        return Ok((journal, records));
    }
    journal.begin()?;
    Ok((journal, Vec::new()))
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Time;

    use super::super::super::journal::Entry;
    use super::*;

    #[test]
    fn what_was_added_is_there_for_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.resume(), Ok(Vec::new()), "nothing was there");
        for at in 0..3 {
            journal.add(&late(at));
        }
        journal.sync();
        drop(journal);
        let mut next = Journal::open(dir.path()).unwrap();
        assert_eq!(next.resume(), Ok((0..3).map(late).collect()));
        next.add(&late(3));
        drop(next);
        assert_eq!(Journal::open(dir.path()).unwrap().resume(), Ok((0..4).map(late).collect()));
        let mut anew = Journal::open(dir.path()).unwrap();
        anew.begin().unwrap();
        drop(anew);
        assert!(!dir.path().join("journal").exists(), "it says nothing");
        assert_eq!(Journal::open(dir.path()).unwrap().resume(), Ok(Vec::new()));
    }

    #[test]
    fn a_record_that_was_cut_short_is_left_out_and_the_next_one_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let whole = written(dir.path(), 2);
        let one = (whole.len() - MAGIC.len()) / 2;
        for len in 0..=whole.len() {
            fs::write(dir.path().join("journal"), &whole[..len]).unwrap();
            let mut journal = Journal::open(dir.path()).unwrap();
            let kept = len.saturating_sub(MAGIC.len()) / one;
            assert_eq!(journal.resume(), Ok((0..kept as u64).map(late).collect()), "{len} bytes");
            journal.add(&late(9));
            drop(journal);
            let after = Journal::open(dir.path()).unwrap().resume().unwrap();
            assert_eq!(after.last(), Some(&late(9)), "{len} bytes");
        }
        // The last record may also be there in full length, with other bytes.
        let mut torn = whole.clone();
        *torn.last_mut().unwrap() ^= 1;
        fs::write(dir.path().join("journal"), torn).unwrap();
        assert_eq!(Journal::open(dir.path()).unwrap().resume(), Ok(vec![late(0)]));
    }

    #[test]
    fn damage_before_the_end_and_foreign_files_are_refused_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let whole = written(dir.path(), 3);
        let in_the_middle = MAGIC.len() + 10;
        for at in [0, in_the_middle] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(dir.path().join("journal"), &bytes).unwrap();
            let error = Journal::open(dir.path()).unwrap().resume().unwrap_err();
            assert!(error.to_string().contains("without --resume"), "{error}");
            assert_eq!(fs::read(dir.path().join("journal")).unwrap(), bytes);
        }
    }

    #[test]
    fn two_coordinators_do_not_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Journal::open(dir.path()).unwrap();
        let Err(error) = Journal::open(dir.path()) else { panic!("it was given twice") };
        assert!(error.to_string().contains("another coordinator leads the job"), "{error}");
    }

    #[test]
    fn one_that_cannot_be_written_goes_and_nobody_is_disturbed() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        journal.begin().unwrap();
        journal.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        journal.add(&late(0));
        journal.add(&late(1));
        journal.sync();
        assert!(!dir.path().join("journal").exists());
    }

    fn written(dir: &Path, records: u64) -> Vec<u8> {
        let mut journal = Journal::open(dir).unwrap();
        journal.begin().unwrap();
        (0..records).for_each(|at| journal.add(&late(at)));
        fs::read(dir.join("journal")).unwrap()
    }

    fn late(at: u64) -> Record {
        Record(Entry::Late { at: Time(at) })
    }
}
