//! The fields of the frames of orders that an operator gives.
//!
//! A command is `u8` code, `u32` bytes of its fields, its fields. So a process can skip a command that it does not know.

use super::fields::Field;
use crate::error::Result;
use crate::types::{Checkpointed, Control, ControlAnswer, ControlCommand, Recipient, ServerId, Stats, WorkerId};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{
    CHECKPOINT_PATH_BYTES_MAX, CONTROL_FIELDS_BYTES_MAX, CONTROL_FILES_MAX, LOG_FILTER_BYTES_MAX, NAME_BYTES_MAX,
    STATS_MAX,
};

impl Field for Control {
    fn write(&self, writer: &mut Writer) {
        self.recipient.write(writer);
        writer.duration(self.wait);
        self.command.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            recipient: Recipient::read(reader)?,
            wait: reader.duration("wait")?,
            command: ControlCommand::read(reader)?,
        })
    }
}

impl Field for Recipient {
    fn write(&self, writer: &mut Writer) {
        let (code, index) = match self {
            Self::Coordinator => (recipient::COORDINATOR, 0),
            Self::Worker(WorkerId(index)) => (recipient::WORKER, *index),
            Self::Server(ServerId(index)) => (recipient::SERVER, *index),
        };
        writer.u8(code);
        writer.u32(index);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match (reader.u8("recipient")?, reader.u32("index of the recipient")?) {
            (recipient::COORDINATOR, 0) => Ok(Self::Coordinator),
            (recipient::WORKER, index) => Ok(Self::Worker(WorkerId(index))),
            (recipient::SERVER, index) => Ok(Self::Server(ServerId(index))),
            (code, index) => Err(reader.bad("recipient", format!("is {code} with index {index}"))),
        }
    }
}

impl Field for ControlCommand {
    fn write(&self, writer: &mut Writer) {
        let mut fields = Writer::default();
        let code = match self {
            Self::Stats => command::STATS,
            Self::Log { filter } => {
                fields.text(filter, usize::MAX);
                command::LOG
            }
            Self::Drain => command::DRAIN,
            Self::Save { path, keep } => {
                fields.text(path, usize::MAX);
                fields.option(keep.as_ref(), |fields, keep| fields.u32(*keep));
                command::SAVE
            }
            Self::SetRate { tensor, rate, step } => {
                fields.text(tensor, usize::MAX);
                fields.u64(rate.to_bits());
                fields.option(step.as_ref(), |fields, step| fields.u64(*step));
                command::SET_RATE
            }
            Self::Dump { tensor, round, directory, wait } => {
                fields.text(tensor, usize::MAX);
                fields.u64(*round);
                fields.text(directory, usize::MAX);
                fields.duration(*wait);
                command::DUMP
            }
            Self::DumpRecorder { directory } => {
                fields.text(directory, usize::MAX);
                command::DUMP_RECORDER
            }
            Self::Timeline { directory, from, steps } => {
                fields.text(directory, usize::MAX);
                fields.u64(*from);
                fields.option(steps.as_ref(), |fields, steps| fields.u64(*steps));
                command::TIMELINE
            }
            Self::StopTimeline => command::STOP_TIMELINE,
            Self::Unknown { code, fields: bytes } => {
                fields.raw(bytes);
                *code
            }
        };
        let fields = fields.into_bytes();
        writer.u8(code);
        writer.list_len(fields.len());
        writer.raw(&fields);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("command")?;
        let len = reader.list_len(CONTROL_FIELDS_BYTES_MAX, "fields of a command")?;
        let (bytes, peer) = (reader.raw(len, "fields of a command")?, reader.peer());
        let mut fields = Reader::new(bytes, peer);
        let command = match code {
            command::STATS => Self::Stats,
            command::LOG => Self::Log { filter: fields.text(LOG_FILTER_BYTES_MAX, "filter of a log")? },
            command::DRAIN => Self::Drain,
            command::SAVE => Self::Save {
                path: fields.text(CHECKPOINT_PATH_BYTES_MAX, "path of a checkpoint")?,
                keep: fields.option("keep", |fields| fields.u32("keep"))?,
            },
            command::SET_RATE => Self::SetRate {
                tensor: fields.text(NAME_BYTES_MAX, "tensor name")?,
                rate: f64::from_bits(fields.u64("rate")?),
                step: fields.option("step", |fields| fields.u64("step"))?,
            },
            command::DUMP => Self::Dump {
                tensor: fields.text(NAME_BYTES_MAX, "tensor name")?,
                round: fields.u64("round")?,
                directory: fields.text(CHECKPOINT_PATH_BYTES_MAX, "directory of a dump")?,
                wait: fields.duration("wait")?,
            },
            command::DUMP_RECORDER => {
                Self::DumpRecorder { directory: fields.text(CHECKPOINT_PATH_BYTES_MAX, "directory of a dump")? }
            }
            command::TIMELINE => Self::Timeline {
                directory: fields.text(CHECKPOINT_PATH_BYTES_MAX, "directory of a timeline")?,
                from: fields.u64("first step")?,
                steps: fields.option("steps", |fields| fields.u64("steps"))?,
            },
            command::STOP_TIMELINE => Self::StopTimeline,
            code => Self::Unknown { code, fields: fields.raw(len, "fields of a command")?.to_vec() },
        };
        fields.finish()?;
        Ok(command)
    }
}

impl Field for ControlAnswer {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Done => writer.u8(answer::DONE),
            Self::Stats(stats) => {
                writer.u8(answer::STATS);
                stats.write(writer);
            }
            Self::Saved(saved) => {
                writer.u8(answer::SAVED);
                saved.write(writer);
            }
            Self::RateSet { step } => {
                writer.u8(answer::RATE_SET);
                writer.option(step.as_ref(), |writer, step| writer.u64(*step));
            }
            Self::Dumped { files } => {
                writer.u8(answer::DUMPED);
                writer.list(files, |writer, file| writer.text(file, CHECKPOINT_PATH_BYTES_MAX));
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.u8("answer to an order")? {
            answer::DONE => Ok(Self::Done),
            answer::STATS => Ok(Self::Stats(Stats::read(reader)?)),
            answer::SAVED => Ok(Self::Saved(Checkpointed::read(reader)?)),
            answer::RATE_SET => Ok(Self::RateSet { step: reader.option("step", |reader| reader.u64("step"))? }),
            answer::DUMPED => {
                let file = |reader: &mut Reader<'_>| reader.text(CHECKPOINT_PATH_BYTES_MAX, "file of a dump");
                Ok(Self::Dumped { files: reader.list(CONTROL_FILES_MAX, "files of a dump", file)? })
            }
            code => Err(reader.bad("answer to an order", format!("is {code}"))),
        }
    }
}

impl Field for Stats {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.scope, NAME_BYTES_MAX);
        writer.text(&self.label, NAME_BYTES_MAX);
        writer.list(&self.values, |writer, (name, value)| {
            writer.text(name, NAME_BYTES_MAX);
            writer.u64(*value);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            scope: reader.text(NAME_BYTES_MAX, "scope of metrics")?,
            label: reader.text(NAME_BYTES_MAX, "label of metrics")?,
            values: reader.list(STATS_MAX, "metrics", |reader| {
                Ok((reader.text(NAME_BYTES_MAX, "name of a metric")?, reader.u64("value of a metric")?))
            })?,
        })
    }
}

/// The codes of recipients; they never change.
mod recipient {
    pub(super) const COORDINATOR: u8 = 0;
    pub(super) const WORKER: u8 = 1;
    pub(super) const SERVER: u8 = 2;
}

/// The codes of commands; they never change.
mod command {
    pub(super) const STATS: u8 = 1;
    pub(super) const LOG: u8 = 2;
    pub(super) const DRAIN: u8 = 3;
    pub(super) const SAVE: u8 = 4;
    pub(super) const SET_RATE: u8 = 5;
    pub(super) const DUMP: u8 = 6;
    pub(super) const DUMP_RECORDER: u8 = 7;
    pub(super) const TIMELINE: u8 = 8;
    pub(super) const STOP_TIMELINE: u8 = 9;
}

/// The codes of answers; they never change.
mod answer {
    pub(super) const DONE: u8 = 1;
    pub(super) const STATS: u8 = 2;
    pub(super) const SAVED: u8 = 3;
    pub(super) const RATE_SET: u8 = 4;
    pub(super) const DUMPED: u8 = 5;
}
