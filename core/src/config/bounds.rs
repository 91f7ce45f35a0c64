//! How long the engine waits for its peers and its devices, and how long a caller waits for the engine: the one place that derives all of
//! them.
//!
//! The engine ends what it waits for with an error that names the cause. A caller that gave up earlier would call a healthy engine stuck. So
//! the bound of a caller, [`Bounds::call`], lies beyond each of the others, whatever the settings are.

use std::time::Duration;

use super::knobs::Config;

/// How long an attempt to connect may take.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The shortest time after which a silent connection is lost. One that is given up after less would not survive a busy computer.
const SILENT_MIN: Duration = Duration::from_secs(1);
/// How long the ranks of a machine wait for the answer of the rank that decides their order. It needs processor time for the answer only.
pub const LEADER_PATIENCE: Duration = Duration::from_secs(10);
/// How long an error of NCCL waits for its cause, because the ranks notice the death of another one at about the same time.
pub const NCCL_GRACE: Duration = Duration::from_secs(1);
/// How long NCCL may take to abort before the operations that wait fail anyway.
pub const NCCL_ABORT_PATIENCE: Duration = Duration::from_secs(5);
/// How much later than its time an answer may come: enough for a round trip, a reconnection, and threads that are late.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// How long each wait of the engine lasts at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// An operation that begins waits so long for the other workers.
    pub step: Duration,
    /// A submission waits so long for a server or a coordinator that does not answer: the step timeout, and at least as long as two attempts
    /// to connect take, so that the cause of one is known.
    pub unreached: Duration,
    /// A connection on which nothing was heard for so long is lost.
    pub silent: Duration,
    /// A connection that was up for so long has carried something from its peer after the handshake.
    pub steady: Duration,
    /// A server with a connection that has answered nothing for so long is stuck. It answers each exchange within the step timeout, if only
    /// with an error.
    pub stuck: Duration,
    /// A caller waits so long for an engine in which nothing moves. Longer than each of the others.
    pub call: Duration,
}

impl Bounds {
    /// The bounds that follow from the settings `step_timeout` and `dead_timeout`.
    pub fn new(step_timeout: Duration, dead_timeout: Duration) -> Self {
        let step = step_timeout;
        let unreached = step.max(DIAL_TIMEOUT * 2);
        // A member that the coordinator has given up is not waited for much longer.
        let silent = (dead_timeout * 2).max(SILENT_MIN);
        let stuck = step + silent;
        let neighbours = step + LEADER_PATIENCE;
        let devices = step + NCCL_GRACE + NCCL_ABORT_PATIENCE;
        let longest = [unreached, stuck, neighbours, devices].into_iter().fold(Duration::ZERO, Duration::max);
        Self { step, unreached, silent, steady: silent * 3, stuck, call: longest + ANSWER_MARGIN }
    }

    /// How long a caller waits for an operation with this timeout before it asks whether the engine works at it.
    pub fn operation(&self, timeout: Option<Duration>) -> Duration {
        let late = self.call.saturating_sub(self.step);
        timeout.map_or(self.call, |timeout| timeout.saturating_add(late).min(self.call))
    }

    /// How long a caller waits for a barrier that ends by itself after `timeout`. The coordinator answers then, and a lost coordinator is
    /// noticed a moment later.
    pub fn barrier(&self, timeout: Duration) -> Duration {
        timeout.saturating_add(self.silent + ANSWER_MARGIN * 2)
    }
}

/// How long it takes at most until a lost member is given up: by a coordinator that watches the member, or by one that has just gone on with
/// the job and lets all of them reconnect first.
pub fn verdict_time(dead_timeout: Duration) -> Duration {
    dead_timeout * 2 + ANSWER_MARGIN
}

impl Config {
    /// The bounds of all waits of this process. In a job that goes on without lost workers, a sum waits longer than the step timeout, because
    /// the coordinator may be about to give up the worker for which it waits.
    pub fn bounds(&self) -> Bounds {
        let verdicts = if self.on_worker_loss.goes_on() { verdict_time(self.dead_timeout) } else { Duration::ZERO };
        Bounds::new(self.step_timeout + verdicts, self.dead_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OnWorkerLoss;
    use super::*;

    #[test]
    fn the_bound_of_a_caller_lies_beyond_each_wait_of_the_engine_whatever_the_settings_are() {
        let times = [1, 50, 900, 3_000, 6_000, 120_000, 86_400_000].map(Duration::from_millis);
        for (step_timeout, dead_timeout) in times.into_iter().flat_map(|step| times.map(|dead| (step, dead))) {
            let bounds = Bounds::new(step_timeout, dead_timeout);
            let Bounds { step, unreached, silent, steady: _, stuck, call } = bounds;
            let neighbours = step_timeout + LEADER_PATIENCE;
            let devices = step_timeout + NCCL_GRACE + NCCL_ABORT_PATIENCE;
            for own in [step, unreached, silent, stuck, neighbours, devices] {
                assert!(own + ANSWER_MARGIN <= call, "{own:?} in {bounds:?}");
            }
            let answered = step_timeout + ANSWER_MARGIN;
            assert!(answered < bounds.barrier(step_timeout), "{bounds:?}");
            let short = Duration::from_millis(1);
            assert_eq!(bounds.operation(Some(short)), short + bounds.call - bounds.step);
            assert_eq!(bounds.operation(Some(step_timeout * 2)), bounds.operation(None));
        }
    }

    #[test]
    fn the_defaults_are_what_the_documents_say() {
        assert_eq!(Config::default().bounds().call, Duration::from_secs(132));
        let goes_on = Config { on_worker_loss: OnWorkerLoss::Continue, ..Config::default() };
        assert_eq!(goes_on.bounds().step, Duration::from_secs(132));
        assert_eq!(goes_on.bounds().call, Duration::from_secs(144));
    }
}
