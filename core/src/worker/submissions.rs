//! Submissions, from the call that makes them to their one outcome.
//!
//! ```text
//!  submit ──► Parked ──declared──► Open ──the group resolves──► (resolved)
//!    │          └─ cancelled, too late, its tensor failed, the job ended ──► (resolved)
//!    ├──► Open, where the layout is known
//!    └──► (resolved), where the tensor or the job has failed
//! ```
//! A parked submission that ends early keeps its place in its tensor's queue, because its round counts: the other workers count that round
//! too.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::command::{Command, Load, Piece};
use super::formation::Formation;
use super::machine::Worker;
use super::records::{Accepted, Members, Parked, Plan, Record, Submission, Tensor, Tensors, Terms};
use crate::codec::Coding;
use crate::error::{Error, Result};
use crate::pipeline::registry::{Lookup, ReadyPart, Submitted, Unit, Whole};
use crate::pipeline::{Duty, Route};
use crate::sched::{GroupId, TaskId, TaskSpec};
use crate::types::{Defect, DeviceKind, InCopies, PartLayout, Priority, Round, TensorKey, TensorSpec, Time, planted};

impl Worker {
    /// Notes that these tensors are wanted, and asks for the layout of those that are not known. Returns the requests whose answers bring
    /// their layouts; none if all are known.
    ///
    /// # Errors
    /// The failure of one of the tensors, [`Error::Mismatch`] if one was declared differently on this worker, or why the job ended.
    pub fn declare(&mut self, tensors: Vec<TensorSpec>, fuse: bool) -> Result<BTreeSet<u64>> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let (mut unknown, mut requests) = (Vec::new(), BTreeSet::new());
        for tensor in tensors {
            match self.registry.lookup(&tensor)? {
                Lookup::Unknown => unknown.push(tensor),
                // Another thread has asked.
                Lookup::Declaring => requests.extend(self.registry.request_of(tensor.key())),
                Lookup::Ready => {}
            }
        }
        if !unknown.is_empty() {
            requests.insert(self.ask(unknown, fuse));
        }
        Ok(requests)
    }

    /// Accepts a submission of one tensor with the spec `spec`. Returns its id. The submission always ends with a [`Command::Resolve`].
    pub fn submit(&mut self, now: Time, spec: &TensorSpec, tensor: Tensor, terms: Terms) -> u64 {
        let known = self.reach_servers(now, spec).and_then(|()| self.registry.lookup(spec));
        if known == Ok(Lookup::Unknown) && self.ended.is_none() {
            self.ask(vec![spec.clone()], false);
        }
        self.take_one(now, tensor, terms, known)
    }

    /// Accepts a batch: all of it, or nothing. Tensors of the batch that together fill a part become one submission. Unknown tensors are
    /// declared in one request, and small neighbours among them share parts. `tensor` tells where a member lies.
    ///
    /// # Errors
    /// Any error that would fail one of the members at once. If the job has ended, the submissions are accepted and then fail.
    pub fn submit_all(
        &mut self,
        now: Time,
        specs: &[TensorSpec],
        tensor: impl Fn(usize) -> Tensor,
        terms: Terms,
    ) -> Result<Accepted> {
        if terms.demand.is_of_residual() {
            self.check_residual_use(specs)?;
        }
        let units = match &self.ended {
            None => {
                let keys = (0..specs.len()).map(|member| tensor(member).key);
                self.registry.admit_all(keys.zip(specs), terms.demand)?
            }
            Some(_) => (0..specs.len()).map(|member| Unit::Alone { member, known: Lookup::Ready }).collect(),
        };
        let unknown = |unit: &Unit| match unit {
            Unit::Alone { member, known: Lookup::Unknown } => Some(specs[*member].clone()),
            Unit::Alone { .. } | Unit::Whole(_) => None,
        };
        let unknown: Vec<TensorSpec> = units.iter().filter_map(unknown).collect();
        if !unknown.is_empty() {
            self.ask(unknown, true);
        }
        let first = self.numbers.coming_submission();
        let take = |unit| match unit {
            Unit::Alone { member, known } => {
                self.take_one(now, tensor(member), terms, Ok(known));
                Members::One(member)
            }
            Unit::Whole(mut whole) => {
                let members = std::mem::take(&mut whole.members);
                self.take_whole(now, members.iter().map(|member| tensor(*member)).collect(), terms, whole);
                Members::Whole(members)
            }
        };
        Ok(Accepted { first, submissions: units.into_iter().map(take).collect() })
    }

    /// Takes the coordinator's answer to a declaration. An answer that nobody waits for is ignored.
    ///
    /// The coordinator refuses a whole list, even if only one tensor is wrong. The tensors of a refused list are declared again one by one,
    /// because the other workers would wait for the correct ones.
    pub fn handle_declared(&mut self, now: Time, request: u64, outcome: Result<Vec<PartLayout>>) {
        if let (Err(_), None) = (&outcome, &self.ended)
            && !planted(self.settings.scheduler.defect, Defect::RefusedListDropped)
            && let Some(list) = self.registry.take_list(request)
        {
            for spec in list {
                self.ask(vec![spec], false);
            }
            return;
        }
        for key in self.registry.handle_declared(request, outcome) {
            self.unpark(now, key);
        }
    }

    /// A tensor failed for good on every worker. The tensors that share a part with it fail too.
    pub fn handle_forget(&mut self, now: Time, key: TensorKey, error: &Error) {
        for key in self.registry.handle_forget(key, error.clone()) {
            self.parking.take(key);
            self.drop_sums_of(key);
            let residuals = self.residuals.end(&BTreeSet::from([key]));
            self.commands.extend(residuals.into_iter().map(Command::DropResidual));
            // This is a scan, because a tensor fails once in a job's life. An index would cost time in every submission.
            let has = |submission: &Submission| submission.tensors.as_slice().iter().any(|tensor| tensor.key == key);
            let failed = self.submissions.iter().filter(|(_, submission)| has(submission));
            let failed: Vec<(u64, Option<GroupId>)> = failed.map(|(id, submission)| (*id, submission.group)).collect();
            for (id, group) in failed {
                self.fail(now, id, group, error);
            }
        }
    }

    /// The round of the next submission of a tensor; `None` if this worker has not declared it.
    pub fn next_round(&self, key: TensorKey) -> Option<Round> {
        Some(Round(self.registry.rounds(key)? + self.parking.count(key) as u64))
    }

    /// Ends a submission because the caller no longer wants it. It resolves with [`Error::Cancelled`] once no task holds its memory. A call
    /// that comes too late is ignored.
    pub fn cancel(&mut self, now: Time, submission: u64) {
        if let Some(group) = self.submissions.get(&submission).map(|submission| submission.group) {
            self.fail(now, submission, group, &Error::Cancelled);
        }
    }

    /// The pieces that a task moves, in the order of its bytes.
    pub fn pieces(&self, task: TaskId) -> impl Iterator<Item = Piece> {
        let ReadyPart { layout, tickets, .. } = self.part(task);
        // A submission that brings all pieces has its tensors in piece order. Any other submission has one tensor and brings one piece.
        let is_whole = tickets.len() == 1;
        let is_mixed = planted(self.settings.scheduler.defect, Defect::BatchMemoryMixed);
        let rows = self.record(task).rows;
        let of = move |(position, piece): (usize, &crate::types::Piece)| {
            let (submission, tensor) = match is_whole {
                true if is_mixed => (tickets[0], 0),
                true => (tickets[0], position),
                false => (tickets[position], 0),
            };
            let (span, into) = rows.map_or((piece.span, piece.span), |rows| (rows.sent, rows.got));
            Piece { submission, tensor, span, into }
        };
        layout.pieces.iter().enumerate().map(of)
    }

    /// The submissions that a task serves; none if it was released.
    pub fn submissions_of(&self, task: TaskId) -> &[u64] {
        self.tasks.get(task).map_or(&[], |record| &record.part.tickets)
    }

    /// Takes the notice that the step of a task's last stage is on its device, with everything that it does to the task's memory. It may
    /// come after the end of the step.
    pub fn handle_issued(&mut self, task: TaskId) {
        let Some(record) = self.tasks.get(task) else { return };
        for id in &record.part.tickets {
            let Some(submission) = self.submissions.get_mut(id) else { continue };
            submission.unissued -= 1;
            if submission.unissued == 0 {
                self.commands.push_back(Command::Issued { submission: *id });
            }
        }
    }

    /// Fails these submissions, as far as they have tasks.
    pub(super) fn fail_all(&mut self, now: Time, submissions: impl IntoIterator<Item = u64>, error: &Error) {
        for submission in submissions {
            if let Some(group) = self.submissions.get(&submission).and_then(|submission| submission.group) {
                self.scheduler.fail_group(now, group, error.clone());
            }
        }
    }

    fn fail(&mut self, now: Time, id: u64, group: Option<GroupId>, error: &Error) {
        match group {
            Some(group) => self.scheduler.fail_group(now, group, error.clone()),
            None => self.resolve(id, Err(error.clone())),
        }
    }

    fn ask(&mut self, tensors: Vec<TensorSpec>, fuse: bool) -> u64 {
        let request = self.numbers.next_request();
        self.registry.declaring(request, &tensors);
        self.commands.push_back(Command::Declare { request, tensors, fuse });
        request
    }

    fn take_one(&mut self, now: Time, tensor: Tensor, terms: Terms, known: Result<Lookup>) -> u64 {
        let key = tensor.key;
        let known = known.and_then(|lookup| self.check_cuts(&tensor).map(|()| lookup));
        let id = self.take_in(now, Tensors::One(tensor), terms);
        if let Some(error) = self.ended.clone() {
            self.resolve(id, Err(error));
            return id;
        }
        match known {
            Err(error) => self.resolve(id, Err(error)),
            Ok(Lookup::Ready) => self.begin(now, id),
            Ok(Lookup::Declaring | Lookup::Unknown) => self.park(id, key),
        }
        id
    }

    fn take_whole(&mut self, now: Time, tensors: Vec<Tensor>, terms: Terms, whole: Whole) {
        let submitted = self.registry.submit_whole(whole, terms.demand, self.numbers.coming_submission());
        let id = self.take_in(now, Tensors::Whole(tensors), terms);
        self.open(now, id, submitted);
    }

    fn take_in(&mut self, now: Time, tensors: Tensors, terms: Terms) -> u64 {
        let id = self.numbers.next_submission();
        let (bytes, priority) = tensors.as_slice().iter().fold((0, Priority(i32::MIN)), |(bytes, priority), tensor| {
            (bytes + tensor.bytes, priority.max(tensor.priority))
        });
        let deadline = terms.timeout.map(|timeout| now + timeout);
        let declared_until = earlier(deadline, now + self.settings.bounds.unreached);
        self.outstanding.add(&tensors, bytes);
        let submission = Submission {
            tensors,
            terms,
            bytes,
            priority,
            submitted: now,
            deadline,
            declared_until,
            group: None,
            unissued: 0,
            effect: None,
        };
        self.submissions.insert(id, submission);
        id
    }

    /// Hands a submission of a declared tensor to the scheduler.
    fn begin(&mut self, now: Time, id: u64) {
        let Submission { tensors, terms, .. } = &self.submissions[&id];
        match self.registry.submit(now, tensors.as_slice()[0].key, terms.demand, id) {
            Ok(submitted) => self.open(now, id, submitted),
            Err(error) => self.resolve(id, Err(error)),
        }
    }

    fn open(&mut self, now: Time, id: u64, submitted: Submitted) {
        let submission = self.submissions.get_mut(&id).expect("opened once, before it resolves");
        self.outstanding.begin(&submission.tensors, submitted.round);
        let Submitted { name, round, shares, ready } = submitted;
        let group = self.scheduler.open_group(now, name, round, shares, submission.deadline);
        (submission.group, submission.unissued) = (Some(group), shares);
        self.groups.insert(group, id);
        for part in ready {
            self.enqueue(now, part);
        }
    }

    /// Gives the scheduler a task for a part whose tensors were all submitted.
    fn enqueue(&mut self, now: Time, part: ReadyPart) {
        let mut groups = Vec::with_capacity(part.tickets.len());
        let mut priority = Priority(i32::MIN);
        let (mut device, mut position, mut elsewhere, mut rows) = (None, 0, None, None);
        let (mut in_copies, mut in_place) = (InCopies::EncodeAndDecode, false);
        for id in &part.tickets {
            // A submission stays until its group resolves. A group resolves only when its shares are done or no task holds its memory.
            let Some(submission) = self.submissions.get(id) else {
                return self.withdraw_incomplete(now, &part);
            };
            groups.push(submission.group.expect("a submission whose part is ready opened a group"));
            priority = priority.max(submission.priority);
            for tensor in submission.tensors.as_slice() {
                rows =
                    tensor.cuts.as_ref().and_then(|cuts| cuts.iter().find(|cut| cut.part == part.layout.part).copied());
                if *device.get_or_insert(tensor.device) != tensor.device {
                    elsewhere.get_or_insert(position);
                }
                in_copies = in_copies.min(tensor.in_copies);
                in_place |= tensor.in_place;
                position += 1;
            }
        }
        if let Some(elsewhere) = elsewhere {
            return self.withdraw_scattered(now, &part, elsewhere);
        }
        let memory = device.flatten().map_or(DeviceKind::Host, |_| DeviceKind::Cuda);
        let plan = self.plan(&part, memory, in_copies, in_place);
        let route = plan.route;
        if route.duty == Duty::Together && memory == DeviceKind::Cuda {
            return self.withdraw_unreachable(now, &part);
        }
        let mut record = Record::new(part, memory, plan.coding, priority);
        plan.note_in(&mut record);
        record.note_rows(rows);
        let spec = TaskSpec {
            part: record.part.layout.part,
            server: self.server_of(record.part.layout.part, record.part.layout.server),
            bytes: record.body.bytes,
            round: record.part.round,
            priority,
            route,
            groups,
        };
        let task = self.scheduler.submit(now, spec);
        self.most_urgent = self.most_urgent.max(priority);
        self.tasks.insert(task, record);
        self.commands.push_back(Command::Carry { task, load: Load::Pieces });
    }

    /// The way of a part in `memory` through the present formation. `in_copies` says what the device of its tensors does with their codec,
    /// `in_place` whether the sum of one goes to the place of its contribution.
    pub(super) fn plan(&self, part: &ReadyPart, memory: DeviceKind, in_copies: InCopies, in_place: bool) -> Plan {
        let duty = self.duty(part, memory);
        let ranks = self.reducing_ranks(part);
        let coding = self.coding(part, duty, ranks);
        // What is reduced, encoded or copied first lies in memory that the sum takes as well.
        let shares_place = in_place || coding.is_some() || memory != DeviceKind::Host || ranks.get() > 1;
        // A sum that is kept for others lies in memory of the engine, wherever it belongs.
        let is_kept = (shares_place || self.keeps_sums()) && self.is_kept(part, duty);
        let lands_beside = is_kept && !planted(self.settings.scheduler.defect, Defect::LandsOnKept);
        // Residuals lie in host memory.
        let is_known = coding.is_some_and(|coding| !coding.codec.has_feedback());
        let in_copies = self.here().pipeline.in_copies(memory, if is_known { in_copies } else { InCopies::Nothing });
        let compressed = coding.is_some() && in_copies < InCopies::Encode;
        let decompressed = coding.is_some() && in_copies < InCopies::EncodeAndDecode;
        let aside = self.is_set_aside(part, duty, memory);
        let lands = lands_beside && coding.is_none() && memory == DeviceKind::Host && !aside;
        let route = Route { compressed, decompressed, lands, aside, ..Route::new(duty, memory) };
        Plan { route, coding, in_copies, is_overwritten: shares_place && !is_kept, lands_beside }
    }

    /// Whether what this rank pushes of a part is kept until its sum is whole. A server sums it anew if the job loses a worker. It does not do
    /// so with what changes a parameter, and a sum that goes to another worker overwrites nothing here.
    fn is_kept(&self, part: &ReadyPart, duty: Duty) -> bool {
        let pushes = self.here().pipeline.pushes() && matches!(duty, Duty::Owner | Duty::Alone);
        self.settings.keeps && pushes && part.demand.op().is_some()
    }

    /// Whether the ranks of this machine reduce a part in memory of the engine, and this rank gets its sum: it keeps its contribution until
    /// then, so that those that are left can reduce it again if the job loses one of them.
    fn is_set_aside(&self, part: &ReadyPart, duty: Duty, memory: DeviceKind) -> bool {
        let meets = self.here().pipeline.first_meeting(Route::new(duty, memory)).is_some();
        let gets_sum = part.demand.op().is_some() && part.participants.receives(self.rank());
        self.settings.keeps && memory == DeviceKind::Host && meets && gets_sum
    }

    /// How a part that `ranks` ranks have reduced is encoded on its way to its server. `None` if it travels unchanged, or does not travel.
    fn coding(&self, part: &ReadyPart, duty: Duty, ranks: NonZeroU32) -> Option<Coding> {
        let op = part.demand.op()?;
        let (dtype, codec) = (part.layout.dtype, part.layout.kind.codec().for_op(op));
        let coding = Coding::of(codec, dtype, op, ranks).filter(|_| part.layout.bytes() > 0);
        coding.filter(|_| self.here().pipeline.pushes() && duty != Duty::Together)
    }

    /// How many ranks of this machine reduce a part before one of them exchanges it.
    fn reducing_ranks(&self, part: &ReadyPart) -> NonZeroU32 {
        let Formation { machines, rank, .. } = self.here();
        let is_reduced = part.participants.is_everybody() && part.demand.op().is_some();
        let partners = machines.partners(part.layout.dtype, *rank).filter(|_| is_reduced);
        let ranks = partners.map_or(1, |partners| partners.len());
        u32::try_from(ranks).ok().and_then(NonZeroU32::new).expect("a machine has a few ranks")
    }

    /// The duty of this rank for a part whose tensors lie in `memory`.
    ///
    /// The participants of a tensor that is not of everybody share a machine, or exchange their contributions one by one. In the second case
    /// the ranks of a machine could reduce first, as for other tensors. But the sum of a machine would lie in the owner's destination, which
    /// must not change if the sum goes to another worker, and devices of some ranks have no communicator.
    pub(super) fn duty(&self, part: &ReadyPart, memory: DeviceKind) -> Duty {
        let formation = self.here();
        let (machines, rank, participants) = (&formation.machines, formation.rank, &part.participants);
        if part.layout.kind.is_kept() || part.demand.is_of_residual() {
            return Duty::Client { receives: part.demand.receives() };
        }
        let (part, dtype) = (part.layout.part, part.layout.dtype);
        if !participants.is_everybody() {
            // In memory of devices, a server is the only way.
            let prefers_server = memory == DeviceKind::Cuda && formation.pipeline.pushes();
            return match machines.are_together(participants, rank) && !prefers_server {
                true => Duty::Together,
                false if participants.receives(rank) => Duty::Alone,
                false => Duty::Giver,
            };
        }
        match machines.partners(dtype, rank) {
            None if formation.pipeline.reduces() => Duty::Alone,
            None => Duty::Owner,
            Some(_) if machines.owner(part, dtype, rank) == rank => Duty::Owner,
            // If groups do not matter, the owner is the only holder.
            Some(_) if machines.holder(part, dtype, rank) == rank => Duty::Holder,
            Some(_) => Duty::Member,
        }
    }

    fn park(&mut self, id: u64, key: TensorKey) {
        let submission = &self.submissions[&id];
        let Terms { demand, .. } = submission.terms;
        self.parking.add(key, Parked { submission: id, demand }, submission.declared_until);
    }

    fn unpark(&mut self, now: Time, key: TensorKey) {
        for Parked { submission: id, demand } in self.parking.take(key) {
            if let Some(submission) = self.submissions.get(&id) {
                self.parking.forget(id, submission.declared_until);
                self.begin(now, id);
            } else if let Ok(ended) = self.registry.submit(now, key, demand, id) {
                for part in ended.ready {
                    self.withdraw_incomplete(now, &part);
                }
            }
        }
    }

    /// Fails the parked submissions whose deadline has passed.
    pub(super) fn fail_parked(&mut self, now: Time) {
        let patient_until = self.patient_until();
        while let Some(id) = self.parking.overdue(now) {
            let submission = self.submissions.get_mut(&id).expect("a deadline leaves with its submission");
            let later = earlier(submission.deadline, patient_until);
            if now < later {
                let due = std::mem::replace(&mut submission.declared_until, later);
                self.parking.defer(id, due, later);
                continue;
            }
            let key = submission.tensors.as_slice()[0].key;
            let name = self.registry.name_of(key).expect("a parked tensor was declared on this worker");
            let what = format!(
                "tensor {name}: waiting for its declaration (a name that was undeclared comes again once every worker has \
                 undeclared it)"
            );
            let waited = now.since(submission.submitted);
            self.resolve(id, Err(Error::Timeout { what, waited }));
        }
    }

    /// Fails every parked submission.
    pub(super) fn fail_all_parked(&mut self, error: &Error) {
        for Parked { submission, .. } in self.parking.take_all() {
            self.resolve(submission, Err(error.clone()));
        }
    }

    /// Ends a submission.
    pub(super) fn resolve(&mut self, id: u64, outcome: Result<()>) {
        if let Some(command) = self.resolved(id, outcome) {
            self.commands.push_back(command);
        }
    }

    /// Forgets a submission that ended. Returns the command that tells the driver.
    pub(super) fn resolved(&mut self, id: u64, outcome: Result<()>) -> Option<Command> {
        let submission = self.submissions.remove(&id)?;
        let tensors = submission.tensors.as_slice().len() as u64;
        self.outstanding.remove(&submission.tensors, submission.bytes);
        match submission.group {
            Some(group) => drop(self.groups.remove(group)),
            None => self.parking.forget(id, submission.declared_until),
        }
        Some(Command::Resolve {
            submission: id,
            tensors,
            submitted: submission.submitted,
            effect: submission.effect.filter(|_| outcome.is_ok()),
            outcome,
        })
    }
}

/// The earlier one of a deadline, if there is one, and another time.
fn earlier(deadline: Option<Time>, other: Time) -> Time {
    deadline.map_or(other, |deadline| deadline.min(other))
}
