//! A rule: how a server changes a parameter by a gradient that a worker pushes. [`reduce::optimizer`](crate::reduce::optimizer) carries it out.

use std::fmt;
use std::str::FromStr;

use super::DType;
use crate::error::{Error, Result};

mod table;

pub use table::{Average, Optimizer, Schedule};
use table::{COMMON, OF_AVERAGES, OF_SCHEDULES, Range, Row, Setting, TABLE};

/// An optimizer with its settings.
///
/// A declaration names the rule of a parameter, and all workers declare the same one, to the bit. Users write it as `adamw`, or with settings
/// as `sgd:lr=0.1,momentum=0.9`. Behind the settings of its optimizer it has those that all rules have, such as
/// `schedule=cosine,steps=1000,warm_up=100`; a rule where these have their defaults travels without them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule {
    optimizer: Optimizer,
    /// The bits of the numbers: those of the optimizer's row, then the common ones; the rest are 0.
    settings: [u64; Self::SETTINGS_MAX],
}

impl Rule {
    /// The most settings of a rule.
    pub const SETTINGS_MAX: usize = Self::OWN_MAX + COMMON.len();
    /// How large a matrix may be whose rule changes it as a whole: its elements times its shorter side. 2048 x 2048, 1024 x 8192. A step then
    /// takes about 10 s of one core, meanwhile other parameters of the server wait, and workers give a server up that is silent for 130 s.
    pub const MATRIX_PRODUCTS_MAX: u64 = 1 << 33;
    /// The numbers of Muon along which a step goes. They say nothing after the step.
    pub const SCRATCH: &'static str = "direction";
    /// The most settings of an optimizer's own.
    const OWN_MAX: usize = 8;

    /// The optimizer where nobody names its settings.
    pub fn of(optimizer: Optimizer) -> Self {
        let mut rule = Self { optimizer, settings: [0; Self::SETTINGS_MAX] };
        for (bits, setting) in rule.settings.iter_mut().zip(optimizer.row().settings.iter().chain(&COMMON)) {
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
        let (own, all) = (row.settings.len(), row.settings.len() + COMMON.len());
        if settings.len() != own && settings.len() != all {
            return Err(Error::InvalidArgument {
                what: format!("rule {} with {} settings instead of {own} or {all}", row.name, settings.len()),
                hint: "use the same version everywhere".to_owned(),
            });
        }
        let mut rule = Self::of(row.optimizer);
        for (index, value) in settings.iter().enumerate() {
            rule.set(index, *value)?;
            if rule.settings[index] != value.to_bits() {
                return Err(Error::InvalidArgument {
                    what: format!("rule {}: {} is {value}", row.name, row.optimizer.setting(index).name),
                    hint: "zero has no sign".to_owned(),
                });
            }
        }
        if rule.travelling() != settings.len() {
            return Err(Error::InvalidArgument {
                what: format!("rule {} with {all} settings, of which the last {} are not set", row.name, COMMON.len()),
                hint: "use the same version everywhere".to_owned(),
            });
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
        self.settings[..self.travelling()].iter().map(|bits| f64::from_bits(*bits))
    }

    /// The setting of this name.
    ///
    /// # Panics
    /// If it has none.
    pub fn setting(&self, name: &str) -> f64 {
        let position = self.optimizer.setting_names().position(|setting| setting == name);
        f64::from_bits(self.settings[position.expect("a setting of this rule")])
    }

    /// The same with another learning rate in the place of `lr`, which its schedule follows then.
    pub fn with_rate(mut self, rate: f64) -> Self {
        let position = self.optimizer.setting_names().position(|setting| setting == "lr");
        self.settings[position.expect("every optimizer has a learning rate")] = rate.to_bits();
        self
    }

    /// The norm to which the gradients of a round are clipped, if they are. It is that of all parameters of a clock whose rules clip, and these
    /// name the same one.
    pub fn clip_norm(&self) -> Option<f64> {
        Some(self.setting("clip_norm")).filter(|norm| *norm > 0.0)
    }

    /// How the learning rate follows the steps.
    pub fn schedule(&self) -> Schedule {
        Schedule::ALL[self.setting("schedule") as usize]
    }

    /// Whether the schedule follows samples and not steps.
    pub fn is_by_samples(&self) -> bool {
        self.setting("by") == 1.0
    }

    /// What it follows that only modes with rounds have, in words.
    pub fn needs_rounds(&self) -> Option<&'static str> {
        let clips = self.clip_norm().map(|_| "clip_norm bounds the norm of the gradients of a round");
        clips.or_else(|| self.is_by_samples().then_some("by=samples follows the samples of rounds"))
    }

    /// Whether it keeps this average of the values that it makes.
    pub fn keeps(&self, average: Average) -> bool {
        self.setting(average.name()) > 0.0
    }

    /// Whether it keeps any average.
    pub fn keeps_average(&self) -> bool {
        self.keeps(Average::Ema) || self.keeps(Average::Window)
    }

    /// The numbers that it keeps for each element, beside a master and averages. Their names are PyTorch's, and those of checkpoints.
    pub fn moments(&self) -> &'static [&'static str] {
        let has = |setting| self.setting(setting) != 0.0;
        match self.optimizer {
            Optimizer::Sgd if has("momentum") => &["momentum_buffer"],
            Optimizer::Sgd => &[],
            Optimizer::Adam | Optimizer::AdamW | Optimizer::SparseAdam => &["exp_avg", "exp_avg_sq"],
            Optimizer::Adamax => &["exp_avg", "exp_inf"],
            Optimizer::Muon => &["momentum_buffer", Self::SCRATCH],
            Optimizer::Adagrad => &["sum"],
            Optimizer::Lion => &["exp_avg"],
            Optimizer::RmsProp => match (has("centered"), has("momentum")) {
                (false, false) => &["square_avg"],
                (false, true) => &["square_avg", "momentum_buffer"],
                (true, false) => &["square_avg", "grad_avg"],
                (true, true) => &["square_avg", "grad_avg", "momentum_buffer"],
            },
            // What they keep is of a row.
            Optimizer::RowwiseAdagrad
            | Optimizer::PaddleAdagrad
            | Optimizer::PaddleStdAdagrad
            | Optimizer::PaddleAdam
            | Optimizer::PaddleSharedAdam => &[],
        }
    }

    /// How many numbers it keeps beside the values of a row of a table with `dim` elements.
    pub fn kept_of_row(&self, dim: u64) -> u64 {
        match self.optimizer {
            Optimizer::RowwiseAdagrad | Optimizer::PaddleAdagrad => 1,
            Optimizer::PaddleStdAdagrad => dim,
            // Two moments of each element, or of the row; and the powers of both betas.
            Optimizer::PaddleAdam => 2 * dim + 2,
            Optimizer::PaddleSharedAdam => 4,
            _ => dim * self.moments().len() as u64,
        }
    }

    /// Whether it can change parameters with elements of this type: floats, unless it changes rows of tables alone.
    pub const fn changes(&self, dtype: DType) -> bool {
        dtype.is_float() && !self.optimizer.is_of_rows()
    }

    /// How many settings travel.
    fn travelling(&self) -> usize {
        let own = self.optimizer.row().settings.len();
        let is_set = |(bits, setting): (&u64, &Setting)| *bits != setting.default.to_bits();
        if self.settings[own..].iter().zip(&COMMON).any(is_set) { own + COMMON.len() } else { own }
    }

    /// The rule of a parameter of this shape: a rule of matrices knows their rows.
    #[must_use]
    pub fn of_shape(mut self, shape: &[u64]) -> Self {
        if let ([rows, _], true) = (shape, self.optimizer.is_of_matrices()) {
            let index = self.optimizer.setting_names().position(|setting| setting == "rows");
            self.settings[index.expect("rules of matrices have it")] = (*rows as f64).to_bits();
        }
        self
    }

    /// Whether it can change a parameter of this shape, of which it is [`of_shape`](Self::of_shape).
    pub fn suits(&self, shape: &[u64]) -> bool {
        !self.optimizer.is_of_matrices() || shape.len() == 2 && self.fits(shape[0].saturating_mul(shape[1]))
    }

    /// Whether it can change a part of so many elements: if it is one of matrices, they fill its rows, and no step takes too long.
    pub fn fits(&self, elements: u64) -> bool {
        if !self.optimizer.is_of_matrices() {
            return true;
        }
        let rows = self.setting("rows") as u64;
        rows > 0
            && elements.is_multiple_of(rows)
            && elements.saturating_mul(rows.min(elements / rows)) <= Self::MATRIX_PRODUCTS_MAX
    }

    fn set(&mut self, index: usize, value: f64) -> Result<()> {
        let setting = self.optimizer.setting(index);
        let (is_fine, due) = match setting.range {
            Range::Positive => (value > 0.0, "above 0"),
            Range::NotNegative => (value >= 0.0, "0 or above"),
            Range::Share => ((0.0..1.0).contains(&value), "from 0 to below 1"),
            Range::Factor => (value > 0.0 && value <= 1.0, "above 0 and at most 1"),
            Range::Portion => ((0.0..=1.0).contains(&value), "from 0 to 1"),
            Range::Switch => (value == 0.0 || value == 1.0, "0 or 1"),
            Range::Steps => (is_whole(value), "of steps, whole and 0 or above"),
            Range::SomeSteps => (is_whole(value) && value > 0.0, "of steps, whole and 1 or above"),
            Range::Word(words) => (is_whole(value) && value < words.len() as f64, "that stands for a word"),
            Range::Rows => (is_whole(value), "of rows"),
        };
        if !is_fine || !value.is_finite() {
            return Err(Error::InvalidArgument {
                what: format!("rule {}: {} is {value}", self.optimizer.name(), setting.name),
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
        self.check_schedule()?;
        for (setting, of) in OF_AVERAGES {
            if self.is_set(setting) && !self.is_set(of) {
                return Err(Error::InvalidArgument {
                    what: format!("rule {self}: {setting} without {of}"),
                    hint: format!("give {of} too, for an average"),
                });
            }
        }
        Ok(self)
    }

    /// Refuses settings of another schedule, those that are missing, and a rate that rises.
    fn check_schedule(&self) -> Result<()> {
        let (schedule, refused) = (self.schedule(), |what: String, hint: String| {
            Err(Error::InvalidArgument { what: format!("rule {self}: {what}"), hint })
        });
        for (setting, of, is_needed) in OF_SCHEDULES {
            let names = of.iter().map(|schedule| schedule.name()).collect::<Vec<_>>().join(" or ");
            let is_set = self.is_set(setting);
            if is_set && !of.contains(&schedule) {
                let what = format!("{setting} for the schedule {}", schedule.name());
                return refused(what, format!("{setting} is for the schedule {names}"));
            }
            if is_needed && !is_set && of.contains(&schedule) {
                let what = format!("the schedule {} without {setting}", schedule.name());
                return refused(what, format!("give {setting}, a number of steps above 0"));
            }
        }
        let (minimum, rate) = (self.setting("minimum"), self.setting("lr"));
        if minimum > rate {
            return refused(format!("minimum is {minimum}"), format!("give a number up to lr, which is {rate}"));
        }
        Ok(())
    }

    /// Whether a common setting differs from its default.
    fn is_set(&self, name: &str) -> bool {
        COMMON.iter().any(|setting| setting.name == name && self.setting(name) != setting.default)
    }
}

/// Whether it is a number of steps that f64 holds exactly.
fn is_whole(value: f64) -> bool {
    value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value)
}

impl fmt::Display for Rule {
    /// As users write it, without the settings that have their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.optimizer.name())?;
        let mut before = ':';
        for (index, value) in self.settings().enumerate() {
            let setting = self.optimizer.setting(index);
            if value == setting.default {
                continue;
            }
            match setting.range {
                Range::Word(words) => write!(f, "{before}{}={}", setting.name, words[value as usize])?,
                // It is said by the shape.
                Range::Rows => continue,
                _ => write!(f, "{before}{}={value}", setting.name)?,
            }
            before = ',';
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
        let (mut rule, mut set) = (Self::of(row.optimizer), [false; Self::SETTINGS_MAX]);
        for word in settings.into_iter().flat_map(|settings| settings.split(',')) {
            let unknown = || Error::InvalidArgument {
                what: format!("rule {text:?}: {word:?} sets nothing"),
                hint: format!("{} has {}", row.name, row.optimizer.setting_names().collect::<Vec<_>>().join(", ")),
            };
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let index = row.optimizer.setting_names().position(|setting| setting == name.trim()).ok_or_else(unknown)?;
            let value = match row.optimizer.setting(index).range {
                Range::Word(words) => position(row, name.trim(), words, value.trim())?,
                Range::Rows => return Err(unknown()),
                _ => value.trim().parse().map_err(|_| unknown())?,
            };
            rule.set(index, value)?;
            if std::mem::replace(&mut set[index], true) {
                return Err(Error::InvalidArgument {
                    what: format!("rule {}: {} comes twice", row.name, name.trim()),
                    hint: "give it once".to_owned(),
                });
            }
        }
        rule.check()
    }
}

/// What stands for a word.
fn position(row: &Row, setting: &str, words: &[&str], word: &str) -> Result<f64> {
    let position = words.iter().position(|known| *known == word).ok_or_else(|| Error::InvalidArgument {
        what: format!("rule {}: there is no {setting} {word}", row.name),
        hint: format!("use one of {}", words.join(", ")),
    })?;
    Ok(position as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_optimizer_has_its_row_and_few_enough_settings() {
        for (optimizer, row) in Optimizer::ALL.into_iter().zip(&TABLE) {
            assert_eq!((row.optimizer, optimizer.name()), (optimizer, row.name));
            assert!(row.settings.len() <= Rule::OWN_MAX);
            let rule = Rule::of(optimizer);
            for (index, setting) in optimizer.setting_names().enumerate() {
                assert_eq!(Rule::of(optimizer).set(index, rule.setting(setting)), Ok(()), "the default of {setting}");
            }
            assert_eq!(row.name.parse(), Ok(rule));
            let travelled: Vec<f64> = rule.settings().collect();
            assert_eq!(Rule::from_wire(rule.code(), &travelled), Ok(rule));
            let falling: Rule = format!("{}:schedule=poly,steps=10,warm_up=2", row.name).parse().unwrap();
            let travelled: Vec<f64> = falling.settings().collect();
            assert_eq!((travelled.len(), falling.schedule()), (row.settings.len() + COMMON.len(), Schedule::Poly));
            assert_eq!(Rule::from_wire(falling.code(), &travelled), Ok(falling));
        }
    }

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        for text in [
            "sgd",
            "sgd:lr=0.1,momentum=0.9,nesterov=1",
            "adamw:weight_decay=0.1",
            "lion:beta2=0.95,clip_value=1",
            "sgd:warm_up=10",
            "adamw:lr=0.01,schedule=step,warm_up=5,every=30,gamma=0.5",
            "adam:schedule=cosine,steps=1000,minimum=0.0001",
            "adagrad:schedule=poly,steps=1000,power=2",
            "muon:nesterov=0,adjust=match_rms_adamw",
            "sgd:ema=0.999,ema_ramp=1,window=0.5,window_min=10,window_max=100",
            "adam:clip_value=0.5,clip_norm=1",
            "sgd:schedule=step,every=1000,by=samples",
        ] {
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
            ("sgd:lr=0.1,momentum=0.9,lr=0.2", "lr comes twice"),
            ("sgd:schedule=linear", "there is no schedule linear; use one of const, step, cosine, poly"),
            ("sgd:schedule=step", "schedule step without every"),
            ("sgd:schedule=cosine,warm_up=10", "schedule cosine without steps"),
            ("sgd:schedule=poly,steps=0", "schedule poly without steps"),
            ("sgd:steps=10", "steps for the schedule const; steps is for the schedule cosine or poly"),
            ("sgd:schedule=poly,steps=10,minimum=0.0001", "minimum for the schedule poly"),
            ("sgd:schedule=cosine,steps=10,lr=0.1,minimum=0.2", "minimum is 0.2"),
            ("sgd:schedule=step,every=10,gamma=10", "gamma is 10"),
            ("sgd:schedule=cosine,steps=1.5", "steps is 1.5"),
            ("sgd:warm_up=-1", "warm_up is -1"),
            ("muon:adjust=none", "there is no adjust none; use one of original, match_rms_adamw, spectral_unclamped"),
            ("muon:rows=2", "sets nothing"),
            ("sgd:warm_up=inf", "warm_up is inf"),
            ("sgd:ema=1", "ema is 1"),
            ("sgd:clip_norm=-1", "clip_norm is -1"),
            ("sgd:by=epochs", "there is no by epochs; use one of steps, samples"),
            ("sgd:ema_ramp=1", "ema_ramp without ema"),
            ("sgd:window=1.5", "window is 1.5"),
            ("sgd:window_max=5", "window_max without window"),
            ("sgd:window=1,window_min=0", "window_min is 0"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        for (code, settings) in [(0, 6), (10, 6), (1, 5), (1, 7), (1, 19), (1, 21)] {
            assert!(Rule::from_wire(code, &vec![0.0; settings]).is_err(), "{code} {settings}");
        }
        assert!(Rule::from_wire(1, &[f64::NAN, 0.0, 0.0, 0.0, 0.0, 0.0]).is_err());
        assert!(Rule::from_wire(1, &[0.1, -0.0, 0.0, 0.0, 0.0, 0.0]).is_err());
        let with = |schedule, warm_up| {
            let own = [0.1, 0.0, 0.0, 0.0, 0.0, 0.0];
            [&own[..], &[schedule, warm_up, 0.0, 0.1, 0.0, 0.0, 1.0], &[0.0, 0.0, 0.0, 1e4, 1e4, 0.0, 0.0]].concat()
        };
        assert_eq!(Rule::from_wire(1, &with(0.0, 5.0)), "sgd:lr=0.1,warm_up=5".parse());
        for (schedule, warm_up, why) in
            [(0.0, 0.0, "are not set"), (4.0, 5.0, "schedule is 4"), (0.5, 5.0, "schedule is 0.5")]
        {
            let error = Rule::from_wire(1, &with(schedule, warm_up)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let [sgd, muon] = [Optimizer::Sgd, Optimizer::Muon].map(Rule::of);
        assert_eq!([&[][..], &[4], &[4, 3]].map(|shape| sgd.of_shape(shape).suits(shape)), [true; 3]);
        let suits = |shape: &[u64]| muon.of_shape(shape).suits(shape);
        assert_eq!([&[][..], &[4], &[4, 3], &[0, 3], &[2, 2, 2]].map(suits), [false, false, true, false, false]);
        assert_eq!(
            [[2048, 2048], [1024, 8192], [8192, 1024], [2048, 2049]].map(|shape| suits(&shape)),
            [true, true, true, false]
        );
        assert!(muon.of_shape(&[4, 3]).fits(12) && !muon.of_shape(&[4, 3]).fits(11));
        assert_eq!([DType::BF16, DType::F64, DType::I32].map(|dtype| sgd.changes(dtype)), [true, true, false]);
    }
}
