//! The command line: `gradlane` of the Python package and `gradlane-server`, one and the same.
//!
//! This file parses the arguments and selects the command: [`settings`] are the arguments of every command, [`roles`] runs a part of a job,
//! [`crate::launch`] a whole one, [`status`], [`top`], [`explain`], [`compare`] and [`crate::doctor`] report, [`ctl`] gives orders. All settings are knobs of
//! [`gradlane_core::config`]; a flag is only a short name for one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use gradlane_core::config::kinds::{Kind, TimeSpan};
use gradlane_core::config::{Config, ProcessRole};
use gradlane_core::types::Role;
use gradlane_core::{Result, collective, cuda, metrics};

use crate::doctor;
use crate::exit;
use crate::handle::Handle;
use crate::launch::rendezvous;
use crate::launch::{self, Launch};

mod bench;
mod compare;
mod ctl;
mod explain;
mod live;
mod order_all;
mod recorders;
mod roles;
mod screen;
mod settings;
mod silence;
mod stalled;
mod status;
mod status_printer;
mod timelines;
mod token;
mod top;

use screen::say;
use settings::Settings;

/// Runs the command line `argv`, whose first word is the command's own name, and returns the exit code (`gradlane --help` lists them).
///
/// `program` is the command line that starts this same command again, such as `python -m gradlane.cli`; `gradlane run` starts its
/// servers with it. Blocks as long as the role or job lives; SIGINT and SIGTERM end it.
pub fn main(argv: impl Iterator<Item = OsString>, program: &[OsString]) -> i32 {
    main_with(argv, program, None)
}

/// The whole `main` of a server of one's own: the program `gradlane-server`, whose servers leave pushes and pulls of keys of `KVWorker` to
/// `handle`. It takes the same arguments and variables, such as `DMLC_ROLE=server`, ends by the same signals, and with the same codes.
///
/// ```no_run
/// use gradlane_server::handle::{Failure, Handle, Request};
///
/// /// Keeps the largest element that was ever pushed.
/// struct Max;
///
/// impl Handle for Max {
///     fn push(&self, request: &Request, value: &mut [u8], pushed: &[u8]) -> Result<(), Failure> {
///         request.update(value, pushed, f32::max)
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     gradlane_server::run_server_with(Max)
/// }
/// ```
pub fn run_server_with(handle: impl Handle) -> ExitCode {
    standalone(Some(Arc::new(handle)))
}

/// Runs the command line of this process as the program `gradlane-server` does, and returns its exit code. Without a subcommand it runs the
/// role in `GRADLANE_ROLE` or `DMLC_ROLE`, or else a server, because BytePS's and ps-lite's launch scripts start one program for both.
pub fn standalone(handle: Option<Arc<dyn Handle>>) -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let about_itself = |word: &OsString| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    let names_command = |word: &OsString| !word.to_string_lossy().starts_with('-');
    if !argv.get(1).is_some_and(|word| about_itself(word) || names_command(word)) {
        argv.insert(1.min(argv.len()), "serve".into());
    }
    // The path of this program; if it is unknown, the name under which it was called.
    let this = std::env::current_exe().map_or_else(|_| argv[0].clone(), OsString::from);
    // Codes are below 256: those of the table, and those of a shell.
    u8::try_from(main_with(argv.into_iter(), &[this], handle)).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Runs a server of a job in this process, with the settings of the environment and these, until its job ends. The code is 0, or that of the
/// signal that ended it.
///
/// # Errors
/// Why it could not start, or why the job failed.
pub fn serve(settings: BTreeMap<String, String>, handle: Option<Arc<dyn Handle>>) -> Result<i32> {
    roles::run(ProcessRole::Server, settings::load(settings, Some(ProcessRole::Server))?, handle)
}

fn main_with(argv: impl Iterator<Item = OsString>, program: &[OsString], handle: Option<Arc<dyn Handle>>) -> i32 {
    let cli = match Cli::try_parse_from(short_np(argv.collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output, errors to standard error.
            let _ = error.print();
            return error.exit_code();
        }
    };
    cli.command.run(program, handle).unwrap_or_else(|error| {
        exit::complain(&error);
        exit::code(&error)
    })
}

/// Gradient aggregation for distributed training.
#[derive(Parser, Debug)]
#[command(name = "gradlane", version, after_help = exit::TABLE, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a whole job on this host: a coordinator, servers and workers
    #[command(after_help = "Example: gradlane run -n 4 -s 2 -- python train.py")]
    Run(Run),
    /// Run one summation server of a job
    Server(Settings),
    /// Run the coordinator of a job; prints where the join string is that its other processes need
    #[command(alias = "scheduler")]
    Coordinator(Settings),
    /// Run a coordinator and its servers in one process
    Both(Settings),
    /// Run the role in GRADLANE_ROLE or DMLC_ROLE; a server if neither is set
    #[command(hide = true)]
    Serve(Settings),
    /// Show the members of the jobs of this user on this host, or of one job
    #[command(
        after_help = "Without a job's name or join string, shows every job that a process of this user leads on this host."
    )]
    Status(Status),
    /// Show who holds a running job up, again every second: late workers, rates, servers; one screen in a pipe
    Top(Settings),
    /// Give an order to a job that runs, as an admin
    Ctl {
        #[command(subcommand)]
        order: ctl::Order,
    },
    /// Say who held a job up, from the dumps of its members' flight recorders
    #[command(after_help = "Example: gradlane explain /shared/dumps/flight")]
    Explain {
        /// The directory with the dumps: `flight` below `dump_dir`, or the one that `gradlane ctl dump` was given
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Say what two runs have different, and by how much, from their reports
    #[command(
        after_help = "Example: gradlane compare reports/night-20261129T2200Z.json reports/night-20261130T2200Z.json"
    )]
    Compare {
        /// The report of a job that ran with `-o report=DIRECTORY`, or a directory with one
        #[arg(value_name = "A")]
        a: PathBuf,
        /// The other one
        #[arg(value_name = "B")]
        b: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a further join string for a job that runs, for one role
    Token {
        #[command(subcommand)]
        what: Token,
    },
    /// Show every setting, its value and where it came from
    Config(Report),
    /// Show every metric of workers, servers and the coordinator, its unit and meaning
    Metrics,
    /// Check this machine and say what to change
    Doctor(Doctor),
    /// Measure: reductions, transports, latency, kernels
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of `gradlane-bench`; --help lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
        words: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct Run {
    #[command(flatten)]
    settings: Settings,
    /// Seconds for the other processes to end by themselves after one has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u32,
    /// How often processes that fail are started again in all; with --elastic, on_worker_loss=wait, or on_server_loss=restore (servers alone), 100 times, if this is not given
    #[arg(long, value_name = "N")]
    restarts: Option<u32>,
    /// The program of the servers, if it is one of your own
    #[arg(long, value_name = "PROGRAM")]
    server_program: Option<OsString>,
    /// The worker's command line
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    worker: Vec<OsString>,
}

#[derive(Args, Debug)]
struct Status {
    #[command(flatten)]
    settings: Settings,
    /// Show the tensors that wait, and for whom, in place of the members
    #[arg(long)]
    stalled: bool,
    /// Print JSON, a line for each job
    #[arg(long)]
    json: bool,
    /// Show it again every so many seconds, until no job runs
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

#[derive(Subcommand, Debug)]
enum Token {
    /// Make one, on the host and as the user of the coordinator; prints where it is
    #[command(after_help = "Example: gradlane token new --role worker --uses 8 --ttl 1h --join-file workers.join")]
    New(NewToken),
}

#[derive(Args, Debug)]
struct NewToken {
    /// What it lets a process be: a member, or an admin, who gives orders (`gradlane ctl`)
    #[arg(long, value_parser = ["worker", "server", "admin"])]
    role: String,
    /// How many processes it lets in
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    uses: u32,
    /// For how long, such as `1h` or `90s`; at most a day
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = ttl)]
    ttl: Duration,
    #[command(flatten)]
    settings: Settings,
}

fn ttl(text: &str) -> std::result::Result<Duration, String> {
    let ttl = TimeSpan::parse(text)?;
    let allowed = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
    allowed.contains(&ttl).then_some(ttl).ok_or_else(|| "is not between 1 s and 24 h".to_owned())
}

#[derive(Args, Debug)]
struct Report {
    #[command(flatten)]
    settings: Settings,
    /// Print a configuration file with these settings
    #[arg(long)]
    toml: bool,
}

#[derive(Args, Debug)]
struct Doctor {
    #[command(flatten)]
    settings: Settings,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Command {
    fn run(self, program: &[OsString], handle: Option<Arc<dyn Handle>>) -> Result<i32> {
        match self {
            Self::Run(run) => run.launch(program, handle.is_some()),
            Self::Server(settings) => live(ProcessRole::Server, &settings, handle),
            Self::Coordinator(settings) => live(ProcessRole::Coordinator, &settings, handle),
            Self::Both(settings) => live(ProcessRole::Both, &settings, handle),
            Self::Serve(settings) => live(settings.role()?, &settings, handle),
            Self::Status(Status { settings, stalled, json, watch }) => {
                let config = settings.load(Some(ProcessRole::Server))?;
                let show = |answers: &[status::Answer]| {
                    say(&match (stalled, json) {
                        (false, true) => status::json(answers),
                        (false, false) => status::text(answers, screen::columns()),
                        (true, true) => stalled::json(answers),
                        (true, false) => stalled::text(answers, screen::columns()),
                    })
                };
                match watch {
                    None => {
                        let answers = status::ask(&config)?;
                        show(&answers).map(|_| status::exit_code(&answers))
                    }
                    Some(seconds) => status::watch(&config, Duration::from_secs(seconds), show),
                }
            }
            Self::Top(settings) => top::show(&settings),
            Self::Ctl { order } => order.give(),
            Self::Explain { directory } => explain::explain(&directory),
            Self::Compare { a, b, json } => compare::compare(&a, &b, json),
            Self::Token { what: Token::New(NewToken { role, uses, ttl, settings }) } => {
                let role = Role::named(&role).expect("one of those that the parser takes");
                let config = settings.load(Some(ProcessRole::Server))?;
                token::make(&config, token::Good { role, uses, lasts: ttl }).map(|()| exit::SUCCESS)
            }
            Self::Config(Report { settings, toml }) => {
                let config = settings.load(None)?;
                say(&match (toml, screen::columns()) {
                    (true, _) => config.to_toml(),
                    (false, None) => config.report(),
                    (false, Some(columns)) => {
                        screen::sections(config.rows().map(|(topic, row)| (topic.to_owned(), row)), columns)
                    }
                })
            }
            Self::Metrics => say(&match screen::columns() {
                None => metrics::report(),
                Some(columns) => screen::sections(metrics::rows(), columns),
            }),
            Self::Bench { words } => bench::run(&words),
            Self::Doctor(Doctor { settings, json }) => {
                // Loaded for a server, because a worker's place does not matter here.
                let config = settings.load(Some(ProcessRole::Server))?;
                let doctor::Examined { mut findings, gpus, libcuda, libnccl } =
                    doctor::examine(Path::new("/"), &expectations(&config, program));
                let mut lines = cuda::describe(&config, libcuda.as_deref());
                lines.extend(collective::devices::describe(&config, libnccl.as_deref()));
                findings.extend(doctor::devices(lines, gpus));
                say(&if json { doctor::json(&findings) } else { doctor::text(&findings) })
            }
        }
    }
}

fn live(role: ProcessRole, settings: &Settings, handle: Option<Arc<dyn Handle>>) -> Result<i32> {
    roles::run(role, settings.load(Some(role))?, handle)
}

impl Run {
    /// `is_own` says that this command is a user's server with a handle. The launcher embeds no server where the user has an own one.
    fn launch(self, program: &[OsString], is_own: bool) -> Result<i32> {
        let settings = self.settings.arguments()?;
        let config = self.settings.load(Some(ProcessRole::Both))?;
        let given = self.server_program.map(|program| [program]);
        let servers_min = u32::from(is_own || given.is_some());
        launch::run(&Launch {
            workers: config.size.unwrap_or(1),
            servers: config.servers.max(servers_min),
            restarts: self.restarts.unwrap_or(if config.lets_in_later() { launch::RESTARTS } else { 0 }),
            config,
            settings,
            failure_grace: Duration::from_secs(self.grace.into()),
            program: given.as_ref().map_or(program, |given| given),
            worker: &self.worker,
        })
    }
}

fn expectations(config: &Config, program: &[OsString]) -> doctor::Expectations {
    // `<prefix>/bin/python`, or this program in the same place.
    let prefix = program.first().and_then(|program| Path::new(program).parent()?.parent()).map(Path::to_owned);
    doctor::Expectations {
        socket_buffer_bytes: config.socket_buffer_bytes,
        state_dir: rendezvous::state_dir(config).map_or_else(|_| PathBuf::from("~/.gradlane"), Path::to_owned),
        python_prefixes: prefix.into_iter().collect(),
    }
}

/// Turns `run -np 4` of MPI's and BytePS's launchers into `run -n 4`, but only among the launcher's own arguments, before the name of the
/// program.
fn short_np(mut argv: Vec<OsString>) -> Vec<OsString> {
    if argv.get(1).is_none_or(|command| command != "run") {
        return argv;
    }
    let mut index = 2;
    while let Some(word) =
        argv.get(index).and_then(|word| word.to_str()).filter(|word| word.starts_with('-') && *word != "--")
    {
        // Every argument of `run` has a value: in the next word, unless it is in the same one.
        let value_follows = match word {
            "-np" => {
                argv[index] = "-n".into();
                true
            }
            _ if word.starts_with("--") => !word.contains('='),
            _ => word.len() == 2,
        };
        index += if value_follows { 2 } else { 1 };
    }
    argv
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_usage_and_bad_settings_end_with_the_same_code() {
        for line in ["gradlane no-such-command", "gradlane server --no-such-flag", "gradlane run -n 2"] {
            assert_eq!(refused(line), exit::USAGE, "{line}");
        }
        for settings in ["-o nonsense=1", "-o bind", "-n x", "-n 2 -o size=2", "--log a=b=c"] {
            let line = format!("gradlane server {settings}");
            assert_eq!(main(words(&line).into_iter(), &[]), exit::USAGE, "{line}");
        }
    }

    #[test]
    fn help_and_version_are_no_failures() {
        for line in ["gradlane --help", "gradlane run --help", "gradlane --version"] {
            assert_eq!(refused(line), exit::SUCCESS, "{line}");
        }
    }

    #[test]
    fn a_worker_is_not_started_by_this_command() {
        assert_eq!(main(words("gradlane serve -o role=worker -o rank=0 -o size=1").into_iter(), &[]), exit::USAGE);
    }

    #[test]
    fn the_launcher_takes_its_own_arguments_and_leaves_the_rest_to_the_program() {
        for (line, workers, servers, program) in [
            ("gradlane run -n 2 python train.py", Some("2"), None, "python train.py"),
            ("gradlane run -np 2 -s 3 -- python -u train.py", Some("2"), Some("3"), "python -u train.py"),
            ("gradlane run -s 3 -np 2 python train.py -np 5", Some("2"), Some("3"), "python train.py -np 5"),
            ("gradlane run --np 2 prog -n 9", Some("2"), None, "prog -n 9"),
            ("gradlane run --workers=2 prog -s 9", Some("2"), None, "prog -s 9"),
            ("gradlane run -n2 -o bind=127.0.0.1:0 prog -np 7", Some("2"), None, "prog -np 7"),
            ("gradlane run --elastic 2:4 --restarts 3 -np 2 prog -np 7", Some("2"), None, "prog -np 7"),
            ("gradlane run --server-program ./kv -np 2 prog -np 7", Some("2"), None, "prog -np 7"),
            ("gradlane run -- prog -np 7", None, None, "prog -np 7"),
        ] {
            let Command::Run(run) = parse(line) else { panic!("{line}") };
            assert_eq!(run.settings.workers.as_deref(), workers, "{line}");
            assert_eq!(run.settings.servers.as_deref(), servers, "{line}");
            assert_eq!(run.worker, words(program), "{line}");
        }
    }

    #[test]
    fn every_setting_can_be_given_by_name() {
        let Command::Server(settings) =
            parse("gradlane server --bind 127.0.0.1:7 -o step-timeout=7s -o sum_threads=2 -n 4")
        else {
            panic!("it is a server");
        };
        let expected = [("bind", "127.0.0.1:7"), ("size", "4"), ("step_timeout", "7s"), ("sum_threads", "2")];
        let expected: BTreeMap<_, _> = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(settings.arguments(), Ok(expected));
    }

    #[test]
    fn a_scheduler_is_a_coordinator() {
        assert!(matches!(parse("gradlane scheduler -n 1 -s 1"), Command::Coordinator(_)));
    }

    fn parse(line: &str) -> Command {
        Cli::try_parse_from(short_np(words(line))).unwrap_or_else(|error| panic!("{line}: {error}")).command
    }

    fn refused(line: &str) -> i32 {
        Cli::try_parse_from(words(line)).expect_err(line).exit_code()
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }
}
