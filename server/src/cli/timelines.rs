//! `gradlane ctl timeline`: has members record timelines, or complete their files.

use std::time::Duration;

use gradlane_core::runtime::Operator;
use gradlane_core::types::{ControlAnswer, ControlCommand, Recipient, printable};
use gradlane_core::{Error, Result};
use serde_json::json;

use super::order_all::{Errors, as_json, conclude, first_of, order_all};

/// Gives the order to these members, and says what came of it. Those that do not obey are named on standard error.
///
/// # Errors
/// Why no order can be given.
pub(super) fn order(
    operator: &mut Operator,
    members: Vec<Recipient>,
    command: &ControlCommand,
    timeout: Duration,
    json: bool,
) -> Result<i32> {
    let asked = members.len();
    let (obeyed, errors) = obeyed(operator, members, command, timeout)?;
    conclude(&errors, &if json { to_json(&obeyed, &errors) } else { as_text(&obeyed, asked, command) })
}

/// The same for a screen: one sentence.
///
/// # Errors
/// Why no order can be given.
pub(super) fn in_short(
    operator: &mut Operator,
    members: Vec<Recipient>,
    command: &ControlCommand,
    timeout: Duration,
) -> Result<String> {
    let asked = members.len();
    let (obeyed, errors) = obeyed(operator, members, command, timeout)?;
    let text = as_text(&obeyed, asked, command);
    Ok(text.lines().next_back().unwrap_or_default().to_owned() + &first_of(&errors))
}

/// Gives the order to these members, which obey at the same time. Those that do not disturb no others. Workers come first: if none of them
/// obeys, such as for a step that has begun, no server is asked.
fn obeyed(
    operator: &mut Operator,
    members: Vec<Recipient>,
    command: &ControlCommand,
    timeout: Duration,
) -> Result<Sorted> {
    let (workers, servers): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|member| matches!(member, Recipient::Worker(_)));
    let only_servers = workers.is_empty();
    let mut outcomes = order_all(operator, workers, timeout, command)?;
    if only_servers || outcomes.iter().any(|(_, outcome)| outcome.is_ok()) {
        outcomes.extend(order_all(operator, servers, timeout, command)?);
    }
    Ok(sorted(outcomes))
}

/// The directory below `dump_dir` of each member, if nobody names another one.
pub(super) const DIRECTORY: &str = "timeline";

/// The members that obeyed, with the files that they write, and those that did not.
type Sorted = (Vec<(Recipient, Vec<String>)>, Vec<(Recipient, Error)>);

fn sorted(outcomes: Vec<(Recipient, Result<ControlAnswer>)>) -> Sorted {
    let (mut obeyed, mut errors) = Sorted::default();
    for (member, outcome) in outcomes {
        match outcome {
            Ok(ControlAnswer::Dumped { files }) => obeyed.push((member, files)),
            Ok(ControlAnswer::Done) => obeyed.push((member, Vec::new())),
            Ok(ControlAnswer::Stats(_) | ControlAnswer::Saved(_) | ControlAnswer::RateSet { .. }) => {
                let what = format!("{member} has answered something else than where its timeline is");
                errors.push((member, Error::Internal { what }));
            }
            Err(error) => errors.push((member, error)),
        }
    }
    (obeyed, errors)
}

fn as_text(obeyed: &[(Recipient, Vec<String>)], asked: usize, command: &ControlCommand) -> String {
    let count = format!("{} of {asked} members", obeyed.len());
    let ControlCommand::Timeline { from, steps, .. } = command else {
        return format!("{count} record no timeline any more");
    };
    let each = obeyed.iter().flat_map(|(member, files)| files.iter().map(move |file| (member, file)));
    let files: String = each.map(|(member, file)| format!("{member}: {}\n", printable(file))).collect();
    match (from, steps) {
        (0, None) => format!("{files}{count} record a timeline until `gradlane ctl timeline --stop`"),
        (from, None) => format!("{files}{count} record from step {from} on until `gradlane ctl timeline --stop`"),
        (from, Some(1)) => format!("{files}{count} record step {from}"),
        (from, Some(steps)) => format!("{files}{count} record steps {from} to {}", from.saturating_add(steps - 1)),
    }
}

fn to_json(obeyed: &[(Recipient, Vec<String>)], errors: &Errors) -> String {
    as_json(obeyed.iter().map(|(member, files)| (*member, json!(files))), errors)
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::{ServerId, WorkerId};

    use super::*;
    use crate::hostile;

    #[test]
    fn members_that_do_not_obey_are_counted_and_told_apart() {
        let (worker, server) = (|rank| Recipient::Worker(WorkerId(rank)), Recipient::Server(ServerId(0)));
        let (obeyed, errors) = sorted(vec![
            (worker(0), Ok(ControlAnswer::Dumped { files: vec!["/d/0/comm.json".to_owned()] })),
            (worker(1), Err(Error::Cancelled)),
            (server, Ok(ControlAnswer::RateSet { step: None })),
        ]);
        assert_eq!(errors.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [worker(1), server]);
        let steps = |from, steps| ControlCommand::Timeline { directory: "d".to_owned(), from, steps };
        for (command, says) in [
            (steps(0, None), "1 of 3 members record a timeline until `gradlane ctl timeline --stop`"),
            (steps(7, None), "1 of 3 members record from step 7 on until `gradlane ctl timeline --stop`"),
            (steps(7, Some(1)), "1 of 3 members record step 7"),
            (steps(7, Some(3)), "1 of 3 members record steps 7 to 9"),
            (steps(7, Some(u64::MAX)), "1 of 3 members record steps 7 to 18446744073709551615"),
        ] {
            assert_eq!(as_text(&obeyed, 3, &command), format!("worker-0: /d/0/comm.json\n{says}"));
        }
        hostile::check(|name| as_text(&[(worker(0), vec![name.to_owned()])], 1, &steps(0, None)));
        assert_eq!(as_text(&obeyed, 3, &ControlCommand::StopTimeline), "1 of 3 members record no timeline any more");
        let json: serde_json::Value = serde_json::from_str(&to_json(&obeyed, &errors)).unwrap();
        assert_eq!(json["files"]["worker-0"], json!(["/d/0/comm.json"]));
        assert_eq!(json["errors"].as_object().unwrap().len(), 2);
    }
}
