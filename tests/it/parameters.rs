//! Parameters: what one worker does to them is there for all, once, and whole within a part.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::Error;
use gradlane_core::device::Device;
use gradlane_core::engine::{Engine, ParameterUse};
use gradlane_core::mem::Ordinal;
use gradlane_core::types::{Access, DType, Op, Priority, TensorSpec, Update};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

const ADD: Access = Access::Push(Update::Add);
const ASSIGN: Access = Access::Push(Update::Assign);
/// Many parts, the last one shorter.
const LEN: usize = 70_003;

matrix! {
    [locally, over_shm, over_quic]:
        the_first_value_stays_and_all_read_it,
        adds_of_all_workers_are_all_there,
        a_value_is_whole_within_each_part,
        every_ticket_is_given_once,
        what_cannot_be_is_refused_by_name_and_the_job_goes_on;
    [over_shm, over_quic]:
        a_change_is_made_once_though_links_are_cut_again_and_again,
        a_damaged_change_changes_nothing,
        a_name_that_all_have_ended_is_free_again;
}

fn the_first_value_stays_and_all_read_it(over: Over) {
    let cluster = Cluster::with(over, 3, 2, &SMALL_PARTS);
    let read = all(&cluster.workers, |engine| {
        let mine = engine.rank().0 as f32 + 1.0;
        assert_eq!(Tensor::parameter("w", vec![mine; LEN]).ask(engine, Access::Init), Ok(1), "also where it was late");
        let mut found = Tensor::parameter("w", vec![0_f32; LEN]);
        assert_eq!(found.ask(engine, Access::Pull), Ok(1));
        found.data
    });
    assert!(read.iter().all(|found| *found == read[0]), "all have the same value");
    assert!(read[0].iter().all(|value| [1.0, 2.0, 3.0].contains(value)), "of one worker, part by part");
}

fn adds_of_all_workers_are_all_there(over: Over) {
    const ROUNDS: u64 = 20;
    let cluster = Cluster::with(over, 3, 2, &SMALL_PARTS);
    Tensor::parameter("w", vec![0_f32; LEN]).ask(&cluster.workers[0], Access::Init).unwrap();
    all(&cluster.workers, |engine| {
        // A digit for each worker, so that the sum says who is in it, and how often.
        let digit = 32_f32.powi(engine.rank().0 as i32);
        let mut delta = Tensor::parameter("w", vec![digit; LEN]);
        let mut before = 1;
        for _ in 0..ROUNDS {
            let version = delta.ask(engine, ADD).unwrap();
            assert!(version > before, "each change makes a version");
            before = version;
        }
    });
    all(&cluster.workers, |engine| {
        let mut found = Tensor::parameter("w", vec![0_f32; LEN]);
        assert_eq!(found.ask(engine, Access::Pull), Ok(1 + 3 * ROUNDS));
        let due = ROUNDS as f32 * (1.0 + 32.0 + 1024.0);
        assert!(found.data.iter().all(|value| *value == due), "{} instead of {due}", found.data[0]);
    });
}

fn a_value_is_whole_within_each_part(over: Over) {
    let cluster = Cluster::with(over, 3, 2, &SMALL_PARTS);
    Tensor::parameter("w", vec![0_f32; LEN]).ask(&cluster.workers[0], Access::Init).unwrap();
    all(&cluster.workers, |engine| {
        for round in 0..20 {
            let mine = (100 * engine.rank().0 + round) as f32;
            Tensor::parameter("w", vec![mine; LEN]).ask(engine, ASSIGN).unwrap();
            let mut found = Tensor::parameter("w", vec![f32::NAN; LEN]);
            found.ask(engine, Access::Pull).unwrap();
            for part in parts_of(engine, &found.data) {
                assert!(part.iter().all(|value| *value == part[0]), "a part is torn");
            }
        }
    });
}

/// The elements of each part of the only tensor, as the layout says: `part KEY/0 float32 65536 B on server 1 | KEY [0, 65536)`.
fn parts_of<'a>(engine: &Engine, data: &'a [f32]) -> Vec<&'a [f32]> {
    let layout = engine.layout();
    let span = |line: &str| {
        let (_, span) = line.rsplit_once('[').expect("a span");
        let (begin, end) = span.trim_end_matches(')').split_once(", ").expect("two bounds");
        [begin, end].map(|bound| bound.parse::<usize>().expect("a number") / 4)
    };
    let spans = layout.lines().map(span);
    let parts: Vec<&[f32]> = spans.map(|[begin, end]| &data[begin..end]).collect();
    assert!(parts.len() > 1, "several parts: {layout}");
    parts
}

fn every_ticket_is_given_once(over: Over) {
    let cluster = Cluster::start(over, 3, 1);
    Tensor::parameter("tickets", vec![0_i64]).ask(&cluster.workers[1], Access::Init).unwrap();
    let drawn = all(&cluster.workers, |engine| draw(engine, 50));
    assert_eq!(drawn.into_iter().flatten().collect::<BTreeSet<i64>>(), (1..=150).collect());
}

/// Adds one and reads in one exchange, so many times.
fn draw(engine: &Engine, count: usize) -> Vec<i64> {
    let one = |_| {
        let mut ticket = Tensor::parameter("tickets", vec![1_i64]);
        let version = ticket.ask(engine, Access::PushPull(Update::Add)).unwrap();
        assert!(version > ticket.data[0].unsigned_abs(), "the version of that value or a later one");
        ticket.data[0]
    };
    (0..count).map(one).collect()
}

fn a_change_is_made_once_though_links_are_cut_again_and_again(over: Over) {
    let cut = |push| if push % 7 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(over, 3, 2, &SMALL_PARTS, |transport| Arc::new(Tap::new(transport, cut)));
    let engine = &cluster.workers[0];
    Tensor::parameter("w", vec![0_f32; LEN]).ask(engine, Access::Init).unwrap();
    Tensor::parameter("tickets", vec![0_i64]).ask(engine, Access::Init).unwrap();
    let drawn = all(&cluster.workers, |engine| {
        let digit = 32_f32.powi(engine.rank().0 as i32);
        for _ in 0..5 {
            Tensor::parameter("w", vec![digit; LEN]).ask(engine, ADD).unwrap();
        }
        draw(engine, 20)
    });
    let mut found = Tensor::parameter("w", vec![0_f32; LEN]);
    assert_eq!(found.ask(engine, Access::Pull), Ok(16));
    assert!(found.data.iter().all(|value| *value == 5.0 * (1.0 + 32.0 + 1024.0)), "{}", found.data[0]);
    let mut last = Tensor::parameter("tickets", vec![0_i64]);
    assert_eq!(last.ask(engine, Access::Pull), Ok(61));
    assert_eq!(last.data, [60], "a repeat adds nothing");
    // A repeat after the value was lost on its way reads a later value, so two workers may see the same.
    assert!(drawn.iter().flatten().all(|ticket| (1..=60).contains(ticket)));
}

fn a_damaged_change_changes_nothing(over: Over) {
    // Not by the number of a push, because a server that does not know the view yet has the first one repeated.
    let is_damaged = Arc::new(AtomicBool::new(false));
    let cluster = Cluster::tapped(over, 1, 1, &[("checksum", "true")], |transport| {
        let damages = Arc::clone(&is_damaged);
        Arc::new(Tap::new(transport, move |_| if damages.load(Relaxed) { Fate::Damage } else { Fate::Stay }))
    });
    let engine = &cluster.workers[0];
    let mut tensor = Tensor::parameter("w", vec![5_f32; 1000]);
    assert_eq!(tensor.ask(engine, Access::Init), Ok(1));
    is_damaged.store(true, Relaxed);
    let refused = tensor.ask(engine, ADD).unwrap_err();
    is_damaged.store(false, Relaxed);
    assert!(matches!(&refused, Error::Checksum { tensor, .. } if *tensor == "w".into()), "{refused}");
    assert_eq!(tensor.ask(engine, Access::Pull), Ok(1));
    assert!(tensor.data.iter().all(|value| *value == 5.0));
}

fn what_cannot_be_is_refused_by_name_and_the_job_goes_on(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let [first, second] = [0, 1].map(|rank| &cluster.workers[rank]);
    for access in [ADD, ASSIGN, Access::Pull, Access::PushPull(Update::Add)] {
        let refused = Tensor::parameter("nothing", vec![1_f32; 4]).ask(first, access).unwrap_err();
        let Error::TensorState { tensor, .. } = &refused else { panic!("{access}: {refused}") };
        assert_eq!(*tensor, "nothing".into(), "{access}");
    }
    assert_eq!(Tensor::parameter("w", vec![1_f32; 4]).ask(first, Access::Init), Ok(1));
    for (field, refused) in [
        ("dtype", Tensor::parameter("w", vec![1_i32; 4]).ask(first, Access::Pull)),
        ("shape", Tensor::parameter("w", vec![1_f32; 5]).ask(first, Access::Pull)),
        ("kind", Tensor::new("w", vec![1_f32; 4]).reduce(first, Op::Sum).map(|()| 0)),
    ] {
        let Err(Error::Mismatch { field: found, .. }) = &refused else { panic!("{field}: {refused:?}") };
        assert_eq!(found, field);
    }
    let sums = all(&cluster.workers, |engine| Tensor::new("sum", vec![1_f32; 4]).reduce(engine, Op::Sum));
    assert_eq!(sums, [Ok(()), Ok(())]);
    assert_eq!(Tensor::parameter("w", vec![1_f32; 4]).ask(second, ADD), Ok(2), "nobody else was disturbed");
    // Two kinds under one name on two workers: the name fails on both, as other disagreements do.
    let refused = Tensor::parameter("sum", vec![1_f32; 4]).ask(first, Access::Init).unwrap_err();
    assert!(matches!(&refused, Error::Mismatch { field, .. } if field == "kind"), "{refused}");
    Tensor::parameter("both", vec![1_f32; 4]).ask(first, Access::Init).unwrap();
    let refused = Tensor::new("both", vec![1_f32; 4]).reduce(second, Op::Sum).unwrap_err();
    assert!(matches!(&refused, Error::Mismatch { field, .. } if field == "kind"), "{refused}");
    // The one that was first hears of it a little later.
    let mut pulls = (0..100_000).map(|_| Tensor::parameter("both", vec![1_f32; 4]).ask(first, Access::Pull));
    let refused = pulls.find_map(Result::err).expect("the coordinator tells all");
    assert!(matches!(&refused, Error::Mismatch { field, .. } if field == "kind"), "{refused}");
    assert_eq!(Tensor::parameter("w", vec![1_f32; 4]).ask(first, Access::Pull), Ok(2));
}

fn a_name_that_all_have_ended_is_free_again(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let engine = &cluster.workers[0];
    for len in [4, 9] {
        let mut tensor = Tensor::parameter("w", vec![1_f32; len]);
        assert_eq!(tensor.ask(engine, Access::Init), Ok(1), "of {len}");
        assert_eq!(tensor.ask(engine, ADD), Ok(2));
        // The other worker has never used it, so it need not end it.
        engine.undeclare(&["w".to_owned()], Some(PATIENCE)).unwrap();
    }
}

#[test]
fn tensors_of_a_device_are_pushed_from_there_and_pulled_to_there() {
    let device = TestDevice::start();
    let there = Arc::clone(&device) as Arc<dyn Device>;
    let cluster = Cluster::with_devices(Over::Quic, 1, 1, &SMALL_PARTS, |_| Some(Arc::clone(&there)));
    let engine = &cluster.workers[0];
    let mut tensor = Tensor::parameter("w", vec![3_f32; LEN]);
    for (access, version, due) in [
        (Access::Init, 1, 3.0),
        (ADD, 2, 3.0),
        (Access::Pull, 2, 6.0),
        (Access::PushPull(Update::Add), 3, 12.0),
        (Access::Pull, 3, 12.0),
    ] {
        let asked = ParameterUse {
            tensor: TensorSpec::parameter("w", DType::F32, vec![LEN as u64]),
            access,
            clock_at: 0,
            memory: tensor.memory_of(Ordinal(0)),
            into: None,
            priority: Priority::default(),
            timeout: None,
        };
        let handle = engine.access(asked, |_| {}).unwrap();
        handle.wait(Some(PATIENCE)).unwrap();
        assert_eq!(handle.effect().map(|effect| effect.version.0), Some(version), "{access}");
        assert!(tensor.data.iter().all(|value| *value == due), "{access}: {}", tensor.data[0]);
    }
}
