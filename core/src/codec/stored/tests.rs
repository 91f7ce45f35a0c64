use half::{bf16, f16};

use super::*;
use crate::reduce::RowRule;

/// A row of which a push has made these values, with this table and rounding.
fn stepped(text: &str, kernels: Kernels, rounding: Rounding, values: &[f32]) -> Vec<f32> {
    let spec: TableSpec = text.parse().unwrap();
    let (stored, rule) = (StoredRows::of(&spec, kernels), rule_of(&spec, kernels));
    let mut row = vec![0.0; stored.words()];
    let mut gradient: Vec<f32> = values.iter().map(|value| -value).collect();
    stored.change(&rule.at(0), rounding, &mut row, &mut vec![0.0; values.len()], &mut gradient);
    let mut found = vec![9.0; values.len()];
    stored.read(&row, &mut found);
    found
}

fn rule_of(spec: &TableSpec, kernels: Kernels) -> RowRule {
    RowRule::new(spec.rule, usize::try_from(spec.dim).unwrap(), spec.bound(), kernels)
}

const FIRST: Rounding = Rounding { id: 17, step: 5, score: 2.0 };

#[test]
fn values_are_rounded_as_an_independent_script_does_with_whatever_vectors() {
    let values = [1.001, -0.3, 3e-6, 1000.3, -7e-8, 0.5];
    for kernels in Kernels::all() {
        for (dtype, due) in [
            ("bf16", [0x3f81_0000, 0xbe9a_0000, 0x3649_0000, 0x447a_0000, 0xb396_0000, 0x3f00_0000]),
            ("fp16", [0x3f80_2000, 0xbe99_a000, 0x364c_0000, 0x447a_2000, 0xb400_0000, 0x3f00_0000]),
        ] {
            let found = stepped(&format!("sgd:lr=1;dim=6,seed=3,dtype={dtype}"), kernels, FIRST, &values);
            // These never change, because jobs that are done again rely on them.
            assert_eq!(found.iter().map(|value| value.to_bits()).collect::<Vec<u32>>(), due, "{dtype} by {kernels}");
        }
    }
}

#[test]
fn what_is_written_and_can_be_kept_is_read_again() {
    for dtype in ["f32", "bf16", "fp16"] {
        for dim in [1_u64, 2, 3, 16, 17, 64, 65] {
            let spec: TableSpec = format!("adam;dim={dim},dtype={dtype}").parse().unwrap();
            let stored = StoredRows::of(&spec, Kernels::detect());
            assert_eq!(stored.words() as u64, if dtype == "f32" { 3 * dim } else { dim.div_ceil(2) + 2 * dim });
            let mut numbers: Vec<f32> = (0..3 * dim).map(|at| (at as f32 - 7.3) * 0.37).collect();
            spec.dtype.round(&mut numbers[..dim as usize]);
            let (mut row, mut found) = (vec![f32::NAN; stored.words()], vec![0.0; numbers.len()]);
            stored.write(&numbers, &mut row);
            stored.read(&row, &mut found);
            assert_eq!(found, numbers, "{dtype} of {dim}");
            let mut values = vec![0.0; dim as usize];
            stored.read(&row, &mut values);
            assert_eq!(values, numbers[..dim as usize]);
        }
    }
}

#[test]
fn every_half_is_kept_as_it_is_by_both_roundings() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for (dtype, value_of) in [
        ("bf16", (|bits| bf16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        ("fp16", (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
    ] {
        let spec: TableSpec = format!("sgd:lr=1;dim=16384,dtype={dtype}").parse().unwrap();
        let stored = StoredRows::of(&spec, Kernels::detect());
        for run in all.chunks(16_384) {
            let values: Vec<f32> = run.iter().map(|bits| value_of(*bits)).collect();
            let is_kept = |(value, found): (&f32, &f32)| {
                let kept = value.clamp(-spec.dtype.largest(), spec.dtype.largest());
                kept.to_bits() == found.to_bits() || kept.is_nan() && found.is_nan()
            };
            let (mut row, mut found) = (vec![0.0; stored.words()], values.clone());
            stored.write(&values, &mut row);
            stored.read(&row, &mut found);
            assert!(values.iter().zip(&found).all(is_kept), "{dtype}");
            let mut gradient = vec![0.0; values.len()];
            let step = rule_of(&spec, Kernels::detect()).at(0);
            stored.change(&step, FIRST, &mut row, &mut vec![0.0; values.len()], &mut gradient);
            stored.read(&row, &mut found);
            assert!(values.iter().zip(&found).all(is_kept), "{dtype}, after a step that changes nothing");
        }
    }
}

#[test]
fn values_are_right_on_average_and_one_of_both_neighbours() {
    let values = [1.001, -1.001, 0.333_333, 5e-3, -2.9e-5, 3.3e-7, 1e-8, 1234.5, 60_000.1];
    for dtype in [RowDType::BF16, RowDType::F16] {
        let (rounds, text) = (20_000, format!("sgd:lr=1;dim={},dtype={dtype}", values.len()));
        let mut sums = [0.0; 9];
        let mut seen = [[f32::NAN; 2]; 9];
        for round in 0..rounds {
            // Each of the three may be what differs.
            let rounding = match round % 3 {
                0 => Rounding { id: round, ..FIRST },
                1 => Rounding { step: round, ..FIRST },
                _ => Rounding { score: round as f32, ..FIRST },
            };
            let found = stepped(&text, Kernels::detect(), rounding, &values);
            for ((sum, [low, high]), value) in sums.iter_mut().zip(&mut seen).zip(found) {
                *sum += f64::from(value);
                (*low, *high) = (low.min(value), high.max(value));
            }
        }
        for ((value, sum), [low, high]) in values.iter().zip(sums).zip(seen) {
            assert!(low <= *value && *value <= high, "{dtype} of {value}: {low} and {high}");
            let (step, mean) = (f64::from(high) - f64::from(low), sum / rounds as f64);
            // Five standard deviations of a mean, of which the largest is that of half up and half down.
            let bound = 5.0 * step / 2.0 / (rounds as f64).sqrt();
            assert!((mean - f64::from(*value)).abs() <= bound, "{dtype} of {value}: {mean}, {bound}");
            let exponent = f64::from(value.abs()).log2().floor() as i32;
            let digits = if dtype == RowDType::BF16 { 7 } else { 10 };
            let neighbours = 2f64.powi((exponent - digits).max(if dtype == RowDType::F16 { -24 } else { -133 }));
            assert_eq!(step, neighbours, "{dtype} of {value}");
        }
    }
}

#[test]
fn what_is_too_large_becomes_the_largest_and_a_nan_stays_one() {
    for (dtype, largest) in [("bf16", bf16::MAX.to_f32()), ("fp16", 65_504.0)] {
        let values = [f32::MAX, -f32::MAX, largest, 1.0];
        let found = stepped(&format!("sgd:lr=1;dim=4,dtype={dtype}"), Kernels::detect(), FIRST, &values);
        assert_eq!(found, [largest, -largest, largest, 1.0]);
        let spec: TableSpec = format!("sgd;dim=3,dtype={dtype}").parse().unwrap();
        let stored = StoredRows::of(&spec, Kernels::detect());
        let (mut row, mut found) = ([0.0; 2], [0.0; 3]);
        stored.write(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &mut row);
        stored.read(&row, &mut found);
        assert!(found[..2] == [largest, -largest] && found[2].is_nan(), "{found:?}");
    }
}

#[test]
fn rounding_leads_to_no_value_outside_of_the_bound() {
    for dtype in ["bf16", "fp16"] {
        let text = format!("sgd:lr=1;dim=1,bound=0.3,dtype={dtype}");
        let kept: Vec<f32> =
            (0..100).map(|id| stepped(&text, Kernels::detect(), Rounding { id, ..FIRST }, &[1.0])[0]).collect();
        assert!(kept.iter().all(|value| *value == kept[0] && *value <= 0.3 && *value > 0.298), "{dtype}: {}", kept[0]);
    }
}

#[test]
fn small_steps_are_not_lost() {
    // Of the distance of neighbours at 1, each step is a 26th with bf16, and a third with fp16.
    let (steps, dim) = (4000, 512);
    for dtype in [RowDType::BF16, RowDType::F16] {
        let spec: TableSpec = format!("sgd:lr=1;dim={dim},dtype={dtype}").parse().unwrap();
        let (stored, rule) = (StoredRows::of(&spec, Kernels::detect()), rule_of(&spec, Kernels::detect()));
        let (mut row, mut nearest) = (vec![0.0; stored.words()], vec![1.0; dim]);
        stored.write(&vec![1.0; dim], &mut row);
        let mut values = vec![0.0; dim];
        let mut of_f32 = vec![1.0; dim];
        for step in 0..steps {
            let rounding = Rounding { id: 9, step, score: step as f32 };
            stored.change(&rule.at(step), rounding, &mut row, &mut values, &mut vec![-3e-4; dim]);
            rule.at(step).change(&mut of_f32, &mut vec![-3e-4; dim]);
            rule.at(step).change(&mut nearest, &mut vec![-3e-4; dim]);
            dtype.round(&mut nearest);
        }
        stored.read(&row, &mut values);
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / dim as f64;
        // The variance of each step is at most its length times the distance of neighbours below 4. Five standard deviations of a mean.
        let distance = if dtype == RowDType::BF16 { 1.0 / 64.0 } else { 1.0 / 512.0 };
        let deviation = (3e-4 * distance * steps as f64).sqrt();
        let bound = 5.0 * deviation / (dim as f64).sqrt();
        assert!((mean - f64::from(of_f32[0])).abs() < bound, "{dtype}: {mean} and {}, within {bound}", of_f32[0]);
        let furthest = values.iter().map(|value| (value - of_f32[0]).abs()).fold(0.0, f32::max);
        assert!(f64::from(furthest) < 6.0 * deviation, "{dtype}: {furthest} of a deviation of {deviation}");
        assert!(nearest[0] < 1.5, "{dtype}: rounded to the nearest, it is {} after {steps} steps", nearest[0]);
    }
}
