//! The job in numbers.

use super::Coordinator;
use crate::coordinator::census::{Census, census};

impl Coordinator {
    /// Counts the members. The work grows with their number, so nobody should ask at every heartbeat.
    pub fn census(&self) -> Census {
        census(&self.stage, &self.roster, self.connections.count() as u64, self.epoch)
    }
}
