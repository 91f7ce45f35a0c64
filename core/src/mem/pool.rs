//! Pooled host memory.

/// Placeholder.
#[derive(Debug)]
pub struct Pool;
/// Placeholder.
#[derive(Debug)]
pub struct Lease;
/// Placeholder.
#[derive(Debug)]
pub struct Frozen;
