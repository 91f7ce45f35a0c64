//! Silence, deaths, and the end of the job that follows from them.

use super::*;

#[test]
fn a_silent_member_is_suspect_then_dead_and_everybody_gets_that_cause() {
    let mut job = formed(3);
    job.beat_until(2, &[0, 2, SERVER]);
    let suspect = Event::Suspect { member: "worker 1".to_owned(), place: "n1 (pid 11)".to_owned(), silent: 2 * SECOND };
    assert_eq!(job.events, [suspect]);
    assert_eq!(job.coordinator.status(job.now).members[1].health, Health::Suspect);
    job.beat_until(5, &[0, 2, SERVER]);
    let cause = lost(1, "silent for 5.0 s");
    for link in [0, 2, SERVER] {
        let views = job.received(link).into_iter().filter(|frame| matches!(frame, Frame::View(_)));
        let [Frame::View(view)] = &views.collect::<Vec<_>>()[..] else { panic!("one view") };
        assert_eq!((view.epoch.number, &view.phase), (2, &Phase::Aborted(cause.clone())));
        job.frame(link, Frame::Leave);
    }
    job.drain();
    assert_eq!(job.events.last(), Some(&Event::Finished(Err(cause))));
}

#[test]
fn a_member_that_speaks_again_in_time_is_as_alive_as_before() {
    let mut job = formed(2);
    job.beat_until(4, &[0, SERVER]);
    job.heartbeat(1);
    job.beat_until(12, &[0, 1, SERVER]);
    assert!(matches!(&job.events[..], [Event::Suspect { .. }]), "nothing but the suspicion");
    assert_eq!(job.coordinator.status(job.now).members[1].health, Health::Alive);
}

#[test]
fn a_lost_connection_is_a_death_only_after_the_dead_timeout() {
    let mut job = formed(2);
    job.disconnect(1);
    job.beat_until(4, &[0, SERVER]);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.beat_until(5, &[0, SERVER]);
    let Phase::Aborted(Error::PeerLost { cause, .. }) = job.coordinator.view().phase else { panic!("aborted") };
    assert!(cause.contains("since its connection ended") && cause.contains("reset"), "{cause}");
}

#[test]
fn a_death_that_the_launcher_saw_is_immediate_and_the_first_cause_is_the_only_one() {
    let mut job = formed(3);
    job.coordinator.handle_death(job.now, 11, "n1", "killed by signal 9".to_owned());
    job.coordinator.handle_death(job.now, 12, "n2", "exit status 1".to_owned());
    job.coordinator.stop(job.now, Error::Cancelled);
    assert_eq!(job.coordinator.view().phase, Phase::Aborted(lost(1, "killed by signal 9")));
    let views = job.received(0).into_iter().filter(|frame| matches!(frame, Frame::View(_)));
    assert_eq!(views.count(), 1);
}

#[test]
fn a_member_that_gives_up_is_lost_at_once_with_its_own_cause() {
    for (who, name) in [(1, "worker 1"), (SERVER, "server 0")] {
        let mut job = formed(2);
        job.frame(who, Frame::Fail { cause: "ValueError: boom".to_owned() });
        let Phase::Aborted(Error::PeerLost { member, cause, .. }) = job.coordinator.view().phase else {
            panic!("aborted")
        };
        assert_eq!((member.as_str(), cause.as_str()), (name, "ValueError: boom"));
        assert_eq!(job.received(who), [], "not before the others know");
        [0, 1, SERVER].into_iter().filter(|other| *other != who).for_each(|other| job.frame(other, Frame::Leave));
        let answer = job.received(who);
        assert!(matches!(&answer[..], [Frame::Refused(Error::Fenced { .. })]), "once the others know: {answer:?}");
    }
}

#[test]
fn a_worker_that_left_has_nothing_to_give_up() {
    let mut job = formed(2);
    job.frame(0, Frame::Leave);
    job.frame(0, Frame::Fail { cause: "too late".to_owned() });
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.frame(1, Frame::Leave);
    assert_eq!(job.coordinator.view().phase, Phase::Ended);
}

#[test]
fn a_process_that_gives_up_while_the_job_forms_frees_its_seat() {
    let mut job = job(2);
    job.connect(0, 0);
    job.join(0, worker(0));
    assert_eq!(job.coordinator.view().members.len(), 1);
    job.frame(0, Frame::Fail { cause: "changed its mind".to_owned() });
    assert_eq!(job.coordinator.view().members.len(), 0);
}

#[test]
fn a_member_that_was_given_up_is_fenced_when_it_wakes() {
    let mut job = formed(2);
    job.frame(1, barrier(1));
    job.beat_until(5, &[0, SERVER]);
    let current = job.coordinator.view().epoch;
    let told = job.received(1);
    assert!(!told.iter().any(is_barrier_done), "it did not lose itself: {told:?}");
    assert_eq!(told.last(), Some(&Frame::Refused(Error::Fenced { current })));
    assert_eq!(job.closed(1), Error::Fenced { current });
    job.join_as(7, 1, worker(1));
    assert_eq!(job.refusal(7), Error::Fenced { current });
}

#[test]
fn a_coordinator_that_slept_itself_gives_nobody_up() {
    let mut job = formed(2);
    job.now = at(60);
    job.coordinator.handle_timeout(job.now);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    assert_eq!(job.drain(), []);
}

#[test]
fn a_member_that_connects_after_the_end_still_hears_the_cause() {
    let mut job = formed(3);
    job.disconnect(2);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    job.join_as(7, 2, worker(2));
    let Some(Frame::View(view)) = job.received(7).pop() else { panic!("a view") };
    assert_eq!(view.phase, Phase::Aborted(lost(1, "killed")));
}

#[test]
fn who_asks_after_everybody_knew_the_end_still_hears_it() {
    let mut job = formed(1);
    job.coordinator.stop(job.now, Error::Cancelled);
    [0, SERVER].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.drain();
    assert_eq!(job.events, [Event::Finished(Err(Error::Cancelled))]);

    job.connect(7, 7);
    job.frame(7, Frame::StatusRequest);
    let Some(Frame::Status(status)) = job.received(7).pop() else { panic!("a status") };
    assert_eq!(status.view.phase, Phase::Aborted(Error::Cancelled));
    job.join_as(8, 0, worker(0));
    assert!(matches!(&job.received(8)[..], [Frame::View(view)] if view.phase == Phase::Aborted(Error::Cancelled)));
    job.join(9, worker(5));
    assert_eq!(job.refusal(9), Error::Cancelled);
    assert_eq!(job.events.len(), 1, "nothing more happened to the job");
}

#[test]
fn the_end_waits_for_who_has_not_confirmed_it_but_not_for_long() {
    let mut job = formed(2);
    job.disconnect(1);
    job.coordinator.stop(job.now, Error::Cancelled);
    [0, SERVER].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.drain();
    assert_eq!(job.events, []);
    assert_eq!(job.coordinator.poll_timeout(), Some(job.now + 3 * SECOND));
    job.pass(3);
    assert_eq!(job.events, [Event::Finished(Err(Error::Cancelled))]);
    assert_eq!(job.coordinator.poll_timeout(), None);
}

/// Two workers, the second on the machine of the server.
fn with_a_witness() -> Job {
    let mut job = job(2);
    job.join(SERVER, on_machine(1, server(0)));
    job.join(0, on_machine(2, worker(0)));
    job.join(1, on_machine(1, worker(1)));
    job.drain();
    job.unread.clear();
    job
}

fn saw(node: u8, pid: u32) -> Frame {
    Frame::Saw { node: NodeId([node; 32]), pid }
}

#[test]
fn a_process_that_a_member_of_its_machine_saw_end_is_lost_soon() {
    let mut job = with_a_witness();
    job.frame(SERVER, saw(1, 11));
    assert_eq!(job.coordinator.view().phase, Phase::Running, "somebody may know why");
    job.pass(1);
    assert_eq!(job.coordinator.view().phase, Phase::Aborted(lost(1, "its process ended, which server 0 saw")));
}

#[test]
fn who_knows_why_a_process_ended_is_heard_before_a_witness() {
    let cause = "killed by signal 9".to_owned();
    let mut job = with_a_witness();
    job.frame(SERVER, saw(1, 11));
    job.coordinator.handle_death(job.now, 11, "n1", cause.clone());
    assert_eq!(job.coordinator.view().phase, Phase::Aborted(lost(1, &cause)));

    let mut job = with_a_witness();
    job.frame(SERVER, saw(1, 11));
    job.frame(1, Frame::Fail { cause: cause.clone() });
    assert_eq!(job.coordinator.view().phase, Phase::Aborted(lost(1, &cause)));

    let mut job = with_a_witness();
    job.frame(SERVER, saw(1, 11));
    job.frame(1, Frame::Leave);
    job.pass(1);
    assert_eq!(job.coordinator.view().phase, Phase::Running, "it left in order before");
}

#[test]
fn a_witness_of_another_machine_is_not_believed_and_loses_its_connection() {
    let mut job = with_a_witness();
    job.frame(SERVER, saw(0, 10));
    assert!(matches!(job.closed(SERVER), Error::Protocol { field, .. } if field == "process that ended"));
    job.beat_until(4, &[0, 1]);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
}

#[test]
fn a_process_that_is_no_member_may_end() {
    for unknown in [saw(7, 11), saw(1, 12)] {
        let mut job = with_a_witness();
        job.frame(SERVER, unknown);
        job.beat_until(3, &[0, 1, SERVER]);
        assert_eq!(job.coordinator.view().phase, Phase::Running);
    }
    let mut job = formed(2);
    job.frame(SERVER, saw(1, 11));
    job.beat_until(3, &[0, 1, SERVER]);
    assert_eq!(job.coordinator.view().phase, Phase::Running, "nobody knows on which machine they are");
}
