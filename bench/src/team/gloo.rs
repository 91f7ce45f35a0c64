//! The peer Gloo, through torch.distributed, which most users have. Its ranks are Python processes that obey our orders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gradlane_core::types::DType;

use super::process::{Process, tied};
use super::rank::INTERFACE;
use super::{Abilities, Team, Wire};
use crate::measure::Deadline;

/// The program of a rank.
const SCRIPT: &str = include_str!("gloo_rank.py");

/// The types that torch offers with Gloo.
const DTYPES: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::I8, DType::U8];

/// Where Gloo's ranks run and meet.
pub(crate) struct Venue {
    /// The interpreter.
    pub(crate) python: PathBuf,
    /// Words before the interpreter, such as `ip netns exec NAME`: one list per rank.
    pub(crate) before: Vec<Vec<OsString>>,
    /// The address of rank 0, at which the ranks meet.
    pub(crate) host: String,
    /// The network interface of each rank.
    pub(crate) interface: String,
    /// What the counters of that interface mean.
    pub(crate) wire: Wire,
    /// How long an order may take.
    pub(crate) patience: Duration,
}

impl Venue {
    /// `ranks` ranks on this host.
    pub(crate) fn loopback(python: PathBuf, ranks: u32, patience: Duration) -> Self {
        Self {
            python,
            before: vec![Vec::new(); ranks as usize],
            host: "127.0.0.1".to_owned(),
            interface: "lo".to_owned(),
            wire: Wire::Loopback { ends: 2 },
            patience,
        }
    }
}

/// Starts the ranks and waits until they have joined.
///
/// # Errors
/// If torch is missing, or the ranks do not join.
pub(crate) fn start(venue: &Venue) -> Result<Team, String> {
    let version = check(&venue.python)?;
    let mut ranks = Vec::new();
    for (rank, before) in venue.before.iter().enumerate() {
        let words = [venue.python.clone().into_os_string(), "-c".into(), SCRIPT.into()];
        ranks.push(Process::start(&format!("gloo rank {rank}"), tied(&words, before)?)?);
    }
    let mut team = Team {
        name: "gloo".to_owned(),
        ours: false,
        size: u32::try_from(ranks.len()).expect("few ranks"),
        abilities: Abilities { out_of_place: false, mean: false, dtypes: DTYPES },
        wire: Some(venue.wire),
        about: format!(
            "torch.distributed of PyTorch {version}; {} ranks, TCP from rank to rank without encryption",
            venue.before.len()
        ),
        traffic: None,
        ranks,
        helpers: Vec::new(),
        patience: venue.patience,
    };
    let port = free_port()?;
    let with = BTreeMap::from([
        ("host".to_owned(), venue.host.clone()),
        ("port".to_owned(), port.to_string()),
        (INTERFACE.to_owned(), venue.interface.clone()),
    ]);
    team.join(|_| with.clone())?;
    Ok(team)
}

/// The interpreter `asked`; by default that of the active virtual environment, or of `.venv` in this directory or one above, or `python3`.
pub(crate) fn interpreter(asked: Option<&Path>) -> PathBuf {
    if let Some(asked) = asked {
        return asked.to_owned();
    }
    #[expect(clippy::disallowed_methods, reason = "VIRTUAL_ENV belongs to Python's tools; it is not a setting of ours")]
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let here = std::env::current_dir().unwrap_or_default();
    let above = here.ancestors().map(|folder| folder.join(".venv"));
    active
        .into_iter()
        .chain(above)
        .map(|environment| environment.join("bin/python"))
        .find(|python| python.exists())
        .unwrap_or_else(|| PathBuf::from("python3"))
}

/// Checks that torch.distributed is available and includes Gloo. Returns the version of torch.
///
/// # Errors
/// What is missing.
pub(crate) fn check(python: &Path) -> Result<String, String> {
    const QUESTION: &str = "import torch, torch.distributed as d; print(torch.__version__); raise SystemExit(0 if d.is_available() and d.is_gloo_available() else 'torch was built without Gloo')";
    let hint = "install torch, or name an interpreter that has it with --python";
    let words = [python.as_os_str().to_owned(), "-c".into(), QUESTION.into()];
    let mut asked = Process::start("python", tied(&words, &[])?)?;
    let mut version = String::new();
    let heard = asked.hear(Deadline::within(PATIENCE), |line| line.clone_into(&mut version));
    heard.map(|()| version).map_err(|said| {
        let last = said.lines().last().unwrap_or("no reason given");
        format!("--backend gloo needs torch with Gloo, and {} says: {last}; {hint}", python.display())
    })
}

/// Generous, because reading torch from a cold disk takes long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A port that is free now. Another process could take it before the rank does; the rank then says so.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|cause| format!("no free port: {cause}"))?;
    listener.local_addr().map(|address| address.port()).map_err(|cause| format!("no free port: {cause}"))
}
