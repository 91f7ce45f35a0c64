//! Parameters: each change is there once and whole, who was told of a change finds it, and each failed use has a cause.
//!
//! | error of a use | what explains it |
//! |---|---|
//! | cancelled, timeout | its own caller gave it up, or its own timeout passed |
//! | timeout of a declaration | the coordinator could not be reached |
//! | no value | this worker's own init had not ended well |
//! | checksum | the network changed what this use sent |
//! | too little memory | a server without memory refused this worker a part of the parameter |
//! | a server was not reached, the end of the job, fenced | as of a call: see `calls` |
//!
//! A name ends when all workers that have declared it have undeclared it. Then its value is gone, and who declares it later begins anew.
//!
//! Of two uses one comes before the other if it had ended well when the other began, or if both are of one worker and in this order, because
//! a worker's uses of a parameter go one after the other. A use that failed may be done at any time after its begin, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Access, PartId, Span, TensorKey, Time, Update, Version};

use super::{Checker, Witness};
use crate::sim::oracle;
use crate::sim::workload::{Plan, timing};
use crate::sim::world::{Address, Who};

/// Which use: whose, of which parameter, which of the worker's uses of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::sim) struct UseId {
    pub(in crate::sim) who: Who,
    pub(in crate::sim) parameter: usize,
    pub(in crate::sim) index: usize,
}

/// What a use says of a part.
#[derive(Debug)]
pub(in crate::sim) struct UsedPart {
    pub(in crate::sim) part: PartId,
    pub(in crate::sim) version: Version,
    /// The elements of the value, if it was asked for.
    pub(in crate::sim) value: Option<Vec<f64>>,
}

/// All uses.
#[derive(Debug)]
pub(super) struct Uses {
    parameters: Vec<(TensorKey, Update)>,
    /// Whether their changes are done in rounds.
    in_rounds: Vec<bool>,
    uses: BTreeMap<UseId, OneUse>,
    /// Counts begins and ends, so that one of two is the earlier one.
    steps: u64,
    /// When to look at an open use again.
    due: BTreeSet<(Time, UseId)>,
    /// The latest version that a worker was told of a part, which begins at this byte.
    versions: BTreeMap<(Who, usize, u64), Version>,
}

/// One use.
#[derive(Debug)]
struct OneUse {
    access: Access,
    began: u64,
    /// When it ended, and whether well.
    ended: Option<(u64, bool)>,
    submitted: Time,
    timeout: Option<Duration>,
    is_given_up: bool,
    /// When it ended.
    over: Option<Time>,
    /// Whether it was of an earlier life of the name.
    is_past: bool,
}

/// Clocks run up to a hundredth fast or slow.
const DRIFT: f64 = 1.02;

impl Uses {
    pub(super) fn new(plan: &Plan) -> Self {
        let of = |parameter: &crate::sim::workload::Parameter| (parameter.spec.key(), parameter.update);
        Self {
            parameters: plan.parameters.iter().map(of).collect(),
            in_rounds: plan.parameters.iter().map(|of| of.spec.kind.mode().rounds().is_some()).collect(),
            uses: BTreeMap::new(),
            steps: 0,
            due: BTreeSet::new(),
            versions: BTreeMap::new(),
        }
    }

    fn step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }

    /// The uses of a parameter by a worker that change it, in their order.
    fn changes_of(&self, who: Who, parameter: usize) -> impl Iterator<Item = (UseId, &OneUse)> {
        let first = UseId { who, parameter, index: 0 };
        let of = self.uses.range(first..=UseId { index: usize::MAX, ..first });
        let is_change = |one: &OneUse| one.access.changes() && !one.is_past;
        of.map(|(id, one)| (*id, one)).filter(move |(_, one)| is_change(one))
    }

    /// Whether a change was done before this use.
    fn is_before(&self, change: UseId, other: UseId) -> bool {
        let one = &self.uses[&change];
        let Some((ended, true)) = one.ended else { return false };
        if change.who == other.who { change.index < other.index } else { ended < self.uses[&other].began }
    }

    /// How often a worker must and may be counted in the value that this use reads.
    fn bounds(&self, of: Who, by: UseId) -> RangeInclusive<u64> {
        let is_own = |id: UseId| id == by;
        let must = self.changes_of(of, by.parameter).filter(|(id, _)| is_own(*id) || self.is_before(*id, by));
        // A worker sends nothing of a later use before this one is answered.
        let may = self.changes_of(of, by.parameter).filter(|(id, _)| of != by.who || id.index <= by.index);
        must.count() as u64..=may.count() as u64
    }

    /// Whether the value that a change assigned was gone for good before this use: another change came after it and before this use.
    fn is_gone_before(&self, change: UseId, by: UseId, workers: impl Iterator<Item = Who>) -> bool {
        let later = |other: UseId| {
            let is_after = match (change.who == other.who, self.latest_end(change)) {
                (true, _) => other.index > change.index,
                (false, end) => end.is_some_and(|end| end < self.uses[&other].began),
            };
            is_after && (other == by || self.is_before(other, by))
        };
        let mut others = workers.flat_map(|who| self.changes_of(who, by.parameter));
        others.any(|(other, _)| other != change && later(other))
    }

    /// When a change had been done at the latest: if it failed, when a later change of the same worker ended well.
    fn latest_end(&self, change: UseId) -> Option<u64> {
        let from = self.changes_of(change.who, change.parameter).filter(|(id, _)| id.index >= change.index);
        from.filter_map(|(_, one)| one.ended.filter(|(_, well)| *well)).map(|(ended, _)| ended).min()
    }

    /// The open uses of a worker, by the key of their parameter.
    pub(super) fn open_of(&self, who: Who) -> impl Iterator<Item = TensorKey> {
        let open = self.uses.iter().filter(move |(id, one)| id.who == who && one.ended.is_none());
        open.map(|(id, _)| self.parameters[id.parameter].0)
    }
}

impl Witness {
    /// A worker begins to use a parameter.
    pub(in crate::sim) fn uses(
        &mut self,
        who: Who,
        parameter: usize,
        access: Access,
        timeout: Option<Duration>,
    ) -> UseId {
        let (submitted, began) = (self.world, self.uses.step());
        let first = UseId { who, parameter, index: 0 };
        let index = self.uses.uses.range(first..=UseId { index: usize::MAX, ..first }).count();
        let id = UseId { index, ..first };
        let one =
            OneUse { access, began, ended: None, submitted, timeout, is_given_up: false, over: None, is_past: false };
        self.uses.uses.insert(id, one);
        self.uses.due.insert((submitted + timing::STEP, id));
        id
    }

    /// These names have ended, at least in the eyes of the coordinator. Nobody uses what they stood for: what is open is of the next life.
    pub(super) fn uses_end(&mut self, keys: &[TensorKey]) {
        let Uses { parameters, uses, versions, .. } = &mut self.uses;
        let has_ended = |parameter: usize| keys.contains(&parameters[parameter].0);
        uses.iter_mut()
            .filter(|(id, one)| has_ended(id.parameter) && one.ended.is_some())
            .for_each(|(_, one)| one.is_past = true);
        versions.retain(|(_, parameter, _), _| !has_ended(*parameter));
    }

    /// A worker's caller gives a use up.
    pub(in crate::sim) fn gives_up(&mut self, id: UseId) {
        self.uses.uses.get_mut(&id).expect("it began").is_given_up = true;
    }

    /// A server answered a worker a use of the part that begins at this byte.
    pub(in crate::sim) fn answered(&mut self, id: UseId, access: Access, span: Span, version: Version) {
        let told = self.uses.versions.insert((id.who, id.parameter, span.offset), version).unwrap_or_default();
        let is_done = access.changes() && !self.uses.in_rounds[id.parameter];
        if version < told || is_done && version == told {
            let text = format!("{id:?}, {access}: {version} of the part at {}, after {told}", span.offset);
            self.report(Checker::Parameter, text);
        }
    }

    /// A use is about to end well, and says this of its parts.
    pub(in crate::sim) fn reads(&mut self, id: UseId, clock_at: u64, parts: &[UsedPart]) {
        for part in parts {
            let checked = match self.uses.in_rounds[id.parameter] {
                true => self.rounds.check_part(clock_at, part),
                false => self.check_part(id, part),
            };
            if let Err(why) = checked {
                let access = self.uses.uses[&id].access;
                let UseId { who, parameter, index } = id;
                let text = format!("{who}: use {index} of parameter {parameter}, {access}, {}: {why}", part.version);
                self.report(Checker::Parameter, text);
            }
        }
    }

    fn check_part(&self, id: UseId, UsedPart { version, value, .. }: &UsedPart) -> std::result::Result<(), String> {
        let uses = &self.uses;
        let bounds: Vec<(Who, RangeInclusive<u64>)> =
            self.job.workers().map(|who| (who, uses.bounds(who, id))).collect();
        let must: u64 = bounds.iter().map(|(_, bounds)| bounds.start()).sum();
        let may: u64 = bounds.iter().map(|(_, bounds)| bounds.end()).sum();
        if version.0 < 1 + must || 1 + may < version.0 {
            return Err(format!("the version is not from {} to {}", 1 + must, 1 + may));
        }
        let Some(value) = value else { return Ok(()) };
        let first = value.first().copied().unwrap_or_default();
        if let Some(at) = value.iter().position(|element| *element != first) {
            return Err(format!("element {at} of the part is {}, and the first one is {first}", value[at]));
        }
        let whole = first as i64;
        if whole as f64 != first {
            return Err(format!("the value is {first}"));
        }
        match uses.parameters[id.parameter].1 {
            Update::Add | Update::Step => {
                let counts: Vec<u64> = bounds.iter().map(|(who, _)| oracle::counted(whole, *who)).collect();
                for ((who, bounds), count) in bounds.iter().zip(&counts) {
                    if !bounds.contains(count) {
                        return Err(format!("{who} is counted {count} times, not {bounds:?} times, in {whole}"));
                    }
                }
                let made = 1 + counts.iter().sum::<u64>();
                if version.0 == made { Ok(()) } else { Err(format!("{} changes are in the value", made - 1)) }
            }
            Update::Assign => self.check_assigned(id, whole),
        }
    }

    /// A value that was assigned must be one that nothing has replaced before.
    fn check_assigned(&self, id: UseId, value: i64) -> std::result::Result<(), String> {
        let uses = &self.uses;
        let changes = || self.job.workers().flat_map(|who| uses.changes_of(who, id.parameter));
        if value == 0 {
            let mut before = changes().filter(|(other, _)| *other == id || uses.is_before(*other, id));
            return before.next().map_or(Ok(()), |(other, _)| Err(format!("the first value, after {other:?}")));
        }
        let Some((by, _)) = changes().find(|(other, _)| oracle::assigned(*other) == value) else {
            return Err(format!("{value} was never assigned"));
        };
        if by.who == id.who && by.index > id.index || uses.is_gone_before(by, id, self.job.workers()) {
            return Err(format!("the value is that of {by:?}, which was replaced before"));
        }
        Ok(())
    }

    /// A use ended.
    pub(in crate::sim) fn used(&mut self, me: Address, id: UseId, outcome: &Result<()>) {
        let (now, ended) = (self.world, self.uses.step());
        if let Err(error) = outcome
            && !self.is_use_explained(me, id, error)
        {
            let UseId { who, parameter, index } = id;
            self.report(Checker::Failure, format!("{who}: use {index} of parameter {parameter}: {error}"));
        }
        let key = self.uses.parameters[id.parameter].0;
        if outcome.is_err() || self.evidence.is_refused(Some(me.who), &BTreeSet::from([key])) {
            let since = self.turn_of_use(id);
            self.calls.held_up(me.who, since, now);
        }
        let one = self.uses.uses.get_mut(&id).expect("it began");
        (one.ended, one.over) = (Some((ended, outcome.is_ok())), Some(now));
    }

    fn is_use_explained(&self, me: Address, id: UseId, error: &Error) -> bool {
        let one = &self.uses.uses[&id];
        let key = self.uses.parameters[id.parameter].0;
        if self.is_of_the_end(me.who, error) {
            return true;
        }
        match error {
            Error::Cancelled => one.is_given_up,
            Error::Timeout { what, .. } => {
                one.timeout.is_some_and(|timeout| one.submitted + timeout.mul_f64(2.0 - DRIFT) <= self.world)
                    || what.contains("waiting for its declaration") && self.is_apart(me.who, Who::Coordinator)
            }
            Error::ServerUnreachable { server, waited, .. } => self.is_out_of_reach(me.who, server, *waited),
            Error::Checksum { round, .. } => self.evidence.is_damaged(&BTreeSet::from([key]), round.0),
            Error::TensorState { what, .. } if what.contains("has no value") => {
                let first = UseId { index: 0, ..id };
                let is_done = |one: &OneUse| one.access == Access::Init && one.ended.is_some_and(|(_, well)| well);
                !self.uses.uses.range(first..id).any(|(_, one)| is_done(one))
            }
            Error::FailedPrecondition { what, .. } if what.contains("is draining") => self.evidence.drains,
            Error::FailedPrecondition { what, .. } if what.contains("memory of the server for tensors") => {
                self.evidence.is_refused(Some(me.who), &BTreeSet::from([key]))
            }
            Error::Fenced { .. } => self.job.shut_out.contains(&me),
            Error::Protocol { .. } => self.evidence.is_lied_to(me.who, &BTreeSet::from([key]), None),
            _ => false,
        }
    }

    /// Since when no earlier use of the parameter by this worker stands before a use.
    fn turn_of_use(&self, id: UseId) -> Time {
        let earlier = self.uses.uses.range(UseId { index: 0, ..id }..id).filter_map(|(_, one)| one.over);
        earlier.fold(self.uses.uses[&id].submitted, Time::max)
    }

    /// When something of this worker ended last before this use could end: what it waits for in the queues of its own worker.
    fn moved(&self, id: UseId) -> Time {
        let submitted = self.uses.uses[&id].submitted;
        let uses = self.uses.uses.iter().filter(|(other, _)| other.who == id.who).filter_map(|(_, one)| one.over);
        uses.chain(self.calls.ends_of(id.who)).fold(submitted, Time::max)
    }

    /// Finds uses that should have ended. Nobody waits for other workers, but a use waits while the worker's own sums hold its credit.
    pub(super) fn check_uses_in_time(&mut self) {
        let now = self.world;
        while let Some((_, id)) = self.uses.due.first().filter(|(at, _)| *at <= now).copied() {
            self.uses.due.pop_first();
            if self.uses.uses[&id].ended.is_some() || self.is_gone(id.who) {
                continue;
            }
            let waits = self.calls.open_of(id.who).next().is_some();
            let bound = if waits { now + timing::STEP } else { self.bound_of_use(id) };
            if bound > now {
                self.uses.due.insert((bound, id));
            } else {
                let UseId { who, parameter, index } = id;
                self.report(
                    Checker::Liveness,
                    format!("{who}: use {index} of parameter {parameter} did not end in time"),
                );
            }
        }
    }

    /// When a use must have ended: a step timeout without its server, or without memory there, and what the loss of a member may take to be
    /// noticed. A process that stands still is given that time.
    fn bound_of_use(&self, id: UseId) -> Time {
        let promised = (timing::STEP * (2 + self.job.departures()) + timing::DEAD * 2).mul_f64(DRIFT);
        self.moved(id) + promised + self.evidence.still(id.who, self.uses.uses[&id].submitted, self.world)
    }
}
