//! Gives libFuzzer's inputs to one target of `gradlane_tests::fuzz`, where the rules are. The variable `FUZZ_TARGET` names the target.
//! One program serves all of them, because it takes minutes to link one.
#![no_main]

use std::sync::OnceLock;

use gradlane_tests::allocation::Counting;
use gradlane_tests::fuzz::{Target, named};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: OnceLock<&Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let target = named(&name).unwrap_or_else(|names| panic!("set FUZZ_TARGET to one of {names}"));
        let _ = TARGET.set(target);
    },
    |bytes: &[u8]| TARGET.get().expect("set at the start").run(bytes)
);
