//! Paths that somebody else names, below a directory that this process allows.

use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// The directory that `configured` names, else the one in which this process runs. `setting` is the name of the setting.
///
/// # Errors
/// [`Error::Io`] if there is none.
pub fn root(configured: Option<&Path>, setting: &str) -> Result<PathBuf> {
    let root = configured.unwrap_or(Path::new("."));
    root.canonicalize().map_err(|cause| io(format!("looking for {setting} {}", root.display()), &cause))
}

/// Makes a directory, and those above it, that is called so.
///
/// # Errors
/// [`Error::Io`].
pub fn make(directory: &Path, called: impl Display) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|cause| io(format!("making {called}"), &cause))
}

/// A path that somebody else has given, as it is called below `root`, which `setting` names. `of` says what lies there, such as
/// `of a checkpoint`; `hint` follows "give one below ...".
///
/// # Errors
/// [`Error::InvalidArgument`] if it leads somewhere else, also by a link.
pub fn below(root: &Path, path: &str, setting: &str, of: &str, hint: &str) -> Result<PathBuf> {
    let refused = |problem: String| {
        Err(Error::InvalidArgument {
            what: format!("the path {path} {of} {problem}"),
            hint: format!("give one below {}, or {hint}", root.display()),
        })
    };
    let given = Path::new(path);
    let relative = match given.is_absolute() {
        true => match given.strip_prefix(root) {
            Ok(relative) => relative,
            Err(_) => return refused(format!("lies outside {setting}")),
        },
        false => given,
    };
    let is_plain = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
    if !relative.components().all(|component| is_plain(&component)) {
        return refused("leads out of its directory".to_owned());
    }
    if !relative.components().any(|component| matches!(component, Component::Normal(_))) {
        return refused(format!("is {setting} itself"));
    }
    // A link on the way may lead anywhere.
    let mut there = root.join(relative);
    while !there.exists() && there.pop() {}
    match there.canonicalize() {
        Ok(real) if real.starts_with(root) => {
            Ok(relative.components().filter(|part| *part != Component::CurDir).collect())
        }
        Ok(_) => refused(format!("leads out of {setting} by a link")),
        Err(cause) => Err(io(format!("looking for {path}"), &cause)),
    }
}

/// The place of a directory for what an operator orders, below the one that the setting `dump_dir` names, which is made if it is not there.
///
/// # Errors
/// [`Error::InvalidArgument`] for a path that leads out of it; [`Error::Io`].
pub fn below_dump_dir(dump_dir: Option<&Path>, directory: &str) -> Result<PathBuf> {
    if let Some(named) = dump_dir {
        make(named, format_args!("dump_dir {}", named.display()))?;
    }
    let root = root(dump_dir, "dump_dir")?;
    let relative = below(&root, directory, "dump_dir", "of a dump", "start the process with another dump_dir")?;
    Ok(root.join(relative))
}

fn io(what: String, cause: &std::io::Error) -> Error {
    Error::Io { what, cause: cause.to_string() }
}
