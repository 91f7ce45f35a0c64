//! The store of the job: who may ask, and what becomes of reads that wait.

use gradlane_core::types::{StoreAnswer, StoreAsk};

use super::*;

#[test]
fn a_read_is_answered_when_another_worker_has_put_its_key() {
    let mut job = formed(2);
    job.frame(0, get(4));
    assert_eq!(job.received(0), []);
    job.frame(1, put(9));
    assert_eq!(job.received(1), [done(9)]);
    assert_eq!(job.received(0), [value(4)]);
}

#[test]
fn an_answer_of_the_store_that_was_lost_is_given_again_on_the_next_connection() {
    let mut job = formed(2);
    let add = || Frame::Store { request: 1, ask: StoreAsk::Add { key: "n".to_owned(), amount: 5 } };
    job.frame(0, add());
    job.frame(0, get(2));
    job.received(0);
    job.disconnect(0);
    job.frame(1, put(1));
    job.join_as(7, 0, worker(0));
    job.frame(7, add());
    job.frame(7, get(2));
    let five = Frame::StoreDone { request: 1, outcome: Ok(StoreAnswer::Number(5)) };
    assert_eq!(job.received(7)[1..], [five, value(2)], "after the view; it is not added again");
}

#[test]
fn a_read_ends_by_its_deadline_for_its_worker_alone() {
    let mut job = formed(2);
    job.frame(0, get(4));
    job.beat_until(10, &[0, 1, SERVER]);
    let is_answer = |frame: &Frame| matches!(frame, Frame::StoreDone { .. });
    let Some(Frame::StoreDone { request: 4, outcome: Err(error) }) = job.received(0).into_iter().find(is_answer) else {
        panic!("an answer")
    };
    assert_eq!(error.to_string(), "waiting for key \"k\" of the store, which nobody has put: not done after 10.0 s");
    assert!(!job.received(1).iter().any(is_answer));
}

#[test]
fn a_read_ends_with_the_cause_of_the_job() {
    let mut job = formed(2);
    job.frame(0, get(4));
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    let answer = Frame::StoreDone { request: 4, outcome: Err(lost(1, "killed")) };
    assert_eq!(job.received(0).first(), Some(&answer), "before the view that ends the job");
}

#[test]
fn what_a_worker_put_stays_when_it_leaves_or_is_lost_and_it_waits_no_more() {
    let mut job = form(job_of(CoordinatorConfig { policy: Policy::CONTINUE, ..config(3) }), 3);
    job.frame(1, put(1));
    job.frame(1, Frame::Store { request: 2, ask: StoreAsk::Get { key: "n".to_owned(), wait: Some(10 * SECOND) } });
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    job.received(1);
    job.frame(0, get(1));
    assert_eq!(job.received(0).last(), Some(&value(1)));
    job.frame(2, Frame::Store { request: 1, ask: StoreAsk::Add { key: "n".to_owned(), amount: 5 } });
    assert_eq!(job.received(1), [], "it is no member");
    job.frame(2, Frame::Leave);
    job.frame(2, get(2));
    let answers = job.received(2);
    let Some(Frame::StoreDone { outcome: Err(error), .. }) = answers.last() else { panic!("{answers:?}") };
    assert!(error.to_string().contains("left the job"), "{error}");
}

#[test]
fn only_workers_of_a_job_that_runs_ask_the_store() {
    let mut job = job(2);
    job.join(0, worker(0));
    job.frame(0, put(1));
    job.join(1, worker(1));
    job.join(SERVER, server(0));
    job.frame(SERVER, put(1));
    for (link, why) in [(0, "has not formed yet"), (SERVER, "only workers")] {
        let answers = job.received(link);
        let found = answers.iter().find_map(|frame| match frame {
            Frame::StoreDone { request: 1, outcome: Err(error) } => Some(error.to_string()),
            _ => None,
        });
        assert!(found.as_ref().is_some_and(|text| text.contains(why)), "{found:?}");
    }
    job.frame(0, get(2));
    assert_eq!(job.received(0), [], "nothing was put");
    job.frame(0, Frame::StoreDone { request: 1, outcome: Ok(StoreAnswer::Done) });
    assert!(matches!(job.closed(0), Error::Protocol { .. }));
}

fn put(request: u64) -> Frame {
    Frame::Store { request, ask: StoreAsk::Put { key: "k".to_owned(), value: b"v".to_vec(), expected: None } }
}

fn get(request: u64) -> Frame {
    Frame::Store { request, ask: StoreAsk::Get { key: "k".to_owned(), wait: Some(10 * SECOND) } }
}

fn done(request: u64) -> Frame {
    Frame::StoreDone { request, outcome: Ok(StoreAnswer::Done) }
}

fn value(request: u64) -> Frame {
    Frame::StoreDone { request, outcome: Ok(StoreAnswer::Value(Some(b"v".to_vec()))) }
}
