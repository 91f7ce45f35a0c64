//! Microbenchmarks.
fn main() {}
