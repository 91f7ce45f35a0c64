//! The fields of the frames of checkpoints.

use super::fields::Field;
use crate::error::Result;
use crate::types::{
    CheckpointAsk, Checkpointed, ClockKey, ClockStep, LoadAsk, Missing, Order, PartLayout, Plan, SaveAsk, TableFile,
    Task, TensorSpec, Written,
};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{
    CHECKPOINT_PATH_BYTES_MAX, CLOCKS_MAX, NAME_BYTES_MAX, NOTES_BYTES_MAX, PARTS_MAX, TENSORS_MAX,
};

impl Field for CheckpointAsk {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Save(SaveAsk { path, keep, notes, tables_apart, wait }) => {
                writer.u8(ask::SAVE);
                writer.text(path, usize::MAX);
                writer.option(keep.as_ref(), |writer, keep| writer.u32(*keep));
                writer.text(notes, usize::MAX);
                writer.flag(*tables_apart);
                writer.duration(*wait);
            }
            Self::Load(LoadAsk { path, checkpoint, missing, ignore_extra, with_state, if_any, wait }) => {
                writer.u8(ask::LOAD);
                writer.text(path, usize::MAX);
                writer.option(checkpoint.as_ref(), |writer, checkpoint| writer.u64(*checkpoint));
                writer.u8(*missing as u8);
                writer.flag(*ignore_extra);
                writer.flag(*with_state);
                writer.flag(*if_any);
                writer.duration(*wait);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("request for a checkpoint")?;
        let path = read_path(reader)?;
        match code {
            ask::SAVE => Ok(Self::Save(SaveAsk {
                path,
                keep: reader.option("keep", |reader| reader.u32("keep"))?,
                notes: reader.text(NOTES_BYTES_MAX, "notes")?,
                tables_apart: reader.flag("tables_apart")?,
                wait: reader.duration("wait")?,
            })),
            ask::LOAD => Ok(Self::Load(LoadAsk {
                path,
                checkpoint: reader.option("checkpoint", |reader| reader.u64("checkpoint"))?,
                missing: {
                    let code = reader.u8("missing")?;
                    Missing::from_code(code).ok_or_else(|| reader.bad("missing", format!("is {code}")))?
                },
                ignore_extra: reader.flag("ignore_extra")?,
                with_state: reader.flag("with_state")?,
                if_any: reader.flag("if_any")?,
                wait: reader.duration("wait")?,
            })),
            code => Err(reader.bad("request for a checkpoint", format!("is {code}"))),
        }
    }
}

impl Field for Checkpointed {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.checkpoint);
        writer.text(&self.directory, usize::MAX);
        writer.u64(self.tensors);
        writer.u64(self.bytes);
        writer.u64(self.files);
        write_steps(writer, &self.steps);
        writer.text(&self.notes, usize::MAX);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            checkpoint: reader.u64("checkpoint")?,
            directory: read_path(reader)?,
            tensors: reader.u64("tensors")?,
            bytes: reader.u64("bytes")?,
            files: reader.u64("files")?,
            steps: read_steps(reader)?,
            notes: reader.text(NOTES_BYTES_MAX, "notes")?,
        })
    }
}

impl Field for Order {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.number);
        match &self.task {
            Task::Save { directory, checkpoint, plan } => {
                writer.u8(task::SAVE);
                writer.text(directory, usize::MAX);
                writer.u64(*checkpoint);
                plan.write(writer);
            }
            Task::Read { directory, with_state, plan } => {
                writer.u8(task::READ);
                writer.text(directory, usize::MAX);
                writer.flag(*with_state);
                plan.write(writer);
            }
            Task::Apply { bases } => {
                writer.u8(task::APPLY);
                write_steps(writer, bases);
            }
            Task::Cancel => writer.u8(task::CANCEL),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let number = reader.u64("order")?;
        let task = match reader.u8("task")? {
            task::SAVE => Task::Save {
                directory: read_path(reader)?,
                checkpoint: reader.u64("checkpoint")?,
                plan: Plan::read(reader)?,
            },
            task::READ => Task::Read {
                directory: read_path(reader)?,
                with_state: reader.flag("with_state")?,
                plan: Plan::read(reader)?,
            },
            task::APPLY => Task::Apply { bases: read_steps(reader)? },
            task::CANCEL => Task::Cancel,
            code => return Err(reader.bad("task", format!("is {code}"))),
        };
        Ok(Self { number, task })
    }
}

impl Field for Plan {
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.tensors, |writer, tensor| tensor.write(writer));
        writer.list(&self.parts, |writer, part| part.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            tensors: reader.list(TENSORS_MAX, "tensors", TensorSpec::read)?,
            parts: reader.list(PARTS_MAX, "parts", PartLayout::read)?,
        })
    }
}

impl Field for Written {
    fn write(&self, writer: &mut Writer) {
        writer.option(self.table.as_ref(), |writer, TableFile { name, bytes, checksum }| {
            writer.text(name, usize::MAX);
            writer.u64(*bytes);
            writer.u32(*checksum);
        });
        writer.u64(self.files);
        writer.u64(self.bytes);
        write_steps(writer, &self.rounds);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let table = reader.option("table", |reader| {
            Ok(TableFile {
                name: reader.text(NAME_BYTES_MAX, "name of a table")?,
                bytes: reader.u64("bytes of a table")?,
                checksum: reader.u32("checksum of a table")?,
            })
        })?;
        let (files, bytes) = (reader.u64("files")?, reader.u64("bytes")?);
        Ok(Self { table, files, bytes, rounds: read_steps(reader)? })
    }
}

fn write_steps(writer: &mut Writer, steps: &[ClockStep]) {
    writer.list(steps, |writer, ClockStep { clock, step, samples }| {
        writer.u64(clock.0);
        writer.u64(*step);
        writer.u64(*samples);
    });
}

fn read_steps(reader: &mut Reader<'_>) -> Result<Vec<ClockStep>> {
    reader.list(CLOCKS_MAX, "clocks", |reader| {
        Ok(ClockStep {
            clock: ClockKey(reader.u64("clock")?),
            step: reader.u64("step of a clock")?,
            samples: reader.u64("samples of a clock")?,
        })
    })
}

fn read_path(reader: &mut Reader<'_>) -> Result<String> {
    reader.text(CHECKPOINT_PATH_BYTES_MAX, "path of a checkpoint")
}

/// The codes of requests.
mod ask {
    pub(super) const SAVE: u8 = 1;
    pub(super) const LOAD: u8 = 2;
}

/// The codes of tasks.
mod task {
    pub(super) const SAVE: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const APPLY: u8 = 3;
    pub(super) const CANCEL: u8 = 4;
}
