//! What two separately built libraries must agree on: the numbers and structures of the C interface, the names that Python and the op
//! libraries use for them, and the [`EngineTable`] by which an op library of a framework reaches the sessions of the native module.
//!
//! Nothing here depends on the engine. `gradlane_session` fills the table; the tiny op libraries of TensorFlow and XLA hold a [`Door`]
//! to which Python gives the table's address and the integer of a session.

mod door;
mod names;
mod reduction;
mod rows;
mod status;
mod table;
mod types;

pub use door::{Attachment, Door, Failure, Operation};
pub use names::Unknown;
pub use reduction::{Attributes, Reduction, lines};
pub use rows::{GradlaneTableCounts, GradlaneTableUse};
pub use status::{GradlaneError, GradlaneStatus};
pub use table::{ENGINE_MAGIC, ENGINE_VERSION, EngineTable};
pub use types::{
    GRADLANE_ABI_VERSION, GRADLANE_FOREVER, GradlaneAccess, GradlaneCallback, GradlaneCheckpoint, GradlaneDtype,
    GradlaneEffect, GradlaneFate, GradlaneMemory, GradlaneMissing, GradlaneOp, GradlaneOperation, GradlaneParameterUse,
    GradlaneSession, GradlaneSetting, GradlaneStep, GradlaneSubmission, GradlaneTensor, GradlaneTicked,
};
