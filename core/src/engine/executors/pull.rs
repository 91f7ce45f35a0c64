//! PULL: the sum lands where PUSH has told the transport. Nothing is executed.

use std::sync::Arc;

use super::super::metrics::Metrics;
use super::super::shared::Shared;
use super::finite;
use crate::local::failpoint::{Failpoint, reach};
use crate::sched::Task;
use crate::transport::{Answer, Torn};
use crate::types::{Done, Effect, ExchangeId, Finding};
use crate::wire::{Response, RowsAnswer, Sum, Value};
use crate::worker::Exchanged;

/// Reports the end of the exchange of `task` to the machine. `finding` says whether its contribution was found not to be finite.
pub(super) fn awaited(
    shared: &Arc<Shared>,
    task: Task,
    exchange: ExchangeId,
    finding: Option<Finding>,
) -> Done<Answer, Torn> {
    let reporter = Arc::clone(shared);
    Done::new(move |answer: Result<Answer, Torn>| {
        let _span =
            tracing::trace_span!("pull", part = %task.part, round = task.round.0, exchange = exchange.0).entered();
        let outcome = match answer {
            Ok(Answer::Response(header)) => {
                Metrics::add(&reporter.metrics.pulls, 1);
                Metrics::add(&reporter.metrics.pull_bytes, header.body_bytes());
                Metrics::add(&reporter.metrics.header_bytes, header.header_bytes() as u64);
                reach(Failpoint::SumCame);
                match header {
                    Response::Sum(Sum { part_bytes, body, divisor, contributors, .. }) => {
                        reporter.metrics.count_codec(body, part_bytes);
                        Exchanged::Sum { body, divisor, contributors }
                    }
                    Response::Value(Value { effect, .. }) => Exchanged::Value(effect),
                    Response::Rows(RowsAnswer { version, .. }) => Exchanged::Value(Effect::accepted(version)),
                }
            }
            Ok(Answer::Reject(error)) => Exchanged::Rejected(error),
            Err(Torn { error, landed }) => Exchanged::Torn { error, landed },
        };
        if finding.is_some_and(|finding| finding.is_raised()) {
            finite::found(&reporter, task.id);
        }
        reporter.report(|state, now| {
            if let Exchanged::Sum { .. } = outcome {
                state.payloads.get_mut(task.id).expect("a task has a payload until it is released").landed();
            }
            state.worker.handle_pulled(now, task.id, outcome);
        });
    })
}
