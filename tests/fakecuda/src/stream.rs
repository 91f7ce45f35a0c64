//! Streams: queues, each with a thread that does one step after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::copies::{Copy, Fill};
use crate::driver::Driver;
use crate::event::Point;
use crate::kernel::Launch;
use crate::settings::Lagging;

/// What `cuStreamCreate` makes, and the default ones.
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Microseconds of lag of this stream alone; `u64::MAX` leaves it to the settings.
    own_lag: AtomicU64,
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The legacy default stream, which waits for all blocking streams, and they for it.
    Legacy,
    /// The per-thread default stream; here one for all threads.
    PerThread,
    /// The so-manieth, from 0.
    Created(usize),
    /// Made by a test for itself: it stands for the framework's.
    User,
}

#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    submitted: u64,
    done: u64,
    is_closed: bool,
    has_thread: bool,
}

/// What a stream does, one after the other.
pub(crate) enum Step {
    Work(Work),
    /// A launch: all of a graph, with nothing of the stream in between.
    Graph(Vec<Work>),
    Reach(Arc<Point>),
    Wait(Arc<Point>),
    /// Waits until the other stream has done so many steps.
    After(Arc<Stream>, u64),
}

/// What is skipped when the device has failed.
pub(crate) enum Work {
    Copy(Copy),
    Fill(Fill),
    Kernel(Launch),
    Call(Call),
}

/// A host function with its argument.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: extern "C" fn(*mut std::ffi::c_void),
    pub(crate) argument: usize,
}

impl Stream {
    pub(crate) const NON_BLOCKING: u32 = 1;

    pub(crate) fn new(device: usize, kind: Kind, flags: u32, priority: i32) -> Arc<Self> {
        let own_lag = AtomicU64::new(u64::MAX);
        Arc::new(Self { device, kind, flags, priority, own_lag, queue: Mutex::default(), news: Condvar::new() })
    }

    /// Whether it is ordered with the legacy default stream.
    pub(crate) fn is_blocking(&self) -> bool {
        self.kind != Kind::Legacy && self.flags & Self::NON_BLOCKING == 0
    }

    pub(crate) fn submit(self: &Arc<Self>, step: Step) {
        let mut queue = self.lock();
        queue.steps.push_back(step);
        queue.submitted += 1;
        if !queue.has_thread {
            queue.has_thread = true;
            let stream = self.clone();
            let name = format!("fakecuda{}", self.device);
            let thread = std::thread::Builder::new().name(name).spawn(move || stream.run());
            drop(thread.expect("a stream has a thread"));
        }
        drop(queue);
        self.news.notify_all();
    }

    /// How many steps it was given.
    pub(crate) fn submitted(&self) -> u64 {
        self.lock().submitted
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done == queue.submitted
    }

    /// Waits until so many steps are done.
    pub(crate) fn wait(&self, steps: u64) {
        let queue = self.news.wait_while(self.lock(), |queue| queue.done < steps);
        drop(queue.unwrap_or_else(PoisonError::into_inner));
    }

    /// What is queued is still done; then its thread ends.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    pub(crate) fn set_lag(&self, micros: u64) {
        self.own_lag.store(micros, Ordering::Relaxed);
    }

    fn run(self: &Arc<Self>) {
        loop {
            let idle = |queue: &mut Queue| queue.steps.is_empty() && !queue.is_closed;
            let mut queue = self.news.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            let Some(step) = queue.steps.pop_front() else {
                queue.has_thread = false;
                return;
            };
            drop(queue);
            self.take(step);
            self.lock().done += 1;
            self.news.notify_all();
        }
    }

    fn take(&self, step: Step) {
        match step {
            Step::Reach(point) => point.reach(),
            Step::Wait(point) => point.wait(),
            Step::After(other, steps) => other.wait(steps),
            Step::Work(work) => self.execute(work),
            Step::Graph(works) => works.into_iter().for_each(|work| self.execute(work)),
        }
    }

    fn execute(&self, work: Work) {
        let driver = Driver::get();
        crate::time::pass(self.lag(driver));
        driver.execute(self.device, work);
    }

    fn lag(&self, driver: &Driver) -> Duration {
        match self.own_lag.load(Ordering::Relaxed) {
            u64::MAX => {
                let settings = driver.settings.get();
                let lags = match settings.lag_stream {
                    Lagging::All => true,
                    Lagging::Default => matches!(self.kind, Kind::Legacy | Kind::PerThread),
                    Lagging::User => self.kind == Kind::User,
                    Lagging::Created(number) => self.kind == Kind::Created(number),
                };
                if lags { settings.lag } else { Duration::ZERO }
            }
            micros => Duration::from_micros(micros),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
