//! How long an urgent part takes while a link is full of what can wait, against how long it takes alone.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use gradlane_core::engine::Handle;
use gradlane_core::types::{DType, Op};

use super::fabric::Fabric;
use super::optimum::Cluster;
use super::{Shape, place, tools};
use crate::arguments::parse_size;
use crate::measure::Samples;
use crate::push_pull::job;
use crate::push_pull::worker::Worker;
use crate::report::Conclusion;
use crate::table::Table;
use crate::team::buffers::{Buffers, Set};
use crate::team::orders::{Case, Repeat};
use crate::team::rank::Exchanger;

/// How long does an urgent tensor take under a backlog of others?
///
/// Each worker submits a backlog of low priority, waits until its first sums are back, and then an urgent tensor, whose time is measured.
/// Idle and loaded links take turns.
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
    /// Repetitions of each; what is shown is the median.
    #[arg(short = 'N', long = "repetitions", value_name = "COUNT", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Fail with exit code 2 if under the backlog it takes longer than so many times the time on idle links.
    #[arg(long, value_name = "FACTOR")]
    expect_within: Option<f64>,
    /// A small backlog over slow links: checks everything and measures nothing of use. Takes seconds.
    #[arg(long)]
    smoke: bool,
}

/// Measures and prints.
///
/// # Errors
/// What is missing on this host, or the first process that could not go on.
pub(crate) fn run(arguments: &Arguments) -> Result<Conclusion, String> {
    tools::check(&[])?;
    let mut arguments = arguments.clone();
    if arguments.smoke {
        arguments = Arguments { bytes: 64 << 10, backlog: 4 << 20, repetitions: 1, ..arguments };
        arguments.shape.slow_down();
    }
    let cluster = arguments.machines;
    println!("# gradlane-bench net latency, {}", env!("CARGO_PKG_VERSION"));
    println!("# {cluster}, links of {}", arguments.shape.link());
    let fabric = Fabric::build(cluster.machines(), arguments.shape.link())?;
    let settings = arguments.shape.settings()?;
    let mut options = place::job(&fabric, cluster, &settings, PATIENCE);
    options.worker_role = "loaded-worker";
    let mut team = job::start(&options)?;
    team.prepare(&backlog(arguments.backlog))?;
    let case = Case { sets: 1, ..Case::single("urgent", arguments.bytes, DType::F32, Op::Sum, 1) };
    let (mut idle, mut loaded) = (Samples::default(), Samples::default());
    for number in 0..=arguments.repetitions {
        for (urgent, samples) in [(IDLE, &mut idle), (LOADED, &mut loaded)] {
            let mut case = case.clone();
            case.tensors.iter_mut().for_each(|tensor| tensor.priority = urgent);
            team.prepare(&case)?;
            let repetition =
                team.repeat(&Repeat { in_place: true, warmup: 0, iterations: 1, check: true, spoil: false })?;
            if repetition.wrong > 0 {
                return Ok(Conclusion::Wrong(repetition.wrong_at.unwrap_or_default()));
            }
            // The first of each warms up.
            if number > 0 {
                samples.push(repetition.total_seconds * 1e3);
            }
        }
    }
    team.end()?;
    let factor = loaded.over(&idle);
    let mut table = Table::new(["bytes", "idle ms", "under backlog ms", "ratio"]);
    table.push([arguments.bytes.to_string(), idle.to_string(), loaded.to_string(), format!("{factor:.2}")]);
    print!("{table}");
    let missed = arguments.expect_within.is_some_and(|most| loaded.median() / idle.median() > most);
    Ok(if missed { Conclusion::Missed } else { Conclusion::Good })
}

/// What can wait, in tensors of a part each; at least so many that most are still waiting when the first is done.
fn backlog(bytes: u64) -> Case {
    let tensor = (bytes / 16).clamp(4, 4 << 20).next_multiple_of(4);
    let count = u32::try_from(bytes / tensor).unwrap_or(u32::MAX).max(1);
    let mut case = Case { sets: 1, ..Case::single(BACKLOG, tensor, DType::F32, Op::Sum, count) };
    case.tensors.iter_mut().for_each(|tensor| tensor.priority = CAN_WAIT);
    case
}

/// A worker that, when it is told to meet before an exchange that is urgent under load, first fills the links.
pub(crate) struct LoadedWorker {
    worker: Worker,
    backlog: Option<(Case, Buffers)>,
    rank: u32,
    ranks: u32,
    under_load: bool,
    waiting: Vec<Handle>,
}

impl Exchanger for LoadedWorker {
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let worker = Worker::join(rank, ranks, with)?;
        Ok(Self { worker, backlog: None, rank, ranks, under_load: false, waiting: Vec::new() })
    }

    fn prepare(&mut self, case: &Case) -> Result<(), String> {
        self.settle()?;
        self.worker.prepare(case)?;
        if case.tensors[0].name.starts_with(BACKLOG) {
            self.backlog = Some((case.clone(), Buffers::new(case, self.rank, self.ranks)));
        }
        self.under_load = case.tensors[0].priority == LOADED;
        Ok(())
    }

    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
        self.worker.exchange(case, set, in_place)
    }

    fn meet(&mut self) -> Result<(), String> {
        if let (true, Some((case, buffers))) = (self.under_load, &mut self.backlog) {
            self.waiting = self.worker.begin(case, buffers.set(0), true)?;
            // The first sum is back: from now on both directions are full.
            self.waiting.remove(0).wait(Some(PATIENCE)).map_err(|error| error.to_string())?;
        }
        self.worker.meet()
    }

    fn leave(mut self) -> Result<(), String> {
        self.settle()?;
        self.worker.leave()
    }
}

impl LoadedWorker {
    /// Waits for the rest of a backlog.
    fn settle(&mut self) -> Result<(), String> {
        self.waiting.drain(..).try_for_each(|handle| handle.wait(Some(PATIENCE))).map_err(|error| error.to_string())
    }
}

/// Of the backlog's tensors, by which a worker knows them.
const BACKLOG: &str = "backlog";
const CAN_WAIT: i32 = -1000;
/// Priorities of the urgent tensor; by them a worker also knows whether it should fill the links first.
const IDLE: i32 = 1000;
const LOADED: i32 = 1001;
const PATIENCE: Duration = Duration::from_secs(300);
