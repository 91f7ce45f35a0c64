//! Files that only the user can read, replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gradlane_core::{Error, Result};

/// Writes `content` to a file that only the user can read. The file is never seen half written, not even after a power cut: the content
/// is on the disk before the file gets its name, and the name before this returns. If this fails, a file that was there stays as it was.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write(path: &Path, content: &str) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        // A draft left behind by a process of the same number would keep its permissions.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&draft);
        Error::Io { what: format!("writing {}", path.display()), cause: error.to_string() }
    })
}
