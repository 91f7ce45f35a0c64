//! A worker of the model: its own thread, callers that wait for their sums, a server that answers all but one of them, and the engine's timer,
//! which ends the operation of that one.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::events::Happening;
use super::link::Link;
use super::poller::{Poller, Side, help, run};
use crate::types::LinkId;

pub(super) struct Worker {
    poller: Poller,
    link: Arc<Link>,
    /// By caller: whether its sum is here. As the slot of a handle.
    resolved: Mutex<Vec<bool>>,
    changed: Condvar,
    over: AtomicBool,
    wakes_helper: bool,
}

impl Worker {
    /// Runs a job of so many callers to its end. With `wakes_helper` a helper hears that its sum was found by another thread.
    pub(super) fn run(callers: usize, wakes_helper: bool) {
        let worker = Arc::new(Self {
            poller: Poller::new().expect("always"),
            link: Arc::default(),
            resolved: Mutex::new(vec![false; callers]),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            wakes_helper,
        });
        worker.link.set_asleep(true);
        let start = |work: fn(&Self, usize), caller: usize| {
            let worker = Arc::clone(&worker);
            thread::spawn(move || work(&worker, caller))
        };
        let own = start(|worker, _| run(worker), 0);
        let server = start(
            |worker, answered| {
                for caller in 0..answered {
                    if worker.link.answer(caller) {
                        worker.poller.events.push(Happening::Wakeup(LinkId(1)));
                    }
                }
            },
            callers - 1,
        );
        let timer = start(Self::resolve, callers - 1);
        let waiting: Vec<_> = (0..callers).map(|caller| start(Self::wait, caller)).collect();
        waiting.into_iter().chain([server, timer]).for_each(|thread| thread.join().expect("no panic"));
        worker.over.store(true, Ordering::SeqCst);
        worker.poller.wake();
        own.join().expect("no panic");
    }

    /// The operation of a caller ends. As `Dispatch::carry_out`.
    fn resolve(&self, caller: usize) {
        self.resolved.lock().expect("no panic")[caller] = true;
        self.changed.notify_all();
        if self.wakes_helper {
            self.poller.wake_helper();
        }
    }

    /// As `Handle::wait`.
    fn wait(&self, caller: usize) {
        let is_resolved = || self.resolved.lock().expect("no panic")[caller];
        help(self, &is_resolved, Duration::MAX);
        let mut resolved = self.resolved.lock().expect("no panic");
        while !resolved[caller] {
            resolved = self.changed.wait(resolved).expect("no panic");
        }
    }
}

impl Side for Worker {
    fn poller(&self) -> &Poller {
        &self.poller
    }

    fn links(&self) -> Vec<Arc<Link>> {
        vec![Arc::clone(&self.link)]
    }

    fn turn(&self, links: &[Arc<Link>]) -> bool {
        let answers: Vec<usize> = links.iter().flat_map(|link| link.drain()).collect();
        answers.iter().for_each(|caller| self.resolve(*caller));
        !answers.is_empty()
    }

    fn has_work(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn has_leisurely_work(&self) -> bool {
        false
    }

    fn happened(&self, _: Happening) {}

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}
