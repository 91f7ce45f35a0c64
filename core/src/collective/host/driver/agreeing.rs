//! How a rank agrees with the others on what is next: it announces what it is ready for, and the leader orders.

use super::Driver;
use crate::collective::host::board::Breakage;
use crate::collective::host::group;
use crate::collective::host::record::Announcement;
use crate::collective::order::Order;
use crate::types::Time;

impl Driver {
    /// Tells the leader, which may be this rank.
    pub(super) fn announce(&mut self, announcement: Announcement) {
        match &mut self.order {
            Some(order) => tell(order, 0, announcement),
            None => {
                self.unsaid.push_back(announcement);
                self.say_the_unsaid();
            }
        }
    }

    pub(super) fn say_the_unsaid(&mut self) -> bool {
        let mut said = false;
        while self.unsaid.front().is_some_and(|announcement| self.board.announce(*announcement)) {
            self.unsaid.pop_front();
            said = true;
        }
        if said {
            self.board.knock(0, false);
        }
        said
    }

    /// The leader hears what the others are ready for; whether that was something.
    pub(super) fn hear(&mut self) -> Result<bool, Breakage> {
        let Some(order) = &mut self.order else { return Ok(false) };
        let mut moved = false;
        let mut complaints = Vec::new();
        for rank in self.board.others() {
            let was_full = self.board.is_full(rank);
            while let Some(announcement) = self.board.hear(rank)? {
                match announcement {
                    Announcement::Overdue(slot, waited) => complaints.push((slot, waited)),
                    other => tell(order, u32::try_from(rank).expect("at most RANKS_MAX"), other),
                }
                moved = true;
            }
            if was_full {
                self.board.knock(rank, false);
            }
        }
        // Only now: whoever is complained of may have spoken meanwhile.
        for (slot, waited) in complaints {
            order.handle_overdue(slot, waited);
        }
        Ok(moved)
    }

    /// The leader's part: hears what the others are ready for, and orders what comes next once it has nothing to do itself.
    pub(super) fn lead(&mut self, now: Time) -> Result<bool, Breakage> {
        let mut moved = self.hear()?;
        while self.current.is_none()
            && self.board.orders() == self.obeyed
            && self.order.as_ref().is_some_and(|order| self.may_decide(order))
        {
            let room = self.board.room();
            if room == 0 {
                self.blocked.get_or_insert(now);
                break;
            }
            self.blocked = None;
            let order = self.order.as_mut().expect("looked at above");
            self.board.order(&group::next(order, room, &self.devices.room()));
            self.board.knock_others(true);
            moved = true;
        }
        Ok(moved)
    }

    /// Whether there is something to decide, and room for what comes of it.
    pub(super) fn may_decide(&self, order: &Order) -> bool {
        order.has_failure() || (order.has_decision() && !self.devices.is_full())
    }
}

fn tell(order: &mut Order, rank: u32, announcement: Announcement) {
    match announcement {
        Announcement::Ready(slot, claim) => order.handle_ready(rank, slot, claim),
        Announcement::Withdrawn(slot) => order.handle_withdrawn(rank, slot),
        Announcement::Overdue(slot, waited) => order.handle_overdue(slot, waited),
    }
}
