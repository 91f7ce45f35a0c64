//! The latest metrics of each member, for the exporter.
//!
//! The coordinator's thread and the exporter's share a lock of their own, which each holds while it moves some pointers. So the exporter waits for
//! no other work of the coordinator, and the coordinator for no answer of the exporter. There is one entry for each member that is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::metrics::Instance;
use gradlane_core::runtime::Clock;
use gradlane_core::runtime::exporter;
use gradlane_core::types::{Role, Stats, Time};

use crate::coordinator::Census;

/// See the module's documentation.
pub(super) struct Gathered {
    clock: Clock,
    /// A member that has told nothing for so long is missing.
    lasts: Duration,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    /// What is known of each that is there.
    told: BTreeMap<(Role, u32), Option<Told>>,
    /// The job when they were counted last.
    census: Option<Census>,
}

/// What a member has told.
#[derive(Clone)]
struct Told {
    at: Time,
    instance: Arc<Instance>,
}

impl Gathered {
    /// Nothing yet. Members that have told nothing for `lasts` are missing.
    pub(super) fn new(lasts: Duration) -> Self {
        Self { clock: Clock::start(), lasts, members: Mutex::default() }
    }

    /// These members are there. What others have told is forgotten. Nothing is done if the job is as it was.
    pub(super) fn follow(&self, census: &Census, present: impl Iterator<Item = (Role, u32)>) {
        let mut members = self.lock();
        let census = Some(Census { connections: 0, suspect: 0, ..*census });
        if members.census != census {
            members.census = census;
            let mut before = std::mem::take(&mut members.told);
            members.told.extend(present.map(|member| (member, before.remove(&member).flatten())));
        }
    }

    /// A member has told its metrics. Those of another part than it is, and of one that is not there, are left out.
    pub(super) fn take(&self, member: (Role, u32), stats: &Stats) {
        let (role, index) = member;
        if stats.scope != role.to_string() || stats.label != index.to_string() {
            return;
        }
        let Some(instance) = Instance::from_pairs(&stats.scope, &stats.label, &stats.values) else { return };
        let instance = Arc::new(instance.of_member(&stats.scope, index));
        let told = Told { at: self.clock.now(), instance };
        if let Some(place) = self.lock().told.get_mut(&member) {
            *place = Some(told);
        }
    }

    /// How many members have told something lately.
    pub(super) fn answered(&self) -> usize {
        let now = self.clock.now();
        self.lock().told.values().flatten().filter(|told| self.is_of_late(told, now)).count()
    }

    /// What the members have told lately, and who has not.
    pub(super) fn latest(&self) -> exporter::Gathered {
        let now = self.clock.now();
        let members: Vec<_> = self.lock().told.iter().map(|(member, told)| (*member, told.clone())).collect();
        let mut gathered = exporter::Gathered::default();
        for ((role, index), told) in members {
            match told.filter(|told| self.is_of_late(told, now)) {
                Some(told) => gathered.instances.push((*told.instance).clone()),
                None => gathered.missing.push(format!("{role} {index}")),
            }
        }
        gathered
    }

    /// When each member told something last, in nanoseconds since 1970.
    pub(super) fn last_seen(&self) -> Vec<((Role, u32), u64)> {
        let origin = self.clock.read_wall().origin_unix_ns();
        let members = self.lock();
        let told = members.told.iter().filter_map(|(member, told)| Some((*member, told.as_ref()?.at)));
        told.map(|(member, at)| (member, origin.saturating_add(at.0))).collect()
    }

    fn is_of_late(&self, told: &Told, now: Time) -> bool {
        now < told.at + self.lasts
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gradlane_core::types::Epoch;

    use super::*;
    use crate::coordinator::Life;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn each_member_that_is_there_is_shown_or_missing() {
        let gathered = Gathered::new(LONG);
        gathered.follow(&census(1), [(Role::Worker, 0), (Role::Worker, 1), (Role::Server, 0)].into_iter());
        gathered.take((Role::Worker, 1), &stats("worker", 1, 5));
        gathered.take((Role::Worker, 1), &stats("worker", 1, 7));
        let latest = gathered.latest();
        let missing: BTreeSet<&str> = latest.missing.iter().map(String::as_str).collect();
        assert_eq!(missing, BTreeSet::from(["worker 0", "server 0"]));
        let [shown] = &latest.instances[..] else { panic!("{latest:?}") };
        assert_eq!((shown.scope, shown.number("pushes")), ("worker", Some(7)));
        let seen = gathered.last_seen();
        let year_2020 = 1_577_836_800_000_000_000;
        assert!(matches!(seen[..], [((Role::Worker, 1), at)] if at > year_2020), "{seen:?}");
        assert_eq!(shown.further, [("role", "worker".to_owned()), ("index", "1".to_owned())]);

        gathered.follow(&census(1), std::iter::empty());
        assert_eq!(gathered.latest(), latest, "the job is as it was");
        gathered.follow(&census(2), [(Role::Worker, 0)].into_iter());
        assert_eq!(gathered.latest(), exporter::Gathered { instances: vec![], missing: vec!["worker 0".to_owned()] });
    }

    #[test]
    fn a_member_that_tells_nothing_any_more_is_missing() {
        let gathered = Gathered::new(Duration::ZERO);
        gathered.follow(&census(1), [(Role::Worker, 0)].into_iter());
        gathered.take((Role::Worker, 0), &stats("worker", 0, 5));
        assert_eq!(gathered.latest().missing, ["worker 0"]);
    }

    #[test]
    fn nobody_speaks_for_another_member() {
        let gathered = Gathered::new(LONG);
        gathered.follow(&census(1), [(Role::Worker, 0), (Role::Server, 0)].into_iter());
        for (member, told) in [
            ((Role::Worker, 0), stats("server", 0, 5)),
            ((Role::Worker, 0), stats("worker", 1, 5)),
            ((Role::Worker, 0), stats("coordinator", 0, 5)),
            ((Role::Worker, 9), stats("worker", 9, 5)),
        ] {
            gathered.take(member, &told);
        }
        assert_eq!(gathered.latest().missing.len(), 2);
    }

    fn census(number: u32) -> Census {
        let epoch = Epoch { term: 1, number };
        Census { workers: 1, servers: 1, suspect: 0, connections: 2, life: Life::Running, epoch }
    }

    fn stats(scope: &str, index: u32, pushes: u64) -> Stats {
        let values = vec![("pushes".to_owned(), pushes), ("unknown".to_owned(), 1)];
        Stats { scope: scope.to_owned(), label: index.to_string(), values }
    }
}
