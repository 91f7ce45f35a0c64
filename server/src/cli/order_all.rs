//! One order for many parts of a job.

use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::runtime::Operator;
use gradlane_core::types::{Control, ControlAnswer, ControlCommand, Recipient};

/// Gives these parts of a job an order, and returns the answer of each. They carry it out at the same time, some at once.
pub(super) fn order_all(
    operator: &mut Operator,
    recipients: Vec<Recipient>,
    wait: Duration,
    command: &ControlCommand,
) -> Result<Vec<(Recipient, Result<ControlAnswer>)>> {
    let mut answers = Vec::with_capacity(recipients.len());
    for some in recipients.chunks(AT_ONCE) {
        let control = |recipient: &Recipient| Control { recipient: *recipient, wait, command: command.clone() };
        answers.extend(operator.orders(some.iter().map(control).collect())?);
    }
    Ok(recipients.into_iter().zip(answers).collect())
}

/// Orders that are given at once: half of those that a coordinator has under way.
const AT_ONCE: usize = 32;
