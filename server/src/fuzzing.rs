//! What the fuzzer reaches of this crate, whose decoders are private. Each function takes any bytes and panics if a rule is broken.

use crate::coordinator::driver::term;

pub use crate::launch::fuzzing::{a_rendezvous, rendezvous};

/// The journal of a coordinator: terms only grow, and one that was written is read.
pub fn journal(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(next) = term::after(text) {
        assert!(next > 0);
        let written = term::text(next);
        assert_eq!(term::after(&written), next.checked_add(1), "{written}");
    }
}
