//! One line of the report, and its level.

/// The level of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// As it should be.
    Ok,
    /// A neutral fact.
    Info,
    /// Works, but someone should look.
    Warn,
}

impl Level {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
        }
    }
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The level.
    pub level: Level,
    /// The subject, such as `udp receive buffer`.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What to do; may be empty.
    pub advice: String,
}
