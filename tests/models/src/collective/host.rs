//! Presence and bells, and the seat.

#[path = "../../../../core/src/collective/host/presence.rs"]
mod presence;
#[path = "../../../../core/src/collective/host/seat.rs"]
mod seat;

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread;

use presence::{Bells, Presence};
use seat::Seat;

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

/// Two threads that leave requests and a third that is noticed: all requests are handled once all threads have gone, whoever got the seat.
pub fn requests_at_a_taken_seat() {
    requests(true);
}

/// As [`requests_at_a_taken_seat`], but a thread that has left the seat does not look again.
pub fn requests_of_whom_nobody_looks_again() {
    requests(false);
}

fn requests(looks_again: bool) {
    let seat: Arc<Seat<u32, u32>> = Arc::new(Seat::new(0));
    let leaving: Vec<_> = (0..3)
        .map(|request| {
            let seat = Arc::clone(&seat);
            thread::spawn(move || {
                let mut driver = if request == 0 { seat.sit_down_or_be_noticed() } else { seat.request(request) };
                while let Some(mut handled) = driver {
                    seat.take_requests(|request| *handled += request);
                    let is_wanted = seat.rise(handled);
                    driver = if is_wanted && looks_again { seat.sit_down() } else { None };
                }
            })
        })
        .collect();
    leaving.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(*seat.lock(), 1 + 2, "a request stays behind");
}

/// Work that a thread leaves to an announced one is done: by that one, or by a thread that looks again.
pub fn work_for_an_announced_thread() {
    let seat: Arc<Seat<u32, u32>> = Arc::new(Seat::new(0));
    seat.announce();
    let polling = {
        let seat = Arc::clone(&seat);
        thread::spawn(move || work_at(&seat, seat.sit_down_announced()))
    };
    work_at(&seat, seat.request(1));
    polling.join().expect("no panic");
    assert_eq!(*seat.lock(), 0, "a thread left work to one that did not come");
}

/// Handles requests, each of which makes work, and does the work unless another thread is about to come.
fn work_at<'a>(seat: &'a Seat<u32, u32>, mut driver: Option<shuttle::sync::MutexGuard<'a, u32>>) {
    while let Some(mut work) = driver {
        seat.take_requests(|request| *work += request);
        if !seat.is_announced() {
            *work = 0;
        }
        driver = if seat.rise(work) { seat.sit_down() } else { None };
    }
}
