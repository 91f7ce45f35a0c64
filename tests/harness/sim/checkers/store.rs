//! Whether the store of the job made each change once, and answered each read with a value that was put.

use std::collections::BTreeSet;

use gradlane_core::cluster::Patience;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{StoreAnswer, Time};

use super::super::workload::Asking;
use super::super::world::Who;
use super::{Checker, Witness};

/// All requests to the store, in the order in which they were asked.
#[derive(Debug, Default)]
pub(super) struct Asks {
    all: Vec<Asked>,
    /// The sums that workers got of the number of all.
    sums: BTreeSet<i64>,
}

#[derive(Debug)]
struct Asked {
    who: Who,
    asking: Asking,
    at: Time,
    patience: Patience,
    /// Of a read: whether the key surely had a value when it was asked.
    is_there: bool,
    /// Whether it was done, once it was answered.
    done: Option<bool>,
}

impl Asks {
    fn of(&self, who: Option<Who>, asking: Asking) -> impl Iterator<Item = &Asked> {
        self.all.iter().filter(move |asked| asked.asking == asking && who.is_none_or(|who| who == asked.who))
    }

    /// What a sum may be: as many additions as were done before it, and itself, and perhaps those that have no answer or failed.
    fn is_possible(&self, number: usize, sum: i64) -> bool {
        let Asked { who, asking, .. } = self.all[number];
        let (least, most) = match asking {
            // A worker's requests are carried out in the order in which it asks them.
            Asking::AddOwn => {
                let before = || self.all[..number].iter().filter(|one| one.asking == asking && one.who == who);
                (before().filter(|one| one.done == Some(true)).count() + 1, before().count() + 1)
            }
            Asking::AddToAll | Asking::Put { .. } | Asking::Get { .. } => (1, self.of(None, asking).count()),
        };
        (least as i64..=most as i64).contains(&sum)
    }
}

impl Witness {
    /// A worker asks the store. Returns the number of the request, which is the value of a put.
    pub(in crate::sim) fn asks(&mut self, who: Who, asking: Asking, patience: Patience) -> usize {
        let is_there = match asking {
            Asking::Get { key, .. } => self.asks.of(None, Asking::Put { key }).any(|put| put.done == Some(true)),
            Asking::AddOwn | Asking::AddToAll | Asking::Put { .. } => false,
        };
        self.asks.all.push(Asked { who, asking, at: self.world, patience, is_there, done: None });
        self.asks.all.len() - 1
    }

    /// The request was answered.
    pub(in crate::sim) fn hears(&mut self, number: usize, outcome: &Result<StoreAnswer>) {
        let now = self.world;
        let Asked { who, asking, at, patience, is_there, .. } = self.asks.all[number];
        self.asks.all[number].done = Some(outcome.is_ok());
        let what = format!("{who}: request {number} to the store, {asking:?}, is answered by {outcome:?}");
        if now.since(at) > self.longest_request(who, at, patience) {
            self.report(Checker::Liveness, format!("{what} after {:.1} s", now.since(at).as_secs_f64()));
        }
        self.check_patience(at, patience, outcome.as_ref().err(), &what);
        let is_right = match (asking, outcome) {
            (Asking::AddOwn, Ok(StoreAnswer::Number(sum))) => self.asks.is_possible(number, *sum),
            (Asking::AddToAll, Ok(StoreAnswer::Number(sum))) => {
                self.asks.is_possible(number, *sum) && self.asks.sums.insert(*sum)
            }
            (Asking::Put { .. }, Ok(StoreAnswer::Done)) => true,
            (Asking::Get { key, .. }, Ok(StoreAnswer::Value(Some(value)))) => {
                let put = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
                put.and_then(|put| self.asks.all.get(put)).is_some_and(|put| put.asking == Asking::Put { key })
            }
            (Asking::Get { waits, .. }, Ok(StoreAnswer::Value(None))) => !waits && !is_there,
            (_, Ok(_)) => false,
            (Asking::Get { .. }, Err(Error::Timeout { what, .. })) if what.contains("nobody has put") => !is_there,
            // Of its arguments nothing is wrong, and none of the limits is near.
            (_, Err(Error::InvalidArgument { .. } | Error::Exhausted { .. } | Error::Internal { .. })) => false,
            (_, Err(_)) => true,
        };
        if !is_right {
            self.report(Checker::Store, what);
        }
    }
}
