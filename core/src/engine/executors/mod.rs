//! What each stage does with a task. An executor decides nothing: it translates a job into one call of a driver, and the driver's report
//! into one report to the machine.

mod collective;
mod copy;
mod pull;
mod push;

use std::sync::Arc;

use super::job::{Job, Work};
use super::shared::Shared;

/// Executes a job. It leads to exactly one report to the machine.
pub(super) fn execute(shared: &Arc<Shared>, Job { task, work }: Job) {
    match work {
        Work::Push { link, exchange, push } => push::execute(shared, task, link, exchange, push),
        Work::Pull { exchange, into } => pull::execute(shared, task, exchange, into),
        Work::CopyToHost { from, link, contributes } => copy::to_host(shared, task, from, link, contributes),
        Work::CopyToDevice { transfer, after } => copy::to_device(shared, task, transfer, &after),
        Work::Meet { operation, takes } => collective::execute(shared, task, operation, takes),
    }
}
