//! The views that a member accepts, and their effects.

use super::*;

#[test]
fn a_newer_view_is_told_and_the_same_one_is_not() {
    let mut member = active();
    member.handle_frame(at(2), Frame::View(view(1)));
    assert_eq!(events(&mut member), []);
    member.handle_frame(at(2), Frame::View(view(2)));
    assert_eq!(events(&mut member), [MemberEvent::View(view(2))]);
}

#[test]
fn a_server_that_is_expected_again_hears_so_before_it_ends_but_not_one_that_gives_up() {
    let [member, host, cause] = ["server 1", "n1", "kill"].map(str::to_owned);
    let cause = Error::StateLost { member, host, cause };
    for gives_up in [false, true] {
        let (mut server, formed) = active_server();
        if gives_up {
            server.give_up("it was asked to stop".to_owned());
            commands(&mut server);
        }
        let epoch = Epoch { number: 2, ..formed.epoch };
        let last = View { phase: Phase::Restores(cause.clone()), epoch, ..formed };
        server.handle_frame(at(1), Frame::View(last.clone()));
        let expected = match gives_up {
            true => vec![MemberEvent::Left],
            false => vec![MemberEvent::View(last), MemberEvent::Failed(cause.clone())],
        };
        assert_eq!(events(&mut server), expected);
    }
}

#[test]
fn at_the_end_everything_pending_fails_with_the_cause_and_then_the_member_does_once() {
    let cause = Error::PeerLost { member: "worker 0".to_owned(), host: "n0".to_owned(), cause: "kill".to_owned() };
    let mut member = active();
    let declare = member.declare(vec![spec("a")], false);
    let barrier = member.barrier(at(1), "epoch".to_owned(), Patience::Named(SECOND));
    commands(&mut member);
    let last = View { phase: Phase::Aborted(cause.clone()), ..view(2) };
    member.handle_frame(at(1), Frame::View(last.clone()));
    assert_eq!(member.view(), Some(&last));
    let expected = [
        MemberCommand::Event(MemberEvent::Declared { request: declare, outcome: Err(cause.clone()) }),
        MemberCommand::Event(MemberEvent::BarrierDone { request: barrier, outcome: Err(cause.clone()) }),
        MemberCommand::Event(MemberEvent::Failed(cause.clone())),
        MemberCommand::Send(Frame::Leave),
        MemberCommand::Hangup,
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
fn a_view_without_this_life_fences_it() {
    let mut member = active();
    let mut other = view(2);
    other.members[1].process.incarnation = Incarnation(77);
    member.handle_frame(at(1), Frame::View(other));
    assert_eq!(events(&mut member), [MemberEvent::Failed(Error::Fenced { current: Epoch { term: 1, number: 2 } })]);
}

#[test]
fn what_no_coordinator_says_ends_the_membership() {
    let older = View { epoch: Epoch { term: 1, number: 0 }, ..view(1) };
    let mut other = view(1);
    other.members[0].process.host = "n7".to_owned();
    let mut moved = view(2);
    moved.members.iter_mut().for_each(|member| member.index = 1 - member.index);
    let nonsense = [
        (Frame::Leave, "kind"),
        (Frame::Declared { request: 99, outcome: Ok(Vec::new()) }, "99 was never asked"),
        (acknowledged(at(50)), "clock"),
        (Frame::View(older), "view of epoch 1.0 is older than the one of epoch 1.1"),
        (Frame::View(other), "view of epoch 1.1 differs from the one before"),
        (Frame::View(View { phase: Phase::Forming, ..view(2) }), "is forming"),
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
fn a_coordinator_of_another_start_is_told_apart_by_its_term() {
    let mut member = active();
    let former = View { epoch: Epoch { term: 0, number: 9 }, ..view(1) };
    member.handle_frame(at(1), Frame::View(former));
    assert_eq!(events(&mut member), [MemberEvent::Failed(Error::OtherTerm { member: 1, coordinator: 0 })]);

    let mut member = active();
    reconnect(&mut member, 2, 4);
    let told = sent(&mut member);
    assert!(
        matches!(&told[..], [Frame::Join(join)] if join.epoch == Some(Epoch { term: 1, number: 1 })),
        "it says which job it belongs to: {told:?}"
    );
    let error = Error::OtherTerm { member: 1, coordinator: 2 };
    member.handle_frame(at(4), Frame::Refused(error.clone()));
    assert_eq!(events(&mut member), [MemberEvent::Failed(error)]);
    assert_eq!(member.poll_timeout(), None, "it does not dial again");
}

#[test]
fn a_view_without_a_worker_that_was_lost_is_one_event_and_the_job_goes_on() {
    let mut member = active();
    let declare = member.declare(vec![spec("a")], false);
    commands(&mut member);
    let mut smaller = view(2);
    smaller.members.remove(0);
    member.handle_frame(at(1), Frame::View(smaller.clone()));
    assert_eq!(commands(&mut member), [MemberCommand::Event(MemberEvent::View(smaller))]);
    assert_eq!(member.index(), Some(1), "the rank stays");
    member.handle_frame(at(1), Frame::Declared { request: declare, outcome: Ok(Vec::new()) });
    assert_eq!(events(&mut member), [MemberEvent::Declared { request: declare, outcome: Ok(Vec::new()) }]);
}
