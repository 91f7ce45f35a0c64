//! Compares push-pull and Gloo's ring on the same shaped links, in turns, with the optimum.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gradlane_core::types::{CodecSpec, DType, Op};

use super::fabric::{Fabric, Machine};
use super::link::Traffic;
use super::optimum::{Cluster, Use};
use super::shape::{Shape, exchanges};
use super::{place, probe, tools};
use crate::job;
use crate::measure::Samples;
use crate::push_pull::Model;
use crate::push_pull::crew::Backend;
use crate::report::screen::note;
use crate::report::{Columns, Conclusion, Figures, Outline, Output, Place, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::team::contest::Entry;
use crate::team::orders::Case;
use crate::team::{Repetition, Team, gloo};

#[derive(Args, Clone)]
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    output: Output,
    /// Worker machines + extra server machines, separated by commas; with fewer extra machines than workers, a server also runs beside
    /// every worker, and the job decides how to split the sums.
    #[arg(long, value_delimiter = ',', value_name = "N+K", default_value = "2+1,2+2,4+2,4+4,2+0,4+0")]
    machines: Vec<Cluster>,
    /// Size of a tensor, as in nccl-tests; may be a list.
    #[arg(short = 'b', long = "bytes", value_delimiter = ',', value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    sizes: Vec<u64>,
    /// Also exchange all gradients of a model at once, the last one first, with the model's priorities.
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Codec of the tensors with its parameters, such as int8:block=1024. Give the option for each; `none` is without. Peers exchange only
    /// tensors without a codec.
    #[arg(long, value_name = "CODEC", default_value = "none")]
    codec: Vec<CodecSpec>,
    /// Exchanges that are timed in one repetition.
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iterations: u32,
    /// Exchanges before the first repetition, not timed.
    #[arg(short = 'w', long = "warmup-iters", value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    warmup: u32,
    /// Repetitions. The contenders take turns, one repetition each; the table shows the median of the repetitions.
    #[arg(short = 'N', long = "repetitions", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Peers to measure in the same run; gloo is the only one.
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// The Python that runs Gloo: needs torch. Default: the one of the active virtual environment, or of .venv, or python3.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Give up a repetition after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// A small tensor over slow links: verifies every sum, but the figures mean nothing. Takes seconds.
    #[arg(long)]
    smoke: bool,
}

/// Measures, printing rows as they come.
///
/// # Errors
/// What this host lacks, or the error of the first process that failed.
pub(crate) fn run(arguments: &Arguments) -> Result<Conclusion, String> {
    tools::check(&[])?;
    if arguments.backend.iter().any(|backend| *backend != Backend::Gloo) {
        return Err("net supports only --backend gloo".to_owned());
    }
    let mut arguments = arguments.clone();
    if arguments.smoke {
        arguments =
            Arguments { iterations: 2, warmup: 1, repetitions: 1, sizes: vec![1 << 20], model: None, ..arguments };
        arguments.machines = vec![Cluster { workers: 2, extras: 1 }];
        arguments.shape.slow_down();
    }
    let peers = arguments.backend.iter().map(|_| "gloo".to_owned()).collect();
    let names = arguments.machines.iter().flat_map(|cluster| arguments.entries(*cluster));
    let name = names.map(|entry| "quic ".len() + entry.variant.len()).max().unwrap_or(0);
    let outline = Outline { name, peers, ..Outline::default() };
    let columns = Columns::new(&arguments.output, true, &outline);
    let mut report = Report::begin("net", arguments.setting());
    print!("{}", columns.heading(&report));
    for cluster in &arguments.machines {
        measure(&arguments, *cluster, &mut report, &columns)?;
        report.save(&arguments.output.record)?;
    }
    print!("{}", columns.trailer(&report));
    Ok(report.conclude(&arguments.output.record))
}

impl Arguments {
    fn entries(&self, cluster: Cluster) -> Vec<Entry> {
        let single = |bytes: &u64| Entry::single(Case::single("tensor", *bytes, DType::F32, Op::Sum, 1));
        let model = self.model.map(|model| {
            let (name, specs) = model.tensors();
            Entry::model(Case::model(&specs, DType::F32, Op::Sum), name)
        });
        let plain: Vec<Entry> = self.sizes.iter().map(single).chain(model).collect();
        let coded = |codec: &CodecSpec| {
            let codec = *codec;
            plain.clone().into_iter().map(move |entry| {
                let name = if codec.is_plain() { String::new() } else { codec.to_string() };
                let words = [cluster.to_string(), entry.variant, name];
                let variant = words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ");
                Entry { case: entry.case.with_codec(codec), variant, ..entry }
            })
        };
        self.codec.iter().flat_map(coded).collect()
    }

    fn setting(&self) -> Vec<String> {
        let mut lines = vec![
            format!("gradlane-bench net, {}", env!("CARGO_PKG_VERSION")),
            format!("links of {}", self.shape.link()),
            format!(
                "{} repetitions of {} exchanges after {} to warm up",
                self.repetitions, self.iterations, self.warmup
            ),
        ];
        lines.extend(smoke_note(self.smoke));
        lines
    }
}

/// One arrangement of machines.
fn measure(arguments: &Arguments, cluster: Cluster, report: &mut Report, columns: &Columns) -> Result<(), String> {
    let patience = Duration::from_secs(arguments.patience);
    let fabric = Fabric::build(cluster.machines(), arguments.shape.link())?;
    let width = arguments.output.record.width();
    print!("{}", note(&format!("{cluster}: {}", check_rate(&fabric)?), width));
    let mut teams = vec![job::start(&place::job(&fabric, cluster, &arguments.shape.settings()?, patience))?];
    if arguments.backend.contains(&Backend::Gloo) {
        let python = gloo::interpreter(arguments.python.as_deref());
        teams.push(gloo::start(&place::gloo(&fabric, cluster, python, patience))?);
    }
    for entry in arguments.entries(cluster) {
        let mut able: Vec<&mut Team> = teams.iter_mut().filter(|team| team.can(&entry.case, Place::In)).collect();
        let mut found: Vec<Found> = able.iter().map(|_| Found::default()).collect();
        for team in &mut able {
            team.prepare(&entry.case)?;
            team.repeat(&exchanges(arguments.warmup))?;
        }
        for number in 0..arguments.repetitions as usize {
            for turn in 0..able.len() {
                let index = (turn + number) % able.len();
                let before = fabric.traffic()?;
                let repetition = able[index].repeat(&exchanges(arguments.iterations))?;
                let carried: Vec<Traffic> =
                    fabric.traffic()?.into_iter().zip(before).map(|(after, before)| after.since(before)).collect();
                found[index].add(&fabric, cluster, &entry, repetition, &carried);
            }
        }
        let first = report.rows.len();
        report.rows.extend(able.iter().zip(&found).map(|(team, found)| row(team, &entry, found.figures.clone())));
        for (row, found) in report.rows[first..].iter().zip(&found) {
            print!("{}{}", columns.row(report, row), note(&found.describe(&fabric, cluster, &entry), width));
        }
    }
    teams.into_iter().try_for_each(Team::end)
}

/// Measures a link with a plain transfer and describes the result. Fails if the link does not carry its rate.
fn check_rate(fabric: &Fabric) -> Result<String, String> {
    let rate = fabric.link().rate;
    let last = fabric.machines().last().expect("there are machines");
    // As many bytes as the link carries in a quarter of a second.
    let bytes = rate.bits_per_second() / 32;
    let moved = probe::transfer(fabric, Machine(0), last, bytes, false)?;
    let (goodput, wire) = (bytes as f64 / moved.seconds, moved.wire_bytes as f64 / moved.seconds);
    let nominal = rate.bytes_per_second();
    if wire > nominal * 1.05 {
        return Err(format!(
            "a link of {rate} carried {:.0} Mbit/s: tc does not limit links on this host",
            wire * 8e-6
        ));
    }
    Ok(format!(
        "plain TCP moves {:.1} Mbit/s, in frames {:.1} ({:.1} % of the rate)",
        goodput * 8e-6,
        wire * 8e-6,
        wire / nominal * 100.0
    ))
}

/// The figures of one contender.
#[derive(Default)]
struct Found {
    figures: Figures,
    /// Bytes of bodies of an exchange: those of the tensors, unless they have a codec.
    payload: Samples,
    overhead: Samples,
    extra_share: Samples,
    busiest: Samples,
    dropped: u64,
}

impl Found {
    fn add(
        &mut self,
        fabric: &Fabric,
        cluster: Cluster,
        entry: &Entry,
        mut repetition: Repetition,
        carried: &[Traffic],
    ) {
        let exchanges = repetition.seconds.len() as f64;
        let each: Vec<(f64, f64)> = carried
            .iter()
            .map(|link| (link.sent.bytes as f64 / exchanges, link.received.bytes as f64 / exchanges))
            .collect();
        let coded = repetition.body_bytes.filter(|_| entry.case.codec.is_some()).map(|bytes| bytes / exchanges);
        let payload = coded.unwrap_or(entry.bytes as f64);
        let used = Use::of(cluster, &each, payload);
        let seconds = repetition.total_seconds / exchanges;
        let optimum = optimum_seconds(fabric, cluster, payload);
        repetition.wire_bytes = Some(used.busiest_bytes * exchanges);
        self.figures.add(&repetition, entry, cluster.workers.into());
        if let Some(bytes) = coded {
            self.figures.body_bytes.get_or_insert_default().push(bytes);
        }
        self.payload.push(payload);
        let against = self.figures.optimum.get_or_insert_default();
        against.time_us = optimum * 1e6;
        against.over.push(seconds / (optimum * used.overhead));
        self.overhead.push(used.overhead);
        self.extra_share.push(used.extra_share);
        self.busiest.push(used.busiest_bytes);
        self.dropped += carried.iter().map(|link| link.sent.dropped + link.received.dropped).sum::<u64>();
    }

    fn describe(&self, fabric: &Fabric, cluster: Cluster, entry: &Entry) -> String {
        let over = &self.figures.optimum.as_ref().expect("there was a repetition").over;
        let payload = self.payload.median();
        let (seconds, optimum) = (self.figures.time_us.median() / 1e6, optimum_seconds(fabric, cluster, payload));
        let load = cluster.load() * payload;
        let bodies = match &entry.case.codec {
            Some(codec) => {
                format!("{codec}: {payload:.0} bytes of bodies, {:.4} of the tensor's; ", payload / entry.bytes as f64)
            }
            None => String::new(),
        };
        format!(
            "{bodies}optimum {:.1} ms, on wire bytes {:.1} ms ({:+.1} %): {:.3} x, {over:.3} x on wire bytes; busiest link {:.1} MB \
             ({:.3} x optimal), full {:.0} % of the time; {:.0} % summed on extra machines (optimal {:.0} %); {} packets dropped",
            optimum * 1e3,
            optimum * self.overhead.median() * 1e3,
            (self.overhead.median() - 1.0) * 100.0,
            seconds / optimum,
            self.busiest.median() / 1e6,
            self.busiest.median() / self.overhead.median() / load,
            self.busiest.median() / fabric.link().rate.bytes_per_second() / seconds * 100.0,
            self.extra_share.median() * 100.0,
            cluster.extra_share() * 100.0,
            self.dropped,
        )
    }
}

/// The least time in which `payload` bytes of each worker are summed.
fn optimum_seconds(fabric: &Fabric, cluster: Cluster, payload: f64) -> f64 {
    cluster.load() * payload / fabric.link().rate.bytes_per_second()
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

/// Explains the lines below the rows, in the help.
pub(super) const DEFINITIONS: &str = "\
Optimum (n worker machines, k extra ones, S bytes, links of B bytes a second each way): 2n(n-1)S / ((n^2+kn-2k)B), from OSDI 2020,
\"A Unified Architecture for Accelerating Distributed DNN Training\"; without extra machines it is that of a ring.
With --codec, S is the bytes of the bodies, as the workers count them, the mean of both directions. All workers have their largest elements
at the same places, so a sum of topk has as many as a contribution.
Wire bytes are Ethernet frames, as the token buckets count them. The overhead is what all links carried divided by the payload that had
to cross them (headers, acknowledgements, repetitions); the optimum on wire bytes is the optimum times it.
With --expect, `optimum` is time / optimum on wire bytes, and `quic 4+4/` before a metric picks one row.";
