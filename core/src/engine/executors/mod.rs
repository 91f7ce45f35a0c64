//! What each stage does with a task. An executor decides nothing: it translates a job into one call of a driver, and the driver's report
//! into one report to the machine.

mod code;
mod collective;
mod copy;
mod finite;
mod land;
mod pull;
mod push;

use std::sync::Arc;

use super::job::{Job, Work};
use super::shared::Shared;
use crate::collective::Memory;
use crate::cuda::OnIssue;
use crate::sched::Task;
use crate::transport::{Pull, Push};

/// Executes a job. Makes exactly one report to the machine, and for a PUSH another one when the exchange ends. If encoding makes a push of at
/// most `here_bytes_max` bytes ready, the calling thread pushes it too. Returns a job that only the stage's thread may execute, because it
/// could wait for a device; never if `here_bytes_max` is 0.
pub(super) fn execute(shared: &Arc<Shared>, job: Job, here_bytes_max: u64) -> Option<Job> {
    // A device looks only at what ranks reduce among themselves, which needs no thread of a stage.
    let later: fn(&Arc<Shared>, Job) = |shared, job| drop(begin(shared, job, 0));
    begin(shared, finite::checked(shared, job, later)?, here_bytes_max)
}

/// Executes a job whose contribution may be used. As [`execute`].
fn begin(shared: &Arc<Shared>, Job { task, stage, is_last, work }: Job, here_bytes_max: u64) -> Option<Job> {
    match work {
        Work::Push { link, exchange, header, body, into } => {
            let into = into.or_else(|| land::beside(shared, task)).unwrap_or_default();
            let look = finite::beside(shared, &task, link, &header);
            let finding = look.as_ref().map(|look| look.finding.clone());
            let pull = Some(Pull { into, done: pull::awaited(shared, task, exchange, finding) });
            push::execute(shared, task, link, exchange, Push { header, body, pull, look });
        }
        Work::CopyToHost { from, staged } => {
            if !copy::to_host(shared, task, from, staged, here_bytes_max > 0) {
                return Some(Job { task, stage, is_last, work });
            }
        }
        Work::CopyToDevice { transfer, after } => {
            copy::to_device(shared, task, transfer, &after, on_issue(shared, task, is_last));
        }
        Work::Encode { from, coding, residual, link } => {
            code::encode(shared, task, &from, coding, residual, link, here_bytes_max);
        }
        Work::Land { from, to } => land::land(shared, task, &from, to),
        Work::Decode { from, to: Some(to), coding, refused } => {
            code::decode(shared, task, &from, to, (coding, refused))
        }
        Work::Decode { from, to: None, coding, refused } => code::decode_staged(shared, task, &from, (coding, refused)),
        Work::Meet { mut operation, takes, aside, team } => {
            if let Memory::Device(memory) = &mut operation.memory {
                memory.issued = on_issue(shared, task, is_last);
            }
            collective::execute(shared, task, operation, (takes, aside), team);
        }
    }
    None
}

/// Reports to the machine that a task's step is on its device, if it is the last one: the result is complete after it.
fn on_issue(shared: &Arc<Shared>, task: Task, is_last: bool) -> OnIssue {
    if !is_last {
        return OnIssue::nobody();
    }
    let reporter = Arc::clone(shared);
    OnIssue::new(move |mark| reporter.report(|state, _| state.issued(task.id, &mark)))
}
