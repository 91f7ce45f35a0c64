//! The fields of frames about the sums of lost servers.

use super::fields::Field;
use crate::error::Result;
use crate::types::{Epoch, Holdings, PartId, SumId};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::PARTS_MAX;

impl Field for Holdings {
    fn write(&self, writer: &mut Writer) {
        self.epoch.write(writer);
        write_sums(writer, &self.has);
        write_sums(writer, &self.knows);
        write_sums(writer, &self.wants);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            epoch: Epoch::read(reader)?,
            has: read_sums(reader, "sums")?,
            knows: read_sums(reader, "sums of others")?,
            wants: read_sums(reader, "missing sums")?,
        })
    }
}

pub(super) fn write_sums(writer: &mut Writer, sums: &[SumId]) {
    writer.list(sums, |writer, SumId { part, round }| {
        part.write(writer);
        writer.u64(round.0);
    });
}

pub(super) fn read_sums(reader: &mut Reader<'_>, field: &str) -> Result<Vec<SumId>> {
    reader.list(PARTS_MAX, field, |reader| Ok(SumId { part: PartId::read(reader)?, round: reader.round("round")? }))
}
