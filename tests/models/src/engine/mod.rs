//! What threads of an engine share.

#[path = "../../../../core/src/engine/bell.rs"]
mod bell;
#[path = "../../../../core/src/engine/followed.rs"]
mod followed;
#[path = "../../../../core/src/engine/handle.rs"]
mod handle;
#[path = "../../../../core/src/engine/inline.rs"]
mod inline;
#[path = "../../../../core/src/engine/limit.rs"]
mod limit;
#[path = "../../../../core/src/engine/milestones.rs"]
mod milestones;
#[path = "../../../../core/src/engine/submit_budget.rs"]
mod submit_budget;

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use bell::Bell;
use followed::Followed;
use handle::Handle;
use inline::Inline;
use milestones::Milestones;
use submit_budget::SubmitBudget;

use crate::worker::Liveness;

/// What the engine answers in a model: nobody asks, because no wait times out.
fn works() -> Liveness {
    Liveness::Works { ask_in: Duration::MAX }
}

/// A stage's thread takes all tasks that two others submit, however they ring.
pub fn bell() {
    let (bell, tasks) = (Arc::new(Bell::default()), Arc::new(AtomicU32::new(0)));
    let submitting: Vec<_> = (0..2)
        .map(|_| {
            let (bell, tasks) = (Arc::clone(&bell), Arc::clone(&tasks));
            thread::spawn(move || {
                for _ in 0..2 {
                    tasks.fetch_add(1, Ordering::SeqCst);
                    bell.ring();
                }
            })
        })
        .collect();
    let mut taken = 0;
    while taken < 4 {
        bell.wait();
        taken += tasks.swap(0, Ordering::SeqCst);
    }
    submitting.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// No task is left when all threads that submitted have returned, and never two threads execute at once.
pub fn inline() {
    let (inline, tasks) = (Arc::new(Inline::default()), Arc::new(AtomicU32::new(0)));
    let executing = Arc::new(AtomicU32::new(0));
    let submitting: Vec<_> = (0..3)
        .map(|_| {
            let (inline, tasks, executing) = (Arc::clone(&inline), Arc::clone(&tasks), Arc::clone(&executing));
            thread::spawn(move || {
                tasks.fetch_add(1, Ordering::SeqCst);
                inline.run(|| {
                    assert_eq!(executing.fetch_add(1, Ordering::SeqCst), 0, "one thread at a time");
                    tasks.swap(0, Ordering::SeqCst);
                    executing.fetch_sub(1, Ordering::SeqCst);
                });
            })
        })
        .collect();
    submitting.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(tasks.load(Ordering::SeqCst), 0, "a task was left");
}

/// Every thread that waits for a handle hears its outcome, and so does its listener, once.
pub fn handle() {
    let (handle, done) = Handle::new(1, None, Arc::new(Followed::default()), |_| {});
    let told = Arc::new(AtomicU32::new(0));
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let handle = handle.clone();
            thread::spawn(move || assert_eq!(handle.wait(None), Ok(())))
        })
        .collect();
    let resolving = thread::spawn(move || done.ok(()));
    let there = Arc::clone(&told);
    handle.when_issued(move || {
        there.fetch_add(1, Ordering::SeqCst);
    });
    waiting.into_iter().chain([resolving]).for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(told.load(Ordering::SeqCst), 1, "the listener is called once");
}

/// A thread that settles returns when the last of two operations has ended.
pub fn followed() {
    let followed = Arc::new(Followed::default());
    (0..2).for_each(|_| followed.begin());
    let ending: Vec<_> = (0..2)
        .map(|id| {
            let followed = Arc::clone(&followed);
            thread::spawn(move || followed.end(id, &Ok(()), "grad"))
        })
        .collect();
    assert_eq!(followed.settle(None, &works), Ok(()));
    ending.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Producers share the room, never hold more than it has, and all get in.
pub fn room() {
    let (room, held) = (Arc::new(SubmitBudget::new(100, Duration::MAX)), Arc::new(Mutex::new(0)));
    let producing: Vec<_> = (0..3)
        .map(|_| {
            let (room, held) = (Arc::clone(&room), Arc::clone(&held));
            thread::spawn(move || {
                let entered = SubmitBudget::enter(&room, 60, None, &works).expect("room is made");
                let mut bytes = held.lock().expect("no panic");
                *bytes += 60;
                assert!(*bytes <= 100, "{bytes} bytes");
                *bytes -= 60;
                drop((bytes, entered));
            })
        })
        .collect();
    producing.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Threads that wait for a milestone all hear of it.
pub fn milestones() {
    let milestones = Arc::new(Milestones::default());
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let milestones = Arc::clone(&milestones);
            thread::spawn(move || milestones.wait(Duration::MAX, "joining", |reached| reached.joined))
        })
        .collect();
    milestones.change(|reached| reached.joined = true);
    for thread in waiting {
        assert_eq!(thread.join().expect("no panic"), Ok(()));
    }
}

/// As [`bell`], with a bell that forgets a ring while its thread is awake.
pub fn bell_that_forgets() {
    let (asleep, tasks) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicU32::new(0)));
    let (there, submitted) = (Arc::clone(&asleep), Arc::clone(&tasks));
    let submitting = thread::spawn(move || {
        submitted.fetch_add(1, Ordering::SeqCst);
        if *there.0.lock().expect("no panic") {
            there.1.notify_one();
        }
    });
    while tasks.swap(0, Ordering::SeqCst) == 0 {
        let mut guard = asleep.0.lock().expect("no panic");
        *guard = true;
        drop(asleep.1.wait(guard).expect("no panic"));
    }
    submitting.join().expect("no panic");
}

/// As [`inline`], but the thread that executes does not look again after it gave up its turn.
pub fn inline_that_looks_once() {
    let (turn, waiting, tasks) = (Arc::new(Mutex::new(())), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let submitting: Vec<_> = (0..2)
        .map(|_| {
            let (turn, waiting, tasks) = (Arc::clone(&turn), Arc::clone(&waiting), Arc::clone(&tasks));
            thread::spawn(move || {
                tasks.fetch_add(1, Ordering::SeqCst);
                waiting.store(1, Ordering::SeqCst);
                let Ok(turn) = turn.try_lock() else { return };
                while waiting.swap(0, Ordering::SeqCst) == 1 {
                    tasks.swap(0, Ordering::SeqCst);
                }
                drop(turn);
            })
        })
        .collect();
    submitting.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(tasks.load(Ordering::SeqCst), 0, "a task was left");
}

/// As [`handle`], with an outcome that is told without the lock of the waiting thread.
pub fn handle_that_tells_without_the_lock() {
    let slot = Arc::new((Mutex::new(()), Condvar::new(), AtomicU32::new(0)));
    let there = Arc::clone(&slot);
    let resolving = thread::spawn(move || {
        there.2.store(1, Ordering::SeqCst);
        there.1.notify_all();
    });
    let mut guard = slot.0.lock().expect("no panic");
    while slot.2.load(Ordering::SeqCst) == 0 {
        guard = slot.1.wait(guard).expect("no panic");
    }
    drop(guard);
    resolving.join().expect("no panic");
}
