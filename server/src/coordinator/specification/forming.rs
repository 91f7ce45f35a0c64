//! How a job forms, and which processes are refused.

use super::*;

#[test]
fn a_job_forms_when_everybody_joined_and_shows_everybody_the_view() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.join(SERVER, server(0));
    assert_eq!(job.drain(), [], "nothing to say yet");
    job.join(1, worker(1));
    assert!(job.drain().contains(&Command::Event(Event::Formed { epoch: Epoch { term: TERM, number: 1 } })));
    let view = job.coordinator.view();
    assert_eq!((view.epoch, &view.phase), (Epoch { term: TERM, number: 1 }, &Phase::Running));
    for link in [0, 1, SERVER] {
        assert_eq!(job.received(link), [Frame::View(view.clone())]);
    }
}

#[test]
fn ranks_follow_host_and_process_and_not_the_order_of_arrival() {
    let mut job = job(3);
    job.join(0, on_host("n2", 10, worker(0)));
    job.join(1, on_host("n1", 8, worker(1)));
    job.join(2, on_host("n1", 7, worker(2)));
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
        (without_address(server(0)), "without an address"),
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
    job.join_as(1, 50, in_life(77, worker(0)));
    assert!(matches!(job.refusal(0), Error::Fenced { .. }));
    job.join_as(2, 50, worker(0));
    assert!(matches!(job.refusal(2), Error::Fenced { .. }));
    job.join(3, worker(3));
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [77, 3]);
}
