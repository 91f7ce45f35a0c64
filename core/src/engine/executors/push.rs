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
use crate::wire::{Flags, Header, HeaderKind};

pub(super) fn execute(shared: &Arc<Shared>, task: Task) {
    let Some((link, exchange, mut push)) = prepare(shared, &task) else { return };
    let checked = match shared.settings.checksum {
        Checksum::Auto => shared.transport.road(link) == Road::Network,
        Checksum::Always => true,
        Checksum::Never => false,
    };
    let contributes = push.header.kind == HeaderKind::Push;
    if checked && contributes && push.header.body_bytes() > 0 && !push.header.flags.contains(Flags::RESUMED) {
        push.header.checksum = borrow::checksum(&push.body);
        push.header.flags = push.header.flags.with(Flags::CHECKSUM);
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
        let (flags, landed) = match (task.attempt, sends_body) {
            (_, false) => (Flags::NO_BODY, 0),
            (Attempt::Resumed { landed }, true) => (Flags::RESUMED, landed),
            (Attempt::First | Attempt::Again, true) => (Flags::default(), 0),
        };
        let told = payload.letter.as_ref().map(Letter::region);
        let (kind, flags, bytes) = match &told {
            Some(letter) => (HeaderKind::GiveUp, Flags::default(), letter.len() as u64),
            None => (HeaderKind::Push, flags, task.bytes),
        };
        let mut header = Header {
            kind,
            flags,
            epoch,
            part: task.part,
            dtype: payload.part.layout.dtype,
            op: payload.part.op,
            round: task.round,
            bytes,
            weight: payload.part.weight,
            contributors: 0,
            urgency: 0,
            checksum: u32::try_from(landed).expect("at most PART_BYTES_MAX"),
        };
        let body = match told {
            Some(letter) => vec![letter],
            None if flags.contains(Flags::NO_BODY) => Vec::new(),
            None => payload.cargo.contribution(),
        };
        header.urgency = state.urgency(priority);
        Some((link, exchange, Push { header, body }))
    })
}
