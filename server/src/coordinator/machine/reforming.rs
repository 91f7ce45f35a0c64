//! A job forms again: an elastic one behind a step, with those that wait to be taken in; one that restores what servers keep when it has lost a
//! server.
//!
//! Nothing of the job but its key-value store goes over to the next formation. So ranks have no gaps, rounds begin anew, and no member has to
//! tell what came before from what comes after.

use std::collections::BTreeMap;

use gradlane_core::config::OnServerLoss;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Incarnation, LinkId, Member, Passage, Phase, Role, Time, WorkerId};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Forming, Health, Join, Names};

use super::{Coordinator, told_for};
use crate::coordinator::Event;
use crate::coordinator::barrier::Barriers;
use crate::coordinator::clocks::Clocks;
use crate::coordinator::endings::Endings;
use crate::coordinator::journal::Entry;
use crate::coordinator::registry::Registry;
use crate::coordinator::roster::{Change, Identity, Roster, Seat, Size, take_out};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::Policy;

impl Coordinator {
    /// Whether the job has ended only to form again: go on with [`form_again`](Self::form_again) once it is finished.
    pub fn forms_again(&self) -> bool {
        self.again.is_some()
    }

    /// How far the job is, as members see it.
    pub(super) fn phase(&self) -> Phase {
        match self.stage.phase() {
            Phase::Ended if self.forms_again() => Phase::FormsAgain,
            Phase::Aborted(cause) if self.forms_again() => Phase::Restores(cause),
            phase @ (Phase::Forming
            | Phase::Running
            | Phase::Ended
            | Phase::FormsAgain
            | Phase::Restores(_)
            | Phase::Aborted(_)) => phase,
        }
    }

    /// Forms the job again, as the coordinator of a later term: with the members that were there and the processes that wait. It is complete
    /// when all of these have come, or after `reform_timeout` with those that have.
    ///
    /// # Panics
    /// If the job does not form again.
    pub fn form_again(&mut self, term: u32, now: Time) {
        let farewells = self.farewells();
        let mut expected = self.again.take().expect("the driver asks first");
        let is_dead = |seat: &Seat| seat.health == Health::Dead;
        expected.retain(|member| !self.roster.seat(Identity::of(member)).is_some_and(is_dead));
        let newcomers = self.newcomers.take();
        let mut next = Self::new(self.config.clone(), term, now);
        next.expect(now, self.formed_before + 1, expected);
        next.farewells = farewells;
        next.coming = self.coming;
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
        let view = self.view();
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

    /// Waits for these members, and takes in others until there are as many as may be.
    pub(super) fn expect(&mut self, now: Time, formed_before: u32, expected: Vec<Member>) {
        self.formed_before = formed_before;
        self.stage = Stage::Forming { until: now + self.config.reform_timeout };
        let is_worker = |member: &&Member| member.process.role == Role::Worker;
        let there = expected.iter().filter(is_worker).count();
        let most = self.config.workers_max.unwrap_or(u32::try_from(there).expect("at most MEMBERS_MAX"));
        self.roster = Roster::again(Size { workers: most, servers: self.config.servers }, expected);
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
        self.write_down(Entry::Came { at, waiting: self.newcomers.waiting() });
    }

    /// Whether a process that is no member may wait to be taken in.
    ///
    /// # Errors
    /// Why not.
    fn check_newcomer(&self, identity: Identity, join: &Join) -> Result<()> {
        // Members may be faster than the end of the formation that they have left.
        let is_expected = self.again.iter().flatten().any(|member| Identity::of(member) == identity);
        if self.config.workers_max.is_none() && self.most(identity.role).is_none() && !is_expected {
            return Err(self.roster.refuse_late(join));
        }
        if self.again.is_none() {
            let Some(most) = self.most(identity.role) else { return Err(self.roster.refuse_late(join)) };
            // A server may wait for the loss of another one.
            let replaces = identity.role == Role::Server && self.restores();
            if self.keeps_parameters() && !replaces {
                return Err(Error::FailedPrecondition {
                    what: "this job keeps parameters on its servers, which begin anew with each process that comes"
                        .to_owned(),
                    hint: "start all its processes at once, or reduce gradients in place of parameters".to_owned(),
                });
            }
            // One that comes for a member whose loss is not known yet has to wait for that.
            if self.newcomers.others(identity) >= most {
                return Err(Error::FailedPrecondition {
                    what: format!("the job may have {most} {}s, and as many wait to be taken in", identity.role),
                    hint: "come when some have left; the maximum of `elastic` is that of the workers".to_owned(),
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
        Role::OF_MEMBERS.into_iter().any(|role| self.takes_in_a(role))
    }

    /// Whether some of this role wait to be taken in, and can be.
    pub(super) fn takes_in_a(&self, role: Role) -> bool {
        let is_elastic = self.config.workers_max.is_some();
        is_elastic && self.newcomers.count(role) > 0 && !self.is_full(role) && !self.keeps_parameters()
    }

    /// Whether the job forms again when it loses a server.
    fn restores(&self) -> bool {
        self.config.policy.on_server_loss() == OnServerLoss::Restore
    }

    /// How many members of this role the job may have, if it takes in any after it has formed. In the place of lost servers it takes in others
    /// if it survives their loss.
    pub(super) fn most(&self, role: Role) -> Option<u32> {
        let most = self.config.workers_max;
        match (role, self.config.policy.on_server_loss()) {
            (Role::Worker, _) => most,
            (Role::Server, OnServerLoss::Continue) => most.map(|_| self.config.servers),
            (Role::Server, OnServerLoss::Restore) => Some(self.config.servers),
            (Role::Server, OnServerLoss::Abort) | (Role::Coordinator | Role::Observer | Role::Admin, _) => None,
        }
    }

    /// Whether there is no place for another member of this role.
    fn is_full(&self, role: Role) -> bool {
        let is_one = |seat: &&Seat| seat.is_present() && seat.member.process.role == role;
        self.most(role).is_none_or(|most| self.roster.seats().filter(is_one).count() >= most as usize)
    }

    /// A process that waits says something.
    pub(super) fn handle_newcomer(&mut self, now: Time, link: LinkId, frame: Frame) {
        match frame {
            Frame::Heartbeat { sent, .. } => self.acknowledge(now, link, sent),
            Frame::StatusRequest => {
                let role = self.connections.get(link).map_or(Role::Worker, |link| link.role);
                let lacking = self.boundaries.holds_until().map_or(0, |_| self.lacking());
                let what = if role == Role::Server && self.restores() && self.keeps_parameters() {
                    "the next time that the job forms, because the servers that are there keep parameters".to_owned()
                } else if self.is_full(role) {
                    format!("a place: there are as many {role}s as the job may have")
                } else if lacking > 0 {
                    format!("workers: {lacking} more, for which the others hold")
                } else {
                    "the end of a step of the others, who then take this process in".to_owned()
                };
                let forming =
                    Forming { speaks: true, missing: Names::first([what].into_iter(), 1), ..Forming::default() };
                self.connections.send(link, Frame::Forming(forming));
            }
            Frame::Metrics(_) | Frame::Waits(_) => {}
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
            self.write_down(Entry::Gone { waiting: self.newcomers.waiting() });
        }
    }

    /// All workers leave behind this step. Those that stay are expected again, and all servers that are there.
    pub(super) fn dissolve(&mut self, now: Time, change: u64, passage: &Passage) {
        let expected = |seat: &Seat| seat.member.clone();
        self.count_leavers();
        let workers: Vec<WorkerId> = passage.workers.iter().collect();
        let mut servers: Vec<&Seat> = self.roster.seats().filter(|seat| is_server(seat) && seat.is_present()).collect();
        servers.sort_by_key(|seat| seat.member.index);
        let staying = workers.iter().filter_map(|worker| self.roster.worker(*worker));
        self.again = Some(staying.chain(servers).map(expected).collect());
        for worker in &workers {
            self.release(change, Passage { leaves: true, ..passage.clone() }, *worker);
        }
        let Size { workers: newcomers, servers } = self.newcomers.waiting();
        let newcomers = newcomers.saturating_add(servers) as usize;
        self.connections.event(Event::FormsAgain { workers: workers.len(), newcomers });
        self.end(now, Ok(()));
    }

    /// A server was lost with what it kept. The members that are left are expected again, and hear the cause now.
    pub(super) fn break_up(&mut self, now: Time, cause: Error) {
        self.count_leavers();
        let mut staying: Vec<&Member> =
            self.roster.seats().filter(|seat| seat.is_present()).map(|seat| &seat.member).collect();
        staying.sort_by_key(|member| (member.process.role, member.index));
        let staying: Vec<Member> = staying.into_iter().cloned().collect();
        let workers = staying.iter().filter(|member| member.process.role == Role::Worker).count();
        let Size { workers: newcomers, servers } = self.newcomers.waiting();
        let newcomers = newcomers.saturating_add(servers) as usize;
        self.connections.event(Event::FormsAgain { workers, newcomers });
        self.again = Some(staying);
        self.end(now, Err(cause));
    }

    /// A process has ended and is started again. If it is a server that the job has lost, or does not know to be lost yet, the job does not form
    /// again without the one that comes in its place, unless that takes too long. Its loss is told next ([`handle_death`](Self::handle_death)).
    pub fn expect_replacement(&mut self, pid: u32, host: &str) {
        let is_it = |member: &Member| member.process.role == Role::Server && member.process.is(host, pid);
        let is_known = match self.stage {
            // Those that came in the place of others are counted already.
            Stage::Forming { .. } => self.roster.expected().iter().any(is_it),
            Stage::Running | Stage::Closing { .. } => self.roster.seats().any(|seat| is_it(&seat.member)),
            Stage::Finished { .. } => false,
        };
        if is_known && self.restores() {
            self.coming += 1;
        }
    }

    /// Whether the servers have come that come in the place of lost ones.
    pub(super) fn replacements_are_there(&self) -> bool {
        let expected = self.roster.expected();
        let is_expected = |seat: &Seat| expected.iter().any(|member| Identity::of(member) == seat.identity());
        let others = self.roster.seats().filter(|seat| is_server(seat) && !is_expected(seat)).count();
        self.formed_before == 0 || others >= self.coming as usize
    }

    /// A member is not expected again, because its process has ended.
    pub(super) fn expect_no_more(&mut self, now: Time, pid: u32, host: &str, cause: &str) {
        if let Some(gone) = self.again.as_mut().and_then(|again| take_out(again, host, pid)) {
            self.miss_expected(&gone, cause);
        }
        if matches!(self.stage, Stage::Forming { .. }) && self.formed_before > 0 {
            let is_it = |seat: &&Seat| seat.member.process.is(host, pid);
            let gone: Vec<Identity> = self.roster.seats().filter(is_it).map(Seat::identity).collect();
            for identity in gone {
                self.roster.apply(Change::Free(identity));
            }
            if let Some(gone) = self.roster.expect_no_more(host, pid) {
                self.miss_expected(&gone, cause);
            }
            self.form_if_complete(now);
        }
    }

    /// Members are missing. A job that forms again does so with those that have come, if they are enough; another one ends.
    pub(super) fn form_late(&mut self, now: Time) {
        let (fewest, waited) = match self.config.policy {
            Policy::Continue { min_workers, rejoin, on_server_loss } if self.formed_before > 0 => {
                let servers = if on_server_loss.survives() { 1 } else { self.config.servers };
                // Those that come hold, if others are waited for.
                let workers = if rejoin.is_some() { 1 } else { min_workers.max(1) };
                (Some(Size { workers, servers }), self.config.reform_timeout)
            }
            Policy::Continue { .. } | Policy::Abort => (None, self.config.form_timeout),
        };
        if fewest.is_some_and(|fewest| self.roster.suffices(fewest)) {
            let absent: Vec<Member> = self.roster.absent().cloned().collect();
            absent.iter().for_each(|member| self.miss_expected(member, "it did not join the job again"));
            return self.form(now);
        }
        let missing = self.roster.missing();
        self.end(now, Err(Error::NotFormed { missing, waited }));
    }

    /// Makes anew what counts the members, which are so many now.
    pub(super) fn count_members(&mut self, Size { workers, servers }: Size) {
        self.barriers = Barriers::new(workers, self.config.defect);
        self.clocks = Clocks::new(workers, servers, told_for(&self.config), self.config.defect);
        self.endings = Endings::new(workers, told_for(&self.config), self.config.defect);
    }
}

fn is_server(seat: &Seat) -> bool {
    seat.member.process.role == Role::Server
}
