//! A driver that does everything at random, and a model that knows what may happen.
//!
//! The driver takes from a stage only after a `Wake` and until it gets nothing; whatever could be taken without one was forgotten.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::Random;

#[test]
fn the_rules_hold_in_any_order_of_events() {
    for seed in 0..500 {
        if let Err(problem) = run(seed, None) {
            panic!("seed {seed}: {problem}");
        }
    }
}

#[cfg(feature = "testing")]
#[test]
fn every_planted_defect_is_caught() {
    let defects = [
        Defect::CreditLeaked,
        Defect::RoundGateOpen,
        Defect::RetryForgotten,
        Defect::LandingForgotten,
        Defect::HandleTwice,
        Defect::GroupLost,
    ];
    for defect in defects {
        assert!((0..50).any(|seed| run(seed, Some(defect)).is_err()), "{defect:?} goes unnoticed");
    }
}

#[test]
fn the_oldest_task_waits_for_a_bounded_number_of_takes() {
    let mut world = World::new(SchedulerConfig { oldest_every: 8, ..config() }, host());
    let group = world.open("w", 1000);
    let oldest = world.submit(part(0), 1, i32::MIN, &[group]);
    let mut takes = 0;
    for index in 1.. {
        world.submit(part(index), 1, 0, &[group]);
        takes += 1;
        if world.take(Stage::Push).unwrap().id == oldest {
            break;
        }
    }
    assert_eq!(takes, 8);
}

const CREDIT: u64 = 100;
const COPIES: u32 = 2;
const STEPS: u32 = 400;

fn run(seed: u64, defect: Option<Defect>) -> Checked {
    let mut random = Random::new(seed);
    let config = SchedulerConfig {
        credit_bytes: CREDIT,
        credit_tasks: 4,
        copies_max: COPIES,
        oldest_every: u32::try_from(random.below(4)).unwrap(),
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(100),
        credit_patience: Duration::from_millis(50),
        step_timeout: Duration::from_millis(300),
        defect,
    };
    let pipeline = match random.below(6) {
        0 => device(),
        1 => host(),
        2 => tiers(),
        3 => device_tiers(),
        4 => pcie_groups(1),
        _ => pcie_groups(2),
    };
    let mut model = Model::new(World::new(config, pipeline));
    for _ in 0..STEPS {
        model.step(&mut random)?;
    }
    model.drain(&mut random)
}

struct Model {
    world: World,
    awake: BTreeSet<Stage>,
    running: BTreeMap<TaskId, Stage>,
    tasks: BTreeMap<TaskId, Known>,
    groups: BTreeSet<GroupId>,
    rounds: BTreeMap<PartId, Rounds>,
}

struct Known {
    part: PartId,
    round: u64,
    bytes: u64,
    landed: u64,
    in_flight: bool,
    /// It has memory of the engine's.
    is_staged: bool,
    on_device: bool,
    /// The host encodes it.
    is_coded: bool,
    is_encoded: bool,
    /// Its sum lands in memory of the engine's, and is copied from there.
    lands: bool,
    /// It has that memory.
    is_landing: bool,
    /// The other ranks of its machine wait for it.
    awaited: bool,
    /// The others take what it has.
    shows: bool,
    summed: bool,
    /// It tells its server that the round is given up.
    tells: bool,
}

#[derive(Default)]
struct Rounds {
    submitted: u64,
    /// Neither summed nor given up; only the first may be pushed.
    open: BTreeSet<u64>,
}

type Checked = std::result::Result<(), String>;

impl Model {
    fn new(world: World) -> Self {
        Self {
            world,
            awake: BTreeSet::new(),
            running: BTreeMap::new(),
            tasks: BTreeMap::new(),
            groups: BTreeSet::new(),
            rounds: BTreeMap::new(),
        }
    }

    fn step(&mut self, random: &mut Random) -> Checked {
        let now = self.world.now;
        let server = ServerId(u32::try_from(random.below(2)).unwrap());
        match random.below(100) {
            0..15 => self.submit(random),
            15..50 => self.take(random)?,
            50..85 => self.finish(random)?,
            85..91 => self.world.wait(Duration::from_millis(random.below(30))),
            91..93 => pick(random, &self.groups).into_iter().for_each(|group| self.world.scheduler.cancel(now, group)),
            93..96 => self.world.scheduler.handle_link_down(now, server),
            _ => self.world.scheduler.handle_link_up(now, server),
        }
        self.drain_commands()?;
        self.check_wakes()?;
        self.check_credit()
    }

    /// Two or three tensors that share a part, or one tensor of one or two parts; every other submission has a deadline.
    fn submit(&mut self, random: &mut Random) {
        let (tensors, shares) = if random.one_in(3) { (2 + random.below(2), 1) } else { (1, 1 + random.below(2)) };
        let shares = u32::try_from(shares).unwrap();
        let now = self.world.now;
        let deadline = random.one_in(2).then(|| now + Duration::from_millis(20 + random.below(400)));
        let open = |_| self.world.scheduler.open_group(now, "w".into(), Round(0), shares, deadline);
        let groups: Vec<GroupId> = (0..tensors).map(open).collect();
        self.groups.extend(&groups);
        let first = 2 * u32::try_from(random.below(6)).unwrap();
        for part in (first..first + shares).map(part) {
            let rounds = self.rounds.entry(part).or_default();
            let round = rounds.submitted;
            rounds.submitted += 1;
            rounds.open.insert(round);
            let bytes = [1, 7, 30, 60, 250][usize::try_from(random.below(5)).unwrap()];
            let priority = i32::try_from(random.below(3)).unwrap();
            let tiered = self.world.scheduler.pipeline().contains(Stage::Reduce);
            let grouped = self.world.scheduler.pipeline().contains(Stage::PcieReduce);
            let duty = match random.below(4) {
                0 if tiered => Duty::Member,
                1 if tiered => Duty::Alone,
                2 if grouped => Duty::Holder,
                _ => Duty::Owner,
            };
            // Where there are devices, some tensors lie in host memory nevertheless.
            let staged = self.world.scheduler.pipeline().contains(Stage::CopyD2H) && !random.one_in(3);
            let route = if staged { Route::device(duty) } else { Route::host(duty) };
            let is_coded = self.world.scheduler.pipeline().pushes() && random.one_in(3);
            let route = if is_coded { route.coded() } else { route };
            let pushes = self.world.scheduler.pipeline().pushes() && matches!(duty, Duty::Owner | Duty::Alone);
            let lands = pushes && !is_coded && !staged && random.one_in(2);
            let route = Route { lands, ..route };
            let task = self.world.scheduler.submit(now, spec(route, part, round, bytes, priority, &groups));
            let known = Known {
                part,
                round,
                bytes,
                landed: 0,
                in_flight: false,
                is_staged: false,
                on_device: staged,
                is_coded,
                is_encoded: false,
                lands,
                is_landing: false,
                awaited: false,
                shows: duty == Duty::Owner || duty == Duty::Holder && staged,
                summed: false,
                tells: false,
            };
            assert!(self.tasks.insert(task, known).is_none());
        }
    }

    fn take(&mut self, random: &mut Random) -> Checked {
        let Some(stage) = pick(random, &self.awake) else {
            return Ok(());
        };
        let Some(task) = self.world.take(stage) else {
            self.awake.remove(&stage);
            return Ok(());
        };
        let known = self.tasks.get_mut(&task.id).ok_or("a task that is gone was taken")?;
        ensure(known.on_device || !stage.is_copy(), "host memory was copied")?;
        ensure(
            known.is_staged || !known.on_device || !matches!(stage, Stage::Push | Stage::Pull | Stage::CopyH2D),
            "pushed before it was staged",
        )?;
        ensure(known.is_coded || !stage.is_coding(), "what travels as it is was encoded")?;
        ensure(known.lands || stage != Stage::Land, "a sum that is in its place was copied there")?;
        ensure(
            known.is_encoded || !known.is_coded || !matches!(stage, Stage::Push | Stage::Pull | Stage::Decompress),
            "pushed before it was encoded",
        )?;
        known.is_encoded |= stage == Stage::Compress;
        if matches!(stage, Stage::CopyD2H | Stage::Compress) {
            known.is_staged |= stage == Stage::CopyD2H;
            ensure(
                self.rounds[&task.part].open.first() == Some(&task.round.0),
                "staged before the round before was summed",
            )?;
        }
        if stage == Stage::Push {
            known.in_flight = true;
            known.is_landing |= known.lands;
            let told = if let Attempt::Resumed { landed } = task.attempt { landed } else { 0 };
            ensure(known.landed == told || known.tells, "a clobbered contribution was pushed as if it were whole")?;
            ensure(
                self.rounds[&task.part].open.first() == Some(&task.round.0),
                "pushed before the round before was summed",
            )?;
        }
        known.awaited &= stage != Stage::Broadcast;
        if stage == Stage::Broadcast && known.shows {
            let told = self.world.scheduler.failure(task.id).is_some();
            ensure(told != known.summed, "others are shown what is no sum")?;
        }
        ensure(self.running.insert(task.id, stage).is_none(), "taken twice")
    }

    fn finish(&mut self, random: &mut Random) -> Checked {
        let Some(id) = pick(random, &self.running.keys().copied().collect()) else {
            return Ok(());
        };
        let stage = self.running.remove(&id).expect("picked");
        let is_told = stage.is_collective() && self.world.scheduler.failure(id).is_some();
        let outcome = match random.below(20) {
            // What one of the ranks tells the others instead of doing it with them fails.
            _ if is_told => Outcome::Failed(unreachable()),
            0 => Outcome::Failed(unreachable()),
            1..5 => retry(if stage == Stage::Pull && random.one_in(2) { 1 + u64::from(random.one_in(2)) } else { 0 }),
            _ => Outcome::Done,
        };
        let known = self.tasks.get_mut(&id).expect("a running task is not released");
        known.in_flight &= stage == Stage::Push && outcome == Outcome::Done;
        if let Outcome::Retry { landed, .. } = outcome {
            known.landed = known.landed.max(landed);
        }
        known.is_staged &= stage != Stage::CopyH2D && (stage != Stage::CopyD2H || outcome == Outcome::Done);
        known.is_encoded &= stage != Stage::Decompress && (stage != Stage::Compress || outcome == Outcome::Done);
        known.is_landing &= stage != Stage::Land;
        let pushes = self.world.scheduler.pipeline().pushes();
        let brings = matches!(stage, Stage::Pull | Stage::PcieBroadcast) || stage == Stage::PcieReduce && !pushes;
        known.summed |= brings && outcome == Outcome::Done;
        // A sum that was not decoded, or did not come to its place, is none to show.
        known.summed &= !matches!(stage, Stage::Land | Stage::Decompress | Stage::CopyH2D) || outcome == Outcome::Done;
        known.awaited |= stage == Stage::Reduce && outcome == Outcome::Done;
        // What the ranks do together fails on all of them.
        known.awaited &= !stage.is_collective() || outcome == Outcome::Done;
        if stage == Stage::Pull && outcome == Outcome::Done {
            let (part, round) = (known.part, known.round);
            self.close(part, round);
        }
        let is_pushed = stage == Stage::Push && outcome == Outcome::Done;
        self.world.finish(id, outcome);
        if is_pushed {
            // Nobody takes it for PULL.
            self.running.insert(id, Stage::Pull);
        }
        Ok(())
    }

    /// A task of a round ended, or has its sum.
    fn close(&mut self, part: PartId, round: u64) {
        let tells = |other: &Known| other.tells && (other.part, other.round) == (part, round);
        if !self.tasks.values().any(tells) {
            self.rounds.get_mut(&part).expect("submitted").open.remove(&round);
        }
    }

    fn drain_commands(&mut self) -> Checked {
        for command in self.world.all_commands() {
            match command {
                Command::Wake(stage) => drop(self.awake.insert(stage)),
                Command::Abandon(task) => ensure(self.running.contains_key(&task), "abandoned but not running")?,
                Command::Decline(task) => {
                    let is_waiting = self.tasks.contains_key(&task) && !self.running.contains_key(&task);
                    ensure(is_waiting, "what was declined is gone, or under way")?;
                }
                Command::Withdraw { task, of, .. } => {
                    let of = self.tasks.get(&of).ok_or("what is gone was given up")?;
                    ensure(!of.tells, "what only tells was given up")?;
                    let (part, round) = (of.part, of.round);
                    let nothing = Known {
                        part,
                        round,
                        bytes: 0,
                        landed: 0,
                        in_flight: false,
                        is_staged: false,
                        on_device: false,
                        is_coded: false,
                        is_encoded: false,
                        lands: false,
                        is_landing: false,
                        awaited: false,
                        shows: false,
                        summed: false,
                        tells: true,
                    };
                    ensure(self.tasks.insert(task, nothing).is_none(), "told by a task that exists")?;
                }
                Command::Release(task) => {
                    ensure(!self.running.contains_key(&task), "released while it runs")?;
                    let known = self.tasks.remove(&task).ok_or("released twice")?;
                    ensure(!known.awaited, "the other ranks of its machine wait for ever")?;
                    self.close(known.part, known.round);
                }
                Command::Resolved { group, .. } => ensure(self.groups.remove(&group), "resolved twice")?,
            }
        }
        Ok(())
    }

    fn check_wakes(&mut self) -> Checked {
        let asleep = Stage::ALL.into_iter().filter(|stage| !self.awake.contains(stage));
        let mut taken = asleep.filter_map(|stage| self.world.scheduler.take(self.world.now, stage));
        ensure(taken.next().is_none(), "a task could be taken but nobody was woken")
    }

    fn check_credit(&self) -> Checked {
        for stage in [Stage::CopyD2H, Stage::CopyH2D] {
            let copies = self.running.values().filter(|other| **other == stage).count();
            ensure(copies <= COPIES as usize, "more copies than there may be")?;
        }
        let draws = |known: &&Known| known.in_flight || known.is_staged || known.is_encoded || known.is_landing;
        let in_flight: Vec<u64> = self.tasks.values().filter(draws).map(|known| known.bytes).collect();
        let total: u64 = in_flight.iter().sum();
        let counted = self.world.scheduler.credit_in_flight();
        let largest = in_flight.iter().max().copied().unwrap_or(0);
        // Not all of it counts where sums did not come for a while.
        ensure(counted <= total, "credit is drawn by what is not in flight")?;
        ensure(counted <= (2 * CREDIT).max(largest), "more in flight than twice the credit")
    }

    /// Everything ends, by wake-ups and timeouts alone; what was forgotten stays, since half of the groups have no deadline.
    fn drain(&mut self, random: &mut Random) -> Checked {
        for server in [ServerId(0), ServerId(1)] {
            self.world.scheduler.handle_link_up(self.world.now, server);
        }
        self.drain_commands()?;
        while !self.awake.is_empty() || !self.running.is_empty() || self.world.scheduler.poll_timeout().is_some() {
            self.take(random)?;
            self.drain_commands()?;
            self.finish(random)?;
            self.drain_commands()?;
            self.check_credit()?;
            if self.awake.is_empty() && self.running.is_empty() {
                self.world.now = self.world.scheduler.poll_timeout().unwrap_or(self.world.now);
                self.world.scheduler.handle_timeout(self.world.now);
                self.drain_commands()?;
            }
        }
        ensure(self.groups.is_empty(), "a group never resolved")?;
        ensure(self.tasks.is_empty() && self.world.scheduler.is_idle(), "a task was forgotten")
    }
}

fn ensure(holds: bool, problem: &str) -> Checked {
    if holds { Ok(()) } else { Err(problem.to_owned()) }
}

/// One of a set, if there are any.
fn pick<T: Copy + Ord>(random: &mut Random, from: &BTreeSet<T>) -> Option<T> {
    let index = random.below(from.len().max(1) as u64);
    from.iter().nth(usize::try_from(index).unwrap()).copied()
}
