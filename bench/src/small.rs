//! What do many small tensors cost, submitted in one call, compared with one tensor of as many bytes?

use std::time::Duration;

use clap::Args;
use gradlane_core::types::{DType, Op};

use crate::arguments::Effort;
use crate::measure::Samples;
use crate::progress::Progress;
use crate::push_pull::crew::Crew;
use crate::report::screen::note;
use crate::report::{Conclusion, DEFINITIONS, Figures, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;
use crate::team::Team;
use crate::team::contest::Entry;
use crate::team::orders::{Case, Repeat};

/// What do many small tensors cost compared with one tensor of as many bytes?
///
/// Workers and a server are separate processes. The small tensors, submitted in one call, and one tensor with as many bytes are exchanged
/// in turns, in place, for each --road. Peers do the same with one call per tensor. The ratio is the time of the small ones divided by the
/// time of the one, repetition by repetition. With --expect, `cost` is that ratio, such as 'quic/cost<=1.3'.
#[derive(Args)]
#[command(after_long_help = DEFINITIONS)]
pub(crate) struct Arguments {
    /// Bytes of a small tensor.
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", value_parser = parse_size, default_value = "4K")]
    bytes: u64,
    /// How many small tensors.
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    tensors: u32,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    record: Record,
    #[command(flatten)]
    crew: Crew,
}

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    measure(arguments).unwrap_or_else(Conclusion::Failed)
}

fn measure(arguments: &Arguments) -> Result<Conclusion, String> {
    let effort = arguments.effort.or_smoke();
    let (bytes, count, float) = (arguments.bytes, arguments.tensors, DType::F32);
    if bytes % float.bytes() != 0 {
        return Err(format!("a size of {bytes} bytes is no whole number of {float} elements"));
    }
    let one = Case { sets: 1, ..Case::single("one", bytes * u64::from(count), float, Op::Sum, 1) };
    let entries = [Entry::model(one, "one"), Entry::model(Case::batch(bytes, float, count), &format!("x{count}"))];
    let patience = Duration::from_secs(effort.patience);
    let mut progress = Progress::begin();
    let mut teams = arguments.crew.jobs(None, patience, &progress)?;
    teams.extend(arguments.crew.peers(patience, &progress)?);
    let mut setting = vec![
        format!("gradlane-bench small, {}", env!("CARGO_PKG_VERSION")),
        format!("{}, {count} tensors of {bytes} bytes; {}", arguments.crew.describe(), effort.describe()),
        arguments.crew.choice(),
    ];
    setting.extend(smoke_note(effort.smoke));
    let mut report = Report::begin("small", setting);
    let width = arguments.record.width();
    report.setting.iter().for_each(|line| print!("{}", note(line, width)));

    progress.expect(f64::from(effort.repetitions) * teams.len() as f64);
    let mut figures: Vec<[Figures; 2]> = teams.iter().map(|_| Default::default()).collect();
    for number in 0..effort.repetitions as usize {
        // The order changes in each repetition, as in the other benchmarks.
        for turn in 0..teams.len() {
            let index = (turn + number) % teams.len();
            progress.say(format!("{}, turn {} of {}", teams[index].name, number + 1, effort.repetitions));
            for (entry, figures) in entries.iter().zip(&mut figures[index]) {
                let team = &mut teams[index];
                team.prepare(&entry.case)?;
                let repeat = Repeat {
                    in_place: true,
                    warmup: effort.warmup,
                    iterations: effort.iterations_of(entry.case.bytes()),
                    check: effort.checks(),
                    spoil: arguments.crew.ours.plant_wrong_sum && team.ours,
                };
                figures.add(&team.repeat(&repeat)?, entry, team.size);
            }
            progress.advance(1.0);
        }
    }
    drop(progress);
    for (team, [one, mut many]) in teams.iter().zip(figures) {
        many.cost = Some(many.time_us.over(&one.time_us));
        for (entry, figures) in entries.iter().zip([one, many]) {
            report.rows.push(row(team, entry, figures));
        }
    }
    print!("{}", table(&report).within(width));
    teams.into_iter().try_for_each(Team::end)?;
    Ok(report.conclude(&arguments.record))
}

fn row(team: &Team, entry: &Entry, figures: Figures) -> Row {
    Row {
        bytes: entry.bytes,
        count: entry.count,
        dtype: Some(entry.case.dtype()),
        op: Some(entry.case.op()),
        in_place: Some(figures),
        ..Row::new(&team.name, team.ours, &entry.variant)
    }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(["contender", "tensors", "bytes", "ms", "ratio", "#wrong"]);
    for row in &report.rows {
        let figures = row.in_place.as_ref().expect("each was measured");
        table.push([
            row.contender.clone(),
            row.variant.clone(),
            row.bytes.to_string(),
            figures.time_us.scaled(1e-3).to_string(),
            figures.cost.as_ref().map_or_else(String::new, Samples::to_string),
            figures.wrong.to_string(),
        ]);
    }
    table
}
