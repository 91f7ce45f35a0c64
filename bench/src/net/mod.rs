//! `net`: links of limited rate between network namespaces of this host, and exchanges over them compared with the theoretical optimum.
//!
//! [`fabric`] builds the machines and [`link`] shapes their links, [`job`](crate::job) starts servers on them. Each question has a file;
//! [`exec`] runs a user's command.

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
mod shape;
pub(crate) mod tools;

use crate::report::{Conclusion, DEFINITIONS};

/// How near to the theoretical optimum is push-pull between machines with shaped links? Needs root.
///
/// The machines are network namespaces of this host, joined by a bridge; each has one link, limited to a rate in both directions. They
/// disappear when the benchmark ends, however it ends.
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
