//! Finds NCCL, and checks its version.

use std::fmt;
use std::path::Path;

use super::table::Table;
use crate::cuda::loader::{self, Place};
use crate::error::Error;

/// The library, found and bound. It stays mapped for ever, because its threads outlive all its users.
pub(super) struct Library {
    pub(super) table: Table,
    /// Its path or name.
    pub(super) place: String,
    pub(super) version: Version,
}

/// A version of NCCL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version(pub(super) u32);

impl Version {
    /// The first version that is used. Communicators that do not block exist since 2.14, and groups of them had faults up to 2.19.
    pub(super) const NEEDED: Self = Self(22000);
    /// The first version that can stop what is under way without freeing anything (`ncclCommRevoke`).
    pub(super) const REVOKES: Self = Self(22807);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Up to 2.8 the number had one digit less for the minor version.
        let Self(code) = self;
        match code {
            0..10_000 => write!(f, "{}.{}.{}", code / 1000, code % 1000 / 100, code % 100),
            _ => write!(f, "{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100),
        }
    }
}

/// Why NCCL cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Absent {
    /// It was not found.
    NoLibrary {
        /// The places that were searched, each with the loader's message.
        searched: Vec<String>,
    },
    /// The library is no NCCL, or one that is far too old.
    MissingSymbol {
        /// The library.
        library: String,
        /// The missing symbol.
        name: &'static str,
    },
    /// It is too old.
    TooOld {
        /// The library.
        library: String,
        /// Its version.
        found: Version,
    },
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary { searched } => write!(f, "no NCCL: looked for {}", searched.join("; ")),
            Self::MissingSymbol { library, name } => {
                write!(f, "{library} is no usable NCCL: it has no {name}")
            }
            Self::TooOld { library, found } => {
                write!(f, "{library} is NCCL {found}, and at least {} is needed", Version::NEEDED)
            }
        }
    }
}

impl Absent {
    /// The error for callers that submit memory of devices.
    pub(super) fn error(&self) -> Error {
        let install = match self {
            Self::NoLibrary { .. } => "install it (pip install nvidia-nccl-cu13)",
            Self::MissingSymbol { .. } | Self::TooOld { .. } => "install a newer one",
        };
        Error::FailedPrecondition {
            what: format!("the devices of this machine cannot be reduced among its workers: {self}"),
            hint: format!(
                "{install}, name it with nccl_lib, or set local_reduce=off on all workers of the machine, so that each pushes for itself"
            ),
        }
    }
}

/// The name under which it is shipped, and the one that development packages use, for systems without the other name.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

impl Library {
    /// Looks for NCCL: at `path` if it is given; else the copy that this process has mapped, which is the framework's; else on the loader's
    /// path. Stops at the first library that exists.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn find(path: Option<&Path>) -> Result<Self, Absent> {
        let (library, place) =
            loader::find(&Place::list(path, &NAMES)).map_err(|searched| Absent::NoLibrary { searched })?;
        let place = place.to_string();
        let table = Table::bind(library).map_err(|name| Absent::MissingSymbol { library: place.clone(), name })?;
        let version = Version(table.version_code());
        if version < Version::NEEDED {
            return Err(Absent::TooOld { library: place, found: version });
        }
        Ok(Self { table, place, version })
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.version, self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_where_nothing_is_gives_an_error_that_names_it_and_says_what_to_do() {
        let Err(absent) = Library::find(Some(Path::new("/nowhere/libnccl.so.2"))) else { panic!("found") };
        let Absent::NoLibrary { searched } = &absent else { panic!("{absent}") };
        assert_eq!(searched.len(), 1, "a configured path is the only one: {searched:?}");
        assert!(searched[0].starts_with("/nowhere/libnccl.so.2 (cannot open shared object file"), "{searched:?}");
        let Error::FailedPrecondition { what, hint } = absent.error() else { panic!("another error") };
        assert!(what.contains("/nowhere/libnccl.so.2"), "{what}");
        assert!(hint.contains("nccl_lib") && hint.contains("local_reduce=off"), "{hint}");
    }

    #[test]
    fn all_places_are_named_in_the_order_in_which_they_are_searched() {
        // Where a machine has NCCL, finding it is right too.
        if let Err(absent) = Library::find(None) {
            let text = absent.to_string();
            let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
            assert!(at("libnccl.so.2 that the process has loaded") < at("libnccl.so.2 (cannot"), "{text}");
            assert!(at("libnccl.so.2 (cannot") < at("libnccl.so (cannot"), "{text}");
        }
    }

    #[test]
    fn a_library_of_something_else_lacks_what_nccl_has() {
        // Mapped in every process here; the loader knows it by name.
        let Err(absent) = Library::find(Some(Path::new("libc.so.6"))) else { panic!("found") };
        let library = "libc.so.6".to_owned();
        assert_eq!(absent, Absent::MissingSymbol { library, name: "ncclGetVersion" });
    }

    #[test]
    fn versions_are_written_as_their_makers_do() {
        assert_eq!(Version(22809).to_string(), "2.28.9");
        assert_eq!(Version(2708).to_string(), "2.7.8");
        let old = Absent::TooOld { library: "x.so".to_owned(), found: Version(21003) };
        assert_eq!(old.to_string(), "x.so is NCCL 2.10.3, and at least 2.20.0 is needed");
    }
}
