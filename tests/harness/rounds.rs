//! Sums that tell what went into them.
//!
//! Worker `r` contributes `4^r` times a small number that round and element give. A sum divided by that number, written in base 4, has
//! a digit for each worker that says how often it was counted: a worker that is missing, counted twice or of another round shows.

use gradlane_core::Result;
use gradlane_core::engine::{Engine, Handle};
use gradlane_core::types::Op;

use crate::cluster::Tensor;

/// What the worker of this rank contributes.
///
/// # Panics
/// If the sums would not be exact in 24 bits of mantissa.
pub fn contribution(rank: u32, round: u32, len: usize) -> Vec<f32> {
    assert!(rank < RANKS_MAX, "the sums of {rank} ranks are not exact");
    (0..len).map(|element| (4u32.pow(rank) * multiplier(round, element)) as f32).collect()
}

/// The sum over all ranks below `workers`.
pub fn sum(workers: u32, round: u32, len: usize) -> Vec<f32> {
    (0..len).map(|element| ((4u32.pow(workers) - 1) / 3 * multiplier(round, element)) as f32).collect()
}

/// One reduction under way.
pub struct Reduction {
    tensor: Tensor,
    handle: Handle,
    workers: u32,
    round: u32,
}

/// Begins to reduce `len` elements under `name`.
///
/// # Errors
/// As [`Engine::push_pull`].
pub fn begin(engine: &Engine, name: &str, round: u32, len: usize) -> Result<Reduction> {
    let mut tensor = Tensor::new(name, contribution(engine.rank().0, round, len));
    let handle = tensor.push_pull(engine, Op::Sum)?;
    Ok(Reduction { tensor, handle, workers: engine.size(), round })
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
        let sum = sum(self.workers, self.round, self.tensor.data.len());
        let wrong = self.tensor.data.iter().zip(&sum).position(|(got, due)| got != due);
        if let Some(element) = wrong {
            let (name, got, due) = (&self.tensor.spec.name, self.tensor.data[element], sum[element]);
            panic!("{name}, round {}, element {element}: {got} instead of {due}", self.round);
        }
        Ok(())
    }

    /// Whether it is over, one way or the other.
    pub fn is_over(&self) -> bool {
        self.handle.outcome().is_some()
    }
}

impl Drop for Reduction {
    fn drop(&mut self) {
        // The memory is the engine's until then.
        self.handle.cancel();
        let _ = self.handle.wait(None);
    }
}

fn multiplier(round: u32, element: usize) -> u32 {
    let element = u32::try_from(element % 1009).expect("small");
    1 + (7 * round + element) % 97
}

/// `4^7 * 97` has 21 bits.
const RANKS_MAX: u32 = 7;
