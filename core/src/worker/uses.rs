//! Uses of parameters: what their headers say, and what they have come to.

use super::machine::Worker;
use super::records::Record;
use crate::sched::{Attempt, Task, TaskId};
use crate::types::{Access, Defect, Effect, KeyPart, PartLayout, Round, planted};
use crate::wire::{Sent, Target, Use};

impl Worker {
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
