//! The rounds that wait for workers, as members have told of them lately.
//!
//! Servers tell of theirs once a second. The first worker of a machine tells of a round within the machine once a stall interval.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{Role, Time};
use gradlane_core::wire::frame::{Names, Stall, Waiting, WaitingTensor, Waits};

use super::registry::Registry;
use super::roster::{Identity, Roster, Seat};

/// What members have told.
#[derive(Debug)]
pub(super) struct Told {
    rounds: BTreeMap<Identity, Vec<(Time, Waiting)>>,
    /// When servers told last, also if it was that nothing waits.
    heard: BTreeMap<Identity, Time>,
    /// How often a worker tells of a round that waits.
    interval: Duration,
}

impl Told {
    /// Nothing yet. Workers tell of a round once an `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        Self { rounds: BTreeMap::new(), heard: BTreeMap::new(), interval }
    }

    /// These are the rounds of a server that wait.
    pub(super) fn handle(&mut self, now: Time, server: Identity, rounds: Vec<Waiting>) {
        self.forget(now);
        self.heard.insert(server, now);
        self.rounds.insert(server, rounds.into_iter().map(|round| (now, round)).collect());
    }

    /// A round waits within a machine, of which this worker tells.
    pub(super) fn handle_stall(&mut self, now: Time, worker: Identity, stall: Stall) {
        self.forget(now);
        let rounds = self.rounds.entry(worker).or_default();
        rounds.retain(|(_, round)| round.part != stall.part);
        if rounds.len() < Waiting::TOLD_MAX {
            rounds.push((now, stall.into()));
        }
    }

    /// The tensors that wait for members that are there.
    pub(super) fn shown(&self, now: Time, roster: &Roster, registry: Option<&Registry>) -> Waits {
        let Some(registry) = registry else { return Waits::default() };
        let present = |seat: &&Seat| seat.is_present();
        let mut waiting = Vec::new();
        for seat in roster.seats().filter(present) {
            let told = self.rounds.get(&seat.identity()).into_iter().flatten();
            for (at, round) in told.filter(|(at, _)| now < *at + self.lasts(seat.identity())) {
                let mut round = round.clone();
                // The member may not have heard yet that a worker was lost.
                round.missing.retain(|rank| roster.worker(*rank).is_some());
                if !round.missing.is_empty() {
                    waiting.push((seat, now.since(*at), round));
                }
            }
        }
        waiting.sort_by_key(|(_, age, round)| (Reverse(round.waited + *age), round.part, round.round));
        let mut seen = BTreeSet::new();
        waiting.retain(|(_, _, round)| seen.insert((round.part.key, round.round)));
        let tensors = waiting.into_iter().take(Waits::SHOWN_MAX).map(|(seat, age, waiting)| WaitingTensor {
            tensor: registry.name_of(waiting.part),
            told_by: seat.member.name(),
            age,
            waiting,
        });
        let servers = roster.seats().filter(present).filter(|seat| seat.identity().role == Role::Server);
        let is_heard = |at: &Time| now < *at + SERVER_LASTS;
        let mut unheard: Vec<&Seat> =
            servers.filter(|seat| !self.heard.get(&seat.identity()).is_some_and(is_heard)).collect();
        unheard.sort_by_key(|seat| seat.member.index);
        Waits {
            tensors: tensors.collect(),
            unheard: Names::first(unheard.iter().map(|seat| seat.member.name()), unheard.len()),
        }
    }

    /// Forgets what is too old, also that of members which are not there any more.
    fn forget(&mut self, now: Time) {
        let lasts = self.interval + SERVER_LASTS;
        self.heard.retain(|_, at| now < *at + lasts);
        self.rounds.retain(|_, rounds| {
            rounds.retain(|(at, _)| now < *at + lasts);
            !rounds.is_empty()
        });
    }

    fn lasts(&self, identity: Identity) -> Duration {
        if identity.role == Role::Server { SERVER_LASTS } else { self.interval + SERVER_LASTS }
    }
}

/// Servers tell once a second.
const SERVER_LASTS: Duration = Duration::from_secs(3);
