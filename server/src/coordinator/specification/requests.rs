//! Barriers, declarations, and reports of sums that wait.

use gradlane_core::types::{StoreAnswer, StoreAsk};

use super::*;

#[test]
fn members_get_their_next_certificate_while_the_job_forms_and_when_nobody_else_gets_in() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.frame(0, Frame::Renew);
    job.join(1, worker(1));
    job.join(SERVER, server(0));
    assert!(job.coordinator.admits_newcomers().is_err());
    for link in [1, SERVER] {
        job.frame(link, Frame::Renew);
    }
    job.drain();
    assert_eq!(job.certified, [0, 1, SERVER]);
}

#[test]
fn workers_alone_get_the_key_of_the_workers_on_every_connection() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.join(SERVER, server(0));
    job.connect_as(7, 7, Role::Observer);
    job.drain();
    assert!(job.given_the_key.is_empty(), "while the job forms its members may change");
    job.join(1, worker(1));
    job.drain();
    assert_eq!(job.given_the_key, [0, 1]);
    job.join_as(5, 1, worker(1));
    job.join(8, worker(8));
    job.drain();
    assert_eq!(job.given_the_key, [0, 1, 5], "and none that is refused");
}

#[test]
fn nobody_else_gets_a_certificate() {
    let mut job = formed(2);
    job.connect_as(7, 7, Role::Observer);
    job.frame(7, Frame::Renew);
    assert!(matches!(job.closed(7), Error::Protocol { .. }));
    job.frame(0, Frame::Leave);
    job.frame(0, Frame::Renew);
    let answers = job.received(0);
    let Some(Frame::Renewed { outcome: Err(error) }) = answers.last() else { panic!("{answers:?}") };
    assert!(error.to_string().contains("no member"), "{error}");
    assert!(job.certified.is_empty());
}

#[test]
fn those_that_wait_at_a_barrier_have_the_time_that_they_name_when_another_coordinator_goes_on_with_the_job() {
    let config = || CoordinatorConfig { journals: true, policy: Policy::CONTINUE, ..config(2) };
    let mut job = form(job_of(config()), 2);
    job.frame(0, barrier(1));
    let mut job = taken_up(job, config());
    let timeout = 40 * SECOND;
    job.frame(30, Frame::Barrier { request: 1, name: "epoch".to_owned(), timeout });
    job.beat_until(30, &[30, 31, 32]);
    job.frame(31, Frame::Barrier { request: 5, name: "epoch".to_owned(), timeout });
    let passed = |frame: &&Frame| matches!(frame, Frame::BarrierDone { outcome: Ok(()), .. });
    assert_eq!([30, 31].map(|link| job.received(link).iter().filter(passed).count()), [1, 1]);
}

#[test]
fn a_coordinator_that_was_asleep_ends_nothing_before_it_has_heard_what_members_said_meanwhile() {
    let config = || CoordinatorConfig { journals: true, policy: Policy::CONTINUE, ..config(2) };
    let mut job = form(job_of(config()), 2);
    job.frame(0, barrier(1));
    let ask = StoreAsk::Get { key: "k".to_owned(), wait: Some(10 * SECOND) };
    job.frame(0, Frame::Store { request: 2, ask });
    job.received(0);
    job.now = at(60);
    job.coordinator.handle_timeout(job.now);
    assert_eq!(job.received(0), []);
    job.heartbeat(0);
    job.frame(1, barrier(5));
    let ask = StoreAsk::Put { key: "k".to_owned(), value: vec![7], expected: None };
    job.frame(1, Frame::Store { request: 6, ask });
    let answers = job.received(0);
    assert!(answers.contains(&Frame::BarrierDone { request: 1, outcome: Ok(()) }), "{answers:?}");
    let value = Ok(StoreAnswer::Value(Some(vec![7])));
    assert!(answers.contains(&Frame::StoreDone { request: 2, outcome: value }), "{answers:?}");
    job.drain();
    let (recovered, base) = Coordinator::recover(config(), std::mem::take(&mut job.journal)).unwrap();
    job.coordinator.wait_again(base);
    assert_eq!(recovered.lasting(), job.coordinator.lasting());
}

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
        tensor: "a".into(),
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

#[test]
fn a_worker_that_waits_at_the_barrier_of_an_empty_tensor_hears_that_another_has_elements() {
    let arrive =
        |request| Frame::Barrier { request, name: gradlane_core::cluster::empty_barrier("a"), timeout: 60 * SECOND };
    let mut job = formed(3);
    job.frame(0, declare(1, &[0]));
    job.frame(0, arrive(2));
    job.frame(1, declare(1, &[0]));
    job.received(0);
    job.frame(2, declare(1, &[3]));
    assert!(matches!(&job.received(2)[0], Frame::Declared { outcome: Err(Error::Mismatch { .. }), .. }));
    let told = job.received(0);
    assert!(matches!(&told[0], Frame::BarrierDone { request: 2, outcome: Err(Error::Mismatch { .. }) }), "{told:?}");
    job.frame(2, Frame::Leave);
    job.received(1);
    job.frame(1, arrive(2));
    let told = job.received(1);
    assert!(matches!(&told[..], [Frame::BarrierDone { outcome: Err(Error::Mismatch { .. }), .. }]), "also later");
}

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
    // A worker reports for those of its machine.
    job.frame(0, Frame::Stall(a_stall()));
    let detail =
        "worker 1 on n1 (pid 11): last seen 1.0 s ago, last tensor a, round 6; worker 2 on n2 (pid 12): left the job";
    for link in [0, 1] {
        let notice = Frame::StallNotice { tensor: "a".to_owned(), stall: a_stall(), detail: detail.to_owned() };
        assert_eq!(job.received(link), [notice], "once");
    }
    assert_eq!(job.received(SERVER), []);
    assert!(matches!(&job.events[..], [Event::Stall { tensor, .. }] if tensor == "a"));
}

#[test]
fn the_status_shows_which_tensors_wait_for_whom_and_which_servers_have_not_told() {
    let mut job = formed(3);
    job.frame(0, declare(1, &[10]));
    let waits = |job: &Job| *job.coordinator.status(job.now).waits;
    assert_eq!(waits(&job).unheard.listed, ["server 0"]);
    let waiting = |waited| Waiting { waited, ..a_stall().into() };
    job.frame(SERVER, Frame::Waits(vec![waiting(SECOND), waiting(2 * SECOND)]));
    job.now = at(1);
    let shown = waits(&job);
    assert!(shown.unheard.is_empty(), "{shown:?}");
    let [longest] = &shown.tensors[..] else { panic!("a tensor stands there once a round: {shown:?}") };
    assert_eq!((&*longest.tensor, &*longest.told_by, longest.waited()), ("a", "server 0", 3 * SECOND));
    assert_eq!(longest.waiting.missing, [WorkerId(1), WorkerId(2)]);

    job.frame(SERVER, Frame::Waits(Vec::new()));
    assert_eq!(waits(&job), Waits::default());
    // A worker tells of a round within its machine once an interval.
    job.frame(0, Frame::Stall(a_stall()));
    assert_eq!(waits(&job).tensors.iter().map(|wait| &*wait.told_by).collect::<Vec<_>>(), ["worker 0"]);
    job.now = at(4);
    assert_eq!(waits(&job).unheard.listed, ["server 0"], "what it told is too old");
    assert_eq!(waits(&job).tensors[0].waited(), 13 * SECOND);
    job.now = at(1_000);
    assert_eq!(waits(&job).tensors, []);
}

#[test]
fn a_server_that_tells_of_ranks_that_do_not_exist_is_closed_and_so_is_a_worker_that_tells_for_it() {
    let mut job = formed(2);
    job.frame(0, Frame::Waits(Vec::new()));
    assert!(matches!(job.closed(0), Error::Protocol { .. }));
    job.frame(SERVER, Frame::Waits(vec![Waiting { missing: vec![WorkerId(2)], ..a_stall().into() }]));
    assert!(matches!(job.closed(SERVER), Error::Protocol { .. }));
}
