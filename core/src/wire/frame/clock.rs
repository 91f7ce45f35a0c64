//! The fields of modes, and of the frames of clocks.

use super::fields::{Field, read_workers, write_workers};
use crate::error::Result;
use crate::types::{ClockKey, Closing, Fate, Mode, Tick, Ticked};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// A mode is written as its text, and its clock.
impl Field for Mode {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.to_string(), TEXT_BYTES_MAX);
        writer.option(self.clock.as_ref(), |writer, clock| writer.u64(clock.0));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let text = reader.text(TEXT_BYTES_MAX, "mode")?;
        let clock = reader.option("clock", |reader| reader.u64("clock"))?.map(ClockKey);
        let read = text.parse::<Self>().map(|mode| Self { clock, ..mode }).and_then(Self::check);
        match read {
            Ok(mode) if mode.to_string() == text => Ok(mode),
            Ok(_) => Err(reader.bad("mode", format!("is {text:?}, which is not its only form"))),
            Err(error) => Err(reader.bad("mode", error.to_string())),
        }
    }
}

impl Field for Tick {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.clock, usize::MAX);
        self.mode.write(writer);
        writer.u64(self.round);
        writer.flag(self.leaves);
        writer.option(self.wait.as_ref(), |writer, wait| writer.duration(*wait));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (clock, mode) = (reader.text(NAME_BYTES_MAX, "clock")?, Mode::read(reader)?);
        if mode.clock != Some(ClockKey::of(&clock)) {
            return Err(reader.bad("clock", format!("is {clock}, and its mode has another")));
        }
        let round = reader.round("round of a clock")?.0;
        let leaves = reader.flag("whether it leaves")?;
        Ok(Self { clock, mode, round, leaves, wait: reader.option("wait", |reader| reader.duration("wait"))? })
    }
}

impl Field for Ticked {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.round);
        writer.u64(self.step);
        writer.u64(self.ahead);
        writer.u8(self.fate.code());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (round, step, ahead) = (reader.round("round")?.0, reader.u64("step")?, reader.u64("rounds ahead")?);
        let fate = reader.u8("fate")?;
        let fate = Fate::from_code(fate).ok_or_else(|| reader.bad("fate", format!("is {fate}")))?;
        Ok(Self { round, step, ahead, fate })
    }
}

impl Field for Closing {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.clock.0);
        writer.u64(self.round);
        write_workers(writer, &self.workers);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            clock: ClockKey(reader.u64("clock")?),
            round: reader.round("round")?.0,
            workers: read_workers(reader, "workers of a round")?,
        })
    }
}
