//! From a header to its place in a round: refusals, the window of rounds, receiving a body, waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    CodecSpec, Coming, DType, Defect, ExchangeId, Machines, PartId, Participants, Round, Time, WorkerId, planted,
};
use gradlane_core::wire::{Body, Contribute, Contribution, Target};

use super::aggregator::{Aggregator, Exchange, ExchangeState, Part, parity};
use super::refusals::{gave_up, lost, over, restored_meanwhile};
use super::residual::Residual;
use super::round::{RoundState, Slot, Spec, Uploading};
use crate::node::budget::{Budget, check_parts};
use crate::node::command::{SlotId, Step, Upload};
use crate::node::membership::Callers;

/// Rounds that a worker may have given up in a row without the others noticing.
const ROUNDS_AHEAD_MAX: u64 = 1 << 16;

impl Aggregator {
    /// Decides about a header; an error is for the caller to send.
    pub(super) fn open(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &Contribute,
        budget: &mut Budget,
    ) -> Result<()> {
        let Contribute { target, dtype, op, participants, part_bytes, .. } = header;
        let membership = self.membership.as_ref().expect("it admitted the worker");
        let codec = header.body().map_or(CodecSpec::PLAIN, |body| body.codec);
        let claim = Spec::of(worker, target.part, *dtype, *op, participants, &membership.machines);
        let claim = Spec { bytes: *part_bytes, codec, hold: header.hold, ..claim };
        check_body(worker, header, claim.sends_body(worker))?;
        let callers = self.due_callers(worker, target, *dtype, participants)?;
        check_caller(worker, target, *dtype, participants, &callers, &membership.machines)?;
        let opener = match header.contribution {
            Contribution::Resumed { .. } => Opener::Repeat,
            Contribution::Nothing | Contribution::First { .. } => Opener::Contribution,
        };
        let id = self.locate(now, claim.clone(), target, callers, opener, budget)?;
        for useless in self.readers.useless(worker, id) {
            self.reject(useless, over(id));
        }
        let disagreement = self.slot(id).and_then(|slot| slot.spec.disagreement(&claim, id.part));
        let state = ExchangeState::Waiting;
        self.exchanges.insert(exchange, Exchange { worker, slot: id, header: header.clone(), state, routed: false });
        let outcome = self.enter(now, id, worker, exchange, disagreement);
        if outcome.is_err() {
            self.end_exchange(exchange, false);
        }
        outcome
    }

    /// The callers from which a round is due, of a part that may be new.
    ///
    /// # Errors
    /// [`Error::Protocol`] if `worker` names other participants than those with which the part began. The coordinator refuses such a
    /// declaration.
    pub(super) fn due_callers(
        &self,
        worker: WorkerId,
        target: &Target,
        dtype: DType,
        participants: &Participants,
    ) -> Result<Callers> {
        let Target { part, round, .. } = *target;
        let membership = self.membership.as_ref().expect("known before anybody is admitted");
        match self.parts.get(&part) {
            Some(known) if known.participants != *participants => Err(Error::Protocol {
                peer: worker.to_string(),
                field: "participants".to_owned(),
                problem: format!("are {participants}, and the part began with {}", known.participants),
            }),
            Some(known) => Ok(membership.due_callers(&known.callers, dtype, participants, round)),
            None => {
                let callers = membership.callers(part, dtype, participants);
                Ok(membership.due_callers(&callers, dtype, participants, round))
            }
        }
    }

    /// The slot of a round. It is begun, or begun again after a restart, if the worker may do so. A withdrawal begins it as failed.
    pub(super) fn locate(
        &mut self,
        now: Time,
        claim: Spec,
        target: &Target,
        callers: Callers,
        opener: Opener<'_>,
        budget: &mut Budget,
    ) -> Result<SlotId> {
        let worker = claim.said_by;
        let one_slot = planted(self.config.defect, Defect::OneSlot);
        let latest = self.parts.get(&target.part).and_then(|part| part.latest);
        let round =
            if one_slot { latest.map_or(target.round, |latest| latest.max(target.round)) } else { target.round };
        let id = SlotId { part: target.part, round };
        let attempt = match self.slot(id) {
            Some(Slot { state: RoundState::Restarted, attempt, .. }) => Some(*attempt),
            Some(_) => return Ok(id),
            None => None,
        };
        if attempt.is_none() {
            self.check_beginning(now, id, latest, &claim)?;
        }
        if let Opener::Repeat = opener {
            // Of a round that restarts, everybody sends the whole contribution. This worker has it no more.
            self.fail_restarted(id, lost(worker));
            return Err(lost(worker));
        }
        for passed in self.alive(id.part) {
            // The slots of a part hold its latest rounds, so that a difference of two means that all have passed this one.
            if round.0.saturating_sub(passed.round.0) >= 2 || one_slot {
                self.retire(passed);
            }
        }
        let mut slot = Slot::new(id, claim, callers, attempt.unwrap_or_default());
        if let Opener::Withdrawal(error) = opener {
            slot.state = RoundState::Failed(error.clone());
        }
        self.begin(now, slot, budget)?;
        Ok(id)
    }

    /// Whether the worker of `claim` may begin a round that this server does not have.
    fn check_beginning(&mut self, now: Time, id: SlotId, latest: Option<Round>, claim: &Spec) -> Result<()> {
        // Checked first, because a worker that should come back later would come back in vain.
        if let Some(refusal) = &self.draining {
            return Err(refusal.clone());
        }
        if !self.parts.contains_key(&id.part) {
            check_parts(self.parts.len())?;
        }
        match latest {
            Some(latest) if id.round <= latest => Err(self.root_lost(id, claim.op).unwrap_or_else(|| over(id))),
            None if planted(self.config.defect, Defect::FirstRoundUnchecked) => Ok(()),
            Some(_) | None => self.check_window(now, id, latest, claim),
        }
    }

    /// Whether the worker of `claim` may begin the round `id` of a part that is at `latest`.
    fn check_window(&mut self, now: Time, id: SlotId, latest: Option<Round>, claim: &Spec) -> Result<()> {
        let worker = claim.said_by;
        let membership = self.membership.as_ref().expect("it admitted the worker");
        // A part of which no round began is at the round before the first that the view makes anybody contribute to. That of a server that
        // was lost is where its workers are, who have agreed.
        let first = if membership.has_lost_servers { id.round } else { membership.first_round() };
        let next = latest.map(|latest| Round(latest.0 + 1));
        let ahead = id.round.0.saturating_sub(next.unwrap_or(first).0);
        if ahead >= ROUNDS_AHEAD_MAX {
            let latest = latest.map_or_else(|| format!("the first one, {}", first.0), |latest| latest.0.to_string());
            let problem = format!("is {}, far beyond {latest}", id.round.0);
            return Err(Error::Protocol { peer: worker.to_string(), field: "round".to_owned(), problem });
        }
        self.know(id.part, claim);
        self.pass(now, id, worker);
        // The slot still holds the sum of two rounds ago. It is free once all have come to the latest round, or gone beyond it.
        let before_latest = id.round.0.checked_sub(2).map(|round| SlotId { round: Round(round), ..id });
        let current = latest.and_then(|latest| self.slot(SlotId { round: latest, ..id }));
        let slowest = current.and_then(|slot| slot.due.ranks.iter().find(|other| !slot.arrived.contains(**other)));
        let cause = match (latest, slowest) {
            (_, None) if ahead == 0 => return Ok(()),
            // The latest round made room for a later one, for which there was no memory then.
            (Some(_), None) if current.is_none() => return Ok(()),
            (_, Some(_)) if ahead == 0 && before_latest.is_none_or(|id| self.slot(id).is_none()) => return Ok(()),
            (Some(latest), Some(slowest)) => format!("{slowest} is still before {latest}"),
            (Some(latest), None) => format!("nobody came to the round after {latest}"),
            (None, _) => format!("nobody came to {first}"),
        };
        // Somebody who never comes, because it gave up the tensor or left the job, must not stop the others for ever.
        let patience = self.config.step_timeout;
        let part = self.parts.get_mut(&id.part).expect("it is known");
        if *part.blocked.get_or_insert(now) + patience <= now && self.patient_until <= now {
            return Ok(());
        }
        Err(Error::Unavailable { what: id.round.to_string(), cause })
    }

    /// `worker` asks for the round `next`, so it is done with all before, whatever became of them: a sum for which it has not come will
    /// never be.
    fn pass(&mut self, now: Time, next: SlotId, worker: WorkerId) {
        let part = self.parts.get_mut(&next.part).expect("it is known");
        part.ahead.insert(worker, next.round);
        for id in self.alive(next.part) {
            // That all came to one round may end the one before.
            let Some(slot) = self.slot(id) else { continue };
            if !slot.arrived.contains(worker) {
                match &slot.state {
                    RoundState::Open(open) => {
                        let waited = open.since.map(|since| now.since(since)).unwrap_or_default();
                        self.fail(id, gave_up(id, worker, waited));
                    }
                    RoundState::Restarted => self.fail_restarted(id, gave_up(id, worker, Duration::ZERO)),
                    RoundState::Published(_) | RoundState::Failed(_) | RoundState::Restoring { .. } => {}
                }
            }
            self.reach(id, worker);
        }
    }

    /// The rounds of a part that are alive.
    pub(super) fn alive(&self, part: PartId) -> Vec<SlotId> {
        self.parts.get(&part).into_iter().flat_map(|part| part.slots.iter().flatten()).map(|slot| slot.id).collect()
    }

    /// Puts a new round into its slot.
    fn begin(&mut self, now: Time, mut slot: Slot, budget: &mut Budget) -> Result<()> {
        let id = slot.id;
        if let Some(error) = self.root_lost(id, slot.spec.op) {
            slot.state = RoundState::Failed(error);
        }
        let ahead = self.parts.get(&id.part).into_iter().flat_map(|part| &part.ahead);
        for worker in ahead.filter(|(_, round)| **round > id.round).map(|(worker, _)| *worker) {
            slot.arrived.insert(worker);
            if let RoundState::Open(_) = slot.state {
                slot.state = RoundState::Failed(gave_up(id, worker, Duration::ZERO));
            }
        }
        slot.booked = slot.needs(&self.config);
        let residual_bytes = slot.spec.residual_bytes();
        let before = self.parts.get(&id.part).map_or(0, |part| part.residual.booked);
        let grows = residual_bytes.saturating_sub(before);
        self.take_memory(now, slot.booked + grows, budget)?;
        self.watch_sums(now);
        if let RoundState::Open(_) = slot.state {
            let block_bytes = self.block_bytes(&slot.spec);
            self.step(id, Step::Begin(slot.spec.sum(&slot.due.ranks, block_bytes, &self.config)));
        }
        let part = self.know(id.part, &slot.spec);
        part.latest = part.latest.max(Some(id.round));
        let latest = part.latest;
        part.ahead.retain(|_, round| Some(*round) > latest);
        part.blocked = None;
        part.residual.booked += grows;
        part.slots[parity(id.round)] = Some(slot);
        Ok(())
    }

    /// A part, which may be new.
    pub(super) fn know(&mut self, id: PartId, claim: &Spec) -> &mut Part {
        let membership = self.membership.as_ref().expect("it admitted the worker");
        self.parts.entry(id).or_insert_with(|| Part {
            dtype: claim.dtype,
            participants: claim.participants.clone(),
            callers: membership.callers(id, claim.dtype, &claim.participants),
            latest: None,
            ahead: BTreeMap::new(),
            blocked: None,
            residual: Residual::default(),
            slots: [None, None],
        })
    }

    /// Lets an exchange, already in the table, into its round. An error is for the caller to send.
    fn enter(
        &mut self,
        now: Time,
        id: SlotId,
        worker: WorkerId,
        exchange: ExchangeId,
        disagreement: Option<Error>,
    ) -> Result<()> {
        let header = self.exchanges[&exchange].header.clone();
        let slot = self.slot_mut(id).expect("located");
        if let RoundState::Open(_) = slot.state
            && let Some(error) = &disagreement
        {
            // Every worker of the round must learn of it, and the one that disagrees is one of them.
            self.end_exchange(exchange, false);
            self.fail(id, error.clone());
        }
        let slot = self.slot_mut(id).expect("located");
        match &mut slot.state {
            RoundState::Failed(error) => {
                let error = error.clone();
                self.reach(id, worker);
                Err(error)
            }
            RoundState::Published(published) => {
                let published = published.clone();
                self.reach(id, worker);
                disagreement.map_or(Ok(()), Err)?;
                self.answer(id, &published, exchange);
                Ok(())
            }
            RoundState::Restoring { .. } => Err(restored_meanwhile(id)),
            RoundState::Restarted => unreachable!("begun again when it was located"),
            RoundState::Open(_) if slot.arrived.contains(worker) => {
                self.wait_again(id, worker, exchange);
                Ok(())
            }
            RoundState::Open(_) if slot.spec.sends_body(worker) => self.receive(now, id, worker, exchange, &header),
            RoundState::Open(open) => {
                open.lateness.handle_header(now);
                self.listen(id, worker, exchange);
                self.count(now, id, worker, Coming { since: now, waited: header.waited, behind: Duration::ZERO });
                Ok(())
            }
        }
    }

    /// Takes the contribution of a worker that was not counted yet, from its beginning or from where an earlier exchange broke off.
    fn receive(
        &mut self,
        now: Time,
        id: SlotId,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &Contribute,
    ) -> Result<()> {
        let begun = self.open_mut(id).uploads.get(&worker).copied();
        let before = begun.map(|begun| begun.upload);
        let body = header.body().unwrap_or(Body::plain(0));
        if let Some(before) = before {
            check_repeat(worker, header.weight, body, &before)?;
        }
        self.check_gift(id, worker, header, before.is_some())?;
        let upload = match header.contribution {
            // What is overwritten has no checksum; what was announced before still holds for all that is taken.
            Contribution::Resumed { landed, .. } => {
                let Some(before) = before else {
                    self.fail(id, lost(worker));
                    self.reach(id, worker);
                    return Err(lost(worker));
                };
                Upload { landed, ..before }
            }
            Contribution::First { checksum, .. } => Upload { body, weight: header.weight, checksum, landed: 0 },
            Contribution::Nothing => Upload { body, weight: header.weight, checksum: None, landed: 0 },
        };
        let is_enough = planted(self.config.defect, Defect::TakenBackByOne);
        let coming =
            begun.map_or(Coming { since: now, waited: header.waited, behind: Duration::ZERO }, |begun| begun.coming);
        let open = self.open_mut(id);
        open.lateness.handle_header(now);
        open.uploads.insert(worker, Uploading { exchange, upload, coming });
        let hold = open.hold.unwrap_or(header.hold);
        open.hold = Some(if is_enough { hold.max(header.hold) } else { hold.min(header.hold) });
        open.begun.insert(worker);
        let entry = self.exchange_mut(exchange);
        entry.routed = header.part_bytes > 0;
        entry.state = if entry.routed { ExchangeState::Landing } else { ExchangeState::Waiting };
        if header.part_bytes > 0 {
            self.step(id, Step::Receive { worker, exchange, upload });
        }
        self.listen(id, worker, exchange);
        if header.part_bytes > 0 {
            self.flow(id);
        } else {
            self.count(now, id, worker, coming);
        }
        Ok(())
    }

    /// The sum will go to this exchange, and not to an earlier one of the same worker.
    fn listen(&mut self, id: SlotId, worker: WorkerId, exchange: ExchangeId) {
        let open = self.open_mut(id);
        let superseded = open.listeners.insert(worker, exchange);
        let flowing = open.flowing.clone();
        self.supersede(superseded);
        if let Some(published) = flowing {
            self.answer(id, &published, exchange);
        }
    }

    /// A counted worker asks again, after its stream broke: it waits with the new exchange.
    fn wait_again(&mut self, id: SlotId, worker: WorkerId, exchange: ExchangeId) {
        if planted(self.config.defect, Defect::AnswerOldRound)
            && let Some(before) = id.round.0.checked_sub(1).map(|round| SlotId { round: Round(round), ..id })
            && let Some(RoundState::Published(published)) = self.slot(before).map(|slot| &slot.state)
        {
            let published = published.clone();
            return self.answer(before, &published, exchange);
        }
        if planted(self.config.defect, Defect::MissingWaiterLost) {
            return;
        }
        self.listen(id, worker, exchange);
    }
}

/// What brings a round to a server that may not have begun it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opener<'a> {
    /// A contribution from its first byte, or a question for the sum.
    Contribution,
    /// A contribution whose front is overwritten by a sum: only a server that knows the round can use it.
    Repeat,
    /// A withdrawal, with the error that the other workers get.
    Withdrawal(&'a Error),
}

/// Refuses a contribution whose body is not the one that is due.
fn check_body(worker: WorkerId, header: &Contribute, sends_body: bool) -> Result<()> {
    let bad = |field: &str, problem: String| {
        Err(Error::Protocol { peer: worker.to_string(), field: field.to_owned(), problem })
    };
    if let Contribution::Resumed { body, landed } = header.contribution
        && landed > body.bytes
    {
        return bad("landed bytes", format!("are {landed} of {}", body.bytes));
    }
    match header.body() {
        None if sends_body && header.part_bytes > 0 => bad("flags", "announce no body where one is due".to_owned()),
        Some(_) if !sends_body && header.part_bytes > 0 => bad("flags", "announce a body where none is due".to_owned()),
        Some(body) if body.codec != body.codec.for_op(header.op) => {
            bad("encoding", format!("is {} of a {}", body.codec, header.op))
        }
        // Checked before memory is taken for it.
        Some(body) => match body.check(header.dtype, header.part_bytes) {
            Ok(()) => Ok(()),
            Err(malformed) => bad("body length", malformed.to_string()),
        },
        None => Ok(()),
    }
}

/// Refuses a repeat of a push that says something else of the contribution than the first one.
fn check_repeat(worker: WorkerId, weight: f64, body: Body, before: &Upload) -> Result<()> {
    let form = |body: Body| format!("{} bytes as {}", body.bytes, body.encoding());
    let (field, ours, theirs) = if before.weight.to_bits() != weight.to_bits() {
        ("weight", weight.to_string(), before.weight.to_string())
    } else if before.body != body {
        ("body", form(body), form(before.body))
    } else {
        return Ok(());
    };
    let problem = format!("is {ours} in a repeat of a push that said {theirs}");
    Err(Error::Protocol { peer: worker.to_string(), field: field.to_owned(), problem })
}

/// Refuses a push of a worker whose contribution comes with another's, or that has not begun by this round.
pub(super) fn check_caller(
    worker: WorkerId,
    target: &Target,
    dtype: DType,
    participants: &Participants,
    callers: &Callers,
    machines: &Machines,
) -> Result<()> {
    if callers.set.contains(worker) {
        return Ok(());
    }
    let Target { part, round, .. } = target;
    let owner = machines.owner(*part, dtype, worker);
    let (field, problem) = if !participants.contains(worker) {
        ("participants", format!("are {participants}, and this worker is not one of them"))
    } else if owner == worker || !participants.is_everybody() {
        ("round", format!("is {}, before the first one that this worker contributes to", round.0))
    } else {
        ("part", format!("is {part}, which {owner} exchanges for the workers of its machine"))
    };
    Err(Error::Protocol { peer: worker.to_string(), field: field.to_owned(), problem })
}
