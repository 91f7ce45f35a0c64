//! A whole cluster in one thread and virtual time, from one seed: the production machines of all processes, a network that does its worst,
//! and checkers that know what must come out.
//!
//! | file | decides |
//! |---|---|
//! | `workload` | seed → size of the job, settings, what every worker does |
//! | `topology` | seed → which machines the workers run on, and what devices those have |
//! | `faults` | seed → what goes wrong and when |
//! | `world` | time, and which process gets which event |
//! | `process` | where a process runs, sleeps or ran |
//! | `clock` | what each process takes for the time |
//! | `intruder`, `liar` | what a hostile member sends, what a hostile server answers |
//! | `network`, `body` | what becomes of bytes on their way |
//! | `transport`, `worker` | a worker: what drives its exchanges, memory, training loop |
//! | `member`, `server`, `coordinator` | the other drivers |
//! | `oracle` | what contributions are and results must be |
//! | `checkers` | what must hold |
//! | `log` | what happened, as a hash |
//!
//! A run has two phases. In the first faults happen; in the second nothing goes wrong any more and everything must end, well unless
//! there was a reason.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradlane_core::error::panic_text;
use gradlane_core::types::{Defect, Time};

use self::workload::Plan;
use self::world::World;

mod body;
mod checkers;
mod clock;
mod coordinator;
mod faults;
mod intruder;
mod liar;
mod log;
mod member;
mod network;
mod oracle;
mod process;
mod server;
mod topology;
mod transport;
mod worker;
mod workload;
mod world;

pub use self::checkers::{Checker, Violation};

/// A seed that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub violation: Violation,
}

/// Runs the world of `seed`, with machines that make the mistake `defect`. Returns the hash of all that happened.
///
/// # Errors
/// The first rule that was broken.
pub fn run(seed: u64, defect: Option<Defect>, verbose: bool) -> Result<u64, Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let plan = Plan::new(seed, defect);
        if verbose {
            println!("{}", describe(&plan));
        }
        World::new(plan, verbose).run()
    }));
    let violation = match outcome {
        Ok(Ok(log)) => return Ok(log.hash()),
        Ok(Err(violation)) => *violation,
        Err(panic) => {
            let text = panic_text(&*panic).unwrap_or_default().to_owned();
            Violation { checker: Checker::Panic, at: Time::ZERO, text }
        }
    };
    Err(Failure { seed, violation })
}

/// The options of a seed, in a line.
fn describe(plan: &Plan) -> String {
    format!(
        "seed {}: {} workers on machines {}, {} servers, {} tensors, {} parameters, {} steps, depth {}; faults: {}; {}; {:?}",
        plan.seed,
        plan.workers,
        plan.topology,
        plan.servers,
        plan.tensors.len(),
        plan.parameters.len(),
        plan.steps,
        plan.depth,
        plan.classes,
        network::describe(plan),
        plan.settings,
    )
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, violation } = self;
        let replay = "cargo test -p gradlane-tests --test it sim::replay -- --nocapture";
        let options = describe(&Plan::new(*seed, None));
        write!(f, "{violation}\n  {options}\n  replay: SEED={seed} {replay}")
    }
}
