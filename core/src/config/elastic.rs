//! How many workers an elastic job may have.

use super::kinds::{Kind, Unit};
use crate::types::WorkerSet;

/// The most workers of a job.
const WORKERS_MAX: u32 = WorkerSet::WORKERS_MAX as u32;

/// How many workers an elastic job may have, `2:8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elastic {
    /// The fewest that go on after a loss.
    pub min: u32,
    /// The most.
    pub max: u32,
}

impl Kind for Elastic {
    type Value = Self;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let numbers = text.trim().split_once(':').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match numbers {
            Some((min, max)) if (1..=max).contains(&min) && max <= WORKERS_MAX => Ok(Self { min, max }),
            Some((min, max)) if min > max => Err(format!("has a minimum of {min} above its maximum of {max}")),
            _ => Err(format!("is no range of workers such as 2:8, from 1 to {WORKERS_MAX}")),
        }
    }

    fn print(value: &Self) -> String {
        format!("{}:{}", value.min, value.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_of_workers_in_order() {
        assert_eq!(Elastic::parse(" 2:8 "), Ok(Elastic { min: 2, max: 8 }));
        assert_eq!(Elastic::print(&Elastic { min: 1, max: 4096 }), "1:4096");
        for (text, problem) in [
            ("8", "no range"),
            ("0:8", "no range"),
            ("2:", "no range"),
            ("2:4097", "no range"),
            ("3:2", "a minimum of 3 above its maximum of 2"),
        ] {
            assert!(Elastic::parse(text).unwrap_err().contains(problem), "{text}");
        }
    }
}
