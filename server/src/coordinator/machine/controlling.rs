//! An operator gives orders to members, or to the coordinator.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    CheckpointAsk, Control, ControlAnswer, ControlCommand, LinkId, Recipient, Role, SaveAsk, ServerId, TensorKind,
    Time, WorkerId,
};
use gradlane_core::wire::Frame;
use gradlane_core::wire::limits;

use super::Coordinator;
use crate::coordinator::asker::Asker;
use crate::coordinator::controls::Answer;
use crate::coordinator::roster::{Identity, Seat};
use crate::coordinator::stage::Stage;
use crate::coordinator::{Event, questions};

impl Coordinator {
    /// Somebody gives an order.
    pub(super) fn handle_control(&mut self, now: Time, link: LinkId, request: u64, control: Control) {
        if self.controls.knows(link, request) {
            return;
        }
        if let Err(error) = self.begin_control(now, link, request, control) {
            self.answer_control([Answer { link, request, outcome: Err(error) }]);
        }
    }

    /// # Errors
    /// Why the order is not given on.
    fn begin_control(&mut self, now: Time, link: LinkId, request: u64, control: Control) -> Result<()> {
        let role = self.connections.get(link).map(|link| link.role);
        if role != Some(Role::Admin) {
            let who = role.map_or("nobody".to_owned(), |role| role.to_string());
            return Err(Error::Auth {
                problem: format!("giving orders needs an admin token, and this connection is that of a {who}"),
                hint: "make one with `gradlane token new --role admin` where the coordinator runs".to_owned(),
            });
        }
        let Control { recipient, wait, command } = control;
        let command = self.checked(recipient, command)?;
        let recipients = match &command {
            ControlCommand::SetRate { .. } => self.servers().collect(),
            ControlCommand::Stats
            | ControlCommand::Log { .. }
            | ControlCommand::Drain
            | ControlCommand::Save { .. }
            | ControlCommand::Dump { .. }
            | ControlCommand::DumpRecorder { .. }
            | ControlCommand::Timeline { .. }
            | ControlCommand::StopTimeline
            | ControlCommand::Unknown { .. } => vec![recipient],
        };
        let number = self.controls.begin(now, (link, request), wait, &command, recipients.iter().copied())?;
        let (to, order) = (recipient, command.word());
        self.connections.event(Event::Ordered { to, order });
        match command {
            ControlCommand::Save { path, keep } => {
                let ask = CheckpointAsk::Save(SaveAsk { path, keep, notes: String::new(), tables_apart: false, wait });
                let parameters = self.registry.as_ref().expect("a job that runs has a registry").parameters();
                let turn = self.checkpoints.ask(now, (Asker::Operator, number), ask, parameters);
                self.turn_checkpoints(turn);
            }
            command if recipient == Recipient::Coordinator && recipients == [recipient] => {
                self.connections.obey(number, command);
            }
            command => recipients.into_iter().for_each(|recipient| self.command(recipient, number, &command)),
        }
        Ok(())
    }

    /// The command as it is carried out.
    ///
    /// # Errors
    /// Why it cannot be.
    fn checked(&self, recipient: Recipient, command: ControlCommand) -> Result<ControlCommand> {
        match &self.stage {
            Stage::Forming { .. } => {
                return Err(Error::FailedPrecondition {
                    what: "the job has not formed yet".to_owned(),
                    hint: "give orders when its members have come: see `gradlane status`".to_owned(),
                });
            }
            Stage::Running => {}
            Stage::Closing { outcome, .. } | Stage::Finished { outcome } => return Err(questions::over(outcome)),
        }
        let is_coordinator = recipient == Recipient::Coordinator;
        let is_for = match &command {
            ControlCommand::Stats | ControlCommand::Log { .. } | ControlCommand::DumpRecorder { .. } => true,
            ControlCommand::Drain => matches!(recipient, Recipient::Server(_)),
            ControlCommand::Dump { .. } => matches!(recipient, Recipient::Worker(_)),
            ControlCommand::Timeline { .. } | ControlCommand::StopTimeline => !is_coordinator,
            ControlCommand::Save { .. } | ControlCommand::SetRate { .. } => is_coordinator,
            ControlCommand::Unknown { .. } => return Err(command.refusal("the coordinator")),
        };
        if !is_for {
            return Err(command.refusal(&recipient.to_string()));
        }
        if !is_coordinator {
            self.check_recipient(recipient)?;
        }
        match command {
            ControlCommand::SetRate { tensor, rate, step } => {
                let step = self.checked_rate(&tensor, rate, step)?;
                Ok(ControlCommand::SetRate { tensor, rate, step })
            }
            ControlCommand::Save { path, keep } => {
                let ask =
                    SaveAsk { path, keep, notes: String::new(), tables_apart: false, wait: std::time::Duration::ZERO };
                limits::check_ask(&gradlane_core::types::Ask::Checkpoint(CheckpointAsk::Save(ask.clone())))?;
                Ok(ControlCommand::Save { path: ask.path, keep })
            }
            other => Ok(other),
        }
    }

    /// # Errors
    /// [`Error::NotFound`] if there is no such member; its hint lists those that are there.
    fn check_recipient(&self, recipient: Recipient) -> Result<()> {
        if self.seat_of(recipient).is_some() {
            return Ok(());
        }
        let present = self.roster.seats().filter(|seat| seat.is_present());
        let mut names: Vec<Recipient> = present.map(recipient_of).collect();
        names.sort_unstable();
        let names: Vec<String> = names.iter().map(Recipient::to_string).collect();
        let (what, hint) = (recipient.to_string(), format!("the job has coordinator, {}", names.join(", ")));
        Err(Error::NotFound { what, hint })
    }

    /// The first step with a new learning rate; `None` for a parameter without a clock.
    ///
    /// # Errors
    /// Why the rate cannot change.
    fn checked_rate(&self, tensor: &str, rate: f64, step: Option<u64>) -> Result<Option<u64>> {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::InvalidArgument {
                what: format!("a learning rate of {rate}"),
                hint: "give a number that is not negative".to_owned(),
            });
        }
        let parameters = self.registry.as_ref().map(|registry| registry.parameters().tensors).unwrap_or_default();
        let Some(spec) = parameters.iter().find(|spec| spec.name == tensor) else {
            let names: Vec<&str> = parameters.iter().take(NAMES_LISTED_MAX).map(|spec| &*spec.name).collect();
            return Err(Error::NotFound {
                what: format!("the parameter {tensor}"),
                hint: match names.as_slice() {
                    [] => "no parameter of this job lives on servers".to_owned(),
                    names => format!("the first parameters of this job are {}", names.join(", ")),
                },
            });
        };
        let TensorKind::Parameter { rule: Some(_), mode, .. } = spec.kind else {
            return Err(Error::InvalidArgument {
                what: format!("the parameter {tensor} has no rule, and so no learning rate"),
                hint: "declare it with an optimizer".to_owned(),
            });
        };
        let refused = |what: String, hint: String| Err(Error::FailedPrecondition { what, hint });
        match (mode.clock, step) {
            (None, None) => Ok(None),
            (None, Some(_)) => refused(
                format!("the parameter {tensor} has no clock, and so no global steps"),
                "leave the step out: the next change of each part is the first with the new rate".to_owned(),
            ),
            (Some(clock), step) => {
                let next = self.clocks.next_step(clock);
                match step {
                    Some(step) if step < next => refused(
                        format!("step {step} of the parameter {tensor} is closed"),
                        format!("the first step whose rate can change is {next}"),
                    ),
                    Some(step) => Ok(Some(step)),
                    None => Ok(Some(next)),
                }
            }
        }
    }

    /// A member has obeyed, or cannot.
    pub(super) fn handle_commanded(&mut self, identity: Identity, number: u64, outcome: Result<ControlAnswer>) {
        let Some(recipient) = self.roster.seat(identity).map(recipient_of) else { return };
        self.end_control(recipient, number, outcome);
    }

    /// The driver has obeyed [`Command::Obey`], or cannot.
    pub fn handle_obeyed_here(&mut self, number: u64, outcome: Result<ControlAnswer>) {
        self.end_control(Recipient::Coordinator, number, outcome);
    }

    pub(super) fn end_control(&mut self, recipient: Recipient, number: u64, outcome: Result<ControlAnswer>) {
        let answer = self.controls.handle_outcome(recipient, number, outcome);
        self.answer_control(answer);
    }

    /// A member that has connected is told again what it has not answered. It must hear of a learning rate before it hears of later rounds.
    pub(super) fn repeat_commands(&mut self, link: LinkId) {
        let Some(recipient) = self.roster.seats().find(|seat| seat.link() == Some(link)).map(recipient_of) else {
            return;
        };
        for (number, command) in self.controls.told(recipient) {
            self.connections.send(link, Frame::Command { number, command });
        }
    }

    /// These members are lost.
    pub(super) fn lose_recipients(&mut self, lost: &[(Recipient, Error)]) {
        for (recipient, cause) in lost {
            let answers = self.controls.lose(*recipient, cause);
            self.answer_control(answers);
        }
    }

    pub(super) fn answer_control(&mut self, answers: impl IntoIterator<Item = Answer>) {
        for Answer { link, request, outcome } in answers {
            self.connections.send(link, Frame::Controlled { request, outcome });
        }
    }

    fn command(&mut self, recipient: Recipient, number: u64, command: &ControlCommand) {
        // A member without a connection hears of it when it has one.
        if let Some(link) = self.seat_of(recipient).and_then(Seat::link) {
            self.connections.send(link, Frame::Command { number, command: command.clone() });
        }
    }

    fn seat_of(&self, recipient: Recipient) -> Option<&Seat> {
        self.roster.seats().find(|seat| seat.is_present() && recipient_of(seat) == recipient)
    }

    fn servers(&self) -> impl Iterator<Item = Recipient> {
        self.roster.seats().filter(|seat| seat.is_present()).map(recipient_of).filter(is_server)
    }
}

fn is_server(recipient: &Recipient) -> bool {
    matches!(recipient, Recipient::Server(_))
}

/// By what name a member gets orders.
pub(super) fn recipient_of(seat: &Seat) -> Recipient {
    match seat.identity().role {
        Role::Server => Recipient::Server(ServerId(seat.member.index)),
        Role::Worker | Role::Coordinator | Role::Observer | Role::Admin => {
            Recipient::Worker(WorkerId(seat.member.index))
        }
    }
}

/// Parameters that an error names.
const NAMES_LISTED_MAX: usize = 8;
