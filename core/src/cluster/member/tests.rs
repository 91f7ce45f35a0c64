//! The specification of a member: one test for each sentence.

mod patience;
mod requests;
mod storing;
mod views;

use super::*;
use crate::cluster::Offset;
use crate::cluster::Patience;
use crate::types::{
    ClockKey, Closing, DType, Epoch, Half, Incarnation, NodeId, PartId, PartLayout, Piece, Process, Round, ServerId,
    Setup, Span, TensorKey, TensorKind, TensorSpec, WorkerId, WorkerSet,
};
use crate::wire::frame::{AckTimes, Stall};

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
fn heartbeats_carry_the_progress_and_measure_the_way() {
    let mut member = active();
    let progress = Progress { last: None, pending: 3, bytes_in_flight: 40 };
    member.set_progress(progress);
    member.handle_timeout(at(1));
    assert_eq!(sent(&mut member), [Frame::Heartbeat { sent: at(1), progress }]);
    assert_eq!(member.round_trip(), None);
    let times = AckTimes { received: at(101), answered: at(102), began_unix_ns: 7 };
    member.handle_frame(at(4), Frame::HeartbeatAck { sent: at(1), times });
    assert_eq!(member.round_trip(), Some(3 * SECOND));
    assert_eq!(member.offsets().began_unix_ns(), 7);
    let ahead = Offset { ns: 99_000_000_000, error: SECOND };
    let known = member.offsets().at(at(4)).unwrap();
    assert!(known.ns == ahead.ns && known.error.abs_diff(ahead.error) < SECOND / 100, "{known:?}");
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
    member.handle_frame(now, acknowledged(now));
    member.handle_disconnected(now, down());
    assert_eq!(member.poll_timeout().unwrap().since(now), SECOND);
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
fn a_process_is_told_when_its_coordinator_is_out_of_contact_and_when_it_is_back() {
    let mut member = active();
    let contact = |seconds, is_lost| MemberCommand::Event(MemberEvent::Contact { at: at(seconds), is_lost });
    member.handle_disconnected(at(1), down());
    assert_eq!(commands(&mut member), [contact(1, true)]);
    member.handle_timeout(at(2));
    member.handle_disconnected(at(2), down());
    assert_eq!(commands(&mut member), [MemberCommand::Dial], "once");
    reconnect(&mut member, 4, 5);
    assert!(!commands(&mut member).contains(&contact(5, false)), "it need not be the coordinator of this job");
    member.handle_frame(at(6), Frame::View(view(1)));
    assert_eq!(commands(&mut member), [contact(6, false)]);
}

#[test]
fn a_member_does_not_wait_long_for_its_coordinator_where_another_one_answers() {
    let mut member = active();
    let stranger = Error::Auth { problem: "another authority".to_owned(), hint: "look at the join string".to_owned() };
    let mut now = at(1);
    member.handle_disconnected(now, stranger.clone());
    while let Some(due) = member.poll_timeout() {
        now = due;
        member.handle_timeout(now);
        member.handle_disconnected(now, stranger.clone());
    }
    assert_eq!(now, at(11), "10 s after the last word");
    let told = events(&mut member);
    let [MemberEvent::Failed(Error::PeerLost { cause, .. })] = &told[..] else { panic!("{told:?}") };
    assert!(cause.contains("another authority"), "{cause}");
}

#[test]
fn a_coordinator_that_falls_silent_is_dialled_again() {
    let mut member = active();
    reconnect(&mut member, 1, 2);
    member.handle_frame(at(2), Frame::View(view(1)));
    commands(&mut member);
    let mut heartbeats = |until| {
        let mut sent = Vec::new();
        while let Some(due) = member.poll_timeout().filter(|due| *due <= until) {
            member.handle_timeout(due);
            sent.extend(commands(&mut member).into_iter().map(|command| (due, command)));
        }
        sent
    };
    let told = heartbeats(at(5));
    let lost = MemberCommand::Event(MemberEvent::Contact { at: at(5), is_lost: true });
    let [heartbeats @ .., (_, event), (last, MemberCommand::Dial)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*event, lost);
    assert_eq!(*last, at(5), "3 s after the last word");
    assert!(heartbeats.iter().all(|(_, command)| matches!(command, MemberCommand::Send(Frame::Heartbeat { .. }))));
    member.handle_frame(at(5), Frame::Refused(Error::Cancelled));
    assert_eq!(commands(&mut member), [], "what comes late on the old connection counts for nothing");
    member.handle_connected(at(6));
    assert!(matches!(&sent(&mut member)[..], [Frame::Join(_)]));
}

#[test]
fn joining_ends_in_time_and_says_what_it_waited_for() {
    let mut unreached = worker();
    unreached.handle_disconnected(at(0), down());
    unreached.handle_timeout(at(30));
    let mut waiting = worker();
    waiting.handle_connected(at(0));
    waiting.handle_frame(at(1), acknowledged(at(0)));
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
fn a_member_that_cannot_go_on_says_why_and_is_no_member_any_more() {
    let mut member = active();
    let cause = Error::Internal { what: "a thread ended".to_owned() };
    member.break_down(cause.clone());
    assert_eq!(
        commands(&mut member),
        [
            MemberCommand::Send(Frame::Fail { cause: cause.to_string() }),
            MemberCommand::Event(MemberEvent::Failed(cause.clone())),
            MemberCommand::Hangup,
        ]
    );
    member.break_down(cause);
    assert_eq!(commands(&mut member), [], "once");
}

#[test]
fn leaving_waits_for_the_others() {
    let mut member = active();
    let request = member.barrier(at(1), "epoch".to_owned(), Patience::Named(SECOND));
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
    let [said, left, hangup] = &commands(&mut member)[..] else { panic!("commands") };
    assert_eq!(*said, MemberCommand::Send(Frame::Leave), "so that the coordinator knows");
    assert_eq!((left, hangup), (&MemberCommand::Event(MemberEvent::Left), &MemberCommand::Hangup));
}

#[test]
fn who_leaves_is_not_disturbed_by_a_view_of_those_that_go_on_and_who_stays_is_fenced_by_it() {
    let without_me = View { members: view(2).members.into_iter().take(1).collect(), ..view(2) };
    let mut member = active();
    let mine = member.index();
    assert!(without_me.workers().all(|other| Some(other.index) != mine), "{without_me:?}");
    member.leave();
    commands(&mut member);
    member.handle_frame(at(2), Frame::View(without_me.clone()));
    assert_eq!(commands(&mut member), [], "the process needs not hear of it");
    reconnect(&mut member, 3, 4);
    member.handle_frame(at(4), Frame::View(without_me.clone()));
    assert!(matches!(&sent(&mut member)[..], [Frame::Join(_), Frame::Leave]), "said again on a new connection");
    member.handle_frame(at(5), Frame::View(View { phase: Phase::Ended, ..view(3) }));
    assert_eq!(events(&mut member), [MemberEvent::Left]);

    let mut member = active();
    let current = without_me.epoch;
    member.handle_frame(at(2), Frame::View(without_me));
    assert_eq!(events(&mut member), [MemberEvent::Failed(Error::Fenced { current })]);
}

#[test]
fn giving_up_tells_the_cause_until_the_coordinator_answers() {
    let mut member = active();
    let request = member.barrier(at(1), "epoch".to_owned(), Patience::Named(SECOND));
    commands(&mut member);
    let fail = || Frame::Fail { cause: "ValueError: boom".to_owned() };
    member.give_up("ValueError: boom".to_owned());
    assert!(matches!(
        &commands(&mut member)[..],
        [MemberCommand::Event(MemberEvent::BarrierDone { request: r, outcome: Err(_) }), MemberCommand::Send(frame)]
            if *r == request && *frame == fail()
    ));
    member.give_up("another cause".to_owned());
    member.leave();
    assert_eq!(commands(&mut member), [], "only the first cause counts");
    reconnect(&mut member, 1, 2);
    member.handle_frame(at(2), Frame::View(view(1)));
    let sent = sent(&mut member);
    assert!(matches!(&sent[..], [Frame::Join(_), last] if *last == fail()), "said again on a new connection: {sent:?}");
    member.handle_frame(at(3), Frame::Refused(Error::Fenced { current: view(1).epoch }));
    assert_eq!(events(&mut member), [MemberEvent::Left], "its own cause is the only one");
}

#[test]
fn leaving_before_the_job_formed_is_immediate() {
    let mut member = worker();
    commands(&mut member);
    member.leave();
    assert_eq!(commands(&mut member), [MemberCommand::Event(MemberEvent::Left), MemberCommand::Hangup]);
    member.handle_connected(at(1));
    assert_eq!(commands(&mut member), [MemberCommand::Hangup], "the dial had been under way");
}

#[test]
fn a_server_says_its_squares_again_on_each_connection_until_it_hears_of_the_norm() {
    let (mut server, formed) = active_server();
    let squares = |round| Squares { clock: ClockKey(7), round, sum: 2.0 };
    let close = |round, half| Closing { clock: ClockKey(7), round, half };
    server.report_squares(squares(3));
    assert_eq!(sent(&mut server), [Frame::Squares(squares(3))]);
    reconnect(&mut server, 2, 3);
    server.report_squares(squares(4));
    commands(&mut server);
    server.handle_frame(at(3), Frame::View(formed.clone()));
    assert_eq!(sent(&mut server), [3, 4].map(|round| Frame::Squares(squares(round))));
    for closing in
        [close(4, Half::Workers { workers: WorkerSet::default(), clips: true, samples: 0 }), close(3, Half::Norm(1.0))]
    {
        server.handle_frame(at(3), Frame::Close(closing.clone()));
        assert_eq!(events(&mut server), [MemberEvent::Close(closing)]);
    }
    reconnect(&mut server, 4, 5);
    commands(&mut server);
    server.handle_frame(at(5), Frame::View(formed));
    assert_eq!(sent(&mut server), [Frame::Squares(squares(4))]);
}

#[test]
fn a_server_goes_when_the_job_ended() {
    let (mut server, formed) = active_server();
    let end = View { phase: Phase::Ended, epoch: view(2).epoch, ..formed };
    server.handle_frame(at(3), Frame::View(end.clone()));
    assert_eq!(events(&mut server), [MemberEvent::View(end), MemberEvent::Left]);
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

pub(super) fn config() -> MemberConfig {
    MemberConfig {
        process: Process { host: "n1".to_owned(), pid: 1, ..Process::new(Role::Worker, Incarnation(11)) },
        requested: None,
        workers: 2,
        servers: 1,
        coordinator: "n0:7000".to_owned(),
        heartbeat_interval: SECOND,
        silence_max: 3 * SECOND,
        warn_after: Duration::ZERO,
        join_timeout: 30 * SECOND,
        control_lost_timeout: 100 * SECOND,
        contact: None,
        replaced_timeout: 10 * SECOND,
        redial_min: SECOND,
        redial_max: 4 * SECOND,
        setup: Setup::default(),
        defect: None,
    }
}

fn worker() -> Member {
    Member::new(config(), at(0))
}

/// Worker 1 of a formed job. The last frame of the coordinator arrived at 1 s, and the worker's next heartbeat is due then.
fn active() -> Member {
    let mut member = worker();
    member.handle_connected(at(0));
    member.handle_frame(at(1), Frame::View(view(1)));
    commands(&mut member);
    member
}

/// The server of a formed job, with the view that it has seen.
fn active_server() -> (Member, View) {
    let mut config = config();
    config.process.role = Role::Server;
    let mut server = Member::new(config, at(0));
    server.handle_connected(at(0));
    let mut formed = view(1);
    formed.members[1].process.role = Role::Server;
    server.handle_frame(at(0), Frame::View(formed.clone()));
    commands(&mut server);
    (server, formed)
}

fn reconnect(member: &mut Member, lost: u64, back: u64) {
    member.handle_disconnected(at(lost), down());
    member.handle_timeout(at(back));
    member.handle_connected(at(back));
}

pub(super) fn view(number: u32) -> View {
    let member = |index: u32| crate::types::Member {
        process: Process::new(Role::Worker, Incarnation(10 + u128::from(index))),
        node: NodeId([index as u8; 32]),
        index,
        first_round: Round(0),
    };
    View::plain("test", Epoch { term: 1, number }, Phase::Running, vec![member(0), member(1)])
}

fn spec(name: &str) -> TensorSpec {
    TensorSpec::new(name, DType::F32, vec![10])
}

/// The answer of a coordinator to the heartbeat of `sent`.
pub(super) fn acknowledged(sent: Time) -> Frame {
    Frame::HeartbeatAck { sent, times: AckTimes::default() }
}

pub(super) fn down() -> Error {
    Error::Io { what: "connect".to_owned(), cause: "connection refused".to_owned() }
}

pub(super) fn commands(member: &mut Member) -> Vec<MemberCommand> {
    std::iter::from_fn(|| member.next_command()).collect()
}

/// What the process is told, but for the contact with the coordinator.
fn events(member: &mut Member) -> Vec<MemberEvent> {
    let event = |command| match command {
        MemberCommand::Event(MemberEvent::Contact { .. }) => None,
        MemberCommand::Event(event) => Some(event),
        MemberCommand::Dial | MemberCommand::Send(_) | MemberCommand::Hangup | MemberCommand::SayWhy { .. } => None,
    };
    commands(member).into_iter().filter_map(event).collect()
}

fn sent(member: &mut Member) -> Vec<Frame> {
    let frame = |command| match command {
        MemberCommand::Send(frame) => Some(frame),
        MemberCommand::Dial | MemberCommand::Event(_) | MemberCommand::Hangup | MemberCommand::SayWhy { .. } => None,
    };
    commands(member).into_iter().filter_map(frame).collect()
}

pub(super) fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}
