//! Rows of half precision.

use std::collections::BTreeMap;

use super::*;
use crate::random::Random;

const DTYPES: [&str; 2] = ["bf16", "fp16"];

#[test]
fn a_table_of_half_precision_takes_two_bytes_less_for_each_value() {
    for (rule, dim) in [("sgd", 64_u64), ("adam", 16), ("adagrad", 129)] {
        let bytes_of = |dtype: &str| {
            let mut rows = of(&format!("{rule};dim={dim},dtype={dtype}"), Shards::ALL);
            // Whole chunks of each of them.
            let ids: Vec<u64> = (0..1 << 14).collect();
            let before = rows.bytes();
            rows.pull(&ids, true, 0).unwrap();
            assert!(rows.bytes() - before <= Rows::growth_max(&rows.spec, 1 << 14), "{rule} {dim} {dtype}");
            rows.bytes()
        };
        for dtype in DTYPES {
            // Of an odd number of values, the last one has a word of its own.
            let less = 4 * dim - 4 * dim.div_ceil(2);
            assert_eq!(bytes_of("f32") - bytes_of(dtype), less << 14, "{rule} {dim} {dtype}");
        }
    }
}

#[test]
fn rows_begin_with_the_nearest_to_those_of_f32() {
    for dtype in DTYPES {
        let ids: Vec<u64> = (0..100).collect();
        let text = "sgd;dim=5,init=normal,scale=0.3,seed=5";
        let (mut rows, mut of_f32) = (of(&format!("{text},dtype={dtype}"), Shards::ALL), of(text, Shards::ALL));
        let looked = values(&mut rows, &ids, false);
        assert_eq!(values(&mut rows, &ids, true), looked, "a row begins with what it was before it was there");
        let mut due = values(&mut of_f32, &ids, true);
        assert_ne!(due, looked);
        rows.spec.dtype.round(&mut due);
        assert_eq!(due, looked);
    }
}

#[test]
fn rows_step_in_f32_and_are_rounded_by_what_is_known_of_them_whatever_parts_there_are() {
    for (seed, rule) in (0..40).flat_map(|seed| ["sgd:lr=0.3", "adam:lr=0.1", "paddleadam"].map(|rule| (seed, rule))) {
        let dtype = DTYPES[seed as usize % 2];
        let text = format!("{rule};dim=3,init=uniform,scale=1,seed={seed},dtype={dtype}");
        let (spec, mut random): (TableSpec, _) = (text.parse().unwrap(), Random::new(seed));
        let mut whole = of(&text, Shards::ALL);
        let mut parts = [0, 512].map(|first| of(&text, Shards { first, count: 512 }));
        // What each row has to be: its words, and its score.
        let mut oracle: BTreeMap<u64, (Vec<f32>, f32)> = BTreeMap::new();
        let (stored, of_row) = (StoredRows::of(&spec, Kernels::portable()), whole.rule);
        for step in 0..20 {
            let mut ids: Vec<u64> = (0..random.below(12)).map(|_| random.below(40)).collect();
            ids.sort_unstable();
            ids.dedup();
            let gradients: Vec<f32> = (0..3 * ids.len()).map(|_| random.below(1000) as f32 / 777.0 - 0.6).collect();
            whole.push(&ids, step, &gradients).unwrap();
            for part in &mut parts {
                let (ours, of_ours): (Vec<u64>, Vec<&[f32]>) =
                    ids.iter().copied().zip(gradients.chunks(3)).filter(|(id, _)| part.shards.have(*id)).unzip();
                part.push(&ours, step, &of_ours.concat()).unwrap();
            }
            for (id, gradient) in ids.iter().zip(gradients.chunks(3)) {
                let (row, score) = oracle.entry(*id).or_insert_with(|| {
                    let (mut numbers, mut row) = (vec![0.0; of_row.len()], vec![0.0; stored.words()]);
                    spec.begin(*id, &mut numbers[..3]);
                    of_row.begin(&mut numbers);
                    stored.write(&numbers, &mut row);
                    (row, 0.0)
                });
                let rounding = Rounding { id: *id, step, score: *score };
                stored.change(&of_row.at(step), rounding, row, &mut [0.0; 3], &mut gradient.to_vec());
                *score += 1.0;
            }
        }
        for (id, (row, _)) in &oracle {
            let mut due = vec![0.0; 3];
            stored.read(row, &mut due);
            assert_eq!(values(&mut whole, &[*id], false), due, "{text}, id {id}");
            let part = parts.iter_mut().find(|part| part.shards.have(*id)).unwrap();
            assert_eq!(values(part, &[*id], false), due, "{text}, id {id}, by parts");
        }
    }
}

#[test]
fn rows_that_are_put_back_are_the_nearest_and_what_was_read_is_the_same() {
    for dtype in DTYPES {
        let mut rows = of(&format!("adagrad;dim=3,dtype={dtype}"), Shards::ALL);
        let mark = SavedMark { touched: 3, score: 2.0 };
        rows.restore(&[7], 0, &[mark], &[1.0, 0.1, f32::MAX, 1e-7, f32::MAX, 0.1]).unwrap();
        let mut due = [1.0, 0.1, f32::MAX];
        rows.spec.dtype.round(&mut due);
        assert!(due[1] != 0.1 && due[2] < f32::MAX);
        let found = numbers(&rows, 7);
        assert_eq!(found, [&due[..], &[1e-7, f32::MAX, 0.1]].concat(), "what the rule keeps is f32");
        let mut other = of(&format!("adagrad;dim=3,dtype={dtype}"), Shards::ALL);
        other.restore(&[7], 0, &[mark], &found).unwrap();
        for rows in [&mut rows, &mut other] {
            rows.push(&[7], 4, &[0.25, 0.5, 1.0]).unwrap();
        }
        assert_eq!(numbers(&rows, 7), numbers(&other, 7), "they train on alike");
    }
}

#[test]
fn many_small_steps_lead_where_those_of_f32_lead() {
    let (text, ids) = ("sgd:lr=1;dim=16,init=uniform,scale=1,seed=2", (0..16).collect::<Vec<u64>>());
    let mut of_f32 = of(text, Shards::ALL);
    let mut of_bf16 = of(&format!("{text},dtype=bf16"), Shards::ALL);
    // A sixteenth of the distance of neighbours at 1.
    let steps = 4096;
    for step in 0..steps {
        for rows in [&mut of_f32, &mut of_bf16] {
            rows.push(&ids, step, &vec![-1.0 / 2048.0; 256]).unwrap();
        }
    }
    let (due, found) = (values(&mut of_f32, &ids, false), values(&mut of_bf16, &ids, false));
    let apart: Vec<f64> = due.iter().zip(&found).map(|(due, found)| f64::from(found - due)).collect();
    // The variance of a step is at most its length times the distance of neighbours below 4. They begin up to half a distance below 1 apart.
    let deviation = (steps as f64 / 2048.0 / 64.0).sqrt();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    assert!(mean.abs() < 5.0 * deviation / 16.0 + 1.0 / 512.0, "{mean} of {deviation}");
    assert!(apart.iter().all(|apart| apart.abs() < 6.0 * deviation + 1.0 / 512.0), "{apart:?}");
}

fn of(text: &str, shards: Shards) -> Rows {
    Rows::new(text.parse().unwrap(), shards, Kernels::detect())
}

/// The values of rows, by a use.
fn values(rows: &mut Rows, ids: &[u64], trains: bool) -> Vec<f32> {
    let pulled = rows.pull(ids, trains, 0).unwrap();
    let mut came = Vec::new();
    rows.read(&pulled, ids, 0..ids.len(), |_, row| came.extend_from_slice(row));
    came
}

/// All numbers of the row of an id.
fn numbers(rows: &Rows, id: u64) -> Vec<f32> {
    let mut numbers = vec![0.0; rows.rule.len()];
    rows.stored.read(rows.arena.row(rows.find(id).unwrap()), &mut numbers);
    numbers
}
