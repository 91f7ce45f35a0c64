//! What has happened in a job lately, in sentences for its page.

use std::collections::VecDeque;

use gradlane_core::error::ranks;
use gradlane_core::types::Time;

use super::super::Event;
use crate::look::words::seconds;

/// The last [`EVENTS_MAX`] events.
#[derive(Default, Debug)]
pub(super) struct Happened(VecDeque<(Time, String)>);

impl Happened {
    /// This has happened.
    pub(super) fn push(&mut self, now: Time, sentence: String) {
        let sentence = sentence.chars().take(SENTENCE_MAX).collect();
        self.0.truncate(EVENTS_MAX - 1);
        self.0.push_front((now, sentence));
    }

    /// So many members are there. It takes the place of an earlier count that nothing has followed.
    pub(super) fn count(&mut self, now: Time, sentence: String) {
        if self.0.front().is_some_and(|(_, last)| last.ends_with(ARE_THERE)) {
            self.0.pop_front();
        }
        self.push(now, sentence + ARE_THERE);
    }

    /// The events, the newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Time, String)> {
        self.0.iter()
    }
}

/// An event as a sentence; `None` if people need not hear of it here.
pub(super) fn sentence(event: &Event) -> Option<String> {
    Some(match event {
        Event::Formed { epoch } => format!("{epoch}: the job is complete"),
        // `gradlane top` gives one to each member every second, and it changes nothing.
        Event::Ordered { order: "stats", .. } => return None,
        Event::Ordered { to, order } => format!("an operator has given {to} the order {order}"),
        Event::Refused { who, error } => format!("{who} was refused: {error}"),
        Event::Suspect { member, place, silent } => {
            format!("{member} on {place} is silent for {}", seconds(*silent))
        }
        Event::Dead { member, place, cause } => format!("{member} on {place} is lost: {cause}"),
        Event::Stall { tensor, stall, others, .. } => {
            let more = if *others == 0 { String::new() } else { format!(", and {others} other sums waited") };
            let (round, waited) = (stall.round.0, seconds(stall.waited));
            format!("{tensor} round {round} has waited {waited} for {}{more}", ranks(&stall.missing))
        }
        Event::Ends { reason } => format!("the job ends: {reason}"),
        Event::Restores { reason } => format!("the job goes back to a checkpoint: {reason}"),
        Event::FormsAgain { workers, newcomers } => {
            format!("the job forms again: {workers} workers, and {newcomers} that wait to be taken in")
        }
        Event::Holds { there, needed, .. } => {
            format!("{there} of {needed} workers are there, and wait behind their step for others")
        }
        Event::GoesOn { without, reason } => format!("the job goes on without {without}: {reason}"),
        Event::Recovered { epoch } => format!("{epoch}: the sums of lost servers are recovered"),
        Event::HotServer { warning } => warning.clone(),
        Event::Finished(_) => return None,
    })
}

/// The most events that are kept.
const EVENTS_MAX: usize = 12;
/// The most characters of one.
const SENTENCE_MAX: usize = 512;
const ARE_THERE: &str = " are there";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gradlane_core::types::{PartId, Recipient, Round, ServerId, TensorKey, WorkerId};
    use gradlane_core::wire::frame::Stall;

    use super::*;

    #[test]
    fn the_newest_are_kept_and_counts_take_the_place_of_each_other() {
        let mut happened = Happened::default();
        for count in 0..100 {
            happened.count(Time(count), format!("{count} of 100 workers"));
        }
        happened.push(Time(100), "x".to_owned());
        happened.count(Time(101), "99 of 100 workers".to_owned());
        let told: Vec<&str> = happened.iter().map(|(_, told)| told.as_str()).collect();
        assert_eq!(told, ["99 of 100 workers are there", "x", "99 of 100 workers are there"]);
        for count in 0..100 {
            happened.push(Time(count), count.to_string());
        }
        let told: Vec<&str> = happened.iter().map(|(_, told)| told.as_str()).collect();
        assert_eq!((told.len(), told[0], told[11]), (12, "99", "88"));
    }

    #[test]
    fn an_order_is_told_unless_it_only_reads() {
        let ordered = |order| Event::Ordered { to: Recipient::Server(ServerId(1)), order };
        assert_eq!(sentence(&ordered("stats")), None);
        assert_eq!(sentence(&ordered("drain")).as_deref(), Some("an operator has given server-1 the order drain"));
    }

    #[test]
    fn a_sum_that_waits_is_told_with_those_that_it_waits_for() {
        let stall = Stall {
            part: PartId { key: TensorKey(1), index: 0 },
            round: Round(812),
            missing: vec![WorkerId(3), WorkerId(5)],
            waited: Duration::from_millis(10_300),
        };
        let event = Event::Stall { tensor: "fc.bias".to_owned(), stall, detail: String::new(), others: 4 };
        let told = "fc.bias round 812 has waited 10.3 s for ranks 3, 5, and 4 other sums waited";
        assert_eq!(sentence(&event).as_deref(), Some(told));
    }
}
