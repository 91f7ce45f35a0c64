//! What a server writes: the parts that it has, in two files that other tools read, and a table of what is where.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gradlane_core::error::{Error, Result};
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::mem::Frozen;
use gradlane_core::reduce::OptimizerState;
use gradlane_core::types::{DType, PartId, Plan, ServerId, Span, TableFile, TensorSpec, Written};
use gradlane_core::wire::checksum;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, View};
use tempfile::NamedTempFile;

use super::faults::io;
use super::form::{form, header_of, place, places};
use super::manifest::{DataFile, Entry, FORMAT, Row, Run, State, Table, bytes_of};
use super::part::FrozenPart;

/// Writes the parts of a plan, of which the caller has one each, as `server` of the job. All is on the disk when it returns.
///
/// # Errors
/// [`Error::Io`](gradlane_core::Error::Io). What was written has no name in the directory then, or belongs to a checkpoint that is not whole.
pub fn write(
    directory: &Path,
    server: ServerId,
    checkpoint: u64,
    plan: &Plan,
    parts: &BTreeMap<PartId, FrozenPart>,
) -> Result<Written> {
    let stem = format!("server-{}", server.0);
    let (mut values, mut state, mut runs) = (Entries::default(), Entries::default(), Vec::new());
    for (layout, frozen) in plan.parts.iter().map(|layout| (layout, &parts[&layout.part])) {
        for (piece, at) in places(layout) {
            let tensor =
                plan.tensors.iter().find(|tensor| tensor.key() == piece.tensor).expect("a plan names its tensors");
            runs.push(Unwritten::of((tensor, layout.dtype), piece.span, at, frozen, (&mut values, &mut state)));
        }
    }
    let value_file = format!("{stem}.safetensors");
    let state_file = Some(format!("{stem}.state.safetensors")).filter(|_| !state.views.is_empty());
    let bytes = values.views.iter().map(|(_, view)| view.data_len() as u64).sum();
    reach(Failpoint::SaveBegins);
    let values_are = values.write(directory, value_file, checkpoint)?;
    reach(Failpoint::ValuesWritten);
    let state_is = state_file.map(|file| state.write(directory, file, checkpoint)).transpose()?;
    reach(Failpoint::StateWritten);
    let runs = runs.into_iter().map(|run| run.written(&values, &state)).collect();
    let files = 2 + u64::from(state_is.is_some());
    let table = Table { format: FORMAT, checkpoint, values: values_are, state: state_is, runs };
    let text = bytes_of(&table);
    let name = format!("{stem}.json");
    write_file(directory, &name, |file| file.write_all(&text))?;
    sync_directory(directory)?;
    reach(Failpoint::TableWritten);
    let table = Some(TableFile { name, bytes: text.len() as u64, checksum: checksum(0, &text) });
    Ok(Written { table, files, bytes, rounds: Vec::new() })
}

/// Writes a file under another name, brings it to the disk, and gives it its name.
pub(super) fn write_file(
    directory: &Path,
    name: &str,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<()> {
    let path = directory.join(name);
    let mut file = temporary(directory)?;
    write(file.as_file_mut()).map_err(io(format!("writing {}", path.display())))?;
    persist(file, &path)
}

/// Files whose names begin so are not whole.
pub(super) const PARTIAL: &str = ".partial-";

/// A file that is not whole, and goes if it does not become so.
pub(super) fn temporary(directory: &Path) -> Result<NamedTempFile> {
    let made = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(directory);
    made.map_err(io(format!("making a file in {}", directory.display())))
}

/// Brings a file to the disk, and gives it its name.
pub(super) fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    let what = || io(format!("writing {}", path.display()));
    // Others may read it, as they may read most files.
    file.as_file().set_permissions(Permissions::from_mode(0o644)).map_err(what())?;
    file.as_file().sync_all().map_err(what())?;
    file.persist(path).map_err(|error| what()(error.error))?;
    Ok(())
}

/// Brings the names in a directory to the disk.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(io(format!("writing {}", directory.display())))
}

/// The entries of one file.
#[derive(Default)]
struct Entries<'a> {
    views: Vec<(String, Bytes<'a>)>,
    names: BTreeSet<String>,
}

/// The bytes of an entry, and their checksum once they were written.
struct Bytes<'a> {
    dtype: DType,
    shape: Vec<usize>,
    source: Source<'a>,
    len: usize,
    checksum: Cell<u32>,
}

enum Source<'a> {
    /// A run of the bytes of blocks that follow each other.
    Blocks { blocks: &'a [Frozen], from: usize },
    /// What a row of an optimizer has for some elements.
    Row { optimizer: &'a OptimizerState, row: &'static str, elements: Range<usize> },
}

/// A run whose checksums are not known yet.
struct Unwritten {
    tensor: String,
    start: u64,
    end: u64,
    version: u64,
    value: usize,
    state: Option<(State, Vec<(&'static str, usize)>)>,
}

impl<'a> Entries<'a> {
    /// Adds an entry, under another name if this one is taken. Returns its index.
    fn add(&mut self, mut name: String, bytes: Bytes<'a>) -> usize {
        while !self.names.insert(name.clone()) {
            name.push('\'');
        }
        self.views.push((name, bytes));
        self.views.len() - 1
    }

    fn entry(&self, index: usize) -> Entry {
        let (name, bytes) = &self.views[index];
        Entry { name: name.clone(), checksum: bytes.checksum.get() }
    }

    fn write(&self, directory: &Path, name: String, checkpoint: u64) -> Result<DataFile> {
        let path = directory.join(&name);
        let file = temporary(directory)?;
        let about = [("writer", "gradlane".to_owned()), ("checkpoint", checkpoint.to_string())];
        let about = about.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let views = self.views.iter().map(|(name, bytes)| (name, bytes));
        let failed = |error: SafeTensorError| Error::Io {
            what: format!("writing {}", path.display()),
            cause: error.to_string(),
        };
        safetensors::serialize_to_file(views, Some(about), file.path()).map_err(failed)?;
        let header = header_of(file.as_file()).map_err(io(format!("reading {}", path.display())))?;
        persist(file, &path)?;
        Ok(DataFile { file: name, header: checksum(0, &header) })
    }
}

impl Unwritten {
    /// The run of a tensor that lies at `at` in a part.
    fn of<'a>(
        (tensor, dtype): (&TensorSpec, DType),
        span: Span,
        at: u64,
        frozen: &'a FrozenPart,
        (values, state): (&mut Entries<'a>, &mut Entries<'a>),
    ) -> Self {
        let (start, end) = (span.offset / dtype.bytes(), span.end() / dtype.bytes());
        let is_whole = tensor.bytes() == Some(span.bytes);
        let (name, shape) = match is_whole {
            true => (tensor.name.clone(), tensor.shape.iter().map(|dimension| place(*dimension)).collect()),
            false => (format!("{}[{start}:{end}]", tensor.name), vec![place(end - start)]),
        };
        let bytes =
            |dtype: DType, source, len| Bytes { dtype, shape: shape.clone(), source, len, checksum: Cell::new(0) };
        let source = Source::Blocks { blocks: &frozen.blocks, from: place(at) };
        let value = values.add(name.clone(), bytes(dtype, source, place(span.bytes)));
        let state = frozen.optimizer.as_ref().map(|optimizer| {
            let counters = optimizer.counters();
            let wide = dtype.accumulator();
            let elements = place(at / dtype.bytes())..place(at / dtype.bytes() + end - start);
            let add = |row| {
                let source = Source::Row { optimizer, row, elements: elements.clone() };
                (row, state.add(format!("{name}.{row}"), bytes(wide, source, place((end - start) * wide.bytes()))))
            };
            let rows = optimizer.row_names().into_iter().map(add).collect();
            let saved = State {
                rule: optimizer.rule().to_string(),
                steps: counters.steps,
                global_step: counters.global_step,
                is_new: counters.is_new,
                window: counters.window,
                rows: Vec::new(),
            };
            (saved, rows)
        });
        Self { tensor: tensor.name.clone(), start, end, version: frozen.version.0, value, state }
    }

    fn written(self, values: &Entries<'_>, state: &Entries<'_>) -> Run {
        let Self { tensor, start, end, version, value, state: kept } = self;
        let kept = kept.map(|(kept, rows)| {
            let rows = rows.into_iter().map(|(row, index)| Row { row: row.to_owned(), entry: state.entry(index) });
            State { rows: rows.collect(), ..kept }
        });
        Run { tensor, start, end, version, value: values.entry(value), state: kept }
    }
}

impl View for &Bytes<'_> {
    fn dtype(&self) -> Dtype {
        form(self.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes, which are about to be written.
    fn data(&self) -> Cow<'_, [u8]> {
        let data = match &self.source {
            Source::Blocks { blocks, from } => run_of(blocks, *from, self.len),
            Source::Row { optimizer, row, elements } => Cow::Owned(optimizer.row(row, elements.clone())),
        };
        self.checksum.set(checksum(0, &data));
        data
    }

    fn data_len(&self) -> usize {
        self.len
    }
}

/// A run of the bytes of blocks that follow each other.
fn run_of(blocks: &[Frozen], mut from: usize, len: usize) -> Cow<'_, [u8]> {
    let mut run = Vec::new();
    for block in blocks {
        let block: &[u8] = block;
        if from >= block.len() && !block.is_empty() {
            from -= block.len();
            continue;
        }
        if run.is_empty() && block.len() - from >= len {
            return Cow::Borrowed(&block[from..from + len]);
        }
        let taken = (block.len() - from).min(len - run.len());
        run.extend_from_slice(&block[from..from + taken]);
        from = 0;
        if run.len() == len {
            break;
        }
    }
    Cow::Owned(run)
}
