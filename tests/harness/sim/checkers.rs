//! What must hold, whatever goes wrong, and what may happen only if something did go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Epoch, NodeId, Phase, Time, View};
use gradlane_core::wire::Frame;

use super::coordinator::is_coordinator_lost;
use super::workload::{Plan, timing};
use super::world::{Address, Who};

/// A property that a run must have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Checker {
    /// Every result is the exact result of its own round, each rank counted once.
    Sum,
    /// A result says how many contributed.
    Contributors,
    /// A contribution that is sent is the caller's, not overwritten by anything.
    Contribution,
    /// Nobody touches memory that was not lent, or keeps what is over.
    Memory,
    /// Every submission resolves once.
    Handle,
    /// Once the faults are over, everything ends.
    Liveness,
    /// Without a reason nothing fails.
    Failure,
    /// Everybody hears the one cause of the end.
    Cause,
    /// Only who was silent is given up.
    Death,
    /// Nothing of an earlier membership or life has an effect.
    Fencing,
    /// Credit that was drawn comes back.
    Credit,
    /// A part's rounds are pushed one after the other; two of them live on a server.
    Rounds,
    /// A barrier opens when all have come, for all.
    Barrier,
    /// Nothing grows without a bound.
    Growth,
    /// No machine panics.
    Panic,
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// What went wrong, first.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Who noticed.
    pub checker: Checker,
    /// When.
    pub at: Time,
    /// What.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.checker, self.at.0 as f64 / 1e9, self.text)
    }
}

/// Sees everything and remembers what excuses a failure.
#[derive(Debug)]
pub(super) struct Witness {
    violation: Option<Violation>,
    /// From, until, who could not act or be heard.
    disturbances: Vec<(Time, Time, Who)>,
    killed: BTreeSet<Who>,
    /// Why the job may fail.
    fatal: Option<String>,
    /// The cause that members were told.
    cause: Option<Error>,
    /// Tensors whose submissions may fail: a caller gave one up, or workers disagree.
    excused: BTreeSet<usize>,
    /// Who speaks on a control connection.
    speakers: BTreeMap<u64, Address>,
    heard: BTreeMap<Address, Time>,
    shut_out: BTreeSet<Address>,
    epochs: BTreeMap<Address, Epoch>,
    members: BTreeMap<String, Address>,
    nodes: BTreeMap<NodeId, Who>,
    barriers: BTreeMap<String, BTreeSet<Who>>,
    /// Barriers at which somebody waits for a short time only.
    impatient: BTreeSet<String>,
    /// Whether a caller gave something up, so that workers may wait for each other in different places until their patience ends.
    out_of_step: bool,
    /// Whether somebody may be cut off for longer than its patience.
    cut_off: bool,
    /// When the first worker wished to leave.
    left: Option<Time>,
    /// Whether one worker has none of the tensors, so that the others wait for it elsewhere for longer than anybody says anything.
    mismatched: bool,
    /// When a rank gave up which tensor and round.
    given_up: BTreeMap<(u32, usize, u64), Time>,
    workers: u32,
}

impl Witness {
    /// Nothing seen yet.
    pub(super) fn new(plan: &Plan) -> Self {
        let everybody = (0..plan.workers).map(Who::Worker).chain((0..plan.servers).map(Who::Server));
        let mut this = Self {
            violation: None,
            disturbances: Vec::new(),
            killed: BTreeSet::new(),
            fatal: None,
            cause: None,
            excused: BTreeSet::new(),
            speakers: BTreeMap::new(),
            heard: BTreeMap::new(),
            shut_out: BTreeSet::new(),
            epochs: BTreeMap::new(),
            members: BTreeMap::new(),
            nodes: everybody.map(|who| (who.node(), who)).collect(),
            barriers: BTreeMap::new(),
            impatient: BTreeSet::new(),
            out_of_step: plan.mismatch.is_some(),
            cut_off: plan.classes.long_partitions || plan.classes.long_pauses,
            left: None,
            mismatched: plan.mismatch.is_some(),
            given_up: BTreeMap::new(),
            workers: plan.workers,
        };
        if plan.mismatch.is_some() {
            // Who is refused one tensor of a declaration has none of the others either.
            this.excused.extend(0..plan.tensors.len());
        }
        this
    }

    /// The first violation.
    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation.clone()
    }

    /// `text` must not have happened.
    pub(super) fn fail(&mut self, at: Time, checker: Checker, text: String) {
        self.violation.get_or_insert(Violation { checker, at, text });
    }

    /// Time is over.
    pub(super) fn hang(&mut self, now: Time, unfinished: Vec<(Who, String)>) {
        let waits: Vec<String> = unfinished.into_iter().map(|(who, what)| format!("{who}: {what}")).collect();
        self.fail(now, Checker::Liveness, format!("not ended: {}", waits.join("; ")));
    }

    // What excuses.

    /// These processes could not act or be heard for a while.
    pub(super) fn disturbed(&mut self, from: Time, until: Time, whose: &[Who]) {
        self.disturbances.extend(whose.iter().map(|who| (from, until, *who)));
    }

    /// A process was killed.
    pub(super) fn killed(&mut self, now: Time, who: Who) {
        self.killed.insert(who);
        self.disturbed(now, Time(u64::MAX), &[who]);
        if who == Who::Coordinator {
            self.fatal.get_or_insert("the coordinator was killed".to_owned());
        }
    }

    /// A caller gave up a submission of these tensors: the others may miss it.
    pub(super) fn excuse(&mut self, tensors: impl IntoIterator<Item = usize>) {
        self.excused.extend(tensors);
        self.out_of_step = true;
    }

    /// Whether submissions of this tensor may fail.
    pub(super) fn is_excused(&self, tensor: usize) -> bool {
        self.excused.contains(&tensor)
    }

    // What the coordinator hears, says and decides.

    /// A process connected to the coordinator.
    pub(super) fn connected(&mut self, control: u64, from: Address) {
        self.speakers.insert(control, from);
    }

    /// The coordinator got a frame.
    pub(super) fn told(&mut self, now: Time, control: u64, frame: &Frame) {
        if let Frame::Leave = frame {
            self.left.get_or_insert(now);
        }
        if let Some(speaker) = self.speakers.get(&control) {
            self.heard.insert(*speaker, now);
        }
    }

    /// The coordinator sends a frame.
    pub(super) fn said(&mut self, now: Time, control: u64, frame: &Frame) {
        if let Frame::View(View { phase: Phase::Aborted(cause), .. }) = frame {
            self.cause.get_or_insert(cause.clone());
        }
        let Some(to) = self.speakers.get(&control).copied() else { return };
        match frame {
            Frame::Refused(Error::Fenced { .. }) => drop(self.shut_out.insert(to)),
            Frame::Refused(_) | Frame::BarrierDone { outcome: Err(_), .. } => {}
            _ if self.shut_out.contains(&to) => {
                let text = format!("{} was shut out, and is sent {frame:?}", to.who);
                self.fail(now, Checker::Fencing, text);
            }
            _ => {}
        }
    }

    /// The job formed.
    pub(super) fn formed(&mut self, view: &View) {
        for member in &view.members {
            let who = self.nodes[&member.node];
            let life = (member.process.incarnation.0 & u128::from(u32::MAX)) as u32;
            self.members.insert(member.name(), Address { who, life });
        }
    }

    /// The coordinator gave a member up.
    pub(super) fn declared_dead(&mut self, now: Time, member: &str, place: &str, cause: &str) {
        let address = self.members[member];
        let silent = now.since(self.heard.get(&address).copied().unwrap_or_default());
        let since = now - (timing::DEAD + timing::DIAL);
        let overlaps = |(from, until, who): &(Time, Time, Who)| {
            (*who == address.who || *who == Who::Coordinator) && *from <= now && *until >= since
        };
        let excused = self.disturbances.iter().any(overlaps);
        let seen = cause.starts_with("killed") && self.killed.contains(&address.who);
        if !seen && (!excused || silent < timing::DEAD) {
            let text = format!("{member} on {place} was given up ({cause}), heard {:.1} s ago", silent.as_secs_f64());
            self.fail(now, Checker::Death, text);
        }
        self.shut_out.insert(address);
        self.fatal.get_or_insert(format!("{member} was lost"));
    }

    /// The coordinator ended the job.
    pub(super) fn ended(&mut self, now: Time, outcome: &Result<()>) {
        let Err(error) = outcome else { return };
        if matches!(error, Error::NotFormed { .. }) && !self.disturbances.is_empty() {
            self.fatal.get_or_insert("the job did not form".to_owned());
        }
        if self.fatal.is_none() {
            self.fail(now, Checker::Failure, format!("the job ended without a reason: {error}"));
        }
    }

    // What members learn.

    /// A member got a frame.
    pub(super) fn heard(&mut self, now: Time, me: Address, frame: &Frame) {
        let Frame::View(view) = frame else { return };
        let known = self.epochs.insert(me, view.epoch).unwrap_or_default();
        if view.epoch < known {
            let text = format!("{} went back from {known} to {}", me.who, view.epoch);
            self.fail(now, Checker::Fencing, text);
        }
        if view.phase == Phase::Ended && self.cause.is_some() {
            self.fail(now, Checker::Cause, format!("{} hears of a good end of a failed job", me.who));
        }
    }

    /// A worker comes to a barrier.
    pub(super) fn arrives(&mut self, who: Who, barrier: &str, patient: bool) {
        if !patient {
            self.impatient.insert(barrier.to_owned());
        }
        self.barriers.entry(barrier.to_owned()).or_default().insert(who);
    }

    /// A worker's wait at a barrier ended.
    pub(super) fn passes(&mut self, now: Time, who: Who, barrier: &str, outcome: &Result<()>) {
        let arrived = self.barriers[barrier].len();
        match outcome {
            Ok(()) if arrived < self.workers as usize => {
                let text = format!("{who} passes barrier {barrier:?} when {arrived} of {} came", self.workers);
                self.fail(now, Checker::Barrier, text);
            }
            Ok(()) => {}
            Err(_) if self.impatient.contains(barrier) => self.out_of_step = true,
            Err(_) if self.fatal.is_some() || self.out_of_step => {}
            Err(error) => self.fail(now, Checker::Barrier, format!("{who} at barrier {barrier:?}: {error}")),
        }
    }

    /// At the end: how the membership of a process ended, and how the coordinator says that the job did.
    pub(super) fn process_ended(
        &mut self,
        now: Time,
        me: Address,
        ended: Option<&Result<()>>,
        cause: Option<&Result<()>>,
    ) {
        let Some(ended) = ended else { return };
        let fits = match (ended, cause) {
            (Ok(()), Some(Ok(())) | None) => true,
            // It left, and saw no more of the job, or was never let in.
            (Ok(()), Some(Err(_))) => false,
            (Err(_), _) if me.life > 0 => true,
            (Err(Error::Fenced { .. }), _) => self.shut_out.contains(&me),
            (Err(error), Some(Err(cause))) => error == cause || is_coordinator_lost(error),
            (Err(error), Some(Ok(()))) => is_coordinator_lost(error) && self.cut_off,
            (Err(error), None) => is_coordinator_lost(error) || self.fatal.is_some(),
        };
        if !fits {
            let text = format!("{} ended with {ended:?}, the job with {cause:?}", me.who);
            self.fail(now, Checker::Cause, text);
        }
    }

    /// The submission of a rank failed with `error`. Whoever gives a round up says so, and is heard soon if it can be; but not if it
    /// leaves the job.
    pub(super) fn hears_why(&mut self, now: Time, rank: u32, tensor: usize, round: u64, error: &Error) {
        match error {
            Error::Timeout { .. } | Error::Cancelled => drop(self.given_up.insert((rank, tensor, round), now)),
            Error::Stalled { missing, waited, .. } if *waited >= timing::STEP && self.disturbances.is_empty() => {
                let in_time = |at: &Time| *at + timing::STEP / 2 <= now;
                let given_up = |rank: u32| self.given_up.get(&(rank, tensor, round)).is_some_and(in_time);
                let silent = missing.iter().find(|worker| given_up(worker.0)).copied();
                let left = self.left.is_some_and(|left| in_time(&left));
                if let (Some(silent), false, None) = (silent, left || self.mismatched, &self.fatal) {
                    let text = format!("{silent} told nobody that it gave tensor {tensor}, round {round} up: {error}");
                    self.fail(now, Checker::Failure, text);
                }
            }
            _ => {}
        }
    }

    /// At the end: a submission failed with `error`, on a worker whose membership ended, in a job that ended, this way.
    pub(super) fn submission_failed(
        &mut self,
        now: Time,
        me: Address,
        tensor: usize,
        what: &str,
        error: &Error,
        ends: [Option<&Result<()>>; 2],
    ) {
        let internal = matches!(error, Error::Internal { .. });
        let fenced = matches!(error, Error::Fenced { .. }) && self.shut_out.contains(&me);
        let of_itself = matches!(error, Error::PeerLost { member, .. } if self.members.get(member) == Some(&me));
        let ends = ends.into_iter().flatten().filter_map(|end| end.as_ref().err()).chain(&self.cause);
        let of_the_end = ends.into_iter().any(|end| end == error);
        // Who waits for what somebody gave up is late with its other tensors, too; and while the news of the end of the job spreads, some
        // have given up what others still wait for.
        let late = matches!(error, Error::Stalled { .. }) || self.out_of_step && is_over(error);
        let stalled = late && (self.out_of_step || self.fatal.is_some());
        if internal || of_itself || !(self.is_excused(tensor) || of_the_end || fenced || stalled) {
            self.fail(now, Checker::Failure, format!("{what}: {error}"));
        }
    }
}

/// Whether a worker came so late that its round is gone: others waited for it for a step timeout.
fn is_over(error: &Error) -> bool {
    matches!(error, Error::FailedPrecondition { what, .. } if what.contains("is over"))
}
