//! What two reports have different: a pure function, and its text.
//!
//! A measured difference is noise if it is below [`NOISE`], or if one of the two jobs had fewer than [`STEPS_MIN`] steps. Times within a step count as
//! shares of the step, because a wait that triples from nothing to nearly nothing costs nothing. Quantiles of histograms lie somewhere in their
//! bucket, so they differ for sure only if a whole bucket lies between them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gradlane_core::types::printable;
use serde::Serialize;

use super::alike::{self, Processes};
use super::times::Times;
use super::{Rank, Report, Setup, page};
use crate::look::words::bytes;

/// What is different in the second report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Comparison {
    /// What people have changed, or what was different from the start: settings, versions, members, hosts; and how the jobs ended.
    pub(crate) facts: Vec<Fact>,
    /// What was measured and differs, the largest difference first.
    pub(crate) differences: Vec<Difference>,
    /// What was measured and does not differ by more than noise.
    pub(crate) noise: Vec<Difference>,
    /// Why nothing that was measured counts, if so.
    pub(crate) doubt: Option<String>,
}

/// Two texts that differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(crate) struct Fact {
    pub(crate) what: String,
    /// Empty if the first report has no such thing.
    pub(crate) a: String,
    pub(crate) b: String,
}

/// A number that both reports have.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) what: String,
    pub(crate) unit: Unit,
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// How much larger the second one is, as a share of what `scale` says.
    pub(crate) change: f64,
    pub(crate) scale: Scale,
}

/// What a change is a share of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    /// The first number.
    First,
    /// The first number, which is known up to the width of a bucket.
    Bucket,
    /// A step of the first job.
    Step,
    /// The whole, where the numbers are shares.
    Whole,
}

/// What a number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    Nanoseconds,
    Bytes,
    /// Of 1.
    Share,
}

/// Compares two reports.
pub(crate) fn compare(a: &Report, b: &Report) -> Comparison {
    let (mut differences, mut noise): (Vec<_>, Vec<_>) = measured(a, b).into_iter().partition(Difference::counts);
    let doubt = (a.steps.min(b.steps) < STEPS_MIN)
        .then(|| format!("{} and {} steps are too few to measure: fewer than {STEPS_MIN} are noise", a.steps, b.steps));
    if doubt.is_some() {
        noise.append(&mut differences);
    }
    for list in [&mut differences, &mut noise] {
        list.sort_by(|one, other| other.change.abs().partial_cmp(&one.change.abs()).unwrap_or(Ordering::Equal));
    }
    Comparison { facts: facts(a, b), differences, noise, doubt }
}

/// Settings and versions that differ, each with the processes that are in both reports and have this difference.
fn setups(a: &Report, b: &Report, facts: &mut Vec<Fact>) {
    let (before, after) = (alike::setups(a), alike::setups(b));
    let both: Vec<_> = before.iter().filter_map(|(process, a)| Some((*process, *a, *after.get(process)?))).collect();
    let all: Processes<'_> = both.iter().map(|(process, ..)| *process).collect();
    let changes = both.iter().flat_map(|(process, a, b)| changes(a, b).into_iter().map(|change| (change, *process)));
    let mut found = Vec::new();
    for (some, changes) in alike::by_processes(changes) {
        let of = if some == all { String::new() } else { format!(" of {}", alike::who(&some, &all)) };
        let named = |(order, Fact { what, a, b }): (Order, Fact)| (order, Fact { what: what + &of, a, b });
        found.extend(changes.into_iter().map(named));
    }
    found.sort_by_key(|(order, _)| *order);
    facts.extend(found.into_iter().map(|(_, fact)| fact));
}

/// In which order facts are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Setting,
    Version,
}

/// What differs between two setups of a process.
fn changes(a: &Setup, b: &Setup) -> Vec<(Order, Fact)> {
    let mut found = Vec::new();
    for name in a.settings.keys().chain(b.settings.keys()).collect::<BTreeSet<_>>() {
        let value = |setup: &Setup| setup.settings.get(name).map_or("default".to_owned(), |it| it.value.clone());
        if value(a) != value(b) {
            found.push((Order::Setting, Fact { what: format!("setting {name}"), a: value(a), b: value(b) }));
        }
    }
    for name in a.versions.keys().chain(b.versions.keys()).collect::<BTreeSet<_>>() {
        let version = |setup: &Setup| setup.versions.get(name).cloned().unwrap_or_default();
        if version(a) != version(b) {
            found.push((Order::Version, Fact { what: name.clone(), a: version(a), b: version(b) }));
        }
    }
    found
}

/// What differs that was not measured. Settings come first, because somebody has changed them.
fn facts(a: &Report, b: &Report) -> Vec<Fact> {
    let mut facts = Vec::new();
    setups(a, b, &mut facts);
    let workers = |report: &Report| report.ranks.len().to_string();
    let servers = |report: &Report| report.servers.len().to_string();
    let of_losses = |report: &Report| report.losses.join("; ");
    let why = |report: &Report| match &report.end.reason {
        Some(reason) => format!("{}: {reason}", report.end.how),
        None => report.end.how.clone(),
    };
    for (what, a, b) in [
        ("job", a.job.clone(), b.job.clone()),
        ("workers", workers(a), workers(b)),
        ("servers", servers(a), servers(b)),
        ("hosts", a.hosts().join(", "), b.hosts().join(", ")),
        ("end", why(a), why(b)),
        ("losses", of_losses(a), of_losses(b)),
        ("verdict", kind_of_verdict(a), kind_of_verdict(b)),
        ("members that told nothing", a.silent.join(", "), b.silent.join(", ")),
    ] {
        if a != b {
            facts.push(Fact { what: what.to_owned(), a, b });
        }
    }
    facts
}

/// The verdict without its numbers, which are measured.
fn kind_of_verdict(report: &Report) -> String {
    let words: Vec<&str> = report.verdict.split(' ').collect();
    let is_number = |at: &usize| words[*at].starts_with(|c: char| c.is_ascii_digit());
    let has_unit = |at: &usize| words.get(at + 1).is_some_and(|unit| ["ms", "%"].contains(unit));
    let end = (0..words.len()).find(|at| is_number(at) && has_unit(at)).unwrap_or(words.len());
    words[..end].join(" ").trim_end_matches(',').to_owned()
}

/// The numbers that both reports have.
fn measured(a: &Report, b: &Report) -> Vec<Difference> {
    let mut found = Vec::new();
    let (steps_a, steps_b) = (a.step_ns(), b.step_ns());
    let step_ns = steps_a.map_or(0.0, |step| step as f64);
    let mut add = |what: String, (unit, scale): (Unit, Scale), a: Option<f64>, b: Option<f64>| {
        let (Some(a), Some(b)) = (a, b) else { return };
        let of = match scale {
            Scale::First | Scale::Bucket => a,
            Scale::Step => step_ns,
            Scale::Whole => 1.0,
        };
        let change = if a == b { 0.0 } else { (b - a) / of.max(f64::MIN_POSITIVE) };
        found.push(Difference { what, unit, a, b, change: change.clamp(-LARGEST, LARGEST), scale });
    };
    let number = |number: Option<u64>| number.map(|number| number as f64);
    add("a step".to_owned(), TIME, number(steps_a), number(steps_b));
    add("time that workers wait".to_owned(), SHARE, a.exposed, b.exposed);
    add("time that trainings wait for data".to_owned(), SHARE, a.data, b.data);
    let each = |report: &Report, of: &dyn Fn(&Rank) -> Option<u64>| {
        let sum = report.ranks.iter().filter_map(of).fold(0_u64, u64::saturating_add);
        sum.checked_div(report.steps).map(|each| each as f64)
    };
    let (push, pull) = (|rank: &Rank| rank.push_bytes, |rank: &Rank| rank.pull_bytes);
    add("sent by workers in a step".to_owned(), (Unit::Bytes, Scale::First), each(a, &push), each(b, &push));
    add("got by workers in a step".to_owned(), (Unit::Bytes, Scale::First), each(a, &pull), each(b, &pull));
    type Part = fn(&Times) -> Option<u64>;
    let parts: [(&str, Scale, Part); 3] = [
        ("mean", Scale::First, Times::mean_ns),
        ("p50", Scale::Bucket, |it| it.p50_ns),
        ("p99", Scale::Bucket, |it| it.p99_ns),
    ];
    for (part, scale, of) in parts {
        for (name, a, b) in [("push_pull", &a.push_pull, &b.push_pull), ("a round", &a.round, &b.round)] {
            let what = format!("{name}, {part}");
            add(what, (Unit::Nanoseconds, scale), number(of(a)), number(of(b)));
        }
    }
    let busy = |report: &Report| -> BTreeMap<u32, f64> {
        report.servers.iter().filter_map(|server| Some((server.index, server.lanes_busy?))).collect()
    };
    let (busy_a, busy_b) = (busy(a), busy(b));
    for (index, of_a) in &busy_a {
        let what = format!("time that lanes of server {index} work");
        add(what, SHARE, Some(*of_a), busy_b.get(index).copied());
    }
    for of_a in &a.ranks {
        let Some(of_b) = b.ranks.iter().find(|of_b| of_b.rank == of_a.rank) else { continue };
        let (rank, late_a, late_b) = (of_a.rank, number(of_a.late_in_step_ns), number(of_b.late_in_step_ns));
        add(format!("rank {rank} late in a step"), (Unit::Nanoseconds, Scale::Step), late_a, late_b);
        add(format!("time that rank {rank} waits"), SHARE, of_a.blocked, of_b.blocked);
        add(format!("packets that rank {rank} loses"), SHARE, of_a.loss, of_b.loss);
    }
    found
}

impl Comparison {
    /// For people: what was changed first, then the largest difference.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Fact { what, a, b } in &self.facts {
            // A report may come from anywhere.
            let shown = |text: &str| if text.is_empty() { "none".to_owned() } else { printable(text) };
            let _ = writeln!(text, "{}: {} -> {}", printable(what), shown(a), shown(b));
        }
        if self.facts.is_empty() {
            text.push_str("settings, versions, members and hosts are the same\n");
        }
        for difference in &self.differences {
            let _ = writeln!(text, "{}", difference.text());
        }
        if let Some(doubt) = &self.doubt {
            let _ = writeln!(text, "{doubt}");
        } else if self.differences.is_empty() {
            text.push_str("nothing that was measured differs by 5 % or more\n");
        }
        if !self.noise.is_empty() {
            let why = if self.doubt.is_some() { "not to be trusted" } else { "below 5 %, which is noise" };
            let _ = writeln!(text, "{why}:");
            for difference in self.noise.iter().take(LINES_MAX) {
                let _ = writeln!(text, "  {}", difference.text());
            }
            if let Some(more) = self.noise.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
                let _ = writeln!(text, "  and {more} more");
            }
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("it has only names and numbers")
    }
}

impl Difference {
    /// Whether it is more than noise.
    fn counts(&self) -> bool {
        match self.scale {
            Scale::Bucket => self.a.max(self.b) > BUCKET * self.a.min(self.b),
            Scale::First | Scale::Step | Scale::Whole => self.change.abs() >= NOISE,
        }
    }

    fn text(&self) -> String {
        let Self { what, unit, a, b, change, scale } = self;
        let value = |value: f64| match unit {
            Unit::Nanoseconds => page::time(value as u64),
            Unit::Bytes => bytes(value as u64),
            Unit::Share => format!("{:.1} %", value * 100.0),
        };
        let of = match scale {
            Scale::First => " %",
            Scale::Bucket => " %, about",
            Scale::Step => " % of a step",
            Scale::Whole => " points",
        };
        format!("{what}: {} -> {} ({:+.0}{of})", value(*a), value(*b), change * 100.0)
    }
}

const TIME: (Unit, Scale) = (Unit::Nanoseconds, Scale::First);
const SHARE: (Unit, Scale) = (Unit::Share, Scale::Whole);
/// Runs on one machine differ by less, for reasons that nobody sees.
const NOISE: f64 = 0.05;
/// The width of a bucket of [`Histogram`](gradlane_core::metrics::Histogram), with some room for rounding.
const BUCKET: f64 = 4.01;
/// The first steps are slower than others.
const STEPS_MIN: u64 = 10;
/// No share is called larger.
const LARGEST: f64 = 1e6;
/// Lines for what is noise.
const LINES_MAX: usize = 10;
