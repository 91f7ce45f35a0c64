//! Runs a [`Coordinator`] machine behind a control listener: one thread that sleeps on a channel.
//!
//! The channel holds at most `WAITING_FRAMES_MAX` frames of each link, because a link is not read further before its frames are handled
//! ([`Waiting`]). Requests for the status have a queue of their own ([`questions`]). One of them is answered in each pass over the channel, so
//! that observers do not delay members.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use gradlane_core::config::Config;
use gradlane_core::identity::{Authority, Credentials};
use gradlane_core::local::OwnThread;
use gradlane_core::local::failpoint::reach;
use gradlane_core::metrics::CoordinatorMetrics;
use gradlane_core::runtime::exporter::{Exporter, Exposure};
use gradlane_core::runtime::{Clock, Heard, Inputs, process};
use gradlane_core::transport::quic::Settings;
use gradlane_core::transport::quic::control::{ControlIncoming, ControlListener, Newcomers, Waiting};
use gradlane_core::types::{ControlAnswer, Epoch, JoinString, LinkId, Phase, Role, Time, WorkersKey};
use gradlane_core::wire::frame::{Frame, Status};
use gradlane_core::{Error, Result};

use super::{Command, Coordinator, CoordinatorConfig, Event, Found};

mod apart;
mod deaths;
mod disk;
mod end;
mod gathered;
mod happened;
pub(crate) mod journal;
mod keeping;
mod log;
mod obeying;
mod probe;
mod questions;
mod recorder;
mod recording;
mod reporting;
mod stepping_down;
mod telling;
pub(crate) mod term;

use disk::Files;
use end::End;
use journal::{Journal, kept};
use probe::Probe;
use questions::Questions;
use recorder::{Flight, Recorder};
use reporting::Reporting;
use telling::{stamped, tells, told};

/// A running coordinator.
pub struct CoordinatorNode {
    join: JoinString,
    authority: Arc<Authority>,
    inputs: Sender<Input>,
    thread: OwnThread,
    end: Arc<End>,
    probe: Arc<Probe>,
    flight: Arc<Flight>,
    /// While an exporter of this process shows it.
    exposure: Mutex<Option<Exposure>>,
}

enum Input {
    Control(ControlIncoming),
    /// Somebody has asked for the status.
    Asked,
    Death {
        pid: u32,
        cause: String,
        /// Whether it is started again.
        returns: bool,
    },
    Status(Sender<Status>),
    /// Work on files is done, of the save or load with this number.
    Disk {
        number: u64,
        outcome: Result<Found>,
    },
    /// An order of an operator to this process was obeyed, or cannot be.
    Obeyed(u64, Result<ControlAnswer>),
    /// For this cause; without one the job is left to the next coordinator.
    Stop(Option<Error>),
}

impl CoordinatorNode {
    /// Listens on `bind` and waits for the members. Keys, certificates, the term and a journal are kept in memory or in `state_dir`. Every
    /// start has secrets of its own, which end with the job. Exception: with the setting `resume`, they are those that a coordinator which
    /// did not see the end of its job left in `state_dir`. If its job had formed, this one goes on with it.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound or the directory cannot be used; [`Error::FailedPrecondition`] if another coordinator uses
    /// it, or the journal is damaged; [`Error::Config`] if the settings are those of another job.
    pub fn start(machine: CoordinatorConfig, config: &Config, state_dir: Option<&Path>) -> Result<Self> {
        machine.policy.check(machine.workers)?;
        let reporting = Reporting::by_settings(config)?;
        machine.check_workers()?;
        let clock = Clock::start();
        let machine = CoordinatorConfig { journals: state_dir.is_some(), ..machine };
        let journal = state_dir.map(|dir| kept(dir, config.resume)).transpose()?;
        let authority = match state_dir {
            Some(dir) if config.resume => Authority::resume(dir, &machine.job)?,
            Some(dir) => Authority::begin(dir, &machine.job)?,
            None => Authority::create(&machine.job)?,
        };
        let authority = Arc::new(authority.with_lifetime(config.certificate_lifetime));
        let (journal, records) = journal.unzip();
        let (coordinator, goes_on_at) = match records.filter(|records| !records.is_empty()) {
            Some(records) => Coordinator::recover(machine.clone(), records)?,
            None => (Coordinator::new(machine.clone(), term::next(state_dir)?, clock.now()), clock.now()),
        };
        let (inputs, received) = unbounded();
        let questions = Arc::new(Questions::default());
        let (events, asked) = (inputs.clone(), Arc::clone(&questions));
        let site = crate::site::by_settings(config)?;
        let listener = ControlListener::bind(
            &config.bind,
            Arc::clone(&authority),
            &Settings::from_config(config),
            Newcomers { site: site.as_ref(), after_forming: config.lets_in_later() },
            Box::new(move |incoming| {
                let input = match incoming {
                    ControlIncoming::Frame { link, frame: Frame::StatusRequest, waiting } => {
                        if !asked.ask(link, waiting) {
                            return;
                        }
                        Input::Asked
                    }
                    other => Input::Control(other),
                };
                let _ = events.send(input);
            }),
        )?;
        let address = process::announced(listener.address(), config.advertise.as_deref(), ELSEWHERE);
        let join = authority.join_string(&address);

        let probe = Arc::new(Probe::new(&machine, config.fingerprint(), listener.enrolments_refused()));
        let flight = Flight::new(config, Role::Coordinator, clock, Recorder::new(config.recorder_events));
        let (end, told, flight) = (Arc::new(End::default()), inputs.clone(), Arc::new(flight));
        let done = move |number, outcome| drop(told.send(Input::Disk { number, outcome }));
        let files = Files::start(config, &join, done)?;
        let ahead = goes_on_at.since(clock.now());
        let mut driver = Driver {
            files,
            machine: coordinator,
            journal,
            clock,
            ahead,
            began_unix_ns: clock.read_wall().origin_unix_ns().saturating_sub((Time::ZERO + ahead).0),
            listener,
            end: Arc::clone(&end),
            host: process::host(),
            state_dir: state_dir.map(Path::to_owned),
            workers_key: authority.workers_key(),
            admits_newcomers: Ok(()),
            questions,
            inputs: inputs.clone(),
            waiting: None,
            probe: Arc::clone(&probe),
            is_counted: false,
            reporting,
            flight: Arc::clone(&flight),
            told_epoch: None,
        };
        driver.reporting.begin(driver.now(), driver.began_unix_ns, !ahead.is_zero());
        probe.follow(&driver.machine.census(), driver.machine.present());
        // A dump tells the term also if the job never forms.
        flight.formed(&driver.machine.view());
        let thread = OwnThread::start("gl-coordinator", move || driver.run_guarded(Inputs::new(received, clock)))?;
        Ok(Self { join, authority, inputs, thread, end, probe, flight, exposure: Mutex::default() })
    }

    /// The join string: all that a node needs to join. It is a secret.
    pub fn join_string(&self) -> &JoinString {
        &self.join
    }

    /// The join string that lets operators give orders. It is a secret of the user who leads the job.
    pub fn operators_string(&self) -> JoinString {
        self.authority.operators_string(&self.join.address)
    }

    /// Credentials for a server inside this process, issued without a connection.
    ///
    /// # Errors
    /// [`Error::Internal`] if no certificate can be made.
    pub fn credentials(&self, role: Role) -> Result<Credentials> {
        self.authority.credentials(role)
    }

    /// Makes a join string for one process, which comes as `role` within `lasts`. An elastic job takes it in also after it has formed.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are too many that no process has used yet.
    pub fn invite(&self, role: Role, lasts: Duration) -> Result<JoinString> {
        self.authority.invite_here(&self.join.address, role, lasts)
    }

    /// The state of the job.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] once the coordinator has stopped; [`Error::Timeout`] if its thread does not answer.
    pub fn status(&self) -> Result<Status> {
        self.status_within(ANSWERING)
    }

    /// As [`status`](Self::status); waits at most `patience` for the coordinator's thread.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn status_within(&self, patience: Duration) -> Result<Status> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let _ = self.inputs.send(Input::Status(sender));
        receiver.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Disconnected => Error::FailedPrecondition {
                what: "the coordinator has stopped".to_owned(),
                hint: "start another job".to_owned(),
            },
            RecvTimeoutError::Timeout => {
                Error::Timeout { what: "asking the coordinator of this process".to_owned(), waited: patience }
            }
        })
    }

    /// Waits for the end of the job, at most `patience`.
    ///
    /// # Errors
    /// Why the job failed; [`Error::Timeout`] if it still runs.
    pub fn wait(&self, patience: Option<Duration>) -> Result<()> {
        self.end.wait(patience)
    }

    /// Shows it at this exporter until it is stopped.
    pub fn show_at(&self, exporter: &Arc<Exporter>) {
        let exposure = exporter.show(Arc::clone(&self.probe) as _);
        *self.exposure.lock().unwrap_or_else(PoisonError::into_inner) = Some(exposure);
    }

    /// Ends the job if it still runs: every member is told `cause`. Idempotent.
    pub fn stop(&self, cause: Error) {
        let _ = self.inputs.send(Input::Stop(Some(cause)));
        self.thread.join(STOPPING);
        self.flight.settle(DUMPING);
        // Frees the port, if nobody else is shown there.
        let exposure = self.exposure.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(exposure);
    }
}

impl Drop for CoordinatorNode {
    fn drop(&mut self) {
        self.stop(Error::FailedPrecondition {
            what: "the coordinator was stopped".to_owned(),
            hint: "start the job again".to_owned(),
        });
    }
}

/// An address that belongs to no host (RFC 5737). The route to it tells which address of this host others see.
const ELSEWHERE: &str = "192.0.2.1:9";

/// Longer than the coordinator needs for the inputs before a question.
const ANSWERING: Duration = Duration::from_secs(30);

/// Longer than the coordinator's thread takes to end. One that is stuck is left behind, with a warning.
const STOPPING: Duration = Duration::from_secs(10);
/// As long as a server waits for its dump.
const DUMPING: Duration = Duration::from_secs(2);

struct Driver {
    machine: Coordinator,
    files: Files,
    /// With a state directory.
    journal: Option<Journal>,
    clock: Clock,
    /// How much later it is for the machine than for the clock: the time of the coordinators before it.
    ahead: Duration,
    /// When the machine's time began, by the wall clock at the start of this coordinator.
    began_unix_ns: u64,
    listener: ControlListener,
    end: Arc<End>,
    host: String,
    /// The directory of the job's secrets.
    state_dir: Option<PathBuf>,
    workers_key: WorkersKey,
    /// What the listener was told last.
    admits_newcomers: Result<()>,
    questions: Arc<Questions>,
    /// For [`Input::Asked`], so that the next question comes after the inputs that are there.
    inputs: Sender<Input>,
    /// Of the frame that was handled last, until its answers are sent.
    waiting: Option<Waiting>,
    probe: Arc<Probe>,
    /// Whether nothing but heartbeats came since the members were counted.
    is_counted: bool,
    reporting: Reporting,
    flight: Arc<Flight>,
    /// The epoch of the view that was told last.
    told_epoch: Option<Epoch>,
}

impl Driver {
    /// Runs, and if that panics, the job has ended for those who wait for it. The members hear of it by the end of their connections.
    fn run_guarded(&mut self, inputs: Inputs<Input>) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(inputs))) else { return };
        let error = Error::of_panic("the coordinator stopped because it", &*panic);
        tracing::error!(%error, "the coordinator stopped");
        self.probe.broke_down();
        self.ends(Err(error));
        self.listener.stop(Duration::from_millis(500));
    }

    fn run(&mut self, mut inputs: Inputs<Input>) {
        /// Time for the last frames to leave after the end of the job.
        const GRACE: Duration = Duration::from_millis(500);
        let mut stop_at = None;
        loop {
            if self.drain() {
                stop_at.get_or_insert(self.now() + GRACE);
            }
            let due = [self.machine.poll_timeout(), stop_at].into_iter().flatten().min();
            let heard = inputs.next(due.map(|due| Time::ZERO + due.since(Time::ZERO + self.ahead)));
            let now = self.now();
            match heard {
                Heard::Input(Input::Control(incoming)) => self.handle(incoming),
                Heard::Input(Input::Asked) => self.handle_question(),
                Heard::Input(Input::Death { pid, cause, returns }) => self.handle_death(now, pid, cause, returns),
                Heard::Input(Input::Status(reply)) => {
                    let _ = reply.send(self.machine.status(now));
                }
                Heard::Input(Input::Disk { number, outcome }) => self.machine.handle_disk(number, outcome),
                Heard::Input(Input::Obeyed(number, outcome)) => self.machine.handle_obeyed_here(number, outcome),
                Heard::Input(Input::Stop(None)) if self.steps_down() => return,
                Heard::Input(Input::Stop(cause)) => {
                    cause.into_iter().for_each(|cause| self.machine.stop(now, cause));
                    self.drain();
                    break;
                }
                Heard::Due if stop_at.is_some_and(|at| at <= now) => {
                    self.wait_for_stop(inputs);
                    break;
                }
                Heard::Due => self.machine.handle_timeout(now),
                Heard::Closed => break,
            }
        }
        self.end_course();
        self.reporting.write_ended();
        // Has an effect only if the owner stopped a job that had not ended by itself.
        self.ends(match self.machine.view().phase {
            Phase::Aborted(cause) | Phase::Restores(cause) => Err(cause),
            Phase::Forming | Phase::Running | Phase::Ended | Phase::FormsAgain => Ok(()),
        });
        self.listener.stop(Duration::from_millis(500));
        if let Some(Err(error)) = self.state_dir.as_deref().map(Authority::forget) {
            tracing::warn!(%error, "the secrets of the job that has ended are left");
        }
        self.journal.iter_mut().for_each(Journal::forget);
    }

    /// The job is over, but late requests are still answered until the owner stops the coordinator.
    fn wait_for_stop(&mut self, mut inputs: Inputs<Input>) {
        while let Heard::Input(input) = inputs.next(None) {
            match input {
                Input::Stop(_) => return,
                Input::Control(incoming) => self.handle(incoming),
                Input::Asked => self.handle_question(),
                Input::Status(reply) => {
                    let _ = reply.send(self.machine.status(self.now()));
                }
                Input::Death { pid, cause, .. } => self.note_failure(pid, cause),
                Input::Disk { .. } | Input::Obeyed(..) => {}
            }
            self.drain();
        }
    }

    fn handle(&mut self, incoming: ControlIncoming) {
        match incoming {
            ControlIncoming::Up { link, node, role, .. } => self.machine.handle_connected(link, node, role),
            ControlIncoming::Frame { link, frame, waiting } => self.handle_frame(link, frame, waiting),
            ControlIncoming::Down { link, reason } => {
                self.note_disconnected(link, &reason);
                self.machine.handle_disconnected(link, reason);
            }
        }
    }

    fn handle_frame(&mut self, link: LinkId, frame: Frame, waiting: Waiting) {
        let counter = match &frame {
            Frame::StatusRequest => &self.probe.metrics.status_requests,
            _ => &self.probe.metrics.frames,
        };
        CoordinatorMetrics::add(counter, 1);
        let _span = tracing::trace_span!("frame", link = link.0).entered();
        // Most frames, and they change nothing that is counted but that a suspect lives. The next look for silent members counts that.
        self.is_counted = matches!(frame, Frame::Heartbeat { .. } | Frame::Metrics(_) | Frame::Waits(_));
        self.keep(link, &frame);
        let place = self.note_heard(link, &frame);
        self.machine.handle_frame(self.now(), link, frame);
        self.note_joined(link, place);
        self.waiting = Some(waiting);
    }

    /// Answers one request for the status. The next one comes after the inputs that are there now.
    fn handle_question(&mut self) {
        let Some((link, waiting)) = self.questions.next() else { return };
        self.handle_frame(link, Frame::StatusRequest, waiting);
        if !self.questions.is_empty() {
            let _ = self.inputs.send(Input::Asked);
        }
    }

    /// The time for the machine.
    fn now(&self) -> Time {
        self.clock.now() + self.ahead
    }

    /// Goes on with a job that has ended to form again; returns whether it has.
    ///
    /// # Errors
    /// [`Error::Io`] if the term or the journal cannot be written.
    fn form_again(&mut self) -> Result<bool> {
        if !self.machine.forms_again() {
            return Ok(false);
        }
        let term = term::next(self.state_dir.as_deref())?.max(self.machine.view().epoch.term + 1);
        self.journal.as_mut().map_or(Ok(()), Journal::begin)?;
        let now = self.now();
        self.machine.form_again(term, now);
        self.reporting.begin(now, self.began_unix_ns, false);
        Ok(true)
    }

    /// Returns once the disk has what was written down.
    fn sync(&mut self) {
        self.journal.iter_mut().for_each(Journal::sync);
    }

    /// Carries out all commands of the machine; returns whether the job has ended.
    fn drain(&mut self) -> bool {
        // First, so that nobody enrols who has heard that the job formed.
        let admits_newcomers = self.machine.admits_newcomers();
        if admits_newcomers != self.admits_newcomers {
            if let Err(why) = &admits_newcomers {
                self.listener.close_enrolment(why.clone(), self.is_over());
            }
            self.admits_newcomers = admits_newcomers;
        }
        let mut ended = false;
        while let Some(command) = self.machine.next_command() {
            match command {
                Command::Send { link, frame } => {
                    if tells(&frame) {
                        self.sync();
                    }
                    self.note_told(link, &frame);
                    let point = told(&frame);
                    self.listener.send(link, stamped(frame, || self.now(), self.began_unix_ns));
                    point.into_iter().for_each(reach);
                }
                Command::Close { link, error } => {
                    self.sync();
                    self.listener.close(link, error);
                }
                Command::Certify { link } => self.listener.certify(link),
                Command::ShareKey { link } => self.listener.send(link, Frame::WorkersKey(self.workers_key.clone())),
                Command::Journal(record) => self.journal.iter_mut().for_each(|journal| journal.add(&record)),
                Command::Disk(disk) => self.files.begin(disk),
                Command::Obey { number, command } => self.obey(number, command),
                Command::Event(Event::Finished(outcome)) => {
                    self.end_course();
                    let outcome = match self.form_again() {
                        Ok(true) => continue,
                        Ok(false) => outcome,
                        Err(error) => Err(error),
                    };
                    ended = true;
                    self.ends(outcome);
                }
                Command::Event(event) => self.happened(&event),
            }
        }
        if !std::mem::take(&mut self.is_counted) {
            self.probe.follow(&self.machine.census(), self.machine.present());
        }
        self.probe.gathered.tick(|| self.machine.status(self.now()));
        if let Some(waiting) = self.waiting.take() {
            self.listener.handled(waiting);
        }
        ended
    }
}
