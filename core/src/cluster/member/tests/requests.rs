//! Declarations, barriers and stall reports: each request ends once, even if the connection is lost.

use super::*;

#[test]
fn what_has_no_answer_is_asked_again_on_the_next_connection_once_the_coordinator_knows_who_asks() {
    let mut member = active();
    let declare = member.declare(vec![spec("a")], true);
    let barrier = member.barrier(at(1), "epoch".to_owned(), Patience::Named(9 * SECOND));
    assert_eq!(sent(&mut member).len(), 2);
    reconnect(&mut member, 2, 4);
    assert!(
        matches!(&sent(&mut member)[..], [Frame::Join(join)] if join.epoch == Some(view(1).epoch)),
        "it says which membership it has"
    );
    member.handle_frame(at(4), Frame::View(view(1)));
    let again = [
        Frame::Declare { request: declare, tensors: vec![spec("a")], fuse: true },
        Frame::Barrier { request: barrier, name: "epoch".to_owned(), timeout: 6 * SECOND },
    ];
    assert_eq!(sent(&mut member), again);
    member.handle_frame(at(4), Frame::View(view(2)));
    assert_eq!(sent(&mut member), [], "once a connection");
}

#[test]
fn a_certificate_is_asked_for_on_a_connection_that_is_up_and_the_answer_is_told() {
    let mut member = worker();
    member.renew();
    assert_eq!(sent(&mut member), [], "it dials");
    member.handle_connected(at(0));
    sent(&mut member);
    member.renew();
    assert_eq!(sent(&mut member), [Frame::Renew], "also while the job forms");
    for outcome in [Ok(vec![1, 2]), Err(Error::Cancelled)] {
        member.handle_frame(at(1), Frame::Renewed { outcome: outcome.clone() });
        assert_eq!(events(&mut member), [MemberEvent::Renewed { outcome }]);
    }
}

#[test]
fn what_is_asked_before_the_job_formed_is_sent_when_it_did() {
    let mut member = worker();
    member.handle_connected(at(0));
    let request = member.declare(vec![spec("a")], false);
    assert!(matches!(&sent(&mut member)[..], [Frame::Join(_)]));
    member.handle_frame(at(1), Frame::View(view(1)));
    assert_eq!(sent(&mut member), [Frame::Declare { request, tensors: vec![spec("a")], fuse: false }]);
}

#[test]
fn declarations_that_follow_each_other_share_a_frame_while_one_is_under_way() {
    let mut member = active();
    let names: Vec<String> = (0..300).map(|index| format!("t{index}")).collect();
    let requests: Vec<u64> = names.iter().map(|name| member.declare(vec![spec(name)], false)).collect();
    assert_eq!(sent(&mut member), [declare(requests[0], &names[..1])], "the first goes at once");
    member.handle_frame(at(1), Frame::Declared { request: requests[0], outcome: Ok(layouts(&names[..1])) });
    let told = commands(&mut member);
    assert_eq!(told[1..], [MemberCommand::Send(declare(requests[1], &names[1..]))], "the others together");
    member.handle_frame(at(1), Frame::Declared { request: requests[1], outcome: Ok(layouts(&names[1..])) });
    let each = requests[1..].iter().zip(&names[1..]).map(|(request, name)| declared(*request, name));
    assert_eq!(events(&mut member), each.collect::<Vec<_>>(), "each its own layout");
}

#[test]
fn declarations_that_may_share_parts_go_alone_and_at_once() {
    let mut member = active();
    let first = member.declare(vec![spec("a")], false);
    let fused = member.declare(vec![spec("b"), spec("c")], true);
    let expected = [
        declare(first, &["a".to_owned()]),
        Frame::Declare { request: fused, tensors: vec![spec("b"), spec("c")], fuse: true },
    ];
    assert_eq!(sent(&mut member), expected);
}

#[test]
fn a_name_that_comes_again_goes_alone_because_its_answer_may_have_to_wait() {
    let mut member = active();
    let names = ["again".to_owned(), "other".to_owned()];
    member.undeclare(vec![names[0].clone()]);
    sent(&mut member);
    let requests = names.each_ref().map(|name| member.declare(vec![spec(name)], false));
    let frames = [declare(requests[0], &names[..1]), declare(requests[1], &names[1..])];
    assert_eq!(sent(&mut member), frames, "neither waits for the other");
    member.handle_frame(at(1), Frame::Declared { request: requests[1], outcome: Ok(layouts(&names[1..])) });
    assert_eq!(events(&mut member), [declared(requests[1], &names[1])]);
    member.handle_frame(at(1), Frame::Declared { request: requests[0], outcome: Ok(layouts(&names[..1])) });
    assert_eq!(events(&mut member), [declared(requests[0], &names[0])]);
}

#[test]
fn names_that_are_used_no_more_are_told_again_before_they_come_again() {
    let mut member = active();
    let names = ["a".to_owned()];
    member.undeclare(names.to_vec());
    let again = member.declare(vec![spec("a")], false);
    let told = sent(&mut member);
    assert!(matches!(told[..], [Frame::Undeclare { .. }, Frame::Declare { .. }]), "{told:?}");
    reconnect(&mut member, 2, 4);
    sent(&mut member);
    member.handle_frame(at(4), Frame::View(view(1)));
    assert_eq!(sent(&mut member), told);
    let Frame::Undeclare { request, .. } = told[0] else { panic!("the first") };
    for _ in 0..2 {
        member.handle_frame(at(5), Frame::Undeclared { request });
    }
    member.handle_frame(at(5), Frame::Declared { request: again, outcome: Ok(layouts(&names)) });
    assert_eq!(events(&mut member), [declared(again, "a")]);
}

#[test]
fn a_refused_declaration_fails_no_other_that_shared_its_frame() {
    let mut member = active();
    let names = ["a", "b", "bad", "c"].map(str::to_owned);
    let requests = names.each_ref().map(|name| member.declare(vec![spec(name)], false));
    let refusal = Error::InvalidArgument { what: "bad".to_owned(), hint: String::new() };
    let mut outcomes = Vec::new();
    let mut frames = sent(&mut member);
    let mut trips = 0;
    while !frames.is_empty() {
        trips += 1;
        for frame in std::mem::take(&mut frames) {
            let Frame::Declare { request, tensors, .. } = frame else { panic!("{frame:?}") };
            let names: Vec<String> = tensors.into_iter().map(|spec| spec.name).collect();
            let refused = names.contains(&"bad".to_owned());
            let outcome = if refused { Err(refusal.clone()) } else { Ok(layouts(&names)) };
            member.handle_frame(at(1), Frame::Declared { request, outcome });
        }
        for command in commands(&mut member) {
            match command {
                MemberCommand::Send(frame) => frames.push(frame),
                MemberCommand::Event(event) => outcomes.push(event),
                MemberCommand::Dial | MemberCommand::Hangup | MemberCommand::SayWhy { .. } => panic!("{command:?}"),
            }
        }
    }
    assert_eq!(trips, 4, "one, three together, halves, halves of the half");
    let [a, b, bad, c] = requests;
    let refused = MemberEvent::Declared { request: bad, outcome: Err(refusal) };
    assert_eq!(outcomes, [declared(a, "a"), declared(b, "b"), refused, declared(c, "c")]);
}

#[test]
fn what_waits_for_another_declaration_is_asked_too_after_a_reconnection() {
    let mut member = active();
    let names = ["a", "b"].map(str::to_owned);
    let [first, second] = names.each_ref().map(|name| member.declare(vec![spec(name)], false));
    reconnect(&mut member, 2, 4);
    member.handle_frame(at(4), Frame::View(view(1)));
    commands(&mut member);
    member.handle_frame(at(4), Frame::Declared { request: first, outcome: Ok(layouts(&names[..1])) });
    assert_eq!(sent(&mut member), [declare(second, &names[1..])]);
    member.leave();
    let ended = events(&mut member);
    assert!(
        matches!(&ended[..], [MemberEvent::Declared { request, outcome: Err(_) }] if *request == second),
        "{ended:?}"
    );
}

#[test]
fn an_answer_counts_once() {
    let mut member = active();
    let request = member.declare(vec![spec("a")], false);
    member.handle_frame(at(1), Frame::Declared { request, outcome: Ok(Vec::new()) });
    member.handle_frame(at(1), Frame::Declared { request, outcome: Ok(Vec::new()) });
    assert_eq!(events(&mut member), [MemberEvent::Declared { request, outcome: Ok(Vec::new()) }]);
}

#[test]
fn a_barrier_ends_shortly_after_its_timeout_even_if_nobody_answers() {
    let mut member = active();
    let request = member.barrier(at(1), "epoch".to_owned(), Patience::Named(5 * SECOND));
    member.handle_timeout(at(7));
    assert_eq!(events(&mut member), [], "the coordinator's verdict may be on its way");
    member.handle_timeout(at(8));
    let told = events(&mut member);
    assert!(
        matches!(&told[..], [MemberEvent::BarrierDone { request: r, outcome: Err(Error::Timeout { .. }) }] if *r == request)
    );
    member.handle_frame(at(9), Frame::BarrierDone { request, outcome: Ok(()) });
    assert_eq!(events(&mut member), [], "too late");
}

#[test]
fn what_cannot_travel_fails_at_once_instead_of_costing_the_connection() {
    let mut member = active();
    member.declare(vec![spec("")], false);
    member.barrier(at(1), String::new(), Patience::Named(SECOND));
    let told = events(&mut member);
    assert!(matches!(
        &told[..],
        [
            MemberEvent::Declared { outcome: Err(Error::InvalidArgument { .. }), .. },
            MemberEvent::BarrierDone { outcome: Err(Error::InvalidArgument { .. }), .. }
        ]
    ));
}

#[test]
fn a_stall_is_reported_only_on_a_connection() {
    let stall = Stall {
        part: PartId { key: TensorKey::of("a"), index: 0 },
        round: Round(7),
        missing: vec![WorkerId(0)],
        waited: SECOND,
    };
    let mut member = active();
    member.report_stall(stall.clone());
    assert_eq!(sent(&mut member), [Frame::Stall(stall.clone())]);
    member.handle_disconnected(at(1), down());
    member.report_stall(stall);
    assert_eq!(sent(&mut member), []);
}

fn declare(request: u64, names: &[String]) -> Frame {
    Frame::Declare { request, tensors: names.iter().map(|name| spec(name)).collect(), fuse: false }
}

fn declared(request: u64, name: &str) -> MemberEvent {
    MemberEvent::Declared { request, outcome: Ok(layouts(&[name.to_owned()])) }
}

/// One part for each tensor.
fn layouts(names: &[String]) -> Vec<PartLayout> {
    let part = |name: &String| {
        let key = TensorKey::of(name);
        let pieces = vec![Piece { tensor: key, span: Span { offset: 0, bytes: 40 } }];
        let part = PartId { key, index: 0 };
        PartLayout { part, dtype: DType::F32, kind: TensorKind::PLAIN_SUM, server: ServerId(0), pieces }
    };
    names.iter().map(part).collect()
}
