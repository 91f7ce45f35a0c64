//! `gradlane-bench`: one subcommand a question. Every answer is a ratio within one run, from results that were verified.
//!
//! A question is a module with its arguments (`Arguments`, for clap) and an `answer` that prints a table or says what came out wrong.
//! This file only lists them.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod net;
mod reduce;
mod sched;

mod measure;
mod table;

/// Microbenchmarks of Gradlane: medians with spread, contenders interleaved in one run, every result verified.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand)]
enum Question {
    Reduce(reduce::Arguments),
    Sched(sched::Arguments),
    Net(net::Arguments),
    /// A part of a job, which other questions start
    #[command(hide = true)]
    Role {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let answer = match Cli::parse().question {
        Question::Reduce(arguments) => reduce::answer(&arguments),
        Question::Sched(arguments) => sched::answer(&arguments),
        Question::Net(arguments) => {
            return net::answer(&arguments).map_or_else(
                |problem| {
                    eprintln!("{problem}");
                    ExitCode::FAILURE
                },
                ExitCode::from,
            );
        }
        Question::Role { arguments } => {
            let line = std::iter::once("gradlane".into()).chain(arguments);
            let code = gradlane_server::cli::main(line, &[]);
            return ExitCode::from(u8::try_from(code).unwrap_or(1));
        }
    };
    match answer {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("wrong result: {wrong}");
            ExitCode::FAILURE
        }
    }
}
