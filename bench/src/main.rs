//! `gradlane-bench`: one subcommand a question. Every answer is a ratio within one run, from results that were verified.
//!
//! A question is a module with its arguments (`Arguments`, for clap) and an `answer` that prints a table or says what came out wrong.
//! This file only lists them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let answer = match Cli::parse().question {
        Question::Reduce(arguments) => reduce::answer(&arguments),
        Question::Sched(arguments) => sched::answer(&arguments),
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
