//! The fields of modes, and of the frames of clocks.

use super::fields::{Field, read_workers, write_workers};
use crate::error::Result;
use crate::types::{ClockKey, Closing, Fate, Half, Mode, Squares, Tick, Ticked};
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
        writer.u64(self.samples);
        writer.flag(self.leaves);
        writer.option(self.wait.as_ref(), |writer, wait| writer.duration(*wait));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (clock, mode) = (reader.text(NAME_BYTES_MAX, "clock")?, Mode::read(reader)?);
        if mode.clock != Some(ClockKey::of(&clock)) {
            return Err(reader.bad("clock", format!("is {clock}, and its mode has another")));
        }
        let (round, samples) = (reader.round("round of a clock")?.0, reader.u64("samples")?);
        let leaves = reader.flag("whether it leaves")?;
        Ok(Self { clock, mode, round, samples, leaves, wait: reader.option("wait", |reader| reader.duration("wait"))? })
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
        match &self.half {
            Half::Workers { workers, clips, samples } => {
                writer.u8(0);
                write_workers(writer, workers);
                writer.flag(*clips);
                writer.u64(*samples);
            }
            Half::Norm(norm) => {
                writer.u8(1);
                writer.u64(norm.to_bits());
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (clock, round) = (ClockKey(reader.u64("clock")?), reader.round("round")?.0);
        let half = match reader.u8("half")? {
            0 => Half::Workers {
                workers: read_workers(reader, "workers of a round")?,
                clips: reader.flag("whether it clips")?,
                samples: reader.u64("samples")?,
            },
            1 => Half::Norm(read_magnitude(reader, "norm")?),
            code => return Err(reader.bad("half", format!("is {code}"))),
        };
        Ok(Self { clock, round, half })
    }
}

impl Field for Squares {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.clock.0);
        writer.u64(self.round);
        writer.u64(self.sum.to_bits());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            clock: ClockKey(reader.u64("clock")?),
            round: reader.round("round")?.0,
            sum: read_magnitude(reader, "sum of squares")?,
        })
    }
}

/// Reads a number from 0 to infinity.
fn read_magnitude(reader: &mut Reader<'_>, field: &str) -> Result<f64> {
    let value = f64::from_bits(reader.u64(field)?);
    match value.is_nan() || value.is_sign_negative() {
        true => Err(reader.bad(field, format!("is {value}"))),
        false => Ok(value),
    }
}
