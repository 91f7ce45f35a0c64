//! PUSH: a contribution leaves from where it lies. Ends when its last byte was handed over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::Metrics;
use super::super::payload::Hold;
use super::super::shared::Shared;
use crate::config::Checksum;
use crate::error::Error;
use crate::mem::borrow;
use crate::mem::borrow::Letter;
use crate::sched::{Attempt, Outcome, Task};
use crate::transport::{Push, Road};
use crate::types::{Done, ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Body, Contribute, Contribution, Request, Service, Target, Withdraw};

pub(super) fn execute(shared: &Arc<Shared>, task: Task) {
    let Some((link, exchange, mut push)) = prepare(shared, &task) else { return };
    let checked = match shared.settings.checksum {
        Checksum::Auto => shared.transport.road(link) == Road::Network,
        Checksum::Always => true,
        Checksum::Never => false,
    };
    if checked
        && let Request::Contribute(header) = &mut push.header
        && let Contribution::First { body, checksum } = &mut header.contribution
        && body.bytes > 0
    {
        *checksum = Some(borrow::checksum(&push.body));
    }
    Metrics::add(&shared.metrics.pushes, 1);
    Metrics::add(&shared.metrics.push_bytes, push.header.body_bytes());
    Metrics::add(&shared.metrics.header_bytes, HEADER_BYTES as u64);
    Metrics::add(&shared.metrics.repeats, u64::from(task.attempt != Attempt::First));
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome| {
        let outcome = match outcome {
            Ok(()) => Outcome::Done,
            Err(error) => super::broken_off(error, 0),
        };
        reporter.with(|state, now| state.finish(now, task.id, outcome));
    });
    shared.transport.push(link, exchange, push, done);
}

/// Looks up what the task moves; fails it where that is not possible now.
fn prepare(shared: &Arc<Shared>, task: &Task) -> Option<(LinkId, ExchangeId, Push)> {
    shared.with(|state, now| {
        let Some(link) = state.links.up(task.server) else {
            let error = Error::Unavailable { what: task.server.to_string(), cause: "not connected".to_owned() };
            state.finish(now, task.id, Outcome::Retry { error, landed: 0 });
            return None;
        };
        let epoch = state.epoch();
        let sends_body = state.sends_body(task.id);
        let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        let exchange = ExchangeId(shared.exchanges.fetch_add(1, Ordering::Relaxed));
        payload.hold = Hold::Transport(exchange);
        let priority = payload.priority;
        // Also what lies beside the place where the sum lands is sent as if the sum had overwritten it: one rule, and the server has it.
        let plain = Body::plain(task.bytes);
        let contribution = match (task.attempt, sends_body) {
            (_, false) => Contribution::Nothing,
            (Attempt::Resumed { landed }, true) => Contribution::Resumed { body: plain, landed },
            (Attempt::First | Attempt::Again, true) => Contribution::First { body: plain, checksum: None },
        };
        let target = Target { service: Service::DenseSum, epoch, part: task.part, round: task.round, attempt: 0 };
        let (dtype, op) = (payload.part.layout.dtype, payload.part.op);
        let (header, body) = match payload.letter.as_ref().map(Letter::region) {
            Some(error) => {
                let error_bytes = error.len() as u64;
                (Request::Withdraw(Withdraw { target, dtype, op, error_bytes }), vec![error])
            }
            None => {
                let (weight, part_bytes) = (payload.part.weight, task.bytes);
                let body = if sends_body { payload.cargo.contribution() } else { Vec::new() };
                let urgency = state.urgency(priority);
                let header = Contribute { target, dtype, op, weight, urgency, part_bytes, contribution };
                (Request::Contribute(header), body)
            }
        };
        Some((link, exchange, Push { header, body }))
    })
}
