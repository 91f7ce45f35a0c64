//! The specification of delay compensation, one behaviour a test.

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Code;
use gradlane_core::types::{Access, Effect, Fate, Mode, Phase, Update, Version};
use gradlane_core::wire::Use;

use super::tests::{INIT, Outcome, World, floats, rule, to_do};
use crate::node::aggregate::tests::view;

const STEP: Access = Access::Push(Update::Step);
const STEP_PULL: Access = Access::PushPull(Update::Step);
const BYTES: u64 = 16;

#[test]
fn an_old_gradient_is_corrected_by_what_has_changed_since_its_worker_has_read() {
    let mut job = Job::begun("async:compensate=0.5");
    job.call(0, STEP, (1, 1), 1.0);
    assert_eq!(job.world.booked(), 2 * BYTES, "the value, and the first one");
    job.call(0, STEP, (2, 1), 2.0);
    // 10 - 1 = 9, from which the gradient 2 becomes 2 + 0.5 * 4 * (9 - 10) = 0.
    assert_eq!(job.pull(0, 3), (3, vec![9.0; 4]));
    let late = job.call(1, STEP, (1, 1), 4.0);
    assert!(matches!(late, Outcome::Done(Effect { version: Version(4), fate: Fate::Accepted, lag: 2 })), "{late:?}");
    // 4 + 0.5 * 16 * (9 - 10) = -4.
    assert_eq!(job.pull(1, 2), (4, vec![13.0; 4]));
    assert_eq!(job.pull(0, 4), (4, vec![13.0; 4]));
    assert_eq!(job.world.booked(), BYTES, "nobody computes from an earlier value any more");
}

#[test]
fn a_gradient_is_compensated_before_its_staleness_multiplies_it() {
    let mut job = Job::begun("async:max_staleness=0,beyond=scale,compensate=1");
    job.call(0, STEP, (1, 1), 2.0);
    let late = job.call(1, STEP_PULL, (1, 1), 1.0);
    // 1 + 1 * (8 - 10) = -1, and half of that.
    assert_eq!(late.value(), (3, vec![8.5; 4]));
    assert_eq!(job.pull(0, 2).0, 3);
    assert_eq!(job.world.booked(), BYTES);
}

#[test]
fn changes_that_are_no_gradients_are_done_as_they_are() {
    let mut job = Job::begun("async:compensate=1");
    job.call(0, Access::Push(Update::Assign), (1, 1), 5.0);
    job.call(1, Access::Push(Update::Add), (1, 1), 2.0);
    assert_eq!(job.pull(0, 2), (3, vec![7.0; 4]));
}

#[test]
fn a_gradient_of_another_version_than_its_worker_was_given_is_refused() {
    let mut job = Job::begun("async:compensate=1");
    job.call(0, STEP, (1, 1), 1.0);
    // Worker 1 gives this pull up, and computes from what it had.
    let given_up = job.by(Access::Pull, (1, 1));
    job.world.open(1, given_up);
    let error = job.call(1, STEP, (2, 1), 1.0).error();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains("worker 1 has computed a gradient from version 1"), "{error}");
    assert_eq!(job.pull(1, 3), (2, vec![9.0; 4]));
    job.call(1, STEP, (4, 2), 1.0);
    assert_eq!(job.pull(1, 5), (3, vec![8.0; 4]));
}

#[test]
fn bases_go_with_their_workers_and_with_their_parameter() {
    let mut job = Job::begun("async:compensate=1");
    job.call(0, STEP, (1, 1), 1.0);
    job.pull(0, 2);
    assert_eq!(job.world.booked(), 2 * BYTES, "worker 1 computes from the first value");
    job.world.node.handle_member(MemberEvent::View(view(1, 2, Phase::Running)));
    job.world.settle();
    assert_eq!(job.world.booked(), BYTES);
    let mut job = Job::begun("async:compensate=1");
    job.call(0, STEP_PULL, (1, 1), 1.0);
    let key = to_do(INIT, 0).target.part.key;
    job.world.node.handle_member(MemberEvent::Ended { keys: vec![key], below: 1 });
    job.world.settle();
    assert_eq!((job.world.booked(), job.world.store.values().len()), (0, 0));
}

/// Two workers, and a parameter of this mode.
struct Job {
    world: World,
    mode: Mode,
}

impl Job {
    /// Both have given the first value, 10.
    fn begun(mode: &str) -> Self {
        let mut job = Self { world: World::of(2), mode: mode.parse().unwrap() };
        for rank in [0, 1] {
            job.call(rank, INIT, (0, 0), 10.0);
        }
        job
    }

    fn by(&self, access: Access, (round, basis): (u64, u64)) -> Use {
        Use { rule: rule("sgd:lr=1"), mode: self.mode, basis: Version(basis), ..to_do(access, round) }
    }

    fn call(&mut self, rank: u32, access: Access, said: (u64, u64), element: f32) -> Outcome {
        let exchange = self.world.open(rank, self.by(access, said));
        self.world.bring(exchange, &floats([element; 4]));
        self.world.outcome(exchange)
    }

    fn pull(&mut self, rank: u32, round: u64) -> (u64, Vec<f32>) {
        let exchange = self.world.open(rank, self.by(Access::Pull, (round, 0)));
        self.world.outcome(exchange).value()
    }
}
