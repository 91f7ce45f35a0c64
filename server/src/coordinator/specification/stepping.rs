//! Boundaries between steps: where workers leave, and hear of losses.

use gradlane_core::types::{Passage, StepReport};

use super::*;

#[test]
fn a_worker_leaves_behind_the_step_that_the_furthest_has_begun() {
    let mut job = stepping(3);
    job.say(1, StepReport { begun: 4, leaves: true, ..at_change(0) });
    for link in 0..3 {
        assert_eq!(job.received(link), [Frame::Boundary { change: 1, limit: None, hold: None }]);
    }
    for (link, begun) in [(0, 4), (1, 4), (2, 5)] {
        assert_eq!(job.received(0), [], "not all have answered");
        job.say(link, StepReport { begun, leaves: link == 1, ..at_change(1) });
    }
    for link in 0..3 {
        assert_eq!(job.received(link), [Frame::Boundary { change: 1, limit: Some(5), hold: None }]);
    }
    for link in 0..3 {
        assert_eq!(job.received(0), [], "not all stand");
        job.say(link, StepReport { begun: 5, stands: true, leaves: link == 1, ..at_change(1) });
    }
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, job.ranks()), (2, vec![0, 2]));
    let passage =
        Passage { step: 5, workers: [0, 2].map(WorkerId).into_iter().collect(), leaves: false, forms_again: false };
    let passed = |passage| Frame::Passed { change: 1, outcome: Ok(passage) };
    for link in [0, 2] {
        assert_eq!(job.received(link), [Frame::View(view.clone()), passed(passage.clone())], "the view comes first");
    }
    assert_eq!(job.received(SERVER), [Frame::View(view)]);
    assert_eq!(job.received(1), [passed(Passage { leaves: true, ..passage })]);
    job.frame(1, Frame::Leave);
    job.beat_until(30, &[0, 2, SERVER]);
    assert_eq!(job.coordinator.view().phase, Phase::Running, "its silence is no loss");
}

#[test]
fn all_workers_that_are_asked_to_leave_at_once_do_so_at_one_step_and_the_job_ends_in_order() {
    let mut job = stepping(2);
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, leaves: true, ..at_change(0) });
    }
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, leaves: true, ..at_change(1) });
    }
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, leaves: true, stands: true, ..at_change(1) });
    }
    for link in 0..2 {
        let frames = job.received(link);
        assert!(
            matches!(&frames[2..], [Frame::Passed { outcome: Ok(Passage { leaves: true, .. }), .. }]),
            "{frames:?}"
        );
    }
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
    job.frame(SERVER, Frame::Leave);
    job.drain();
    assert_eq!(job.events.last(), Some(&Event::Finished(Ok(()))), "it does not wait for those that have left");
}

#[test]
fn a_loss_is_told_to_all_that_are_left_behind_one_step() {
    let mut job = stepping(3);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    for link in [0, 2] {
        assert_eq!(job.received(link)[1..], [Frame::Boundary { change: 1, limit: None, hold: None }]);
        job.say(link, StepReport { begun: 1, ..at_change(1) });
    }
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, stands: true, ..at_change(1) });
    }
    let passage =
        Passage { step: 1, workers: [0, 2].map(WorkerId).into_iter().collect(), leaves: false, forms_again: false };
    let passed = Frame::Passed { change: 1, outcome: Ok(passage) };
    for link in [0, 2] {
        assert_eq!(job.received(link), [Frame::Boundary { change: 1, limit: Some(1), hold: None }, passed.clone()]);
    }
}

#[test]
fn a_loss_while_the_others_stand_makes_the_boundary_wait_for_one_less() {
    let mut job = stepping(3);
    job.say(0, StepReport { begun: 1, leaves: true, ..at_change(0) });
    for link in 0..3 {
        job.say(link, StepReport { begun: 1, leaves: link == 0, ..at_change(1) });
    }
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, leaves: link == 0, stands: true, ..at_change(1) });
    }
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(job.ranks(), [2]);
    let passage =
        Passage { step: 1, workers: [2].map(WorkerId).into_iter().collect(), leaves: false, forms_again: false };
    assert_eq!(job.received(2).last(), Some(&Frame::Passed { change: 1, outcome: Ok(passage) }));
}

#[test]
fn nobody_waits_for_a_worker_that_rests_unless_it_wants_to_leave() {
    let mut job = stepping(2);
    job.say(0, StepReport { begun: 1, leaves: true, ..at_change(0) });
    job.say(1, StepReport { begun: 1, rests: true, ..at_change(1) });
    job.say(0, StepReport { begun: 1, leaves: true, ..at_change(1) });
    job.say(0, StepReport { begun: 1, leaves: true, stands: true, ..at_change(1) });
    assert_eq!(job.ranks(), [1]);

    let mut job = stepping(2);
    job.say(0, StepReport { begun: 1, leaves: true, ..at_change(0) });
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, leaves: link == 0, rests: link == 0, ..at_change(1) });
    }
    let dropped = Frame::Passed { change: 1, outcome: Err(Error::Cancelled) };
    assert_eq!((job.ranks(), job.received(1).pop()), (vec![0, 1], Some(dropped)));
    job.received(0);
    job.say(0, StepReport { begun: 2, leaves: true, ..at_change(1) });
    assert_eq!(job.received(0), [Frame::Boundary { change: 2, limit: None, hold: None }], "it is in a step again");
}

#[test]
fn a_worker_that_has_left_in_order_hears_of_no_boundary() {
    let mut job = stepping(3);
    job.say(2, StepReport { begun: 7, rests: true, ..at_change(0) });
    job.frame(2, Frame::Leave);
    assert!(
        matches!(job.received(2)[..], [Frame::View(_)]),
        "the others would stop before the steps that it has begun"
    );
    assert_eq!(job.received(0).pop(), Some(Frame::Boundary { change: 1, limit: None, hold: None }));
    job.disconnect(2);
    job.join_as(7, 2, worker(2));
    assert!(matches!(job.received(7)[..], [Frame::View(_)]));
}

#[test]
fn a_leaver_that_rests_does_not_keep_the_others_from_a_boundary() {
    let mut job = stepping(3);
    job.say(0, StepReport { begun: 1, leaves: true, rests: true, ..at_change(0) });
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, leaves: link == 0, rests: link == 0, ..at_change(1) });
    }
    job.say(2, StepReport { begun: 1, stands: true, ..at_change(1) });
    let passage =
        Passage { step: 1, workers: [0, 2].map(WorkerId).into_iter().collect(), leaves: false, forms_again: false };
    let told = job.received(0);
    assert_eq!(told.last(), Some(&Frame::Passed { change: 1, outcome: Ok(passage) }), "the loss is told once");
    job.say(0, StepReport { begun: 2, leaves: true, ..at_change(1) });
    assert_eq!(job.received(0), [Frame::Boundary { change: 2, limit: None, hold: None }], "it is in a step again");
}

#[test]
fn a_script_that_counts_no_steps_has_no_boundary() {
    let mut job = stepping(3);
    let mut idle = form(job_of(CoordinatorConfig { policy: Policy::CONTINUE, ..config(2) }), 2);
    idle.say(0, StepReport { begun: 1, leaves: true, ..at_change(0) });
    assert_eq!(idle.received(0), [], "the other one has begun no step");
    job.coordinator.handle_death(job.now, 10, "s0", "killed".to_owned());
    job.say(0, StepReport { begun: 2, leaves: true, ..at_change(0) });
    assert_eq!(job.received(0).len(), 1, "the view of the end");
}

#[test]
fn a_worker_that_does_not_come_to_the_end_of_its_step_is_given_up() {
    let mut job = stepping(2);
    job.say(1, StepReport { begun: 1, leaves: true, ..at_change(0) });
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, leaves: link == 1, ..at_change(1) });
    }
    job.beat_until(16, &[0, 1, SERVER]);
    assert_eq!(job.ranks(), [0]);
    let cause = "it wanted to leave, and did not come to the end of its step within 15.0 s";
    assert!(job.events.iter().any(|event| matches!(event, Event::Dead { cause: of, .. } if of == cause)));
}

#[test]
fn those_that_stand_do_not_wait_for_ever_and_hear_for_whom_they_waited() {
    let config = CoordinatorConfig { boundary_timeout: 3 * SECOND, policy: Policy::CONTINUE, ..config(3) };
    let mut job = form(job_of(config), 3);
    (0..3).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(0) }));
    job.coordinator.handle_death(job.now, 12, "n2", "killed".to_owned());
    (0..2).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(1) }));
    job.say(0, StepReport { begun: 1, stands: true, ..at_change(1) });
    job.received(0);
    job.beat_until(4, &[0, 1, SERVER]);
    let told = job.received(0);
    let Some(Frame::Passed { change: 1, outcome: Err(error) }) =
        told.iter().find(|frame| matches!(frame, Frame::Passed { .. }))
    else {
        panic!("{told:?}")
    };
    let text = "the boundary behind step 1: waiting for worker 1 on n1 (pid 11): not done after 3.0 s";
    assert_eq!(error.to_string(), text);
    let again = Frame::Boundary { change: 2, limit: None, hold: None };
    assert!(told.contains(&again), "the loss is still to be told: {told:?}");
}

#[test]
fn those_that_stand_wait_anew_for_the_others_if_another_coordinator_goes_on_with_the_job() {
    let config =
        || CoordinatorConfig { journals: true, boundary_timeout: 6 * SECOND, policy: Policy::CONTINUE, ..config(3) };
    let mut job = form(job_of(config()), 3);
    (0..3).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(0) }));
    job.coordinator.handle_death(job.now, 12, "n2", "killed".to_owned());
    (0..2).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(1) }));
    job.say(0, StepReport { begun: 1, stands: true, ..at_change(1) });
    job.beat_until(5, &[0, 1, SERVER]);
    job.say(1, StepReport { begun: 1, leaves: true, ..at_change(1) });
    let mut job = taken_up(job, config());
    let is_over = |job: &mut Job| {
        job.received(30).iter().any(|frame| matches!(frame, Frame::Passed { outcome: Err(Error::Timeout { .. }), .. }))
    };
    job.beat_until(10, &[30, 31, 32]);
    assert!(!is_over(&mut job));
    job.beat_until(12, &[30, 31, 32]);
    assert!(is_over(&mut job));
}

#[test]
fn who_wants_to_leave_has_its_time_anew_if_another_coordinator_goes_on_with_the_job() {
    let config =
        || CoordinatorConfig { journals: true, leave_grace: 6 * SECOND, policy: Policy::CONTINUE, ..config(2) };
    let mut job = form(job_of(config()), 2);
    (0..2).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(0) }));
    job.say(1, StepReport { begun: 1, leaves: true, ..at_change(0) });
    job.beat_until(5, &[0, 1, SERVER]);
    // Something that is written down with its time.
    job.frame(0, barrier(1));
    let mut job = taken_up(job, config());
    let workers = |job: &Job| job.coordinator.view().workers().count();
    job.beat_until(10, &[30, 31, 32]);
    assert_eq!(workers(&job), 2, "it may stand at the boundary already, and say so only now");
    job.beat_until(12, &[30, 31, 32]);
    assert_eq!(workers(&job), 1);
}

#[test]
fn who_reconnects_hears_how_far_it_may_go_and_one_that_has_left_that_it_has() {
    let mut job = stepping(2);
    job.say(1, StepReport { begun: 1, leaves: true, ..at_change(0) });
    job.disconnect(0);
    job.join_as(7, 0, worker(0));
    let frames = job.received(7);
    assert!(
        matches!(frames[..], [Frame::View(_), Frame::Boundary { change: 1, limit: None, hold: None }]),
        "{frames:?}"
    );
    for (link, leaves) in [(7, false), (1, true)] {
        job.say(link, StepReport { begun: 1, leaves, ..at_change(1) });
    }
    for (link, leaves) in [(7, false), (1, true)] {
        job.say(link, StepReport { begun: 1, leaves, stands: true, ..at_change(1) });
    }
    job.disconnect(1);
    job.join_as(8, 1, worker(1));
    let passage =
        Passage { step: 1, workers: [0].map(WorkerId).into_iter().collect(), leaves: true, forms_again: false };
    let frames = [Frame::Passed { change: 1, outcome: Ok(passage) }];
    assert_eq!(job.received(8), frames, "as the others heard it");
    job.disconnect(8);
    job.join_as(10, 1, worker(1));
    assert_eq!(job.received(10), frames, "it hears it as often as it connects");
    job.join_as(9, 0, worker(0));
    let frames = job.received(9);
    assert!(matches!(frames[..], [Frame::View(_), Frame::Passed { change: 1, outcome: Ok(_) }]), "{frames:?}");
}

#[test]
fn with_the_policy_to_abort_a_worker_that_wants_to_leave_hears_that_it_cannot() {
    let mut job = formed(2);
    job.say(0, StepReport { begun: 1, leaves: true, ..at_change(0) });
    let frames = job.received(0);
    let [Frame::Passed { change: 0, outcome: Err(error) }] = &frames[..] else { panic!("{frames:?}") };
    assert!(error.to_string().contains("on_worker_loss"), "{error}");
}

#[test]
fn impossible_reports_cost_the_connection() {
    let bad = [
        StepReport { begun: 2, change: 9, ..StepReport::default() },
        StepReport { begun: 0, ..at_change(0) },
        StepReport { begun: 7, ..at_change(1) },
        StepReport { begun: 3, stands: true, ..at_change(1) },
    ];
    for report in bad {
        let mut job = stepping(2);
        job.say(1, StepReport { begun: 4, leaves: true, ..at_change(0) });
        job.say(0, StepReport { begun: 2, ..at_change(1) });
        job.say(1, StepReport { begun: 4, leaves: true, ..at_change(1) });
        job.say(0, report);
        assert!(matches!(job.closed(0), Error::Protocol { .. }), "{report:?}");
    }
}

/// A job in which each worker has begun a step.
pub(super) fn stepping(workers: u32) -> Job {
    stepping_as(CoordinatorConfig { policy: Policy::CONTINUE, ..config(workers) })
}

/// The same with these settings.
pub(super) fn stepping_as(config: CoordinatorConfig) -> Job {
    let workers = config.workers;
    let mut job = form(job_of(config), workers);
    (0..u64::from(workers)).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(0) }));
    job
}

pub(super) fn at_change(change: u64) -> StepReport {
    StepReport { change, ..StepReport::default() }
}

impl Job {
    pub(super) fn say(&mut self, link: u64, report: StepReport) {
        self.frame(link, Frame::Steps(report));
    }
}
