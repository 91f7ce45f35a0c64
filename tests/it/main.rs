//! The integration tests, one binary.

mod actors;
mod barrier;
mod batches;
mod breaks;
mod copies;
mod devices_cuda;
mod devices_nccl;
mod errors;
mod flow;
mod handles;
mod hostile;
mod lifecycle;
mod membership;
mod mismatch;
mod near;
mod ops;
mod parts;
mod process;
mod push_pull;
mod rounds;
mod security;
mod shapes;
mod sim;
mod tidy;
mod tiers;
mod together;
