//! Keys of a terminal, without Enter and without an echo.

use std::io::{IsTerminal, Read, stdin};
use std::thread::Builder;

use crossbeam_channel::{Receiver, unbounded};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// While it lives, keys come as they are pressed. Then the terminal is as it was. Ctrl-C still is a signal.
pub(super) struct Keys {
    pub(super) pressed: Receiver<u8>,
    before: Termios,
}

impl Keys {
    /// `None` if standard input is no terminal, or cannot be read so.
    pub(super) fn watch() -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        let (sender, pressed) = unbounded();
        // It ends with the process: it waits for a key.
        let read = move || {
            for key in stdin().lock().bytes() {
                if !key.is_ok_and(|key| sender.send(key).is_ok()) {
                    return;
                }
            }
        };
        Builder::new().name("gl-keys".to_owned()).spawn(read).ok()?;
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { pressed, before })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
