//! `gradlane status --stalled`: the tensors of running jobs that wait, and for whom.

use std::fmt::Write;
use std::time::Duration;

use gradlane_core::types::printable;
use gradlane_core::wire::frame::{Status, Waiting, WaitingTensor};

use super::screen::table;
use super::status::Answer;
use crate::look::words::{missing, seconds};

/// For people: a table for each job.
pub(super) fn text(answers: &[Answer], columns: Option<u16>) -> String {
    let job = |answer: &Answer| match &answer.status {
        Ok(status) => job_text(status, columns),
        Err(error) => {
            format!("job {}: does not answer: {}\n", printable(answer.name()), printable(&error.to_string()))
        }
    };
    answers.iter().map(job).collect::<Vec<_>>().join("\n")
}

fn job_text(status: &Status, columns: Option<u16>) -> String {
    let waits = &status.waits;
    let job = printable(&status.view.job);
    let mut text = match waits.tensors.len() {
        0 => format!("job {job}: no tensor waits for longer than {}\n", seconds(Waiting::MOMENT)),
        1 => format!("job {job}: 1 tensor waits\n"),
        count => format!("job {job}: {count} tensors wait\n"),
    };
    if !waits.unheard.is_empty() {
        let _ = writeln!(text, "no answer from {}", waits.unheard);
    }
    if !waits.tensors.is_empty() {
        let row = |wait: &WaitingTensor| {
            let ago = if wait.age < OLD { String::new() } else { format!(", {} ago", seconds(wait.age)) };
            [
                wait.tensor.clone(),
                wait.waiting.round.0.to_string(),
                seconds(wait.waited()),
                missing(&wait.waiting),
                format!("{}{ago}", wait.told_by),
            ]
        };
        text.push_str(&table(["tensor", "round", "waited", "for", "told by"], waits.tensors.iter().map(row), columns));
    }
    text
}

/// The same for programs: a line of JSON for each job.
pub(super) fn json(answers: &[Answer]) -> String {
    answers.iter().map(|answer| job_json(answer) + "\n").collect()
}

fn job_json(answer: &Answer) -> String {
    let status = match &answer.status {
        Ok(status) => status,
        Err(error) => return serde_json::json!({ "job": answer.name(), "error": error.to_string() }).to_string(),
    };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let tensor = |wait: &WaitingTensor| {
        serde_json::json!({
            "tensor": wait.tensor,
            "part": wait.waiting.part.index,
            "round": wait.waiting.round.0,
            "waited_ms": millis(wait.waited()),
            "missing": wait.waiting.missing.iter().map(|rank| rank.0).collect::<Vec<_>>(),
            "more_missing": wait.waiting.more,
            "told_by": wait.told_by,
            "age_ms": millis(wait.age),
        })
    };
    serde_json::json!({
        "job": status.view.job,
        "waiting": status.waits.tensors.iter().map(tensor).collect::<Vec<_>>(),
        "unheard": status.waits.unheard.listed,
        "more_unheard": status.waits.unheard.more,
    })
    .to_string()
}

/// A report that is older says so.
const OLD: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use gradlane_core::Error;
    use gradlane_core::types::{Epoch, PartId, Phase, Round, TensorKey, View, WorkerId};
    use gradlane_core::wire::frame::{Names, Waits};

    use super::*;
    use crate::hostile;

    #[test]
    fn each_tensor_has_a_line_with_those_it_waits_for() {
        let lines = text(&[answer(waits())], None);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = lines.lines().map(words).collect();
        assert_eq!(
            lines,
            [
                "job night: 2 tensors wait",
                "no answer from server 1",
                "tensor round waited for told by",
                "layer4.conv3.weight 812 0.3 s 3 server 0",
                "a\\nb 7 12.5 s 1, 2 and 9 more worker 0, 2.5 s ago",
            ]
        );
    }

    #[test]
    fn a_job_in_which_nothing_waits_says_so() {
        assert_eq!(text(&[answer(Waits::default())], None), "job night: no tensor waits for longer than 0.2 s\n");
    }

    #[test]
    fn no_name_forges_a_line() {
        hostile::check(|name| {
            let Waits { mut tensors, .. } = waits();
            (tensors[0].tensor, tensors[0].told_by) = (name.to_owned(), name.to_owned());
            let mut waiting = answer(Waits { tensors, unheard: Names::first([name.to_owned()].into_iter(), 1) });
            waiting.status.iter_mut().for_each(|status| status.view.job = name.to_owned());
            let error = Error::Unavailable { what: name.to_owned(), cause: name.to_owned() };
            text(&[waiting, Answer::of_nobody(Err(error))], None)
        });
    }

    #[test]
    fn programs_read_the_same_as_json() {
        let failed = Answer::of_nobody(Err(Error::Cancelled));
        let text = json(&[answer(waits()), failed]);
        let read: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read.len(), 2, "a line a job");
        let waiting = &read[0]["waiting"];
        assert_eq!((&waiting[0]["tensor"], &waiting[0]["waited_ms"]), (&"layer4.conv3.weight".into(), &300.into()));
        assert_eq!((&waiting[1]["missing"], &waiting[1]["more_missing"]), (&serde_json::json!([1, 2]), &9.into()));
        assert_eq!((&waiting[1]["waited_ms"], &waiting[1]["age_ms"]), (&12_500.into(), &2_500.into()));
        assert_eq!(read[0]["unheard"], serde_json::json!(["server 1"]));
        assert!(read[1]["error"].as_str().is_some_and(|error| error.contains("cancelled")), "{}", read[1]);
    }

    fn answer(waits: Waits) -> Answer {
        let view = View::plain("night", Epoch { term: 1, number: 3 }, Phase::Running, Vec::new());
        let waits = Box::new(waits);
        Answer::of_nobody(Ok(Status { view, members: Vec::new(), imbalance_milli: 1_000, hold: None, waits }))
    }

    fn waits() -> Waits {
        let tensor = |tensor: &str, round, told_by: &str, age, waited, missing: &[u32], more| WaitingTensor {
            tensor: tensor.to_owned(),
            told_by: told_by.to_owned(),
            age: Duration::from_millis(age),
            waiting: Waiting {
                part: PartId { key: TensorKey(1), index: 0 },
                round: Round(round),
                waited: Duration::from_millis(waited),
                missing: missing.iter().map(|rank| WorkerId(*rank)).collect(),
                more,
            },
        };
        let tensors = vec![
            tensor("layer4.conv3.weight", 812, "server 0", 100, 200, &[3], 0),
            tensor("a\nb", 7, "worker 0", 2_500, 10_000, &[1, 2], 9),
        ];
        Waits { tensors, unheard: Names::first(["server 1".to_owned()].into_iter(), 1) }
    }
}
