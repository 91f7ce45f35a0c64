//! The integration tests, one binary.

mod mismatch;
mod ops;
mod push_pull;
mod tidy;
mod sim;
