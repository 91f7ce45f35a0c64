//! One line of the report, and how good what it tells is.

/// How good something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// As it should be.
    Ok,
    /// A fact without a judgement.
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
    /// How good.
    pub level: Level,
    /// What was looked at, such as `udp receive buffer`.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What to do; empty if there is nothing to do.
    pub advice: String,
}
