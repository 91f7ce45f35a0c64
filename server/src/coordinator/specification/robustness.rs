//! Every input is harmless in every stage, and planted defects show.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn every_input_is_harmless_in_every_stage() {
    type Make = fn() -> Job;
    type Apply = fn(&mut Job);
    let stages: [(&str, Make); 4] = [
        ("forming", || {
            let mut job = job(2);
            job.join(0, worker(0));
            job
        }),
        ("running", || formed(2)),
        ("closing", || {
            let mut job = formed(2);
            job.coordinator.stop(job.now, Error::Cancelled);
            job
        }),
        ("finished", || {
            let mut job = formed(2);
            job.coordinator.stop(job.now, Error::Cancelled);
            job.drain();
            job.pass(3);
            job
        }),
    ];
    let inputs: [(&str, Apply); 12] = [
        ("timeout", |job| job.coordinator.handle_timeout(job.now)),
        ("stop", |job| job.coordinator.stop(job.now, Error::Cancelled)),
        ("death", |job| job.coordinator.handle_death(job.now, 10, "n0", "killed".to_owned())),
        ("death of a stranger", |job| job.coordinator.handle_death(job.now, 99, "n9", "killed".to_owned())),
        ("lost connection", |job| job.disconnect(0)),
        ("unknown connection", |job| job.frame(999, Frame::Leave)),
        ("join of a stranger", |job| job.join(5, worker(5))),
        ("heartbeat", |job| job.heartbeat(0)),
        ("leave", |job| job.frame(0, Frame::Leave)),
        ("declaration", |job| job.frame(0, declare(1, &[10]))),
        ("barrier", |job| job.frame(0, barrier(1))),
        ("status", |job| job.frame(0, Frame::StatusRequest)),
    ];
    for (stage, make) in stages {
        for (input, apply) in inputs {
            let mut job = make();
            job.drain();
            let epoch = job.coordinator.view().epoch;
            apply(&mut job);
            apply(&mut job);
            job.drain();
            assert!(job.coordinator.view().epoch >= epoch, "{input} while {stage}");
            let finished = job.events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
            assert!(finished <= 1, "{input} while {stage}: finished {finished} times");
        }
    }
}

proptest! {
    #[test]
    fn nothing_that_peers_do_breaks_it(steps in vec((0..12u8, 0..6u64, 0..4u32, 0..3u64), 0..200)) {
        let mut job = job(2);
        let mut links = 0;
        for (kind, link, number, seconds) in steps {
            // Connections are numbered as they come; a step is about one of the last few.
            let link = u64::saturating_sub(links, link);
            match kind {
                0..=1 => {
                    links += 1;
                    job.connect(links, number as u8);
                }
                2 => job.frame(link, Frame::Join(worker(number))),
                3 => job.frame(link, Frame::Join(server(number))),
                4 => job.frame(link, Frame::Join(in_life(99, worker(number)))),
                5 => job.heartbeat(link),
                6 => job.disconnect(link),
                7 => job.frame(link, declare(seconds, &[u64::from(number)])),
                8 => job.frame(link, barrier(u64::from(number))),
                9 => job.frame(link, Frame::Stall(a_stall())),
                10 => job.frame(link, Frame::Leave),
                _ => job.pass(job.now.0 / 1_000_000_000 + seconds),
            }
            job.drain();
        }
        job.coordinator.stop(job.now, Error::Cancelled);
        job.drain();
        job.pass(job.now.0 / 1_000_000_000 + 60);
        let last = job.events.iter().rfind(|event| !matches!(event, Event::Refused { .. }));
        prop_assert!(matches!(last, Some(Event::Finished(_))), "but for who came later");
        prop_assert_eq!(job.events.iter().filter(|event| matches!(event, Event::Finished(_))).count(), 1);
    }
}

#[cfg(feature = "testing")]
#[test]
fn planted_defects_show() {
    use gradlane_core::types::defect::Defect;
    use gradlane_core::types::{StoreAnswer, StoreAsk};

    let mut job = formed_with(3, Defect::ViewNotBroadcast);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    let told = [0, 2, SERVER].into_iter().filter(|link| !job.received(*link).is_empty()).count();
    assert_eq!(told, 2);

    let mut job = formed_with(2, Defect::FencedAccepted);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    job.join_as(7, 1, worker(1));
    assert!(matches!(job.received(7)[..], [Frame::View(_)]));

    let mut job = formed_with(2, Defect::BarrierCountsRequests);
    job.frame(0, barrier(1));
    job.frame(0, barrier(1));
    assert_eq!(job.received(0), [Frame::BarrierDone { request: 1, outcome: Ok(()) }]);

    let mut job = formed_with(2, Defect::BarrierAnswerForgotten);
    job.frame(0, barrier(1));
    job.frame(1, barrier(1));
    job.received(0);
    job.frame(0, barrier(1));
    assert_eq!(job.received(0), []);

    let mut job = formed_with(2, Defect::StoreChangeForgotten);
    let add = StoreAsk::Add { key: "n".to_owned(), amount: 1 };
    (0..2).for_each(|_| job.frame(0, Frame::Store { request: 1, ask: add.clone() }));
    assert_eq!(job.received(0)[1], Frame::StoreDone { request: 1, outcome: Ok(StoreAnswer::Number(2)) });
}
