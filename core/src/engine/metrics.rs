//! Counters of one engine, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the engine started.
        #[derive(Default, Debug)]
        pub struct Metrics { $($(#[$doc])* pub $name: AtomicU64),* }

        impl Metrics {
            /// Every counter with its name.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),*]
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
    /// Bytes copied between a tensor and a buffer of the engine. Stays 0: contributions leave from where they lie and sums land
    /// where they go.
    copied_bytes,
    /// Connections to servers established, repeats included.
    connections,
    /// Those of them that go through shared memory.
    shm_connections,
}

impl Metrics {
    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
