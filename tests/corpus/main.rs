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
fn the_allocator_counts() {
    assert!(most_bytes_held(|| drop(vec![0_u8; 5_000])) >= 5_000);
    let twice = most_bytes_held(|| (0..2).for_each(|_| drop(vec![0_u8; 5_000])));
    assert!((5_000..10_000).contains(&twice), "what was freed does not count: {twice}");
}
