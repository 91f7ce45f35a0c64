//! `gradlane-bench`: each subcommand answers one question. All results are verified, and the contenders of a question take turns in one
//! run.
//!
//! A question is a module with its arguments (`Arguments`, for clap) and an `answer`. This file only lists them, together with the hidden
//! roles in which the program starts itself again.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod codec;
mod latency;
mod net;
mod push_pull;
mod reduce;
mod rows;
mod sched;
mod small;
mod transport;

mod page;
mod suite;

mod arguments;
mod job;
mod machine;
mod measure;
mod memory;
mod progress;
mod report;
mod rule;
mod size;
mod table;
mod team;

use report::Conclusion;
use team::process::{become_program, die_with};
use team::rank::Member;

/// Microbenchmarks of Gradlane: medians with spread, contenders interleaved in one run, every result verified.
#[derive(Parser)]
#[command(name = "gradlane-bench", version)]
struct Cli {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand)]
enum Question {
    Codec(codec::Arguments),
    Latency(Box<latency::Arguments>),
    Net(Box<net::Arguments>),
    PushPull(Box<push_pull::Arguments>),
    Reduce(reduce::Arguments),
    Rule(rule::Arguments),
    Sched(sched::Arguments),
    Small(Box<small::Arguments>),
    #[command(name = "table")]
    Rows(rows::Arguments),
    Transport(Box<transport::Arguments>),
    Page(page::Arguments),
    Suite(suite::Arguments),
    #[command(hide = true)]
    Role {
        /// The parent process; this one ends when the parent ends.
        #[arg(long)]
        parent: u32,
        #[command(subcommand)]
        role: Role,
    },
}

/// What a process of a benchmark does.
#[derive(Subcommand)]
enum Role {
    Coordinator,
    Server,
    Worker,
    /// Coordinator, servers and workers.
    Whole,
    /// Keeps what workers push and gives it back.
    Store,
    RawWorker,
    StreamStore {
        #[arg(long)]
        tls: bool,
    },
    StreamWorker,
    /// One end of a plain transfer.
    Probe,
    /// Becomes another program.
    Exec {
        #[arg(last = true)]
        words: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let conclusion = match Cli::parse().question {
        Question::Codec(arguments) => codec::answer(&arguments),
        Question::Latency(arguments) => latency::answer(&arguments),
        Question::Net(arguments) => net::answer(&arguments),
        Question::PushPull(arguments) => push_pull::answer(&arguments),
        Question::Reduce(arguments) => reduce::answer(&arguments),
        Question::Rule(arguments) => rule::answer(&arguments),
        Question::Sched(arguments) => sched::answer(&arguments),
        Question::Small(arguments) => small::answer(&arguments),
        Question::Rows(arguments) => rows::answer(&arguments),
        Question::Transport(arguments) => transport::answer(&arguments),
        Question::Page(arguments) => page::answer(&arguments),
        Question::Suite(arguments) => suite::answer(&arguments),
        Question::Role { role, parent } => match play(role, parent) {
            Ok(()) => Conclusion::Good,
            Err(error) => Conclusion::Failed(error),
        },
    };
    match conclusion {
        Conclusion::Good => ExitCode::SUCCESS,
        Conclusion::Exited(code) => ExitCode::from(code),
        Conclusion::Missed => {
            eprintln!("an expectation was missed");
            ExitCode::from(2)
        }
        Conclusion::Wrong(wrong) => {
            eprintln!("wrong result: {wrong}");
            ExitCode::FAILURE
        }
        Conclusion::Failed(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(role: Role, parent: u32) -> Result<(), String> {
    die_with(parent)?;
    match role {
        Role::Coordinator => job::coordinate(),
        Role::Server => job::serve(),
        Role::Worker => team::rank::obey::<Member<push_pull::worker::Worker>>(),
        Role::Whole => team::rank::obey::<push_pull::whole::Whole>(),
        Role::Store => transport::serve(),
        Role::RawWorker => team::rank::obey::<Member<transport::worker::RawWorker>>(),
        Role::StreamStore { tls } => transport::stream::serve(tls),
        Role::StreamWorker => team::rank::obey::<Member<transport::stream::StreamWorker>>(),
        Role::Probe => net::probe::obey(),
        Role::Exec { words } => Err(become_program(&words)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
