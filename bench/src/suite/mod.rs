//! Makes all tables of the benchmark, and a page of them. A table that fails or takes too long is reported, and the others continue.

mod tables;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::measure::{Deadline, time};
use crate::net::tools;
use crate::page;
use crate::report::Conclusion;
use crate::report::screen::columns;
use crate::team::gloo;
use crate::team::mpi::{self, Library};
use crate::team::process::{Process, tied};
use tables::{Needs, Peer, Table};

/// Make all tables, and a page of them with pictures. Needs an idle machine.
///
/// Peers and links that this host does not have are left out, and the page says so. Every table has its own deadline. If one fails, finds a
/// wrong sum or misses its deadline, the others are still made, and the exit code is 1.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder of the page, the pictures, and JSON and text of every table.
    #[arg(short = 'o', long, value_name = "FOLDER", default_value = "bench/results")]
    out: PathBuf,
    /// Every table at its smoke size: verifies every sum, but the figures mean nothing. Takes a minute or two.
    #[arg(long)]
    short: bool,
    /// Also compare each table with this project's targets for two cores. If one is missed, the exit code is 2.
    #[arg(long, conflicts_with = "short")]
    targets: bool,
    /// Make only these tables, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Minutes for the whole suite; tables whose turn does not come in time fail.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// The Python that runs Gloo: needs torch. Default: the one of the active virtual environment, or of .venv, or python3.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// The outcome of a table.
#[derive(Clone, PartialEq, Debug)]
enum Outcome {
    Made,
    /// Made, but a target was missed.
    Missed,
    /// Why this host cannot make it.
    LeftOut(String),
    Failed(String),
}

/// Makes the tables, printing rows as they come.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    make(arguments).unwrap_or_else(Conclusion::Failed)
}

fn make(arguments: &Arguments) -> Result<Conclusion, String> {
    let tables = chosen(&arguments.only)?;
    let folder = &arguments.out;
    fs::create_dir_all(folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let page = folder.join("README.md");
    let mut notes = Vec::new();
    notes.extend(arguments.short.then(|| "a short run: the figures mean nothing".to_owned()));
    let peers = peers(arguments, &mut notes);
    let deadline = Deadline::within(Duration::from_secs(arguments.minutes * 60));
    let (mut failed, mut missed) = (Vec::new(), false);
    let mut sources = Vec::new();
    for (number, table) in (1..).zip(&tables) {
        let json = folder.join(format!("{}.json", table.name));
        // Deletes the files of earlier runs, so that a table that fails leaves only what this run measured.
        let _ = fs::remove_file(&json);
        println!("\n## {} ({number} of {})", table.name, tables.len());
        let mut outcome = Outcome::Made;
        let taken = time(|| outcome = one(table, arguments, &peers, &json, deadline));
        let note = format!("{}: {outcome}, {:.0} s", table.name, taken.as_secs_f64());
        println!("## {note}");
        failed.extend(matches!(outcome, Outcome::Failed(_)).then_some(table.name));
        missed |= outcome == Outcome::Missed;
        notes.push(note);
        sources.extend(json.is_file().then_some(json));
        page::write_page(&page, &sources, &notes)?;
    }
    println!("{}", page.display());
    match failed.as_slice() {
        [] if missed => Ok(Conclusion::Missed),
        [] => Ok(Conclusion::Good),
        failed => Err(format!("{} of {} tables failed: {}", failed.len(), tables.len(), failed.join(", "))),
    }
}

fn chosen(only: &[String]) -> Result<Vec<Table>, String> {
    let mut tables = tables::all();
    let names: Vec<&str> = tables.iter().map(|table| table.name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("{unknown:?} is no table; there are {}", names.join(", ")));
    }
    tables.retain(|table| only.is_empty() || only.iter().any(|name| name == table.name));
    Ok(tables)
}

/// The peers that this host has. The notes name the missing ones.
fn peers(arguments: &Arguments, notes: &mut Vec<String>) -> Vec<Peer> {
    let python = gloo::interpreter(arguments.python.as_deref());
    let mut found = Vec::new();
    let places = mpi::Places::default();
    let ranks = Library::ALL.map(|library| (Peer::Ranks(library), mpi::check(library, &places).map(drop)));
    for (peer, here) in [(Peer::Gloo, gloo::check(&python).map(drop))].into_iter().chain(ranks) {
        match here {
            Ok(()) => found.push(peer),
            Err(why) => notes.push(format!("without {}: {why}", peer.name())),
        }
    }
    found
}

/// Makes one table in a separate process, so that its failure does not affect the others.
fn one(table: &Table, arguments: &Arguments, peers: &[Peer], json: &Path, all: Deadline) -> Outcome {
    if let Needs::Links(more) = table.needs
        && let Err(why) = tools::check(more)
    {
        return Outcome::LeftOut(why);
    }
    let patience = Duration::from_secs(table.seconds).min(all.left());
    if patience.is_zero() {
        return Outcome::Failed(format!("its turn did not come within {} minutes (--minutes)", arguments.minutes));
    }
    let words = command_line(table, arguments, peers, json);
    let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    println!("gradlane-bench {}", shown.join(" "));
    match run(table.name, &words, &json.with_extension("txt"), patience) {
        Ok(Ended::Well) => Outcome::Made,
        Ok(Ended::Missed) => Outcome::Missed,
        Err(why) => Outcome::Failed(why),
    }
}

fn command_line(table: &Table, arguments: &Arguments, peers: &[Peer], json: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = table.words.iter().map(OsString::from).collect();
    let names: Vec<&str> = table.peers.iter().filter(|peer| peers.contains(peer)).map(|peer| peer.name()).collect();
    if !names.is_empty() {
        words.extend(["--backend".into(), names.join(",").into()]);
    }
    if let Some(python) = arguments.python.as_ref().filter(|_| names.contains(&Peer::Gloo.name())) {
        words.extend(["--python".into(), python.into()]);
    }
    words.extend(arguments.short.then(|| "--smoke".into()));
    // A ratio to a peer that this host lacks is no target.
    let absent: Vec<&str> = table.peers.iter().filter(|peer| !peers.contains(peer)).map(|peer| peer.name()).collect();
    let of = |target: &str, name: &str| {
        target.split_once(':').is_some_and(|(_, rest)| rest.starts_with(&format!("{name}>")))
    };
    let asked = |target: &&&str| arguments.targets && !absent.iter().any(|name| of(target, name));
    words.extend(table.targets.iter().filter(asked).flat_map(|target| ["--expect".into(), target.into()]));
    words.extend(["-J".into(), json.into()]);
    // The table goes through a pipe, but a terminal may be at its end.
    words.extend(columns(None).iter().flat_map(|columns| ["--columns".into(), columns.to_string().into()]));
    words
}

/// Runs this program with these arguments, and copies its output to a file.
fn run(name: &str, words: &[OsString], text: &Path, patience: Duration) -> Result<Ended, String> {
    let this = std::env::current_exe().map_err(|cause| format!("this program does not find itself: {cause}"))?;
    let line: Vec<OsString> = [this.into_os_string()].into_iter().chain(words.iter().cloned()).collect();
    let mut file = File::create(text).map_err(|cause| format!("{}: {cause}", text.display()))?;
    let mut process = Process::start(name, tied(&line, &[])?)?;
    let mut written = Ok(());
    let ended = process.hear(Deadline::within(patience), |line| {
        println!("{line}");
        if written.is_ok() {
            written = writeln!(file, "{line}");
        }
    });
    let ended = match process.exit_code() {
        // Wrong arguments have the same code, but these arguments are correct.
        Some(2) if words.iter().any(|word| word == "--expect") => Ended::Missed,
        Some(_) | None => ended.map(|()| Ended::Well)?,
    };
    written.map_err(|cause| format!("{}: {cause}", text.display())).map(|()| ended)
}

/// How a table's process ended.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ended {
    Well,
    Missed,
}

impl Peer {
    /// Its name for --backend.
    fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Ranks(library) => library.name(),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made => f.write_str("made"),
            Self::Missed => f.write_str("made, and targets missed"),
            Self::LeftOut(why) => write!(f, "left out, {why}"),
            Self::Failed(why) => write!(f, "FAILED, {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;

    const MPI: Peer = Peer::Ranks(Library::Mpi);

    fn arguments(short: bool) -> Arguments {
        Arguments {
            out: PathBuf::from("out"),
            short,
            targets: !short,
            only: Vec::new(),
            minutes: 25,
            python: Some(PathBuf::from("py")),
        }
    }

    #[test]
    fn every_command_line_is_one_that_the_program_takes() {
        let mut names = BTreeSet::new();
        for table in tables::all() {
            assert!(names.insert(table.name), "{} twice", table.name);
            for short in [false, true] {
                let words = command_line(&table, &arguments(short), table.peers, Path::new("out.json"));
                let parsed = crate::Cli::try_parse_from([OsString::from("gradlane-bench")].into_iter().chain(words));
                assert!(
                    parsed.is_ok(),
                    "{}: {}",
                    table.name,
                    parsed.err().map_or_else(String::new, |error| error.to_string())
                );
            }
        }
    }

    #[test]
    fn peers_that_are_not_here_are_not_asked_for() {
        let collective = chosen(&["collective".to_owned()]).unwrap().remove(0);
        let line = |peers: &[Peer]| {
            command_line(&collective, &arguments(false), peers, Path::new("out.json")).join(&OsString::from(" "))
        };
        assert!(line(&[Peer::Gloo, MPI]).to_string_lossy().contains("--backend gloo,mpi --python py"));
        let lone = line(&[MPI]).to_string_lossy().into_owned();
        assert!(lone.contains("--backend mpi --expect ratio:mpi>=1@64K-4M") && !lone.contains("gloo"), "{lone}");
        assert!(!line(&[]).to_string_lossy().contains("--backend"));
    }

    #[test]
    fn a_table_that_there_is_not_is_refused_with_those_that_there_are() {
        let problem = chosen(&["speed".to_owned()]).unwrap_err();
        assert!(problem.contains("collective, ranks-2, ranks-4"), "{problem}");
        assert_eq!(chosen(&["sched".to_owned()]).unwrap().len(), 1);
    }
}
