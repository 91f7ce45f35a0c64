//! What workers have and want of the sums of servers that were lost, and who brings which one to its next server.
//!
//! ```text
//!  begin ──every worker has said what it has and wants──► donors restore ──all have──► over
//!    ▲                                                          │
//!    └───────────────── the membership changes ─────────────────┘
//! ```
//! A sum that one worker wants and another one has is restored by the latter. One that nobody has is summed anew. If nobody has a sum of
//! which somebody knows that it exists, because it was to go to one worker alone, it is lost: that worker's call fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{Defect, Epoch, Holdings, SumId, Time, WorkerId, planted};

/// The machine. It knows no connections.
#[derive(Debug)]
pub(super) struct Recovery {
    /// How long it may last.
    timeout: Duration,
    under_way: Option<UnderWay>,
    defect: Option<Defect>,
}

#[derive(Debug)]
struct UnderWay {
    epoch: Epoch,
    since: Time,
    holdings: BTreeMap<WorkerId, Holdings>,
    /// Present once all workers have said what they have: what each is told that restores sums, or waits in vain.
    orders: Option<BTreeMap<WorkerId, Orders>>,
}

/// What a worker is told.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Orders {
    /// What it restores, until it has.
    pub(super) sums: Vec<SumId>,
    /// What it waits for in vain.
    pub(super) lost: Vec<SumId>,
}

/// What follows.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Next {
    /// A worker is told this.
    Tell { worker: WorkerId, epoch: Epoch, orders: Orders },
    /// Every sum is where it is wanted.
    Over,
}

impl Recovery {
    pub(super) fn new(timeout: Duration, defect: Option<Defect>) -> Self {
        Self { timeout, under_way: None, defect }
    }

    /// Whether one is under way.
    pub(super) fn is_open(&self) -> bool {
        self.under_way.is_some()
    }

    /// Servers were lost. The view of `epoch` will say so.
    pub(super) fn begin(&mut self, now: Time, epoch: Epoch) {
        self.under_way = Some(UnderWay { epoch, since: now, holdings: BTreeMap::new(), orders: None });
    }

    /// There is another view: a recovery that is under way begins anew.
    pub(super) fn follow(&mut self, now: Time, epoch: Epoch) {
        if self.is_open() {
            self.begin(now, epoch);
        }
    }

    /// It is over, or the job is.
    pub(super) fn close(&mut self) {
        self.under_way = None;
    }

    /// A worker has said this. Returns what it is told again, if it was told before. Of another epoch it is ignored.
    pub(super) fn report(&mut self, worker: WorkerId, holdings: Holdings) -> Option<Next> {
        let under_way = self.under_way.as_mut().filter(|under_way| under_way.epoch == holdings.epoch)?;
        match &under_way.orders {
            None => {
                under_way.holdings.insert(worker, holdings);
                None
            }
            Some(orders) => {
                let (orders, epoch) = (orders.get(&worker)?.clone(), under_way.epoch);
                Some(Next::Tell { worker, epoch, orders })
            }
        }
    }

    /// A worker has restored what it was to restore.
    pub(super) fn restored(&mut self, worker: WorkerId, epoch: Epoch) {
        let under_way = self.under_way.as_mut().filter(|under_way| under_way.epoch == epoch);
        let orders = under_way.and_then(|under_way| under_way.orders.as_mut()?.get_mut(&worker));
        if let Some(orders) = orders {
            orders.sums.clear();
        }
    }

    /// What follows now, of a job with these workers.
    pub(super) fn advance(&mut self, workers: &[WorkerId]) -> Vec<Next> {
        let mut next = Vec::new();
        let Some(under_way) = &mut self.under_way else { return next };
        if under_way.orders.is_none() {
            let waits_for = |worker: &&WorkerId| !under_way.holdings.contains_key(*worker);
            let is_early = planted(self.defect, Defect::RecoveredEarly) && !under_way.holdings.is_empty();
            if workers.iter().any(|worker| waits_for(&worker)) && !is_early {
                return next;
            }
            let mut orders = orders(&under_way.holdings);
            if planted(self.defect, Defect::NothingRestored) {
                orders.clear();
            }
            let epoch = under_way.epoch;
            let tell =
                |(worker, orders): (&WorkerId, &Orders)| Next::Tell { worker: *worker, epoch, orders: orders.clone() };
            next.extend(orders.iter().map(tell));
            under_way.orders = Some(orders);
        }
        if under_way.is_over() {
            next.push(Next::Over);
        }
        next
    }

    /// When it lasts too long.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.under_way.as_ref().map(|under_way| under_way.since + self.timeout)
    }

    /// If it lasts too long: for which of these workers it waits, and for how long it has.
    pub(super) fn overdue(&self, now: Time, workers: &[WorkerId]) -> Option<(Vec<WorkerId>, Duration)> {
        let under_way = self.under_way.as_ref().filter(|under_way| under_way.since + self.timeout <= now)?;
        let waits_for = |worker: &WorkerId| match &under_way.orders {
            None => !under_way.holdings.contains_key(worker),
            Some(orders) => orders.get(worker).is_some_and(|orders| !orders.sums.is_empty()),
        };
        Some((workers.iter().copied().filter(waits_for).collect(), now.since(under_way.since)))
    }

    /// The workers come back from elsewhere, so that they have the whole time again.
    pub(super) fn wait_again(&mut self, now: Time) {
        if let Some(under_way) = &mut self.under_way {
            under_way.since = now;
        }
    }
}

impl UnderWay {
    /// Whether every worker has restored what it was to.
    fn is_over(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.values().all(|orders| orders.sums.is_empty()))
    }
}

/// What the workers are told: each sum that is wanted and that somebody has is restored by the first worker that has it, and one that nobody
/// has, though it exists, is lost.
fn orders(holdings: &BTreeMap<WorkerId, Holdings>) -> BTreeMap<WorkerId, Orders> {
    let mut holders: BTreeMap<SumId, WorkerId> = BTreeMap::new();
    for (worker, holdings) in holdings {
        for sum in &holdings.has {
            holders.entry(*sum).or_insert(*worker);
        }
    }
    let known: BTreeSet<SumId> = holdings.values().flat_map(|holdings| holdings.knows.iter().copied()).collect();
    let mut orders: BTreeMap<WorkerId, Orders> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (worker, holdings) in holdings {
        for sum in &holdings.wants {
            match holders.get(sum) {
                Some(holder) if seen.insert(*sum) => orders.entry(*holder).or_default().sums.push(*sum),
                None if known.contains(sum) => orders.entry(*worker).or_default().lost.push(*sum),
                Some(_) | None => {}
            }
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::{PartId, Round, TensorKey};

    use super::*;

    const EPOCH: Epoch = Epoch { term: 1, number: 2 };
    const ALL: [WorkerId; 3] = [WorkerId(0), WorkerId(1), WorkerId(2)];

    #[test]
    fn a_sum_that_some_have_comes_from_the_first_that_has_it_to_those_that_want_it() {
        let mut recovery = begun();
        recovery.report(WorkerId(0), says(&[4], &[], &[8]));
        recovery.report(WorkerId(1), says(&[5, 8], &[], &[]));
        assert_eq!(recovery.advance(&ALL), [], "one has not said what it has");
        recovery.report(WorkerId(2), says(&[5], &[], &[8]));
        let restore = tell(1, &[8], &[]);
        assert_eq!(recovery.advance(&ALL), std::slice::from_ref(&restore));
        assert_eq!(recovery.advance(&ALL), []);
        assert_eq!(recovery.report(WorkerId(1), says(&[5, 8], &[], &[])), Some(restore), "it has connected again");
        recovery.restored(WorkerId(1), Epoch { term: 1, number: 1 });
        assert_eq!(recovery.advance(&ALL), [], "that was another one");
        recovery.restored(WorkerId(1), EPOCH);
        assert_eq!(recovery.advance(&ALL), [Next::Over]);
    }

    #[test]
    fn what_nobody_has_is_summed_anew_and_what_nobody_wants_stays() {
        let mut recovery = begun();
        for worker in ALL {
            assert_eq!(recovery.report(worker, says(&[3], &[7], &[4])), None);
        }
        assert_eq!(recovery.advance(&ALL), [Next::Over]);
    }

    #[test]
    fn a_sum_that_was_to_go_to_the_one_that_waits_for_it_alone_is_lost() {
        let mut recovery = begun();
        recovery.report(WorkerId(0), says(&[], &[6], &[]));
        recovery.report(WorkerId(1), says(&[], &[], &[6]));
        recovery.report(WorkerId(2), says(&[], &[6], &[]));
        assert_eq!(recovery.advance(&ALL), [tell(1, &[], &[6]), Next::Over]);
    }

    #[test]
    fn another_view_begins_anew_and_waits_only_for_those_that_are_left() {
        let mut recovery = begun();
        recovery.report(WorkerId(0), says(&[], &[], &[]));
        let next = Epoch { number: 3, ..EPOCH };
        recovery.follow(Time(5), next);
        assert_eq!(recovery.report(WorkerId(1), says(&[], &[], &[])), None, "of the former view");
        assert_eq!(recovery.advance(&ALL[..2]), []);
        for worker in &ALL[..2] {
            recovery.report(*worker, Holdings { epoch: next, ..Holdings::default() });
        }
        assert_eq!(recovery.advance(&ALL[..2]), [Next::Over]);
    }

    #[test]
    fn it_says_for_whom_it_has_waited_too_long() {
        let mut recovery = begun();
        recovery.report(WorkerId(0), says(&[1], &[], &[]));
        recovery.report(WorkerId(1), says(&[], &[], &[1]));
        let due = recovery.poll_timeout().unwrap();
        assert_eq!(recovery.overdue(Time(0), &ALL), None);
        assert_eq!(recovery.overdue(due, &ALL), Some((vec![WorkerId(2)], TIMEOUT)));
        recovery.report(WorkerId(2), says(&[], &[], &[]));
        recovery.advance(&ALL);
        assert_eq!(recovery.overdue(due, &ALL), Some((vec![WorkerId(0)], TIMEOUT)));
        recovery.close();
        assert_eq!((recovery.poll_timeout(), recovery.overdue(due, &ALL)), (None, None));
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn begun() -> Recovery {
        let mut recovery = Recovery::new(TIMEOUT, None);
        recovery.begin(Time::ZERO, EPOCH);
        recovery
    }

    fn tell(worker: u32, sums: &[u64], lost: &[u64]) -> Next {
        let of = |rounds: &[u64]| rounds.iter().copied().map(sum).collect();
        Next::Tell { worker: WorkerId(worker), epoch: EPOCH, orders: Orders { sums: of(sums), lost: of(lost) } }
    }

    fn says(has: &[u64], knows: &[u64], wants: &[u64]) -> Holdings {
        let sums = |rounds: &[u64]| rounds.iter().copied().map(sum).collect();
        Holdings { epoch: EPOCH, has: sums(has), knows: sums(knows), wants: sums(wants) }
    }

    fn sum(round: u64) -> SumId {
        SumId { part: PartId { key: TensorKey(1), index: 0 }, round: Round(round) }
    }
}
