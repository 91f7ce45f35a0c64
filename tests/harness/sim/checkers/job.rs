//! Memberships, deaths, barriers and the end of the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::cluster::Patience;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Epoch, NodeId, PartId, Phase, Round, TensorKey, Time, View};
use gradlane_core::wire::Frame;

use super::{Checker, Witness};
use crate::sim::topology::Topology;
use crate::sim::workload::{Plan, timing};
use crate::sim::world::{Address, Who};

/// What the witness knows of the job.
#[derive(Debug)]
pub(super) struct Job {
    /// Whether a job of some term ended in order.
    ended_in_order: bool,
    workers: u32,
    servers: u32,
    topology: Topology,
    nodes: BTreeMap<NodeId, Who>,
    /// By name, such as `worker 1`.
    pub(super) members: BTreeMap<String, Address>,
    /// Why the job may end with an error.
    pub(super) fatal: Option<String>,
    /// The cause that members were told.
    pub(super) cause: Option<Error>,
    /// When the job formed.
    formed: Option<Time>,
    /// Who speaks on a control connection.
    speakers: BTreeMap<u64, Address>,
    /// Connections on which a member has joined.
    joined: BTreeSet<u64>,
    heard: BTreeMap<Address, Time>,
    pub(super) shut_out: BTreeSet<Address>,
    /// Those of them that the coordinator which runs now has shut out. One that was started again leads another job.
    shut_out_now: BTreeSet<Address>,
    epochs: BTreeMap<Address, Epoch>,
    /// When each worker said that it leaves.
    pub(super) left: BTreeMap<Who, Time>,
    /// Those of them of whom the coordinator has heard it.
    heard_to_leave: BTreeSet<Who>,
    /// Those of them that left at a boundary between steps: no call of another worker may fail because of it.
    pub(super) released: BTreeSet<Who>,
    /// Declarations without an answer: which tensors.
    declaring: BTreeMap<(Address, u64), Vec<TensorKey>>,
    barriers: BTreeMap<String, Barrier>,
    /// Whether the job goes on without workers that are lost.
    pub(super) survivors: bool,
    /// Whether it goes on without servers that are lost.
    outlives: bool,
    /// The ranks of the workers in each view that the coordinator showed.
    views: BTreeMap<Epoch, Vec<u32>>,
    /// The ranks in the sums of each round of a part, which should be one, and who has it.
    sums: BTreeMap<(PartId, Round), BTreeMap<Vec<u32>, BTreeSet<Who>>>,
}

/// Who came to a barrier, and how long it waits.
#[derive(Debug, Default)]
struct Barrier {
    arrived: BTreeMap<Who, (Time, Patience)>,
    waiting: BTreeSet<Who>,
    /// Somebody's wait failed, for a reason that was found: who came before is gone, and nobody comes for those who come later.
    broken: bool,
}

/// Longer than a message travels.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl Job {
    /// The coordinator gave this process up, or told it so.
    fn shut_out(&mut self, address: Address) {
        self.shut_out.insert(address);
        self.shut_out_now.insert(address);
    }

    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            ended_in_order: false,
            workers: plan.workers,
            servers: plan.servers,
            topology: plan.topology.clone(),
            nodes: BTreeMap::new(),
            members: BTreeMap::new(),
            fatal: None,
            cause: None,
            formed: None,
            speakers: BTreeMap::new(),
            joined: BTreeSet::new(),
            heard: BTreeMap::new(),
            shut_out: BTreeSet::new(),
            shut_out_now: BTreeSet::new(),
            epochs: BTreeMap::new(),
            left: BTreeMap::new(),
            heard_to_leave: BTreeSet::new(),
            released: BTreeSet::new(),
            declaring: BTreeMap::new(),
            barriers: BTreeMap::new(),
            survivors: plan.classes.survivors,
            outlives: plan.classes.outlives,
            views: BTreeMap::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Whether the coordinator gave a worker up while the job ran.
    pub(super) fn is_lost(&self, who: Who) -> bool {
        self.members.values().any(|member| member.who == who && self.shut_out.contains(member))
    }

    /// Whether the job lost a server, and went on.
    pub(super) fn has_lost_server(&self) -> bool {
        self.outlives && self.servers().any(|server| self.is_lost(server))
    }

    /// Whether a worker has left in order, and not at a boundary.
    pub(super) fn has_left(&self, who: Who) -> bool {
        self.left.contains_key(&who) && !self.released.contains(&who)
    }

    /// Whether a process is a member that was not given up. A process that came too late is none.
    pub(super) fn is_present(&self, who: Who) -> bool {
        self.members.values().any(|member| member.who == who && !self.shut_out.contains(member))
    }

    /// How many workers the job lost and went on.
    pub(super) fn losses(&self) -> u32 {
        if self.survivors { self.workers().filter(|who| self.is_lost(*who)).count() as u32 } else { 0 }
    }

    /// How many workers the job lost or saw leave, and went on.
    pub(super) fn departures(&self) -> u32 {
        let have_left = |who: &Who| self.left.contains_key(who) && !self.is_lost(*who);
        if self.survivors { self.losses() + self.workers().filter(have_left).count() as u32 } else { 0 }
    }

    /// The workers that have not come to the barrier at which this one waits, if it waits at one.
    pub(super) fn missing_at_barrier_of(&self, who: Who) -> Vec<Who> {
        let of = self.barriers.values().find(|barrier| barrier.waiting.contains(&who));
        of.map_or_else(Vec::new, |barrier| {
            self.workers().filter(|other| !barrier.arrived.contains_key(other)).collect()
        })
    }

    /// Whether a worker waits at a barrier at which the wait of others failed.
    pub(super) fn waits_in_vain(&self, who: Who) -> bool {
        self.barriers.values().any(|barrier| barrier.broken && barrier.waiting.contains(&who))
    }

    /// Every worker process.
    pub(super) fn workers(&self) -> impl Iterator<Item = Who> + use<> {
        (0..self.workers).map(Who::Worker)
    }

    /// Whether a process shares its machine with other workers.
    pub(super) fn has_neighbours(&self, who: Who) -> bool {
        matches!(who, Who::Worker(number) if self.topology.team(number).len() > 1)
    }

    /// Whether two workers run on one machine.
    pub(super) fn shares_machine(&self, one: Who, other: Who) -> bool {
        let (Who::Worker(one), Who::Worker(other)) = (one, other) else { return false };
        self.topology.team(one).contains(&other)
    }

    /// Every server process.
    pub(super) fn servers(&self) -> impl Iterator<Item = Who> + use<> {
        (0..self.servers).map(Who::Server)
    }

    /// The process that has a rank.
    pub(super) fn worker_of_rank(&self, rank: u32) -> Option<Who> {
        self.members.get(&format!("worker {rank}")).map(|address| address.who)
    }
}

impl Witness {
    /// A life of a process begins, with this identity.
    pub(in crate::sim) fn started(&mut self, address: Address, node: NodeId) {
        self.job.nodes.insert(node, address.who);
        if address.life > 0 {
            self.runs_again(address.who);
        }
    }

    /// A coordinator starts, the first one or one after it.
    pub(in crate::sim) fn coordinator_starts(&mut self) {
        self.job.shut_out_now.clear();
    }

    /// A process connected to the coordinator.
    pub(in crate::sim) fn connected(&mut self, control: u64, from: Address) {
        self.job.speakers.insert(control, from);
    }

    /// Who speaks on a control connection.
    pub(in crate::sim) fn speaker_on(&self, control: u64) -> Option<Who> {
        self.job.speakers.get(&control).map(|speaker| speaker.who)
    }

    /// The coordinator got a frame.
    pub(in crate::sim) fn told(&mut self, control: u64, frame: &Frame) {
        let now = self.world;
        let Some(speaker) = self.job.speakers.get(&control).copied() else { return };
        // A connection on which nobody has joined yet is no sign of life.
        if let Frame::Join(_) = frame {
            self.job.joined.insert(control);
        }
        if self.job.joined.contains(&control) {
            self.job.heard.insert(speaker, now);
        }
        match frame {
            Frame::Leave => {
                self.job.heard_to_leave.insert(speaker.who);
                self.leaves(speaker.who);
            }
            Frame::Steps(report) => self.steps_told(speaker.who, *report),
            Frame::Declare { request, tensors, .. } => {
                let keys = tensors.iter().map(gradlane_core::types::TensorSpec::key).collect();
                self.job.declaring.insert((speaker, *request), keys);
            }
            _ => {}
        }
    }

    /// A worker tells the coordinator or the ranks of its machine that it leaves.
    pub(in crate::sim) fn leaves(&mut self, who: Who) {
        let now = self.world;
        self.job.left.entry(who).or_insert(now);
    }

    /// The coordinator sends a frame.
    pub(in crate::sim) fn said(&mut self, control: u64, frame: &Frame) {
        if let Frame::View(view) = frame {
            self.job.views.insert(view.epoch, view.workers().map(|member| member.index).collect());
            match &view.phase {
                Phase::Aborted(cause) | Phase::Restores(cause) => {
                    self.job.cause.get_or_insert(cause.clone());
                }
                Phase::Ended | Phase::FormsAgain => self.job.ended_in_order = true,
                Phase::Running => {
                    self.check_view(view);
                }
                Phase::Forming => {}
            }
        }
        if let Frame::Close(closing) = frame {
            self.closes(closing);
        }
        if let Frame::Ended { keys, .. } = frame {
            self.uses_end(keys);
        }
        let Some(to) = self.job.speakers.get(&control).copied() else { return };
        match frame {
            // One that has left at a boundary may still be connected.
            Frame::Refused(Error::Fenced { .. }) if self.job.released.contains(&to.who) => {}
            Frame::Refused(Error::Fenced { .. }) => self.job.shut_out(to),
            Frame::Refused(_)
            | Frame::BarrierDone { outcome: Err(_), .. }
            | Frame::StoreDone { outcome: Err(_), .. } => {}
            _ if self.job.shut_out_now.contains(&to) => {
                let text = format!("{} was shut out, and is sent {frame:?}", to.who);
                self.report(Checker::Fencing, text);
            }
            Frame::Declared { request, outcome } => {
                let keys = self.job.declaring.remove(&(to, *request)).unwrap_or_default();
                self.declared(to, &keys, outcome);
            }
            Frame::Forget { key, error } => self.forgotten(*key, error),
            Frame::Boundary { .. } | Frame::Passed { .. } => self.boundary_said(to.who, frame),
            _ => {}
        }
    }

    /// The job formed.
    pub(in crate::sim) fn formed(&mut self, view: &View) {
        self.job.formed.get_or_insert(self.world);
        for member in &view.members {
            let who = self.job.nodes[&member.node];
            let life = (member.process.incarnation.0 & u128::from(u32::MAX)) as u32;
            self.job.members.insert(member.name(), Address { who, life });
        }
    }

    /// The coordinator gave a member up.
    pub(in crate::sim) fn declared_dead(&mut self, member: &str, place: &str, cause: &str) {
        let now = self.world;
        let address = self.job.members[member];
        let silent = now.since(self.job.heard.get(&address).copied().unwrap_or_default());
        let since = now - (timing::DEAD + timing::DIAL);
        let apart = self.evidence.apart(address.who, Who::Coordinator, since, now);
        let is_witnessed = ["killed", "its process ended"].iter().any(|seen| cause.starts_with(seen));
        let seen = is_witnessed && self.evidence.is_killed(address);
        // A hundredth of the time may be due to the coordinator's clock.
        let overdue = self.did_not_leave(address.who, cause);
        if !seen && !overdue && (apart.is_zero() || silent.mul_f64(1.02) < timing::DEAD) {
            let text = format!("{member} on {place} was given up ({cause}), heard {:.1} s ago", silent.as_secs_f64());
            self.report(Checker::Death, text);
        }
        self.job.shut_out(address);
        let goes_on = match address.who {
            Who::Server(_) => self.job.outlives && self.job.servers().any(|who| self.job.is_present(who)),
            Who::Worker(_) => true,
            Who::Coordinator => false,
        };
        let goes_on = self.job.survivors && goes_on;
        if !goes_on || !self.job.workers().any(|who| self.job.is_present(who)) {
            self.job.fatal.get_or_insert(format!("{member} was lost"));
        }
    }

    /// The ranks of the workers in a view.
    pub(in crate::sim) fn workers_in(&self, epoch: Epoch) -> Vec<u32> {
        self.job.views.get(&epoch).cloned().unwrap_or_default()
    }

    /// A worker got a sum of these ranks. Each worker gets the same one, and the survivors are in it. `all` counts the members of the
    /// tensor, and `due` are those in the view.
    pub(in crate::sim) fn summed(
        &mut self,
        who: Who,
        (part, round): (PartId, Round),
        ranks: &[u32],
        (all, due): (usize, &[u32]),
    ) {
        let sums = self.job.sums.entry((part, round)).or_default();
        sums.entry(ranks.to_vec()).or_default().insert(who);
        let others = sums.iter().filter(|(of, _)| of.as_slice() != ranks);
        let others: Vec<(Vec<u32>, BTreeSet<Who>)> = others.map(|(of, who)| (of.clone(), who.clone())).collect();
        // Who is gone restores nothing that it had from a server that was lost.
        let is_gone = |who: &Who| self.job.has_left(*who) || self.job.is_lost(*who);
        let is_wrong = |who: &BTreeSet<Who>| !self.job.has_lost_server() || !who.iter().all(is_gone);
        if let Some((other, _)) = others.iter().find(|(_, who)| is_wrong(who)) {
            let text = format!("{who}: {round} of part {part} is of ranks {ranks:?}, and another worker has {other:?}");
            return self.report(Checker::Contributors, text);
        }
        let all = ranks.len() == all;
        if ranks.len() > 1 && !due.iter().all(|rank| ranks.contains(rank))
            || !self.job.survivors && ranks.len() > 1 && !all
        {
            let text = format!("{who}: {round} of part {part} is of ranks {ranks:?}, and due from {due:?}");
            self.report(Checker::Contributors, text);
        }
    }

    /// The coordinator ended the job.
    pub(in crate::sim) fn ended(&mut self, outcome: &Result<()>) {
        let Err(error) = outcome else {
            self.job.ended_in_order = true;
            return;
        };
        self.job.cause.get_or_insert(error.clone());
        if matches!(error, Error::NotFormed { .. }) && self.is_forming_disturbed() {
            self.job.fatal.get_or_insert("the job did not form".to_owned());
        }
        if self.job.fatal.is_none() {
            self.report(Checker::Failure, format!("the job ended without a reason: {error}"));
        }
    }

    /// Whether some member could not reach the coordinator for a while before the job formed.
    fn is_forming_disturbed(&self) -> bool {
        let mut members = self.job.workers().chain(self.job.servers());
        let apart = |who| self.evidence.apart(who, Who::Coordinator, Time::ZERO, self.world);
        members.any(|who| !apart(who).is_zero())
    }

    /// A member got a frame.
    pub(in crate::sim) fn heard(&mut self, me: Address, frame: &Frame) {
        let Frame::View(view) = frame else { return };
        let known = self.job.epochs.insert(me, view.epoch).unwrap_or_default();
        if view.epoch < known {
            let text = format!("{} went back from {known} to {}", me.who, view.epoch);
            self.report(Checker::Fencing, text);
        }
        if view.phase == Phase::Ended && self.job.cause.is_some() {
            self.report(Checker::Cause, format!("{} hears of a good end of a failed job", me.who));
        }
    }

    /// A worker comes to a barrier and waits there for so long.
    pub(in crate::sim) fn arrives(&mut self, who: Who, barrier: &str, patience: Patience) {
        let barrier = self.job.barriers.entry(barrier.to_owned()).or_default();
        barrier.arrived.insert(who, (self.world, patience));
        barrier.waiting.insert(who);
    }

    /// A worker's wait at a barrier ended.
    pub(in crate::sim) fn passes(&mut self, who: Who, name: &str, outcome: &Result<()>) {
        let now = self.world;
        // Nobody waits for workers that were lost, or have left at a boundary.
        let mut missing = self.job.missing_at_barrier_of(who);
        missing.retain(|other| self.job.is_present(*other) && !self.job.released.contains(other));
        let barrier = self.job.barriers.get_mut(name).expect("it arrived there");
        barrier.waiting.remove(&who);
        let (since, patience) = barrier.arrived[&who];
        let waited = now.since(since);
        let impatient = barrier.arrived.values().any(|(_, patience)| patience.length() < timing::BARRIER);
        let last_came = barrier.arrived.values().map(|(at, _)| *at).max().expect("it arrived there");
        let all_are_usual = barrier.arrived.values().all(|(_, patience)| matches!(patience, Patience::Usual(_)));
        let in_vain = barrier.broken;
        // The coordinator may not know yet of those who have just come.
        let is_new = |other: &Who| barrier.arrived.get(other).is_some_and(|(at, _)| *at + ON_ITS_WAY > now);
        let just_came: Vec<Who> = barrier.arrived.keys().copied().filter(is_new).collect();
        barrier.broken |= outcome.is_err();
        if waited > self.longest_request(who, since, patience) {
            let text = format!("{who} waited {:.1} s at barrier {name:?}", waited.as_secs_f64());
            self.report(Checker::Liveness, text);
        }
        if all_are_usual {
            self.check_patience(last_came, patience, outcome.as_ref().err(), &format!("{who} at barrier {name:?}"));
        }
        let Err(error) = outcome else {
            if !missing.is_empty() {
                self.report(Checker::Barrier, format!("{who} passes barrier {name:?} without {missing:?}"));
            }
            return;
        };
        self.calls.held_up(who, since, now);
        missing.extend(just_came);
        // Somebody waits for a short time only, or is late because of a fault.
        let explained = impatient
            || in_vain
            || self.is_of_the_end(who, error)
            || !missing.is_empty() && missing.iter().all(|other| self.why_late(*other, now).is_some());
        if !explained {
            self.report(Checker::Barrier, format!("{who} at barrier {name:?}: {error}"));
        }
    }

    /// At the end: how the membership of a process ended, and how the coordinator says that the job did.
    pub(in crate::sim) fn process_ended(
        &mut self,
        me: Address,
        ended: Option<&Result<()>>,
        cause: Option<&Result<()>>,
    ) {
        let Some(ended) = ended else { return };
        let fits = match (ended, cause) {
            (Ok(()), Some(Ok(())) | None) => true,
            // A coordinator that was started again after the end of the job leads a job of its own, which nobody joins.
            (Ok(()), Some(Err(_))) => self.job.ended_in_order || self.job.released.contains(&me.who),
            (Err(Error::Fenced { .. }), _) => self.job.shut_out.contains(&me),
            (Err(error), Some(Err(cause))) if error == cause => true,
            // It may have ended long ago.
            (Err(error), _) => self.is_end_since(Time::ZERO, me.who, error) || self.is_refusal_of(me, error),
        };
        if !fits {
            let text = format!("{} ended with {ended:?}, the job with {cause:?}", me.who);
            self.report(Checker::Cause, text);
        }
    }

    /// Whether `error` is the end of the job, as this process may see it: the cause that the coordinator gave, or the loss of the
    /// coordinator by a process that could not reach it.
    pub(super) fn is_of_the_end(&self, who: Who, error: &Error) -> bool {
        let patience = timing::CONTROL_LOST + timing::DEAD * 2;
        self.is_end_since(self.world - patience * 3, who, error)
    }

    fn is_end_since(&self, since: Time, who: Who, error: &Error) -> bool {
        if self.job.cause.as_ref() == Some(error) {
            return true;
        }
        if let Error::Fenced { .. } = error {
            return self.job.shut_out.iter().any(|address| address.who == who);
        }
        let lost = match error {
            // A coordinator that was started again leads another job.
            Error::OtherTerm { .. } => return self.evidence.coordinator_killed(),
            Error::PeerLost { member, .. } => member == "coordinator",
            Error::Timeout { what, .. } => what.starts_with("joining the job"),
            _ => false,
        };
        let apart = self.evidence.apart(who, Who::Coordinator, since, self.world);
        lost && (self.evidence.coordinator_killed() || apart >= timing::DEAD)
    }

    /// Whether `error` may keep a process out that was started again, or came when the job had formed.
    fn is_refusal_of(&self, me: Address, error: &Error) -> bool {
        let late = me.life > 0 || !self.job.members.values().any(|member| *member == me);
        let refusal = match error {
            Error::DuplicateRank { .. } => true,
            Error::FailedPrecondition { what, .. } => what.contains("job"),
            _ => false,
        };
        late && refusal
    }
}
