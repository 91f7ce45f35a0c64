//! A worker's side of one exchange: the callers that wait for it, the holder of its memory, and its end. Pure.

use super::arrival::Arrival;
use crate::error::{Error, Result};
use crate::mem::Returned;
use crate::transport::{Answer, Pull, Torn};
use crate::types::{Defect, Done, planted};
use crate::wire::Request;

/// One exchange, from its push to its reports. The bytes of its answer are in an [`Arrival`], so that they can land while another thread
/// changes this.
///
/// ```text
///  the push      pushing ──handed_over──► pushed
///  the memory    lent ──returned──► back ──place──► the landing has it
///  the answer    nobody waits ──pull──► awaited         (a sum lands once it is announced, awaited, and the memory is back)
///                or awaited from the push on
///  the end       none ──end──► ended ──is_over──► report
/// ```
/// The four are independent and advance in any order. An answer may come before the memory is back or before the pull, and an end at any time.
/// So the transport tries [`place`](Self::place) again after `returned`, after `pull`, and after a header was read. After `returned`, `pull`
/// and `end` it asks whether the exchange [`is_over`](Self::is_over). Then it forgets the exchange and calls [`report`](Self::report), which
/// calls back.
pub struct WorkerExchange {
    push: Request,
    /// Present until the push has reported.
    pushing: Option<Done<()>>,
    memory: Memory,
    /// Its regions are empty once the sum lands.
    pulling: Option<Pull>,
    end: Option<Result<Answer>>,
    /// For the simulation.
    defect: Option<Defect>,
}

enum Memory {
    /// Pieces of the contribution are with the transport.
    Lent,
    /// Nothing refers to it, which this value proves.
    Back(Returned),
    /// The answer has the memory and the proof, and writes the sum there.
    Landing,
}

impl WorkerExchange {
    /// An exchange whose contribution is lent to the transport. `pulling` is present if the answer is awaited already.
    pub fn new(push: Request, done: Done<()>, pulling: Option<Pull>) -> Self {
        Self { push, pushing: Some(done), memory: Memory::Lent, pulling, end: None, defect: None }
    }

    /// Makes the mistake `defect`.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn planted(self, defect: Option<Defect>) -> Self {
        Self { defect, ..self }
    }

    /// The header of the contribution.
    pub fn push(&self) -> &Request {
        &self.push
    }

    /// Whether a part of the contribution was not handed over yet.
    pub fn is_pushing(&self) -> bool {
        self.pushing.is_some() && self.end.is_none()
    }

    /// The contribution was handed over, or the server needs no more of it. Returns the token that reports it, the first time.
    #[must_use]
    pub fn handed_over(&mut self) -> Option<Done<()>> {
        self.pushing.take_if(|_| !matches!(self.end, Some(Err(_))))
    }

    /// Whether the transport may refer to the contribution's memory.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent)
    }

    /// The last reference to the contribution's memory was dropped.
    pub fn returned(&mut self, proof: Returned) {
        self.memory = Memory::Back(proof);
    }

    /// Whether the answer is awaited.
    pub fn is_pulled(&self) -> bool {
        self.pulling.is_some()
    }

    /// The answer is awaited from now on. An exchange is pulled once.
    pub fn pull(&mut self, pull: Pull) {
        self.pulling = Some(pull);
    }

    /// Gives an announced sum its destination, if a caller waits for it and the memory is back. Returns whether the answer can take bytes.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the sum does not answer the push.
    pub fn place(&mut self, arrival: &mut Arrival, peer: &str) -> Result<bool> {
        let Some(pull) = &mut self.pulling else { return Ok(false) };
        if arrival.needs_place() {
            if !planted(self.defect, Defect::AnswerOfAnother) {
                arrival.check(&self.push, &pull.into, peer)?;
            }
            #[cfg(feature = "testing")]
            if planted(self.defect, Defect::PlacedWhileLent) && matches!(self.memory, Memory::Lent) {
                self.memory = Memory::Back(Returned::untrue());
            }
            match std::mem::replace(&mut self.memory, Memory::Landing) {
                Memory::Back(proof) => arrival.place(std::mem::take(&mut pull.into), proof),
                other => self.memory = other,
            }
        }
        Ok(!arrival.needs_place())
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Ends the exchange with this answer or error. The first end counts. Exception: a cancelled exchange that no caller waits for drops its
    /// first end, so that it is over at once.
    pub fn end(&mut self, outcome: Result<Answer>) {
        let is_given_up = matches!(outcome, Err(Error::Cancelled)) && self.pushing.is_none() && self.pulling.is_none();
        let outcome = match outcome {
            Ok(Answer::Reject(error)) if planted(self.defect, Defect::RejectTakenForLoss) => Err(error),
            outcome => outcome,
        };
        if self.end.is_none() || is_given_up {
            self.end = Some(outcome);
        }
    }

    /// Whether the end can be reported: the exchange has ended, its memory is free, and a caller waits for the end. A cancelled exchange needs no
    /// caller.
    pub fn is_over(&self) -> bool {
        let is_awaited = match &self.end {
            None => false,
            Some(Ok(_)) => self.pulling.is_some(),
            Some(Err(Error::Cancelled)) => true,
            Some(Err(_)) => self.pulling.is_some() || self.pushing.is_some(),
        };
        is_awaited && (!self.is_lent() || planted(self.defect, Defect::EndToldWhileLent))
    }

    /// Reports the end of an exchange that is over. `landed` is the number of bytes of the sum that were written. Calls back.
    pub fn report(self, landed: u64) {
        let end = self.end.expect("only what is over is reported");
        if let Some(done) = self.pushing {
            // The answer came before the whole contribution was handed over, so the rest is not needed.
            done.report(end.as_ref().map(drop).map_err(Error::clone));
        }
        if let Some(pull) = self.pulling {
            pull.done.report(end.map_err(|error| Torn { error, landed }));
        }
    }
}

#[cfg(test)]
mod tests;
