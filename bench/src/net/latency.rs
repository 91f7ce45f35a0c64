//! Compares the time of an urgent tensor on a link full of less urgent ones with its time on an idle link.

use std::time::Duration;

use clap::Args;
use gradlane_core::types::{DType, Op};

use super::fabric::Fabric;
use super::optimum::Cluster;
use super::shape::{Shape, exchanges};
use super::{place, tools};

use crate::job;
use crate::measure::Samples;
use crate::report::screen::note;
use crate::report::{Conclusion, Figures, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;
use crate::team::orders::Case;

/// How long does an urgent tensor take under a backlog of others?
///
/// Each worker submits a backlog of low priority and waits until its first sums are back. Then it submits an urgent tensor, whose time is
/// measured. Idle and loaded links take turns. The ratio is the time under the backlog divided by the time on idle links, repetition by
/// repetition.
///
/// With --expect, `cost` is that ratio, such as 'cost<=1.25', and 'quic busy/' or 'quic idle/' before a metric picks a row.
#[derive(Args, Clone)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: Shape,
    /// Worker machines + extra server machines.
    #[arg(long, value_name = "N+K", default_value = "2+2")]
    machines: Cluster,
    /// Bytes of the urgent tensor.
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", value_parser = parse_size, default_value = "1M")]
    bytes: u64,
    /// Bytes of the backlog.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    backlog: u64,
    /// Repetitions of each; the table shows the median.
    #[arg(short = 'N', long = "repetitions", value_name = "COUNT", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    #[command(flatten)]
    record: Record,
    /// A small backlog over slow links: verifies every sum, but the figures mean nothing. Takes seconds.
    #[arg(long)]
    smoke: bool,
}

/// Measures and prints.
///
/// # Errors
/// What this host lacks, or the error of the first process that failed.
pub(crate) fn run(arguments: &Arguments) -> Result<Conclusion, String> {
    tools::check(&[])?;
    let mut arguments = arguments.clone();
    if arguments.smoke {
        arguments = Arguments { bytes: 64 << 10, backlog: 16 << 20, repetitions: 1, ..arguments };
        arguments.shape.slow_down();
    }
    let cluster = arguments.machines;
    let mut setting = vec![
        format!("gradlane-bench net latency, {}", env!("CARGO_PKG_VERSION")),
        format!(
            "{cluster}, links of {}; backlog {} bytes; {} repetitions after one to warm up",
            arguments.shape.link(),
            arguments.backlog,
            arguments.repetitions
        ),
    ];
    setting.extend(smoke_note(arguments.smoke));
    let mut report = Report::begin("net latency", setting);
    let width = arguments.record.width();
    report.setting.iter().for_each(|line| print!("{}", note(line, width)));
    let fabric = Fabric::build(cluster.machines(), arguments.shape.link())?;
    let settings = arguments.shape.settings()?;
    let mut team = job::start(&place::job(&fabric, cluster, &settings, PATIENCE))?;
    let alone = Case { sets: 1, ..Case::single("urgent", arguments.bytes, DType::F32, Op::Sum, 1) };
    let under_backlog = alone.clone().under_backlog(arguments.backlog);
    let (mut idle, mut loaded) = (Samples::default(), Samples::default());
    for number in 0..=arguments.repetitions {
        for (case, samples) in [(&alone, &mut idle), (&under_backlog, &mut loaded)] {
            team.prepare(case)?;
            let repetition = team.repeat(&exchanges(1))?;
            if repetition.wrong > 0 {
                return Ok(Conclusion::Wrong(repetition.wrong_at.unwrap_or_default()));
            }
            // The first of each warms up.
            if number > 0 {
                samples.push(repetition.total_seconds * 1e6);
            }
        }
    }
    team.end()?;
    let factor = loaded.over(&idle);
    let mut table = Table::new(["bytes", "idle ms", "under backlog ms", "ratio"]);
    let milliseconds = |samples: &Samples| samples.scaled(1e-3).to_string();
    table.push([arguments.bytes.to_string(), milliseconds(&idle), milliseconds(&loaded), format!("{factor:.2}")]);
    print!("{}", table.within(width));
    let row = |variant: &str, times: Samples, cost: Option<Samples>| {
        let algbw =
            Samples::from(times.values().iter().map(|us| arguments.bytes as f64 / us / 1e3).collect::<Vec<_>>());
        Row {
            bytes: arguments.bytes,
            count: alone.elements(),
            dtype: Some(alone.dtype()),
            op: Some(alone.op()),
            in_place: Some(Figures { algbw: Some(algbw), cost, ..Figures::of_times(times) }),
            ..Row::new("quic", true, variant)
        }
    };
    report.rows = vec![row("idle", idle, None), row("busy", loaded, Some(factor))];
    Ok(report.conclude(&arguments.record))
}

const PATIENCE: Duration = Duration::from_secs(300);
