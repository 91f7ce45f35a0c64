//! Further join secrets of a job that runs: each lets in processes of one role, so many of them, and for so long.
//!
//! They are files in the directory of the job's authority, which only its user can read. A command writes them, and the coordinator reads
//! them when a process comes whose secret is not the job's own. Only the coordinator counts their uses.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;

use crate::error::{Error, Result};
use crate::types::Role;

/// A secret that a process may enrol with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Invitation {
    pub(super) role: Role,
    /// How many processes it still lets in.
    pub(super) uses: u32,
    /// Until when, in seconds since 1970.
    pub(super) until: u64,
    pub(super) secret: [u8; 16],
}

impl Invitation {
    /// The file in which it is kept below `dir`. Its name says nothing of the secret.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        folder(dir).join(HEXLOWER.encode(&super::certificate::sha256(&self.secret)[..8]))
    }

    /// The text of its file.
    pub(super) fn text(&self) -> String {
        let Self { role, uses, until, secret } = self;
        format!("{MAGIC} {role} {uses} {until} {}\n", HEXLOWER.encode(secret))
    }

    /// The invitation in the text of a file.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix(MAGIC)?.split_whitespace();
        let role = Role::named(words.next()?).filter(|role| matches!(role, Role::Worker | Role::Server))?;
        let (uses, until) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let secret = HEXLOWER.decode(words.next()?.as_bytes()).ok()?.try_into().ok()?;
        if words.next().is_none() { Some(Self { role, uses, until, secret }) } else { None }
    }
}

/// The invitations below `dir` that are still good at `now`. Removes the others.
///
/// # Errors
/// [`Error::Io`] if the directory cannot be read.
pub(super) fn all(dir: &Path, now: SystemTime) -> Result<Vec<Invitation>> {
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
        // Join files lie beside them, and drafts.
        if path.extension().is_some() || path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        {
            continue;
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        match (read, Invitation::parse(&text)) {
            (Ok(_), Some(invitation)) if invitation.uses > 0 && seconds(now) < invitation.until => {
                found.push(invitation)
            }
            (Ok(_), Some(_)) => drop(fs::remove_file(&path)),
            (Ok(_), None) => tracing::warn!(path = %path.display(), "no invitation can be read from this file"),
            // Used up since the directory was listed.
            (Err(_), _) => {}
        }
    }
    Ok(found)
}

/// Removes all invitations below `dir`.
///
/// # Errors
/// [`Error::Io`] if something is left.
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
/// Of which others are not looked at.
const FILES_MAX: usize = 512;
const BYTES_MAX: u64 = 256;

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
    fn one_that_is_used_up_or_too_old_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        let good = Invitation { role: Role::Worker, uses: 1, until: 100, secret: [1; 16] };
        let used = Invitation { uses: 0, secret: [2; 16], ..good.clone() };
        let old = Invitation { until: 50, secret: [3; 16], ..good.clone() };
        for invitation in [&good, &used, &old] {
            fs::write(invitation.path(dir.path()), invitation.text()).unwrap();
        }
        let now = UNIX_EPOCH + Duration::from_secs(50);
        assert!(all(dir.path(), now).unwrap() == [good.clone()]);
        assert_eq!(fs::read_dir(folder(dir.path())).unwrap().count(), 1);
        forget(dir.path()).unwrap();
        assert!(all(dir.path(), now).unwrap().is_empty());
    }
}
