//! Wire forms: the production codecs on simulated memory, on the host and in the copies of devices.

use gradlane_core::codec::feedback::Start;
use gradlane_core::codec::{Codec, Coding, Refusal, Seed, Tools, Workspace};
use gradlane_core::reduce::Kernels;
use gradlane_core::sched::Task;
use gradlane_core::types::{DeviceKind, PartId, Round, Span};
use gradlane_core::wire::Body;

use super::super::checkers::Checker;
use super::super::oracle;
use super::super::world::Context;
use super::WorkerProcess;
use super::memory::{Buffer, Encoded, Region, gather, length, scatter};

/// What a worker has seen of a part with error feedback.
#[derive(Clone, Default, Debug)]
pub(super) struct FedBack {
    /// The ranks in the latest sum.
    ranks: Option<Vec<u32>>,
    /// Whether the next body goes on with the residual.
    goes_on: bool,
    /// The round that was encoded last.
    pub(super) encoded: Option<Round>,
}

impl FedBack {
    /// What is known of a part that begins again.
    pub(super) fn of_nobody() -> Self {
        Self { ranks: Some(Vec::new()), ..Self::default() }
    }
}

impl WorkerProcess {
    /// Encodes a contribution, into memory that it has until its sum is decoded.
    pub(super) fn encode(&mut self, context: &mut Context, task: Task, coding: Coding, residual: Option<Start>) {
        let elements = gather(context, self.me, &self.memory, &self.payloads[&task.id].elements(), DeviceKind::Host);
        let lease = self.lease(task.bytes);
        let (bytes, sent) = match residual {
            None => encoded(coding, &task, &elements),
            Some(start) => {
                self.check_start(context, task, start);
                let residual = self.residuals.entry(task.part).or_default();
                residual.start(start, elements.len() / coding.dtype.bytes() as usize, coding.codec.momentum());
                made(coding, &task, &elements, |codec, tools, bytes| {
                    residual.encode(codec, tools, coding.divisor, 0, &elements, bytes)
                })
            }
        };
        scatter(context, self.me, &self.memory, &[lease.first(sent.bytes)], &bytes, DeviceKind::Host);
        self.payload(task.id).set_body(Some(Encoded { lease, sent: sent.bytes }));
        self.worker.handle_encoded(context.now, task.id, sent);
    }

    /// A part is encoded once a round, and its residual goes on only from a sum of the same workers as the sum before.
    fn check_start(&mut self, context: &mut Context, task: Task, start: Start) {
        let seen = self.fed_back.remove(&task.part).unwrap_or_default();
        let due = if seen.goes_on { Start::Kept } else { Start::Zero };
        if start != due || seen.encoded == Some(task.round) {
            let text = format!(
                "{} encodes {} of part {} with a residual {start:?}, not {due:?}, after {seen:?}",
                self.me.who, task.round, task.part
            );
            context.witness.fail(context.now, Checker::Contribution, text);
        }
        let seen = FedBack { goes_on: false, encoded: Some(task.round), ..seen };
        self.fed_back.insert(task.part, seen);
    }

    /// The sum of these ranks has come, of a part with error feedback.
    pub(super) fn note_fed_back(&mut self, part: PartId, ranks: &[u32]) {
        if let Some(seen) = self.fed_back.get_mut(&part) {
            seen.goes_on = seen.ranks.as_ref().is_none_or(|before| before == ranks);
            seen.ranks = Some(ranks.to_vec());
        }
    }

    /// Decodes a sum to where it goes.
    pub(super) fn decode(&mut self, context: &mut Context, task: Task, coding: Coding, due: Body) {
        let payload = &self.payloads[&task.id];
        let (landing, to) = (payload.landing(), payload.result());
        let body = landing.into_iter().map(|lease| lease.first(due.bytes)).collect::<Vec<Region>>();
        let sum = gather(context, self.me, &self.memory, &body, DeviceKind::Host);
        let elements = self.payloads[&task.id].encoded_by_device();
        let sum = if due.refused { sum } else { decoded(coding, &sum, elements.unwrap_or_else(|| length(&to))) };
        match elements {
            None => {
                scatter(context, self.me, &self.memory, &to, &sum, DeviceKind::Host);
                self.drop_body(task.id);
            }
            // The device gets it from other memory than that in which it has landed.
            Some(bytes) => {
                let lease = self.lease(bytes);
                scatter(context, self.me, &self.memory, &[lease], &sum, DeviceKind::Host);
                self.unstage(task.id);
                self.payload(task.id).stage(Encoded { lease, sent: bytes });
            }
        }
        self.worker.handle_decoded(context.now, task.id, Ok(()));
    }

    /// Memory of the worker's own.
    pub(super) fn lease(&mut self, bytes: u64) -> Region {
        let buffer = self.memory.len();
        self.memory.push(Buffer::new(vec![oracle::JUNK; bytes as usize], DeviceKind::Host));
        Region { buffer, span: Span { offset: 0, bytes } }
    }
}

/// The wire form of these elements, or these themselves if the codec refuses them.
pub(super) fn encoded(coding: Coding, task: &Task, elements: &[u8]) -> (Vec<u8>, Body) {
    made(coding, task, elements, |codec, tools, bytes| {
        codec.encode(tools, coding.divisor, elements, bytes).inspect_err(|_| {
            bytes[..elements.len()].copy_from_slice(elements);
        })
    })
}

/// What `encode` makes in memory for the task.
fn made(
    coding: Coding,
    task: &Task,
    elements: &[u8],
    encode: impl FnOnce(&dyn Codec, Tools<'_>, &mut [u8]) -> Result<usize, Refusal>,
) -> (Vec<u8>, Body) {
    let mut bytes = vec![oracle::JUNK; task.bytes as usize];
    let (codec, seed, workspace) = (coding.codec(), Seed::of(task.part, task.round), &mut Workspace::default());
    let used = encode(&*codec, Tools { kernels: Kernels::detect(), seed, workspace }, &mut bytes);
    bytes.truncate(used.unwrap_or(elements.len()));
    let body = Body { bytes: bytes.len() as u64, codec: coding.codec, refused: used.is_err() };
    (bytes, body)
}

/// The elements of this wire form, of so many bytes.
pub(super) fn decoded(coding: Coding, body: &[u8], bytes: u64) -> Vec<u8> {
    let mut elements = vec![oracle::JUNK; bytes as usize];
    coding.codec().decode(Kernels::detect(), body, &mut elements).expect("a server sends what it says");
    elements
}
