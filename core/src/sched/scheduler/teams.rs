//! The workers of a machine that reduce together are others: what a task has of the former team, and how it begins again.

use super::Scheduler;
use crate::error::Error;
use crate::pipeline::{Route, Stage};
use crate::sched::ids::TaskId;
use crate::sched::rules::is_staged;
use crate::sched::task::{Place, Purpose, Tries, Work};
use crate::types::Time;

impl Scheduler {
    /// Whether the ranks of this machine cannot work together now. Meanwhile no task is taken for what they do together, and one that nobody
    /// wants does not wait for it.
    pub fn set_apart(&mut self, now: Time, apart: bool) {
        self.apart = apart;
        let waits = |work: &Work| work.stage.is_collective() && matches!(work.place, Place::Queued(_));
        for id in self.ids(|work| apart && waits(work) && work.purpose.is_unwanted()) {
            self.let_go_queued(now, id);
        }
        for stage in Stage::ALL.into_iter().filter(|stage| stage.is_collective()) {
            self.wake_if_ready(stage);
        }
    }

    /// The tasks that this rank has reduced with the others of its machine and for which they would meet again, and those whose others it
    /// would join later. Exception: those in an operation, which its end decides.
    pub fn halfway(&self) -> Vec<TaskId> {
        let is_halfway = |work: &Work| {
            let runs = work.place == Place::Running && work.stage.is_collective();
            let is_first = work.stage.opens_collective();
            let later = || self.pipeline.meeting_after(work.stage, work.spec.route).is_some();
            let meets = work.stage.is_collective() || later();
            !work.purpose.is_withdrawal() && meets && !is_first && !runs
        };
        self.ids(is_halfway)
    }

    /// The tasks that wait for the first operation of this machine's ranks.
    pub fn waiting_to_meet(&self) -> Vec<TaskId> {
        self.ids(|work| work.stage.opens_collective() && matches!(work.place, Place::Queued(_)))
    }

    /// Whether a task can begin again whose present operation its rank has not done with the others, and somebody wants its sum: it has come
    /// to no rank of its machine yet, or it has its contribution.
    pub fn may_begin_again(&self, id: TaskId) -> bool {
        let has_all = |work: &Work| work.stage.opens_collective() || work.spec.route.aside;
        self.tasks.get(id.0).is_some_and(|work| has_all(work) && work.purpose == Purpose::Wanted)
    }

    /// Whether the ranks of its machine reduce a task in memory of the engine, so that it can begin again; see [`Route::aside`].
    pub fn is_aside(&self, id: TaskId) -> bool {
        self.tasks.get(id.0).is_some_and(|work| work.spec.route.aside)
    }

    /// Whether the ranks of its machine meet again for a task, or at its present stage.
    pub fn meets_again(&self, id: TaskId) -> bool {
        let (stage, route) = self.whereabouts(id);
        self.pipeline.meeting_after(stage, route).is_some()
    }

    /// Whether a stage of a task runs.
    pub fn is_running(&self, id: TaskId) -> bool {
        self.tasks.get(id.0).is_some_and(|work| work.place == Place::Running)
    }

    /// Lets a task begin again that waits for a stage, or was taken for one: by `route`, with a body of `bytes` bytes.
    pub fn begin_again(&mut self, now: Time, id: TaskId, route: Route, bytes: u64) {
        self.unqueue(id);
        self.give_credit_back(id);
        let work = self.tasks.get_mut(id.0).expect("a task that begins again exists");
        if work.place == Place::Running {
            self.running[work.stage.index()] -= 1;
        }
        work.tries = Tries::default();
        (work.spec.route, work.spec.bytes) = (route, bytes);
        self.has_staged |= is_staged(route);
        let is_unwanted = work.purpose.is_unwanted();
        let first = self.pipeline.first(route).expect("a pipeline without stages has no tasks");
        if is_unwanted && !first.is_collective() {
            // No rank of this machine waits for it any more.
            self.withdraw_from(now, id, None);
            self.vanish(now, id, false);
            return;
        }
        self.enter(now, id, first, None);
    }

    /// Fails a task without waiting for the other ranks of its machine, which are others now.
    pub fn break_up(&mut self, now: Time, id: TaskId, error: &Error) {
        let Some(work) = self.tasks.get_mut(id.0) else { return };
        work.is_broken_up = true;
        if work.purpose.is_unwanted() {
            // It has failed before. If it runs, its end is its last.
            if matches!(work.place, Place::Queued(_)) {
                self.unqueue(id);
                self.vanish(now, id, false);
            }
            return;
        }
        for group in work.spec.groups.clone() {
            self.fail_group(now, group, error.clone());
        }
    }

    /// The next stage at which the other ranks of its machine wait for a task. `None` if they do not wait for it any more: because others are
    /// there now, or because they have parted and others will be.
    pub(super) fn meeting_after(&self, work: &Work) -> Option<Stage> {
        self.pipeline.meeting_after(work.stage, work.spec.route).filter(|_| !work.is_broken_up && !self.apart)
    }

    fn ids(&self, wanted: impl Fn(&Work) -> bool) -> Vec<TaskId> {
        self.tasks.iter().filter(|(_, work)| wanted(work)).map(|(id, _)| TaskId(id)).collect()
    }
}
