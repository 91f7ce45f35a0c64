//! What each stage does with a task, and the end of its exchange.

use gradlane_core::Error;
use gradlane_core::codec::Coding;
use gradlane_core::pipeline::Stage;
use gradlane_core::sched::{Task, TaskId};
use gradlane_core::types::{DeviceKind, Epoch, ExchangeId, LinkId, PartId, Span};
use gradlane_core::wire::{Body, Contribute, Contribution, Request, Sent, Sum, Target, Use};
use gradlane_core::worker::{Action, Exchanged, Landing, Step};

use super::super::checkers::Checker;
use super::super::coordinator::TERM;
use super::super::oracle;
use super::super::transport::Ending;
use super::super::world::{Context, Input};
use super::WorkerProcess;
use super::coding::{decoded, encoded};
use super::memory::{Buffer, Encoded, Payload, Region, gather, length, scatter};

/// A copy between a device and the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copying {
    ToHost {
        task: Task,
        /// How the device encodes what it copies, if it does.
        coding: Option<Coding>,
    },
    ToDevice {
        /// How the device decodes what it copies, if it does, and what that is.
        coding: Option<(Coding, Body)>,
    },
}

impl WorkerProcess {
    pub(super) fn run_stage(&mut self, context: &mut Context, stage: Stage) {
        while let Some(step) = self.worker.take(context.now, stage) {
            self.execute(context, step);
        }
        self.settle(context);
    }

    /// A caller's thread executes what is short, and leaves the rest to the thread of the stage.
    pub(super) fn run_here(&mut self, context: &mut Context, stage: Stage, bytes_max: u64) {
        while let Some(step) = self.worker.take_short(context.now, stage, bytes_max) {
            // Withdrawals go first, whatever their length.
            if step.task.bytes > bytes_max && matches!(self.payloads[&step.task.id], Payload::Pieces { .. }) {
                let text = format!("{}: a caller is given {} bytes, not {bytes_max}", self.me.who, step.task.bytes);
                context.witness.fail(context.now, Checker::Handle, text);
            }
            self.execute(context, step);
        }
        if self.worker.has_ready(stage) {
            let after = context.random.millis(0, 2);
            context.post(self.me, after, Input::Bell { stage });
        }
    }

    fn execute(&mut self, context: &mut Context, Step { task, action, .. }: Step) {
        // As the engine does: what the machine decided by this take is carried out before the step.
        self.obey(context);
        match action {
            Action::Push { link, exchange, header, landing } => {
                self.push(context, task, (link, exchange), header, landing);
            }
            Action::CopyToHost { bytes, coding, contributes, .. } => {
                let staging = self.lease(bytes);
                self.payload(task.id).stage(Encoded { lease: staging, sent: bytes });
                match contributes {
                    true => self.copy(context, task.id, Copying::ToHost { task, coding }),
                    // The sum needs its place all the same.
                    false => self.worker.handle_copied(context.now, task.id, Ok(())),
                }
            }
            Action::CopyToDevice { coding } => self.copy(context, task.id, Copying::ToDevice { coding }),
            Action::Encode { coding, residual, .. } => self.encode(context, task, coding, residual),
            Action::Land => self.land(context, task.id),
            Action::Decode { coding, body } => self.decode(context, task, coding, body),
            Action::Meet(meeting) => self.meet(context, task, meeting),
        }
        self.settle(context);
    }

    fn push(
        &mut self,
        context: &mut Context,
        task: Task,
        (link, exchange): (LinkId, ExchangeId),
        mut header: Request,
        landing: Landing,
    ) {
        let mut bytes = Vec::new();
        let mut body = Vec::new();
        match (&self.payloads[&task.id], &mut header) {
            (Payload::Message(message), Request::Withdraw(_)) => body.push(of_the_engine(message)),
            (Payload::Kept(sum), Request::Restore(header)) => {
                body.push(of_the_engine(sum));
                header.checksum = context.plan.settings.checksum.then(|| crc32c::crc32c(sum));
            }
            (payload @ Payload::Pieces { .. }, Request::Contribute(header)) => {
                let sends_body = header.contribution != Contribution::Nothing;
                if sends_body {
                    let contribution = payload.contribution();
                    bytes = gather(context, self.me, &self.memory, &contribution, DeviceKind::Host);
                    body = self.lent(contribution);
                }
                self.check_push(context, &task, header, if sends_body { Some(bytes.as_slice()) } else { None });
                let is_checked = context.plan.settings.checksum && !bytes.is_empty();
                if let Contribution::First { checksum, .. } = &mut header.contribution {
                    *checksum = is_checked.then(|| crc32c::crc32c(&bytes));
                }
            }
            (payload @ Payload::Pieces { .. }, Request::Use(header)) => {
                if let Sent::Whole { .. } = header.sent {
                    let change = payload.contribution();
                    bytes = gather(context, self.me, &self.memory, &change, DeviceKind::Host);
                    body = self.lent(change);
                }
                self.check_use(context, &task, header, &bytes);
                let is_checked = context.plan.settings.checksum;
                match &mut header.sent {
                    Sent::Whole { checksum } => *checksum = is_checked.then(|| crc32c::crc32c(&bytes)),
                    Sent::Nothing { checked } => *checked = is_checked,
                }
            }
            (payload, header) => unreachable!("{header:?} of {payload:?}"),
        }
        let into = match landing {
            Landing::Nowhere => Vec::new(),
            Landing::InPlace => self.payloads[&task.id].landing(),
            Landing::Beside => vec![self.beside(&task)],
        };
        let into = self.lent(into);
        let stream = self.transport.push(context, (link, exchange), task.id, header.clone(), body, into);
        self.streams.insert(exchange, stream);
        self.summing.insert(task.id, stream);
        context.log.note(context.now, self.me.who, "pushes", &[stream.0, task.round.0], || {
            format!("part {} {:?}, {header:?}, doom {:?}", task.part, task.attempt, context.network.doom(stream))
        });
        let may_replay = !matches!(header, Request::Withdraw(_) | Request::Restore(_)) && context.plan.classes.replays;
        if may_replay && context.random.chance(10) {
            self.replay(context, link, header);
        }
    }

    /// A push of a membership before the present one turns up, as a network or a process that slept for long may hold it back.
    fn replay(&self, context: &mut Context, link: LinkId, mut header: Request) {
        let junk = vec![oracle::JUNK; header.body_bytes() as usize];
        let fits = |checksum: &mut Option<u32>| {
            if let Some(checksum) = checksum {
                *checksum = crc32c::crc32c(&junk);
            }
        };
        let target = match &mut header {
            Request::Contribute(Contribute { target, contribution, .. }) => {
                if let Contribution::First { checksum, .. } = contribution {
                    fits(checksum);
                }
                target
            }
            Request::Use(Use { target, sent, .. }) => {
                if let Sent::Whole { checksum } = sent {
                    fits(checksum);
                }
                target
            }
            Request::Withdraw(_)
            | Request::Restore(_)
            | Request::AnswerResidual(_)
            | Request::Rows(_)
            | Request::Unknown(_) => {
                unreachable!("the caller chose")
            }
        };
        *target = Target { epoch: Epoch { term: TERM - 1, number: 1 }, ..*target };
        context.open_exchange(self.me, link, &header, vec![junk.into()], None);
    }

    /// The memory of these regions, for the transport.
    fn lent(&self, regions: Vec<Region>) -> Vec<(Buffer, Region)> {
        regions.into_iter().map(|region| (self.memory[region.buffer].clone(), region)).collect()
    }

    pub(super) fn finish(&mut self, context: &mut Context, ending: Ending) {
        let now = context.now;
        context.log.note(now, self.me.who, "exchange", &[], || format!("{ending:?}"));
        match ending {
            Ending::Pushed { task, exchange } => self.worker.handle_pushed(now, task, exchange),
            Ending::Sum { task, header } if matches!(self.payloads[&task], Payload::Kept(_)) => {
                let Sum { body, divisor, contributors, .. } = header;
                self.worker.handle_pulled(now, task, Exchanged::Sum { body, divisor, contributors });
            }
            Ending::Sum { task, header } => {
                self.check_truth(context, task);
                self.check_header(context, task, &header);
                self.summed.insert(task);
                if let Some(Region { buffer, .. }) = self.payload(task).landed() {
                    self.give_back(buffer);
                }
                let Sum { body, divisor, contributors, .. } = header;
                self.worker.handle_pulled(now, task, Exchanged::Sum { body, divisor, contributors });
            }
            Ending::Value { task, header } => {
                self.check_truth(context, task);
                self.note_value(context, task, &header);
                self.summed.insert(task);
                self.worker.handle_pulled(now, task, Exchanged::Value(header.effect));
            }
            Ending::Rejected { task, error } => {
                self.expect_notice(task, &error);
                self.worker.handle_pulled(now, task, Exchanged::Rejected(error));
            }
            Ending::Torn { task, error, landed } => {
                let payload = &self.payloads[&task];
                let begins =
                    |regions: Vec<Region>| regions.into_iter().map(|region| (region.buffer, region.span.offset));
                let landing: Vec<_> = begins(payload.landing()).collect();
                if landed > 0 && begins(payload.contribution()).any(|begin| landing.contains(&begin)) {
                    let part = self.worker.part(task);
                    context.witness.overwrites(self.me.who, part.layout.part.key, part.round.0);
                }
                self.worker.handle_pulled(now, task, Exchanged::Torn { error, landed });
            }
        }
    }

    /// If the coordinator said something of a round that stalled, its error must say it too.
    fn expect_notice(&mut self, task: TaskId, error: &Error) {
        let part = self.worker.part(task);
        let (of, round) = (part.layout.part, part.round);
        // The product keeps the newest eight.
        let mut newest = self.notices.iter().rev().take(8);
        if let (Error::Stalled { notice: told, .. }, Some((_, _, notice))) =
            (error, newest.find(|notice| (notice.0, notice.1) == (of, round)))
            && **told != **notice
        {
            for submission in part.tickets.iter().filter(|submission| !self.failing.contains(submission)) {
                self.unexplained.entry(*submission).or_default().push(error.clone());
            }
        }
    }

    /// A worker must not take a lie for an answer.
    fn check_truth(&self, context: &mut Context, task: TaskId) {
        if self.summing.get(&task).is_some_and(|stream| context.is_forged(*stream)) {
            let text = format!("{} takes what is no answer to its push", self.me.who);
            context.witness.fail(context.now, Checker::Exchange, text);
        }
    }

    /// Memory for the sum of a task beside its contribution, which it keeps for its repeats.
    fn beside(&mut self, task: &Task) -> Region {
        if let Some(kept) = self.payload(task.id).beside().and_then(|beside| *beside) {
            return kept;
        }
        let lease = self.lease(task.bytes);
        *self.payload(task.id).beside().expect("a message has no sum") = Some(lease);
        lease
    }

    /// Keeps the sum that has come to a task, as it came.
    pub(super) fn keep(&mut self, context: &mut Context, task: TaskId, part: PartId) {
        let landing = self.payloads[&task].landing();
        let sum = gather(context, self.me, &self.memory, &landing, DeviceKind::Host);
        self.kept.insert(part, sum);
    }

    /// Copies a sum that has landed beside its contribution to its destination.
    fn land(&mut self, context: &mut Context, task: TaskId) {
        let (from, to) = self.payloads[&task].to_land();
        let sum = gather(context, self.me, &self.memory, &from, DeviceKind::Host);
        scatter(context, self.me, &self.memory, &to, &sum, DeviceKind::Host);
        self.drop_beside(task);
        self.worker.handle_copied(context.now, task, Ok(()));
    }

    /// Gives back where the ranks of the machine reduced a task, if not in its tensors.
    pub(super) fn drop_aside(&mut self, task: TaskId) {
        if let Some((Region { buffer, .. }, _)) = self.payload(task).aside().and_then(Option::take) {
            self.give_back(buffer);
        }
    }

    /// Gives back where the sum of a task has landed beside its contribution, if it did.
    pub(super) fn drop_beside(&mut self, task: TaskId) {
        if let Some(Region { buffer, .. }) = self.payload(task).beside().and_then(Option::take) {
            self.give_back(buffer);
        }
    }

    /// Lets the device copy what a task moves, in its own time.
    fn copy(&mut self, context: &mut Context, task: TaskId, copying: Copying) {
        self.copying.insert(task, copying);
        let after = context.random.millis(0, 4);
        context.post(self.me, after, Input::Copied { task });
    }

    /// The device has copied.
    pub(super) fn copied(&mut self, context: &mut Context, task: TaskId) {
        let copying = self.copying.remove(&task).expect("copied once");
        let Payload::Pieces { source, destination, staging, .. } = &self.payloads[&task] else {
            unreachable!("only tensors on a device are copied")
        };
        let Encoded { lease, .. } = staging.expect("staged from COPYD2H to COPYH2D");
        let (source, destination) = (source.clone(), destination.clone());
        match copying {
            Copying::ToDevice { coding } => {
                let coding = coding.filter(|(_, body)| !body.refused);
                let landed = coding.map_or(lease, |(_, body)| lease.first(body.bytes));
                let bytes = gather(context, self.me, &self.memory, &[landed], DeviceKind::Host);
                let bytes = coding.map_or_else(|| bytes.clone(), |(how, _)| decoded(how, &bytes, length(&destination)));
                scatter(context, self.me, &self.memory, &destination, &bytes, DeviceKind::Cuda);
                self.unstage(task);
            }
            Copying::ToHost { task: of, coding } => {
                let elements = gather(context, self.me, &self.memory, &source, DeviceKind::Cuda);
                let made = coding.map(|coding| encoded(coding, &of, &elements));
                let bytes = made.as_ref().map_or(&elements, |(bytes, _)| bytes);
                let staged = Encoded { lease, sent: bytes.len() as u64 };
                scatter(context, self.me, &self.memory, &[lease.first(staged.sent)], bytes, DeviceKind::Host);
                if let Some((_, body)) = made {
                    self.payload(task).stage(staged);
                    return self.worker.handle_encoded(context.now, task, body);
                }
            }
        }
        self.worker.handle_copied(context.now, task, Ok(()));
    }

    /// Gives back what a task was staged in, if it was.
    pub(super) fn unstage(&mut self, task: TaskId) {
        if let Some(Region { buffer, .. }) = self.payload(task).unstage() {
            self.give_back(buffer);
        }
    }

    /// Gives back what a task was encoded in, if it was.
    pub(super) fn drop_body(&mut self, task: TaskId) {
        if let Some(encoded) = self.payload(task).set_body(None) {
            self.give_back(encoded.lease.buffer);
        }
    }

    /// Memory of the worker's own is not used any more.
    pub(super) fn give_back(&mut self, buffer: usize) {
        self.memory[buffer].give_back();
    }

    pub(super) fn payload(&mut self, task: TaskId) -> &mut Payload {
        self.payloads.get_mut(&task).expect("a task has a payload until it is released")
    }
}

/// Bytes of the engine's own, which nobody else touches.
fn of_the_engine(bytes: &[u8]) -> (Buffer, Region) {
    let span = Span { offset: 0, bytes: bytes.len() as u64 };
    (Buffer::new(bytes.to_vec(), DeviceKind::Host), Region { buffer: usize::MAX, span })
}
