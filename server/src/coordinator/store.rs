//! The key-value store of the job: who waits for which key, and which changes were made already.
//!
//! A request is a (worker, number). A change whose answer was lost is asked again with the same number, and must not be made twice: answers
//! of changes are remembered for a while. Nothing needs to be remembered of a request that changed nothing, because asking it again is
//! as good as asking it later. The store lives as long as the coordinator: nothing is written to a disk.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::cluster::Entries;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{StoreAnswer, StoreAsk, Time, WorkerId, WorkerSet};
use gradlane_core::wire::limits;

/// The store of a job.
#[derive(Debug)]
pub(super) struct Store {
    entries: Entries,
    /// Reads that wait for their key, at most [`limits::STORE_WAITS_MAX`].
    waiting: BTreeMap<(WorkerId, u64), Waiting>,
    /// The answers of the last changes of each worker. A worker has no more changes under way than are remembered.
    made: BTreeMap<WorkerId, BTreeMap<u64, StoreAnswer>>,
    defect: Option<Defect>,
}

/// The answer to one request.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reply {
    pub(super) worker: WorkerId,
    pub(super) request: u64,
    pub(super) outcome: Result<StoreAnswer>,
}

#[derive(Debug)]
struct Waiting {
    key: String,
    since: Time,
    until: Time,
}

impl Store {
    /// An empty store.
    pub(super) fn new(defect: Option<Defect>) -> Self {
        Self { entries: Entries::default(), waiting: BTreeMap::new(), made: BTreeMap::new(), defect }
    }

    /// What stays when the job forms again: the values.
    pub(super) fn kept(self) -> Self {
        Self { entries: self.entries, ..Self::new(self.defect) }
    }

    /// The values by key.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter()
    }

    /// Puts back a value that was kept. Returns whether there is room for it, as there was before.
    pub(super) fn put_back(&mut self, key: String, value: Vec<u8>) -> bool {
        self.entries.ask(StoreAsk::Put { key, value, expected: None }).is_ok()
    }

    /// A worker asks, perhaps not for the first time. Returns its answer, unless it waits, and those of the reads that waited for what it
    /// put.
    pub(super) fn ask(&mut self, now: Time, worker: WorkerId, request: u64, ask: StoreAsk) -> Vec<Reply> {
        let made = self.made.get(&worker).and_then(|made| made.get(&request));
        if let Some(answer) = made
            && !planted(self.defect, Defect::StoreChangeForgotten)
        {
            return vec![Reply { worker, request, outcome: Ok(answer.clone()) }];
        }
        let (key, wait, is_change) = (ask.key().to_owned(), wait_of(&ask), ask.is_change());
        let outcome = match (self.entries.ask(ask), wait) {
            (Ok(StoreAnswer::Value(None)), Some(wait)) => match self.check_waiting(worker, request) {
                Ok(()) => {
                    let since = self.waiting.get(&(worker, request)).map_or(now, |waiting| waiting.since);
                    self.waiting.insert((worker, request), Waiting { key, since, until: now + wait });
                    return Vec::new();
                }
                Err(error) => Err(error),
            },
            (outcome, _) => outcome,
        };
        // The key may have come while the worker had no connection.
        self.waiting.remove(&(worker, request));
        // A put that found another value than it expected has changed nothing.
        let is_made = is_change && matches!(outcome, Ok(StoreAnswer::Done | StoreAnswer::Number(_)));
        if let Ok(answer) = &outcome
            && is_made
        {
            self.remember(worker, request, answer.clone());
        }
        let mut replies = vec![Reply { worker, request, outcome }];
        if is_made {
            replies.extend(self.wake(&key));
        }
        replies
    }

    /// This coordinator was asleep, so that no read ends before `until`: workers may have put keys of which it has not heard.
    pub(super) fn be_patient(&mut self, until: Time) {
        for waiting in self.waiting.values_mut() {
            waiting.until = waiting.until.max(until);
        }
    }

    /// Ends the reads that are out of time.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Reply> {
        let late = self.take_waiting(|waiting| waiting.until <= now);
        let reply = |((worker, request), Waiting { key, since, .. }): ((WorkerId, u64), Waiting)| Reply {
            worker,
            request,
            outcome: Err(Entries::absent(&key, now.since(since))),
        };
        late.into_iter().map(reply).collect()
    }

    /// From now on only these workers are asked for. The others were lost, so nobody hears an answer to them. What they put stays.
    pub(super) fn keep_workers(&mut self, workers: &WorkerSet) {
        self.waiting.retain(|(worker, _), _| workers.contains(*worker));
        self.made.retain(|worker, _| workers.contains(*worker));
    }

    /// A worker left, and waits for nothing any more. What it put stays.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.waiting.retain(|(waiter, _), _| *waiter != worker);
        self.made.remove(&worker);
    }

    /// The job failed.
    pub(super) fn fail_all(&mut self, cause: &Error) -> Vec<Reply> {
        let waiting = std::mem::take(&mut self.waiting).into_keys();
        waiting.map(|(worker, request)| Reply { worker, request, outcome: Err(cause.clone()) }).collect()
    }

    /// When [`Store::expire`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }

    fn check_waiting(&self, worker: WorkerId, request: u64) -> Result<()> {
        if self.waiting.len() < limits::STORE_WAITS_MAX || self.waiting.contains_key(&(worker, request)) {
            return Ok(());
        }
        Err(Error::Exhausted {
            what: format!("reads of the job that wait for keys of the store, with one more of {worker}"),
            limit: limits::STORE_WAITS_MAX.to_string(),
            hint: "wait for fewer keys at once".to_owned(),
        })
    }

    /// Answers the reads that wait for this key, if it is there.
    fn wake(&mut self, key: &str) -> Vec<Reply> {
        if !self.waiting.values().any(|waiting| waiting.key == key) {
            return Vec::new();
        }
        let found = self.entries.ask(StoreAsk::Get { key: key.to_owned(), wait: None });
        if found == Ok(StoreAnswer::Value(None)) {
            return Vec::new();
        }
        let woken = self.take_waiting(|waiting| waiting.key == key).into_keys();
        woken.map(|(worker, request)| Reply { worker, request, outcome: found.clone() }).collect()
    }

    fn take_waiting(&mut self, wanted: impl Fn(&Waiting) -> bool) -> BTreeMap<(WorkerId, u64), Waiting> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left) = waiting.partition(|(_, waiting)| wanted(waiting));
        self.waiting = left;
        taken
    }

    fn remember(&mut self, worker: WorkerId, request: u64, answer: StoreAnswer) {
        let made = self.made.entry(worker).or_default();
        made.insert(request, answer);
        if made.len() > limits::STORE_CHANGES_MAX {
            made.pop_first();
        }
    }
}

fn wait_of(ask: &StoreAsk) -> Option<Duration> {
    match ask {
        StoreAsk::Get { wait, .. } => *wait,
        StoreAsk::Put { .. }
        | StoreAsk::Add { .. }
        | StoreAsk::Append { .. }
        | StoreAsk::Delete { .. }
        | StoreAsk::Dir { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_read_before_its_key_is_put_is_answered_when_it_is() {
        let mut store = Store::new(None);
        assert_eq!(store.ask(at(0), rank(0), 1, get("a")), []);
        assert_eq!(store.ask(at(0), rank(2), 7, get("a")), []);
        assert_eq!(store.ask(at(1), rank(1), 1, put("b", "x")), [done(1, 1)], "another key");
        assert_eq!(store.ask(at(2), rank(1), 2, put("a", "v")), [done(1, 2), value(0, 1, "v"), value(2, 7, "v")]);
        assert_eq!(store.poll_timeout(), None);
        assert_eq!(store.ask(at(3), rank(1), 3, get("a")), [value(1, 3, "v")]);
    }

    #[test]
    fn every_change_that_makes_a_key_wakes() {
        let changes = [
            StoreAsk::Add { key: "a".to_owned(), amount: 3 },
            StoreAsk::Append { key: "a".to_owned(), value: b"3".to_vec() },
            StoreAsk::Put { key: "a".to_owned(), value: b"3".to_vec(), expected: Some(Vec::new()) },
        ];
        for change in changes {
            let mut store = Store::new(None);
            store.ask(at(0), rank(0), 1, get("a"));
            assert_eq!(store.ask(at(1), rank(1), 1, change)[1..], [value(0, 1, "3")]);
        }
    }

    #[test]
    fn a_change_that_is_asked_again_is_made_once_and_answered_alike() {
        let mut store = Store::new(None);
        let add = || StoreAsk::Add { key: "n".to_owned(), amount: 1 };
        assert_eq!(store.ask(at(0), rank(0), 1, add()), [number(0, 1, 1)]);
        assert_eq!(store.ask(at(0), rank(1), 1, add()), [number(1, 1, 2)], "the numbers of another worker are others");
        assert_eq!(store.ask(at(1), rank(0), 1, add()), [number(0, 1, 1)]);
        store.ask(at(1), rank(0), 2, put("a", "mine"));
        store.ask(at(1), rank(1), 2, put("a", "theirs"));
        assert_eq!(store.ask(at(2), rank(0), 2, put("a", "mine")), [done(0, 2)]);
        assert_eq!(store.ask(at(2), rank(0), 3, get("a")), [value(0, 3, "theirs")], "it is not put again");
        let delete = || StoreAsk::Delete { key: "a".to_owned(), is_prefix: false };
        assert_eq!(store.ask(at(3), rank(0), 4, delete()), [number(0, 4, 1)]);
        assert_eq!(store.ask(at(3), rank(0), 4, delete()), [number(0, 4, 1)], "not 0 because it has gone");
    }

    #[test]
    fn a_change_that_was_refused_is_tried_again() {
        let mut store = Store::new(None);
        let expects = || StoreAsk::Put { key: "a".to_owned(), value: b"2".to_vec(), expected: Some(b"1".to_vec()) };
        let absent = Reply { worker: rank(0), request: 1, outcome: Ok(StoreAnswer::Value(None)) };
        assert_eq!(store.ask(at(0), rank(0), 1, expects()), [absent]);
        store.ask(at(0), rank(1), 1, put("a", "1"));
        assert_eq!(store.ask(at(1), rank(0), 1, expects()), [done(0, 1)]);
    }

    #[test]
    fn answers_of_changes_are_remembered_for_as_many_as_a_worker_may_have_under_way() {
        let mut store = Store::new(None);
        for request in 1..=limits::STORE_CHANGES_MAX as u64 + 1 {
            store.ask(at(0), rank(0), request, put("a", ""));
            store.ask(at(0), rank(0), 1_000 + request, get("a"));
        }
        let made = &store.made[&rank(0)];
        assert_eq!((made.len(), made.first_key_value()), (limits::STORE_CHANGES_MAX, Some((&2, &StoreAnswer::Done))));
    }

    #[test]
    fn a_read_that_is_asked_again_waits_once_and_for_the_time_that_is_left() {
        let mut store = Store::new(None);
        store.ask(at(0), rank(0), 1, get_within("a", 9 * SECOND));
        assert_eq!(store.ask(at(4), rank(0), 1, get_within("a", 5 * SECOND)), []);
        assert_eq!(store.poll_timeout(), Some(at(9)));
        assert_eq!(store.ask(at(5), rank(1), 1, put("a", "v")), [done(1, 1), value(0, 1, "v")]);
        assert_eq!(
            store.ask(at(6), rank(0), 1, get_within("a", 3 * SECOND)),
            [value(0, 1, "v")],
            "the answer was lost"
        );
        assert_eq!(store.poll_timeout(), None);
    }

    #[test]
    fn each_read_has_a_deadline_of_its_own() {
        let mut store = Store::new(None);
        store.ask(at(0), rank(0), 1, get_within("a", 9 * SECOND));
        store.ask(at(1), rank(1), 1, get_within("a", 2 * SECOND));
        assert_eq!((store.poll_timeout(), store.expire(at(2))), (Some(at(3)), Vec::new()));
        let replies = store.expire(at(3));
        let [Reply { worker: WorkerId(1), request: 1, outcome: Err(error) }] = &replies[..] else {
            panic!("{replies:?}")
        };
        let text = "waiting for key \"a\" of the store, which nobody has put: not done after 2.0 s";
        assert_eq!(error.to_string(), text);
        assert_eq!(store.poll_timeout(), Some(at(9)), "the other one goes on");
    }

    #[test]
    fn too_many_reads_that_wait_are_refused_to_the_asker_alone() {
        let mut store = Store::new(None);
        for request in 0..limits::STORE_WAITS_MAX as u64 {
            assert_eq!(store.ask(at(0), rank(0), request, get(&request.to_string())), []);
        }
        let replies = store.ask(at(0), rank(1), 1, get("7"));
        let [Reply { worker: WorkerId(1), outcome: Err(Error::Exhausted { limit, .. }), .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!(limit, "4096");
        assert_eq!(store.ask(at(0), rank(0), 7, get("7")), [], "one of them asks again");
        assert_eq!(store.ask(at(0), rank(1), 2, put("7", "v")), [done(1, 2), value(0, 7, "v")]);
        assert_eq!(store.ask(at(0), rank(1), 3, get("8")), [], "there is room again");
    }

    #[test]
    fn workers_that_are_lost_or_have_left_wait_no_more_and_what_they_put_stays() {
        let mut store = Store::new(None);
        for worker in [0, 1, 2] {
            store.ask(at(0), rank(worker), 1, put(&worker.to_string(), "v"));
            store.ask(at(0), rank(worker), 2, get("a"));
        }
        store.keep_workers(&[0, 2].map(WorkerId).into_iter().collect());
        store.forget(rank(2));
        assert_eq!(store.ask(at(1), rank(0), 3, get("1")), [value(0, 3, "v")]);
        assert_eq!(store.ask(at(1), rank(0), 4, put("a", "v")), [done(0, 4), value(0, 2, "v")]);
        assert_eq!(store.made.keys().collect::<Vec<_>>(), [&rank(0)]);
    }

    #[test]
    fn the_cause_of_the_end_ends_all_reads() {
        let mut store = Store::new(None);
        store.ask(at(0), rank(0), 1, get("a"));
        assert_eq!(
            store.fail_all(&Error::Cancelled),
            [Reply { worker: rank(0), request: 1, outcome: Err(Error::Cancelled) }]
        );
        assert_eq!(store.poll_timeout(), None);
    }

    fn put(key: &str, value: &str) -> StoreAsk {
        StoreAsk::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), expected: None }
    }

    fn get(key: &str) -> StoreAsk {
        get_within(key, 60 * SECOND)
    }

    fn get_within(key: &str, wait: Duration) -> StoreAsk {
        StoreAsk::Get { key: key.to_owned(), wait: Some(wait) }
    }

    fn done(worker: u32, request: u64) -> Reply {
        Reply { worker: rank(worker), request, outcome: Ok(StoreAnswer::Done) }
    }

    fn number(worker: u32, request: u64, number: i64) -> Reply {
        Reply { worker: rank(worker), request, outcome: Ok(StoreAnswer::Number(number)) }
    }

    fn value(worker: u32, request: u64, value: &str) -> Reply {
        Reply { worker: rank(worker), request, outcome: Ok(StoreAnswer::Value(Some(value.as_bytes().to_vec()))) }
    }

    fn rank(rank: u32) -> WorkerId {
        WorkerId(rank)
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }
}
