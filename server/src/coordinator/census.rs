//! The job in numbers, for its metrics.

use gradlane_core::types::{Epoch, Role};
use gradlane_core::wire::frame::Health;

use super::roster::Roster;
use super::stage::Stage;

/// The members of the job, and how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Census {
    /// Workers that are members.
    pub workers: u64,
    /// Servers that are members.
    pub servers: u64,
    /// Members that are suspect.
    pub suspect: u64,
    /// Connections of anybody.
    pub connections: u64,
    /// How far the job is.
    pub life: Life,
    /// Its epoch.
    pub epoch: Epoch,
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It waits for members.
    Forming,
    /// All of them have joined.
    Running,
    /// It has ended in order.
    Ended,
    /// It has failed.
    Failed,
}

/// Counts the members.
pub(super) fn census(stage: &Stage, roster: &Roster, connections: u64, epoch: Epoch) -> Census {
    let present = |role| {
        let members = roster.seats().filter(|seat| seat.is_present() && seat.member.process.role == role);
        members.count() as u64
    };
    Census {
        workers: present(Role::Worker),
        servers: present(Role::Server),
        suspect: roster.seats().filter(|seat| seat.health == Health::Suspect).count() as u64,
        connections,
        life: match stage {
            Stage::Forming { .. } => Life::Forming,
            Stage::Running => Life::Running,
            Stage::Closing { outcome: Ok(()), .. } | Stage::Finished { outcome: Ok(()) } => Life::Ended,
            Stage::Closing { outcome: Err(_), .. } | Stage::Finished { outcome: Err(_) } => Life::Failed,
        },
        epoch,
    }
}
