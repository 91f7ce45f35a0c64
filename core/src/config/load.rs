//! Combines the sources of settings in their order: arguments of the call, environment (ours, then aliases), file, cluster file, launcher,
//! default.
//!
//! All functions are pure, with two exceptions: the cluster file is read, and [`Config::from_process`] is the only place in the engine that
//! reads the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::choices::{LocalReduce, OnServerLoss, OnWorkerLoss};
use super::kinds::Unit;
use super::knobs::{Config, KNOBS, Knob, variable};
use super::launcher::Launcher;
use super::origin::{Origin, PREFIX, written};
use super::units::print_bytes;
use super::unread;
use crate::error::{Error, Result};

/// A setting that is probably a mistake but does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The setting, as its source names it.
    pub variable: String,
    /// How the setting is interpreted, and what to do.
    pub problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variable, self.problem)
    }
}

/// A configuration file: `name = value` for knobs by name, in TOML.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// Its path, for messages.
    pub path: String,
    /// Its contents.
    pub text: String,
}

/// Names the configuration file.
const FILE_VARIABLE: &str = "GRADLANE_CONFIG";
/// The argument that names the configuration file.
const FILE_ARGUMENT: &str = "config";

/// Settings of the previous version that no longer have an effect. They cause a warning in any source.
const RETIRED: [(&str, &str); 1] =
    [("quic_driver", "has no effect any more, and the next version refuses it: remove it")];

impl Config {
    /// Loads the settings of this process: `arguments` by name of the knob, its environment, and the file that the argument `config`
    /// or `GRADLANE_CONFIG` names.
    ///
    /// # Errors
    /// As [`Config::load`]; also if the file cannot be read.
    pub fn from_process(arguments: &BTreeMap<String, String>) -> Result<(Self, Vec<Warning>)> {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        let path =
            arguments.get(FILE_ARGUMENT).or_else(|| environment.get(FILE_VARIABLE)).filter(|path| !path.is_empty());
        let file = path.map(|path| read(FILE_VARIABLE, path)).transpose()?;
        Self::load(arguments, environment, file.as_ref())
    }

    /// Loads settings from these sources.
    ///
    /// An empty environment variable counts as not set. An unknown `GRADLANE_*` variable is only a warning, because processes inherit
    /// environments from unknown sources. An unknown argument or key of the file is an error.
    ///
    /// # Errors
    /// [`Error::Config`] naming the source, for a cluster file that cannot be read, and for settings that are unknown, malformed, out of
    /// range or in conflict.
    pub fn load(
        arguments: &BTreeMap<String, String>,
        environment: impl IntoIterator<Item = (String, String)>,
        file: Option<&File>,
    ) -> Result<(Self, Vec<Warning>)> {
        let environment: BTreeMap<String, String> =
            environment.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
        if let Some(name) = arguments.keys().find(|name| *name != FILE_ARGUMENT && !is_known(name)) {
            return Err(unknown(name, "is no argument"));
        }
        let keys = file.map(parse_file).transpose()?.unwrap_or_default();

        let mut config = Self::default();
        for knob in KNOBS {
            let named = |source: &BTreeMap<String, String>| {
                [knob.name, knob.former].into_iter().find(|name| source.contains_key(*name))
            };
            let argument = named(arguments).map(|name| (&arguments[name], Origin::Argument));
            let mut variables = knob.variables().filter(|name| !unread::is_switched_off(name, &environment));
            let variable =
                variables.find_map(|name| environment.get(&name).map(|text| (text, Origin::Environment(name))));
            let key = file.and_then(|file| Some((&keys[named(&keys)?], Origin::File(file.path.clone()))));
            if let Some((text, origin)) = argument.or(variable).or(key) {
                config.set(knob, text, origin)?;
            }
        }
        config.expand_home(environment.get("HOME"))?;
        config.place_in_cluster()?;
        config.place(&environment)?;
        config.follow();
        config.check()?;
        let mut warnings = warnings(&environment);
        for (name, problem) in RETIRED {
            let argument = arguments.contains_key(name).then_some(Origin::Argument);
            let variable = Some(variable(name)).filter(|name| environment.contains_key(name)).map(Origin::Environment);
            let key = file.filter(|_| keys.contains_key(name)).map(|file| Origin::File(file.path.clone()));
            let origins = [argument, variable, key].into_iter().flatten();
            let warn = |origin| Warning { variable: written(name, &origin), problem: problem.to_owned() };
            warnings.extend(origins.map(warn));
        }
        warnings.extend(too_small(&config));
        Ok((config, warnings))
    }

    /// Where the value of the knob called `name` came from.
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// How many threads add in a server: [`Config::sum_threads`], or one per core of this machine.
    pub fn sum_threads_or_cores(&self) -> usize {
        match self.sum_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads as usize,
        }
    }

    /// Whether the job takes in workers that come while it runs.
    pub fn takes_newcomers(&self) -> bool {
        self.elastic.is_some() || self.on_worker_loss == OnWorkerLoss::Wait
    }

    /// Whether processes that come after the job has formed may be of use to it: workers and servers that it takes in while it runs, or a
    /// server in the place of a lost one.
    pub fn lets_in_later(&self) -> bool {
        self.takes_newcomers() || self.on_server_loss == OnServerLoss::Restore
    }

    pub(super) fn set(&mut self, knob: &'static Knob, text: &str, origin: Origin) -> Result<()> {
        (knob.set)(self, text).map_err(|problem| {
            let problem = match knob.unit {
                Unit::Secret | Unit::SharedSecret => format!("is malformed: {problem}"),
                Unit::Bytes
                | Unit::Duration
                | Unit::Count
                | Unit::Indices
                | Unit::Flag
                | Unit::Text
                | Unit::Choice(_)
                | Unit::Path => format!("{text:?} {problem}"),
            };
            Error::Config { knob: written(knob.name, &origin), problem, hint: format!("give {}", knob.unit) }
        })?;
        self.origins.insert(knob.name, origin);
        Ok(())
    }

    fn expand_home(&mut self, home: Option<&String>) -> Result<()> {
        self.state_dir = self.expanded("state_dir", self.state_dir.as_deref(), home)?;
        self.checkpoint_dir = self.expanded("checkpoint_dir", self.checkpoint_dir.as_deref(), home)?;
        self.cluster_file = self.expanded("cluster_file", self.cluster_file.as_deref(), home)?;
        self.join_file = self.expanded("join_file", self.join_file.as_deref(), home)?;
        self.secret_file = self.expanded("secret_file", self.secret_file.as_deref(), home)?;
        self.tls_cert = self.expanded("tls_cert", self.tls_cert.as_deref(), home)?;
        self.tls_key = self.expanded("tls_key", self.tls_key.as_deref(), home)?;
        self.tls_ca = self.expanded("tls_ca", self.tls_ca.as_deref(), home)?;
        Ok(())
    }

    fn expanded(&self, name: &str, path: Option<&Path>, home: Option<&String>) -> Result<Option<PathBuf>> {
        let Some(path) = path else { return Ok(None) };
        match (path.strip_prefix("~"), home, self.origin(name)) {
            (Err(_), _, _) => Ok(Some(path.to_owned())),
            (Ok(rest), Some(home), _) => Ok(Some(Path::new(home).join(rest))),
            // No user asked for a default. Without a home directory there is no default.
            (Ok(_), None, Origin::Default) => Ok(None),
            (Ok(_), None, origin) => Err(Error::Config {
                knob: written(name, origin),
                problem: "begins with ~ and HOME is not set".to_owned(),
                hint: "give a path from the root".to_owned(),
            }),
        }
    }

    /// Changes defaults that would contradict the user's choices. A user who sets "fail after 2 s" need not also set when to warn.
    fn follow(&mut self) {
        let chosen = |config: &Self, name| *config.origin(name) != Origin::Default;
        if !chosen(self, "stall_warn") && self.stall_warn >= self.step_timeout {
            self.stall_warn = (self.step_timeout / 2).max(SHORTEST);
        }
        if !chosen(self, "suspect_timeout") && self.suspect_timeout >= self.dead_timeout {
            self.suspect_timeout = (self.dead_timeout / 2).max(SHORTEST);
        }
        if let Some(elastic) = self.elastic {
            if !chosen(self, "on_worker_loss") {
                self.on_worker_loss = OnWorkerLoss::Continue;
            }
            if !chosen(self, "min_workers") {
                self.min_workers = elastic.min;
            }
        }
        // The loss of one that reduces with others of its machine ends the job.
        if self.takes_newcomers() && !chosen(self, "local_reduce") {
            self.local_reduce = LocalReduce::Off;
        }
        if self.on_server_loss.survives() && !chosen(self, "on_worker_loss") {
            self.on_worker_loss = OnWorkerLoss::Continue;
        }
        if !chosen(self, "fuse_bytes") {
            self.fuse_bytes = self.fuse_bytes.min(self.partition_bytes);
        }
        if !chosen(self, "pipeline_bytes_min") {
            self.pipeline_bytes_min = self.pipeline_bytes_min.min(self.partition_bytes);
        }
        if !chosen(self, "heartbeat_interval") && self.heartbeat_interval >= self.suspect_timeout {
            self.heartbeat_interval = (self.suspect_timeout / 4).max(SHORTEST);
        }
    }

    /// Refuses settings that contradict each other.
    fn check(&self) -> Result<()> {
        for conflict in CONFLICTS {
            if (conflict.found)(self) {
                let shown = |name: &str| {
                    let knob = Knob::find(name).expect("conflicts are between knobs");
                    let value = Some(knob.value(self)).filter(|value| !value.is_empty());
                    format!("{} ({})", value.as_deref().unwrap_or("not set"), self.origin(name))
                };
                return Err(Error::Config {
                    knob: conflict.knob.to_owned(),
                    problem: format!("is {} and {} is {}", shown(conflict.knob), conflict.other, shown(conflict.other)),
                    hint: conflict.hint.to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The least value of all timeouts: what follows from a choice obeys the limits of a choice.
const SHORTEST: Duration = Duration::from_millis(1);

/// Two knobs whose values contradict each other.
struct Conflict {
    knob: &'static str,
    other: &'static str,
    found: fn(&Config) -> bool,
    hint: &'static str,
}

const CONFLICTS: &[Conflict] = &[
    Conflict {
        knob: "suspect_timeout",
        other: "heartbeat_interval",
        found: |config| config.suspect_timeout <= config.heartbeat_interval,
        hint: "let several heartbeats fit in the time to suspicion",
    },
    Conflict {
        knob: "dead_timeout",
        other: "suspect_timeout",
        found: |config| config.dead_timeout <= config.suspect_timeout,
        hint: "a member must be suspect before it is dead: make dead_timeout longer",
    },
    Conflict {
        knob: "step_timeout",
        other: "stall_warn",
        found: |config| config.step_timeout < config.stall_warn,
        hint: "a warning must come before the failure: make step_timeout longer",
    },
    Conflict {
        knob: "elastic",
        other: "on_worker_loss",
        found: |config| config.elastic.is_some() && config.on_worker_loss == OnWorkerLoss::Abort,
        hint: "an elastic job goes on without lost workers: leave on_worker_loss out",
    },
    Conflict {
        knob: "on_server_loss",
        other: "on_worker_loss",
        found: |config| config.on_server_loss.survives() && config.on_worker_loss == OnWorkerLoss::Abort,
        hint: "a job that survives lost servers goes on without lost workers too: leave on_worker_loss out",
    },
    Conflict {
        knob: "elastic",
        other: "min_workers",
        found: |config| config.elastic.is_some_and(|elastic| elastic.min != config.min_workers),
        hint: "the first number of elastic is the fewest workers: leave min_workers out",
    },
    Conflict {
        knob: "fuse_bytes",
        other: "partition_bytes",
        found: |config| config.fuse_bytes > config.partition_bytes,
        hint: "a tensor that shares a part must fit in one: make fuse_bytes smaller",
    },
    Conflict {
        knob: "pipeline_bytes_min",
        other: "partition_bytes",
        found: |config| config.pipeline_bytes_min > config.partition_bytes,
        hint: "the smallest part cannot be larger than the largest: make pipeline_bytes_min smaller",
    },
    Conflict {
        knob: "submit_bytes_max",
        other: "credit_bytes",
        found: |config| config.submit_bytes_max < config.credit_bytes,
        hint: "what is not submitted cannot be in flight: make submit_bytes_max larger",
    },
    Conflict {
        knob: "rank",
        other: "size",
        found: |config| not_below(config.rank, config.size),
        hint: "ranks count from 0 to size - 1",
    },
    Conflict {
        knob: "local_rank",
        other: "local_size",
        found: |config| not_below(config.local_rank, config.local_size),
        hint: "local ranks count from 0 to local_size - 1",
    },
    Conflict {
        knob: "node_rank",
        other: "num_nodes",
        found: |config| not_below(config.node_rank, config.num_nodes),
        hint: "hosts count from 0 to num_nodes - 1",
    },
    Conflict {
        knob: "local_size",
        other: "size",
        // A process that is told no number of workers counts one by default. It may still be told its place on its host.
        found: |config| {
            let is_default = *config.origin("size") == Origin::Launcher(Launcher::Single);
            config.local_size.zip(config.size).is_some_and(|(local, all)| local > all) && !is_default
        },
        hint: "size counts the workers of all hosts",
    },
    Conflict {
        knob: "server_index",
        other: "servers",
        found: |config| config.servers > 0 && not_below(config.server_index, Some(config.servers)),
        hint: "servers count from 0 to servers - 1",
    },
    Conflict {
        knob: "coordinator_host",
        other: "coordinator_port",
        found: |config| config.coordinator_host.is_some() && config.coordinator_port.is_none(),
        hint: "give the coordinator's port too (GRADLANE_COORDINATOR_PORT or DMLC_PS_ROOT_PORT)",
    },
    Conflict {
        knob: "coordinator_port",
        other: "coordinator_host",
        found: |config| config.coordinator_port.is_some() && config.coordinator_host.is_none(),
        hint: "give the coordinator's host too (GRADLANE_COORDINATOR_HOST or DMLC_PS_ROOT_URI)",
    },
];

fn not_below(index: Option<u32>, count: Option<u32>) -> bool {
    index.zip(count).is_some_and(|(index, count)| index >= count)
}

pub(super) fn read(knob: &str, path: &str) -> Result<File> {
    let text = std::fs::read_to_string(path).map_err(|cause| Error::Config {
        knob: knob.to_owned(),
        problem: format!("names {path}, which cannot be read: {cause}"),
        hint: "name a readable TOML file".to_owned(),
    })?;
    Ok(File { path: path.to_owned(), text })
}

fn parse_file(file: &File) -> Result<BTreeMap<String, String>> {
    let bad = |knob: &str, problem: String| Error::Config {
        knob: format!("{knob} in {}", file.path),
        problem,
        hint: "write one `name = value` a line, in TOML".to_owned(),
    };
    let table: toml::Table =
        file.text.parse().map_err(|cause: toml::de::Error| bad("syntax", cause.message().to_owned()))?;
    let mut keys = BTreeMap::new();
    for (name, value) in table {
        if !is_known(&name) {
            return Err(unknown(&name, &format!("is no setting, but stands in {}", file.path)));
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
                return Err(bad(&name, "is neither text, number nor flag".to_owned()));
            }
        };
        keys.insert(name, text);
    }
    Ok(keys)
}

fn is_known(name: &str) -> bool {
    Knob::find(name).is_some() || RETIRED.iter().any(|(retired, _)| *retired == name)
}

fn unknown(name: &str, problem: &str) -> Error {
    let hint = match nearest(name, KNOBS.iter().map(|knob| knob.name.to_owned())) {
        Some(near) => format!("did you mean {near}?"),
        None => "see `gradlane config` for all settings".to_owned(),
    };
    Error::Config { knob: name.to_owned(), problem: problem.to_owned(), hint }
}

fn warnings(environment: &BTreeMap<String, String>) -> Vec<Warning> {
    let known: Vec<String> = KNOBS.iter().flat_map(Knob::variables).chain([FILE_VARIABLE.to_owned()]).collect();
    let retired: Vec<String> = RETIRED.iter().map(|(name, _)| variable(name)).collect();
    // The comparison leaves out the prefix, because a long common prefix would make all names look similar.
    let rest = |name: &str| name.strip_prefix(PREFIX).map(str::to_owned);
    let unknown =
        environment.keys().filter(|name| !known.contains(name) && !retired.contains(name)).filter_map(|name| {
            let problem = match nearest(&rest(name)?, known.iter().filter_map(|name| rest(name))) {
                Some(near) => format!("is no setting; did you mean {PREFIX}{near}?"),
                None => "is no setting; see `gradlane config` for all".to_owned(),
            };
            Some(Warning { variable: name.clone(), problem })
        });
    let unread = environment.iter().filter(|(name, _)| !known.contains(name)).filter_map(|(name, value)| {
        Some(Warning { variable: name.clone(), problem: unread::why(name, value, environment)? })
    });
    unknown.chain(unread).collect()
}

/// Limits of memory that were set so low that nothing fails and everything is slow.
fn too_small(config: &Config) -> impl Iterator<Item = Warning> {
    let part = print_bytes(config.partition_bytes);
    let credit = (config.credit_bytes < config.partition_bytes).then(|| {
        let problem =
            format!("is less than a part (partition_bytes, {part}), so parts travel one after the other; raise it");
        ("credit_bytes", problem)
    });
    let holds_few = |bytes: &u64| *bytes / 8 * 7 < config.partition_bytes.saturating_mul(4);
    let server = config.server_bytes_max.filter(holds_few).map(|_| {
        let hint = "so sums wait for memory; raise it, or lower partition_bytes";
        ("server_bytes_max", format!("holds less than four parts (partition_bytes, {part}), {hint}"))
    });
    let given = [credit, server].into_iter().flatten().filter(|(name, _)| *config.origin(name) != Origin::Default);
    let warnings: Vec<Warning> =
        given.map(|(name, problem)| Warning { variable: written(name, config.origin(name)), problem }).collect();
    warnings.into_iter()
}

/// The candidate with the fewest differences from `name`, if they are few.
fn nearest(name: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(name, &candidate), candidate))
        .min()
        .filter(|(mistakes, candidate)| *mistakes <= candidate.len().min(name.len()) / 4 + 1)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
