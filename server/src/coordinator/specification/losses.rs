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
fn a_member_that_cannot_go_on_is_lost_at_once_and_its_cause_is_told() {
    for (link, member) in [(1, "worker 1"), (SERVER, "server 0")] {
        let mut job = formed(2);
        job.frame(link, Frame::Fail(Error::Internal { what: "a thread ended".to_owned() }));
        let Phase::Aborted(Error::PeerLost { member: lost, cause, .. }) = job.coordinator.view().phase else {
            panic!("{:?}", job.coordinator.view().phase)
        };
        assert_eq!((lost.as_str(), cause.as_str()), (member, "internal error: a thread ended; please report it"));
    }
}

#[test]
fn before_the_job_has_formed_a_process_that_cannot_go_on_frees_its_place() {
    let mut job = job(1);
    job.join(0, worker(0));
    job.frame(0, Frame::Fail(Error::Cancelled));
    job.join(1, worker(1));
    job.join(SERVER, server(0));
    assert_eq!(job.ranks(), [1]);
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
