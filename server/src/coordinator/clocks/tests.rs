use gradlane_core::types::{ClockKey, DType};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A job of workers that tick one clock.
struct Job {
    clocks: Clocks,
    mode: Mode,
    now: Time,
    requests: u64,
}

const SERVERS: u32 = 2;

impl Job {
    fn new(workers: u32, mode: &str) -> Self {
        let mode = mode.parse::<Mode>().unwrap().with_clock(ClockKey::of("c"));
        Self { clocks: Clocks::new(workers, SERVERS, 10 * SECOND, None), mode, now: Time::ZERO, requests: 0 }
    }

    /// One with a parameter whose gradients are clipped.
    fn clipping(workers: u32, mode: &str) -> Self {
        let mut job = Self::new(workers, mode);
        job.clocks.declare(WorkerId(0), &[job.clipped("w", 1)]);
        job
    }

    fn clipped(&self, name: &str, norm: u32) -> TensorSpec {
        let rule = format!("sgd:clip_norm={norm}").parse().unwrap();
        TensorSpec::parameter(name, DType::F32, vec![1]).with_rule(rule).with_mode(self.mode)
    }

    fn squares(&mut self, server: u32, round: u64, sum: f64) -> Turn {
        self.clocks.take_squares(self.now, ServerId(server), Squares { clock: ClockKey::of("c"), round, sum })
    }

    /// Only these workers are left.
    fn set_due(&mut self, left: &[u32]) -> Turn {
        let left = left.iter().map(|worker| WorkerId(*worker)).collect();
        self.clocks.set_due(self.now, left, (0..SERVERS).map(ServerId).collect())
    }

    fn tick(&mut self, worker: u32, round: u64) -> Turn {
        self.tick_waiting(worker, round, Some(5 * SECOND))
    }

    fn tick_waiting(&mut self, worker: u32, round: u64, wait: Option<Duration>) -> Turn {
        self.requests += 1;
        let tick = Tick { clock: "c".to_owned(), mode: self.mode, round, samples: 10 + round, leaves: false, wait };
        self.clocks.tick(self.now, WorkerId(worker), self.requests, tick)
    }
}

impl Job {
    fn leave(&mut self, worker: u32, round: u64) -> Turn {
        self.requests += 1;
        let tick =
            Tick { clock: "c".to_owned(), mode: self.mode, round, samples: 10 + round, leaves: true, wait: None };
        self.clocks.tick(self.now, WorkerId(worker), self.requests, tick)
    }
}

#[test]
fn a_worker_that_has_no_more_rounds_leaves_and_nobody_waits_for_it() {
    let mut job = Job::new(2, "sync");
    job.tick(0, 1);
    let turn = job.leave(1, 0);
    assert_eq!((closings(&turn), turn.answers.len()), (vec![(1, vec![0])], 2));
    assert_eq!(closings(&job.tick(0, 2)), [(2, vec![0])]);
    assert_eq!(job.leave(1, 0).answers.len(), 1, "a repeat is answered");
    assert!(refusal(&job.tick(1, 3)).contains("after it has left it"));
    let mut job = Job::new(3, "ssp:bound=0");
    job.tick(0, 1);
    job.tick(1, 1);
    assert_eq!(job.leave(2, 0).answers.len(), 3);
    assert_eq!(job.leave(1, 1).answers.len(), 1);
    assert_eq!(told(&job.tick(0, 2)), [(0, 2, 3, 0)]);
    let mut job = Job::new(2, "k_of_n:k=2");
    job.tick(0, 1);
    assert_eq!(closings(&job.leave(1, 0)), [(1, vec![0])], "those that still tick are fewer than two");
    assert_eq!(closings(&job.tick(0, 2)), [(2, vec![0])]);
    let mut job = Job::new(3, "k_of_n:k=2");
    job.clocks.leave(job.now, WorkerId(1));
    job.clocks.leave(job.now, WorkerId(2));
    job.set_due(&[0]);
    assert_eq!(closings(&job.tick(0, 1)), [(1, vec![0])], "they left in order");
    let mut job = Job::new(2, "k_of_n:k=2");
    job.tick(0, 1);
    let lost = job.set_due(&[0]);
    assert!(refusal(&lost).contains("2 workers close a round, and 1 are there"), "one was lost");
}

/// The workers that are answered well, with the rounds, steps and leads that they are told.
fn told(turn: &Turn) -> Vec<(u32, u64, u64, u64)> {
    let of = |answer: &Answer| {
        let ticked = answer.outcome.as_ref().expect("it is answered well");
        (answer.worker.0, ticked.round, ticked.step, ticked.ahead)
    };
    turn.answers.iter().map(of).collect()
}

fn refusal(turn: &Turn) -> String {
    match &turn.answers[..] {
        [Answer { outcome: Err(error), .. }] => error.to_string(),
        answers => panic!("{answers:?}"),
    }
}

fn closings(turn: &Turn) -> Vec<(u64, Vec<u32>)> {
    let of = |closing: &Closing| match &closing.half {
        Half::Workers { workers, .. } => Some((closing.round, workers.iter().map(|worker| worker.0).collect())),
        Half::Norm(_) => None,
    };
    turn.closed.iter().filter_map(of).collect()
}

/// The norms that servers are told, by their rounds.
fn norms(turn: &Turn) -> Vec<(u64, f64)> {
    let of = |closing: &Closing| match closing.half {
        Half::Norm(norm) => Some((closing.round, norm)),
        Half::Workers { .. } => None,
    };
    turn.closed.iter().filter_map(of).collect()
}

#[test]
fn a_worker_that_is_too_far_ahead_waits_for_the_slowest() {
    let mut job = Job::new(2, "ssp:bound=1");
    assert_eq!(told(&job.tick(0, 1)), [(0, 1, 1, 1)]);
    assert_eq!(job.tick(0, 2), Turn::default(), "worker 1 has finished none");
    assert_eq!(told(&job.tick(1, 1)), [(0, 2, 3, 1), (1, 1, 3, 0)], "the step counts the ticks of all");
    assert_eq!(job.tick(0, 3), Turn::default());
    job.now = job.now + 6 * SECOND;
    let late = job.clocks.expire(job.now);
    let error = late[0].outcome.as_ref().unwrap_err().to_string();
    assert!(
        error.contains("clock \"c\", round 3") && error.contains("worker 1, which has finished round 1"),
        "{error}"
    );
    assert_eq!(job.clocks.poll_timeout(), None);
    assert_eq!(job.tick(0, 3), Turn::default(), "it was counted once, and waits again");
    assert_eq!(told(&job.tick(1, 2)), [(0, 3, 5, 1), (1, 2, 5, 0)]);
}

#[test]
fn a_worker_may_ask_how_far_it_is_ahead_and_go_on() {
    let mut job = Job::new(2, "ssp:bound=0");
    assert_eq!(told(&job.tick_waiting(0, 1, None)), [(0, 1, 1, 1)]);
    assert_eq!(told(&job.tick_waiting(0, 2, None)), [(0, 2, 2, 2)]);
    let mut free = Job::new(2, "async");
    assert_eq!(told(&free.tick(1, 1)), [(1, 1, 1, 1)], "nobody waits");
}

#[test]
fn all_workers_close_a_round() {
    let mut job = Job::new(3, "sync");
    assert_eq!(job.tick(2, 1), Turn::default());
    assert_eq!(job.tick(0, 1), Turn::default());
    assert_eq!(job.tick(0, 1), Turn::default(), "the same tick");
    let turn = job.tick(1, 1);
    assert_eq!(closings(&turn), [(1, vec![0, 1, 2])]);
    assert_eq!(told(&turn), [(0, 1, 1, 0), (1, 1, 1, 0), (2, 1, 1, 0)]);
    assert_eq!(told(&job.tick(1, 1)), [(1, 1, 1, 0)], "the answer was lost");
    assert_eq!(job.clocks.told().count(), 1);
}

#[test]
fn the_first_workers_close_a_round_and_the_others_hear_that_they_are_late() {
    let mut job = Job::new(3, "k_of_n:k=2");
    assert_eq!(job.tick(2, 1), Turn::default());
    assert_eq!(closings(&job.tick(0, 1)), [(1, vec![0, 2])]);
    assert_eq!(job.tick(2, 2), Turn::default());
    assert_eq!(closings(&job.tick(0, 2)), [(2, vec![0, 2])]);
    let late = job.tick(1, 1);
    assert_eq!(told(&late), [(1, 2, 2, 0)], "it goes on with round 3");
    assert_eq!(late.answers[0].outcome.as_ref().unwrap().fate, Fate::DroppedLate);
    assert_eq!(job.tick(1, 3), Turn::default());
    assert_eq!(closings(&job.tick(2, 3)), [(3, vec![1, 2])]);
    assert_eq!(job.tick(0, 3).answers[0].outcome.as_ref().unwrap().fate, Fate::DroppedLate);
}

#[test]
fn a_lost_worker_is_not_waited_for_and_its_tick_counts() {
    for mode in ["sync", "k_of_n:k=2"] {
        let mut job = Job::new(3, mode);
        job.tick(2, 1);
        assert_eq!(job.set_due(&[0, 1]), Turn::default());
        let mut closed = closings(&job.tick(0, 1));
        closed.extend(closings(&job.tick(1, 1)));
        let closers = if mode == "sync" { vec![0, 1, 2] } else { vec![0, 2] };
        assert_eq!(closed, [(1, closers)], "{mode}");
    }
    let mut job = Job::new(2, "ssp:bound=0");
    job.tick(0, 1);
    assert_eq!(told(&job.clocks.leave(job.now, WorkerId(1))), [(0, 1, 1, 0)]);
    let mut job = Job::new(2, "sync");
    job.tick(0, 1);
    assert_eq!(closings(&job.clocks.leave(job.now, WorkerId(1))), [(1, vec![0])]);
}

#[test]
fn what_is_wrong_is_refused_and_disturbs_nobody() {
    let mut job = Job::new(2, "k_of_n:k=3");
    assert!(refusal(&job.tick(0, 1)).contains("3 workers close a round, and 2 are there"));
    let mut job = Job::new(2, "sync");
    assert!(refusal(&job.tick(0, 2)).contains("worker 0 ticks round 2, and the last one that was finished is 0"));
    job.tick(0, 1);
    job.mode = "ssp:bound=1".parse::<Mode>().unwrap().with_clock(ClockKey::of("c"));
    let error = refusal(&job.tick(1, 1));
    assert!(["worker 0", "sync", "worker 1", "ssp:bound=1"].iter().all(|word| error.contains(word)), "{error}");
    job.mode = "sync".parse::<Mode>().unwrap().with_clock(ClockKey::of("c"));
    assert_eq!(closings(&job.tick(1, 1)), [(1, vec![0, 1])]);
    let mut job = Job::new(2, "ssp:bound=5");
    told(&job.tick(0, 1));
    assert!(refusal(&job.tick(0, 3)).contains("round 3"), "a clock that leaps");
    told(&job.tick(0, 2));
    assert!(refusal(&job.tick(0, 1)).contains("round 1"), "a clock that goes back");
}

#[test]
fn a_round_that_is_clipped_ends_when_every_server_has_said_its_squares() {
    let mut job = Job::clipping(2, "sync");
    job.tick(0, 1);
    let sealed = job.tick(1, 1);
    assert_eq!((closings(&sealed), sealed.answers.len()), (vec![(1, vec![0, 1])], 0));
    assert!(matches!(sealed.closed[0].half, Half::Workers { clips: true, .. }));
    assert_eq!(job.tick(0, 1), Turn::default(), "said again, it waits");
    assert_eq!(job.squares(1, 1, 16.0), Turn::default());
    assert_eq!(job.squares(1, 1, 7.0), Turn::default(), "the first word counts");
    assert_eq!(job.squares(0, 2, 9.0), Turn::default(), "another round");
    let settled = job.squares(0, 1, 9.0);
    assert_eq!((norms(&settled), told(&settled)), (vec![(1, 5.0)], vec![(0, 1, 1, 0), (1, 1, 1, 0)]));
    assert_eq!(job.squares(0, 1, 9.0), Turn::default(), "a repeat");
    assert_eq!(told(&job.tick(0, 1)), [(0, 1, 1, 0)]);
    assert_eq!(job.clocks.told().count(), 2, "both halves, in order");
    job.clocks.end(&[TensorKey::of("w")]);
    job.tick(0, 2);
    let plain = job.tick(1, 2);
    assert_eq!((closings(&plain), told(&plain).len()), (vec![(2, vec![0, 1])], 2), "nothing is clipped any more");
}

#[test]
fn no_round_is_closed_while_another_one_waits_for_its_norm() {
    let mut job = Job::clipping(3, "k_of_n:k=2");
    job.tick(0, 1);
    assert_eq!(closings(&job.tick(1, 1)), [(1, vec![0, 1])]);
    let late = job.tick(2, 1);
    assert_eq!((told(&late), late.answers[0].outcome.as_ref().unwrap().fate), (vec![(2, 1, 1, 0)], Fate::DroppedLate));
    assert_eq!(job.tick(2, 2), Turn::default());
    // Worker 1 is lost, and is not missed. Its tick counts.
    assert_eq!(job.set_due(&[0, 2]), Turn::default());
    job.squares(0, 1, 0.0);
    let settled = job.squares(1, 1, 4.0);
    assert_eq!((norms(&settled), told(&settled)), (vec![(1, 2.0)], vec![(0, 1, 1, 0)]));
    assert_eq!(closings(&job.tick(0, 2)), [(2, vec![0, 2])]);
}

#[test]
fn a_round_that_became_complete_meanwhile_is_closed_behind_the_norm() {
    let mut job = Job::clipping(3, "k_of_n:k=1");
    assert_eq!(closings(&job.tick(0, 1)), [(1, vec![0])]);
    assert_eq!(told(&job.tick(1, 1)).len(), 1, "too late for round 1");
    assert_eq!(job.tick(1, 2), Turn::default());
    job.squares(0, 1, 9.0);
    let settled = job.squares(1, 1, 0.0);
    assert_eq!((norms(&settled), closings(&settled)), (vec![(1, 3.0)], vec![(2, vec![1])]));
    assert_eq!(told(&settled), [(0, 1, 1, 0)], "worker 1 waits for the norm of round 2");
}

#[test]
fn the_samples_of_a_round_are_those_of_the_workers_that_closed_it() {
    let mut job = Job::new(3, "k_of_n:k=2");
    let samples = |turn: &Turn| match turn.closed[..] {
        [Closing { half: Half::Workers { samples, .. }, .. }] => samples,
        _ => panic!("{turn:?}"),
    };
    job.tick(0, 1);
    job.tick(0, 1);
    assert_eq!(samples(&job.tick(2, 1)), 0, "those of the rounds before");
    job.tick(1, 1);
    job.tick(1, 2);
    assert_eq!(samples(&job.tick(0, 2)), 22, "11 of workers 0 and 2, and none of worker 1, which came late");
    job.tick(0, 3);
    assert_eq!(samples(&job.tick(1, 3)), 22 + 24);
}

#[test]
fn a_server_that_does_not_say_its_squares_is_named() {
    let mut job = Job::clipping(1, "sync");
    job.tick(0, 1);
    job.squares(0, 1, 1.0);
    job.now = job.now + 6 * SECOND;
    let late = job.clocks.expire(job.now);
    let error = late[0].outcome.as_ref().unwrap_err().to_string();
    assert!(error.contains("clock \"c\", round 1: waiting for the squares of server 1"), "{error}");
    assert_eq!(job.tick(0, 1), Turn::default(), "it waits again");
    assert_eq!(told(&job.squares(1, 1, 1.0)), [(0, 1, 1, 0)]);
}

#[test]
fn all_parameters_of_a_clock_are_clipped_to_the_same_norm() {
    let mut job = Job::clipping(2, "sync");
    let [same, other] = [1, 2].map(|norm| job.clipped("v", norm));
    assert_eq!(job.clocks.check(WorkerId(1), &[same]), Ok(()));
    let error = job.clocks.check(WorkerId(1), std::slice::from_ref(&other)).unwrap_err().to_string();
    assert!(
        ["clip_norm", "worker 0", "1 (parameter w)", "worker 1", "2 (parameter v)"]
            .iter()
            .all(|word| error.contains(word)),
        "{error}"
    );
    let twins = [job.clipped("x", 3), job.clipped("y", 4)]
        .map(|tensor| tensor.with_mode("sync".parse::<Mode>().unwrap().with_clock(ClockKey::of("d"))));
    assert!(job.clocks.check(WorkerId(1), &twins).is_err(), "in one declaration");
    assert_eq!(job.clocks.check(WorkerId(1), &twins[..1]), Ok(()), "of another clock");
    job.clocks.end(&[TensorKey::of("w")]);
    assert_eq!(job.clocks.check(WorkerId(1), &[other]), Ok(()), "the first one has ended");
}

#[test]
fn the_end_of_the_job_ends_every_wait() {
    let mut job = Job::new(2, "sync");
    job.tick(0, 1);
    let cause = Error::Cancelled;
    let answers = job.clocks.fail_all(&cause);
    assert_eq!(answers, [Answer { worker: WorkerId(0), request: 1, outcome: Err(cause) }]);
    assert_eq!(job.clocks.poll_timeout(), None);
}

/// No worker is ever further ahead than the bound, and somebody can always go on: a million steps.
#[test]
fn the_bound_holds_in_every_order() {
    for (workers, bound) in [(2, 0), (4, 4), (8, 2), (3, 1)] {
        let mut job = Job::new(workers, &format!("ssp:bound={bound}"));
        let mut finished = vec![0_u64; workers as usize];
        let mut blocked = vec![false; workers as usize];
        let mut random = u64::from(workers) + 7;
        for _ in 0..250_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let worker = (random >> 33) as u32 % workers;
            if blocked[worker as usize] {
                continue;
            }
            finished[worker as usize] += 1;
            blocked[worker as usize] = true;
            for (worker, round, _, ahead) in told(&job.tick(worker, finished[worker as usize])) {
                assert!(ahead <= bound);
                assert_eq!(round, finished[worker as usize]);
                blocked[worker as usize] = false;
            }
            let least = finished.iter().min().unwrap();
            for (done, blocked) in finished.iter().zip(&blocked) {
                assert_eq!(*blocked, done - least > bound, "a worker waits exactly as long as it must");
            }
            assert!(blocked.contains(&false), "somebody can go on");
        }
    }
}
