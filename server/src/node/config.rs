//! The settings of a node.

use std::time::Duration;

use gradlane_core::cluster::ContactTerms;
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
    /// In a job that goes on without lost workers: how patient this server is without a coordinator.
    pub contact: Option<ContactTerms>,
    /// Bytes of everything that peers can make grow: all sums, finished or not; the values of parameters, the changes on their way to them and
    /// the answers under way; and the withdrawals beyond the small reserve that each process has for them. For sums it must be larger than
    /// three times this server's share of the model, because the last sums stay in memory while the next ones are added (half-size floats in
    /// f32). In rank order it must also be larger than the credit of all workers.
    pub memory_bytes_max: u64,
    /// Bytes that all workers together may have sent and that were not read yet; not part of `memory_bytes_max`. Each worker gets an equal
    /// share, but never less than 64 KiB.
    pub unread_bytes_max: u64,
    /// Most bytes of a contribution that one block of a sum holds; a multiple of eight. A sum of one block is not sent before it is complete,
    /// because the last block cannot leave earlier.
    pub block_bytes_max: u64,
    /// Least bytes of it; a multiple of eight.
    pub block_bytes_min: u64,
    /// The defect to plant, for the tests of the simulation.
    pub defect: Option<Defect>,
}

impl NodeConfig {
    /// Bytes of a block of a sum whose contributions have `bytes` bytes each.
    ///
    /// A sum that crosses a network has [`PIPELINE_BLOCKS`] blocks, as far as the limits allow, because a link that brings sums is idle until
    /// the first block is there. In shared memory blocks are as large as possible: each costs a message to every worker.
    pub(super) fn block_bytes(&self, bytes: u64, crosses_network: bool) -> u64 {
        let wanted = if crosses_network { (bytes / PIPELINE_BLOCKS).next_multiple_of(8) } else { u64::MAX };
        wanted.clamp(self.block_bytes_min, self.block_bytes_max)
    }
}

/// Blocks of a sum that crosses a network.
const PIPELINE_BLOCKS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_crosses_a_network_has_smaller_blocks() {
        let config = NodeConfig {
            deterministic: false,
            stall_warn: Duration::from_secs(1),
            step_timeout: Duration::from_secs(2),
            contact: None,
            memory_bytes_max: 0,
            unread_bytes_max: 0,
            block_bytes_max: 256 << 10,
            block_bytes_min: 8 << 10,
            defect: None,
        };
        let (kib, mib) = (1 << 10, 1 << 20);
        let expected = [
            (0, 8 * kib),
            (64 * kib, 8 * kib),
            (mib, 16 * kib),
            (mib + 100, 16 * kib + 8),
            (4 * mib, 64 * kib),
            (64 * mib, 256 * kib),
        ];
        for (bytes, expected) in expected {
            assert_eq!(config.block_bytes(bytes, true), expected, "{bytes} bytes");
            assert_eq!(config.block_bytes(bytes, false), 256 * kib);
        }
    }
}
