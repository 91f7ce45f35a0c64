//! The thread of a server that writes checkpoints and reads them, so that nothing else waits for the disk.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crossbeam_channel::{Sender, unbounded};
use gradlane_core::error::{Error, Result};
use gradlane_core::local::OwnThread;
use gradlane_core::mem::Pool;
use gradlane_core::types::{PartId, PartLayout, Plan, ServerId, Version, Written};

use crate::checkpoint::{self, FrozenPart, Source};
use crate::node::command::{Archive, Archived, Errand};

/// Files on behalf of one server.
pub(crate) struct Archivist {
    jobs: Sender<Job>,
    /// What is begun and lacks parts, which are being frozen.
    open: Mutex<Option<Job>>,
    _thread: OwnThread,
}

/// What the archivist has done.
pub(crate) enum Done {
    /// A part was read. Comes before the outcome.
    Read { part: PartId, order: u64, frozen: FrozenPart },
    /// The work has ended.
    Archived(Archived),
}

/// One piece of work, with the parts that were frozen for it.
struct Job {
    archive: Archive,
    parts: BTreeMap<PartId, FrozenPart>,
    /// A part was lost by a defect.
    lost: Option<PartId>,
    /// Parts that are not frozen yet.
    missing: usize,
}

impl Archivist {
    /// Starts the thread. It works below `root`, reads into memory of `pool`, and tells `done`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(crate) fn start(root: Option<PathBuf>, pool: Pool, done: impl Fn(Done) + Send + 'static) -> Result<Self> {
        let (jobs, received) = unbounded::<Job>();
        let thread = OwnThread::start("gl-archive", move || {
            while let Ok(job) = received.recv() {
                let order = job.archive.order;
                let worked = catch_unwind(AssertUnwindSafe(|| job.work(root.as_deref(), &pool, &done)));
                let outcome = worked.unwrap_or_else(|panic| Err(Error::of_panic("a checkpoint", &*panic)));
                done(Done::Archived(Archived { order, outcome }));
            }
        })?;
        Ok(Self { jobs, open: Mutex::default(), _thread: thread })
    }

    /// Begins a piece of work. Of a save, the parts come by [`take`](Self::take).
    pub(crate) fn begin(&self, archive: Archive) {
        let missing = match archive.errand {
            Errand::Save { .. } => archive.plan.parts.len(),
            Errand::Read { .. } => 0,
        };
        *self.open.lock().expect(LOCK) = Some(Job { archive, parts: BTreeMap::new(), lost: None, missing });
        self.pass_on(|_| {});
    }

    /// A part was frozen. The last one lets the writing begin.
    pub(crate) fn take(&self, order: u64, part: PartId, frozen: Option<FrozenPart>) {
        self.pass_on(|job| {
            if job.archive.order != order {
                return;
            }
            job.missing -= 1;
            match frozen {
                Some(frozen) => drop(job.parts.insert(part, frozen)),
                None => job.lost = Some(part),
            }
        });
    }

    /// Changes the job that is open, and hands it over if it lacks nothing any more. Lanes freeze parts at the same time.
    fn pass_on(&self, change: impl FnOnce(&mut Job)) {
        let mut open = self.open.lock().expect(LOCK);
        let Some(job) = open.as_mut() else { return };
        change(job);
        if let Some(job) = open.take_if(|job| job.missing == 0) {
            // The thread lives as long as this does.
            let _ = self.jobs.send(job);
        }
    }
}

impl Job {
    fn work(self, root: Option<&Path>, pool: &Pool, done: &impl Fn(Done)) -> Result<(Written, Vec<(PartId, Version)>)> {
        let Self { archive: Archive { order, directory, plan, errand }, mut parts, lost, .. } = self;
        let directory = checkpoint::place(&checkpoint::root(root)?, &directory)?;
        if !directory.is_dir() {
            return Err(Error::FailedPrecondition {
                what: format!("{} is not there for {}", directory.display(), server_of(&plan)),
                hint: "set checkpoint_dir to a directory that all servers and the coordinator share".to_owned(),
            });
        }
        if let Some(part) = lost {
            return Err(Error::Internal { what: format!("the value of part {part} was lost") });
        }
        match errand {
            Errand::Save { checkpoint, versions } => {
                for (layout, version) in plan.parts.iter().zip(versions) {
                    parts.get_mut(&layout.part).expect("all parts were frozen").version = version;
                }
                let written = checkpoint::write(&directory, server_of(&plan), checkpoint, &plan, &parts)?;
                Ok((written, Vec::new()))
            }
            Errand::Read { with_state, block_bytes } => {
                let blocks: BTreeMap<PartId, u64> =
                    plan.parts.iter().map(|layout| layout.part).zip(block_bytes).collect();
                let read = checkpoint::read(&Source { directory, with_state }, &plan, pool, |part| blocks[&part])?;
                let bytes = plan.parts.iter().map(PartLayout::bytes).sum();
                let versions = read.iter().map(|(part, frozen)| (*part, frozen.version)).collect();
                for (part, frozen) in read {
                    done(Done::Read { part, order, frozen });
                }
                Ok((Written { bytes, ..Written::default() }, versions))
            }
        }
    }
}

fn server_of(plan: &Plan) -> ServerId {
    plan.parts.first().map_or(ServerId(0), |layout| layout.server)
}

const LOCK: &str = "nobody panics while holding it";
