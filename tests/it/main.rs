//! The integration tests, one binary.

mod actors;
mod barrier;
mod hostile;
mod lifecycle;
mod membership;
mod process;
mod push_pull;
mod security;
