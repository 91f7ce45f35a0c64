//! What a worker asks of a tensor: a round of its sum, or a use of a parameter.

use std::fmt;

use super::{Average, Mode, Op, RowAction, Rule, Staleness, TensorKind, TensorSpec};
use crate::error::{Error, Result};

/// What a worker asks of a tensor. Its kind must be able to do it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Demand {
    /// A round of a sum, in which all participants take part.
    Reduce {
        /// How the contributions become one.
        op: Op,
        /// This worker's weight in a weighted mean; 1 elsewhere.
        weight: f64,
    },
    /// A use of a parameter, for which nobody waits but this worker.
    Access {
        /// What it does.
        access: Access,
        /// Where the clock of the parameter's mode stands. In a mode with rounds: of a gradient, the round to which it belongs, otherwise the
        /// rounds that this worker has finished, whose changes a value must have. In other modes, the global step that this worker knows of.
        /// 0 without a clock.
        clock_at: u64,
    },
    /// A use of rows of a table, for which nobody waits but this worker.
    Rows {
        /// What it does.
        action: RowAction,
        /// The steps of the training before it, as this worker counts them. Rules whose numbers follow the steps take the most that any worker
        /// has said.
        step: u64,
    },
}

/// A use of a parameter. Each part of it is used at once and whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Gives it its first value, unless it has one.
    Init,
    /// Changes it.
    Push(Update),
    /// Reads it.
    Pull,
    /// Changes it and reads it, with nothing in between.
    PushPull(Update),
    /// Reads an average of its values, which its rule keeps.
    PullAverage(Average),
}

/// How a push changes a parameter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Update {
    /// Adds to it, element by element.
    Add,
    /// Takes its place.
    Assign,
    /// Is a gradient, by which the rule of the parameter changes it.
    Step,
}

impl Access {
    /// Whether a server may leave it to the handle of its user, if the parameter is a key of a `KVWorker`: what `KVWorker` does.
    pub const fn is_handled(self) -> bool {
        match self {
            Self::Push(Update::Add) | Self::PushPull(Update::Add) | Self::Pull => true,
            Self::Init
            | Self::Push(Update::Assign | Update::Step)
            | Self::PushPull(Update::Assign | Update::Step)
            | Self::PullAverage(_) => false,
        }
    }
}

impl Demand {
    /// Refuses what has no meaning for `tensor`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the reduction has no meaning for its elements or its participants, or if a tensor of its kind cannot do
    /// this at all.
    pub fn check(self, tensor: &TensorSpec) -> Result<()> {
        match (self, tensor.kind) {
            (Self::Reduce { op, .. }, TensorKind::Sum { .. }) => {
                op.check(tensor.dtype)?;
                tensor.participants.check_op(&tensor.name, op)
            }
            (Self::Access { access, clock_at }, TensorKind::Parameter { rule, mode }) => {
                check_use(tensor, access, rule, mode)?;
                check_clock(tensor, access, mode, clock_at)
            }
            (Self::Rows { .. }, TensorKind::Table { .. }) => Ok(()),
            (Self::Reduce { .. }, TensorKind::Parameter { .. }) => Err(Error::InvalidArgument {
                what: format!("tensor {}: it is a parameter, and parameters are not reduced in rounds", tensor.name),
                hint: "push to it and pull it, or reduce a tensor of another name".to_owned(),
            }),
            (Self::Access { access, .. }, TensorKind::Sum { .. }) => Err(Error::InvalidArgument {
                what: format!("tensor {}: {access} of a sum", tensor.name),
                hint: "use the name of a parameter, or reduce the tensor".to_owned(),
            }),
            (Self::Rows { .. }, kind) | (_, kind @ TensorKind::Table { .. }) => Err(Error::InvalidArgument {
                what: format!("tensor {}: {self} of a {kind}", tensor.name),
                hint: "pull and push rows of tables alone, and nothing else of them".to_owned(),
            }),
        }
    }

    /// Whether both are the same, to the bit.
    pub fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Reduce { op, weight }, Self::Reduce { op: other, weight: of_other }) => {
                op == other && weight.to_bits() == of_other.to_bits()
            }
            (Self::Access { access, clock_at }, Self::Access { access: other, clock_at: of_other }) => {
                access == other && clock_at == of_other
            }
            (Self::Rows { action, step }, Self::Rows { action: other, step: of_other }) => {
                action == other && step == of_other
            }
            (Self::Reduce { .. } | Self::Access { .. } | Self::Rows { .. }, _) => false,
        }
    }

    /// The reduction; `None` of a use of a parameter or a table.
    pub const fn op(self) -> Option<Op> {
        match self {
            Self::Reduce { op, .. } => Some(op),
            Self::Access { .. } | Self::Rows { .. } => None,
        }
    }

    /// Whether the worker sends a tensor for it.
    pub const fn sends(self) -> bool {
        match self {
            Self::Reduce { .. } => true,
            Self::Access { access, .. } => access.sends(),
            Self::Rows { action, .. } => action.sends(),
        }
    }

    /// Whether it reads the value of a parameter, from which changes are computed then.
    pub const fn reads_value(self) -> bool {
        matches!(self, Self::Access { access: Access::Pull | Access::PushPull(_), .. })
    }

    /// Whether it gives a parameter its first value.
    pub const fn is_init(self) -> bool {
        matches!(self, Self::Access { access: Access::Init, .. })
    }

    /// Whether the worker gets a tensor for it, if it is one of those that get the sums.
    pub const fn receives(self) -> bool {
        match self {
            Self::Reduce { .. } => true,
            Self::Access { access, .. } => access.receives(),
            Self::Rows { action, .. } => action.receives(),
        }
    }
}

/// Refuses uses that a parameter of this rule and mode has not.
fn check_use(tensor: &TensorSpec, access: Access, rule: Option<Rule>, mode: Mode) -> Result<()> {
    let refuse = |what: String, hint: &str| {
        Err(Error::InvalidArgument { what: format!("tensor {}: {what}", tensor.name), hint: hint.to_owned() })
    };
    mode.check()?;
    match rule {
        None if access.steps() => refuse(
            format!("{access} of a parameter that has no rule"),
            "declare it with a rule, on all workers, such as sgd:lr=0.1",
        ),
        Some(rule) if !rule.changes(tensor.dtype) => refuse(
            format!("rule {rule} of a parameter of {}", tensor.dtype),
            "an optimizer changes floats; add to integers, or assign them",
        ),
        Some(rule) if !rule.suits(&tensor.shape) => refuse(
            format!("rule {rule} of a parameter of shape {shape:?}", shape = tensor.shape),
            "it changes matrices, up to 2048 x 2048 or 1024 x 8192; give other parameters another rule",
        ),
        Some(rule) if rule.needs_rounds().is_some() && mode.rounds().is_none() => refuse(
            format!("rule {rule} in mode {mode}, which has no rounds: {}", rule.needs_rounds().unwrap_or_default()),
            "give the parameter a mode with rounds, sync or k_of_n, and a clock",
        ),
        _ if matches!(mode.staleness, Staleness::Scale { .. }) && !tensor.dtype.is_float() => refuse(
            format!("mode {mode} of a parameter of {}", tensor.dtype),
            "only floats are scaled; discard stale changes, or take them all",
        ),
        _ if !access.has_average(rule) => refuse(
            format!("{access} of a parameter whose rule keeps no such average"),
            "declare it with a rule that does, on all workers, such as sgd:lr=0.1,ema=0.999,window=0.2",
        ),
        None | Some(_) => Ok(()),
    }
}

/// Refuses a place of the clock that has no meaning.
fn check_clock(tensor: &TensorSpec, access: Access, mode: Mode, clock_at: u64) -> Result<()> {
    let refuse = |what: &str, hint: &str| {
        Err(Error::InvalidArgument { what: format!("tensor {}: {what}", tensor.name), hint: hint.to_owned() })
    };
    match (mode.clock, mode.rounds()) {
        (None, _) if clock_at != 0 => refuse("the round of a clock", "declare it with a mode and a clock"),
        (_, Some(_)) if access.steps() && access.receives() => refuse(
            "a push_pull of a gradient in a mode with rounds",
            "push the gradient, tick the clock, and pull the parameter then",
        ),
        (_, Some(_)) if access.steps() && clock_at == 0 => {
            refuse("a gradient without the round of its clock", "rounds count from 1; use a clock's own push")
        }
        (None | Some(_), _) => Ok(()),
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reduce { op, weight } => write!(f, "{op} with weight {weight}"),
            Self::Access { access, .. } => write!(f, "{access}"),
            Self::Rows { action, .. } => write!(f, "{action}"),
        }
    }
}

impl Access {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::Init,
        Self::Push(Update::Add),
        Self::Push(Update::Assign),
        Self::Pull,
        Self::PushPull(Update::Add),
        Self::PushPull(Update::Assign),
        Self::Push(Update::Step),
        Self::PushPull(Update::Step),
        Self::PullAverage(Average::Ema),
        Self::PullAverage(Average::Window),
    ];

    /// Whether it applies the rule of the parameter.
    pub const fn steps(self) -> bool {
        matches!(self, Self::Push(Update::Step) | Self::PushPull(Update::Step))
    }

    /// The average that it reads.
    pub const fn average(self) -> Option<Average> {
        match self {
            Self::PullAverage(average) => Some(average),
            Self::Init | Self::Push(_) | Self::Pull | Self::PushPull(_) => None,
        }
    }

    /// Whether a parameter with this rule has the average that it reads, or it reads none.
    pub fn has_average(self, rule: Option<Rule>) -> bool {
        self.average().is_none_or(|average| rule.is_some_and(|rule| rule.keeps(average)))
    }

    /// Whether a value or a change goes to the server.
    pub const fn sends(self) -> bool {
        match self {
            Self::Init | Self::Push(_) | Self::PushPull(_) => true,
            Self::Pull | Self::PullAverage(_) => false,
        }
    }

    /// Whether it changes a value that is there.
    pub const fn changes(self) -> bool {
        matches!(self, Self::Push(_) | Self::PushPull(_))
    }

    /// Whether the value comes back.
    pub const fn receives(self) -> bool {
        match self {
            Self::Pull | Self::PushPull(_) | Self::PullAverage(_) => true,
            Self::Init | Self::Push(_) => false,
        }
    }

    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::Init => 1,
            Self::Push(Update::Add) => 2,
            Self::Push(Update::Assign) => 3,
            Self::Pull => 4,
            Self::PushPull(Update::Add) => 5,
            Self::PushPull(Update::Assign) => 6,
            Self::Push(Update::Step) => 7,
            Self::PushPull(Update::Step) => 8,
            Self::PullAverage(Average::Ema) => 9,
            Self::PullAverage(Average::Window) => 10,
        }
    }

    /// The use with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.code() == code)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "init",
            Self::Push(Update::Add) => "push (add)",
            Self::Push(Update::Assign) => "push (assign)",
            Self::Pull => "pull",
            Self::PushPull(Update::Add) => "push_pull (add)",
            Self::PushPull(Update::Assign) => "push_pull (assign)",
            Self::Push(Update::Step) => "push (step)",
            Self::PushPull(Update::Step) => "push_pull (step)",
            Self::PullAverage(Average::Ema) => "pull (ema)",
            Self::PullAverage(Average::Window) => "pull (window)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ClockKey, DType, Optimizer};

    #[test]
    fn every_use_has_its_code() {
        for access in Access::ALL {
            assert_eq!(Access::from_code(access.code()), Some(access));
        }
        assert_eq!((Access::from_code(0), Access::from_code(11)), (None, None));
    }

    #[test]
    fn a_kind_does_what_it_can() {
        let sum = TensorSpec::new("w", DType::F32, vec![2]);
        let parameter = TensorSpec { kind: TensorKind::PLAIN_PARAMETER, ..sum.clone() };
        let (reduce, pull) = (Demand::Reduce { op: Op::Sum, weight: 1.0 }, using(Access::Pull));
        assert_eq!((reduce.check(&sum), pull.check(&parameter)), (Ok(()), Ok(())));
        let step = using(Access::Push(Update::Step));
        assert_eq!(step.check(&parameter.clone().with_rule(Rule::of(Optimizer::Sgd))), Ok(()));
        let averaged = parameter.clone().with_rule("sgd:ema=0.9".parse().unwrap());
        let [ema, window] = [Average::Ema, Average::Window].map(|average| using(Access::PullAverage(average)));
        assert_eq!(ema.check(&averaged), Ok(()));
        let of_integers = TensorSpec { dtype: DType::I32, ..parameter.clone().with_rule(Rule::of(Optimizer::Sgd)) };
        for (refused, why) in [
            (reduce.check(&parameter), "not reduced in rounds"),
            (pull.check(&sum), "pull of a sum"),
            (step.check(&parameter), "has no rule"),
            (ema.check(&parameter), "pull (ema) of a parameter whose rule keeps no such average"),
            (window.check(&averaged), "pull (window) of a parameter whose rule keeps no such average"),
            (pull.check(&of_integers), "rule sgd of a parameter of int32"),
            (
                pull.check(&parameter.clone().with_rule(Rule::of(Optimizer::Muon))),
                "rule muon of a parameter of shape [2]",
            ),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("tensor w") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_mode_has_the_uses_that_it_can_have() {
        let parameter = TensorSpec::parameter("w", DType::F32, vec![2]).with_rule(Rule::of(Optimizer::Sgd));
        let of = |mode: &str| parameter.clone().with_mode(mode.parse::<Mode>().unwrap().with_clock(ClockKey(7)));
        let clipped = |mode| of(mode).with_rule("sgd:clip_norm=1".parse().unwrap());
        let sampled = |mode| of(mode).with_rule("sgd:warm_up=9,by=samples".parse().unwrap());
        for rounds in [clipped("k_of_n:k=1"), sampled("sync")] {
            assert_eq!(using(Access::Pull).check(&rounds), Ok(()));
        }
        let step = Access::Push(Update::Step);
        let first = Demand::Access { access: step, clock_at: 1 };
        assert_eq!([of("ssp:bound=1"), of("sync")].map(|tensor| first.check(&tensor)), [Ok(()), Ok(())]);
        assert_eq!(using(Access::Pull).check(&of("sync")), Ok(()));
        let scaled = TensorSpec { dtype: DType::I32, ..TensorSpec::parameter("w", DType::I32, vec![2]) };
        let scaled = scaled.with_mode("async:max_staleness=1,beyond=scale".parse().unwrap());
        for (refused, why) in [
            (first.check(&parameter), "the round of a clock"),
            (using(step).check(&of("sync")), "without the round"),
            (using(Access::PushPull(Update::Step)).check(&of("k_of_n:k=1")), "push_pull of a gradient"),
            (using(step).check(&parameter.clone().with_mode("sync".parse().unwrap())), "without a clock"),
            (using(Access::Push(Update::Add)).check(&scaled), "of a parameter of int32"),
            (using(Access::Pull).check(&clipped("ssp:bound=1")), "in mode ssp:bound=1, which has no rounds: clip_norm"),
            (using(Access::Pull).check(&sampled("async")), "in mode async, which has no rounds: by=samples"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    fn using(access: Access) -> Demand {
        Demand::Access { access, clock_at: 0 }
    }
}
