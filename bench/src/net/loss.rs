//! Measures what packet loss costs: push-pull over QUIC and a transfer over kernel TCP, each on a link that drops packets at random and on
//! the same link without loss, in turns. Then a transfer under so much loss that only the correct sum matters.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use gradlane_core::types::{DType, Op};

use super::fabric::{Fabric, Machine};
use super::optimum::Cluster;
use super::shape::{Shape, exchanges};
use super::{place, probe, tools};

use crate::job;
use crate::measure::Samples;
use crate::report::screen::note;
use crate::report::{Conclusion, Figures, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;
use crate::team::Team;
use crate::team::orders::Case;

/// What does random loss cost, and does it lose anything?
///
/// One worker and one server exchange a tensor over links that drop packets at random. Kernel TCP transfers as many bytes in each
/// direction. The table shows the goodput of both, with loss and without. Then two workers exchange a smaller tensor under much more loss:
/// every element of the sum is verified, and the time means little. Segmentation offloads are off, so that a drop is the loss of one
/// packet. Needs nftables.
///
/// "kept" is the goodput with loss divided by that without, repetition by repetition. With --expect, `cost` is its inverse, in the rows
/// 'quic lossy' and 'tcp lossy': 'cost:tcp<=1' holds if loss costs us no more than TCP, 'ratio:tcp>=1' if our goodput is no less in any
/// row. The row 'quic heavy' is the transfer under heavy loss.
#[derive(Args, Clone)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: Shape,
    /// Share of the packets that are dropped on their way to each machine.
    #[arg(long, value_name = "PERCENT", default_value = "0.1%")]
    loss: Loss,
    /// The same share for the transfer under heavy loss.
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    heavy_loss: Loss,
    /// Bytes that are exchanged.
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    bytes: u64,
    /// Bytes that are exchanged under heavy loss.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4M")]
    heavy_bytes: u64,
    /// Repetitions. The contenders take turns, one repetition each; the table shows the median.
    #[arg(short = 'N', long = "repetitions", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Give up an exchange after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    #[command(flatten)]
    record: Record,
    /// A small tensor over slow links: verifies every sum, but the figures mean nothing. Takes seconds.
    #[arg(long)]
    smoke: bool,
}

/// Measures and prints.
///
/// # Errors
/// What this host lacks, or the error of the first process that failed.
pub(crate) fn run(arguments: &Arguments) -> Result<Conclusion, String> {
    tools::check(&["nft"])?;
    let mut arguments = arguments.clone();
    if arguments.smoke {
        arguments = Arguments { bytes: 1 << 20, heavy_bytes: 64 << 10, repetitions: 1, ..arguments };
        arguments.shape.slow_down();
    }
    let mut setting = vec![
        format!("gradlane-bench net loss, {}", env!("CARGO_PKG_VERSION")),
        format!(
            "links of {}, without offloads; {} repetitions, loss {}, heavy loss {}",
            arguments.shape.link(),
            arguments.repetitions,
            arguments.loss,
            arguments.heavy_loss
        ),
    ];
    setting.extend(smoke_note(arguments.smoke));
    let mut report = Report::begin("net loss", setting);
    let width = arguments.record.width();
    report.setting.iter().for_each(|line| print!("{}", note(line, width)));
    report.rows = light(&arguments)?;
    report.save(&arguments.record)?;
    report.rows.push(heavy(&arguments)?);
    Ok(report.conclude(&arguments.record))
}

fn light(arguments: &Arguments) -> Result<Vec<Row>, String> {
    let cluster = Cluster { workers: 1, extras: 1 };
    let fabric = fabric(arguments, cluster)?;
    let mut team = start(arguments, &fabric, cluster, arguments.bytes)?;
    let (mut quic, mut tcp) = (Goodput::default(), Goodput::default());
    let (mut wrong, mut wrong_at) = (0, None);
    for _ in 0..arguments.repetitions {
        for loss in [None, Some(arguments.loss)] {
            fabric.lose(loss.map(|loss| loss.one_of))?;
            let repetition = team.repeat(&exchanges(1))?;
            wrong += repetition.wrong;
            wrong_at = wrong_at.or(repetition.wrong_at);
            quic.push(loss, repetition.total_seconds);
            let moved = probe::transfer(&fabric, Machine(0), Machine(1), arguments.bytes, true)?;
            tcp.push(loss, moved.seconds);
        }
    }
    fabric.lose(None)?;
    team.end()?;
    let mut table = Table::new(["", "MB/s each way", "with loss", "kept"]);
    let megabytes = |seconds: &Samples| speed(seconds, arguments.bytes).scaled(1e3).to_string();
    for (name, goodput) in [("push-pull over quic", &quic), ("tcp", &tcp)] {
        let kept = goodput.clean.over(&goodput.lossy);
        table.push([name.to_owned(), megabytes(&goodput.clean), megabytes(&goodput.lossy), format!("{kept:.3}")]);
    }
    let width = arguments.record.width();
    print!("{}", table.within(width));
    let ratio = tcp.lossy.over(&quic.lossy);
    print!("{}", note(&format!("with loss of {}: our goodput is {ratio:.2} x that of TCP", arguments.loss), width));
    let mut rows = Vec::new();
    for (name, goodput) in [("quic", &quic), ("tcp", &tcp)] {
        let ours = name == "quic";
        let cost = goodput.lossy.over(&goodput.clean);
        rows.push(row(name, ours, "clean", arguments.bytes, &goodput.clean));
        let mut lossy = row(name, ours, "lossy", arguments.bytes, &goodput.lossy);
        if let Some(figures) = &mut lossy.in_place {
            figures.cost = Some(cost);
            if ours {
                (figures.wrong, figures.wrong_at) = (wrong, wrong_at.take());
            }
        }
        rows.push(lossy);
    }
    Ok(rows)
}

/// The goodput of exchanges that moved `bytes` each way in `seconds` each.
fn row(contender: &str, ours: bool, variant: &str, bytes: u64, seconds: &Samples) -> Row {
    Row {
        bytes,
        count: bytes / DType::F32.bytes(),
        dtype: Some(DType::F32),
        op: Some(Op::Sum),
        in_place: Some(Figures { algbw: Some(speed(seconds, bytes)), ..Figures::of_times(seconds.scaled(1e6)) }),
        ..Row::new(contender, ours, variant)
    }
}

/// GB/s in each direction.
fn speed(seconds: &Samples, bytes: u64) -> Samples {
    Samples::from(seconds.values().iter().map(|seconds| bytes as f64 / seconds / 1e9).collect::<Vec<_>>())
}

fn heavy(arguments: &Arguments) -> Result<Row, String> {
    let cluster = Cluster { workers: 2, extras: 1 };
    let fabric = fabric(arguments, cluster)?;
    let mut team = start(arguments, &fabric, cluster, arguments.heavy_bytes)?;
    fabric.lose(Some(arguments.heavy_loss.one_of))?;
    let repetition = team.repeat(&exchanges(1))?;
    fabric.lose(None)?;
    let said = format!(
        "with loss of {}: {} bytes of each of 2 workers were summed in {:.2} s, {} elements wrong",
        arguments.heavy_loss, arguments.heavy_bytes, repetition.total_seconds, repetition.wrong
    );
    print!("{}", note(&said, arguments.record.width()));
    let mut row = row("quic", true, "heavy", arguments.heavy_bytes, &Samples::from(vec![repetition.total_seconds]));
    if let Some(figures) = &mut row.in_place {
        (figures.wrong, figures.wrong_at) = (repetition.wrong, repetition.wrong_at);
    }
    team.end()?;
    Ok(row)
}

fn fabric(arguments: &Arguments, cluster: Cluster) -> Result<Fabric, String> {
    let fabric = Fabric::build(cluster.machines(), arguments.shape.link())?;
    fabric.segment()?;
    Ok(fabric)
}

fn start(arguments: &Arguments, fabric: &Fabric, cluster: Cluster, bytes: u64) -> Result<Team, String> {
    let patience = Duration::from_secs(arguments.patience);
    let mut team = job::start(&place::job(fabric, cluster, &arguments.shape.settings()?, patience))?;
    team.prepare(&Case::single("tensor", bytes, DType::F32, Op::Sum, 1))?;
    team.repeat(&exchanges(1))?;
    Ok(team)
}

/// Seconds of each exchange, without loss and with it.
#[derive(Default)]
struct Goodput {
    clean: Samples,
    lossy: Samples,
}

impl Goodput {
    fn push(&mut self, loss: Option<Loss>, seconds: f64) {
        if loss.is_some() { &mut self.lossy } else { &mut self.clean }.push(seconds);
    }
}

/// Parses a share of packets such as `0.1%`; the result is N if one packet in N is dropped.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Loss {
    one_of: u32,
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent: Option<f64> = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match percent {
            Some(percent) if (0.001..=50.0).contains(&percent) => Ok(Self { one_of: (100.0 / percent).round() as u32 }),
            Some(_) | None => {
                Err(format!("{text:?} is no share of packets; write one from 0.001% to 50%, such as 0.1%"))
            }
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1/{}", self.one_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_written_in_per_cent() {
        let one_of = |text: &str| text.parse::<Loss>().map(|loss| loss.one_of);
        assert_eq!((one_of("0.1%"), one_of("20%"), one_of("50 %")), (Ok(1000), Ok(5), Ok(2)));
        for wrong in ["", "0.1", "0%", "100%", "-1%", "NaN%"] {
            assert!(one_of(wrong).unwrap_err().contains("0.1%"), "{wrong}");
        }
    }
}
