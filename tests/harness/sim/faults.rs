//! What goes wrong, and when: a seed switches whole classes of faults on or off, then draws a schedule from those that are on.

use std::fmt;
use std::time::Duration;

use gradlane_core::types::Time;

use super::workload::timing;
use super::world::Who;
use crate::random::Random;

/// The classes of faults of one seed. Those from `long_pauses` on may end the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FaultClasses {
    /// Single exchanges break off.
    pub(super) resets: bool,
    /// Bodies and sums change on their way.
    pub(super) corruption: bool,
    /// Connections between workers and servers are lost.
    pub(super) link_losses: bool,
    /// Connections to the coordinator are lost.
    pub(super) control_losses: bool,
    /// Two processes cannot reach each other for a moment, in one or both directions.
    pub(super) partitions: bool,
    /// Processes stop for a moment.
    pub(super) pauses: bool,
    /// Exchanges of an earlier membership arrive.
    pub(super) replays: bool,
    /// Callers give submissions up.
    pub(super) cancels: bool,
    /// Callers set deadlines that may pass.
    pub(super) deadlines: bool,
    /// One worker declares a tensor differently.
    pub(super) mismatch: bool,
    /// Processes stop for longer than the coordinator waits.
    pub(super) long_pauses: bool,
    /// Partitions last longer than connections live.
    pub(super) long_partitions: bool,
    /// Processes die.
    pub(super) kills: bool,
    /// Processes that died are started again.
    pub(super) restarts: bool,
    /// A process that is started again has another key, as on a machine that was set up anew.
    pub(super) new_keys: bool,
    /// A worker's way to a server, or the way back, ends for good while both still reach the coordinator.
    pub(super) dead_paths: bool,
    /// Exchanges arrive twice.
    pub(super) duplicates: bool,
    /// Clocks have different origins and speeds.
    pub(super) drift: bool,
    /// A member sends frames and headers that are well formed and wrong in its state.
    pub(super) intruders: bool,
    /// Servers have too little memory for the job.
    pub(super) refusals: bool,
    /// Names are used once.
    pub(super) one_shot_names: bool,
    /// Some tensors are left out of some steps.
    pub(super) subsets: bool,
    /// The job goes on without workers that are lost.
    pub(super) survivors: bool,
    /// It goes on without servers that are lost, too.
    pub(super) outlives: bool,
    /// Workers of such a job count steps, and agree on the boundaries between them.
    pub(super) steps: bool,
    /// Workers that count steps are asked to leave.
    pub(super) leaves: bool,
    /// A server is asked to stop: it drains, and ends a while later.
    pub(super) drains: bool,
    /// Processes come that could be workers too: the job ends to form again with them.
    pub(super) comes: bool,
    /// If workers are lost, the others hold behind their step until such processes have come.
    pub(super) waits: bool,
    /// A coordinator that is killed is succeeded by another one, which goes on with its job.
    pub(super) succeeds: bool,
    /// It is away for long before.
    pub(super) away: bool,
}

impl FaultClasses {
    /// Draws which classes are on.
    pub(super) fn draw(random: &mut Random) -> Self {
        let calm = random.chance(10);
        let fatal = !calm && random.chance(40);
        let mut on = |percent: u64| !calm && random.chance(percent);
        let classes = Self {
            resets: on(50),
            corruption: on(30),
            link_losses: on(40),
            control_losses: on(40),
            partitions: on(35),
            pauses: on(35),
            replays: on(20),
            cancels: on(30),
            deadlines: on(15),
            mismatch: on(8),
            duplicates: on(20),
            drift: on(50),
            intruders: on(20),
            refusals: on(3),
            one_shot_names: on(20),
            subsets: on(20),
            ..Self::default()
        };
        let survivors = on(20);
        Self {
            survivors,
            long_pauses: fatal && on(40),
            long_partitions: fatal && on(40),
            kills: fatal && on(60) || survivors,
            restarts: fatal && on(50),
            new_keys: fatal && on(50),
            dead_paths: fatal && on(25),
            drains: fatal && on(25),
            // Aside, so that all other draws of a seed stay as they were.
            succeeds: !calm && random.clone().chance(15),
            ..classes
        }
    }
}

impl fmt::Display for FaultClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.resets, "resets"),
            (self.corruption, "corruption"),
            (self.link_losses, "link-losses"),
            (self.control_losses, "control-losses"),
            (self.partitions, "partitions"),
            (self.pauses, "pauses"),
            (self.replays, "replays"),
            (self.cancels, "cancels"),
            (self.deadlines, "deadlines"),
            (self.mismatch, "mismatch"),
            (self.long_pauses, "long-pauses"),
            (self.long_partitions, "long-partitions"),
            (self.kills, "kills"),
            (self.restarts, "restarts"),
            (self.new_keys, "new-keys"),
            (self.dead_paths, "dead-paths"),
            (self.duplicates, "duplicates"),
            (self.drift, "drift"),
            (self.intruders, "intruders"),
            (self.refusals, "refusals"),
            (self.one_shot_names, "one-shot-names"),
            (self.subsets, "subsets"),
            (self.survivors, "survivors"),
            (self.outlives, "outlives"),
            (self.steps, "steps"),
            (self.leaves, "leaves"),
            (self.drains, "drains"),
            (self.comes, "comes"),
            (self.succeeds, "succeeds"),
            (self.away, "away"),
        ];
        let on: Vec<&str> = named.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        f.write_str(if on.is_empty() { "none".to_owned() } else { on.join(" ") }.as_str())
    }
}

/// One fault.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fault {
    /// The connections between two processes are lost; each side finds out by itself.
    Lose { one: Who, other: Who },
    /// Nothing passes from one process to the other for a while.
    Block { from: Who, to: Who, length: Duration },
    /// A process stops for a while.
    Pause { who: Who, length: Duration },
    /// A process ends. A launcher may see it.
    Kill { who: Who, seen: bool, restart_after: Option<Duration> },
    /// A server is asked to stop.
    Drain { who: Who },
    /// A process comes, and goes again if it is not taken in by then.
    Come { number: u64, goes_after: Option<Duration> },
    /// It goes.
    Go { number: u64 },
    /// The coordinator is killed, and another one goes on with its job after this time.
    Succeed { after: Duration },
    /// Nothing passes from one process to the other any more.
    Cut { from: Who, to: Who },
    /// A member sends something that is well formed and wrong in its state.
    Intrude { who: Who },
}

/// When the faults are over.
pub(super) const HEALED: Time = Time(8_000_000_000);

/// The faults of a job with this many workers and servers, by time.
pub(super) fn schedule(classes: FaultClasses, workers: u32, servers: u32, random: &mut Random) -> Vec<(Time, Fault)> {
    let members: Vec<Who> = (0..workers).map(Who::Worker).chain((0..servers).map(Who::Server)).collect();
    let mut faults = Vec::new();
    // Half of the time everything happens early, while the job forms and declares.
    let horizon = if random.chance(50) { 2_000 } else { HEALED.0 / 1_000_000 };
    let when = |random: &mut Random| Time::ZERO + random.millis(0, horizon);
    let pair = |random: &mut Random| {
        let data = random.chance(60);
        let worker = Who::Worker(random.below(u64::from(workers)) as u32);
        let member = random.pick(&members);
        let server = Who::Server(random.below(u64::from(servers)) as u32);
        if data { (worker, server) } else { (member, Who::Coordinator) }
    };
    if classes.link_losses {
        for _ in 0..random.between(1, 8) {
            let one = Who::Worker(random.below(u64::from(workers)) as u32);
            let other = Who::Server(random.below(u64::from(servers)) as u32);
            faults.push((when(random), Fault::Lose { one, other }));
        }
    }
    if classes.control_losses {
        for _ in 0..random.between(1, 6) {
            faults.push((when(random), Fault::Lose { one: random.pick(&members), other: Who::Coordinator }));
        }
    }
    let mut block = |random: &mut Random, at: Time, length: Duration| {
        let (one, other) = pair(random);
        let directions = random.pick(&[[true, true], [true, true], [true, false], [false, true]]);
        for (on, from, to) in [(directions[0], one, other), (directions[1], other, one)] {
            if on {
                faults.push((at, Fault::Block { from, to, length }));
            }
        }
    };
    if classes.partitions {
        for _ in 0..random.between(1, 4) {
            let (at, length) = (when(random), random.millis(50, 2500));
            block(random, at, length);
        }
    }
    if classes.long_partitions {
        let (at, length) = (when(random), random.millis(3000, 25_000));
        block(random, at, length);
    }
    // One that is killed for good leads nobody any more; see `Succeed`.
    let anybody = |random: &mut Random| match random.chance(15) && !classes.succeeds {
        true => Who::Coordinator,
        false => random.pick(&members),
    };
    if classes.pauses {
        for _ in 0..random.between(1, 3) {
            faults.push((when(random), Fault::Pause { who: anybody(random), length: random.millis(20, 2500) }));
        }
    }
    if classes.long_pauses {
        let length = timing::DEAD + random.millis(0, 6000);
        faults.push((when(random), Fault::Pause { who: anybody(random), length }));
    }
    if classes.kills {
        let first = when(random);
        let mut kill = |random: &mut Random, at: Time| {
            let restart_after = classes.restarts.then(|| random.millis(10, 3000));
            // Of a job that goes on, mostly a worker.
            let who = match classes.survivors && random.chance(85) {
                true => Who::Worker(random.below(u64::from(workers)) as u32),
                false => anybody(random),
            };
            faults.push((at, Fault::Kill { who, seen: random.chance(30), restart_after }));
        };
        kill(random, first);
        // The second death may come while the first is being noticed, told or mended.
        if random.chance(35) {
            let second = first + random.millis(0, 8000);
            kill(random, second);
        }
    }
    if classes.drains {
        let who = Who::Server(random.below(u64::from(servers)) as u32);
        // Mostly while there is something to drain.
        let at = Time::ZERO + random.millis(300, 2500);
        faults.push((at, Fault::Drain { who }));
        // What it does not answer until then is lost.
        let patience = random.millis(500, 6000);
        faults.push((at + patience, Fault::Kill { who, seen: random.chance(80), restart_after: None }));
    }
    if classes.succeeds {
        let aside = &mut random.clone();
        for _ in 0..aside.between(1, 3) {
            // Only a job that goes on without lost workers waits for the coordinator longer than for others.
            let (least, most) = if classes.away { (4500, 12_000) } else { (10, 2500) };
            faults.push((when(aside), Fault::Succeed { after: aside.millis(least, most) }));
        }
    }
    if classes.dead_paths {
        let worker = Who::Worker(random.below(u64::from(workers)) as u32);
        let server = Who::Server(random.below(u64::from(servers)) as u32);
        let (from, to) = if random.chance(50) { (worker, server) } else { (server, worker) };
        faults.push((when(random), Fault::Cut { from, to }));
    }
    if classes.intruders {
        for _ in 0..random.between(3, 20) {
            // Mostly a worker, because it can name tensors and rounds.
            let who = match random.chance(70) {
                true => Who::Worker(random.below(u64::from(workers)) as u32),
                false => random.pick(&members),
            };
            faults.push((when(random), Fault::Intrude { who }));
        }
    }
    faults
}
