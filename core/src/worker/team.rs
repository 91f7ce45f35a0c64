//! The workers of this machine that reduce together, and whether they can do so now.
//!
//! ```text
//!            another team                    met
//!  Together ──────────────► Apart (no end) ───────► Together
//!     └── a rank left, and an operation came back ──► Apart (until a new view) ──► the job fails for this worker
//! ```

use crate::types::{Incarnation, Member, Time, View, WorkerId};

/// The present team.
#[derive(Debug, Default)]
pub(super) struct Team {
    /// Counts the teams of this worker, from 1.
    number: u32,
    ranks: Vec<Member>,
    /// One that the former team had.
    gone: Option<Member>,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Standing {
    /// Its ranks have met, or there is nobody to meet.
    #[default]
    Together,
    /// Its ranks do not reduce together now. The meeting that is under way ends by itself; without one, they wait until then.
    Apart { until: Option<Time> },
}

impl Team {
    /// Follows a view, in which these `ranks` reduce together on this machine. Returns whether that is another team.
    pub(super) fn follow(&mut self, view: &View, ranks: &[WorkerId]) -> bool {
        let of_team = || view.workers().filter(|member| ranks.contains(&WorkerId(member.index)));
        let is_other = self.number == 0 || !of_team().map(life).eq(self.ranks.iter().map(life));
        if is_other {
            let is_gone = |former: &Member| of_team().all(|member| life(member) != life(former));
            self.gone = std::mem::take(&mut self.ranks).into_iter().find(is_gone);
            self.ranks = of_team().cloned().collect();
            self.number += 1;
            self.standing = if self.ranks.is_empty() { Standing::Together } else { Standing::Apart { until: None } };
        }
        is_other
    }

    /// A rank of the former team that the present one lacks.
    pub(super) fn gone(&self) -> Option<&Member> {
        self.gone.as_ref()
    }

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The driver has equipped itself for the team of this number. It says so again when a view comes that changes nothing for this team;
    /// where the ranks have parted meanwhile, they stay apart.
    pub(super) fn met(&mut self, number: u32) {
        if number == self.number && self.standing == (Standing::Apart { until: None }) {
            self.standing = Standing::Together;
        }
    }

    /// An operation of the team of this number came back, because its ranks parted. They cannot work together until another view says who
    /// is left, at the latest at `until`.
    pub(super) fn parted(&mut self, number: u32, until: Time) {
        if number == self.number && self.standing == Standing::Together {
            self.standing = Standing::Apart { until: Some(until) };
        }
    }

    /// Whether its ranks cannot reduce together now.
    pub(super) fn is_apart(&self) -> bool {
        self.standing != Standing::Together
    }

    /// When the wait for a new view is too long.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.standing {
            Standing::Apart { until } => until,
            Standing::Together => None,
        }
    }
}

fn life(member: &Member) -> (u32, Incarnation) {
    (member.index, member.process.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_is_another_one_if_one_of_its_lives_is() {
        let mut team = Team::default();
        let ranks = [0, 1].map(WorkerId);
        let view = View::of_workers(&[(7, "a"), (7, "b"), (8, "c")]);
        assert!(team.follow(&view, &ranks) && team.is_apart(), "the first one is another one than none");
        team.met(1);
        assert!(!team.is_apart());
        let mut without_another_machine = view.clone();
        without_another_machine.members.truncate(2);
        assert!(!team.follow(&without_another_machine, &ranks) && !team.is_apart(), "nothing changed here");
        let mut another_life = view.clone();
        another_life.members[1].process.incarnation = Incarnation(99);
        assert!(team.follow(&another_life, &ranks));
        assert!(team.follow(&view, &[]) && !team.is_apart(), "there is nobody to meet");
        assert_eq!(team.number(), 3);
    }

    #[test]
    fn a_late_word_of_a_former_team_changes_nothing() {
        let mut team = Team::default();
        team.follow(&View::of_workers(&[(7, "a"), (7, "b"), (7, "c")]), &[0, 1, 2].map(WorkerId));
        team.met(1);
        team.follow(&View::of_workers(&[(7, "a"), (7, "b")]), &[0, 1].map(WorkerId));
        team.met(1);
        assert!(team.is_apart(), "the former one met, not this one");
        team.met(2);
        team.parted(1, Time(5));
        assert!(!team.is_apart(), "the former one parted, not this one");
        team.parted(2, Time(5));
        assert_eq!((team.is_apart(), team.poll_timeout()), (true, Some(Time(5))));
        team.met(2);
        assert_eq!((team.is_apart(), team.poll_timeout()), (true, Some(Time(5))), "they met before they parted");
    }
}
