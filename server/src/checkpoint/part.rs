//! The state of a part at one moment.

use gradlane_core::mem::Frozen;
use gradlane_core::reduce::OptimizerState;
use gradlane_core::types::Version;

/// A part of a parameter as it was at one moment. It shares the memory of the present one until that changes.
#[derive(Clone, Debug)]
pub struct FrozenPart {
    /// The version of the value.
    pub version: Version,
    /// The value.
    pub blocks: Vec<Frozen>,
    /// What the rule keeps, once it was applied.
    pub optimizer: Option<OptimizerState>,
}
