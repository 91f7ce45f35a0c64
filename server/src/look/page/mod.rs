//! A job as one page of HTML that needs nothing from elsewhere: no script, no font, no picture of another file.
//!
//! | file | writes |
//! |---|---|
//! | `html` | texts and tables |
//! | `spark` | small drawings of the last minutes |
//!
//! Names come from processes and users, so each goes through [`html::text`], which escapes and shortens it. Rows are bounded too, so that the
//! page has at most 64 KiB, whatever the job has.

mod html;
mod spark;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use gradlane_core::wire::frame::Health;

use self::html::{Column, known, list, table, text};
use self::spark::spark;
use super::history::Point;
use super::words::{bytes, health, millis, percent, rate, small_percent, waits};
use super::{Look, RankLine, ServerLine, Verdict};

/// What the page shows besides a [`Look`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Around {
    /// What hinders the job, in sentences.
    pub(crate) troubles: Vec<String>,
    /// The last minutes.
    pub(crate) points: Vec<Point>,
    /// The second of the newest point.
    pub(crate) second: u64,
    /// What has happened, the newest first, and how long ago.
    pub(crate) events: Vec<(Duration, String)>,
    /// The version of the program.
    pub(crate) version: &'static str,
    /// The settings of the coordinator in one number.
    pub(crate) settings: u64,
}

/// The page.
pub(crate) fn page(look: &Look, around: &Around) -> String {
    let job = text(&look.job, NAME);
    let mut page =
        format!("{HEAD}<title>{job}: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n", text(&look.state, NAME));
    page.push_str(&head(look, &job));
    page.push_str(&notes(look, around));
    page.push_str(&sparks(around));
    let mut ranks: Vec<&RankLine> = look.ranks.iter().collect();
    ranks.sort_by_key(|line| (Reverse(line.late), line.rank));
    page.push_str("<h2>Workers</h2>\n");
    page.push_str(&table(RANKS, &ranks, ROWS, "workers"));
    page.push_str("<h2>Servers</h2>\n");
    page.push_str(&table(SERVERS, &look.hosts.iter().collect::<Vec<_>>(), ROWS, "servers"));
    let waiting = look.waits.tensors.iter().take(WAITING);
    let waiting: Vec<String> = waiting.map(|wait| text(&waits(wait), SENTENCE)).collect();
    page.push_str(&list("Waiting tensors", &waiting));
    let events = around.events.iter().take(EVENTS);
    let events: Vec<String> =
        events.map(|(ago, event)| format!("<small>{} ago</small> {}", age(*ago), text(event, SENTENCE))).collect();
    page.push_str(&list("Last events", &events));
    let _ = write!(
        page,
        "<footer>gradlane {} · settings {:016x} · <a href=\"/job\">/job</a> <a href=\"/metrics\">/metrics</a></footer>\n</body>\n</html>\n",
        around.version, around.settings
    );
    page
}

fn head(look: &Look, job: &str) -> String {
    let Look { state, workers, servers, step, step_time, time_use, .. } = look;
    let mut facts = vec![
        text(state, NAME),
        format!("{}/{} workers", workers.0, workers.1),
        format!("{}/{} servers", servers.0, servers.1),
    ];
    facts.extend(step.map(|step| format!("step {step}")));
    facts.extend(step_time.map(|time| format!("{} a step", millis(time))));
    let uses = time_use.map_or(String::new(), |time_use| {
        let part = |(name, share): (&str, f64)| {
            let bar = bar("", share, &format!(" {name}"));
            format!("<span>{name} {}{bar}</span>", percent(share))
        };
        format!("<p class=\"uses\">{}</p>\n", time_use.parts().map(part).collect::<Vec<_>>().join(" "))
    });
    format!("<header><h1>job {job}</h1>\n<p>{}</p>\n{uses}</header>\n", facts.join(" · "))
}

fn notes(look: &Look, around: &Around) -> String {
    let mut notes = String::new();
    let mut note = |class: &str, sentence: &str| {
        let _ = writeln!(notes, "<p class=\"note {class}\">{sentence}</p>");
    };
    let class = match look.verdict {
        Verdict::Unknown | Verdict::NoSums => "",
        Verdict::Nobody => "fine",
        Verdict::Late { .. } | Verdict::Behind { .. } | Verdict::FullServer { .. } | Verdict::Credit { .. } => "late",
    };
    note(class, &format!("verdict: {}", text(&look.verdict.to_string(), SENTENCE)));
    if !look.missing.is_empty() {
        let there = look.workers.0 + look.servers.0;
        let more = look.missing.len().saturating_sub(ROWS);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let named: Vec<&str> = look.missing.iter().take(ROWS).map(String::as_str).collect();
        let named = text(&named.join(", "), ROWS * 24);
        note("warn", &format!("⚠ {} of {there} answered; missing: {named}{more}", there - look.missing.len()));
    }
    if !look.waits.unheard.is_empty() {
        note(
            "warn",
            &format!("⚠ no answer about waiting tensors from {}", text(&look.waits.unheard.to_string(), SENTENCE)),
        );
    }
    for trouble in around.troubles.iter().take(TROUBLES) {
        note("warn", &format!("⚠ {}", text(trouble, SENTENCE)));
    }
    notes
}

fn sparks(around: &Around) -> String {
    let Around { points, second, .. } = around;
    let step = spark("step", points, *second, |point| point.step, |time| millis(Duration::from_secs_f64(time)));
    let exposed = spark("exposed", points, *second, |point| point.exposed, percent);
    let bytes = spark("sent and received", points, *second, |point| point.bytes, |bytes| format!("{}/s", rate(bytes)));
    format!("<div class=\"sparks\">\n{step}{exposed}{bytes}</div>\n")
}

const RANKS: &[Column<RankLine>] = &[
    Column { head: "rank", meaning: "of the worker", cell: |line| line.rank.to_string() },
    Column { head: "host", meaning: "where it runs", cell: |line| text(&line.host, NAME) },
    Column { head: "state", meaning: "as the coordinator sees it", cell: |line| state(line.health) },
    Column { head: "step", meaning: "the last that it began", cell: |line| known(line.step, |step| step.to_string()) },
    Column { head: "late/step", meaning: "for how long a sum waited for this worker alone", cell: late },
    Column { head: "cause", meaning: "mostly why", cell: |line| known(line.cause, |cause| cause.name().to_owned()) },
    Column {
        head: "blocked",
        meaning: "time in which its threads waited for sums",
        cell: |line| known(line.blocked, percent),
    },
    Column { head: "push/s", meaning: "sent to servers", cell: |line| known(line.push, rate) },
    Column { head: "pull/s", meaning: "received from servers", cell: |line| known(line.pull, rate) },
    Column {
        head: "limit",
        meaning: "what held its worst link; nic if the network interfaces of its machine are full",
        cell: |line| known(line.limit_word(), |limit| limit),
    },
    Column { head: "loss", meaning: "packets of that link", cell: |line| known(line.loss, small_percent) },
    Column {
        head: "open",
        meaning: "operations that have not ended",
        cell: |line| known(line.open, |open| open.to_string()),
    },
];

const SERVERS: &[Column<ServerLine>] = &[
    Column { head: "server", meaning: "its index", cell: |line| line.index.to_string() },
    Column { head: "host", meaning: "where it runs", cell: |line| text(&line.host, NAME) },
    Column { head: "state", meaning: "as the coordinator sees it", cell: |line| state(line.health) },
    Column { head: "in/s", meaning: "received from workers", cell: |line| known(line.input, rate) },
    Column { head: "out/s", meaning: "sent to workers", cell: |line| known(line.output, rate) },
    Column { head: "lanes", meaning: "share of the time in which a sum lane works", cell: lanes },
    Column { head: "sums", meaning: "memory of sums under way", cell: |line| bytes(line.sum_bytes) },
    Column { head: "placed", meaning: "bytes of the parts that it sums", cell: |line| bytes(line.placed_bytes) },
    Column { head: "open", meaning: "exchanges that have not ended", cell: |line| line.pending.to_string() },
    Column {
        head: "last",
        meaning: "the worker that came last in most rounds",
        cell: |line| known(line.last, |rank| format!("rank {rank}")),
    },
];

fn state(of: Health) -> String {
    let word = health(of);
    format!("<span class=\"{word}\">{word}</span>")
}

/// A delay, and a bar that is as wide as `LONG` at most.
fn late(line: &RankLine) -> String {
    let Some(late) = line.late else { return "-".to_owned() };
    bar(&millis(late), late.as_secs_f64() / LONG.as_secs_f64(), "")
}

fn lanes(line: &ServerLine) -> String {
    let Some(lanes) = line.lanes else { return "-".to_owned() };
    bar(&percent(lanes), lanes, " busy")
}

/// A text with a bar behind it: a tenth of `WIDE` at least, unless it is less than half of that.
fn bar(word: &str, share: f64, class: &str) -> String {
    const WIDE: f64 = 5.0;
    let width = (share.clamp(0.0, 1.0) * WIDE * 10.0).round() / 10.0;
    let bar = if width > 0.0 {
        format!("<span class=\"bar{class}\" style=\"width:{width}em\"></span>")
    } else {
        String::new()
    };
    text(word, NAME) + &bar
}

/// How long ago, in the unit that fits.
fn age(ago: Duration) -> String {
    let seconds = ago.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

/// The most rows of a table.
const ROWS: usize = 32;
/// The most tensors that wait.
const WAITING: usize = 12;
/// The most events.
const EVENTS: usize = 12;
/// The most sentences about what hinders the job.
const TROUBLES: usize = 4;
/// The most characters of a name.
const NAME: usize = 32;
/// The most characters of a sentence.
const SENTENCE: usize = 200;
/// A delay that is drawn as long as can be.
const LONG: Duration = Duration::from_millis(250);
const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                    <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
                    <meta http-equiv=\"refresh\" content=\"2\">\n";
const STYLE: &str = include_str!("style.css");
