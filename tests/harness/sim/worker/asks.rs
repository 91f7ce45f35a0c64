//! A worker's requests to the store of the job, and its ticks.

use std::time::Duration;

use gradlane_core::cluster::Patience;
use gradlane_core::error::Result;
use gradlane_core::types::{Answer, Ask, StoreAnswer, StoreAsk, Tick};

use super::super::workload::{Asking, CLOCK, timing};
use super::super::world::Context;
use super::WorkerProcess;
use super::training::Awaited;

impl WorkerProcess {
    pub(super) fn ask_store(&mut self, context: &mut Context, asking: Asking, patience: Patience) {
        let number = context.witness.asks(self.me.who, asking, patience);
        let ask = match asking {
            Asking::AddOwn => StoreAsk::Add { key: format!("number of {}", self.me.who), amount: 1 },
            Asking::AddToAll => StoreAsk::Add { key: "number of all".to_owned(), amount: 1 },
            Asking::Put { key } => {
                let value = number.to_string().into_bytes();
                StoreAsk::Put { key: format!("key{key}"), value, expected: None }
            }
            Asking::Get { key, waits } => {
                let wait = waits.then_some(Duration::ZERO);
                StoreAsk::Get { key: format!("key{key}"), wait }
            }
        };
        let request = self.member.member.ask_coordinator(context.now, ask.into(), patience);
        self.asked.insert(request, number);
    }

    /// Finishes a round of the clock, or leaves it.
    pub(super) fn tick(&mut self, context: &mut Context, leaves: bool) {
        let mode = context.plan.clocked.as_ref().expect("there is a clock").mode;
        let round = self.script.clock.round + u64::from(!leaves);
        context.witness.ticks(self.me.who, self.worker.rank(), round, leaves);
        let wait = if leaves { None } else { Some(Duration::ZERO) };
        let tick = Tick { clock: CLOCK.to_owned(), mode, round, samples: 1, leaves, wait };
        let patience = Patience::Usual(timing::BARRIER);
        let request = self.member.member.ask_coordinator(context.now, Ask::Tick(tick), patience);
        self.script.waits_for = Some(Awaited::Tick(request));
    }

    pub(super) fn hear_answer(&mut self, context: &mut Context, request: u64, outcome: Result<Answer>) {
        if self.script.waits_for == Some(Awaited::Tick(request)) {
            return self.hear_tick(context, request, &outcome);
        }
        let number = self.asked.remove(&request).expect("asked once");
        let of_store = |answer| match answer {
            Answer::Store(answer) => answer,
            Answer::Ticked(_) => unreachable!("a worker waits for its ticks"),
            Answer::Checkpointed(_) => unreachable!("nobody asks for a checkpoint"),
        };
        let outcome: Result<StoreAnswer> = outcome.map(of_store);
        context.witness.hears(number, &outcome);
    }

    /// A tick was answered.
    fn hear_tick(&mut self, context: &mut Context, request: u64, outcome: &Result<Answer>) {
        context.witness.ticked(self.me.who, outcome);
        if let Ok(Answer::Ticked(ticked)) = outcome {
            self.script.clock = *ticked;
        }
        self.wake_if_waiting(context, Awaited::Tick(request));
    }
}
