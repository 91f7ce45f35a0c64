//! `gradlane top`: who holds a running job up, again every second.
//!
//! | file | does |
//! |---|---|
//! | `asker` | asks the coordinator and the members |
//! | `render` | the screen as text |
//! | `terminal` | keys without Enter |
//!
//! In a pipe it shows one screen, after a second, because rates need two readings.

mod asker;
mod render;
mod terminal;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crossbeam_channel::{Receiver, after, select, unbounded};
use gradlane_core::Result;
use gradlane_core::config::ProcessRole;

use self::asker::Asker;
use self::render::{Order, Screen, render};
use self::terminal::Keys;
use super::screen;
use super::settings::Settings;
use super::silence::Silence;
use super::status::is_over;
use crate::exit;
use crate::look::Look;
use crate::signals::Interrupts;

/// Shows the job that the settings name, else the one that this user leads here, until it ends or the user does. While its coordinator does
/// not answer, its last state stays, and a line says so.
///
/// # Errors
/// Why there is no job, or why its coordinator cannot be asked; later as [`Silence::after`].
pub(super) fn show(settings: &Settings) -> Result<i32> {
    let (signals, interrupts) = unbounded();
    let _watch = Interrupts::watch(move |signal| {
        let _ = signals.send(signal);
    })?;
    let mut asker = Asker::enter(settings.load(Some(ProcessRole::Server))?, PATIENCE)?;
    let mut now = asker.read(PATIENCE)?;
    let Some(keys) = screen::size().and_then(|_| Keys::watch()) else {
        select! {
            recv(interrupts) -> signal => return Ok(interrupted(signal)),
            recv(after(EVERY)) -> _ => {}
        }
        let next = asker.read(PATIENCE)?;
        return screen::say(&render(&Look::of(Some(&now), &next), Screen::PIPE));
    };
    let mut before = None;
    let (mut order, mut all_tensors, mut is_paused, mut note) = (Order::Late, false, false, None);
    let mut silence = Silence::default();
    let mut is_recorded = false;
    screen::clear();
    loop {
        let (size, note_shown, notice) = (screen::size(), note.as_deref(), silence.notice());
        let screen = Screen { size, order, all_tensors, is_paused, note: note_shown, notice };
        screen::draw(&render(&Look::of(before.as_ref(), &now), screen));
        let happened = wait(&keys.pressed, &interrupts, is_paused, size);
        let asked = asker.now();
        match happened {
            Happened::Key(b'q') => return Ok(exit::SUCCESS),
            Happened::Key(b's') => order = if order == Order::Late { Order::Rank } else { Order::Late },
            Happened::Key(b't') => all_tensors = !all_tensors,
            Happened::Key(b'd') => note = Some(asker.dump(&now, PATIENCE)),
            Happened::Key(b'T') => {
                is_recorded = !is_recorded;
                note = Some(asker.record(&now, is_recorded, PATIENCE));
            }
            Happened::Key(b'p') => is_paused = !is_paused,
            Happened::Key(_) | Happened::Resized => {}
            Happened::Signal(code) => return Ok(code),
            // Keys are not read meanwhile, so a coordinator that is known to be silent has less time.
            Happened::Tick => match asker.read(if silence.notice().is_some() { AGAIN } else { PATIENCE }) {
                Ok(next) => {
                    before = Some(std::mem::replace(&mut now, next));
                    silence = Silence::default();
                }
                Err(error) if is_over(&now.status.view.phase) || asker.nobody_leads() => {
                    tracing::info!(%error, "no job is left to watch");
                    return Ok(exit::SUCCESS);
                }
                Err(error) => silence.after(asked, asker.now(), error)?,
            },
        }
    }
}

enum Happened {
    Key(u8),
    /// A signal, as an exit code.
    Signal(i32),
    /// During a pause, the terminal got another size.
    Resized,
    Tick,
}

/// Waits for a key, a signal, or the next second. During a pause, waits for another size than the one `drawn` in place of the next second.
fn wait(pressed: &Receiver<u8>, interrupts: &Receiver<i32>, is_paused: bool, drawn: Option<(u16, u16)>) -> Happened {
    loop {
        select! {
            recv(pressed) -> key => return match key {
                Ok(key) => Happened::Key(key),
                // There is no more input.
                Err(_) => Happened::Key(b'q'),
            },
            recv(interrupts) -> signal => return Happened::Signal(interrupted(signal)),
            recv(after(EVERY)) -> _ => match is_paused {
                false => return Happened::Tick,
                true if screen::size() != drawn => return Happened::Resized,
                true => {}
            },
        }
    }
}

fn interrupted(signal: std::result::Result<i32, crossbeam_channel::RecvError>) -> i32 {
    exit::of_signal(signal.expect("signals are watched as long as it shows"))
}

/// How often it is asked.
const EVERY: Duration = Duration::from_secs(1);
/// For the coordinator.
const PATIENCE: Duration = Duration::from_secs(5);
/// For a coordinator that has not answered before.
const AGAIN: Duration = Duration::from_secs(2);
