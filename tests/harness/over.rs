//! The transports that a test can run over.

use std::fmt;

/// How the gradients of a job under test travel. Every test names one: a default would let a test pass over another transport than the
/// one that it was written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Not to a server: the workers are on one machine and reduce among themselves.
    Local,
    /// Through shared memory to servers of this machine.
    Shm,
    /// Over QUIC to servers on loopback.
    Quic,
}

impl Over {
    /// The settings under which gradients cannot travel in another way.
    pub const fn settings(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Local => [("transport", "quic"), ("local_reduce", "auto")],
            Self::Shm => [("transport", "shm"), ("local_reduce", "off")],
            Self::Quic => [("transport", "quic"), ("local_reduce", "off")],
        }
    }

    /// These settings, and those of a test, which count where both name one.
    pub fn with<'a>(self, settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        self.settings().into_iter().chain(settings.iter().copied()).collect()
    }
}

impl fmt::Display for Over {
    /// The last part of the name of a test that [`matrix!`](crate::matrix) made.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "locally",
            Self::Shm => "over_shm",
            Self::Quic => "over_quic",
        })
    }
}

/// Makes a test for each transport out of functions that take one.
///
/// `matrix! { [over_shm, over_quic]: a_sum_is_right; }` makes the tests `a_sum_is_right::over_shm` and `a_sum_is_right::over_quic`. A
/// function that is in no list is an error, because nothing calls it.
#[macro_export]
macro_rules! matrix {
    ($($transports:tt: $($test:ident),+;)+) => { $($( $crate::matrix!(@module $test $transports); )+)+ };
    (@module $test:ident [$($transport:ident),+]) => {
        mod $test {
            $(
                #[test]
                fn $transport() {
                    super::$test($crate::matrix!(@over $transport));
                }
            )+
        }
    };
    (@over locally) => { $crate::over::Over::Local };
    (@over over_shm) => { $crate::over::Over::Shm };
    (@over over_quic) => { $crate::over::Over::Quic };
}
