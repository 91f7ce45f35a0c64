//! `net`: shaped links between network namespaces of this host, and what travels over them against the theoretical optimum.
//!
//! [`fabric`] builds the machines and [`link`] shapes their links, [`job`] starts servers on them. What is asked of them is a file each:
//! [`exec`] runs a user's command.

use std::ffi::OsString;

use clap::{Args, Subcommand};

pub(crate) mod exec;
mod job;
mod process;

mod fabric;
mod link;
mod optimum;
mod tools;

use link::{Link, Rate};

/// Push-pull between network namespaces with shaped links, against the theoretical optimum. Needs root.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand, Debug)]
enum Question {
    Exec(exec::Arguments),
}

/// Answers, and returns the exit code.
///
/// # Errors
/// What is missing on this host, or what went wrong.
pub(crate) fn answer(arguments: &Arguments) -> Result<u8, String> {
    match &arguments.question {
        Question::Exec(arguments) => exec::run(arguments),
    }
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
    /// Any setting of Gradlane by its name, such as partition_bytes=1MiB; may be repeated
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
}

impl Shape {
    fn link(&self) -> Link {
        Link { rate: self.rate, queue_bytes: self.queue, mtu: self.mtu, tcp: self.tcp.clone() }
    }

    fn settings(&self) -> Result<Vec<(String, String)>, String> {
        let split = |option: &String| {
            let (name, value) = option.split_once('=').ok_or_else(|| format!("{option:?} is not NAME=VALUE"))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        self.options.iter().map(split).collect()
    }
}

/// The command line that starts this program again.
fn this_program() -> Result<Vec<OsString>, String> {
    let this = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    Ok(vec![this.into_os_string()])
}
