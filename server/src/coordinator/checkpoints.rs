//! Saves and loads of the parameters of a job: one at a time, for whichever worker or operator asks.
//!
//! ```text
//! save: asked ──► Begins ──a directory──► Obeys (servers write) ──► Publishes ──► answered
//! load: asked ──► Looks ──a manifest──► Obeys (servers read) ──► Obeys (servers apply) ──► answered
//! ```
//!
//! The disk is the driver's: see [`Disk`]. A server that was away gets its order again. Whoever asks again, because it has lost its connection,
//! waits for the same answer.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    CheckpointAsk, Checkpointed, ClockKey, ClockStep, Contents, LoadAsk, Missing, Order, PartLayout, Plan, SaveAsk,
    ServerId, Task, TensorSpec, Time, Written,
};

use super::asker::Asker;
use super::registry::Parameters;

/// The machine.
#[derive(Default, Debug)]
pub(super) struct Checkpoints {
    open: Option<Open>,
    /// The last one that was answered.
    answered: Option<Answer>,
    /// The number of the last order.
    number: u64,
}

/// A save or a load that is under way.
#[derive(Debug)]
struct Open {
    number: u64,
    asker: Asker,
    request: u64,
    ask: CheckpointAsk,
    since: Time,
    until: Time,
    tensors: Vec<TensorSpec>,
    parts: Vec<PartLayout>,
    /// The checkpoint, once it is known.
    found: Option<Found>,
    /// How far the clocks are when the servers get their orders.
    frozen: Vec<ClockStep>,
    /// What servers have not obeyed yet.
    orders: BTreeMap<ServerId, Task>,
    /// What the others have done.
    written: BTreeMap<ServerId, Written>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The driver makes a directory, or looks for one.
    Looks,
    /// Servers write or read.
    Obeys,
    /// The driver makes the checkpoint whole.
    Publishes,
    /// Servers apply what they have read.
    Applies,
}

/// Work on files, for the driver. It is answered by [`Checkpoints::handle_disk`] with the same number.
#[derive(Clone, PartialEq, Debug)]
pub struct Disk {
    /// The number of the save or the load.
    pub number: u64,
    /// What to do.
    pub task: DiskTask,
}

/// What the driver does with files.
#[derive(Clone, PartialEq, Debug)]
pub enum DiskTask {
    /// Make the directory of the next checkpoint below this path.
    Begin {
        /// As the worker has given it.
        path: String,
    },
    /// Make a checkpoint whole.
    Publish {
        /// What it has.
        contents: Contents,
        /// How many to keep.
        keep: Option<u32>,
    },
    /// Remove what was begun. This is not answered.
    GiveUp,
    /// Look for a whole checkpoint.
    Find {
        /// As the worker has given it.
        path: String,
        /// Which one; `None` for the latest.
        checkpoint: Option<u64>,
        /// Whether it is no error if there is none.
        if_any: bool,
    },
    /// The checkpoint that was found is loaded: later saves go on with those of its directory. This is not answered.
    GoOn,
}

/// What the driver has done with files.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// The directory of a checkpoint was made.
    Begun {
        /// Its number.
        checkpoint: u64,
        /// Its path below `checkpoint_dir`.
        directory: String,
    },
    /// A checkpoint is whole.
    Published,
    /// There is no checkpoint, which is no error.
    Nothing,
    /// A checkpoint was found.
    Whole {
        /// Its path below `checkpoint_dir`.
        directory: String,
        /// What it has.
        contents: Contents,
    },
}

/// The end of a wait.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) asker: Asker,
    pub(super) request: u64,
    pub(super) outcome: Result<Checkpointed>,
}

/// What follows from an input.
#[derive(Default, PartialEq, Debug)]
pub(super) struct Turn {
    pub(super) disk: Option<Disk>,
    pub(super) orders: Vec<(ServerId, Order)>,
    pub(super) answer: Option<Answer>,
    /// All servers have read: [`Checkpoints::apply`] follows.
    pub(super) applies: bool,
    /// Of each clock the global step that the job goes back to then.
    pub(super) steps: Vec<ClockStep>,
}

impl Checkpoints {
    /// A worker or an operator asks, perhaps not for the first time.
    pub(super) fn ask(
        &mut self,
        now: Time,
        (asker, request): (Asker, u64),
        ask: CheckpointAsk,
        parameters: Parameters,
    ) -> Turn {
        if self.open.as_ref().is_some_and(|open| (open.asker, open.request) == (asker, request)) {
            return Turn::default();
        }
        let again = self.answered.as_ref().filter(|answer| (answer.asker, answer.request) == (asker, request));
        if let Some(answer) = again {
            return Turn::answer(answer.clone());
        }
        if let Some(error) = self.refusal(&ask, &parameters) {
            return Turn::answer(Answer { asker, request, outcome: Err(error) });
        }
        // Later than those of a coordinator that led this job before.
        self.number = now.0.max(self.number + 1);
        let number = self.number;
        let (task, wait) = match &ask {
            CheckpointAsk::Save(SaveAsk { path, wait, .. }) => (DiskTask::Begin { path: path.clone() }, *wait),
            CheckpointAsk::Load(LoadAsk { path, checkpoint, if_any, wait, .. }) => {
                (DiskTask::Find { path: path.clone(), checkpoint: *checkpoint, if_any: *if_any }, *wait)
            }
        };
        let Parameters { tensors, parts, table: _ } = parameters;
        self.open = Some(Open {
            number,
            asker,
            request,
            ask,
            since: now,
            until: now + wait,
            tensors,
            parts,
            found: None,
            frozen: Vec::new(),
            orders: BTreeMap::new(),
            written: BTreeMap::new(),
            stage: Stage::Looks,
        });
        Turn { disk: Some(Disk { number, task }), ..Turn::default() }
    }

    fn refusal(&self, ask: &CheckpointAsk, parameters: &Parameters) -> Option<Error> {
        let leaves_tables_out = matches!(ask, CheckpointAsk::Save(SaveAsk { tables_apart: false, .. }));
        if let (true, Some(table)) = (leaves_tables_out, &parameters.table) {
            return Some(Error::FailedPrecondition {
                what: format!("the job has the table {table}, and checkpoints have parameters alone"),
                hint: "save tables by Table.save, and parameters with tables_apart=True".to_owned(),
            });
        }
        if let Some(open) = &self.open {
            return Some(Error::FailedPrecondition {
                what: format!("{} is {}", open.asker, open.described()),
                hint: "wait for its end; one worker saves for all".to_owned(),
            });
        }
        parameters.tensors.is_empty().then(|| Error::FailedPrecondition {
            what: "no parameter of this job lives on servers".to_owned(),
            hint: "declare the parameters first; sums have nothing to save".to_owned(),
        })
    }

    /// The driver has done its work. `steps` says how far the clocks are now.
    pub(super) fn handle_disk(&mut self, number: u64, outcome: Result<Found>, steps: Vec<ClockStep>) -> Turn {
        let Some(open) = self.open.as_mut().filter(|open| open.number == number) else { return Turn::default() };
        let begun = match (outcome, open.stage) {
            (Err(error), _) => return self.end(Err(error)),
            (Ok(Found::Published), Stage::Publishes) => {
                let outcome = open.saved();
                return self.end(Ok(outcome));
            }
            (Ok(Found::Nothing), Stage::Looks) => return self.end(Ok(Checkpointed::nothing())),
            (Ok(found), Stage::Looks) => {
                open.frozen = steps;
                open.begin(found)
            }
            (Ok(_), _) => return Turn::default(),
        };
        match begun {
            Ok(()) => self.give_orders(),
            Err(error) => self.end(Err(error)),
        }
    }

    /// A server has obeyed, or cannot.
    pub(super) fn handle_obeyed(&mut self, server: ServerId, number: u64, outcome: Result<Written>) -> Turn {
        let Some(open) = self.open.as_mut().filter(|open| open.number == number) else { return Turn::default() };
        // Another server's part may have come first, or this one's again.
        if open.orders.remove(&server).is_none() {
            return Turn::default();
        }
        match outcome {
            Ok(written) => {
                if open.stage == Stage::Obeys {
                    open.written.insert(server, written);
                }
            }
            Err(error) => return self.end(Err(error)),
        }
        if !open.orders.is_empty() {
            return Turn::default();
        }
        match (open.stage, &open.ask) {
            (Stage::Obeys, CheckpointAsk::Save(SaveAsk { keep, .. })) => {
                let keep = *keep;
                match open.contents() {
                    Ok(contents) => {
                        open.stage = Stage::Publishes;
                        let task = DiskTask::Publish { contents, keep };
                        Turn { disk: Some(Disk { number, task }), ..Turn::default() }
                    }
                    Err(error) => self.end(Err(error)),
                }
            }
            (Stage::Obeys, CheckpointAsk::Load(_)) => {
                open.stage = Stage::Applies;
                let steps = open.whole().1.steps.clone();
                Turn { applies: true, steps, ..Turn::default() }
            }
            (Stage::Applies, _) => {
                let outcome = open.loaded();
                Turn { disk: Some(Disk { number, task: DiskTask::GoOn }), ..self.end(Ok(outcome)) }
            }
            (Stage::Looks | Stage::Publishes, _) => Turn::default(),
        }
    }

    /// All servers have read: they apply it, and clocks go on with these bases.
    pub(super) fn apply(&mut self, bases: &[ClockStep]) -> Turn {
        let Some(open) = &mut self.open else { return Turn::default() };
        open.orders = open.written.keys().map(|server| (*server, Task::Apply { bases: bases.to_vec() })).collect();
        self.orders()
    }

    /// A server has connected: its order, if it has not obeyed it.
    pub(super) fn order_for(&self, server: ServerId) -> Option<Order> {
        let open = self.open.as_ref()?;
        open.orders.get(&server).map(|task| Order { number: open.number, task: task.clone() })
    }

    /// Ends what has taken too long. What servers apply is not given up: they have all that they need.
    pub(super) fn expire(&mut self, now: Time) -> Turn {
        let late = self.open.as_ref().filter(|open| open.until <= now && open.stage != Stage::Applies);
        let Some(open) = late else { return Turn::default() };
        let names: Vec<String> = open.orders.keys().map(ServerId::to_string).collect();
        let waits = match names.as_slice() {
            [] => "the disk of the coordinator has not answered".to_owned(),
            names => format!("{} have not answered", names.join(", ")),
        };
        let what = format!("{}: {waits}", open.described());
        let waited = now.since(open.since);
        self.end(Err(Error::Timeout { what, waited }))
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.open.as_ref().filter(|open| open.stage != Stage::Applies).map(|open| open.until)
    }

    /// The job failed.
    pub(super) fn fail(&mut self, cause: &Error) -> Turn {
        match self.open {
            Some(_) => Turn { orders: Vec::new(), ..self.end(Err(cause.clone())) },
            None => Turn::default(),
        }
    }

    fn give_orders(&mut self) -> Turn {
        let open = self.open.as_mut().expect("it has begun");
        match open.orders.is_empty() {
            // Nothing of it has bytes.
            true => {
                let error = Error::FailedPrecondition {
                    what: "no parameter of this job has elements".to_owned(),
                    hint: "there is nothing to save or to load".to_owned(),
                };
                self.end(Err(error))
            }
            false => self.orders(),
        }
    }

    fn orders(&self) -> Turn {
        let open = self.open.as_ref().expect("it is under way");
        let order = |(server, task): (&ServerId, &Task)| (*server, Order { number: open.number, task: task.clone() });
        Turn { orders: open.orders.iter().map(order).collect(), ..Turn::default() }
    }

    /// Answers the worker. A save that has failed leaves nothing, and of a load that has failed nothing is applied.
    fn end(&mut self, outcome: Result<Checkpointed>) -> Turn {
        let Some(open) = self.open.take() else { return Turn::default() };
        let mut turn = Turn::default();
        if outcome.is_err() {
            match open.ask {
                CheckpointAsk::Save(_) if open.found.is_some() => {
                    turn.disk = Some(Disk { number: open.number, task: DiskTask::GiveUp });
                }
                CheckpointAsk::Save(_) => {}
                CheckpointAsk::Load(_) => {
                    let servers = open.orders.keys().chain(open.written.keys());
                    let cancel = |server: &ServerId| (*server, Order { number: open.number, task: Task::Cancel });
                    turn.orders = servers.map(cancel).collect();
                }
            }
        }
        let answer = Answer { asker: open.asker, request: open.request, outcome };
        self.answered = Some(answer.clone());
        turn.answer = Some(answer);
        turn
    }
}

impl Open {
    /// The checkpoint is known: what each server is to do.
    fn begin(&mut self, found: Found) -> Result<()> {
        match (&found, &self.ask) {
            (Found::Begun { checkpoint, directory }, CheckpointAsk::Save(_)) => {
                for (server, plan) in self.plans(|_| true)? {
                    let (directory, checkpoint) = (directory.clone(), *checkpoint);
                    self.orders.insert(server, Task::Save { directory, checkpoint, plan });
                }
            }
            (Found::Whole { directory, contents }, CheckpointAsk::Load(ask)) => {
                let lacking = contents.compare(&self.tensors, ask)?;
                let is_read = |tensor: &TensorSpec| ask.missing == Missing::Zero || !lacking.contains(&tensor.name);
                for (server, plan) in self.plans(is_read)? {
                    let (directory, with_state) = (directory.clone(), ask.with_state);
                    self.orders.insert(server, Task::Read { directory, with_state, plan });
                }
            }
            (_, _) => unreachable!("the driver answers what it was asked"),
        }
        self.found = Some(found);
        self.stage = Stage::Obeys;
        Ok(())
    }

    /// What each server has of the tensors that are wanted.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if one that is wanted shares a part with one that is not.
    fn plans(&self, is_wanted: impl Fn(&TensorSpec) -> bool) -> Result<BTreeMap<ServerId, Plan>> {
        let mut plans: BTreeMap<ServerId, Plan> = BTreeMap::new();
        for layout in &self.parts {
            let of_part = |tensor: &&TensorSpec| layout.pieces.iter().any(|piece| piece.tensor == tensor.key());
            let (wanted, unwanted): (Vec<&TensorSpec>, Vec<&TensorSpec>) =
                self.tensors.iter().filter(of_part).partition(|tensor| is_wanted(tensor));
            match (wanted.as_slice(), unwanted.first()) {
                ([], _) => continue,
                ([first, ..], Some(second)) => {
                    return Err(Error::FailedPrecondition {
                        what: format!("{} is missing and shares a part with {}", second.name, first.name),
                        hint: "load missing parameters as zero, or declare them one by one".to_owned(),
                    });
                }
                (_, None) => {}
            }
            let plan = plans.entry(layout.server).or_default();
            plan.parts.push(layout.clone());
            for tensor in wanted {
                if !plan.tensors.iter().any(|there| there.name == tensor.name) {
                    plan.tensors.push(tensor.clone());
                }
            }
        }
        Ok(plans)
    }

    /// What the servers have written.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if they have frozen different rounds.
    fn contents(&self) -> Result<Contents> {
        let CheckpointAsk::Save(SaveAsk { notes, .. }) = &self.ask else { unreachable!("a load publishes nothing") };
        let Some(Found::Begun { checkpoint, .. }) = self.found else { unreachable!("a save has a directory") };
        let mut rounds: BTreeMap<ClockKey, u64> = BTreeMap::new();
        for at in self.written.values().flat_map(|written| &written.rounds) {
            if rounds.insert(at.clock, at.step).is_some_and(|before| before != at.step) {
                return Err(Error::FailedPrecondition {
                    what: "a server was away while it was to be frozen, and has other rounds than the others"
                        .to_owned(),
                    hint: "save again".to_owned(),
                });
            }
        }
        Ok(Contents {
            checkpoint,
            tensors: self.tensors.clone(),
            tables: self.written.values().filter_map(|written| written.table.clone()).collect(),
            steps: self.frozen.clone(),
            notes: notes.clone(),
        })
    }

    fn saved(&self) -> Checkpointed {
        let Some(Found::Begun { checkpoint, ref directory }) = self.found else { unreachable!("it was published") };
        let CheckpointAsk::Save(SaveAsk { notes, .. }) = &self.ask else { unreachable!("a load publishes nothing") };
        Checkpointed {
            checkpoint,
            directory: directory.clone(),
            tensors: self.tensors.len() as u64,
            bytes: self.bytes(),
            // With the manifest.
            files: self.written.values().map(|written| written.files).sum::<u64>() + 1,
            steps: self.frozen.clone(),
            notes: notes.clone(),
        }
    }

    fn loaded(&self) -> Checkpointed {
        let (directory, contents) = self.whole();
        Checkpointed {
            checkpoint: contents.checkpoint,
            directory: directory.to_owned(),
            tensors: self.tensors.iter().filter(|tensor| contents.tensor(&tensor.name).is_some()).count() as u64,
            bytes: self.bytes(),
            files: contents.tables.len() as u64 + 1,
            steps: contents.steps.clone(),
            notes: contents.notes.clone(),
        }
    }

    fn whole(&self) -> (&str, &Contents) {
        let Some(Found::Whole { directory, contents }) = &self.found else { unreachable!("servers have read it") };
        (directory, contents)
    }

    fn bytes(&self) -> u64 {
        self.written.values().map(|written| written.bytes).sum()
    }

    fn described(&self) -> String {
        match &self.ask {
            CheckpointAsk::Save(SaveAsk { path, .. }) => format!("saving a checkpoint in {path}"),
            CheckpointAsk::Load(LoadAsk { path, .. }) => format!("loading a checkpoint of {path}"),
        }
    }
}

impl Turn {
    fn answer(answer: Answer) -> Self {
        Self { answer: Some(answer), ..Self::default() }
    }
}
