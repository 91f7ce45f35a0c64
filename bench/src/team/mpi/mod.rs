//! The peers that are started as MPI ranks: any MPI with its own collectives, and oneCCL, whose ranks are those of Intel MPI. At the start
//! of a run, the compiler of that MPI compiles one program for all of them, and its launcher starts the ranks.

mod library;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gradlane_core::types::DType;

use super::orders::{Case, Order};
use super::process::{Process, Speech, tied};
use super::{Abilities, Team};
use crate::measure::Deadline;
use library::{Kind, Tools};
pub(crate) use library::{Library, Places};

/// The program of all ranks.
const SOURCE: &str = include_str!("ranks.c");
/// The collectives of oneCCL, for that program.
const ONECCL_SOURCE: &str = include_str!("oneccl.cpp");
/// The types of ours that MPI has, and 16-bit floats. For these the program defines its own operation, as users of MPI must.
const DTYPES: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::I8, DType::U8];

/// Compiles and starts the ranks on this host.
///
/// # Errors
/// If the library is missing, is not compiled or does not start.
pub(crate) fn start(library: Library, places: &Places, ranks: u32, patience: Duration) -> Result<Team, String> {
    let tools = check(library, places)?;
    let folder = tempfile::tempdir().map_err(|cause| format!("no temporary directory: {cause}"))?;
    let program = compile(library, &tools, folder.path())?;
    let (kind, version) = kind_of(library, &tools)?;
    let cores = u32::try_from(std::thread::available_parallelism().map_or(1, usize::from)).unwrap_or(u32::MAX);
    let waits = library.waits(kind, ranks > cores);
    let mut command = Command::new(tools.program("mpirun"));
    tools.set(&mut command);
    command.envs(waits.variables.iter().copied());
    // A library that the program needs and that its package lacks may lie beside the program.
    tools.search(&mut command, folder.path());
    command.args(["-n", &ranks.to_string()]);
    // Open MPI otherwise refuses more ranks than cores, and root.
    if kind == Kind::OpenMpi {
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.args(waits.words).arg(program);
    // Does not die with this process: rank 0 reads the end of its orders, and then the ranks end in order and leave nothing behind.
    let process = Process::start("mpirun", command)?.speaking(Speech::Words(words_of));
    let mut team = Team {
        name: library.name().to_owned(),
        about: format!("{version}, through memory; {}", waits.about),
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

/// Compiles the program of the ranks into `folder`.
fn compile(library: Library, tools: &Tools, folder: &Path) -> Result<std::path::PathBuf, String> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|cause| format!("{}: {cause}", path.display())).map(|()| path)
    };
    let run = |words: &[OsString]| {
        let mut compiler = tied(words, &[])?;
        compiler.env("TMPDIR", folder);
        tools.set(&mut compiler);
        let compiled = Process::start("the compiler", compiler)?.hear(Deadline::within(PATIENCE), |_| ());
        compiled.map_err(|said| format!("the peer of --backend {} cannot be compiled: {said}", library.name()))
    };
    let program = folder.join("ranks");
    let source = write("ranks.c", SOURCE)?;
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let cc = tools.program("mpicc");
    if library != Library::OneCcl {
        let options = words(&["-O3", "-march=native", "-o"]);
        run(&[vec![cc], options, vec![program.clone().into(), source.into()]].concat())?;
        return Ok(program);
    }
    let object = folder.join("ranks.o");
    let options = words(&["-O3", "-march=native", "-DONECCL", "-c", "-o"]);
    run(&[vec![cc.clone()], options, vec![object.clone().into(), source.into()]].concat())?;
    // oneCCL's package for processors names a second library and uses nothing of it, and the package lacks that library.
    let empty = folder.join("libccl.so.2");
    let options = words(&["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libccl.so.2", "-o"]);
    run(&[vec!["cc".into()], options, vec![empty.into()]].concat())?;
    let bindings = write("oneccl.cpp", ONECCL_SOURCE)?;
    let options = words(&["-O3", "-std=c++17", "-o"]);
    // The package leaves it to the program to name Intel's runtime library.
    let libraries = words(&["-lccl", "-Wl,--no-as-needed", "-lintlc", "-Wl,--allow-shlib-undefined"]);
    let files: Vec<OsString> = vec![program.clone().into(), bindings.into(), object.into()];
    run(&[vec![tools.program("mpicxx")], options, files, libraries].concat())?;
    Ok(program)
}

/// Checks that the library, its compiler, header and launcher exist, and finds them.
///
/// # Errors
/// What is missing, and how to get it.
pub(crate) fn check(library: Library, places: &Places) -> Result<Tools, String> {
    let tools = library.find(places)?;
    version(library, &tools, "mpicc")?;
    // Some systems have the compiler's wrapper without the header.
    let mut words: Vec<OsString> = vec![tools.program("mpicc")];
    words.extend(["-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"].map(OsString::from));
    let mut compiler = tied(&words, &[])?;
    tools.set(&mut compiler);
    let tried = Process::start("mpicc", compiler)?.hear(Deadline::within(PATIENCE), |_| ());
    tried.map_err(|said| {
        let first = said.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
        format!("--backend {} needs the header mpi.h: {first}; {}", library.name(), library.hint())
    })?;
    version(library, &tools, "mpirun").map(|_| tools)
}

/// Which MPI the launcher belongs to, and its name with its version.
fn kind_of(library: Library, tools: &Tools) -> Result<(Kind, String), String> {
    let said = version(library, tools, "mpirun")?;
    let (kind, name) = Kind::of(&said);
    Ok((kind, if library == Library::OneCcl { format!("oneCCL over {name}") } else { name }))
}

/// What a program of MPI prints about its version.
fn version(library: Library, tools: &Tools, program: &str) -> Result<String, String> {
    let mut command = tied(&[tools.program(program), "--version".into()], &[])?;
    tools.set(&mut command);
    let mut asked = Process::start(program, command)?;
    let mut version = String::new();
    asked.hear(Deadline::within(PATIENCE), |line| version.extend([line, "\n"])).map_err(|said| {
        let last = said.lines().last().unwrap_or("no reason given");
        format!("--backend {} needs {program}: {last}; {}", library.name(), library.hint())
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
