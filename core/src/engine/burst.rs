//! Pushes that follow each other at once.

use crate::pipeline::Stage;
use crate::transport::Transport;

/// Tasks that a thread executes one after the other. While it lives the transport is corked, if the tasks are pushes.
pub(super) struct Burst<'a> {
    corked: Option<&'a dyn Transport>,
    tasks: u32,
    bytes: u64,
}

impl<'a> Burst<'a> {
    /// A burst of tasks of `stage`. Only pushes are worth it; other stages could wait in the middle of it.
    pub(super) fn of(stage: Stage, transport: &'a dyn Transport) -> Self {
        let corked = (stage == Stage::Push).then_some(transport);
        if let Some(transport) = corked {
            transport.cork();
        }
        Self { corked, tasks: 0, bytes: 0 }
    }

    /// A task of so many bytes was executed. If that was enough to begin with, sending begins.
    pub(super) fn add(&mut self, bytes: u64) {
        self.tasks += 1;
        self.bytes += bytes;
        if let Some(transport) = self.corked
            && (self.tasks >= TASKS_MAX || self.bytes > BYTES_MAX)
        {
            transport.uncork();
            transport.cork();
            (self.tasks, self.bytes) = (0, 0);
        }
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        if let Some(transport) = self.corked {
            transport.uncork();
        }
    }
}

/// All parts of a tensor that crosses a network.
const TASKS_MAX: u32 = 16;
/// The checksum of more would take longer than 0.1 ms.
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::local::Progress;
    use crate::mem::Region;
    use crate::transport::{Answer, LinkLost, Peer, Push, Torn};
    use crate::types::{Done, ExchangeId, LinkId};

    #[test]
    fn sending_begins_after_some_pushes_and_at_the_end() {
        let transport = Corked::default();
        let begun = || transport.begun.load(Ordering::Relaxed);
        let mut burst = Burst::of(Stage::Push, &transport);
        (0..15).for_each(|_| burst.add(4_000));
        assert_eq!(begun(), 0);
        burst.add(4_000);
        assert_eq!(begun(), 1);
        burst.add(1 << 20);
        assert_eq!(begun(), 1, "one part of this size is not enough");
        burst.add(1 << 20);
        assert_eq!(begun(), 2);
        burst.add(1);
        drop(burst);
        assert_eq!((begun(), transport.corks.load(Ordering::Relaxed)), (3, 0));
    }

    #[test]
    fn other_stages_hold_nothing_up() {
        let transport = Corked::default();
        let burst = Burst::of(Stage::CopyD2H, &transport);
        assert_eq!(transport.corks.load(Ordering::Relaxed), 0);
        drop(burst);
        assert_eq!(transport.begun.load(Ordering::Relaxed), 0);
    }

    /// Counts.
    #[derive(Default)]
    struct Corked {
        corks: AtomicI32,
        begun: AtomicU32,
    }

    impl Progress for Corked {}

    impl Transport for Corked {
        fn cork(&self) {
            self.corks.fetch_add(1, Ordering::Relaxed);
        }

        fn uncork(&self) {
            self.corks.fetch_sub(1, Ordering::Relaxed);
            self.begun.fetch_add(1, Ordering::Relaxed);
        }

        fn connect(&self, _peer: Peer, _patience: Duration, _lost: LinkLost, _done: Done<LinkId>) {}
        fn push(&self, _link: LinkId, _exchange: ExchangeId, _push: Push, _done: Done<()>) {}
        fn pull(&self, _link: LinkId, _exchange: ExchangeId, _into: Vec<Region>, _done: Done<Answer, Torn>) {}
        fn abandon(&self, _link: LinkId, _exchange: ExchangeId) {}
        fn disconnect(&self, _link: LinkId) {}
        fn shutdown(&self, _patience: Duration) {}
    }
}
