//! What a server does for checkpoints, as the coordinator orders: freezes parts to be written, and puts what was read in their place.
//!
//! **One moment.** All parts are frozen at once, between two changes of each, and between the same two closed rounds on all servers, because
//! orders and closings come over the same connection. Frozen parts share their memory with the present ones until these change; the bytes that
//! this can take are booked.
//!
//! **All or nothing.** What was read lies beside the present values until the coordinator has heard from all servers that theirs is whole. A
//! server does one order at a time. It remembers the outcome of the last one, for a coordinator that has missed it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use gradlane_core::error::{Error, Result};
use gradlane_core::reduce::OptimizerState;
use gradlane_core::types::{ClockStep, Order, PartId, PartLayout, Plan, Task, Version, WorkerId, Written};

use super::machine::{Claim, Parameters, Part};
use super::orders::Doing;
use crate::node::budget::Budget;
use crate::node::command::{Archive, Archived, Command, Errand, ValueStep};

impl Parameters {
    /// The coordinator has an order, perhaps not for the first time.
    pub(in crate::node) fn handle_order(&mut self, order: Order, budget: &mut Budget) {
        let Order { number, task } = order;
        match (&self.checkpoints.done, task) {
            (_, Task::Apply { bases }) => self.apply_read(number, &bases, budget),
            (_, Task::Cancel) => self.cancel(number, budget),
            (Some((done, outcome)), _) if *done == number => {
                let outcome = outcome.clone();
                self.commands.push_back(Command::Obeyed { order: number, outcome });
            }
            (_, task) => {
                if self.checkpoints.doing.as_ref().is_some_and(|doing| doing.order == number) {
                    return;
                }
                if let Err(error) = self.begin(number, task, budget) {
                    self.obeyed(number, Err(error));
                }
            }
        }
    }

    /// Parts were written, or read.
    pub(in crate::node) fn handle_archived(&mut self, archived: Archived, budget: &mut Budget) {
        let Archived { order, outcome } = archived;
        let Some(doing) = self.checkpoints.doing.as_mut().filter(|doing| doing.order == order) else { return };
        let outcome = outcome.map(|(written, versions)| {
            doing.versions = Some(versions.into_iter().collect());
            Written { rounds: doing.rounds.clone(), ..written }
        });
        let is_cancelled = doing.is_cancelled;
        if doing.reads.is_empty() || outcome.is_err() || is_cancelled {
            let doing = self.checkpoints.doing.take().expect("found above");
            self.forget(doing, budget);
        }
        if !is_cancelled {
            self.obeyed(order, outcome);
        }
    }

    /// These parts have ended. What was read of them is not applied.
    pub(super) fn end_reads(&mut self, parts: &RangeInclusive<PartId>) {
        if let Some(doing) = &mut self.checkpoints.doing {
            doing.ended.extend(doing.reads.iter().map(|layout| layout.part).filter(|part| parts.contains(part)));
        }
    }

    /// All work ends: nobody wants what is written or read.
    pub(super) fn end_checkpoints(&mut self, budget: &mut Budget) {
        if let Some(doing) = &self.checkpoints.doing {
            self.cancel(doing.order, budget);
        }
    }

    fn begin(&mut self, order: u64, task: Task, budget: &mut Budget) -> Result<()> {
        if let Some(doing) = &self.checkpoints.doing {
            return Err(Error::FailedPrecondition {
                what: format!("a server still does order {} for a checkpoint", doing.order),
                hint: "ask again later".to_owned(),
            });
        }
        if let Some(refusal) = &self.draining {
            return Err(refusal.clone());
        }
        match task {
            Task::Save { directory, checkpoint, plan } => {
                let bytes = self.check_whole(&plan)?;
                self.book(order, bytes, Vec::new(), budget)?;
                let parts: Vec<PartId> = plan.parts.iter().map(|layout| layout.part).collect();
                let versions = parts.iter().map(|part| self.parts[part].version).collect();
                self.commands.push_back(Command::Archive(Archive {
                    order,
                    directory,
                    plan,
                    errand: Errand::Save { checkpoint, versions },
                }));
                parts.into_iter().for_each(|part| self.step(part, ValueStep::Freeze { order }));
            }
            Task::Read { directory, with_state, plan } => {
                self.check_between_rounds(&plan)?;
                let bytes = plan.parts.iter().map(bytes_of).sum();
                self.book(order, bytes, plan.parts.clone(), budget)?;
                let block_bytes = plan.parts.iter().map(|layout| self.block_bytes(layout)).collect();
                let errand = Errand::Read { with_state, block_bytes };
                self.commands.push_back(Command::Archive(Archive { order, directory, plan, errand }));
            }
            Task::Apply { .. } | Task::Cancel => unreachable!("handled before"),
        }
        Ok(())
    }

    fn book(&mut self, order: u64, bytes: u64, reads: Vec<PartLayout>, budget: &mut Budget) -> Result<()> {
        budget.reserve(bytes)?;
        let rounds = self.closed.iter().map(|(clock, closed)| ClockStep {
            clock: *clock,
            step: self.step_of(*clock, closed.applied()),
            // The coordinator counts them.
            samples: 0,
        });
        let rounds = rounds.collect();
        self.checkpoints.doing = Some(Doing {
            order,
            booked: bytes,
            rounds,
            reads,
            versions: None,
            ended: BTreeSet::new(),
            is_cancelled: false,
        });
        Ok(())
    }

    /// What was read takes the place of the values. Said again, nothing more happens.
    fn apply_read(&mut self, order: u64, bases: &[ClockStep], budget: &mut Budget) {
        let is_due = |doing: &mut Doing| doing.order == order && doing.versions.is_some();
        let doing = self.checkpoints.doing.take_if(is_due);
        if let Some(mut doing) = doing {
            let versions = doing.versions.take().expect("filtered above");
            for layout in std::mem::take(&mut doing.reads) {
                if doing.ended.contains(&layout.part) || !self.fits(&layout) {
                    self.step(layout.part, ValueStep::Unread);
                    continue;
                }
                doing.booked -= bytes_of(&layout);
                self.restore(order, &layout, versions[&layout.part], budget);
            }
            self.offsets = bases.iter().map(|base| (base.clock, base.step)).collect();
            budget.give_back(doing.booked);
            // What it has heard before is answered no more.
            self.checkpoints.done = None;
        }
        self.commands.push_back(Command::Obeyed { order, outcome: Ok(Written::default()) });
    }

    fn restore(&mut self, order: u64, layout: &PartLayout, version: Version, budget: &mut Budget) {
        let (id, block_bytes) = (layout.part, self.block_bytes(layout));
        let claim = Claim {
            said_by: WorkerId(0),
            dtype: layout.dtype,
            bytes: layout.bytes(),
            rule: layout.kind.rule(),
            mode: layout.kind.mode(),
        };
        let part = self.parts.entry(id).or_insert_with(|| Part::new(claim, block_bytes));
        // Gradients of earlier values are refused: their workers have to pull again.
        let released = part.bases.retain(|_| false);
        budget.give_back(part.booked);
        part.booked = bytes_of(layout);
        // As it was saved, or later: versions never go back while anybody may name one.
        part.version = version.max(Version(part.version.0 + u64::from(part.version > Version(0))));
        self.step(id, ValueStep::Restore { order });
        self.release(id, released, budget);
    }

    /// Nothing is applied of this order. What is under way goes on to its end, of which nobody hears.
    fn cancel(&mut self, order: u64, budget: &mut Budget) {
        let Some(doing) = self.checkpoints.doing.as_mut().filter(|doing| doing.order == order) else { return };
        doing.is_cancelled = true;
        if let Some(doing) = self.checkpoints.doing.take_if(|doing| doing.versions.is_some()) {
            self.forget(doing, budget);
        }
    }

    fn forget(&mut self, doing: Doing, budget: &mut Budget) {
        budget.give_back(doing.booked);
        for layout in doing.reads {
            self.step(layout.part, ValueStep::Unread);
        }
    }

    fn obeyed(&mut self, order: u64, outcome: Result<Written>) {
        self.checkpoints.done = Some((order, outcome.clone()));
        self.commands.push_back(Command::Obeyed { order, outcome });
    }

    /// The bytes of the parts of a plan and of what their rules keep.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] that names a tensor without a value.
    fn check_whole(&self, plan: &Plan) -> Result<u64> {
        let mut bytes = 0;
        for layout in &plan.parts {
            let Some(part) = self.parts.get(&layout.part).filter(|part| part.version > Version(0)) else {
                return Err(Error::FailedPrecondition {
                    what: format!("parameter {} has no value", name_of(plan, layout)),
                    hint: "initialise all parameters before saving them, or undeclare it".to_owned(),
                });
            };
            bytes += part.booked;
        }
        Ok(bytes)
    }

    /// Refuses to read while gradients of an open round are here: they were computed from values that are about to go.
    fn check_between_rounds(&self, plan: &Plan) -> Result<()> {
        for layout in &plan.parts {
            let Some(part) = self.parts.get(&layout.part) else { continue };
            let begun = match (part.kept.first_key_value(), part.merged) {
                (Some(((round, worker), _)), _) => format!("round {round} has begun: {worker} has brought a gradient"),
                (None, Some(_)) => "a round waits for the norm of its gradients, also".to_owned(),
                (None, None) => continue,
            };
            return Err(Error::FailedPrecondition {
                what: format!("{begun} of {}", name_of(plan, layout)),
                hint: "load between two rounds".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether a part is as the coordinator has laid it out, as far as it is known.
    fn fits(&self, layout: &PartLayout) -> bool {
        let known = self.parts.get(&layout.part);
        known.is_none_or(|part| (part.claim.dtype, part.claim.bytes) == (layout.dtype, layout.bytes()))
    }

    fn block_bytes(&self, layout: &PartLayout) -> u64 {
        let crosses_network = self.membership.as_ref().is_none_or(|ours| ours.crosses_network);
        let fresh = || self.config.block_bytes(layout.bytes(), crosses_network);
        self.parts.get(&layout.part).map_or_else(fresh, |part| part.block_bytes)
    }
}

/// Bytes of a part and of what its rule keeps beside it.
fn bytes_of(layout: &PartLayout) -> u64 {
    let bytes = layout.bytes();
    bytes + layout.kind.rule().map_or(0, |rule| OptimizerState::bytes_of(&rule, layout.dtype, bytes))
}

fn name_of<'a>(plan: &'a Plan, layout: &PartLayout) -> &'a str {
    let of_part = |piece: &gradlane_core::types::Piece| plan.tensors.iter().find(|tensor| tensor.key() == piece.tensor);
    layout.pieces.iter().find_map(of_part).map_or("of a name that has ended", |tensor| &tensor.name)
}
