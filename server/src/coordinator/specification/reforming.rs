//! An elastic job takes in workers: behind a step it forms again.

use gradlane_core::config::OnServerLoss;
use gradlane_core::types::{Passage, StepReport, StoreAnswer, StoreAsk};
use gradlane_core::wire::frame::Forming;

use super::stepping::{at_change, stepping_as};
use super::*;

/// The links of the members in the next formation: they connect anew.
pub(super) const ANEW: u64 = 50;
/// The number of the newcomer, and its link.
const NEW: u64 = 7;

#[test]
fn a_newcomer_waits_until_all_stand_and_the_job_forms_again_with_it_in_ranks_without_gaps() {
    let mut job = elastic(3);
    job.say(1, StepReport { begun: 1, leaves: true, ..at_change(0) });
    job.join(NEW, worker(NEW as u32));
    job.waits(NEW);
    let passage = job.pass_boundary(1, &[0, 1, 2], &[1]);
    let again = Passage { forms_again: true, ..passage.clone() };
    assert_eq!(again.workers, [0, 2].map(WorkerId).into_iter().collect());
    for (link, expected) in [(0, again.clone()), (1, passage), (2, again)] {
        assert_eq!(job.received(link).last(), Some(&Frame::Passed { change: 1, outcome: Ok(expected) }));
    }
    let ended = job.received(SERVER);
    assert!(matches!(&ended[..], [.., Frame::View(View { phase: Phase::FormsAgain, .. })]), "{ended:?}");
    assert!(job.coordinator.forms_again() && !job.is_finished());

    // Members may be faster than the end of the former formation.
    job.come_again(2);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.coordinator.form_again(TERM + 1, job.now);
    job.come_again(SERVER);
    assert_eq!(job.coordinator.view().phase, Phase::Forming, "one is expected");
    job.come_again(0);
    assert_eq!(job.ranks(), [100, 102, NEW.into()], "those that were there come first, in their order");
    let view = job.coordinator.view();
    assert_eq!((view.epoch, view.formed_before), (Epoch { term: TERM + 1, number: 1 }, 1));
    assert_eq!(job.received(NEW), [Frame::View(view.clone())]);
    assert_eq!(job.received(ANEW + 2), [Frame::View(view)]);
}

#[test]
fn a_server_may_report_that_a_worker_is_missing_which_came_later() {
    let mut job = elastic(2);
    job.join(NEW, worker(NEW as u32));
    job.pass_boundary(1, &[0, 1], &[]);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER, 0, 1].into_iter().for_each(|link| job.come_again(link));
    job.frame(ANEW, declare(1, &[10]));
    job.received(ANEW);
    job.frame(ANEW + SERVER, Frame::Stall(Stall { missing: vec![WorkerId(2)], ..a_stall() }));
    let told = job.received(ANEW);
    assert!(matches!(&told[..], [Frame::StallNotice { stall, .. }] if stall.missing == [WorkerId(2)]), "{told:?}");
}

#[test]
fn nobody_is_taken_in_while_a_worker_rests() {
    let mut job = elastic(2);
    job.say(1, StepReport { begun: 1, rests: true, ..at_change(0) });
    job.join(NEW, worker(NEW as u32));
    assert_eq!(job.received(0), [], "no change begins");
    job.say(1, StepReport { begun: 2, ..at_change(0) });
    assert_eq!(job.received(0), [Frame::Boundary { change: 1, limit: None, hold: None }]);
    job.say(0, StepReport { begun: 1, ..at_change(1) });
    job.say(1, StepReport { begun: 2, ..at_change(1) });
    job.say(1, StepReport { begun: 2, rests: true, ..at_change(1) });
    assert_eq!(
        job.received(0)[1..],
        [Frame::Passed { change: 1, outcome: Err(Error::Cancelled) }],
        "the others need not wait for it"
    );
}

#[test]
fn a_newcomer_that_goes_changes_nothing() {
    let mut job = elastic(2);
    job.join(NEW, worker(NEW as u32));
    job.disconnect(NEW);
    for link in 0..2 {
        job.say(link, StepReport { begun: 1, ..at_change(1) });
    }
    assert!(matches!(job.received(0)[..], [.., Frame::Passed { outcome: Err(Error::Cancelled), .. }]));
    assert_eq!(job.ranks(), [0, 1]);
}

#[test]
fn one_that_comes_to_a_full_job_waits_for_a_place_and_servers_do_not_come_late() {
    let mut job = elastic(4);
    job.join(NEW, worker(NEW as u32));
    assert_eq!(job.received(0), [], "4 are the most");
    job.frame(NEW, Frame::StatusRequest);
    let told = format!("{:?}", job.received(NEW));
    assert!(told.contains("a place"), "{told}");
    job.frame(1, Frame::Fail { cause: "out of memory".to_owned() });
    assert!(job.received(0).contains(&Frame::Boundary { change: 1, limit: None, hold: None }), "now there is one");
    for number in 1..4 {
        job.join(NEW + number, worker((NEW + number) as u32));
    }
    job.join(NEW + 4, worker((NEW + 4) as u32));
    assert!(job.refusal(NEW + 4).to_string().contains("as many wait"), "not without end");
    job.join(SERVER + 1, server(1));
    assert!(job.refusal(SERVER + 1).to_string().contains("is complete"));
    let mut fixed = formed(2);
    fixed.join(NEW, worker(NEW as u32));
    assert!(fixed.refusal(NEW).to_string().contains("is complete"), "it is not elastic");
}

#[test]
fn places_are_kept_for_those_that_were_there() {
    let mut job = elastic(3);
    for number in 0..2 {
        job.join(NEW + number, worker((NEW + number) as u32));
    }
    job.pass_boundary(1, &[0, 1, 2], &[]);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER, 0, 1, 2].into_iter().for_each(|link| job.come_again(link));
    assert_eq!(job.ranks(), [100, 101, 102, NEW.into()], "the other one goes on waiting");
    job.heartbeat(NEW + 1);
    assert!(matches!(job.received(NEW + 1)[..], [Frame::HeartbeatAck { .. }]));
}

#[test]
fn nobody_is_taken_in_where_servers_keep_what_would_be_lost() {
    let declare = |job: &mut Job| {
        let tensor = TensorSpec::parameter("p", DType::F32, vec![4]);
        job.frame(0, Frame::Declare { request: 1, tensors: vec![tensor], fuse: false });
    };
    let mut before = elastic(2);
    declare(&mut before);
    before.join(NEW, worker(NEW as u32));
    assert!(before.refusal(NEW).to_string().contains("keeps parameters"));
    let mut after = elastic(2);
    after.join(NEW, worker(NEW as u32));
    declare(&mut after);
    after.pass_boundary(1, &[0, 1], &[]);
    assert_eq!(after.ranks(), [0, 1], "it goes on waiting");
}

#[test]
fn a_member_that_does_not_come_again_is_waited_for_no_longer_than_the_limit_or_until_its_end_is_known() {
    let begin = || {
        let mut job = elastic(3);
        job.join(NEW, worker(NEW as u32));
        job.pass_boundary(1, &[0, 1, 2], &[]);
        job.frame(SERVER, Frame::Leave);
        assert!(job.is_finished());
        job.coordinator.form_again(TERM + 1, job.now);
        [SERVER, 0, 2].into_iter().for_each(|link| job.come_again(link));
        assert_eq!(job.coordinator.view().phase, Phase::Forming);
        job
    };
    let mut late = begin();
    late.beat_until(11, &[ANEW, ANEW + 2, ANEW + SERVER, NEW]);
    assert_eq!(late.ranks(), [100, 102, NEW.into()]);
    let mut known = begin();
    known.coordinator.handle_death(known.now, 11, "n1", "killed by signal 9".to_owned());
    assert_eq!(known.ranks(), [100, 102, NEW.into()]);
}

#[test]
fn a_job_ends_if_too_few_come_again() {
    let config = CoordinatorConfig {
        policy: Policy::Continue { min_workers: 2, rejoin: None, on_server_loss: OnServerLoss::Abort },
        workers_max: Some(4),
        ..config(2)
    };
    let mut job = stepping_as(config);
    job.join(NEW, worker(NEW as u32));
    job.pass_boundary(1, &[0, 1], &[]);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.coordinator.form_again(TERM + 1, job.now);
    job.come_again(SERVER);
    job.beat_until(11, &[ANEW + SERVER, NEW]);
    let Phase::Aborted(Error::NotFormed { missing, .. }) = job.coordinator.view().phase else { panic!("it ended") };
    assert_eq!(missing, ["worker on n0 (pid 10)", "worker on n1 (pid 11)"]);
}

#[test]
fn what_workers_put_into_the_store_is_there_when_the_job_has_formed_again_and_after_a_restart() {
    let mut job =
        stepping_as(CoordinatorConfig { policy: Policy::CONTINUE, workers_max: Some(4), journals: true, ..config(1) });
    let put = StoreAsk::Put { key: "epoch".to_owned(), value: b"4".to_vec(), expected: None };
    job.frame(0, Frame::Store { request: 1, ask: put });
    job.join(NEW, worker(NEW as u32));
    job.pass_boundary(1, &[0], &[]);
    job.frame(SERVER, Frame::Leave);
    assert!(job.is_finished());
    job.journal.clear();
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER, 0].into_iter().for_each(|link| job.come_again(link));
    job.drain();
    let (records, config) = (
        job.journal.clone(),
        CoordinatorConfig { policy: Policy::CONTINUE, workers_max: Some(4), journals: true, ..config(1) },
    );
    let read = |job: &mut Job, link| {
        job.received(link);
        job.frame(link, Frame::Store { request: 9, ask: StoreAsk::Get { key: "epoch".to_owned(), wait: None } });
        job.received(link)
    };
    let kept = |frames: &[Frame]| matches!(frames, [Frame::StoreDone { outcome: Ok(answer), .. }] if *answer == StoreAnswer::Value(Some(b"4".to_vec())));
    assert!(kept(&read(&mut job, ANEW)));
    let (recovered, _) = Coordinator::recover(config, records).unwrap();
    assert_eq!(recovered.view().workers().count(), 2);
    let mut after = Job { coordinator: recovered, ..job };
    after.join_as(ANEW + 1, 0, in_life(100, worker(0)));
    assert!(kept(&read(&mut after, ANEW + 1)));
}

/// A job of at most 4 workers, each of which has begun a step.
fn elastic(workers: u32) -> Job {
    stepping_as(CoordinatorConfig { policy: Policy::CONTINUE, workers_max: Some(4), ..config(workers) })
}

impl Job {
    /// All workers stand behind their first step, where `leavers` want to leave. Returns what a leaver is told.
    pub(super) fn pass_boundary(&mut self, change: u64, links: &[u64], leavers: &[u64]) -> Passage {
        let report = |link: &u64| StepReport { begun: 1, leaves: leavers.contains(link), ..at_change(change) };
        links.iter().for_each(|link| self.say(*link, report(link)));
        links.iter().for_each(|link| self.say(*link, StepReport { stands: true, ..report(link) }));
        let staying = links.iter().filter(|link| !leavers.contains(link)).map(|link| WorkerId(*link as u32));
        Passage { step: 1, workers: staying.collect(), leaves: true, forms_again: false }
    }

    /// A newcomer has heard nothing, and is told that it waits if it asks.
    pub(super) fn waits(&mut self, link: u64) {
        assert_eq!(self.received(link), []);
        self.heartbeat(link);
        self.frame(link, Frame::StatusRequest);
        let told = self.received(link);
        assert!(
            matches!(&told[..], [Frame::HeartbeatAck { .. }, Frame::Forming(Forming { speaks: true, .. })]),
            "{told:?}"
        );
    }

    /// Whether the former formation is over.
    pub(super) fn is_finished(&mut self) -> bool {
        self.drain();
        self.events.contains(&Event::Finished(Ok(())))
    }

    /// The member that had this link joins the next formation: in another life, over another connection.
    pub(super) fn come_again(&mut self, link: u64) {
        let join = if link >= SERVER { server((link - SERVER) as u32) } else { worker(link as u32) };
        let life = join.process.incarnation.0 + 100;
        self.join_as(ANEW + link, link as u8, in_life(life, join));
    }
}
