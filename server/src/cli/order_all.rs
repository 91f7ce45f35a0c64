//! One order for many parts of a job, and what came of it.

use std::time::Duration;

use gradlane_core::runtime::Operator;
use gradlane_core::types::{Control, ControlAnswer, ControlCommand, Recipient};
use gradlane_core::{Error, Result};
use serde_json::{Map, Value, json};

use super::screen::say;
use crate::exit;

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

/// The members that did not carry out an order, and why.
pub(super) type Errors = [(Recipient, Error)];

/// Names these members on standard error, and says `text`. Returns the exit code of the first error.
pub(super) fn conclude(errors: &Errors, text: &str) -> Result<i32> {
    for (member, error) in errors {
        exit::complain(&format!("{member}: {error}"));
    }
    say(text)?;
    Ok(errors.first().map_or(exit::SUCCESS, |(_, error)| exit::code(error)))
}

/// The first error, for the end of a sentence; nothing if there is none.
pub(super) fn first_of(errors: &Errors) -> String {
    errors.first().map(|(member, error)| format!("; {member}: {error}")).unwrap_or_default()
}

/// For programs: the files that members have written, and the errors of the others.
pub(super) fn as_json(files: impl Iterator<Item = (Recipient, Value)>, errors: &Errors) -> String {
    let files: Map<String, Value> = files.map(|(member, files)| (member.to_string(), files)).collect();
    let errors: Map<String, Value> =
        errors.iter().map(|(member, error)| (member.to_string(), error.to_string().into())).collect();
    json!({ "files": files, "errors": errors }).to_string()
}

/// Orders that are given at once: half of those that a coordinator has under way.
const AT_ONCE: usize = 32;
