//! Which seeds count steps, and what changes with them: where their workers run, and between which steps they rest.
//!
//! All draws come from sequences of their own, so a seed whose workers count no steps is what it would be if none did in any.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::types::Time;

use super::super::faults::{Fault, FaultClasses};
use super::super::topology::Topology;
use super::Plan;
use crate::random::{Random, mix};

/// Tells the draws of steps from others.
const STEPS: u64 = 0x0073_7465_7073;

/// How many workers each machine has, where several run on one. More than 4 workers have no exact mean of those that are left.
const GATHERED: &[&[usize]] = &[&[2], &[3], &[4], &[1, 2], &[2, 2], &[3, 1], &[1, 2, 1]];

/// Lets three of four seeds whose jobs go on without some workers count steps. In most of these, workers are asked to leave.
pub(super) fn draw(seed: u64, classes: &mut FaultClasses, topology: &mut Topology) {
    if !classes.survivors || mix(seed ^ STEPS).is_multiple_of(4) {
        return;
    }
    let mut random = Random::new(mix(seed ^ STEPS ^ 1));
    classes.steps = true;
    classes.leaves = random.chance(75);
    // Those that were killed would wait to be taken in.
    classes.comes = !classes.restarts && mix(seed ^ STEPS ^ 6).is_multiple_of(3);
    classes.waits = !classes.restarts && mix(seed ^ STEPS ^ 8).is_multiple_of(3);
    // Who is waited for must be known to a later coordinator too.
    classes.succeeds |= classes.waits && mix(seed ^ STEPS ^ 9).is_multiple_of(2);
    if random.chance(40) {
        *topology = Topology::of_sizes(&mut random, random_sizes(seed));
        topology.outlive_workers();
        classes.kills &= random.chance(80);
    }
}

fn random_sizes(seed: u64) -> Vec<usize> {
    Random::new(mix(seed ^ STEPS ^ 2)).pick(GATHERED).to_vec()
}

/// The step within which the workers rest: none in half of the seeds.
pub(super) fn rests_in(seed: u64, classes: FaultClasses, steps: u64) -> Option<u64> {
    let draw = mix(seed ^ STEPS ^ 3);
    (classes.steps && draw.is_multiple_of(2)).then_some((draw >> 8) % steps)
}

/// When newcomers come.
pub(super) fn newcomers(seed: u64, classes: FaultClasses) -> Vec<(Time, Fault)> {
    if !classes.comes {
        return Vec::new();
    }
    let mut random = Random::new(mix(seed ^ STEPS ^ 7));
    let horizon = random.pick(&[1_500, 8_000]);
    let come = |number| {
        let goes_after = random.chance(40).then(|| random.millis(5, 2_000));
        (Time::ZERO + random.millis(0, horizon), Fault::Come { number, goes_after })
    };
    (0..2).map(come).collect()
}

/// Which workers are asked to leave: one, some, or all of them. A supervisor asks all at once, or one after the other.
pub(super) fn leavers(seed: u64, classes: FaultClasses, workers: u32, steps: u64) -> BTreeMap<u32, (u64, Duration)> {
    if !classes.leaves {
        return BTreeMap::new();
    }
    let mut random = Random::new(mix(seed ^ STEPS ^ 5));
    let mut asked: Vec<u32> = (0..workers).collect();
    random.shuffle(&mut asked);
    let several = random.between(1, u64::from(workers)) as usize;
    asked.truncate(random.pick(&[1, 1, 1, several, several, workers as usize]));
    let (at_once, first) = (random.chance(60), random.below(steps - 1) + 1);
    let delay = random.pick(&[0, 5, 100, 1000]);
    let asked = asked.into_iter().map(|who| {
        let step = if at_once { first } else { random.below(steps - 1) + 1 };
        (who, (step, random.millis(0, delay)))
    });
    asked.collect()
}

impl Plan {
    /// How many of the `due` tensors of this step a worker submits only after its loop has ended, if it rests within this step.
    pub(super) fn rests_at(&self, worker: u32, step: u64, due: usize) -> Option<usize> {
        let draw = mix(self.seed ^ STEPS ^ 4 ^ u64::from(worker) << 8);
        self.rests_in.filter(|rests| *rests == step).map(|_| draw as usize % (due + 1))
    }
}
