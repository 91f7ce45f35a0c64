//! The integration tests, one binary.

mod actors;
mod barrier;
mod errors;
mod hostile;
mod lifecycle;
mod membership;
mod mismatch;
mod ops;
mod process;
mod push_pull;
mod security;
mod tidy;
