//! The commands of operators that this process has got: which are under way, and what the last ones came to. A command that is told again
//! after a reconnection is not obeyed twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::types::ControlAnswer;

/// What is known of commands.
#[derive(Default, Debug)]
pub(super) struct Obeying {
    under_way: BTreeSet<u64>,
    /// The last outcomes, by number.
    done: BTreeMap<u64, Result<ControlAnswer>>,
}

/// What a command is to this process.
#[derive(PartialEq, Debug)]
pub(super) enum Heard {
    /// It is obeyed.
    New,
    /// It is under way.
    Again,
    /// It came to this before.
    Done(Result<ControlAnswer>),
}

impl Obeying {
    /// The coordinator has told this command.
    pub(super) fn hear(&mut self, number: u64) -> Heard {
        match self.done.get(&number) {
            Some(outcome) => Heard::Done(outcome.clone()),
            None if self.under_way.insert(number) => Heard::New,
            None => Heard::Again,
        }
    }

    /// A command has come to this.
    pub(super) fn end(&mut self, number: u64, outcome: Result<ControlAnswer>) {
        self.under_way.remove(&number);
        self.done.insert(number, outcome);
        while self.done.len() > REMEMBERED {
            self.done.pop_first();
        }
    }
}

/// Outcomes that are kept: as many as orders can be under way at the coordinator.
const REMEMBERED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_command_is_obeyed_once_and_answered_as_often_as_it_is_told() {
        let mut obeying = Obeying::default();
        assert_eq!(obeying.hear(5), Heard::New);
        assert_eq!(obeying.hear(5), Heard::Again);
        obeying.end(5, Err(Error::Cancelled));
        assert_eq!(obeying.hear(5), Heard::Done(Err(Error::Cancelled)));
    }

    #[test]
    fn only_the_last_outcomes_are_kept() {
        let mut obeying = Obeying::default();
        for number in 0..=REMEMBERED as u64 {
            obeying.end(number, Ok(ControlAnswer::Done));
        }
        assert_eq!(obeying.done.len(), REMEMBERED);
        assert_eq!(obeying.hear(1), Heard::Done(Ok(ControlAnswer::Done)));
    }
}
