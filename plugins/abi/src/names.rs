//! The names of element types, reductions and uses of parameters: the one table by which Python and the op libraries read and write them. The names of codecs
//! are the engine's, which reads their parameters as well.

use std::fmt;

use crate::types::{GradlaneAccess, GradlaneDtype, GradlaneOp};

/// A name that is in none of the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    /// What is wrong, with the name.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.hint)
    }
}

impl GradlaneDtype {
    /// Every element type, in the order of the numbers.
    pub const ALL: [Self; 8] = [
        Self::Float32,
        Self::Float64,
        Self::Float16,
        Self::Bfloat16,
        Self::Int32,
        Self::Int64,
        Self::Int8,
        Self::Uint8,
    ];

    /// The name that NumPy and PyTorch use, such as `float32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
        }
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float64 | Self::Int64 => 8,
            Self::Float32 | Self::Int32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int8 | Self::Uint8 => 1,
        }
    }

    /// The element type with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u32 == code)
    }

    /// The element type with this name.
    ///
    /// # Errors
    /// If none has it. `bool` is refused with advice, because a sum of truth values has no agreed meaning.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| Unknown {
            what: format!("dtype {name:?} cannot be reduced"),
            hint: match name {
                "bool" => "view it as uint8, or reduce with max for `any` and min for `all`".to_owned(),
                _ => format!("supported: {}", Self::ALL.map(Self::name).join(", ")),
            },
        })
    }
}

impl GradlaneOp {
    /// Every reduction, in the order of the numbers.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::WeightedMean, Self::Broadcast];

    /// The name in Python and in the attributes of ops, such as `weighted_mean`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::WeightedMean => "weighted_mean",
            Self::Broadcast => "broadcast",
        }
    }

    /// The reduction with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u32 == code)
    }

    /// The reduction with this name.
    ///
    /// # Errors
    /// If none has it.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        Self::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| Unknown {
            what: format!("op {name:?}"),
            hint: format!("use one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

impl GradlaneAccess {
    /// Every use of a parameter, in the order of the numbers.
    pub const ALL: [Self; 10] = [
        Self::Init,
        Self::PushAdd,
        Self::PushAssign,
        Self::Pull,
        Self::PushPullAdd,
        Self::PushPullAssign,
        Self::PushStep,
        Self::PushPullStep,
        Self::PullEma,
        Self::PullWindow,
    ];

    /// The name in Python's native module, such as `push_add`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::PushAdd => "push_add",
            Self::PushAssign => "push_assign",
            Self::Pull => "pull",
            Self::PushPullAdd => "push_pull_add",
            Self::PushPullAssign => "push_pull_assign",
            Self::PushStep => "push_step",
            Self::PushPullStep => "push_pull_step",
            Self::PullEma => "pull_ema",
            Self::PullWindow => "pull_window",
        }
    }

    /// The use with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|access| *access as u32 == code)
    }

    /// The use with this name.
    ///
    /// # Errors
    /// If none has it.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        Self::ALL.into_iter().find(|access| access.name() == name).ok_or_else(|| Unknown {
            what: format!("access {name:?}"),
            hint: format!("use one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for dtype in GradlaneDtype::ALL {
            assert_eq!(GradlaneDtype::named(dtype.name()), Ok(dtype));
            assert_eq!(GradlaneDtype::from_code(dtype as u32), Some(dtype));
        }
        for op in GradlaneOp::ALL {
            assert_eq!(GradlaneOp::named(op.name()), Ok(op));
            assert_eq!(GradlaneOp::from_code(op as u32), Some(op));
        }
        for access in GradlaneAccess::ALL {
            assert_eq!(GradlaneAccess::named(access.name()), Ok(access));
            assert_eq!(GradlaneAccess::from_code(access as u32), Some(access));
        }
        assert_eq!((GradlaneDtype::from_code(0), GradlaneOp::from_code(0)), (None, None), "0 stands for nothing");
        assert_eq!(GradlaneAccess::from_code(0), None, "0 stands for nothing");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_there_are() {
        let refused = |outcome: Option<Unknown>| outcome.expect("refused").to_string();
        assert_eq!(
            refused(GradlaneOp::named("product").err()),
            "op \"product\"; use one of sum, mean, min, max, weighted_mean, broadcast"
        );
        assert!(refused(GradlaneAccess::named("add").err()).contains("push_add"));
        assert!(refused(GradlaneDtype::named("complex64").err()).contains("float32, float64"));
        assert!(refused(GradlaneDtype::named("bool").err()).contains("uint8"));
    }
}
