//! The peer MPI, with its collectives. At the start of a run, `mpicc` compiles the program and `mpirun` starts it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use gradlane_core::types::DType;

use super::orders::{Case, Order};
use super::process::{Process, Speech, tied};
use super::{Abilities, Team};
use crate::measure::Deadline;

/// The program of all ranks.
const SOURCE: &str = include_str!("mpi_ranks.c");
/// The types of ours that MPI has, and 16-bit floats. For these the program defines its own operation, as users of MPI must.
const DTYPES: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::I8, DType::U8];

/// Compiles and starts the ranks on this host.
///
/// # Errors
/// If MPI is missing or does not start.
pub(crate) fn start(ranks: u32, patience: Duration) -> Result<Team, String> {
    check()?;
    let folder = tempfile::tempdir().map_err(|cause| format!("no temporary directory: {cause}"))?;
    let (source, program) = (folder.path().join("mpi_ranks.c"), folder.path().join("mpi_ranks"));
    std::fs::write(&source, SOURCE).map_err(|cause| format!("{}: {cause}", source.display()))?;
    let words = ["mpicc", "-O3", "-march=native", "-o"].map(OsString::from);
    let words: Vec<OsString> = words.into_iter().chain([program.clone().into(), source.into()]).collect();
    let mut compiler = tied(&words, &[])?;
    compiler.env("TMPDIR", folder.path());
    let compiled = Process::start("mpicc", compiler)?.hear(Deadline::within(PATIENCE), |_| ());
    compiled.map_err(|said| format!("the peer of --backend mpi cannot be compiled: {said}"))?;
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]);
    // OpenMPI otherwise refuses more ranks than cores, and root. Other implementations do not need these variables.
    if is_open_mpi()? {
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.arg(program);
    // Does not die with this process: rank 0 reads the end of its orders, and then the ranks end in order and leave nothing behind.
    let process = Process::start("mpirun", command)?.speaking(Speech::Words(words_of));
    let mut team = Team {
        name: "mpi".to_owned(),
        ours: false,
        size: ranks,
        abilities: Abilities { out_of_place: true, mean: false, dtypes: DTYPES },
        wire: None,
        traffic: None,
        ranks: vec![process],
        helpers: Vec::new(),
        patience,
    };
    // Any order will do. Its answer means that every rank runs and the program's file may be deleted.
    team.wait_ready()?;
    Ok(team)
}

/// Checks that the compiler, its header and the launcher exist.
///
/// # Errors
/// What is missing.
pub(crate) fn check() -> Result<(), String> {
    version("mpicc")?;
    // Some systems have the compiler's wrapper without the header.
    let words = ["mpicc", "-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"].map(OsString::from);
    let tried = Process::start("mpicc", tied(&words, &[])?)?.hear(Deadline::within(PATIENCE), |_| ());
    tried.map_err(|said| {
        let first = said.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
        format!("--backend mpi needs the header mpi.h: {first}; install the development files of OpenMPI")
    })?;
    version("mpirun").map(drop)
}

fn is_open_mpi() -> Result<bool, String> {
    version("mpirun").map(|version| version.contains("Open MPI"))
}

/// The version that a program of MPI prints.
fn version(program: &str) -> Result<String, String> {
    let mut asked = Process::start(program, tied(&[program.into(), "--version".into()], &[])?)?;
    let mut version = String::new();
    asked.hear(Deadline::within(PATIENCE), |line| version.push_str(line)).map_err(|said| {
        let last = said.lines().last().unwrap_or("no reason given");
        format!("--backend mpi needs {program}: {last}; install OpenMPI with its compiler wrappers")
    })?;
    Ok(version)
}

/// Compiling a file takes a second or two.
const PATIENCE: Duration = Duration::from_secs(120);

/// Encodes an order as words, because C has no JSON parser.
fn words_of(order: &Order) -> String {
    match order {
        Order::Join { .. } | Order::Usage => "usage".to_owned(),
        Order::Prepare(case) => {
            let Case { dtype, op, collective, sets, tensors, .. } = case;
            let mut words = format!("prepare {dtype} {op} {} {sets} {}", collective.name(), tensors.len());
            for tensor in tensors {
                write!(words, " {}", tensor.elements).expect("writing to a string does not fail");
            }
            words
        }
        Order::Repeat(repeat) => format!(
            "repeat {} {} {} {}",
            u8::from(repeat.in_place),
            repeat.warmup,
            repeat.iterations,
            u8::from(repeat.check)
        ),
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Op;

    use super::*;
    use crate::arguments::Point;
    use crate::team::collective::Collective;
    use crate::team::orders::Repeat;

    #[test]
    fn orders_in_words_name_what_the_peer_reads() {
        let case = Case::single("t", 4096, DType::F32, Op::Max, 2);
        assert_eq!(words_of(&Order::Prepare(case)), "prepare float32 max all-reduce 64 2 1024 1024");
        let point = Point { bytes: 4096, dtype: DType::U8, op: Op::Sum };
        let gather = Case::of_parts(Collective::AllGather, point, 1, 3).unwrap();
        assert_eq!(words_of(&Order::Prepare(gather)), "prepare uint8 none all-gather 64 1 4095");
        let repeat = Repeat { in_place: true, warmup: 2, iterations: 20, check: false, spoil: false };
        assert_eq!(words_of(&Order::Repeat(repeat)), "repeat 1 2 20 0");
    }
}
