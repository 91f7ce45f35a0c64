//! Clocks: what keeps the workers of a parameter's mode together.
//!
//! A worker *ticks* a clock when it has finished a round: after its changes of this round were answered. The coordinator counts the
//! rounds of each worker, and decides how long a worker waits, and which workers close a round.

use std::time::Duration;

use super::{CheckpointAsk, Checkpointed, ClockKey, Fate, LoadAsk, Mode, SaveAsk, StoreAnswer, StoreAsk, WorkerSet};

/// A worker has finished a round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tick {
    /// The name of the clock.
    pub clock: String,
    /// The mode of the clock, equal on all workers. Its own clock is this one.
    pub mode: Mode,
    /// The round, from 1. Said again with the same number, it is the same tick.
    pub round: u64,
    /// The samples from which its changes of the round were computed. In a mode with rounds, schedules may follow them.
    pub samples: u64,
    /// Whether this worker ticks the clock no more, and nobody waits for it. Then the round does not count.
    pub leaves: bool,
    /// How long this worker waits if it has to; `None` to go on before the others are there, which only a mode without rounds allows.
    pub wait: Option<Duration>,
}

/// The answer to a [`Tick`]: this worker may begin its next round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticked {
    /// The round that is finished. In a mode with rounds it may be later than that of the tick, if others have closed rounds without
    /// this worker.
    pub round: u64,
    /// The global step: the rounds that were closed, or without those the ticks of all workers.
    pub step: u64,
    /// How many rounds the slowest worker is behind this one.
    pub ahead: u64,
    /// [`Fate::DroppedLate`] if the round was closed without this worker.
    pub fate: Fate,
}

/// The coordinator closes a round. All servers hear of it by the same words in the same order, on the links on which they hear everything else
/// that the coordinator decides. So whatever it says between two of these words falls between the same two versions on all of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Closing {
    /// Of which clock.
    pub clock: ClockKey,
    /// Which round.
    pub round: u64,
    /// What it says of the round.
    pub half: Half,
}

/// What a [`Closing`] says. Most rounds are closed by the first half alone.
#[derive(Clone, PartialEq, Debug)]
pub enum Half {
    /// Which gradients count.
    Workers {
        /// Those of these workers. A server drops all others.
        workers: WorkerSet,
        /// Whether they are clipped by their norm. Then each server says its [`Squares`] and applies the round after the second half. It
        /// applies other rounds at once.
        clips: bool,
        /// The samples of the rounds before, of the workers whose gradients counted.
        samples: u64,
    },
    /// The second half of a round that is clipped: servers apply it.
    Norm(f64),
}

/// A server's share of the norm of a round whose gradients are clipped.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Squares {
    /// Of which clock.
    pub clock: ClockKey,
    /// Which round.
    pub round: u64,
    /// The sum of the squares of the round's gradient over the elements that this server keeps, of the parameters that are clipped. Infinite if
    /// an element is not finite.
    pub sum: f64,
}

/// What a worker asks the coordinator, beside declarations and barriers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Something of the key-value store.
    Store(StoreAsk),
    /// To begin its next round.
    Tick(Tick),
    /// To save or load a checkpoint.
    Checkpoint(CheckpointAsk),
}

/// What an [`Ask`] is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// By the key-value store.
    Store(StoreAnswer),
    /// By a clock.
    Ticked(Ticked),
    /// By a checkpoint that is whole, or loaded.
    Checkpointed(Checkpointed),
}

impl From<StoreAsk> for Ask {
    fn from(ask: StoreAsk) -> Self {
        Self::Store(ask)
    }
}

impl Ask {
    /// Whether it can change something, so that it must not happen twice.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Store(ask) => ask.is_change(),
            Self::Tick(_) | Self::Checkpoint(_) => true,
        }
    }

    /// Whether an answer is of the kind that this request has.
    pub fn is_answered_by(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Store(ask), Answer::Store(answer)) => ask.is_answered_by(answer),
            (Self::Tick(_), Answer::Ticked(_)) | (Self::Checkpoint(_), Answer::Checkpointed(_)) => true,
            (Self::Store(_) | Self::Tick(_) | Self::Checkpoint(_), _) => false,
        }
    }

    /// The same with so much time left to wait, if it waits.
    #[must_use]
    pub fn with_wait(mut self, left: Duration) -> Self {
        if let Self::Store(StoreAsk::Get { wait: Some(wait), .. })
        | Self::Tick(Tick { wait: Some(wait), .. })
        | Self::Checkpoint(CheckpointAsk::Save(SaveAsk { wait, .. }) | CheckpointAsk::Load(LoadAsk { wait, .. })) =
            &mut self
        {
            *wait = left;
        }
        self
    }

    /// What it is about, for people.
    pub fn described(&self) -> String {
        match self {
            Self::Store(ask) => format!("key {key:?} of the store", key = ask.key()),
            Self::Tick(Tick { clock: name, leaves: true, .. }) => format!("leaving clock {name:?}"),
            Self::Tick(Tick { clock: name, round, .. }) => format!("round {round} of clock {name:?}"),
            Self::Checkpoint(CheckpointAsk::Save(SaveAsk { path, .. })) => format!("saving a checkpoint in {path}"),
            Self::Checkpoint(CheckpointAsk::Load(LoadAsk { path, .. })) => format!("loading a checkpoint of {path}"),
        }
    }
}
