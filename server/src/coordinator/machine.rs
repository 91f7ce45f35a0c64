//! What each input means, in which stage of the job.

use std::collections::{BTreeMap, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{Epoch, LinkId, NodeId, PartLayout, Phase, Role, TensorSpec, Time, View, WorkerId};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Health, Join, MemberStatus, Stall, Status};
use gradlane_core::wire::limits;

use super::barrier::{Answer, Arrival, Barriers};
use super::ending::over;
use super::health::Vigil;
use super::registry::{Forgotten, Registry};
use super::roster::{Identity, Line, Roster, Seat, Size};
use super::stall::{self, Stalls};
use super::{Command, CoordinatorConfig, Event};

/// The job's single decider.
///
/// Feed it what happens through the `handle_*` methods, then drain [`Coordinator::next_command`] completely and wait no longer than
/// [`Coordinator::poll_timeout`]. The last event is [`Event::Finished`]; whoever asks later, because it lost its connection before it heard
/// of the end, is still answered.
///
/// - A connection says who it speaks for with [`Frame::Join`]; before that it may only ask for the status. A newer connection of the
///   same process takes the place of the older.
/// - A lost connection is not a death: its process may come back until it was silent for `dead_timeout`. While the job forms it gives
///   up its seat, though, and joins anew.
/// - Every change of the view is a new epoch, and a view is shown to a member whenever it connects.
/// - The first cause ends the job and is the only one that anybody hears of.
/// - A worker may leave while others still work. Barriers then fail, because they need it; a sum that needs it stalls, and the notice
///   says that it left. The job is over when the last worker left. A server may not leave before: that is a loss like its death.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) config: CoordinatorConfig,
    pub(super) stage: Stage,
    pub(super) epoch: Epoch,
    pub(super) links: BTreeMap<LinkId, Link>,
    pub(super) roster: Roster,
    vigil: Vigil,
    pub(super) barriers: Barriers,
    /// From the forming of the job on.
    registry: Option<Registry>,
    stalls: Stalls,
    commands: VecDeque<Command>,
}

/// How far the job is.
///
/// ```text
///           everybody joined   last worker left   a member dies        stop             time over
/// Forming   Running            -                  Forming, seat free   Closing (error)  Closing (not formed)
/// Running   -                  Closing (ok)       Closing (error)      Closing (error)  -
/// Closing   -                  -                  Closing              -                Finished, or sooner if all know
/// Finished  -                  -                  -                    -                -
/// ```
#[derive(Debug)]
pub(super) enum Stage {
    Forming { until: Time },
    Running,
    Closing { outcome: Result<()>, until: Time },
    Finished { outcome: Result<()> },
}

/// A connection. The seat that it speaks for names it as its line in turn.
#[derive(Debug)]
pub(super) struct Link {
    node: NodeId,
    pub(super) speaks_for: Option<Identity>,
}

impl Coordinator {
    /// A job that waits for its members from `now` on.
    ///
    /// # Panics
    /// If the job has no worker, no server or more than [`limits::MEMBERS_MAX`] members, or if `dead_timeout` is not above
    /// `suspect_timeout`.
    pub fn new(config: CoordinatorConfig, now: Time) -> Self {
        let size = Size { workers: config.workers, servers: config.servers };
        let members = u64::from(size.workers) + u64::from(size.servers);
        assert!(size.workers > 0 && size.servers > 0, "a job has workers and servers");
        assert!(members <= limits::MEMBERS_MAX as u64, "a job has at most {} members", limits::MEMBERS_MAX);
        Self {
            stage: Stage::Forming { until: now + config.form_timeout },
            epoch: Epoch { term: config.term, number: 0 },
            links: BTreeMap::new(),
            roster: Roster::new(size),
            vigil: Vigil::new(config.suspect_timeout, config.dead_timeout),
            barriers: Barriers::new(config.workers, config.defect),
            registry: None,
            stalls: Stalls::new(config.stall_interval),
            commands: VecDeque::new(),
            config,
        }
    }

    /// The next thing to do, until there is none.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.commands.is_empty() && matches!(self.stage, Stage::Closing { .. }) && self.all_know() {
            self.finish();
        }
        self.commands.pop_front()
    }

    /// When to call [`Coordinator::handle_timeout`] if nothing happens before. `None` once the job is finished.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.stage {
            Stage::Forming { until } => Some(self.vigil.poll_timeout().map_or(until, |due| due.min(until))),
            Stage::Running => [self.vigil.poll_timeout(), self.barriers.poll_timeout()].into_iter().flatten().min(),
            Stage::Closing { until, .. } => Some(until),
            Stage::Finished { .. } => None,
        }
    }

    /// The membership as it is. While the job forms, its members have the ranks that they would have if nobody else came.
    pub fn view(&self) -> View {
        View {
            job: self.config.job.clone(),
            epoch: self.epoch,
            phase: match &self.stage {
                Stage::Forming { .. } => Phase::Forming,
                Stage::Running => Phase::Running,
                Stage::Closing { outcome, .. } | Stage::Finished { outcome } => {
                    outcome.clone().map_or_else(Phase::Aborted, |()| Phase::Ended)
                }
            },
            members: self.roster.in_order().into_iter().map(|(member, _)| member).collect(),
        }
    }

    /// The membership, and how everybody is.
    pub fn status(&self, now: Time) -> Status {
        let status = |(_, seat): (_, &Seat)| MemberStatus {
            health: seat.health,
            silent: now.since(seat.heard),
            progress: seat.progress,
        };
        Status { view: self.view(), members: self.roster.in_order().into_iter().map(status).collect() }
    }

    /// An authenticated node connected.
    pub fn handle_connected(&mut self, link: LinkId, node: NodeId) {
        const LINKS_MAX: usize = 2 * limits::MEMBERS_MAX;
        self.links.insert(link, Link { node, speaks_for: None });
        if self.links.len() > LINKS_MAX {
            self.close(
                link,
                Error::Exhausted {
                    what: "connections to the coordinator".to_owned(),
                    limit: LINKS_MAX.to_string(),
                    hint: "close some".to_owned(),
                },
            );
        }
    }

    /// A node sent something. Frames of a connection that was closed are ignored.
    pub fn handle_frame(&mut self, now: Time, link: LinkId, frame: Frame) {
        let Some(Link { node, speaks_for }) = self.links.get(&link) else { return };
        let (node, speaks_for) = (*node, *speaks_for);
        if let Some(seat) = speaks_for.and_then(|identity| self.roster.seat_mut(identity)) {
            seat.lives(now);
        }
        match (frame, speaks_for) {
            (Frame::StatusRequest, _) => {
                let status = self.status(now);
                self.send(link, Frame::Status(status));
            }
            (Frame::Join(join), None) => self.handle_join(now, link, node, join),
            (Frame::Join(_), Some(_)) => self.close_protocol(link, "kind", "is a second join"),
            (_, None) => self.close_protocol(link, "kind", "is not a join, which comes first"),
            (Frame::Heartbeat { sent, progress }, Some(identity)) => {
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.progress = progress;
                }
                self.send(link, Frame::HeartbeatAck { sent });
            }
            (Frame::Declare { request, tensors, fuse }, Some(identity)) => {
                let (outcome, forgotten) = self.declare(identity, &tensors, fuse);
                self.send(link, Frame::Declared { request, outcome });
                for Forgotten { key, error } in forgotten {
                    self.broadcast(&Frame::Forget { key, error });
                }
            }
            (Frame::Barrier { request, name, timeout }, Some(identity)) => match self.asking_worker(identity) {
                Ok(worker) => {
                    let answers = self.barriers.arrive(now, Arrival { worker, request, name, timeout });
                    self.answer(answers);
                }
                Err(error) => self.send(link, Frame::BarrierDone { request, outcome: Err(error) }),
            },
            (Frame::Stall(stall), Some(identity)) => self.handle_stall(now, link, identity, stall),
            (Frame::Leave, Some(identity)) => self.handle_leave(now, link, identity),
            (
                Frame::View(_)
                | Frame::Refused(_)
                | Frame::HeartbeatAck { .. }
                | Frame::Declared { .. }
                | Frame::Forget { .. }
                | Frame::BarrierDone { .. }
                | Frame::StallNotice { .. }
                | Frame::Status(_),
                Some(_),
            ) => self.close_protocol(link, "kind", "only a coordinator sends"),
        }
    }

    /// A connection ended.
    pub fn handle_disconnected(&mut self, link: LinkId, error: Error) {
        let Some(identity) = self.links.remove(&link).and_then(|link| link.speaks_for) else { return };
        match self.stage {
            Stage::Forming { .. } => self.roster.free(identity),
            Stage::Running | Stage::Closing { .. } | Stage::Finished { .. } => {
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.line = Line::Down(error);
                }
            }
        }
    }

    /// A launcher saw a process end. Immediate, where silence takes `dead_timeout`; of no concern if the process had left in order.
    pub fn handle_death(&mut self, now: Time, pid: u32, host: &str, cause: String) {
        let gone: Vec<Identity> = self
            .roster
            .seats()
            .filter(|seat| seat.is_present() && seat.member.pid == pid && seat.member.host == host)
            .map(Seat::identity)
            .collect();
        for identity in gone {
            self.lose(now, identity, cause.clone());
        }
    }

    /// [`Coordinator::poll_timeout`] passed. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.stage {
            Stage::Forming { until } if until <= now => {
                let missing = self.roster.missing();
                self.end(now, Err(Error::NotFormed { missing, waited: self.config.form_timeout }));
            }
            Stage::Forming { .. } | Stage::Running => {
                for silent in self.vigil.sweep(now, &mut self.roster) {
                    self.handle_silence(now, silent);
                }
                let answers = self.barriers.expire(now);
                self.answer(answers);
            }
            Stage::Closing { until, .. } if until <= now => self.finish(),
            Stage::Closing { .. } | Stage::Finished { .. } => {}
        }
    }

    /// Ends the job for everybody with `cause`, unless it ended before.
    pub fn stop(&mut self, now: Time, cause: Error) {
        self.end(now, Err(cause));
    }

    fn handle_join(&mut self, now: Time, link: LinkId, node: NodeId, join: Join) {
        let identity = Identity { node, role: join.role };
        if join.role == Role::Coordinator {
            return self.close_protocol(link, "role", "is that of this process");
        }
        if self.roster.is_fenced(node, join.incarnation) && !planted(self.config.defect, Defect::FencedAccepted) {
            let error = Error::Fenced { current: self.epoch };
            return self.refuse(link, &join, error);
        }
        let earlier = self.roster.seat(identity);
        let same_life = earlier.is_some_and(|seat| seat.member.incarnation == join.incarnation);
        let earlier_link = earlier.and_then(Seat::link);
        match &self.stage {
            Stage::Forming { .. } => {
                if let Err(error) = self.roster.admit(now, link, node, join.clone()) {
                    return self.refuse(link, &join, error);
                }
                self.vigil.watch(now);
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
                let error = over(outcome);
                return self.refuse(link, &join, error);
            }
        }
        self.links.get_mut(&link).expect("it just sent a frame").speaks_for = Some(identity);
        if let Some(earlier_link) = earlier_link {
            // The seat has its new line already: the old connection must not take it down.
            self.links.get_mut(&earlier_link).expect("the line of a seat").speaks_for = None;
            if same_life {
                let what = "this connection".to_owned();
                self.close(earlier_link, Error::Unavailable { what, cause: "a newer one took its place".to_owned() });
            } else {
                let current = self.epoch;
                self.dismiss(earlier_link, Error::Fenced { current });
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
        self.registry = Some(Registry::new(self.config.layout, &view));
        self.broadcast(&Frame::View(view));
        self.event(Event::Formed);
    }

    /// Shows a member that connected where the job is, and what it may have missed.
    fn greet(&mut self, link: LinkId) {
        match self.stage {
            Stage::Forming { .. } => {}
            Stage::Running => {
                let view = self.view();
                self.send(link, Frame::View(view));
                let forgotten: Vec<_> = self.registry.iter().flat_map(Registry::forgotten).collect();
                for Forgotten { key, error } in forgotten {
                    self.send(link, Frame::Forget { key, error });
                }
            }
            Stage::Closing { .. } | Stage::Finished { .. } => {
                let view = self.view();
                self.send(link, Frame::View(view));
            }
        }
    }

    fn handle_stall(&mut self, now: Time, link: LinkId, identity: Identity, stall: Stall) {
        if identity.role != Role::Server {
            return self.close_protocol(link, "kind", "only a server sends");
        }
        if stall.missing.len() > self.config.workers as usize
            || stall.missing.iter().any(|rank| rank.0 >= self.config.workers)
        {
            return self.close_protocol(link, "missing ranks", "do not exist");
        }
        let (Stage::Running, Some(registry)) = (&self.stage, &self.registry) else { return };
        if !self.stalls.is_news(now, stall.part, stall.round) {
            return;
        }
        let tensor = registry.name_of(stall.part);
        let detail = stall::describe(now, &stall.missing, &self.roster, registry);
        let notice = Frame::StallNotice { tensor: tensor.clone(), stall: stall.clone(), detail: detail.clone() };
        for link in self.member_links(|identity| identity.role == Role::Worker) {
            self.send(link, notice.clone());
        }
        self.event(Event::Stall { tensor, stall, detail });
    }

    fn declare(
        &mut self,
        identity: Identity,
        tensors: &[TensorSpec],
        fuse: bool,
    ) -> (Result<Vec<PartLayout>>, Vec<Forgotten>) {
        match self.asking_worker(identity) {
            Ok(worker) => {
                self.registry.as_mut().expect("a job that runs has a registry").declare(worker, tensors, fuse)
            }
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// The rank of a member that may declare tensors and wait at barriers now.
    fn asking_worker(&self, identity: Identity) -> Result<WorkerId> {
        let refused =
            |what: &str, hint: &str| Err(Error::FailedPrecondition { what: what.to_owned(), hint: hint.to_owned() });
        match &self.stage {
            Stage::Forming { .. } => refused("the job has not formed yet", "wait for the running view"),
            Stage::Running if identity.role != Role::Worker => refused("only workers declare and wait", "ask as one"),
            Stage::Running => {
                let seat = self.roster.seat(identity).expect("sealed seats stay");
                match seat.health {
                    Health::Alive | Health::Suspect => Ok(WorkerId(seat.member.index)),
                    Health::Dead | Health::Left => refused("this worker left the job", "ask before leaving"),
                }
            }
            Stage::Closing { outcome, .. } | Stage::Finished { outcome } => Err(over(outcome)),
        }
    }

    fn refuse(&mut self, link: LinkId, join: &Join, error: Error) {
        if !matches!(self.stage, Stage::Finished { .. }) {
            let who = format!("{} on {} (pid {})", join.role, join.host, join.pid);
            self.event(Event::Refused { who, error: error.clone() });
        }
        self.dismiss(link, error);
    }

    /// Tells a process that it is no member, and hangs up.
    pub(super) fn dismiss(&mut self, link: LinkId, error: Error) {
        self.send(link, Frame::Refused(error.clone()));
        self.close(link, error);
    }

    fn close_protocol(&mut self, link: LinkId, field: &str, problem: &str) {
        let peer = match self.links.get(&link) {
            Some(Link { speaks_for: Some(identity), .. }) => self.roster.name(*identity),
            Some(Link { node, speaks_for: None }) => format!("node {node}"),
            None => return,
        };
        self.close(link, Error::Protocol { peer, field: field.to_owned(), problem: problem.to_owned() });
    }

    fn close(&mut self, link: LinkId, error: Error) {
        self.commands.push_back(Command::Close { link, error: error.clone() });
        self.handle_disconnected(link, error);
    }

    pub(super) fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { worker, request, outcome } in answers {
            // Without a connection it is told when it asks again. Who was given up is fenced, whatever it waited for.
            let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
            if let Some(link) = seat.and_then(Seat::link) {
                self.send(link, Frame::BarrierDone { request, outcome });
            }
        }
    }

    pub(super) fn broadcast(&mut self, frame: &Frame) {
        let mut links = self.member_links(|_| true);
        if planted(self.config.defect, Defect::ViewNotBroadcast) && links.len() > 1 && matches!(frame, Frame::View(_)) {
            links.pop();
        }
        for link in links {
            self.send(link, frame.clone());
        }
    }

    /// The connections of the members that are not given up.
    fn member_links(&self, wanted: impl Fn(Identity) -> bool) -> Vec<LinkId> {
        let seats = self.roster.seats().filter(|seat| seat.health != Health::Dead && wanted(seat.identity()));
        seats.filter_map(Seat::link).collect()
    }

    fn send(&mut self, link: LinkId, frame: Frame) {
        self.commands.push_back(Command::Send { link, frame });
    }

    pub(super) fn event(&mut self, event: Event) {
        self.commands.push_back(Command::Event(event));
    }
}
