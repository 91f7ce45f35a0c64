//! What every process has.

pub mod recording;

pub use gradlane_core::runtime::Clock;
