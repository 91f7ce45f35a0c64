//! PUSH: sends a contribution in place, and says where the sum lands. Ends when the transport has taken its last byte.

use std::sync::Arc;

use super::super::metrics::Metrics;
use super::super::shared::Shared;
use crate::config::Checksum;
use crate::error::Result;
use crate::local::failpoint::{Failpoint, reach};
use crate::mem::borrow;
use crate::sched::{Attempt, Task};
use crate::transport::Push;
use crate::types::{Done, ExchangeId, LinkId};
use crate::wire::{AnswerResidual, Contribute, Contribution, Request, ResidualAction, Restore, Rows, Sent, Use};

pub(super) fn execute(shared: &Arc<Shared>, task: Task, link: LinkId, exchange: ExchangeId, mut push: Push) {
    let _span = tracing::trace_span!("push", part = %task.part, round = task.round.0, exchange = exchange.0).entered();
    let checked = match shared.checksum {
        Checksum::Auto => shared.transport.capabilities(link).needs_checksum,
        Checksum::Always => true,
        Checksum::Never => false,
    };
    if checked {
        let has_body = push.header.body_bytes() > 0;
        match &mut push.header {
            Request::Contribute(Contribute { contribution: Contribution::First { checksum, .. }, .. }) if has_body => {
                *checksum = Some(borrow::checksum(&push.body));
            }
            Request::Use(Use { sent: Sent::Whole { checksum }, .. }) => *checksum = Some(borrow::checksum(&push.body)),
            Request::Use(Use { sent: Sent::Nothing { checked }, .. }) => *checked = true,
            Request::Restore(Restore { checksum, .. }) | Request::Rows(Rows { checksum, .. }) => {
                *checksum = Some(borrow::checksum(&push.body))
            }
            Request::Contribute(_) | Request::Withdraw(_) | Request::AnswerResidual(_) | Request::Unknown(_) => {}
        }
    }
    if let Request::AnswerResidual(AnswerResidual { action: ResidualAction::Give { checksum }, .. }) = &mut push.header
    {
        // Servers compare what workers give by it.
        *checksum = borrow::checksum(&push.body);
    }
    let sent = match &push.header {
        Request::Contribute(_)
        | Request::Restore(_)
        | Request::AnswerResidual(_)
        | Request::Use(_)
        | Request::Rows(_)
        | Request::Unknown(_) => &shared.metrics.pushes,
        Request::Withdraw(_) => &shared.metrics.withdrawals,
    };
    if let Request::Contribute(Contribute { part_bytes, contribution, .. }) = &push.header
        && let Contribution::First { body, .. } | Contribution::Resumed { body, .. } = contribution
    {
        shared.metrics.count_codec(*body, *part_bytes);
    }
    Metrics::add(sent, 1);
    Metrics::add(&shared.metrics.push_bytes, push.header.body_bytes());
    Metrics::add(&shared.metrics.header_bytes, push.header.header_bytes() as u64);
    Metrics::add(&shared.metrics.repeats, u64::from(task.attempt != Attempt::First));
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| {
        // The end of the exchange says why it failed.
        if outcome.is_ok() {
            reach(Failpoint::Pushed);
            reporter.report(|state, now| state.worker.handle_pushed(now, task.id, exchange));
        }
    });
    reach(if let Request::Restore(_) = push.header { Failpoint::RestoreBegins } else { Failpoint::PushBegins });
    shared.transport.push(link, exchange, push, done);
}
