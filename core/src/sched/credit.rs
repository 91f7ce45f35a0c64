//! Limits the bytes and tasks in flight, so that an urgent task does not wait behind everything that was submitted before it.

use std::collections::BTreeMap;

use crate::types::Priority;

/// Bytes and tasks in flight, and their limits.
///
/// A task that is more urgent than the least urgent one in flight draws from a second budget of the same size. So it reaches its link,
/// where it overtakes, even while a backlog that was submitted before holds all of the first budget. Both together hold at most twice the
/// credit.
#[derive(Clone, Debug)]
pub struct Credit {
    bytes_max: u64,
    tasks_max: u32,
    all: Drawn,
    by_priority: BTreeMap<Priority, Drawn>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Drawn {
    bytes: u64,
    tasks: u32,
}

impl Credit {
    /// Credit for `bytes_max` bytes in `tasks_max` tasks, with nothing in flight.
    pub const fn new(bytes_max: u64, tasks_max: u32) -> Self {
        Self { bytes_max, tasks_max, all: Drawn { bytes: 0, tasks: 0 }, by_priority: BTreeMap::new() }
    }

    /// Whether a task of `bytes` may start. A task larger than the whole credit runs alone.
    pub fn fits(&self, priority: Priority, bytes: u64) -> bool {
        let room = |drawn: Drawn, times: u32| {
            let bytes_max = self.bytes_max.saturating_mul(times.into());
            drawn.tasks < self.tasks_max.saturating_mul(times) && drawn.bytes.saturating_add(bytes) <= bytes_max
        };
        let beside = match self.by_priority.first_key_value() {
            Some((least, drawn)) if *least < priority => {
                Drawn { bytes: self.all.bytes - drawn.bytes, tasks: self.all.tasks - drawn.tasks }
            }
            Some(_) | None => self.all,
        };
        self.all.tasks == 0 || (room(beside, 1) && room(self.all, 2))
    }

    /// Takes `bytes` for a task that starts.
    pub fn draw(&mut self, priority: Priority, bytes: u64) {
        for drawn in [&mut self.all, self.by_priority.entry(priority).or_default()] {
            drawn.bytes = drawn.bytes.saturating_add(bytes);
            drawn.tasks += 1;
        }
    }

    /// Returns the credit that a task drew.
    pub fn give_back(&mut self, priority: Priority, bytes: u64) {
        let like = self.by_priority.get_mut(&priority).expect("credit is given back once");
        for drawn in [&mut self.all, &mut *like] {
            drawn.bytes = drawn.bytes.checked_sub(bytes).expect("credit is given back once");
            drawn.tasks = drawn.tasks.checked_sub(1).expect("credit is given back once");
        }
        if like.tasks == 0 {
            self.by_priority.remove(&priority);
        }
    }

    /// Bytes that were drawn and not returned.
    pub const fn in_flight(&self) -> u64 {
        self.all.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Priority = Priority(-9);
    const HIGH: Priority = Priority(0);

    #[test]
    fn a_part_larger_than_the_credit_runs_alone() {
        let mut credit = Credit::new(100, 10);
        assert!(credit.fits(LOW, 250));
        credit.draw(LOW, 250);
        assert!(!credit.fits(LOW, 1), "nothing beside it");
        credit.give_back(LOW, 250);
        credit.draw(LOW, 60);
        assert!(credit.fits(LOW, 40));
        assert!(!credit.fits(LOW, 41));
        assert!(!credit.fits(LOW, u64::MAX));
    }

    #[test]
    fn many_small_parts_are_bounded_by_their_number() {
        let mut credit = Credit::new(100, 2);
        credit.draw(LOW, 1);
        assert!(credit.fits(LOW, 1));
        credit.draw(LOW, 1);
        assert!(!credit.fits(LOW, 1), "though there are 98 bytes left");
        credit.give_back(LOW, 1);
        assert!(credit.fits(LOW, 1));
    }

    #[test]
    fn what_is_urgent_does_not_wait_for_the_credit_of_a_backlog() {
        let mut credit = Credit::new(100, 10);
        credit.draw(LOW, 100);
        assert!(!credit.fits(LOW, 1));
        assert!(credit.fits(HIGH, 100));
        credit.draw(HIGH, 60);
        assert!(credit.fits(HIGH, 40));
        assert!(!credit.fits(HIGH, 41), "its like hold credit too");
        credit.give_back(LOW, 100);
        assert!(credit.fits(HIGH, 40));
        assert!(!credit.fits(HIGH, 41), "nothing less urgent is left");
    }

    #[test]
    fn all_together_hold_no_more_than_twice_the_credit() {
        let mut credit = Credit::new(100, 10);
        (0..4).for_each(|priority| credit.draw(Priority(priority), 50));
        assert!(!credit.fits(Priority(9), 1));
    }
}
