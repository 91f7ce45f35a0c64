//! The workers agree on boundaries between their steps, and some leave there.

use gradlane_core::error::Error;
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{LinkId, Passage, Role, StepReport, Time, WorkerId};
use gradlane_core::wire::Frame;

use super::Coordinator;
use crate::coordinator::boundaries::Move;
use crate::coordinator::roster::{Change, Identity, Line, Seat};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::{Lost, Policy};
use crate::coordinator::{Event, questions};

impl Coordinator {
    /// A worker says this of its steps.
    pub(super) fn handle_steps(&mut self, now: Time, link: LinkId, identity: Identity, report: StepReport) {
        // One that has left, or whose job is over, hears of that in another way.
        let Ok(worker) = questions::asking_worker(&self.stage, &self.roster, identity) else { return };
        if report.leaves && self.config.policy == Policy::Abort {
            let outcome = Err(Error::FailedPrecondition {
                what: "a worker that leaves alone, which ends this job".to_owned(),
                hint: "set on_worker_loss=continue for the coordinator, or let all workers end".to_owned(),
            });
            return self.connections.send(link, Frame::Passed { change: report.change, outcome });
        }
        match self.boundaries.report(now, worker, report) {
            Ok(()) => self.advance_steps(now),
            Err((field, problem)) => self.close_protocol(link, field, &problem),
        }
    }

    /// Carries out what follows for the steps of the workers.
    pub(super) fn advance_steps(&mut self, now: Time) {
        while matches!((&self.stage, self.config.policy), (Stage::Running, Policy::Continue { .. }))
            && let Some(next) = self.boundaries.advance(now, &self.stepping_workers(), self.others())
        {
            self.make_move(now, next);
        }
    }

    /// Gives up what is too late.
    pub(super) fn expire_steps(&mut self, now: Time) {
        let name = |worker| self.roster.worker(worker).map_or_else(String::new, |seat| seat.member.described());
        let late = self.boundaries.expire(now, &self.stepping_workers(), name);
        if !late.is_empty() {
            late.into_iter().for_each(|next| self.make_move(now, next));
            self.advance_steps(now);
        }
    }

    /// Tells a worker that has connected again how far it may go.
    pub(super) fn greet_stepping(&mut self, now: Time, link: LinkId) {
        if !self.stepping_seats().any(|seat| seat.link() == Some(link)) {
            return;
        }
        if let Some(frame) =
            self.last_passed.clone().filter(|_| !planted(self.config.defect, Defect::PassageNotRepeated))
        {
            self.connections.send(link, frame);
        }
        if let Some((change, limit)) = self.boundaries.limit() {
            let hold = self.hold(now);
            self.connections.send(link, Frame::Boundary { change, limit, hold });
        }
    }

    fn make_move(&mut self, now: Time, next: Move) {
        match next {
            Move::Limit { change, limit } => self.tell_workers(&Frame::Boundary { change, limit, hold: None }),
            Move::Hold { change, step } => self.tell_hold(now, change, step),
            Move::GiveUp { waited } => self.give_up_waiting(now, waited),
            Move::Release { change, step, leavers } => {
                self.let_leave(change, step, &leavers);
                self.go_on_without_leavers(now, &leavers);
            }
            Move::Drop { change, reason } => self.tell_passed(Frame::Passed { change, outcome: Err(reason) }),
            Move::Pass { change, step, leavers, forms_again } => self.pass(now, change, step, &leavers, forms_again),
            Move::Evict { worker, cause } => {
                if let Some(identity) = self.roster.worker(worker).filter(|seat| seat.is_present()).map(Seat::identity)
                {
                    self.lose(now, vec![Lost { identity, cause }]);
                }
            }
        }
    }

    /// All workers stand behind this step. The job goes on without those that wanted to leave.
    /// If it `forms_again`, they leave it too, and join anew.
    fn pass(&mut self, now: Time, change: u64, step: u64, leavers: &[WorkerId], forms_again: bool) {
        let passage = self.let_leave(change, step, leavers);
        if forms_again && !passage.workers.is_empty() {
            return self.dissolve(now, change, &Passage { forms_again: true, ..passage });
        }
        self.go_on_without_leavers(now, leavers);
        self.tell_passed(Frame::Passed { change, outcome: Ok(passage) });
    }

    /// Lets these workers go from behind this step. Returns what the others are told.
    fn let_leave(&mut self, change: u64, step: u64, leavers: &[WorkerId]) -> Passage {
        let staying = self.stepping_workers().into_iter().filter(|worker| !leavers.contains(worker));
        let passage = Passage { step, workers: staying.collect(), leaves: false, forms_again: false };
        for leaver in leavers {
            self.release(change, Passage { leaves: true, ..passage.clone() }, *leaver);
        }
        passage
    }

    fn go_on_without_leavers(&mut self, now: Time, leavers: &[WorkerId]) {
        if !leavers.is_empty() {
            let names: Vec<String> = leavers.iter().map(WorkerId::to_string).collect();
            let reason = "they wanted to leave, and stood at the end of a step";
            self.connections.event(Event::GoesOn { without: names.join(", "), reason });
            self.go_on_with_those_left(now);
        }
    }

    /// Lets a worker go, which is no member from now on.
    pub(super) fn release(&mut self, change: u64, passage: Passage, leaver: WorkerId) {
        let Some(identity) = self.roster.worker(leaver).map(Seat::identity) else { return };
        self.roster.apply(Change::Leave(identity));
        self.store.forget(leaver);
        self.boundaries.release(leaver, change, passage.clone());
        let seat = self.roster.seat_mut(identity).expect("a worker that left keeps its seat");
        // It does not wait for the end of the job.
        (seat.is_past, seat.knows_end) = (!planted(self.config.defect, Defect::LeaverStillDue), true);
        self.part_from(identity, change, passage);
    }

    /// Tells a worker that it has left, perhaps again. Its connection, if it has one, speaks for nobody from now on.
    pub(super) fn part_from(&mut self, identity: Identity, change: u64, passage: Passage) {
        let seat = self.roster.seat_mut(identity).expect("a worker that left keeps its seat");
        let gone = Error::FailedPrecondition { what: "it left".to_owned(), hint: String::new() };
        if let Line::Up(link) = std::mem::replace(&mut seat.line, Line::Down(gone)) {
            self.connections.send(link, Frame::Passed { change, outcome: Ok(passage) });
            self.connections.part(link);
        }
    }

    fn tell_passed(&mut self, frame: Frame) {
        self.tell_workers(&frame);
        self.last_passed = Some(frame);
    }

    /// Tells the workers of the job. One that has left in order, and waits for the end, is none: no limit is made for the steps that it has
    /// begun.
    pub(super) fn tell_workers(&mut self, frame: &Frame) {
        for link in self.stepping_seats().filter_map(Seat::link).collect::<Vec<_>>() {
            self.connections.send(link, frame.clone());
        }
    }

    pub(super) fn stepping_seats(&self) -> impl Iterator<Item = &Seat> {
        self.roster.seats().filter(|seat| seat.is_present() && seat.member.process.role == Role::Worker)
    }

    /// The workers that a boundary waits for, by rank.
    pub(super) fn stepping_workers(&self) -> Vec<WorkerId> {
        let mut workers: Vec<WorkerId> = self.stepping_seats().map(|seat| WorkerId(seat.member.index)).collect();
        workers.sort_unstable();
        workers
    }
}
