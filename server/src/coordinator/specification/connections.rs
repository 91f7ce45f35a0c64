//! Which connection speaks for a member.

use gradlane_core::wire::frame::{AckTimes, Forming};
use gradlane_core::wire::limits;

use super::super::connections::OBSERVERS_MAX;
use super::*;

#[test]
fn a_connection_must_join_before_it_says_anything_else() {
    let mut job = job(1);
    job.connect(0, 0);
    job.frame(0, Frame::Leave);
    assert!(job.closed(0).to_string().contains("before a join"));
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
fn members_that_wait_get_a_short_answer_and_one_of_them_the_names() {
    let mut job = job(100);
    for number in 1..60_u32 {
        job.join(number.into(), worker(number));
    }
    let ask = |job: &mut Job, link| {
        job.frame(link, Frame::StatusRequest);
        let [Frame::Forming(forming)] = &job.received(link)[..] else { panic!("one answer") };
        assert!(Frame::Forming(forming.clone()).encode().len() < 1000, "however large the job is");
        forming.clone()
    };
    let told = ask(&mut job, 1);
    assert!(told.speaks && told.missing.to_string().starts_with("worker 59, worker 60, worker 61"), "{told:?}");
    assert!(told.missing.to_string().ends_with(" and 34 more") && told.joined.more == 51, "{told:?}");
    assert_eq!(ask(&mut job, 2), Forming::default(), "the first one speaks");
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
fn a_certificate_is_good_for_one_role() {
    for (certified, claim) in [
        (Role::Worker, server(0)),
        (Role::Server, worker(0)),
        (Role::Observer, worker(0)),
        (Role::Coordinator, worker(0)),
    ] {
        let mut job = job(1);
        job.connect_as(0, 0, certified);
        let claimed = claim.process.role;
        job.frame(0, Frame::Join(claim));
        let error = job.refusal(0);
        let said = format!("joins as a {claimed}, but its certificate is that of a {certified}");
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains(&said)), "{error}");
        assert!(job.coordinator.view().members.is_empty());
    }
}

#[test]
fn what_no_member_says_closes_its_connection_and_disturbs_nobody_else() {
    let stall = |rank| Frame::Stall(Stall { missing: vec![WorkerId(rank)], ..a_stall() });
    let cases = [
        (0, Frame::HeartbeatAck { sent: at(0), times: AckTimes::default() }, "only a coordinator sends"),
        (0, Frame::Join(worker(0)), "second join"),
        (0, stall(2), "missing ranks do not exist"),
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
fn the_oldest_observer_gives_way_and_no_member_does() {
    let mut job = formed(2);
    let observers = 1_000..1_000 + 10 * OBSERVERS_MAX as u64;
    for link in observers.clone() {
        job.connect_as(link, 9, Role::Observer);
    }
    let closed: Vec<Command> = job.drain();
    assert_eq!(closed.len(), 9 * OBSERVERS_MAX);
    let is_exhausted = |link: u64, command: &Command| matches!(command, Command::Close { link: closed, error: Error::Exhausted { .. } } if *closed == LinkId(link));
    assert!(observers.clone().zip(&closed).all(|(link, command)| is_exhausted(link, command)), "{closed:?}");
    let newest = observers.end - 1;
    job.frame(newest, Frame::StatusRequest);
    assert!(matches!(job.received(newest)[..], [Frame::Status(_)]));
    for link in [0, 1, SERVER] {
        job.heartbeat(link);
        assert!(matches!(job.received(link)[..], [Frame::HeartbeatAck { .. }]));
    }
}

#[test]
fn the_answer_to_a_heartbeat_says_when_it_came() {
    let mut job = formed(1);
    job.pass(3);
    job.heartbeat(0);
    let [Frame::HeartbeatAck { sent, times }] = job.received(0)[..] else { panic!("one answer") };
    assert_eq!((sent, times.received, times.answered), (job.now, job.now, job.now));
}

#[test]
fn connections_that_join_nowhere_keep_no_member_out() {
    let mut job = job(2);
    for link in 1_000..1_000 + 2 * limits::MEMBERS_MAX as u64 {
        job.connect(link, 9);
    }
    job.drain();
    // Later connections have greater names.
    for (node, join) in [(0, worker(0)), (1, worker(1)), (SERVER as u8, server(0))] {
        job.join_as(100_000 + u64::from(node), node, join);
    }
    assert_eq!(job.coordinator.view().phase, Phase::Running);
}

#[test]
fn frames_of_a_closed_connection_are_ignored() {
    let mut job = formed(1);
    job.frame(0, Frame::View(job.coordinator.view()));
    job.drain();
    job.frame(0, Frame::Leave);
    assert_eq!(job.drain(), []);
}
