//! The policy `Continue`: a job goes on with the workers that are left.

use super::*;

#[test]
fn a_lost_worker_leaves_the_view_and_the_others_keep_their_ranks() {
    let mut job = continuing(3);
    kill(&mut job, 1);
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, &view.phase), (2, &Phase::Running));
    assert_eq!(view.workers().map(|member| member.index).collect::<Vec<_>>(), [0, 2]);
    for link in [0, 2, SERVER] {
        assert_eq!(job.received(link), [Frame::View(view.clone())]);
    }
    assert_eq!(job.refusal(1), Error::Fenced { current: view.epoch });
    let dead =
        Event::Dead { member: "worker 1".to_owned(), place: "n1 (pid 11)".to_owned(), cause: "killed".to_owned() };
    assert_eq!(job.events, [dead, Event::GoesOn { without: "worker 1".to_owned(), reason: "others are left" }]);
    assert_eq!(job.coordinator.status(job.now).members.len(), 3, "as many as the view has members");
}

#[test]
fn several_that_fall_silent_at_once_make_one_new_view() {
    let mut job = continuing(4);
    job.beat_until(5, &[0, 3, SERVER]);
    assert_eq!(job.coordinator.view().epoch.number, 2);
    assert_eq!(job.ranks(), [0, 3]);
}

#[test]
fn a_barrier_that_waits_for_a_lost_worker_completes() {
    let mut job = continuing(3);
    job.frame(0, barrier(1));
    job.frame(2, barrier(4));
    kill(&mut job, 1);
    let view = Frame::View(job.coordinator.view());
    assert_eq!(job.received(0), [view.clone(), Frame::BarrierDone { request: 1, outcome: Ok(()) }]);
    assert_eq!(job.received(2), [view, Frame::BarrierDone { request: 4, outcome: Ok(()) }]);
    job.frame(0, barrier(2));
    job.frame(2, barrier(5));
    assert_eq!(job.received(0), [Frame::BarrierDone { request: 2, outcome: Ok(()) }], "so does every later one");
}

#[test]
fn declarations_go_on_and_a_stall_names_only_workers_that_are_left() {
    let mut job = continuing(3);
    job.frame(1, declare(1, &[10]));
    kill(&mut job, 1);
    [0, 2, SERVER].into_iter().for_each(|link| drop(job.received(link)));
    job.frame(0, declare(1, &[10]));
    assert!(matches!(job.received(0)[..], [Frame::Declared { request: 1, outcome: Ok(_) }]));
    job.frame(SERVER, Frame::Stall(Stall { missing: vec![WorkerId(1)], ..a_stall() }));
    assert_eq!(job.received(0), [], "the server had not heard yet");
    job.frame(SERVER, Frame::Stall(a_stall()));
    let told = job.received(0);
    assert!(matches!(&told[..], [Frame::StallNotice { stall, .. }] if stall.missing == [WorkerId(2)]), "{told:?}");
}

#[test]
fn the_others_go_on_without_a_worker_that_left_in_order() {
    let mut job = continuing(3);
    job.frame(0, barrier(1));
    job.frame(1, barrier(4));
    job.frame(2, Frame::Leave);
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, job.ranks()), (2, vec![0, 1]));
    assert_eq!(job.received(SERVER), [Frame::View(view.clone())]);
    for (link, request) in [(0, 1), (1, 4)] {
        let passed = Frame::BarrierDone { request, outcome: Ok(()) };
        assert_eq!(job.received(link), [Frame::View(view.clone()), passed], "the barrier does not wait for it");
    }
    assert_eq!(job.events, [Event::GoesOn { without: "worker 2".to_owned(), reason: "it left in order" }]);
    assert_eq!(job.coordinator.status(job.now).members.len(), 4, "who looks still sees it");
    job.frame(2, Frame::Leave);
    assert_eq!(job.coordinator.view().epoch.number, 2, "a repeat changes nothing");
    // It waits for the end, as it would in any job.
    [0, 1].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
    assert!(job.received(2).contains(&Frame::View(job.coordinator.view())));
}

#[test]
fn the_job_ends_in_order_when_the_workers_that_are_left_have_left() {
    let mut job = continuing(3);
    kill(&mut job, 1);
    job.frame(0, Frame::Leave);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.frame(2, Frame::Leave);
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
    [0, 2, SERVER].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.drain();
    assert_eq!(job.events.last(), Some(&Event::Finished(Ok(()))), "nothing waits for the lost worker");
}

#[test]
fn the_loss_of_the_last_that_works_ends_the_job_in_order_for_those_that_left() {
    let mut job = continuing(2);
    job.frame(0, Frame::Leave);
    kill(&mut job, 1);
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
}

#[test]
fn a_job_without_workers_and_one_that_lost_a_server_fail() {
    let mut all = continuing(2);
    kill(&mut all, 0);
    kill(&mut all, 1);
    assert_eq!(all.coordinator.view().phase, Phase::Aborted(lost(1, "killed")));

    let mut server = continuing(2);
    server.coordinator.handle_death(server.now, 10, "s0", "killed".to_owned());
    let Phase::Aborted(Error::PeerLost { member, .. }) = server.coordinator.view().phase else { panic!("aborted") };
    assert_eq!(member, "server 0");
}

#[test]
fn a_lost_worker_cannot_come_back_and_its_rank_stays_unused() {
    let mut job = continuing(2);
    kill(&mut job, 1);
    let current = job.coordinator.view().epoch;
    job.join_as(7, 1, worker(1));
    assert_eq!(job.refusal(7), Error::Fenced { current });
    job.join_as(8, 1, in_life(50, worker(1)));
    assert!(matches!(job.refusal(8), Error::FailedPrecondition { .. }), "a new life is a stranger");
    assert_eq!(job.ranks(), [0]);
}

fn continuing(workers: u32) -> Job {
    form(job_of(CoordinatorConfig { policy: Policy::CONTINUE, ..config(workers) }), workers)
}

fn kill(job: &mut Job, worker: u32) {
    job.coordinator.handle_death(job.now, 10 + worker, &format!("n{worker}"), "killed".to_owned());
}
