//! What is in the dump of one member. A dump may come from anywhere, so everything in it is checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use gradlane_core::engine::FLIGHT_FORM;
use serde_json::{Map, Value};

/// A file of a directory with dumps: what it says, or why it cannot be used.
pub(super) struct Found {
    /// Its name, for people.
    pub(super) file: String,
    pub(super) content: Result<Dump, String>,
}

/// The dump of one member.
#[derive(Clone, Default, Debug)]
pub(super) struct Dump {
    pub(super) job: String,
    /// The rank; `None` if it had none.
    pub(super) rank: Option<u32>,
    pub(super) host: String,
    pub(super) pid: u64,
    pub(super) version: String,
    pub(super) epoch: Option<String>,
    /// How many workers the job had.
    pub(super) workers: Option<u32>,
    pub(super) reason: String,
    /// When it was made, by its own clock.
    pub(super) now_ns: u64,
    /// Why the work of this member ended, if it has.
    pub(super) end: Option<Failure>,
    /// The first errors of operations.
    pub(super) errors: Vec<Failure>,
    /// What the coordinator said of rounds that wait: which ranks were missing.
    pub(super) notices: BTreeMap<Round, Notice>,
    /// The rounds of sums that this member has submitted, as far as the dump says.
    pub(super) rounds: BTreeMap<Round, Submitted>,
    /// The last submission.
    pub(super) last: Option<Last>,
    /// Whether older events are missing, because newer ones took their place.
    pub(super) is_cut: bool,
    /// Where the Python program was, if its stacks were written.
    pub(super) stacks: Option<String>,
}

/// A round of a tensor.
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

/// An error, and when it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) at_ns: u64,
    pub(super) error: String,
    /// Whether something was not done in time.
    is_late: bool,
    /// The number of the operation.
    id: Option<u64>,
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

/// How far a round is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It has not ended: so many parts, how many of them the servers have, how many sums came, and the last server.
    Open { parts: u64, handed_over: u64, answered: u64, server: u64 },
    /// It was not done in time.
    Late,
    /// It ended otherwise.
    Ended,
}

impl Dump {
    /// The dump in a file.
    ///
    /// # Errors
    /// Why it is none that this version can read.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => "it is cut off: copy it again, or have it written again".to_owned(),
            false => format!("it is no dump: {error}"),
        })?;
        let Value::Object(value) = value else { return Err("it is no dump: it has no fields".to_owned()) };
        let (form, version) = (text_of(&value, "form")?, text_of(&value, "version").unwrap_or_default());
        if form != FLIGHT_FORM {
            return Err(format!(
                "it is a dump of the form {form}, and this is {FLIGHT_FORM}: read it with Gradlane {version}"
            ));
        }
        let mut dump = Self {
            job: text_of(&value, "job")?,
            rank: optional(&value, "index").and_then(|rank| u32::try_from(rank).ok()),
            host: text_of(&value, "host")?,
            pid: number(&value, "pid")?,
            version,
            epoch: text_of(&value, "epoch").ok(),
            workers: optional(&value, "workers").and_then(|workers| u32::try_from(workers).ok()),
            reason: text_of(&value, "reason")?,
            now_ns: number(&value, "now_ns")?,
            end: value.get("end").and_then(Value::as_object).map(failure).transpose()?,
            ..Self::default()
        };
        for error in list(&value, "errors")? {
            dump.errors.push(failure(object(error)?)?);
        }
        for notice in list(&value, "notices")? {
            let notice = object(notice)?;
            let round = Round { tensor: text_of(notice, "tensor")?, round: number(notice, "round")? };
            let missing = list(notice, "missing")?.iter().filter_map(Value::as_u64);
            let missing = missing.filter_map(|rank| u32::try_from(rank).ok()).collect();
            dump.notices.insert(round, Notice { missing, detail: text_of(notice, "detail")? });
        }
        dump.read_events(&value)?;
        for open in list(&value, "open")? {
            dump.read_open(object(open)?)?;
        }
        Ok(dump)
    }

    /// The time from `at_ns` to the dump.
    pub(super) fn ago(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(at_ns))
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

    /// The submissions among the events, and how they ended.
    fn read_events(&mut self, value: &Map<String, Value>) -> Result<(), String> {
        let tensors = list(value, "tensors")?;
        let late: BTreeSet<u64> =
            self.errors.iter().filter(|error| error.is_late).filter_map(|error| error.id).collect();
        let events = list(value, "events")?;
        let mut under_way: BTreeMap<u64, Vec<Round>> = BTreeMap::new();
        // Tensors that were submitted before this member knew their round: the first event of their part tells it.
        let mut without: BTreeMap<String, VecDeque<(u64, u64)>> = BTreeMap::new();
        for event in events {
            let Some([at, what, tensor, round, id, _, how, ..]) = event.as_array().map(Vec::as_slice) else {
                return Err("one of its events has not enough fields".to_owned());
            };
            let (Some(at_ns), Some(what), Some(id)) = (at.as_u64(), what.as_str(), id.as_u64()) else {
                return Err("one of its events has other fields".to_owned());
            };
            let name = || {
                let name = tensor.as_u64().and_then(|at| tensors.get(usize::try_from(at).ok()?)?.as_str());
                name.map(str::to_owned)
                    .ok_or_else(|| "one of its events is of a tensor that it does not name".to_owned())
            };
            match (what, round.as_u64()) {
                ("submitted", round) if how == "reduce" => {
                    let tensor = name()?;
                    self.last = Some(Last { tensor: tensor.clone(), round, at_ns, id });
                    match round {
                        Some(round) => self.submit(Round { tensor, round }, at_ns, id, &mut under_way),
                        None => without.entry(tensor).or_default().push_back((id, at_ns)),
                    }
                }
                ("queued", Some(round)) => {
                    let tensor = name()?;
                    if let Some((id, at_ns)) = without.get_mut(&tensor).and_then(VecDeque::pop_front) {
                        if let Some(last) = self.last.as_mut().filter(|last| last.id == id) {
                            last.round = Some(round);
                        }
                        self.submit(Round { tensor, round }, at_ns, id, &mut under_way);
                    }
                }
                ("resolved", _) => {
                    let is_late = late.contains(&id);
                    for round in under_way.remove(&id).unwrap_or_default() {
                        if let Some(submitted) = self.rounds.get_mut(&round).filter(|_| is_late) {
                            submitted.state = State::Late;
                        }
                    }
                }
                _ => {}
            }
        }
        self.is_cut = optional(value, "events_written").is_some_and(|written| written > events.len() as u64);
        Ok(())
    }

    fn submit(&mut self, round: Round, at_ns: u64, id: u64, under_way: &mut BTreeMap<u64, Vec<Round>>) {
        self.rounds.insert(round.clone(), Submitted { at_ns, state: State::Ended });
        under_way.entry(id).or_default().push(round);
    }

    fn read_open(&mut self, open: &Map<String, Value>) -> Result<(), String> {
        let Some(round) = optional(open, "round").filter(|_| text_of(open, "operation").as_deref() == Ok("reduce"))
        else {
            return Ok(());
        };
        let round = Round { tensor: text_of(open, "tensor")?, round };
        let state = State::Open {
            parts: number(open, "parts")?,
            handed_over: number(open, "handed_over")?,
            answered: number(open, "answered")?,
            server: number(open, "server")?,
        };
        self.rounds.insert(round, Submitted { at_ns: number(open, "submitted_ns")?, state });
        Ok(())
    }
}

fn failure(value: &Map<String, Value>) -> Result<Failure, String> {
    let (at_ns, id) = (number(value, "at_ns")?, optional(value, "id"));
    let is_late = value.get("late").and_then(Value::as_bool).unwrap_or_default();
    Ok(Failure { at_ns, error: text_of(value, "error")?, is_late, id })
}

fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    value.as_object().ok_or_else(|| "one of its entries has no fields".to_owned())
}

fn list<'a>(value: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], String> {
    let list = value.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| format!("it has no list {name}"))
}

fn number(value: &Map<String, Value>, name: &str) -> Result<u64, String> {
    optional(value, name).ok_or_else(|| format!("it has no number {name}"))
}

fn optional(value: &Map<String, Value>, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn text_of(value: &Map<String, Value>, name: &str) -> Result<String, String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("it has no text {name}"))
}
