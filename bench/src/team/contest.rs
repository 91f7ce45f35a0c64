//! Lets teams measure the same cases in turns, and makes a row for each.

use gradlane_core::config::units::print_bytes;

use super::collective::Collective;
use super::orders::{Case, Mode, NO_OP, Repeat};
use super::{Repetition, Team};
use crate::arguments::Effort;
use crate::measure::Samples;
use crate::memory::Copier;
use crate::progress::Progress;
use crate::report::{Columns, Conclusion, Figures, Outline, Output, Place, Report, Row, smoke_note};

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) effort: Effort,
    pub(crate) places: Vec<Place>,
    /// See [`Repeat::spoil`].
    pub(crate) spoil: bool,
}

impl Plan {
    /// How much work a repetition of this case is for one contender, in seconds of a slow one: an exchange, and then its verification.
    fn weight(&self, entry: &Entry) -> f64 {
        const EXCHANGE: f64 = 200e-6;
        const BYTES_PER_SECOND: f64 = 1e9;
        let exchanges = self.effort.warmup + self.effort.iterations_of(entry.case.bytes());
        f64::from(exchanges) * (EXCHANGE + entry.case.bytes() as f64 / BYTES_PER_SECOND)
    }
}

/// A case and its name in tables.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) case: Case,
    /// See [`Row::variant`].
    pub(crate) variant: String,
    /// `bytes` and `count` of the row: those of one tensor where several equal ones are in flight.
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    /// Equal tensors in flight: the time of an exchange is divided by them.
    pub(crate) inflight: u32,
}

impl Entry {
    /// Several equal tensors at once.
    pub(crate) fn single(case: Case) -> Self {
        let inflight = u32::try_from(case.tensors.len()).expect("few tensors");
        let (bytes, count) = (case.bytes() / u64::from(inflight), case.elements() / u64::from(inflight));
        let mut words = Vec::new();
        words.extend((case.collective != Collective::AllReduce).then(|| case.collective.name().to_owned()));
        words.extend((case.mode != Mode::PushPull).then(|| case.mode.name().to_owned()));
        words.extend((inflight > 1).then(|| format!("x{inflight}")));
        words.extend((case.backlog_bytes > 0).then(|| "busy".to_owned()));
        let variant = words.join(" ");
        Self { case, variant, bytes, count, inflight }
    }

    /// All tensors of a model as one exchange.
    pub(crate) fn model(case: Case, name: &str) -> Self {
        Self { bytes: case.bytes(), count: case.elements(), case, variant: name.to_owned(), inflight: 1 }
    }
}

/// Measures all entries with all teams; `show` gets the rows of an entry once they are complete.
///
/// # Errors
/// The error of the first rank that failed, or of `show`.
fn run(
    teams: &mut [Team],
    entries: &[Entry],
    plan: &Plan,
    mut progress: Progress,
    mut show: impl FnMut(Vec<Row>) -> Result<(), String>,
) -> Result<(), String> {
    let weight = |entry: &Entry, place: Place| {
        let able = teams.iter().filter(|team| team.can(&entry.case, place)).count();
        plan.weight(entry) * able as f64
    };
    let weights: Vec<Vec<f64>> =
        entries.iter().map(|entry| plan.places.iter().map(|place| weight(entry, *place)).collect()).collect();
    progress.expect(weights.iter().flatten().sum::<f64>() * f64::from(plan.effort.repetitions));
    for (entry, weights) in entries.iter().zip(&weights) {
        let able: Vec<bool> =
            teams.iter().map(|team| plan.places.iter().any(|place| team.can(&entry.case, *place))).collect();
        for (team, _) in teams.iter_mut().zip(&able).filter(|(_, able)| **able) {
            progress.say(format!("{}, {}: preparing", team.name, print_bytes(entry.bytes)));
            team.prepare(&entry.case)?;
        }
        let mut rows: Vec<Row> = teams.iter().map(|team| blank(team, entry)).collect();
        // If bytes go through memory, the speed of memory is measured in the same turns. The bound is one of all-reduce.
        let bounded = entry.case.collective == Collective::AllReduce;
        let near = teams.iter().filter(|team| bounded && team.traffic.is_some()).map(|team| team.size).max();
        let mut copier = near.map(|workers| Copier::new(entry.case.bytes(), entry.case.sets, workers));
        // A place that no contender can measure weighs nothing.
        for (place, weight) in plan.places.iter().zip(weights).filter(|(_, weight)| **weight > 0.0) {
            let mut figures: Vec<Figures> = teams.iter().map(|_| Figures::default()).collect();
            for number in 0..plan.effort.repetitions as usize {
                let copy = copier.as_mut().map(Copier::sample);
                // The first team changes, so that no team always finds the caches of the same predecessor.
                for turn in 0..teams.len() {
                    let index = (turn + number) % teams.len();
                    if !teams[index].can(&entry.case, *place) {
                        continue;
                    }
                    let at = if *place == Place::In { "in place" } else { "out of place" };
                    let (name, size, all) = (&teams[index].name, print_bytes(entry.bytes), plan.effort.repetitions);
                    progress.say(format!("{name}, {size}, {at}, turn {} of {all}", number + 1));
                    let repeat = Repeat {
                        in_place: *place == Place::In,
                        warmup: plan.effort.warmup,
                        iterations: plan.effort.iterations_of(entry.case.bytes()),
                        check: plan.effort.checks(),
                        spoil: plan.spoil && teams[index].ours,
                    };
                    let repetition = teams[index].repeat(&repeat)?;
                    let ranks = teams[index].size;
                    figures[index].add(&repetition, entry, ranks);
                    if let (Some(traffic), Some(copy)) = (teams[index].traffic, copy) {
                        figures[index].set_against(traffic.touched(), copy);
                    }
                }
                progress.advance(*weight);
            }
            for (row, figures) in rows.iter_mut().zip(figures) {
                let measured = (figures.time_us.len() > 0).then_some(figures);
                match place {
                    Place::Out => row.out_of_place = measured,
                    Place::In => row.in_place = measured,
                }
            }
        }
        rows.retain(|row| row.out_of_place.is_some() || row.in_place.is_some());
        progress.suspend(|| show(rows))?;
    }
    Ok(())
}

/// Measures all entries with all teams, prints the table row by row, and ends the teams.
///
/// # Errors
/// As [`run`]; or the processes that did not end in order.
pub(crate) fn hold(
    mut teams: Vec<Team>,
    entries: &[Entry],
    plan: &Plan,
    mut report: Report,
    output: &Output,
    progress: Progress,
) -> Result<Conclusion, String> {
    let columns = Columns::new(output, plan.effort.checks(), &outline(&teams, entries, plan));
    report.setting.extend(smoke_note(plan.effort.smoke));
    let about = teams.iter().filter(|team| !team.about.is_empty());
    report.setting.extend(about.map(|team| format!("{}: {}", team.name, team.about)));
    progress.suspend(|| print!("{}", columns.heading(&report)));
    run(&mut teams, entries, plan, progress, |rows| {
        let first = report.rows.len();
        report.rows.extend(rows);
        for row in &report.rows[first..] {
            print!("{}", columns.row(&report, row));
        }
        report.save(&output.record)
    })?;
    print!("{}", columns.trailer(&report));
    teams.into_iter().try_for_each(Team::end)?;
    Ok(report.conclude(&output.record))
}

/// What the rows will be like.
fn outline(teams: &[Team], entries: &[Entry], plan: &Plan) -> Outline {
    let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let variant = longest(&mut entries.iter().map(|entry| entry.variant.chars().count()));
    let name = longest(&mut teams.iter().map(|team| team.name.chars().count()));
    let kind = |entry: &Entry| (entry.case.dtype.clone(), entry.case.op.clone());
    Outline {
        name: name + usize::from(variant > 0) + variant,
        peers: teams.iter().filter(|team| !team.ours).map(|team| team.name.clone()).collect(),
        both_places: plan.places.len() > 1,
        several_types: entries.iter().any(|entry| kind(entry) != kind(&entries[0])),
    }
}

fn blank(team: &Team, entry: &Entry) -> Row {
    Row {
        bytes: entry.bytes,
        count: entry.count,
        dtype: Some(entry.case.dtype()),
        op: (entry.case.op != NO_OP).then(|| entry.case.op()),
        collective: if entry.case.echoes() { None } else { Some(entry.case.collective.name()) },
        ..Row::new(&team.name, team.ours, &entry.variant)
    }
}

impl Figures {
    /// Adds the figures of a repetition.
    pub(crate) fn add(&mut self, repetition: &Repetition, entry: &Entry, ranks: u32) {
        let inflight = f64::from(entry.inflight);
        let exchanges = repetition.seconds.len() as f64;
        let seconds = repetition.total_seconds / exchanges / inflight;
        let gigabytes = entry.bytes as f64 / 1e9;
        let algbw = gigabytes / seconds;
        self.time_us.push(seconds * 1e6);
        self.algbw.get_or_insert_default().push(algbw);
        self.busbw.get_or_insert_default().push(algbw * entry.case.bus_factor(ranks));
        if let Some(bytes) = repetition.wire_bytes {
            self.wirebw.get_or_insert_default().push(bytes / 1e9 / repetition.total_seconds);
        }
        self.cpu_per_gb.get_or_insert_default().push(repetition.cpu_seconds / (gigabytes * inflight * exchanges));
        let exchanges = self.exchanges.values().iter().copied();
        self.exchanges = Samples::from(
            exchanges.chain(repetition.seconds.iter().map(|seconds| seconds / inflight * 1e6)).collect::<Vec<_>>(),
        );
        self.late += repetition.late;
        self.wrong += repetition.wrong;
        self.wrong_at = self.wrong_at.take().or_else(|| repetition.wrong_at.clone());
    }

    /// Compares the last repetition with the speed of memory, `copy` GB/s.
    fn set_against(&mut self, touched: u32, copy: f64) {
        let algbw = self.algbw.as_ref().and_then(|algbw| algbw.values().last()).expect("a repetition was added");
        let bound = self.bound.get_or_insert_default();
        bound.touched = touched;
        bound.copy.push(copy);
        bound.reached.push(algbw * f64::from(touched) / copy);
    }
}
