//! Requests of a member in a job that goes on without lost workers, while the coordinator is out of contact.

use super::*;
use crate::cluster::ContactTerms;
use crate::types::StoreAsk;

/// How long the coordinator may take for its verdicts.
const VERDICTS: Duration = Duration::from_secs(20);

#[test]
fn the_usual_time_of_a_request_does_not_pass_while_the_coordinator_is_out_of_contact() {
    let mut member = patient();
    ask(&mut member, Patience::Usual(5 * SECOND));
    member.handle_disconnected(at(2), down());
    member.handle_timeout(at(50));
    assert_eq!(ended(&mut member), 0);
    member.handle_connected(at(51));
    member.handle_frame(at(51), Frame::View(view(1)));
    let again = sent(&mut member);
    assert!(
        matches!(again[..], [Frame::Join(_), Frame::Barrier { timeout, .. }, Frame::Store { ask: StoreAsk::Get { wait: Some(wait), .. }, .. }]
            if timeout == VERDICTS && wait == VERDICTS),
        "the coordinator gives them so long: {again:?}"
    );
    let due = 51 + VERDICTS.as_secs() + 3;
    member.handle_frame(at(due - 1), acknowledged(at(1)));
    member.handle_timeout(at(due - 1));
    assert_eq!(ended(&mut member), 0, "its answer may be on its way, or it has just been lost");
    member.handle_timeout(at(due));
    assert_eq!(ended(&mut member), 2);
}

#[test]
fn a_time_that_the_caller_has_named_passes_without_a_coordinator() {
    let mut member = patient();
    ask(&mut member, Patience::Named(5 * SECOND));
    member.handle_disconnected(at(2), down());
    member.handle_timeout(at(7));
    assert_eq!(ended(&mut member), 0);
    member.handle_timeout(at(8));
    assert_eq!(ended(&mut member), 2);
}

#[test]
fn a_request_does_not_end_before_the_silence_of_its_coordinator_was_noticed() {
    let mut member = patient();
    ask(&mut member, Patience::Usual(SECOND));
    member.handle_timeout(at(4));
    assert_eq!(ended(&mut member), 0, "the last word came at 1 s, and it may be silent for 3 s");
}

fn patient() -> Member {
    let terms = ContactTerms { verdicts: VERDICTS, lost_max: 100 * SECOND };
    let mut member = Member::new(MemberConfig { contact: Some(terms), ..config() }, at(0));
    member.handle_connected(at(0));
    member.handle_frame(at(1), Frame::View(view(1)));
    commands(&mut member);
    member
}

/// Arrives at a barrier, and reads a key that nobody has put.
fn ask(member: &mut Member, patience: Patience) {
    member.barrier(at(1), "epoch".to_owned(), patience);
    let get = StoreAsk::Get { key: "k".to_owned(), wait: Some(Duration::ZERO) };
    member.ask_coordinator(at(1), get.into(), patience);
    commands(member);
}

/// How many of them have ended since, because their time has passed.
fn ended(member: &mut Member) -> usize {
    let is_late = |event: &MemberEvent| {
        matches!(
            event,
            MemberEvent::BarrierDone { outcome: Err(Error::Timeout { .. }), .. }
                | MemberEvent::Answered { outcome: Err(Error::Timeout { .. }), .. }
        )
    };
    events(member).iter().filter(|event| is_late(event)).count()
}
