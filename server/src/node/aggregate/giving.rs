//! Uses of the residual of a part's answers, by workers that save their state and that have loaded it.
//!
//! A worker *reads* what the answer of its next round would begin with. It is the same for all workers that have finished the same rounds, so
//! each of them can read it by itself. A worker that is behind is refused, because what it asks for is gone.
//!
//! Workers *give* what the answer of their next round is to begin with. All of them have loaded the same state, so the first one brings the
//! bytes. The others wait for it and are told that the residual is here, if they would bring bytes of the same length and checksum. If not, they
//! are refused. A worker that has loaded another state since may give that, as long as it is among those that have given. Then they all have to
//! give again. What their contributions say decides: see [`residual`](super::residual).

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{DType, Difference, Epoch, ExchangeId, Op, PartId, Round, Time, WorkerId, WorkerSet};
use gradlane_core::wire::{AnswerResidual, Body, Contribute, Contributors, ResidualAction, Sum, Target};

use super::aggregator::{Aggregator, Using};
use super::refusals::{gone_on, not_brought, not_given};
use super::residual::{Coming, Fed, Gift};
use super::round::{Open, Published, RoundState, Slot, Spec};
use crate::node::budget::{Budget, check_parts};
use crate::node::command::{Command, Feedback, Receipt, SlotId, Step};
use crate::node::refusals::superseded;

impl Aggregator {
    /// An admitted worker reads the residual of a part's answers, or gives one.
    pub(in crate::node) fn handle_residual(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &AnswerResidual,
        budget: &mut Budget,
    ) {
        let AnswerResidual { target, participants, .. } = header;
        let used = self.due_callers(worker, target, DType::F32, participants).and_then(|_| match header.action {
            _ if !participants.contains(worker) => Err(Error::Protocol {
                peer: worker.to_string(),
                field: "participants".to_owned(),
                problem: format!("are {participants}, and this worker is not one of them"),
            }),
            ResidualAction::Read(_) => self.show_residual(now, worker, exchange, header, budget),
            ResidualAction::Give { checksum } => self.take_gift(now, worker, exchange, header, checksum, budget),
        });
        if let Err(error) = used {
            self.say_reject(exchange, target.about(), error);
        }
        self.settle(budget);
    }

    /// The driver says what became of the gift for a part, whose latest bytes `exchange` brought. A receipt that comes too late is ignored.
    pub(in crate::node) fn handle_gift(
        &mut self,
        part: PartId,
        exchange: ExchangeId,
        receipt: Receipt,
        budget: &mut Budget,
    ) {
        if let Some(Using { routed, .. }) = self.uses.get_mut(&exchange)
            && std::mem::take(routed)
        {
            self.commands.push_back(Command::Unroute { exchange });
        }
        let gift = self.parts.get_mut(&part).and_then(|part| part.residual.gift.as_mut());
        let coming = |gift: &&mut Gift| gift.coming.as_ref().is_some_and(|coming| coming.exchange == exchange);
        if let Some(gift) = gift.filter(coming) {
            match receipt {
                Receipt::Whole => self.note_gift(part),
                Receipt::Damaged => {
                    let from = gift.coming.as_ref().map(|coming| coming.worker.to_string()).unwrap_or_default();
                    let round = self.uses.get(&exchange).map(|using| using.target.round).unwrap_or_default();
                    self.drop_gift(part, &Error::Checksum { tensor: part.key.into(), round, from });
                }
                Receipt::Lost => {
                    let what = format!("the residual that was given for part {part} was lost");
                    self.drop_gift(part, &Error::Internal { what });
                }
            }
        }
        self.settle(budget);
    }

    /// An exchange is over, if it was one about a residual.
    pub(super) fn end_using(&mut self, exchange: ExchangeId) -> Option<Using> {
        let using = self.uses.remove(&exchange)?;
        self.freed += using.booked;
        if using.routed {
            self.commands.push_back(Command::Unroute { exchange });
        }
        Some(using)
    }

    /// An exchange broke off. What it has brought of a gift is of no use.
    pub(super) fn note_torn_using(&mut self, exchange: ExchangeId) {
        let Some(Using { target: Target { part, .. }, .. }) = self.end_using(exchange) else { return };
        let gift = self.parts.get_mut(&part).and_then(|part| part.residual.gift.as_mut());
        let Some(coming) = gift.and_then(|gift| gift.coming.as_mut()) else { return };
        coming.waiting.retain(|waiting| *waiting != exchange);
        if coming.exchange == exchange {
            self.drop_gift(part, &not_brought());
        }
    }

    /// What was given for a part goes, with `error` for the worker that brings it. Those that wait for that come again.
    pub(super) fn drop_gift(&mut self, part: PartId, error: &Error) {
        let Some(Gift { bytes, coming, .. }) = self.parts.get_mut(&part).and_then(|part| part.residual.gift.take())
        else {
            return;
        };
        self.freed += bytes;
        self.step(SlotId { part, round: Round(0) }, Step::DropGift);
        self.refuse_gift(coming, error);
    }

    /// A sum with error feedback begins to flow. Returns how its answer uses the residual of the part.
    pub(super) fn take_residual(&mut self, id: SlotId, published: &Published) -> Option<Feedback> {
        let (residual, sum) = self.residual_of(id, published)?;
        let gift = residual.gift.take();
        let used = residual.take(&sum, gift.as_ref());
        if let Some(Gift { bytes, coming, .. }) = gift {
            self.freed += bytes;
            self.refuse_gift(coming, &gone_on(id));
        }
        Some(used)
    }

    /// Refuses a contribution if its worker says of the residual that is given something else than the others, or what is not so. The round
    /// fails for all of them, because one of them would train with another state.
    pub(super) fn check_gift(
        &mut self,
        id: SlotId,
        worker: WorkerId,
        header: &Contribute,
        is_repeat: bool,
    ) -> Result<()> {
        let has_lost_servers = self.membership.as_ref().is_some_and(|ours| ours.has_lost_servers);
        let gift = self.parts.get(&id.part).and_then(|part| part.residual.gift.as_ref());
        let slot = self.slot(id).expect("open");
        let Slot { attempt, spec: Spec { codec, bytes, .. }, state: RoundState::Open(Open { given, .. }), .. } = slot
        else {
            return Ok(());
        };
        // A round that begins again has used it, and so has one whose server was lost. It begins at zero, as others do then.
        let is_gone = is_repeat || *attempt > 0 || has_lost_servers;
        let is_true = !header.is_given || is_gone || gift.is_some_and(|gift| gift.is_of(worker, *codec, *bytes));
        let error = match given {
            Some((first, is_given)) if *is_given != header.is_given => {
                let [before, now] = [*is_given, header.is_given].map(said);
                let difference = Difference { field: "error feedback of the answers", first: before, second: now };
                difference.into_error(id.part.key, *first, worker)
            }
            _ if !is_true => not_given(id, worker),
            _ => {
                self.open_mut(id).given.get_or_insert((worker, header.is_given));
                return Ok(());
            }
        };
        self.fail(id, error.clone());
        self.reach(id, worker);
        Err(error)
    }

    fn show_residual(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &AnswerResidual,
        budget: &mut Budget,
    ) -> Result<()> {
        let AnswerResidual { target, participants, part_bytes, action, .. } = header;
        let id = SlotId { part: target.part, round: target.round };
        self.check_round(id)?;
        let hold = if let ResidualAction::Read(hold) = action { *hold } else { Default::default() };
        let membership = self.membership.as_ref().expect("it admitted the worker");
        let contributors = membership.due_workers(participants, id.round);
        let next = Fed { contributors, bytes: *part_bytes, round: id.round, hold, is_given: true };
        let shown = self.parts.get(&id.part).map(|part| part.residual.use_by(&next, part.residual.gift.as_ref()));
        self.take_memory(now, *part_bytes, budget)?;
        self.uses.insert(exchange, Using { worker, target: *target, booked: *part_bytes, routed: false });
        self.answer_using(exchange, Some((*part_bytes, shown.unwrap_or(Feedback::NONE))));
        Ok(())
    }

    fn take_gift(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &AnswerResidual,
        checksum: u32,
        budget: &mut Budget,
    ) -> Result<()> {
        let AnswerResidual { target, participants, codec, part_bytes, .. } = header;
        let id = SlotId { part: target.part, round: target.round };
        if let Some(refusal) = &self.draining {
            return Err(refusal.clone());
        }
        self.check_round(id)?;
        let using = Using { worker, target: *target, booked: 0, routed: false };
        let said = (*part_bytes, *codec, checksum);
        match self.parts.get_mut(&id.part).and_then(|part| part.residual.gift.as_mut()) {
            Some(gift) if (gift.bytes, gift.codec, gift.checksum) == said => match &mut gift.coming {
                None => {
                    gift.givers.insert(worker);
                    self.uses.insert(exchange, using);
                    self.answer_using(exchange, None);
                    return Ok(());
                }
                Some(coming) if coming.worker != worker => {
                    coming.waiting.push(exchange);
                    self.uses.insert(exchange, using);
                    return Ok(());
                }
                // Its stream broke.
                Some(_) => self.drop_gift(id.part, &superseded()),
            },
            Some(gift) if !gift.is_from(worker) => {
                let first = gift.any_giver();
                let [before, now] = [gift.checksum, checksum].map(|checksum| format!("with CRC-32C {checksum:08x}"));
                let difference =
                    Difference { field: "saved error feedback of the answers", first: before, second: now };
                return Err(difference.into_error(id.part.key, first, worker));
            }
            Some(_) => self.drop_gift(id.part, &superseded()),
            None => {}
        }
        if !self.parts.contains_key(&id.part) {
            check_parts(self.parts.len())?;
        }
        self.take_memory(now, *part_bytes, budget)?;
        let membership = self.membership.as_ref().expect("it admitted the worker");
        let claim = Spec::of(worker, id.part, DType::F32, Op::Sum, participants, &membership.machines);
        let coming = Some(Coming { worker, exchange, waiting: Vec::new() });
        let (bytes, givers) = (*part_bytes, WorkerSet::default());
        self.know(id.part, &claim).residual.gift = Some(Gift { bytes, codec: *codec, checksum, givers, coming });
        self.uses.insert(exchange, Using { routed: true, ..using });
        self.step(id, Step::TakeGift { exchange, bytes, checksum });
        Ok(())
    }

    /// All of the gift for a part is here: tells the worker that brought it, and those that wait.
    fn note_gift(&mut self, part: PartId) {
        let gift = self.parts.get_mut(&part).and_then(|part| part.residual.gift.as_mut());
        let Some(gift) = gift else { return };
        let Some(Coming { worker, exchange, waiting }) = gift.coming.take() else { return };
        gift.givers.insert(worker);
        for waiting in &waiting {
            if let Some(using) = self.uses.get(waiting) {
                gift.givers.insert(using.worker);
            }
        }
        for exchange in [exchange].into_iter().chain(waiting) {
            self.answer_using(exchange, None);
        }
    }

    /// Ends the exchanges of a gift that does not come.
    fn refuse_gift(&mut self, coming: Option<Coming>, error: &Error) {
        let Some(Coming { exchange, waiting, .. }) = coming else { return };
        let waiting = waiting.into_iter().map(|exchange| (exchange, not_brought()));
        for (exchange, error) in std::iter::once((exchange, error.clone())).chain(waiting) {
            if let Some(Using { target, .. }) = self.end_using(exchange) {
                self.say_reject(exchange, target.about(), error);
            }
        }
    }

    /// Refuses a use of what the answer before a round has left, if a later answer has changed it, or that answer is not whole yet.
    fn check_round(&self, id: SlotId) -> Result<()> {
        let Some(part) = self.parts.get(&id.part) else { return Ok(()) };
        let flows = |slot: &&Slot| matches!(&slot.state, RoundState::Open(Open { flowing: Some(_), .. }));
        let flowing = part.slots.iter().flatten().filter(flows).map(|slot| slot.id.round).max();
        if part.residual.is_beyond(id.round) || flowing >= Some(id.round) {
            return Err(gone_on(id));
        }
        match flowing {
            Some(round) => Err(Error::Unavailable {
                what: "the residual of the answers".to_owned(),
                cause: format!("the answer of {round} is not whole"),
            }),
            None => Ok(()),
        }
    }

    /// Answers a use of the residual: with what to show of it, in so many bytes, or only that it is done.
    fn answer_using(&mut self, exchange: ExchangeId, shown: Option<(u64, Feedback)>) {
        let epoch = self.membership.as_ref().map_or(Epoch::default(), |ours| ours.epoch);
        let Some(Using { target, .. }) = self.uses.get(&exchange) else { return };
        let (target, bytes) = (Target { epoch, ..*target }, shown.map_or(0, |(bytes, _)| bytes));
        let header = Sum {
            target,
            attempt: 0,
            part_bytes: bytes,
            body: Body::plain(bytes),
            divisor: 1.0,
            contributors: Contributors::Due,
            early: false,
            checksum: shown.is_some(),
        };
        let id = SlotId { part: target.part, round: target.round };
        self.step(id, Step::AnswerResidual { exchange, header, shown: shown.map(|(_, shown)| shown) });
    }
}

/// What a contribution says of what was given.
fn said(is_given: bool) -> String {
    if is_given { "from a state that was loaded" } else { "from the rounds before" }.to_owned()
}
