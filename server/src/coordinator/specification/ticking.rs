//! Clocks: in which order servers and workers hear of a round whose gradients are clipped, and who hears it again.

use gradlane_core::types::{ClockKey, Closing, Fate, Half, Mode, Squares, Tick, Ticked};

use super::*;

#[test]
fn a_round_that_is_clipped_is_told_in_two_halves_and_again_to_a_server_that_connects_again() {
    let mut job = clipping(config(2));
    job.frame(0, tick());
    job.frame(1, tick());
    let (sealed, settled) = (Frame::Close(sealed()), Frame::Close(closing(Half::Norm(3.0))));
    assert_eq!((job.received(SERVER), job.received(0)), (vec![sealed.clone()], vec![]));
    job.disconnect(SERVER);
    job.join_as(7, SERVER as u8, server(0));
    job.frame(7, squares());
    let told = job.received(7);
    assert_eq!(told[told.len() - 2..], [sealed.clone(), settled.clone()]);
    let ticked = Ticked { round: 1, step: 1, ahead: 0, fate: Fate::Accepted };
    assert_eq!(job.received(0), [Frame::Ticked { request: 3, outcome: Ok(ticked) }]);
    job.frame(7, squares());
    assert_eq!(job.received(7), [], "said again, it changes nothing");
    job.disconnect(7);
    job.join_as(8, SERVER as u8, server(0));
    let told = job.received(8);
    assert_eq!(told[told.len() - 2..], [sealed, settled]);
}

#[test]
fn a_coordinator_that_goes_on_knows_which_round_is_sealed_and_what_servers_have_said() {
    let config = CoordinatorConfig { servers: 2, journals: true, ..config(2) };
    let mut job = job_of(config.clone());
    job.join(SERVER + 1, server(1));
    let mut job = declared(form(job, 2));
    job.frame(0, tick());
    job.frame(1, tick());
    job.frame(SERVER, squares());
    job.drain();
    let (recovered, base) = Coordinator::recover(config, std::mem::take(&mut job.journal)).unwrap();
    job.coordinator.wait_again(base);
    assert_eq!(recovered.lasting(), job.coordinator.lasting());
    assert!(recovered.lasting().contains("9.0"), "the squares of server 0");
}

#[test]
fn squares_are_for_servers_alone() {
    let mut job = clipping(config(2));
    job.frame(0, squares());
    assert!(matches!(job.closed(0), Error::Protocol { .. }));
}

#[test]
fn a_parameter_of_another_norm_is_refused_to_its_worker_and_the_first_one_lives() {
    let mut job = clipping(config(2));
    job.frame(1, Frame::Declare { request: 9, tensors: vec![parameter("v", 2)], fuse: false });
    let answers = job.received(1);
    let [Frame::Declared { request: 9, outcome: Err(error) }] = &answers[..] else { panic!("{answers:?}") };
    assert!(["1 (parameter w)", "2 (parameter v)"].iter().all(|word| error.to_string().contains(word)), "{error}");
    job.frame(1, Frame::Declare { request: 10, tensors: vec![parameter("v", 1)], fuse: false });
    assert!(matches!(job.received(1)[..], [Frame::Declared { outcome: Ok(_), .. }]));
    assert_eq!(job.received(0), [], "of no concern to others");
    // The end of the first name frees the clock.
    for link in [0, 1] {
        job.frame(link, Frame::Undeclare { request: 11, names: vec!["w".to_owned(), "v".to_owned()] });
    }
    job.frame(0, Frame::Declare { request: 12, tensors: vec![parameter("x", 3)], fuse: false });
    assert!(matches!(job.received(0).last(), Some(Frame::Declared { outcome: Ok(_), .. })));
}

fn clipping(config: CoordinatorConfig) -> Job {
    let workers = config.workers;
    declared(form(job_of(config), workers))
}

/// Both workers have declared a parameter whose gradients are clipped.
fn declared(mut job: Job) -> Job {
    for link in [0, 1] {
        job.frame(link, Frame::Declare { request: 2, tensors: vec![parameter("w", 1)], fuse: false });
    }
    job.drain();
    job.unread.clear();
    job
}

fn parameter(name: &str, norm: u32) -> TensorSpec {
    let rule = format!("sgd:clip_norm={norm}").parse().unwrap();
    TensorSpec::parameter(name, DType::F32, vec![1]).with_rule(rule).with_mode(sync())
}

fn sync() -> Mode {
    "sync".parse::<Mode>().unwrap().with_clock(ClockKey::of("c"))
}

fn tick() -> Frame {
    let tick =
        Tick { clock: "c".to_owned(), mode: sync(), round: 1, samples: 1, leaves: false, wait: Some(10 * SECOND) };
    Frame::Tick { request: 3, tick }
}

fn squares() -> Frame {
    Frame::Squares(Squares { clock: ClockKey::of("c"), round: 1, sum: 9.0 })
}

fn sealed() -> Closing {
    closing(Half::Workers { workers: [0, 1].into_iter().map(WorkerId).collect(), clips: true, samples: 0 })
}

fn closing(half: Half) -> Closing {
    Closing { clock: ClockKey::of("c"), round: 1, half }
}
