//! The latest metrics of each member, the state of the job, and its last minutes, for the exporter.
//!
//! The coordinator's thread and the exporter's share a lock of their own, which each holds while it moves some pointers. So the exporter waits for
//! no other work of the coordinator, and the coordinator for no answer of the exporter. There is one entry for each member that is there.
//!
//! Once a second the coordinator's thread adds its status and a point of the history ([`Gathered::tick`]). Rates need an earlier reading: two are
//! kept, of which the older one is 4 to 8 seconds old. So a member costs the memory of its metrics three times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::metrics::Instance;
use gradlane_core::runtime::Clock;
use gradlane_core::runtime::exporter;
use gradlane_core::types::{Role, Stats, Time};
use gradlane_core::wire::frame::Status;

use super::happened::Happened;
use crate::coordinator::{Census, Life};
use crate::look::history::{History, Point};
use crate::look::{Reading, average, highest_step};

/// See the module's documentation.
pub(super) struct Gathered {
    clock: Clock,
    /// A member that has told nothing for so long is missing.
    lasts: Duration,
    members: Mutex<Members>,
    /// When the next second begins, in nanoseconds of the clock. The coordinator's thread alone uses it.
    next_tick: AtomicU64,
}

#[derive(Default)]
struct Members {
    /// What is known of each that is there.
    told: BTreeMap<(Role, u32), Option<Told>>,
    /// The job when they were counted last.
    census: Option<Census>,
    /// The state of the job at the last tick.
    latest: Option<(Time, Arc<Status>)>,
    /// Earlier readings, the older one first.
    earlier: VecDeque<Kept>,
    history: History,
    happened: Happened,
}

/// What a member has told.
#[derive(Clone)]
struct Told {
    at: Time,
    instance: Arc<Instance>,
    /// Since what it told before.
    rates: Option<Rates>,
}

/// How fast the counters of a worker grow.
#[derive(Clone, Copy, Debug)]
struct Rates {
    /// Bytes a second, sent and received.
    bytes: f64,
    /// The share of the time in which its threads waited for handles.
    blocked: f64,
}

/// A reading of the job by pointers.
#[derive(Clone)]
struct Kept {
    at: Time,
    status: Arc<Status>,
    told: BTreeMap<(Role, u32), Told>,
}

/// What the page of the job is made of.
pub(super) struct Seen {
    /// Some seconds ago; `None` in the first second.
    pub(super) before: Option<Reading>,
    /// Now.
    pub(super) now: Reading,
    /// How old the status of `now` is.
    pub(super) age: Duration,
    /// The last minutes.
    pub(super) points: Vec<Point>,
    /// The second of the newest point.
    pub(super) second: u64,
    /// What has happened, the newest first, and how long ago.
    pub(super) events: Vec<(Duration, String)>,
}

impl Gathered {
    /// Nothing yet. Members that have told nothing for `lasts` are missing.
    pub(super) fn new(lasts: Duration) -> Self {
        Self { clock: Clock::start(), lasts, members: Mutex::default(), next_tick: AtomicU64::default() }
    }

    /// These members are there. What others have told is forgotten. Nothing is done if the job is as it was.
    pub(super) fn follow(&self, census: &Census, present: impl Iterator<Item = (Role, u32)>) {
        let mut members = self.lock();
        let census = Census { connections: 0, suspect: 0, ..*census };
        if members.census != Some(census) {
            let Census { workers, servers, life, .. } = census;
            let before = members.census.map_or(0, |before| before.workers + before.servers);
            // That the job is complete is an event of its own.
            if life == Life::Forming && before < workers + servers {
                members.happened.count(self.clock.now(), format!("{workers} workers and {servers} servers"));
            }
            members.census = Some(census);
            let mut before = std::mem::take(&mut members.told);
            members.told.extend(present.map(|member| (member, before.remove(&member).flatten())));
        }
    }

    /// A member has told its metrics, which are returned. `None` if they are those of another part than it is. Those of one that is not there are
    /// not kept.
    pub(super) fn take(&self, member: (Role, u32), stats: &Stats) -> Option<Arc<Instance>> {
        self.take_at(self.clock.now(), member, stats)
    }

    fn take_at(&self, at: Time, member: (Role, u32), stats: &Stats) -> Option<Arc<Instance>> {
        let (role, index) = member;
        if stats.scope != role.to_string() || stats.label != index.to_string() {
            return None;
        }
        let instance = Instance::from_pairs(&stats.scope, &stats.label, &stats.values)?;
        let instance = Arc::new(instance.of_member(&stats.scope, index));
        if let Some(place) = self.lock().told.get_mut(&member) {
            let rates = place.as_ref().and_then(|before| Rates::of(before, at, &instance));
            *place = Some(Told { at, instance: Arc::clone(&instance), rates });
        }
        Some(instance)
    }

    /// This has happened.
    pub(super) fn note(&self, sentence: String) {
        let now = self.clock.now();
        self.lock().happened.push(now, sentence);
    }

    /// Once a second, keeps the state of the job, and what its members have told. Otherwise it only reads the clock.
    pub(super) fn tick(&self, status: impl FnOnce() -> Status) {
        self.tick_at(self.clock.now(), status);
    }

    fn tick_at(&self, now: Time, status: impl FnOnce() -> Status) {
        if now.0 < self.next_tick.load(Ordering::Relaxed) {
            return;
        }
        self.next_tick.store((now + TICK).0, Ordering::Relaxed);
        let status = Arc::new(status());
        let mut members = self.lock();
        let told = members.told.values().flatten().filter(|told| self.is_of_late(told, now));
        let rates: Vec<Rates> = told.filter_map(|told| told.rates).collect();
        let bytes = (!rates.is_empty()).then(|| rates.iter().map(|rates| rates.bytes).sum());
        let blocked = average(rates.iter().map(|rates| rates.blocked));
        members.history.push(now, highest_step(&status), blocked, bytes);
        if members.earlier.back().is_none_or(|last| last.at + KEPT_EVERY <= now) {
            let told = self.told_of_late(&members, now);
            members.earlier.push_back(Kept { at: now, status: Arc::clone(&status), told });
            if members.earlier.len() > 2 {
                members.earlier.pop_front();
            }
        }
        members.latest = Some((now, status));
    }

    /// What there is to see. `None` before the first tick.
    pub(super) fn seen(&self) -> Option<Seen> {
        self.seen_at(self.clock.now())
    }

    fn seen_at(&self, now: Time) -> Option<Seen> {
        let members = self.lock();
        let (at, status) = members.latest.clone()?;
        let told = self.told_of_late(&members, now);
        let before = members.earlier.front().filter(|kept| kept.at < at).cloned();
        let points = members.history.points();
        let events = members.happened.iter().map(|(at, event)| (now.since(*at), event.clone())).collect();
        drop(members);
        Some(Seen {
            before: before.map(Kept::reading),
            now: Kept { at, status, told }.reading(),
            age: now.since(at),
            second: points.last().map_or(0, |point| point.second),
            points,
            events,
        })
    }

    fn told_of_late(&self, members: &Members, now: Time) -> BTreeMap<(Role, u32), Told> {
        let told = members.told.iter().filter_map(|(member, told)| Some((*member, told.clone()?)));
        told.filter(|(_, told)| self.is_of_late(told, now)).collect()
    }

    /// Bytes of the parts that are placed on each server, by index; `None` of one that is no member. Empty before the first tick.
    pub(super) fn placed(&self) -> Vec<Option<u64>> {
        let Some((_, status)) = self.lock().latest.clone() else { return Vec::new() };
        let servers = status.view.members.iter().zip(&status.members);
        let servers = servers.filter(|(member, _)| member.process.role == Role::Server);
        let placed: BTreeMap<u32, u64> = servers.map(|(member, status)| (member.index, status.placed_bytes)).collect();
        let count = placed.last_key_value().map_or(0, |(last, _)| last + 1);
        (0..count).map(|server| placed.get(&server).copied()).collect()
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

impl Rates {
    /// Of a worker that tells `instance` now. `None` of a server, and of a worker that has begun anew.
    fn of(before: &Told, now: Time, instance: &Instance) -> Option<Self> {
        let seconds = now.since(before.at).as_secs_f64();
        let grown = |name| Some(instance.number(name)?.checked_sub(before.instance.number(name)?)? as f64);
        if seconds <= 0.0 {
            return None;
        }
        Some(Self {
            bytes: (grown("push_bytes")? + grown("pull_bytes")?) / seconds,
            blocked: grown("caller_blocked_nanoseconds")? / 1e9 / seconds,
        })
    }
}

impl Kept {
    fn reading(self) -> Reading {
        let since = |at: Time| at.since(Time::ZERO);
        Reading {
            at: since(self.at),
            status: (*self.status).clone(),
            told_at: self.told.iter().map(|(member, told)| (*member, since(told.at))).collect(),
            told: self.told.into_iter().map(|(member, told)| (member, told.instance)).collect(),
        }
    }
}

/// How often the state is kept.
const TICK: Duration = Duration::from_secs(1);
/// How often a reading is kept with which later ones are compared. A step may take some seconds.
const KEPT_EVERY: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gradlane_core::types::{Epoch, Incarnation, Member, NodeId, Phase, Process, Round, View};
    use gradlane_core::wire::frame::{Health, MemberStatus, Progress};

    use super::*;

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

    #[test]
    fn once_a_second_the_job_is_kept_and_its_rates_go_to_the_history() {
        let gathered = Gathered::new(LONG);
        gathered.follow(&census(1), [(Role::Worker, 0), (Role::Worker, 1)].into_iter());
        let half = |halves: u64| Time(halves * 500_000_000);
        let mut asked = 0;
        assert!(gathered.seen_at(half(0)).is_none());
        for halves in 0..40 {
            if halves % 2 == 1 {
                // One sends 10 bytes a second and waits for a quarter of the time, the other does nothing.
                gathered.take_at(half(halves), (Role::Worker, 0), &working(0, halves / 2));
                gathered.take_at(half(halves), (Role::Worker, 1), &working(1, 0));
            }
            gathered.tick_at(half(halves), || {
                asked += 1;
                status()
            });
        }
        assert_eq!(asked, 20);
        let seen = gathered.seen_at(half(40)).unwrap();
        assert_eq!((seen.age, seen.second, seen.points.len()), (Duration::from_secs(1), 19, 20));
        let last = seen.points.last().unwrap();
        assert_eq!((last.bytes, last.exposed), (Some(10.0), Some(0.125)), "{last:?}");
        assert_eq!((seen.points[0].bytes, seen.points[0].exposed), (None, None), "rates need two reports");
        let before = seen.before.unwrap();
        assert_eq!((before.at, seen.now.at), (Duration::from_secs(12), Duration::from_secs(19)));
        assert_eq!(before.told[&(Role::Worker, 0)].number("push_bytes"), Some(110));
        assert_eq!(seen.now.told_at[&(Role::Worker, 0)], Duration::from_millis(19_500));
    }

    #[test]
    fn the_bytes_that_are_placed_on_servers_are_known_by_their_index() {
        let gathered = Gathered::new(LONG);
        assert_eq!(gathered.placed(), []);
        let member = |role, index| {
            let process = Process::new(role, Incarnation(1));
            Member { process, node: NodeId([0; 32]), index, first_round: Round(0) }
        };
        let placed = |placed_bytes| MemberStatus {
            health: Health::Alive,
            silent: Duration::ZERO,
            progress: Progress::default(),
            placed_bytes,
            placed_parts: 1,
        };
        let members = vec![member(Role::Worker, 0), member(Role::Server, 0), member(Role::Server, 2)];
        gathered.tick(|| Status {
            view: View::plain("night", Epoch { term: 1, number: 1 }, Phase::Running, members),
            members: vec![placed(0), placed(7), placed(9)],
            ..status()
        });
        assert_eq!(gathered.placed(), [Some(7), None, Some(9)], "there is no server 1 any more");
    }

    #[test]
    fn what_has_happened_is_seen_with_its_age_and_members_that_come_are_counted() {
        let gathered = Gathered::new(LONG);
        for workers in 1..4 {
            let census = Census { workers, life: Life::Forming, ..census(1) };
            gathered.follow(&census, std::iter::empty());
        }
        gathered.follow(&Census { workers: 4, ..census(2) }, std::iter::empty());
        gathered.note("x".to_owned());
        gathered.tick(status);
        let events = gathered.seen().unwrap().events;
        let told: Vec<&str> = events.iter().map(|(_, event)| event.as_str()).collect();
        assert_eq!(told, ["x", "3 workers and 1 servers are there"]);
    }

    fn status() -> Status {
        let (view, members) = (View::plain("night", Epoch { term: 1, number: 1 }, Phase::Running, vec![]), vec![]);
        Status { view, members, imbalance_milli: 1_000, hold: None, waits: Box::default() }
    }

    /// A worker that has worked for so many seconds.
    fn working(index: u32, seconds: u64) -> Stats {
        let values = [("push_bytes", 10), ("pull_bytes", 0), ("caller_blocked_nanoseconds", 250_000_000)];
        let values = values.map(|(name, rate)| (name.to_owned(), rate * seconds)).to_vec();
        Stats { scope: "worker".to_owned(), label: index.to_string(), values }
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
