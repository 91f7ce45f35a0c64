//! The engine as frameworks use it: [`Session`] in Rust, and the same behind the C interface of `include/gradlane.h` ([`c`]).
//!
//! Nothing here depends on a framework or on Python. A binding adds three things: how its framework describes memory, how it raises an
//! [`Error`](gradlane_core::Error), and how it keeps a tensor alive ([`Owners`]). Python's native module is one binding, the C interface is
//! another.
//!
//! ```text
//!  binding ── Launch::detect ──► Entrance: alone, join, read, find, embed ──► Job (Session, Embedded)
//!     └────── Session::lender ──► memory of the host or of a device, Reduction ──► Session::submit ──► engine::Handle
//! ```
//!
//! # Tables
//!
//! Rows of float32 by id, which servers keep, and in a job of one worker without servers this process:
//!
//! ```
//! use gradlane_core::config::Config;
//! use gradlane_core::engine::{RowsUse, Scan};
//! use gradlane_core::types::{Priority, RowAction, ShrinkBounds, TensorSpec};
//! use gradlane_session::Session;
//!
//! # fn main() -> gradlane_core::Result<()> {
//! let session = Session::alone(&Config::default())?;
//! let table = TensorSpec::table("items", "adagrad:lr=0.1;dim=2,init=uniform,scale=0.05".parse()?);
//! let used = |action, gradients| RowsUse {
//!     tensor: table.clone(),
//!     action,
//!     step: 0,
//!     ids: &[7, 1 << 40, 7],
//!     gradients,
//!     marks: &[],
//!     scan: Scan::default(),
//!     bounds: ShrinkBounds::KEEP,
//!     priority: Priority(0),
//!     timeout: None,
//! };
//! let pull = session.use_rows(used(RowAction::Pull, &[]))?;
//! pull.handle().wait(None)?;
//! let mut rows = [0.0; 6];
//! pull.read_rows(&mut rows);
//! let push = session.use_rows(used(RowAction::Push, &[1.0; 6]))?; // gradients of one id are added up
//! push.handle().wait(None)?;
//! # Ok(())
//! # }
//! ```

pub mod c;

pub mod copy_speed;

mod job;
mod launch;
mod reduction;
mod session;

mod alone;
mod batch;
mod completions;
mod devices;
mod embedded;
mod memory;
mod operation;
mod own_checkpoints;
mod own_process;
mod own_store;
mod own_tables;
mod owners;
mod parameters;
mod place;
mod probe;
mod settings;

pub use batch::{Batch, Lent};
pub use completions::Completions;
pub use embedded::{Embedded, EmbeddedPlan};
pub use gradlane_server::launch::entering::{Found, Place};
pub use job::Job;
pub use launch::{Entrance, Launch, find_join, published, read_join, unwrap_join, wrap_join};
pub use memory::{Lender, tensor_bytes};
pub use operation::{Operation, wait_any};
pub use own_process::OwnProcess;
pub use owners::Owners;
pub use reduction::{Reduction, access_named, codec_named, dtype_named, op_named};
pub use session::{JoinRequest, Session};
pub use settings::{Settings, config};
