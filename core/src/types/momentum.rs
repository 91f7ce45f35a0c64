//! Momentum that is applied before gradients are encoded.

use crate::error::{Error, Result};

/// How a worker averages the gradients of a part over the rounds, before it encodes them with their residual.
///
/// ```text
///  u = factor · u + gradient         correction: encode u           nesterov: encode gradient + factor · u
/// ```
/// A codec that leaves most elements out sends the rest of them much later. The optimizer's own momentum then acts too late on them. So it is
/// applied here, and the optimizer has none. With the correction, what was sent of an element is forgotten in u as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Momentum {
    /// Millionths: more than none, and less than all.
    millionths: u32,
    /// Whether it is Nesterov's.
    is_nesterov: bool,
}

impl Momentum {
    /// A factor in millionths.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0, and for 1,000,000 or more.
    pub fn new(millionths: u32, is_nesterov: bool) -> Result<Self> {
        if (1..ONE).contains(&millionths) {
            return Ok(Self { millionths, is_nesterov });
        }
        Err(Error::InvalidArgument {
            what: format!("a momentum of {millionths} millionths"),
            hint: format!("give 1 to {}", ONE - 1),
        })
    }

    /// The factor.
    pub fn factor(self) -> f32 {
        (f64::from(self.millionths) / f64::from(ONE)) as f32
    }

    /// Whether it is Nesterov's, and not the correction of deep gradient compression.
    pub const fn is_nesterov(self) -> bool {
        self.is_nesterov
    }

    /// Millionths of the factor.
    pub const fn millionths(self) -> u32 {
        self.millionths
    }

    /// The momentum as it travels.
    pub const fn to_word(self) -> u32 {
        self.millionths | if self.is_nesterov { NESTEROV } else { 0 }
    }

    /// The momentum that travels as this.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_word(word: u32) -> Result<Self> {
        Self::new(word & !NESTEROV, word & NESTEROV != 0)
    }
}

const ONE: u32 = 1_000_000;
const NESTEROV: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_momentum_travels_as_a_word() {
        for momentum in [Momentum::new(1, false), Momentum::new(900_000, true), Momentum::new(999_999, false)] {
            let momentum = momentum.unwrap();
            assert_eq!(Momentum::from_word(momentum.to_word()), Ok(momentum));
        }
        for word in [0, 1_000_000, u32::MAX, NESTEROV] {
            assert!(Momentum::from_word(word).is_err(), "{word}");
        }
        assert_eq!(Momentum::new(500_000, false).unwrap().factor(), 0.5);
    }
}
