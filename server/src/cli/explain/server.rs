//! What is in the dump of a server.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{Fields, list, number, object, optional, other, ranks, short, small, tensor, text_of};
use super::head::PartOfRound;

/// What a server did.
#[derive(Clone, Default, Debug)]
pub(super) struct Server {
    /// The sums that have begun and that not all have taken.
    pub(super) sums: BTreeMap<PartOfRound, Sum>,
    /// The uses that have not ended, by part, round and worker. `None` if the dump is of a version that did not record them.
    pub(super) uses: Option<BTreeMap<(PartOfRound, u32), Use>>,
    /// Of which workers something has come of a sum, as far as its events go back.
    came: BTreeSet<(PartOfRound, u32)>,
    /// Of which workers something has come of a use.
    used: BTreeSet<(PartOfRound, u32)>,
    /// Whether older events are missing, because newer ones took their place.
    is_cut: bool,
}

/// A sum.
#[derive(Clone, Default, Debug)]
pub(super) struct Sum {
    pub(super) began_ns: u64,
    /// The workers of which nothing came.
    pub(super) due: BTreeSet<u32>,
    /// Those whose contributions have begun.
    pub(super) begun: BTreeSet<u32>,
    /// Those whose contributions are whole, and that have not taken the sum.
    pub(super) whole: BTreeSet<u32>,
}

/// A use of a parameter, of rows of a table, or of a residual.
#[derive(Clone, Default, Debug)]
pub(super) struct Use {
    pub(super) began_ns: u64,
    pub(super) progress: Progress,
    /// Of a parameter: where its clock must stand; 0 if it has none.
    pub(super) clock_at: u64,
    /// The workers that must push to the table first.
    pub(super) missing: BTreeSet<u32>,
    /// How many others must, that the dump does not name.
    pub(super) others: u64,
}

/// How far a use is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Progress {
    /// Its body comes.
    Begun,
    /// All of it is there, and it is not answered.
    Waits,
    /// All of it is there, and its turn has come.
    ToAnswer,
    /// Its answer is being sent, or the dump does not say.
    #[default]
    Answered,
}

/// What a server knows of a contribution that a worker has handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// Nothing of it has come.
    Never,
    /// It has begun, and is not whole.
    Begun,
    /// It is whole, or the dump does not say.
    Whole,
}

/// What a server knows of a use that a worker has handed over.
#[derive(Clone, Copy, Debug)]
pub(super) enum UseSight<'a> {
    /// Nothing of it has come.
    Never,
    /// It has not ended.
    Open(&'a Use),
    /// It came, and has ended.
    Ended,
    /// The dump does not say.
    Unknown,
}

impl Server {
    /// That of the fields of a dump.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn of(value: &Fields) -> Result<Self, String> {
        let mut server = Self::default();
        let (tensors, events) = (list(value, "tensors")?, list(value, "events")?);
        for event in events {
            let Some([_, what, position, part, round, worker, _, how, ..]) = event.as_array().map(Vec::as_slice) else {
                return Err(short());
            };
            if what.as_str().ok_or_else(other)? == "came"
                && let (Some(part), Some(round), Some(worker)) = (part.as_u64(), round.as_u64(), worker.as_u64())
                && let Ok(worker) = u32::try_from(worker)
            {
                let part = PartOfRound { key: key(tensor(tensors, position)?)?, part, round };
                // What a use does is told with it.
                let came = if how.is_null() { &mut server.came } else { &mut server.used };
                came.insert((part, worker));
            }
        }
        for open in list(value, "open")? {
            let open = object(open)?;
            let part = part_of(open)?;
            let of = |name: &str| ranks(open, name).map(BTreeSet::from_iter);
            let (due, begun, whole) = (of("due")?, of("begun")?, of("whole")?);
            server.sums.insert(part, Sum { began_ns: number(open, "began_ns")?, due, begun, whole });
        }
        if value.contains_key("uses") {
            let uses = list(value, "uses")?.iter().map(|used| Use::of(object(used)?));
            server.uses = Some(uses.collect::<Result<_, String>>()?);
        }
        server.is_cut = optional(value, "events_written").is_some_and(|written| written > events.len() as u64);
        Ok(server)
    }

    /// What it knows of the contribution of a worker.
    pub(super) fn sight(&self, part: PartOfRound, worker: u32) -> Sight {
        match self.sums.get(&part) {
            Some(sum) if sum.due.contains(&worker) => Sight::Never,
            Some(sum) if sum.begun.contains(&worker) => Sight::Begun,
            Some(_) => Sight::Whole,
            None if self.is_cut || self.came.contains(&(part, worker)) => Sight::Whole,
            None => Sight::Never,
        }
    }

    /// What it knows of the use of a worker.
    pub(super) fn sight_of_use(&self, part: PartOfRound, worker: u32) -> UseSight<'_> {
        let Some(uses) = &self.uses else { return UseSight::Unknown };
        match uses.get(&(part, worker)) {
            Some(used) => UseSight::Open(used),
            None if self.used.contains(&(part, worker)) => UseSight::Ended,
            None if self.is_cut => UseSight::Unknown,
            None => UseSight::Never,
        }
    }

    /// The sum that has waited longest for contributions.
    pub(super) fn longest(&self) -> Option<(&PartOfRound, &Sum)> {
        self.sums.iter().filter(|(_, sum)| sum.waits()).min_by_key(|(_, sum)| sum.began_ns)
    }
}

impl Use {
    /// That of the fields of a dump: which one, and whose it is.
    fn of(value: &Fields) -> Result<((PartOfRound, u32), Self), String> {
        let worker = small(value, "worker").ok_or_else(|| "one of its uses has no worker".to_owned())?;
        let progress = match text_of(value, "progress")?.as_str() {
            "begun" => Progress::Begun,
            "waits" | "held" => Progress::Waits,
            "to-answer" => Progress::ToAnswer,
            _ => Progress::Answered,
        };
        let or_none = |name| optional(value, name).unwrap_or_default();
        let (clock_at, missing, others) =
            (or_none("clock_at"), ranks(value, "missing")?.collect(), or_none("missing_others"));
        let began_ns = number(value, "began_ns")?;
        Ok(((part_of(value)?, worker), Self { began_ns, progress, clock_at, missing, others }))
    }
}

impl Sum {
    /// Whether contributions are missing, wholly or in part.
    pub(super) fn waits(&self) -> bool {
        !(self.due.is_empty() && self.begun.is_empty())
    }

    /// The workers for whose contributions it waits.
    pub(super) fn missing(&self) -> Vec<u32> {
        self.due.union(&self.begun).copied().collect()
    }
}

/// The part and the round of something that is open.
fn part_of(open: &Fields) -> Result<PartOfRound, String> {
    let key = key(&text_of(open, "tensor")?)?;
    Ok(PartOfRound { key, part: number(open, "part")?, round: number(open, "round")? })
}

/// The key of a tensor, as servers write it.
fn key(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "one of its tensors has no key".to_owned())
}
