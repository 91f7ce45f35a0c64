//! How tasks and groups end: a failure reaches every task that nobody else wants, and each group resolves once, when no task holds its
//! memory.

use std::time::Duration;

use super::{Command, Scheduler, Timer};
use crate::error::Error;
use crate::pipeline::{Duty, Stage};
use crate::sched::group::Group;
use crate::sched::ids::{GroupId, TaskId};
use crate::sched::task::{Place, Purpose, Work};
use crate::types::{Defect, Time, planted};

impl Scheduler {
    /// Ends a task; the answer is the groups it served. Each of them that waited only for this is resolved.
    pub(super) fn vanish(&mut self, now: Time, id: TaskId, done: bool) -> Vec<GroupId> {
        self.leave_rounds(now, id);
        self.give_credit_back(id);
        let work = self.tasks.remove(id.0).expect("a task vanishes once");
        self.commands.push_back(Command::Release(id));
        for group in &work.spec.groups {
            let home = self.groups.get_mut(group.0).expect("a group outlives its tasks");
            home.live -= 1;
            home.done += u32::from(done);
            self.resolve_if_settled(*group);
        }
        work.spec.groups
    }

    /// Ends a task that was submitted too late for one of its groups.
    pub(super) fn refuse(&mut self, now: Time, id: TaskId) {
        let work = self.tasks.get(id.0).expect("just submitted");
        let names = work.spec.groups.iter().filter_map(|group| Some(&*self.groups.get(group.0)?.name));
        let names = names.collect::<Vec<_>>().join(" + ");
        let given_up = Error::FailedPrecondition {
            what: format!("{}: a tensor that shares a part with {names} was given up before", work.spec.round),
            hint: "declare tensors without fusion to give them up one by one".to_owned(),
        };
        self.withdraw_from(now, id, Some(&given_up));
        self.decline(id);
        let work = self.tasks.remove(id.0).expect("just submitted");
        self.commands.push_back(Command::Release(id));
        for group in work.spec.groups {
            let cause = self.ended.clone().unwrap_or_else(|| given_up.clone());
            self.fail_group(now, group, cause);
        }
    }

    /// Decides that a group fails, and lets go of the tasks that nobody else wants.
    pub fn fail_group(&mut self, now: Time, id: GroupId, error: Error) {
        let Some(group) = self.groups.get_mut(id.0).filter(|group| group.fate.is_none()) else {
            return;
        };
        group.fate = Some(error);
        let tasks = group.tasks.clone();
        for task in tasks {
            self.let_go_if_unwanted(now, task);
        }
        self.resolve_if_settled(id);
    }

    fn let_go_if_unwanted(&mut self, now: Time, id: TaskId) {
        let Some(work) = self.tasks.get(id.0).filter(|work| work.purpose == Purpose::Wanted) else {
            return;
        };
        let open = |group: &GroupId| self.groups.get(group.0).is_some_and(|group| group.fate.is_none());
        if work.spec.groups.iter().any(open) {
            return;
        }
        let (stage, place) = (work.stage, work.place);
        // Nobody who is left here has heard of it.
        let is_over = work.is_broken_up || self.apart;
        let is_awaited = self.meeting_after(work).is_some();
        self.tasks.get_mut(id.0).expect("found above").purpose = Purpose::Unwanted;
        match place {
            Place::Running => self.end_early(now, id),
            // The others wait for it, with what they make the sum of, for the sum, or to hear that there will be none.
            Place::Queued(gates)
                if stage.is_collective() && (gates.open() || !stage.opens_collective()) && !is_over => {}
            Place::Queued(_) if is_awaited && stage.follows_pull() => {}
            Place::Queued(_) => self.let_go_queued(now, id),
        }
    }

    /// Lets go of a task that waits for a stage and that nobody wants any more.
    pub(super) fn let_go_queued(&mut self, now: Time, id: TaskId) {
        let work = self.tasks.get(id.0).expect("a queued task exists");
        let (stage, since, is_awaited) = (work.stage, work.since, self.meeting_after(work).is_some());
        let explains = work.purpose.failure().is_some();
        self.unqueue(id);
        // A task that explains a failure has withdrawn already.
        if !stage.follows_pull() && !explains {
            self.withdraw_from(now, id, None);
        }
        if is_awaited && !stage.opens_collective() {
            // It moved for the last time when it came where it was.
            self.tell(since, id, None);
        } else {
            self.decline(id);
            self.vanish(now, id, false);
        }
    }

    /// Tells the other ranks of the machine that a task ends of which they have heard nothing, unless they will hear the same cause.
    fn decline(&mut self, id: TaskId) {
        let work = self.tasks.get(id.0).expect("a task that ends exists");
        // Where the ranks have parted, what they reduced before begins again.
        let begins_again = self.apart && work.spec.route.aside && work.stage.is_collective();
        if (work.stage.opens_collective() || begins_again) && self.ended.is_none() && !self.concerns_all(id) {
            self.commands.push_back(Command::Decline(id));
        }
    }

    /// Takes a task out of the queue of its stage.
    pub(super) fn unqueue(&mut self, id: TaskId) {
        let work = self.tasks.get(id.0).expect("a queued task exists");
        let Place::Queued(gates) = work.place else { return };
        let (stage, entry, is_withdrawal) = (work.stage, work.entry(id), work.purpose.is_withdrawal());
        if let Some(at) = gates.pause {
            self.timers.remove(&(at, Timer::Repeat(id)));
        }
        self.queue(stage, is_withdrawal).remove(entry);
        self.wake_if_ready(stage);
    }

    /// Sends a task that will have no sum to where the others of its machine wait for it, and lets it fail with `error`, unless it has
    /// failed before.
    pub(super) fn tell(&mut self, now: Time, id: TaskId, error: Option<Error>) {
        let failure = error.clone().or_else(|| self.fate(id)).expect("it failed, or nobody wants it");
        self.give_credit_back(id);
        let work = self.tasks.get_mut(id.0).expect("a task that moves exists");
        // The others take what this rank has, unless it says that it has nothing.
        work.purpose = match work.spec.route.duty {
            Duty::Member | Duty::Together => Purpose::Unwanted,
            Duty::Owner | Duty::Holder | Duty::Alone | Duty::Giver | Duty::Client { .. } => {
                Purpose::Explaining(failure)
            }
        };
        let groups = work.spec.groups.clone();
        let meeting = self.meeting_after(self.tasks.get(id.0).expect("found above"));
        self.enter(now, id, meeting.expect("the others wait for it"), None);
        if let Some(error) = error {
            for group in groups {
                self.fail_group(now, group, error.clone());
            }
        }
    }

    /// Abandons an unwanted task in the stage that it is in: now, or when the other ranks of its machine had time to hear why.
    ///
    /// A rank that gives up what the others need ends it for all of them, and they take that rank for the cause. If they will hear of the
    /// cause itself, it waits for a moment. Not for longer, because some of them may have heard before they came, and do not come.
    pub(super) fn end_early(&mut self, now: Time, id: TaskId) {
        let work = self.tasks.get(id.0).expect("it is asked of tasks that exist");
        let (stage, duty) = (work.stage, work.spec.route.duty);
        let is_needed = match stage {
            Stage::Reduce => self.meeting_after(work).is_some(),
            Stage::PcieReduce | Stage::AllReduce => true,
            Stage::PcieBroadcast => duty == Duty::Owner,
            Stage::Broadcast => duty != Duty::Member,
            Stage::CopyD2H
            | Stage::Compress
            | Stage::Push
            | Stage::Pull
            | Stage::Land
            | Stage::Decompress
            | Stage::CopyH2D => false,
        };
        let (concerns_all, explains) = (self.concerns_all(id), work.purpose.failure().is_some());
        match (concerns_all, is_needed) {
            // The others come, because they have reduced the part with this rank before.
            (true, _) if explains => {}
            (true, true) => drop(self.timers.insert((now + HEARING, Timer::Hearing(id)))),
            (true, false) | (false, _) => self.commands.push_back(Command::Abandon(id)),
        }
    }

    /// The other ranks had time to hear why a task is unwanted.
    pub(super) fn abandon_unwanted(&mut self, id: TaskId) {
        let is_open = |work: &Work| work.place == Place::Running && work.purpose == Purpose::Unwanted;
        if self.tasks.get(id.0).is_some_and(is_open) {
            self.commands.push_back(Command::Abandon(id));
        }
    }

    /// Whether an unwanted task is unwanted for a reason that the other ranks of its machine will hear of as theirs.
    pub(super) fn concerns_all(&self, id: TaskId) -> bool {
        self.ended.is_none() && self.fate(id).is_some_and(|fate| !fate.concerns_one_worker())
    }

    /// Why a task is unwanted, if it is.
    pub(super) fn fate(&self, id: TaskId) -> Option<Error> {
        let work = self.tasks.get(id.0)?;
        work.spec.groups.iter().find_map(|group| self.groups.get(group.0)?.fate.clone())
    }

    pub(super) fn resolve_if_settled(&mut self, id: GroupId) {
        if !self.groups.get(id.0).is_some_and(Group::settled) {
            return;
        }
        let group = self.groups.remove(id.0).expect("found above");
        if let Some(deadline) = group.deadline {
            self.timers.remove(&(deadline, Timer::Deadline(id)));
        }
        let outcome = group.fate.map_or(Ok(()), Err);
        if outcome.is_err() && planted(self.config.defect, Defect::GroupLost) {
            return;
        }
        if outcome.is_err() && planted(self.config.defect, Defect::HandleTwice) {
            self.commands.push_back(Command::Resolved { group: id, outcome: outcome.clone() });
        }
        self.commands.push_back(Command::Resolved { group: id, outcome });
    }

    /// What a group waits for: the least advanced of its tasks.
    pub(super) fn stand(&self, group: &Group) -> String {
        let live = group.tasks.iter().filter_map(|id| self.tasks.get(id.0));
        let stand = match live.min_by_key(|work| (work.stage, work.since)) {
            Some(work) => work.stand(),
            None => "waiting for tensors that share a part with it".to_owned(),
        };
        match group.shares {
            1 => stand,
            shares => format!("{stand}; {} of {shares} parts done", group.done),
        }
    }
}

/// How long the ranks of a machine have to hear of what the coordinator or a server told one of them.
const HEARING: Duration = Duration::from_secs(1);
