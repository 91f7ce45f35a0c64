//! Withdrawals: if a worker will not contribute to a round, it tells the server, because the other workers would wait for it.

use super::command::{Command, Load};
use super::machine::Worker;
use super::records::{Errand, Record};
use crate::error::Error;
use crate::pipeline::Route;
use crate::pipeline::registry::ReadyPart;
use crate::sched::{GroupId, SchedulerConfig, TaskId, TaskSpec};
use crate::types::{Declined, Defect, DeviceKind, Priority, Time, planted};
use crate::wire::reject;

impl Worker {
    /// Withdraws a part of which one submission ended before the others came. The part cannot be summed without that one.
    pub(super) fn withdraw_incomplete(&mut self, now: Time, part: &ReadyPart) {
        let error = Error::FailedPrecondition {
            what: format!(
                "{}: a tensor that shares a part with {} was given up before",
                part.round,
                self.names_of(part).join(" + ")
            ),
            hint: "declare tensors without fusion to give them up one by one".to_owned(),
        };
        self.withdraw(now, part, &error);
    }

    /// Withdraws from the rounds of shared parts that have waited for some of their tensors for the step timeout.
    pub(super) fn withdraw_overdue(&mut self, now: Time) {
        while self.incomplete_due().is_some_and(|due| due <= now) {
            let (part, error) = self.registry.give_up_oldest(now).expect("it is due");
            self.withdraw(now, &part, &error);
        }
    }

    /// The time at which the oldest incomplete round of a shared part is given up, because some of its tensors do not come.
    pub(super) fn incomplete_due(&self) -> Option<Time> {
        let SchedulerConfig { step_timeout, defect, .. } = self.settings.scheduler;
        let oldest = self.registry.oldest_incomplete().filter(|_| !planted(defect, Defect::IncompleteForEver));
        oldest.map(|since| since + step_timeout)
    }

    /// Withdraws a part whose pieces lie in different memories. A part is one message, so all its pieces must lie in memory of one device
    /// or of the host. The piece at `elsewhere` lies in another memory than the first one.
    pub(super) fn withdraw_scattered(&mut self, now: Time, part: &ReadyPart, elsewhere: usize) {
        let names = self.names_of(part);
        let submissions = part.tickets.iter().filter_map(|id| self.submissions.get(id));
        let places: Vec<String> = submissions
            .flat_map(|submission| submission.tensors.as_slice())
            .map(|tensor| match tensor.device {
                None => "host memory".to_owned(),
                Some(ordinal) => format!("memory of device {ordinal}"),
            })
            .collect();
        let error = Error::InvalidArgument {
            what: format!(
                "tensors {} and {} share a part, but on {} one lies in {} and the other in {}",
                names[0],
                names[elsewhere],
                self.rank(),
                places[0],
                places[elsewhere]
            ),
            hint: "declare what lies on different devices in separate calls".to_owned(),
        };
        self.withdraw(now, part, &error);
    }

    /// Withdraws a part in device memory whose participants can only reduce in host memory, because the job has no server.
    pub(super) fn withdraw_unreachable(&mut self, now: Time, part: &ReadyPart) {
        self.withdraw(now, part, &self.unreachable(part));
    }

    /// The error of such a part.
    pub(super) fn unreachable(&self, part: &ReadyPart) -> Error {
        Error::InvalidArgument {
            what: format!(
                "tensor {} lies in memory of a device and belongs to {}, whose devices do not reduce apart from the others",
                self.names_of(part).join(" + "),
                part.participants
            ),
            hint: "copy it to host memory, reduce it over all workers, use torch.distributed.new_group(backend=\"nccl\") for the \
                   devices of one machine, or give the job a server"
                .to_owned(),
        }
    }

    /// Withdraws from a round that has no task yet, and fails the submissions that take part in it.
    fn withdraw(&mut self, now: Time, part: &ReadyPart, error: &Error) {
        let submissions = || part.tickets.iter().filter_map(|id| self.submissions.get(id));
        let groups: Vec<GroupId> = submissions().filter_map(|submission| submission.group).collect();
        // For submissions that have ended, the place of their memory is no longer known.
        let memory = match submissions().flat_map(|submission| submission.tensors.as_slice()).next() {
            Some(tensor) => vec![tensor.device.map_or(DeviceKind::Host, |_| DeviceKind::Cuda)],
            None => vec![DeviceKind::Host, DeviceKind::Cuda],
        };
        // Of a process set on devices the server waits where it would not for memory of the host. It does no harm to tell it in vain.
        let duty = self.duty(part, *memory.last().expect("there is one"));
        for memory in memory {
            self.decline(part, memory);
        }
        let priority = self.most_urgent;
        let spec = TaskSpec {
            part: part.layout.part,
            server: self.server_of(part.layout.part, part.layout.server),
            bytes: 0,
            round: part.round,
            priority,
            route: Route::host(duty),
            groups: Vec::new(),
        };
        if let Some(task) = self.scheduler.withdraw(now, spec) {
            self.carry_withdrawal(task, part.clone(), priority, error);
        }
        for group in groups {
            self.scheduler.fail_group(now, group, error.clone());
        }
    }

    /// Tells the other ranks of this machine that this rank will not take part in a round, if they wait for it: now, or when they have met.
    pub(super) fn decline(&mut self, part: &ReadyPart, memory: DeviceKind) {
        if planted(self.settings.scheduler.defect, Defect::DeclinedInSilence) {
            return;
        }
        if self.team.is_apart() {
            return self.undeclined.push((part.clone(), memory));
        }
        let Some(slot) = self.first_meeting(part, memory) else { return };
        let command = Command::Decline(Declined { slot, members: self.here().members_here(&part.participants) });
        // Tensors in memory of a device may take the same way as those of the host.
        if self.commands.back() != Some(&command) {
            self.commands.push_back(command);
        }
    }

    /// The scheduler made `task` to tell the server of the task `of` why there will be no contribution.
    pub(super) fn handle_withdrawal(&mut self, task: TaskId, of: TaskId, error: Error) {
        let error = self.with_name(of, error);
        let Record { part, priority, .. } = self.record(of);
        let (part, priority) = (part.clone(), *priority);
        self.carry_withdrawal(task, part, priority, &error);
    }

    fn carry_withdrawal(&mut self, task: TaskId, part: ReadyPart, priority: Priority, error: &Error) {
        let text = reject::to_body(error);
        let errand = Errand::Withdraw(text.len() as u64);
        self.carry_errand(task, Record::new(part, DeviceKind::Host, None, priority), errand, Load::Message(text));
    }

    /// A task does something for others, with this load.
    pub(super) fn carry_errand(&mut self, task: TaskId, record: Record, errand: Errand, load: Load) {
        self.tasks.insert(task, Record { errand: Some(errand), ..record });
        self.withdrawals += 1;
        self.commands.push_back(Command::Carry { task, load });
    }
}
