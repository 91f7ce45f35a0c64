//! Carries out the commands of the machine, and decides which thread executes a step.
//!
//! A stage is executed by its own thread, which sleeps on the stage's bell. Where a change of thread would cost more than the step, the
//! thread that finds the step executes it: COPYH2D and the collective stages always, COMPRESS and DECOMPRESS of short parts, COPYD2H and
//! PUSH of short parts by the thread that submits them, or that learns that a device has copied them. PULL is executed by nobody: PUSH has
//! told the transport where the sum lands.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;
use super::burst::Burst;
use super::dial::dial;
use super::executors::execute;
use super::inline::Inline;
use super::job::Job;
use super::shared::{Dispatch, Shared};
use super::state::{Effect, Resolved};
use super::submit::HERE_BYTES_MAX;
use crate::error::Result;
use crate::pipeline::Stage;
use crate::sched::StallReport;
use crate::types::{Done, PartLayout, TensorSpec};
use crate::worker::{Held, Stuck};

/// The dispatcher of steps to threads.
#[derive(Default)]
pub(super) struct Dispatcher {
    /// One bell per stage.
    bells: [Bell; Stage::COUNT],
    collective: Inline,
    /// COPYH2D only hands the copy to the thread of the device.
    returning: Inline,
    /// Jobs of COPYD2H that other threads have left to the stage's thread.
    left: Mutex<VecDeque<Job>>,
}

impl Dispatcher {
    /// The bell of `stage`'s thread.
    pub(super) fn bell(&self, stage: Stage) -> &Bell {
        &self.bells[stage.index()]
    }

    /// Wakes the thread of every stage.
    pub(super) fn ring_all(&self) {
        self.bells.iter().for_each(Bell::ring);
    }

    /// Executes the ready tasks of `stages` on this thread, or leaves them to the thread that does so now.
    fn run_inline(shared: &Arc<Shared>, stages: &[Stage], inline: &Inline) {
        inline.run(|| {
            for stage in stages {
                while let Ok(Some(job)) = shared.with(|state, now| state.take(now, *stage)) {
                    execute(shared, job, 0);
                }
            }
        });
    }

    /// Executes the next tasks of `stage`, at most `tasks_max`, as long as they are short, and leaves the rest to the stage's thread.
    fn run_here(&self, shared: &Arc<Shared>, stage: Stage, bytes_max: u64, tasks_max: usize) {
        let (mut burst, mut is_left) = (Burst::of(stage, &*shared.transport), false);
        for _ in 0..tasks_max {
            let Ok((job, others_wait)) = shared.with(|state, now| state.take_short(now, stage, bytes_max)) else {
                return;
            };
            is_left = others_wait;
            let Some(job) = job else { break };
            let bytes = job.task.bytes;
            if let Some(left) = execute(shared, job, bytes_max) {
                self.left().push_back(left);
                return self.bell(stage).ring();
            }
            burst.add(bytes);
            // A task that becomes ready from now on wakes the stage itself.
            if !is_left {
                break;
            }
        }
        if is_left {
            self.bell(stage).ring();
        }
    }

    /// The next job for the thread of `stage`.
    pub(super) fn take(&self, shared: &Arc<Shared>, stage: Stage) -> Option<Job> {
        let left = if stage == Stage::CopyD2H { self.left().pop_front() } else { None };
        left.or_else(|| shared.with(|state, now| state.take(now, stage)).ok().flatten())
    }

    fn left(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, shared: &Arc<Shared>, stage: Stage, here_bytes_max: u64) {
        match stage {
            stage if stage.is_collective() => Self::run_inline(shared, &Stage::COLLECTIVE, &self.collective),
            Stage::CopyH2D => Self::run_inline(shared, &[Stage::CopyH2D], &self.returning),
            // To submit several copies takes longer than to wake the stage's thread.
            Stage::CopyD2H if here_bytes_max > 0 => self.run_here(shared, stage, here_bytes_max, 1),
            Stage::Push if here_bytes_max > 0 => self.run_here(shared, stage, here_bytes_max, usize::MAX),
            stage if stage.is_coding() => self.run_here(shared, stage, here_bytes_max.max(HERE_BYTES_MAX), usize::MAX),
            stage => self.bell(stage).ring(),
        }
    }
}

impl Dispatch for Dispatcher {
    fn carry_out(&self, shared: &Arc<Shared>, effects: Vec<Effect>, here_bytes_max: u64) {
        let mut effects = effects.into_iter().peekable();
        while let Some(effect) = effects.next() {
            let resolves = wakes(&effect);
            match effect {
                Effect::Wake(stage) => self.wake(shared, stage, here_bytes_max),
                Effect::Abandon(Held::Exchange { link, exchange }) => shared.transport.abandon(link, exchange),
                Effect::Abandon(Held::Operation(slot)) => {
                    if let Some(collective) = shared.company.any() {
                        collective.abandon(slot);
                    }
                }
                Effect::Decline(declined) => {
                    if let Some(collective) = shared.company.any() {
                        collective.decline(declined);
                    }
                }
                Effect::Resolve(done, ended) => resolve(shared, done, ended),
                Effect::Issue(issue, marks) => issue(marks),
                Effect::Declare { request, tensors, fuse } => declare(shared, request, tensors, fuse),
                Effect::Undeclare { request, names } => undeclare(shared, request, names),
                Effect::Report(holdings) => shared.tell(|membership| membership.reporter().report_holdings(holdings)),
                Effect::Restored(epoch) => shared.tell(|membership| membership.reporter().report_restored(epoch)),
                Effect::Dial(to) => dial(shared, to),
                Effect::Disconnect(link) => shared.transport.disconnect(link),
                Effect::Warn(stuck) => warn(&stuck),
                Effect::Abort(cause) => {
                    if let Some(collective) = shared.company.any() {
                        collective.abort(cause);
                    }
                }
                Effect::BreakDown(cause) => shared.tell(|membership| membership.reporter().break_down(cause)),
                Effect::Follow => shared.following.follow(),
                Effect::Leave => shared.milestones.change(|reached| reached.may_leave = true),
                Effect::Arm(due) => {
                    if let Some(timer) = &*shared.timer.lock().unwrap_or_else(PoisonError::into_inner) {
                        timer.arm(Some(due));
                    }
                }
            }
            // So a thousand small ones wake it once.
            if resolves && !effects.peek().is_some_and(wakes) {
                wake_poller(shared);
            }
        }
    }
}

/// Whether a thread may wait for this effect on a handle.
fn wakes(effect: &Effect) -> bool {
    matches!(effect, Effect::Resolve(..) | Effect::Issue(..))
}

/// Makes a thread that waits for a handle look at it again.
fn wake_poller(shared: &Shared) {
    match shared.company.any() {
        Some(collective) => collective.wake(),
        None => shared.transport.wake(),
    }
}

fn resolve(shared: &Shared, done: Done<()>, ended: Resolved) {
    let Resolved { outcome, tensors, took } = ended;
    shared.metrics.count_resolved(&outcome, tensors, took);
    done.report(outcome);
}

fn declare(shared: &Arc<Shared>, request: u64, tensors: Vec<TensorSpec>, fuse: bool) {
    let there = Arc::clone(shared);
    let declared = Done::new(move |outcome: Result<Vec<PartLayout>>| {
        let report = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        let waiters = there.with(|state, now| {
            state.worker.handle_declared(now, request, outcome);
            state.take_waiters(request)
        });
        waiters.unwrap_or_default().into_iter().for_each(|waiter| waiter.report(report.clone()));
    });
    shared.tell(|membership| membership.declare(tensors, fuse, declared));
}

fn undeclare(shared: &Arc<Shared>, request: u64, names: Vec<String>) {
    shared.tell(|membership| membership.undeclare(names));
    let waiters = shared.with(|state, _| {
        state.worker.handle_undeclared(request);
        state.take_waiters(request)
    });
    waiters.unwrap_or_default().into_iter().for_each(|waiter| waiter.ok(()));
}

/// Warns of submissions without progress.
fn warn(Stuck { report, missing, unreachable, others }: &Stuck) {
    let StallReport { name, round, waited, parts, .. } = report;
    let (tensor, round, waited_s) = (name, round.0, waited.as_secs_f64());
    match report.at {
        Some((stage, _)) if stage.is_collective() => {
            tracing::warn!(%tensor, round, parts, waited_s, others, "a tensor waits for other workers of this machine");
        }
        Some((stage, server)) if let Some(error) = unreachable => {
            tracing::warn!(
                %tensor, round, %stage, %server, parts, waited_s, others, %error,
                "a tensor waits for a server that does not answer"
            );
        }
        Some((stage, server)) if let Some(error) = &report.cause => {
            tracing::warn!(
                %tensor, round, %stage, %server, parts, waited_s, others, %error,
                "a tensor is refused by its server again and again"
            );
        }
        Some((stage, server)) => {
            tracing::warn!(%tensor, round, %stage, %server, parts, waited_s, others, "a tensor does not move");
        }
        None => {
            let missing = missing.join(", ");
            tracing::warn!(
                %tensor, round, missing, waited_s, others,
                "a tensor waits for others of its part to be submitted here"
            );
        }
    }
}
