//! The numbers that a worker gives out, and what of its submissions has not ended.

use super::records::Tensors;
use crate::types::{ExchangeId, Round, TensorKey};
use crate::wire::frame::Progress;

/// The latest number of each kind.
#[derive(Default, Debug)]
pub(super) struct Numbers {
    submission: u64,
    request: u64,
    exchange: u64,
}

impl Numbers {
    /// The id that the next submission will have.
    pub(super) fn coming_submission(&self) -> u64 {
        self.submission + 1
    }

    /// The id of a new submission.
    pub(super) fn next_submission(&mut self) -> u64 {
        self.submission += 1;
        self.submission
    }

    /// The number of a new request to the coordinator.
    pub(super) fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    /// The id of a new exchange.
    pub(super) fn next_exchange(&mut self) -> ExchangeId {
        self.exchange += 1;
        ExchangeId(self.exchange)
    }
}

/// What each heartbeat tells the coordinator.
#[derive(Default, Debug)]
pub(super) struct Outstanding {
    bytes: u64,
    tensors: u64,
    /// The tensor and round of the latest submission.
    last: Option<(TensorKey, Round)>,
    /// The most rounds that a tensor has had.
    rounds: u64,
}

impl Outstanding {
    /// These tensors were submitted.
    pub(super) fn add(&mut self, tensors: &Tensors, bytes: u64) {
        self.bytes += bytes;
        self.tensors += tensors.as_slice().len() as u64;
    }

    /// Their submission ended.
    pub(super) fn remove(&mut self, tensors: &Tensors, bytes: u64) {
        self.bytes -= bytes;
        self.tensors -= tensors.as_slice().len() as u64;
    }

    /// The latest of these tensors begins this round.
    pub(super) fn begin(&mut self, tensors: &Tensors, round: Round) {
        self.last = tensors.as_slice().last().map(|tensor| (tensor.key, round));
        self.rounds = self.rounds.max(round.0.saturating_add(1));
    }

    /// How many rounds the tensor with the most has begun.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The progress of the worker.
    pub(super) fn progress(&self) -> Progress {
        let pending = u32::try_from(self.tensors).unwrap_or(u32::MAX);
        Progress { last: self.last, pending, bytes_in_flight: self.bytes }
    }
}
