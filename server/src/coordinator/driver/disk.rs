//! The thread of a coordinator that works on the files of checkpoints, so that nobody waits for the disk.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crossbeam_channel::{Sender, unbounded};
use gradlane_core::error::{Error, Result};
use gradlane_core::local::OwnThread;
use gradlane_core::types::JoinString;

use super::Input;
use crate::checkpoint::{self, Manifest, Saving};
use crate::coordinator::{Disk, DiskTask, Found};

/// The files of checkpoints.
pub(super) struct Files {
    work: Sender<Disk>,
    _thread: OwnThread,
}

/// What the thread knows.
struct Keeper {
    root: Option<PathBuf>,
    /// The lives of a job whose checkpoints this one goes on with; the first one is its own.
    lives: Vec<String>,
    /// The directories in which this job has saved. They stay locked as long as it lives.
    directories: BTreeMap<String, Saving>,
    /// The checkpoint that is being written: its directory, and its number.
    open: Option<(String, u64)>,
}

impl Files {
    /// Starts the thread. It works below `root` for a life of a job, which is named by its authority, and tells the coordinator by `inputs`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(super) fn start(root: Option<PathBuf>, join: &JoinString, inputs: Sender<Input>) -> Result<Self> {
        let life = join.ca_hash.map(|byte| format!("{byte:02x}")).concat();
        let (work, received) = unbounded::<Disk>();
        let thread = OwnThread::start("gl-checkpoints", move || {
            let mut keeper = Keeper { root, lives: vec![life], directories: BTreeMap::new(), open: None };
            while let Ok(Disk { number, task }) = received.recv() {
                let worked = catch_unwind(AssertUnwindSafe(|| keeper.work(task)));
                let outcome = worked.unwrap_or_else(|panic| Err(Error::of_panic("a checkpoint", &*panic)));
                if let Some(outcome) = outcome.transpose() {
                    let _ = inputs.send(Input::Disk { number, outcome });
                }
            }
        })?;
        Ok(Self { work, _thread: thread })
    }

    /// Has this done.
    pub(super) fn begin(&self, disk: Disk) {
        // The thread lives as long as this does.
        let _ = self.work.send(disk);
    }
}

impl Keeper {
    fn work(&mut self, task: DiskTask) -> Result<Option<Found>> {
        let root = checkpoint::root(self.root.as_deref())?;
        match task {
            DiskTask::Begin { path } => self.begin_save(&root, path).map(Some),
            DiskTask::Publish { manifest, keep } => {
                let (path, _) = self.open.as_ref().expect("it was begun");
                let manifest = Manifest { life: self.lives[0].clone(), ..manifest };
                self.directories[path].publish(&manifest, keep)?;
                self.open = None;
                Ok(Some(Found::Published))
            }
            DiskTask::GiveUp => {
                if let Some((path, number)) = self.open.take() {
                    self.directories[&path].give_up(number);
                }
                Ok(None)
            }
            DiskTask::Find { path, checkpoint } => {
                let (directory, manifest) = checkpoint::find(&root, &path, checkpoint)?;
                if !self.lives.contains(&manifest.life) {
                    self.lives.push(manifest.life.clone());
                }
                Ok(Some(Found::Whole { directory, manifest }))
            }
        }
    }

    fn begin_save(&mut self, root: &Path, path: String) -> Result<Found> {
        if !self.directories.contains_key(&path) {
            self.directories.insert(path.clone(), Saving::open(root, &path)?);
        }
        let begun = self.directories[&path].begin(&self.lives);
        if begun.is_err() {
            // Another job may save there.
            self.directories.remove(&path);
        }
        let (checkpoint, directory) = begun?;
        self.open = Some((path, checkpoint));
        Ok(Found::Begun { checkpoint, directory })
    }
}
