//! The ranks of one machine, and the reasons for which they cannot work together any more.

use crate::types::{Incarnation, View, WorkerId};

/// A rank of the machine, as the view names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalRank {
    /// Its rank in the job.
    pub rank: WorkerId,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// Its name, such as `worker 2`.
    pub name: String,
    /// Host and process, for messages.
    pub place: String,
    /// The path of the socket on which it listens for the others.
    pub socket_path: String,
}

impl LocalRank {
    /// The workers of a team, in ascending order.
    pub fn of_team(view: &View, team: &[WorkerId]) -> Vec<Self> {
        let members = view.workers().filter(|member| team.contains(&WorkerId(member.index)));
        let local = members.map(|member| Self {
            rank: WorkerId(member.index),
            incarnation: member.process.incarnation,
            name: member.name(),
            place: member.place(),
            socket_path: member.process.socket_path().unwrap_or_default().to_owned(),
        });
        let mut ranks: Vec<Self> = local.collect();
        ranks.sort_by_key(|local| local.rank);
        ranks
    }
}

/// Why the ranks cannot work together any more. Ranks are positions among those of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakage {
    /// The process of this rank is gone.
    Lost(usize),
    /// This rank stopped in the middle of a sum.
    Stuck(usize),
    /// This rank wrote a record without meaning.
    Confused(usize),
    /// The devices of this rank failed.
    Failed(usize),
}
