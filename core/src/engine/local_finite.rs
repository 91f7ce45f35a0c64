//! Looks for NaN and infinities in what the only worker of a job reduces. What a worker of a larger job contributes, an executor looks at.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Mutex, PoisonError};

use super::asked::Submission;
use super::memory::Memory;
use super::metrics::Metrics;
use crate::config::NanCheck;
use crate::error::{Error, Result};
use crate::mem::borrow;
use crate::reduce::Kernels;
use crate::types::{Op, Round, WorkerId};

/// What the setting `nan_check` asks for in a job of one worker.
#[derive(Debug)]
pub struct FiniteCheck {
    setting: NanCheck,
    /// How many times each tensor was reduced.
    rounds: Mutex<BTreeMap<String, u64>>,
}

impl FiniteCheck {
    /// The check that this setting asks for.
    pub fn new(setting: NanCheck) -> Self {
        Self { setting, rounds: Mutex::default() }
    }

    /// Looks at the host memory of tensors that are about to be reduced, and counts in `metrics` those that are not finite. A broadcast may
    /// have any bits.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for the first one, if the setting makes it an error.
    pub fn check(&self, submissions: &[Submission], metrics: &Metrics) -> Result<()> {
        if self.setting == NanCheck::Off {
            return Ok(());
        }
        let kernels = Kernels::detect();
        for Submission { tensor, source, op, .. } in submissions {
            let round = self.next_round(&tensor.name);
            let Memory::Host(source) = source else { continue };
            let is_finite = |run: &[u8]| kernels.all_finite(tensor.dtype, run);
            if matches!(op, Op::Broadcast { .. }) || borrow::all(slice::from_ref(source), is_finite) {
                continue;
            }
            Metrics::add(&metrics.not_finite, 1);
            let error = Error::NotFinite { tensor: tensor.name.clone().into(), round, from: WorkerId(0).to_string() };
            if self.setting == NanCheck::Error {
                return Err(error);
            }
            tracing::warn!("{error}");
        }
        Ok(())
    }

    fn next_round(&self, name: &str) -> Round {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let next = rounds.entry(name.to_owned()).or_default();
        *next += 1;
        Round(*next - 1)
    }
}
