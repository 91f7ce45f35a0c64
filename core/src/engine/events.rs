//! What the membership of a worker says, and what it means to the engine.

use std::sync::Arc;

use super::orders::obey;
use super::shared::Shared;
use crate::cluster::MemberEvent;
use crate::error::ranks;
use crate::metrics::OfProcess as _;
use crate::runtime::exporter::Standing;
use crate::runtime::process::host;
use crate::types::{Passage, Role, WorkerId};
use crate::worker::Formation;

/// Follows what the membership says.
pub(super) fn on_event(shared: &Arc<Shared>, event: MemberEvent) {
    match event {
        MemberEvent::Joined { index, view } => {
            tracing::info!(rank = index, epoch = %view.epoch, "joined");
            // It has one rank for its whole life.
            let _ = shared.probe.rank.set(index);
            shared.metrics.placed(Role::Worker, index, &host());
            shared.flight.joined(index);
            shared.report(|state, now| state.worker.handle_joined(now, WorkerId(index), view));
            shared.look(|state| {
                if let Some(Formation { pipeline, machines, team, .. }) = state.worker.formation() {
                    let local_ranks = team.len().max(1);
                    tracing::info!(machines = machines.len(), local_ranks, "{pipeline}");
                }
            });
            shared.milestones.change(|reached| reached.joined = true);
        }
        MemberEvent::Command { number, command } => obey(shared, number, command),
        MemberEvent::View(view) => shared.report(|state, now| state.worker.handle_view(now, view)),
        MemberEvent::Contact { at, is_lost } => shared.report(|state, _| state.worker.handle_contact(at, is_lost)),
        MemberEvent::Forget { key, error } => {
            shared.report(|state, now| state.worker.handle_forget(now, key, &error));
        }
        MemberEvent::StallNotice { tensor, stall, detail } => {
            // The coordinator's own log has it as a warning, once for the whole job.
            tracing::info!(
                tensor,
                round = stall.round.0,
                missing = ranks(&stall.missing),
                waited_s = stall.waited.as_secs_f64(),
                detail,
                "a sum waits"
            );
            shared.flight.recorder.told(shared.clock.now(), &tensor, &stall, &detail);
            shared.report(|state, now| state.worker.handle_stall_notice(now, stall.part, stall.round, detail));
        }
        MemberEvent::Boundary { change, limit, hold } => shared.hear_boundary(change, limit, hold),
        MemberEvent::Restore { epoch, sums, lost } => {
            shared.report(|state, now| state.worker.handle_restore(now, epoch, sums, &lost));
        }
        MemberEvent::Passed { change, outcome } => {
            if let Ok(passage @ Passage { leaves: true, .. }) = &outcome {
                shared.report(|state, now| state.left_at(now, passage));
            }
            shared.step(|steps| steps.handle_passed(change, outcome));
        }
        MemberEvent::Failed(error) => {
            // The caller gets it as an error.
            tracing::info!(%error, "the job failed");
            shared.probe.standing.advance(Standing::Failed);
            shared.flight.ended(&error);
            shared.report(|state, now| state.worker.handle_failed(now, error.clone()));
            shared.boundary.fail(error.clone());
            shared.milestones.change(|reached| reached.failed = Some(error));
        }
        MemberEvent::Left => shared.milestones.change(|reached| reached.left = true),
        // For servers alone.
        MemberEvent::Ended { .. } => {}
        MemberEvent::Declared { .. }
        | MemberEvent::BarrierDone { .. }
        | MemberEvent::Close(_)
        | MemberEvent::Order(_)
        | MemberEvent::Answered { .. }
        | MemberEvent::Renewed { .. }
        | MemberEvent::WorkersKey(_) => {
            unreachable!("the membership keeps these events, or reports them to the waiting callers")
        }
    }
}
