//! `gradlane top`: who holds a running job up, again every second.
//!
//! | file | does |
//! |---|---|
//! | `render` | the screen as text |
//! | `terminal` | keys without Enter |
//!
//! In a pipe it shows one screen, after a second, because rates need two readings.

mod render;
mod terminal;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, after, never, select, unbounded};
use gradlane_core::Result;
use gradlane_core::engine::FLIGHT_DIRECTORY;
use gradlane_core::runtime::{Clock, Operator};
use gradlane_core::types::{ControlCommand, Recipient, Role, Time};

use self::render::{Order, Screen, render};
use self::terminal::Keys;
use super::ctl;
use super::recorders;
use super::screen;
use super::settings::Settings;
use super::timelines;
use crate::exit;
use crate::look::{Look, Reading};
use crate::signals::Interrupts;

/// Shows the job that the settings name, else the one that this user leads here, until it ends or the user does.
///
/// # Errors
/// Why there is no job, or why its coordinator cannot be asked.
pub(super) fn show(settings: &Settings) -> Result<i32> {
    let (signals, interrupts) = unbounded();
    let _watch = Interrupts::watch(move |signal| {
        let _ = signals.send(signal);
    })?;
    let mut asker = Asker { operator: ctl::enter(settings, PATIENCE)?, clock: Clock::start() };
    let mut now = asker.read()?;
    let Some(keys) = screen::size().and_then(|_| Keys::watch()) else {
        select! {
            recv(interrupts) -> signal => return Ok(interrupted(signal)),
            recv(after(EVERY)) -> _ => {}
        }
        let next = asker.read()?;
        let screen = Screen { size: None, order: Order::Late, all_tensors: false, is_paused: false, note: None };
        return screen::say(&render(&Look::of(Some(&now), &next), screen));
    };
    let mut before = None;
    let (mut order, mut all_tensors, mut is_paused, mut note) = (Order::Late, false, false, None);
    let mut is_recorded = false;
    screen::clear();
    loop {
        let screen = Screen { size: screen::size(), order, all_tensors, is_paused, note: note.as_deref() };
        screen::draw(&render(&Look::of(before.as_ref(), &now), screen));
        match wait(&keys.pressed, &interrupts, is_paused) {
            Happened::Key(b'q') => return Ok(exit::SUCCESS),
            Happened::Key(b's') => order = if order == Order::Late { Order::Rank } else { Order::Late },
            Happened::Key(b't') => all_tensors = !all_tensors,
            Happened::Key(b'd') => note = Some(asker.dump(&now)),
            Happened::Key(b'T') => {
                is_recorded = !is_recorded;
                note = Some(asker.record(&now, is_recorded));
            }
            Happened::Key(b'p') => is_paused = !is_paused,
            Happened::Key(_) => {}
            Happened::Signal(code) => return Ok(code),
            Happened::Tick => match asker.read() {
                Ok(next) => before = Some(std::mem::replace(&mut now, next)),
                Err(error) => {
                    tracing::info!(%error, "no job is left to watch");
                    return Ok(exit::SUCCESS);
                }
            },
        }
    }
}

enum Happened {
    Key(u8),
    /// A signal, as an exit code.
    Signal(i32),
    Tick,
}

/// Waits for a key, a signal, or the next second.
fn wait(pressed: &Receiver<u8>, interrupts: &Receiver<i32>, is_paused: bool) -> Happened {
    let tick = if is_paused { never() } else { after(EVERY) };
    select! {
        recv(pressed) -> key => match key {
            Ok(key) => Happened::Key(key),
            // There is no more input.
            Err(_) => Happened::Key(b'q'),
        },
        recv(interrupts) -> signal => Happened::Signal(interrupted(signal)),
        recv(tick) -> _ => Happened::Tick,
    }
}

fn interrupted(signal: std::result::Result<i32, crossbeam_channel::RecvError>) -> i32 {
    exit::of_signal(signal.expect("signals are watched as long as it shows"))
}

/// Asks the members of a job for their metrics.
struct Asker {
    operator: Operator,
    clock: Clock,
}

impl Asker {
    /// Has all workers write what their flight recorders have. Returns where, or why not.
    fn dump(&mut self, now: &Reading) -> String {
        match recorders::written(
            &mut self.operator,
            ctl::with_recorders(&now.status),
            FLIGHT_DIRECTORY.to_owned(),
            PATIENCE,
        ) {
            Ok(told) => told.in_short(),
            Err(error) => error.to_string(),
        }
    }

    /// Has all members record a timeline, or end it. Returns how many do, or why not.
    fn record(&mut self, now: &Reading, begins: bool) -> String {
        let directory = timelines::DIRECTORY.to_owned();
        let command = match begins {
            true => ControlCommand::Timeline { directory, from: 0, steps: None },
            false => ControlCommand::StopTimeline,
        };
        let members = ctl::members(&now.status).collect();
        let told = timelines::in_short(&mut self.operator, members, &command, PATIENCE);
        told.unwrap_or_else(|error| error.to_string())
    }

    fn read(&mut self) -> Result<Reading> {
        let status = self.operator.status(PATIENCE)?;
        let at = self.clock.now().since(Time::ZERO);
        let mut told = BTreeMap::new();
        for (recipient, outcome) in ctl::gather(&mut self.operator, ctl::members(&status).collect(), ANSWER)? {
            let member = match recipient {
                Recipient::Worker(rank) => (Role::Worker, rank.0),
                Recipient::Server(index) => (Role::Server, index.0),
                Recipient::Coordinator => continue,
            };
            if let Some(instance) = outcome.ok().and_then(|stats| ctl::instance(&stats)) {
                told.insert(member, Arc::new(instance));
            }
        }
        Ok(Reading { at, status, told, told_at: BTreeMap::new() })
    }
}

/// How often it is asked.
const EVERY: Duration = Duration::from_secs(1);
/// A member that does not answer within this time is missing on the screen.
const ANSWER: Duration = Duration::from_millis(500);
/// For the coordinator.
const PATIENCE: Duration = Duration::from_secs(5);
