//! An event queue of the model, in place of epoll: one event wakes one of the threads that sleep. Only a short sleep ends by itself.

use std::collections::VecDeque;
use std::time::Duration;

use shuttle::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::types::LinkId;

/// The events that no thread has taken.
#[derive(Default)]
pub(super) struct Events {
    ready: Mutex<Ready>,
    woken: Condvar,
}

#[derive(Default)]
struct Ready {
    /// Edge-triggered: any number of wakeups before a thread takes them are one.
    woken: bool,
    happened: VecDeque<Happening>,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happening {
    /// A process wants to connect.
    Socket,
    /// The peer of a link is gone, or says why it goes.
    End(LinkId),
    /// The bell of a link was rung.
    Wakeup(LinkId),
}

impl Events {
    pub(super) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    /// Wakes one thread that sleeps here, or the next one that wants to.
    pub(super) fn wake(&self) {
        self.ready.lock().expect("no panic").woken = true;
        self.woken.notify_one();
    }

    /// The peer of a link woke this side.
    pub(super) fn push(&self, happening: Happening) {
        let mut ready = self.ready.lock().expect("no panic");
        if !ready.happened.contains(&happening) {
            ready.happened.push_back(happening);
        }
        drop(ready);
        self.woken.notify_one();
    }

    /// Sleeps until there is an event, or not at all if `timeout` is short.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<Happening> {
        let mut ready = self.ready.lock().expect("no panic");
        let is_short = timeout.is_some_and(|timeout| timeout <= SHORT);
        while !is_short && !ready.woken && ready.happened.is_empty() {
            ready = self.woken.wait(ready).expect("no panic");
        }
        ready.woken = false;
        ready.happened.drain(..).collect()
    }
}

/// The first sleep after work takes no longer.
const SHORT: Duration = Duration::from_millis(1);
