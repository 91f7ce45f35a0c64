//! Looks for NaN and infinities in what the only worker of a job reduces. What a worker of a larger job contributes, an executor looks at.

use std::collections::BTreeMap;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use super::asked::Submission;
use super::batch::Open;
use super::memory::Memory;
use super::metrics::Metrics;
use crate::config::NanCheck;
use crate::cuda::Mark;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, borrow};
use crate::reduce::Kernels;
use crate::types::{DType, Done, Op, Round, WorkerId};

/// What the setting `nan_check` asks for in a job of one worker.
#[derive(Debug)]
pub struct FiniteCheck {
    setting: NanCheck,
    /// The metric of what is not finite.
    counter: Arc<AtomicU64>,
    /// How many times each tensor was reduced.
    rounds: Mutex<BTreeMap<String, u64>>,
}

/// A tensor in memory of a device, which only the device can look at.
pub(super) struct Unseen {
    region: DeviceRegion,
    dtype: DType,
    after: Mark,
    verdict: Verdict,
}

/// What becomes of a tensor that is not finite.
struct Verdict {
    setting: NanCheck,
    counter: Arc<AtomicU64>,
    tensor: String,
    round: Round,
}

impl FiniteCheck {
    /// The check that this setting asks for. It counts in `metrics`.
    pub fn new(setting: NanCheck, metrics: &Metrics) -> Self {
        Self { setting, counter: Arc::clone(&metrics.not_finite), rounds: Mutex::default() }
    }

    /// Looks at the host memory of tensors that are about to be reduced, and counts those that are not finite. Returns those that their
    /// devices must [look at](look). A broadcast may have any bits.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for the first one in host memory, if the setting makes it an error.
    pub(super) fn check(&self, submissions: &[Submission]) -> Result<Vec<Unseen>> {
        let mut unseen = Vec::new();
        if self.setting == NanCheck::Off {
            return Ok(unseen);
        }
        let kernels = Kernels::detect();
        for Submission { tensor, source, op, .. } in submissions {
            let round = self.next_round(&tensor.name);
            if matches!(op, Op::Broadcast { .. }) || !tensor.dtype.is_float() {
                continue;
            }
            let (setting, counter) = (self.setting, Arc::clone(&self.counter));
            let verdict = Verdict { setting, counter, tensor: tensor.name.clone(), round };
            match source {
                Memory::Host(source) => {
                    let is_finite = |run: &[u8]| kernels.all_finite(tensor.dtype, run);
                    verdict.of(borrow::all(slice::from_ref(source), is_finite))?;
                }
                Memory::Device { region, after } => {
                    let (region, after) = (region.again(), after.clone());
                    unseen.push(Unseen { region, dtype: tensor.dtype, after, verdict });
                }
            }
        }
        Ok(unseen)
    }

    fn next_round(&self, name: &str) -> Round {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let next = rounds.entry(name.to_owned()).or_default();
        *next += 1;
        Round(*next - 1)
    }
}

/// Has `device` look at tensors in its memory, at least one. `done` is told when it has looked at all of them: the error of the first that
/// is not finite, if the setting makes it an error.
pub(super) fn look(unseen: Vec<Unseen>, device: &dyn Device, done: Done<()>) {
    let open = Arc::new(Open::new(unseen.len(), None, done));
    for Unseen { region, dtype, after, verdict } in unseen {
        let member = Open::member(&open);
        let judge = move |outcome: Result<bool>| {
            let outcome = outcome.map_err(|error| error.with_names(&verdict.tensor));
            member.report(outcome.and_then(|is_finite| verdict.of(is_finite)));
        };
        device.all_finite(vec![region], dtype, &[after], Done::new(judge));
    }
}

impl Verdict {
    fn of(&self, is_finite: bool) -> Result<()> {
        if is_finite {
            return Ok(());
        }
        Metrics::add(&self.counter, 1);
        let (tensor, from) = (self.tensor.clone().into(), WorkerId(0).to_string());
        let error = Error::NotFinite { tensor, round: self.round, from };
        if self.setting == NanCheck::Error {
            return Err(error);
        }
        tracing::warn!("{error}");
        Ok(())
    }
}
