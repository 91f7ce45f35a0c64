//! Uses of parameters and tables: what their headers say, and what they have come to.

use super::machine::Worker;
use super::records::{Record, Tensor};
use crate::error::{Error, Result};
use crate::sched::{Attempt, Task, TaskId};
use crate::types::{
    Access, Defect, Effect, KeyPart, PartId, PartLayout, Round, RowAction, Shards, TensorSpec, Time, planted,
};
use crate::wire::{Rows, Sent, Target, Use};

impl Worker {
    /// Connects to the servers, if `spec` is the first parameter of a worker that needs no server for its sums.
    pub(super) fn reach_servers(&mut self, now: Time, spec: &TensorSpec) -> Result<()> {
        if !spec.kind.is_kept() || self.uses_parameters || self.ended.is_some() {
            return Ok(());
        }
        if self.here().servers.is_empty() {
            return Err(Error::FailedPrecondition {
                what: format!(
                    "tensor {}: it is a {}, and this job has no server that could keep it",
                    spec.name, spec.kind
                ),
                hint: "start the job with servers, such as by `gradlane run -s 1`".to_owned(),
            });
        }
        self.uses_parameters = true;
        self.follow_links(now);
        Ok(())
    }

    /// The header that opens the exchange of a use.
    pub(super) fn use_header(&self, task: &Task, access: Access, clock_at: u64) -> Use {
        let Record { part, is_overwritten, priority, .. } = self.record(task.id);
        let defect = self.settings.scheduler.defect;
        let is_sent_all_the_same = planted(defect, Defect::OverwrittenChangeSent);
        let is_lost = *is_overwritten && matches!(task.attempt, Attempt::Resumed { .. }) && !is_sent_all_the_same;
        let is_renumbered = task.attempt != Attempt::First && planted(defect, Defect::RepeatRenumbered);
        let round = Round(task.round.0 + u64::from(is_renumbered));
        let sent = match access.sends() && !is_lost {
            true => Sent::Whole { checksum: None },
            false => Sent::Nothing { checked: false },
        };
        Use {
            target: Target { epoch: self.here().epoch(), part: task.part, round },
            dtype: part.layout.dtype,
            access,
            urgency: self.urgency(*priority),
            part_bytes: part.layout.bytes(),
            rule: part.layout.kind.rule(),
            mode: part.layout.kind.mode(),
            clock_at,
            basis: self.read.of(task.part),
            key: if access.is_handled() { self.key_of(&part.layout) } else { None },
            sent,
        }
    }

    /// The header that opens the exchange of a use of rows.
    ///
    /// # Panics
    /// If the part is none of a table.
    pub(super) fn rows_header(&self, task: &Task, action: RowAction, step: u64) -> Rows {
        let Record { part, priority, rows, .. } = self.record(task.id);
        let (spec, shards) = part.layout.rows().expect("a use of rows is of a table");
        let ids = rows.expect("a use of a table is cut for its parts").ids;
        let target = Target { epoch: self.here().epoch(), part: task.part, round: task.round };
        Rows { target, action, urgency: self.urgency(*priority), spec, shards, step, ids, checksum: None }
    }

    /// The parts of a table with their shards, in the order of their places; none if it is not known yet.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    pub fn parts_of_table(&self, spec: &TensorSpec) -> Result<Vec<(PartId, Shards)>> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        self.registry.lookup(spec)?;
        let parts = self.registry.parts_of(spec.key());
        Ok(parts.filter_map(|layout| layout.rows().map(|(_, shards)| (layout.part, shards))).collect())
    }

    /// Refuses a use of a table that was cut for other parts than it has.
    pub(super) fn check_cuts(&self, tensor: &Tensor) -> Result<()> {
        let Some(cuts) = &tensor.cuts else { return Ok(()) };
        let parts = self.registry.parts_of(tensor.key).map(|layout| layout.part);
        if cuts.iter().map(|cut| cut.part).eq(parts) {
            return Ok(());
        }
        Err(Error::FailedPrecondition {
            what: "the table was undeclared, and perhaps declared again, while this use of it began".to_owned(),
            hint: "undeclare a table when nobody uses it".to_owned(),
        })
    }

    /// The place of a part in the value of a key; `None` if it is no part of a key. A parameter shares its parts with no other.
    fn key_of(&self, layout: &PartLayout) -> Option<KeyPart> {
        let [piece] = layout.pieces.as_slice() else { return None };
        KeyPart::of(self.registry.name_of(piece.tensor)?, piece.span.offset)
    }

    /// Notes what the use of a part has come to.
    pub(super) fn note_effect(&mut self, task: TaskId, effect: Effect) {
        let defect = self.settings.scheduler.defect;
        let part = &self.record(task).part;
        let (id, demand, tickets) = (part.layout.part, part.demand, part.tickets.clone());
        if demand.reads_value() {
            self.read.note(id, effect.version);
        } else if demand.is_init() {
            self.read.note_first(id);
        }
        for ticket in tickets {
            if let Some(submission) = self.submissions.get_mut(&ticket) {
                let of_all = submission.effect.map_or(effect, |before| before.and(effect));
                let highest = submission.effect.map(|before| before.version).max(Some(effect.version));
                let version = highest.filter(|_| planted(defect, Defect::HighestVersionTold));
                submission.effect = Some(Effect { version: version.unwrap_or(of_all.version), ..of_all });
            }
        }
    }
}
