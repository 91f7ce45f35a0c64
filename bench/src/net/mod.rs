//! `net`: shaped links between network namespaces of this host, and what travels over them against the theoretical optimum.
//!
//! [`fabric`] builds the machines and [`link`] shapes their links, [`job`] starts servers on them. What is asked of them is a file each:
//! [`exec`] runs a user's command.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

mod contest;
mod exec;
mod latency;
mod loss;

mod place;
pub(crate) mod probe;

mod fabric;
mod link;
mod optimum;
pub(crate) mod tools;

use crate::push_pull::job;
use crate::report::{Conclusion, DEFINITIONS};
use crate::team::orders::Repeat;
use link::{Link, Rate};

/// How near to the theoretical optimum is push-pull between machines with shaped links? Needs root.
///
/// The machines are network namespaces of this host, joined by a bridge; each has one link, limited to a rate in both directions. They
/// are gone when the benchmark is, however it ends.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = format!("{}\n\n{DEFINITIONS}", contest::DEFINITIONS))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    question: Option<Question>,
    #[command(flatten)]
    contest: contest::Arguments,
}

#[derive(Subcommand)]
enum Question {
    Exec(exec::Arguments),
    Latency(latency::Arguments),
    Loss(loss::Arguments),
}

/// Answers.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    let answer = match &arguments.question {
        Some(Question::Exec(arguments)) => exec::run(arguments).map(Conclusion::Exited),
        Some(Question::Latency(arguments)) => latency::run(arguments),
        Some(Question::Loss(arguments)) => loss::run(arguments),
        None => contest::run(&arguments.contest),
    };
    answer.unwrap_or_else(Conclusion::Failed)
}

/// So many exchanges, all of them timed and verified.
fn exchanges(iterations: u32) -> Repeat {
    Repeat { in_place: true, warmup: 0, iterations, check: true, spoil: false }
}

/// What the links are like.
#[derive(Args, Clone, Debug)]
pub(crate) struct Shape {
    /// Rate of every link in each direction, such as 1gbit or 200mbit
    #[arg(long, default_value = "1gbit")]
    rate: Rate,
    /// Bytes that may wait for a link before it drops
    #[arg(long, value_name = "BYTES", default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(16_000..))]
    queue: u32,
    /// Largest packet of a link
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9000))]
    mtu: u16,
    /// Congestion control of kernel TCP, for Gloo and for the plain transfer that checks the rate
    #[arg(long, default_value = "cubic", value_parser = ["cubic", "reno", "bbr"])]
    tcp: String,
    /// A setting of all our processes, such as --set partition_bytes=1MiB; the environment is not read. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

impl Shape {
    /// For a smoke run, whose transfers should not depend on how fast the machine is.
    fn slow_down(&mut self) {
        self.rate = self.rate.min(Rate::SLOW);
    }

    fn link(&self) -> Link {
        Link { rate: self.rate, queue_bytes: self.queue, mtu: self.mtu, tcp: self.tcp.clone() }
    }

    fn settings(&self) -> Result<BTreeMap<String, String>, String> {
        job::settings(&self.settings)
    }
}
