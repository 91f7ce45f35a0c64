//! Replays the corpus: the same functions as `make fuzz`, on the inputs that the repository keeps. In a program of its own, because it
//! counts what its allocator gives out.

use gradlane_tests::allocation::{Counting, most_bytes_held};
use gradlane_tests::fuzz::{TARGETS, corpus};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_input_of_the_corpus_breaks_a_rule() {
    for target in TARGETS {
        let inputs = corpus::all(target);
        inputs.iter().for_each(|input| target.run(input));
        println!("{}: {} inputs", target.name, inputs.len());
    }
}

#[test]
fn every_target_has_a_program_for_the_fuzzer() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for target in TARGETS {
        let name = target.name;
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is missing in fuzz/Cargo.toml");
    }
    let programs = manifest.matches("[[bin]]").count();
    assert_eq!(programs, TARGETS.len(), "programs in fuzz/Cargo.toml, and targets");
}

#[test]
fn the_allocator_counts() {
    assert!(most_bytes_held(|| drop(vec![0_u8; 5_000])) >= 5_000);
    let twice = most_bytes_held(|| (0..2).for_each(|_| drop(vec![0_u8; 5_000])));
    assert!((5_000..10_000).contains(&twice), "what was freed does not count: {twice}");
}
