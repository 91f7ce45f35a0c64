//! The worker's engine: threads that carry out what the machines decide. The only place that joins the floors below.
//!
//! ```text
//!  caller ── push_pull ──► Engine ── registry, scheduler (one lock, short) ──► bells
//!                                                                                │ the thread of PUSH sleeps on its bell
//!                            PUSH ──► transport.push: the contribution, and where its sum lands
//!                                         └─► Scheduler::finish, for PUSH and for PULL ──► Handle resolves
//! ```
//! Tensors in memory of a device are staged before and brought back after, by COPYD2H and COPYH2D, and tensors with a codec are encoded and
//! decoded by COMPRESS and DECOMPRESS, each with a thread of its own. A step that is shorter than waking a thread runs on the thread that
//! finds it: PUSH of short parts on the submitting thread, COMPRESS and DECOMPRESS of short parts. PULL is no step: a task is in it until
//! its sum has landed. A thread that waits for a handle does the transport's work, so that a sum lands on the thread that needs it.
//!
//! [`Membership`](crate::runtime::Membership) holds the connection to the coordinator, [`Timer`](crate::runtime::Timer) wakes for deadlines; an idle engine runs none of its threads.

mod asked;
mod bell;
mod burst;
mod company;
mod dumps;
mod effects;
mod followed;
mod formation_news;
mod handle;
mod inline;
mod limit;
mod loans;
mod memory;
mod metrics;
mod milestones;
mod payload;
mod probe;
mod recorder;
mod residuals;
mod step_gate;
mod submit;
mod submit_budget;
mod trace;
mod wire;

mod state;

mod job;
mod shared;
mod submissions;

mod dial;
mod executors;
mod watched;

mod dispatcher;

mod local_peers;
mod stage_loop;
mod stages;

mod follow;

mod arrivals;
mod orders;
mod recording;

mod events;

mod driver;

mod access;
mod asks;
mod batch;
mod boundary;
mod ending;
mod feedback;
mod local;
mod local_finite;
mod names;
mod patience;
mod row_sums;
mod rows;
mod scans;

pub use asked::{ParameterUse, Submission};
pub use batch::{Batch, BatchSubmission, Member};
pub use boundary::Step;
pub use driver::{Engine, EngineOptions};
pub use feedback::FeedbackState;
pub use followed::Followed;
pub use handle::Handle;
pub use local::reduce_alone;
pub use local_finite::FiniteCheck;
pub use memory::Memory;
pub use metrics::Metrics;
pub use recorder::Flight;
pub use rows::{RowCounts, RowsHandle, RowsUse};
pub use scans::{Pages, Scan};
pub use shared::ChangeLog;
pub use trace::{Thread, Timeline, Window};
