//! What the programs in `targets/` share. The targets themselves are in `tests/harness/fuzz`, where the tests replay the corpus with them.

use gradlane_tests::allocation::Counting;

pub use gradlane_tests::fuzz::run;
pub use libfuzzer_sys;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The program that gives libFuzzer's inputs to one target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::run($name, bytes));
    };
}
