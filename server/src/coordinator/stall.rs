//! Turns a server's report of a waiting sum into a notice for the workers, and into a line of the log.
//!
//! A late worker is late with every part, and every server reports each of them. A few notices per interval say as much as all of them, and
//! people get one line per interval with the number of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{PartId, Round, Time, WorkerId};
use gradlane_core::wire::frame::{Health, Stall};

use super::registry::Registry;
use super::roster::{Roster, Seat};

/// The most sums that are reported in one interval.
const NOTICES_MAX: usize = 8;
/// The most sums that are counted for people.
const UNSAID_MAX: usize = 4096;

/// The recently reported sums.
#[derive(Debug)]
pub(super) struct Stalls {
    interval: Duration,
    told: BTreeMap<(PartId, Round), Time>,
    /// When people were told last.
    said: Option<Time>,
    /// Sums that were reported since then.
    unsaid: BTreeSet<(PartId, Round)>,
}

/// The notice of a waiting sum.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Notice {
    /// The tensors of the part, shortened.
    pub(super) tensor: String,
    /// The server's report, without workers that were lost.
    pub(super) stall: Stall,
    /// What the missing workers did last.
    pub(super) detail: String,
}

impl Stalls {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, told: BTreeMap::new(), said: None, unsaid: BTreeSet::new() }
    }

    /// The notice of a waiting sum; `None` if there were enough of them, or if every missing worker was lost.
    pub(super) fn notice(
        &mut self,
        now: Time,
        mut stall: Stall,
        roster: &Roster,
        registry: &Registry,
    ) -> Option<Notice> {
        // The server may not have heard yet that a worker was lost.
        stall.missing.retain(|rank| roster.worker(*rank).is_some());
        if !stall.missing.is_empty() && self.unsaid.len() < UNSAID_MAX {
            self.unsaid.insert((stall.part, stall.round));
        }
        if stall.missing.is_empty() || !self.is_news(now, stall.part, stall.round) {
            return None;
        }
        let tensor = registry.name_of(stall.part);
        let detail = describe(now, &stall.missing, roster, registry);
        Some(Notice { tensor, stall, detail })
    }

    /// Whether people are to be told of a sum now. Then the answer is how many others were reported since they were told last.
    pub(super) fn is_news_for_people(&mut self, now: Time) -> Option<usize> {
        if self.said.is_some_and(|said| now.since(said) < self.interval) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid).len().saturating_sub(1))
    }

    /// Whether to report this sum now.
    fn is_news(&mut self, now: Time, part: PartId, round: Round) -> bool {
        self.told.retain(|_, told| now.since(*told) < self.interval);
        if self.told.contains_key(&(part, round)) || self.told.len() >= NOTICES_MAX {
            return false;
        }
        self.told.insert((part, round), now);
        true
    }
}

/// What the missing workers did last, such as `worker 3 on n3 (pid 77): last seen 0.4 s ago, last tensor fc.bias, round 811`.
fn describe(now: Time, missing: &[WorkerId], roster: &Roster, registry: &Registry) -> String {
    let texts: Vec<String> = missing
        .iter()
        .filter_map(|worker| roster.worker(*worker))
        .map(|seat| format!("{} on {}: {}", seat.member.name(), seat.member.place(), doing(now, seat, registry)))
        .collect();
    texts.join("; ")
}

fn doing(now: Time, seat: &Seat, registry: &Registry) -> String {
    let seen = match seat.health {
        Health::Left => return "left the job".to_owned(),
        Health::Dead => return "is dead".to_owned(),
        Health::Alive | Health::Suspect => format!("last seen {:.1} s ago", now.since(seat.heard).as_secs_f64()),
    };
    match seat.progress.last {
        Some((key, round)) => format!("{seen}, last tensor {}, {round}", registry.tensor_name(key)),
        None => format!("{seen}, no tensor submitted yet"),
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::TensorKey;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn a_sum_is_told_of_once_an_interval() {
        let mut stalls = Stalls::new(INTERVAL);
        assert!(stalls.is_news(Time::ZERO, part(1), Round(7)));
        assert!(!stalls.is_news(Time::ZERO, part(1), Round(7)));
        assert!(stalls.is_news(Time::ZERO, part(1), Round(8)));
        assert!(stalls.is_news(Time::ZERO + INTERVAL, part(1), Round(7)));
    }

    #[test]
    fn many_sums_at_once_are_told_of_by_the_first_few() {
        let mut stalls = Stalls::new(INTERVAL);
        let told = (0..1000).filter(|index| stalls.is_news(Time::ZERO, part(*index), Round(7))).count();
        assert_eq!(told, NOTICES_MAX);
    }

    #[test]
    fn people_get_one_line_an_interval_with_the_number_of_the_others() {
        let mut stalls = Stalls::new(INTERVAL);
        stalls.unsaid.extend((0..1000).map(|index| (part(index), Round(7))));
        let told: Vec<Option<usize>> = (0..1000).map(|_| stalls.is_news_for_people(Time::ZERO)).collect();
        assert_eq!((told[0], told.iter().flatten().count()), (Some(999), 1));
        stalls.unsaid.extend((0..3).map(|index| (part(index), Round(7))));
        assert_eq!(stalls.is_news_for_people(Time::ZERO + INTERVAL), Some(2));
    }

    fn part(index: u32) -> PartId {
        PartId { key: TensorKey(1), index }
    }
}
