//! From a header to its exchange: refusals, repeats, what is answered at once, and what is received first.

use gradlane_core::error::Result;
use gradlane_core::reduce::OptimizerState;
use gradlane_core::types::{
    Access, Declared, Defect, Effect, ExchangeId, Extent, PartId, Participants, Round, TensorKind, Time, Version,
    planted,
};
use gradlane_core::wire::{Sent, Target, Use};

use super::machine::{Claim, Exchange, Parameters, Part, State};
use super::refusals::{base_gone, lost, not_initialised};
use crate::node::budget::{Budget, check_parts};
use crate::node::command::{ValueStep, ValueUpload};
use crate::node::membership::Sender;
use crate::node::refusals::{out_of_order, superseded};

impl Parameters {
    /// Decides about a header; an error is for the caller to send.
    pub(super) fn open(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Use,
        budget: &mut Budget,
    ) -> Result<()> {
        let Use { target: Target { part: id, round, .. }, access, .. } = *header;
        self.end_older(sender, id, round, budget)?;
        let known = self.parts.get(&id);
        known.map_or(Ok(()), |part| part.claim.check(&Claim::of(sender, header), id))?;
        let done = known.and_then(|part| part.ledger.get(&sender.node)).filter(|_| access.sends());
        match done {
            Some(done) if round < done.round => return Err(out_of_order(sender.worker, round, done.round)),
            Some(done) if round == done.round && !planted(self.config.defect, Defect::ChangeRepeated) => {
                let effect = done.effect;
                return self.answer_at_once(now, sender, exchange, header, effect, budget);
            }
            Some(_) | None => {}
        }
        if let Some(part) = known.filter(|_| access.steps() && header.basis > Version(0))
            && part.claim.mode.compensation.kappa().is_some()
            && !part.bases.has_read(sender.node, header.basis)
        {
            return Err(base_gone(id, sender.worker, header.basis));
        }
        if let Some(refusal) = &self.draining {
            return Err(refusal.clone());
        }
        let value = known.map(|part| part.version).filter(|version| *version > Version(0));
        match (access, value, header.sent) {
            (Access::Init | Access::Pull | Access::PullAverage(_), Some(version), _) => {
                self.answer_at_once(now, sender, exchange, header, Effect::accepted(version), budget)
            }
            (Access::Push(_) | Access::Pull | Access::PushPull(_) | Access::PullAverage(_), None, _) => {
                Err(not_initialised(id))
            }
            (Access::Init, None, Sent::Nothing { .. })
            | (Access::Push(_) | Access::PushPull(_), Some(_), Sent::Nothing { .. }) => Err(lost(sender.worker)),
            (Access::Init, None, Sent::Whole { checksum })
            | (Access::Push(_) | Access::PushPull(_), Some(_), Sent::Whole { checksum }) => {
                self.receive(now, sender, exchange, header, checksum, budget)
            }
        }
    }

    /// Ends older exchanges of the worker about the part, which it has given up. An answer to its use before this one is not given up: it may
    /// have arrived, and nobody has acknowledged it yet.
    ///
    /// # Errors
    /// [`Error::Protocol`] if an exchange of a later use is open.
    fn end_older(&mut self, sender: Sender, id: PartId, round: Round, budget: &mut Budget) -> Result<()> {
        let Some(part) = self.parts.get(&id) else { return Ok(()) };
        let of_sender = (sender.node, ExchangeId(0))..=(sender.node, ExchangeId(u64::MAX));
        let open = part.open.range(of_sender).map(|(_, exchange)| (*exchange, &self.exchanges[exchange]));
        let open: Vec<(ExchangeId, Round, State)> =
            open.map(|(id, exchange)| (id, exchange.header.target.round, exchange.state)).collect();
        let latest = open.iter().map(|(_, of, _)| *of).max();
        if let Some(latest) = latest.filter(|latest| *latest > round) {
            return Err(out_of_order(sender.worker, round, latest));
        }
        for (exchange, of, state) in open {
            if state == State::Landing && planted(self.config.defect, Defect::OlderBodyDone) {
                continue;
            }
            let may_have_come = state == State::Answering && of < round && Some(of) == latest;
            if !may_have_come {
                self.reject(exchange, &superseded(), budget);
            }
        }
        Ok(())
    }

    /// Takes the body of a change.
    fn receive(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Use,
        checksum: Option<u32>,
        budget: &mut Budget,
    ) -> Result<()> {
        let id = header.target.part;
        if !self.parts.contains_key(&id) {
            check_parts(self.parts.len())?;
        }
        let bytes = header.part_bytes;
        // Of a first value, what its rule keeps beside it too.
        let kept_beside = header.rule.filter(|_| header.access == Access::Init);
        let beside = kept_beside.map_or(0, |rule| OptimizerState::bytes_of(&rule, header.dtype, bytes));
        // The value before may be kept for a compensation. A push needs no more for that, because nothing of it goes to its answer.
        let for_base =
            header.access.changes() && header.access.receives() && header.mode.compensation.kappa().is_some();
        let booked = bytes + beside + if for_base { bytes } else { 0 };
        budget.take(now, booked)?;
        let crosses_network = self.membership.as_ref().is_none_or(|ours| ours.crosses_network);
        let block_bytes = self.config.block_bytes(bytes, crosses_network);
        let part = self.parts.entry(id).or_insert_with(|| Part::new(Claim::of(sender, header), block_bytes));
        part.open.insert((sender.node, exchange));
        let upload = ValueUpload { bytes, block_bytes: part.block_bytes, checksum };
        self.exchanges.insert(exchange, Exchange { sender, header: *header, state: State::Landing, booked });
        self.step(id, ValueStep::Receive { exchange, upload });
        if self.parts[&id].version > Version(0) && planted(self.config.defect, Defect::ChangeAnsweredEarly) {
            let made = Version(self.parts[&id].version.0 + 1);
            self.answer(exchange, header, Effect::accepted(made));
        }
        Ok(())
    }

    /// Answers an exchange of which no body is taken. `effect` is what its change has come to, or has the present version. A read of what
    /// follows a clock waits until the rounds are closed that its worker knows of.
    fn answer_at_once(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Use,
        effect: Effect,
        budget: &mut Budget,
    ) -> Result<()> {
        let receives = header.access.receives();
        let booked = if receives { header.part_bytes } else { 0 };
        budget.take(now, booked)?;
        let part = self.parts.get_mut(&header.target.part).expect("it has a value");
        part.open.insert((sender.node, exchange));
        let effect = if receives { Effect { version: part.version, ..effect } } else { effect };
        self.note_read(sender.node, header, budget);
        let state = if self.is_early(header) { State::Early } else { State::Answering };
        self.exchanges.insert(exchange, Exchange { sender, header: *header, state, booked });
        if state == State::Answering {
            self.answer(exchange, header, effect);
        }
        Ok(())
    }
}

impl Claim {
    fn of(sender: Sender, header: &Use) -> Self {
        Self {
            said_by: sender.worker,
            dtype: header.dtype,
            bytes: header.part_bytes,
            rule: header.rule,
            mode: header.mode,
        }
    }

    /// Refuses what `second` says otherwise of `part`.
    fn check(&self, second: &Self, part: PartId) -> Result<()> {
        let difference = self.declared().difference(&second.declared());
        let error = difference.map(|found| found.into_error(part.key, self.said_by, second.said_by));
        error.map_or(Ok(()), Err)
    }

    fn declared(&self) -> Declared<'_> {
        let (extent, kind) = (Extent::Bytes(self.bytes), TensorKind::Parameter { rule: self.rule, mode: self.mode });
        Declared { name: None, dtype: self.dtype, extent, kind, op: None, participants: &Participants::ALL }
    }
}
