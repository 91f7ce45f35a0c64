//! The integration tests, one binary.

mod breaks;
mod flow;
mod handles;
mod mismatch;
mod ops;
mod parts;
mod push_pull;
mod rounds;
mod shapes;
mod tidy;
