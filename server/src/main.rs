//! The `gradlane-server` binary.
fn main() {}
