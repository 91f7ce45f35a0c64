//! Names that this worker uses no more.
//!
//! ```text
//!  declared ──undeclare──► ending ──no task of it is left──► [Command::Undeclare] ──handle_undeclared──► (unknown, as if never declared)
//! ```
//! Tasks of an ended submission may be left: they tell servers that this worker will not contribute. A name that is ending cannot be used.
//! So a later declaration of it comes to the coordinator after the news that it is used no more.

use std::collections::BTreeSet;

use super::command::Command;
use super::machine::Worker;
use super::records::Ending;
use crate::error::{Error, Result};
use crate::sched::TaskId;

impl Worker {
    /// Notes that this worker uses these names no more. Returns the number of the request; [`Command::Undeclare`] follows with it. After
    /// [`handle_undeclared`](Self::handle_undeclared) the names may be declared again, and are then other tensors.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a name was not declared, or shares a part with one that is not among them;
    /// [`Error::FailedPrecondition`] if a tensor is still being declared or reduced; or why the job ended. Nothing is changed then.
    pub fn undeclare(&mut self, names: &[String]) -> Result<u64> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let keys = self.registry.check_ending(names)?;
        let open = self.submissions.values().flat_map(|submission| submission.tensors.as_slice());
        if let Some(tensor) = open.map(|tensor| tensor.key).find(|key| keys.contains(key)) {
            let name = self.registry.name_of(tensor).unwrap_or_default();
            return Err(Error::FailedPrecondition {
                what: format!("tensor {name} is still being reduced"),
                hint: "wait for its handles, or cancel them, before you undeclare it".to_owned(),
            });
        }
        self.registry.end(&keys);
        let is_of_it = |task: &TaskId| {
            self.tasks
                .get(*task)
                .is_some_and(|record| record.part.layout.pieces.iter().any(|piece| keys.contains(&piece.tensor)))
        };
        let tasks: BTreeSet<TaskId> = self.tasks.iter().map(|(task, _)| task).filter(is_of_it).collect();
        let request = self.numbers.next_request();
        self.endings.insert(request, Ending { names: names.to_vec(), keys, tasks });
        self.say_ended();
        Ok(request)
    }

    /// The coordinator will hear of [`Command::Undeclare`] before anything that this worker asks from now on.
    pub fn handle_undeclared(&mut self, request: u64) {
        if let Some(Ending { keys, .. }) = self.endings.remove(&request) {
            self.registry.ended(&keys);
        }
    }

    /// A task was released.
    pub(super) fn release_ending(&mut self, task: TaskId) {
        if self.endings.is_empty() {
            return;
        }
        for ending in self.endings.values_mut() {
            ending.tasks.remove(&task);
        }
        self.say_ended();
    }

    fn say_ended(&mut self) {
        for (request, ending) in self.endings.iter_mut().filter(|(_, ending)| ending.tasks.is_empty()) {
            // Empty once it was said.
            let names = std::mem::take(&mut ending.names);
            if !names.is_empty() {
                self.read.end(&ending.keys);
                let residuals = self.residuals.end(&ending.keys);
                self.commands.extend(residuals.into_iter().map(Command::DropResidual));
                self.commands.push_back(Command::Undeclare { request: *request, names });
            }
        }
    }
}
