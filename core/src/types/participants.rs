//! The workers that take part in the rounds of a tensor, and the workers that get its sums.

use std::fmt;
use std::sync::Arc;

use super::{Op, WorkerId, WorkerSet};
use crate::error::{Error, Result};

/// The members of a tensor's rounds, and the receiver of its sums. Part of a tensor's declaration, so it is the same in all rounds.
///
/// The default is all workers of the job, and all of them get the sums. That value allocates nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Participants {
    /// `None` for all workers of the job.
    members: Option<Arc<WorkerSet>>,
    /// `None` for all members.
    receiver: Option<WorkerId>,
}

impl Participants {
    /// All workers of the job. All of them get the sums.
    pub const ALL: Self = Self { members: None, receiver: None };

    /// These workers only. All of them get the sums.
    pub fn of(members: WorkerSet) -> Self {
        Self { members: Some(Arc::new(members)), receiver: None }
    }

    /// The same members. Only `receiver` gets the sums; the destinations of the other members do not change.
    #[must_use]
    pub fn with_receiver(self, receiver: WorkerId) -> Self {
        Self { receiver: Some(receiver), ..self }
    }

    /// The members; `None` for all workers of the job.
    pub fn members(&self) -> Option<&WorkerSet> {
        self.members.as_deref()
    }

    /// The only worker that gets the sums; `None` if all members do.
    pub const fn receiver(&self) -> Option<WorkerId> {
        self.receiver
    }

    /// Whether all workers of the job take part and get the sums.
    pub const fn is_everybody(&self) -> bool {
        self.members.is_none() && self.receiver.is_none()
    }

    /// Whether `worker`, a worker of the job, takes part.
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.members.as_ref().is_none_or(|members| members.contains(worker))
    }

    /// Whether `worker`, a member, gets the sums.
    pub fn receives(&self, worker: WorkerId) -> bool {
        self.receiver.is_none_or(|receiver| receiver == worker)
    }

    /// Those of `workers` that take part.
    pub fn among(&self, workers: &Arc<WorkerSet>) -> Arc<WorkerSet> {
        match &self.members {
            None => Arc::clone(workers),
            Some(members) if workers.contains_all(members) => Arc::clone(members),
            Some(members) => Arc::new(members.iter().filter(|worker| workers.contains(*worker)).collect()),
        }
    }

    /// Refuses participants that have no meaning for the tensor `name`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no members, or if the receiver is not one of them.
    pub fn check(&self, name: &str) -> Result<()> {
        if self.members().is_some_and(WorkerSet::is_empty) {
            return Err(Error::InvalidArgument {
                what: format!("tensor {name}: a process set without members"),
                hint: "name at least one rank".to_owned(),
            });
        }
        match self.receiver.filter(|receiver| !self.contains(*receiver)) {
            None => Ok(()),
            Some(receiver) => Err(Error::InvalidArgument {
                what: format!("tensor {name}: its sums go to {receiver}, which is not one of the {}", self.set()),
                hint: "choose a receiver that is a member of the process set".to_owned(),
            }),
        }
    }

    /// Refuses participants of the tensor `name` that are not among the first `size` ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the highest rank.
    pub fn check_size(&self, name: &str, size: u32) -> Result<()> {
        let highest = self.members().and_then(|members| members.iter().last()).max(self.receiver);
        match highest.filter(|highest| highest.0 >= size) {
            None => Ok(()),
            Some(highest) => Err(Error::InvalidArgument {
                what: format!("tensor {name}: {highest} does not exist in a job of {size} workers"),
                hint: format!("give ranks from 0 to {}", size.saturating_sub(1)),
            }),
        }
    }

    /// Refuses the use of the tensor `name` by `worker` if it is not a member.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_member(&self, name: &str, worker: WorkerId) -> Result<()> {
        if self.contains(worker) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: format!("tensor {name} belongs to the {}, and {worker} is not one of them", self.set()),
            hint: "use the name on the members of its process set only".to_owned(),
        })
    }

    /// Refuses a broadcast whose root is not a member.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_op(&self, name: &str, op: Op) -> Result<()> {
        match op {
            Op::Broadcast { root } if !self.contains(root) => Err(Error::InvalidArgument {
                what: format!("tensor {name}: a {op}, which is not one of the {}", self.set()),
                hint: "choose a root that is a member of the process set".to_owned(),
            }),
            Op::Broadcast { .. } | Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => Ok(()),
        }
    }

    /// The members, for people. The first [`SHOWN_MAX`] of them are named, because a peer may send a set of any workers.
    pub fn set(&self) -> String {
        let Some(members) = &self.members else { return "all workers".to_owned() };
        let shown: Vec<String> = members.iter().take(SHOWN_MAX).map(|member| member.0.to_string()).collect();
        match members.len() - shown.len() {
            0 => format!("workers {{{}}}", shown.join(", ")),
            more => format!("workers {{{}}} and {more} more", shown.join(", ")),
        }
    }
}

/// How many members messages name.
const SHOWN_MAX: usize = 32;

impl fmt::Display for Participants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.set())?;
        match self.receiver {
            None => Ok(()),
            Some(receiver) => write!(f, ", sums to {receiver}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_everybody_and_has_no_receiver() {
        let all = Participants::default();
        assert_eq!(all, Participants::ALL);
        assert!(all.is_everybody() && all.contains(WorkerId(7)) && all.receives(WorkerId(7)));
        assert_eq!((all.members(), all.receiver()), (None, None));
        assert_eq!(all.to_string(), "all workers");
    }

    #[test]
    fn only_members_take_part_and_only_the_receiver_gets_the_sums() {
        let some = Participants::of(set(&[0, 2]));
        assert!(!some.is_everybody() && some.contains(WorkerId(2)) && !some.contains(WorkerId(1)));
        assert!(some.receives(WorkerId(0)) && some.receives(WorkerId(2)));
        let to_two = some.with_receiver(WorkerId(2));
        assert!(to_two.receives(WorkerId(2)) && !to_two.receives(WorkerId(0)));
        assert_eq!(to_two.to_string(), "workers {0, 2}, sums to worker 2");
        assert!(!Participants::ALL.with_receiver(WorkerId(0)).is_everybody());
    }

    #[test]
    fn lost_members_are_not_due() {
        let workers = Arc::new(set(&[0, 1, 3]));
        for (members, due) in [(set(&[0, 3]), set(&[0, 3])), (set(&[0, 2]), set(&[0])), (set(&[2]), set(&[]))] {
            assert_eq!(*Participants::of(members).among(&workers), due);
        }
        assert_eq!(Participants::ALL.among(&workers), workers);
    }

    #[test]
    fn what_has_no_meaning_is_refused_by_name() {
        let some = Participants::of(set(&[0, 2]));
        for (refused, why) in [
            (Participants::of(set(&[])).check("w"), "tensor w: a process set without members"),
            (some.clone().with_receiver(WorkerId(1)).check("w"), "its sums go to worker 1, which is not one of"),
            (
                some.check_member("w", WorkerId(1)),
                "tensor w belongs to the workers {0, 2}, and worker 1 is not one of them",
            ),
            (some.check_size("w", 2), "tensor w: worker 2 does not exist in a job of 2 workers"),
            (
                Participants::ALL.with_receiver(WorkerId(4)).check_size("w", 4),
                "worker 4 does not exist in a job of 4 workers",
            ),
            (some.check_op("w", Op::Broadcast { root: WorkerId(1) }), "broadcast from worker 1, which is not one of"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let to_two = some.with_receiver(WorkerId(2));
        assert_eq!(to_two.check("w").and(to_two.check_member("w", WorkerId(0))), Ok(()));
        assert_eq!(to_two.check_op("w", Op::Broadcast { root: WorkerId(0) }), Ok(()));
    }

    #[test]
    fn messages_name_some_members_of_a_large_set() {
        let text = Participants::of((0..4000).map(WorkerId).collect()).set();
        assert!(text.starts_with("workers {0, 1, ") && text.ends_with(", 31} and 3968 more"), "{text}");
    }

    fn set(ranks: &[u32]) -> WorkerSet {
        ranks.iter().copied().map(WorkerId).collect()
    }
}
