//! Sums of servers that were lost: which ones this worker keeps, what it tells of them, and which it restores.
//!
//! ```text
//!  a view without a server ──► its parts rest ──nothing of them is under way──► Command::Report
//!                                  │                                               │
//!                                  │     handle_restore ──► a task for each sum ──all done──► Command::Restored
//!                                  ▼
//!  the next view, which recovers nothing ──► the parts go to the servers that they have now
//! ```
//! A server may have sent a sum to some workers and not to others. The contributions to it are gone then: those that have the sum wrote over
//! them. So each worker keeps the latest sum of each part, as it came, until the next one is whole or nobody can wait for it any more. If
//! the server is lost, a worker that has the sum brings it to the next server, and the others get the same bytes from there. A sum that
//! nobody has is made anew, as the contributions to it are whole everywhere.

use std::collections::BTreeSet;

use super::command::{Command, Held, Load};
use super::machine::Worker;
use super::records::{Errand, Record};
use super::recovery::Kept;
use crate::error::Error;
use crate::pipeline::registry::ReadyPart;
use crate::pipeline::{Duty, Route, server_of};
use crate::sched::{TaskId, TaskSpec};
use crate::types::{
    Defect, Demand, DeviceKind, Epoch, Holdings, Op, PartId, ServerId, SumId, TensorKey, Time, planted,
};
use crate::wire::{Body, Contributors, Restore, Target};

impl Worker {
    /// The server to which a part goes now, or once a recovery is over.
    pub(super) fn server_of(&self, part: PartId, home: ServerId) -> ServerId {
        server_of(part, home, self.recovery.servers.iter().copied())
    }

    /// Whether the server of a task was lost.
    pub(super) fn is_lost(&self, task: TaskId) -> bool {
        self.scheduler.server(task).is_some_and(|server| !self.here().servers.contains_key(&server))
    }

    /// Whether sums are kept after they have come to their place.
    pub(super) fn keeps_sums(&self) -> bool {
        self.settings.keeps_sums
    }

    /// The exchange of a task brought a sum.
    pub(super) fn keep_sum(&mut self, now: Time, task: TaskId, body: Body, divisor: f64, contributors: Contributors) {
        let Record { part, errand, .. } = self.record(task);
        let Demand::Reduce { op, .. } = part.demand else { return };
        if !self.keeps_sums() || errand.is_some() {
            return;
        }
        let contributors = match (contributors, op) {
            (Contributors::Only(workers), _) => workers,
            (Contributors::Due, Op::Broadcast { root }) => [root].into_iter().collect(),
            // As in `note_contributors`.
            (Contributors::Due, _) => self.here().due_workers(&part.participants, part.round),
        };
        let is_here = part.demand.receives() && part.participants.receives(self.rank());
        let part = ReadyPart { tickets: Vec::new(), ..part.clone() };
        let kept = Kept { part, body: is_here.then_some(body), divisor, contributors, since: now };
        let sum = kept.id();
        self.recovery.whole.insert((now, sum.part));
        if let Some(before) = self.recovery.kept.insert(sum.part, kept)
            && before.since != now
        {
            self.recovery.whole.remove(&(before.since, sum.part));
        }
        if is_here && !planted(self.settings.scheduler.defect, Defect::SumNotKept) {
            self.commands.push_back(Command::Keep { task, part: sum.part });
        } else {
            self.commands.push_back(Command::DropKept(sum.part));
        }
    }

    /// Drops the sums for which nobody can wait any more.
    pub(super) fn drop_old_sums(&mut self, now: Time) {
        while self.kept_until().is_some_and(|until| until <= now) {
            let (_, part) = *self.recovery.whole.first().expect("one is due");
            self.drop_kept(part);
        }
    }

    /// When the oldest sum is to be dropped. None is while a recovery may need it.
    pub(super) fn kept_until(&self) -> Option<Time> {
        let oldest = self.recovery.whole.first().filter(|_| !self.recovers());
        // A worker that waits for a sum gives up after the step timeout.
        oldest.map(|(since, _)| *since + self.settings.bounds.step)
    }

    /// A tensor has failed for good, so that nobody gets its sums any more.
    pub(super) fn drop_sums_of(&mut self, key: TensorKey) {
        let parts = PartId { key, index: 0 }..=PartId { key, index: u32::MAX };
        let parts: Vec<PartId> = self.recovery.kept.range(parts).map(|(part, _)| *part).collect();
        parts.into_iter().for_each(|part| self.drop_kept(part));
    }

    fn drop_kept(&mut self, part: PartId) {
        if let Some(kept) = self.recovery.kept.remove(&part) {
            self.recovery.whole.remove(&(kept.since, part));
            self.commands.push_back(Command::DropKept(part));
        }
    }

    /// There is another view: a recovery begins, begins anew, or is over.
    pub(super) fn follow_servers(&mut self, now: Time) {
        if let Some((_, tasks)) = self.recovery.restoring.take() {
            tasks.into_iter().for_each(|task| self.scheduler.drop_withdrawal(now, task));
        }
        self.recovery.reported = None;
        if self.recovers() && !self.keeps_sums() {
            return self.handle_failed(
                now,
                Error::FailedPrecondition {
                    what: "a server was lost, and this worker keeps no sums for the others".to_owned(),
                    hint: "give all processes of the job the same on_server_loss".to_owned(),
                },
            );
        }
        if self.recovers() {
            if self.recovery.servers.is_empty() {
                // The first view that it sees.
                self.recovery.servers = (0..self.here().view.formed_servers).map(ServerId).collect();
            }
            return self.report_holdings();
        }
        self.recovery.servers = self.here().servers.keys().copied().collect();
        if self.recovery.servers.is_empty() {
            return;
        }
        let part = |(task, record): (TaskId, &Record)| (task, record.part.layout.part, record.part.layout.server);
        for (task, part, home) in self.tasks.iter().map(part).collect::<Vec<_>>() {
            self.scheduler.reroute(now, task, self.server_of(part, home));
        }
    }

    /// Tells the coordinator what this worker has and wants of the parts whose servers were lost, once nothing of them is under way.
    pub(super) fn report_holdings(&mut self) {
        let formation = self.here();
        let epoch = formation.epoch();
        if !self.recovers() || self.recovery.reported == Some(epoch) || self.ended.is_some() {
            return;
        }
        let is_open = |(task, record): (TaskId, &Record)| {
            matches!(record.held, Some(Held::Exchange { .. })) && self.is_lost(task)
        };
        let reports_early = planted(self.settings.scheduler.defect, Defect::HoldingsToldEarly);
        if !reports_early && self.tasks.iter().any(is_open) {
            return;
        }
        let mut holdings = Holdings { epoch, ..Holdings::default() };
        for kept in self.recovery.kept.values() {
            let layout = &kept.part.layout;
            if !formation.servers.contains_key(&self.server_of(layout.part, layout.server)) {
                let list = if kept.body.is_some() { &mut holdings.has } else { &mut holdings.knows };
                list.push(kept.id());
            }
        }
        let wants_sum = |record: &Record| record.errand.is_none() && !record.part.demand.is_of_residual();
        for (task, record) in self.tasks.iter().filter(|(task, record)| wants_sum(record) && self.is_lost(*task)) {
            let sum = SumId { part: record.part.layout.part, round: record.part.round };
            let is_whole = self.recovery.kept.get(&sum.part).is_some_and(|kept| kept.id() == sum);
            if !is_whole && self.scheduler.is_wanted(task) {
                holdings.wants.push(sum);
            }
        }
        self.recovery.reported = Some(epoch);
        self.commands.push_back(Command::Report(holdings));
    }

    /// The coordinator wants these sums at the servers that their parts have now. Those that are `lost` this worker waits for in vain, as they
    /// were to go to it alone. A request of another epoch is ignored.
    pub fn handle_restore(&mut self, now: Time, epoch: Epoch, sums: Vec<SumId>, lost: &[SumId]) {
        if !self.recovers() || self.here().epoch() != epoch {
            return;
        }
        for sum in lost {
            self.fail_lost(now, *sum);
        }
        if sums.is_empty() {
            return;
        }
        match &self.recovery.restoring {
            Some((_, tasks)) if tasks.is_empty() => return self.commands.push_back(Command::Restored(epoch)),
            Some(_) => return,
            None => {}
        }
        let is_it = |kept: &&Kept, sum: &SumId| kept.id() == *sum && kept.body.is_some();
        let kept = |sum: &SumId| self.recovery.kept.get(&sum.part).filter(|kept| is_it(kept, sum)).cloned();
        // It asks for what it was told of. Anything else gets no answer.
        let Some(all) = sums.iter().map(kept).collect::<Option<Vec<Kept>>>() else { return };
        let mut tasks = BTreeSet::new();
        for kept in all {
            let sum = kept.id();
            let layout = &kept.part.layout;
            let spec = TaskSpec {
                part: sum.part,
                server: server_of(sum.part, layout.server, self.here().servers.keys().copied()),
                bytes: 0,
                round: sum.round,
                priority: self.most_urgent,
                route: Route::host(Duty::Alone),
                groups: Vec::new(),
            };
            let Some(task) = self.scheduler.restore(now, spec) else { return };
            let record = Record::new(kept.part.clone(), DeviceKind::Host, None, self.most_urgent);
            let bytes = kept.body.map_or(0, |body| body.bytes);
            self.carry_errand(task, record, Errand::Restore(kept), Load::Kept { part: sum.part, bytes });
            tasks.insert(task);
        }
        self.recovery.restoring = Some((epoch, tasks));
    }

    /// Nobody has this sum any more. Of a worker that was only to hear of it nothing ends: the server tells it what became of the receiver.
    fn fail_lost(&mut self, now: Time, sum: SumId) {
        let rank = self.rank();
        let is_it = |Record { errand, part, .. }: &Record| {
            let is_for_this = part.demand.receives() && part.participants.receives(rank);
            errand.is_none() && is_for_this && (part.layout.part, part.round) == (sum.part, sum.round)
        };
        let waiting: Vec<TaskId> = self.tasks.iter().filter(|(_, of)| is_it(of)).map(|(task, _)| task).collect();
        for task in waiting {
            let error = Error::TensorState {
                tensor: sum.part.key.into(),
                what: format!("{} was lost with its server, and it was to go to this worker alone", sum.round),
                hint: "send it again under another round, or restart from a checkpoint".to_owned(),
            };
            let error = self.with_name(task, error);
            let submissions = self.record(task).part.tickets.clone();
            self.fail_all(now, submissions, &error);
        }
    }

    /// A server has taken the sum that a task has brought.
    pub(super) fn note_restored(&mut self, task: TaskId) {
        let Some((epoch, tasks)) = &mut self.recovery.restoring else { return };
        if tasks.remove(&task) && tasks.is_empty() {
            self.commands.push_back(Command::Restored(*epoch));
        }
    }

    /// The header that opens the exchange of such a task.
    pub(super) fn restoring_header(&self, target: Target, kept: &Kept) -> Restore {
        let Kept { part, body, divisor, contributors, .. } = kept;
        Restore {
            target,
            dtype: part.layout.dtype,
            op: part.reduction().0,
            participants: part.participants.clone(),
            part_bytes: part.layout.bytes(),
            body: body.expect("only what is here is restored"),
            checksum: None,
            divisor: *divisor,
            contributors: contributors.clone(),
        }
    }

    fn recovers(&self) -> bool {
        self.formation().is_some_and(|formation| formation.view.recovers)
    }
}
