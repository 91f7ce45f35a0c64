//! Calls: each ends within its bound, and each failure has a cause that concerned that very call.
//!
//! | error | what explains it |
//! |---|---|
//! | cancelled | this worker's caller gave up a tensor that shares parts with it, in this round |
//! | timeout | the call's own timeout passed |
//! | timeout of a declaration | the coordinator could not be reached; or the name has not ended, because another worker was held up |
//! | given up before | another call of this worker that shares parts with it failed in this round |
//! | share a part | a tensor that the error names was not submitted within a step timeout of one that shares its part |
//! | stalled, told by a withdrawal | the missing rank's own call of this round failed or was given up |
//! | stalled for a step timeout | each missing rank was held up: see `lateness` |
//! | a broadcast from nobody | its root was lost or has left without this round, and the job goes on |
//! | a lost contribution | a worker was lost or has left without this round, and a sum had begun to land on the contribution that the error names |
//! | the sum of a machine that one has left | that worker has left without this round |
//! | over | this worker itself was held up, or its answer was lost and a server had too little memory |
//! | draining | a server was asked to stop |
//! | too little memory | a server without memory refused this worker the part of the tensor |
//! | a rank of a machine was lost | its process ended, or stood still for long |
//! | stalled because a rank left | it left |
//! | checksum | the network changed a contribution to this round |
//! | protocol | a server answered something else to this worker or to one of its machine |
//! | mismatch | the coordinator told it of this tensor |
//! | the end of the job | the coordinator's cause, or the loss of the coordinator |
//!
//! Of the use of a parameter see `parameters`, which has a table of its own.
//!
//! Tensors share the fate of a round only if the coordinator's layout put them, directly or by others, into one part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{PartLayout, Participants, TensorKey, Time, WorkerId};

use super::{Checker, Witness};
use crate::sim::workload::{Plan, Tensor, timing};
use crate::sim::world::{Address, Who};

mod shortage;

/// Which call: whose, of which tensor and round.
pub(super) type CallId = (Who, usize, u64);

/// All calls, and what the coordinator said of their tensors.
#[derive(Debug)]
pub(super) struct Calls {
    keys: Vec<TensorKey>,
    names: Vec<String>,
    /// Whether the ranks of a machine reduce each tensor among themselves. Else each pushes its own contribution.
    meets: Vec<bool>,
    /// Which ranks use each tensor. Where they are not all, ranks are the numbers of worker processes.
    participants: Vec<Participants>,
    /// The call that a worker never makes, though all others do.
    forgets: Option<(Who, TensorKey, u64)>,
    /// How many rounds a server without memory may prefer to one that it refuses; 0 if servers have enough.
    refused_rounds: usize,
    calls: BTreeMap<CallId, Call>,
    /// When to look at an open call again.
    due: BTreeSet<(Time, CallId)>,
    /// Tensors that share parts, directly or by others.
    partners: BTreeMap<TensorKey, BTreeSet<TensorKey>>,
    /// What the coordinator told everybody of a tensor.
    forgotten: BTreeMap<TensorKey, Error>,
    /// What it answered one worker that declared the tensor.
    refused: BTreeMap<(Who, TensorKey), Error>,
    /// Stalls that were told and explained: the first of the tensors that share parts, the round, who was missing, and for how long.
    stalls: BTreeSet<(Option<TensorKey>, u64, Vec<WorkerId>, Duration)>,
    /// From, until: how long a worker waited for something that failed.
    held_up: BTreeMap<Who, Vec<(Time, Time)>>,
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) submitted: Time,
    timeout: Option<Duration>,
    /// When the caller gave it up.
    cancelled: Option<Time>,
    /// When it ended, and whether with a result.
    pub(super) ended: Option<(Time, bool)>,
}

/// Rounds that a worker queues behind each other, at most.
const ROUNDS_QUEUED: u64 = 3;
/// So long a worker tries to tell a server that it gave a round up.
const TELLING: Duration = timing::STEP;
/// Clocks run up to a hundredth fast or slow.
const DRIFT: f64 = 1.02;

impl Calls {
    pub(super) fn new(plan: &Plan) -> Self {
        // Tensors of one name that follow each other share no fate, and no part with any other.
        let of_life = |(index, tensor): (usize, &Tensor)| match tensor.ends {
            true => TensorKey::of(&format!("{} of tensor {index}", tensor.spec.name)),
            false => tensor.spec.key(),
        };
        Self {
            keys: plan.tensors.iter().enumerate().map(of_life).collect(),
            names: plan.tensors.iter().map(|tensor| tensor.spec.name.clone()).collect(),
            meets: (0..plan.tensors.len()).map(|tensor| plan.meets(tensor)).collect(),
            participants: plan.tensors.iter().map(|tensor| tensor.spec.participants.clone()).collect(),
            forgets: plan.forgets.map(|(worker, tensor)| {
                (Who::Worker(worker), plan.tensors[tensor].spec.key(), plan.rounds(tensor).saturating_sub(1))
            }),
            refused_rounds: if plan.classes.refusals { plan.tensors.len() * plan.steps as usize } else { 0 },
            calls: BTreeMap::new(),
            due: BTreeSet::new(),
            partners: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            refused: BTreeMap::new(),
            stalls: BTreeSet::new(),
            held_up: BTreeMap::new(),
        }
    }

    /// The tensors that share the fate of a tensor's rounds, itself among them.
    pub(super) fn partners_of(&self, tensor: usize) -> BTreeSet<TensorKey> {
        let key = self.keys[tensor];
        // What is known of a name may be about any of its lives.
        self.partners.get(&key).cloned().unwrap_or_else(|| BTreeSet::from([key, TensorKey::of(&self.names[tensor])]))
    }

    /// The calls of one worker that share the fate of this round.
    pub(super) fn of_round(&self, who: Who, tensor: usize, round: u64) -> impl Iterator<Item = &Call> {
        let partners = self.partners_of(tensor);
        let shares = move |at: &usize| partners.contains(&self.keys[*at]);
        (0..self.keys.len()).filter(shares).filter_map(move |at| self.calls.get(&(who, at, round)))
    }

    /// Whether a worker takes part in the rounds of a tensor.
    pub(super) fn uses(&self, who: Who, tensor: usize) -> bool {
        matches!(who, Who::Worker(number) if self.participants[tensor].contains(WorkerId(number)))
    }

    /// Whether a call ended with a result.
    pub(super) fn has_result(&self, id: CallId) -> bool {
        self.calls.get(&id).is_some_and(|call| call.ended.is_some_and(|(_, well)| well))
    }

    /// Whether a call was made.
    pub(super) fn is_made(&self, id: CallId) -> bool {
        self.calls.contains_key(&id)
    }

    /// The open calls of a worker.
    pub(super) fn open_of(&self, who: Who) -> impl Iterator<Item = (usize, u64)> {
        let of = self.calls.range((who, 0, 0)..=(who, usize::MAX, u64::MAX));
        of.filter(|(_, call)| call.ended.is_none()).map(|((_, tensor, round), _)| (*tensor, *round))
    }

    /// When the calls of a worker ended that did.
    pub(super) fn ends_of(&self, who: Who) -> impl Iterator<Item = Time> {
        let of = self.calls.range((who, 0, 0)..=(who, usize::MAX, u64::MAX));
        of.filter_map(|(_, call)| call.ended.map(|(at, _)| at))
    }

    /// Since when a worker will not contribute to a round any more, if so.
    pub(super) fn given_up_since(&self, who: Who, tensor: usize, round: u64) -> Option<Time> {
        self.of_round(who, tensor, round).filter_map(Call::given_up_since).min()
    }

    /// Who never makes a call that shares the fate of this round, though all others do.
    pub(super) fn forgetter_of(&self, tensor: usize, round: u64) -> Option<Who> {
        let (who, key, last) = self.forgets?;
        (last == round && self.partners_of(tensor).contains(&key)).then_some(who)
    }

    /// A worker waited for something that failed, for a reason that was found.
    pub(super) fn held_up(&mut self, who: Who, from: Time, until: Time) {
        self.held_up.entry(who).or_default().push((from, until));
    }

    /// For how much of the time since `from` a worker waited for what failed.
    pub(super) fn held_up_since(&self, who: Who, from: Time) -> Duration {
        let waits = self.held_up.get(&who).into_iter().flatten();
        waits.map(|(start, end)| end.since((*start).max(from))).sum()
    }
}

impl Call {
    fn given_up_since(&self) -> Option<Time> {
        let failed = self.ended.filter(|(_, well)| !well).map(|(at, _)| at);
        // It is not given up by its timeout if it ended well before.
        let late = self.timeout.filter(|_| self.ended.is_none_or(|(_, well)| !well));
        let late = late.map(|timeout| self.submitted + timeout.mul_f64(2.0 - DRIFT));
        [self.cancelled, failed, late].into_iter().flatten().min()
    }
}

impl Witness {
    /// A worker submits a round of a tensor.
    pub(in crate::sim) fn submits(&mut self, who: Who, tensor: usize, round: u64, timeout: Option<Duration>) {
        let now = self.world;
        let id = (who, tensor, round);
        self.calls.calls.insert(id, Call { submitted: now, timeout, cancelled: None, ended: None });
        self.calls.due.insert((now + timeout.unwrap_or(timing::STEP), id));
    }

    /// A worker's caller gives a round of a tensor up.
    pub(in crate::sim) fn cancels(&mut self, who: Who, tensor: usize, round: u64) {
        let now = self.world;
        let call = self.calls.calls.get_mut(&(who, tensor, round)).expect("submitted before");
        call.cancelled.get_or_insert(now);
    }

    /// Whether some worker has submitted a tensor.
    pub(in crate::sim) fn is_submitted(&self, tensor: usize) -> bool {
        self.calls.calls.keys().any(|(_, submitted, _)| *submitted == tensor)
    }

    /// A worker refuses a batch at once, because of one of its tensors.
    pub(in crate::sim) fn refuses(&mut self, who: Who, members: &[(usize, u64)], error: &Error) {
        if !members.iter().any(|(tensor, _)| self.is_of_the_tensor(who, *tensor, error)) {
            self.report(Checker::Failure, format!("{who}: a batch of {members:?} is refused: {error}"));
        }
    }

    /// A call ended.
    pub(in crate::sim) fn resolves(&mut self, me: Address, tensor: usize, round: u64, outcome: &Result<()>) {
        let (id, now) = ((me.who, tensor, round), self.world);
        if let Err(error) = outcome {
            if !self.was_explained(tensor, round, error) && !self.is_explained(me, tensor, round, error) {
                self.report(Checker::Failure, format!("{}: tensor {tensor}, round {round}: {error}", me.who));
            }
            if let Error::Stalled { missing, waited, .. } = error {
                let first = self.calls.partners_of(tensor).pop_first();
                self.calls.stalls.insert((first, round, missing.clone(), *waited));
            }
        }
        let turn = self.turn_of(id).unwrap_or(now);
        if outcome.is_err() {
            self.calls.held_up(me.who, turn, now);
        }
        self.calls.calls.get_mut(&id).expect("submitted before").ended = Some((now, outcome.is_ok()));
    }

    /// Finds calls that should have ended.
    pub(super) fn check_calls_in_time(&mut self) {
        let now = self.world;
        while let Some((_, id)) = self.calls.due.first().filter(|(at, _)| *at <= now).copied() {
            self.calls.due.pop_first();
            let (who, tensor, round) = id;
            let open = self.calls.calls.get(&id).is_some_and(|call| call.ended.is_none());
            if !open || self.is_gone(who) {
                continue;
            }
            let bound = self.turn_of(id).map_or(now + timing::STEP, |turn| self.bound_of(id, turn));
            if bound > now {
                self.calls.due.insert((bound, id));
            } else {
                let waited = now.since(self.calls.calls[&id].submitted).as_secs_f64();
                let text = format!("{who}: tensor {tensor}, round {round} did not end within {waited:.1} s");
                self.report(Checker::Liveness, text);
            }
        }
    }

    /// The coordinator answered a declaration.
    pub(super) fn declared(&mut self, to: Address, keys: &[TensorKey], outcome: &Result<Vec<PartLayout>>) {
        match outcome {
            Ok(layouts) => layouts.iter().for_each(|layout| self.calls.join(layout)),
            // A list is asked for again, tensor by tensor.
            Err(error) => {
                if let [key] = keys {
                    self.calls.refused.insert((to.who, *key), error.clone());
                }
            }
        }
    }

    /// The coordinator told everybody that a tensor failed for good.
    pub(super) fn forgotten(&mut self, key: TensorKey, error: &Error) {
        self.calls.forgotten.insert(key, error.clone());
    }

    /// Since when nothing of this worker's own stands before a call; `None` while an earlier round is open. A round that was given up may end
    /// before the one before it.
    fn turn_of(&self, id: CallId) -> Option<Time> {
        let (who, tensor, round) = id;
        let rounds = round.saturating_sub(ROUNDS_QUEUED)..round;
        let mut before = rounds.flat_map(|before| self.calls.of_round(who, tensor, before));
        before.try_fold(self.calls.calls[&id].submitted, |turn, call| Some(turn.max(call.ended?.0)))
    }

    /// When a call must have ended: a step timeout until its round may begin, one until the round fails, and what the loss of a member
    /// may take to be noticed. A process that stands still is given that time.
    fn bound_of(&self, id: CallId, turn: Time) -> Time {
        let (who, tensor, round) = id;
        let call = &self.calls.calls[&id];
        // What tells of rounds that a worker gave up may wait for a step timeout each. A server without memory refuses as long as other rounds
        // go on, and what it refuses holds the credit of its worker.
        let rounds = round.saturating_sub(ROUNDS_QUEUED)..round;
        let is_untold =
            |round: &u64| self.job.workers().any(|who| self.calls.given_up_since(who, tensor, *round).is_some());
        let untold = rounds.filter(is_untold).count();
        let is_refused = self.is_short(None, tensor) || self.evidence.is_refused_any(who);
        let refused = if is_refused { self.calls.refused_rounds } else { 0 };
        // A round that restarts without some worker has its time anew.
        let waits = 2 + (untold + refused) as u32 + self.job.departures();
        let promised = (timing::STEP * waits + timing::DEAD * 2).mul_f64(DRIFT);
        let bound = turn + promised;
        // A part goes on for the other tensors that share it, and has the memory of all of them until it ends.
        let shares = self.calls.of_round(who, tensor, round).count() > 1;
        let timeout = call.timeout.filter(|_| !shares);
        let bound = timeout.map_or(bound, |timeout| bound.min(call.submitted + timeout.mul_f64(DRIFT) + promised));
        bound + self.evidence.still(who, call.submitted, self.world)
    }

    /// Whether a process ended, so that nobody waits for its calls.
    pub(super) fn is_gone(&self, who: Who) -> bool {
        self.job.members.values().any(|member| member.who == who && self.evidence.is_killed(*member))
    }

    /// Whether a worker that came in time was told the same of the round. Who comes later hears it again.
    fn was_explained(&self, tensor: usize, round: u64, error: &Error) -> bool {
        let Error::Stalled { missing, waited, .. } = error else { return false };
        let first = self.calls.partners_of(tensor).pop_first();
        self.calls.stalls.contains(&(first, round, missing.clone(), *waited))
    }

    fn is_explained(&self, me: Address, tensor: usize, round: u64, error: &Error) -> bool {
        let now = self.world;
        let own = || {
            let since = self.calls.given_up_since(me.who, tensor, round);
            since.is_some_and(|since| since <= now) || self.has_unreached_server(me.who)
        };
        if self.is_of_the_end(me.who, error) || self.is_of_the_tensor(me.who, tensor, error) {
            return true;
        }
        match error {
            Error::Cancelled => self.calls.of_round(me.who, tensor, round).any(|call| call.cancelled.is_some()),
            Error::Timeout { what, .. } => {
                let call = &self.calls.calls[&(me.who, tensor, round)];
                call.timeout.is_some_and(|timeout| call.submitted + timeout.mul_f64(2.0 - DRIFT) <= now)
                    || what.contains("waiting for its declaration")
                        && (self.is_name_in_use(me.who, tensor) || self.is_apart(me.who, Who::Coordinator))
            }
            Error::ServerUnreachable { server, waited, .. } => self.is_out_of_reach(me.who, server, *waited),
            Error::FailedPrecondition { what, .. } if what.contains("was given up before") => own(),
            Error::FailedPrecondition { what, .. } if what.contains("share a part") => {
                self.is_incomplete(me.who, tensor, round, what)
            }
            Error::FailedPrecondition { what, .. } if what.contains("a sum began to land on it") => {
                let partners = self.calls.partners_of(tensor);
                let mut ranks = (0..).map_while(|rank| Some((rank, self.job.worker_of_rank(rank)?)));
                let lost = ranks.find(|(rank, _)| what.contains(&format!("of {} is lost", WorkerId(*rank))));
                // Where the job goes on, a sum lands on no contribution.
                !self.job.survivors
                    && self.left_without(tensor, round)
                    && lost.is_some_and(|(_, who)| self.evidence.is_overwritten(who, &partners, round))
            }
            Error::Unavailable { cause, .. }
                if ["a worker of this machine left while", "left, and they meet again"]
                    .iter()
                    .any(|why| cause.contains(why)) =>
            {
                self.left_without(tensor, round)
            }
            Error::RootLost { root, .. } => (0..)
                .map_while(|rank| Some((rank, self.job.worker_of_rank(rank)?)))
                .filter(|(rank, _)| *root == WorkerId(*rank).to_string())
                .any(|(_, root)| {
                    // One that left at a boundary broadcasts nothing behind it.
                    let is_past = self.job.released.contains(&root) && !self.calls.is_made((root, tensor, round));
                    // One that has left restores nothing that it had from a server that was lost since.
                    let has_left_with = self.job.has_lost_server() && self.job.has_left(root);
                    self.job.is_lost(root) || is_past || has_left_with || self.has_left_without(root, tensor, round)
                }),
            Error::FailedPrecondition { what, .. } if what.contains("memory of the server for tensors") => {
                self.is_short(Some(me.who), tensor)
            }
            // Of such a sum a server that is lost may have told the others, and not yet the one that gets it.
            Error::TensorState { what, .. } if what.contains("was lost with its server") => {
                let receiver = self.calls.participants[tensor].receiver();
                let receiver = receiver.and_then(|receiver| self.job.worker_of_rank(receiver.0));
                self.job.has_lost_server() && receiver == Some(me.who)
            }
            Error::TensorState { what, .. } if what.contains("is over") => {
                own()
                    || self.is_short(None, tensor)
                    || self.evidence.is_freed_unseen(me.who, &self.calls.partners_of(tensor), round)
                    || self.failed_with_server(tensor, round)
                    || self.why_late(me.who, now).is_some()
            }
            Error::FailedPrecondition { what, .. } if what.contains("is draining") => self.evidence.drains,
            Error::PeerLost { member, cause, .. } => self.is_neighbour_lost(member, cause),
            Error::Stalled { missing, waited, detail, .. } => {
                let waited_long = waited.mul_f64(DRIFT) >= timing::STEP;
                let explained = |rank: &WorkerId| {
                    self.job.worker_of_rank(rank.0).is_some_and(|who| {
                        // A server knows which machine does not come, and not which of its ranks the others there wait for.
                        let is_machine = detail.contains("machines came for part");
                        let is_it = |other: &Who| *other == who || is_machine && self.job.shares_machine(*other, who);
                        let mut awaited = self.job.workers().filter(is_it);
                        // A rank tells those of its machine that it gives up before it goes on, unless they will all hear why, or have met
                        // anew since.
                        let is_silent = detail.ends_with("went on to a later one") && self.job.departures() == 0;
                        let meets = self.calls.meets[tensor] && self.job.shares_machine(who, me.who);
                        if is_silent && who != me.who && meets {
                            return self.is_explained_on_machine(who, tensor, round, detail);
                        }
                        self.is_explained_on_machine(who, tensor, round, detail)
                            || awaited.any(|other| self.is_missing_explained(other, tensor, round, waited_long))
                    })
                };
                !missing.is_empty() && missing.iter().all(explained)
            }
            Error::Checksum { .. } => self.evidence.is_damaged(&self.calls.partners_of(tensor), round),
            Error::Fenced { .. } => self.job.shut_out.contains(&me),
            // The ranks of a machine hear of it from the one that asked.
            Error::Protocol { .. } => {
                let partners = self.calls.partners_of(tensor);
                let mut here = self.job.workers().filter(|who| *who == me.who || self.job.shares_machine(*who, me.who));
                here.any(|who| self.evidence.is_lied_to(who, &partners, Some(round)))
            }
            Error::InvalidArgument { .. }
            | Error::TensorArgument { .. }
            | Error::TensorState { .. }
            | Error::SumFreed { .. }
            | Error::NotFinite { .. }
            | Error::Config { .. }
            | Error::Mismatch { .. }
            | Error::NotFormed { .. }
            | Error::DuplicateRank { .. }
            | Error::Incompatible { .. }
            | Error::Auth { .. }
            | Error::CertExpired { .. }
            | Error::Token { .. }
            | Error::Exhausted { .. }
            | Error::Unavailable { .. }
            | Error::FailedPrecondition { .. }
            | Error::Io { .. }
            | Error::Device { .. }
            | Error::OtherTerm { .. }
            | Error::Unresponsive { .. }
            | Error::StillRunning { .. }
            | Error::QuorumLost { .. }
            | Error::StateLost { .. }
            | Error::FullResyncNeeded { .. }
            | Error::NotFound { .. }
            | Error::CorruptCheckpoint { .. }
            | Error::Internal { .. } => false,
        }
    }

    /// Whether a worker has left in order without the result of a round: its call failed, or it made none.
    fn has_left_without(&self, who: Who, tensor: usize, round: u64) -> bool {
        self.job.has_left(who) && !self.calls.has_result((who, tensor, round))
    }

    /// Whether any worker has left without it.
    fn left_without(&self, tensor: usize, round: u64) -> bool {
        self.job.left.keys().any(|who| self.has_left_without(*who, tensor, round))
    }

    /// Whether a server that was lost may have been the only one that knew why this round failed: some worker gave it up.
    fn failed_with_server(&self, tensor: usize, round: u64) -> bool {
        let gave_up = |who| self.calls.given_up_since(who, tensor, round).is_some_and(|since| since <= self.world);
        self.job.has_lost_server() && self.job.workers().any(gave_up)
    }

    /// Whether the name of a tensor comes again, and another worker may not have come so far as to undeclare it.
    fn is_name_in_use(&self, who: Who, tensor: usize) -> bool {
        let waits =
            |other: Who| self.why_late(other, self.world).is_some() || self.calls.open_of(other).next().is_some();
        self.comes_again(tensor) && self.job.workers().any(|other| other != who && waits(other))
    }

    /// Whether the name of a tensor ends and comes again.
    fn comes_again(&self, tensor: usize) -> bool {
        self.calls.keys[tensor] != TensorKey::of(&self.calls.names[tensor])
    }

    /// Whether a worker waited long enough for a server that it could not reach.
    pub(super) fn is_out_of_reach(&self, who: Who, server: &str, waited: Duration) -> bool {
        let name = server.split_once(" at ").map_or(server, |(name, _)| name);
        let of = |server: &Address| self.is_apart(who, server.who);
        waited >= timing::STEP && self.job.members.get(name).is_some_and(of)
    }

    /// Whether a worker may give up what waits for some server, because it could not reach it. Its calls end once it has let go of their
    /// memory, and the others may hear of it before.
    fn has_unreached_server(&self, who: Who) -> bool {
        self.job.servers().any(|server| self.is_apart(who, server))
    }

    /// Whether a worker and a server or the coordinator could not reach each other for most of the last step timeout.
    pub(super) fn is_apart(&self, who: Who, other: Who) -> bool {
        let apart = self.evidence.apart(who, other, self.world - timing::STEP, self.world);
        apart >= timing::STEP.mul_f64(0.8)
    }

    /// Whether the coordinator said this of the tensor, or of one that shares parts with it, to everybody or to this worker.
    fn is_of_the_tensor(&self, who: Who, tensor: usize, error: &Error) -> bool {
        let told = |key: &TensorKey| {
            self.calls.forgotten.get(key) == Some(error) || self.calls.refused.get(&(who, *key)) == Some(error)
        };
        self.calls.partners_of(tensor).iter().any(told)
    }

    /// Whether the ranks of a machine lost this one of them, which is what they all are told then: its process ended, or it did not answer
    /// because it stood still, or because the job is over for it.
    fn is_neighbour_lost(&self, member: &str, cause: &str) -> bool {
        let Some(address) = self.job.members.get(member).copied() else { return false };
        let stood_still =
            self.evidence.still(address.who, self.world - timing::STEP * 2, self.world) >= timing::DEAD * 2;
        let is_over = self.job.cause.is_some() || self.evidence.coordinator_killed();
        let is_stuck = cause.ends_with("does nothing any more") && (stood_still || is_over);
        is_stuck || cause.ends_with("its process ended") && self.evidence.is_killed(address)
    }

    /// Whether there is a reason that only the ranks of a machine tell each other: `who` left, gave the round up before it could say so, or
    /// is about to fail with what it tells.
    fn is_explained_on_machine(&self, who: Who, tensor: usize, round: u64, detail: &str) -> bool {
        if !self.job.has_neighbours(who) {
            return false;
        }
        let told =
            |key: &TensorKey| self.calls.forgotten.contains_key(key) || self.calls.refused.contains_key(&(who, *key));
        match detail {
            // The others of its machine hear of it before its own call has ended. That end needs an explanation of its own.
            detail if detail.contains("gave this round up: ") && !self.calls.has_result((who, tensor, round)) => true,
            "left the job before" => self.job.has_left(who),
            detail if detail.contains("gave this round up") && self.job.is_lost(who) => true,
            // Its own call ends when the others have let go of its memory. If it lets go of some parts because a server told it that another
            // worker gave the round up, the ranks of its machine may hear of those parts first.
            detail if ["gave this round up", "and went on to a later one"].iter().any(|end| detail.ends_with(end)) => {
                let partners = self.calls.partners_of(tensor);
                // A rank of a machine that gives up by itself says so. It goes on in silence only if all will hear why.
                let is_silent = detail.ends_with("later one");
                let gave_up = |other: Who| {
                    let since = self.calls.given_up_since(other, tensor, round).filter(|since| *since <= self.world);
                    let is_given_up = since.is_some() || self.has_unreached_server(other);
                    is_given_up && !(is_silent && other == who)
                };
                let is_told =
                    partners.iter().any(told) || self.is_short(None, tensor) || self.job.workers().any(gave_up);
                is_told || self.evidence.drains || self.evidence.is_damaged(&partners, round)
            }
            detail => self.is_short(None, tensor) && detail.contains("memory of the server for tensors"),
        }
    }

    /// Whether there is a reason why a worker is missing in a round.
    fn is_missing_explained(&self, who: Who, tensor: usize, round: u64, waited_long: bool) -> bool {
        let now = self.world;
        let given_up = self.calls.given_up_since(who, tensor, round).filter(|since| *since <= now);
        // Its own call ends when the others have let go of its memory.
        if self.evidence.is_lied_to(who, &self.calls.partners_of(tensor), Some(round)) {
            return true;
        }
        if !waited_long {
            return given_up.is_some() || self.has_unreached_server(who);
        }
        // It must have said so, and was heard if it could be.
        let unheard = given_up.is_some_and(|since| {
            let left = self.job.left.get(&who).is_some_and(|at| *at <= since + timing::STEP / 2);
            since + timing::STEP / 2 > now
                || left
                || self.is_cut_off(who, since, now)
                || self.opens_late(tensor, round, since)
        });
        // It gave up before the name had parts in its new life, and then left, so there was nobody whom it could tell.
        let without_parts = given_up.is_some() && self.comes_again(tensor) && self.job.left.contains_key(&who);
        unheard
            || without_parts
            || self.calls.forgetter_of(tensor, round) == Some(who)
            || self.is_short(Some(who), tensor)
            || self.why_late(who, now).is_some()
    }
}

impl Calls {
    /// Notes which tensors a part joins.
    fn join(&mut self, layout: &PartLayout) {
        let mut joined: BTreeSet<TensorKey> = layout.pieces.iter().map(|piece| piece.tensor).collect();
        for key in joined.clone() {
            joined.extend(self.partners.get(&key).into_iter().flatten());
        }
        for key in joined.clone() {
            self.partners.insert(key, joined.clone());
        }
    }
}
