//! The integration tests, one binary.

mod push_pull;
mod tidy;
