//! The libraries whose ranks MPI starts: where each is found, what is said where it is not, and how its ranks wait.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A peer that is started as MPI ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// The MPI that `mpicc` and `mpirun` belong to, or that of `--mpi`.
    Mpi,
    /// MPICH, as `make bench-peers` installs it.
    Mpich,
    /// Intel MPI, likewise.
    IntelMpi,
    /// oneCCL, likewise, over Intel MPI.
    OneCcl,
}

/// An MPI, by its launcher: what its ranks do while they wait depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    OpenMpi,
    Mpich,
    Intel,
    Other,
}

/// Where libraries are looked for.
#[derive(Clone, Default, Debug)]
pub(crate) struct Places {
    /// The installation of [`Library::Mpi`]; by default what is on PATH.
    pub(crate) mpi: Option<PathBuf>,
    /// The folder of the others; by default `.venv-peers` in this directory or one above.
    pub(crate) peers: Option<PathBuf>,
}

/// The programs of an installation.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The folder that contains `bin` and `lib`; `None` for what is on PATH.
    root: Option<PathBuf>,
}

/// How ranks wait, and what makes them.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) variables: &'static [(&'static str, &'static str)],
    pub(super) words: &'static [&'static str],
    pub(super) about: &'static str,
}

impl Library {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Mpi, Self::Mpich, Self::IntelMpi, Self::OneCcl];

    /// Its name for `--backend` and in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
            Self::Mpich => "mpich",
            Self::IntelMpi => "impi",
            Self::OneCcl => "oneccl",
        }
    }

    /// Finds its programs.
    ///
    /// # Errors
    /// Where it was looked for, and how to install it.
    pub(super) fn find(self, places: &Places) -> Result<Tools, String> {
        let (folder, header) = match self {
            Self::Mpi => return Ok(Tools { root: places.mpi.clone() }),
            Self::Mpich => ("mpich", "mpi.h"),
            Self::IntelMpi => ("intel", "mpi.h"),
            Self::OneCcl => ("intel", "oneapi/ccl.hpp"),
        };
        let peers = places.peers.clone().unwrap_or_else(|| above(Path::new(".venv-peers")));
        let root = peers.join(folder);
        if root.join("include").join(header).is_file() {
            return Ok(Tools { root: Some(root) });
        }
        Err(format!("--backend {} is not in {}; {}", self.name(), root.display(), self.hint()))
    }

    /// How to install it.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Mpi => {
                "install Open MPI with its development files (libopenmpi-dev), or name another MPI's folder with --mpi"
            }
            Self::Mpich | Self::IntelMpi | Self::OneCcl => {
                "`make bench-peers` installs it into .venv-peers; --peers names another folder"
            }
        }
    }

    /// How its ranks wait, where there are more of them than cores or not. Ranks that spin are the fastest while each has a core; where two
    /// share one, a rank that spins keeps the core from the rank that it waits for.
    pub(super) fn waits(self, kind: Kind, crowded: bool) -> Waits {
        let (variables, words, about): (&[_], &[_], _) = match (self, kind, crowded) {
            (Self::OneCcl, _, false) => (&[("CCL_WORKER_OFFLOAD", "0")], &[], "its ranks spin while they wait"),
            (Self::OneCcl, _, true) => (
                &[("CCL_WORKER_OFFLOAD", "0"), ("CCL_YIELD", "sched_yield"), ("I_MPI_THREAD_YIELD", "3")],
                &[],
                "its ranks yield while they wait (CCL_YIELD=sched_yield, I_MPI_THREAD_YIELD=3)",
            ),
            (_, Kind::OpenMpi, true) => {
                (&[], &["--mca", "mpi_yield_when_idle", "1"], "its ranks yield while they wait (mpi_yield_when_idle=1)")
            }
            (_, Kind::Mpich, true) => (
                &[("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")],
                &[],
                "its ranks yield while they wait (MPIR_CVAR_POLLS_BEFORE_YIELD=1)",
            ),
            (_, Kind::Intel, true) => {
                (&[("I_MPI_THREAD_YIELD", "3")], &[], "its ranks yield while they wait (I_MPI_THREAD_YIELD=3)")
            }
            (_, Kind::Other, true) => (&[], &[], "its ranks wait as its defaults say"),
            (_, _, false) => (&[], &[], "its ranks spin while they wait"),
        };
        Waits { variables, words, about }
    }
}

impl Kind {
    /// The kind that prints this as its version, and its name with the version.
    pub(super) fn of(said: &str) -> (Self, String) {
        let first = said.lines().next().unwrap_or_default();
        let word_after = |mark: &str| {
            let rest = said.split_once(mark).map_or("", |(_, rest)| rest);
            rest.split_whitespace().next().unwrap_or("of an unknown version").to_owned()
        };
        match said {
            said if said.contains("Open MPI") => (Self::OpenMpi, format!("Open MPI {}", word_after("(Open MPI)"))),
            said if said.contains("Intel(R) MPI") => (Self::Intel, format!("Intel MPI {}", word_after("Version"))),
            said if said.contains("HYDRA") => (Self::Mpich, format!("MPICH {}", word_after("Version:"))),
            _ => (Self::Other, first.to_owned()),
        }
    }
}

impl Tools {
    /// The path of one of its programs, or its name if PATH decides.
    pub(super) fn program(&self, name: &str) -> OsString {
        self.root.as_ref().map_or_else(|| name.into(), |root| root.join("bin").join(name).into_os_string())
    }

    /// Sets what its programs read. Those of Intel MPI look for each other on PATH.
    pub(super) fn set(&self, command: &mut Command) {
        let Some(root) = &self.root else { return };
        let (lib, bin) = (root.join("lib"), root.join("bin"));
        command.env("I_MPI_ROOT", root).env("FI_PROVIDER_PATH", &lib).env("LD_LIBRARY_PATH", &lib);
        command.env("PATH", joined(bin, path()));
    }

    /// Lets programs find shared libraries in `folder`, too.
    pub(super) fn search(&self, command: &mut Command, folder: &Path) {
        if let Some(root) = &self.root {
            command.env("LD_LIBRARY_PATH", joined(root.join("lib"), folder.as_os_str().to_owned()));
        }
    }
}

/// `first` and the folders of `more`.
fn joined(first: PathBuf, more: OsString) -> OsString {
    let all = [first].into_iter().chain(std::env::split_paths(&more));
    std::env::join_paths(all).unwrap_or(more.clone())
}

#[expect(clippy::disallowed_methods, reason = "PATH belongs to the environment; it is not a setting of ours")]
fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// `folder` in this directory or the nearest one above that has it; that in this directory if none has.
fn above(folder: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let found = here.ancestors().map(|place| place.join(folder)).find(|place| place.is_dir());
    found.unwrap_or_else(|| here.join(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_known_by_its_version() {
        let known = |said| Kind::of(said);
        assert_eq!(known("mpirun (Open MPI) 4.1.4\n\nReport bugs"), (Kind::OpenMpi, "Open MPI 4.1.4".to_owned()));
        let hydra = "HYDRA build details:\n    Version:                                 5.0.2\n    CC: cc";
        assert_eq!(known(hydra), (Kind::Mpich, "MPICH 5.0.2".to_owned()));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260327 (id: 1)";
        assert_eq!(known(intel), (Kind::Intel, "Intel MPI 2021.18".to_owned()));
        assert_eq!(known("Other 1"), (Kind::Other, "Other 1".to_owned()));
    }

    #[test]
    fn a_peer_that_is_not_installed_is_named_with_the_line_that_installs_it() {
        let places = Places { mpi: None, peers: Some(PathBuf::from("/nowhere")) };
        for (library, folder) in [(Library::Mpich, "mpich"), (Library::IntelMpi, "intel"), (Library::OneCcl, "intel")] {
            let problem = library.find(&places).unwrap_err();
            assert!(problem.contains(&format!("--backend {}", library.name())), "{problem}");
            assert!(
                problem.contains(&format!("/nowhere/{folder}")) && problem.contains("make bench-peers"),
                "{problem}"
            );
        }
        assert!(Library::Mpi.hint().contains("libopenmpi-dev"));
    }

    #[test]
    fn ranks_that_share_cores_yield() {
        for (library, kind) in [
            (Library::Mpi, Kind::OpenMpi),
            (Library::Mpich, Kind::Mpich),
            (Library::IntelMpi, Kind::Intel),
            (Library::OneCcl, Kind::Intel),
        ] {
            assert!(library.waits(kind, true).about.contains("yield"));
            assert!(library.waits(kind, false).about.contains("spin"));
        }
    }
}
