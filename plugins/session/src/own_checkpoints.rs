//! Checkpoints of a job of one worker without servers: this process writes and reads what it keeps, in the files that servers would make.

use std::path::PathBuf;
use std::sync::Mutex;

use gradlane_core::config::Config;
use gradlane_core::mem::Pool;
use gradlane_core::runtime::process;
use gradlane_core::types::{
    Ask, CheckpointAsk, Checkpointed, Contents, LoadAsk, Missing, PartLayout, Piece, Plan, SaveAsk, ServerId, Span,
    TensorSpec,
};
use gradlane_core::wire::limits;
use gradlane_core::{Error, Result};
use gradlane_server::checkpoint::{self, Directories, Manifest, Source};

use crate::parameters::{FrozenParameters, Parameters, part_of};

/// The files of this process.
pub(crate) struct OwnCheckpoints {
    root: Option<PathBuf>,
    job: String,
    /// Where it has saved.
    directories: Mutex<Directories>,
}

impl OwnCheckpoints {
    pub(crate) fn new(config: &Config) -> Self {
        let life = format!("{:032x}", process::incarnation().0);
        let directories = Mutex::new(Directories::new(life));
        Self { root: config.checkpoint_dir.clone(), job: config.job.clone(), directories }
    }

    /// Saves or loads.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`](gradlane_core::engine::Engine::checkpoint).
    pub(crate) fn work(&self, ask: CheckpointAsk, parameters: &Parameters) -> Result<Checkpointed> {
        limits::check_ask(&Ask::Checkpoint(ask.clone()))?;
        let mut directories = self.directories.try_lock().map_err(|_| Error::FailedPrecondition {
            what: "another thread saves or loads a checkpoint".to_owned(),
            hint: "wait for its end".to_owned(),
        })?;
        match ask {
            CheckpointAsk::Save(ask) => self.save(&mut directories, ask, parameters),
            CheckpointAsk::Load(ask) => self.load(&mut directories, ask, parameters),
        }
    }

    fn save(&self, directories: &mut Directories, ask: SaveAsk, parameters: &Parameters) -> Result<Checkpointed> {
        let SaveAsk { path, keep, notes, tables_apart: _, wait: _ } = ask;
        let root = checkpoint::root(self.root.as_deref())?;
        let pool = Pool::new();
        let FrozenParameters { tensors, parts, steps } = parameters.frozen(&pool)?;
        if tensors.is_empty() {
            return Err(Error::FailedPrecondition {
                what: "this job has no parameter".to_owned(),
                hint: "declare the parameters first; sums have nothing to save".to_owned(),
            });
        }
        let (saving, checkpoint, directory) = directories.begin(&root, &path)?;
        let plan = plan_of(&tensors);
        let saved =
            checkpoint::write(&root.join(&directory), ServerId(0), checkpoint, &plan, &parts).and_then(|written| {
                let contents = Contents {
                    checkpoint,
                    tensors: tensors.clone(),
                    tables: written.table.clone().into_iter().collect(),
                    steps: steps.clone(),
                    notes: notes.clone(),
                };
                let manifest = Manifest::of(&contents, &self.job, directories.life());
                saving.publish(&manifest, keep)?;
                Ok(written)
            });
        let written = saved.inspect_err(|_| saving.give_up(checkpoint))?;
        let (count, files) = (tensors.len() as u64, written.files + 1);
        Ok(Checkpointed { checkpoint, directory, tensors: count, bytes: written.bytes, files, steps, notes })
    }

    fn load(&self, directories: &mut Directories, ask: LoadAsk, parameters: &Parameters) -> Result<Checkpointed> {
        let root = checkpoint::root(self.root.as_deref())?;
        let Some((directory, manifest)) = checkpoint::find(&root, &ask.path, ask.checkpoint, ask.if_any)? else {
            return Ok(Checkpointed::nothing());
        };
        let tensors = parameters.tensors();
        let contents = manifest.contents()?;
        let lacking = contents.compare(&tensors, &ask)?;
        let is_read = |tensor: &&TensorSpec| ask.missing == Missing::Zero || !lacking.contains(&tensor.name);
        let read: Vec<TensorSpec> = tensors.iter().filter(is_read).cloned().collect();
        let plan = plan_of(&read);
        let source = Source { directory: root.join(&directory), with_state: ask.with_state };
        let parts = checkpoint::read(&source, &plan, &Pool::new(), |_| limits::PART_BYTES_MAX)?;
        parameters.restore(&parts, &contents.steps)?;
        directories.go_on_with(&manifest);
        Ok(Checkpointed {
            checkpoint: manifest.checkpoint,
            directory,
            tensors: tensors.len() as u64 - lacking.len() as u64,
            bytes: plan.parts.iter().map(PartLayout::bytes).sum(),
            files: manifest.tables.len() as u64 + 1,
            steps: contents.steps,
            notes: manifest.notes.clone(),
        })
    }
}

/// Each tensor is one part.
fn plan_of(tensors: &[TensorSpec]) -> Plan {
    let layout = |tensor: &TensorSpec| {
        let span = Span { offset: 0, bytes: tensor.bytes().expect("its value lies in memory") };
        let pieces = vec![Piece { tensor: tensor.key(), span }];
        PartLayout { part: part_of(tensor), dtype: tensor.dtype, kind: tensor.kind, server: ServerId(0), pieces }
    };
    Plan { tensors: tensors.to_vec(), parts: tensors.iter().map(layout).collect() }
}
