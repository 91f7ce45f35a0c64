//! Further join secrets of a running job. Each lets in a limited number of processes of one role, for a limited time.
//!
//! Most are files in the directory of the job's authority, which only its user can read. A command writes them. The coordinator reads them when a
//! process enrols with a secret that is not the job's own. Only the coordinator counts their uses. The coordinator's own process may also make
//! invitations in memory, with a directory or without.
//!
//! An invitation that is used up or too old is kept for a while, so that a process that uses it is told what is wrong. The files are read again
//! only when their directory has changed, because any process can make the coordinator look for an unknown secret.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;

use crate::error::{Error, Result};
use crate::local::private_file;
use crate::types::Role;

/// A secret that a process may enrol with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Invitation {
    pub(super) role: Role,
    /// How many processes the invitation still lets in.
    pub(super) uses: u32,
    /// The end of the invitation, in seconds since 1970.
    pub(super) until: u64,
    pub(super) secret: [u8; 16],
}

impl Invitation {
    /// The file in which the invitation is kept below `dir`. Its name does not reveal the secret.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        folder(dir).join(HEXLOWER.encode(&super::certificate::sha256(&self.secret)[..8]))
    }

    /// Why the invitation is not good any more at `now`. `None` if it is good.
    pub(super) fn fault(&self, now: SystemTime) -> Option<String> {
        match seconds(now).checked_sub(self.until) {
            Some(late) => Some(format!("ended {late} s ago")),
            None if self.uses == 0 => Some("is used up: it has let in as many processes as it may".to_owned()),
            None => None,
        }
    }

    /// The text of its file.
    pub(super) fn text(&self) -> String {
        let Self { role, uses, until, secret } = self;
        format!("{MAGIC} {role} {uses} {until} {}\n", HEXLOWER.encode(secret))
    }

    /// The invitation in the text of a file.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix(MAGIC)?.split_whitespace();
        let role =
            Role::named(words.next()?).filter(|role| matches!(role, Role::Worker | Role::Server | Role::Admin))?;
        let (uses, until) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let secret = HEXLOWER.decode(words.next()?.as_bytes()).ok()?.try_into().ok()?;
        if words.next().is_none() { Some(Self { role, uses, until, secret }) } else { None }
    }
}

/// All invitations of an authority.
#[derive(Default)]
pub(super) struct Invitations {
    /// In memory only.
    here: Vec<Invitation>,
    /// Below the directory of the authority, as they were read last.
    found: Vec<Invitation>,
    read: Option<Reading>,
    #[cfg(test)]
    reads: u32,
}

/// When the invitations were read.
#[derive(Clone, Copy)]
struct Reading {
    at: SystemTime,
    /// The last change of the directory, by the clock of its file system.
    changed: SystemTime,
    /// When this process first saw that change, by its own clock. The two clocks may differ.
    seen_first: SystemTime,
}

impl Invitations {
    /// The invitation whose secret a process `knows`, also one that is used up or too old. `dir` is the directory of the authority, if it is kept.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be read.
    pub(super) fn known(
        &mut self,
        dir: Option<&Path>,
        now: SystemTime,
        knows: impl Fn(&[u8; 16]) -> bool,
    ) -> Result<Option<Invitation>> {
        let is_known = |invitation: &&Invitation| knows(&invitation.secret);
        if let Some(invitation) = self.here.iter().find(is_known) {
            return Ok(Some(invitation.clone()));
        }
        let Some(dir) = dir else { return Ok(None) };
        Ok(self.below(dir, now)?.iter().find(is_known).cloned())
    }

    /// Counts a use of `invitation`, which is [`known`](Self::known).
    ///
    /// # Errors
    /// [`Error::Io`] if its file cannot be written.
    pub(super) fn count_use(&mut self, dir: Option<&Path>, invitation: &Invitation) -> Result<()> {
        let used = Invitation { uses: invitation.uses.saturating_sub(1), ..invitation.clone() };
        if let Some(here) = self.here.iter_mut().find(|here| here.secret == used.secret) {
            *here = used;
            return Ok(());
        }
        let dir = dir.expect("an invitation that is not in memory has a file");
        self.changes();
        private_file::write(&used.path(dir), used.text())
    }

    /// Keeps `invitation` in memory.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are [`HERE_MAX`] that are still good.
    pub(super) fn keep_here(&mut self, invitation: Invitation, now: SystemTime) -> Result<()> {
        // Those that are not good any more are kept as long as there is room, so that a process that uses one is told what is wrong.
        if self.here.len() >= HERE_MAX {
            self.here.retain(|invitation| invitation.fault(now).is_none());
        }
        if self.here.len() >= HERE_MAX {
            return Err(Error::Exhausted {
                what: "join strings for one process that were not used yet".to_owned(),
                limit: HERE_MAX.to_string(),
                hint: "wait until processes have used them, or until they end".to_owned(),
            });
        }
        self.here.push(invitation);
        Ok(())
    }

    /// This process changes a file, so the files are read again, even if the directory shows the same time.
    fn changes(&mut self) {
        self.read = None;
    }

    /// The invitations below `dir` at `now`, also those that are used up or too old. Reads them again if the directory may have changed.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be read.
    fn below(&mut self, dir: &Path, now: SystemTime) -> Result<&[Invitation]> {
        let changed = fs::metadata(folder(dir)).and_then(|folder| folder.modified()).ok();
        let same = self.read.filter(|reading| changed == Some(reading.changed));
        let is_known = same.is_some_and(|Reading { at, seen_first, .. }| {
            // A second change within the resolution of the file system's clock shows no new time. A remote file system may show it late.
            let is_settled = at.duration_since(seen_first).is_ok_and(|since| since >= RESOLUTION);
            is_settled && now.duration_since(at).is_ok_and(|since| since < READ_EVERY)
        });
        if !is_known {
            self.found = all(dir, now)?;
            let seen_first = same.map_or(now, |reading| reading.seen_first);
            self.read = changed.map(|changed| Reading { at: now, changed, seen_first });
            #[cfg(test)]
            {
                self.reads += 1;
            }
        }
        Ok(&self.found)
    }
}

/// The invitations below `dir`. Removes those that ended long ago. If there are many, also removes the others that are not good any more.
fn all(dir: &Path, now: SystemTime) -> Result<Vec<Invitation>> {
    let folder = folder(dir);
    let io = |error: &std::io::Error| Error::Io { what: folder.display().to_string(), cause: error.to_string() };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(&error)),
    };
    let mut found = Vec::new();
    for entry in entries.take(FILES_MAX) {
        let path = entry.map_err(|error| io(&error))?.path();
        // Join files and drafts of files are in the same directory.
        if path.extension().is_some() || path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        {
            continue;
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        match (read, Invitation::parse(&text)) {
            (Ok(_), Some(invitation)) if seconds(now) < invitation.until.saturating_add(REMEMBERED_SECONDS) => {
                found.push(invitation);
            }
            (Ok(_), Some(_)) => drop(fs::remove_file(&path)),
            (Ok(_), None) => tracing::warn!(path = %path.display(), "no invitation can be read from this file"),
            // The file was removed after the directory was listed.
            (Err(_), _) => {}
        }
    }
    if found.len() > REMEMBERED_MAX {
        found.retain(|invitation| {
            let is_good = invitation.fault(now).is_none();
            if !is_good {
                let _ = fs::remove_file(invitation.path(dir));
            }
            is_good
        });
    }
    Ok(found)
}

/// Removes all invitations below `dir`.
///
/// # Errors
/// [`Error::Io`] if they cannot be removed.
pub(super) fn forget(dir: &Path) -> Result<()> {
    let folder = folder(dir);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::Io { what: folder.display().to_string(), cause: error.to_string() })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The end of an invitation that begins now.
pub(super) fn end(now: SystemTime, lasts: Duration) -> u64 {
    seconds(now).saturating_add(lasts.as_secs().max(1))
}

/// The directory of the invitations below that of the authority.
pub(super) fn folder(dir: &Path) -> PathBuf {
    dir.join("tokens")
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const MAGIC: &str = "gradlane-token-1";
/// Files that are read. Further files are ignored.
const FILES_MAX: usize = 512;
const BYTES_MAX: u64 = 256;
/// How long an invitation is kept after its end, and how many invitations there may be before those that are not good any more are removed.
const REMEMBERED_SECONDS: u64 = 24 * 3600;
const REMEMBERED_MAX: usize = FILES_MAX / 2;
/// Invitations in memory. The proof of a process that knows none of them is compared with all.
const HERE_MAX: usize = FILES_MAX;
/// The coarsest resolution of times of a file system.
const RESOLUTION: Duration = Duration::from_secs(1);
/// The files are read again after this time, even if nothing seems to have changed.
const READ_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_reads_back_and_nothing_else_does() {
        let invitation = Invitation { role: Role::Server, uses: 3, until: 99, secret: [7; 16] };
        assert!(Invitation::parse(&invitation.text()) == Some(invitation.clone()));
        for text in [
            "",
            "gradlane-token-1",
            "gradlane-token-2 server 3 99 00",
            &invitation.text().replace("server", "coordinator"),
        ] {
            assert!(Invitation::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn one_that_is_not_good_any_more_says_why_for_a_day() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        let good = Invitation { role: Role::Worker, uses: 1, until: 100, secret: [1; 16] };
        let used = Invitation { uses: 0, secret: [2; 16], ..good.clone() };
        let old = Invitation { until: 40, secret: [3; 16], ..good.clone() };
        for invitation in [&good, &used, &old] {
            fs::write(invitation.path(dir.path()), invitation.text()).unwrap();
        }
        let faults = |now| {
            let mut found = all(dir.path(), now).unwrap();
            found.sort_by_key(|invitation| invitation.secret);
            found.iter().map(|invitation| invitation.fault(now).unwrap_or_default()).collect::<Vec<_>>()
        };
        let used_up = "is used up: it has let in as many processes as it may";
        assert_eq!(faults(at(50)), ["", used_up, "ended 10 s ago"]);
        assert_eq!(faults(at(40 + REMEMBERED_SECONDS)).len(), 2);
        assert_eq!(fs::read_dir(folder(dir.path())).unwrap().count(), 2);
        forget(dir.path()).unwrap();
        assert!(all(dir.path(), at(50)).unwrap().is_empty());
    }

    #[test]
    fn those_that_are_not_good_any_more_leave_room_for_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        for number in 0..=REMEMBERED_MAX {
            let [high, low] = (number as u16).to_be_bytes();
            let secret = std::array::from_fn(|at| if at % 2 == 0 { high } else { low });
            let invitation = Invitation { role: Role::Worker, uses: u32::from(number == 0), until: 100, secret };
            fs::write(invitation.path(dir.path()), invitation.text()).unwrap();
        }
        assert_eq!(all(dir.path(), at(50)).unwrap().len(), 1);
        assert_eq!(fs::read_dir(folder(dir.path())).unwrap().count(), 1);
    }

    #[test]
    fn secrets_that_nobody_knows_do_not_make_the_files_be_read_each_time() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        let first = Invitation { role: Role::Worker, uses: 1, until: u64::MAX, secret: [1; 16] };
        fs::write(first.path(dir.path()), first.text()).unwrap();
        let changed = fs::metadata(folder(dir.path())).unwrap().modified().unwrap();
        let mut invitations = Invitations::default();
        // The clock of the file system may lie ahead or behind by any time.
        let begun = at(7);
        let settled = begun + RESOLUTION;
        assert_eq!(invitations.below(dir.path(), begun).unwrap().len(), 1);
        for _ in 0..1_000 {
            assert_eq!(invitations.below(dir.path(), settled).unwrap().len(), 1);
        }
        assert_eq!(invitations.reads, 2);
        invitations.changes();
        assert_eq!(invitations.below(dir.path(), settled).unwrap().len(), 1);
        assert_eq!(invitations.reads, 3, "this process has changed a file");
        invitations.below(dir.path(), settled + RESOLUTION).unwrap();
        let second = Invitation { secret: [2; 16], ..first.clone() };
        fs::write(second.path(dir.path()), second.text()).unwrap();
        let touched = fs::File::open(folder(dir.path())).unwrap();
        touched.set_modified(changed + Duration::from_millis(5)).unwrap();
        let later = settled + RESOLUTION;
        assert_eq!(invitations.below(dir.path(), later).unwrap().len(), 2, "the directory has changed");
        assert_eq!((invitations.below(dir.path(), later + READ_EVERY).unwrap().len(), invitations.reads), (2, 6));
    }

    #[test]
    fn invitations_in_memory_are_so_many_and_the_used_and_old_ones_go_first() {
        let mut invitations = Invitations::default();
        let numbered = |number: usize, uses, until| {
            let [high, low] = (number as u16).to_be_bytes();
            let secret = std::array::from_fn(|at| if at % 2 == 0 { high } else { low });
            Invitation { role: Role::Worker, uses, until, secret }
        };
        let is_known = |invitations: &mut Invitations, invitation: &Invitation| {
            invitations.known(None, at(50), |secret| *secret == invitation.secret).unwrap() == Some(invitation.clone())
        };
        let (used, old) = (numbered(0, 0, 100), numbered(1, 1, 40));
        for invitation in [used.clone(), old.clone()].into_iter().chain((2..HERE_MAX).map(|n| numbered(n, 1, 100))) {
            invitations.keep_here(invitation, at(30)).unwrap();
        }
        assert!(is_known(&mut invitations, &used) && is_known(&mut invitations, &old), "while there is room");
        for number in HERE_MAX..HERE_MAX + 2 {
            invitations.keep_here(numbered(number, 1, 100), at(50)).unwrap();
        }
        assert!(!is_known(&mut invitations, &used) && !is_known(&mut invitations, &old));
        let refused = invitations.keep_here(numbered(HERE_MAX + 2, 1, 100), at(50));
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
        let first = numbered(2, 1, 100);
        invitations.count_use(None, &first).unwrap();
        assert!(is_known(&mut invitations, &Invitation { uses: 0, ..first }));
        invitations.keep_here(numbered(HERE_MAX + 2, 1, 100), at(50)).unwrap();
    }

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }
}
