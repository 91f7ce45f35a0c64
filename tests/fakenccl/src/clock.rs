//! How long calls take a thread that issues groups, up to the moment at which it learns that they are done.

use std::cell::Cell;
use std::time::Instant;

use crate::library::Library;
use crate::settings::now;

thread_local! {
    /// When this thread entered the call that it is in, or whose work it waits for.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether it has ended a group whose work is put into the stream by another thread.
    static WAITS: Cell<bool> = const { Cell::new(false) };
    /// Whether it has ever ended one.
    static ISSUES: Cell<bool> = const { Cell::new(false) };
}

/// A call begins.
pub(crate) fn enter() {
    if SINCE.get().is_none() {
        SINCE.set(Some(now()));
    }
}

/// What was called is done later.
pub(crate) fn later() {
    WAITS.set(true);
    ISSUES.set(true);
}

/// This thread has learnt that all it called is done.
pub(crate) fn learn() {
    WAITS.set(false);
}

/// A call returns.
pub(crate) fn leave() {
    if !WAITS.get()
        && let Some(since) = SINCE.take()
        && ISSUES.get()
    {
        Library::get().took(since.elapsed());
    }
}
