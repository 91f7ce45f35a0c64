//! The coordinator process: the machine behind its control connections, as `coordinator::driver` drives it.

use std::collections::BTreeSet;
use std::time::Duration;

use gradlane_core::config::OnServerLoss;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{self, Incarnation, LinkId, NodeId, Phase, Role, Time, View};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Join;
use gradlane_server::coordinator::{Command, Coordinator, CoordinatorConfig, Event, Policy, Record};

use super::member::{host, pid};
use super::workload::timing;
use super::world::{Address, Context, Input, Process, Who};

/// A running coordinator.
pub(super) struct CoordinatorProcess {
    me: Address,
    machine: Coordinator,
    /// How much later it is for this process than for the machine, which goes on from the last time that an earlier one wrote down.
    behind: Duration,
    /// Connections that are up, by number.
    controls: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    outcome: Option<Result<()>>,
}

/// The connections of newcomers; those of members are counted from 0.
const NEWCOMER: LinkId = LinkId(1 << 48);
/// Of the first coordinator that the job has. Not the first term, so that there are earlier memberships.
pub(super) const TERM: u32 = 2;

impl CoordinatorProcess {
    /// A coordinator that waits for its members.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let config = CoordinatorConfig {
            job: "sim".to_owned(),
            workers: context.plan.workers,
            servers: context.plan.servers,
            form_timeout: timing::FORM,
            suspect_timeout: timing::SUSPECT,
            dead_timeout: timing::DEAD,
            boundary_timeout: timing::BOUNDARY,
            workers_max: (context.plan.classes.comes || context.plan.classes.waits).then_some(context.plan.workers + 2),
            reform_timeout: timing::LEAVE_GRACE,
            leave_grace: timing::LEAVE_GRACE,
            end_grace: timing::DEAD,
            stall_interval: timing::STALL_WARN,
            policy: match context.plan.classes.survivors {
                true => {
                    let waits = context.plan.classes.waits;
                    Policy::Continue {
                        min_workers: if waits { context.plan.workers } else { 1 },
                        rejoin: waits.then_some(timing::REJOIN),
                        on_server_loss: if context.plan.classes.outlives {
                            OnServerLoss::Continue
                        } else {
                            OnServerLoss::Abort
                        },
                    }
                }
                false => Policy::Abort,
            },
            layout: context.plan.settings.layout,
            journals: context.plan.classes.succeeds,
            defect: context.plan.defect,
        };
        let (machine, behind) = match context.journal.is_empty() {
            true => {
                context.witness.coordinator_starts();
                (Coordinator::new(config, TERM + me.life, context.now), Duration::ZERO)
            }
            false => {
                let records = context.journal.iter().map(|bytes| Record::decode(bytes).expect("it was written so"));
                let (machine, base) = Coordinator::recover(config, records).expect("it was written so");
                (machine, context.now.since(base))
            }
        };
        Self { me, machine, behind, controls: BTreeSet::new(), lost: BTreeSet::new(), outcome: None }
    }

    /// A launcher saw a process end.
    pub(super) fn report_death(&mut self, context: &mut Context, who: Who) {
        let gone = context.address(who);
        self.machine.handle_death(self.time(context), pid(gone), &host(who), "killed by signal 9".to_owned());
        self.drain(context);
    }

    /// A process comes that could be a worker too. Before the job has formed it would be one.
    pub(super) fn take_newcomer(&mut self, context: &mut Context, number: u64) {
        if self.machine.view().phase == Phase::Forming {
            return;
        }
        context.witness.newcomer_comes();
        let link = LinkId(NEWCOMER.0 + number);
        let process = types::Process {
            host: format!("newcomer{number}"),
            ..types::Process::new(Role::Worker, Incarnation(u128::MAX - u128::from(number)))
        };
        let join = Join { process, requested: None, epoch: None, workers: 0, servers: 0 };
        self.machine.handle_connected(link, NodeId([0xee ^ number as u8; 32]), Role::Worker);
        self.machine.handle_frame(self.time(context), link, Frame::Join(join));
        self.drain(context);
    }

    /// It is gone again.
    pub(super) fn lose_newcomer(&mut self, context: &mut Context, number: u64) {
        let error = Error::Io { what: "receive".to_owned(), cause: "connection reset".to_owned() };
        self.machine.handle_disconnected(LinkId(NEWCOMER.0 + number), error);
        self.drain(context);
    }

    /// How the job ended, if it has.
    pub(super) fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.as_ref()
    }

    fn drain(&mut self, context: &mut Context) {
        while let Some(command) = self.machine.next_command() {
            match command {
                // A newcomer is only here, and says nothing more.
                Command::Send { link, .. } | Command::Close { link, .. } if link >= NEWCOMER => {}
                Command::Send { link, frame } => {
                    context.witness.said(link.0, &frame);
                    if !matches!(frame, Frame::HeartbeatAck { .. }) {
                        context.log.note(context.now, self.me.who, "says", &[link.0], || format!("{frame:?}"));
                    }
                    self.may_lose(context, link.0, &frame);
                    let bytes = frame.encode();
                    context.send_control(self.me, link.0, Input::Frame { control: link.0, bytes });
                }
                Command::Close { link, error } => {
                    self.controls.remove(&link.0);
                    context.send_control(self.me, link.0, Input::ControlClosed { control: link.0, error });
                }
                // Members of the simulation have no certificates, and ask for none.
                Command::Certify { .. } => unreachable!("nobody asks for a certificate"),
                // Simulated workers send no objects.
                Command::ShareKey { .. } => {}
                Command::Disk(_) => unreachable!("nobody asks for a checkpoint"),
                Command::Obey { .. } => unreachable!("nobody gives orders"),
                Command::Journal(record) => context.journal.push(record.encode()),
                Command::Event(event) => self.note(context, event),
            }
        }
    }

    /// A connection is lost as the end of a change, of a recovery or of a round is told on it, more often than chance would have it.
    fn may_lose(&self, context: &mut Context, control: u64, frame: &Frame) {
        let is_recovery = |view: &View| view.recovers || view.has_lost_servers();
        let is_news = match frame {
            Frame::Passed { .. } | Frame::Restore { .. } | Frame::Close(_) | Frame::Ticked { .. } => true,
            Frame::View(view) => is_recovery(view),
            _ => false,
        };
        if is_news
            && !context.healed()
            && context.random.chance(25)
            && let Some(to) = context.witness.speaker_on(control)
        {
            context.lose(to, self.me.who, true);
        }
    }

    /// The time for the machine.
    fn time(&self, context: &Context) -> Time {
        Time::ZERO + context.now.since(Time::ZERO + self.behind)
    }

    fn note(&mut self, context: &mut Context, event: Event) {
        context.log.note(context.now, self.me.who, "event", &[], || format!("{event:?}"));
        match event {
            Event::Dead { member, place, cause } => context.witness.declared_dead(&member, &place, &cause),
            Event::Finished(outcome) => {
                context.witness.ended(&outcome);
                self.outcome = Some(outcome);
            }
            Event::Formed { .. } => context.witness.formed(&self.machine.view()),
            Event::Ends { reason } if reason.contains("no others came") => context.witness.gives_up_waiting(),
            Event::Refused { .. }
            | Event::Suspect { .. }
            | Event::Ends { .. }
            | Event::Holds { .. }
            | Event::GoesOn { .. }
            | Event::Recovered { .. }
            | Event::Restores { .. }
            | Event::FormsAgain { .. }
            | Event::HotServer { .. }
            | Event::Ordered { .. }
            | Event::Stall { .. } => {}
        }
    }
}

impl Process for CoordinatorProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        let now = self.time(context);
        match input {
            Input::Timer => self.machine.handle_timeout(now),
            // Lost before it was up: who dialled knows or will find out.
            Input::ControlDialled { control, .. } if self.lost.contains(&control) => {}
            Input::ControlDialled { control, from } => {
                self.controls.insert(control);
                context.witness.connected(control, from);
                self.machine.handle_connected(LinkId(control), context.node_of(from), from.who.role());
                context.send_control(self.me, control, Input::ControlUp { control });
            }
            Input::Frame { control, bytes } if self.controls.contains(&control) => {
                let frame = Frame::decode(&bytes, "a member").expect("a member sends what the coordinator reads");
                context.witness.told(control, &frame);
                if !matches!(frame, Frame::Heartbeat { .. }) {
                    context.log.note(context.now, self.me.who, "hears", &[control], || format!("{frame:?}"));
                }
                self.machine.handle_frame(now, LinkId(control), frame);
            }
            Input::ControlClosed { control, error } => {
                self.lost.insert(control);
                if self.controls.remove(&control) {
                    self.machine.handle_disconnected(LinkId(control), error);
                }
            }
            _ => {}
        }
        self.drain(context);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.machine.poll_timeout().map(|at| at + self.behind)
    }

    fn is_finished(&self) -> bool {
        self.outcome.is_some()
    }

    fn describe(&self) -> String {
        format!("the job is {:?}", self.machine.view().phase)
    }
}
