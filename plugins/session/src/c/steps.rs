//! Functions for trainings that go on while workers leave, are lost, or come.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::sync::Arc;

use gradlane_core::engine::Step;
use gradlane_core::{Error, Result};

use super::answer::answer;
use super::read::part_of;
use super::sessions::{Member, join_again, member};
use gradlane_abi::{GradlaneError, GradlaneSession, GradlaneStatus, GradlaneStep};

/// Begins the next step of a training. Call it on every worker before each step, as often as on the others.
///
/// Between two steps there is a boundary, at which all workers hear of the same changes: others have left, were lost, or have come. This call
/// returns at once, unless the workers change: then it waits until every worker stands at the boundary and its operations have ended. With
/// `on_worker_loss=wait` it also waits there until enough workers have come. `step` receives what has changed.
///
/// Where workers have come, `formed_again` is 1 on all workers, also on those that have come and call this for the first time: bring the state
/// of the training to them by broadcasts from `lowest_rank` then, in the same order on all workers, before anything else. Ranks and size are
/// new, and operations of before are over. No other thread may submit during the call, and no callback may make it.
///
/// If `has_left` is 1, no step has begun: this worker has left the job, as `gradlane_leave` told it. Shut the session down and end.
///
/// Returns `GRADLANE_STATUS_DEADLINE_EXCEEDED` if others do not come to the boundary in time, `GRADLANE_STATUS_ABORTED` if the job is over,
/// also because too few workers were left for too long. If the job was to form again and did not, the session is over too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_begin_step(
    session: GradlaneSession,
    step: *mut GradlaneStep,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        // SAFETY: promised by the caller of this function.
        let mut to = unsafe { part_of(step, "step") }?;
        let begun = begin(session)?;
        to.write(&begun);
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// The loop over the steps has ended on this worker: no boundary waits for it until it begins a step again. Call it behind the last step, if
/// anything is reduced afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_end_steps(session: GradlaneSession, error: *mut GradlaneError) -> GradlaneStatus {
    let call = || {
        member(session)?.job.session().end_steps();
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Lets this worker leave the job at the end of its step: its next `gradlane_begin_step` says `has_left`. The others train on.
///
/// Any thread may call this, but no handler of a signal: note the signal there, and call this before the next step. If the worker does not
/// come to the end of its step within the setting `leave_grace`, the others go on without it all the same. Returns
/// `GRADLANE_STATUS_FAILED_PRECONDITION` if the others could not go on, because the setting `on_worker_loss` is `abort`, or because this process
/// serves them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_leave(session: GradlaneSession, error: *mut GradlaneError) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        if member.job.serves() {
            return Err(Error::FailedPrecondition {
                what: "a worker that leaves alone, and whose process serves the other workers".to_owned(),
                hint: "start the job with `gradlane run`, or with a coordinator and servers of their own".to_owned(),
            });
        }
        member.job.session().ask_to_leave()?;
        member.steps.known().leaves = true;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Begins a step of this session, and says what has changed.
fn begin(key: GradlaneSession) -> Result<GradlaneStep> {
    loop {
        let member = member(key)?;
        let session = member.job.session();
        let passage = match session.begin_step()? {
            Step::Begun(passage) => passage,
            Step::Left => return Ok(GradlaneStep { has_left: 1, ..member.steps.step(session, false) }),
            Step::FormsAgain(_) => {
                form_again(key, &member)?;
                continue;
            }
        };
        let is_first = member.steps.known().ranks.is_empty();
        let former = match is_first {
            // All workers know these, also one that was lost meanwhile.
            true => (0..session.first_size()).collect(),
            false => member.steps.known().ranks.clone(),
        };
        let ranks = passage.map(|passage| passage.workers.iter().map(|worker| worker.0).collect());
        let ranks: Vec<u32> = ranks.unwrap_or_else(|| former.clone());
        let formed_again = is_first && session.formed_before() > 0;
        let has_changed = formed_again || ranks != former;
        member.steps.known().ranks = ranks;
        let step = member.steps.step(session, has_changed);
        return Ok(GradlaneStep { formed_again: u32::from(formed_again), ..step });
    }
}

/// Joins the job that forms again, under the same number.
fn form_again(key: GradlaneSession, former: &Arc<Member>) -> Result<()> {
    let leaves = former.steps.known().leaves;
    let next = join_again(key, former)?;
    if leaves {
        // It may be refused only because the job is over, which the next step says.
        let _ = next.job.session().ask_to_leave();
        next.steps.known().leaves = true;
    }
    Ok(())
}
