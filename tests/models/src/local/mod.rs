//! In place of `core::local`: the same names over `shuttle`.

pub mod futex;
#[path = "../../../../core/src/local/progress/mod.rs"]
pub mod progress;

mod segment;

pub use progress::Progress;
pub use segment::{Segment, Shown};
pub(crate) use std::process::id as process_id;

pub(crate) mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}
