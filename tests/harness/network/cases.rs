//! The table of bad networks: what happens to the datagrams of a job, for how long, and what the job owes its callers meanwhile.

use std::time::Duration;

use gradlane_core::error::Code;

use super::path::{CLEAR, CUT, Conditions, Loss, Rate};

/// A bad network.
#[derive(Debug)]
pub struct Case {
    /// What is wrong with it.
    pub name: &'static str,
    /// Which paths of the job it concerns.
    pub paths: &'static [Between],
    /// What happens, one after the other.
    pub phases: &'static [Phase],
    /// How many elements of f32 a step reduces.
    pub elements: usize,
    /// The setting `partition_bytes`.
    pub part: &'static str,
    /// What callers get.
    pub due: Due,
}

/// A path of the job, with a relay of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// Workers and the server.
    WorkersAndServer,
    /// The worker of rank 0 and the coordinator.
    FirstWorkerAndCoordinator,
    /// The worker of rank 1 and the coordinator.
    SecondWorkerAndCoordinator,
    /// The server and the coordinator.
    ServerAndCoordinator,
}

/// What happens to the paths.
#[expect(clippy::large_enum_variant, reason = "of a table of constants")]
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// These conditions hold for so long, towards the server or the coordinator and back.
    Hold(Duration, Conditions, Conditions),
    /// They get new addresses.
    Restart,
}

/// What callers get (reliability.md, 3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The path heals, and every sum comes.
    Sums,
    /// The last phase never ends, and every call on every rank fails in time with one of these errors.
    Errors(&'static [Code]),
}

/// All cases: the 24 of reliability.md, section 5.4, and 2 more, which heal, and 3 that do not.
pub const CASES: [Case; 29] = [
    Case { name: "loss 0.1 %", phases: &[two_seconds(lossy(0.001))], ..USUAL },
    Case { name: "loss 1 %", phases: &[two_seconds(lossy(0.01))], ..USUAL },
    Case { name: "loss 5 %", phases: &[two_seconds(lossy(0.05))], ..USUAL },
    // Of the largest part, whose first flight has the most gaps that a stream can have (reliability.md, 6.1).
    Case { name: "loss 20 %", phases: &[two_seconds(lossy(0.2))], elements: 1 << 21, part: "64 MiB", ..USUAL },
    Case { name: "bursts of loss", phases: &[two_seconds(BURSTS)], ..USUAL },
    Case { name: "reorder 1 %", phases: &[two_seconds(Conditions { overtaken: 0.01, ..CLEAR })], ..USUAL },
    Case { name: "reorder 10 %", phases: &[two_seconds(Conditions { overtaken: 0.1, ..CLEAR })], ..USUAL },
    Case { name: "duplicates 1 %", phases: &[two_seconds(Conditions { doubled: 0.01, ..CLEAR })], ..USUAL },
    Case { name: "duplicates 10 %", phases: &[two_seconds(Conditions { doubled: 0.1, ..CLEAR })], ..USUAL },
    Case { name: "corruption 0.1 %", phases: &[two_seconds(Conditions { damaged: 0.001, ..CLEAR })], ..USUAL },
    Case { name: "delay 1 ms", phases: &[two_seconds(slow(1))], ..USUAL },
    Case { name: "delay 20 ms", phases: &[two_seconds(slow(20))], ..USUAL },
    Case { name: "delay 100 ms", phases: &[two_seconds(slow(100))], ..USUAL },
    Case { name: "collapse to 1 Mbit/s", phases: &COLLAPSE, elements: 10_000, ..USUAL },
    Case { name: "bufferbloat", phases: &[two_seconds(rate(10_000_000, u64::MAX, 1000))], ..USUAL },
    Case { name: "2,000 packets/s", phases: &[two_seconds(rate(u64::MAX, 2_000, 20))], ..USUAL },
    // A packet of 1,280 bytes holds a datagram of 1,252 over IPv4.
    Case { name: "MTU 1500 to 1280", phases: &[two_seconds(Conditions { bytes_max: 1_252, ..CLEAR })], ..USUAL },
    // Longer than a connection lives without a word, shorter than the step timeout.
    Case { name: "cut W|S", paths: &[Between::WorkersAndServer], phases: &[cut(12_000)], ..USUAL },
    // Longer than the suspect timeout, shorter than the dead timeout.
    Case { name: "cut W|C", paths: &[Between::SecondWorkerAndCoordinator], phases: &[cut(3_000)], ..USUAL },
    Case { name: "cut S|C", paths: &[Between::ServerAndCoordinator], phases: &[cut(3_000)], ..USUAL },
    Case { name: "cut W->S", paths: &[Between::WorkersAndServer], phases: &[hold(12_000, CUT, CLEAR)], ..USUAL },
    Case { name: "cut S->W", paths: &[Between::WorkersAndServer], phases: &[hold(12_000, CLEAR, CUT)], ..USUAL },
    Case { name: "flaps of 1 s", phases: &[cut(1_000), clear(1_000), cut(1_000), clear(1_000), cut(1_000)], ..USUAL },
    // Slower than an old modem: a handshake takes most of a second.
    Case {
        name: "slow W|C",
        paths: &[Between::SecondWorkerAndCoordinator],
        phases: &[two_seconds(rate(64_000, u64::MAX, 1000))],
        ..USUAL
    },
    Case {
        name: "slow S|C",
        paths: &[Between::ServerAndCoordinator],
        phases: &[two_seconds(rate(64_000, u64::MAX, 1000))],
        ..USUAL
    },
    Case { name: "new addresses", phases: &[Phase::Restart], ..USUAL },
    Case {
        name: "W|S for good",
        paths: &[Between::WorkersAndServer],
        phases: &[cut(0)],
        due: Due::Errors(&[Code::DeadlineExceeded]),
        ..USUAL
    },
    Case {
        name: "W|C for good",
        paths: &[Between::SecondWorkerAndCoordinator],
        phases: &[cut(0)],
        // The worker that the coordinator gave up learns that from the server.
        due: Due::Errors(&[Code::Aborted, Code::Fenced]),
        ..USUAL
    },
    Case {
        name: "S|C for good",
        paths: &[Between::ServerAndCoordinator],
        phases: &[cut(0)],
        due: Due::Errors(&[Code::Aborted]),
        ..USUAL
    },
];

/// What most have in common.
const USUAL: Case = Case {
    name: "",
    paths: &[
        Between::WorkersAndServer,
        Between::FirstWorkerAndCoordinator,
        Between::SecondWorkerAndCoordinator,
        Between::ServerAndCoordinator,
    ],
    phases: &[],
    elements: 100_000,
    part: "64 KiB",
    due: Due::Sums,
};

/// Losses of 5 %, in bursts of 5 datagrams on average.
const BURSTS: Conditions = Conditions { loss: Loss::Bursts { begin: 0.01, end: 0.2 }, ..CLEAR };

const COLLAPSE: [Phase; 5] = [
    both(500, rate(1_000_000_000, u64::MAX, 50)),
    both(500, rate(10_000_000, u64::MAX, 50)),
    both(2_000, rate(1_000_000, u64::MAX, 50)),
    both(500, rate(10_000_000, u64::MAX, 50)),
    both(500, rate(1_000_000_000, u64::MAX, 50)),
];

const fn lossy(share: f64) -> Conditions {
    Conditions { loss: Loss::Each(share), ..CLEAR }
}

/// So many milliseconds in each direction, and up to half of that by chance.
const fn slow(ms: u64) -> Conditions {
    Conditions { delay: Duration::from_millis(ms), jitter: Duration::from_micros(ms * 500), ..CLEAR }
}

const fn rate(bits: u64, datagrams: u64, queue_ms: u64) -> Conditions {
    Conditions { rate: Some(Rate { bits, datagrams, queue: Duration::from_millis(queue_ms) }), ..CLEAR }
}

const fn hold(ms: u64, there: Conditions, back: Conditions) -> Phase {
    Phase::Hold(Duration::from_millis(ms), there, back)
}

const fn both(ms: u64, conditions: Conditions) -> Phase {
    hold(ms, conditions, conditions)
}

const fn two_seconds(conditions: Conditions) -> Phase {
    both(2_000, conditions)
}

const fn cut(ms: u64) -> Phase {
    both(ms, CUT)
}

const fn clear(ms: u64) -> Phase {
    both(ms, CLEAR)
}
