//! The settings of a node.

use std::time::Duration;

use gradlane_core::types::Defect;

/// Settings of a [`Node`](super::machine::Node).
#[derive(Clone, PartialEq, Debug)]
pub struct NodeConfig {
    /// Add contributions in the order of the ranks, so that every run gives the same bits. Otherwise they are added in the order of
    /// arrival.
    pub deterministic: bool,
    /// The age after which a round is reported, again and again. Not zero.
    pub stall_warn: Duration,
    /// A round older than this fails.
    pub step_timeout: Duration,
    /// Bytes of everything that peers can make grow: all sums, finished or not, and the withdrawals beyond the small reserve that each
    /// process has for them. It must be larger than three times this server's share of the model, because the last sums stay in memory
    /// while the next ones are added (half-size floats in f32). In rank order it must also be larger than the credit of all workers.
    pub memory_bytes_max: u64,
    /// Bytes that all workers together may have sent and that were not read yet; not part of `memory_bytes_max`. Each worker gets an equal
    /// share, but never less than 64 KiB.
    pub unread_bytes_max: u64,
    /// A sum of at most this many bytes has one block. Its answer is not begun before the sum is complete, because that block cannot leave
    /// earlier.
    pub block_bytes: u64,
    /// The defect to plant, for the tests of the simulation.
    pub defect: Option<Defect>,
}
