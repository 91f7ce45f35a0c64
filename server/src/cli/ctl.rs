//! `gradlane ctl`: orders to a running job.

use std::time::Duration;

use clap::{Args, Subcommand};
use gradlane_core::config::kinds::{Kind, TimeSpan};
use gradlane_core::config::{Config, ProcessRole, units};
use gradlane_core::identity::Credentials;
use gradlane_core::metrics::{Instance, prometheus};
use gradlane_core::runtime::{Operator, recording};
use gradlane_core::types::{
    Checkpointed, Control, ControlAnswer, ControlCommand, JoinString, Recipient, Role, ServerId, Stats, WorkerId,
    printable,
};
use gradlane_core::wire::frame::{Health, Status};
use gradlane_core::{Error, Result};
use serde_json::json;

use super::order_all::{conclude, order_all};
use super::recorders;
use super::screen::say;
use super::settings::Settings;
use super::status::{led_here, names_a_coordinator, nothing_runs, nothing_runs_here};
use super::timelines;
use crate::launch::entering::Found;

/// An order, with its arguments.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Without a join string, the job is the one that a process of this user leads on this host. Elsewhere, and for other users, give an \
                  admin token: gradlane token new --role admin --join-file admin.join"
)]
pub(super) enum Order {
    /// Show the metrics of a member, or of all, in Prometheus' text format
    #[command(after_help = "Example: gradlane ctl stats server-0")]
    Stats {
        /// coordinator, worker-N or server-N
        #[arg(value_name = "MEMBER", value_parser = recipient)]
        member: Option<Recipient>,
        #[command(flatten)]
        options: Options,
    },
    /// Change what the log of one process lets through, from now on
    #[command(after_help = "Example: gradlane ctl log debug --member server-0")]
    Log {
        /// A level such as debug, or a filter such as info,gradlane_core::sched=trace
        #[arg(value_name = "LEVEL")]
        filter: String,
        /// coordinator, worker-N or server-N
        #[arg(long, value_name = "MEMBER", value_parser = recipient)]
        member: Recipient,
        #[command(flatten)]
        options: Options,
    },
    /// Have a server complete what has begun, and end, as after SIGTERM
    #[command(after_help = "Example: gradlane ctl drain --member server-1")]
    Drain {
        /// server-N
        #[arg(long, value_name = "MEMBER", value_parser = recipient)]
        member: Recipient,
        #[command(flatten)]
        options: Options,
    },
    /// Save a checkpoint of the parameters on servers, now
    #[command(after_help = "Example: gradlane ctl save nightly --keep 3")]
    Save {
        /// A directory below `checkpoint_dir` of the job
        #[arg(value_name = "PATH")]
        path: String,
        /// How many checkpoints to keep there; all if not given
        #[arg(long, value_name = "N")]
        keep: Option<u32>,
        #[command(flatten)]
        options: Options,
    },
    /// Change the learning rate of a parameter on servers, until it is set again or the job ends
    #[command(after_help = "Example: gradlane ctl set embedding lr=0.01 --at 5000")]
    Set {
        /// The parameter
        #[arg(value_name = "NAME")]
        tensor: String,
        /// The new rate, in the place of the `lr` of its rule
        #[arg(value_name = "lr=VALUE", value_parser = rate)]
        rate: f64,
        /// The first global step with this rate, counted from 1; the next one if not given. Only for a parameter with a clock
        #[arg(long, value_name = "STEP")]
        at: Option<u64>,
        #[command(flatten)]
        options: Options,
    },
    /// Record a timeline of all workers and servers, or of one: which sums were made when, as files for `gradlane.timeline.merge`
    #[command(
        after_help = "Examples: gradlane ctl timeline --all --from-step 700 --steps 3\n          gradlane ctl timeline --member server-0\n          \
                      gradlane ctl timeline --all --stop"
    )]
    Timeline {
        /// All workers and servers
        #[arg(long, required_unless_present = "member", conflicts_with = "member")]
        all: bool,
        /// worker-N or server-N
        #[arg(long, value_name = "MEMBER", value_parser = recipient)]
        member: Option<Recipient>,
        /// The first step, which must not have begun; the present one if not given. A step is the highest round of a tensor so far, as
        /// `gradlane top` shows it
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        from_step: Option<u64>,
        /// How many steps; all until --stop if not given
        #[arg(long, value_name = "K", requires = "from_step", value_parser = clap::value_parser!(u64).range(1..))]
        steps: Option<u64>,
        /// A directory below `dump_dir` of each member
        #[arg(long, value_name = "DIRECTORY", default_value = timelines::DIRECTORY)]
        directory: String,
        /// Complete the files of timelines that are being recorded
        #[arg(long, conflicts_with_all = ["from_step", "steps", "directory"])]
        stop: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Have all members write what their flight recorders have, or a worker what it contributes to a round of a tensor, and the sum that it gets
    #[command(
        after_help = "Examples: gradlane ctl dump\n          gradlane ctl dump fc.weight --round 700 --worker 1 --directory look --timeout 5m"
    )]
    Dump {
        /// The tensor; without one, the flight recorders
        #[arg(value_name = "TENSOR", requires_all = ["round", "worker", "directory"])]
        tensor: Option<String>,
        /// The round, with the number that errors and logs have: the first one is 0. It must not have begun
        #[arg(long, value_name = "N", requires = "tensor")]
        round: Option<u64>,
        /// The rank of the worker; without a tensor, the only one that writes
        #[arg(long, value_name = "RANK")]
        worker: Option<u32>,
        /// The only one that writes what its flight recorder has: coordinator, worker-N or server-N
        #[arg(long, value_name = "MEMBER", value_parser = recipient, conflicts_with_all = ["tensor", "worker"])]
        member: Option<Recipient>,
        /// A directory below `dump_dir` of each member; `flight` if not given
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<String>,
        #[command(flatten)]
        options: Options,
    },
}

/// The arguments of every order.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    settings: Settings,
    /// How long to wait for the answer, such as `30s`; at most an hour
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = timeout)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Order {
    /// Gives the order, and prints what it has come to.
    ///
    /// # Errors
    /// Why no coordinator can be found, or why the order was refused or not obeyed.
    pub(super) fn give(self) -> Result<i32> {
        let coordinator = Recipient::Coordinator;
        let (recipient, command, Options { settings, timeout, json }) = match self {
            Self::Stats { member: None, options: Options { settings, timeout, json } } => {
                let mut operator = enter(&settings, timeout)?;
                return stats_of_all(&mut operator, timeout, json);
            }
            Self::Stats { member: Some(member), options } => (member, ControlCommand::Stats, options),
            Self::Log { filter, member, options } => (member, ControlCommand::Log { filter }, options),
            Self::Drain { member, options } => (member, ControlCommand::Drain, options),
            Self::Save { path, keep, options } => (coordinator, ControlCommand::Save { path, keep }, options),
            Self::Set { tensor, rate, at, options } => {
                (coordinator, ControlCommand::SetRate { tensor, rate, step: at }, options)
            }
            Self::Dump {
                tensor: Some(tensor),
                round: Some(round),
                worker: Some(worker),
                directory: Some(directory),
                options,
                ..
            } => {
                let wait = options.timeout;
                let command = ControlCommand::Dump { tensor, round, directory, wait };
                (Recipient::Worker(WorkerId(worker)), command, options)
            }
            Self::Timeline { member, from_step, steps, directory, stop, options, .. } => {
                let Options { settings, timeout, json } = options;
                let mut operator = enter(&settings, timeout)?;
                let recipients = match member {
                    Some(member) => vec![member],
                    None => members(&operator.status(timeout)?).collect(),
                };
                let command = match stop {
                    true => ControlCommand::StopTimeline,
                    false => ControlCommand::Timeline { directory, from: from_step.unwrap_or_default(), steps },
                };
                return timelines::order(&mut operator, recipients, &command, timeout, json);
            }
            Self::Dump { worker, member, directory, options: Options { settings, timeout, json }, .. } => {
                let directory = directory.unwrap_or_else(|| recording::DIRECTORY.to_owned());
                let mut operator = enter(&settings, timeout)?;
                let writers = match worker.map(|rank| Recipient::Worker(WorkerId(rank))).or(member) {
                    Some(writer) => vec![writer],
                    None => with_recorders(&operator.status(timeout)?),
                };
                return recorders::dump(&mut operator, writers, directory, timeout, json);
            }
        };
        let mut operator = enter(&settings, timeout)?;
        let answer = operator.order(Control { recipient, wait: timeout, command: command.clone() })?;
        say(&if json { as_json(recipient, &answer) } else { as_text(recipient, &command, &answer) })
    }
}

/// Finds the coordinator, and connects to it.
pub(super) fn enter(settings: &Settings, timeout: Duration) -> Result<Operator> {
    let config = settings.load(Some(ProcessRole::Server))?;
    let (join, credentials) = enrol(&config, find(&config)?, timeout)?;
    Operator::connect(&join.address, &credentials, config.join_timeout.min(timeout))
}

/// Has this coordinator, or a newer one at its place, certify an operator.
pub(super) fn enrol(config: &Config, found: Found, timeout: Duration) -> Result<(JoinString, Credentials)> {
    found.enrol(config, Role::Admin, config.join_timeout.min(timeout))
}

/// The coordinator of the job that the settings name, else of the one that this user leads here.
pub(super) fn find(config: &Config) -> Result<Found> {
    if names_a_coordinator(config) {
        return Found::by_settings(config, Duration::ZERO).map_err(|error| nothing_runs(config, error));
    }
    match led_here(config).as_slice() {
        [] => Err(nothing_runs_here(config)),
        [one] => Ok(Found::from(one.operators.clone())),
        several => {
            let names: Vec<&str> = several.iter().map(|running| &*running.job).collect();
            Err(Error::InvalidArgument {
                what: format!("{} jobs of this user run on this host: {}", several.len(), names.join(", ")),
                hint: "name one by --job, or give its admin token by --join-file".to_owned(),
            })
        }
    }
}

/// The coordinator and the members that are there answer at the same time. Those that do not are named on standard error.
fn stats_of_all(operator: &mut Operator, timeout: Duration, json: bool) -> Result<i32> {
    let status = operator.status(timeout)?;
    let recipients = std::iter::once(Recipient::Coordinator).chain(members(&status)).collect();
    let (mut answered, mut errors) = (Vec::new(), Vec::new());
    for (recipient, outcome) in gather(operator, recipients, timeout)? {
        match outcome {
            Ok(stats) => answered.push((recipient, stats)),
            Err(error) => errors.push((recipient, error)),
        }
    }
    let text = match json {
        true => {
            let all = answered.iter().map(|(recipient, stats)| (recipient.to_string(), values(stats)));
            serde_json::Value::Object(all.collect()).to_string()
        }
        false => prometheus(&answered.iter().filter_map(|(_, stats)| instance(stats)).collect::<Vec<_>>()),
    };
    conclude(&errors, &text)
}

/// The metrics of these parts of a job, or why one has not told them within `wait`. They are asked at the same time.
pub(super) fn gather(
    operator: &mut Operator,
    recipients: Vec<Recipient>,
    wait: Duration,
) -> Result<Vec<(Recipient, Result<Stats>)>> {
    let stats = |(recipient, outcome)| match outcome {
        Ok(ControlAnswer::Stats(stats)) => Some((recipient, Ok(stats))),
        Ok(_) => None,
        Err(error) => Some((recipient, Err(error))),
    };
    Ok(order_all(operator, recipients, wait, &ControlCommand::Stats)?.into_iter().filter_map(stats).collect())
}

/// The members that are there, by the names in which orders name them.
pub(super) fn members(status: &Status) -> impl Iterator<Item = Recipient> + '_ {
    let members = status.view.members.iter().zip(&status.members);
    members.filter_map(|(member, state)| match (state.health, member.process.role) {
        (Health::Alive | Health::Suspect, Role::Worker) => Some(Recipient::Worker(WorkerId(member.index))),
        (Health::Alive | Health::Suspect, Role::Server) => Some(Recipient::Server(ServerId(member.index))),
        (Health::Alive | Health::Suspect, Role::Coordinator | Role::Observer | Role::Admin) => None,
        (Health::Dead | Health::Left, _) => None,
    })
}

/// Those that write what their flight recorders have: all members, and the coordinator, which also writes its report of the job.
pub(super) fn with_recorders(status: &Status) -> Vec<Recipient> {
    members(status).chain([Recipient::Coordinator]).collect()
}

fn as_text(recipient: Recipient, command: &ControlCommand, answer: &ControlAnswer) -> String {
    match (answer, command) {
        (ControlAnswer::Done, ControlCommand::Log { filter }) => format!("{recipient} logs {filter}"),
        (ControlAnswer::Done, ControlCommand::Drain) => format!("{recipient} drains"),
        (ControlAnswer::Done, _) => format!("{recipient}: done"),
        (ControlAnswer::Stats(stats), _) => prometheus(&instance(stats).into_iter().collect::<Vec<_>>()),
        (ControlAnswer::Saved(Checkpointed { directory, tensors, bytes, .. }), _) => {
            format!("saved {}: {tensors} parameters, {}", printable(directory), units::print_bytes(*bytes))
        }
        (ControlAnswer::RateSet { step: Some(step) }, _) => format!("the rate changes at step {step}"),
        (ControlAnswer::RateSet { step: None }, _) => "the rate changes with the next change of each part".to_owned(),
        (ControlAnswer::Dumped { files }, _) => {
            let files: Vec<String> = files.iter().map(|file| printable(file)).collect();
            format!("{recipient} has written\n{}", files.join("\n"))
        }
    }
}

fn as_json(recipient: Recipient, answer: &ControlAnswer) -> String {
    let member = recipient.to_string();
    let value = match answer {
        ControlAnswer::Done => json!({ "member": member, "done": true }),
        ControlAnswer::Stats(stats) => json!({ member: values(stats) }),
        ControlAnswer::Saved(Checkpointed { checkpoint, directory, tensors, bytes, files, .. }) => json!({
            "checkpoint": checkpoint, "directory": directory, "tensors": tensors, "bytes": bytes, "files": files
        }),
        ControlAnswer::RateSet { step } => json!({ "step": step }),
        ControlAnswer::Dumped { files } => json!({ "member": member, "files": files }),
    };
    value.to_string()
}

fn values(stats: &Stats) -> serde_json::Value {
    serde_json::Value::Object(stats.values.iter().map(|(name, value)| (name.clone(), json!(value))).collect())
}

/// The values by the names that this program knows.
pub(super) fn instance(stats: &Stats) -> Option<Instance> {
    Instance::from_pairs(&stats.scope, &stats.label, &stats.values)
}

fn recipient(text: &str) -> std::result::Result<Recipient, String> {
    Recipient::named(text).ok_or_else(|| "is none of coordinator, worker-N, server-N".to_owned())
}

/// Whether it makes sense is for the coordinator to say, which names the parameter.
fn rate(text: &str) -> std::result::Result<f64, String> {
    let value =
        text.strip_prefix("lr=").ok_or_else(|| "is not lr=VALUE; the learning rate is what can be set".to_owned())?;
    value.parse().map_err(|_| format!("{value} is no number"))
}

fn timeout(text: &str) -> std::result::Result<Duration, String> {
    let timeout = TimeSpan::parse(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3_600);
    if allowed.contains(&timeout) { Ok(timeout) } else { Err("is not between 100 ms and an hour".to_owned()) }
}

#[cfg(test)]
mod tests {
    use gradlane_core::metrics::CoordinatorMetrics;

    use super::*;
    use crate::hostile;

    #[test]
    fn no_name_forges_a_line_of_an_answer() {
        let said = |answer: &ControlAnswer| as_text(Recipient::Coordinator, &ControlCommand::Stats, answer);
        let pairs = CoordinatorMetrics::default().instance("night").pairs();
        hostile::check(|name| said(&ControlAnswer::Dumped { files: vec![name.to_owned(), "/d/b".to_owned()] }));
        hostile::check(|name| {
            said(&ControlAnswer::Saved(Checkpointed { directory: name.to_owned(), ..Checkpointed::nothing() }))
        });
        hostile::check(|name| {
            let (scope, label) = ("coordinator".to_owned(), name.to_owned());
            said(&ControlAnswer::Stats(Stats { scope, label, values: pairs.clone() }))
        });
    }
}
