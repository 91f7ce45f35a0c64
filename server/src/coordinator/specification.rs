//! What a coordinator does, sentence by sentence.

use std::time::Duration;

use gradlane_core::error::{Claim, Error};
use gradlane_core::types::{
    DType, Epoch, Incarnation, LinkId, MachineId, NodeId, PartId, Phase, Role, Round, TensorKey, TensorSpec, Time,
    View, Wiring, WorkerId,
};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Health, Join, Progress, Stall};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const SERVER: u64 = 100;

// Forming.

#[test]
fn a_job_forms_when_everybody_joined_and_shows_everybody_the_view() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.join(SERVER, server(0));
    assert_eq!(job.drain(), [], "nothing to say yet");
    job.join(1, worker(1));
    assert!(job.drain().contains(&Command::Event(Event::Formed)));
    let view = job.coordinator.view();
    assert_eq!((view.epoch, &view.phase), (Epoch { term: 3, number: 1 }, &Phase::Running));
    for link in [0, 1, SERVER] {
        assert_eq!(job.received(link), [Frame::View(view.clone())]);
    }
}

#[test]
fn ranks_follow_host_and_process_and_not_the_order_of_arrival() {
    let mut job = job(3);
    job.join(0, Join { host: "n2".to_owned(), ..worker(0) });
    job.join(1, Join { host: "n1".to_owned(), pid: 8, ..worker(1) });
    job.join(2, Join { host: "n1".to_owned(), pid: 7, ..worker(2) });
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [2, 1, 0]);
}

#[test]
fn a_rank_that_was_asked_for_is_given_and_the_others_fill_the_gaps() {
    let mut job = job(3);
    job.join(0, Join { requested: Some(2), ..worker(0) });
    job.join(1, worker(1));
    job.join(2, Join { requested: Some(0), ..worker(2) });
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [2, 1, 0]);
}

#[test]
fn a_second_process_with_one_rank_is_told_who_holds_it_and_the_holder_stays() {
    let mut job = job(2);
    job.join(0, Join { requested: Some(0), ..worker(0) });
    job.join(1, Join { requested: Some(0), ..worker(1) });
    let error = Error::DuplicateRank { member: "worker 0".to_owned(), holder: "n0 (pid 10)".to_owned() };
    assert_eq!(job.refusal(1), error);
    assert!(job.events.contains(&Event::Refused { who: "worker on n1 (pid 11)".to_owned(), error }), "in the log, too");
    job.join(2, Join { requested: Some(1), ..worker(2) });
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [0, 2]);
}

#[test]
fn a_process_of_another_job_is_refused() {
    let cases = [
        (Join { requested: Some(2), ..worker(0) }, "worker 2 of a job with 2 workers"),
        (Join { workers: 4, ..worker(0) }, "number of workers differs: this process has 4, the coordinator has 2"),
        (Join { servers: 3, ..worker(0) }, "number of servers differs: this process has 3, the coordinator has 1"),
        (Join { address: String::new(), ..server(0) }, "without an address"),
        (worker(1), "the incarnation of another process"),
    ];
    for (join, why) in cases {
        let mut job = job(2);
        job.join(1, worker(1));
        job.join(0, join);
        let error = job.refusal(0).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn one_process_too_many_is_refused() {
    let mut job = job(1);
    job.join(0, worker(0));
    job.join(1, worker(1));
    assert!(matches!(job.refusal(1), Error::FailedPrecondition { .. }));
}

#[test]
fn a_job_that_does_not_form_in_time_names_the_missing_to_everybody() {
    let mut job = job(3);
    job.join(0, Join { requested: Some(2), ..worker(0) });
    job.join(1, worker(1));
    job.beat_until(30, &[0, 1]);
    let missing = vec!["worker 1".to_owned(), "server 0".to_owned()];
    let error = Error::NotFormed { missing, waited: 30 * SECOND };
    for link in [0, 1] {
        assert!(job.received(link).contains(&Frame::Refused(error.clone())));
        job.frame(link, Frame::Leave);
    }
    job.drain();
    assert_eq!(job.events, [Event::Finished(Err(error))]);
}

#[test]
fn a_job_to_which_nobody_comes_is_over_in_time() {
    let mut job = job(1);
    job.pass(30);
    assert!(matches!(&job.events[..], [Event::Finished(Err(Error::NotFormed { missing, .. }))] if missing.len() == 2));
}

#[test]
fn a_process_that_goes_before_the_job_formed_frees_its_seat() {
    let goings: [fn(&mut Job); 3] = [
        |job| job.disconnect(0),
        |job| job.frame(0, Frame::Leave),
        |job| job.coordinator.handle_death(job.now, 10, "n0", "signal 9".to_owned()),
    ];
    for going in goings {
        let mut job = job(1);
        job.join(0, worker(0));
        going(&mut job);
        job.join(1, worker(1));
        job.join(SERVER, server(0));
        assert_eq!(job.coordinator.view().phase, Phase::Running);
        assert_eq!(job.ranks(), [1]);
    }
}

#[test]
fn a_process_that_froze_before_the_job_formed_is_fenced() {
    let mut job = job(1);
    job.join(0, worker(0));
    job.pass(5);
    assert!(matches!(job.refusal(0), Error::Fenced { .. }));
    job.join_as(1, 0, worker(0));
    assert!(matches!(job.refusal(1), Error::Fenced { .. }), "also on another connection");
}

#[test]
fn a_restarted_process_takes_its_node_s_place_and_the_former_life_is_fenced() {
    let mut job = job(2);
    job.join_as(0, 50, worker(0));
    job.join_as(1, 50, Join { incarnation: Incarnation(77), ..worker(0) });
    assert!(matches!(job.refusal(0), Error::Fenced { .. }));
    job.join_as(2, 50, worker(0));
    assert!(matches!(job.refusal(2), Error::Fenced { .. }));
    job.join(3, worker(3));
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [77, 3]);
}

// Connections.

#[test]
fn a_connection_must_join_before_it_says_anything_else() {
    let mut job = job(1);
    job.connect(0, 0);
    job.frame(0, Frame::Leave);
    assert!(job.closed(0).to_string().contains("not a join"));
}

#[test]
fn the_status_is_told_to_everybody_enrolled() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.join(SERVER, server(0));
    job.connect(5, 5);
    job.frame(5, Frame::StatusRequest);
    let [Frame::Status(status)] = &job.received(5)[..] else { panic!("one status") };
    assert_eq!(status.view.phase, Phase::Forming);
    assert_eq!(status.view.members.iter().map(|member| member.name()).collect::<Vec<_>>(), ["worker 0", "server 0"]);
    assert!(status.members.iter().all(|member| member.health == Health::Alive));
}

#[test]
fn a_member_that_reconnects_keeps_its_rank_and_sees_the_view_again() {
    let mut job = formed(2);
    job.disconnect(1);
    job.join_as(7, 1, worker(1));
    assert_eq!(job.received(7), [Frame::View(job.coordinator.view())]);
    assert_eq!(job.ranks(), [0, 1]);
}

#[test]
fn the_newest_connection_of_a_process_speaks_for_it() {
    let mut job = formed(2);
    job.join_as(7, 1, worker(1));
    assert!(matches!(job.closed(1), Error::Unavailable { .. }));
    job.disconnect(1);
    job.heartbeat(7);
    assert!(
        matches!(job.received(7)[..], [Frame::View(_), Frame::HeartbeatAck { .. }]),
        "the old one's end changes nothing"
    );
}

#[test]
fn a_stranger_cannot_join_a_job_that_runs() {
    let mut job = formed(2);
    job.join(5, worker(5));
    assert!(matches!(job.refusal(5), Error::FailedPrecondition { what, .. } if what.contains("complete")));
    job.join(6, Join { requested: Some(1), ..worker(6) });
    assert!(matches!(job.refusal(6), Error::DuplicateRank { holder, .. } if holder == "n1 (pid 11)"));
}

#[test]
fn what_no_member_says_closes_its_connection_and_disturbs_nobody_else() {
    let stall = |rank| Frame::Stall(Stall { missing: vec![WorkerId(rank)], ..a_stall() });
    let cases = [
        (0, Frame::HeartbeatAck { sent: at(0) }, "only a coordinator sends"),
        (0, Frame::Join(worker(0)), "second join"),
        (0, stall(0), "only a server sends"),
        (SERVER, stall(2), "missing ranks do not exist"),
    ];
    for (link, frame, why) in cases {
        let mut job = formed(2);
        job.frame(link, frame);
        let error = job.closed(link).to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(job.coordinator.view().phase, Phase::Running);
        assert!(job.received(1).is_empty());
    }
}

#[test]
fn frames_of_a_closed_connection_are_ignored() {
    let mut job = formed(1);
    job.frame(0, Frame::View(job.coordinator.view()));
    job.drain();
    job.frame(0, Frame::Leave);
    assert_eq!(job.drain(), []);
}

// Health.

#[test]
fn a_silent_member_is_suspect_then_dead_and_everybody_gets_that_cause() {
    let mut job = formed(3);
    job.beat_until(2, &[0, 2, SERVER]);
    let suspect = Event::Suspect { member: "worker 1".to_owned(), place: "n1 (pid 11)".to_owned(), silent: 2 * SECOND };
    assert_eq!(job.events, [suspect]);
    assert_eq!(job.coordinator.status(job.now).members[1].health, Health::Suspect);
    job.beat_until(5, &[0, 2, SERVER]);
    let cause = lost(1, "silent for 5.0 s");
    for link in [0, 2, SERVER] {
        let views = job.received(link).into_iter().filter(|frame| matches!(frame, Frame::View(_)));
        let [Frame::View(view)] = &views.collect::<Vec<_>>()[..] else { panic!("one view") };
        assert_eq!((view.epoch.number, &view.phase), (2, &Phase::Aborted(cause.clone())));
        job.frame(link, Frame::Leave);
    }
    job.drain();
    assert_eq!(job.events.last(), Some(&Event::Finished(Err(cause))));
}

#[test]
fn a_member_that_speaks_again_in_time_is_as_alive_as_before() {
    let mut job = formed(2);
    job.beat_until(4, &[0, SERVER]);
    job.heartbeat(1);
    job.beat_until(12, &[0, 1, SERVER]);
    assert!(matches!(&job.events[..], [Event::Suspect { .. }]), "nothing but the suspicion");
    assert_eq!(job.coordinator.status(job.now).members[1].health, Health::Alive);
}

#[test]
fn a_lost_connection_is_a_death_only_after_the_dead_timeout() {
    let mut job = formed(2);
    job.disconnect(1);
    job.beat_until(4, &[0, SERVER]);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.beat_until(5, &[0, SERVER]);
    let Phase::Aborted(Error::PeerLost { cause, .. }) = job.coordinator.view().phase else { panic!("aborted") };
    assert!(cause.contains("since its connection ended") && cause.contains("reset"), "{cause}");
}

#[test]
fn a_death_that_the_launcher_saw_is_immediate_and_the_first_cause_is_the_only_one() {
    let mut job = formed(3);
    job.coordinator.handle_death(job.now, 11, "n1", "killed by signal 9".to_owned());
    job.coordinator.handle_death(job.now, 12, "n2", "exit status 1".to_owned());
    job.coordinator.stop(job.now, Error::Cancelled);
    assert_eq!(job.coordinator.view().phase, Phase::Aborted(lost(1, "killed by signal 9")));
    let views = job.received(0).into_iter().filter(|frame| matches!(frame, Frame::View(_)));
    assert_eq!(views.count(), 1);
}

#[test]
fn a_member_that_was_given_up_is_fenced_when_it_wakes() {
    let mut job = formed(2);
    job.frame(1, barrier(1));
    job.beat_until(5, &[0, SERVER]);
    let current = job.coordinator.view().epoch;
    let told = job.received(1);
    assert!(!told.iter().any(is_barrier_done), "it did not lose itself: {told:?}");
    assert_eq!(told.last(), Some(&Frame::Refused(Error::Fenced { current })));
    assert_eq!(job.closed(1), Error::Fenced { current });
    job.join_as(7, 1, worker(1));
    assert_eq!(job.refusal(7), Error::Fenced { current });
}

#[test]
fn a_coordinator_that_slept_itself_gives_nobody_up() {
    let mut job = formed(2);
    job.now = at(60);
    job.coordinator.handle_timeout(job.now);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    assert_eq!(job.drain(), []);
}

#[test]
fn a_member_that_connects_after_the_end_still_hears_the_cause() {
    let mut job = formed(3);
    job.disconnect(2);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    job.join_as(7, 2, worker(2));
    let Some(Frame::View(view)) = job.received(7).pop() else { panic!("a view") };
    assert_eq!(view.phase, Phase::Aborted(lost(1, "killed")));
}

#[test]
fn who_asks_after_everybody_knew_the_end_still_hears_it() {
    let mut job = formed(1);
    job.coordinator.stop(job.now, Error::Cancelled);
    [0, SERVER].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.drain();
    assert_eq!(job.events, [Event::Finished(Err(Error::Cancelled))]);

    job.connect(7, 7);
    job.frame(7, Frame::StatusRequest);
    let Some(Frame::Status(status)) = job.received(7).pop() else { panic!("a status") };
    assert_eq!(status.view.phase, Phase::Aborted(Error::Cancelled));
    job.join_as(8, 0, worker(0));
    assert!(matches!(&job.received(8)[..], [Frame::View(view)] if view.phase == Phase::Aborted(Error::Cancelled)));
    job.join(9, worker(5));
    assert_eq!(job.refusal(9), Error::Cancelled);
    assert_eq!(job.events.len(), 1, "nothing more happened to the job");
}

#[test]
fn the_end_waits_for_who_has_not_confirmed_it_but_not_for_long() {
    let mut job = formed(2);
    job.disconnect(1);
    job.coordinator.stop(job.now, Error::Cancelled);
    [0, SERVER].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.drain();
    assert_eq!(job.events, []);
    assert_eq!(job.coordinator.poll_timeout(), Some(job.now + 3 * SECOND));
    job.pass(3);
    assert_eq!(job.events, [Event::Finished(Err(Error::Cancelled))]);
    assert_eq!(job.coordinator.poll_timeout(), None);
}

// Leaving.

#[test]
fn the_job_ends_in_order_when_the_last_worker_left() {
    let mut job = formed(2);
    job.frame(0, Frame::Leave);
    job.frame(0, Frame::Leave);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.frame(1, Frame::Leave);
    for link in [0, 1, SERVER] {
        let Some(Frame::View(view)) = job.received(link).pop() else { panic!("a view") };
        assert_eq!(view.phase, Phase::Ended);
        job.frame(link, Frame::Leave);
    }
    job.drain();
    assert_eq!(job.events, [Event::Finished(Ok(()))]);
}

#[test]
fn who_lost_its_connection_before_the_end_still_hears_of_it() {
    let mut job = formed(1);
    job.frame(0, Frame::Leave);
    job.pass(60);
    assert_eq!(job.events, [Event::Finished(Ok(()))]);
    job.connect(7, SERVER as u8);
    job.join_as(7, SERVER as u8, server(0));
    let Some(Frame::View(view)) = job.received(7).pop() else { panic!("a view") };
    assert_eq!(view.phase, Phase::Ended);
    assert_eq!(job.events.len(), 1, "nothing more happened to the job");
}

#[test]
fn a_worker_that_left_may_go_silent_or_end() {
    let mut job = formed(2);
    job.frame(0, Frame::Leave);
    job.beat_until(10, &[1, SERVER]);
    job.coordinator.handle_death(job.now, 10, "n0", "exit status 0".to_owned());
    assert_eq!((job.coordinator.view().phase, job.events), (Phase::Running, Vec::new()));
}

#[test]
fn a_server_that_leaves_a_running_job_is_lost() {
    let mut job = formed(1);
    job.frame(SERVER, Frame::Leave);
    assert!(
        matches!(job.coordinator.view().phase, Phase::Aborted(Error::PeerLost { member, .. }) if member == "server 0")
    );
}

// Barriers.

#[test]
fn a_barrier_is_answered_to_everybody_who_arrived() {
    let mut job = formed(2);
    job.frame(0, barrier(1));
    job.frame(1, barrier(5));
    assert_eq!(job.received(0), [Frame::BarrierDone { request: 1, outcome: Ok(()) }]);
    assert_eq!(job.received(1), [Frame::BarrierDone { request: 5, outcome: Ok(()) }]);
}

#[test]
fn an_answer_that_was_lost_is_given_again_on_the_next_connection() {
    let mut job = formed(2);
    job.frame(0, barrier(1));
    job.disconnect(0);
    job.frame(1, barrier(1));
    job.join_as(7, 0, worker(0));
    job.frame(7, barrier(1));
    assert_eq!(job.received(7).pop(), Some(Frame::BarrierDone { request: 1, outcome: Ok(()) }));
}

#[test]
fn a_barrier_times_out_for_all_and_names_the_missing() {
    let mut job = formed(2);
    job.frame(0, barrier(1));
    job.beat_until(10, &[0, 1, SERVER]);
    let Some(Frame::BarrierDone { outcome: Err(error), .. }) = job.received(0).into_iter().find(is_barrier_done) else {
        panic!("an answer")
    };
    assert_eq!(error.to_string(), "barrier \"epoch\": waiting for rank 1: not done after 10.0 s");
}

#[test]
fn a_dead_member_fails_the_barriers_with_its_cause() {
    let mut job = formed(2);
    job.frame(0, barrier(1));
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    let answer = Frame::BarrierDone { request: 1, outcome: Err(lost(1, "killed")) };
    assert_eq!(job.received(0).first(), Some(&answer), "before the view that ends the job");
}

#[test]
fn a_worker_that_left_fails_the_barriers_of_the_others() {
    let mut job = formed(2);
    job.frame(0, barrier(1));
    job.frame(1, Frame::Leave);
    let answers = job.received(0);
    let [Frame::BarrierDone { outcome: Err(error), .. }] = &answers[..] else { panic!("{answers:?}") };
    assert!(error.to_string().contains("worker 1 on n1 (pid 11) left the job"), "{error}");
}

// Declarations.

#[test]
fn a_declaration_is_answered_with_the_same_parts_to_everybody() {
    let mut job = formed(2);
    job.frame(0, declare(1, &[10]));
    job.frame(1, declare(4, &[10]));
    let [Frame::Declared { request: 1, outcome: Ok(first) }] = &job.received(0)[..] else { panic!("an answer") };
    let [Frame::Declared { request: 4, outcome: Ok(second) }] = &job.received(1)[..] else { panic!("an answer") };
    assert_eq!(first, second);
    assert_eq!(first.len(), 1);
}

#[test]
fn a_disagreement_is_told_to_everybody_and_to_who_was_away() {
    let mut job = formed(3);
    job.frame(0, declare(1, &[10]));
    job.received(0);
    job.disconnect(2);
    job.frame(1, declare(1, &[11]));
    let error = Error::Mismatch {
        tensor: "a".to_owned(),
        field: "shape".to_owned(),
        first: Claim { worker: WorkerId(0), value: "[10]".to_owned() },
        second: Claim { worker: WorkerId(1), value: "[11]".to_owned() },
    };
    let forget = Frame::Forget { key: TensorKey::of("a"), error: error.clone() };
    assert_eq!(job.received(1), [Frame::Declared { request: 1, outcome: Err(error) }, forget.clone()]);
    assert_eq!((job.received(0), job.received(SERVER)), (vec![forget.clone()], vec![forget.clone()]));
    job.join_as(7, 2, worker(2));
    assert_eq!(job.received(7).pop(), Some(forget));
}

#[test]
fn only_workers_of_a_running_job_declare_and_wait() {
    let mut forming = job(2);
    forming.join(0, worker(0));
    let mut left = formed(2);
    left.frame(0, Frame::Leave);
    let mut ended = formed(2);
    ended.coordinator.stop(at(0), Error::Cancelled);
    let server = formed(2);
    for (mut job, link) in [(forming, 0), (left, 0), (ended, 0), (server, SERVER)] {
        job.received(link);
        job.frame(link, declare(1, &[10]));
        job.frame(link, barrier(2));
        let answers = job.received(link);
        assert!(
            matches!(
                answers[..],
                [
                    Frame::Declared { request: 1, outcome: Err(Error::FailedPrecondition { .. } | Error::Cancelled) },
                    Frame::BarrierDone {
                        request: 2,
                        outcome: Err(Error::FailedPrecondition { .. } | Error::Cancelled)
                    }
                ]
            ),
            "{answers:?}"
        );
    }
}

// Stalls.

#[test]
fn a_stall_is_told_to_the_workers_with_what_the_missing_did_last() {
    let mut job = formed(3);
    job.frame(0, declare(1, &[10]));
    job.received(0);
    let progress = Progress { last: Some((TensorKey::of("a"), Round(6))), ..Progress::default() };
    job.frame(1, Frame::Heartbeat { sent: at(0), progress });
    job.received(1);
    job.frame(2, Frame::Leave);
    job.now = at(1);
    job.frame(SERVER, Frame::Stall(a_stall()));
    job.frame(SERVER, Frame::Stall(a_stall()));
    let detail =
        "worker 1 on n1 (pid 11): last seen 1.0 s ago, last tensor a, round 6; worker 2 on n2 (pid 12): left the job";
    for link in [0, 1] {
        let notice = Frame::StallNotice { tensor: "a".to_owned(), stall: a_stall(), detail: detail.to_owned() };
        assert_eq!(job.received(link), [notice], "once");
    }
    assert_eq!(job.received(SERVER), []);
    assert!(matches!(&job.events[..], [Event::Stall { tensor, .. }] if tensor == "a"));
}

// The stages of a job, against every kind of input.

#[test]
fn every_input_is_harmless_in_every_stage() {
    type Make = fn() -> Job;
    type Apply = fn(&mut Job);
    let stages: [(&str, Make); 4] = [
        ("forming", || {
            let mut job = job(2);
            job.join(0, worker(0));
            job
        }),
        ("running", || formed(2)),
        ("closing", || {
            let mut job = formed(2);
            job.coordinator.stop(job.now, Error::Cancelled);
            job
        }),
        ("finished", || {
            let mut job = formed(2);
            job.coordinator.stop(job.now, Error::Cancelled);
            job.drain();
            job.pass(3);
            job
        }),
    ];
    let inputs: [(&str, Apply); 12] = [
        ("timeout", |job| job.coordinator.handle_timeout(job.now)),
        ("stop", |job| job.coordinator.stop(job.now, Error::Cancelled)),
        ("death", |job| job.coordinator.handle_death(job.now, 10, "n0", "killed".to_owned())),
        ("death of a stranger", |job| job.coordinator.handle_death(job.now, 99, "n9", "killed".to_owned())),
        ("lost connection", |job| job.disconnect(0)),
        ("unknown connection", |job| job.frame(999, Frame::Leave)),
        ("join of a stranger", |job| job.join(5, worker(5))),
        ("heartbeat", |job| job.heartbeat(0)),
        ("leave", |job| job.frame(0, Frame::Leave)),
        ("declaration", |job| job.frame(0, declare(1, &[10]))),
        ("barrier", |job| job.frame(0, barrier(1))),
        ("status", |job| job.frame(0, Frame::StatusRequest)),
    ];
    for (stage, make) in stages {
        for (input, apply) in inputs {
            let mut job = make();
            job.drain();
            let epoch = job.coordinator.view().epoch;
            apply(&mut job);
            apply(&mut job);
            job.drain();
            assert!(job.coordinator.view().epoch >= epoch, "{input} while {stage}");
            let finished = job.events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
            assert!(finished <= 1, "{input} while {stage}: finished {finished} times");
        }
    }
}

proptest! {
    #[test]
    fn nothing_that_peers_do_breaks_it(steps in vec((0..12u8, 0..6u64, 0..4u32, 0..3u64), 0..200)) {
        let mut job = job(2);
        let mut links = 0;
        for (kind, link, number, seconds) in steps {
            // Connections are numbered as they come; a step is about one of the last few.
            let link = u64::saturating_sub(links, link);
            match kind {
                0..=1 => {
                    links += 1;
                    job.connect(links, number as u8);
                }
                2 => job.frame(link, Frame::Join(worker(number))),
                3 => job.frame(link, Frame::Join(server(number))),
                4 => job.frame(link, Frame::Join(Join { incarnation: Incarnation(99), ..worker(number) })),
                5 => job.heartbeat(link),
                6 => job.disconnect(link),
                7 => job.frame(link, declare(seconds, &[u64::from(number)])),
                8 => job.frame(link, barrier(u64::from(number))),
                9 => job.frame(link, Frame::Stall(a_stall())),
                10 => job.frame(link, Frame::Leave),
                _ => job.pass(job.now.0 / 1_000_000_000 + seconds),
            }
            job.drain();
        }
        job.coordinator.stop(job.now, Error::Cancelled);
        job.drain();
        job.pass(job.now.0 / 1_000_000_000 + 60);
        let last = job.events.iter().rfind(|event| !matches!(event, Event::Refused { .. }));
        prop_assert!(matches!(last, Some(Event::Finished(_))), "but for who came later");
        prop_assert_eq!(job.events.iter().filter(|event| matches!(event, Event::Finished(_))).count(), 1);
    }
}

// Planted defects: each of these changes what the sentence above says.

#[cfg(feature = "testing")]
#[test]
fn planted_defects_show() {
    use gradlane_core::types::defect::Defect;

    let mut job = formed_with(3, Defect::ViewNotBroadcast);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    let told = [0, 2, SERVER].into_iter().filter(|link| !job.received(*link).is_empty()).count();
    assert_eq!(told, 2);

    let mut job = formed_with(2, Defect::FencedAccepted);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    job.join_as(7, 1, worker(1));
    assert!(matches!(job.received(7)[..], [Frame::View(_)]));

    let mut job = formed_with(2, Defect::BarrierCountsRequests);
    job.frame(0, barrier(1));
    job.frame(0, barrier(1));
    assert_eq!(job.received(0), [Frame::BarrierDone { request: 1, outcome: Ok(()) }]);

    let mut job = formed_with(2, Defect::BarrierAnswerForgotten);
    job.frame(0, barrier(1));
    job.frame(1, barrier(1));
    job.received(0);
    job.frame(0, barrier(1));
    assert_eq!(job.received(0), []);
}

/// A coordinator with what it said. Link and node of a member have one number; those of servers start at [`SERVER`].
struct Job {
    coordinator: Coordinator,
    now: Time,
    unread: Vec<(u64, Frame)>,
    closed: Vec<(u64, Error)>,
    events: Vec<Event>,
}

impl Job {
    fn connect(&mut self, link: u64, node: u8) {
        self.coordinator.handle_connected(LinkId(link), NodeId([node; 32]));
    }

    fn join(&mut self, link: u64, join: Join) {
        self.join_as(link, link as u8, join);
    }

    fn join_as(&mut self, link: u64, node: u8, join: Join) {
        self.connect(link, node);
        self.frame(link, Frame::Join(join));
    }

    fn frame(&mut self, link: u64, frame: Frame) {
        self.coordinator.handle_frame(self.now, LinkId(link), frame);
    }

    fn heartbeat(&mut self, link: u64) {
        self.frame(link, Frame::Heartbeat { sent: self.now, progress: Progress::default() });
    }

    fn disconnect(&mut self, link: u64) {
        let error = Error::Io { what: "receive".to_owned(), cause: "connection reset".to_owned() };
        self.coordinator.handle_disconnected(LinkId(link), error);
    }

    /// Lets time pass, with a timeout whenever one is due.
    fn pass(&mut self, until: u64) {
        while let Some(due) = self.coordinator.poll_timeout().filter(|due| *due <= at(until)) {
            self.now = due;
            self.coordinator.handle_timeout(due);
            self.drain();
        }
        self.now = at(until);
    }

    /// Lets time pass with a heartbeat a second from each of `links`.
    fn beat_until(&mut self, until: u64, links: &[u64]) {
        for second in self.now.0 / 1_000_000_000 + 1..=until {
            self.pass(second);
            links.iter().for_each(|link| self.heartbeat(*link));
        }
    }

    /// Takes all commands; sorts them for the questions below.
    fn drain(&mut self) -> Vec<Command> {
        let commands: Vec<Command> = std::iter::from_fn(|| self.coordinator.next_command()).collect();
        for command in commands.clone() {
            match command {
                Command::Send { link, frame } => self.unread.push((link.0, frame)),
                Command::Close { link, error } => self.closed.push((link.0, error)),
                Command::Event(event) => self.events.push(event),
            }
        }
        commands
    }

    /// What was sent to a link since the last question.
    fn received(&mut self, link: u64) -> Vec<Frame> {
        self.drain();
        let (asked, other) = std::mem::take(&mut self.unread).into_iter().partition(|(to, _)| *to == link);
        self.unread = other;
        Vec::into_iter(asked).map(|(_, frame)| frame).collect()
    }

    /// What a link was refused with; it is closed, too.
    fn refusal(&mut self, link: u64) -> Error {
        let frames = self.received(link);
        let Some(Frame::Refused(error)) = frames.last() else { panic!("{frames:?}") };
        assert_eq!(*error, self.closed(link));
        error.clone()
    }

    fn closed(&mut self, link: u64) -> Error {
        self.drain();
        self.closed.iter().find(|(closed, _)| *closed == link).expect("it was closed").1.clone()
    }

    /// The incarnations of the workers by rank; that of `worker(n)` is n.
    fn ranks(&self) -> Vec<u128> {
        let View { phase, members, .. } = self.coordinator.view();
        assert_eq!(phase, Phase::Running);
        let workers = members.into_iter().filter(|member| member.role == Role::Worker);
        workers.map(|member| member.incarnation.0).collect()
    }
}

fn config(workers: u32) -> CoordinatorConfig {
    CoordinatorConfig {
        job: "test".to_owned(),
        term: 3,
        workers,
        servers: 1,
        form_timeout: 30 * SECOND,
        suspect_timeout: 2 * SECOND,
        dead_timeout: 5 * SECOND,
        leave_grace: 3 * SECOND,
        stall_interval: 10 * SECOND,
        layout: LayoutConfig::default(),
        defect: None,
    }
}

/// A job of `workers` workers and one server that has no member yet.
fn job(workers: u32) -> Job {
    job_of(config(workers))
}

fn job_of(config: CoordinatorConfig) -> Job {
    let coordinator = Coordinator::new(config, at(0));
    Job { coordinator, now: at(0), unread: Vec::new(), closed: Vec::new(), events: Vec::new() }
}

/// A job that runs, with nothing unread. The rank of a worker is its link.
fn formed(workers: u32) -> Job {
    form(job(workers), workers)
}

#[cfg(feature = "testing")]
fn formed_with(workers: u32, defect: Defect) -> Job {
    form(job_of(CoordinatorConfig { defect: Some(defect), ..config(workers) }), workers)
}

fn form(mut job: Job, workers: u32) -> Job {
    job.join(SERVER, server(0));
    (0..u64::from(workers)).for_each(|link| job.join(link, worker(link as u32)));
    job.drain();
    job.unread.clear();
    job.events.clear();
    job
}

fn worker(number: u32) -> Join {
    Join {
        role: Role::Worker,
        incarnation: Incarnation(u128::from(number)),
        requested: None,
        host: format!("n{number}"),
        pid: 10 + number,
        address: String::new(),
        machine: MachineId::UNKNOWN,
        door: String::new(),
        wiring: Wiring::default(),
        workers: 0,
        servers: 0,
    }
}

fn server(number: u32) -> Join {
    Join {
        role: Role::Server,
        incarnation: Incarnation(1000 + u128::from(number)),
        host: format!("s{number}"),
        address: format!("s{number}:7000"),
        ..worker(number)
    }
}

fn barrier(request: u64) -> Frame {
    Frame::Barrier { request, name: "epoch".to_owned(), timeout: 10 * SECOND }
}

fn is_barrier_done(frame: &Frame) -> bool {
    matches!(frame, Frame::BarrierDone { .. })
}

fn declare(request: u64, shape: &[u64]) -> Frame {
    let tensor = TensorSpec { name: "a".to_owned(), dtype: DType::F32, shape: shape.to_vec() };
    Frame::Declare { request, tensors: vec![tensor], fuse: false }
}

fn a_stall() -> Stall {
    Stall {
        part: PartId { key: TensorKey::of("a"), index: 0 },
        round: Round(7),
        missing: vec![WorkerId(1), WorkerId(2)],
        waited: 10 * SECOND,
    }
}

fn lost(worker: u32, cause: &str) -> Error {
    Error::PeerLost {
        member: format!("worker {worker}"),
        host: format!("n{worker} (pid {})", 10 + worker),
        cause: cause.to_owned(),
    }
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}
