//! Finds NCCL, and checks its version.
#![expect(unsafe_code, reason = "a library is opened")]

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use super::table::Table;
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
    /// The first version with non-blocking communicators, an orderly end of them, sums with a factor, and texts for errors.
    pub(super) const NEEDED: Self = Self(21400);
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

/// The name under which it is shipped.
const NAME: &str = "libnccl.so.2";
/// The name that development packages use, for systems without the other name.
const PLAIN_NAME: &str = "libnccl.so";

impl Library {
    /// Looks for NCCL: at `path` if it is given; else the copy that this process has mapped, which is the framework's; else on the loader's
    /// path. Stops at the first library that exists.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn find(path: Option<&Path>) -> Result<Self, Absent> {
        let places: Vec<Place> = match path {
            Some(path) => vec![Place::Named(path.to_owned())],
            None => vec![Place::Mapped(NAME), Place::Named(NAME.into()), Place::Named(PLAIN_NAME.into())],
        };
        let mut searched = Vec::new();
        for place in places {
            match place.open() {
                Ok(library) => return Self::of(library, place.to_string()),
                Err(cause) => searched.push(format!("{place} ({cause})")),
            }
        }
        Err(Absent::NoLibrary { searched })
    }

    fn of(library: Opened, place: String) -> Result<Self, Absent> {
        // Never closed, even if a symbol is missing, because its initialisers ran.
        let library: &'static Opened = Box::leak(Box::new(library));
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

/// One place where NCCL may be.
enum Place {
    /// Already mapped into this process, under this name.
    Mapped(&'static str),
    /// On the loader's path, under this name or path.
    Named(PathBuf),
}

impl Place {
    fn open(&self) -> Result<Opened, String> {
        /// Finds only a library that is mapped already.
        const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;
        let (name, flags) = match self {
            Self::Mapped(name) => (OsStr::new(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD),
            Self::Named(name) => (name.as_os_str(), RTLD_NOW | RTLD_LOCAL),
        };
        // SAFETY: NCCL's initialisers may run at any time, and a user that names another library in the settings wants its initialisers to run.
        let opened = unsafe { Opened::open(Some(name), flags) };
        opened.map_err(|error| match self {
            Self::Mapped(_) => "nobody has".to_owned(),
            // Removes the name, which the loader repeats.
            Self::Named(name) => innermost(&error).trim_start_matches(&format!("{}: ", name.display())).to_owned(),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(name) => write!(f, "{name} that the process has loaded"),
            Self::Named(name) => write!(f, "{}", name.display()),
        }
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
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
    fn what_is_mapped_already_is_found_under_its_name_without_loading_it() {
        assert!(Place::Mapped("libc.so.6").open().is_ok());
        assert_eq!(Place::Mapped("libnobody.so.7").open().map(drop), Err("nobody has".to_owned()));
    }

    #[test]
    fn versions_are_written_as_their_makers_do() {
        assert_eq!(Version(22809).to_string(), "2.28.9");
        assert_eq!(Version(2708).to_string(), "2.7.8");
        let old = Absent::TooOld { library: "x.so".to_owned(), found: Version(21003) };
        assert_eq!(old.to_string(), "x.so is NCCL 2.10.3, and at least 2.14.0 is needed");
    }
}
