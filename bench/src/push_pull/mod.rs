//! What does a whole reduction over workers and servers cost? Runs the engine as training does, in processes as in production.

pub(crate) mod crew;
pub(crate) mod whole;
pub(crate) mod worker;

use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::pipeline::models;
use gradlane_core::types::{JoinString, TensorSpec};

use crate::arguments::{Effort, Point, Sweep};
use crate::job::{self, road};
use crate::report::{Conclusion, DEFINITIONS, Output, Place, Report};
use crate::team::Team;
use crate::team::contest::{self, Entry, Plan};
use crate::team::orders::{Case, Mode};
use crate::transport::{self, RawCrew};
use crew::Crew;

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
    #[command(flatten)]
    crew: Crew,
    /// Tensors that are submitted at once; an exchange ends when all have ended.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// The kind of exchange. push-pull: the engine sums the contributions of all workers and brings the sum to each. The other kinds use
    /// only the transport and sum nothing; they send the parts of a tensor to all servers. push-only: the servers keep each tensor and
    /// acknowledge it. pull-only: the servers return tensors that were pushed before, outside of the measured time. push-then-pull: first
    /// one, then the other. These three work out of place only, and have no peers.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "push-pull")]
    mode: Vec<Mode>,
    /// Instead of single tensors, exchange all gradients of a model at once, the last one first, with the model's priorities.
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Measure in place only, out of place only, or both.
    #[arg(long, value_enum, default_value = "both")]
    place: Places,
    /// Join this running job with all of its workers, instead of starting coordinator and servers; @FILE reads the join string.
    #[arg(long, value_name = "JOIN", conflicts_with = "servers")]
    join: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Model {
    Resnet50,
    Vgg16,
    BertLarge,
    Gpt2,
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
    let (reducing, moving): (Vec<Mode>, Vec<Mode>) = arguments.mode.iter().partition(|mode| **mode == Mode::PushPull);
    if !moving.is_empty() && (!reducing.is_empty() || arguments.model.is_some() || arguments.join.is_some()) {
        return Err("push-only, pull-only and push-then-pull sum nothing and are measured in a run of their own, of single tensors, with \
                    servers of their own: give --mode without push-pull, and neither --model nor --join"
            .to_owned());
    }
    if arguments.join.is_some() && arguments.crew.road.len() > 1 {
        return Err("a running job (--join) has each of its workers once: give a single --road".to_owned());
    }
    if arguments.join.is_some() && arguments.crew.road.iter().any(|road| road.in_process()) {
        return Err(
            "--road mem starts a whole job in one process and cannot join another: leave out --join or --road mem"
                .to_owned(),
        );
    }
    let patience = Duration::from_secs(effort.patience);
    let entries = entries(arguments)?;
    let teams = if moving.is_empty() { teams(arguments, patience)? } else { raw_teams(arguments, patience)? };
    let places = match (arguments.place, moving.is_empty()) {
        (Places::Out, _) | (_, false) => vec![Place::Out],
        (Places::In, true) => vec![Place::In],
        (Places::Both, true) => vec![Place::Out, Place::In],
    };
    let crew = match arguments.join {
        Some(_) => format!("{} workers of a running job", arguments.crew.workers),
        None => arguments.crew.describe(),
    };
    let setting = vec![
        format!("gradlane-bench push-pull, {}", env!("CARGO_PKG_VERSION")),
        format!("{crew}, {} in flight; {}", arguments.inflight, effort.describe()),
    ];
    let report = Report::begin("push-pull", setting);
    let plan = Plan { effort, places, spoil: arguments.crew.ours.plant_wrong_sum };
    contest::hold(teams, &entries, &plan, report, &arguments.output)
}

/// Starts workers and stores for the modes without summation.
fn raw_teams(arguments: &Arguments, patience: Duration) -> Result<Vec<Team>, String> {
    if !arguments.crew.backend.is_empty()
        || arguments.crew.road.iter().any(|road| !transport::ROADS.contains(&road.name))
    {
        return Err(format!(
            "push-only, pull-only and push-then-pull have no --backend, and support only --road {}; see the subcommand transport",
            transport::ROADS.join(" and ")
        ));
    }
    let start = |road: &&'static road::Road| {
        let mut settings = job::settings(&arguments.crew.ours.settings)?;
        settings.extend(road.settings()?);
        let part_bytes = job::config(&settings)?.partition_bytes;
        let crew =
            RawCrew { workers: arguments.crew.workers, servers: arguments.crew.servers, connections: 1, part_bytes };
        transport::start_raw(road, &crew, &settings, patience)
    };
    arguments.crew.road.iter().map(start).collect()
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>, String> {
    let Some(model) = arguments.model else {
        let sweep = if arguments.effort.smoke { arguments.sweep.smoke() } else { arguments.sweep.clone() };
        let mut entries = Vec::new();
        for &mode in &arguments.mode {
            for Point { bytes, dtype, op } in sweep.points()? {
                entries.push(Entry::single(match mode {
                    Mode::PushPull => Case::single("tensor", bytes, dtype, op, arguments.inflight),
                    Mode::PushOnly | Mode::PullOnly | Mode::PushThenPull => Case::raw(bytes, arguments.inflight, mode),
                }));
            }
        }
        return Ok(entries);
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
            Self::Gpt2 => ("gpt2", models::gpt2()),
        }
    }
}

fn teams(arguments: &Arguments, patience: Duration) -> Result<Vec<Team>, String> {
    let join = arguments.join.as_deref().map(read_join).transpose()?;
    let mut teams = arguments.crew.jobs(join.as_ref(), patience)?;
    teams.extend(arguments.crew.peers(patience)?);
    Ok(teams)
}

/// Parses a join string, or the file that contains it.
fn read_join(text: &str) -> Result<JoinString, String> {
    let text = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|cause| format!("--join @{path}: {cause}"))?,
        None => text.to_owned(),
    };
    text.trim().parse().map_err(|error: gradlane_core::Error| format!("--join: {error}"))
}
