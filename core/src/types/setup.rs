//! What a process runs, and with which settings.

/// The version of Gradlane.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of which it was built, if the builder said so in the variable `SOURCE_COMMIT`. A build that asked git by itself would have to
/// begin anew with every commit.
pub const COMMIT: Option<&str> = option_env!("SOURCE_COMMIT");

/// What a process runs and its settings, for people who look for the process that differs from the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Setup {
    /// What it runs, by name: versions of software such as `torch`, and the models of its hardware such as `processor`.
    pub versions: Vec<(String, String)>,
    /// Its settings that somebody gave.
    pub settings: Vec<GivenSetting>,
}

/// A setting that somebody gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GivenSetting {
    /// Its name.
    pub name: String,
    /// Its value; masked if it is secret.
    pub value: String,
    /// Where the value came from.
    pub origin: String,
}

impl Setup {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.settings.is_empty()
    }
}
