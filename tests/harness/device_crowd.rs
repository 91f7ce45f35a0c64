//! Many operations of one rank on its device that are ready at once: the one before them fills the queue, and NCCL's stand-in holds it.

use std::collections::BTreeMap;

use crossbeam_channel::Receiver;
use fakenccl::Control;
use gradlane_core::collective::Goal;
use gradlane_core::types::{DType, Op, WorkerId};
use gradlane_core::{Error, Result};

use crate::devices::{DeviceRank, Wanted, element, ended, told};
use crate::patience::eventually;

/// See the module.
pub struct Crowd<'a> {
    member: &'a DeviceRank,
    nccl: &'a Control,
    /// Position and number of ranks.
    place: (usize, usize),
    gate: Receiver<Result<f64>>,
    /// Groups and calls of NCCL when the queue was full.
    before: Calls,
    all: Vec<One>,
}

struct One {
    outcome: Receiver<Result<f64>>,
    address: u64,
    /// In floats.
    len: usize,
    expected: f64,
}

/// How often NCCL was called.
#[derive(Clone, Copy)]
struct Calls {
    groups: u64,
    all_reduces: u64,
}

/// How operations ended that all were exact.
pub struct Finished {
    /// How many operations that are.
    pub exact: usize,
    /// The groups of NCCL for them.
    pub groups: u64,
    /// The calls of `ncclAllReduce` in these groups.
    pub all_reduces: u64,
}

/// As much as may be in the queue.
const ROAD_BYTES: usize = 64 << 20;
/// Floats of an operation: odd, and no multiple of anything.
const LEN: usize = 1001;
/// The names of what holds the others, of the first of them, and of what each rank gives up.
const GATE: u64 = 1000;
const FIRST: u64 = 2000;
const GIVEN_UP: u64 = 3000;
/// The name of a tensor of several parts.
const TENSOR: u64 = 4000;
/// Floats of a part of it.
const PART_LEN: usize = 1 << 20;

impl<'a> Crowd<'a> {
    /// Fills the queue with something that does not go on. All ranks do so.
    pub fn held(member: &'a DeviceRank, nccl: &'a Control, place: (usize, usize)) -> Self {
        nccl.set("HOLD", &nccl.counter("executed").to_string());
        let before = Calls::until_now(nccl);
        let runs = [(member.place(&vec![0; ROAD_BYTES]), ROAD_BYTES)];
        let op = Op::Broadcast { root: WorkerId(0) };
        let gate = member.begin(&Wanted { op, ..Wanted::sum(GATE, DType::U8) }, &runs);
        let before = eventually("the queue is full", || {
            let calls = Calls::until_now(nccl);
            (calls.groups > before.groups).then_some(calls)
        });
        Self { member, nccl, place, gate, before, all: Vec::new() }
    }

    /// Begins so many operations of all sorts, and returns when the leader has heard of them.
    pub fn submit(&mut self, count: usize) {
        self.all = (0..count).map(|index| self.begin(index)).collect();
        self.wait_until_heard();
    }

    /// Begins to sum so many parts of 4 MiB of one tensor, and returns when the leader has heard of them.
    pub fn submit_tensor(&mut self, parts: usize) {
        let (rank, ranks) = self.place;
        let first = self.member.place(&element(DType::F32, of(rank)).repeat(parts * PART_LEN));
        let begin = |index: usize| {
            let address = first + (4 * index * PART_LEN) as u64;
            let wanted = Wanted { index: u32::try_from(index).expect("few"), ..Wanted::sum(TENSOR, DType::F32) };
            let outcome = self.member.begin(&wanted, &[(address, 4 * PART_LEN)]);
            One { outcome, address, len: PART_LEN, expected: of(ranks) - 1.0 }
        };
        self.all = (0..parts).map(begin).collect();
        self.wait_until_heard();
    }

    fn wait_until_heard(&self) {
        // Whoever decides answers it, and has heard what was said before.
        self.member.give_up(GIVEN_UP + self.place.0 as u64);
    }

    /// Lets everything go on, and waits for all of it.
    ///
    /// # Panics
    /// If one was not exact.
    pub fn finish(&self) -> Finished {
        self.nccl.set("HOLD", "");
        ended(&self.gate).expect("it is only waited for");
        for (index, One { outcome, address, len, expected }) in self.all.iter().enumerate() {
            assert_eq!(ended(outcome), Ok(self.place.1 as f64), "operation {index}");
            let found = self.member.bytes(*address, 4 * len);
            assert!(found == element(DType::F32, *expected).repeat(*len), "operation {index} is wrong");
        }
        let Calls { groups, all_reduces } = Calls::until_now(self.nccl);
        Finished {
            exact: self.all.len(),
            groups: groups - self.before.groups,
            all_reduces: all_reduces - self.before.all_reduces,
        }
    }

    /// Lets so many operations go on, of which what holds the others is the first, and waits for them; without a number all, and waits for
    /// nothing.
    pub fn go_on(&self, count: Option<u64>) {
        let Some(count) = count else { return self.nccl.set("HOLD", "") };
        let last = self.nccl.counter("executed") + count;
        self.nccl.set("HOLD", &last.to_string());
        eventually("they went on", || (self.nccl.counter("executed") == last).then_some(()));
    }

    /// How all of them ended, each way with how many.
    pub fn outcomes(&self) -> String {
        let mut ways: BTreeMap<String, usize> = BTreeMap::new();
        for one in &self.all {
            *ways.entry(told(&ended(&one.outcome))).or_default() += 1;
        }
        ways.into_iter().map(|(way, count)| format!("{count} {way}")).collect::<Vec<String>>().join("; ")
    }

    /// Begins one: owners take turns, and so do sums for all, to an owner, from an owner, and what one rank has.
    fn begin(&self, index: usize) -> One {
        let (rank, ranks) = self.place;
        let (owner, root) = (index % ranks, (index + 1) % ranks);
        let [owner_id, root_id] = [owner, root].map(|rank| WorkerId(u32::try_from(rank).expect("few")));
        let (whole, to_owner) = (Goal::AllReduce, Goal::Reduce { owner: owner_id });
        let sum = of(ranks) - 1.0;
        let (goal, op, result) = match index % 6 {
            0 => (whole, Op::Sum, sum),
            1 | 2 => (to_owner, Op::Sum, sum),
            3 => (Goal::Broadcast { owner: owner_id }, Op::Sum, of(owner)),
            4 => (whole, Op::WeightedMean, sum / ranks as f64),
            _ => (to_owner, Op::Broadcast { root: root_id }, of(root)),
        };
        let is_taken = !matches!(goal, Goal::Reduce { .. }) || rank == owner;
        let expected = if is_taken { result } else { of(rank) };
        let address = self.member.place(&element(DType::F32, of(rank)).repeat(LEN));
        let wanted = Wanted { goal, op, ..Wanted::sum(FIRST + index as u64, DType::F32) };
        One { outcome: self.member.begin(&wanted, &[(address, 4 * LEN)]), address, len: LEN, expected }
    }
}

impl Calls {
    fn until_now(nccl: &Control) -> Self {
        Self { groups: nccl.counter("ncclGroupEnd"), all_reduces: nccl.counter("ncclAllReduce") }
    }
}

/// What a rank gives: a digit of its own, so that a sum names everybody whose contribution is missing or was counted twice.
fn of(rank: usize) -> f64 {
    f64::from(1_u32 << rank)
}

/// What the job ended with, where a test ends it.
pub fn end_of_job() -> Error {
    Error::Unavailable { what: "the job".to_owned(), cause: "it is over".to_owned() }
}
