//! How fast is a transport alone? Measures raw exchanges: a store keeps what a worker pushes and returns it, without summation.

pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::identity::Credentials;
use gradlane_core::local::SharedBacking;
use gradlane_core::mem::{Backing, Copies, Pool};
use gradlane_core::transport::router;
use gradlane_core::types::{DType, JoinString, Role, Scheme};
use gradlane_core::wire::limits::PART_BYTES_MAX;

use crate::arguments::{Effort, Ours, Sizes};
use crate::job::road;
use crate::job::{self, Start, config};
use crate::job::{JOIN, SETTINGS};
use crate::progress::Progress;
use crate::report::{Conclusion, DEFINITIONS, Output, Place, Report};
use crate::team::contest::{self, Entry, Plan};
use crate::team::orders::{Case, Mode};
use crate::team::process::{Process, role};
use crate::team::rank::obey_as_helper;
use crate::team::{Abilities, Team, Wire};
use worker::{CONNECTIONS, ENDPOINTS, Endpoint, PART_BYTES};

/// How fast is a transport alone, without summation?
///
/// A worker exchanges messages with a store in another process, which keeps them and returns them. The peers send the same messages in the
/// same order and run: plain TCP, and TCP with TLS 1.3 (rustls, AES-128-GCM), each with one connection and one thread per direction. Out of
/// place only. --road mem is the in-process transport: worker and store share a process.
#[derive(Args)]
#[command(after_long_help = DEFINITIONS)]
pub(crate) struct Arguments {
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    output: Output,
    /// Messages that are sent at once; an exchange ends when all have ended.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=128))]
    inflight: u32,
    /// Which way bytes go. push-pull sends each message and gets it back in the same exchange, so that bytes go both ways at once.
    /// push-then-pull sends all messages and then gets all back. push-only sends, and the store only acknowledges. pull-only gets messages
    /// that were pushed before, outside of the measured time.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "push-pull")]
    mode: Vec<Mode>,
    /// Our transports, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "quic")]
    road: Vec<Road>,
    /// Connections of a worker to its store; messages use them in turns. Each number makes a contender. Not for mem.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16))]
    connections: Vec<u32>,
    /// Peers, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,tls")]
    peer: Vec<Peer>,
    #[command(flatten)]
    ours: Ours,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Road {
    Quic,
    /// Memory that worker and store share.
    Shm,
    /// Within one process.
    Mem,
}

/// The names of those between processes.
pub(crate) const ROADS: [&str; 2] = ["quic", "shm"];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Peer {
    /// Plain TCP.
    Tcp,
    /// TCP with TLS 1.3.
    Tls,
}

/// Measures, printing rows as they come.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    measure(arguments).unwrap_or_else(Conclusion::Failed)
}

fn measure(arguments: &Arguments) -> Result<Conclusion, String> {
    let effort = arguments.effort.or_smoke();
    let patience = Duration::from_secs(effort.patience);
    let sizes = if effort.smoke { arguments.sizes.smoke() } else { arguments.sizes.clone() };
    let mut entries = Vec::new();
    for &mode in &arguments.mode {
        for bytes in sizes.list()? {
            if bytes > PART_BYTES_MAX {
                return Err(format!(
                    "a message of {bytes} bytes: no exchange carries more than {PART_BYTES_MAX}; choose a smaller -e"
                ));
            }
            entries.push(Entry::single(Case::raw(bytes, arguments.inflight, mode)));
        }
    }
    let progress = Progress::begin();
    let settings = job::settings(&arguments.ours.settings)?;
    let mut teams = Vec::new();
    for road in &arguments.road {
        match road {
            Road::Quic | Road::Shm => {
                let road = road::Road::named(if *road == Road::Shm { "shm" } else { "quic" });
                let mut settings = settings.clone();
                settings.extend(road.settings()?);
                for &connections in &arguments.connections {
                    let crew = RawCrew { workers: 1, servers: 1, connections, part_bytes: PART_BYTES_MAX };
                    teams.push(start_raw(road, &crew, &settings, patience)?);
                }
            }
            Road::Mem => teams.push(start_in_process(patience)?),
        }
    }
    for peer in &arguments.peer {
        teams.push(start_streams(*peer == Peer::Tls, patience)?);
    }
    let setting = vec![
        format!("gradlane-bench transport, {}", env!("CARGO_PKG_VERSION")),
        format!("one worker, one store, {} messages in flight; {}", arguments.inflight, effort.describe()),
    ];
    let report = Report::begin("transport", setting);
    let plan = Plan { effort, places: vec![Place::Out], spoil: arguments.ours.plant_wrong_sum };
    contest::hold(teams, &entries, &plan, report, &arguments.output, progress)
}

/// The processes that exchange raw messages, and how they do it.
pub(crate) struct RawCrew {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    /// Connections of each worker to each store.
    pub(crate) connections: u32,
    /// How many bytes of a tensor travel in one exchange.
    pub(crate) part_bytes: u64,
}

/// Starts raw workers and stores of ours as processes on this host.
pub(crate) fn start_raw(
    road: &road::Road,
    crew: &RawCrew,
    settings: &BTreeMap<String, String>,
    patience: Duration,
) -> Result<Team, String> {
    let &RawCrew { workers, servers, connections, part_bytes } = crew;
    let start = |join, index| Start { settings: settings.clone(), workers, servers, join, index };
    let mut coordinator = Process::start("coordinator", role("coordinator", &[])?)?;
    coordinator.tell(&start(None, 0).line())?;
    let join = coordinator.line(patience)?;
    let mut helpers = Vec::new();
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for index in 0..servers {
        let mut store = Process::start(&format!("store {index}"), role("store", &[])?)?;
        store.tell(&start(Some(join.clone()), index).line())?;
        let endpoint = store.line(patience)?;
        endpoints
            .push(serde_json::from_str(&endpoint).map_err(|cause| format!("{endpoint:?} is no endpoint: {cause}"))?);
        helpers.push(store);
    }
    helpers.push(coordinator);
    let mut ranks = Vec::new();
    for rank in 0..workers {
        ranks.push(Process::start(&format!("worker {rank}"), role("raw-worker", &[])?)?);
    }
    let with = BTreeMap::from([
        (JOIN.to_owned(), join),
        (SETTINGS.to_owned(), serde_json::to_string(settings).expect("a map of texts")),
        (ENDPOINTS.to_owned(), serde_json::to_string(&endpoints).expect("plain values")),
        (PART_BYTES.to_owned(), part_bytes.to_string()),
        (CONNECTIONS.to_owned(), connections.to_string()),
    ]);
    let name = match connections {
        1 => road.name.to_owned(),
        several => format!("{several} {}", road.name),
    };
    join_all(Team { helpers, ..team(&name, true, ranks, road.wire, patience) }, &with)
}

/// Starts a worker of ours with its store in the same process.
fn start_in_process(patience: Duration) -> Result<Team, String> {
    let ranks = vec![Process::start("worker", role("raw-worker", &[])?)?];
    let with = BTreeMap::from([(PART_BYTES.to_owned(), PART_BYTES_MAX.to_string())]);
    join_all(team("mem", true, ranks, None, patience), &with)
}

/// Starts a worker and a store that use TCP or TLS streams.
///
/// # Errors
/// The error of the first process that did not start.
pub(crate) fn start_streams(tls: bool, patience: Duration) -> Result<Team, String> {
    let name = if tls { "tls" } else { "tcp" };
    let mut command = role("stream-store", &[])?;
    command.args(tls.then_some("--tls"));
    let mut store = Process::start(&format!("{name} store"), command)?;
    let endpoint = store.line(patience)?;
    let ranks = vec![Process::start(&format!("{name} worker"), role("stream-worker", &[])?)?];
    let with = BTreeMap::from([(stream::ENDPOINT.to_owned(), endpoint)]);
    let wire = Some(Wire::Loopback { ends: 1 });
    join_all(Team { helpers: vec![store], ..team(name, false, ranks, wire, patience) }, &with)
}

fn team(name: &str, ours: bool, ranks: Vec<Process>, wire: Option<Wire>, patience: Duration) -> Team {
    Team {
        name: name.to_owned(),
        ours,
        size: u32::try_from(ranks.len()).expect("few ranks"),
        abilities: Abilities { out_of_place: true, mean: false, dtypes: &DType::ALL },
        wire,
        about: String::new(),
        traffic: None,
        ranks,
        helpers: Vec::new(),
        patience,
    }
}

fn join_all(mut team: Team, with: &BTreeMap<String, String>) -> Result<Team, String> {
    team.join(|_| with.clone())?;
    Ok(team)
}

/// The hidden role `store`.
///
/// # Errors
/// Why it could not start or ended.
pub(crate) fn serve() -> Result<(), String> {
    let text = |error: gradlane_core::Error| error.to_string();
    let start = Start::read()?;
    let config = config(&start.settings)?;
    let join: JoinString = start.join.unwrap_or_default().parse().map_err(text)?;
    let credentials = Credentials::enroll(&join, Role::Server, config.join_timeout).map_err(text)?;
    let backing = Arc::new(SharedBacking::new());
    let pool = if config.transport.allows(Scheme::Shm) {
        Pool::on(Arc::clone(&backing) as Arc<dyn Backing>)
    } else {
        Pool::new()
    };
    let listener = store::open(start.workers, pool, |inbox| {
        router::bind(&config, &credentials, &backing, &Copies::default(), inbox)
    })?;
    let endpoint = Endpoint::of(&listener, credentials.node());
    println!("{}", serde_json::to_string(&endpoint).expect("plain values"));
    obey_as_helper()?;
    (listener.stop)(Duration::from_secs(1));
    Ok(())
}
