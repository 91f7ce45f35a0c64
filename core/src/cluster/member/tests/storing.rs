//! Requests to the store: each ends once, even if the connection is lost.

use super::*;
use crate::types::{Answer, StoreAnswer, StoreAsk};
use crate::wire::limits;

#[test]
fn what_has_no_answer_is_asked_again_with_its_number_in_the_order_of_the_first_time() {
    let mut member = active();
    let asked = [put("a"), get("b"), add("n")]
        .map(|ask| (member.ask_coordinator(at(1), ask.clone().into(), Patience::Named(9 * SECOND)), ask));
    let frames = |waits: u64| -> Vec<Frame> {
        let frame = |(request, ask): (u64, StoreAsk)| Frame::Store { request, ask: within(ask, waits) };
        asked.iter().cloned().map(frame).collect()
    };
    assert_eq!(sent(&mut member), frames(9));
    let [(first, _), (second, _), (third, _)] = asked;
    member.handle_frame(at(1), Frame::StoreDone { request: first, outcome: Ok(StoreAnswer::Done) });
    assert_eq!(
        events(&mut member),
        [MemberEvent::Answered { request: first, outcome: Ok(Answer::Store(StoreAnswer::Done)) }]
    );
    reconnect(&mut member, 2, 4);
    sent(&mut member);
    member.handle_frame(at(4), Frame::View(view(1)));
    assert_eq!(sent(&mut member), frames(6)[1..], "a read waits for the time that is left");
    for (request, answer) in [(second, value("v")), (third, StoreAnswer::Number(1)), (third, StoreAnswer::Number(1))] {
        member.handle_frame(at(5), Frame::StoreDone { request, outcome: Ok(answer) });
    }
    let done = |request, answer| MemberEvent::Answered { request, outcome: Ok(Answer::Store(answer)) };
    assert_eq!(events(&mut member), [done(second, value("v")), done(third, StoreAnswer::Number(1))], "once each");
}

#[test]
fn what_is_asked_of_the_store_before_the_job_formed_is_sent_when_it_did() {
    let mut member = worker();
    member.handle_connected(at(0));
    let request = member.ask_coordinator(at(0), put("a").into(), Patience::Named(SECOND));
    assert!(matches!(&sent(&mut member)[..], [Frame::Join(_)]));
    member.handle_frame(at(1), Frame::View(view(1)));
    assert_eq!(sent(&mut member), [Frame::Store { request, ask: put("a") }]);
}

#[test]
fn a_request_ends_shortly_after_its_time_even_if_nobody_answers() {
    let mut member = active();
    let request = member.ask_coordinator(at(1), get("a").into(), Patience::Named(5 * SECOND));
    member.handle_timeout(at(7));
    assert_eq!(events(&mut member), [], "the coordinator's verdict may be on its way");
    member.handle_timeout(at(8));
    let told = events(&mut member);
    let [MemberEvent::Answered { request: ended, outcome: Err(error) }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*ended, request);
    let text = "key \"a\" of the store: no answer from the coordinator: not done after 7.0 s";
    assert_eq!(error.to_string(), text);
    member.handle_frame(at(9), Frame::StoreDone { request, outcome: Ok(value("v")) });
    assert_eq!(events(&mut member), [], "too late");
}

#[test]
fn what_cannot_travel_to_the_store_fails_at_once() {
    let mut member = active();
    member.ask_coordinator(at(1), put("").into(), Patience::Named(SECOND));
    let large = vec![0; limits::STORE_VALUE_BYTES_MAX + 1];
    member.ask_coordinator(
        at(1),
        StoreAsk::Append { key: "a".to_owned(), value: large }.into(),
        Patience::Named(SECOND),
    );
    let told = commands(&mut member);
    assert!(matches!(
        &told[..],
        [
            MemberCommand::Event(MemberEvent::Answered { outcome: Err(Error::InvalidArgument { .. }), .. }),
            MemberCommand::Event(MemberEvent::Answered { outcome: Err(Error::Exhausted { .. }), .. }),
        ]
    ));
}

#[test]
fn no_more_changes_are_under_way_than_the_coordinator_remembers() {
    let mut member = active();
    for _ in 0..limits::STORE_CHANGES_MAX {
        member.ask_coordinator(at(1), add("n").into(), Patience::Named(SECOND));
    }
    assert_eq!(events(&mut member), []);
    member.ask_coordinator(at(1), add("n").into(), Patience::Named(SECOND));
    assert!(matches!(&events(&mut member)[..], [MemberEvent::Answered { outcome: Err(Error::Exhausted { .. }), .. }]));
    let reads = limits::STORE_WAITS_MAX - limits::STORE_CHANGES_MAX;
    for _ in 0..reads {
        member.ask_coordinator(at(1), get("a").into(), Patience::Named(SECOND));
    }
    assert_eq!(events(&mut member), [], "reads change nothing");
    member.ask_coordinator(at(1), get("a").into(), Patience::Named(SECOND));
    assert!(matches!(&events(&mut member)[..], [MemberEvent::Answered { outcome: Err(Error::Exhausted { .. }), .. }]));
}

#[test]
fn requests_to_the_store_fail_when_the_member_leaves_and_with_the_cause_of_the_end() {
    let mut member = active();
    let request = member.ask_coordinator(at(1), get("a").into(), Patience::Named(9 * SECOND));
    member.leave();
    assert!(matches!(
        &events(&mut member)[..],
        [MemberEvent::Answered { request: ended, outcome: Err(Error::FailedPrecondition { .. }) }] if *ended == request
    ));
    let mut member = active();
    let request = member.ask_coordinator(at(1), get("a").into(), Patience::Named(9 * SECOND));
    member.handle_frame(at(2), Frame::Refused(Error::Cancelled));
    let ended = MemberEvent::Answered { request, outcome: Err(Error::Cancelled) };
    assert_eq!(events(&mut member), [ended, MemberEvent::Failed(Error::Cancelled)]);
}

#[test]
fn an_answer_of_another_kind_ends_the_membership() {
    let mut member = active();
    let request = member.ask_coordinator(at(1), add("n").into(), Patience::Named(SECOND));
    member.handle_frame(at(1), Frame::StoreDone { request, outcome: Ok(StoreAnswer::Keys(Vec::new())) });
    assert!(matches!(events(&mut member).last(), Some(MemberEvent::Failed(Error::Protocol { .. }))));
}

fn put(key: &str) -> StoreAsk {
    StoreAsk::Put { key: key.to_owned(), value: b"v".to_vec(), expected: None }
}

fn get(key: &str) -> StoreAsk {
    StoreAsk::Get { key: key.to_owned(), wait: Some(Duration::ZERO) }
}

fn add(key: &str) -> StoreAsk {
    StoreAsk::Add { key: key.to_owned(), amount: 1 }
}

fn within(ask: StoreAsk, seconds: u64) -> StoreAsk {
    match ask {
        StoreAsk::Get { key, .. } => StoreAsk::Get { key, wait: Some(Duration::from_secs(seconds)) },
        other => other,
    }
}

fn value(value: &str) -> StoreAnswer {
    StoreAnswer::Value(Some(value.as_bytes().to_vec()))
}
