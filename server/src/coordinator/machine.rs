//! Handles each input, according to the stage of the job.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{Epoch, Incarnation, LinkId, Machines, Member, NodeId, Role, Time, View};
use gradlane_core::wire::frame::{Join, Status};
use gradlane_core::wire::{Frame, limits};

use super::barrier::Barriers;
use super::boundaries::Boundaries;
use super::checkpoints::Checkpoints;
use super::clocks::Clocks;
use super::connections::{Connections, Link};
use super::controls::Controls;
use super::endings::{Endings, Waiting};
use super::health::FailureDetector;
use super::journal::Entry;
use super::missed::Missed;
use super::newcomers::Newcomers;
use super::recovery::Recovery;
use super::registry::Registry;
use super::roster::{Identity, Line, Roster, Seat, Size};
use super::stage::Stage;
use super::stall::Stalls;
use super::store::Store;
use super::verdict::Lost;
use super::waits::Told;
use super::{Command, CoordinatorConfig, Event, questions};

mod checkpointing;
mod controlling;
mod counting;
mod declaring;
mod holding;
mod leaving;
mod losing;
mod passing;
mod recovering;
mod reforming;
mod reporting;
mod restoring;
mod stepping;
mod storing;
mod telling;
mod ticking;

/// The job's single decider.
///
/// Report each event through a `handle_*` method, then drain [`Coordinator::next_command`] completely and wait no longer than
/// [`Coordinator::poll_timeout`]. The last event is [`Event::Finished`]. A member that lost its connection before it learned of the end may
/// ask later, and is still answered.
///
/// - A connection says with [`Frame::Join`] which member it speaks for; before that it may only ask for the status. A newer connection
///   of the same process replaces the older one.
/// - A lost connection is not a death: the process may come back until it was silent for `dead_timeout`. But while the job forms, the
///   process loses its seat and must join again.
/// - Every change of the view is a new epoch of this coordinator's term, and a view is shown to a member whenever it connects.
/// - A member of a job of another term is refused with [`Error::OtherTerm`], because this coordinator knows nothing of that job.
/// - [`verdict`](super::verdict) decides what a loss means. An abort ends the job with its first cause, which every member gets.
/// - An elastic job takes in processes that come while it runs: they wait until all workers stand behind the same step. There all leave, and
///   the job forms again, under a later term: [`Coordinator::form_again`].
/// - A job that restores what servers keep forms again in the same way when it loses one, at any instant: whatever is under way fails.
/// - A worker may leave while others still work. Barriers then fail, because they need it. A sum that needs it stalls, and the notice says
///   that it left. The job is over when the last worker has left. A server that leaves earlier counts as lost.
#[derive(Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    stage: Stage,
    epoch: Epoch,
    connections: Connections,
    roster: Roster,
    failure_detector: FailureDetector,
    barriers: Barriers,
    clocks: Clocks,
    checkpoints: Checkpoints,
    controls: Controls,
    boundaries: Boundaries,
    /// What the workers were told last of a boundary.
    last_passed: Option<Frame>,
    store: Store,
    /// How often the job had formed before.
    formed_before: u32,
    /// How many servers it formed with.
    formed_servers: u32,
    /// Whether its sums need no server since.
    formed_together: bool,
    recovery: Recovery,
    newcomers: Newcomers,
    missed: Missed,
    /// Since the job ends only to form again: the members that are expected then, in their order.
    again: Option<Vec<Member>>,
    /// How many servers come in the place of lost ones before the job forms again.
    coming: u32,
    /// What members of the former formation hear that have missed its end: by identity, for this life.
    farewells: BTreeMap<Identity, (Incarnation, Frame)>,
    /// Exists since the job formed.
    registry: Option<Registry>,
    endings: Endings,
    stalls: Stalls,
    waits: Told,
}

impl Coordinator {
    /// A job that waits for its members from `now` on. `term` grows with every start of a coordinator of this job.
    ///
    /// # Panics
    /// If the job has no worker, no server or more than [`limits::MEMBERS_MAX`] members, or if `dead_timeout` is not above
    /// `suspect_timeout`.
    pub fn new(config: CoordinatorConfig, term: u32, now: Time) -> Self {
        let size = Size { workers: config.workers, servers: config.servers };
        let members = u64::from(size.workers) + u64::from(size.servers);
        assert!(size.workers > 0 && size.servers > 0, "a job has workers and servers");
        assert!(members <= limits::MEMBERS_MAX as u64, "a job has at most {} members", limits::MEMBERS_MAX);
        Self {
            stage: Stage::Forming { until: now + config.form_timeout },
            epoch: Epoch { term, number: 0 },
            connections: Connections::default(),
            roster: Roster::new(size),
            failure_detector: FailureDetector::new(config.suspect_timeout, config.dead_timeout),
            barriers: Barriers::new(config.workers, config.defect),
            clocks: Clocks::new(config.workers, config.servers, told_for(&config), config.defect),
            checkpoints: Checkpoints::default(),
            controls: Controls::default(),
            boundaries: Boundaries::new(
                config.boundary_timeout,
                config.leave_grace,
                config.policy.rejoin(),
                config.defect,
            ),
            last_passed: None,
            store: Store::new(config.defect),
            formed_before: 0,
            formed_servers: 0,
            formed_together: false,
            recovery: Recovery::new(config.boundary_timeout, config.defect),
            newcomers: Newcomers::default(),
            missed: Missed::default(),
            again: None,
            coming: 0,
            farewells: BTreeMap::new(),
            registry: None,
            endings: Endings::new(config.workers, told_for(&config), config.defect),
            stalls: Stalls::new(config.stall_interval),
            waits: Told::new(config.stall_interval),
            config,
        }
    }

    /// The next command; `None` when all are drained.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.connections.is_drained() && matches!(self.stage, Stage::Closing { .. }) && self.roster.all_know_end() {
            self.finish();
        }
        self.connections.next_command()
    }

    /// The current membership. While the job forms, its members have the ranks that they would get if no other process came.
    ///
    /// A job that goes on without a worker that is lost also goes on without one that left in order: such a view does not name it. Otherwise
    /// it stays due, and what waits for it fails and says so.
    pub fn view(&self) -> View {
        self.view_of(|seat| !seat.is_past)
    }

    fn view_of(&self, shown: impl Fn(&Seat) -> bool) -> View {
        let members = self.roster.in_order().into_iter().filter(|(_, seat)| shown(seat));
        View {
            job: self.config.job.clone(),
            epoch: self.epoch,
            phase: self.phase(),
            formed_before: self.formed_before,
            formed_servers: self.formed_servers,
            formed_together: self.formed_together,
            recovers: self.recovery.is_open(),
            members: members.map(|(member, _)| member).collect(),
        }
    }

    /// The member that speaks on this connection.
    pub fn member_at(&self, link: LinkId) -> Option<(Role, u32)> {
        let identity = self.connections.get(link)?.speaks_for?;
        let member = &self.roster.seat(identity)?.member;
        Some((member.process.role, member.index))
    }

    /// The members that are there.
    pub fn present(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        let present = self.roster.seats().filter(|seat| seat.is_present());
        present.map(|seat| (seat.member.process.role, seat.member.index))
    }

    /// The membership, the health of each member, and the loads of the servers.
    pub fn status(&self, now: Time) -> Status {
        let view = self.view_of(|_| true);
        let waits = Box::new(self.waits.shown(now, &self.roster, self.registry.as_ref()));
        Status { waits, ..questions::status(now, view, &self.roster, self.registry.as_ref(), self.hold(now)) }
    }

    /// Whether processes that are no members yet may enrol now.
    ///
    /// # Errors
    /// Why not: the job has formed, or has ended.
    pub fn admits_newcomers(&self) -> Result<()> {
        questions::newcomers(&self.stage, &self.roster)
    }

    /// A node connected whose certificate is for `role`.
    pub fn handle_connected(&mut self, link: LinkId, node: NodeId, role: Role) {
        self.connections.add(link, node, role);
    }

    /// A node sent a frame. Frames of a closed connection are ignored.
    pub fn handle_frame(&mut self, now: Time, link: LinkId, frame: Frame) {
        let Some(Link { node, speaks_for, .. }) = self.connections.get(link) else { return };
        if self.newcomers.contains(link) {
            return self.handle_newcomer(now, link, frame);
        }
        if let Some(seat) = speaks_for.and_then(|identity| self.roster.seat_mut(identity)) {
            seat.lives(now);
        }
        if let Some(identity) = speaks_for {
            self.write_down_frame(now, identity, &frame);
        }
        match (frame, speaks_for) {
            (Frame::StatusRequest, Some(identity)) => {
                self.connections.send(link, Frame::Forming(questions::forming(&self.roster, identity)));
            }
            (Frame::StatusRequest, None) => {
                let status = self.status(now);
                self.connections.send(link, Frame::Status(status));
            }
            (Frame::Join(join), None) => self.handle_join(now, link, node, join),
            (Frame::Control { request, control }, _) => self.handle_control(now, link, request, control),
            (Frame::Join(_), Some(_)) => self.close_protocol(link, "kind", "is a second join"),
            (_, None) if self.connections.is_parting(link) => {}
            (_, None) => self.close_protocol(link, "kind", "came before a join; send the join first"),
            (Frame::Heartbeat { sent, progress }, Some(identity)) => {
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.progress = progress;
                }
                self.acknowledge(now, link, sent);
            }
            // The driver keeps them for the exporter and the report.
            (Frame::Metrics(_) | Frame::Setup(_), Some(_)) => {}
            (Frame::Declare { request, tensors, fuse }, Some(identity)) => {
                self.handle_declare(now, link, identity, request, Waiting { tensors, fuse });
            }
            (Frame::Undeclare { request, names }, Some(identity)) => {
                self.handle_undeclare(now, link, identity, request, &names);
            }
            (Frame::Barrier { request, name, timeout }, Some(identity)) => {
                self.handle_barrier(now, link, identity, request, name, timeout);
            }
            (Frame::Tick { request, tick }, Some(identity)) => self.handle_tick(now, link, identity, request, tick),
            (Frame::Checkpoint { request, ask }, Some(identity)) => {
                self.handle_checkpoint(now, link, identity, request, ask);
            }
            (Frame::Obeyed { order, outcome }, Some(identity)) => self.handle_obeyed(link, identity, order, outcome),
            (Frame::Commanded { number, outcome }, Some(identity)) => {
                self.handle_commanded(identity, number, outcome);
            }
            (Frame::Squares(squares), Some(identity)) => self.handle_squares(now, link, identity, squares),
            (Frame::Store { request, ask }, Some(identity)) => self.handle_store(now, link, identity, request, ask),
            (Frame::Steps(report), Some(identity)) => self.handle_steps(now, link, identity, report),
            (Frame::Holdings(holdings), Some(identity)) => self.handle_holdings(now, identity, holdings),
            (Frame::Restored { epoch }, Some(identity)) => self.handle_restored(now, identity, epoch),
            (Frame::Stall(stall), Some(identity)) => self.handle_stall(now, link, identity, stall),
            (Frame::Waits(rounds), Some(identity)) => self.handle_waits(now, link, identity, rounds),
            (Frame::Saw { node, pid }, Some(witness)) => self.handle_witness(now, link, witness, node, pid),
            (Frame::Renew, Some(identity)) => self.handle_renewal(link, identity),
            (Frame::Leave, Some(identity)) => self.handle_leave(now, link, identity, None),
            (Frame::Fail { cause }, Some(identity)) => self.handle_leave(now, link, identity, Some(cause)),
            (
                Frame::View(_)
                | Frame::Refused(_)
                | Frame::HeartbeatAck { .. }
                | Frame::Declared { .. }
                | Frame::Undeclared { .. }
                | Frame::Ended { .. }
                | Frame::Forget { .. }
                | Frame::BarrierDone { .. }
                | Frame::StoreDone { .. }
                | Frame::Ticked { .. }
                | Frame::Checkpointed { .. }
                | Frame::Order(_)
                | Frame::Controlled { .. }
                | Frame::Command { .. }
                | Frame::Close(_)
                | Frame::Boundary { .. }
                | Frame::Passed { .. }
                | Frame::Restore { .. }
                | Frame::StallNotice { .. }
                | Frame::Status(_)
                | Frame::Forming(_)
                | Frame::Renewed { .. }
                | Frame::WorkersKey(_),
                Some(_),
            ) => self.close_protocol(link, "kind", "only a coordinator sends"),
        }
    }

    /// A connection ended.
    pub fn handle_disconnected(&mut self, link: LinkId, error: Error) {
        self.forget(link);
        if let Some(identity) = self.connections.remove(link) {
            self.hold_seat(identity, error);
        }
    }

    /// A launcher saw a process end, so its loss is known before `dead_timeout`. A process that left in order is no loss.
    pub fn handle_death(&mut self, now: Time, pid: u32, host: &str, cause: String) {
        let is_it = |seat: &&Seat| seat.is_present() && seat.member.process.is(host, pid);
        let lost = |seat: &Seat| Lost { identity: seat.identity(), cause: cause.clone() };
        let loss = self.roster.seats().filter(is_it).map(lost).collect();
        self.find_lost(now, loss);
        self.expect_no_more(now, pid, host, &cause);
    }

    /// Ends the job for every member with `cause`, unless it ended before.
    pub fn stop(&mut self, now: Time, cause: Error) {
        self.end(now, Err(cause));
    }

    fn handle_join(&mut self, now: Time, link: LinkId, node: NodeId, join: Join) {
        let (identity, life) = (Identity { node, role: join.process.role }, join.process.incarnation);
        if let Err(error) = self.connections.check_claim(link, identity.role) {
            return self.refuse(link, &join, error);
        }
        if self.roster.is_fenced(node, life) && !planted(self.config.defect, Defect::FencedAccepted) {
            return self.refuse(link, &join, Error::Fenced { current: self.epoch });
        }
        if let Some((_, farewell)) = self.farewells.get(&identity).filter(|(former, _)| *former == life) {
            self.connections.send(link, farewell.clone());
            return self.connections.part(link);
        }
        let earlier = self.roster.seat(identity);
        let same_life = earlier.is_some_and(|seat| seat.incarnation() == life);
        let earlier_link = earlier.and_then(Seat::link);
        if let Some(epoch) = join.epoch.filter(|_| !same_life)
            && (epoch.term != self.epoch.term || matches!(self.stage, Stage::Forming { .. }))
        {
            let error = Error::OtherTerm { member: epoch.term, coordinator: self.epoch.term };
            return self.refuse(link, &join, error);
        }
        match &self.stage {
            // In an elastic job it waits, as if it had come later.
            Stage::Forming { .. } if self.most(identity.role).is_some() && self.roster.has_no_place_for(identity) => {
                return self.take_in(now, link, identity, join);
            }
            Stage::Forming { .. } => {
                if let Err(error) = self.roster.admit(now, link, node, join.clone()) {
                    return self.refuse(link, &join, error);
                }
                self.failure_detector.watch(now);
            }
            Stage::Running | Stage::Closing { .. } | Stage::Finished { .. } if same_life => {
                let seat = self.roster.seat_mut(identity).expect("this life holds it");
                seat.line = Line::Up(link);
                seat.lives(now);
                self.write_down(Entry::Up(identity));
            }
            Stage::Closing { outcome, .. } | Stage::Finished { outcome } if self.again.is_none() => {
                let error = questions::over(outcome);
                return self.refuse(link, &join, error);
            }
            Stage::Running | Stage::Closing { .. } | Stage::Finished { .. } => {
                return self.take_in(now, link, identity, join);
            }
        }
        self.connections.assign(link, Some(identity));
        if let Some(earlier_link) = earlier_link {
            // The seat has its new connection already, so the end of the old one must not affect it.
            self.connections.assign(earlier_link, None);
            if same_life {
                let what = "this connection".to_owned();
                self.close(earlier_link, Error::Unavailable { what, cause: "a newer one took its place".to_owned() });
            } else {
                self.dismiss(earlier_link, Error::Fenced { current: self.epoch });
            }
        }
        self.greet(now, link);
        self.form_if_complete(now);
    }

    fn form_if_complete(&mut self, now: Time) {
        if matches!(self.stage, Stage::Forming { .. }) && self.roster.is_complete() && self.replacements_are_there() {
            self.form(now);
        }
    }

    fn form(&mut self, now: Time) {
        self.roster.seal();
        if self.formed_before > 0 {
            self.count_members(self.roster.size());
        }
        self.epoch.number += 1;
        self.stage = Stage::Running;
        self.coming = 0;
        self.formed_servers = self.roster.size().servers;
        self.formed_together = Machines::need_no_server(&self.view());
        self.boundaries.form(self.stepping_workers());
        let view = self.view();
        self.write_down_job(now, &view);
        if self.newcomers.are_there() || self.lacking() > 0 {
            self.write_down_newcomers(now);
        }
        self.forget_replaced();
        self.registry = Some(Registry::new(self.config.layout, &view, self.config.stall_interval));
        for link in self.roster.links(|identity| identity.role == Role::Worker) {
            self.connections.share_key(link);
        }
        self.broadcast(&Frame::View(view));
        self.connections.event(Event::Formed { epoch: self.epoch });
        self.advance_steps(now);
    }

    /// Ends the job, once: open barriers and reads that wait get the cause, and every member is told.
    fn end(&mut self, now: Time, outcome: Result<()>) {
        let formed = match self.stage {
            Stage::Forming { .. } => false,
            Stage::Running => true,
            Stage::Closing { .. } | Stage::Finished { .. } => return,
        };
        let until = now + self.config.end_grace;
        self.epoch.number += 1;
        self.recovery.close();
        self.stage = Stage::Closing { outcome: outcome.clone(), until };
        if let Err(cause) = &outcome {
            let answers = self.barriers.fail_all(cause);
            self.answer(answers);
            let failed = self.clocks.fail_all(cause);
            self.tell_ticked(failed);
            let failed = self.checkpoints.fail(cause);
            self.turn_checkpoints(failed);
            let replies = self.store.fail_all(cause);
            self.reply(replies);
        }
        let ordered = self.controls.fail_all(&questions::over(&outcome));
        self.answer_control(ordered);
        if !self.forms_again() {
            for (link, _) in self.newcomers.take() {
                self.dismiss(link, questions::over(&outcome));
            }
        }
        let frame = match outcome {
            Err(cause) if !formed => Frame::Refused(cause),
            Ok(()) | Err(_) => Frame::View(self.view()),
        };
        self.broadcast(&frame);
    }

    fn finish(&mut self) {
        if let Stage::Closing { outcome, .. } = &self.stage {
            self.connections.dismiss_parting(&Error::Fenced { current: self.epoch });
            self.connections.event(Event::Finished(outcome.clone()));
            self.stage = Stage::Finished { outcome: outcome.clone() };
        }
    }
}

/// How long servers are told what they may have missed: twice as long as they may be away, because the end of a connection may be noticed late.
fn told_for(config: &CoordinatorConfig) -> std::time::Duration {
    config.dead_timeout * 2
}
