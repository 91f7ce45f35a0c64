//! The optimizers and the settings of their rules.

/// The optimizers. The discriminants are wire codes and never change; 0 is not a code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Optimizer {
    /// Gradient descent, with momentum (Polyak's or Nesterov's) if it is asked for.
    Sgd = 1,
    /// Adam, with the weight decay as a part of the gradient.
    Adam = 2,
    /// Adam, with the weight decay apart from the gradient.
    AdamW = 3,
    /// Adagrad.
    Adagrad = 4,
    /// RMSprop, centered and with momentum if it is asked for.
    RmsProp = 5,
    /// Adamax: Adam by the infinity norm.
    Adamax = 6,
    /// Lion: the sign of a momentum, with the weight decay apart from the gradient.
    Lion = 7,
    /// Muon: a momentum of a matrix, made orthogonal, with the weight decay apart from the gradient.
    Muon = 8,
    /// Adam as PyTorch's `SparseAdam` has it: `eps` is added to the root before it is corrected.
    SparseAdam = 9,
    /// Adagrad with one sum for a row of a table: the mean of the squares of its elements.
    RowwiseAdagrad = 10,
    /// Adagrad of a row as Paddle's sparse tables have it: `sparse_adagrad`.
    PaddleAdagrad = 11,
    /// The same with a sum for each element: `std_adagrad`.
    PaddleStdAdagrad = 12,
    /// Adam of a row with its own number of steps, as Paddle's sparse tables have it: `sparse_adam`.
    PaddleAdam = 13,
    /// The same with two moments for the whole row: `sparse_shared_adam`.
    PaddleSharedAdam = 14,
}

/// How the learning rate follows the number of steps before. The discriminants are wire codes and never change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Schedule {
    /// It stays.
    Const = 0,
    /// It is multiplied by `gamma` after every `every` steps.
    Step = 1,
    /// It falls to `minimum` within `steps` steps, as the cosine from 0 to pi.
    Cosine = 2,
    /// It falls to 0 within `steps` steps, as the share of them that is left, to the power of `power`.
    Poly = 3,
}

/// An average of the values that a rule makes, step by step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Average {
    /// An exponential one: the setting `ema`.
    Ema,
    /// The mean of the last steps: the setting `window`.
    Window,
}

/// What is known of an optimizer without running it.
pub(super) struct Row {
    pub(super) optimizer: Optimizer,
    /// The name that users write.
    pub(super) name: &'static str,
    /// The settings of its own, in the order in which they travel.
    pub(super) settings: &'static [Setting],
}

/// A number of a rule.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// The name that users write.
    pub(super) name: &'static str,
    /// The value where nobody names one.
    pub(super) default: f64,
    pub(super) range: Range,
}

/// The numbers that a setting may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// Above 0.
    Positive,
    /// 0 or above.
    NotNegative,
    /// From 0 to below 1.
    Share,
    /// Above 0, and at most 1.
    Factor,
    /// From 0 to 1.
    Portion,
    /// 0 for no, 1 for yes.
    Switch,
    /// A number of steps.
    Steps,
    /// A number of steps, of 1 or more.
    SomeSteps,
    /// The position of one of these words. Users write the word.
    Word(&'static [&'static str]),
    /// The rows of the parameter. Users do not write it.
    Rows,
}

const fn positive(name: &'static str, default: f64) -> Setting {
    Setting { name, default, range: Range::Positive }
}

const fn not_negative(name: &'static str, default: f64) -> Setting {
    Setting { name, default, range: Range::NotNegative }
}

const fn share(name: &'static str, default: f64) -> Setting {
    Setting { name, default, range: Range::Share }
}

const fn switch(name: &'static str) -> Setting {
    Setting { name, default: 0.0, range: Range::Switch }
}

const fn steps(name: &'static str) -> Setting {
    Setting { name, default: 0.0, range: Range::Steps }
}

/// Each element of a gradient is clamped to plus or minus this first; 0 for no bound.
const CLIP_VALUE: Setting = not_negative("clip_value", 0.0);
const WEIGHT_DECAY: Setting = not_negative("weight_decay", 0.0);

/// The settings of Adam as tables have it: PyTorch's for sparse gradients, and Paddle's.
const OF_SPARSE_ADAM: [Setting; 5] =
    [not_negative("lr", 1e-3), share("beta1", 0.9), share("beta2", 0.999), positive("eps", 1e-8), CLIP_VALUE];

/// The settings of Adagrad as Paddle's sparse tables have it.
const OF_PADDLE_ADAGRAD: [Setting; 3] = [not_negative("lr", 0.05), positive("initial_g2sum", 3.0), CLIP_VALUE];

/// To add an optimizer, add a variant above, a row here, and its arithmetic to [`reduce::optimizer`](crate::reduce::optimizer). Defaults are
/// those of PyTorch, and of Paddle for its own.
pub(super) const TABLE: [Row; 14] = [
    Row {
        optimizer: Optimizer::Sgd,
        name: "sgd",
        settings: &[
            not_negative("lr", 1e-3),
            share("momentum", 0.0),
            share("dampening", 0.0),
            switch("nesterov"),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::Adam,
        name: "adam",
        settings: &[
            not_negative("lr", 1e-3),
            share("beta1", 0.9),
            share("beta2", 0.999),
            positive("eps", 1e-8),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::AdamW,
        name: "adamw",
        settings: &[
            not_negative("lr", 1e-3),
            share("beta1", 0.9),
            share("beta2", 0.999),
            positive("eps", 1e-8),
            not_negative("weight_decay", 1e-2),
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::Adagrad,
        name: "adagrad",
        settings: &[
            not_negative("lr", 1e-2),
            not_negative("lr_decay", 0.0),
            not_negative("initial_accumulator_value", 0.0),
            positive("eps", 1e-10),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::RmsProp,
        name: "rmsprop",
        settings: &[
            not_negative("lr", 1e-2),
            share("alpha", 0.99),
            positive("eps", 1e-8),
            share("momentum", 0.0),
            switch("centered"),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::Adamax,
        name: "adamax",
        settings: &[
            not_negative("lr", 2e-3),
            share("beta1", 0.9),
            share("beta2", 0.999),
            positive("eps", 1e-8),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row {
        optimizer: Optimizer::Lion,
        name: "lion",
        settings: &[not_negative("lr", 1e-4), share("beta1", 0.9), share("beta2", 0.99), WEIGHT_DECAY, CLIP_VALUE],
    },
    Row {
        optimizer: Optimizer::Muon,
        name: "muon",
        settings: &[
            not_negative("lr", 1e-3),
            share("momentum", 0.95),
            Setting { name: "nesterov", default: 1.0, range: Range::Switch },
            not_negative("weight_decay", 0.1),
            positive("eps", 1e-7),
            Setting { name: "adjust", default: 0.0, range: Range::Word(&ADJUSTMENTS) },
            CLIP_VALUE,
            Setting { name: "rows", default: 0.0, range: Range::Rows },
        ],
    },
    Row { optimizer: Optimizer::SparseAdam, name: "sparseadam", settings: &OF_SPARSE_ADAM },
    Row {
        optimizer: Optimizer::RowwiseAdagrad,
        name: "rowwiseadagrad",
        settings: &[
            not_negative("lr", 1e-2),
            not_negative("initial_accumulator_value", 0.0),
            positive("eps", 1e-10),
            WEIGHT_DECAY,
            CLIP_VALUE,
        ],
    },
    Row { optimizer: Optimizer::PaddleAdagrad, name: "paddleadagrad", settings: &OF_PADDLE_ADAGRAD },
    Row { optimizer: Optimizer::PaddleStdAdagrad, name: "paddlestdadagrad", settings: &OF_PADDLE_ADAGRAD },
    Row { optimizer: Optimizer::PaddleAdam, name: "paddleadam", settings: &OF_SPARSE_ADAM },
    Row { optimizer: Optimizer::PaddleSharedAdam, name: "paddlesharedadam", settings: &OF_SPARSE_ADAM },
];

/// How Muon's learning rate follows the shape: the names of PyTorch, in the order in which they travel.
pub(super) const ADJUSTMENTS: [&str; 3] = ["original", "match_rms_adamw", "spectral_unclamped"];

/// The settings that every rule has, behind those of its optimizer, in the order in which they travel.
pub(super) const COMMON: [Setting; 14] = [
    Setting { name: "schedule", default: 0.0, range: Range::Word(&Schedule::NAMES) },
    // The rate rises from 0 in so many steps first. The schedule begins behind them.
    steps("warm_up"),
    steps("every"),
    Setting { name: "gamma", default: 0.1, range: Range::Factor },
    steps("steps"),
    not_negative("minimum", 0.0),
    positive("power", 1.0),
    // What is kept of an exponential average at each step; 0 for no such average.
    share("ema", 0.0),
    switch("ema_ramp"),
    // How long the window is, as a share of all steps; 0 for no window.
    Setting { name: "window", default: 0.0, range: Range::Portion },
    Setting { name: "window_min", default: 10_000.0, range: Range::SomeSteps },
    Setting { name: "window_max", default: 10_000.0, range: Range::SomeSteps },
    // The norm that the gradients of a round have at most, over all parameters of a clock whose rules set it; 0 for no bound.
    not_negative("clip_norm", 0.0),
    // What the steps of the schedule are.
    Setting { name: "by", default: 0.0, range: Range::Word(&["steps", "samples"]) },
];

/// The settings of schedules: which ones each is for, and whether they need it.
pub(super) const OF_SCHEDULES: [(&str, &[Schedule], bool); 5] = [
    ("every", &[Schedule::Step], true),
    ("gamma", &[Schedule::Step], false),
    ("steps", &[Schedule::Cosine, Schedule::Poly], true),
    ("minimum", &[Schedule::Cosine], false),
    ("power", &[Schedule::Poly], false),
];

/// The settings of averages, and the one without which they say nothing.
pub(super) const OF_AVERAGES: [(&str, &str); 3] =
    [("ema_ramp", "ema"), ("window_min", "window"), ("window_max", "window")];

impl Optimizer {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 14] = [
        Self::Sgd,
        Self::Adam,
        Self::AdamW,
        Self::Adagrad,
        Self::RmsProp,
        Self::Adamax,
        Self::Lion,
        Self::Muon,
        Self::SparseAdam,
        Self::RowwiseAdagrad,
        Self::PaddleAdagrad,
        Self::PaddleStdAdagrad,
        Self::PaddleAdam,
        Self::PaddleSharedAdam,
    ];

    pub(super) fn row(self) -> &'static Row {
        &TABLE[self as usize - 1]
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The setting of a rule at this position among those that travel: its own ones come first.
    pub(super) fn setting(self, index: usize) -> &'static Setting {
        let own = self.row().settings;
        own.get(index).unwrap_or_else(|| &COMMON[index - own.len()])
    }

    /// Whether it changes a matrix as a whole, and not each element by itself.
    pub const fn is_of_matrices(self) -> bool {
        matches!(self, Self::Muon)
    }

    /// Whether it changes rows of tables alone: of each it keeps numbers that parameters do not have.
    pub const fn is_of_rows(self) -> bool {
        match self {
            Self::RowwiseAdagrad
            | Self::PaddleAdagrad
            | Self::PaddleStdAdagrad
            | Self::PaddleAdam
            | Self::PaddleSharedAdam => true,
            Self::Sgd
            | Self::Adam
            | Self::AdamW
            | Self::Adagrad
            | Self::RmsProp
            | Self::Adamax
            | Self::Lion
            | Self::Muon
            | Self::SparseAdam => false,
        }
    }

    /// The names of its settings, the common ones behind its own.
    pub(super) fn setting_names(self) -> impl Iterator<Item = &'static str> {
        self.row().settings.iter().chain(&COMMON).map(|setting| setting.name)
    }
}

impl Schedule {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Const, Self::Step, Self::Cosine, Self::Poly];

    const NAMES: [&str; 4] = ["const", "step", "cosine", "poly"];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl Average {
    /// The name that users write, which is that of the setting by which a rule keeps it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ema => "ema",
            Self::Window => "window",
        }
    }
}
