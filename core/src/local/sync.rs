//! What threads share: locks, condition variables and atomics of the standard library, under one name.
//!
//! The models in `tests/models` compile the files that import this module a second time, with a module of the same name that leads to
//! `shuttle`. So they try many schedules of exactly the code that runs in production.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
