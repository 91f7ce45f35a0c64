//! Reductions under way whose sums are checked, for tests that are about something else.

use gradlane_core::Result;
use gradlane_core::engine::{Engine, Handle};
use gradlane_core::types::{Op, Participants, WorkerId, WorkerSet};

use crate::cluster::Tensor;
use crate::digits;

/// One reduction under way. Dropping it gives it up.
pub struct Reduction {
    tensor: Tensor,
    handle: Handle,
    workers: u32,
    round: u64,
}

/// Begins to reduce `len` elements under `name`; what this worker contributes tells its rank and the round ([`digits`]).
///
/// # Errors
/// As [`Engine::push_pull`].
pub fn begin(engine: &Engine, name: &str, round: u64, len: usize) -> Result<Reduction> {
    begin_among(engine, name, round, len, Participants::ALL)
}

/// The same among the workers of ranks 0 and 1.
///
/// # Errors
/// As [`Engine::push_pull`].
pub fn begin_of_two(engine: &Engine, name: &str, round: u64, len: usize) -> Result<Reduction> {
    let pair = [0, 1].map(WorkerId).into_iter().collect::<WorkerSet>();
    let participants = if engine.size() == 2 { Participants::ALL } else { Participants::of(pair) };
    begin_among(engine, name, round, len, participants)
}

fn begin_among(engine: &Engine, name: &str, round: u64, len: usize, participants: Participants) -> Result<Reduction> {
    let mut tensor = Tensor::new(name, digits::contribution(engine.rank().0, name, round, len));
    let workers =
        participants.members().map_or(engine.size(), |members| u32::try_from(members.len()).expect("it is small"));
    tensor.spec.participants = participants;
    let handle = tensor.push_pull(engine, Op::Sum)?;
    Ok(Reduction { tensor, handle, workers, round })
}

/// More than a test has workers. Those that are left of a job keep their ranks.
const RANKS_MAX: u32 = 8;

/// Where a sum goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To the place of the contribution.
    Place,
    /// To other memory.
    Beside,
}

/// Reduces `len` elements under `name` and waits. Returns the ranks of the workers that are in the sum.
///
/// # Errors
/// As [`Engine::push_pull`] and as its handle.
///
/// # Panics
/// If the sum is wrong.
pub fn reduce_counted(engine: &Engine, name: &str, round: u64, len: usize, to: To) -> Result<Vec<u32>> {
    let mut tensor = Tensor::new(name, digits::contribution(engine.rank().0, name, round, len));
    let mut beside = vec![0.0; len];
    let handle = match to {
        To::Place => tensor.push_pull(engine, Op::Sum)?,
        To::Beside => engine.push_pull(tensor.submission_into(Op::Sum, &mut beside), |_| {})?,
    };
    handle.wait(None)?;
    let sum = if to == To::Place { &tensor.data } else { &beside };
    digits::counted(sum, RANKS_MAX, name, round).map_or_else(|wrong| panic!("{wrong}"), Ok)
}

impl Reduction {
    /// Waits for the sum and checks every element of it.
    ///
    /// # Errors
    /// Why there is no sum.
    ///
    /// # Panics
    /// If the sum is wrong.
    pub fn check(self) -> Result<()> {
        self.handle.wait(None)?;
        match digits::check(&self.tensor.data, self.workers, &self.tensor.spec.name, self.round) {
            Ok(()) => Ok(()),
            Err(wrong) => panic!("{wrong}"),
        }
    }
}

impl Drop for Reduction {
    fn drop(&mut self) {
        // The memory is the engine's until then.
        self.handle.cancel();
        let _ = self.handle.wait(None);
    }
}
