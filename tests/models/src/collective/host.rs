//! Presence and bells.

#[path = "../../../../core/src/collective/host/presence.rs"]
mod presence;

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread;

use presence::{Bells, Presence};

#[derive(Default)]
struct Words {
    presence: AtomicU32,
    bell: AtomicU32,
    idle: AtomicU32,
    records: AtomicU32,
}

impl Words {
    fn bells(&self) -> Bells<'_> {
        Bells { presence: &self.presence, bell: &self.bell, idle: &self.idle }
    }
}

/// A rank that sleeps until there are records reads all that two others write.
pub fn presence() {
    sleeps(true);
}

/// As [`presence`], but the rank does not look again after it said that it sleeps.
pub fn presence_without_a_second_look() {
    sleeps(false);
}

fn sleeps(looks_again: bool) {
    let words = Arc::new(Words::default());
    let writing: Vec<_> = (0..2)
        .map(|_| {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.records.fetch_add(1, Ordering::SeqCst);
                words.bells().knock(false);
            })
        })
        .collect();
    let mut read = 0;
    while read < 2 {
        read += words.records.swap(0, Ordering::SeqCst);
        if read == 2 {
            break;
        }
        let shown = words.bell.load(Ordering::SeqCst);
        words.bells().appear(Presence::Asleep);
        if !looks_again || words.records.load(Ordering::SeqCst) == 0 {
            crate::local::futex::wait(&words.bell, shown, Duration::MAX);
        }
        words.bells().appear(Presence::Awake);
    }
    writing.into_iter().for_each(|thread| thread.join().expect("no panic"));
}
