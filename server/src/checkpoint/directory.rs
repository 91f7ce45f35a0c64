//! The directory of the checkpoints of a job: where it may be, and what the coordinator does there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::local::confined;
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::wire::checksum;

use super::faults::{corrupt, io, no_checkpoint};
use super::manifest::{MANIFEST, Manifest, bytes_of};
use super::write::{PARTIAL, sync_directory, write_file};

/// The directory below which checkpoints are, as `checkpoint_dir` says.
///
/// # Errors
/// [`Error::Io`] if there is none.
pub fn root(configured: Option<&Path>) -> Result<PathBuf> {
    confined::root(configured, "checkpoint_dir")
}

/// The place of a directory below `root`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a path that leads out of it; [`Error::Io`].
pub fn place(root: &Path, path: &str) -> Result<PathBuf> {
    below(root, path).map(|relative| root.join(relative))
}

/// The directories in which a job has saved checkpoints, by the paths that its user has given. They stay locked as long as this lives.
#[derive(Debug)]
pub struct Directories {
    /// The lives of a job whose checkpoints this one goes on with; the first one is its own.
    lives: Vec<String>,
    /// By their places, because a path can be spelled in several ways.
    locked: BTreeMap<PathBuf, Arc<Saving>>,
}

impl Directories {
    /// None yet, for this life of a job.
    pub fn new(life: String) -> Self {
        Self { lives: vec![life], locked: BTreeMap::new() }
    }

    /// The life of the job that saves.
    pub fn life(&self) -> &str {
        &self.lives[0]
    }

    /// The job goes on with the checkpoints of the life that has saved this one.
    pub fn go_on_with(&mut self, manifest: &Manifest) {
        if !self.lives.contains(&manifest.life) {
            self.lives.push(manifest.life.clone());
        }
    }

    /// Begins the next checkpoint in the directory `path` below `root`, which is made if it is not there, and locked. Returns the directory,
    /// the number of the checkpoint, and its own path below `root`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a path that leads out of `root`; [`Error::FailedPrecondition`] if it is no directory, another job saves
    /// there, or the newest checkpoint is of a life that this job does not go on with; [`Error::Io`].
    pub fn begin(&mut self, root: &Path, path: &str) -> Result<(Arc<Saving>, u64, String)> {
        let (place, relative) = make(root, path)?;
        if !self.locked.contains_key(&place) {
            self.locked.insert(place.clone(), Arc::new(Saving::lock(place.clone(), relative)?));
        }
        let saving = Arc::clone(&self.locked[&place]);
        match saving.begin(&self.lives) {
            Ok((number, relative)) => Ok((saving, number, relative)),
            Err(error) => {
                // Another job may save there.
                self.locked.remove(&place);
                Err(error)
            }
        }
    }
}

/// A directory in which one coordinator saves checkpoints. Nobody else does while it is alive.
#[derive(Debug)]
pub struct Saving {
    /// The place of the directory.
    path: PathBuf,
    /// As it is called below the root.
    relative: PathBuf,
    /// Locked.
    _lock: File,
}

const LATEST: &str = "latest";
const LOCK: &str = "lock";
const NAME: &str = "checkpoint-";

impl Saving {
    /// Locks the directory at `path`, which is called `relative` below the root.
    fn lock(path: PathBuf, relative: PathBuf) -> Result<Self> {
        let lock = path.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&lock);
        let file = file.map_err(io(format!("opening {}", lock.display())))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, relative, _lock: file }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::FailedPrecondition {
                what: format!("another job saves its checkpoints in {}", path.display()),
                hint: "give each job a directory of its own".to_owned(),
            }),
            Err(fs::TryLockError::Error(error)) => Err(io(format!("locking {}", lock.display()))(error)),
        }
    }

    /// Makes the directory of the next checkpoint, without which nothing is written there. Returns its number, and its path below the root.
    /// What earlier saves have not finished is removed.
    fn begin(&self, lives: &[String]) -> Result<(u64, String)> {
        let found = numbers(&self.path)?;
        let is_whole = |number: &u64| self.checkpoint(*number).join(MANIFEST).exists();
        if let Some(newest) = found.iter().copied().filter(is_whole).max() {
            let of = Manifest::read(&self.checkpoint(newest))?;
            if !lives.contains(&of.life) {
                return Err(Error::FailedPrecondition {
                    what: format!("{} has checkpoints of another start of job {}", self.path.display(), of.job),
                    hint: "load one of them first to go on with it, or give another path".to_owned(),
                });
            }
        }
        for number in found.iter().filter(|number| !is_whole(number)) {
            remove(&self.checkpoint(*number))?;
        }
        self.remove_partial()?;
        let number = found.last().map_or(1, |newest| newest + 1);
        let path = self.checkpoint(number);
        fs::create_dir(&path).map_err(io(format!("making {}", path.display())))?;
        let relative = self.relative.join(format!("{NAME}{number}"));
        Ok((number, relative.to_string_lossy().into_owned()))
    }

    /// All servers have written: makes the checkpoint whole and the latest, and removes those that are not kept.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if a server has written somewhere else; [`Error::Io`].
    pub fn publish(&self, manifest: &Manifest, keep: Option<u32>) -> Result<()> {
        let directory = self.checkpoint(manifest.checkpoint);
        for table in &manifest.tables {
            let path = directory.join(&table.file);
            if fs::metadata(&path).map(|file| file.len()).ok() != Some(table.bytes) {
                return Err(Error::FailedPrecondition {
                    what: format!(
                        "a server has written {}, and the coordinator does not find it there",
                        path.display()
                    ),
                    hint: "set checkpoint_dir to a directory that all servers and the coordinator share".to_owned(),
                });
            }
        }
        let bytes = bytes_of(manifest);
        reach(Failpoint::ManifestMade);
        write_file(&directory, MANIFEST, |file| std::io::Write::write_all(file, &bytes))?;
        sync_directory(&directory)?;
        sync_directory(&self.path)?;
        reach(Failpoint::ManifestWritten);
        let name = format!("{NAME}{}", manifest.checkpoint);
        let latest = latest_text(&name);
        write_file(&self.path, LATEST, |file| std::io::Write::write_all(file, latest.as_bytes()))?;
        sync_directory(&self.path)?;
        reach(Failpoint::LatestMoved);
        if let Some(keep) = keep {
            let found = numbers(&self.path)?;
            let old = found.len().saturating_sub(keep as usize);
            found[..old].iter().try_for_each(|number| remove(&self.checkpoint(*number)))?;
        }
        Ok(())
    }

    /// The checkpoint with this number will not become whole.
    pub fn give_up(&self, number: u64) {
        let path = self.checkpoint(number);
        if let Err(error) = remove(&path) {
            tracing::warn!(%error, "what was written of a checkpoint is left");
        }
    }

    fn checkpoint(&self, number: u64) -> PathBuf {
        self.path.join(format!("{NAME}{number}"))
    }

    fn remove_partial(&self) -> Result<()> {
        let what = || format!("cleaning {}", self.path.display());
        for entry in fs::read_dir(&self.path).map_err(io(what()))? {
            let entry = entry.map_err(io(what()))?;
            if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                fs::remove_file(entry.path()).map_err(io(what()))?;
            }
        }
        Ok(())
    }
}

/// Makes the directory `path` below `root` if it is not there. Returns its place, without links, and how it is called below `root`.
fn make(root: &Path, path: &str) -> Result<(PathBuf, PathBuf)> {
    let relative = below(root, path)?;
    let place = root.join(&relative);
    if place.exists() && !place.is_dir() {
        return Err(Error::FailedPrecondition {
            what: format!("{} is there, and is no directory", place.display()),
            hint: "give another path for the checkpoints".to_owned(),
        });
    }
    let making = || io(format!("making {}", place.display()));
    fs::create_dir_all(&place).map_err(making())?;
    Ok((place.canonicalize().map_err(making())?, relative))
}

/// Finds the checkpoint `number`, or the latest, of the directory `path` below `root`. Returns its path below the root. With `if_any`, there
/// may be no latest one: then it returns `None`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a path that leads out of `root`; [`Error::NotFound`]; [`Error::CorruptCheckpoint`]; [`Error::Io`].
pub fn find(root: &Path, path: &str, number: Option<u64>, if_any: bool) -> Result<Option<(String, Manifest)>> {
    let relative = below(root, path)?;
    if if_any && number.is_none() && !root.join(&relative).join(LATEST).exists() {
        return Ok(None);
    }
    let (directory, manifest) = open(&root.join(&relative), number)?;
    let name = directory.file_name().expect("it has the name of a checkpoint");
    Ok(Some((relative.join(name).to_string_lossy().into_owned(), manifest)))
}

/// Finds the checkpoint `number`, or the latest, in a directory. Returns its own directory.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::CorruptCheckpoint`]; [`Error::Io`].
pub fn open(path: &Path, number: Option<u64>) -> Result<(PathBuf, Manifest)> {
    let number = match number {
        Some(number) => number,
        None => latest(path)?,
    };
    let directory = path.join(format!("{NAME}{number}"));
    let manifest = Manifest::read(&directory)?;
    if manifest.checkpoint != number {
        return Err(corrupt(
            MANIFEST,
            format!("is that of checkpoint {}, in the directory of {number}", manifest.checkpoint),
        ));
    }
    Ok((directory, manifest))
}

/// What the file that names the latest checkpoint says.
fn latest_text(name: &str) -> String {
    format!("{name} {:08x}\n", checksum(0, name.as_bytes()))
}

/// The number of the latest checkpoint in a directory.
fn latest(directory: &Path) -> Result<u64> {
    let path = directory.join(LATEST);
    let shown = path.display().to_string();
    if !path.exists() {
        return Err(no_checkpoint(directory));
    }
    let text = fs::read_to_string(&path).map_err(io(format!("reading {shown}")))?;
    let named = text.split_once(' ').map(|(name, _)| name).filter(|name| latest_text(name) == text);
    let number = named.and_then(|name| name.strip_prefix(NAME)?.parse().ok());
    number.ok_or_else(|| corrupt(shown, "does not name a checkpoint"))
}

/// The numbers of the checkpoints in a directory, whole or not, in order.
fn numbers(directory: &Path) -> Result<Vec<u64>> {
    let what = || format!("reading {}", directory.display());
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(io(what()))? {
        let name = entry.map_err(io(what()))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix(NAME)?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes a checkpoint. Its manifest goes first, so that what is left of it is none.
fn remove(path: &Path) -> Result<()> {
    let what = || format!("removing {}", path.display());
    let manifest = path.join(MANIFEST);
    if manifest.exists() {
        fs::remove_file(&manifest).map_err(io(what()))?;
    }
    fs::remove_dir_all(path).map_err(io(what()))
}

/// A path that a worker or an operator has given, as it is called below `root`.
///
/// # Errors
/// [`Error::InvalidArgument`] if it leads somewhere else.
fn below(root: &Path, path: &str) -> Result<PathBuf> {
    let hint = "start coordinator and servers with another checkpoint_dir";
    confined::below(root, path, "checkpoint_dir", "of a checkpoint", hint)
}
