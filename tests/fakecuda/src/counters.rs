//! What a device was asked to do, so that tests can say what must not happen.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $doc:literal),+ $(,)?) => {
        /// Of one device. The names are those that tests ask for.
        #[derive(Default)]
        pub(crate) struct Counters { $(#[doc = $doc] pub(crate) $name: Counter),+ }

        impl Counters {
            pub(crate) fn named(&self, name: &str) -> Option<u64> {
                match name { $(stringify!($name) => Some(self.$name.get()),)+ _ => None }
            }
        }
    };
}

counters! {
    live_streams: "Streams created and not destroyed.",
    live_events: "Events created and not destroyed.",
    live_allocations: "Allocations of device memory.",
    device_bytes: "Bytes of those.",
    pinned_bytes: "Bytes of host memory that are allocated pinned or registered.",
    pinned_ranges: "How many ranges that are.",
    pinned_near: "Pinned allocations ever made by a thread that preferred a NUMA node.",
    write_combined: "Pinned allocations that the host reads slowly, ever made.",
    copies_d2h: "Copies to the host that were executed.",
    copies_h2d: "Copies from the host that were executed.",
    copies_d2d: "Copies between device memories that were executed.",
    bytes_d2h: "Bytes of those.",
    bytes_h2d: "Bytes of those.",
    bytes_d2d: "Bytes of those.",
    pageable_copies: "Copies that made their caller wait because the host's memory was not pinned.",
    host_functions: "Host functions that were executed.",
    kernels: "Kernels that were executed.",
    implicit_waits: "Calls that wait for all work of the device before they load code or pin memory.",
    waits: "Calls that made their caller wait for a stream, an event or the context.",
    released_in_use: "Device or pinned memory that was freed or unregistered with work under way that uses it.",
}

/// One number.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
