//! The node's side of the control protocol, as a state machine.
//!
//! Decides when to connect, which frames to send, which view is the newest, and when the job is over for this process. Its driver owns the
//! sockets and the clock. The worker and the server decide how a view, a layout or a failure affects the tensors in flight.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{self, Answer, Holdings, Phase, Process, Role, Squares, StepReport, Time, View};
use crate::wire::Frame;
use crate::wire::frame::{Join, Progress};

use super::contact::Contact;
use super::declarations::Answered;
use super::line::{Due, Line};
use super::obeying::Obeying;
use super::offsets::Offsets;
use super::requests::{Requests, left};
use super::{MemberCommand, MemberConfig, MemberEvent};

/// A node's membership in a job.
///
/// Report each event through a `handle_*` method, and call the methods for requests of the process. Then drain [`Member::next_command`]
/// completely, and wait no longer than [`Member::poll_timeout`]. The first command is [`MemberCommand::Dial`].
///
/// - After a lost connection, and when the coordinator was silent for `silence_max`, the member dials again, and sends every request
///   without an answer again. The job goes on meanwhile, until the coordinator was silent for `control_lost_timeout`.
/// - Every [`Member::declare`], [`Member::barrier`] and [`Member::ask_coordinator`] ends in exactly one event with its number.
/// - A view replaces the one before as a whole, and only if its (term, number) is newer. The member tells the process of each view once. A
///   view that is older, or that has the number of the known view but other contents, ends the membership with an error.
/// - The member answers the end of the job and a refusal with [`Frame::Leave`], so that the coordinator knows that they arrived.
/// - The last event is [`MemberEvent::Failed`] or [`MemberEvent::Left`], once. Later requests fail with that end as the cause.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    standing: Standing,
    line: Line,
    /// When the last frame of the coordinator arrived. `None` before the first.
    heard: Option<Time>,
    started: Time,
    requests: Requests,
    progress: Progress,
    round_trip: Option<Duration>,
    offsets: Offsets,
    index: Option<u32>,
    view: Option<View>,
    /// When it said last why the job has not formed.
    said_why: Option<Time>,
    /// Whether it asked the coordinator for the state of the job, and got no answer yet.
    asked_status: bool,
    /// Whether its process was told that the coordinator is out of contact.
    is_lost: bool,
    /// Until when its usual waits do not pass. `None` in a job that ends with a loss.
    contact: Option<Contact>,
    /// How often in a row this process could not begin to connect.
    local_failures: u32,
    /// What this worker said last of its steps.
    steps: Option<StepReport>,
    /// What the coordinator was told last of the sums of lost servers.
    holdings: Option<Holdings>,
    /// What this server said of rounds whose norm it has not heard yet.
    squares: Vec<Squares>,
    obeying: Obeying,
    commands: VecDeque<MemberCommand>,
}

/// The state of this process in the job.
///
/// ```text
///            formed view   leave()        give_up()      ended view       refused, aborted, unexpected   coordinator silent
/// Joining    Active        Ended (left)   Ended (left)   Ended, see (1)   Ended (failed)                 Ended (failed), see (2)
/// Active     Active        Leaving        GivingUp       Ended, see (1)   Ended (failed)                 Ended (failed), see (2)
/// Leaving    Leaving       Leaving        Leaving        Ended (left)     Ended (failed)                 Ended (failed), see (2)
/// GivingUp   GivingUp      GivingUp       GivingUp       Ended (left)     Ended (left)                   Ended (left), see (2)
/// Ended      -             -              -              -                -                              -
/// ```
/// (1) A job ends when its workers have left. The ended view orders its servers to leave, even a server that missed that the job had
/// formed. For a worker it is a failure. (2) After `join_timeout` while it joins, else after `control_lost_timeout`.
#[derive(Debug)]
enum Standing {
    Joining,
    Active,
    Leaving,
    /// It tells the coordinator this cause until an answer comes.
    GivingUp(String),
    /// Every later request fails with this cause.
    Ended(Error),
}

impl Member {
    /// A process that begins to join.
    pub fn new(config: MemberConfig, now: Time) -> Self {
        Self {
            standing: Standing::Joining,
            line: Line::new(&config),
            heard: None,
            started: now,
            requests: Requests::default(),
            progress: Progress::default(),
            round_trip: None,
            offsets: Offsets::default(),
            index: None,
            view: None,
            said_why: None,
            asked_status: false,
            steps: None,
            holdings: None,
            squares: Vec::new(),
            obeying: Obeying::default(),
            is_lost: false,
            contact: config.contact.map(Contact::new),
            local_failures: 0,
            commands: VecDeque::from([MemberCommand::Dial]),
            config,
        }
    }

    /// The next command; `None` when all are drained.
    pub fn next_command(&mut self) -> Option<MemberCommand> {
        self.commands.pop_front()
    }

    /// When to call [`Member::handle_timeout`] if nothing happens before. `None` once the membership ended.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = [self.patience_ends(), self.line.poll_timeout(), self.requests_end(), self.says_why_at()];
        due.into_iter().flatten().min()
    }

    /// The dialled connection is up.
    pub fn handle_connected(&mut self, now: Time) {
        if self.line.connected(now) {
            (self.asked_status, self.local_failures) = (false, 0);
            let join = self.join();
            self.send(Frame::Join(join));
        } else if self.line.is_cut() {
            // It came up while the hang-up was on its way to the driver.
            self.commands.push_back(MemberCommand::Hangup);
        }
    }

    /// The connection ended, or did not come up.
    pub fn handle_disconnected(&mut self, now: Time, error: Error) {
        // This process had what it needs to connect.
        self.local_failures = 0;
        self.line_lost(now, error);
    }

    fn line_lost(&mut self, now: Time, error: Error) {
        // If the coordinator refuses a process, or the versions differ, a second attempt does not help. A member of a formed job was
        // accepted before, so there the connection is at fault.
        let refused = matches!(error, Error::Auth { .. } | Error::CertExpired { .. } | Error::Incompatible { .. });
        if refused && matches!(self.standing, Standing::Joining) && self.line.is_in_use() {
            return self.fail(error);
        }
        self.line.disconnected(now, error);
        self.note_contact(now);
    }

    /// The coordinator sent a frame on the current connection.
    pub fn handle_frame(&mut self, now: Time, frame: Frame) {
        if !self.line.is_up() {
            // It belongs to a connection that is over.
            return;
        }
        self.heard = Some(now);
        self.line.heard(now);
        match frame {
            Frame::View(view) => self.handle_view(now, view),
            Frame::Refused(error) => self.conclude(error, Some(Frame::Leave)),
            Frame::HeartbeatAck { sent, times } => self.handle_ack(now, sent, times),
            Frame::Declared { request, outcome } => {
                let answer = self.requests.declared(request, outcome);
                self.settle(answer);
            }
            Frame::BarrierDone { request, outcome } => {
                let answer = self.requests.barrier_done(request, outcome);
                self.settle(answer);
            }
            Frame::StoreDone { request, outcome } => {
                let answer = self.requests.answered(request, outcome.map(Answer::Store));
                self.settle(answer);
            }
            Frame::Ticked { request, outcome } => {
                let answer = self.requests.answered(request, outcome.map(Answer::Ticked));
                self.settle(answer);
            }
            Frame::Checkpointed { request, outcome } => {
                let answer = self.requests.answered(request, outcome.map(Answer::Checkpointed));
                self.settle(answer);
            }
            Frame::Close(_) | Frame::Order(_) if self.config.process.role != Role::Server => {
                self.fail_protocol("kind", "is for servers alone");
            }
            Frame::Close(closing) => self.handle_close(closing),
            Frame::Order(order) => self.tell(MemberEvent::Order(order)),
            Frame::Command { number, command } => self.handle_command(number, command),
            Frame::Undeclared { request } => {
                let answer = self.requests.undeclared(request);
                self.settle(answer);
            }
            Frame::Ended { keys, below } => self.tell(MemberEvent::Ended { keys, below }),
            Frame::Forget { key, error } => self.tell(MemberEvent::Forget { key, error }),
            Frame::Renewed { outcome } => self.tell(MemberEvent::Renewed { outcome }),
            Frame::WorkersKey(_) | Frame::Boundary { .. } | Frame::Passed { .. } | Frame::Restore { .. }
                if self.config.process.role != Role::Worker =>
            {
                self.fail_protocol("kind", "is for workers alone");
            }
            Frame::WorkersKey(key) => self.tell(MemberEvent::WorkersKey(key)),
            Frame::Boundary { change, limit, hold } => self.tell(MemberEvent::Boundary { change, limit, hold }),
            Frame::Passed { change, outcome } => self.handle_passed(change, outcome),
            Frame::Restore { epoch, sums, lost } => self.tell(MemberEvent::Restore { epoch, sums, lost }),
            Frame::StallNotice { tensor, stall, detail } => {
                self.tell(MemberEvent::StallNotice { tensor, stall, detail });
            }
            Frame::Forming(forming) => self.handle_forming(now, &forming),
            Frame::Join(_)
            | Frame::Heartbeat { .. }
            | Frame::Metrics(_)
            | Frame::Setup(_)
            | Frame::Declare { .. }
            | Frame::Undeclare { .. }
            | Frame::Barrier { .. }
            | Frame::Store { .. }
            | Frame::Tick { .. }
            | Frame::Checkpoint { .. }
            | Frame::Obeyed { .. }
            | Frame::Control { .. }
            | Frame::Controlled { .. }
            | Frame::Commanded { .. }
            | Frame::Squares(_)
            | Frame::Steps(_)
            | Frame::Holdings(_)
            | Frame::Restored { .. }
            | Frame::Stall(_)
            | Frame::Waits(_)
            | Frame::Leave
            | Frame::Fail { .. }
            | Frame::Saw { .. }
            | Frame::StatusRequest
            | Frame::Status(_)
            | Frame::Renew => self.fail_protocol("kind", "nobody sends to a member"),
        }
    }

    /// [`Member::poll_timeout`] passed. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.patience_ends().is_some_and(|at| at <= now) {
            let error = self.out_of_patience(now);
            return self.fail(error);
        }
        self.say_why(now);
        match self.line.take_due(now) {
            Some(Due::Dial) => {
                self.note_contact(now);
                self.commands.push_back(MemberCommand::Dial);
            }
            Some(Due::Heartbeat) => {
                let progress = self.progress;
                self.send(Frame::Heartbeat { sent: now, progress });
            }
            None => {}
        }
        // Only now, because nothing fails of a coordinator that was just found to be out of contact.
        self.expire_requests(now);
    }

    /// Sets the latest work of this process, for the next heartbeat.
    pub fn set_progress(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// The last view of the membership. `None` before the job formed.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// This process's rank or server index. `None` before the job formed.
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    fn handle_view(&mut self, now: Time, view: View) {
        let is_new = match self.compare(&view) {
            Ok(is_new) => is_new,
            Err(error) => return self.fail(error),
        };
        match &view.phase {
            Phase::Forming => self.fail_protocol("phase", "is forming, which a member is never shown"),
            Phase::Running => self.handle_running(now, view, is_new),
            Phase::Ended | Phase::FormsAgain => self.handle_ended(view),
            Phase::Aborted(cause) | Phase::Restores(cause) => self.handle_failed(cause.clone(), view),
        }
    }

    /// Whether `view` is newer than the known one. `false` if it is the same.
    ///
    /// # Errors
    /// If it is older, or differs from the known view of the same number.
    fn compare(&self, view: &View) -> Result<bool> {
        let Some(known) = &self.view else { return Ok(true) };
        if view.epoch.term < known.epoch.term {
            return Err(Error::OtherTerm { member: known.epoch.term, coordinator: view.epoch.term });
        }
        if view.epoch < known.epoch {
            let problem = format!("of {} is older than the one of {}", view.epoch, known.epoch);
            return Err(self.protocol_error("view", &problem));
        }
        if view.epoch == known.epoch && view != known {
            return Err(self.protocol_error("view", &format!("of {} differs from the one before", view.epoch)));
        }
        Ok(view.epoch > known.epoch)
    }

    fn handle_ended(&mut self, view: View) {
        match (&self.standing, self.config.process.role) {
            // A server that lost its connection at the wrong moment may have missed the whole job.
            (Standing::Joining, Role::Server) if self.index_in(&view).is_some() => {
                self.tell(MemberEvent::View(view.clone()));
            }
            (Standing::Joining, _) => {
                let what = "the job ended before this process joined".to_owned();
                return self.fail(Error::FailedPrecondition { what, hint: "start a new job".to_owned() });
            }
            (Standing::Active, Role::Server) => self.tell(MemberEvent::View(view.clone())),
            (Standing::Leaving | Standing::GivingUp(_), _) => {}
            (Standing::Active, Role::Worker | Role::Coordinator | Role::Observer | Role::Admin) => {
                return self.fail_protocol("phase", "is the end, which this worker did not agree to");
            }
            (Standing::Ended(_), _) => return,
        }
        self.view = Some(view);
        self.send(Frame::Leave);
        self.end_in_order();
    }

    fn handle_running(&mut self, now: Time, view: View, is_new: bool) {
        match self.index_in(&view) {
            // The others go on without this process, which leaves. It still waits for the end of the job.
            None if matches!(self.standing, Standing::Leaving) => self.view = Some(view),
            None => return self.fail(Error::Fenced { current: view.epoch }),
            Some(index) if self.index.is_some_and(|known| known != index) => {
                return self.fail_protocol("member list", "gives this process another index than before");
            }
            Some(index) if is_new => {
                self.index = Some(index);
                self.view = Some(view.clone());
                match self.standing {
                    Standing::Joining => {
                        self.standing = Standing::Active;
                        self.tell(MemberEvent::Joined { index, view });
                    }
                    Standing::Active | Standing::Leaving | Standing::GivingUp(_) => self.tell(MemberEvent::View(view)),
                    Standing::Ended(_) => {}
                }
            }
            Some(_) => {}
        }
        if self.line.welcome() {
            self.note_contact(now);
            for frame in self.requests.frames(now, self.patient_until()) {
                self.send(frame);
            }
            if !self.config.setup.is_empty() {
                self.send(Frame::Setup(self.config.setup.clone()));
            }
            self.squares.clone().into_iter().for_each(|squares| self.send(Frame::Squares(squares)));
            self.steps.into_iter().for_each(|report| self.send(Frame::Steps(report)));
            let recovers = self.view.as_ref().is_some_and(|view| view.recovers);
            self.holdings = self.holdings.take().filter(|_| recovers);
            self.holdings.clone().into_iter().for_each(|holdings| self.send(Frame::Holdings(holdings)));
            match &self.standing {
                Standing::Leaving => self.send(Frame::Leave),
                Standing::GivingUp(cause) => self.send(Frame::Fail { cause: cause.clone() }),
                Standing::Joining | Standing::Active | Standing::Ended(_) => {}
            }
        }
    }

    /// The index that `view` gives to this life of this process.
    fn index_in(&self, view: &View) -> Option<u32> {
        let Process { role, incarnation, .. } = self.config.process;
        let is_me = |other: &types::Member| (other.process.role, other.process.incarnation) == (role, incarnation);
        view.members.iter().find(|member| is_me(member)).map(|member| member.index)
    }

    fn join(&self) -> Join {
        let MemberConfig { process, requested, workers, servers, .. } = &self.config;
        let epoch = self.view.as_ref().map(|view| view.epoch);
        Join { process: process.clone(), requested: *requested, epoch, workers: *workers, servers: *servers }
    }

    fn may_ask(&self) -> Result<()> {
        match &self.standing {
            Standing::Joining | Standing::Active => Ok(()),
            Standing::Leaving | Standing::GivingUp(_) => Err(left()),
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

    fn protocol_error(&self, field: &str, problem: &str) -> Error {
        let peer = format!("the coordinator at {}", self.config.coordinator);
        Error::Protocol { peer, field: field.to_owned(), problem: problem.to_owned() }
    }

    fn fail_protocol(&mut self, field: &str, problem: &str) {
        let error = self.protocol_error(field, problem);
        self.fail(error);
    }

    fn fail(&mut self, error: Error) {
        self.conclude(error, None);
    }

    fn conclude(&mut self, error: Error, farewell: Option<Frame>) {
        if matches!(self.standing, Standing::GivingUp(_)) {
            // Any end will do: this process has told its own cause, or nobody is left who listens.
            return self.end(left(), MemberEvent::Left, farewell);
        }
        self.end(error.clone(), MemberEvent::Failed(error), farewell);
    }

    fn end_in_order(&mut self) {
        self.end(left(), MemberEvent::Left, None);
    }

    fn end(&mut self, cause: Error, last: MemberEvent, farewell: Option<Frame>) {
        if matches!(self.standing, Standing::Ended(_)) {
            return;
        }
        self.fail_requests(&cause);
        self.standing = Standing::Ended(cause);
        self.tell(last);
        // Only now, because it says that this process knows of the end.
        farewell.into_iter().for_each(|frame| self.send(frame));
        if self.line.cut() {
            self.commands.push_back(MemberCommand::Hangup);
        }
    }

    fn fail_requests(&mut self, cause: &Error) {
        for event in self.requests.fail_all(cause) {
            self.tell(event);
        }
    }

    /// Sends a frame that only a member may send. Without a welcomed connection the frame is dropped. Requests are kept and sent again at
    /// the next welcome.
    fn ask(&mut self, frame: Frame) {
        if self.line.is_welcomed() {
            self.send(frame);
        }
    }

    fn send(&mut self, frame: Frame) {
        self.commands.push_back(MemberCommand::Send(frame));
    }

    fn tell(&mut self, event: MemberEvent) {
        self.commands.push_back(MemberCommand::Event(event));
    }
}

mod asking;
mod leaving;
mod patience;
mod reporting;
mod stepping;
mod waiting;

#[cfg(test)]
mod tests;
