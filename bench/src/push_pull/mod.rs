//! What does a reduction over workers and servers cost, whole: the engine as training uses it, in processes as in production?

pub(crate) mod job;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::pipeline::models;
use gradlane_core::types::{JoinString, TensorSpec};

use crate::arguments::{Effort, Output, Sweep};
use crate::report::{Columns, Conclusion, DEFINITIONS, Place, Report};
use crate::team::contest::{self, Entry, Plan};
use crate::team::orders::Case;
use crate::team::{Team, Wire, gloo};
use job::JobOptions;

/// What does a reduction cost, over workers and servers in processes of their own?
///
/// Starts a coordinator, servers and workers on this host (or workers that join a running job), lets every worker reduce tensors with
/// all others, verifies every element of every sum, and prints the columns of nccl-tests. Peers do the same work in the same run, in
/// turns, repetition by repetition.
#[derive(Args)]
#[command(after_long_help = DEFINITIONS)]
pub(crate) struct Arguments {
    #[command(flatten)]
    sweep: Sweep,
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
    /// Tensors that are submitted at once; all are waited for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// Instead of single tensors, all gradients of a model at once, the last first, with the model's priorities.
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Peers to measure in the same run, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// The Python that runs Gloo: needs torch. Unless given: that of the virtual environment in use or of .venv, or python3.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Measure in place only, out of place only, or both.
    #[arg(long, value_enum, default_value = "both")]
    place: Places,
    /// Join this running job with all of its workers, instead of starting coordinator and servers; @FILE reads the join string.
    #[arg(long, value_name = "JOIN", conflicts_with = "servers")]
    join: Option<String>,
    /// A setting of all our processes, such as --set partition_bytes=1MiB; the environment is not read. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Spoil one sum, to see that it is noticed.
    #[arg(long, hide = true)]
    plant_wrong_sum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Model {
    Resnet50,
    Vgg16,
    BertLarge,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Backend {
    Gloo,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Places {
    Both,
    In,
    Out,
}

/// Measures, printing rows as they come.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    measure(arguments).unwrap_or_else(Conclusion::Failed)
}

fn measure(arguments: &Arguments) -> Result<Conclusion, String> {
    let effort = arguments.effort.or_smoke();
    let entries = entries(arguments)?;
    let mut teams = teams(arguments, Duration::from_secs(effort.patience))?;
    let places = match arguments.place {
        Places::Both => vec![Place::Out, Place::In],
        Places::In => vec![Place::In],
        Places::Out => vec![Place::Out],
    };
    let columns = Columns::new(&arguments.output, effort.checks());
    let mut report =
        Report { question: "push-pull".to_owned(), setting: setting(arguments, &effort), ..Report::default() };
    print!("{}", columns.heading(&report));
    let plan = Plan { effort, places, spoil: arguments.plant_wrong_sum };
    contest::run(&mut teams, &entries, &plan, |rows| {
        let first = report.rows.len();
        report.rows.extend(rows);
        for row in &report.rows[first..] {
            print!("{}", columns.row(&report, row));
        }
    })?;
    print!("{}", columns.trailer(&report));
    let conclusion = report.conclude(&arguments.output);
    teams.into_iter().try_for_each(Team::end)?;
    Ok(conclusion)
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>, String> {
    let Some(model) = arguments.model else {
        let sweep = if arguments.effort.smoke { arguments.sweep.smoke() } else { arguments.sweep.clone() };
        let entry = |point: crate::arguments::Point| {
            Entry::single(Case::single("tensor", point.bytes, point.dtype, point.op, arguments.inflight))
        };
        return Ok(sweep.points()?.into_iter().map(entry).collect());
    };
    let (name, specs) = model.tensors();
    let mut entries = Vec::new();
    for &op in arguments.sweep.ops() {
        for &dtype in arguments.sweep.dtypes() {
            entries.push(Entry::model(Case::model(&specs, dtype, op), name));
        }
    }
    Ok(entries)
}

impl Model {
    /// Its name and its parameters, from the input to the output.
    pub(crate) fn tensors(self) -> (&'static str, Vec<TensorSpec>) {
        match self {
            Self::Resnet50 => ("resnet50", models::resnet50()),
            Self::Vgg16 => ("vgg16", models::vgg16()),
            Self::BertLarge => ("bert-large", models::bert_large()),
        }
    }
}

fn teams(arguments: &Arguments, patience: Duration) -> Result<Vec<Team>, String> {
    let mut settings = BTreeMap::from([("bind".to_owned(), "127.0.0.1:0".to_owned())]);
    for setting in &arguments.settings {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| format!("--set {setting} has no value; write --set name=value"))?;
        settings.insert(name.trim().replace('-', "_"), value.to_owned());
    }
    let join = arguments.join.as_deref().map(read_join).transpose()?;
    let options = JobOptions {
        name: "quic".to_owned(),
        workers: arguments.workers,
        servers: arguments.servers,
        worker_role: "worker",
        settings,
        join,
        before: job::Before::default(),
        interface: "lo".to_owned(),
        wire: Some(Wire::Loopback { ends: 1 }),
        patience,
    };
    let mut teams = vec![job::start(&options)?];
    for backend in &arguments.backend {
        match backend {
            Backend::Gloo => {
                let python = gloo::interpreter(arguments.python.as_deref());
                teams.push(gloo::start(&gloo::Venue::loopback(python, arguments.workers, patience))?);
            }
        }
    }
    Ok(teams)
}

/// A join string, or the file that it is in.
fn read_join(text: &str) -> Result<JoinString, String> {
    let text = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|cause| format!("--join @{path}: {cause}"))?,
        None => text.to_owned(),
    };
    text.trim().parse().map_err(|error: gradlane_core::Error| format!("--join: {error}"))
}

fn setting(arguments: &Arguments, effort: &Effort) -> Vec<String> {
    let mut lines = vec![
        format!("gradlane-bench push-pull, {}", env!("CARGO_PKG_VERSION")),
        format!(
            "{} workers, {} servers, {} in flight; {} repetitions of {} exchanges after {} to warm up; validation {}",
            arguments.workers,
            arguments.servers,
            arguments.inflight,
            effort.repetitions,
            effort.iterations,
            effort.warmup,
            effort.check
        ),
    ];
    if effort.smoke {
        lines.push("a smoke run: the figures mean nothing".to_owned());
    }
    lines
}
