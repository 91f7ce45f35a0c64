//! Rounds that wait for workers: what members tell the coordinator of them, and what its status shows.

use std::time::Duration;

use super::fields::Field;
use super::{Names, Stall};
use crate::error::Result;
use crate::types::{PartId, Round, WorkerId};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::TEXT_BYTES_MAX;

/// A round of a part for which some workers have come, and others are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Which part.
    pub part: PartId,
    /// Which round.
    pub round: Round,
    /// Time since the first contribution.
    pub waited: Duration,
    /// The first ranks that are missing, at most [`Waiting::MISSING_MAX`].
    pub missing: Vec<WorkerId>,
    /// How many are missing besides.
    pub more: u32,
}

impl Waiting {
    /// The most rounds that a member tells of at once.
    pub const TOLD_MAX: usize = 8;
    /// The most ranks that are listed.
    pub const MISSING_MAX: usize = 16;
    /// A round that has waited for less is not told of: somebody always comes last.
    pub const MOMENT: Duration = Duration::from_millis(200);
}

impl From<Stall> for Waiting {
    fn from(stall: Stall) -> Self {
        let Stall { part, round, mut missing, waited } = stall;
        let more = u32::try_from(missing.len().saturating_sub(Self::MISSING_MAX)).unwrap_or(u32::MAX);
        missing.truncate(Self::MISSING_MAX);
        Self { part, round, waited, missing, more }
    }
}

/// A tensor that waits, as a status shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingTensor {
    /// The tensors of the part, shortened.
    pub tensor: String,
    /// The member that told of it, such as `server 1`.
    pub told_by: String,
    /// How long ago the member told of it. It may have its sum since.
    pub age: Duration,
    /// What the member told.
    pub waiting: Waiting,
}

impl WaitingTensor {
    /// How long it has waited until now.
    pub fn waited(&self) -> Duration {
        self.waiting.waited + self.age
    }
}

/// The tensors that wait.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Waits {
    /// Those that have waited longest, the longest first; at most [`Waits::SHOWN_MAX`]. A tensor stands here once a round.
    pub tensors: Vec<WaitingTensor>,
    /// Servers that are there and have told nothing lately, such as `server 1`.
    pub unheard: Names,
}

impl Waits {
    /// The most tensors that are shown.
    pub const SHOWN_MAX: usize = 32;
}

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
    use super::*;
    use crate::types::TensorKey;

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
