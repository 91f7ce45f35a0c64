//! How people are told: sizes, times, shares, and what members and jobs do.

use std::time::Duration;

use gradlane_core::config::units;
use gradlane_core::types::{Phase, printable};
use gradlane_core::wire::frame::{Health, Waiting, WaitingTensor};

/// What a job does.
pub(crate) fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Forming => "forming",
        Phase::Running => "running",
        Phase::Ended => "ended",
        Phase::Aborted(_) => "aborted",
        Phase::FormsAgain | Phase::Restores(_) => "forms again",
    }
}

/// How a member is.
pub(crate) fn health(health: Health) -> &'static str {
    match health {
        Health::Alive => "alive",
        Health::Suspect => "suspect",
        Health::Dead => "dead",
        Health::Left => "left",
    }
}

/// A size with at most one digit after the point, as `4.2 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let unit = (1 << (bytes.max(1).ilog2() / 10 * 10)) as u64;
    if bytes.is_multiple_of(unit) {
        return units::print_bytes(bytes);
    }
    let name = units::print_bytes(unit);
    format!("{:.1} {}", bytes as f64 / unit as f64, name.trim_start_matches("1 "))
}

/// A time in milliseconds, with a digit after the point below 100.
pub(crate) fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1e3;
    if millis < 100.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// A time below a millisecond in microseconds, and a longer one as [`millis`].
pub(crate) fn micros(duration: Duration) -> String {
    if duration < Duration::from_millis(1) { format!("{} us", duration.as_micros()) } else { millis(duration) }
}

/// A small share in percent, with two digits after the point.
pub(crate) fn small_percent(share: f64) -> String {
    if share > 0.0 { format!("{:.2} %", share * 100.0) } else { "0".to_owned() }
}

/// A time in seconds, with a digit after the point.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// The ranks for which a round waits.
pub(crate) fn missing(waiting: &Waiting) -> String {
    let ranks: Vec<String> = waiting.missing.iter().map(|rank| rank.0.to_string()).collect();
    let more = if waiting.more == 0 { String::new() } else { format!(" and {} more", waiting.more) };
    ranks.join(", ") + &more
}

/// A tensor that waits, as `layer4.conv3.weight r812 0.3 s for [3]`.
pub(crate) fn waits(wait: &WaitingTensor) -> String {
    let (tensor, round) = (printable(&wait.tensor), wait.waiting.round.0);
    format!("{tensor} r{round} {} for [{}]", seconds(wait.waited()), missing(&wait.waiting))
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes a second, whose unit stands elsewhere.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    bytes(bytes_per_second as u64)
}
