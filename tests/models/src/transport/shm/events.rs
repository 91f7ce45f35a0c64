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
    rung: Condvar,
}

#[derive(Default)]
struct Ready {
    /// Edge-triggered: any number of rings before a thread takes them are one.
    woken: bool,
    happened: VecDeque<Happening>,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happening {
    /// A process wants to connect.
    Socket,
    /// The peer of a link is gone, or says why it goes.
    End(LinkId),
    /// The bell of a link was rung.
    Rung(LinkId),
}

impl Events {
    pub(super) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    /// Wakes one thread that sleeps here, or the next one that wants to.
    pub(super) fn ring(&self) {
        self.ready.lock().expect("no panic").woken = true;
        self.rung.notify_one();
    }

    /// The bell of a link was rung.
    pub(super) fn push(&self, happening: Happening) {
        let mut ready = self.ready.lock().expect("no panic");
        if !ready.happened.contains(&happening) {
            ready.happened.push_back(happening);
        }
        drop(ready);
        self.rung.notify_one();
    }

    /// Sleeps until there is an event, or not at all if `timeout` is short.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<Happening> {
        let mut ready = self.ready.lock().expect("no panic");
        let is_short = timeout.is_some_and(|timeout| timeout <= SHORT);
        while !is_short && !ready.woken && ready.happened.is_empty() {
            ready = self.rung.wait(ready).expect("no panic");
        }
        ready.woken = false;
        ready.happened.drain(..).collect()
    }
}

/// The first sleep after work takes no longer.
const SHORT: Duration = Duration::from_millis(1);
