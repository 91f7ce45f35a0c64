//! Some workers that use two parts at random, with every fault that a stream can have, from one seed, compared with a model of a few lines.
//!
//! Worker r adds 16^r with each push, so that the hexadecimal digits of a value are the counts of its workers' pushes: a lost or a doubled
//! push shows, and whose it was. Bodies arrive in pieces and break off anywhere, before or after the change was done. A worker then repeats
//! its use until it hears how it ended.

use std::collections::BTreeMap;

use gradlane_core::types::{Access, ExchangeId, PartId, Update};
use gradlane_core::wire::{Sent, Target, Use};

use super::tests::{INIT, Outcome, World, floats, part, to_do};

const WORKERS: u32 = 3;
const PARTS: u32 = 2;
/// Of a worker on a part: below 16, so that no digit overflows.
const PUSHES: u64 = 12;

#[test]
fn every_push_is_done_once_and_no_value_is_torn() {
    for seed in 0..400 {
        Play::new(seed).run();
    }
}

struct Play {
    seed: u64,
    random: u64,
    world: World,
    users: BTreeMap<(u32, u32), User>,
}

/// A worker's uses of one part.
#[derive(Default)]
struct User {
    round: u64,
    /// Of them, pushes that it was told were done.
    pushed: u64,
    initialised: bool,
    /// The latest version that it was told.
    seen: u64,
    pending: Option<Pending>,
}

/// A use that has not ended.
#[derive(Clone, Copy)]
struct Pending {
    access: Access,
    /// Its present exchange; absent after it broke off.
    exchange: Option<ExchangeId>,
    sent: usize,
    /// The answer has overwritten it.
    overwritten: bool,
}

impl Play {
    fn new(seed: u64) -> Self {
        // Sometimes there is less memory than is wanted at once.
        let memory_bytes_max = if seed.is_multiple_of(3) { 32 * 3 } else { 1 << 20 };
        let mut world = World::with(WORKERS, |config| config.memory_bytes_max = memory_bytes_max);
        world.is_slow = true;
        let users = (0..WORKERS).flat_map(|rank| (0..PARTS).map(move |part| ((rank, part), User::default())));
        Self { seed, random: seed, world, users: users.collect() }
    }

    fn run(mut self) {
        for _ in 0..600 {
            let (rank, part) = (self.below(WORKERS), self.below(PARTS));
            self.advance(rank, part);
            if self.below(2) == 0 {
                self.world.deliver();
            }
        }
        self.world.is_slow = false;
        self.world.settle();
        // Without faults everybody comes to an end.
        while self.users.values().any(|user| user.pending.is_some()) {
            let waits = self.users.iter().filter(|(_, user)| user.pending.is_some()).map(|(key, _)| *key);
            waits.collect::<Vec<_>>().into_iter().for_each(|(rank, part)| self.go_on(rank, part, 16));
        }
        let seed = self.seed;
        let mut values = 0;
        for number in 0..PARTS {
            let users = (0..WORKERS).map(|rank| (rank, &self.users[&(rank, number)]));
            let expected: f32 = users.clone().map(|(rank, user)| user.pushed as f32 * unit(rank)).sum();
            let done: u64 = users.clone().map(|(_, user)| user.pushed).sum();
            let exists = users.clone().any(|(_, user)| user.initialised);
            let pull = self.open(0, number, Access::Pull, 1 << 30, false);
            match self.world.outcome(pull) {
                Outcome::Rejected(error) => assert!(!exists, "seed {seed}: {error}"),
                answered @ (Outcome::Answered { .. } | Outcome::Done(_)) => {
                    assert_eq!(answered.value(), (1 + done, vec![expected; 4]), "seed {seed}, part {number}");
                    values += 1;
                }
            }
        }
        assert_eq!(self.world.booked(), values * 16, "seed {seed}: only the values are booked");
        assert_eq!(self.world.node.progress().pending, 0, "seed {seed}");
    }

    /// Something happens to a worker's use of a part.
    fn advance(&mut self, rank: u32, part: u32) {
        let (pending, breaks_off) = (self.users[&(rank, part)].pending, self.below(6) == 0);
        match pending {
            None => self.begin(rank, part),
            Some(Pending { exchange: Some(exchange), .. }) if breaks_off => {
                // It breaks off, and the server may or may not hear of it before the worker comes again. An answer may have come in part.
                let was_answered = self.world.has_answer(exchange);
                if self.below(3) > 0 {
                    self.world.tear(exchange);
                }
                let pending = self.pending(rank, part);
                pending.exchange = None;
                pending.overwritten |= was_answered && pending.access.receives();
            }
            Some(_) => {
                let bytes = self.below(17) as usize;
                self.go_on(rank, part, bytes);
            }
        }
    }

    fn begin(&mut self, rank: u32, part: u32) {
        let choice = self.below(8);
        let user = self.users.get_mut(&(rank, part)).expect("it is a user");
        // A cancelled use leaves a gap.
        user.round += u64::from(choice.is_multiple_of(3)) + 1;
        let may_push = user.pushed < PUSHES;
        let access = match choice {
            0 | 1 => Access::Pull,
            2 | 3 if may_push && user.initialised => Access::PushPull(Update::Add),
            4..=6 if may_push && user.initialised => Access::Push(Update::Add),
            _ => INIT,
        };
        user.pending = Some(Pending { access, exchange: None, sent: 0, overwritten: false });
    }

    /// The worker sends its header, the next bytes of its body, or takes its answer.
    fn go_on(&mut self, rank: u32, part: u32, bytes: usize) {
        let round = self.users[&(rank, part)].round;
        let Pending { access, exchange, overwritten, .. } = *self.pending(rank, part);
        let Some(exchange) = exchange else {
            let exchange = self.open(rank, part, access, round, overwritten);
            let pending = self.pending(rank, part);
            (pending.exchange, pending.sent) = (Some(exchange), 0);
            return;
        };
        if let Some(outcome) = self.world.poll(exchange) {
            return self.end(rank, part, access, outcome);
        }
        let body = floats([if access == INIT { 0.0 } else { unit(rank) }; 4]);
        let pending = self.pending(rank, part);
        let until = (pending.sent + bytes).min(body.len());
        let piece = body[pending.sent..until].to_vec();
        pending.sent = until;
        if !piece.is_empty() {
            self.world.bring(exchange, &piece);
        }
    }

    /// The worker hears the end of its use.
    fn end(&mut self, rank: u32, part: u32, access: Access, outcome: Outcome) {
        let seed = self.seed;
        let version = match outcome {
            Outcome::Rejected(error) if error.retryable() => {
                self.pending(rank, part).exchange = None;
                return;
            }
            Outcome::Rejected(error) => {
                let is_early = access == Access::Pull && error.to_string().contains("initialised");
                assert!(is_early, "seed {seed}: {access} of {rank}: {error}");
                self.users.get_mut(&(rank, part)).expect("it is a user").pending = None;
                return;
            }
            Outcome::Done(effect) => effect.version.0,
            answered @ Outcome::Answered { .. } => {
                let (version, value) = answered.value();
                assert!(value.iter().all(|element| *element == value[0]), "seed {seed}: torn: {value:?}");
                assert_eq!(version, 1 + pushes(value[0]), "seed {seed}: the version of another value");
                version
            }
        };
        let user = self.users.get_mut(&(rank, part)).expect("it is a user");
        user.pending = None;
        user.initialised = true;
        user.pushed += u64::from(matches!(access, Access::Push(_) | Access::PushPull(_)));
        if access != INIT {
            assert!(version >= user.seen, "seed {seed}: version {version} after {}", user.seen);
            user.seen = version;
        }
    }

    fn open(&mut self, rank: u32, number: u32, access: Access, round: u64, overwritten: bool) -> ExchangeId {
        let header = to_do(access, round);
        let target = Target { part: PartId { index: number, ..part() }, ..header.target };
        let sent = if overwritten { Sent::Nothing { checked: false } } else { header.sent };
        self.world.open(rank, Use { target, sent, ..header })
    }

    fn pending(&mut self, rank: u32, part: u32) -> &mut Pending {
        self.users.get_mut(&(rank, part)).and_then(|user| user.pending.as_mut()).expect("it has one")
    }

    /// SplitMix64.
    fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).expect("below the bound")
    }
}

/// How many pushes made a value.
fn pushes(value: f32) -> u64 {
    (0..WORKERS).map(|rank| (value / unit(rank)) as u64 % 16).sum()
}

/// What one push of a worker adds.
fn unit(rank: u32) -> f32 {
    16_f32.powi(i32::try_from(rank).expect("a small rank"))
}
