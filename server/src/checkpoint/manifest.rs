//! What the text files of a checkpoint say.

use std::path::Path;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{ClockKey, ClockStep, Contents, DType, TableFile, TensorSpec};
use gradlane_core::wire::checksum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::faults::{corrupt, io, no_checkpoint};

/// The form of all files of a checkpoint. A change that an older release cannot read raises it.
pub(super) const FORMAT: u32 = 1;

/// The name of the file that makes a directory a checkpoint.
pub(super) const MANIFEST: &str = "manifest.json";

/// What a checkpoint is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of its files.
    pub format: u32,
    /// The name of the job that has saved it.
    pub job: String,
    /// The life of this job: equal for all checkpoints that one start of a coordinator has saved.
    pub life: String,
    /// Its number.
    pub checkpoint: u64,
    /// Of each clock, the global step whose changes the values have.
    pub clocks: Vec<SavedClock>,
    /// All tensors.
    pub tensors: Vec<SavedTensor>,
    /// One file for each server that had parts.
    pub tables: Vec<SavedTable>,
    /// What the caller has given.
    pub notes: String,
    /// CRC-32C of this text with 0 in this place.
    pub checksum: u32,
}

/// How far a clock was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedClock {
    /// The clock's key.
    pub clock: u64,
    /// The global step.
    pub step: u64,
    /// The samples of its rounds.
    pub samples: u64,
}

/// A tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTensor {
    /// Its name.
    pub name: String,
    /// Its element type, such as `float32`.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// The rule by which gradients changed it.
    pub rule: Option<String>,
    /// When they did.
    pub mode: String,
}

/// The file that says what a server has written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTable {
    /// Its name.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32C of it.
    pub checksum: u32,
}

/// What a server has written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) format: u32,
    pub(super) checkpoint: u64,
    /// The file of the values.
    pub(super) values: DataFile,
    /// The file of what rules keep, if they keep something.
    pub(super) state: Option<DataFile>,
    pub(super) runs: Vec<Run>,
}

/// A file in the form of safetensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DataFile {
    pub(super) file: String,
    /// CRC-32C of its header, with the length that precedes it.
    pub(super) header: u32,
}

/// Elements of a tensor that follow each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub(super) tensor: String,
    /// The first element, and the one behind the last.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) version: u64,
    pub(super) value: Entry,
    /// Once its rule was applied.
    pub(super) state: Option<State>,
}

/// An entry of a file in the form of safetensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) name: String,
    /// CRC-32C of its bytes.
    pub(super) checksum: u32,
}

/// What a rule keeps of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) rule: String,
    pub(super) steps: u64,
    pub(super) global_step: u64,
    pub(super) is_new: bool,
    pub(super) window: [u64; 2],
    pub(super) rows: Vec<Row>,
}

/// A row of numbers, one for each element of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) row: String,
    pub(super) entry: Entry,
}

/// The one field that every form has.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

impl Manifest {
    /// The manifest of the checkpoint in `directory`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::CorruptCheckpoint`]; [`Error::Incompatible`] for another form; [`Error::NotFound`] if there is none.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        if !path.exists() {
            return Err(no_checkpoint(directory));
        }
        let name = path.display().to_string();
        let manifest: Self = parse(&name, &read_file(&path)?)?;
        match manifest.clone().sealed() == manifest {
            true => Ok(manifest),
            false => Err(corrupt(name, "does not have its checksum")),
        }
    }

    /// The same with its checksum.
    #[must_use]
    fn sealed(self) -> Self {
        let open = Self { checksum: 0, ..self };
        let checksum = checksum(0, &bytes_of(&open));
        Self { checksum, ..open }
    }

    /// Its text.
    pub fn to_json(&self) -> String {
        String::from_utf8(bytes_of(self)).expect("JSON is UTF-8")
    }

    /// That of a checkpoint which this life of a job has saved.
    pub fn of(contents: &Contents, job: &str, life: &str) -> Self {
        let clock = |at: &ClockStep| SavedClock { clock: at.clock.0, step: at.step, samples: at.samples };
        let table =
            |table: &TableFile| SavedTable { file: table.name.clone(), bytes: table.bytes, checksum: table.checksum };
        let open = Self {
            format: FORMAT,
            job: job.to_owned(),
            life: life.to_owned(),
            checkpoint: contents.checkpoint,
            clocks: contents.steps.iter().map(clock).collect(),
            tensors: contents.tensors.iter().map(SavedTensor::of).collect(),
            tables: contents.tables.iter().map(table).collect(),
            notes: contents.notes.clone(),
            checksum: 0,
        };
        open.sealed()
    }

    /// What it says.
    ///
    /// # Errors
    /// [`Error::CorruptCheckpoint`] if a tensor has no element type that there is.
    pub fn contents(&self) -> Result<Contents> {
        let step = |at: &SavedClock| ClockStep { clock: ClockKey(at.clock), step: at.step, samples: at.samples };
        let table =
            |table: &SavedTable| TableFile { name: table.file.clone(), bytes: table.bytes, checksum: table.checksum };
        Ok(Contents {
            checkpoint: self.checkpoint,
            tensors: self.tensors.iter().map(SavedTensor::spec).collect::<Result<_>>()?,
            tables: self.tables.iter().map(table).collect(),
            steps: self.clocks.iter().map(step).collect(),
            notes: self.notes.clone(),
        })
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&SavedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

impl SavedTensor {
    /// What is saved of a declaration.
    fn of(spec: &TensorSpec) -> Self {
        Self {
            name: spec.name.clone(),
            dtype: spec.dtype.to_string(),
            shape: spec.shape.clone(),
            rule: spec.kind.rule().map(|rule| rule.to_string()),
            mode: spec.kind.mode().to_string(),
        }
    }

    /// The tensor, as any parameter of its element type and shape.
    ///
    /// # Errors
    /// [`Error::CorruptCheckpoint`] if there is no such element type.
    pub(super) fn spec(&self) -> Result<TensorSpec> {
        let dtype: DType =
            self.dtype.parse().map_err(|_| corrupt(MANIFEST, format!("tensor {} has no element type", self.name)))?;
        Ok(TensorSpec::parameter(self.name.clone(), dtype, self.shape.clone()))
    }

    /// The bytes of its values.
    ///
    /// # Errors
    /// [`Error::CorruptCheckpoint`] if no memory has so many.
    pub(super) fn bytes(&self) -> Result<u64> {
        let bytes = self.spec()?.bytes().filter(|bytes| usize::try_from(*bytes).is_ok());
        bytes.ok_or_else(|| corrupt(MANIFEST, format!("tensor {} is too large", self.name)))
    }
}

/// The bytes of a text file, in its only form.
pub(super) fn bytes_of(text: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(text).expect("names, numbers and lists have a form in JSON");
    bytes.push(b'\n');
    bytes
}

/// The bytes of a file.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(io(format!("reading {}", path.display())))
}

/// What the text file `name` says, which has these bytes.
///
/// # Errors
/// [`Error::CorruptCheckpoint`] if it is not, to the byte, in its only form; [`Error::Incompatible`] for another form.
fn parse<T: Serialize + DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T> {
    let broken = |error: serde_json::Error| corrupt(name, error.to_string());
    let form: Form = serde_json::from_slice(bytes).map_err(broken)?;
    if form.format != FORMAT {
        return Err(Error::Incompatible {
            field: "the form of checkpoints".to_owned(),
            ours: FORMAT.to_string(),
            peer: name.to_owned(),
            theirs: form.format.to_string(),
        });
    }
    let value: T = serde_json::from_slice(bytes).map_err(broken)?;
    match bytes_of(&value) == bytes {
        true => Ok(value),
        false => Err(corrupt(name, "is not as it was written")),
    }
}

/// A table, which a manifest names.
///
/// # Errors
/// [`Error::Io`]; as [`parse`]; [`Error::CorruptCheckpoint`] if its bytes are not those of which the manifest has the checksum.
pub(super) fn table(directory: &Path, saved: &SavedTable) -> Result<Table> {
    check_name(&saved.file)?;
    let path = directory.join(&saved.file);
    let name = path.display().to_string();
    let bytes = read_file(&path)?;
    if bytes.len() as u64 != saved.bytes || checksum(0, &bytes) != saved.checksum {
        return Err(corrupt(&name, "does not have the checksum that the manifest has of it"));
    }
    parse(&name, &bytes)
}

/// Refuses the name of a file that leads out of its directory.
pub(super) fn check_name(name: &str) -> Result<()> {
    match name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        true => Err(corrupt(name, "is not the name of a file of a checkpoint")),
        false => Ok(()),
    }
}
