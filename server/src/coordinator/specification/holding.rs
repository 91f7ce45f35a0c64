//! The policy to wait: workers that are too few hold behind their step until others have come.

use gradlane_core::config::OnServerLoss;
use gradlane_core::types::{Passage, StepReport};
use gradlane_core::wire::frame::{Forming, Hold};

use super::stepping::{at_change, stepping_as};
use super::*;

/// The number of the first newcomer, and its link.
const NEW: u64 = 7;

#[test]
fn the_workers_that_are_left_hold_behind_their_step_until_another_one_comes() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    let hold = Hold { there: 2, needed: 3, lost: lost_names(&[1]), patience: 9 * SECOND };
    let held = Frame::Boundary { change: 1, limit: Some(1), hold: Some(hold.clone()) };
    for link in [0, 2] {
        assert_eq!(job.received(link).last(), Some(&held), "it does not pass");
    }
    assert_eq!(job.coordinator.status(job.now).hold, Some(hold.clone()));
    let Hold { there, needed, lost, patience } = hold;
    assert_eq!(job.events.last(), Some(&Event::Holds { there, needed, lost, patience }));
    job.beat_until(8, &[0, 2, SERVER]);
    assert_eq!(job.coordinator.status(job.now).hold.unwrap().patience, SECOND);

    job.join(NEW, worker(NEW as u32));
    let again =
        Passage { step: 1, workers: [0, 2].map(WorkerId).into_iter().collect(), leaves: true, forms_again: true };
    for link in [0, 2] {
        assert_eq!(job.received(link).last(), Some(&Frame::Passed { change: 1, outcome: Ok(again.clone()) }));
    }
    assert_eq!(job.coordinator.status(job.now).hold, None);
    form_again(&mut job, &[0, 2]);
    assert_eq!(job.ranks(), [100, 102, NEW.into()]);
    assert_eq!(job.received(NEW).len(), 1, "the view alone: nobody holds any more");
}

#[test]
fn if_nobody_comes_every_member_gets_the_same_error_which_names_those_that_were_lost() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    job.beat_until(9, &[0, 2, SERVER]);
    let lost = vec!["worker 1 on n1 (pid 11): killed".to_owned()];
    let cause = Error::QuorumLost { there: 2, needed: 3, lost, waited: 9 * SECOND };
    for link in [0, 2, SERVER] {
        let told = job.received(link);
        let is_it =
            |frame: &Frame| matches!(frame, Frame::View(View { phase: Phase::Aborted(error), .. }) if *error == cause);
        assert!(told.iter().any(is_it), "{told:?}");
    }
    assert!(job.events.contains(&Event::Ends { reason: "too few workers were left, and no others came" }));
}

#[test]
fn the_step_under_way_ends_as_without_the_policy_and_its_time_is_not_that_of_the_hold() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    job.say(0, StepReport { begun: 1, ..at_change(1) });
    job.say(2, StepReport { begun: 1, ..at_change(1) });
    job.say(0, StepReport { begun: 1, stands: true, ..at_change(1) });
    assert_eq!(job.coordinator.status(job.now).hold, None, "worker 2 is in its step");
    job.beat_until(4, &[0, 2, SERVER]);
    job.say(2, StepReport { begun: 1, stands: true, ..at_change(1) });
    assert_eq!(job.coordinator.status(job.now).hold.unwrap().patience, 9 * SECOND);
}

#[test]
fn several_are_waited_for_and_taken_in_together() {
    let mut job = waiting(4);
    kill(&mut job, 1);
    kill(&mut job, 2);
    stand(&mut job, 1, &[0, 3]);
    job.join(NEW, worker(NEW as u32));
    let Some(Frame::Boundary { hold: Some(hold), .. }) = job.received(0).pop() else { panic!("it holds") };
    assert_eq!((hold.there, hold.needed), (3, 4));
    job.frame(NEW, Frame::StatusRequest);
    let told = job.received(NEW);
    let [Frame::Forming(Forming { missing, .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!(missing.to_string(), "workers: 1 more, for which the others hold");
    job.join(NEW + 1, worker(NEW as u32 + 1));
    assert!(job.coordinator.forms_again());
}

#[test]
fn a_worker_that_is_lost_meanwhile_is_waited_for_too_and_the_time_goes_on() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    job.beat_until(4, &[0, 2, SERVER]);
    kill(&mut job, 2);
    let told = job.received(0);
    let Some(Frame::Boundary { hold: Some(hold), .. }) = told.last() else { panic!("{told:?}") };
    assert_eq!(*hold, Hold { there: 1, needed: 3, lost: lost_names(&[1, 2]), patience: 5 * SECOND });
    kill(&mut job, 0);
    assert!(matches!(job.coordinator.view().phase, Phase::Aborted(Error::PeerLost { .. })), "nobody is left");
}

#[test]
fn newcomers_that_go_again_change_nothing() {
    let mut job = waiting(4);
    kill(&mut job, 1);
    kill(&mut job, 2);
    job.join(NEW, worker(NEW as u32));
    stand(&mut job, 1, &[0, 3]);
    job.disconnect(NEW);
    job.join(NEW + 1, worker(NEW as u32 + 1));
    assert!(!job.coordinator.forms_again(), "one of two is there");
    let hold = job.coordinator.status(job.now).hold.unwrap();
    assert_eq!((hold.there, hold.needed), (3, 4));
}

#[test]
fn if_newcomers_are_lost_while_the_job_forms_again_the_others_hold_before_they_begin_a_step() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    job.join(NEW, worker(NEW as u32));
    job.disconnect(NEW);
    form_again(&mut job, &[0, 2]);
    assert_eq!(job.ranks(), [100, 102]);
    for link in [ANEW, ANEW + 2] {
        let told = job.received(link);
        let held = Frame::Boundary { change: 1, limit: None, hold: None };
        assert!(matches!(&told[..], [Frame::View(_), last] if *last == held), "{told:?}");
    }
    for link in [ANEW, ANEW + 2] {
        job.say(link, at_change(1));
    }
    for link in [ANEW, ANEW + 2] {
        job.say(link, StepReport { stands: true, ..at_change(1) });
    }
    let hold = Hold { there: 2, needed: 3, lost: lost_names(&[1]), patience: 9 * SECOND };
    assert_eq!(
        job.received(ANEW).last(),
        Some(&Frame::Boundary { change: 1, limit: Some(0), hold: Some(hold) }),
        "it still knows who was lost"
    );
    job.join(NEW + 1, worker(NEW as u32 + 1));
    assert!(job.coordinator.forms_again());
}

#[test]
fn a_member_that_does_not_join_again_is_waited_for() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    job.join(NEW, worker(NEW as u32));
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER, 0].into_iter().for_each(|link| job.come_again(link));
    job.beat_until(11, &[ANEW, ANEW + SERVER, NEW]);
    assert_eq!(job.ranks(), [100, NEW.into()], "nobody waits for it longer than reform_timeout");
    for link in [ANEW, NEW] {
        job.say(link, at_change(1));
    }
    for link in [ANEW, NEW] {
        job.say(link, StepReport { stands: true, ..at_change(1) });
    }
    let hold = job.coordinator.status(job.now).hold.unwrap();
    assert_eq!(hold.lost.listed.last().unwrap(), "worker on n2 (pid 12): it did not join the job again");
}

#[test]
fn a_worker_that_wants_to_leave_while_all_hold_is_let_go_at_once_and_nobody_waits_for_it() {
    let mut job = waiting(4);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2, 3]);
    job.received(0);
    job.say(3, StepReport { begun: 1, stands: true, leaves: true, ..at_change(1) });
    let passage =
        Passage { step: 1, workers: [0, 2].map(WorkerId).into_iter().collect(), leaves: true, forms_again: false };
    assert_eq!(job.received(3).last(), Some(&Frame::Passed { change: 1, outcome: Ok(passage) }));
    assert!(matches!(job.received(0)[..], [Frame::View(_)]), "the others go on holding");
    let hold = job.coordinator.status(job.now).hold.unwrap();
    assert_eq!((hold.there, hold.needed), (2, 3));
    job.join(NEW, worker(NEW as u32));
    form_again(&mut job, &[0, 2]);
    assert_eq!(job.ranks(), [100, 102, NEW.into()]);
    assert_eq!(job.received(ANEW).len(), 1, "three are enough from now on: {:?}", job.coordinator.status(job.now).hold);
}

#[test]
fn all_workers_that_are_asked_to_leave_while_they_hold_do_so_and_the_job_ends_in_order() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, stands: true, leaves: true, ..at_change(1) });
    }
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
}

#[test]
fn workers_that_have_left_in_order_are_not_waited_for() {
    let mut job = waiting(3);
    job.frame(2, Frame::Leave);
    stand(&mut job, 1, &[0, 1]);
    assert!(matches!(job.received(0).last(), Some(Frame::Passed { outcome: Ok(_), .. })), "two of two are there");
}

#[test]
fn who_rests_is_not_held_and_nobody_holds_while_all_rest() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, rests: true, ..at_change(1) });
    }
    job.beat_until(60, &[0, 2, SERVER]);
    assert_eq!((job.coordinator.view().phase, job.coordinator.status(job.now).hold), (Phase::Running, None));
    for link in [0, 2] {
        job.say(link, StepReport { begun: 1, stands: true, ..at_change(1) });
    }
    assert_eq!(job.coordinator.status(job.now).hold.unwrap().patience, 9 * SECOND);
}

#[test]
fn a_script_that_counts_no_steps_is_never_held() {
    let mut job = form(job_of(config_of(3)), 3);
    kill(&mut job, 1);
    job.beat_until(60, &[0, 2, SERVER]);
    assert_eq!((job.coordinator.view().phase, job.coordinator.status(job.now).hold), (Phase::Running, None));
    assert!(matches!(job.received(0)[..], [Frame::View(_), ..]));
}

#[test]
fn a_job_that_keeps_parameters_ends_with_the_loss_and_says_why() {
    let mut job = waiting(3);
    let tensor = TensorSpec::parameter("p", DType::F32, vec![4]);
    job.frame(0, Frame::Declare { request: 1, tensors: vec![tensor], fuse: false });
    kill(&mut job, 1);
    let Phase::Aborted(Error::PeerLost { member, cause, .. }) = job.coordinator.view().phase else {
        panic!("it ended")
    };
    assert_eq!(member, "worker 1");
    assert!(cause.contains("keeps parameters on servers"), "{cause}");
}

#[test]
fn who_connects_again_hears_that_it_holds() {
    let mut job = waiting(3);
    kill(&mut job, 1);
    stand(&mut job, 1, &[0, 2]);
    job.disconnect(0);
    job.join_as(20, 0, worker(0));
    let told = job.received(20);
    assert!(matches!(&told[..], [Frame::View(_), Frame::Boundary { hold: Some(_), .. }]), "{told:?}");
}

#[test]
fn a_coordinator_that_is_started_again_goes_on_holding_and_knows_what_came_before() {
    let journalling = || CoordinatorConfig { journals: true, ..config_of(4) };
    let mut job = stepping_as(journalling());
    job.say(3, StepReport { begun: 1, leaves: true, ..at_change(0) });
    for link in 0..4 {
        job.say(link, StepReport { begun: 1, leaves: link == 3, ..at_change(1) });
    }
    for link in 0..4 {
        job.say(link, StepReport { begun: 1, stands: true, leaves: link == 3, ..at_change(1) });
    }
    kill(&mut job, 1);
    for stands in [false, true] {
        [0, 2].into_iter().for_each(|link| job.say(link, StepReport { begun: 1, stands, ..at_change(2) }));
    }
    job.join(NEW, worker(NEW as u32));
    job.drain();
    let (mut formation, records) = (job, |job: &mut Job| {
        job.drain();
        std::mem::take(&mut job.journal)
    });
    let before = records(&mut formation);
    // All but that the newcomer has come.
    let (recovered, _) = Coordinator::recover(journalling(), before[..before.len() - 1].to_vec()).unwrap();
    let hold = recovered.status(formation.now).hold.unwrap();
    assert_eq!((hold.there, hold.needed, hold.lost), (2, 3, lost_names(&[1])));
    let (recovered, _) = Coordinator::recover(journalling(), before).unwrap();
    assert!(recovered.forms_again(), "it was taken in");

    formation.disconnect(NEW);
    form_again(&mut formation, &[0, 2]);
    let (recovered, _) = Coordinator::recover(journalling(), records(&mut formation)).unwrap();
    assert_eq!(recovered.lasting(), formation.coordinator.lasting());
    let mut after = Job { coordinator: recovered, ..formation };
    for (link, node) in [(30, 0), (31, 2)] {
        after.join_as(link, node, in_life(100 + u128::from(node), worker(node.into())));
        after.say(link, at_change(1));
    }
    for link in [30, 31] {
        after.say(link, StepReport { stands: true, ..at_change(1) });
    }
    let hold = after.coordinator.status(after.now).hold.unwrap();
    assert_eq!((hold.there, hold.needed, hold.lost), (2, 3, lost_names(&[1])), "one had left before");
}

/// The links of the members in the next formation: they connect anew.
const ANEW: u64 = 50;

/// A job that waits 9 s for others, in which each worker has begun a step.
fn waiting(workers: u32) -> Job {
    stepping_as(config_of(workers))
}

fn config_of(workers: u32) -> CoordinatorConfig {
    let policy =
        Policy::Continue { min_workers: workers, rejoin: Some(9 * SECOND), on_server_loss: OnServerLoss::Abort };
    CoordinatorConfig { policy, workers_max: Some(workers), ..config(workers) }
}

fn kill(job: &mut Job, worker: u32) {
    job.coordinator.handle_death(job.now, 10 + worker, &format!("n{worker}"), "killed".to_owned());
}

/// These workers stand behind their first step.
fn stand(job: &mut Job, change: u64, links: &[u64]) {
    for stands in [false, true] {
        links.iter().for_each(|link| job.say(*link, StepReport { begun: 1, stands, ..at_change(change) }));
    }
}

/// The members join the next formation.
fn form_again(job: &mut Job, links: &[u64]) {
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.journal.clear();
    job.coordinator.form_again(TERM + 1, job.now);
    std::iter::once(&SERVER).chain(links).for_each(|link| job.come_again(*link));
}

fn lost_names(workers: &[u32]) -> Names {
    let lost = workers.iter().map(|worker| format!("worker {worker} on n{worker} (pid 1{worker}): killed"));
    Names::first(lost, workers.len())
}
