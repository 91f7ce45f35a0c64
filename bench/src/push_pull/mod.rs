//! What does a whole reduction over workers and servers cost? Runs the engine as training does, in processes as in production.

pub(crate) mod crew;
mod operations;
pub(crate) mod whole;
pub(crate) mod worker;

use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::pipeline::models;
use gradlane_core::types::{JoinString, Op, TensorSpec};

use crate::arguments::{Effort, Point, Sweep};
use crate::job::{self, road::Road};
use crate::progress::Progress;
use crate::report::{Conclusion, DEFINITIONS, Output, Place, Report};
use crate::team::Team;
use crate::team::collective::Collective;
use crate::team::contest::{self, Entry, Plan};
use crate::team::orders::{Case, Mode};
use crate::transport::{self, RawCrew};
use crew::{Backend, Crew};

/// What does a reduction cost, over workers and servers in processes of their own?
///
/// Starts a coordinator, servers and workers on this host (or workers that join a running job), lets every worker reduce tensors with
/// all others, and verifies every element of every sum. Without --road it measures each transport that applies on this machine, and says
/// which of them a training job would use. Peers do the same work in the same run with as many ranks on this machine, in turns, repetition by
/// repetition. A terminal gets a table that fits; a pipe gets the columns of nccl-tests. With --collective, the same for reduce-scatter, all-gather and all-to-all.
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
    /// What the workers do together, separated by commas. all-reduce: every worker gets the sum of all tensors. reduce-scatter: every worker
    /// gets its part of that sum. all-gather: every worker gets a part from each. all-to-all: every worker has another part for each. The
    /// last three are made of the same operations as in `gradlane.reduce_scatter`, `all_gather` and `all_to_all`, work out of place only,
    /// and have all peers but tcp and tls. All-gather and all-to-all sum nothing, so they have no -o. As in nccl-tests, a size is that of the
    /// larger of a worker's two buffers, and is rounded down to whole elements for each worker.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all-reduce")]
    collective: Vec<Collective>,
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
    if arguments.join.is_some() && arguments.crew.asked().len() > 1 {
        return Err("a running job (--join) has each of its workers once: give a single --road".to_owned());
    }
    if arguments.join.is_some() && arguments.crew.asked().iter().any(|road| road.in_process()) {
        return Err(
            "--road mem starts a whole job in one process and cannot join another: leave out --join or --road mem"
                .to_owned(),
        );
    }
    arguments.check_collectives()?;
    let patience = Duration::from_secs(effort.patience);
    let entries = entries(arguments)?;
    let progress = Progress::begin();
    let teams =
        if moving.is_empty() { teams(arguments, patience, &progress)? } else { raw_teams(arguments, patience)? };
    let in_place = moving.is_empty() && arguments.collective.contains(&Collective::AllReduce);
    let places = match (arguments.place, in_place) {
        (Places::Out, _) | (_, false) => vec![Place::Out],
        (Places::In, true) => vec![Place::In],
        (Places::Both, true) => vec![Place::Out, Place::In],
    };
    let crew = match arguments.join {
        Some(_) => format!("{} workers of a running job", arguments.crew.workers),
        None => arguments.crew.describe(),
    };
    let mut setting = vec![
        format!("gradlane-bench push-pull, {}", env!("CARGO_PKG_VERSION")),
        format!("{crew}, {} in flight; {}", arguments.inflight, effort.describe()),
    ];
    let here = moving.is_empty() && arguments.join.is_none();
    setting.extend(here.then(|| arguments.crew.choice()));
    let one_machine = here.then(|| arguments.crew.reading());
    let report = Report { one_machine, ..Report::begin("push-pull", setting) };
    let plan = Plan { effort, places, spoil: arguments.crew.ours.plant_wrong_sum };
    contest::hold(teams, &entries, &plan, report, &arguments.output, progress)
}

impl Arguments {
    fn case(&self, collective: Collective, point: Point) -> Result<Case, String> {
        match collective {
            Collective::AllReduce => Ok(Case::single("tensor", point.bytes, point.dtype, point.op, self.inflight)),
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => {
                Case::of_parts(collective, point, self.inflight, self.crew.workers)
            }
        }
    }

    /// Refuses what the collectives other than all-reduce do not have.
    ///
    /// # Errors
    /// The first combination without meaning, and what to do.
    fn check_collectives(&self) -> Result<(), String> {
        let Some(other) = self.collective.iter().find(|collective| **collective != Collective::AllReduce) else {
            return Ok(());
        };
        let refuse = |what: &str| Err(format!("--collective {}: {what}", other.name()));
        if self.mode.iter().any(|mode| *mode != Mode::PushPull) {
            return refuse("the modes without summation have no collectives; leave out --mode or --collective");
        }
        if self.model.is_some() {
            return refuse("only single tensors are measured; leave out --model or --collective");
        }
        if self.place == Places::In {
            return refuse("only all-reduce can put its result over the contribution; leave out --place in");
        }
        if self.crew.backend.iter().any(|backend| matches!(backend, Backend::Tcp | Backend::Tls)) {
            return refuse("--backend tcp and tls only return what they get; use --backend gloo or mpi");
        }
        if self.sweep.ops() != [Op::Sum] && !self.collective.iter().any(|collective| collective.reduces()) {
            return refuse("nothing is reduced; leave out -o");
        }
        Ok(())
    }
}

/// Starts workers and stores for the modes without summation.
fn raw_teams(arguments: &Arguments, patience: Duration) -> Result<Vec<Team>, String> {
    let roads: Vec<&Road> = match arguments.crew.is_free() {
        true => transport::ROADS.iter().map(|name| Road::named(name)).collect(),
        false => arguments.crew.roads(),
    };
    if !arguments.crew.backend.is_empty() || roads.iter().any(|road| !transport::ROADS.contains(&road.name)) {
        return Err(format!(
            "push-only, pull-only and push-then-pull have no --backend, and support only --road {}; see the subcommand transport",
            transport::ROADS.join(" and ")
        ));
    }
    let start = |road: &'static Road| {
        let mut settings = job::settings(&arguments.crew.ours.settings)?;
        settings.extend(road.settings()?);
        let part_bytes = job::config(&settings)?.partition_bytes;
        let crew =
            RawCrew { workers: arguments.crew.workers, servers: arguments.crew.servers, connections: 1, part_bytes };
        transport::start_raw(road, &crew, &settings, patience)
    };
    roads.into_iter().map(start).collect()
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>, String> {
    let Some(model) = arguments.model else {
        let sweep = if arguments.effort.smoke { arguments.sweep.smoke() } else { arguments.sweep.clone() };
        let mut entries = Vec::new();
        for &mode in arguments.mode.iter().filter(|mode| **mode != Mode::PushPull) {
            let raw = |point: Point| Entry::single(Case::raw(point.bytes, arguments.inflight, mode));
            entries.extend(sweep.points()?.into_iter().map(raw));
        }
        let collectives = if arguments.mode.contains(&Mode::PushPull) { arguments.collective.as_slice() } else { &[] };
        for &collective in collectives {
            // Without a reduction, the cases of a second operation would be those of the first.
            let once = |point: &Point| collective.reduces() || point.op == sweep.ops()[0];
            for point in sweep.points()?.into_iter().filter(once) {
                entries.push(Entry::single(arguments.case(collective, point)?));
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

fn teams(arguments: &Arguments, patience: Duration, progress: &Progress) -> Result<Vec<Team>, String> {
    let join = arguments.join.as_deref().map(read_join).transpose()?;
    let mut teams = arguments.crew.jobs(join.as_ref(), patience, progress)?;
    teams.extend(arguments.crew.peers(patience, progress)?);
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
