//! What the servers are told of rounds to which this worker will not contribute, so that the others need not wait for it.

use super::payload::{Cargo, Payload};
use super::shared::{Effect, Lent, State, names};
use crate::error::Error;
use crate::mem::borrow::Letter;
use crate::pipeline::Route;
use crate::pipeline::registry::ReadyPart;
use crate::sched::{GroupId, TaskId, TaskSpec};
use crate::types::{Done, Priority, Time};
use crate::wire::reject;

impl State {
    /// A part of which one submission ended before the others came: they cannot be summed without it.
    pub(super) fn give_up_incomplete(&mut self, now: Time, part: &ReadyPart) {
        let error = Error::FailedPrecondition {
            what: format!("{}: a tensor that shares part {} was given up before", part.round, part.layout.part),
            hint: "declare tensors without fusion to give them up one by one".to_owned(),
        };
        self.give_up_part(now, part, &error);
    }

    /// A part whose pieces at these two positions lie in memory of different devices, or one of them in the host's: it is one message.
    pub(super) fn give_up_scattered(&mut self, now: Time, part: &ReadyPart, (one, other): (usize, usize)) {
        let names = names(&self.registry, part);
        let lent: Vec<&Lent> = part.tickets.iter().flat_map(|ticket| &self.tickets[ticket].tensors).collect();
        let place = |position: usize| {
            let device = lent[position].source.device();
            device.map_or_else(|| "host memory".to_owned(), |ordinal| format!("memory of device {ordinal}"))
        };
        let error = Error::InvalidArgument {
            what: format!(
                "tensors {} and {} share part {}, but on {} one lies in {} and the other in {}",
                names[one],
                names[other],
                part.layout.part,
                self.rank,
                place(one),
                place(other)
            ),
            hint: "declare what lies on different devices in separate calls".to_owned(),
        };
        self.give_up_part(now, part, &error);
    }

    fn give_up_part(&mut self, now: Time, part: &ReadyPart, error: &Error) {
        let groups: Vec<GroupId> =
            part.tickets.iter().filter_map(|ticket| self.tickets.get(ticket).and_then(|other| other.group)).collect();
        let (layout, priority, groups_of_none) = (&part.layout, self.most_urgent, Vec::new());
        let spec = TaskSpec {
            part: layout.part,
            server: layout.server,
            bytes: 0,
            round: part.round,
            priority,
            route: Route::host(self.duty(part)),
            groups: groups_of_none,
        };
        if let Some(task) = self.scheduler.give_up_round(now, spec) {
            self.payloads.insert(task, Payload::telling(part.clone(), priority, error));
        }
        for group in groups {
            self.scheduler.fail_group(now, group, error.clone());
        }
    }

    /// The server of the task `of` will be told by the task `task`.
    pub(super) fn tell_server(&mut self, task: TaskId, of: TaskId, error: Error) {
        let error = self.with_name(of, error);
        let payload = &self.payloads[&of];
        let telling = Payload::telling(payload.part.clone(), payload.priority, &error);
        self.payloads.insert(task, telling);
    }

    /// Gives up all that is under way, because this worker leaves. `told` resolves when the servers know of it, and of what was given up
    /// before: what they were not told would leave with it.
    pub(super) fn give_all_up(&mut self, now: Time, error: &Error, told: Done<()>) {
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.scheduler.fail_group(now, group, error.clone());
        }
        self.drain();
        self.when_told = Some(told);
        self.look_whether_told();
    }

    pub(super) fn look_whether_told(&mut self) {
        let is_telling = || self.payloads.values().any(|payload| payload.letter.is_some());
        if self.when_told.is_some() && !is_telling() {
            self.effects.extend(self.when_told.take().map(|told| Effect::Resolve(told, Ok(()), 0)));
        }
    }
}

impl Payload {
    /// That of a task which tells a server why a round is given up.
    fn telling(part: ReadyPart, priority: Priority, error: &Error) -> Self {
        let letter = Some(Letter::new(reject::to_body(error)));
        Self { letter, ..Self::new(part, Cargo::nothing(), priority) }
    }
}
