//! What a server reads: the elements of its own parts, whichever servers have written them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gradlane_core::error::{Error, Result};
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::mem::{Lease, Pool};
use gradlane_core::reduce::{Counters, OptimizerState};
use gradlane_core::types::{DType, PartId, PartLayout, Plan, Rule, Span, TensorSpec, Version, check_saved};
use gradlane_core::wire::checksum;
use safetensors::tensor::Metadata;

use super::faults::{corrupt, io};
use super::form::{form, header_of, place, places};
use super::manifest::{DataFile, Entry, Manifest, Run, State, table};
use super::part::FrozenPart;

/// Where to read.
#[derive(Clone, Debug)]
pub struct Source {
    /// The directory of a whole checkpoint.
    pub directory: PathBuf,
    /// Whether to read what the rules keep, too.
    pub with_state: bool,
}

/// Reads the parts of a plan, and checks all that it reads. Tensors that the checkpoint lacks are zero. `block_bytes` says of a part how it is
/// cut into blocks, which come from `pool`.
///
/// # Errors
/// [`Error::Io`]; [`Error::CorruptCheckpoint`] naming the file; [`Error::Mismatch`] and [`Error::FailedPrecondition`] if a tensor is another
/// one here; as [`Manifest::read`].
pub fn read(
    source: &Source,
    plan: &Plan,
    pool: &Pool,
    block_bytes: impl Fn(PartId) -> u64,
) -> Result<BTreeMap<PartId, FrozenPart>> {
    let manifest = Manifest::read(&source.directory)?;
    let mut saved = Saved::open(&source.directory, manifest)?;
    let mut parts = BTreeMap::new();
    for layout in &plan.parts {
        parts.insert(layout.part, saved.part(layout, plan, source.with_state, pool, block_bytes(layout.part))?);
    }
    reach(Failpoint::CheckpointRead);
    Ok(parts)
}

/// The files of a checkpoint, open to be read.
pub struct Saved {
    manifest: Manifest,
    /// The runs of each tensor, by their first element, and the number of their table.
    runs: BTreeMap<String, BTreeMap<u64, (usize, Run)>>,
    /// Of each table, its files.
    files: Vec<Files>,
}

struct Files {
    values: Entries,
    state: Option<Entries>,
}

/// A file in the form of safetensors.
struct Entries {
    path: PathBuf,
    file: File,
    about: Metadata,
    /// Where the first entry begins.
    base: u64,
    /// The entry that was read last, and its bytes.
    last: Option<(String, Vec<u8>)>,
}

impl Saved {
    /// Opens all files of the checkpoint in `directory`, and checks their tables.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::CorruptCheckpoint`] naming the file.
    pub fn open(directory: &Path, manifest: Manifest) -> Result<Self> {
        let (mut runs, mut files) = (BTreeMap::new(), Vec::new());
        for (index, named) in manifest.tables.iter().enumerate() {
            let table = table(directory, named)?;
            if table.checkpoint != manifest.checkpoint {
                return Err(corrupt(&named.file, format!("belongs to checkpoint {}", table.checkpoint)));
            }
            let values = Entries::open(directory, &table.values)?;
            let state = table.state.as_ref().map(|file| Entries::open(directory, file)).transpose()?;
            files.push(Files { values, state });
            for run in table.runs {
                let of_tensor: &mut BTreeMap<_, _> = runs.entry(run.tensor.clone()).or_default();
                of_tensor.insert(run.start, (index, run));
            }
        }
        Ok(Self { manifest, runs, files })
    }

    /// What the checkpoint is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The values of the tensor of this name, in little-endian bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name; [`Error::CorruptCheckpoint`] naming the file.
    pub fn values(&mut self, name: &str) -> Result<Vec<u8>> {
        let Some(tensor) = self.manifest.tensor(name) else {
            return Err(Error::NotFound {
                what: format!("tensor {name} in checkpoint {}", self.manifest.checkpoint),
                hint: "give the name of one that was saved".to_owned(),
            });
        };
        let (spec, bytes) = (tensor.spec()?, tensor.bytes()?);
        // So that a damaged shape takes no memory.
        let held = self.files.iter().map(|files| files.values.about.data_len() as u64).sum::<u64>();
        if bytes > held {
            return Err(corrupt(super::manifest::MANIFEST, format!("tensor {name} is larger than all files")));
        }
        let mut values = vec![0; place(bytes)];
        let whole = Span { offset: 0, bytes };
        self.fill(&spec, spec.dtype, whole, &mut values, |_, _, _, _| Ok(()))?;
        Ok(values)
    }

    fn part(
        &mut self,
        layout: &PartLayout,
        plan: &Plan,
        with_state: bool,
        pool: &Pool,
        block_bytes: u64,
    ) -> Result<FrozenPart> {
        let PartLayout { dtype, kind, .. } = *layout;
        let bytes = layout.bytes();
        let mut value = vec![0_u8; place(bytes)];
        let mut version = Version(1);
        let mut state = kind.rule().filter(|_| with_state).map(|rule| Rows::new(rule, dtype, bytes));
        for (piece, at) in places(layout) {
            let tensor =
                plan.tensors.iter().find(|tensor| tensor.key() == piece.tensor).expect("a plan names its tensors");
            let Some(saved) = self.manifest.tensor(&tensor.name) else { continue };
            check_saved(&saved.spec()?, tensor)?;
            self.fill(
                tensor,
                dtype,
                piece.span,
                &mut value[place(at)..place(at + piece.span.bytes)],
                |files, run, span, within| {
                    version = version.max(Version(run.version));
                    let Some((rows, kept)) = state.as_mut().zip(run.state.as_ref()) else { return Ok(()) };
                    let from = place((at + within) / dtype.bytes());
                    rows.fill(files, tensor, kept, span, from)
                },
            )?;
        }
        let optimizer = state.filter(|rows| rows.counters.steps > 0).map(Rows::restored).transpose()?;
        let blocks = value.chunks(place(block_bytes)).map(|bytes| copied(pool, bytes).freeze()).collect();
        Ok(FrozenPart { version, blocks, optimizer })
    }

    /// Fills `out` with these bytes of a tensor, and hands each run that has some of them to `each`, with its elements that were taken, and the
    /// byte of `out` at which they lie.
    fn fill(
        &mut self,
        tensor: &TensorSpec,
        dtype: DType,
        span: Span,
        out: &mut [u8],
        mut each: impl FnMut(&mut Files, &Run, Taken, u64) -> Result<()>,
    ) -> Result<()> {
        let (first, end) = (span.offset / dtype.bytes(), span.end() / dtype.bytes());
        let Self { runs, files, .. } = self;
        let mut at = first;
        while at < end {
            let run = runs.get(&tensor.name).and_then(|runs| runs.range(..=at).next_back());
            let Some((_, (index, run))) = run.filter(|(_, (_, run))| run.end > at) else {
                let problem = format!("no server has saved element {at} of tensor {}", tensor.name);
                return Err(corrupt(super::manifest::MANIFEST, problem));
            };
            let files = &mut files[*index];
            let upto = run.end.min(end);
            let bytes = files.values.entry(&run.value, dtype, run.end - run.start)?;
            let taken = Taken { from: place(at - run.start), count: place(upto - at), of: run.end - run.start };
            let width = place(dtype.bytes());
            let into = place((at - first) * dtype.bytes());
            out[into..into + taken.count * width]
                .copy_from_slice(&bytes[taken.from * width..(taken.from + taken.count) * width]);
            each(files, run, taken, (at - first) * dtype.bytes())?;
            at = upto;
        }
        Ok(())
    }
}

/// Elements of a run.
#[derive(Clone, Copy)]
struct Taken {
    /// The first one, counted from that of the run.
    from: usize,
    count: usize,
    /// How many the run has.
    of: u64,
}

/// The rows of a part as they are put together.
struct Rows {
    rule: Rule,
    dtype: DType,
    bytes: u64,
    rows: BTreeMap<&'static str, Vec<u8>>,
    counters: Counters,
}

impl Rows {
    /// What the rule begins with.
    fn new(rule: Rule, dtype: DType, bytes: u64) -> Self {
        let first = OptimizerState::new(rule, dtype, bytes);
        let elements = place(bytes / dtype.bytes());
        let rows = first.row_names().into_iter().map(|name| (name, first.row(name, 0..elements))).collect();
        Self { rule, dtype, bytes, rows, counters: Counters::default() }
    }

    /// Takes over what was kept of these elements, which lie behind `from` others in the part.
    fn fill(&mut self, files: &mut Files, tensor: &TensorSpec, kept: &State, taken: Taken, from: usize) -> Result<()> {
        let rule: Rule = kept.rule.parse().map_err(|_| corrupt(&tensor.name, format!("has no rule {}", kept.rule)))?;
        let unlike = |problem: String| Error::FailedPrecondition {
            what: format!("tensor {}: it was saved with the rule {rule}, {problem}", tensor.name),
            hint: "give the rule of the checkpoint, or load the values alone".to_owned(),
        };
        if rule.optimizer() != self.rule.optimizer() {
            return Err(unlike(format!("and is changed by {} here", self.rule)));
        }
        let wide = self.dtype.accumulator();
        let width = place(wide.bytes());
        for (name, numbers) in &mut self.rows {
            let row = kept.rows.iter().find(|row| row.row == *name);
            let row = row.ok_or_else(|| unlike(format!("which keeps no {name}")))?;
            let state =
                files.state.as_mut().ok_or_else(|| corrupt(&tensor.name, "its table names no file of state"))?;
            let bytes = state.entry(&row.entry, wide, taken.of)?;
            numbers[from * width..(from + taken.count) * width]
                .copy_from_slice(&bytes[taken.from * width..(taken.from + taken.count) * width]);
        }
        let counters = &mut self.counters;
        if kept.steps >= counters.steps {
            (counters.steps, counters.window) = (kept.steps, kept.window);
        }
        counters.global_step = counters.global_step.max(kept.global_step);
        counters.is_new |= kept.is_new;
        Ok(())
    }

    fn restored(self) -> Result<OptimizerState> {
        let Self { rule, dtype, bytes, mut rows, counters } = self;
        OptimizerState::restored(rule, dtype, bytes, counters, |name| {
            Ok(rows.remove(name).expect("it was made of the same names"))
        })
    }
}

impl Entries {
    fn open(directory: &Path, saved: &DataFile) -> Result<Self> {
        super::manifest::check_name(&saved.file)?;
        let path = directory.join(&saved.file);
        let shown = path.display().to_string();
        let file = File::open(&path).map_err(io(format!("reading {shown}")))?;
        let header = header_of(&file).map_err(|error| corrupt(&shown, error.to_string()))?;
        if checksum(0, &header) != saved.header {
            return Err(corrupt(&shown, "has a header without its checksum"));
        }
        let about: Metadata =
            serde_json::from_slice(&header[8..]).map_err(|error| corrupt(&shown, error.to_string()))?;
        Ok(Self { path, file, about, base: header.len() as u64, last: None })
    }

    /// The bytes of an entry of so many elements, which were compared with its checksum.
    fn entry(&mut self, entry: &Entry, dtype: DType, elements: u64) -> Result<&[u8]> {
        let is_there = self.last.as_ref().is_some_and(|(name, _)| *name == entry.name);
        if !is_there {
            let bytes = self.load(entry, dtype, elements)?;
            self.last = Some((entry.name.clone(), bytes));
        }
        Ok(&self.last.as_ref().expect("read above").1)
    }

    fn load(&self, entry: &Entry, dtype: DType, elements: u64) -> Result<Vec<u8>> {
        let shown = self.path.display().to_string();
        let damaged = |problem: &str| corrupt(&shown, format!("entry {} {problem}", entry.name));
        let info = self.about.info(&entry.name).ok_or_else(|| damaged("is missing"))?;
        let (begin, end) = info.data_offsets;
        if info.dtype != form(dtype) || (end - begin) as u64 != elements * dtype.bytes() {
            return Err(damaged("has another length or element type than its table says"));
        }
        let mut bytes = vec![0; end - begin];
        self.file.read_exact_at(&mut bytes, self.base + begin as u64).map_err(|error| damaged(&error.to_string()))?;
        match checksum(0, &bytes) == entry.checksum {
            true => Ok(bytes),
            false => Err(damaged("does not have its checksum")),
        }
    }
}

fn copied(pool: &Pool, bytes: &[u8]) -> Lease {
    let mut lease = pool.lease(bytes.len());
    lease.copy_from_slice(bytes);
    lease
}
