//! A rule: how a server changes a parameter by a gradient that a worker pushes. [`reduce::optimizer`](crate::reduce::optimizer) carries it out.

use std::fmt;
use std::str::FromStr;

use super::DType;
use crate::error::{Error, Result};

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
}

/// What is known of an optimizer without running it.
struct Row {
    optimizer: Optimizer,
    /// The name that users write.
    name: &'static str,
    /// Its settings, in the order in which they travel.
    settings: &'static [Setting],
}

/// A number of a rule.
#[derive(Clone, Copy)]
struct Setting {
    /// The name that users write.
    name: &'static str,
    /// The value where nobody names one.
    default: f64,
    range: Range,
}

/// The numbers that a setting may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    /// Above 0.
    Positive,
    /// 0 or above.
    NotNegative,
    /// From 0 to below 1.
    Share,
    /// 0 for no, 1 for yes.
    Switch,
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

/// Each element of a gradient is clamped to plus or minus this first; 0 for no bound.
const CLIP_VALUE: Setting = not_negative("clip_value", 0.0);
const WEIGHT_DECAY: Setting = not_negative("weight_decay", 0.0);

/// To add an optimizer, add a variant above, a row here, and its arithmetic to [`reduce::optimizer`](crate::reduce::optimizer). Defaults are
/// those of PyTorch.
const TABLE: [Row; 7] = [
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
];

/// An optimizer with its settings.
///
/// A declaration names the rule of a parameter, and all workers declare the same one, to the bit. Users write it as `adamw`, or with settings
/// as `sgd:lr=0.1,momentum=0.9`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule {
    optimizer: Optimizer,
    /// The bits of the numbers, in the order of the optimizer's row; those that it does not have are 0.
    settings: [u64; Self::SETTINGS_MAX],
}

impl Rule {
    /// The most settings of an optimizer.
    pub const SETTINGS_MAX: usize = 8;

    /// The optimizer where nobody names its settings.
    pub fn of(optimizer: Optimizer) -> Self {
        let mut rule = Self { optimizer, settings: [0; Self::SETTINGS_MAX] };
        for (bits, setting) in rule.settings.iter_mut().zip(optimizer.row().settings) {
            *bits = setting.default.to_bits();
        }
        rule
    }

    /// The rule with this [wire code](Self::code) and all of its settings, as they travel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such code, for another number of settings, or one out of its range.
    pub fn from_wire(code: u8, settings: &[f64]) -> Result<Self> {
        let row = TABLE.iter().find(|row| row.optimizer as u8 == code).ok_or_else(|| Error::InvalidArgument {
            what: format!("there is no optimizer with the code {code}"),
            hint: "use the same version everywhere".to_owned(),
        })?;
        if settings.len() != row.settings.len() {
            return Err(Error::InvalidArgument {
                what: format!("rule {} with {} settings instead of {}", row.name, settings.len(), row.settings.len()),
                hint: "use the same version everywhere".to_owned(),
            });
        }
        let mut rule = Self::of(row.optimizer);
        for (index, value) in settings.iter().enumerate() {
            rule.set(index, *value)?;
            if rule.settings[index] != value.to_bits() {
                return Err(Error::InvalidArgument {
                    what: format!("rule {}: {} is {value}", row.name, row.settings[index].name),
                    hint: "zero has no sign".to_owned(),
                });
            }
        }
        rule.check()
    }

    /// The byte that says on the wire which optimizer it is.
    pub const fn code(&self) -> u8 {
        self.optimizer as u8
    }

    /// Its optimizer.
    pub const fn optimizer(&self) -> Optimizer {
        self.optimizer
    }

    /// Its settings, in the order in which they travel.
    pub fn settings(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.settings[..self.optimizer.row().settings.len()].iter().map(|bits| f64::from_bits(*bits))
    }

    /// The setting of this name.
    ///
    /// # Panics
    /// If its optimizer has none.
    pub fn setting(&self, name: &str) -> f64 {
        let position = self.optimizer.row().settings.iter().position(|setting| setting.name == name);
        f64::from_bits(self.settings[position.expect("a setting of this optimizer")])
    }

    /// Whether it can change elements of this type: floats.
    pub const fn changes(&self, dtype: DType) -> bool {
        dtype.is_float()
    }

    fn set(&mut self, index: usize, value: f64) -> Result<()> {
        let Row { name, settings, .. } = self.optimizer.row();
        let setting = settings[index];
        let (is_fine, due) = match setting.range {
            Range::Positive => (value > 0.0, "above 0"),
            Range::NotNegative => (value >= 0.0, "0 or above"),
            Range::Share => ((0.0..1.0).contains(&value), "from 0 to below 1"),
            Range::Switch => (value == 0.0 || value == 1.0, "0 or 1"),
        };
        if !is_fine || !value.is_finite() {
            return Err(Error::InvalidArgument {
                what: format!("rule {name}: {} is {value}", setting.name),
                hint: format!("give a number {due}"),
            });
        }
        // Not the other zero, which compares otherwise by its bits.
        self.settings[index] = (value + 0.0).to_bits();
        Ok(())
    }

    /// Checks what its settings must have in common.
    fn check(self) -> Result<Self> {
        if self.optimizer == Optimizer::Sgd
            && self.setting("nesterov") == 1.0
            && (self.setting("momentum") == 0.0 || self.setting("dampening") != 0.0)
        {
            return Err(Error::InvalidArgument {
                what: format!("rule {self}: nesterov"),
                hint: "it needs a momentum above 0 and a dampening of 0".to_owned(),
            });
        }
        Ok(self)
    }
}

impl Optimizer {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 7] =
        [Self::Sgd, Self::Adam, Self::AdamW, Self::Adagrad, Self::RmsProp, Self::Adamax, Self::Lion];

    fn row(self) -> &'static Row {
        &TABLE[self as usize - 1]
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

impl fmt::Display for Rule {
    /// As users write it, without the settings that have their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.optimizer.name())?;
        let mut before = ':';
        for (setting, value) in self.optimizer.row().settings.iter().zip(self.settings()) {
            if value != setting.default {
                write!(f, "{before}{}={value}", setting.name)?;
                before = ',';
            }
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] that names the word which is wrong.
    fn from_str(text: &str) -> Result<Self> {
        let (name, settings) = text.split_once(':').map_or((text, None), |(name, settings)| (name, Some(settings)));
        let row = TABLE.iter().find(|row| row.name == name.trim()).ok_or_else(|| Error::InvalidArgument {
            what: format!("rule {text:?}: there is no optimizer {}", name.trim()),
            hint: format!("use one of {}", Optimizer::ALL.map(Optimizer::name).join(", ")),
        })?;
        let mut rule = Self::of(row.optimizer);
        for word in settings.into_iter().flat_map(|settings| settings.split(',')) {
            let unknown = || Error::InvalidArgument {
                what: format!("rule {text:?}: {word:?} sets nothing"),
                hint: format!("{} has {}", row.name, names_of(row).join(", ")),
            };
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let index = row.settings.iter().position(|setting| setting.name == name.trim()).ok_or_else(unknown)?;
            rule.set(index, value.trim().parse().map_err(|_| unknown())?)?;
        }
        rule.check()
    }
}

fn names_of(row: &Row) -> Vec<&'static str> {
    row.settings.iter().map(|setting| setting.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_optimizer_has_its_row_and_few_enough_settings() {
        for (optimizer, row) in Optimizer::ALL.into_iter().zip(&TABLE) {
            assert_eq!((row.optimizer, optimizer.name()), (optimizer, row.name));
            assert!(row.settings.len() <= Rule::SETTINGS_MAX);
            let rule = Rule::of(optimizer);
            for (index, value) in rule.settings().enumerate() {
                assert_eq!(Rule::of(optimizer).set(index, value), Ok(()), "the default of {}", names_of(row)[index]);
            }
            assert_eq!(row.name.parse(), Ok(rule));
            let travelled: Vec<f64> = rule.settings().collect();
            assert_eq!(Rule::from_wire(rule.code(), &travelled), Ok(rule));
        }
    }

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        for text in
            ["sgd", "sgd:lr=0.1,momentum=0.9,nesterov=1", "adamw:weight_decay=0.1", "lion:beta2=0.95,clip_value=1"]
        {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        assert_eq!(" adam : lr = 0.001 ".parse(), Ok(Rule::of(Optimizer::Adam)), "spaces, and a default");
        assert_eq!("sgd:momentum=-0".parse::<Rule>(), "sgd".parse());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("adamm", "no optimizer adamm"),
            ("sgd:rate=1", "sgd has lr, momentum"),
            ("sgd:lr", "sets nothing"),
            ("sgd:lr=fast", "sets nothing"),
            ("sgd:lr=NaN", "lr is NaN"),
            ("sgd:lr=inf", "lr is inf"),
            ("adam:lr=-1", "lr is -1"),
            ("adam:beta1=1", "beta1 is 1"),
            ("adam:eps=0", "eps is 0"),
            ("rmsprop:centered=2", "centered is 2"),
            ("sgd:nesterov=1", "nesterov"),
            ("sgd:nesterov=1,momentum=0.9,dampening=0.1", "nesterov"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        for (code, settings) in [(0, 6), (9, 6), (1, 5), (1, 7)] {
            assert!(Rule::from_wire(code, &vec![0.0; settings]).is_err(), "{code} {settings}");
        }
        assert!(Rule::from_wire(1, &[f64::NAN, 0.0, 0.0, 0.0, 0.0, 0.0]).is_err());
        assert!(Rule::from_wire(1, &[0.1, -0.0, 0.0, 0.0, 0.0, 0.0]).is_err());
        let sgd = Rule::of(Optimizer::Sgd);
        assert_eq!([DType::BF16, DType::F64, DType::I32].map(|dtype| sgd.changes(dtype)), [true, true, false]);
    }
}
