//! A worker's requests to the store of the job.

use std::time::Duration;

use gradlane_core::cluster::Patience;
use gradlane_core::error::Result;
use gradlane_core::types::{Answer, StoreAnswer, StoreAsk};

use super::super::workload::Asking;
use super::super::world::Context;
use super::WorkerProcess;

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

    pub(super) fn hear_store(&mut self, context: &mut Context, request: u64, outcome: Result<Answer>) {
        let number = self.asked.remove(&request).expect("asked once");
        let of_store = |answer| match answer {
            Answer::Store(answer) => answer,
            Answer::Ticked(_) | Answer::Checkpointed(_) => unreachable!("nobody asks anything else"),
        };
        let outcome: Result<StoreAnswer> = outcome.map(of_store);
        context.witness.hears(number, &outcome);
    }
}
