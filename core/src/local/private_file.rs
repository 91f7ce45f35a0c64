//! Files and directories that only this user can read and write.
//!
//! Everything that Gradlane keeps for later is written here. A reader sees the former content or the new one, never a part, because the new
//! content gets the name only when it is complete. A directory is trusted by its mode *and* its owner: the owner of a directory can
//! replace every file in it, whoever the files belong to.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes `content` to a file that only the user can read. The file is never seen half written, not even after a power cut: the content
/// is on the disk before the file gets its name, and the name before this returns. If this fails, a file that was there stays as it was.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    try_write(path, content.as_ref()).map_err(|error| failed("writing", path, &error))
}

/// Makes `directory` as [`directory`] does, and writes a file in it as [`write`] does. Another process may remove directories that are
/// empty; then this one is made again.
///
/// # Errors
/// [`Error::Io`], and those of [`directory`].
pub fn write_in(directory: &Path, if_open: IfOpen, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
    const ATTEMPTS: u32 = 100;
    let path = directory.join(name);
    let mut attempt = 1;
    loop {
        match self::directory(directory, if_open) {
            Err(_) if attempt < ATTEMPTS && !directory.exists() => {
                attempt += 1;
                continue;
            }
            made => made?,
        }
        match try_write(&path, content.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => attempt += 1,
            written => return written.map_err(|error| failed("writing", &path, &error)),
        }
    }
}

fn try_write(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        // A draft left behind by a process of the same number would keep its permissions.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

/// What to do with a directory of this user that others may enter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfOpen {
    /// Refuse it: what is in it may be known to others.
    Refuse,
    /// Shut it: it may have been made by hand, with the permissions of the umask.
    Shut,
}

/// Makes `path` unless it exists, and makes sure that it belongs to this user and that nobody else can enter it.
///
/// # Errors
/// [`Error::Io`] if it cannot be made or looked at, [`Error::Auth`] if it belongs to another user or is open to others.
pub fn directory(path: &Path, if_open: IfOpen) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| failed("creating", path, &error))?;
    let metadata = fs::metadata(path).map_err(|error| failed("looking at", path, &error))?;
    check_owner(path, metadata.uid(), rustix::process::geteuid().as_raw())?;
    let mode = metadata.mode() & 0o777;
    match if_open {
        IfOpen::Refuse if mode & 0o077 != 0 => Err(Error::Auth {
            problem: format!("{} is open to others (mode {mode:o})", path.display()),
            hint: format!("chmod 700 {}", path.display()),
        }),
        IfOpen::Shut if mode != 0o700 => fs::set_permissions(path, Permissions::from_mode(0o700))
            .map_err(|error| failed("shutting to others", path, &error)),
        IfOpen::Refuse | IfOpen::Shut => Ok(()),
    }
}

fn check_owner(path: &Path, owner: u32, this_user: u32) -> Result<()> {
    if owner == this_user {
        return Ok(());
    }
    Err(Error::Auth {
        problem: format!("{} belongs to user {owner}, and this process runs as user {this_user}", path.display()),
        hint: "its owner could replace the secrets in it: give a directory of your own (state_dir)".to_owned(),
    })
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> Error {
    Error::Io { what: format!("{doing} {}", path.display()), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_the_former_content_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        write(&path, "a").unwrap();
        let former = File::open(&path).unwrap();
        write(&path, "longer").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "longer");
        assert_eq!(former.metadata().unwrap().len(), 1, "the file that was open is another one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_former_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::create_dir(&path).unwrap();
        assert!(matches!(write(&path, "new"), Err(Error::Io { .. })));
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_is_written_although_its_empty_directory_is_removed_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job");
        for number in 0..50 {
            std::thread::scope(|scope| {
                // A few times, at any moments.
                scope.spawn(|| (0..5).for_each(|_| drop(fs::remove_dir(&path))));
                write_in(&path, IfOpen::Shut, "join", number.to_string()).unwrap();
                assert_eq!(fs::read_to_string(path.join("join")).unwrap(), number.to_string());
            });
            fs::remove_file(path.join("join")).unwrap();
        }
    }

    #[test]
    fn a_directory_is_made_shut_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs/resnet");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        directory(&path, IfOpen::Refuse).unwrap();
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        let error = directory(&path, IfOpen::Refuse).unwrap_err().to_string();
        assert!(error.contains("open to others (mode 750)"), "{error}");
        directory(&path, IfOpen::Shut).unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn a_directory_of_another_user_is_refused_however_shut_it_is() {
        let error = check_owner(Path::new("/state"), 1001, 1000).unwrap_err();
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("belongs to user 1001")), "{error}");
        let dir = tempfile::tempdir().unwrap();
        // Only root can give a directory away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
            for if_open in [IfOpen::Refuse, IfOpen::Shut] {
                assert!(matches!(directory(dir.path(), if_open), Err(Error::Auth { .. })));
            }
        }
    }
}
