//! How long does one urgent exchange take, alone and while the link is busy with what is less urgent?

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gradlane_core::types::{DType, Op};

use crate::arguments::{Effort, Output, parse_size};
use crate::push_pull::job::{self, Before, JobOptions};
use crate::push_pull::road::Road;
use crate::report::{Conclusion, DEFINITIONS, Place, Report};
use crate::team::contest::{self, Entry, Plan};
use crate::team::gloo;
use crate::team::orders::Case;

/// How long does one urgent exchange take, alone and under a backlog?
///
/// Workers and a server in processes of their own; one tensor at a time, in place. Rows marked busy are measured while tensors of the
/// lowest priority, so many bytes of them together, are under way: a few exchanges at the beginning of each such backlog, which is then
/// waited for. Below each row: fastest, median, 99th percentile and slowest exchange. Expectations can be of p50 and p99, such as
/// 'p50<=150@4K'.
#[derive(Args)]
#[command(after_long_help = DEFINITIONS)]
pub(crate) struct Arguments {
    /// Sizes of the urgent tensor, separated by commas.
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', default_value = "4K,256K", value_parser = parse_size)]
    bytes: Vec<u64>,
    /// The backlog; 0 to measure none.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_backlog)]
    backlog: u64,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    output: Output,
    /// Workers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    servers: u32,
    /// Roads that the bytes take, separated by commas; each is a contender.
    #[arg(long, value_delimiter = ',', default_value = "quic", value_parser = Road::parse)]
    road: Vec<&'static Road>,
    /// Measure Gloo, too, without a backlog: it has no priorities.
    #[arg(long)]
    gloo: bool,
    /// The Python that runs Gloo; see push-pull.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// A setting of all our processes, such as --set credit_bytes=16MiB; the environment is not read. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Spoil one sum, to see that it is noticed.
    #[arg(long, hide = true)]
    plant_wrong_sum: bool,
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
        entries.extend([Some(idle), busy].into_iter().flatten().map(Entry::single));
    }
    let mut teams = Vec::new();
    for road in &arguments.road {
        let mut settings = job::settings(&arguments.settings)?;
        settings.extend(road.settings()?);
        teams.push(job::start(&JobOptions {
            name: road.name.to_owned(),
            workers: arguments.workers,
            servers: arguments.servers,
            settings,
            join: None,
            before: Before::default(),
            interface: "lo".to_owned(),
            wire: road.wire,
            patience,
        })?);
    }
    if arguments.gloo {
        let python = gloo::interpreter(arguments.python.as_deref());
        teams.push(gloo::start(&gloo::Venue::loopback(python, arguments.workers, patience))?);
    }
    let setting = vec![
        format!("gradlane-bench latency, {}", env!("CARGO_PKG_VERSION")),
        format!(
            "{} workers, {} servers, backlog {backlog} bytes; {}",
            arguments.workers,
            arguments.servers,
            effort.describe()
        ),
    ];
    let report = Report { question: "latency".to_owned(), setting, ..Report::default() };
    let plan = Plan { effort, places: vec![Place::In], spoil: arguments.plant_wrong_sum };
    contest::hold(teams, &entries, &plan, report, &Output { each_row: true, ..arguments.output.clone() })
}

fn parse_backlog(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse_size(text) }
}

/// A few parts.
const SMOKE_BACKLOG_BYTES: u64 = 16 << 20;
