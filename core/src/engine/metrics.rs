//! Counters of one engine, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::Copies;

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the engine started.
        #[derive(Default, Debug)]
        pub struct Metrics { $($(#[$doc])* pub $name: AtomicU64,)* copies: Copies }

        impl Metrics {
            /// Every counter with its name.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                let counters = [$((stringify!($name), self.$name.load(Ordering::Relaxed))),*];
                counters.into_iter().chain([("copied_bytes", self.copied_bytes())]).collect()
            }
        }
    };
}

metrics! {
    /// Submissions accepted.
    submissions,
    /// Submissions resolved, whatever the outcome.
    resolved,
    /// Submissions resolved with an error.
    failed,
    /// Contributions handed to the transport, repeats included.
    pushes,
    /// Bytes of their bodies.
    push_bytes,
    /// Sums received.
    pulls,
    /// Bytes of their bodies.
    pull_bytes,
    /// Bytes of exchange headers, both directions.
    header_bytes,
    /// Exchanges repeated after a loss.
    repeats,
    /// Parts reduced among the workers of this machine, whether the sums went on to a server or not.
    local_sums,
    /// Bytes of them.
    local_bytes,
    /// Bytes copied from devices, to be sent.
    d2h_bytes,
    /// Bytes of sums copied to devices.
    h2d_bytes,
    /// Connections to servers established, repeats included.
    connections,
    /// Those of them that go through shared memory.
    shm_connections,
}

impl Metrics {
    /// All zero, over `copies` made by the transport.
    pub(super) fn new(copies: Copies) -> Self {
        Self { copies, ..Self::default() }
    }

    /// Bytes copied on their way between a tensor and the system, by whatever road. Over a network it stays 0: contributions leave from
    /// where they lie, and sums are written once, where they go. Among the workers of a machine, what others reduce is copied for them.
    pub fn copied_bytes(&self) -> u64 {
        self.copies.bytes()
    }

    /// Counts copies on the roads that this engine has itself.
    pub(super) fn copies(&self) -> Copies {
        self.copies.clone()
    }

    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
