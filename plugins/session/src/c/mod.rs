//! The C interface: what `include/gradlane.h` declares. That header is generated from these files by `tests/build.rs`, and begins with a
//! manual (`include/manual.txt`). A test fails when header and sources differ.
//!
//! Sessions and operations are integers, which are keys of a [`Table`](table::Table). An integer of the wrong kind, or of a value that was
//! released, is an error and never a stray pointer. Panics end in [`GradlaneStatus::Internal`](GradlaneStatus) and do not cross the
//! boundary.
//!
//! # Safety
//! Every function has the same contract. A pointer is null, or points to what its documentation says: a structure whose first field is its
//! size, a zero-terminated text, as many elements as its count argument says, or a variable. It is valid during the call, and nothing else
//! writes to it meanwhile. The memory of a tensor must stay valid until its operation has ended.

mod answer;
mod callbacks;
mod checkpoints;
mod landing;
mod lent;
mod operations;
mod parameters;
mod read;
mod sessions;
mod steps;
mod table;
mod tables;
mod told;

pub use checkpoints::{gradlane_load_checkpoint, gradlane_save_checkpoint};
pub use gradlane_abi::{
    GRADLANE_ABI_VERSION, GRADLANE_FOREVER, GradlaneAccess, GradlaneCallback, GradlaneCheckpoint, GradlaneDtype,
    GradlaneEffect, GradlaneError, GradlaneFate, GradlaneMemory, GradlaneMissing, GradlaneOp, GradlaneOperation,
    GradlaneParameterUse, GradlaneSession, GradlaneSetting, GradlaneStatus, GradlaneStep, GradlaneSubmission,
    GradlaneTableCounts, GradlaneTableUse, GradlaneTensor, GradlaneTicked,
};
pub use lent::{LentSession, engine_table, failure};
pub use operations::{
    gradlane_cancel, gradlane_poll, gradlane_push_pull, gradlane_release, gradlane_submit, gradlane_submit_all,
    gradlane_wait,
};
pub use parameters::{
    gradlane_access, gradlane_leave_clock, gradlane_operation_effect, gradlane_operation_version, gradlane_tick,
    gradlane_wait_any,
};
pub use sessions::{
    gradlane_abi_version, gradlane_barrier, gradlane_declare, gradlane_in_doubt, gradlane_init, gradlane_metrics,
    gradlane_rank, gradlane_shutdown, gradlane_size, gradlane_undeclare, gradlane_version,
};
pub use steps::{gradlane_begin_step, gradlane_end_steps, gradlane_leave};
pub use tables::{
    gradlane_operation_counts, gradlane_table_clear, gradlane_table_look, gradlane_table_pull, gradlane_table_push,
    gradlane_table_shrink, gradlane_table_stats,
};
