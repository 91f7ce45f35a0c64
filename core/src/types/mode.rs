//! The mode of a parameter: when the change of a worker is done, and for whom a worker waits.

use std::fmt;
use std::str::FromStr;

use super::Version;
use crate::error::{Error, Result};

/// How the workers of a job share a parameter. A declaration names it, and all workers declare the same one.
///
/// Users write it as `async`, `ssp` or with its settings as `async:max_staleness=8,beyond=scale`. What has a clock follows
/// that: see [`ClockKey`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mode {
    /// Who waits for whom.
    pub pace: Pace,
    /// What becomes of changes that were computed from an old version.
    pub staleness: Staleness,
    /// How gradients that were computed from an old version are corrected.
    pub compensation: Compensation,
    /// The clock whose ticks it follows. Absent only of [`Pace::Async`].
    pub clock: Option<ClockKey>,
}

/// Who waits for whom. All but the first one need a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pace {
    /// Nobody: each change is done when it comes.
    Async,
    /// Each change is done when it comes, and no worker is more than `bound` rounds of its clock before the slowest one.
    Ssp {
        /// Rounds.
        bound: u32,
    },
    /// The gradients of a round are kept. When the clock closes the round, the rule is applied once to all of them.
    Rounds {
        /// Which workers close a round.
        quorum: Quorum,
        /// What the rule is applied to.
        merge: Merge,
    },
}

/// Which workers a round waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quorum {
    /// All workers.
    All,
    /// So many, those that are first. What the others bring is dropped.
    First(u32),
}

/// How the gradients of a round become one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Merge {
    /// Their sum over the number of workers that closed the round.
    Mean,
    /// Their sum.
    Sum,
}

/// What becomes of a change by its lag: the versions that came between the one from which it was computed and the present one. Assignments
/// have no lag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Staleness {
    /// All are done.
    Any,
    /// Those of a larger lag are not done.
    Discard {
        /// The largest lag with which a change is done.
        max: u32,
    },
    /// Those of a larger lag are multiplied by 1 / (1 + lag) first.
    Scale {
        /// The largest lag with which a change is done as it is.
        max: u32,
    },
}

/// Delay compensation (arXiv:1609.08326): a gradient g that was computed from the value b, and comes to the value w, becomes
/// g + kappa·g⊙g⊙(w - b). It comes before a staleness multiplies the gradient. Only gradients for the rule are compensated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Compensation {
    /// The bits of kappa; 0 for none.
    bits: u64,
}

/// The key of a clock: which parameters follow which clock. Made of the clock's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClockKey(pub u64);

/// What became of a change. A later one is worse for its worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Fate {
    /// It was done, or there was nothing to change.
    #[default]
    Accepted,
    /// It is kept until its round is closed.
    Kept,
    /// It was multiplied by 1 / (1 + lag), and done.
    Scaled,
    /// It was not done, because its lag is above what the mode allows.
    DiscardedStale,
    /// It was not done, because its round was closed without this worker.
    DroppedLate,
}

/// What a use of a part of a parameter has come to; of several parts, the worst of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    /// The version that a change made, or that was read. Of several parts, the lowest.
    pub version: Version,
    /// What became of the change.
    pub fate: Fate,
    /// The versions between the one from which the change was computed and the one to which it came.
    pub lag: u32,
}

impl Mode {
    /// Every change is done when it comes, and there is no clock.
    pub const ASYNC: Self =
        Self { pace: Pace::Async, staleness: Staleness::Any, compensation: Compensation::NONE, clock: None };

    /// The same mode by this clock.
    #[must_use]
    pub const fn with_clock(self, clock: ClockKey) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The rounds in which gradients are kept, if they are.
    pub const fn rounds(self) -> Option<(ClockKey, Quorum, Merge)> {
        match (self.pace, self.clock) {
            (Pace::Rounds { quorum, merge }, Some(clock)) => Some((clock, quorum, merge)),
            (Pace::Rounds { .. } | Pace::Async | Pace::Ssp { .. }, _) => None,
        }
    }

    /// Refuses what has no meaning.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names what is wrong.
    pub fn check(self) -> Result<Self> {
        let refuse = |what: String, hint: &str| Err(Error::InvalidArgument { what, hint: hint.to_owned() });
        match (self.pace, self.clock) {
            (Pace::Ssp { .. } | Pace::Rounds { .. }, None) => {
                refuse(format!("mode {self} without a clock"), "name the clock that its workers follow")
            }
            (Pace::Rounds { quorum: Quorum::First(0), .. }, _) => {
                refuse(format!("mode {self}: a round of no worker"), "give 1 or more workers")
            }
            (Pace::Rounds { .. }, _) if self.staleness != Staleness::Any => refuse(
                format!("mode {self}: max_staleness"),
                "gradients of a round are of one version; use async or ssp",
            ),
            (Pace::Rounds { .. }, _) if self.compensation != Compensation::NONE => {
                refuse(format!("mode {self}: compensate"), "gradients of a round are of one version; use async or ssp")
            }
            (Pace::Async | Pace::Ssp { .. } | Pace::Rounds { .. }, _) => Ok(self),
        }
    }
}

impl Staleness {
    /// What becomes of a change of this lag, and the factor by which it is multiplied.
    pub fn judge(self, lag: u32) -> (Fate, f64) {
        match self {
            Self::Discard { max } if lag > max => (Fate::DiscardedStale, 0.0),
            Self::Scale { max } if lag > max => (Fate::Scaled, 1.0 / (1.0 + f64::from(lag))),
            Self::Any | Self::Discard { .. } | Self::Scale { .. } => (Fate::Accepted, 1.0),
        }
    }
}

impl Compensation {
    /// Gradients are taken as they are.
    pub const NONE: Self = Self { bits: 0 };

    /// By these bits of kappa, as they travel; 0 for none. `None` if it is not finite and above 0.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let kappa = f64::from_bits(bits);
        let is_fine = bits == 0 || kappa > 0.0 && kappa.is_finite();
        if is_fine { Some(Self { bits }) } else { None }
    }

    /// The bits of kappa, as they travel.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// How much of the correction is added, if any is.
    pub fn kappa(self) -> Option<f64> {
        if self == Self::NONE { None } else { Some(f64::from_bits(self.bits)) }
    }
}

impl ClockKey {
    /// The key of the clock of this name.
    pub fn of(name: &str) -> Self {
        Self(super::TensorKey::of(name).0)
    }
}

impl Fate {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Accepted, Self::Kept, Self::Scaled, Self::DiscardedStale, Self::DroppedLate];

    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The fate with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.code() == code)
    }

    /// The word for it that users see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Kept => "kept",
            Self::Scaled => "scaled",
            Self::DiscardedStale => "discarded_stale",
            Self::DroppedLate => "dropped_late",
        }
    }
}

impl Effect {
    /// A change that was done, or a value that was read.
    pub fn accepted(version: Version) -> Self {
        Self { version, ..Self::default() }
    }

    /// What both have come to.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { version: self.version.min(other.version), fate: self.fate.max(other.fate), lag: self.lag.max(other.lag) }
    }
}

impl fmt::Display for ClockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Mode {
    /// As users write it, without the settings that have their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = Vec::new();
        let name = match self.pace {
            Pace::Async => "async",
            Pace::Ssp { bound } => {
                settings.push(format!("bound={bound}"));
                "ssp"
            }
            Pace::Rounds { quorum, merge } => {
                if let Quorum::First(k) = quorum {
                    settings.push(format!("k={k}"));
                }
                if merge == Merge::Sum {
                    settings.push("merge=sum".to_owned());
                }
                if quorum == Quorum::All { "sync" } else { "k_of_n" }
            }
        };
        match self.staleness {
            Staleness::Any => {}
            Staleness::Discard { max } => settings.push(format!("max_staleness={max}")),
            Staleness::Scale { max } => settings.push(format!("max_staleness={max},beyond=scale")),
        }
        settings.extend(self.compensation.kappa().map(|kappa| format!("compensate={kappa}")));
        f.write_str(name)?;
        match settings.is_empty() {
            true => Ok(()),
            false => write!(f, ":{}", settings.join(",")),
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    /// Reads a mode without its clock.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the word which is wrong.
    fn from_str(text: &str) -> Result<Self> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let known: &[&str] = match name.trim() {
            "async" => &["max_staleness", "beyond", "compensate"],
            "ssp" => &["bound", "max_staleness", "beyond", "compensate"],
            "sync" => &["merge"],
            "k_of_n" => &["k", "merge"],
            name => {
                return Err(Error::InvalidArgument {
                    what: format!("mode {text:?}: there is no mode {name}"),
                    hint: "use one of async, ssp, sync, k_of_n".to_owned(),
                });
            }
        };
        let (mut number, mut max, mut beyond, mut merge) = (None, None, None, None);
        let mut compensation = Compensation::NONE;
        for word in settings.split(',').filter(|word| !word.is_empty()) {
            let unknown = || Error::InvalidArgument {
                what: format!("mode {text:?}: {word:?} sets nothing"),
                hint: format!("{} has {}", name.trim(), known.join(", ")),
            };
            let (setting, value) = word.split_once('=').ok_or_else(unknown)?;
            let (setting, value) = (setting.trim(), value.trim());
            if !known.contains(&setting) {
                return Err(unknown());
            }
            match (setting, value) {
                ("bound" | "k", value) => number = Some(value.parse().map_err(|_| unknown())?),
                ("max_staleness", value) => max = Some(value.parse().map_err(|_| unknown())?),
                ("compensate", kappa) => {
                    let kappa = kappa.parse().ok().filter(|kappa| *kappa > 0.0);
                    compensation =
                        kappa.and_then(|kappa: f64| Compensation::from_bits(kappa.to_bits())).ok_or_else(unknown)?;
                }
                ("beyond", "discard") => beyond = Some(false),
                ("beyond", "scale") => beyond = Some(true),
                ("merge", "mean") => merge = Some(Merge::Mean),
                ("merge", "sum") => merge = Some(Merge::Sum),
                _ => return Err(unknown()),
            }
        }
        let needed = |setting: &str| {
            number.ok_or_else(|| Error::InvalidArgument {
                what: format!("mode {text:?}: {setting} is missing"),
                hint: format!("write it as {}:{setting}=2", name.trim()),
            })
        };
        let merge = merge.unwrap_or(Merge::Mean);
        let pace = match name.trim() {
            "ssp" => Pace::Ssp { bound: needed("bound")? },
            "sync" => Pace::Rounds { quorum: Quorum::All, merge },
            "k_of_n" => Pace::Rounds { quorum: Quorum::First(needed("k")?), merge },
            _ => Pace::Async,
        };
        let staleness = match (max, beyond) {
            (None, None) => Staleness::Any,
            (Some(max), None | Some(false)) => Staleness::Discard { max },
            (Some(max), Some(true)) => Staleness::Scale { max },
            (None, Some(_)) => {
                return Err(Error::InvalidArgument {
                    what: format!("mode {text:?}: beyond without max_staleness"),
                    hint: "give the largest staleness with which changes are done as they are".to_owned(),
                });
            }
        };
        Ok(Self { pace, staleness, compensation, clock: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_what_its_text_says() {
        for text in [
            "async",
            "async:max_staleness=8",
            "async:max_staleness=0,beyond=scale",
            "async:compensate=0.04",
            "ssp:bound=4,max_staleness=8,compensate=2",
            "ssp:bound=4",
            "ssp:bound=0,max_staleness=2",
            "sync",
            "sync:merge=sum",
            "k_of_n:k=3",
            "k_of_n:k=3,merge=sum",
        ] {
            let mode: Mode = text.parse().expect(text);
            assert_eq!(mode.to_string(), text);
            assert!(mode.with_clock(ClockKey::of("c")).check().is_ok(), "{text}");
        }
        assert_eq!("async".parse(), Ok(Mode::ASYNC));
        assert_eq!(" ssp : bound = 1 ".parse::<Mode>().map(|mode| mode.to_string()), Ok("ssp:bound=1".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("asynk", "no mode asynk"),
            ("ssp", "bound is missing"),
            ("k_of_n", "k is missing"),
            ("ssp:bound=-1", "sets nothing"),
            ("ssp:k=3", "sets nothing"),
            ("sync:merge=max", "sets nothing"),
            ("async:beyond=scale", "beyond without max_staleness"),
            ("async:compensate=0", "sets nothing"),
            ("async:compensate=inf", "sets nothing"),
            ("async:compensate=-1", "sets nothing"),
            ("sync:compensate=1", "sets nothing"),
        ] {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let refused = |text: &str| text.parse::<Mode>().unwrap().check().unwrap_err().to_string();
        assert!(refused("sync").contains("without a clock"));
        let stale = Mode { staleness: Staleness::Discard { max: 1 }, ..clocked("sync") };
        assert!(stale.check().unwrap_err().to_string().contains("max_staleness"));
        let compensation = "async:compensate=1".parse::<Mode>().unwrap().compensation;
        let compensated = Mode { compensation, ..clocked("sync") };
        assert!(compensated.check().unwrap_err().to_string().contains("compensate"));
        assert!(clocked("k_of_n:k=0").check().unwrap_err().to_string().contains("no worker"));
    }

    #[test]
    fn a_change_is_judged_by_its_lag() {
        let [any, discard, scale] = [Staleness::Any, Staleness::Discard { max: 2 }, Staleness::Scale { max: 2 }]
            .map(|staleness| [0, 2, 3].map(|lag| staleness.judge(lag)));
        let done = (Fate::Accepted, 1.0);
        assert_eq!(any, [done; 3]);
        assert_eq!(discard, [done, done, (Fate::DiscardedStale, 0.0)]);
        assert_eq!(scale, [done, done, (Fate::Scaled, 0.25)]);
    }

    #[test]
    fn every_fate_has_its_code() {
        for fate in Fate::ALL {
            assert_eq!(Fate::from_code(fate.code()), Some(fate));
        }
        assert_eq!(Fate::from_code(5), None);
        let (fine, stale) = (Effect::accepted(Version(9)), Effect { version: Version(8), fate: Fate::Scaled, lag: 3 });
        assert_eq!(fine.and(stale), stale);
    }

    fn clocked(text: &str) -> Mode {
        text.parse::<Mode>().unwrap().with_clock(ClockKey::of("c"))
    }
}
