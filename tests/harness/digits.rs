//! Contributions whose sum tells how often each worker was counted.
//!
//! The worker of rank r contributes 4^r · v, where v is 1, 2 or 4 by tensor, round and element. In base 4, the digits of sum / v are the
//! counts: 0 is lost, 1 is right, 2 and 3 are counted too often. A v of another round shows stale bytes. Up to 11 workers every sum is
//! exact in f32 in any order.

use gradlane_core::types::TensorKey;

use crate::random::Random;

/// What `rank` contributes to `name` in `round`.
pub fn contribution(rank: u32, name: &str, round: u64, len: usize) -> Vec<f32> {
    let weight = 4_f32.powi(i32::try_from(rank).expect("few ranks"));
    factors(name, round).take(len).map(|factor| factor * weight).collect()
}

/// Whether `sum` counts each of the workers once, in this round of this tensor.
///
/// # Errors
/// The first wrong element and the counts it shows.
pub fn check(sum: &[f32], workers: u32, name: &str, round: u64) -> Result<(), String> {
    let right = (0..workers).map(|rank| 4_u64.pow(rank)).sum::<u64>() as f32;
    for (index, (sum, factor)) in sum.iter().zip(factors(name, round)).enumerate() {
        if *sum != right * factor {
            let counts: Vec<u64> = (0..workers).map(|rank| (sum / factor) as u64 / 4_u64.pow(rank) % 4).collect();
            return Err(format!(
                "{name}, round {round}, element {index}: {sum} of {factor}: counts by rank {counts:?}"
            ));
        }
    }
    Ok(())
}

/// The workers that `sum` counts: each once, and the same ones in every element.
///
/// # Errors
/// The first element that counts others, and the counts it shows.
pub fn counted(sum: &[f32], workers: u32, name: &str, round: u64) -> Result<Vec<u32>, String> {
    counted_of(sum, factors(name, round), workers).map_err(|wrong| format!("{name}, round {round}, {wrong}"))
}

fn counted_of(sum: &[f32], factors: impl Iterator<Item = f32>, workers: u32) -> Result<Vec<u32>, String> {
    let mut whole: Option<Vec<u32>> = None;
    // In this order, because `zip` takes one more of the first.
    for (index, (sum, factor)) in sum.iter().zip(factors).enumerate() {
        let all = (sum / factor) as u64;
        let ranks: Vec<u32> = (0..workers).filter(|rank| all / 4_u64.pow(*rank) % 4 == 1).collect();
        let right = ranks.iter().map(|rank| 4_u64.pow(*rank)).sum::<u64>() as f32;
        if *sum != right * factor || whole.get_or_insert_with(|| ranks.clone()) != &ranks {
            return Err(format!("element {index}: {sum} of {factor}, and those before {whole:?}"));
        }
    }
    Ok(whole.unwrap_or_default())
}

/// The workers that each part of a sum counts, as [`counted`]; `parts` are the elements of each, one after the other. While a worker is
/// lost, some parts of a tensor may be sums with it, and others without.
///
/// # Errors
/// As [`counted`].
///
/// # Panics
/// If the parts have not as many elements as the sum.
pub fn counted_by_part(
    sum: &[f32],
    parts: &[usize],
    workers: u32,
    name: &str,
    round: u64,
) -> Result<Vec<Vec<u32>>, String> {
    assert_eq!(parts.iter().sum::<usize>(), sum.len(), "the parts of {name}");
    let mut factors = factors(name, round);
    let mut rest = sum;
    let of_part = |len: &usize| {
        let (part, others) = rest.split_at(*len);
        rest = others;
        let at = sum.len() - others.len() - len;
        counted_of(part, factors.by_ref(), workers)
            .map_err(|wrong| format!("{name}, round {round}, in the part at element {at}: {wrong}"))
    };
    parts.iter().map(of_part).collect()
}

/// The workers that a mean counts, as [`counted`]: it must be divided by their number.
///
/// # Errors
/// As [`counted`], or the number by which it is divided instead.
pub fn counted_in_mean(mean: &[f32], workers: u32, name: &str, round: u64) -> Result<Vec<u32>, String> {
    let mut wrong = format!("{name}, round {round}: this is no mean");
    for divisor in 1..=workers {
        // A third of an integer is not exact; what it is of stands out all the same.
        let sum: Vec<f32> = mean.iter().map(|element| (element * divisor as f32).round()).collect();
        match counted(&sum, workers, name, round) {
            Ok(ranks) if ranks.len() == divisor as usize => return Ok(ranks),
            Ok(ranks) => wrong = format!("{name}, round {round}: the sum of {ranks:?} is divided by {divisor}"),
            Err(_) => {}
        }
    }
    Err(wrong)
}

fn factors(name: &str, round: u64) -> impl Iterator<Item = f32> + use<> {
    let mut random = Random::new(TensorKey::of(name).0 ^ round.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    std::iter::repeat_with(move || [1.0, 2.0, 4.0][random.below(3) as usize])
}
