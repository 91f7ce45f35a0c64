//! The coordinator process: the machine behind its control connections, as `coordinator::driver` drives it.

use std::collections::BTreeSet;

use gradlane_core::error::Result;
use gradlane_core::types::{LinkId, Time};
use gradlane_core::wire::Frame;
use gradlane_server::coordinator::{Command, Coordinator, CoordinatorConfig, Event, Policy};

use super::member::{host, pid};
use super::workload::timing;
use super::world::{Address, Context, Input, Process, Who};

/// A running coordinator.
pub(super) struct CoordinatorProcess {
    me: Address,
    machine: Coordinator,
    /// Connections that are up, by number.
    controls: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    outcome: Option<Result<()>>,
}

/// Of the first coordinator that the job has. Not the first term, so that there are earlier memberships.
pub(super) const TERM: u32 = 2;

impl CoordinatorProcess {
    /// A coordinator that waits for its members.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        context.witness.coordinator_starts();
        let config = CoordinatorConfig {
            job: "sim".to_owned(),
            workers: context.plan.workers,
            servers: context.plan.servers,
            form_timeout: timing::FORM,
            suspect_timeout: timing::SUSPECT,
            dead_timeout: timing::DEAD,
            leave_grace: timing::DEAD,
            stall_interval: timing::STALL_WARN,
            policy: if context.plan.classes.survivors { Policy::CONTINUE } else { Policy::Abort },
            layout: context.plan.settings.layout,
            defect: context.plan.defect,
        };
        Self {
            me,
            machine: Coordinator::new(config, TERM + me.life, context.now),
            controls: BTreeSet::new(),
            lost: BTreeSet::new(),
            outcome: None,
        }
    }

    /// A launcher saw a process end.
    pub(super) fn report_death(&mut self, context: &mut Context, who: Who) {
        let gone = context.address(who);
        self.machine.handle_death(context.now, pid(gone), &host(who), "killed by signal 9".to_owned());
        self.drain(context);
    }

    /// How the job ended, if it has.
    pub(super) fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.as_ref()
    }

    fn drain(&mut self, context: &mut Context) {
        while let Some(command) = self.machine.next_command() {
            match command {
                Command::Send { link, frame } => {
                    context.witness.said(link.0, &frame);
                    if !matches!(frame, Frame::HeartbeatAck { .. }) {
                        context.log.note(context.now, self.me.who, "says", &[link.0], || format!("{frame:?}"));
                    }
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
                Command::Event(event) => self.note(context, event),
            }
        }
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
            Event::Refused { .. }
            | Event::Suspect { .. }
            | Event::Ends { .. }
            | Event::GoesOn { .. }
            | Event::HotServer { .. }
            | Event::Stall { .. } => {}
        }
    }
}

impl Process for CoordinatorProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
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
                    context.log.note(now, self.me.who, "hears", &[control], || format!("{frame:?}"));
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
        self.machine.poll_timeout()
    }

    fn is_finished(&self) -> bool {
        self.outcome.is_some()
    }

    fn describe(&self) -> String {
        format!("the job is {:?}", self.machine.view().phase)
    }
}
