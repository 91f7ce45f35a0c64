//! What workers and coordinator say of the boundaries between steps.

use super::fields::{Field, read_workers, write_workers};
use super::{Hold, Names};
use crate::error::Result;
use crate::types::{Passage, StepReport};
use crate::wire::codec::{Reader, Writer};

impl Field for StepReport {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.begun);
        writer.u64(self.change);
        [self.stands, self.rests, self.leaves].into_iter().for_each(|flag| writer.flag(flag));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            begun: reader.u64("begun steps")?,
            change: reader.u64("change")?,
            stands: reader.flag("whether it stands")?,
            rests: reader.flag("whether it rests")?,
            leaves: reader.flag("whether it leaves")?,
        })
    }
}

impl Field for Passage {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.step);
        write_workers(writer, &self.workers);
        writer.flag(self.leaves);
        writer.flag(self.forms_again);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (step, workers) = (reader.u64("step")?, read_workers(reader, "workers")?);
        let (leaves, forms_again) = (reader.flag("whether it leaves")?, reader.flag("whether the job forms again")?);
        Ok(Self { step, workers, leaves, forms_again })
    }
}

impl Field for Hold {
    fn write(&self, writer: &mut Writer) {
        writer.u32(self.there);
        writer.u32(self.needed);
        self.lost.write(writer);
        writer.duration(self.patience);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            there: reader.u32("workers that are there")?,
            needed: reader.u32("workers that are needed")?,
            lost: Names::read(reader)?,
            patience: reader.duration("patience")?,
        })
    }
}
