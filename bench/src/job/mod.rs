//! A Gradlane job on this host. Coordinator, servers and workers are processes and join as in production.

pub(crate) mod road;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::identity::Credentials;
use gradlane_core::types::{DType, JoinString, Role};
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions};
use serde::{Deserialize, Serialize};

use crate::team::process::{Process, role};
use crate::team::rank::{INTERFACE, obey_as_helper};
use crate::team::{Abilities, Team, Wire};

/// An argument of a joining worker: the join string of the job.
pub(crate) const JOIN: &str = "join";
/// An argument of a joining worker: its settings, as a JSON object.
pub(crate) const SETTINGS: &str = "settings";

/// How to start a job.
#[derive(Clone, Debug)]
pub(crate) struct JobOptions {
    /// Its name in tables.
    pub(crate) name: String,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    /// Settings of all processes, by the name of the knob.
    pub(crate) settings: BTreeMap<String, String>,
    /// A running job to join as its workers, instead of starting coordinator and servers.
    pub(crate) join: Option<JoinString>,
    /// What to put before the commands of the coordinator, the servers and the workers, such as `ip netns exec NAME`. May be empty.
    pub(crate) before: Before,
    /// The network interface whose bytes workers count, and what its counters mean.
    pub(crate) interface: String,
    pub(crate) wire: Option<Wire>,
    pub(crate) patience: Duration,
}

/// See [`JobOptions::before`]. If a list is too short, the remaining processes have no such words.
#[derive(Clone, Default, Debug)]
pub(crate) struct Before {
    pub(crate) coordinator: Vec<OsString>,
    pub(crate) servers: Vec<Vec<OsString>>,
    pub(crate) workers: Vec<Vec<OsString>>,
    /// Settings of single processes, which override the settings of all. Example: `bind`.
    pub(crate) coordinator_settings: BTreeMap<String, String>,
    pub(crate) server_settings: Vec<BTreeMap<String, String>>,
}

/// The first line that a coordinator or a server reads.
#[derive(Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    /// The job that a server joins.
    pub(crate) join: Option<String>,
    /// Which of the servers it is.
    pub(crate) index: u32,
}

impl Start {
    /// Encodes it as one line.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("plain values")
    }

    /// Reads it from standard input.
    ///
    /// # Errors
    /// If there is no such line.
    pub(crate) fn read() -> Result<Self, String> {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map_err(|cause| format!("standard input: {cause}"))?;
        serde_json::from_str(&line).map_err(|cause| format!("{line:?} is no start: {cause}"))
    }
}

/// Starts all processes and returns once the workers have joined.
///
/// # Errors
/// The error of the first process that failed.
pub(crate) fn start(options: &JobOptions) -> Result<Team, String> {
    config(&options.settings)?;
    let mut helpers = Vec::new();
    let join = match &options.join {
        Some(join) => join.to_string(),
        None => start_helpers(options, &mut helpers)?,
    };
    let none = Vec::new();
    let mut ranks = Vec::new();
    for rank in 0..options.workers {
        let before = options.before.workers.get(rank as usize).unwrap_or(&none);
        ranks.push(Process::start(&format!("worker {rank}"), role("worker", before)?)?);
    }
    let mut team = Team {
        name: options.name.clone(),
        ours: true,
        size: options.workers,
        abilities: Abilities { out_of_place: true, mean: true, dtypes: &DType::ALL },
        wire: options.wire,
        about: String::new(),
        traffic: None,
        ranks,
        helpers,
        patience: options.patience,
    };
    let settings = serde_json::to_string(&options.settings).expect("a map of texts");
    let with = BTreeMap::from([
        (JOIN.to_owned(), join),
        (SETTINGS.to_owned(), settings),
        (INTERFACE.to_owned(), options.interface.clone()),
    ]);
    team.join(|_| with.clone())?;
    Ok(team)
}

/// Starts coordinator and servers, and returns the join string of the job.
///
/// # Errors
/// The error of the first process that failed.
pub(crate) fn start_helpers(options: &JobOptions, helpers: &mut Vec<Process>) -> Result<String, String> {
    let order = |join: Option<String>, index: u32, own: Option<&BTreeMap<String, String>>| {
        let mut settings = options.settings.clone();
        settings.extend(own.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        Start { settings, workers: options.workers, servers: options.servers, join, index }.line()
    };
    let before = &options.before;
    let mut coordinator = Process::start("coordinator", role("coordinator", &before.coordinator)?)?;
    coordinator.tell(&order(None, 0, Some(&before.coordinator_settings)))?;
    let join = coordinator.line(options.patience)?;
    helpers.push(coordinator);
    let none = Vec::new();
    for index in 0..options.servers {
        let words = before.servers.get(index as usize).unwrap_or(&none);
        let mut server = Process::start(&format!("server {index}"), role("server", words)?)?;
        server.tell(&order(Some(join.clone()), index, before.server_settings.get(index as usize)))?;
        helpers.push(server);
    }
    for server in &mut helpers[1..] {
        server.line(options.patience)?;
    }
    // The coordinator ends the job, and the servers end with it. So the coordinator is dismissed last.
    helpers.reverse();
    Ok(join)
}

/// The hidden role `coordinator`.
///
/// # Errors
/// Why it could not start or ended.
pub(crate) fn coordinate() -> Result<(), String> {
    let start = Start::read()?;
    let options = EmbeddedOptions { config: config(&start.settings)?, workers: start.workers, servers: start.servers };
    let embedded = Embedded::start_coordinator(&options).map_err(|error| error.to_string())?;
    println!("{}", embedded.join_string());
    obey_as_helper()?;
    // The workers have left already. If the job failed, the workers have reported it.
    let _ = embedded.stop(Duration::from_secs(5));
    Ok(())
}

/// The hidden role `server`.
///
/// # Errors
/// Why it could not start or ended.
pub(crate) fn serve() -> Result<(), String> {
    let start = Start::read()?;
    let config = config(&start.settings)?;
    let text = |error: gradlane_core::Error| error.to_string();
    let join: JoinString = start.join.unwrap_or_default().parse().map_err(text)?;
    let credentials = Credentials::enroll(&join, Role::Server, config.join_timeout).map_err(text)?;
    let server = Server::start(ServerOptions {
        config,
        coordinator: join.address,
        credentials: Arc::new(credentials),
        index: Some(start.index),
    })
    .map_err(text)?;
    println!("listening");
    obey_as_helper()?;
    server.stop(Duration::from_secs(1));
    Ok(())
}

/// Loads settings by name. Does not read the environment: a run depends on its arguments only.
///
/// # Errors
/// The setting that is unknown or malformed.
pub(crate) fn config(settings: &BTreeMap<String, String>) -> Result<Config, String> {
    Config::load(settings, [], None).map(|(config, _)| config).map_err(|error| error.to_string())
}

/// The settings of a run on this host, including those from `--set`.
///
/// # Errors
/// The first argument that is not a valid setting.
pub(crate) fn settings(given: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut settings = BTreeMap::from([("bind".to_owned(), "127.0.0.1:0".to_owned())]);
    for setting in given {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| format!("--set {setting} has no value; write --set name=value"))?;
        settings.insert(name.trim().replace('-', "_"), value.trim().to_owned());
    }
    config(&settings)?;
    Ok(settings)
}
