//! What happened, as a hash and, on demand, as text. Two runs of a seed must give one hash.

use std::fmt::Display;

use gradlane_core::types::Time;

use super::world::Who;
use crate::random::mix;

/// The history of one world.
#[derive(Debug, Default)]
pub(super) struct Log {
    hash: u64,
    verbose: bool,
    world: Time,
}

impl Log {
    /// An empty log, printed as it grows if `verbose`.
    pub(super) fn new(verbose: bool) -> Self {
        Self { verbose, ..Self::default() }
    }

    /// Lets the world reach a time.
    pub(super) fn turn_to(&mut self, world: Time) {
        self.world = world;
    }

    /// Notes that `what` happened to `who`. `about` are the numbers that tell it from similar events; `text` is made only if somebody
    /// reads it. `now` is the time by the clock of that process.
    pub(super) fn note<T: Display>(
        &mut self,
        now: Time,
        who: Who,
        what: &str,
        about: &[u64],
        text: impl FnOnce() -> T,
    ) {
        let fold = |hash: u64, value: u64| mix(hash ^ value).wrapping_add(value);
        let mut hash = fold(self.hash, now.0);
        hash = fold(hash, who.number());
        hash = what.bytes().fold(hash, |hash, byte| hash.rotate_left(5) ^ u64::from(byte));
        self.hash = about.iter().fold(hash, |hash, value| fold(hash, *value));
        if self.verbose {
            let seconds = self.world.0 as f64 / 1e9;
            println!("{seconds:10.6} {who:<12} {what:<12} {about:?} {}", text());
        }
    }

    /// The history so far, in a number.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}
