//! The members of the jobs in which machines are fuzzed.

use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::types::{Epoch, Incarnation, Member, NodeId, Phase, Process, Role, Round, View};
use gradlane_server::node::{Node, NodeConfig};

/// What the process of this number proves to be.
pub(super) fn node_id(number: u8) -> NodeId {
    NodeId([number; 32])
}

/// A view of workers 0 to `workers`, in the `number`th epoch.
pub(super) fn view(workers: u8, number: u32, phase: Phase) -> View {
    let member = |rank: u8| Member {
        process: Process {
            host: format!("n{rank}"),
            pid: 10 + u32::from(rank),
            ..Process::new(Role::Worker, Incarnation(u128::from(rank)))
        },
        node: node_id(rank),
        index: rank.into(),
        first_round: Round(0),
    };
    View {
        job: "fuzz".to_owned(),
        epoch: Epoch { term: 1, number },
        phase,
        formed_before: 0,
        // In every other view a server was lost.
        formed_servers: number % 2,
        formed_together: false,
        recovers: false,
        members: (0..workers).map(member).collect(),
    }
}

/// Settings of a node with little memory, so that its bounds are reached.
pub(super) fn node_config() -> NodeConfig {
    NodeConfig {
        deterministic: false,
        stall_warn: Duration::from_secs(2),
        step_timeout: Duration::from_secs(10),
        contact: None,
        memory_bytes_max: 1 << 16,
        unread_bytes_max: 1 << 20,
        block_bytes_max: 64,
        block_bytes_min: 16,
        defect: None,
    }
}

/// A node whose job runs with these workers.
pub(super) fn joined_node(workers: u8) -> Node {
    let mut node = Node::new(node_config());
    node.handle_member(MemberEvent::Joined { index: 0, view: view(workers, 1, Phase::Running) });
    node
}
