//! What the threads of a worker share for its links, and what the two sides of a link share.

mod events;
mod layout;
mod link;
#[path = "../../../../../core/src/transport/shm/memory.rs"]
mod memory;
#[path = "../../../../../core/src/transport/shm/poller.rs"]
mod poller;
mod wakeup;
#[path = "../../../../../core/src/transport/shm/work_lock.rs"]
mod work_lock;
mod worker;

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::thread;

use memory::Memory;
use wakeup::Waker;
use work_lock::WorkLock;
use worker::Worker;

use crate::local::{Segment, Shown};
use crate::mem::Copies;

pub(crate) use layout::SEGMENT_BYTES;

/// At most one of three threads helps at a time. The side's own thread waits for them and goes on in the end.
pub fn work_lock() {
    let (work, helpers) = (Arc::new(WorkLock::new()), Arc::new(AtomicU32::new(0)));
    let helping: Vec<_> = (0..3)
        .map(|_| {
            let (work, helpers) = (Arc::clone(&work), Arc::clone(&helpers));
            thread::spawn(move || {
                if let Some(_helper) = work.help() {
                    assert_eq!(helpers.fetch_add(1, Ordering::SeqCst), 0, "one helper at a time");
                    let _guard = work.lock(None).expect("without a limit");
                    helpers.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..2 {
        work.wait_for_helper();
        drop(work.lock(None).expect("without a limit"));
    }
    helping.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(work.help().is_some(), "everybody has left");
}

/// As [`work_lock`], with the helper's value built before it is known whether the thread may help: its drop says that the helper has left.
pub fn work_lock_whose_refused_helper_leaves() {
    struct Helper<'a>(&'a AtomicBool);
    impl Drop for Helper<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }
    let (helped, helpers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let helping: Vec<_> = (0..3)
        .map(|_| {
            let (helped, helpers) = (Arc::clone(&helped), Arc::clone(&helpers));
            thread::spawn(move || {
                let is_free = !helped.swap(true, Ordering::SeqCst);
                let helper = Helper(&helped);
                if is_free {
                    assert_eq!(helpers.fetch_add(1, Ordering::SeqCst), 0, "one helper at a time");
                    helpers.fetch_sub(1, Ordering::SeqCst);
                }
                drop(helper);
            })
        })
        .collect();
    helping.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Two threads of a program wait for their sums at once, beside the transport's own thread, while the server answers in any order.
pub fn poller() {
    Worker::run(2, true);
}

/// As [`poller`], but nobody wakes a helper whose operation another thread has ended.
pub fn poller_that_wakes_no_helper() {
    Worker::run(2, false);
}

/// One side writes more messages than its ring holds, and waits for room; the other reads them all, and sleeps while there are none.
pub fn ring() {
    exchange(true);
}

/// As [`ring`], but the reader does not look again after it said that it sleeps.
pub fn ring_without_a_second_look() {
    exchange(false);
}

fn exchange(looks_again: bool) {
    const MESSAGES: u64 = 4;
    let (ours, theirs) = (Segment::default(), Segment::default());
    let (to_reader, to_writer) = (Waker::default(), Waker::default());
    let writer = Memory::new(ours.clone(), Shown(theirs.clone()), to_reader.clone(), Copies);
    let reader = Memory::new(theirs, Shown(ours), to_writer.clone(), Copies);
    let writing = thread::spawn(move || {
        let (mut sent, mut read) = (0, 0);
        while sent < MESSAGES {
            read = writer.peer_has_read(read, sent, "the reader").expect("it counts right");
            if sent - read < layout::RING_MESSAGES {
                writer.write(sent, &[sent; layout::MESSAGE_WORDS]);
                sent += 1;
                writer.wake_reader();
                continue;
            }
            writer.set_starved(true);
            if writer.peer_has_read(read, sent, "the reader") == Ok(read) {
                to_writer.wait();
            }
            writer.set_starved(false);
        }
    });
    let mut read = 0;
    while read < MESSAGES {
        if let Some(words) = reader.read(read, "the writer").expect("it counts right") {
            assert_eq!(words, [read; layout::MESSAGE_WORDS], "a message as it was written");
            read += 1;
            reader.wake_writer();
            continue;
        }
        reader.set_asleep(true);
        shuttle::sync::atomic::fence(Ordering::SeqCst);
        if !looks_again || !reader.has_unread() {
            to_reader.wait();
        }
        reader.set_asleep(false);
    }
    writing.join().expect("no panic");
}
