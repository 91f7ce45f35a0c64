//! Where the value of a setting came from.

use std::fmt;

use super::launcher::Launcher;

/// Prefix of our environment variables.
pub(super) const PREFIX: &str = "GRADLANE_";

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// No source gave a value.
    Default,
    /// An argument of the call or of the command line.
    Argument,
    /// This environment variable.
    Environment(String),
    /// This file.
    File(String),
    /// This cluster file.
    Cluster(String),
    /// The variables of a launcher.
    Launcher(Launcher),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Argument => f.write_str("argument"),
            Self::Environment(variable) => f.write_str(variable),
            Self::File(path) | Self::Cluster(path) => f.write_str(path),
            Self::Launcher(launcher) => write!(f, "{launcher}"),
        }
    }
}

/// The name of a knob as the user wrote it.
pub(super) fn written(name: &str, origin: &Origin) -> String {
    match origin {
        Origin::Default | Origin::Argument => name.to_owned(),
        Origin::Environment(variable) => variable.clone(),
        Origin::File(path) | Origin::Cluster(path) => format!("{name} in {path}"),
        Origin::Launcher(launcher) => format!("{name} of {launcher}"),
    }
}
