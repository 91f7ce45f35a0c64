//! The thread of a coordinator that works on the files of checkpoints, so that nobody waits for the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Sender, unbounded};
use gradlane_core::config::Config;
use gradlane_core::error::{Error, Result};
use gradlane_core::local::OwnThread;
use gradlane_core::types::JoinString;

use crate::checkpoint::{self, Directories, Manifest, Saving};
use crate::coordinator::{Disk, DiskTask, Found};

/// The files of checkpoints.
pub(super) struct Files {
    work: Sender<Disk>,
    _thread: OwnThread,
}

/// What the thread knows.
struct Keeper {
    root: Option<PathBuf>,
    /// The name of the job.
    job: String,
    /// Where this job has saved.
    directories: Directories,
    /// The checkpoint that is being written: the directory that has it, and its number.
    open: Option<(Arc<Saving>, u64)>,
    /// The checkpoint that is being loaded.
    found: Option<Manifest>,
}

impl Files {
    /// Starts the thread. It works below `checkpoint_dir` for a life of the job, which is named by its authority, and tells `done`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(super) fn start(
        config: &Config,
        join: &JoinString,
        done: impl Fn(u64, Result<Found>) + Send + 'static,
    ) -> Result<Self> {
        let life = join.ca_hash.map(|byte| format!("{byte:02x}")).concat();
        let (root, job) = (config.checkpoint_dir.clone(), config.job.clone());
        let (work, received) = unbounded::<Disk>();
        let thread = OwnThread::start("gl-checkpoints", move || {
            let mut keeper = Keeper { root, job, directories: Directories::new(life), open: None, found: None };
            while let Ok(Disk { number, task }) = received.recv() {
                let worked = catch_unwind(AssertUnwindSafe(|| keeper.work(task)));
                let outcome = worked.unwrap_or_else(|panic| Err(Error::of_panic("a checkpoint", &*panic)));
                if let Some(outcome) = outcome.transpose() {
                    done(number, outcome);
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
            DiskTask::Begin { path } => {
                let (saving, checkpoint, directory) = self.directories.begin(&root, &path)?;
                self.open = Some((saving, checkpoint));
                Ok(Some(Found::Begun { checkpoint, directory }))
            }
            DiskTask::Publish { contents, keep } => {
                let (saving, _) = self.open.as_ref().expect("it was begun");
                let manifest = Manifest::of(&contents, &self.job, self.directories.life());
                saving.publish(&manifest, keep)?;
                self.open = None;
                Ok(Some(Found::Published))
            }
            DiskTask::GiveUp => {
                if let Some((saving, number)) = self.open.take() {
                    saving.give_up(number);
                }
                Ok(None)
            }
            DiskTask::Find { path, checkpoint, if_any } => {
                let Some((directory, manifest)) = checkpoint::find(&root, &path, checkpoint, if_any)? else {
                    return Ok(Some(Found::Nothing));
                };
                let contents = manifest.contents()?;
                self.found = Some(manifest);
                Ok(Some(Found::Whole { directory, contents }))
            }
            DiskTask::GoOn => {
                if let Some(manifest) = self.found.take() {
                    self.directories.go_on_with(&manifest);
                }
                Ok(None)
            }
        }
    }
}
