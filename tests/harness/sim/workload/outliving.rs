//! Which seeds have jobs that go on without servers that are lost, and when they lose them.
//!
//! All draws come from sequences of their own, so a seed whose job ends with a lost server is what it would be if all did.

use gradlane_core::types::Time;

use super::super::faults::{Fault, FaultClasses, HEALED};
use super::super::world::Who;
use crate::random::{Random, mix};

/// Tells the draws of servers from others.
const SERVERS: u64 = 0x0073_6572_7665_7273;

/// Lets half of the seeds whose jobs go on without workers go on without servers too. In two of three others the coordinator is away for long.
/// Returns how many servers there are.
pub(super) fn draw(seed: u64, classes: &mut FaultClasses, servers: u32) -> u32 {
    if !classes.survivors {
        return servers;
    }
    if mix(seed ^ SERVERS).is_multiple_of(2) {
        classes.away = !mix(seed ^ SERVERS ^ 2).is_multiple_of(3);
        classes.succeeds |= classes.away;
        return servers;
    }
    classes.outlives = true;
    // A worker that cannot reach the server that is left of its parts, for good or for want of memory, cannot bring it what others miss. A
    // member that lies may begin the parts of a lost server wherever it likes.
    (classes.dead_paths, classes.refusals, classes.intruders) = (false, false, false);
    servers.max(2)
}

/// When servers are killed: one or two, sometimes all.
pub(super) fn losses(seed: u64, classes: FaultClasses, servers: u32) -> Vec<(Time, Fault)> {
    let mut random = Random::new(mix(seed ^ SERVERS ^ 1));
    if !classes.outlives || random.chance(15) {
        return Vec::new();
    }
    let horizon = random.pick(&[1_500, 3_000, HEALED.0 / 1_000_000]);
    let several = if random.chance(15) { servers } else { random.between(1, u64::from(servers - 1)) as u32 };
    let (first, together) = (random.millis(0, horizon), random.chance(30));
    let kill = |number: u32| {
        let at = if together { first + random.millis(0, 50) } else { random.millis(0, horizon) };
        let fault = Fault::Kill { who: Who::Server(number), seen: random.chance(60), restart_after: None };
        (Time::ZERO + at, fault)
    };
    (0..several).map(kill).collect()
}
