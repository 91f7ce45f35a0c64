//! What a contribution waited for before it came to its server, and why a server waited for a worker.

use std::time::Duration;

/// Why a server had to wait for the last worker of a round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// The worker submitted the tensor late: its Python, or its device, was still computing.
    Submit,
    /// The stages before the push: reductions on the machine, copies from a device and the work for which they wait there, encoding.
    Device,
    /// The part waited for its turn, for the round before, or for a connection.
    Queue,
    /// The part waited for credit.
    Credit,
    /// The time from the first to the last byte of the contribution.
    Transfer,
    /// The server had bytes, and was behind with their addition.
    Sum,
}

impl Cause {
    /// All of them, in the order of the way of a part.
    pub const ALL: [Self; 6] = [Self::Submit, Self::Device, Self::Queue, Self::Credit, Self::Transfer, Self::Sum];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Device => "device",
            Self::Queue => "queue",
            Self::Credit => "credit",
            Self::Transfer => "transfer",
            Self::Sum => "sum",
        }
    }
}

/// How long a part has waited between its submission and its push, by what for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waited {
    /// As [`Cause::Device`].
    pub device: Wait,
    /// As [`Cause::Queue`].
    pub queue: Wait,
    /// As [`Cause::Credit`].
    pub credit: Wait,
}

/// A duration in one byte. It is rounded down to three significant bits, so it may be too short by an eighth. 0 also stands for an unknown one.
///
/// Headers of contributions have no more room, and a byte is enough for a share of the blame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Wait(u8);

impl Wait {
    /// The longest one, 4.5 hours, stands for all that are longer.
    pub const MAX: Self = Self(u8::MAX);

    /// The wait of a duration.
    pub fn of(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // The exponent is 0 below 16 us, where each microsecond has a code of its own.
        let exponent = micros.max(1).ilog2().saturating_sub(MANTISSA_BITS);
        let code = (u64::from(exponent) << MANTISSA_BITS) + (micros >> exponent);
        Self(u8::try_from(code).unwrap_or(u8::MAX))
    }

    /// The duration of a wait.
    pub fn duration(self) -> Duration {
        let code = u64::from(self.0);
        let hidden = 1 << MANTISSA_BITS;
        let micros = match (code >> MANTISSA_BITS).checked_sub(1) {
            None => code,
            Some(exponent) => (hidden + code % hidden) << exponent,
        };
        Duration::from_micros(micros)
    }

    /// The wait with this code. Any byte is one.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// Its byte on the wire.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Bits of a wait behind its leading one.
const MANTISSA_BITS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_wait_of_its_own_duration_and_they_grow() {
        let mut before = None;
        for code in 0..=u8::MAX {
            let wait = Wait::from_code(code);
            assert_eq!(Wait::of(wait.duration()), wait, "{code}");
            assert!(before < Some(wait.duration()), "{code}");
            before = Some(wait.duration());
        }
    }

    #[test]
    fn a_wait_is_too_short_by_an_eighth_at_most() {
        for micros in (0..10_000).chain([123_456, 7_777_777, 9_876_543_210]) {
            let shown = Wait::of(Duration::from_micros(micros)).duration().as_micros() as u64;
            assert!(shown <= micros && micros - shown <= micros / 8, "{micros}: {shown}");
        }
        assert_eq!(Wait::of(Duration::MAX), Wait::MAX);
        assert!(Wait::MAX.duration() > Duration::from_secs(4 * 3600));
    }
}
