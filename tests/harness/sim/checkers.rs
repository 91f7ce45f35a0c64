//! What must hold, whatever goes wrong, and what may happen only if something did go wrong.
//!
//! The rules of single results (a sum, a contribution, memory) are checked where they are seen and reported with [`Witness::fail`]. The
//! files below this one hold the rules that need history:
//!
//! | file | decides |
//! |---|---|
//! | `evidence` | which faults concerned whom, and when |
//! | `calls` | whether the failure of a call has a cause, and whether each call ends in time |
//! | `parameters` | whether each use of a parameter found what it must, and whether its failure has a cause |
//! | `rounds` | whether each round of a clock is closed once and alike on all servers, and how far workers are |
//! | `store` | whether the store made each change once, and answered each read with what was put |
//! | `patience` | how long requests to the coordinator last, and whether they wait for one that is away |
//! | `lateness` | why a worker did not contribute to a round in time |
//! | `boundary` | whether workers leave, and hear of losses, behind the same step, where nothing is open |
//! | `job` | memberships, deaths, barriers and the end of the job |
//!
//! A failure excuses nothing by itself. Each failure needs a fault that concerned that very call: its tensor, its peer, its time.

use std::fmt;

use gradlane_core::types::Time;

use self::boundary::Boundaries;
use self::calls::Calls;
use self::evidence::Evidence;
use self::job::Job;
use self::parameters::Uses;
use self::rounds::Rounds;
use self::store::Asks;
use super::workload::Plan;
use super::world::Who;

mod boundary;
mod calls;
mod evidence;
mod job;
mod lateness;
mod parameters;
mod patience;
mod rounds;
mod store;

pub(super) use self::evidence::Concern;
pub(super) use self::parameters::{UseId, UsedPart};

/// A property that a run must have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Checker {
    /// Every result is the exact result of its own round, each rank counted once.
    Sum,
    /// The value of a parameter is whole within a part, and has in it each change once.
    Parameter,
    /// A result says how many contributed.
    Contributors,
    /// A contribution that is sent is the caller's, not overwritten by anything.
    Contribution,
    /// Nobody touches memory that was not lent, or keeps what is over.
    Memory,
    /// Every submission resolves once.
    Handle,
    /// Every call ends within its bound, and the job ends once the faults are over.
    Liveness,
    /// Without a reason nothing fails.
    Failure,
    /// Everybody hears the one cause of the end.
    Cause,
    /// Only who was silent is given up.
    Death,
    /// Nothing of an earlier membership or life has an effect.
    Fencing,
    /// Credit that was drawn comes back.
    Credit,
    /// A part's rounds are pushed one after the other; two of them live on a server.
    Rounds,
    /// Both sides of an exchange do what its headers say.
    Exchange,
    /// Rounds are closed by enough workers, once and alike for all servers, and nobody is too far ahead.
    Clock,
    /// A barrier opens when all have come, for all.
    Barrier,
    /// A change of the workers passes behind one step for all, where nothing is open.
    Boundary,
    /// The store makes each change once, and answers a read with a value that was put.
    Store,
    /// Nothing fails for its usual time while the coordinator is away, if only that could say who is lost.
    Patience,
    /// Nothing grows without a bound.
    Growth,
    /// No machine panics.
    Panic,
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// What went wrong, first.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Who noticed.
    pub checker: Checker,
    /// When.
    pub at: Time,
    /// What.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.checker, self.at.0 as f64 / 1e9, self.text)
    }
}

/// Sees everything, and knows what explains a failure.
#[derive(Debug)]
pub(super) struct Witness {
    violation: Option<Violation>,
    /// The time of the world.
    world: Time,
    evidence: Evidence,
    calls: Calls,
    uses: Uses,
    rounds: Rounds,
    asks: Asks,
    boundaries: Boundaries,
    job: Job,
}

impl Witness {
    /// Nothing seen yet.
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            violation: None,
            world: Time::ZERO,
            evidence: Evidence::default(),
            calls: Calls::new(plan),
            uses: Uses::new(plan),
            rounds: Rounds::new(plan),
            asks: Asks::default(),
            boundaries: Boundaries::new(plan),
            job: Job::new(plan),
        }
    }

    /// Lets the world reach a time. A call or use that should have ended by then is a violation.
    pub(super) fn turn_to(&mut self, world: Time) {
        self.world = world;
        self.check_calls_in_time();
        self.check_uses_in_time();
        self.check_boundaries_in_time();
    }

    /// The first violation.
    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation.clone()
    }

    /// `text` must not have happened. Clocks of processes differ, so the time of the world is noted and not theirs.
    pub(super) fn fail(&mut self, _local: Time, checker: Checker, text: String) {
        self.report(checker, text);
    }

    /// Time is over.
    pub(super) fn hang(&mut self, unfinished: Vec<(Who, String)>) {
        let waits: Vec<String> = unfinished.into_iter().map(|(who, what)| format!("{who}: {what}")).collect();
        self.report(Checker::Liveness, format!("not ended: {}", waits.join("; ")));
    }

    fn report(&mut self, checker: Checker, text: String) {
        let at = self.world;
        self.violation.get_or_insert(Violation { checker, at, text });
    }
}
