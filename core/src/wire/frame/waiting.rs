//! The fields of what members tell of rounds that wait, and of what the status shows of them.

use super::fields::Field;
use super::{Names, Waiting, WaitingTensor, Waits};
use crate::error::Result;
use crate::types::{PartId, WorkerId};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::TEXT_BYTES_MAX;

impl Field for Waiting {
    fn write(&self, writer: &mut Writer) {
        self.part.write(writer);
        writer.u64(self.round.0);
        writer.duration(self.waited);
        writer.list(&self.missing, |writer, worker| writer.u32(worker.0));
        writer.u32(self.more);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let missing = |reader: &mut Reader<'_>| reader.u32("missing rank").map(WorkerId);
        Ok(Self {
            part: PartId::read(reader)?,
            round: reader.round("round")?,
            waited: reader.duration("waiting time")?,
            missing: reader.list(Self::MISSING_MAX, "missing ranks", missing)?,
            more: reader.u32("count of missing ranks")?,
        })
    }
}

impl Field for Waits {
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.tensors, |writer, WaitingTensor { tensor, told_by, age, waiting }| {
            writer.text(tensor, TEXT_BYTES_MAX);
            writer.text(told_by, TEXT_BYTES_MAX);
            writer.duration(*age);
            waiting.write(writer);
        });
        self.unheard.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let tensor = |reader: &mut Reader<'_>| {
            Ok(WaitingTensor {
                tensor: reader.text(TEXT_BYTES_MAX, "waiting tensor")?,
                told_by: reader.text(TEXT_BYTES_MAX, "member")?,
                age: reader.duration("age")?,
                waiting: Waiting::read(reader)?,
            })
        };
        Ok(Self { tensors: reader.list(Self::SHOWN_MAX, "waiting tensors", tensor)?, unheard: Names::read(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Stall;
    use super::*;
    use crate::types::{Round, TensorKey};

    #[test]
    fn of_many_missing_ranks_the_first_are_listed_and_the_others_counted() {
        let part = PartId { key: TensorKey(1), index: 0 };
        let stall = |missing: u32| Stall {
            part,
            round: Round(7),
            missing: (0..missing).map(WorkerId).collect(),
            waited: Duration::from_secs(1),
        };
        for (missing, listed, more) in [(1, 1, 0), (16, 16, 0), (2_000, 16, 1_984)] {
            let waiting = Waiting::from(stall(missing));
            assert_eq!((waiting.missing.len(), waiting.more), (listed, more));
        }
    }
}
