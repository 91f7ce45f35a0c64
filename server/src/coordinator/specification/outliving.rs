//! The setting `on_server_loss=continue`: a job goes on without servers that are lost, once their sums are recovered.

use gradlane_core::config::OnServerLoss;
use gradlane_core::types::{Holdings, SumId};

use super::*;

#[test]
fn a_lost_server_leaves_the_view_and_parts_rest_until_each_sum_is_where_it_is_wanted() {
    let mut job = outliving(3);
    kill_server(&mut job, 1);
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, view.formed_servers, view.recovers), (2, 2, true));
    assert_eq!(view.servers().map(|member| member.process.host.as_str()).collect::<Vec<_>>(), ["s0"]);
    assert_eq!(job.ranks(), [0, 1, 2]);
    for link in [0, 1, 2, SERVER] {
        assert_eq!(job.received(link), [Frame::View(view.clone())]);
    }
    assert_eq!(job.refusal(SERVER + 1), Error::Fenced { current: view.epoch });
    job.frame(0, has(2, &[4, 7]));
    job.frame(1, wants(2, &[7, 9]));
    assert_eq!(job.received(0), [], "one has not said what it has");
    job.frame(2, wants(2, &[7]));
    assert_eq!(job.received(0), [restore(2, &[7])], "it has this one, and others want it");
    assert_eq!((job.received(1), job.received(2), job.received(SERVER)), (vec![], vec![], vec![]));
    assert!(job.coordinator.view().recovers);
    job.events.clear();
    job.frame(0, restored(2));
    let next = job.coordinator.view();
    assert_eq!(next, View { epoch: Epoch { number: 3, ..view.epoch }, recovers: false, ..view });
    for link in [0, 1, 2, SERVER] {
        assert_eq!(job.received(link), [Frame::View(next.clone())]);
    }
    assert_eq!(job.events, [Event::Recovered { epoch: next.epoch }]);
    job.frame(0, restored(2));
    job.frame(1, wants(2, &[7]));
    assert_eq!((job.drain(), job.coordinator.view()), (vec![], next), "late repeats change nothing");
}

#[test]
fn sums_that_nobody_has_are_made_anew_and_those_that_were_lost_are_told_to_the_one_that_waits() {
    let mut job = outliving(2);
    kill_server(&mut job, 0);
    job.drain();
    job.unread.clear();
    job.frame(0, Frame::Holdings(Holdings { knows: sums(&[6]), wants: sums(&[8]), ..holdings(2) }));
    job.frame(1, wants(2, &[6, 8]));
    let next = Frame::View(job.coordinator.view());
    assert!(!job.coordinator.view().recovers, "there is nothing to wait for");
    let lost = Frame::Restore { epoch: epoch(2), sums: vec![], lost: sums(&[6]) };
    assert_eq!((job.received(0), job.received(1)), (vec![next.clone()], vec![lost, next]));
}

#[test]
fn a_second_server_is_lost_while_the_sums_of_the_first_are_recovered() {
    let mut job = outliving_as(CoordinatorConfig { servers: 3, ..outliving_config(2) }, 2);
    kill_server(&mut job, 1);
    job.frame(0, has(2, &[7]));
    kill_server(&mut job, 0);
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, view.recovers, view.servers().count()), (3, true, 1));
    job.frame(1, wants(2, &[7]));
    job.frame(1, wants(3, &[7]));
    assert!(job.coordinator.view().recovers, "what worker 0 said was of the former view");
    job.frame(0, has(3, &[7]));
    assert_eq!(job.received(0).last(), Some(&restore(3, &[7])));
    job.frame(0, restored(3));
    assert_eq!((job.coordinator.view().epoch.number, job.coordinator.view().recovers), (4, false));
}

#[test]
fn a_worker_that_has_reconnected_gets_its_orders_again() {
    let mut job = outliving(2);
    kill_server(&mut job, 1);
    job.frame(0, has(2, &[7]));
    job.frame(1, wants(2, &[7]));
    assert_eq!(job.received(0).last(), Some(&restore(2, &[7])));
    job.disconnect(0);
    job.join_as(7, 0, Join { epoch: Some(epoch(2)), ..worker(0) });
    assert_eq!(job.received(7), [Frame::View(job.coordinator.view())]);
    job.frame(7, has(2, &[7]));
    assert_eq!(job.received(7), [restore(2, &[7])]);
    job.frame(7, restored(2));
    assert!(!job.coordinator.view().recovers);
}

#[test]
fn a_worker_that_is_away_when_all_have_spoken_gets_its_orders_when_it_is_back() {
    let mut job = outliving(2);
    kill_server(&mut job, 1);
    job.frame(0, has(2, &[7]));
    job.disconnect(0);
    job.frame(1, wants(2, &[7]));
    assert!(job.coordinator.view().recovers);
    job.join_as(7, 0, Join { epoch: Some(epoch(2)), ..worker(0) });
    job.frame(7, has(2, &[7]));
    assert_eq!(job.received(7).last(), Some(&restore(2, &[7])));
}

#[test]
fn when_a_worker_is_lost_meanwhile_the_others_begin_anew_without_it() {
    for (what, lost, left) in [("it has not spoken", 2, [0, 1]), ("it was to restore the sum", 0, [1, 2])] {
        let mut job = outliving(3);
        kill_server(&mut job, 1);
        job.frame(0, has(2, &[7]));
        job.frame(1, has(2, &[7]));
        if lost == 0 {
            job.frame(2, wants(2, &[7]));
        }
        job.coordinator.handle_death(job.now, 10 + lost, &format!("n{lost}"), "killed".to_owned());
        let view = job.coordinator.view();
        assert_eq!((view.epoch.number, view.recovers), (3, true), "{what}");
        job.frame(left[0], restored(2));
        left.into_iter().for_each(|link| job.frame(link, has(2, &[])));
        assert_eq!(job.coordinator.view(), view, "{what}: that was of the former view");
        left.into_iter().for_each(|link| drop(job.received(link)));
        job.frame(left[1], wants(3, &[7]));
        job.frame(left[0], has(3, &[7]));
        assert_eq!(job.received(left[0]), [restore(3, &[7])], "{what}");
        job.frame(left[0], restored(3));
        let next = job.coordinator.view();
        assert_eq!((next.epoch.number, next.recovers), (4, false), "{what}");
    }
}

#[test]
fn a_worker_that_leaves_in_order_meanwhile_is_not_waited_for() {
    let mut job = job_of(outliving_config(3));
    [0, 1, 2].into_iter().for_each(|number| job.join(u64::from(number), worker(number)));
    [0, 1].into_iter().for_each(|number| job.join(SERVER + u64::from(number), server(number)));
    assert_eq!(job.ranks().len(), 3);
    kill_server(&mut job, 1);
    [0, 1].into_iter().for_each(|link| job.frame(link, has(2, &[])));
    assert!(job.coordinator.view().recovers);
    job.frame(2, Frame::Leave);
    let view = job.coordinator.view();
    assert_eq!((view.epoch.number, view.recovers, job.ranks().len()), (3, true, 2), "they are asked anew");
    [0, 1].into_iter().for_each(|link| job.frame(link, has(3, &[])));
    assert!(!job.coordinator.view().recovers);
}

#[test]
fn a_worker_that_never_answers_ends_the_job_with_an_error_that_names_it() {
    for (what, names) in [("does not say what it has", "worker 2"), ("does not restore", "worker 0")] {
        let mut job = outliving(3);
        kill_server(&mut job, 1);
        job.frame(0, has(2, &[7]));
        job.frame(1, wants(2, &[7]));
        if names == "worker 0" {
            job.frame(2, wants(2, &[]));
        }
        job.beat_until(19, &[0, 1, 2, SERVER]);
        assert_eq!(job.coordinator.view().phase, Phase::Running, "{what}");
        job.beat_until(20, &[0, 1, 2, SERVER]);
        let view = job.coordinator.view();
        let Phase::Aborted(Error::Timeout { what: said, waited }) = &view.phase else { panic!("{what}: {view:?}") };
        assert_eq!(said, &format!("recovering the sums of servers that were lost: {names} did not answer"));
        assert_eq!(*waited, 20 * SECOND);
        let ends = Event::Ends { reason: "the sums of a lost server were not recovered in time" };
        assert!(job.events.contains(&ends), "{what}: {:?}", job.events);
        for link in [0, 1, 2, SERVER] {
            assert!(job.received(link).contains(&Frame::View(view.clone())), "{what}");
        }
    }
}

#[test]
fn what_does_not_belong_to_the_recovery_is_ignored() {
    let mut job = outliving(2);
    job.frame(0, has(1, &[]));
    job.frame(0, restored(1));
    assert_eq!(job.drain(), [], "nothing is recovered");
    kill_server(&mut job, 1);
    let view = job.coordinator.view();
    for (what, link, frame) in [
        ("of an earlier view", 0, has(1, &[])),
        ("of a later view", 0, has(3, &[])),
        (
            "of another start",
            0,
            Frame::Holdings(Holdings { epoch: Epoch { term: TERM + 1, number: 2 }, ..holdings(2) }),
        ),
        ("of a server", SERVER, has(2, &[])),
        ("restored before it was asked", 0, restored(2)),
        ("restored by a server", SERVER, restored(2)),
    ] {
        job.drain();
        job.frame(link, frame);
        assert_eq!((job.drain(), job.coordinator.view()), (vec![], view.clone()), "{what}");
    }
    job.frame(1, has(2, &[]));
    assert_eq!(job.coordinator.view(), view, "worker 0 has said nothing that counts");
    job.frame(0, has(2, &[]));
    assert!(!job.coordinator.view().recovers);
}

#[test]
fn a_coordinator_that_is_resumed_in_the_middle_of_a_recovery_completes_it() {
    let mut job = outliving(2);
    job.beat_until(3, &[0, 1, SERVER, SERVER + 1]);
    kill_server(&mut job, 1);
    job.frame(0, has(2, &[7]));
    job.frame(1, wants(2, &[7]));
    assert_eq!(job.received(0).last(), Some(&restore(2, &[7])));
    let mut after = resumed(&job);
    let view = after.coordinator.view();
    assert_eq!(view, job.coordinator.view());
    assert_eq!((view.epoch.number, view.recovers), (2, true));
    for (link, join) in [(0, worker(0)), (1, worker(1)), (SERVER, server(0))] {
        after.join(link, Join { epoch: Some(view.epoch), ..join });
        assert_eq!(after.received(link), [Frame::View(view.clone())]);
    }
    after.frame(1, wants(2, &[7]));
    after.frame(0, has(2, &[7]));
    assert_eq!(after.received(0), [restore(2, &[7])], "it was not written down who was told what");
    after.frame(0, restored(2));
    let next = after.coordinator.view();
    assert_eq!((next.epoch.number, next.recovers), (3, false));
    after.drain();
    let third = resumed(&after);
    assert_eq!(third.coordinator.view(), next, "a third one knows that it is over");
    assert_eq!(third.coordinator.lasting(), after.coordinator.lasting());
}

#[test]
fn a_coordinator_that_is_resumed_gives_workers_the_whole_time_again_and_no_more() {
    let mut job = outliving(2);
    kill_server(&mut job, 1);
    job.beat_until(19, &[0, 1, SERVER]);
    job.drain();
    let mut after = resumed(&job);
    assert_eq!(after.now, at(0), "its clock goes on from the last record");
    for (link, join) in [(0, worker(0)), (1, worker(1)), (SERVER, server(0))] {
        after.join(link, Join { epoch: Some(epoch(2)), ..join });
    }
    after.frame(0, has(2, &[]));
    // They have the dead timeout to come again.
    after.beat_until(24, &[0, 1, SERVER]);
    assert_eq!(after.coordinator.view().phase, Phase::Running);
    after.beat_until(25, &[0, 1, SERVER]);
    let Phase::Aborted(Error::Timeout { what, .. }) = after.coordinator.view().phase else { panic!("it ends") };
    assert!(what.ends_with(": worker 1 did not answer"), "{what}");
}

#[test]
fn without_the_setting_the_loss_of_a_server_ends_the_job_and_a_journal_of_it_does_not_fit_the_setting() {
    let config = CoordinatorConfig { policy: Policy::CONTINUE, ..outliving_config(2) };
    let mut job = outliving_as(config, 2);
    let records = job.journal.clone();
    assert!(matches!(Coordinator::recover(outliving_config(2), records), Err(Error::Config { .. })));
    kill_server(&mut job, 1);
    assert!(matches!(job.coordinator.view().phase, Phase::Aborted(Error::PeerLost { .. })));
}

fn outliving(workers: u32) -> Job {
    outliving_as(outliving_config(workers), workers)
}

/// A job that runs, with nothing unread. The link of server n is [`SERVER`] + n.
pub(super) fn outliving_as(config: CoordinatorConfig, workers: u32) -> Job {
    let servers = config.servers;
    let mut job = job_of(config);
    (1..servers).for_each(|number| job.join(SERVER + u64::from(number), server(number)));
    form(job, workers)
}

pub(super) fn outliving_config(workers: u32) -> CoordinatorConfig {
    let policy = Policy::Continue { min_workers: 1, rejoin: None, on_server_loss: OnServerLoss::Continue };
    CoordinatorConfig { policy, servers: 2, journals: true, ..config(workers) }
}

pub(super) fn kill_server(job: &mut Job, number: u32) {
    job.coordinator.handle_death(job.now, 10 + number, &format!("s{number}"), "killed".to_owned());
}

/// A job of two workers after its coordinator was killed and started again.
fn resumed(job: &Job) -> Job {
    let (config, journal) = (outliving_config(2), job.journal.clone());
    let (coordinator, now) = Coordinator::recover(config.clone(), journal.clone()).unwrap();
    Job { coordinator, now, journal, ..job_of(config) }
}

fn has(number: u32, rounds: &[u64]) -> Frame {
    Frame::Holdings(Holdings { has: sums(rounds), ..holdings(number) })
}

fn wants(number: u32, rounds: &[u64]) -> Frame {
    Frame::Holdings(Holdings { wants: sums(rounds), ..holdings(number) })
}

fn holdings(number: u32) -> Holdings {
    Holdings { epoch: epoch(number), ..Holdings::default() }
}

fn restore(number: u32, rounds: &[u64]) -> Frame {
    Frame::Restore { epoch: epoch(number), sums: sums(rounds), lost: Vec::new() }
}

fn restored(number: u32) -> Frame {
    Frame::Restored { epoch: epoch(number) }
}

fn epoch(number: u32) -> Epoch {
    Epoch { term: TERM, number }
}

/// These rounds of a part.
fn sums(rounds: &[u64]) -> Vec<SumId> {
    let part = PartId { key: TensorKey::of("a"), index: 0 };
    rounds.iter().map(|round| SumId { part, round: Round(*round) }).collect()
}
