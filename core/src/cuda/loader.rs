//! Opens libraries of NVIDIA at run time: one that the process has mapped already goes before any other.
//!
//! The framework's own copy is the right one: it has the state of the process. Another copy of NCCL would be 200 MB more. A `libcuda.so`
//! without a number may be the stub for linking, which a folder on the loader's path puts before the real driver.
#![expect(unsafe_code, reason = "a library is opened")]

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// One place where a library may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Already mapped into this process, under this name.
    Mapped(&'static str),
    /// On the loader's path, under this name or path.
    Named(PathBuf),
}

/// The library at the first of `places` where there is one, and the place. It is never closed, because its initialisers ran, and because
/// its threads outlive all its users.
///
/// # Errors
/// All places, each with the loader's message.
pub(crate) fn find(places: &[Place]) -> Result<(&'static Library, Place), Vec<String>> {
    let mut searched = Vec::new();
    for place in places {
        match place.open() {
            Ok(library) => return Ok((Box::leak(Box::new(library)), place.clone())),
            Err(cause) => searched.push(format!("{place} ({cause})")),
        }
    }
    Err(searched)
}

impl Place {
    /// The places to search: `path` alone if it is given, else the mapped copy of `names[0]`, then all `names` on the loader's path.
    pub(crate) fn list(path: Option<&Path>, names: &[&'static str]) -> Vec<Self> {
        match path {
            Some(path) => vec![Self::Named(path.to_owned())],
            None => {
                let named = names.iter().map(|name| Self::Named((*name).into()));
                names.first().map(|name| Self::Mapped(name)).into_iter().chain(named).collect()
            }
        }
    }

    fn open(&self) -> Result<Library, String> {
        /// Finds only a library that is mapped already.
        const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;
        let (name, flags) = match self {
            Self::Mapped(name) => (OsStr::new(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD),
            Self::Named(name) => (name.as_os_str(), RTLD_NOW | RTLD_LOCAL),
        };
        // SAFETY: initialisers of the driver and of NCCL may run at any time. A user that names another library in the settings wants its
        // initialisers to run.
        let opened = unsafe { Library::open(Some(name), flags) };
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
    fn what_is_mapped_already_is_found_under_its_name_without_loading_it() {
        assert!(Place::Mapped("libc.so.6").open().is_ok());
        assert_eq!(Place::Mapped("libnobody.so.7").open().map(drop), Err("nobody has".to_owned()));
    }

    #[test]
    fn the_mapped_copy_goes_before_all_names_and_a_path_alone() {
        let named = |name: &str| Place::Named(name.into());
        assert_eq!(
            Place::list(None, &["liba.so.1", "liba.so"]),
            [Place::Mapped("liba.so.1"), named("liba.so.1"), named("liba.so")]
        );
        assert_eq!(Place::list(Some(Path::new("/x/liba.so")), &["liba.so.1"]), [named("/x/liba.so")]);
    }

    #[test]
    fn the_first_place_that_has_one_is_taken_and_else_all_are_named() {
        let (_, place) = find(&[Place::Mapped("libnobody.so.7"), Place::Named("libc.so.6".into())]).unwrap();
        assert_eq!(place, Place::Named("libc.so.6".into()));
        let searched = find(&Place::list(None, &["libnobody.so.7"])).unwrap_err();
        assert!(searched[0].contains("libnobody.so.7 that the process has loaded"), "{searched:?}");
        assert!(searched[1].starts_with("libnobody.so.7 (cannot open shared object file"), "{searched:?}");
    }
}
