//! A line on a terminal that says what is measured, for how long already and for about how long in all. Nothing on a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The line. Dropping it removes it.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When measuring began, after all processes had started.
    begun: Duration,
    done: f64,
    total: f64,
}

impl Progress {
    /// Shows the line on standard error if that is a terminal.
    pub(crate) fn begin() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("[{elapsed_precise}{prefix}] {wide_msg}").expect("a right template");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, begun: Duration::ZERO, done: 0.0, total: 0.0 }
    }

    /// Says what is done now.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Begins with work that weighs `total`.
    pub(crate) fn expect(&mut self, total: f64) {
        (self.begun, self.done, self.total) = (self.bar.elapsed(), 0.0, total);
    }

    /// Work of this weight is done. The expected time is that of all work, if the rest is as fast for its weight.
    pub(crate) fn advance(&mut self, weight: f64) {
        self.done += weight;
        let expected = expected(self.begun, self.bar.elapsed(), self.done / self.total);
        self.bar.set_prefix(format!(" of about {}", clock(expected)));
    }

    /// Runs `print` while the line is not there.
    pub(crate) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The time of everything, of which `share` was done between `begun` and `now`.
fn expected(begun: Duration, now: Duration, share: f64) -> Duration {
    let taken = now.saturating_sub(begun);
    begun + Duration::try_from_secs_f64(taken.as_secs_f64() / share).unwrap_or(Duration::ZERO)
}

/// Hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_follows_from_the_share_that_is_done() {
        let seconds = Duration::from_secs;
        assert_eq!(expected(seconds(10), seconds(30), 0.5), seconds(50));
        assert_eq!(expected(seconds(10), seconds(10), 0.0), seconds(10), "nothing is known yet");
        assert_eq!(clock(seconds(3725)), "01:02:05");
    }
}
