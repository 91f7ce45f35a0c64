//! What is in the dump of a worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gradlane_core::types::TensorKey;
use serde_json::Value;

use super::fields::{Fields, list, number, object, optional, other, ranks, short, tensor, text_of};
use super::head::{Failure, PartOfRound};

/// What a worker did.
#[derive(Clone, Default, Debug)]
pub(super) struct Worker {
    /// The first errors of operations.
    pub(super) errors: Vec<Failure>,
    /// What the coordinator said of rounds that wait: which ranks were missing.
    pub(super) notices: BTreeMap<Round, Notice>,
    /// The rounds of sums that it has submitted, as far as the dump says.
    pub(super) rounds: BTreeMap<Round, Submitted>,
    /// The uses of parameters, tables and residuals that have not ended, or that failed.
    pub(super) uses: BTreeMap<Round, Use>,
    /// The last submission.
    pub(super) last: Option<Last>,
    /// The parts of sums that it has handed over to servers and whose sum did not come.
    pub(super) handed_over: BTreeMap<PartOfRound, HandedOver>,
    /// The parts of uses that it has handed over to servers and that were not answered.
    pub(super) used: BTreeMap<PartOfRound, HandedOver>,
    /// The names of tensors in its events.
    pub(super) tensors: Vec<String>,
    /// Whether older events are missing, because newer ones took their place.
    pub(super) is_cut: bool,
    /// Where the Python program was, if its stacks were written.
    pub(super) stacks: Option<String>,
}

/// A round of a tensor. Of a parameter or a table: a use, by its number on this worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Round {
    pub(super) tensor: String,
    pub(super) round: u64,
}

/// The last submission of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Last {
    pub(super) tensor: String,
    /// `None` if the dump does not say.
    pub(super) round: Option<u64>,
    pub(super) at_ns: u64,
    id: u64,
}

/// Who was missing in a round, as servers saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) missing: BTreeSet<u32>,
    pub(super) detail: String,
}

/// A round that this member has submitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Submitted {
    pub(super) at_ns: u64,
    pub(super) state: State,
}

/// A use of a parameter, of rows of a table, or of a residual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) of: Kept,
    pub(super) at_ns: u64,
    /// Whether it has not ended. If it has, it failed.
    pub(super) is_open: bool,
}

/// What servers keep and workers use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kept {
    Parameter,
    Rows,
    Residual,
}

/// What a submission does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Operation {
    Sum,
    Use(Kept),
}

/// How far a round is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It has not ended: so many parts, how many of them the servers have, how many sums came, and the last server.
    Open { parts: u64, handed_over: u64, answered: u64, server: u64 },
    /// It failed, so its worker has waited in vain. The error, if the dump has it.
    Failed { error: Option<String> },
    /// It ended well, or the dump does not say.
    Ended,
}

/// A part that was handed over: to which server, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HandedOver {
    pub(super) at_ns: u64,
    pub(super) server: u64,
}

impl Operation {
    /// That of a word in a dump. `None` for one that this version does not know.
    fn of_word(word: &str) -> Option<Self> {
        match word {
            "reduce" => Some(Self::Sum),
            "parameter" => Some(Self::Use(Kept::Parameter)),
            "rows" => Some(Self::Use(Kept::Rows)),
            "residual" => Some(Self::Use(Kept::Residual)),
            _ => None,
        }
    }
}

impl Round {
    /// A part of the tensor in this round, which is called by the tensor.
    pub(super) fn part(&self, part: u64) -> PartOfRound {
        PartOfRound { key: TensorKey::of(&self.tensor).0, part, round: self.round }
    }
}

impl Worker {
    /// That of the fields of a dump.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn of(value: &Fields) -> Result<Self, String> {
        let mut worker = Self::default();
        for error in list(value, "errors")? {
            worker.errors.push(Failure::of(object(error)?)?);
        }
        for notice in list(value, "notices")? {
            let notice = object(notice)?;
            let round = Round { tensor: text_of(notice, "tensor")?, round: number(notice, "round")? };
            let missing = ranks(notice, "missing")?.collect();
            worker.notices.insert(round, Notice { missing, detail: text_of(notice, "detail")? });
        }
        let (parts, mut under_way) = worker.read_events(value)?;
        let mut open = BTreeSet::new();
        for operation in list(value, "open")? {
            worker.read_open(object(operation)?, &mut under_way, &mut open)?;
        }
        worker.read_parts(parts, &open);
        Ok(worker)
    }

    /// Whether it has submitted this round of the tensor, or a later one.
    pub(super) fn has_come_to(&self, round: &Round) -> bool {
        self.rounds.range(round.clone()..).next().is_some_and(|(found, _)| found.tensor == round.tensor)
    }

    /// Whether it has submitted any round of the tensor.
    pub(super) fn knows(&self, tensor: &str) -> bool {
        let first = Round { tensor: tensor.to_owned(), round: 0 };
        self.rounds.range(first..).next().is_some_and(|(found, _)| found.tensor == tensor)
    }

    /// The submissions among the events, and how they ended. Returns the parts that were handed over and not answered, and by its number what each
    /// operation submitted whose end is not among the events.
    fn read_events(&mut self, value: &Fields) -> Result<(Parts, BTreeMap<u64, Vec<Submission>>), String> {
        let tensors = list(value, "tensors")?;
        let errors = self.errors.iter().filter_map(|failure| Some((failure.id?, &failure.error)));
        let errors: BTreeMap<u64, String> = errors.map(|(id, error)| (id, error.clone())).collect();
        let events = list(value, "events")?;
        let mut under_way: BTreeMap<u64, Vec<Submission>> = BTreeMap::new();
        let mut handed_over = Parts::new();
        // Tensors that were submitted before this member knew their round: the first event of their part tells it.
        let mut without: BTreeMap<(Operation, String), VecDeque<(u64, u64)>> = BTreeMap::new();
        for event in events {
            let Some([at, what, position, round, id, stage, how, server, _, operation, ..]) =
                event.as_array().map(Vec::as_slice)
            else {
                return Err(short());
            };
            let (Some(at_ns), Some(what), Some(id)) = (at.as_u64(), what.as_str(), id.as_u64()) else {
                return Err(other());
            };
            let name = || tensor(tensors, position).map(str::to_owned);
            match (what, operation.as_str().and_then(Operation::of_word), round.as_u64()) {
                ("submitted", Some(operation), round) => {
                    let tensor = name()?;
                    self.last = Some(Last { tensor: tensor.clone(), round, at_ns, id });
                    match round {
                        Some(round) => {
                            let submission = self.submit(operation, Round { tensor, round }, at_ns);
                            under_way.entry(id).or_default().push(submission);
                        }
                        None => without.entry((operation, tensor)).or_default().push_back((id, at_ns)),
                    }
                }
                ("queued", Some(operation), Some(round)) => {
                    let of = (operation, name()?);
                    if let Some((id, at_ns)) = without.get_mut(&of).and_then(VecDeque::pop_front) {
                        if let Some(last) = self.last.as_mut().filter(|last| last.id == id) {
                            last.round = Some(round);
                        }
                        let submission = self.submit(operation, Round { tensor: of.1, round }, at_ns);
                        under_way.entry(id).or_default().push(submission);
                    }
                }
                ("finished", Some(operation), Some(round)) => {
                    let part = (operation, Round { tensor: name()?, round }, id);
                    match (stage.as_str(), how.as_str()) {
                        (Some("PUSH"), Some("done")) => {
                            let server = server.as_u64().ok_or_else(other)?;
                            handed_over.insert(part, HandedOver { at_ns, server });
                        }
                        // It has its sum, or goes back to PUSH.
                        (Some("PULL"), Some("done" | "again")) => drop(handed_over.remove(&part)),
                        _ => {}
                    }
                }
                ("resolved", _, _) => {
                    let end = match how.as_str() {
                        Some("failed") => State::Failed { error: errors.get(&id).cloned() },
                        _ => State::Ended,
                    };
                    for submission in under_way.remove(&id).unwrap_or_default() {
                        self.resolve(submission, end.clone());
                    }
                }
                _ => {}
            }
        }
        self.tensors = tensors.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        self.is_cut = optional(value, "events_written").is_some_and(|written| written > events.len() as u64);
        Ok((handed_over, under_way))
    }

    /// A round was submitted. It has ended unless the dump says otherwise, because the event of its end may be lost.
    fn submit(&mut self, operation: Operation, round: Round, at_ns: u64) -> Submission {
        if operation == Operation::Sum {
            self.rounds.insert(round.clone(), Submitted { at_ns, state: State::Ended });
        }
        Submission { operation, round, at_ns }
    }

    /// A submission has come to this end.
    fn resolve(&mut self, Submission { operation, round, at_ns }: Submission, end: State) {
        match operation {
            Operation::Sum => drop(self.rounds.insert(round, Submitted { at_ns, state: end })),
            Operation::Use(_) if end == State::Ended => drop(self.uses.remove(&round)),
            Operation::Use(of) => drop(self.uses.insert(round, Use { of, at_ns, is_open: false })),
        }
    }

    /// An operation that has not ended. Events name the tensors of it that are `under_way`; the dump itself names the first one. Adds the rounds of
    /// its sums to `sums`.
    fn read_open(
        &mut self,
        open: &Fields,
        under_way: &mut BTreeMap<u64, Vec<Submission>>,
        sums: &mut BTreeSet<Round>,
    ) -> Result<(), String> {
        let operation = text_of(open, "operation").ok().and_then(|word| Operation::of_word(&word));
        let (id, at_ns) = (number(open, "id")?, number(open, "submitted_ns")?);
        let mut submissions = under_way.remove(&id).unwrap_or_default();
        if let Some((operation, round)) = operation.zip(optional(open, "round")) {
            let round = Round { tensor: text_of(open, "tensor")?, round };
            if operation == Operation::Sum {
                let state = State::Open {
                    parts: number(open, "parts")?,
                    handed_over: number(open, "handed_over")?,
                    answered: number(open, "answered")?,
                    server: number(open, "server")?,
                };
                self.rounds.insert(round.clone(), Submitted { at_ns, state });
            }
            submissions.push(Submission { operation, round, at_ns });
        }
        for Submission { operation, round, at_ns } in submissions {
            match operation {
                Operation::Sum => drop(sums.insert(round)),
                Operation::Use(of) => drop(self.uses.insert(round, Use { of, at_ns, is_open: true })),
            }
        }
        Ok(())
    }

    /// The parts that wait for servers: what has ended well waits for none. `open` are the sums that have not ended.
    fn read_parts(&mut self, parts: Parts, open: &BTreeSet<Round>) {
        for ((operation, round, part), handed_over) in parts {
            let of = round.part(part);
            let failed = || self.rounds.get(&round).is_some_and(|sum| matches!(sum.state, State::Failed { .. }));
            match operation {
                Operation::Sum if open.contains(&round) || failed() => drop(self.handed_over.insert(of, handed_over)),
                Operation::Use(_) if self.uses.contains_key(&round) => drop(self.used.insert(of, handed_over)),
                Operation::Sum | Operation::Use(_) => {}
            }
        }
    }
}

/// Parts of operations in a round that were handed over and not answered. A use of the residual of a sum has the parts and the round of that sum.
type Parts = BTreeMap<(Operation, Round, u64), HandedOver>;

/// A tensor that was submitted.
#[derive(Debug)]
struct Submission {
    operation: Operation,
    round: Round,
    at_ns: u64,
}
