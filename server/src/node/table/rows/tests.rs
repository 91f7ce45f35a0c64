use std::collections::BTreeMap;

use gradlane_core::types::Rule;

use super::*;
use crate::random::Random;

#[test]
fn pulls_keep_order_and_duplicates_and_only_those_for_training_make_rows() {
    let mut rows = rows_of("sgd;dim=3,init=uniform,scale=0.1,seed=5");
    let ids = [4, 9, 4, 7];
    let looked = pulled(&mut rows, &ids, false);
    assert_eq!((rows.counts()[2], rows.version()), (0, 0));
    assert_eq!(pulled(&mut rows, &ids, true), looked, "a row begins with what it was before it was there");
    assert_eq!((rows.counts()[2], rows.version()), (3, 1));
    assert_eq!(looked[..3], looked[6..9]);
    let mut wanted = vec![0.0; 3];
    rows.spec.begin(9, &mut wanted);
    assert_eq!(looked[3..6], wanted);
}

#[test]
fn rows_are_those_of_a_map_whatever_comes() {
    let spec: TableSpec = "sgd:lr=1;dim=2".parse().unwrap();
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut rows = Rows::new(spec, Shards::ALL, Kernels::detect());
        let mut oracle: BTreeMap<u64, [f32; 2]> = BTreeMap::new();
        for step in 0..60 {
            let ids: Vec<u64> = (0..random.below(20)).map(|_| random.below(64)).collect();
            match random.below(8) {
                0..=2 => {
                    let came = pulled(&mut rows, &ids, true);
                    let wanted = ids.iter().flat_map(|id| *oracle.entry(*id).or_default());
                    assert!(came.into_iter().eq(wanted), "seed {seed}");
                }
                3 => {
                    let came = pulled(&mut rows, &ids, false);
                    let wanted = ids.iter().flat_map(|id| oracle.get(id).copied().unwrap_or_default());
                    assert!(came.into_iter().eq(wanted), "seed {seed}");
                }
                4..=5 => {
                    let mut once = ids;
                    once.sort_unstable();
                    once.dedup();
                    let gradients: Vec<f32> = (0..2 * once.len()).map(|_| random.below(9) as f32).collect();
                    rows.push(&once, step, &gradients.clone()).unwrap();
                    for (id, gradient) in once.iter().zip(gradients.chunks(2)) {
                        let row = oracle.entry(*id).or_default();
                        row.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= gradient);
                    }
                }
                6 if random.below(4) == 0 => {
                    rows.clear();
                    oracle.clear();
                }
                _ => {
                    let gone = rows.shrink(bounds(1.0, -1.0, 5));
                    assert_eq!(gone[0], oracle.len() as u64, "seed {seed}");
                    oracle.retain(|id, _| rows.find(*id).is_some());
                    assert_eq!((gone[0] - gone[1], gone[2]), (oracle.len() as u64, oracle.len() as u64), "seed {seed}");
                }
            }
            assert_eq!(rows.counts()[2], oracle.len() as u64, "seed {seed}");
            assert!(oracle.keys().all(|id| rows.find(*id).is_some()), "seed {seed}");
        }
    }
}

#[test]
fn a_use_that_is_wrong_changes_nothing() {
    let mut rows =
        Rows::new("sgd:lr=1;dim=1,rows=1024".parse().unwrap(), Shards { first: 0, count: 512 }, Kernels::detect());
    let [ours, other] = [true, false].map(|ours| (0..).find(|id| rows.shards.have(*id) == ours).unwrap());
    rows.push(&[ours], 1, &[1.0]).unwrap();
    let before = (rows.counts(), rows.version(), pulled(&mut rows, &[ours], false));
    let second = (ours + 1..).find(|id| rows.shards.have(*id)).unwrap();
    let many: Vec<u64> = (0..).filter(|id| rows.shards.have(*id)).take(513).collect();
    for (wrong, named) in [
        (rows.push(&[ours, other], 1, &[1.0; 2]), "of shard"),
        (rows.push(&[ours, ours], 1, &[1.0; 2]), "comes twice"),
        (rows.push(&[second, second], 1, &[1.0; 2]), "comes twice"),
        (rows.push(&[ours, second], 1, &[1.0, f32::NAN]), "not finite"),
        (rows.push(&many, 1, &[1.0; 513]), "of 512 that are their share of 1024"),
        (rows.pull(&[other], false, 1).map(drop), "of shard"),
        (rows.pull(&many, true, 1).map(drop), "of 512 that are their share of 1024"),
    ] {
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert_eq!((rows.counts(), rows.version(), pulled(&mut rows, &[ours], false)), before);
    }
}

#[test]
fn an_id_gets_its_row_at_the_pull_that_admits_it() {
    let mut rows = rows_of("sgd:lr=1;dim=1,init=uniform,scale=1,after=3");
    let first = pulled(&mut rows, &[8], false);
    assert_ne!(first, [0.0]);
    for _ in 0..2 {
        assert_eq!(pulled(&mut rows, &[8], true), [0.0]);
        rows.push(&[8], 1, &[1.0]).unwrap();
    }
    assert_eq!(
        (rows.counts()[2], rows.counts()[3], rows.counts()[5]),
        (0, 1, 2),
        "no row, one waits, two were dropped"
    );
    assert_eq!(pulled(&mut rows, &[8], true), first);
    rows.push(&[8], 1, &[1.0]).unwrap();
    assert_eq!(pulled(&mut rows, &[8], false), [first[0] - 1.0]);
    assert_eq!((rows.counts()[2], rows.counts()[3]), (1, 0));
}

#[test]
fn ids_that_are_not_admitted_never_get_a_row() {
    let mut rows = rows_of("sgd:lr=1;dim=1,share=0.5");
    let ids: Vec<u64> = (0..1000).collect();
    pulled(&mut rows, &ids, true);
    rows.push(&ids, 1, &[1.0; 1000]).unwrap();
    let admitted = ids.iter().filter(|id| rows.spec.admits(**id)).count() as u64;
    assert_eq!((rows.counts()[2], rows.counts()[5]), (admitted, 1000 - admitted));
    assert!((400..600).contains(&admitted));
}

#[test]
fn a_full_table_lets_rows_make_room_but_none_of_the_use_itself() {
    let mut rows = rows_of("sgd:lr=1;dim=1,rows=8,full=evict");
    pulled(&mut rows, &[0, 1, 2, 3, 4, 5, 6, 7], true);
    pulled(&mut rows, &[1, 2, 3, 4, 5, 6, 7], true);
    rows.push(&[1], 1, &[1.0]).unwrap();
    pulled(&mut rows, &[100], true);
    assert!(rows.find(0).is_none() && rows.find(1).is_some() && rows.find(100).is_some(), "the oldest has made room");
    let many: Vec<u64> = (200..208).collect();
    pulled(&mut rows, &many, true);
    assert!(many.iter().all(|id| rows.find(*id).is_some()));
    assert_eq!((rows.counts()[1], rows.counts()[2]), (9, 8));
    let too_many: Vec<u64> = (300..309).collect();
    let refused = rows.pull(&too_many, true, 0).unwrap_err().to_string();
    assert!(refused.contains("more ids than it may have rows"), "{refused}");
    assert_eq!(pulled(&mut rows, &[1], true), [0.0], "what made room begins anew");
}

#[test]
fn a_shrink_removes_what_is_worth_little_and_what_is_idle() {
    let mut rows = rows_of("sgd:lr=1;dim=1");
    for step in 1..=4 {
        let ids: Vec<u64> = (0..step).collect();
        let gradients = vec![1.0; ids.len()];
        rows.push(&ids, step, &gradients).unwrap();
    }
    // Scores 4, 3, 2, 1, and all used at step 4.
    assert_eq!(rows.shrink(bounds(0.5, 1.0, 10))[..3], [4, 1, 3], "the score of 3 is 0.5 now");
    assert!(rows.find(2).is_some() && rows.find(3).is_none());
    rows.push(&[0], 20, &[1.0]).unwrap();
    assert_eq!(rows.shrink(bounds(1.0, 0.0, 15))[..3], [3, 2, 1], "1 and 2 were not used for 16 steps");
    assert_eq!(rows.counts()[1], 3);
}

#[test]
fn an_id_gets_its_row_when_its_pushes_have_brought_the_score_that_is_due() {
    let mut rows = rows_of("sgd:lr=1;dim=1,score=2.5");
    let push = |rows: &mut Rows, id, score| rows.push(&[id], 1, &Scored(vec![1.0], vec![score])).unwrap();
    assert_eq!(pulled(&mut rows, &[7], true), [0.0]);
    push(&mut rows, 7, 1.0);
    push(&mut rows, 7, 1.0);
    assert_eq!(
        (rows.counts()[2], rows.counts()[3], rows.counts()[5]),
        (0, 1, 2),
        "it waits, and two gradients were dropped"
    );
    push(&mut rows, 7, 0.5);
    assert_eq!((pulled(&mut rows, &[7], true), rows.counts()[3]), (vec![-1.0], 0), "the last one counts");
    push(&mut rows, 7, 3.0);
    push(&mut rows, 8, 2.5);
    assert_eq!(rows.shrink(bounds(1.0, 3.0, u64::MAX))[..3], [2, 1, 1], "the scores are 3.5 and 2.5");
    push(&mut rows, 9, 2.0);
    rows.shrink(bounds(0.5, 1.0, u64::MAX));
    push(&mut rows, 9, 1.4);
    assert!(rows.find(9).is_none(), "what waits decays too");
    push(&mut rows, 9, 0.1);
    assert!(rows.find(9).is_some());
    for score in [-1.0, f32::NAN, f32::INFINITY] {
        let refused = rows.push(&[7], 1, &Scored(vec![1.0], vec![score])).unwrap_err().to_string();
        assert!(refused.contains("score"), "{refused}");
    }
}

#[test]
fn a_floor_of_rows_stays_those_of_the_highest_scores() {
    let mut rows = rows_of("sgd;dim=1");
    for id in 0..10 {
        (0..=id).for_each(|_| rows.push(&[id], 1, &[1.0]).unwrap());
    }
    // Scores from 1 to 10.
    let floor = ShrinkBounds { floor: 4, ..bounds(1.0, 8.0, u64::MAX) };
    assert_eq!(rows.shrink(floor)[..3], [10, 6, 4]);
    assert!((6..10).all(|id| rows.find(id).is_some()));
    let high = ShrinkBounds { floor: 100, ..bounds(0.0, 1.0, 0) };
    assert_eq!(rows.shrink(high)[..3], [4, 0, 4]);
}

#[test]
fn a_row_that_nobody_uses_for_long_is_gone_and_begins_anew() {
    let mut rows = rows_of("sgd:lr=1;dim=1,ttl=3");
    rows.push(&[1, 2, 3], 0, &[1.0; 3]).unwrap();
    rows.push(&[2], 3, &[1.0]).unwrap();
    assert_eq!(pulled(&mut rows, &[1], false), [-1.0], "3 steps are not more than 3");
    rows.push(&[9], 4, &[1.0]).unwrap();
    assert_eq!(pulled(&mut rows, &[1, 2, 3], false), [0.0, -2.0, 0.0]);
    rows.push(&[1], 4, &[5.0]).unwrap();
    assert_eq!(pulled(&mut rows, &[1], true), [-5.0]);
    // As many others are looked at as ids are used, so all of them are after a while.
    (0..4).for_each(|_| rows.push(&[9], 7, &[1.0]).unwrap());
    assert_eq!((rows.counts()[1], rows.counts()[2]), (3, 2), "1, 3 and then 2 were gone, and 1 is there again");
    assert!(rows.find(2).is_none() && rows.find(3).is_none());
}

#[test]
fn memory_is_what_was_said() {
    for (text, dim, dtype) in [
        ("sgd", 16, "f32"),
        ("adam", 16, "f32"),
        ("adagrad", 128, "f32"),
        ("sgd", 1, "f32"),
        ("rowwiseadagrad", 32, "bf16"),
        ("adagrad", 16, "bf16"),
        ("sgd", 26, "fp16"),
        ("sgd", 16, "bf16"),
    ] {
        let spec: TableSpec = format!("{text};dim={dim},dtype={dtype}").parse().unwrap();
        let mut rows = Rows::new(spec, Shards::ALL, Kernels::detect());
        let ids: Vec<u64> = (0..50_000).collect();
        for ids in ids.chunks(5000) {
            let before = rows.bytes();
            rows.pull(ids, true, 0).unwrap();
            assert!(rows.bytes() - before <= Rows::growth_max(&spec, ids.len() as u64), "{text} {dim}");
        }
        // The entries of a hash table of 4 bytes and one byte of control, at the load that it has.
        assert!(rows.index.allocation_size() as u64 <= rows.index.len() as u64 * INDEX_BYTES + 64);
        let row = 4 * spec.row_words();
        let count = ids.len() as u64;
        // A mark has 24 bytes and an entry of the index 12, so smaller rows than these take more than 1.3 times themselves and 16 bytes. Those
        // of f32 are so large from 16 values on, those of half precision from 26 on, or if the rule keeps a number for each of 16.
        if row >= 52 {
            assert!(rows.bytes() <= (row + 16) * count * 13 / 10, "{text} {dim} {dtype}: {}", rows.bytes());
        }
        assert!(rows.bytes() <= (row + 36) * count + Rows::growth_max(&spec, 0), "{text} {dim} {dtype}");
    }
}

#[test]
fn rules_follow_the_steps_of_the_training() {
    let rule: Rule = "adam:lr=0.1".parse().unwrap();
    let mut rows = Rows::new(TableSpec::of(rule, 1), Shards::ALL, Kernels::detect());
    rows.push(&[1], 10, &[1.0]).unwrap();
    let late = pulled(&mut rows, &[1], false)[0];
    let mut fresh = Rows::new(TableSpec::of(rule, 1), Shards::ALL, Kernels::detect());
    fresh.push(&[1], 0, &[1.0]).unwrap();
    assert_ne!(late, pulled(&mut fresh, &[1], false)[0], "the correction of the averages is that of step 11");
}

fn rows_of(text: &str) -> Rows {
    Rows::new(text.parse().unwrap(), Shards::ALL, Kernels::detect())
}

fn pulled(rows: &mut Rows, ids: &[u64], trains: bool) -> Vec<f32> {
    let step = rows.step;
    let pulled = rows.pull(ids, trains, step).unwrap();
    let mut came = Vec::new();
    rows.read(&pulled, ids, 0..ids.len(), |at, row| {
        assert_eq!(at * row.len(), came.len());
        came.extend_from_slice(row);
    });
    came
}

pub(super) fn bounds(decay: f64, min_score: f64, max_idle: u64) -> ShrinkBounds {
    ShrinkBounds { decay, min_score, max_idle, ..ShrinkBounds::KEEP }
}

/// Gradients and their scores.
struct Scored(Vec<f32>, Vec<f32>);

impl Gradients for Scored {
    fn numbers(&self) -> usize {
        self.0.len()
    }

    fn all_finite(&self) -> bool {
        self.0.all_finite()
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        self.0.read(at, gradient);
    }

    fn score(&self, at: usize) -> f32 {
        self.1[at]
    }
}

impl Gradients for Vec<f32> {
    fn numbers(&self) -> usize {
        self.len()
    }

    fn all_finite(&self) -> bool {
        Kernels::portable().all_finite_numbers(self)
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        gradient.copy_from_slice(&self[at * gradient.len()..][..gradient.len()]);
    }
}

impl<const N: usize> Gradients for [f32; N] {
    fn numbers(&self) -> usize {
        N
    }

    fn all_finite(&self) -> bool {
        Kernels::portable().all_finite_numbers(self)
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        gradient.copy_from_slice(&self[at * gradient.len()..][..gradient.len()]);
    }
}
