//! What a member does, sentence by sentence.

use super::*;
use crate::types::{
    DType, Epoch, Incarnation, MachineId, NodeId, PartId, PartLayout, Piece, Round, ServerId, Span, TensorKey, Wiring,
    WorkerId,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn it_dials_joins_and_is_a_member_when_the_formed_view_comes() {
    let mut member = worker();
    assert_eq!(commands(&mut member), [MemberCommand::Dial]);
    member.handle_connected(at(0));
    assert!(matches!(&commands(&mut member)[..], [MemberCommand::Send(Frame::Join(join))] if join.requested.is_none()));
    assert_eq!(member.index(), None);
    member.handle_frame(at(1), Frame::View(view(1)));
    assert_eq!(events(&mut member), [MemberEvent::Joined { index: 1, view: view(1) }]);
    assert_eq!((member.index(), member.view()), (Some(1), Some(&view(1))));
}

#[test]
fn a_newer_view_is_told_and_the_same_one_is_not() {
    let mut member = active();
    member.handle_frame(at(2), Frame::View(view(1)));
    assert_eq!(events(&mut member), []);
    member.handle_frame(at(2), Frame::View(view(2)));
    assert_eq!(events(&mut member), [MemberEvent::View(view(2))]);
}

#[test]
fn heartbeats_carry_the_progress_and_measure_the_way() {
    let mut member = active();
    let progress = Progress { last: None, pending: 3, bytes_in_flight: 40 };
    member.set_progress(progress);
    member.handle_timeout(at(1));
    assert_eq!(sent(&mut member), [Frame::Heartbeat { sent: at(1), progress }]);
    assert_eq!(member.round_trip(), None);
    member.handle_frame(at(3), Frame::HeartbeatAck { sent: at(1) });
    assert_eq!(member.round_trip(), Some(2 * SECOND));
}

#[test]
fn pauses_between_attempts_double_up_to_a_limit_and_start_over_once_the_coordinator_spoke() {
    let mut member = worker();
    let mut now = at(0);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        member.handle_disconnected(now, down());
        let due = member.poll_timeout().unwrap();
        pauses.push(due.since(now).as_secs());
        now = due;
        member.handle_timeout(now);
    }
    assert_eq!(pauses, [1, 2, 4, 4]);
    member.handle_connected(now);
    member.handle_frame(now, Frame::HeartbeatAck { sent: now });
    member.handle_disconnected(now, down());
    assert_eq!(member.poll_timeout().unwrap().since(now), SECOND);
}

#[test]
fn what_has_no_answer_is_asked_again_on_the_next_connection_once_the_coordinator_knows_who_asks() {
    let mut member = active();
    let declare = member.declare(vec![spec("a")], true);
    let barrier = member.barrier(at(1), "epoch".to_owned(), 9 * SECOND);
    assert_eq!(sent(&mut member).len(), 2);
    reconnect(&mut member, 2, 4);
    assert!(
        matches!(&sent(&mut member)[..], [Frame::Join(join)] if join.requested == Some(1)),
        "asks for the rank that it has"
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
                MemberCommand::Dial | MemberCommand::Hangup => panic!("{command:?}"),
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
    let request = member.barrier(at(1), "epoch".to_owned(), 5 * SECOND);
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
    member.barrier(at(1), String::new(), SECOND);
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
fn at_the_end_everything_pending_fails_with_the_cause_and_then_the_member_does_once() {
    let cause = Error::PeerLost { member: "worker 0".to_owned(), host: "n0".to_owned(), cause: "kill".to_owned() };
    let mut member = active();
    let declare = member.declare(vec![spec("a")], false);
    let barrier = member.barrier(at(1), "epoch".to_owned(), SECOND);
    commands(&mut member);
    let last = View { phase: Phase::Aborted(cause.clone()), ..view(2) };
    member.handle_frame(at(1), Frame::View(last.clone()));
    let expected = [
        MemberCommand::Send(Frame::Leave),
        MemberCommand::Event(MemberEvent::View(last)),
        MemberCommand::Event(MemberEvent::Declared { request: declare, outcome: Err(cause.clone()) }),
        MemberCommand::Event(MemberEvent::BarrierDone { request: barrier, outcome: Err(cause.clone()) }),
        MemberCommand::Hangup,
        MemberCommand::Event(MemberEvent::Failed(cause.clone())),
    ];
    assert_eq!(commands(&mut member), expected);
    member.handle_frame(at(2), Frame::Refused(Error::Cancelled));
    member.handle_disconnected(at(2), down());
    member.handle_timeout(at(999));
    assert_eq!((commands(&mut member), member.poll_timeout()), (Vec::new(), None));
    let late = member.declare(vec![spec("b")], false);
    assert_eq!(events(&mut member), [MemberEvent::Declared { request: late, outcome: Err(cause) }]);
}

#[test]
fn a_job_goes_on_without_its_coordinator_for_a_while() {
    let mut member = active();
    let mut now = at(1);
    member.handle_disconnected(now, down());
    while let Some(due) = member.poll_timeout() {
        now = due;
        member.handle_timeout(now);
        member.handle_disconnected(now, down());
    }
    assert_eq!(now, at(101), "100 s after the last word");
    let told = events(&mut member);
    let [MemberEvent::Failed(Error::PeerLost { member: lost, cause, .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!(lost, "coordinator");
    assert!(cause.starts_with("silent for 100.0 s") && cause.contains("refused"), "{cause}");
}

#[test]
fn joining_ends_in_time_and_says_what_it_waited_for() {
    let mut unreached = worker();
    unreached.handle_disconnected(at(0), down());
    unreached.handle_timeout(at(30));
    let mut waiting = worker();
    waiting.handle_connected(at(0));
    waiting.handle_frame(at(1), Frame::HeartbeatAck { sent: at(0) });
    waiting.handle_timeout(at(30));
    for (mut member, why) in [(unreached, "was not reached"), (waiting, "waits for other processes")] {
        let told = events(&mut member);
        assert!(
            matches!(&told[..], [MemberEvent::Failed(Error::Timeout { what, .. })] if what.contains(why)),
            "{told:?}"
        );
    }
}

#[test]
fn who_is_not_let_in_does_not_try_again() {
    let [field, ours, peer, theirs] = ["protocol version", "2", "the coordinator", "1"].map(str::to_owned);
    for error in [
        Error::Auth { problem: "unknown key".to_owned(), hint: "enrol it".to_owned() },
        Error::Incompatible { field, ours, peer, theirs },
    ] {
        let mut member = worker();
        member.handle_disconnected(at(0), error.clone());
        assert_eq!(events(&mut member), [MemberEvent::Failed(error)]);
        assert_eq!(member.poll_timeout(), None);
    }
}

#[test]
fn a_view_without_this_life_fences_it() {
    let mut member = active();
    let mut other = view(2);
    other.members[1].incarnation = Incarnation(77);
    member.handle_frame(at(1), Frame::View(other));
    assert_eq!(events(&mut member), [MemberEvent::Failed(Error::Fenced { current: Epoch { term: 1, number: 2 } })]);
}

#[test]
fn leaving_waits_for_the_others() {
    let mut member = active();
    let request = member.barrier(at(1), "epoch".to_owned(), SECOND);
    commands(&mut member);
    member.leave();
    assert!(matches!(
        &commands(&mut member)[..],
        [MemberCommand::Event(MemberEvent::BarrierDone { request: r, outcome: Err(_) }), MemberCommand::Send(Frame::Leave)]
            if *r == request
    ));
    member.leave();
    assert_eq!(commands(&mut member), [], "leaving twice is leaving");
    reconnect(&mut member, 1, 2);
    member.handle_frame(at(2), Frame::View(view(1)));
    assert!(matches!(&sent(&mut member)[..], [Frame::Join(_), Frame::Leave]), "said again on a new connection");
    member.handle_frame(at(3), Frame::View(View { phase: Phase::Ended, ..view(2) }));
    let [said @ .., last] = &commands(&mut member)[..] else { panic!("commands") };
    assert_eq!(said, [MemberCommand::Send(Frame::Leave), MemberCommand::Hangup], "so that the coordinator knows");
    assert_eq!(*last, MemberCommand::Event(MemberEvent::Left));
}

#[test]
fn leaving_before_the_job_formed_is_immediate() {
    let mut member = worker();
    commands(&mut member);
    member.leave();
    assert_eq!(commands(&mut member), [MemberCommand::Hangup, MemberCommand::Event(MemberEvent::Left)]);
    member.handle_connected(at(1));
    assert_eq!(commands(&mut member), [MemberCommand::Hangup], "the dial had been under way");
}

#[test]
fn a_server_goes_when_the_job_ended() {
    let mut server = Member::new(MemberConfig { role: Role::Server, ..config() }, at(0));
    server.handle_connected(at(0));
    let mut formed = view(1);
    formed.members[1].role = Role::Server;
    server.handle_frame(at(0), Frame::View(formed.clone()));
    commands(&mut server);
    server.handle_frame(at(3), Frame::View(View { phase: Phase::Ended, ..formed }));
    assert_eq!(events(&mut server), [MemberEvent::Left]);
}

#[test]
fn what_no_coordinator_says_ends_the_membership() {
    let older = View { epoch: Epoch { term: 0, number: 9 }, ..view(1) };
    let mut moved = view(2);
    moved.members.iter_mut().for_each(|member| member.index = 1 - member.index);
    let nonsense = [
        (Frame::Leave, "kind"),
        (Frame::Declared { request: 99, outcome: Ok(Vec::new()) }, "99 was never asked"),
        (Frame::HeartbeatAck { sent: at(50) }, "clock"),
        (Frame::View(older), "epoch"),
        (Frame::View(moved), "another index"),
        (Frame::View(View { phase: Phase::Ended, ..view(2) }), "did not agree"),
    ];
    for (frame, why) in nonsense {
        let mut member = active();
        member.handle_frame(at(1), frame);
        let told = events(&mut member);
        let [MemberEvent::Failed(error @ Error::Protocol { .. })] = &told[..] else { panic!("{told:?}") };
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn notices_are_passed_on() {
    let stall = Stall {
        part: PartId { key: TensorKey::of("a"), index: 0 },
        round: Round(7),
        missing: vec![WorkerId(0)],
        waited: SECOND,
    };
    let mut member = active();
    member.handle_frame(at(1), Frame::Forget { key: TensorKey::of("a"), error: Error::Cancelled });
    let (tensor, detail) = ("a".to_owned(), "late".to_owned());
    member.handle_frame(
        at(1),
        Frame::StallNotice { tensor: tensor.clone(), stall: stall.clone(), detail: detail.clone() },
    );
    let expected = [
        MemberEvent::Forget { key: TensorKey::of("a"), error: Error::Cancelled },
        MemberEvent::StallNotice { tensor, stall, detail },
    ];
    assert_eq!(events(&mut member), expected);
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

fn config() -> MemberConfig {
    MemberConfig {
        role: Role::Worker,
        incarnation: Incarnation(11),
        requested: None,
        host: "n1".to_owned(),
        pid: 1,
        address: String::new(),
        machine: MachineId::UNKNOWN,
        door: String::new(),
        wiring: Wiring::default(),
        workers: 2,
        servers: 1,
        coordinator: "n0:7000".to_owned(),
        heartbeat_interval: SECOND,
        join_timeout: 30 * SECOND,
        control_lost_timeout: 100 * SECOND,
        redial_min: SECOND,
        redial_max: 4 * SECOND,
    }
}

fn worker() -> Member {
    Member::new(config(), at(0))
}

/// Worker 1 of a formed job, which heard of the coordinator last after 1 s and sends its next heartbeat then.
fn active() -> Member {
    let mut member = worker();
    member.handle_connected(at(0));
    member.handle_frame(at(1), Frame::View(view(1)));
    commands(&mut member);
    member
}

fn reconnect(member: &mut Member, lost: u64, back: u64) {
    member.handle_disconnected(at(lost), down());
    member.handle_timeout(at(back));
    member.handle_connected(at(back));
}

fn view(number: u32) -> View {
    let member = |index: u32| crate::types::Member {
        role: Role::Worker,
        index,
        node: NodeId([index as u8; 32]),
        incarnation: Incarnation(10 + u128::from(index)),
        host: format!("n{index}"),
        pid: 1,
        address: String::new(),
        machine: MachineId::UNKNOWN,
        door: String::new(),
        wiring: Wiring::default(),
    };
    View {
        job: "test".to_owned(),
        epoch: Epoch { term: 1, number },
        phase: Phase::Running,
        members: vec![member(0), member(1)],
    }
}

fn spec(name: &str) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype: DType::F32, shape: vec![10] }
}

fn declare(request: u64, names: &[String]) -> Frame {
    Frame::Declare { request, tensors: names.iter().map(|name| spec(name)).collect(), fuse: false }
}

fn declared(request: u64, name: &str) -> MemberEvent {
    MemberEvent::Declared { request, outcome: Ok(layouts(&[name.to_owned()])) }
}

/// One part for each.
fn layouts(names: &[String]) -> Vec<PartLayout> {
    let part = |name: &String| {
        let key = TensorKey::of(name);
        let pieces = vec![Piece { tensor: key, span: Span { offset: 0, bytes: 40 } }];
        PartLayout { part: PartId { key, index: 0 }, dtype: DType::F32, server: ServerId(0), pieces }
    };
    names.iter().map(part).collect()
}

fn down() -> Error {
    Error::Io { what: "connect".to_owned(), cause: "connection refused".to_owned() }
}

fn commands(member: &mut Member) -> Vec<MemberCommand> {
    std::iter::from_fn(|| member.next_command()).collect()
}

fn events(member: &mut Member) -> Vec<MemberEvent> {
    let event = |command| match command {
        MemberCommand::Event(event) => Some(event),
        MemberCommand::Dial | MemberCommand::Send(_) | MemberCommand::Hangup => None,
    };
    commands(member).into_iter().filter_map(event).collect()
}

fn sent(member: &mut Member) -> Vec<Frame> {
    let frame = |command| match command {
        MemberCommand::Send(frame) => Some(frame),
        MemberCommand::Dial | MemberCommand::Event(_) | MemberCommand::Hangup => None,
    };
    commands(member).into_iter().filter_map(frame).collect()
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}
