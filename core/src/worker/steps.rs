//! Stages: what each stage does with a task, and what the end of a stage means for the task.

use super::command::{Action, Command, Exchanged, Held, Landing, Meeting, Step, Use};
use super::machine::Worker;
use super::records::{Errand, Record};
use crate::codec::{Coding, Malformed};
use crate::error::{Error, Result};
use crate::pipeline::{Route, Stage, registry::ReadyPart};
use crate::sched::{Attempt, Outcome, Task, TaskId};
use crate::types::{
    Claim, CodecSpec, Defect, Demand, DeviceKind, ExchangeId, Goal, InCopies, Op, PartLayout, Priority, Ready, Slot,
    Time, Unmet, planted,
};
use crate::wire::{Body, Contribute, Contribution, Contributors, Request, Target, Withdraw};

impl Worker {
    /// The next step of `stage`, which the driver must execute and report; `None` if there is none now.
    pub fn take(&mut self, now: Time, stage: Stage) -> Option<Step> {
        loop {
            let task = self.scheduler.take(now, stage)?;
            if let Some(step) = self.step(now, task, stage) {
                return Some(step);
            }
        }
    }

    /// As [`take`](Self::take), if the next task has at most `bytes_max` bytes. Otherwise returns `None`: the thread of the stage must take
    /// the task.
    pub fn take_short(&mut self, now: Time, stage: Stage, bytes_max: u64) -> Option<Step> {
        loop {
            let is_long = planted(self.settings.scheduler.defect, Defect::LongTakenForShort);
            let bytes_max = if is_long { u64::MAX } else { bytes_max };
            let task = self.scheduler.take_short(now, stage, bytes_max)?;
            if let Some(step) = self.step(now, task, stage) {
                return Some(step);
            }
        }
    }

    /// Whether tasks wait for `stage` that are held up only by their turn or their credit.
    pub fn has_ready(&self, stage: Stage) -> bool {
        self.scheduler.has_ready(stage) && !planted(self.settings.scheduler.defect, Defect::RestForgotten)
    }

    /// Takes the end of a PUSH: the last byte of this exchange was handed over. PULL begins. Two threads may report the two ends of one
    /// exchange, so this may come after [`handle_pulled`](Self::handle_pulled). Then it is ignored.
    pub fn handle_pushed(&mut self, now: Time, task: TaskId, exchange: ExchangeId) {
        let pushes =
            |record: &Record| matches!(record.held, Some(Held::Exchange { exchange: held, .. }) if held == exchange);
        if self.tasks.get(task).is_some_and(pushes) {
            self.finish(now, task, Outcome::Done);
        }
    }

    /// Takes the end of an exchange, in PULL or before PUSH has ended: nothing holds the task's memory.
    pub fn handle_pulled(&mut self, now: Time, task: TaskId, outcome: Exchanged) {
        if let Exchanged::Sum { .. } | Exchanged::Value(_) | Exchanged::Rejected(_) = outcome {
            self.links.answered(now, self.server(task));
            if self.scheduler.stage(task) == Some(Stage::Push) {
                // The server needs no more of the contribution.
                self.finish(now, task, Outcome::Done);
            }
        }
        let is_sum = matches!(outcome, Exchanged::Sum { .. });
        let outcome = match outcome {
            Exchanged::Sum { body, divisor, contributors } => {
                self.record_mut(task).body = body;
                self.keep_sum(now, task, body, divisor, contributors.clone());
                self.note_contributors(task, contributors);
                Outcome::Done
            }
            Exchanged::Value(effect) => {
                self.note_effect(task, effect);
                Outcome::Done
            }
            Exchanged::Rejected(error) if error.retryable() => Outcome::Retry { error, landed: 0 },
            Exchanged::Rejected(error) | Exchanged::Torn { error: error @ Error::Protocol { .. }, .. } => {
                Outcome::Failed(error)
            }
            // This worker has broken it off itself, because the contribution may not be added.
            Exchanged::Torn { error: error @ Error::NotFinite { .. }, .. } => {
                self.scheduler.withdraw_unsent(now, task, &error);
                Outcome::Failed(error)
            }
            // This worker has closed the link itself.
            Exchanged::Torn { error: Error::Cancelled, landed } if self.is_lost(task) => {
                let (what, cause) = (self.server(task).to_string(), "it was lost".to_owned());
                broken_off(Error::Unavailable { what, cause }, landed)
            }
            // This includes a sum that was damaged on its way: the server still has it.
            Exchanged::Torn { error, landed } => broken_off(error, landed),
        };
        let outcome = match outcome {
            Outcome::Failed(error) => Outcome::Failed(self.with_name(task, error)),
            // The cause of a repeat is told if the repeats end in an error, and in warnings.
            Outcome::Retry { error, landed } => Outcome::Retry { error: self.with_name(task, error), landed },
            Outcome::Done => outcome,
        };
        self.record_mut(task).held = None;
        self.finish(now, task, outcome);
        if is_sum {
            self.note_restored(task);
        }
        self.report_holdings();
    }

    /// Notes which workers are in the sum of a part, if its codec has error feedback.
    fn note_contributors(&mut self, task: TaskId, contributors: Contributors) {
        let record = self.record_mut(task);
        let part = record.part.layout.part;
        let Some(due) = record.due.take() else { return };
        let contributors = match contributors {
            // The workers of the request's view: a server answers a request of another view only if its workers are the same.
            Contributors::Due => due,
            Contributors::Only(workers) => workers,
        };
        self.residuals.summed(part, contributors);
    }

    /// Takes the end of a copy: the device has copied, or no longer uses the memory.
    pub fn handle_copied(&mut self, now: Time, task: TaskId, outcome: Result<()>) {
        let outcome = outcome.map_err(|error| self.with_name(task, error));
        self.finish(now, task, outcome.map_or_else(Outcome::Failed, |()| Outcome::Done));
    }

    /// Takes the end of COMPRESS, or of COPYD2H if the device encodes: nothing writes the task's memory any more, and `body` lies at its
    /// front.
    pub fn handle_encoded(&mut self, now: Time, task: TaskId, body: Body) {
        self.record_mut(task).body = body;
        self.finish(now, task, Outcome::Done);
    }

    /// Takes the end of DECOMPRESS: nothing reads or writes the task's memory any more. A body that cannot be decoded is an error.
    pub fn handle_decoded(&mut self, now: Time, task: TaskId, outcome: std::result::Result<(), Malformed>) {
        let server = self.server(task).to_string();
        let broken = |malformed: Malformed| {
            Outcome::Failed(Error::Protocol { peer: server, field: "body".to_owned(), problem: malformed.to_string() })
        };
        self.finish(now, task, outcome.map_or_else(broken, |()| Outcome::Done));
    }

    /// Takes the end of an operation of this machine's ranks, with the sum of their weights: nothing holds the task's memory. An operation
    /// that no rank has begun is done again once the ranks that are left have met.
    pub fn handle_met(&mut self, now: Time, task: TaskId, takes: bool, outcome: std::result::Result<f64, Unmet>) {
        let defect = self.settings.scheduler.defect;
        let is_former = self.is_of_former_team(task);
        if is_former && outcome.is_ok() && self.scheduler.is_aside(task) && self.scheduler.is_wanted(task) {
            return self.begin_again(now, task);
        }
        let record = self.record_mut(task);
        record.held = None;
        let outcome = match outcome {
            Err(Unmet::NotBegun(why)) => return self.handle_not_begun(now, task, why),
            Ok(_) if is_former => Outcome::Failed(self.broken_up(now, task)),
            Ok(weight) => {
                record.met_by = None;
                let is_forgotten = planted(defect, Defect::MachineWeightForgotten);
                if takes && record.part.demand.op() == Some(Op::WeightedMean) && !is_forgotten {
                    // From now on this is the contribution of all ranks that were reduced.
                    record.part.demand = Demand::Reduce { op: Op::WeightedMean, weight };
                }
                Outcome::Done
            }
            Err(Unmet::Failed(error)) => {
                self.end_with_its_machine(now, &error);
                Outcome::Failed(self.with_name(task, error))
            }
        };
        self.finish(now, task, outcome);
    }

    /// Whether an operation of this machine's ranks was abandoned. The collective may not have known the operation at that time; then
    /// abandon it again.
    pub fn is_abandoned(&self, task: TaskId, slot: Slot) -> bool {
        self.tasks.get(task).is_some_and(|record| record.abandoned && record.held == Some(Held::Operation(slot)))
    }

    pub(super) fn finish(&mut self, now: Time, task: TaskId, outcome: Outcome) {
        if let Some(stage) = self.scheduler.stage(task).filter(|_| self.timeline) {
            self.commands.push_back(Command::Finished { task, stage, outcome: outcome.clone() });
        }
        if !self.ends_to_begin_again(now, task, &outcome) {
            self.scheduler.finish(now, task, outcome);
        }
    }

    /// The step of a stage for a task that was taken for it. `None` if the step cannot be done now; then the task has already gone on.
    fn step(&mut self, now: Time, task: Task, stage: Stage) -> Option<Step> {
        // The flag belongs to the previous stage. If this stage must be abandoned too, a command says so later.
        self.record_mut(task.id).abandoned = false;
        let action = match stage {
            Stage::Push => self.push(now, &task)?,
            Stage::Pull => unreachable!("a task is in PULL from the end of its PUSH on"),
            Stage::CopyD2H => {
                let (link, contributes) = (self.links.up(task.server), self.contributes(task.id));
                let (record, coding) = (self.record(task.id), self.device_coding(task.id, InCopies::Encode));
                let bytes = if coding.is_some() { task.bytes } else { record.part.layout.bytes() };
                // What COMPRESS encodes travels in other memory.
                let lands_beside = record.lands_beside && (record.coding.is_none() || coding.is_some());
                Action::CopyToHost { bytes, coding, link, contributes, lands_beside }
            }
            Stage::CopyH2D => {
                let body = self.record(task.id).body;
                let coding = self.device_coding(task.id, InCopies::EncodeAndDecode);
                Action::CopyToDevice { coding: coding.map(|coding| (coding, body)) }
            }
            Stage::Compress => {
                let coding = self.host_coding(task.id);
                let is_of_machine = self.part(task.id).participants.is_everybody();
                let residual =
                    coding.codec.has_feedback().then(|| self.residuals.encode(task.part, task.round, is_of_machine));
                Action::Encode { coding, residual, link: self.links.up(task.server) }
            }
            Stage::Land => Action::Land,
            Stage::Decompress => Action::Decode { coding: self.host_coding(task.id), body: self.record(task.id).body },
            Stage::AllReduce | Stage::Reduce | Stage::PcieReduce | Stage::PcieBroadcast | Stage::Broadcast => {
                Action::Meet(self.meeting(&task, stage))
            }
        };
        Some(Step { task, stage, is_last: self.scheduler.is_last(task.id), action })
    }

    /// Whether the step of a stage is the first one that reads the numbers of this worker, other than to copy them. Not for a broadcast,
    /// whose bits may be any.
    pub fn reads_first(&self, task: &Task, stage: Stage) -> bool {
        let Record { part, memory, coding, errand, .. } = self.record(task.id);
        let Demand::Reduce { op, weight } = part.demand else { return false };
        let are_numbers = errand.is_none() && !matches!(op, Op::Broadcast { .. }) && weight != 0.0;
        // What the ranks of a machine have reduced are numbers of all of them, at which each has looked.
        let is_own = || self.first_meeting(part, *memory).is_none();
        are_numbers
            && match stage {
                Stage::AllReduce | Stage::Reduce => true,
                Stage::Compress => is_own(),
                // An encoded body has no elements to look at. A repeat is looked at again, because the exchange before may have broken off
                // before all was looked at.
                Stage::Push => coding.is_none() && is_own(),
                Stage::CopyD2H
                | Stage::PcieReduce
                | Stage::Pull
                | Stage::Land
                | Stage::Decompress
                | Stage::PcieBroadcast
                | Stage::CopyH2D
                | Stage::Broadcast => false,
            }
    }

    /// The error of a contribution with a NaN or an infinity.
    pub fn not_finite(&self, task: TaskId) -> Error {
        let part = self.part(task);
        let tensor = self.names_of(part).join(" + ").into();
        Error::NotFinite { tensor, round: part.round, from: self.rank().to_string() }
    }

    /// Takes the news that the step of COMPRESS or PUSH was not begun, because the contribution may not be sent. Nothing holds the task's memory.
    pub fn handle_unfit(&mut self, now: Time, task: TaskId, error: Error) {
        let record = self.record_mut(task);
        (record.held, record.asked, record.due) = (None, None, None);
        self.scheduler.withdraw_unsent(now, task, &error);
        self.finish(now, task, Outcome::Failed(error));
    }

    fn push(&mut self, now: Time, task: &Task) -> Option<Action> {
        let Some(link) = self.links.up(task.server) else {
            let error = Error::Unavailable { what: task.server.to_string(), cause: "not connected".to_owned() };
            self.finish(now, task.id, Outcome::Retry { error, landed: 0 });
            return None;
        };
        let exchange = self.numbers.next_exchange();
        let header = self.request(task);
        self.links.asked(now, task.server);
        let Record { coding, part, lands_beside, errand, .. } = self.record(task.id);
        let landing = match self.is_receiver(part) && errand.is_none() {
            false => Landing::Nowhere,
            true if *lands_beside => Landing::Beside,
            true => Landing::InPlace,
        };
        let has_feedback = coding.is_some_and(|coding| coding.codec.has_feedback());
        let due = has_feedback.then(|| self.here().due_workers(&part.participants, part.round));
        let record = self.record_mut(task.id);
        (record.held, record.asked, record.due) = (Some(Held::Exchange { link, exchange }), Some(now), due);
        Some(Action::Push { link, exchange, header, landing })
    }

    /// The header that opens the exchange of a task.
    fn request(&self, task: &Task) -> Request {
        let Record { part, coding, body, is_overwritten, priority, errand, .. } = self.record(task.id);
        let formation = self.here();
        let target = Target { epoch: formation.epoch(), part: task.part, round: task.round };
        let (dtype, urgency, part_bytes) = (part.layout.dtype, self.urgency(*priority), part.layout.bytes());
        match part.demand {
            Demand::Access { access, clock_at } => return Request::Use(self.use_header(task, access, clock_at)),
            Demand::Rows { action, step } => return Request::Rows(self.rows_header(task, action, step)),
            Demand::AnswerResidual(of) => return Request::AnswerResidual(self.residual_header(target, part, of)),
            Demand::Reduce { .. } => {}
        }
        let ((op, weight), participants) = (part.reduction(), part.participants.clone());
        // The server undoes the division that kept the contribution in the range of its wire form.
        let coding = coding.filter(|_| matches!(op, Op::Sum | Op::Mean) && !body.refused);
        let weight = coding.map_or(weight, |coding| coding.divisor);
        match errand {
            Some(Errand::Withdraw(error_bytes)) => {
                let error_bytes = *error_bytes;
                return Request::Withdraw(Withdraw { target, dtype, op, participants, error_bytes });
            }
            Some(Errand::Restore(kept)) => return Request::Restore(self.restoring_header(target, kept)),
            None => {}
        }
        let body = *body;
        let sender = formation.machines.only_sender(op, &participants, task.part, dtype);
        let contribution = match task.attempt {
            _ if sender.is_some_and(|sender| sender != formation.rank) => Contribution::Nothing,
            // A sum may be longer than the contribution that it overwrites.
            Attempt::Resumed { landed } if *is_overwritten => {
                Contribution::Resumed { body, landed: landed.min(body.bytes) }
            }
            Attempt::First | Attempt::Again | Attempt::Resumed { .. } => Contribution::First { body, checksum: None },
        };
        let codec = if contribution == Contribution::Nothing { CodecSpec::PLAIN } else { body.codec };
        let (hold, is_given) = self.said_of_answers(&part.layout, task.round, codec);
        Request::Contribute(Contribute {
            target,
            dtype,
            op,
            participants,
            weight,
            urgency,
            waited: task.waited,
            part_bytes,
            hold,
            is_given,
            contribution,
        })
    }

    /// The transport's class, 0 to 7, of `priority`. The most urgent tensors have a class of their own, and each class below is twice as
    /// wide as the one above. Many distinct levels would cost the transport more than they gain.
    pub(super) fn urgency(&self, priority: Priority) -> u8 {
        let distance = i64::from(self.most_urgent.0) - i64::from(priority.0);
        let class = u64::try_from(distance).map_or(0, |distance| (distance + 1).ilog2().min(7));
        7 - u8::try_from(class).expect("at most 7")
    }

    fn meeting(&mut self, task: &Task, stage: Stage) -> Meeting {
        let Record { part, memory, .. } = self.record(task.id);
        let aside = self.scheduler.is_aside(task.id);
        let (goal, failure) = (self.goal(part, *memory, stage), self.failure_for_all(task.id));
        let (rank, defect) = (self.rank(), self.settings.scheduler.defect);
        let (members, team) = (self.here().members_here(&part.participants), self.team.number());
        let record = self.record_mut(task.id);
        record.met_by = Some(team);
        let (op, weight) = record.part.reduction();
        let memory = match stage {
            Stage::Broadcast => Use::Received,
            stage if stage.is_staging() => Use::Staged,
            _ => Use::Tensors,
        };
        // Staging memory belongs to the engine. The other ranks need it even if this rank's caller no longer wants the result.
        let slot = goal.slot(task.part, task.round);
        record.held = if memory == Use::Staged { None } else { Some(Held::Operation(slot)) };
        let claim = Claim {
            op,
            dtype: record.part.layout.dtype,
            bytes: record.part.layout.bytes(),
            device: if memory == Use::Staged { DeviceKind::Host } else { record.memory },
            device_index: 0,
            failed: failure.is_some(),
            weight,
            priority: record.priority,
            members,
            ready: Ready { waited: task.waited, ..Ready::UNKNOWN },
        };
        let takes = goal.taker() == Some(rank) && !planted(defect, Defect::MachineSumNotTaken);
        Meeting { goal, claim, failure, memory, takes, aside, team }
    }

    /// The first operation of a part in this memory that this rank carries out with the others of its machine, if there is one.
    pub(super) fn first_meeting(&self, part: &ReadyPart, memory: DeviceKind) -> Option<Slot> {
        let stage = self.here().pipeline.first_meeting(Route::new(self.duty(part, memory), memory))?;
        Some(self.goal(part, memory, stage).slot(part.layout.part, part.round))
    }

    fn goal(&self, part: &ReadyPart, memory: DeviceKind, stage: Stage) -> Goal {
        let PartLayout { part: id, dtype, .. } = *part.layout;
        let formation = self.here();
        let (machines, rank, defect) = (&formation.machines, formation.rank, self.settings.scheduler.defect);
        let owner = || machines.owner(id, dtype, rank);
        // In device memory, the ranks of one PCIe group reduce. In host memory, all ranks of the machine do.
        let holder = || match memory {
            DeviceKind::Host => owner(),
            DeviceKind::Cuda => machines.holder(id, dtype, rank),
        };
        match stage {
            Stage::AllReduce => match part.participants.receiver() {
                None => Goal::AllReduce,
                Some(receiver) => Goal::Deliver { receiver },
            },
            Stage::Reduce if planted(defect, Defect::OwnerMistaken) => Goal::Reduce { owner: formation.team[0] },
            Stage::Reduce => Goal::Reduce { owner: holder() },
            Stage::PcieReduce => Goal::Join {
                holders: {
                    let mut holders = machines.holders(id, dtype, rank);
                    holders.truncate(holders.len() - usize::from(planted(defect, Defect::GroupLeftOut)));
                    holders
                },
                taker: formation.pipeline.pushes().then(owner),
                origin: match part.reduction().0 {
                    Op::Broadcast { root } if formation.team.contains(&root) => Some(machines.holder(id, dtype, root)),
                    Op::Broadcast { .. } | Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => None,
                },
            },
            Stage::PcieBroadcast => Goal::Share { owner: owner() },
            Stage::Broadcast => Goal::Broadcast { owner: holder() },
            Stage::CopyD2H
            | Stage::Compress
            | Stage::Push
            | Stage::Pull
            | Stage::Land
            | Stage::Decompress
            | Stage::CopyH2D => {
                unreachable!("{stage} is nothing that ranks do together")
            }
        }
    }

    /// Whether this rank has something to stage. In a broadcast, only the holder of the root's group has.
    fn contributes(&self, task: TaskId) -> bool {
        let ReadyPart { layout, demand, participants, .. } = self.part(task);
        let formation = self.here();
        match demand {
            _ if planted(self.settings.scheduler.defect, Defect::HolderStagesNothing) => false,
            Demand::Access { .. } | Demand::Rows { .. } | Demand::AnswerResidual(_) => demand.sends(),
            Demand::Reduce { op: Op::Broadcast { root }, .. } if participants.is_everybody() => {
                formation.machines.holder(layout.part, layout.dtype, *root) == formation.rank
            }
            Demand::Reduce { op: Op::Broadcast { root }, .. } => *root == formation.rank,
            Demand::Reduce { op: Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean, .. } => true,
        }
    }

    /// How the elements of a task are encoded, if the device does so much in its copies.
    fn device_coding(&self, task: TaskId, least: InCopies) -> Option<Coding> {
        let record = self.record(task);
        record.coding.filter(|_| record.in_copies >= least)
    }

    /// How the host encodes a task that comes to COMPRESS, and decodes its sum.
    fn host_coding(&self, task: TaskId) -> Coding {
        self.record(task).coding.expect("only what is encoded comes to COMPRESS and DECOMPRESS")
    }

    /// The error to tell the other ranks of the machine, if this rank does not have the data of a task that they wait for.
    fn failure_for_all(&self, task: TaskId) -> Option<Error> {
        let error = self.scheduler.failure(task)?.clone();
        let is_ours = self.ended.is_some() || error.concerns_one_worker();
        let Some(record) = self.tasks.get(task).filter(|_| is_ours) else { return Some(error) };
        let names = self.names_of(&record.part).join(" + ");
        Some(error.of_one_who_gave_up(self.rank(), names, record.part.round))
    }

    /// An error with the names of the part's tensors, if it has none yet: a server or another rank may have made it, and those know tensors by
    /// key. A stall gets what the coordinator said last of the round.
    pub fn with_name(&self, task: TaskId, error: Error) -> Error {
        let Some(record) = self.tasks.get(task) else { return error };
        let part = record.part.layout.part;
        let names = self.names_of(&record.part).join(" + ");
        let mut error = error.with_names(&names);
        if let Error::Stalled { notice, .. } = &mut error
            && let Some(heard) = self.notices.of(part, record.part.round)
        {
            *notice = heard.into();
        }
        error
    }
}

/// The outcome of a task whose exchange broke off after `landed` bytes of the sum had arrived.
fn broken_off(error: Error, landed: u64) -> Outcome {
    match error {
        // The caller no longer wants it, or the other end has another version. Waiting helps in neither case.
        Error::Cancelled | Error::Incompatible { .. } => Outcome::Failed(error),
        error => Outcome::Retry { error, landed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_new_connection_may_cure_is_tried_again() {
        let [field, ours, peer, theirs] = ["protocol version", "2", "server 0", "1"].map(str::to_owned);
        for lasting in [Error::Cancelled, Error::Incompatible { field, ours, peer, theirs }] {
            assert_eq!(broken_off(lasting.clone(), 7), Outcome::Failed(lasting));
        }
        let error = Error::Unavailable { what: "server 0".to_owned(), cause: "it restarted".to_owned() };
        assert_eq!(broken_off(error.clone(), 7), Outcome::Retry { error, landed: 7 });
    }
}
