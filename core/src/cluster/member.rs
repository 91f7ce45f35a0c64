//! The node's side of the control protocol, as a machine.
//!
//! Decides when to dial, what to say on a connection, and when the job is over for this process. Leaves to its driver the sockets and
//! the clock, and to the engine what a view, a layout or a failure mean for the tensors on their way.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{self, Phase, Role, TensorSpec, Time, View};
use crate::wire::Frame;
use crate::wire::frame::{Join, Progress, Stall};

use super::declarations::Answered;
use super::requests::Requests;
use super::{MemberCommand, MemberConfig, MemberEvent};

/// A node's membership in a job.
///
/// Feed it what happens through the `handle_*` methods and the calls of the process, then drain [`Member::next_command`] completely and
/// wait no longer than [`Member::poll_timeout`]. The first command is [`MemberCommand::Dial`].
///
/// - A lost connection is redialled, and what had no answer is asked again; the job goes on meanwhile, until nothing was heard of the
///   coordinator for `control_lost_timeout`.
/// - Every [`Member::declare`] and [`Member::barrier`] ends in exactly one event with its number, whatever happens.
/// - A verdict of the coordinator, the end of the job or a refusal, is answered with [`Frame::Leave`], so that it knows who heard.
/// - The last event is [`MemberEvent::Failed`] or [`MemberEvent::Left`], once. Later calls are answered with that end as the cause.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    standing: Standing,
    line: Line,
    /// The last word of the coordinator; the start, if it never spoke.
    heard: Option<Time>,
    started: Time,
    /// The pause before the next attempt to connect.
    pause: Duration,
    /// Why the last connection ended or did not come up.
    line_error: Option<Error>,
    requests: Requests,
    progress: Progress,
    round_trip: Option<Duration>,
    index: Option<u32>,
    view: Option<View>,
    commands: VecDeque<MemberCommand>,
}

/// What this process is to the job.
///
/// ```text
///            formed view   leave()        ended view       refused, aborted, unexpected   coordinator silent
/// Joining    Active        Ended (left)   Ended, see (1)   Ended (failed)                 Ended (failed) after join_timeout
/// Active     Active        Leaving        Ended, see (1)   Ended (failed)                 Ended (failed) after control_lost_timeout
/// Leaving    Leaving       Leaving        Ended (left)     Ended (failed)                 Ended (failed) after control_lost_timeout
/// Ended      -             -              -                -                              -
/// ```
/// (1) A job ends when its workers left. That is the order to leave for its servers, even if one missed that the job had formed; for
/// anybody else it is a failure.
#[derive(Debug)]
enum Standing {
    Joining,
    Active,
    Leaving,
    /// With the answer to everything asked from now on.
    Ended(Error),
}

/// The control connection.
///
/// ```text
///            pause over   connected   disconnected   end of the membership
/// Resting    Dialling     -           -              Cut
/// Dialling   -            Up          Resting        Cut
/// Up         -            -           Resting        Cut
/// Cut        -            Cut         -              -
/// ```
#[derive(Debug)]
enum Line {
    Resting {
        until: Time,
    },
    Dialling,
    Up {
        heartbeat_at: Time,
        /// The coordinator showed a formed view on this very connection, so it knows who asks. Nothing is asked before.
        welcomed: bool,
    },
    Cut,
}

impl Member {
    /// A process that begins to join.
    pub fn new(config: MemberConfig, now: Time) -> Self {
        Self {
            standing: Standing::Joining,
            line: Line::Dialling,
            heard: None,
            started: now,
            pause: config.redial_min,
            line_error: None,
            requests: Requests::default(),
            progress: Progress::default(),
            round_trip: None,
            index: None,
            view: None,
            commands: VecDeque::from([MemberCommand::Dial]),
            config,
        }
    }

    /// The next thing to do, until there is none.
    pub fn next_command(&mut self) -> Option<MemberCommand> {
        self.commands.pop_front()
    }

    /// When to call [`Member::handle_timeout`] if nothing happens before. `None` once the membership ended.
    pub fn poll_timeout(&self) -> Option<Time> {
        let line = match self.line {
            Line::Resting { until } => Some(until),
            Line::Up { heartbeat_at, .. } => Some(heartbeat_at),
            Line::Dialling | Line::Cut => None,
        };
        [self.patience_ends(), line, self.requests.poll_timeout()].into_iter().flatten().min()
    }

    /// The dialled connection is up.
    pub fn handle_connected(&mut self, now: Time) {
        match self.line {
            Line::Dialling => {
                self.line = Line::Up { heartbeat_at: now + self.config.heartbeat_interval, welcomed: false };
                let join = self.join();
                self.send(Frame::Join(join));
            }
            // It came up while the hang-up was on its way to the driver.
            Line::Cut => self.commands.push_back(MemberCommand::Hangup),
            Line::Resting { .. } | Line::Up { .. } => {}
        }
    }

    /// The connection ended, or did not come up.
    pub fn handle_disconnected(&mut self, now: Time, error: Error) {
        match self.line {
            Line::Dialling | Line::Up { .. } => {}
            Line::Resting { .. } | Line::Cut => return,
        }
        // Who is not let in, or speaks another version, will not be let in by trying again. A member of a formed job was let in
        // before, so there it is the line that is at fault.
        if matches!(self.standing, Standing::Joining)
            && matches!(error, Error::Auth { .. } | Error::Incompatible { .. })
        {
            return self.fail(error);
        }
        self.line = Line::Resting { until: now + self.pause };
        self.pause = (self.pause * 2).min(self.config.redial_max);
        self.line_error = Some(error);
    }

    /// The coordinator sent something on the current connection.
    pub fn handle_frame(&mut self, now: Time, frame: Frame) {
        match self.line {
            Line::Up { .. } => {}
            // Of a connection that is over.
            Line::Resting { .. } | Line::Dialling | Line::Cut => return,
        }
        self.heard = Some(now);
        self.pause = self.config.redial_min;
        match frame {
            Frame::View(view) => self.handle_view(now, view),
            Frame::Refused(error) => {
                self.send(Frame::Leave);
                self.fail(error);
            }
            Frame::HeartbeatAck { sent } if sent <= now => self.round_trip = Some(now.since(sent)),
            Frame::HeartbeatAck { .. } => self.fail_protocol("clock", "lies ahead of this process's own"),
            Frame::Declared { request, outcome } => {
                let answer = self.requests.declared(request, outcome);
                self.settle(answer);
            }
            Frame::BarrierDone { request, outcome } => {
                let answer = self.requests.barrier_done(request, outcome);
                self.settle(answer);
            }
            Frame::Forget { key, error } => self.tell(MemberEvent::Forget { key, error }),
            Frame::StallNotice { tensor, stall, detail } => {
                self.tell(MemberEvent::StallNotice { tensor, stall, detail });
            }
            Frame::Join(_)
            | Frame::Heartbeat { .. }
            | Frame::Declare { .. }
            | Frame::Barrier { .. }
            | Frame::Stall(_)
            | Frame::Leave
            | Frame::StatusRequest
            | Frame::Status(_) => self.fail_protocol("kind", "nobody sends to a member"),
        }
    }

    /// [`Member::poll_timeout`] passed. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.patience_ends().is_some_and(|at| at <= now) {
            let error = self.out_of_patience(now);
            return self.fail(error);
        }
        for event in self.requests.expire(now) {
            self.tell(event);
        }
        match &mut self.line {
            Line::Resting { until } if *until <= now => {
                self.line = Line::Dialling;
                self.commands.push_back(MemberCommand::Dial);
            }
            Line::Up { heartbeat_at, .. } if *heartbeat_at <= now => {
                *heartbeat_at = now + self.config.heartbeat_interval;
                let progress = self.progress;
                self.send(Frame::Heartbeat { sent: now, progress });
            }
            Line::Resting { .. } | Line::Dialling | Line::Up { .. } | Line::Cut => {}
        }
    }

    /// What the next heartbeat says this process did last.
    pub fn set_progress(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Asks for the layout of `tensors`, which may share parts if `fuse`; without, several that are asked for one after the other go
    /// in one frame. Ends in [`MemberEvent::Declared`] with the returned number:
    /// soon while the coordinator is there, after its return otherwise. May be called before the job formed.
    pub fn declare(&mut self, tensors: Vec<TensorSpec>, fuse: bool) -> u64 {
        let request = self.requests.number();
        let asked = self.may_ask().and_then(|()| self.requests.declare(request, tensors, fuse));
        match asked {
            Ok(frame) => frame.into_iter().for_each(|frame| self.ask(frame)),
            Err(error) => self.tell(MemberEvent::Declared { request, outcome: Err(error) }),
        }
        request
    }

    /// Arrives at the barrier `name`. Ends in [`MemberEvent::BarrierDone`] with the returned number: when all workers arrived, or
    /// with an error at the latest shortly after `timeout`.
    pub fn barrier(&mut self, now: Time, name: String, timeout: Duration) -> u64 {
        let request = self.requests.number();
        let asked = self.may_ask().and_then(|()| self.requests.barrier(now, request, name, timeout));
        match asked {
            Ok(frame) => self.ask(frame),
            Err(error) => self.tell(MemberEvent::BarrierDone { request, outcome: Err(error) }),
        }
        request
    }

    /// Reports that a sum waits for contributions. Forgotten without a connection: a sum that still waits is reported again.
    pub fn report_stall(&mut self, stall: Stall) {
        self.ask(Frame::Stall(stall));
    }

    /// Leaves in order. Ends in [`MemberEvent::Left`] once all workers left; before the job formed, at once. What has no answer yet
    /// fails. Calling it again changes nothing.
    pub fn leave(&mut self) {
        match self.standing {
            Standing::Joining => {
                self.send_if_up(Frame::Leave);
                self.end_in_order();
            }
            Standing::Active => {
                self.standing = Standing::Leaving;
                self.fail_requests(&left());
                self.ask(Frame::Leave);
            }
            Standing::Leaving | Standing::Ended(_) => {}
        }
    }

    /// The membership as last heard. `None` before the job formed.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// This process's rank or server index. `None` before the job formed.
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    /// How long the last heartbeat's answer took. `None` before the first.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    fn handle_view(&mut self, now: Time, view: View) {
        if self.view.as_ref().is_some_and(|known| view.epoch < known.epoch) {
            return self.fail_protocol("epoch", "is older than one it sent before");
        }
        match &view.phase {
            // Of a coordinator that was started anew and collects its members: the job goes on under the view it has.
            Phase::Forming => {}
            Phase::Running => self.handle_running(now, view),
            Phase::Ended => self.handle_ended(view),
            Phase::Aborted(cause) => {
                let cause = cause.clone();
                self.view = Some(view.clone());
                self.send(Frame::Leave);
                // A server says the last epoch to whoever the job was ended for.
                if matches!(self.standing, Standing::Active | Standing::Leaving) {
                    self.tell(MemberEvent::View(view));
                }
                self.fail(cause);
            }
        }
    }

    fn handle_ended(&mut self, view: View) {
        match (&self.standing, self.config.role) {
            // A server whose connection was lost just then may have missed all that the job was.
            (Standing::Joining, Role::Server) if self.index_in(&view).is_some() => {}
            (Standing::Joining, _) => {
                return self.fail(Error::FailedPrecondition {
                    what: "the job ended before this process joined".to_owned(),
                    hint: "start a new job".to_owned(),
                });
            }
            (Standing::Leaving, _) | (Standing::Active, Role::Server) => {}
            (Standing::Active, Role::Worker | Role::Coordinator) => {
                return self.fail_protocol("phase", "is the end, which this worker did not agree to");
            }
            (Standing::Ended(_), _) => return,
        }
        self.view = Some(view);
        self.send(Frame::Leave);
        self.end_in_order();
    }

    fn handle_running(&mut self, now: Time, view: View) {
        let me =
            |member: &&types::Member| member.role == self.config.role && member.incarnation == self.config.incarnation;
        let Some(index) = view.members.iter().find(me).map(|member| member.index) else {
            return self.fail(Error::Fenced { current: view.epoch });
        };
        if self.index.is_some_and(|known| known != index) {
            return self.fail_protocol("member list", "gives this process another index than before");
        }
        let changed = self.view.as_ref().is_none_or(|known| known.epoch < view.epoch);
        self.index = Some(index);
        self.view = Some(view.clone());
        match self.standing {
            Standing::Joining => {
                self.standing = Standing::Active;
                self.tell(MemberEvent::Joined { index, view });
            }
            Standing::Active | Standing::Leaving if changed => self.tell(MemberEvent::View(view)),
            Standing::Active | Standing::Leaving | Standing::Ended(_) => {}
        }
        self.welcome(now);
    }

    /// What `view` calls this life of this process.
    fn index_in(&self, view: &View) -> Option<u32> {
        let me =
            |member: &&types::Member| member.role == self.config.role && member.incarnation == self.config.incarnation;
        view.members.iter().find(me).map(|member| member.index)
    }

    /// The first formed view on a connection: asks what has no answer.
    fn welcome(&mut self, now: Time) {
        let Line::Up { welcomed, .. } = &mut self.line else { return };
        if std::mem::replace(welcomed, true) {
            return;
        }
        for frame in self.requests.frames(now) {
            self.send(frame);
        }
        if matches!(self.standing, Standing::Leaving) {
            self.send(Frame::Leave);
        }
    }

    fn join(&self) -> Join {
        let config = &self.config;
        Join {
            role: config.role,
            incarnation: config.incarnation,
            // A coordinator that was started anew must give out the ranks that the members have.
            requested: self.index.or(config.requested),
            host: config.host.clone(),
            pid: config.pid,
            address: config.address.clone(),
            machine: config.machine,
            door: config.door.clone(),
            wiring: config.wiring,
            workers: config.workers,
            servers: config.servers,
        }
    }

    /// When this process gives the coordinator up.
    fn patience_ends(&self) -> Option<Time> {
        match self.standing {
            Standing::Joining => Some(self.started + self.config.join_timeout),
            Standing::Active | Standing::Leaving => {
                Some(self.heard.unwrap_or(self.started) + self.config.control_lost_timeout)
            }
            Standing::Ended(_) => None,
        }
    }

    fn out_of_patience(&self, now: Time) -> Error {
        let why = self.line_error.as_ref().map_or_else(|| "no answer".to_owned(), Error::to_string);
        let coordinator = &self.config.coordinator;
        match (&self.standing, self.heard) {
            (Standing::Joining, Some(_)) => Error::Timeout {
                what: format!("joining the job: the coordinator at {coordinator} waits for other processes"),
                waited: now.since(self.started),
            },
            (Standing::Joining, None) => Error::Timeout {
                what: format!("joining the job: the coordinator at {coordinator} was not reached ({why})"),
                waited: now.since(self.started),
            },
            (Standing::Active | Standing::Leaving | Standing::Ended(_), heard) => Error::PeerLost {
                member: "coordinator".to_owned(),
                host: coordinator.clone(),
                cause: format!("silent for {:.1} s; {why}", now.since(heard.unwrap_or(self.started)).as_secs_f64()),
            },
        }
    }

    fn may_ask(&self) -> Result<()> {
        match &self.standing {
            Standing::Joining | Standing::Active => Ok(()),
            Standing::Leaving => Err(left()),
            Standing::Ended(cause) => Err(cause.clone()),
        }
    }

    fn settle(&mut self, answer: std::result::Result<Answered, String>) {
        match answer {
            Ok(Answered { events, frames }) => {
                events.into_iter().for_each(|event| self.tell(event));
                frames.into_iter().for_each(|frame| self.ask(frame));
            }
            Err(problem) => self.fail_protocol("request", &problem),
        }
    }

    fn fail_protocol(&mut self, field: &str, problem: &str) {
        let peer = format!("the coordinator at {}", self.config.coordinator);
        self.fail(Error::Protocol { peer, field: field.to_owned(), problem: problem.to_owned() });
    }

    fn fail(&mut self, error: Error) {
        self.end(error.clone(), MemberEvent::Failed(error));
    }

    fn end_in_order(&mut self) {
        self.end(left(), MemberEvent::Left);
    }

    fn end(&mut self, cause: Error, last: MemberEvent) {
        if matches!(self.standing, Standing::Ended(_)) {
            return;
        }
        self.fail_requests(&cause);
        self.standing = Standing::Ended(cause);
        match std::mem::replace(&mut self.line, Line::Cut) {
            Line::Dialling | Line::Up { .. } => self.commands.push_back(MemberCommand::Hangup),
            Line::Resting { .. } | Line::Cut => {}
        }
        self.tell(last);
    }

    fn fail_requests(&mut self, cause: &Error) {
        for event in self.requests.fail_all(cause) {
            self.tell(event);
        }
    }

    /// Sends what only a member may say; what needs an answer is kept and said at the next welcome.
    fn ask(&mut self, frame: Frame) {
        match self.line {
            Line::Up { welcomed: true, .. } => self.send(frame),
            Line::Up { welcomed: false, .. } | Line::Resting { .. } | Line::Dialling | Line::Cut => {}
        }
    }

    fn send_if_up(&mut self, frame: Frame) {
        match self.line {
            Line::Up { .. } => self.send(frame),
            Line::Resting { .. } | Line::Dialling | Line::Cut => {}
        }
    }

    fn send(&mut self, frame: Frame) {
        self.commands.push_back(MemberCommand::Send(frame));
    }

    fn tell(&mut self, event: MemberEvent) {
        self.commands.push_back(MemberCommand::Event(event));
    }
}

fn left() -> Error {
    Error::FailedPrecondition {
        what: "this process left the job".to_owned(),
        hint: "join again with a new member".to_owned(),
    }
}

#[cfg(test)]
mod tests;
