//! `gradlane compare`: what two runs have different.

use std::path::Path;

use gradlane_core::Result;

use super::screen::say;
use crate::report::compare;
use crate::report::files::read;

/// Prints what the report `b` has different from `a`.
///
/// # Errors
/// Why one of them cannot be read.
pub(super) fn compare(a: &Path, b: &Path, json: bool) -> Result<i32> {
    let comparison = compare::compare(&read(a)?, &read(b)?);
    say(&if json { comparison.json() } else { comparison.text() })
}
