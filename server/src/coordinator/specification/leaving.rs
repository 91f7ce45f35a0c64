//! How a job ends in order.

use super::*;

#[test]
fn the_job_ends_in_order_when_the_last_worker_left() {
    let mut job = formed(2);
    job.frame(0, Frame::Leave);
    job.frame(0, Frame::Leave);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    job.frame(1, Frame::Leave);
    for link in [0, 1, SERVER] {
        let Some(Frame::View(view)) = job.received(link).pop() else { panic!("a view") };
        assert_eq!(view.phase, Phase::Ended);
        job.frame(link, Frame::Leave);
    }
    job.drain();
    assert_eq!(job.events, [Event::Finished(Ok(()))]);
}

#[test]
fn who_lost_its_connection_before_the_end_still_hears_of_it() {
    let mut job = formed(1);
    job.frame(0, Frame::Leave);
    job.pass(60);
    assert_eq!(job.events, [Event::Finished(Ok(()))]);
    job.connect(7, SERVER as u8);
    job.join_as(7, SERVER as u8, server(0));
    let Some(Frame::View(view)) = job.received(7).pop() else { panic!("a view") };
    assert_eq!(view.phase, Phase::Ended);
    assert_eq!(job.events.len(), 1, "nothing more happened to the job");
}

#[test]
fn a_worker_that_left_may_go_silent_or_end() {
    let mut job = formed(2);
    job.frame(0, Frame::Leave);
    job.beat_until(10, &[1, SERVER]);
    job.coordinator.handle_death(job.now, 10, "n0", "exit status 0".to_owned());
    assert_eq!((job.coordinator.view().phase, job.events), (Phase::Running, Vec::new()));
}

#[test]
fn a_server_that_leaves_a_running_job_is_lost() {
    let mut job = formed(1);
    job.frame(SERVER, Frame::Leave);
    assert!(
        matches!(job.coordinator.view().phase, Phase::Aborted(Error::PeerLost { member, .. }) if member == "server 0")
    );
}
