//! The pages that take time to make: metrics, and a whole job.
//!
//! Making them has a [`Budget`], however often somebody asks. Who asks more often gets the page that was made last, which is then at most [`SHARE`]
//! times as old as the making of a page takes, and says how old it is. Who asks as people and Prometheus do always gets a new one.
//!
//! [`SHARE`]: super::budget::SHARE

use std::collections::BTreeMap;
use std::time::Duration;

use super::answer::Answer;
use super::budget::Budget;
use super::request::Page;
use crate::types::Time;

/// The pages that were made last.
#[derive(Default)]
pub(super) struct Pages {
    budget: Budget,
    took: Duration,
    /// Each with the time at which it was made.
    made: BTreeMap<Page, (Time, Answer)>,
}

impl Pages {
    /// A page, which is made anew if there is time for that. `cpu` gives the processor time of this thread, and is asked before and after.
    pub(super) fn get(
        &mut self,
        page: Page,
        now: Time,
        cpu: impl Fn() -> Duration,
        make: impl FnOnce() -> Answer,
    ) -> Answer {
        match self.made.get(&page) {
            Some((at, made)) if self.budget.pause(now, self.took).is_some() => made.clone().aged(page, now.since(*at)),
            Some(_) | None => {
                let before = cpu();
                let made = make();
                self.took += cpu().saturating_sub(before);
                self.made.insert(page, (now, made.clone()));
                made
            }
        }
    }

    /// The processor time that making pages has taken.
    pub(super) fn took(&self) -> Duration {
        self.took
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn pages_take_their_share_of_a_core_and_are_new_for_those_who_ask_seldom() {
        // How long a page takes, the pause between two questions; how many answers of twenty thousand are new.
        for (takes, pause, expected) in [
            (Duration::from_micros(150), Duration::from_secs(1), 20_000..=20_000),
            (Duration::from_micros(150), Duration::from_millis(60), 20_000..=20_000),
            // The first ones, and then one each 60 ms.
            (Duration::from_micros(150), Duration::from_millis(1), 990..=1_010),
            (Duration::from_millis(50), Duration::from_millis(1), 3..=4),
        ] {
            let (mut now, cpu, mut pages) = (Time::ZERO, Cell::new(Duration::ZERO), Pages::default());
            let mut made = 0;
            for number in 0..20_000 {
                now = now + pause;
                let before = cpu.get();
                let answer = pages.get(
                    Page::Metrics,
                    now,
                    || cpu.get(),
                    || {
                        made += 1;
                        cpu.set(cpu.get() + takes);
                        Answer::plain("200 OK", number.to_string())
                    },
                );
                let is_new = cpu.get() > before;
                assert_eq!(answer.body == format!("{number}\n"), is_new, "what was made is what is answered");
            }
            assert!(expected.contains(&made), "{made} new pages, each {takes:?}, asked for every {pause:?}");
            assert_eq!(pages.took(), takes * made);
        }
    }

    #[test]
    fn a_page_that_was_never_made_is_made_whatever_it_costs() {
        let (cpu, mut pages) = (Cell::new(Duration::ZERO), Pages::default());
        for page in [Page::Metrics, Page::Job, Page::Front] {
            let make = || {
                cpu.set(cpu.get() + Duration::from_secs(1));
                Answer::plain("200 OK", format!("{page:?}"))
            };
            assert_eq!(pages.get(page, Time::ZERO, || cpu.get(), make).body, format!("{page:?}\n"));
        }
    }
}
