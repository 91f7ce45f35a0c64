//! The screen as text.

use std::cmp::Reverse;
use std::fmt::Write;

use gradlane_core::types::printable;
use gradlane_core::wire::frame::Health;

use crate::cli::screen::table;
use crate::look::words::{bytes, health, micros, millis, percent, rate, small_percent, waits};
use crate::look::{Look, RankLine, ServerLine};

/// How workers are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The latest first.
    Late,
    /// By rank.
    Rank,
}

/// What the person at the terminal has chosen, and what fits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen<'a> {
    /// Columns and lines of the terminal. `None` in a pipe, where all is shown, and no keys.
    pub(super) size: Option<(u16, u16)>,
    pub(super) order: Order,
    /// Shows all tensors that wait, and not only the first ones.
    pub(super) all_tensors: bool,
    pub(super) is_paused: bool,
    /// What came of the last order, for the last line.
    pub(super) note: Option<&'a str>,
    /// Why the state is an old one.
    pub(super) notice: Option<&'a str>,
}

impl Screen<'_> {
    /// What a pipe gets.
    pub(super) const PIPE: Self =
        Self { size: None, order: Order::Late, all_tensors: false, is_paused: false, note: None, notice: None };
}

/// The screen: no line is longer than the terminal is wide, and there are no more lines than it has. Workers and servers that do not fit are
/// counted.
pub(super) fn render(look: &Look, screen: Screen<'_>) -> String {
    let mut text = head(look, screen);
    let keys = screen.size.map(|_| "q quit  s sort  t tensors  d dump  T timeline  p pause\n");
    // The end of the last line would scroll.
    let lines = screen.size.map_or(usize::MAX, |(_, lines)| usize::from(lines.saturating_sub(1)));
    // The heads of two tables, two lines for what does not fit, and the last line.
    let room = lines.saturating_sub(text.lines().count() + 5 + usize::from(screen.note.is_some()));
    let servers = look.hosts.len().min((room / 2).max(room.saturating_sub(look.ranks.len())));
    let workers = look.ranks.len().min(room - servers);
    let mut ranks: Vec<&RankLine> = look.ranks.iter().collect();
    if screen.order == Order::Late {
        ranks.sort_by_key(|line| (Reverse(line.late), line.rank));
    }
    text.push_str(&table(RANKS, ranks.iter().take(workers).map(|line| rank(line)), None));
    text.push_str(&more(look.ranks.len() - workers, "workers"));
    text.push_str(&table(SERVERS, look.hosts.iter().take(servers).map(server), None));
    text.push_str(&more(look.hosts.len() - servers, "servers"));
    text.push_str(keys.unwrap_or_default());
    screen.note.into_iter().for_each(|note| text.push_str(&format!("{}\n", printable(note))));
    let columns = screen.size.map_or(usize::MAX, |(columns, _)| usize::from(columns));
    let cut = |line: &str| line.chars().take(columns).collect::<String>().trim_end().to_owned();
    text.lines().take(lines).map(|line| cut(line) + "\n").collect()
}

fn head(look: &Look, Screen { all_tensors, is_paused, notice, .. }: Screen<'_>) -> String {
    let Look { job, state, workers, servers, missing, step, step_time, time_use, verdict, .. } = look;
    let mut text = format!(
        "gradlane top  job {job}  {state}  {}/{} workers {}/{} servers",
        workers.0, workers.1, servers.0, servers.1
    );
    if let Some(step) = step {
        let _ = write!(text, "  step {step}");
    }
    if let Some(step_time) = step_time {
        let _ = write!(text, "  {}", millis(*step_time));
    }
    text.push_str(if is_paused { "  PAUSED\n" } else { "\n" });
    notice.into_iter().for_each(|notice| text.push_str(&format!("NO ANSWER {notice}\n")));
    if let Some(time_use) = time_use {
        let parts: Vec<String> = time_use.parts().map(|(name, share)| format!("{name} {}", bar(share))).collect();
        let _ = writeln!(text, "{}", parts.join("  "));
    }
    let there = workers.0 + servers.0;
    if !missing.is_empty() {
        let _ = writeln!(text, "{} of {there} answered; missing: {}", there - missing.len(), missing.join(", "));
    }
    if !look.waits.unheard.is_empty() {
        let _ = writeln!(text, "no answer about waiting tensors from {}", look.waits.unheard);
    }
    let _ = writeln!(text, "VERDICT {verdict}");
    let shown = if all_tensors { usize::MAX } else { WAITING };
    for wait in look.waits.tensors.iter().take(shown) {
        let _ = writeln!(text, "WAITING {}", waits(wait));
    }
    text
}

/// A share as a bar of ten characters at most, and in percent.
fn bar(share: f64) -> String {
    let length = (share.clamp(0.0, 1.0) * 10.0).round() as usize;
    let gap = if length == 0 { "" } else { " " };
    "▇".repeat(length) + gap + &percent(share)
}

/// The most tensors that wait, unless all are wanted.
const WAITING: usize = 3;

const RANKS: [&str; 13] = [
    "RANK",
    "HOST",
    "STATE",
    "STEP",
    "LATE/step",
    "CAUSE",
    "BLOCKED",
    "PUSH/s",
    "PULL/s",
    "LIMIT",
    "RTT",
    "LOSS",
    "OPEN",
];

fn rank(line: &RankLine) -> [String; 13] {
    [
        line.rank.to_string(),
        line.host.clone(),
        state(line.health),
        known(line.step, |step| step.to_string()),
        known(line.late, millis),
        known(line.cause, |cause| cause.name().to_owned()),
        known(line.blocked, percent),
        known(line.push, rate),
        known(line.pull, rate),
        known(line.limit_word(), |limit| limit),
        known(line.rtt, micros),
        known(line.loss, small_percent),
        known(line.open, |open| open.to_string()),
    ]
}

const SERVERS: [&str; 10] = ["SRV", "HOST", "STATE", "IN/s", "OUT/s", "LANES", "SUMS", "PLACED", "OPEN", "LAST"];

fn server(line: &ServerLine) -> [String; 10] {
    [
        line.index.to_string(),
        line.host.clone(),
        state(line.health),
        known(line.input, rate),
        known(line.output, rate),
        known(line.lanes, percent),
        bytes(line.sum_bytes),
        bytes(line.placed_bytes),
        line.pending.to_string(),
        known(line.last, |rank| format!("rank {rank}")),
    ]
}

fn more(count: usize, what: &str) -> String {
    if count == 0 { String::new() } else { format!("and {count} more {what}\n") }
}

fn state(of: Health) -> String {
    health(of).to_owned()
}

fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
