//! A worker's uses of parameters: what it submits, what it sends, and what it is answered.

use std::fmt;
use std::time::Duration;

use gradlane_core::error::Result;
use gradlane_core::mem::Ordinal;
use gradlane_core::sched::{Task, TaskId};
use gradlane_core::types::{
    Access, Demand, DeviceKind, Effect, Fate, InCopies, Mode, PartId, Priority, Span, Ticked, Version,
};
use gradlane_core::wire::{Sent, Use, Value};
use gradlane_core::worker::{Tensor, Terms};

use super::super::checkers::{Checker, UseId, UsedPart};
use super::super::oracle;
use super::super::world::Context;
use super::{Buffer, WorkerProcess};

/// More urgent than most tensors, and less than some.
const PRIORITY: Priority = Priority(-2);

/// One use of a parameter.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) id: UseId,
    access: Access,
    /// Where the clock of its parameter stood.
    clock_at: u64,
    /// The parts that a server has answered, and their versions.
    answered: Vec<(Span, PartId, Version)>,
    pub(super) outcome: Option<Result<()>>,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UseId { parameter, index, .. } = self.id;
        write!(f, "use {index} of parameter {parameter}, {}", self.access)
    }
}

impl WorkerProcess {
    pub(super) fn use_parameter(
        &mut self,
        context: &mut Context,
        parameter: usize,
        access: Access,
        timeout: Option<Duration>,
    ) {
        let id = context.witness.uses(self.me.who, parameter, access, timeout);
        let of = &context.plan.parameters[parameter];
        let place = if of.on_device { DeviceKind::Cuda } else { DeviceKind::Host };
        let source = self.memory.len();
        self.memory.push(Buffer::new(oracle::change(&context.plan, id, access), place));
        // Only a push_pull has memory for both.
        let is_apart = access.sends() && access.receives() && !of.in_place;
        if is_apart {
            self.memory.push(Buffer::new(vec![oracle::JUNK; of.bytes() as usize], place));
        }
        let tensor = Tensor {
            key: of.spec.key(),
            bytes: of.bytes(),
            device: if of.on_device { Some(Ordinal(0)) } else { None },
            in_copies: InCopies::Nothing,
            in_place: !is_apart,
            priority: PRIORITY,
            cuts: None,
        };
        let clock_at = self.clock_at(of.spec.kind.mode(), access);
        let terms = Terms { demand: Demand::Access { access, clock_at }, timeout };
        let submission = self.worker.submit(context.now, &of.spec, tensor, terms);
        self.lent.insert(submission, vec![[source, source + usize::from(is_apart)]]);
        self.script.uses.insert(submission, Used { id, access, clock_at, answered: Vec::new(), outcome: None });
    }

    /// Where the clock of a mode stands for a use.
    fn clock_at(&self, mode: Mode, access: Access) -> u64 {
        let Ticked { round, step, .. } = self.script.clock;
        match (mode.clock, mode.rounds()) {
            (None, _) => 0,
            (Some(_), None) => step,
            (Some(_), Some(_)) => round + u64::from(access.steps()),
        }
    }

    /// The caller does not want the latest use of a parameter any more.
    pub(super) fn cancel_use(&mut self, context: &mut Context, parameter: usize) {
        let latest = self.script.uses.iter().rev().find(|(_, used)| used.id.parameter == parameter);
        let (submission, used) = latest.expect("used before");
        context.witness.gives_up(used.id);
        self.worker.cancel(context.now, *submission);
    }

    /// What is sent must be the caller's change, and the answer to the use before must have come.
    pub(super) fn check_use(&self, context: &mut Context, task: &Task, header: &Use, body: &[u8]) {
        self.check_turn(context, task);
        let Sent::Whole { .. } = header.sent else { return };
        let piece = self.worker.pieces(task.id).next().expect("a part of a parameter has one piece");
        let used = &self.script.uses[&piece.submission];
        let due = oracle::change(&context.plan, used.id, used.access);
        if body != &due[piece.span.offset as usize..piece.span.end() as usize] {
            let text = format!("{}: {used} sends other bytes than its change", self.me.who);
            context.witness.fail(context.now, Checker::Contribution, text);
        }
    }

    /// A server answered a use of a part.
    pub(super) fn note_value(&mut self, context: &mut Context, task: TaskId, header: &Value) {
        // A task outlives its submission if nobody wants it any more.
        let Some(piece) = self.worker.pieces(task).next() else { return };
        let Some(used) = self.script.uses.get_mut(&piece.submission) else { return };
        let (part, effect) = (header.target.part, header.effect);
        used.answered.push((piece.span, part, effect.version));
        context.witness.answered(used.id, used.access, piece.span, effect.version);
        let is_kept = used.access.steps() && effect.fate == Fate::Kept;
        let round = if is_kept { Some(used.clock_at) } else { None };
        context.witness.knows_part(part, piece.span.bytes, self.worker.rank(), round);
    }

    /// A use ended. Its memory is the caller's again.
    pub(super) fn resolve_use(
        &mut self,
        context: &mut Context,
        submission: u64,
        effect: Option<Effect>,
        outcome: Result<()>,
    ) {
        let now = context.now;
        let used = self.script.uses.get_mut(&submission).expect("the caller found it");
        let (id, access, clock_at) = (used.id, used.access, used.clock_at);
        context.log.note(now, self.me.who, "uses", &[id.parameter as u64, id.index as u64], || {
            format!("{used}: {effect:?} {outcome:?}")
        });
        if used.outcome.replace(outcome.clone()).is_some() {
            let text = format!("{}: {used} resolves again", self.me.who);
            return context.witness.fail(now, Checker::Handle, text);
        }
        let what = format!("{}: {used}", self.me.who);
        let answered = std::mem::take(&mut used.answered);
        let lent = self.lent.remove(&submission).expect("lent until it resolves");
        let [source, destination] = lent[0];
        for buffer in [source, destination] {
            if self.memory[buffer].is_held() {
                let text = format!("{what} resolves while something uses its memory");
                context.witness.fail(now, Checker::Memory, text);
            }
            self.memory[buffer].give_back();
        }
        let is_overwritten = source == destination && access.receives();
        if !is_overwritten && self.memory[source].content() != oracle::change(&context.plan, id, access) {
            context.witness.fail(now, Checker::Contribution, format!("{what}: the change was overwritten"));
        }
        if outcome.is_ok() {
            let bytes = &self.memory[destination].content();
            let dtype = context.plan.parameters[id.parameter].spec.dtype;
            let part = |(span, part, version): &(Span, PartId, Version)| UsedPart {
                part: *part,
                version: *version,
                value: access
                    .receives()
                    .then(|| oracle::values(dtype, &bytes[span.offset as usize..span.end() as usize])),
            };
            let parts: Vec<UsedPart> = answered.iter().map(part).collect();
            let covered: u64 = answered.iter().map(|(span, ..)| span.bytes).sum();
            let least = answered.iter().map(|(.., version)| *version).min();
            let version = effect.map(|effect| effect.version);
            if covered != bytes.len() as u64 || version != least {
                let text = format!("{what}: ends with {version:?} after {answered:?} of {} bytes", bytes.len());
                context.witness.fail(now, Checker::Handle, text);
            }
            context.witness.reads(id, clock_at, &parts);
        }
        context.witness.used(self.me, id, &outcome);
        self.wake(context);
    }
}
