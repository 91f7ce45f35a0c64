//! Handles each input, according to the stage of the job.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{Epoch, LinkId, Machines, NodeId, Role, Time, View};
use gradlane_core::wire::frame::{Health, Join, Status};
use gradlane_core::wire::{Frame, limits};

use super::barrier::{Answer, Arrival, Barriers};
use super::connections::{Connections, Link};
use super::endings::{Endings, Waiting};
use super::health::{FailureDetector, Silent};
use super::registry::{Forgotten, Registry};
use super::roster::{Change, Identity, Line, Roster, Seat, Size};
use super::stage::Stage;
use super::stall::Stalls;
use super::store::Store;
use super::verdict::{Lost, Verdict, verdict};
use super::{Command, CoordinatorConfig, Event, questions};

mod counting;
mod declaring;
mod leaving;
mod reporting;
mod storing;

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
    store: Store,
    /// Exists since the job formed.
    registry: Option<Registry>,
    endings: Endings,
    stalls: Stalls,
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
            store: Store::new(config.defect),
            registry: None,
            // Twice, because the end of a connection may be noticed late.
            endings: Endings::new(config.workers, config.dead_timeout * 2, config.defect),
            stalls: Stalls::new(config.stall_interval),
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

    /// When to call [`Coordinator::handle_timeout`] if nothing happens before. `None` once the job is finished.
    pub fn poll_timeout(&self) -> Option<Time> {
        let silence = self.failure_detector.poll_timeout();
        match self.stage {
            Stage::Forming { until } => Some(silence.map_or(until, |due| due.min(until))),
            Stage::Running => {
                let placement = self.registry.as_ref().and_then(Registry::poll_timeout);
                let asked = [self.barriers.poll_timeout(), self.store.poll_timeout()];
                asked.into_iter().chain([silence, placement]).flatten().min()
            }
            Stage::Closing { until, .. } => Some(until),
            Stage::Finished { .. } => None,
        }
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
            phase: self.stage.phase(),
            members: members.map(|(member, _)| member).collect(),
        }
    }

    /// The membership, the health of each member, and the loads of the servers.
    pub fn status(&self, now: Time) -> Status {
        questions::status(now, self.view_of(|_| true), &self.roster, self.registry.as_ref())
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
        if let Some(seat) = speaks_for.and_then(|identity| self.roster.seat_mut(identity)) {
            seat.lives(now);
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
            (Frame::Join(_), Some(_)) => self.close_protocol(link, "kind", "is a second join"),
            (_, None) if self.connections.is_parting(link) => {}
            (_, None) => self.close_protocol(link, "kind", "came before a join; send the join first"),
            (Frame::Heartbeat { sent, progress }, Some(identity)) => {
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.progress = progress;
                }
                self.connections.send(link, Frame::HeartbeatAck { sent });
            }
            (Frame::Declare { request, tensors, fuse }, Some(identity)) => {
                self.handle_declare(now, link, identity, request, Waiting { tensors, fuse });
            }
            (Frame::Undeclare { request, names }, Some(identity)) => {
                self.handle_undeclare(now, link, identity, request, &names);
            }
            (Frame::Barrier { request, name, timeout }, Some(identity)) => {
                match questions::asking_worker(&self.stage, &self.roster, identity) {
                    Ok(worker) => {
                        let answers = self.barriers.arrive(now, Arrival { worker, request, name, timeout });
                        self.answer(answers);
                    }
                    Err(error) => self.connections.send(link, Frame::BarrierDone { request, outcome: Err(error) }),
                }
            }
            (Frame::Store { request, ask }, Some(identity)) => self.handle_store(now, link, identity, request, ask),
            (Frame::Stall(stall), Some(_)) => self.handle_stall(now, link, stall),
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
        if let Some(identity) = self.connections.remove(link) {
            self.hold_seat(identity, error);
        }
    }

    /// A launcher saw a process end, so its loss is known before `dead_timeout`. A process that left in order is no loss.
    pub fn handle_death(&mut self, now: Time, pid: u32, host: &str, cause: String) {
        let is_it = |seat: &&Seat| seat.is_present() && seat.member.process.is(host, pid);
        let lost = |seat: &Seat| Lost { identity: seat.identity(), cause: cause.clone() };
        let loss = self.roster.seats().filter(is_it).map(lost).collect();
        self.lose(now, loss);
    }

    /// [`Coordinator::poll_timeout`] passed. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.stage {
            Stage::Forming { until } if until <= now => {
                let missing = self.roster.missing();
                self.end(now, Err(Error::NotFormed { missing, waited: self.config.form_timeout }));
            }
            Stage::Forming { .. } | Stage::Running => {
                let silent = self.failure_detector.sweep(now, &mut self.roster);
                self.handle_silence(now, silent);
                let answers = self.barriers.expire(now);
                self.answer(answers);
                let replies = self.store.expire(now);
                self.reply(replies);
                if let Some(warning) = self.registry.as_mut().and_then(|registry| registry.warning(now)) {
                    self.connections.event(Event::HotServer { warning });
                }
            }
            Stage::Closing { until, .. } if until <= now => self.finish(),
            Stage::Closing { .. } | Stage::Finished { .. } => {}
        }
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
            }
            Stage::Running => {
                let error = self.roster.refuse_late(&join);
                return self.refuse(link, &join, error);
            }
            Stage::Closing { outcome, .. } | Stage::Finished { outcome } => {
                let error = questions::over(outcome);
                return self.refuse(link, &join, error);
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
        self.greet(link);
        if matches!(self.stage, Stage::Forming { .. }) && self.roster.is_complete() {
            self.form();
        }
    }

    fn form(&mut self) {
        self.roster.seal();
        self.epoch.number += 1;
        self.stage = Stage::Running;
        let view = self.view();
        self.registry = Some(Registry::new(self.config.layout, &view, self.config.stall_interval));
        for link in self.roster.links(|identity| identity.role == Role::Worker) {
            self.connections.share_key(link);
        }
        self.broadcast(&Frame::View(view));
        self.connections.event(Event::Formed { epoch: self.epoch });
    }

    /// Tells a member that has connected the stage of the job, and the news that it may have missed.
    fn greet(&mut self, link: LinkId) {
        if matches!(self.stage, Stage::Forming { .. }) {
            return;
        }
        let role = self.connections.get(link).map(|link| link.role);
        if role == Some(Role::Worker) {
            self.connections.share_key(link);
        }
        let view = self.view();
        self.connections.send(link, Frame::View(view));
        if matches!(self.stage, Stage::Running) {
            if role == Some(Role::Server) {
                self.greet_server(link);
            }
            for Forgotten { key, error } in self.registry.iter().flat_map(Registry::forgotten) {
                self.connections.send(link, Frame::Forget { key, error });
            }
        }
    }

    fn handle_silence(&mut self, now: Time, found: Vec<Silent>) {
        let mut loss = Vec::new();
        for Silent { identity, silent, cause } in found {
            let Some(seat) = self.roster.seat(identity) else { continue };
            match cause {
                Some(cause) => loss.push(Lost { identity, cause }),
                None => {
                    let (member, place) = (self.roster.name(identity), seat.member.place());
                    self.connections.event(Event::Suspect { member, place, silent });
                }
            }
        }
        self.lose(now, loss);
    }

    /// Gives up these members at the same time, and carries out the verdict.
    fn lose(&mut self, now: Time, loss: Vec<Lost>) {
        let verdict = verdict(self.config.policy, &self.roster, &Machines::of(&self.view()), &loss);
        let links: Vec<LinkId> =
            loss.iter().filter_map(|lost| self.roster.seat(lost.identity).and_then(Seat::link)).collect();
        let runs = matches!(self.stage, Stage::Running);
        for Lost { identity, cause } in loss {
            if let Some(place) = self.roster.seat(identity).map(|seat| seat.member.place()).filter(|_| runs) {
                self.connections.event(Event::Dead { member: self.roster.name(identity), place, cause });
            }
            self.roster.apply(Change::GiveUp(identity));
        }
        match verdict {
            Verdict::Abort { cause, reason } if runs => {
                self.connections.event(Event::Ends { reason });
                self.end(now, Err(cause));
            }
            Verdict::Continue { without, reason } if runs => {
                let names: Vec<String> = without.iter().map(|identity| self.roster.name(*identity)).collect();
                self.connections.event(Event::GoesOn { without: names.join(", "), reason });
                self.go_on(now, &without);
            }
            // While the job forms, the end of its connection frees a seat. After the end there is nothing more to decide.
            Verdict::Free | Verdict::Nothing | Verdict::Abort { .. } | Verdict::Continue { .. } => {}
        }
        if matches!(self.stage, Stage::Running) {
            self.connections.dismiss_parting(&Error::Fenced { current: self.epoch });
        }
        for link in links {
            self.dismiss(link, Error::Fenced { current: self.epoch });
        }
    }

    /// Ends the job, once: open barriers and reads that wait get the cause, and every member is told.
    fn end(&mut self, now: Time, outcome: Result<()>) {
        let formed = match self.stage {
            Stage::Forming { .. } => false,
            Stage::Running => true,
            Stage::Closing { .. } | Stage::Finished { .. } => return,
        };
        let until = now + self.config.leave_grace;
        self.epoch.number += 1;
        self.stage = Stage::Closing { outcome: outcome.clone(), until };
        if let Err(cause) = &outcome {
            let answers = self.barriers.fail_all(cause);
            self.answer(answers);
            let replies = self.store.fail_all(cause);
            self.reply(replies);
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

    /// A member keeps its key and its role as long as it is one, so its next certificate is a matter of the job's authority alone.
    fn handle_renewal(&mut self, link: LinkId, identity: Identity) {
        match questions::renewal(&self.stage, &self.roster, identity) {
            Ok(()) => self.connections.certify(link),
            Err(error) => self.connections.send(link, Frame::Renewed { outcome: Err(error) }),
        }
    }

    fn refuse(&mut self, link: LinkId, join: &Join, error: Error) {
        if !matches!(self.stage, Stage::Finished { .. }) {
            let who = format!("{} on {}", join.process.role, join.process.place());
            self.connections.event(Event::Refused { who, error: error.clone() });
        }
        self.dismiss(link, error);
    }

    /// Tells a process that it is no member, and closes the connection.
    fn dismiss(&mut self, link: LinkId, error: Error) {
        self.connections.send(link, Frame::Refused(error.clone()));
        self.close(link, error);
    }

    fn close_protocol(&mut self, link: LinkId, field: &str, problem: &str) {
        let Some(Link { node, speaks_for, .. }) = self.connections.get(link) else { return };
        let peer = speaks_for.map_or_else(|| format!("node {node}"), |identity| self.roster.name(identity));
        self.close(link, Error::Protocol { peer, field: field.to_owned(), problem: problem.to_owned() });
    }

    fn close(&mut self, link: LinkId, error: Error) {
        if let Some(identity) = self.connections.close(link, error.clone()) {
            self.hold_seat(identity, error);
        }
    }

    /// The connection of a member ended with `error`. It keeps its seat, unless the job still forms.
    fn hold_seat(&mut self, identity: Identity, error: Error) {
        match self.stage {
            Stage::Forming { .. } => {
                self.roster.apply(Change::Free(identity));
            }
            Stage::Running | Stage::Closing { .. } | Stage::Finished { .. } => {
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.line = Line::Down(error);
                }
            }
        }
    }

    fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { worker, request, outcome } in answers {
            // A worker without a connection gets the answer when it asks again. A worker that was given up is fenced instead.
            let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
            if let Some(link) = seat.and_then(Seat::link) {
                self.connections.send(link, Frame::BarrierDone { request, outcome });
            }
        }
    }

    fn broadcast(&mut self, frame: &Frame) {
        let mut links = self.roster.links(|_| true);
        if planted(self.config.defect, Defect::ViewNotBroadcast) && links.len() > 1 && matches!(frame, Frame::View(_)) {
            links.pop();
        }
        for link in links {
            self.connections.send(link, frame.clone());
        }
    }
}
