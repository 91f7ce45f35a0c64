//! PULL: waits for the sum and lands it where it goes.

use std::sync::Arc;

use super::super::Metrics;
use super::super::payload::Hold;
use super::super::shared::Shared;
use crate::error::Error;
use crate::sched::{Outcome, Task};
use crate::transport::{Answer, Torn};

pub(super) fn execute(shared: &Arc<Shared>, task: Task) {
    let (exchange, into) = shared.with(|state, _| {
        let payload = &state.payloads[&task.id];
        let Hold::Transport(exchange) = payload.hold else { unreachable!("a task is pulled after it was pushed") };
        (exchange, payload.cargo.landing())
    });
    let reporter = Arc::clone(shared);
    let pulled = Box::new(move |answer: Result<Answer, Torn>| {
        let outcome = match answer {
            Ok(Answer::Sum(header)) => {
                Metrics::add(&reporter.metrics.pulls, 1);
                Metrics::add(&reporter.metrics.pull_bytes, header.body.bytes);
                Metrics::add(&reporter.metrics.header_bytes, header.header_bytes() as u64);
                Outcome::Done
            }
            Ok(Answer::Reject(error)) if error.retryable() => Outcome::Retry { error, landed: 0 },
            Ok(Answer::Reject(error)) => Outcome::Failed(error),
            Err(Torn { error: error @ Error::Protocol { .. }, .. }) => Outcome::Failed(error),
            // Also a sum that was damaged on its way: the server still has it.
            Err(Torn { error, landed }) => super::broken_off(error, landed),
        };
        reporter.with(|state, now| {
            let outcome = match outcome {
                Outcome::Failed(error) => Outcome::Failed(state.with_name(task.id, error)),
                Outcome::Done | Outcome::Retry { .. } => outcome,
            };
            state.payloads.get_mut(&task.id).expect("it has one until it is released").hold = Hold::Nobody;
            state.finish(now, task.id, outcome);
        });
    });
    shared.transport.pull(exchange, into, pulled);
}
