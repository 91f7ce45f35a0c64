//! Wire forms: the production codecs on simulated memory, on the host and in the copies of devices.

use gradlane_core::codec::Coding;
use gradlane_core::reduce::Kernels;
use gradlane_core::sched::Task;
use gradlane_core::types::{DeviceKind, Span};

use super::super::oracle;
use super::super::world::Context;
use super::WorkerProcess;
use super::memory::{Buffer, Region, gather, scatter};

impl WorkerProcess {
    /// Encodes a contribution, into memory that it has until its sum is decoded.
    pub(super) fn encode(&mut self, context: &mut Context, task: Task, coding: Coding) {
        let elements = gather(context, self.me, &self.memory, &self.payloads[&task.id].elements(), DeviceKind::Host);
        let body = self.lease(task.bytes);
        scatter(context, self.me, &mut self.memory, &[body], &encoded(coding, &elements, task.bytes), DeviceKind::Host);
        self.payload(task.id).set_body(Some(body));
        self.worker.handle_coded(context.now, task.id, Ok(()));
    }

    /// Decodes a sum to where it goes.
    pub(super) fn decode(&mut self, context: &mut Context, task: Task, coding: Coding) {
        let payload = &self.payloads[&task.id];
        let (body, to) = (payload.landing(), payload.result());
        let sum = gather(context, self.me, &self.memory, &body, DeviceKind::Host);
        scatter(context, self.me, &mut self.memory, &to, &decoded(coding, &sum), DeviceKind::Host);
        self.drop_body(task.id);
        self.worker.handle_coded(context.now, task.id, Ok(()));
    }

    /// Memory of the worker's own.
    pub(super) fn lease(&mut self, bytes: u64) -> Region {
        let buffer = self.memory.len();
        self.memory.push(Buffer { bytes: vec![oracle::JUNK; bytes as usize], lent: true, place: DeviceKind::Host });
        Region { buffer, span: Span { offset: 0, bytes } }
    }
}

/// The wire form of these elements, which has so many bytes.
pub(super) fn encoded(coding: Coding, elements: &[u8], bytes: u64) -> Vec<u8> {
    let mut body = vec![oracle::JUNK; bytes as usize];
    let used = coding.codec().encode(Kernels::detect(), coding.divisor, elements, &mut body);
    assert_eq!(used, body.len(), "the codecs that there are make as many bytes as they say");
    body
}

/// The elements of this wire form.
pub(super) fn decoded(coding: Coding, body: &[u8]) -> Vec<u8> {
    let wire = oracle::wire_type(coding.codec).expect("it is encoded");
    let mut elements = vec![oracle::JUNK; body.len() / wire.bytes() as usize * coding.dtype.bytes() as usize];
    coding.codec().decode(Kernels::detect(), body, &mut elements).expect("a server sends what it says");
    elements
}
