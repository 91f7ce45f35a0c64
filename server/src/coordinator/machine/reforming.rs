//! An elastic job takes in workers: behind a step all leave it, and form it again together.
//!
//! Nothing of the job but its key-value store goes over to the next formation. So ranks have no gaps, rounds begin anew, and no member has to
//! tell what came before from what comes after.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Incarnation, LinkId, Member, Passage, Phase, Role, Time, View, WorkerId};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Forming, Health, Join, Names};

use super::{Coordinator, endings};
use crate::coordinator::Event;
use crate::coordinator::barrier::Barriers;
use crate::coordinator::journal::Entry;
use crate::coordinator::registry::Registry;
use crate::coordinator::roster::{Change, Identity, Roster, Seat, Size};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::Policy;

impl Coordinator {
    /// Whether the job has ended only to form again: go on with [`form_again`](Self::form_again) once it is finished.
    pub fn forms_again(&self) -> bool {
        self.again.is_some()
    }

    /// Forms the job again, as the coordinator of a later term: with the members that were there and the processes that wait. It is complete
    /// when all of these have come, or after `reform_timeout` with those that have.
    ///
    /// # Panics
    /// If the job does not form again.
    pub fn form_again(&mut self, term: u32, now: Time) {
        let expected = self.again.take().expect("the driver asks first");
        let (newcomers, farewells) = (self.newcomers.take(), self.farewells());
        let mut next = Self::new(self.config.clone(), term, now);
        let is_left = |seat: &&Seat| seat.member.process.role == Role::Server && seat.health != Health::Dead;
        let servers = u32::try_from(self.roster.seats().filter(is_left).count()).expect("at most MEMBERS_MAX");
        next.expect(now, self.formed_before + 1, expected, servers);
        next.farewells = farewells;
        next.missed = std::mem::take(&mut self.missed);
        next.store = std::mem::replace(&mut self.store, next.store).kept();
        next.connections = std::mem::take(&mut self.connections).without_members();
        *self = next;
        self.write_down_expected(now);
        for (link, join) in newcomers {
            self.handle_frame(now, link, Frame::Join(join));
        }
    }

    /// What members hear that have missed the end of this formation.
    fn farewells(&self) -> BTreeMap<Identity, (Incarnation, Frame)> {
        let view = View { phase: Phase::FormsAgain, ..self.view() };
        let farewell = |seat: &Seat| {
            let released = self.boundaries.released(WorkerId(seat.member.index));
            let frame = match (seat.member.process.role, released) {
                (Role::Worker, Some((change, passage))) => Frame::Passed { change, outcome: Ok(passage) },
                _ => Frame::View(view.clone()),
            };
            (seat.identity(), (seat.incarnation(), frame))
        };
        self.roster.seats().map(farewell).collect()
    }

    /// Waits for these workers, for others until there are as many as may be, and for so many servers.
    pub(super) fn expect(&mut self, now: Time, formed_before: u32, expected: Vec<Member>, servers: u32) {
        self.formed_before = formed_before;
        self.stage = Stage::Forming { until: now + self.config.reform_timeout };
        let most = self.config.workers_max.unwrap_or(self.config.workers);
        self.roster = Roster::again(Size { workers: most, servers }, expected);
    }

    /// A process that is no member joins a job that runs, or that is about to form again. It waits, or is refused.
    pub(super) fn take_in(&mut self, now: Time, link: LinkId, identity: Identity, join: Join) {
        if let Err(error) = self.check_newcomer(identity, &join) {
            return self.refuse(link, &join, error);
        }
        if let Some(former) = self.newcomers.add(identity, link, join) {
            self.dismiss(former, Error::Fenced { current: self.epoch });
        }
        self.write_down_newcomers(now);
        self.advance_steps(now);
    }

    /// Writes down that processes wait.
    pub(super) fn write_down_newcomers(&mut self, at: Time) {
        self.write_down(Entry::Came { at, workers: self.waiting_workers() });
    }

    fn waiting_workers(&self) -> u32 {
        u32::try_from(self.newcomers.workers()).unwrap_or(u32::MAX)
    }

    /// Whether a process that is no member may wait to be taken in.
    ///
    /// # Errors
    /// Why not.
    fn check_newcomer(&self, identity: Identity, join: &Join) -> Result<()> {
        let Some(most) = self.config.workers_max else { return Err(self.roster.refuse_late(join)) };
        if self.again.is_none() {
            if identity.role != Role::Worker {
                return Err(self.roster.refuse_late(join));
            }
            if self.keeps_parameters() {
                return Err(Error::FailedPrecondition {
                    what: "this job keeps parameters on its servers, which begin anew with each worker that comes"
                        .to_owned(),
                    hint: "start all its workers at once, or reduce gradients in place of parameters".to_owned(),
                });
            }
            // One that comes for a worker whose loss is not known yet has to wait for that.
            if self.newcomers.workers_besides(identity) >= most as usize {
                return Err(Error::FailedPrecondition {
                    what: format!("the job may have {most} workers, and as many wait to be taken in"),
                    hint: "come when some have left, or give `elastic` a higher maximum".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Whether servers keep values that are lost if the job forms again, or loses one of them.
    pub(super) fn keeps_parameters(&self) -> bool {
        self.registry.as_ref().is_some_and(Registry::has_parameters)
    }

    /// Whether processes wait to be taken in, and can be.
    pub(super) fn takes_in(&self) -> bool {
        self.newcomers.are_there() && !self.is_full() && !self.keeps_parameters()
    }

    /// Whether there is no place for another worker.
    fn is_full(&self) -> bool {
        self.config.workers_max.is_none_or(|most| self.stepping_workers().len() >= most as usize)
    }

    /// A process that waits says something.
    pub(super) fn handle_newcomer(&mut self, link: LinkId, frame: Frame) {
        match frame {
            Frame::Heartbeat { sent, .. } => self.connections.send(link, Frame::HeartbeatAck { sent }),
            Frame::StatusRequest => {
                let what = match (self.is_full(), self.boundaries.holds_until().map(|_| self.lacking())) {
                    (true, _) => "a place: there are as many workers as the job may have (elastic)".to_owned(),
                    (false, Some(lacking)) if lacking > 0 => {
                        format!("workers: {lacking} more, for which the others hold")
                    }
                    (false, _) => "the end of a step of the others, who then take this process in".to_owned(),
                };
                let forming =
                    Forming { speaks: true, missing: Names::first([what].into_iter(), 1), ..Forming::default() };
                self.connections.send(link, Frame::Forming(forming));
            }
            Frame::Renew => self.connections.certify(link),
            Frame::Leave | Frame::Fail { .. } => {
                self.forget_newcomer(link);
                self.close(link, Error::Cancelled);
            }
            _ => self.close_protocol(link, "kind", "came from a process that is not taken in yet"),
        }
    }

    /// A process that waited is gone, if this was its connection. A change that began because of it is dropped with the next report.
    pub(super) fn forget_newcomer(&mut self, link: LinkId) {
        if self.newcomers.remove(link) {
            self.write_down(Entry::Gone { workers: self.waiting_workers() });
        }
    }

    /// All workers leave behind this step; those that stay are expected again.
    pub(super) fn dissolve(&mut self, now: Time, change: u64, passage: &Passage) {
        let expected = |seat: &Seat| seat.member.clone();
        self.count_leavers();
        let workers: Vec<WorkerId> = passage.workers.iter().collect();
        self.again = Some(workers.iter().filter_map(|worker| self.roster.worker(*worker)).map(expected).collect());
        for worker in &workers {
            self.release(change, Passage { leaves: true, ..passage.clone() }, *worker);
        }
        let (workers, newcomers) = (workers.len(), self.newcomers.workers());
        self.connections.event(Event::FormsAgain { workers, newcomers });
        self.end(now, Ok(()));
    }

    /// A worker is not expected again, because its process has ended.
    pub(super) fn expect_no_more(&mut self, now: Time, pid: u32, host: &str, cause: &str) {
        let is_it = |expected: &Member| expected.process.is(host, pid);
        if let Some(again) = &mut self.again
            && let Some(place) = again.iter().position(is_it).map(|at| again.remove(at).process.place())
        {
            self.miss(format!("worker on {place}: {cause}"));
        }
        if matches!(self.stage, Stage::Forming { .. }) && self.formed_before > 0 {
            let is_it = |seat: &&Seat| seat.member.process.is(host, pid);
            let gone: Vec<Identity> = self.roster.seats().filter(is_it).map(Seat::identity).collect();
            for identity in gone {
                self.roster.apply(Change::Free(identity));
            }
            if let Some(place) = self.roster.expect_no_more(host, pid) {
                self.miss(format!("worker on {place}: {cause}"));
            }
            self.form_if_complete(now);
        }
    }

    /// Members are missing. A job that forms again does so with those that have come, if they are enough; another one ends.
    pub(super) fn form_late(&mut self, now: Time) {
        let (fewest, waited) = match self.config.policy {
            // Those that come hold.
            Policy::Continue { rejoin: Some(_), .. } if self.formed_before > 0 => (1, self.config.reform_timeout),
            Policy::Continue { min_workers, .. } if self.formed_before > 0 => (min_workers, self.config.reform_timeout),
            Policy::Continue { .. } | Policy::Abort => (self.config.workers, self.config.form_timeout),
        };
        if self.formed_before > 0 && self.roster.suffices(fewest) {
            let missed = self.roster.missing_again().map(|worker| format!("{worker}: it did not join the job again"));
            missed.collect::<Vec<_>>().into_iter().for_each(|missed| self.miss(missed));
            return self.form(now);
        }
        let missing = self.roster.missing();
        self.end(now, Err(Error::NotFormed { missing, waited }));
    }

    /// Makes what counts the workers, which are `workers` now.
    pub(super) fn count_workers(&mut self, workers: u32) {
        self.barriers = Barriers::new(workers, self.config.defect);
        self.endings = endings(&self.config, workers);
    }
}
