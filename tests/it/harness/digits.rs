//! What the oracle of sums sees.

use gradlane_tests::digits::{check, contribution, counted, counted_in_mean};

#[test]
fn a_contribution_that_is_lost_doubled_or_stale_is_seen() {
    let of = |rank, round| contribution(rank, "a", round, 100);
    let sum = |parts: &[Vec<f32>]| (0..100).map(|i| parts.iter().map(|part| part[i]).sum()).collect::<Vec<f32>>();
    assert_eq!(check(&sum(&[of(0, 5), of(1, 5)]), 2, "a", 5), Ok(()));
    assert!(check(&sum(&[of(0, 5)]), 2, "a", 5).unwrap_err().contains("[1, 0]"));
    assert!(check(&sum(&[of(0, 5), of(1, 5), of(1, 5)]), 2, "a", 5).unwrap_err().contains("[1, 2]"));
    assert!(check(&sum(&[of(0, 5), of(1, 4)]), 2, "a", 5).is_err());
    assert_eq!(counted(&sum(&[of(0, 5), of(2, 5)]), 3, "a", 5), Ok(vec![0, 2]));
    let mixed = [sum(&[of(0, 5), of(2, 5)])[..50].to_vec(), sum(&[of(0, 5)])[50..].to_vec()].concat();
    assert!(counted(&mixed, 3, "a", 5).unwrap_err().contains("element 50"));
    assert!(counted(&sum(&[of(0, 5), of(0, 5)]), 3, "a", 5).is_err());
    assert!(counted(&sum(&[of(0, 4)]), 3, "a", 5).is_err());
}

#[test]
fn a_mean_names_those_by_whose_number_it_is_divided() {
    let of = |rank: &u32| contribution(*rank, "mean", 5, 100);
    let divided = |ranks: &[u32], by: f32| {
        let parts: Vec<Vec<f32>> = ranks.iter().map(of).collect();
        (0..100).map(|i| parts.iter().map(|part| part[i]).sum::<f32>() / by).collect::<Vec<f32>>()
    };
    for ranks in [&[0][..], &[2], &[0, 2], &[0, 1, 2]] {
        assert_eq!(counted_in_mean(&divided(ranks, ranks.len() as f32), 8, "mean", 5).as_deref(), Ok(ranks));
    }
    assert!(counted_in_mean(&divided(&[0, 1, 2], 2.0), 8, "mean", 5).is_err());
}
