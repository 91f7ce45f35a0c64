//! Clocks and servers together: a few workers, the clocks of the coordinator, and two servers, in every order that a seed draws.
//!
//! The first K workers close each round. Worker w brings 16^w as its gradient, and the rule takes the sum away from the value, so that the
//! hexadecimal digits of a value are the rounds in which each worker was. In half of the plays the sum is clipped by the norm over both
//! servers. What the coordinator has closed is replayed in a few lines here, and each value that a worker reads must be that of its version, to
//! the bit, on both servers.

use std::collections::VecDeque;
use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::types::{
    Access, ClockKey, Closing, DType, Effect, ExchangeId, Fate, Half, Mode, ServerId, Squares, TensorSpec, Tick, Time,
    Update, Version, WorkerId, WorkerSet,
};
use gradlane_core::wire::Use;

use crate::coordinator::clocks::{Clocks, Turn};
use crate::node::parameter::tests::{Outcome, World, floats, rule, to_do};

const SERVERS: usize = 2;
/// Below 16, so that no digit overflows.
const ROUNDS: u64 = 12;

#[test]
fn all_servers_apply_the_gradients_of_the_same_workers_in_each_round() {
    for seed in 0..1000 {
        Play::new(seed).run();
    }
}

struct Play {
    seed: u64,
    random: u64,
    k: u32,
    mode: Mode,
    rule: &'static str,
    clocks: Clocks,
    servers: Vec<World>,
    /// What servers have not heard yet, in order.
    news: Vec<VecDeque<Closing>>,
    /// What each server has said of norms, and the coordinator has not heard yet.
    said: Vec<VecDeque<Squares>>,
    /// All that servers were told of rounds.
    told: Vec<Closing>,
    /// The workers of each round that was closed.
    closed: Vec<WorkerSet>,
    workers: Vec<Worker>,
    requests: u64,
}

#[derive(Default)]
struct Worker {
    is_lost: bool,
    /// The rounds that it knows to be closed.
    known: u64,
    /// Its uses of each server so far.
    uses: [u64; SERVERS],
    doing: Doing,
    /// The rounds in which it was, as it was told.
    was_in: Vec<u64>,
}

/// What a worker does now.
#[derive(Default)]
enum Doing {
    /// It brings its gradient to the servers that still lack it.
    #[default]
    Nothing,
    Pushing {
        done: [bool; SERVERS],
        open: Option<(usize, ExchangeId)>,
    },
    /// It waits for the end of the round.
    Ticking,
    /// It reads the servers that are left, one after the other.
    Pulling {
        server: usize,
        open: Option<ExchangeId>,
    },
    Done,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        let count = 2 + draw(&mut random, 3) as u32;
        let k = 1 + draw(&mut random, u64::from(count)) as u32;
        let mode: Mode = format!("k_of_n:k={k},merge=sum").parse().expect("a mode");
        let mode = mode.with_clock(ClockKey::of("c"));
        let rule = if seed.is_multiple_of(2) { "sgd:lr=1" } else { CLIPPED };
        let mut play = Self {
            seed,
            random,
            k,
            mode,
            rule,
            clocks: Clocks::new(count, SERVERS as u32, Duration::from_secs(60), None),
            servers: (0..SERVERS).map(|_| World::of(count)).collect(),
            news: vec![VecDeque::new(); SERVERS],
            said: vec![VecDeque::new(); SERVERS],
            told: Vec::new(),
            closed: Vec::new(),
            workers: (0..count).map(|_| Worker::default()).collect(),
            requests: 0,
        };
        let tensor = TensorSpec::parameter("w", DType::F32, vec![4]);
        let tensor = tensor.with_rule(rule.parse().expect("a rule")).with_mode(mode);
        play.clocks.declare(WorkerId(0), &[tensor]);
        for server in 0..SERVERS {
            let init = play.header(Access::Init, 0, 0);
            let exchange = play.servers[server].open(0, init);
            play.servers[server].bring(exchange, &floats([0.0; 4]));
            play.servers[server].outcome(exchange);
        }
        play
    }

    fn run(mut self) {
        // Where some are left over, one may be lost.
        let loses = self.workers.len() as u32 > self.k && self.draw(2) == 0;
        let mut until_loss = if loses { self.draw(300) } else { u64::MAX };
        for _ in 0..100_000 {
            if self.workers.iter().all(|worker| worker.is_lost || matches!(worker.doing, Doing::Done)) {
                return self.check_end();
            }
            until_loss = until_loss.saturating_sub(1);
            if until_loss == 0 {
                until_loss = u64::MAX;
                self.lose_one();
            }
            match self.draw(5) {
                0 => self.tell_news(),
                1 => self.hear_squares(),
                _ => {
                    let worker = self.draw(self.workers.len() as u64) as usize;
                    self.work(worker);
                }
            }
        }
        panic!("seed {}: it does not end", self.seed);
    }

    /// A server hears what the coordinator said next, or again what it knows.
    fn tell_news(&mut self) {
        let server = self.draw(SERVERS as u64) as usize;
        let again = self.draw(8 * (1 + self.told.len() as u64)) as usize;
        let Some(told) = self.news[server].pop_front().or_else(|| self.told.get(again).cloned()) else { return };
        self.tell(server, told);
    }

    fn tell(&mut self, server: usize, told: Closing) {
        self.servers[server].node.handle_member(MemberEvent::Close(told));
        self.servers[server].settle();
        let measured = std::mem::take(&mut self.servers[server].measured);
        self.said[server].extend(measured);
    }

    /// The coordinator hears what a server said next, perhaps twice.
    fn hear_squares(&mut self) {
        let (server, times) = (self.draw(SERVERS as u64) as usize, 1 + self.draw(2));
        let Some(squares) = self.said[server].pop_front() else { return };
        for _ in 0..times {
            let turn = self.clocks.take_squares(Time::ZERO, ServerId(server as u32), squares);
            self.obey(turn);
        }
    }

    fn lose_one(&mut self) {
        let lost = self.draw(self.workers.len() as u64) as usize;
        self.workers[lost].is_lost = true;
        let due: WorkerSet = self.present().collect();
        let turn = self.clocks.set_due(Time::ZERO, due, (0..SERVERS as u32).map(ServerId).collect());
        self.obey(turn);
    }

    fn present(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let present = self.workers.iter().enumerate().filter(|(_, worker)| !worker.is_lost);
        present.map(|(rank, _)| WorkerId(rank as u32))
    }

    fn work(&mut self, rank: usize) {
        let (is_lost, round) = (self.workers[rank].is_lost, self.workers[rank].known + 1);
        if is_lost {
            return;
        }
        self.workers[rank].doing = match std::mem::take(&mut self.workers[rank].doing) {
            Doing::Nothing if round > ROUNDS => Doing::Done,
            Doing::Nothing => Doing::Pushing { done: [false; SERVERS], open: None },
            Doing::Pushing { done, open: None } if done == [true; SERVERS] => {
                self.workers[rank].doing = Doing::Ticking;
                return self.tick(rank, round);
            }
            Doing::Pushing { done, open: None } => {
                let lacking: Vec<usize> = (0..SERVERS).filter(|server| !done[*server]).collect();
                let server = lacking[self.draw(lacking.len() as u64) as usize];
                self.workers[rank].uses[server] += 1;
                Doing::Pushing { done, open: Some((server, self.push(rank, server, round))) }
            }
            Doing::Pushing { mut done, open: Some((server, exchange)) } => {
                if self.draw(4) == 0 {
                    // The connection breaks, before or after the rest came, and the gradient is brought again.
                    if self.draw(2) == 0 {
                        self.servers[server].bring(exchange, &gradient(rank)[HALF..]);
                    }
                    self.servers[server].tear(exchange);
                    Doing::Pushing { done, open: Some((server, self.push(rank, server, round))) }
                } else {
                    self.servers[server].bring(exchange, &gradient(rank)[HALF..]);
                    let Outcome::Done(Effect { fate, .. }) = self.servers[server].outcome(exchange) else {
                        panic!("seed {}: a push is answered", self.seed);
                    };
                    let is_late = round <= self.closed.len() as u64;
                    assert!(fate == Fate::Kept || fate == Fate::DroppedLate && is_late, "seed {}", self.seed);
                    done[server] = true;
                    Doing::Pushing { done, open: None }
                }
            }
            Doing::Ticking => Doing::Ticking,
            Doing::Pulling { server: SERVERS, .. } => Doing::Nothing,
            Doing::Pulling { server, open: None } => {
                self.workers[rank].uses[server] += 1;
                let pull = self.header(Access::Pull, self.workers[rank].uses[server], round - 1);
                Doing::Pulling { server, open: Some(self.servers[server].open(rank as u32, pull)) }
            }
            Doing::Pulling { server, open: Some(exchange) } => match self.servers[server].poll(exchange) {
                Some(outcome) => {
                    self.check_value(outcome.value(), round - 1);
                    Doing::Pulling { server: server + 1, open: None }
                }
                None => Doing::Pulling { server, open: Some(exchange) },
            },
            Doing::Done => Doing::Done,
        };
    }

    fn push(&mut self, rank: usize, server: usize, round: u64) -> ExchangeId {
        let push = self.header(Access::Push(Update::Step), self.workers[rank].uses[server], round);
        let exchange = self.servers[server].open(rank as u32, push);
        self.servers[server].bring(exchange, &gradient(rank)[..HALF]);
        exchange
    }

    fn tick(&mut self, rank: usize, round: u64) {
        self.requests += 1;
        let wait = Some(Duration::from_secs(60));
        let tick = Tick { clock: "c".to_owned(), mode: self.mode, round, samples: 1, leaves: false, wait };
        let turn = self.clocks.tick(Time::ZERO, WorkerId(rank as u32), self.requests, tick);
        self.obey(turn);
    }

    fn obey(&mut self, turn: Turn) {
        for closing in turn.closed {
            match &closing.half {
                Half::Workers { workers, clips, .. } => {
                    assert_eq!((workers.len(), *clips), (self.k as usize, self.rule == CLIPPED), "seed {}", self.seed);
                    self.closed.push(workers.clone());
                }
                Half::Norm(norm) => assert_eq!(*norm, norm_of(&self.closed[closing.round as usize - 1])),
            }
            assert_eq!(closing.round, self.closed.len() as u64, "seed {}: in order", self.seed);
            self.news.iter_mut().for_each(|news| news.push_back(closing.clone()));
            self.told.push(closing);
        }
        for answer in turn.answers {
            let ticked = answer.outcome.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
            let worker = &mut self.workers[answer.worker.0 as usize];
            let of = worker.known + 1;
            let was_in = self.closed[of as usize - 1].contains(answer.worker);
            assert_eq!(ticked.fate == Fate::Accepted, was_in, "seed {}: what it is told", self.seed);
            if was_in {
                worker.was_in.push(of);
            }
            worker.known = ticked.round;
            worker.doing = Doing::Pulling { server: 0, open: None };
        }
    }

    /// A value is that of its version, and has all rounds that its reader knows of.
    fn check_value(&self, (version, value): (u64, Vec<f32>), known: u64) {
        assert!(version > known, "seed {}: version {version} lacks round {known}", self.seed);
        assert_eq!(value, [self.replayed(version - 1); 4], "seed {}: version {version}", self.seed);
    }

    /// The value after so many rounds.
    fn replayed(&self, rounds: u64) -> f32 {
        let factor = |workers| match self.rule {
            CLIPPED => (CLIP / (norm_of(workers) + 1e-6)).min(1.0) as f32,
            _ => 1.0,
        };
        let rounds = self.closed[..rounds as usize].iter();
        rounds.fold(0.0, |value, workers| value - sum_of(workers) * factor(workers))
    }

    fn check_end(mut self) {
        for server in 0..SERVERS {
            while let Some(told) = self.news[server].pop_front() {
                self.tell(server, told);
            }
            let rank = self.present().next().expect("not all are lost").0;
            let round = self.workers[rank as usize].uses[server] + 1;
            let pull = self.header(Access::Pull, round, self.closed.len() as u64);
            let exchange = self.servers[server].open(rank, pull);
            let (version, value) = self.servers[server].outcome(exchange).value();
            assert_eq!(version, 1 + self.closed.len() as u64, "seed {}", self.seed);
            assert_eq!(value, [self.replayed(version - 1); 4], "seed {}", self.seed);
        }
        for (rank, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.is_lost) {
            let was_in = |(_, workers): &(u64, &WorkerSet)| workers.contains(WorkerId(rank as u32));
            let rounds: Vec<u64> = (1..).zip(&self.closed).filter(was_in).map(|(round, _)| round).collect();
            assert_eq!(worker.was_in, rounds, "seed {}: worker {rank}", self.seed);
        }
    }

    fn header(&self, access: Access, use_round: u64, clock_at: u64) -> Use {
        Use { rule: rule(self.rule), mode: self.mode, clock_at, basis: Version(0), ..to_do(access, use_round) }
    }

    fn draw(&mut self, below: u64) -> u64 {
        draw(&mut self.random, below)
    }
}

const CLIPPED: &str = "sgd:lr=1,clip_norm=20";
/// Most rounds are above it, and some are below.
const CLIP: f64 = 20.0;

/// What these workers bring together, in each element.
fn sum_of(workers: &WorkerSet) -> f32 {
    workers.iter().map(|worker| 16.0_f32.powi(worker.0 as i32)).sum()
}

/// The norm over the elements of all servers.
fn norm_of(workers: &WorkerSet) -> f64 {
    let square = f64::from(sum_of(workers)).powi(2);
    (square * 4.0 * SERVERS as f64).sqrt()
}

/// Bytes of a gradient that come first.
const HALF: usize = 8;

fn gradient(rank: usize) -> Vec<u8> {
    floats([16.0_f32.powi(rank as i32); 4])
}

fn draw(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % below
}
