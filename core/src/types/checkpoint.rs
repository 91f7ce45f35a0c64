//! Checkpoints: what a worker asks for, what the coordinator orders the servers to do, and what they answer.
//!
//! The coordinator decides everything: the number of a checkpoint, which server writes which parts, and when values that were read take the
//! place of the present ones. Its order to save comes to all servers between the same two closed rounds of each clock.

use std::time::Duration;

use super::{ClockKey, PartLayout, TensorSpec};
use crate::error::{Error, Result};

/// What a worker asks of the checkpoints of its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointAsk {
    /// To write the parameters to files.
    Save(SaveAsk),
    /// To read them from files.
    Load(LoadAsk),
}

/// To save the parameters of the job, with all that their rules keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaveAsk {
    /// The directory of the checkpoints, below `checkpoint_dir` of coordinator and servers.
    pub path: String,
    /// How many checkpoints stay there; `None` for all.
    pub keep: Option<u32>,
    /// What the caller wants back when the checkpoint is loaded.
    pub notes: String,
    /// Whether the job may have tables, of which the checkpoint has nothing, because the caller saves them apart.
    pub tables_apart: bool,
    /// How long the caller waits.
    pub wait: Duration,
}

/// To load the parameters of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadAsk {
    /// The directory of the checkpoints, below `checkpoint_dir` of coordinator and servers.
    pub path: String,
    /// Which one; `None` for the latest.
    pub checkpoint: Option<u64>,
    /// What becomes of parameters that the checkpoint lacks.
    pub missing: Missing,
    /// Whether the checkpoint may have tensors that the job lacks.
    pub ignore_extra: bool,
    /// Whether what the rules keep is loaded too. Otherwise they begin anew.
    pub with_state: bool,
    /// Whether a directory without any checkpoint is no error. Nothing is loaded then, and the answer is [`Checkpointed::nothing`].
    pub if_any: bool,
    /// How long the caller waits.
    pub wait: Duration,
}

/// What becomes of a parameter that a checkpoint lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Missing {
    /// Nothing is loaded.
    Refuse = 1,
    /// It keeps the value that it has, or waits for its first one.
    Leave = 2,
    /// Its value is zero.
    Zero = 3,
}

impl Missing {
    /// The one with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Refuse),
            2 => Some(Self::Leave),
            3 => Some(Self::Zero),
            _ => None,
        }
    }
}

/// A checkpoint was saved, or loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpointed {
    /// Its number: those in one directory count from 1.
    pub checkpoint: u64,
    /// Its directory, as the coordinator calls it.
    pub directory: String,
    /// How many tensors were written, or read.
    pub tensors: u64,
    /// The bytes of their values.
    pub bytes: u64,
    /// How many files it has.
    pub files: u64,
    /// Of each clock the global step that the values have.
    pub steps: Vec<ClockStep>,
    /// What was given when it was saved.
    pub notes: String,
}

impl Checkpointed {
    /// Nothing was loaded, because there is no checkpoint. It has the number 0.
    pub const fn nothing() -> Self {
        Self {
            checkpoint: 0,
            directory: String::new(),
            tensors: 0,
            bytes: 0,
            files: 0,
            steps: Vec::new(),
            notes: String::new(),
        }
    }
}

/// How far a clock is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClockStep {
    /// Which clock.
    pub clock: ClockKey,
    /// Its global step.
    pub step: u64,
    /// The samples of its rounds, if they are told.
    pub samples: u64,
}

/// An order of the coordinator to a server. It may be repeated after a reconnection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Which save or load; later ones have higher numbers.
    pub number: u64,
    /// What to do for it.
    pub task: Task,
}

/// What a server does for a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// Freeze these parts as they are now, and write them.
    Save {
        /// Where: a directory that is there, below the server's `checkpoint_dir`.
        directory: String,
        /// The number of the checkpoint.
        checkpoint: u64,
        /// What to write.
        plan: Plan,
    },
    /// Read these parts, and keep them beside the present values.
    Read {
        /// The directory of a whole checkpoint, below the server's `checkpoint_dir`.
        directory: String,
        /// Whether to read what the rules keep, too.
        with_state: bool,
        /// What to read. Tensors that the checkpoint lacks are zero.
        plan: Plan,
    },
    /// What was read takes the place of the present values.
    Apply {
        /// Of each clock, as its step, what is added to its rounds from now on to make the global step, modulo 2^64.
        bases: Vec<ClockStep>,
    },
    /// Forget what was read.
    Cancel,
}

/// Parts of parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Tensors of which the parts have bytes.
    pub tensors: Vec<TensorSpec>,
    /// Those of one server.
    pub parts: Vec<PartLayout>,
}

/// What a server has written, or read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// The name of its table of contents, with its bytes and their CRC-32C; absent if it had only read.
    pub table: Option<TableFile>,
    /// How many files it has written.
    pub files: u64,
    /// Bytes of values.
    pub bytes: u64,
    /// Of each clock with rounds, the global step whose changes the values have.
    pub rounds: Vec<ClockStep>,
}

/// A file that says what else a server has written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableFile {
    /// Its name, within the directory of the checkpoint.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32C of it.
    pub checksum: u32,
}

/// What a whole checkpoint has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// Its number.
    pub checkpoint: u64,
    /// Its tensors.
    pub tensors: Vec<TensorSpec>,
    /// The table of each server that has written.
    pub tables: Vec<TableFile>,
    /// How far the clocks are.
    pub steps: Vec<ClockStep>,
    /// What the caller has given.
    pub notes: String,
}

impl Contents {
    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Compares it with the parameters of a job. Returns the names of those that it lacks.
    ///
    /// # Errors
    /// [`Error::NotFound`] that names one, where that is not allowed, or a tensor that the job lacks; as [`check_saved`].
    pub fn compare(&self, tensors: &[TensorSpec], ask: &LoadAsk) -> Result<Vec<String>> {
        let mut lacking = Vec::new();
        for tensor in tensors {
            match self.tensor(&tensor.name) {
                Some(saved) => check_saved(saved, tensor)?,
                None => lacking.push(tensor.name.clone()),
            }
        }
        if let (Missing::Refuse, Some(name)) = (ask.missing, lacking.first()) {
            return Err(Error::NotFound {
                what: format!("parameter {name} in checkpoint {} of {}", self.checkpoint, ask.path),
                hint: "say what becomes of missing parameters, or load a checkpoint of this model".to_owned(),
            });
        }
        let is_known = |saved: &&TensorSpec| tensors.iter().any(|tensor| tensor.name == saved.name);
        if let (false, Some(saved)) = (ask.ignore_extra, self.tensors.iter().find(|saved| !is_known(saved))) {
            return Err(Error::NotFound {
                what: format!("parameter {} of checkpoint {} in this job", saved.name, self.checkpoint),
                hint: "declare it, or ignore what the checkpoint has beside the parameters of this job".to_owned(),
            });
        }
        Ok(lacking)
    }
}

/// Refuses a tensor that was saved with another element type or shape.
///
/// # Errors
/// [`Error::FailedPrecondition`] that names both.
pub fn check_saved(saved: &TensorSpec, tensor: &TensorSpec) -> Result<()> {
    if (saved.dtype, &saved.shape) == (tensor.dtype, &tensor.shape) {
        return Ok(());
    }
    let shape = |shape: &[u64]| shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::FailedPrecondition {
        what: format!(
            "tensor {}: it was saved as {} of shape ({}), and is {} of shape ({}) here",
            tensor.name,
            saved.dtype,
            shape(&saved.shape),
            tensor.dtype,
            shape(&tensor.shape)
        ),
        hint: "declare it as it was saved".to_owned(),
    })
}
