//! Drives a [`Member`] state machine over the control connection. One thread does it, which sleeps on a channel.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};

use super::exporter::{self, Shown};
use super::{Clock, Heard, Inputs, JobClock};
use crate::cluster::{Member, MemberCommand, MemberConfig, MemberEvent, Patience};
use crate::error::{Error, Result};
use crate::identity::{Credentials, Renewal};
use crate::local::OwnThread;
use crate::local::failpoint::{Failpoint, reach};
use crate::transport::quic::control::{ControlEvent, ControlLink};
use crate::types::{
    Answer, Ask, ControlAnswer, Done, Epoch, Holdings, NodeId, PartLayout, Squares, StepReport, TensorSpec, Time,
    WorkersKey, Written,
};
use crate::wire::frame::{Frame, Progress, Stall, Waiting};

/// The membership of this process in a job: its connection to the coordinator, and the thread that drives it.
#[derive(Debug)]
pub struct Membership {
    inputs: Sender<Input>,
    workers_key: Arc<OnceLock<WorkersKey>>,
    job_clock: JobClock,
    thread: OwnThread,
}

/// Tells the coordinator what a part of this process has found. It takes no lock and waits for nothing. After the end of the membership it
/// tells nobody.
#[derive(Clone, Debug)]
pub struct Reporter {
    inputs: Sender<Input>,
}

/// How to join.
#[derive(Debug)]
pub struct MembershipOptions {
    /// The identity and the timeouts of this process.
    pub member: MemberConfig,
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// Proves the process's identity.
    pub credentials: Arc<Credentials>,
}

enum Input {
    Control { dial: u64, event: ControlEvent },
    Declare { tensors: Vec<TensorSpec>, fuse: bool, done: Done<Vec<PartLayout>> },
    Undeclare { names: Vec<String> },
    Barrier { name: String, patience: Patience, done: Done<()> },
    Ask { ask: Ask, patience: Patience, done: Done<Answer> },
    Steps(StepReport),
    Holdings(Holdings),
    Restored(Epoch),
    Obeyed { order: u64, outcome: Result<Written> },
    Commanded { number: u64, outcome: Result<ControlAnswer> },
    Squares(Squares),
    Stall(Stall),
    Saw { node: NodeId, pid: u32 },
    Leave,
    GiveUp(String),
    BreakDown(Error),
    Stop,
}

impl Membership {
    /// Starts to join. Calls `events` on the membership's thread, in order, but reports declarations, barriers and answers to their `Done`. Calls
    /// `progress` before each heartbeat. Tells the coordinator the metrics of `shown` with heartbeats, and of a server the rounds that `waits` names, once
    /// a second at most.
    pub fn start(
        options: MembershipOptions,
        clock: Clock,
        shown: Option<Arc<dyn Shown>>,
        progress: impl Fn() -> Progress + Send + 'static,
        waits: Option<Box<dyn Fn() -> Vec<Waiting> + Send>>,
        events: impl Fn(MemberEvent) + Send + 'static,
    ) -> Result<Self> {
        let (inputs, received) = unbounded();
        let workers_key = Arc::new(OnceLock::new());
        let job_clock = JobClock::new(clock);
        let mut driver = Driver {
            member: Member::new(
                MemberConfig { coordinator: options.coordinator.clone(), ..options.member },
                clock.now(),
            ),
            clock,
            coordinator: options.coordinator,
            credentials: options.credentials,
            renewal: Renewal::default(),
            inputs: inputs.clone(),
            workers_key: Arc::clone(&workers_key),
            job_clock: job_clock.clone(),
            link: None,
            dials: 0,
            declarations: BTreeMap::new(),
            barriers: BTreeMap::new(),
            asked: BTreeMap::new(),
            shown,
            showed: None,
            progress: Box::new(progress),
            waits,
            events: Box::new(events),
        };
        let thread = OwnThread::start("gl-membership", move || driver.run_guarded(Inputs::new(received, clock)))?;
        Ok(Self { inputs, workers_key, job_clock, thread })
    }

    /// The key that the coordinator gave the workers of the job. A worker has it from [`MemberEvent::Joined`] on, other processes never.
    pub fn workers_key(&self) -> Option<WorkersKey> {
        self.workers_key.get().cloned()
    }

    /// The clock of the job.
    pub fn job_clock(&self) -> &JobClock {
        &self.job_clock
    }

    /// Declares tensors. `done` gets every part that holds bytes of them.
    pub fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, done: Done<Vec<PartLayout>>) {
        self.send(Input::Declare { tensors, fuse, done });
    }

    /// Tells the coordinator that this process uses these names no more. It hears of them before it hears of a declaration that is made
    /// after this call.
    pub fn undeclare(&self, names: Vec<String>) {
        self.send(Input::Undeclare { names });
    }

    /// Arrives at a barrier.
    pub fn barrier(&self, name: String, patience: Patience, done: Done<()>) {
        self.send(Input::Barrier { name, patience, done });
    }

    /// Asks the store of the job, or a clock, and waits for the answer for `patience`. See [`Member::ask_coordinator`].
    pub fn ask(&self, ask: Ask, patience: Patience, done: Done<Answer>) {
        self.send(Input::Ask { ask, patience, done });
    }

    /// Leaves in order. [`MemberEvent::Left`] follows once the whole job has ended.
    pub fn leave(&self) {
        self.send(Input::Leave);
    }

    /// Tells the coordinator that this process gives up because of `cause`. [`MemberEvent::Left`] follows once the coordinator knows.
    pub fn give_up(&self, cause: String) {
        self.send(Input::GiveUp(cause));
    }

    /// For parts of the process that find something out.
    pub fn reporter(&self) -> Reporter {
        Reporter { inputs: self.inputs.clone() }
    }

    /// Closes the connection and ends the thread, for which it waits at most [`ENDING`]. Pending requests fail.
    pub fn stop(&mut self) {
        self.send(Input::Stop);
        self.thread.join(ENDING);
    }

    fn send(&self, input: Input) {
        // After the end nothing receives the input. It is dropped, and a `Done` in it then reports an error.
        let _ = self.inputs.send(input);
    }
}

impl Reporter {
    /// One that tells nobody, for parts that are tested apart.
    #[cfg(any(test, feature = "testing"))]
    pub fn to_nobody() -> Self {
        Self { inputs: crossbeam_channel::bounded(0).0 }
    }

    /// Tells the coordinator what this worker says of its steps.
    pub fn report_steps(&self, report: StepReport) {
        let _ = self.inputs.send(Input::Steps(report));
    }

    /// Tells the coordinator what this worker has and wants of the parts whose servers were lost.
    pub fn report_holdings(&self, holdings: Holdings) {
        let _ = self.inputs.send(Input::Holdings(holdings));
    }

    /// Tells the coordinator that servers have the sums that this worker was to restore in `epoch`.
    pub fn report_restored(&self, epoch: Epoch) {
        let _ = self.inputs.send(Input::Restored(epoch));
    }

    /// Tells the coordinator that this server has obeyed an order, or why it cannot.
    pub fn report_obeyed(&self, order: u64, outcome: Result<Written>) {
        let _ = self.inputs.send(Input::Obeyed { order, outcome });
    }

    /// Tells the coordinator that this process has obeyed a command of an operator, or why it cannot.
    pub fn report_commanded(&self, number: u64, outcome: Result<ControlAnswer>) {
        let _ = self.inputs.send(Input::Commanded { number, outcome });
    }

    /// Tells the coordinator this server's share of the norm of a round.
    pub fn report_squares(&self, squares: Squares) {
        let _ = self.inputs.send(Input::Squares(squares));
    }

    /// Tells the coordinator that a round waits.
    pub fn report_stall(&self, stall: Stall) {
        let _ = self.inputs.send(Input::Stall(stall));
    }

    /// Tells the coordinator that the process `pid` of a node of this machine has ended, as the system says.
    pub fn report_end(&self, node: NodeId, pid: u32) {
        let _ = self.inputs.send(Input::Saw { node, pid });
    }

    /// Tells the coordinator that this process cannot go on, because of `cause`. [`MemberEvent::Failed`] follows.
    pub fn break_down(&self, cause: Error) {
        let _ = self.inputs.send(Input::BreakDown(cause));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Scrapers ask every few seconds. A snapshot is a few KiB, so that a thousand members send the coordinator a few MB a second.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Longer than the thread takes to end. One that is stuck is left behind, with a warning.
const ENDING: Duration = Duration::from_secs(2);

struct Driver {
    member: Member,
    clock: Clock,
    coordinator: String,
    credentials: Arc<Credentials>,
    /// Of the certificate in `credentials`.
    renewal: Renewal,
    inputs: Sender<Input>,
    workers_key: Arc<OnceLock<WorkersKey>>,
    job_clock: JobClock,
    link: Option<ControlLink>,
    /// Counts dials, so that late events of an earlier connection can be recognised.
    dials: u64,
    declarations: BTreeMap<u64, Done<Vec<PartLayout>>>,
    barriers: BTreeMap<u64, Done<()>>,
    /// Requests to the store and to clocks.
    asked: BTreeMap<u64, Done<Answer>>,
    shown: Option<Arc<dyn Shown>>,
    /// When the coordinator was last told the metrics.
    showed: Option<Time>,
    progress: Box<dyn Fn() -> Progress + Send>,
    /// The rounds that wait, of a server.
    waits: Option<Box<dyn Fn() -> Vec<Waiting> + Send>>,
    events: Box<dyn Fn(MemberEvent) + Send>,
}

impl Driver {
    /// Runs, and if that panics, tells the owner of the process that its membership is over.
    fn run_guarded(&mut self, inputs: Inputs<Input>) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(inputs))) else { return };
        let error = Error::of_panic("thread gl-membership", &*panic);
        tracing::error!(%error, "the membership ended");
        // The coordinator hears of it by the end of the connection.
        self.link = None;
        (self.events)(MemberEvent::Failed(error));
    }

    fn run(&mut self, mut inputs: Inputs<Input>) {
        let _span = tracing::debug_span!("membership").entered();
        loop {
            self.drain();
            match inputs.next(self.due()) {
                Heard::Input(Input::Stop) | Heard::Closed => return,
                Heard::Input(input) => self.handle(input),
                Heard::Due => {
                    self.member.set_progress((self.progress)());
                    self.member.handle_timeout(self.clock.now());
                    self.renew();
                }
            }
        }
    }

    /// When to look at the machine and at the certificate. `None` once the membership ended.
    fn due(&self) -> Option<Time> {
        let next = self.member.poll_timeout()?;
        // A heartbeat is never far, unless the setting says so.
        let renewal = self.renewal.next(self.clock.now(), self.credentials.renewal_in());
        Some(next.min(renewal))
    }

    /// Asks for the next certificate if that is due. An attempt without a connection counts as one that failed, so that it has a pause too.
    fn renew(&mut self) {
        let now = self.clock.now();
        if self.renewal.next(now, self.credentials.renewal_in()) > now {
            return;
        }
        self.member.renew();
        let validity = self.credentials.validity();
        if self.renewal.attempted(now, validity.lifetime()) {
            tracing::warn!(certificate = %validity, "not renewed yet; look at the coordinator and at the clocks of both hosts");
        }
    }

    fn renewed(&mut self, outcome: Result<Vec<u8>>) {
        match outcome.and_then(|certificate| self.credentials.renew(certificate)) {
            // A clock that differs from the coordinator's may find also the new one too old. Then the pauses go on growing.
            Ok(()) if !self.credentials.renewal_in().is_zero() => {
                tracing::info!(certificate = %self.credentials.validity(), "renewed");
                self.renewal.succeeded();
            }
            Ok(()) => tracing::debug!(certificate = %self.credentials.validity(), "renewed, but due again"),
            Err(error) => tracing::debug!(%error, "no new certificate"),
        }
    }

    fn handle(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Control { dial, .. } if dial != self.dials => {}
            Input::Control { event: ControlEvent::Connected, .. } => self.member.handle_connected(now),
            Input::Control { event: ControlEvent::Frame(frame, _waiting), .. } => {
                let is_ack = matches!(frame, Frame::HeartbeatAck { .. });
                self.member.handle_frame(now, frame);
                if is_ack {
                    self.job_clock.follow(self.member.offsets());
                }
            }
            Input::Control { event: ControlEvent::Closed(reason), .. } => {
                self.link = None;
                self.member.handle_disconnected(now, reason);
            }
            Input::Declare { tensors, fuse, done } => {
                let request = self.member.declare(tensors, fuse);
                self.declarations.insert(request, done);
            }
            Input::Undeclare { names } => self.member.undeclare(names),
            Input::Barrier { name, patience, done } => {
                let request = self.member.barrier(now, name, patience);
                self.barriers.insert(request, done);
            }
            Input::Ask { ask, patience, done } => {
                let request = self.member.ask_coordinator(now, ask, patience);
                self.asked.insert(request, done);
            }
            Input::Steps(report) => {
                self.member.report_steps(report);
                if report.stands {
                    self.drain();
                    reach(Failpoint::Stands);
                }
            }
            Input::Holdings(holdings) => {
                reach(Failpoint::HoldingsKnown);
                self.member.report_holdings(holdings);
            }
            Input::Squares(squares) => {
                self.member.report_squares(squares);
            }
            Input::Restored(epoch) => {
                reach(Failpoint::Restored);
                self.member.report_restored(epoch);
            }
            Input::Obeyed { order, outcome } => self.member.report_obeyed(order, outcome),
            Input::Commanded { number, outcome } => self.member.report_commanded(number, outcome),
            Input::Stall(stall) => self.member.report_stall(stall),
            Input::Saw { node, pid } => self.member.report_end(node, pid),
            Input::Leave => self.member.leave(),
            Input::GiveUp(cause) => self.member.give_up(cause),
            Input::BreakDown(cause) => self.member.break_down(cause),
            Input::Stop => unreachable!("handled by the loop"),
        }
    }

    /// Carries out all commands of the machine.
    fn drain(&mut self) {
        while let Some(command) = self.member.next_command() {
            match command {
                MemberCommand::Dial => self.dial(),
                MemberCommand::Send(frame) => {
                    // The last ones, so that what was counted since the last heartbeat is not lost with this member.
                    if let Frame::Leave | Frame::Fail { .. } = frame {
                        (self.progress)();
                        self.showed = None;
                        self.show();
                    }
                    if let Some(link) = &self.link {
                        link.send(&frame);
                        if let Frame::Heartbeat { .. } = frame {
                            self.show();
                        }
                    }
                }
                MemberCommand::Hangup => self.link = None,
                MemberCommand::SayWhy { waited, reason } => {
                    tracing::warn!(waited_s = waited.as_secs(), reason, "the job has not formed yet");
                }
                MemberCommand::Event(event) => self.report(event),
            }
        }
    }

    /// Tells the coordinator the metrics, if that is due.
    fn show(&mut self) {
        let (Some(shown), Some(link), now) = (&self.shown, &self.link, self.clock.now()) else { return };
        if self.showed.is_some_and(|showed| now < showed + SHOW_EVERY) {
            return;
        }
        // It has no place in its job yet. Until then the coordinator wants nothing but its heartbeats.
        let Ok(ControlAnswer::Stats(stats)) = exporter::stats(&**shown) else { return };
        link.send(&Frame::Metrics(stats));
        self.waits.iter().for_each(|waits| link.send(&Frame::Waits(waits())));
        self.showed = Some(now);
    }

    fn dial(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(3);
        if let Some(silent) = self.link.take() {
            silent.abandon();
        }
        self.dials += 1;
        let (dial, inputs) = (self.dials, self.inputs.clone());
        let events = Box::new(move |event| {
            let _ = inputs.send(Input::Control { dial, event });
        });
        match ControlLink::dial(&self.coordinator, &self.credentials, PATIENCE, events) {
            Ok(link) => self.link = Some(link),
            Err(error) => self.member.handle_undialled(self.clock.now(), error),
        }
    }

    fn report(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Declared { request, outcome } => {
                if let Some(done) = self.declarations.remove(&request) {
                    done.report(outcome);
                }
            }
            MemberEvent::Renewed { outcome } => self.renewed(outcome),
            // A job has one, so that a later one is the same.
            MemberEvent::WorkersKey(key) => drop(self.workers_key.set(key)),
            MemberEvent::BarrierDone { request, outcome } => {
                if let Some(done) = self.barriers.remove(&request) {
                    done.report(outcome);
                }
            }
            MemberEvent::Answered { request, outcome } => {
                if let Some(done) = self.asked.remove(&request) {
                    done.report(outcome);
                }
            }
            MemberEvent::Joined { .. }
            | MemberEvent::View(_)
            | MemberEvent::Ended { .. }
            | MemberEvent::Close(_)
            | MemberEvent::Order(_)
            | MemberEvent::Command { .. }
            | MemberEvent::Forget { .. }
            | MemberEvent::Boundary { .. }
            | MemberEvent::Passed { .. }
            | MemberEvent::Restore { .. }
            | MemberEvent::StallNotice { .. }
            | MemberEvent::Contact { .. }
            | MemberEvent::Failed(_)
            | MemberEvent::Left => {
                heard(&event);
                (self.events)(event);
            }
        }
    }
}

/// The member has heard of something, and nobody in its process has acted upon it.
fn heard(event: &MemberEvent) {
    match event {
        MemberEvent::Joined { .. } => reach(Failpoint::Joined),
        MemberEvent::View(_) => reach(Failpoint::ViewHeard),
        MemberEvent::Boundary { limit: None, .. } => reach(Failpoint::BoundaryHeard),
        MemberEvent::Boundary { limit: Some(_), .. } => reach(Failpoint::LimitHeard),
        MemberEvent::Passed { .. } => reach(Failpoint::PassedHeard),
        MemberEvent::Restore { .. } => reach(Failpoint::RestoreHeard),
        MemberEvent::Contact { is_lost: true, .. } => tracing::info!("the coordinator is out of contact"),
        MemberEvent::Contact { is_lost: false, .. } => tracing::info!("the coordinator is back"),
        _ => {}
    }
}
