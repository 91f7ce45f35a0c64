//! A member's side of the control connection, as `runtime::Membership` drives it.

use gradlane_core::Error;
use gradlane_core::cluster::{Member, MemberCommand, MemberConfig, MemberEvent};
use gradlane_core::types::{Address as Place, Incarnation, Process, Role, Scheme, Setup, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Progress;

use super::intruder;
use super::workload::timing;
use super::world::{Address, Context, Input, Who};

/// A [`Member`] and its connection.
#[derive(Debug)]
pub(super) struct MemberDriver {
    me: Address,
    /// The machine.
    pub(super) member: Member,
    control: Option<u64>,
    /// Whether that connection came up.
    up: bool,
}

impl MemberDriver {
    /// The membership of a process that starts.
    pub(super) fn new(context: &Context, me: Address) -> Self {
        let number = match me.who {
            Who::Worker(number) | Who::Server(number) => number,
            Who::Coordinator => unreachable!("the coordinator is no member"),
        };
        let config = MemberConfig {
            process: process(context, me),
            requested: context.plan.settings.fixed_ranks.then_some(number),
            workers: context.plan.workers,
            servers: context.plan.servers,
            coordinator: "coordinator:1".to_owned(),
            heartbeat_interval: timing::HEARTBEAT,
            silence_max: timing::SUSPECT,
            warn_after: timing::FORM / 4,
            join_timeout: timing::FORM * 2,
            control_lost_timeout: timing::CONTROL_LOST,
            contact: timing::contact(context.plan.classes.survivors, timing::verdicts()),
            replaced_timeout: timing::DEAD * 2,
            redial_min: std::time::Duration::from_millis(50),
            redial_max: std::time::Duration::from_secs(2),
            setup: Setup::default(),
            defect: context.plan.defect,
        };
        Self { me, member: Member::new(config, context.now), control: None, up: false }
    }

    /// Takes what concerns the control connection.
    pub(super) fn handle(&mut self, context: &mut Context, input: Input, progress: Progress) {
        let now = context.now;
        match &input {
            Input::ControlUp { control } | Input::ControlFailed { control } | Input::ControlClosed { control, .. } => {
                let mine = self.control == Some(*control);
                context.log.note(now, self.me.who, "control", &[*control, u64::from(mine)], || format!("{input:?}"));
            }
            _ => {}
        }
        match input {
            Input::Timer => {
                self.member.set_progress(progress);
                self.member.handle_timeout(now);
            }
            Input::ControlUp { control } if self.control == Some(control) => {
                // The attempt succeeded; its own timeout finds nothing to do.
                self.up = true;
                self.member.handle_connected(now);
            }
            Input::ControlFailed { control } if self.control == Some(control) && !self.up => {
                self.hang_up(context);
                let error = Error::Timeout { what: "dialling the coordinator".to_owned(), waited: timing::DIAL };
                self.member.handle_disconnected(now, error);
            }
            Input::ControlClosed { control, error } if self.control == Some(control) => {
                self.control = None;
                self.up = false;
                self.member.handle_disconnected(now, error);
            }
            Input::Frame { control, bytes } if self.control == Some(control) => {
                let frame =
                    Frame::decode(&bytes, "the coordinator").expect("the coordinator sends what a member reads");
                if let Frame::Declared { request: intruder::REQUEST, .. }
                | Frame::BarrierDone { request: intruder::REQUEST, .. } = frame
                {
                    return;
                }
                context.witness.heard(self.me, &frame);
                self.member.handle_frame(now, frame);
            }
            _ => {}
        }
    }

    /// Carries out what the machine wants; what it tells is for the process.
    pub(super) fn drain(&mut self, context: &mut Context) -> Vec<MemberEvent> {
        let mut events = Vec::new();
        while let Some(command) = self.member.next_command() {
            match command {
                MemberCommand::Dial => {
                    self.hang_up(context);
                    self.control = Some(context.dial_control(self.me));
                    self.up = false;
                }
                MemberCommand::Send(frame) => {
                    if let Some(control) = self.control {
                        let bytes = frame.encode();
                        context.send_control(self.me, control, Input::Frame { control, bytes });
                    }
                }
                MemberCommand::Hangup => self.hang_up(context),
                MemberCommand::SayWhy { .. } => {}
                MemberCommand::Event(event) => events.push(event),
            }
        }
        events
    }

    /// When the machine wants to be told the time.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.member.poll_timeout()
    }

    fn hang_up(&mut self, context: &mut Context) {
        if let Some(control) = self.control.take() {
            let error = Error::Unavailable { what: "the member".to_owned(), cause: "it hung up".to_owned() };
            context.send_control(self.me, control, Input::ControlClosed { control, error });
        }
    }
}

/// What a process says of itself.
fn process(context: &Context, me: Address) -> Process {
    let process = |role| Process { host: host(me.who), pid: pid(me), ..Process::new(role, incarnation(me)) };
    match me.who {
        Who::Server(number) => {
            let machine = context.plan.topology.server_machine(number);
            Process { machine, addresses: vec![Place::new(Scheme::Quic, number.to_string())], ..process(Role::Server) }
        }
        Who::Worker(number) => {
            let topology = &context.plan.topology;
            let machine = topology.machine(number);
            let addresses = vec![Place::new(Scheme::Shm, format!("worker {number}"))];
            Process { machine, addresses, wiring: topology.wiring(number), ..process(Role::Worker) }
        }
        Who::Coordinator => unreachable!("the coordinator is no member"),
    }
}

/// A number for each life of each process.
pub(super) fn incarnation(address: Address) -> Incarnation {
    Incarnation(u128::from(address.who.number()) << 32 | u128::from(address.life))
}

/// The life of a worker that has this number.
pub(super) fn address_of(incarnation: Incarnation) -> Address {
    let (number, life) = ((incarnation.0 >> 32) as u64, incarnation.0 as u32);
    Address { who: Who::of_worker(number), life }
}

/// Its process id.
pub(super) fn pid(address: Address) -> u32 {
    u32::try_from(address.who.number()).expect("small") * 100 + address.life
}

/// The host it runs on.
pub(super) fn host(who: Who) -> String {
    match who {
        Who::Coordinator => "host0".to_owned(),
        Who::Worker(number) | Who::Server(number) => format!("host{}", number % 3),
    }
}
