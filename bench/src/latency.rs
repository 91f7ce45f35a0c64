//! How long does one urgent exchange take, alone and while the link is busy with less urgent tensors?

use std::time::Duration;

use clap::Args;
use gradlane_core::types::{DType, Op};

use crate::arguments::Effort;
use crate::progress::Progress;
use crate::push_pull::crew::Crew;
use crate::report::{Conclusion, DEFINITIONS, Output, Place, Report};
use crate::size::parse_size;
use crate::team::Team;
use crate::team::contest::{self, Entry, Plan};
use crate::team::orders::Case;

/// How long does one urgent exchange take, alone and under a backlog?
///
/// Workers and a server are separate processes; they exchange one tensor at a time, in place. Rows marked busy are measured during a
/// backlog: --backlog bytes of tensors with the lowest priority. A few exchanges run at the beginning of each backlog; then all wait for
/// its end. Peers have no priorities, so they have no such rows. Below each row: fastest, median, 99th percentile and slowest exchange.
/// Expectations can name p50 and p99, such as 'quic idle/p50<=150@4K'.
#[derive(Args)]
#[command(after_long_help = DEFINITIONS)]
pub(crate) struct Arguments {
    /// Sizes of the urgent tensor, separated by commas.
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', default_value = "4K,256K", value_parser = parse_size)]
    bytes: Vec<u64>,
    /// Bytes of the backlog; 0 measures without one.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_backlog)]
    backlog: u64,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    crew: Crew,
}

/// Measures, printing rows as they come.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    measure(arguments).unwrap_or_else(Conclusion::Failed)
}

fn measure(arguments: &Arguments) -> Result<Conclusion, String> {
    let effort = arguments.effort.or_smoke();
    let patience = Duration::from_secs(effort.patience);
    let (backlog, float) = (if effort.smoke { SMOKE_BACKLOG_BYTES } else { arguments.backlog }, DType::F32);
    let mut entries = Vec::new();
    for &bytes in &arguments.bytes {
        if bytes % float.bytes() != 0 {
            return Err(format!("a size of {bytes} bytes is no whole number of {float} elements"));
        }
        let idle = Case::single("urgent", bytes, float, Op::Sum, 1);
        let busy = (arguments.backlog > 0).then(|| idle.clone().under_backlog(backlog));
        entries.push(Entry { variant: "idle".to_owned(), ..Entry::single(idle) });
        entries.extend(busy.map(Entry::single));
    }
    // The speed of memory says nothing about single small tensors.
    let untold = |team| Team { traffic: None, ..team };
    let progress = Progress::begin();
    let mut teams: Vec<Team> = arguments.crew.jobs(None, patience, &progress)?.into_iter().map(untold).collect();
    teams.extend(arguments.crew.peers(patience, &progress)?);
    let setting = vec![
        format!("gradlane-bench latency, {}", env!("CARGO_PKG_VERSION")),
        format!("{}, backlog {backlog} bytes; {}", arguments.crew.describe(), effort.describe()),
        arguments.crew.choice(),
    ];
    let report = Report { one_machine: Some(arguments.crew.reading()), ..Report::begin("latency", setting) };
    let plan = Plan { effort, places: vec![Place::In], spoil: arguments.crew.ours.plant_wrong_sum };
    let output = Output { each_row: true, ..arguments.output.clone() };
    contest::hold(teams, &entries, &plan, report, &output, progress)
}

fn parse_backlog(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse_size(text) }
}

/// A backlog of a few parts.
const SMOKE_BACKLOG_BYTES: u64 = 16 << 20;
