//! What a server does with a tensor, and how two declarations of a tensor are compared.

use std::fmt;

use super::{CodecSpec, DType, Mode, Op, Participants, Rule, TableSpec, WorkerId};
use crate::error::{Claim, Error, Tensors};

/// What a server does with the parts of a tensor. It is a part of the tensor's declaration and of its layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TensorKind {
    /// It adds what the workers contribute, round by round, and gives them the sum.
    Sum {
        /// How contributions and sums travel.
        codec: CodecSpec,
    },
    /// It keeps the tensor. Each worker changes it and reads it by itself, at any time.
    Parameter {
        /// How a gradient changes it; `None` if gradients do not.
        rule: Option<Rule>,
        /// When changes are done.
        mode: Mode,
    },
    /// It keeps rows by id. The shape of such a tensor is the number of its [shards](TableSpec::SHARDS), and the elements of a row.
    Table {
        /// What it does with rows.
        spec: TableSpec,
    },
}

impl TensorKind {
    /// A sum of elements that travel unchanged.
    pub const PLAIN_SUM: Self = Self::Sum { codec: CodecSpec::PLAIN };
    /// A parameter that no gradient changes.
    pub const PLAIN_PARAMETER: Self = Self::Parameter { rule: None, mode: Mode::ASYNC };

    /// How the parts of such a tensor travel.
    pub const fn codec(self) -> CodecSpec {
        match self {
            Self::Sum { codec } => codec,
            Self::Parameter { .. } | Self::Table { .. } => CodecSpec::PLAIN,
        }
    }

    /// The rule by which gradients change such a tensor as a whole.
    pub const fn rule(self) -> Option<Rule> {
        match self {
            Self::Sum { .. } | Self::Table { .. } => None,
            Self::Parameter { rule, .. } => rule,
        }
    }

    /// When changes of such a tensor are done.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Sum { .. } | Self::Table { .. } => Mode::ASYNC,
            Self::Parameter { mode, .. } => mode,
        }
    }

    /// Whether a tensor of this kind can be cut into parts.
    pub fn is_cut(self) -> bool {
        self.rule().is_none_or(|rule| !rule.optimizer().is_of_matrices())
    }

    /// Whether servers keep it, as parameters and tables.
    pub const fn is_kept(self) -> bool {
        matches!(self, Self::Parameter { .. } | Self::Table { .. })
    }

    /// What servers do with its rows, if it is a table.
    pub const fn table(self) -> Option<TableSpec> {
        match self {
            Self::Table { spec } => Some(spec),
            Self::Sum { .. } | Self::Parameter { .. } => None,
        }
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { codec } if codec.is_plain() => f.write_str("sum"),
            Self::Sum { codec } => write!(f, "sum as {codec}"),
            Self::Parameter { rule: None, .. } => f.write_str("parameter"),
            Self::Parameter { rule: Some(rule), .. } => write!(f, "parameter by {rule}"),
            Self::Table { spec } => write!(f, "table by {spec}"),
        }
    }
}

/// What one worker says of a tensor, or of a part of it. All workers must say the same.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// The tensor's name, where it is said. Two names may have the same key.
    pub name: Option<&'a str>,
    /// Its element type.
    pub dtype: DType,
    /// How many elements it has.
    pub extent: Extent<'a>,
    /// What a server does with it.
    pub kind: TensorKind,
    /// How this round reduces it. A declaration does not say it.
    pub op: Option<Op>,
    /// Who contributes, and who gets the sums.
    pub participants: &'a Participants,
}

/// How large a tensor or a part is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent<'a> {
    /// The dimensions of a tensor, in elements.
    Shape(&'a [u64]),
    /// The length of a part, in bytes of its element type.
    Bytes(u64),
}

/// A field in which two workers differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Its name.
    pub field: &'static str,
    /// What the first one says.
    pub first: String,
    /// What the second one says.
    pub second: String,
}

impl Declared<'_> {
    /// The first field in which `second` says otherwise. `None` if both say the same.
    pub fn difference(&self, second: &Self) -> Option<Difference> {
        let differs = |field, first: &dyn fmt::Display, second: &dyn fmt::Display| {
            Some(Difference { field, first: first.to_string(), second: second.to_string() })
        };
        if let (Some(one), Some(other)) = (self.name, second.name)
            && one != other
        {
            return differs("name", &one, &other);
        }
        if self.dtype != second.dtype {
            return differs("dtype", &self.dtype, &second.dtype);
        }
        if self.extent != second.extent {
            return differs(self.extent.field(), &self.extent, &second.extent);
        }
        if self.op != second.op
            && let (Some(one), Some(other)) = (self.op, second.op)
        {
            return differs("op", &one, &other);
        }
        match (self.kind, second.kind) {
            (TensorKind::Sum { codec: one }, TensorKind::Sum { codec: other }) if one != other => {
                return differs("codec", &one, &other);
            }
            (TensorKind::Parameter { rule: one, .. }, TensorKind::Parameter { rule: other, .. }) if one != other => {
                let [one, other] = [one, other].map(|rule| rule.map_or("none".to_owned(), |rule| rule.to_string()));
                return differs("rule", &one, &other);
            }
            (TensorKind::Parameter { mode: one, .. }, TensorKind::Parameter { mode: other, .. }) if one != other => {
                match one.to_string() == other.to_string() {
                    true => return differs("clock", &clock(one), &clock(other)),
                    false => return differs("mode", &one, &other),
                }
            }
            (TensorKind::Table { spec: one }, TensorKind::Table { spec: other }) if one != other => {
                return differs("table", &one, &other);
            }
            (TensorKind::Sum { .. }, TensorKind::Sum { .. })
            | (TensorKind::Parameter { .. }, TensorKind::Parameter { .. })
            | (TensorKind::Table { .. }, TensorKind::Table { .. }) => {}
            (TensorKind::Sum { .. } | TensorKind::Parameter { .. } | TensorKind::Table { .. }, _) => {
                return differs("kind", &self.kind, &second.kind);
            }
        }
        if self.participants != second.participants {
            return differs("participants", self.participants, second.participants);
        }
        None
    }
}

fn clock(mode: Mode) -> String {
    mode.clock.map_or("none".to_owned(), |clock| clock.to_string())
}

impl Extent<'_> {
    const fn field(self) -> &'static str {
        match self {
            Self::Shape(_) => "shape",
            Self::Bytes(_) => "length",
        }
    }
}

impl fmt::Display for Extent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => write!(f, "{shape:?}"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

impl Difference {
    /// The error for all who wait for `tensor`.
    pub fn into_error(self, tensor: impl Into<Tensors>, first: WorkerId, second: WorkerId) -> Error {
        Error::Mismatch {
            tensor: tensor.into(),
            field: self.field.to_owned(),
            first: Claim { worker: first, value: self.first },
            second: Claim { worker: second, value: self.second },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ClockKey, TensorSpec};

    #[test]
    fn the_first_field_that_differs_is_named_with_both_sides() {
        let spec = TensorSpec::new("w", DType::F32, vec![2, 3]);
        let only = |worker| Participants::of([WorkerId(worker)].into_iter().collect());
        let others = [
            ("name", "w", "v", TensorSpec { name: "v".to_owned(), ..spec.clone() }),
            ("dtype", "float32", "float16", TensorSpec { dtype: DType::F16, ..spec.clone() }),
            ("shape", "[2, 3]", "[3, 2]", TensorSpec { shape: vec![3, 2], ..spec.clone() }),
            ("kind", "sum", "parameter", TensorSpec { kind: TensorKind::PLAIN_PARAMETER, ..spec.clone() }),
            ("codec", "none", "bf16", spec.clone().with_codec(CodecSpec::BF16)),
            ("participants", "all workers", "workers {1}", spec.clone().with_participants(only(1))),
        ];
        assert_eq!(spec.declared().difference(&spec.declared()), None);
        for (field, first, second, other) in others {
            let found = spec.declared().difference(&other.declared()).unwrap();
            assert_eq!(found.field, field);
            assert!(found.first.contains(first) && found.second.contains(second), "{found:?}");
            let back = other.declared().difference(&spec.declared()).unwrap();
            assert_eq!((back.first, back.second), (found.second, found.first));
        }
        let by = |rule: &str| TensorSpec::parameter("w", DType::F32, vec![2]).with_rule(rule.parse().unwrap());
        let (plain, slow, fast) = (TensorSpec::parameter("w", DType::F32, vec![2]), by("sgd"), by("sgd:lr=0.1"));
        for (one, other, said) in [(&slow, &fast, ["sgd", "sgd:lr=0.1"]), (&plain, &slow, ["none", "sgd"])] {
            let found = one.declared().difference(&other.declared()).unwrap();
            assert_eq!((found.field, [&*found.first, &*found.second]), ("rule", said));
        }
        assert_eq!(fast.declared().difference(&by("sgd:lr=0.1").declared()), None);
        let table = |spec: &str| TensorSpec::table("w", spec.parse().unwrap());
        let found = table("sgd;dim=2").declared().difference(&table("sgd;dim=2,seed=1").declared()).unwrap();
        assert_eq!((found.field, &*found.first, &*found.second), ("table", "sgd;dim=2", "sgd;dim=2,seed=1"));
        let found = table("sgd;dim=2").declared().difference(&table("sgd;dim=2,dtype=bf16").declared()).unwrap();
        assert_eq!((found.field, &*found.first, &*found.second), ("table", "sgd;dim=2", "sgd;dim=2,dtype=bf16"));
        let [one, other] = ["sync", "k_of_n:k=2"].map(|mode| mode.parse::<Mode>().unwrap().with_clock(ClockKey(1)));
        let in_mode = |mode: Mode| by("sgd").with_mode(mode);
        let told = |one: Mode, other: Mode| {
            let found = in_mode(one).declared().difference(&in_mode(other).declared()).unwrap();
            (found.field, found.first, found.second)
        };
        assert_eq!(told(one, other), ("mode", "sync".to_owned(), "k_of_n:k=2".to_owned()));
        let (first, second) = ("0000000000000001".to_owned(), "0000000000000002".to_owned());
        assert_eq!(told(one, one.with_clock(ClockKey(2))), ("clock", first, second));
    }

    #[test]
    fn parts_are_compared_by_their_bytes_and_the_op_of_the_round() {
        let everybody = Participants::ALL;
        let part = Declared {
            name: None,
            dtype: DType::F32,
            extent: Extent::Bytes(8),
            kind: TensorKind::PLAIN_SUM,
            op: Some(Op::Sum),
            participants: &everybody,
        };
        let longer = Declared { extent: Extent::Bytes(12), ..part };
        let mean = Declared { op: Some(Op::Mean), ..part };
        let told = |other: &Declared<'_>| part.difference(other).map(|found| (found.field, found.first, found.second));
        assert_eq!(told(&longer), Some(("length", "8 bytes".to_owned(), "12 bytes".to_owned())));
        assert_eq!(told(&mean), Some(("op", "sum".to_owned(), "mean".to_owned())));
    }
}
