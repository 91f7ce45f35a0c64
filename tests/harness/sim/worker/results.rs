//! What is checked of a worker where it is seen: results, contributions, and what a server says of a sum.

use gradlane_core::error::{Error, Result};
use gradlane_core::sched::{Task, TaskId};
use gradlane_core::types::{CodecSpec, DeviceKind, Encoding, Epoch, Op, TensorKey};
use gradlane_core::wire::{Body, Contribute, Contribution, Contributors, Sum};

use super::super::checkers::Checker;
use super::super::oracle;
use super::super::world::Context;
use super::WorkerProcess;
use super::memory::gather;
use super::neighbours::Neighbours;
use super::training::Batch;

impl WorkerProcess {
    pub(super) fn resolve(&mut self, context: &mut Context, submission: u64, outcome: Result<()>) {
        let now = context.now;
        let Some(lent) = self.lent.remove(&submission) else {
            let text = format!("{} hears twice of submission {submission}", self.me.who);
            return context.witness.fail(now, Checker::Handle, text);
        };
        if let Err(Error::Stalled { missing, waited, notice, detail, .. }) = &outcome {
            let of = (missing, waited, notice, detail);
            let is_it = |error: &Error| match error {
                Error::Stalled { missing, waited, notice, detail, .. } => (missing, waited, notice, detail) == of,
                _ => false,
            };
            if self.unexplained.remove(&submission).unwrap_or_default().iter().any(is_it) {
                let text = format!("{}: {detail:?} lacks what the coordinator said of the round", self.me.who);
                context.witness.fail(now, Checker::Handle, text);
            }
        }
        let rank = self.worker.rank().0;
        let members = self.script.operations[&submission].members.clone();
        for ((tensor, round), [source, destination]) in members.into_iter().zip(lent) {
            context.log.note(now, self.me.who, "resolves", &[tensor as u64, round, u64::from(outcome.is_ok())], || {
                format!("{outcome:?}")
            });
            let what = format!("{}: tensor {tensor}, round {round}", self.me.who);
            for buffer in [source, destination] {
                let is_held = self.neighbours.iter().chain(&self.former).any(|near: &Neighbours| near.holds(buffer));
                if is_held || self.memory[buffer].is_held() {
                    context.witness.fail(
                        now,
                        Checker::Memory,
                        format!("{what} resolves while something uses its memory"),
                    );
                }
                self.memory[buffer].give_back();
            }
            // Where workers may be lost, each part has contributors of its own, and was checked by itself.
            if outcome.is_ok() && !context.plan.classes.survivors {
                let (got, due) =
                    (self.memory[destination].content(), oracle::result(&context.plan, tensor, round, rank));
                if got[..] != *due {
                    let why = oracle::explain(&context.plan, tensor, round, &due, &got);
                    let text = format!("{what}, {}: {why}", context.plan.op(tensor, round));
                    context.witness.fail(now, Checker::Sum, text);
                }
            }
            if source != destination
                && self.memory[source].content()[..] != *oracle::contribution(&context.plan, tensor, round, rank)
            {
                context.witness.fail(now, Checker::Contribution, format!("{what}: the contribution was overwritten"));
            }
            if outcome.is_ok() {
                self.take_back_feedback(&context.plan, tensor, round);
            }
            context.witness.resolves(self.me, tensor, round, &outcome);
        }
        self.end_operation(context, submission, outcome);
        self.wake(context);
    }

    /// A submission ended, and perhaps with it the batch that it is of.
    fn end_operation(&mut self, context: &mut Context, submission: u64, outcome: Result<()>) {
        let now = context.now;
        let operation = self.script.operations.get_mut(&submission).expect("it was submitted");
        if operation.outcome.replace(outcome.clone()).is_some() {
            context.witness.fail(now, Checker::Handle, format!("{}: {operation} resolves again", self.me.who));
        }
        let Some(number) = operation.batch else { return };
        let Some(Batch { open, tally }) = self.script.batches.get_mut(&number) else { return };
        open.remove(&submission);
        if tally.ended(outcome).is_some() {
            let open = open.len();
            self.script.batches.remove(&number);
            if open > 0 {
                let text = format!("{}: a batch ends while {open} of its submissions have not", self.me.who);
                context.witness.fail(now, Checker::Handle, text);
            }
        }
    }

    /// What is sent must be the caller's own contribution or what its machine makes of it, and the sum of the round before must have come.
    pub(super) fn check_push(&self, context: &mut Context, task: &Task, header: &Contribute, body: Option<&[u8]>) {
        let now = context.now;
        self.check_turn(context, task);
        let pieces: Vec<TensorKey> = self.worker.part(task.id).layout.pieces.iter().map(|piece| piece.tensor).collect();
        self.check_hold(context, &pieces, header);
        let Some(mut body) = body else { return };
        let codec = header.body().map_or(CodecSpec::PLAIN, |body| body.codec);
        let divisor = if matches!(header.op, Op::Sum | Op::Mean) { header.weight } else { 1.0 };
        let formation = self.worker.formation().expect("it has joined");
        let team: Vec<u32> = formation.team.iter().map(|rank| rank.0).collect();
        // What the repeat says to be overwritten may be anything; all that follows is the caller's.
        let mut overwritten =
            if let Contribution::Resumed { landed, .. } = header.contribution { landed as usize } else { 0 };
        for piece in self.worker.pieces(task.id) {
            let (tensor, round) = self.script.operations[&piece.submission].members[piece.tensor];
            let due = oracle::pushed(&context.plan, tensor, round, self.worker.rank().0, &team);
            let due = &due[piece.span.offset as usize..piece.span.end() as usize];
            let due = oracle::on_wire(&context.plan, tensor, due, codec, divisor);
            let (sent, rest) = body.split_at(due.len());
            let skipped = overwritten.min(due.len());
            if sent[skipped..] != due[skipped..] {
                let text = format!("{} pushes other bytes than tensor {tensor}, round {round} had", self.me.who);
                context.witness.fail(now, Checker::Contribution, text);
            }
            (body, overwritten) = (rest, overwritten - skipped);
        }
    }

    /// The round before must have been answered.
    pub(super) fn check_turn(&self, context: &mut Context, task: &Task) {
        let earlier = |other: TaskId| {
            let part = self.worker.part(other);
            part.layout.part == task.part && part.round < task.round && !self.summed.contains(&other)
        };
        if self.worker.tasks().any(earlier) {
            let text = format!("{} pushes {} of part {} before its turn", self.me.who, task.round, task.part);
            context.witness.fail(context.now, Checker::Rounds, text);
        }
    }

    pub(super) fn check_header(&mut self, context: &mut Context, task: TaskId, header: &Sum) {
        let submission = self.worker.part(task).tickets[0];
        let (tensor, round) = self.script.operations[&submission].members[0];
        let ranks = match (context.plan.op(tensor, round), &header.contributors) {
            (_, Contributors::Only(workers)) => workers.iter().map(|worker| worker.0).collect(),
            (Op::Broadcast { root }, Contributors::Due) => vec![root.0],
            (_, Contributors::Due) => due_in(context, tensor, header.target.epoch),
        };
        let due = oracle::divisor_of(&context.plan, tensor, round, &ranks);
        if header.divisor != due {
            let text = format!("tensor {tensor}, round {round}: the sum is divided by {}, not {due}", header.divisor);
            context.witness.fail(context.now, Checker::Contributors, text);
        }
        let (all, due) = (context.plan.members(tensor).count(), due_in(context, tensor, header.target.epoch));
        let slot = (header.target.part, header.target.round);
        context.witness.summed(self.me.who, slot, &ranks, (all, &due));
        let receives = context.plan.tensors[tensor].spec.participants.receives(self.worker.rank());
        if context.plan.classes.survivors && receives {
            self.check_part(context, task, header.body, &ranks);
        }
        if header.body.codec.has_feedback() {
            self.note_fed_back(header.target.part, &ranks);
        }
    }

    /// The ranks of this machine have a sum of these `ranks` that needs no server.
    pub(super) fn check_reduced(&self, context: &mut Context, task: TaskId, ranks: &[u32]) {
        let part = self.worker.part(task);
        let (slot, bytes) = ((part.layout.part, part.round), part.layout.bytes());
        context.witness.summed(self.me.who, slot, ranks, (ranks.len(), &[]));
        self.check_part(context, task, Body { bytes, codec: CodecSpec::PLAIN, refused: false }, ranks);
    }

    /// A part of a sum must be that of the ranks that its header names.
    fn check_part(&self, context: &mut Context, task: TaskId, Body { bytes, codec, .. }: Body, ranks: &[u32]) {
        let mut landing = self.payloads[&task].landing();
        if let [lease] = &mut landing[..] {
            *lease = lease.first(bytes);
        }
        let bytes = gather(context, self.me, &self.memory, &landing, DeviceKind::Host);
        let mut rest = bytes.as_slice();
        for piece in self.worker.pieces(task) {
            let (tensor, round) = self.script.operations[&piece.submission].members[piece.tensor];
            let due = oracle::result_of(&context.plan, tensor, round, ranks);
            let run = piece.span.offset as usize..piece.span.end() as usize;
            let sent = oracle::on_wire(&context.plan, tensor, &due[run.clone()], codec, 1.0);
            let (got, after) = rest.split_at(sent.len());
            rest = after;
            if *got != *sent {
                let why = match codec.encoding() {
                    Encoding::Plain => {
                        let mut whole = due.clone();
                        whole[run].copy_from_slice(got);
                        oracle::explain(&context.plan, tensor, round, &due, &whole)
                    }
                    _ => format!("it differs, as {codec}"),
                };
                let (who, op) = (self.me.who, context.plan.op(tensor, round));
                let text = format!("{who}: tensor {tensor}, round {round}, {op} of ranks {ranks:?}: {why}");
                context.witness.fail(context.now, Checker::Sum, text);
            }
        }
    }
}

/// The ranks from which a round of a tensor is due in a view.
fn due_in(context: &Context, tensor: usize, epoch: Epoch) -> Vec<u32> {
    let workers = context.witness.workers_in(epoch);
    context.plan.members(tensor).filter(|rank| workers.contains(rank)).collect()
}
