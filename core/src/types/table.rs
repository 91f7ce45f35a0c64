//! A table: rows of numbers by id, which servers keep. What a declaration says of one, and where its rows are.

use std::fmt;
use std::str::FromStr;

use super::{Merge, RowDType, RowForm, Rule, Turns};
use crate::error::{Error, Result};

/// What servers do with the rows of a table. A declaration names it, and all workers declare the same one, to the bit.
///
/// Users write it as a rule, and behind it what else is set: `adagrad:lr=0.1;dim=16,init=uniform,scale=0.05,seed=7`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableSpec {
    /// How gradients change a row.
    pub rule: Rule,
    /// The elements of a row.
    pub dim: u64,
    /// What rows begin with.
    pub init: RowInit,
    /// Makes the first values of rows, and the choice of ids that get one.
    pub seed: u64,
    /// Which ids get a row.
    pub admission: Admission,
    /// How many rows there are at most, over all servers; 0 for as many as their memory holds.
    pub rows_max: u64,
    /// What becomes of a table that has so many.
    pub full: Full,
    /// A row goes that no worker has pulled for training nor pushed to for more steps than this; 0 for never.
    pub ttl: u64,
    /// Who waits for whom.
    pub turns: Turns,
    /// How rows and gradients travel.
    pub form: RowForm,
    /// How servers keep the values of rows.
    pub dtype: RowDType,
    /// Which ids are of which member, where a table stands for several: a fingerprint that workers compute; 0 of one that does not.
    pub members: u64,
    /// The bits of the bound to which values are clamped after each step; 0 for none.
    bound: u64,
}

/// What the elements of a row begin with. It follows from the seed, the id and the place of the element alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowInit {
    /// How numbers are spread.
    pub spread: Spread,
    /// The bits of the scale.
    scale: u64,
}

/// How the first numbers of rows are spread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Spread {
    /// All are 0.
    Zero,
    /// Evenly from minus the scale to plus the scale.
    Uniform,
    /// A normal distribution around 0; the scale is its standard deviation.
    Normal,
}

/// Which ids get a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Admission {
    /// An id gets its row when it is pulled for training for the so-manieth time, from 1. Until then it reads as zeros, and gradients for it
    /// are dropped.
    pub after: u32,
    /// The bits of the score that the pushes of an id have brought together when it gets its row; 0 if that is no condition. Until then it reads
    /// as zeros, and gradients for it are dropped.
    score: u64,
    /// The bits of the share of ids that ever get one. A hash of seed and id chooses them, once.
    share: u64,
}

/// What a full table does with an id that has no row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Full {
    /// The use fails, and changes nothing.
    Refuse,
    /// Another row makes room: of some, the one that was used longest ago.
    Evict,
}

/// Neighbouring shards of a table: the rows of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shards {
    /// The first one.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl TableSpec {
    /// The shards of every table. A row is in the shard that its id says, and a part of a table is a run of them, so the servers that keep a
    /// table may become more or fewer.
    pub const SHARDS: u32 = 1024;
    /// The most elements of a row.
    pub const DIM_MAX: u64 = 16_384;
    /// The most ids of one use on one server.
    pub const IDS_MAX: u64 = 1 << 20;
    /// The most bytes of its text.
    pub const TEXT_BYTES_MAX: usize = 512;

    /// A table of rows of `dim` elements by this rule; all else is as usual.
    pub fn of(rule: Rule, dim: u64) -> Self {
        Self {
            rule,
            dim,
            init: RowInit { spread: Spread::Zero, scale: 0f64.to_bits() },
            seed: 0,
            admission: Admission { after: 1, score: 0, share: 1f64.to_bits() },
            rows_max: 0,
            full: Full::Refuse,
            ttl: 0,
            turns: Turns::Async,
            form: RowForm::F32,
            dtype: RowDType::F32,
            members: 0,
            bound: 0,
        }
    }

    /// What a shard counts for where parts are laid out: the bytes of the values of one row, as f32.
    pub const fn shard_bytes(&self) -> u64 {
        4 * self.dim
    }

    /// The bytes of a row or a gradient as it travels.
    pub const fn row_bytes(&self) -> u64 {
        self.form.row_bytes(self.dim)
    }

    /// The elements of a row together with what the rule keeps of it.
    pub fn row_len(&self) -> u64 {
        self.dim + self.rule.kept_of_row(self.dim)
    }

    /// Words of 4 bytes that a row takes where it is kept: its values, and a word for each number that the rule keeps of it.
    pub fn row_words(&self) -> u64 {
        self.dtype.words(self.dim) + self.rule.kept_of_row(self.dim)
    }

    /// The bound to which values are clamped after each step, if there is one: the largest value that can be kept within what was given, so
    /// that rounding leads to none outside.
    pub fn bound(&self) -> Option<f32> {
        Some(self.dtype.at_most(f64::from_bits(self.bound) as f32)).filter(|bound| *bound > 0.0)
    }

    /// The hash of an id, for tables of ids.
    pub const fn hash_of(id: u64) -> u64 {
        mix(id)
    }

    /// The shard of an id.
    pub const fn shard_of(id: u64) -> u32 {
        // Not the highest bits nor the lowest ones: hash tables take those, and a part has a few shards alone.
        (mix(id) >> 40) as u32 % Self::SHARDS
    }

    /// Whether the table ever has a row for this id.
    pub fn admits(&self, id: u64) -> bool {
        let share = f64::from_bits(self.admission.share);
        share >= 1.0 || unit(mix(mix(self.seed ^ ADMITTING) ^ id)) < share
    }

    /// What the seed says for the random bits by which values of half precision are rounded after a step.
    pub const fn rounding(&self) -> u64 {
        mix(self.seed ^ ROUNDING)
    }

    /// Writes what the row of an id begins with, as it is kept.
    pub fn begin(&self, id: u64, row: &mut [f32]) {
        let scale = f64::from_bits(self.init.scale);
        let of_row = mix(mix(self.seed) ^ id);
        let number = |element: usize, turn: u64| unit(mix(of_row.wrapping_add(2 * element as u64 + turn)));
        for (element, value) in row.iter_mut().enumerate() {
            *value = match self.init.spread {
                Spread::Zero => 0.0,
                Spread::Uniform => ((2.0 * number(element, 0) - 1.0) * scale) as f32,
                // Box and Muller. The first number is above 0.
                Spread::Normal => {
                    let radius = (-2.0 * (1.0 - number(element, 0)).ln()).sqrt();
                    (radius * (std::f64::consts::TAU * number(element, 1)).cos() * scale) as f32
                }
            };
        }
        self.dtype.round(row);
    }

    fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let number = |due: &str, is_fine: fn(f64) -> bool| {
            let number = value.parse().ok().filter(|number: &f64| number.is_finite() && is_fine(*number));
            // Not the other zero, which compares otherwise by its bits.
            number.map(|number| (number + 0.0).to_bits()).ok_or_else(|| format!("a number {due}"))
        };
        let word = |words: &[&str]| {
            words.iter().position(|word| *word == value).ok_or_else(|| format!("one of {}", words.join(", ")))
        };
        let whole = || value.parse::<u64>().map_err(|_| "a whole number, 0 or above".to_owned());
        match name {
            "dim" => {
                let dim = value.parse().ok().filter(|dim| (1..=Self::DIM_MAX).contains(dim));
                self.dim = dim.ok_or_else(|| format!("a number of elements, from 1 to {}", Self::DIM_MAX))?;
            }
            "init" => self.init.spread = Spread::ALL[word(&Spread::NAMES)?],
            "scale" => self.init.scale = number("0 or above", |number| number >= 0.0)?,
            "seed" => self.seed = whole()?,
            "after" => {
                let after = value.parse().ok().filter(|after| *after > 0);
                self.admission.after = after.ok_or("a whole number of pulls, 1 or above")?;
            }
            "score" => self.admission.score = number("0 or above", |score| score >= 0.0)?,
            "share" => self.admission.share = number("above 0, up to 1", |share| share > 0.0 && share <= 1.0)?,
            "rows" => self.rows_max = whole()?,
            "ttl" => self.ttl = whole()?,
            "members" => self.members = whole()?,
            "full" => self.full = Full::ALL[word(&Full::NAMES)?],
            "bound" => self.bound = number("0 or above", |bound| bound >= 0.0)?,
            "mode" => self.turns = Turns::ALL[word(&Turns::NAMES)?],
            "codec" => self.form = RowForm::ALL[word(&RowForm::NAMES)?],
            "dtype" => self.dtype = RowDType::ALL[word(&RowDType::NAMES)?],
            "ahead" => match &mut self.turns {
                Turns::Ssp { ahead } => *ahead = value.parse().map_err(|_| "a whole number of pushes, 0 or above")?,
                _ => return Err("ahead behind mode=ssp alone".to_owned()),
            },
            "merge" => match &mut self.turns {
                Turns::Sync { merge } => *merge = [Merge::Mean, Merge::Sum][word(&Turns::MERGES)?],
                _ => return Err("merge behind mode=sync alone".to_owned()),
            },
            _ => return Err(format!("one of {}", SETTINGS.join(", "))),
        }
        Ok(())
    }

    /// Refuses what has no meaning.
    fn check(self) -> Result<Self> {
        let refuse = |what: String, hint: &str| Err(Error::InvalidArgument { what, hint: hint.to_owned() });
        if self.dim == 0 {
            return refuse(format!("table {self}: rows without elements"), "give dim, the elements of a row");
        }
        if self.rule.optimizer().is_of_matrices() {
            return refuse(
                format!("table {self}: rule {} changes a matrix as a whole", self.rule.optimizer().name()),
                "give a table a rule that changes each element by itself",
            );
        }
        if self.rule.keeps_average() || self.rule.clip_norm().is_some() || self.rule.is_by_samples() {
            return refuse(
                format!("table {self}: averages of its values, clip_norm, or by=samples"),
                "these need all of a parameter at once; clip_value clamps each element",
            );
        }
        if self.admission.after > 1 && self.admission.score().is_some() {
            return refuse(
                format!("table {self}: rows by the number of pulls, and by a score of pushes"),
                "give one of after and score",
            );
        }
        if f64::from_bits(self.bound) > 0.0 && self.bound().is_none() {
            return refuse(
                format!("table {self}: a bound below the smallest number that is kept as {}", self.dtype),
                "give a larger bound, or 0 for none",
            );
        }
        let has_scale = f64::from_bits(self.init.scale) > 0.0;
        if has_scale != (self.init.spread != Spread::Zero) {
            return refuse(
                format!("table {self}: its rows begin with zeros, or with a scale"),
                "give init=uniform or init=normal together with a scale above 0, or neither",
            );
        }
        Ok(self)
    }
}

/// The settings behind the rule.
const SETTINGS: [&str; 17] = [
    "dim", "init", "scale", "seed", "after", "score", "share", "rows", "full", "ttl", "bound", "codec", "dtype",
    "members", "mode", "ahead", "merge",
];

/// Separates the choice of admitted ids from the first values of rows.
const ADMITTING: u64 = 0x61_64_6d_69_74;
/// Separates both from the rounding of values.
const ROUNDING: u64 = 0x72_6f75_6e64;

/// A permutation of the numbers of 64 bits without any order that one sees: the finaliser of SplitMix64.
const fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// From 0 to below 1, by the highest 53 bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

impl Admission {
    /// The score that pushes have to bring, if one is due.
    pub fn score(&self) -> Option<f32> {
        Some(f64::from_bits(self.score) as f32).filter(|score| *score > 0.0)
    }
}

impl Spread {
    const ALL: [Self; 3] = [Self::Zero, Self::Uniform, Self::Normal];
    const NAMES: [&str; 3] = ["zero", "uniform", "normal"];
}

impl Full {
    const ALL: [Self; 2] = [Self::Refuse, Self::Evict];
    const NAMES: [&str; 2] = ["refuse", "evict"];
}

impl fmt::Display for TableSpec {
    /// As users write it, without what is as usual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::of(self.rule, self.dim);
        let number = |bits: u64| f64::from_bits(bits).to_string();
        let fields = [
            (self.init.spread != usual.init.spread, "init", Spread::NAMES[self.init.spread as usize].to_owned()),
            (self.init.scale != usual.init.scale, "scale", number(self.init.scale)),
            (self.seed != usual.seed, "seed", self.seed.to_string()),
            (self.admission.after != usual.admission.after, "after", self.admission.after.to_string()),
            (self.admission.score != usual.admission.score, "score", number(self.admission.score)),
            (self.admission.share != usual.admission.share, "share", number(self.admission.share)),
            (self.rows_max != usual.rows_max, "rows", self.rows_max.to_string()),
            (self.full != usual.full, "full", Full::NAMES[self.full as usize].to_owned()),
            (self.ttl != usual.ttl, "ttl", self.ttl.to_string()),
            (self.bound != usual.bound, "bound", number(self.bound)),
            (self.form != usual.form, "codec", RowForm::NAMES[self.form as usize].to_owned()),
            (self.dtype != usual.dtype, "dtype", self.dtype.to_string()),
            (self.members != usual.members, "members", self.members.to_string()),
        ];
        write!(f, "{};dim={}", self.rule, self.dim)?;
        let set = fields.into_iter().filter(|(is_set, ..)| *is_set).map(|(_, name, value)| (name, value));
        set.chain(self.turns.settings().into_iter().flatten())
            .try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

impl FromStr for TableSpec {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] that names the word which is wrong.
    fn from_str(text: &str) -> Result<Self> {
        let (rule, settings) = text.split_once(';').map_or((text, None), |(rule, settings)| (rule, Some(settings)));
        let mut spec = Self::of(rule.parse()?, 0);
        let mut set: Vec<&str> = Vec::new();
        for word in settings.into_iter().flat_map(|settings| settings.split(',')) {
            let invalid = |hint: String| Error::InvalidArgument { what: format!("table {text:?}: {word:?}"), hint };
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| invalid(format!("give one of {} as name=value", SETTINGS.join(", "))))?;
            let name = name.trim();
            if set.contains(&name) {
                return Err(invalid(format!("give {name} once")));
            }
            spec.set(name, value.trim()).map_err(|due| invalid(format!("give {due}")))?;
            set.push(name);
        }
        spec.check()
    }
}

impl Shards {
    /// All of a table.
    pub const ALL: Self = Self { first: 0, count: TableSpec::SHARDS };

    /// Whether an id is in them.
    pub fn have(self, id: u64) -> bool {
        (self.first..self.first + self.count).contains(&TableSpec::shard_of(id))
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shards {} to {}", self.first, self.first + self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_is_written() {
        for text in [
            "sgd;dim=3",
            "adagrad:lr=0.1;dim=16,init=uniform,scale=0.05,seed=7",
            "adam;dim=64,init=normal,scale=0.01,after=3,share=0.5,rows=1000,full=evict,ttl=7,bound=10",
            "sgd;dim=1,codec=int8,mode=ssp,ahead=4",
            "sgd;dim=1,bound=0.5,codec=bf16,dtype=fp16",
            "sgd;dim=1,dtype=bf16,mode=ssp",
            "sgd;dim=1,codec=bf16,members=18446744073709551615,mode=ssp",
            "sgd;dim=1,score=2.5,share=0.5",
            "sgd;dim=1,bound=2,mode=sync,merge=sum",
            "sgd;dim=1,mode=sync",
        ] {
            assert_eq!(text.parse::<TableSpec>().unwrap().to_string(), text);
        }
        assert_eq!("sgd;dim=2,dtype=f32".parse::<TableSpec>().unwrap().to_string(), "sgd;dim=2");
        assert_eq!("sgd;seed=0 , dim = 2".parse::<TableSpec>().unwrap(), TableSpec::of("sgd".parse().unwrap(), 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("sdg", "no optimizer sdg"),
            ("sgd", "give dim"),
            ("sgd;dim=0", "from 1 to 16384"),
            ("sgd;dim=16385", "from 1 to 16384"),
            ("sgd;dim=2,scales=1", "init, scale"),
            ("sgd;dim=2,seed", "name=value"),
            ("sgd;dim=2,seed=-1", "whole number"),
            ("sgd;dim=2,seed=1,seed=1", "give seed once"),
            ("sgd;dim=2,scale=0.1", "begin with zeros"),
            ("sgd;dim=2,init=uniform", "begin with zeros"),
            ("sgd;dim=2,init=ones", "zero, uniform, normal"),
            ("sgd;dim=2,init=uniform,scale=NaN", "0 or above"),
            ("sgd;dim=2,after=0", "1 or above"),
            ("sgd;dim=2,after=2,score=1", "one of after and score"),
            ("sgd;dim=2,score=-1", "0 or above"),
            ("sgd;dim=2,share=0", "above 0, up to 1"),
            ("sgd;dim=2,share=1.5", "above 0, up to 1"),
            ("sgd;dim=2,full=drop", "refuse, evict"),
            ("sgd;dim=2,bound=-1", "0 or above"),
            ("sgd;dim=2,bound=1e-50", "a bound below"),
            ("sgd;dim=2,bound=1e-8,dtype=fp16", "kept as fp16"),
            ("sgd;dim=2,codec=int4", "none, bf16, fp16, int8"),
            ("sgd;dim=2,dtype=float64", "f32, bf16, fp16"),
            ("sgd;dim=2,mode=backup", "async, ssp, sync"),
            ("sgd;dim=2,mode=ssp,ahead=-1", "whole number of pushes"),
            ("sgd;dim=2,mode=sync,ahead=1", "behind mode=ssp"),
            ("sgd;dim=2,merge=sum,mode=sync", "behind mode=sync"),
            ("sgd;dim=2,mode=sync,merge=max", "mean, sum"),
            ("muon;dim=2", "changes a matrix as a whole"),
            ("sgd:ema=0.9;dim=2", "averages"),
            ("sgd:clip_norm=1;dim=2", "clip_norm"),
        ] {
            let error = text.parse::<TableSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn rows_begin_by_seed_id_and_element_alone() {
        let spec: TableSpec = "sgd;dim=4,init=uniform,scale=0.5,seed=3".parse().unwrap();
        let (mut row, mut longer) = ([0.0; 4], [0.0; 8]);
        spec.begin(17, &mut row);
        spec.begin(17, &mut longer);
        assert_eq!(row, longer[..4]);
        // As an independent script made them: these never change, because checkpoints and jobs rely on them.
        assert_eq!(row.map(f32::to_bits), GOLDEN);
        spec.begin(18, &mut longer);
        assert_ne!(row, longer[..4]);
    }

    /// Of the seed 3 and the id 17, evenly within 0.5.
    const GOLDEN: [u32; 4] = [0x3e7b_1fbc, 0x3e8f_e621, 0x3e31_0bf1, 0xbda5_2cd5];

    #[test]
    fn numbers_are_spread_as_they_should_be() {
        for (text, mean_square) in [("uniform,scale=0.5", 0.25 / 3.0), ("normal,scale=0.5", 0.25)] {
            let spec: TableSpec = format!("sgd;dim=16,init={text}").parse().unwrap();
            let mut row = [0.0; 16];
            let (mut sum, mut squares) = (0.0, 0.0);
            for id in 0..4096 {
                spec.begin(id, &mut row);
                sum += row.iter().map(|value| f64::from(*value)).sum::<f64>();
                squares += row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
            }
            let numbers = 16.0 * 4096.0;
            assert!((sum / numbers).abs() < 0.01 && (squares / numbers / mean_square - 1.0).abs() < 0.02, "{text}");
        }
    }

    #[test]
    fn ids_are_spread_over_all_shards_and_the_share_is_admitted() {
        let mut shards = [0; TableSpec::SHARDS as usize];
        (0..100_000u64).for_each(|id| shards[TableSpec::shard_of(id) as usize] += 1);
        assert!(shards.iter().all(|ids| (40..180).contains(ids)), "{shards:?}");
        let halves = [Shards { first: 0, count: 512 }, Shards { first: 512, count: 512 }];
        assert!((0..1000).all(|id| halves.iter().filter(|shards| shards.have(id)).count() == 1));
        let spec: TableSpec = "sgd;dim=1,share=0.25".parse().unwrap();
        let admitted = (0..10_000).filter(|id| spec.admits(*id)).count() as f64;
        // Three standard deviations.
        assert!((admitted - 2500.0).abs() < 3.0 * (10_000.0 * 0.25f64 * 0.75).sqrt(), "{admitted}");
    }
}
