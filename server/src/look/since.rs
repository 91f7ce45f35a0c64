//! What changed between two readings.

use std::collections::BTreeMap;

use gradlane_core::types::Role;

use super::links::Links;
use super::reading::Reading;

/// Two readings, and the time between them.
pub(super) struct Since<'a> {
    pub(super) before: &'a Reading,
    pub(super) now: &'a Reading,
}

impl Since<'_> {
    /// The members of a role that answered.
    pub(super) fn members(&self, role: Role) -> impl Iterator<Item = (Role, u32)> {
        self.now.told.keys().copied().filter(move |(of, _)| *of == role)
    }

    /// How fast a counter of a member grows. `None` if it did not answer both times, or began anew.
    pub(super) fn rate(&self, member: (Role, u32), name: &str) -> Option<f64> {
        let number = |reading: &Reading| reading.told.get(&member)?.number(name);
        Some(number(self.now)?.checked_sub(number(self.before)?)? as f64 / self.seconds(member)?)
    }

    /// The time between the two answers of a member. `None` if they are one.
    pub(super) fn seconds(&self, member: (Role, u32)) -> Option<f64> {
        let seconds = self.now.told_at(member).saturating_sub(self.before.told_at(member)).as_secs_f64();
        if seconds > 0.0 { Some(seconds) } else { None }
    }

    /// How much each number of a family has grown, by its labels.
    pub(super) fn growth(&self, member: (Role, u32), name: &str) -> Vec<(&[String], u64)> {
        let (Some(before), Some(now)) = (self.before.told.get(&member), self.now.told.get(&member)) else {
            return Vec::new();
        };
        let before: BTreeMap<&[String], u64> = before.family(name).collect();
        now.family(name)
            .map(|(labels, now)| (labels, now.saturating_sub(before.get(labels).copied().unwrap_or_default())))
            .collect()
    }

    /// How many durations a histogram of a member has counted. `None` if it did not answer both times, or began anew.
    pub(super) fn count(&self, member: (Role, u32), name: &str) -> Option<u64> {
        let count = |reading: &Reading| Some(reading.told.get(&member)?.histogram(name)?.count());
        count(self.now)?.checked_sub(count(self.before)?)
    }

    /// How much a counter of a member has grown. 0 if it did not answer both times, or began anew.
    pub(super) fn growth_of(&self, member: (Role, u32), name: &str) -> u64 {
        let number = |reading: &Reading| reading.told.get(&member)?.number(name);
        number(self.now).zip(number(self.before)).map_or(0, |(now, before)| now.saturating_sub(before))
    }

    /// What holds the links of a worker.
    pub(super) fn links(&self, member: (Role, u32)) -> Links {
        let [limited, sent, lost] = ["link_limited_nanoseconds", "link_sent_packets", "link_lost_packets"]
            .map(|name| self.growth(member, name));
        let rtt: Vec<_> =
            self.now.told.get(&member).into_iter().flat_map(|told| told.family("link_rtt_nanoseconds")).collect();
        Links::of(&limited, &rtt, &sent, &lost)
    }

    /// The share of the time in which a lane of a server works, on average.
    pub(super) fn busy_lanes(&self, member: (Role, u32)) -> Option<f64> {
        let lanes = self.growth(member, "lane_busy_nanoseconds");
        let busy: u64 = lanes.iter().map(|(_, busy)| busy).sum();
        let seconds = self.seconds(member)?;
        (!lanes.is_empty()).then(|| busy as f64 / NANOSECONDS / seconds / lanes.len() as f64)
    }

    /// The worker that ended most rounds of a server.
    pub(super) fn most_often_last(&self, member: (Role, u32)) -> Option<u32> {
        let last = self.growth(member, "last");
        let (labels, count) = last.into_iter().max_by_key(|(_, count)| *count)?;
        if count > 0 { labels.first()?.parse().ok() } else { None }
    }
}

/// The average of some numbers; `None` of none.
pub(crate) fn average(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0_u32), |(sum, count), number| (sum + number, count + 1));
    if count > 0 { Some(sum / f64::from(count)) } else { None }
}

/// In a second.
pub(super) const NANOSECONDS: f64 = 1e9;
