//! What the log of a coordinator says.

use gradlane_core::error::ranks;

use super::super::Event;

/// Logs what has happened.
pub(super) fn event(event: &Event) {
    match event {
        Event::Formed { epoch } => tracing::info!(%epoch, "the job is complete"),
        Event::Ordered { to, order } => tracing::info!(%to, order, "an operator has given an order"),
        Event::Refused { who, error } => tracing::warn!(who, %error, "refused"),
        Event::Suspect { member, place, silent } => {
            tracing::warn!(member, place, silent_s = silent.as_secs_f64(), "silent")
        }
        // If the job ends because of it, the owner of the coordinator gets it as an error.
        Event::Dead { member, place, cause } => tracing::info!(member, place, cause, "lost"),
        Event::Stall { tensor, stall, detail, others } => tracing::warn!(
            tensor,
            round = stall.round.0,
            missing = ranks(&stall.missing),
            waited_s = stall.waited.as_secs_f64(),
            detail,
            others,
            "a sum waits"
        ),
        Event::Ends { reason } => tracing::info!(reason, "the job ends"),
        Event::Restores { reason } => tracing::warn!(reason, "the job goes back to a checkpoint"),
        Event::FormsAgain { workers, newcomers } => tracing::info!(workers, newcomers, "the job forms again"),
        Event::Holds { there, needed, lost, patience } => {
            let seconds = patience.as_secs_f64();
            tracing::warn!(there, needed, %lost, seconds, "the workers hold behind their step until others have come");
        }
        Event::Recovered { epoch } => tracing::info!(%epoch, "the sums of lost servers are recovered"),
        Event::GoesOn { without, reason } => tracing::warn!(without, reason, "the job goes on"),
        Event::HotServer { warning } => tracing::warn!("{warning}"),
        Event::Finished(_) => {}
    }
}
