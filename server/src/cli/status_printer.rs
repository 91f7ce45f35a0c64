//! What a coordinator or a server tells the person at its terminal while its job forms.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::{Phase, Role, Time};
use gradlane_core::wire::frame::Status;
use gradlane_core::{Error, Result};

use crate::exit;

/// Tells a person what changes. A log gets the same as events, and a warning while nothing changes.
pub(super) struct StatusPrinter {
    clock: Clock,
    last: Option<String>,
    /// When it last said anything.
    told: Time,
    /// How long nothing may change until it warns; `None` if another part of the process warns.
    warns_after: Option<Duration>,
}

impl StatusPrinter {
    pub(super) fn new(warns_after: Option<Duration>) -> Self {
        Self { clock: Clock::start(), last: None, told: Time::ZERO, warns_after }
    }

    /// Tells `news` if they are new, and returns whether there may be more. Nothing is the end of all news.
    pub(super) fn tell(&mut self, news: Result<Option<String>>) -> bool {
        let now = self.clock.now();
        match news {
            Ok(None) => return false,
            // Perhaps it is busy.
            Err(Error::Timeout { .. }) => {}
            Err(_) => return false,
            Ok(Some(news)) if self.last.as_ref() == Some(&news) => {
                if self.warns_after.is_some_and(|after| self.told + after <= now) {
                    let waited_s = now.since(Time::ZERO).as_secs_f64();
                    tracing::warn!(waited_s, reason = news, "the job has not formed yet");
                    self.told = now;
                }
            }
            Ok(Some(news)) => {
                if std::io::stderr().is_terminal() {
                    exit::complain(&news);
                } else {
                    tracing::info!("{news}");
                }
                (self.last, self.told) = (Some(news), now);
            }
        }
        true
    }
}

/// Who is there of a job that forms, and who is missing, in words.
pub(super) fn who_is_there(status: &Status, workers: u32, servers: u32) -> Option<String> {
    let view = &status.view;
    if view.phase != Phase::Forming {
        return None;
    }
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for (role, wanted) in [(Role::Worker, workers), (Role::Server, servers)] {
        let present: BTreeSet<u32> =
            view.members.iter().filter(|member| member.process.role == role).map(|member| member.index).collect();
        there.push(format!("{} of {wanted} {role}s", present.len()));
        missing.extend((0..wanted).filter(|index| !present.contains(index)).map(|index| format!("{role} {index}")));
    }
    let named = missing.iter().take(MISSING_NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = missing.len().saturating_sub(MISSING_NAMED);
    let waiting = match (missing.len(), more) {
        (0, _) => String::new(),
        (_, 0) => format!("; waiting for {named}"),
        (_, more) => format!("; waiting for {named} and {more} more"),
    };
    Some(format!("{}{waiting}", there.join(", ")))
}

/// How many missing members are named.
const MISSING_NAMED: usize = 4;

#[cfg(test)]
mod tests {
    use gradlane_core::types::{Epoch, Incarnation, Member, NodeId, Process, Round, View};

    use super::*;

    #[test]
    fn a_job_that_forms_is_told_in_words() {
        let member = |role, index| Member {
            process: Process::new(role, Incarnation(1)),
            node: NodeId([0; 32]),
            index,
            first_round: Round(0),
        };
        let status = |phase, members: Vec<Member>| Status {
            view: View::plain("night", Epoch { term: 1, number: 1 }, phase, members),
            members: Vec::new(),
            imbalance_milli: 0,
            waits: Box::default(),
            hold: None,
        };
        let some = || vec![member(Role::Worker, 0), member(Role::Worker, 2), member(Role::Server, 0)];
        let told = |members, workers| who_is_there(&status(Phase::Forming, members), workers, 2);
        assert_eq!(
            told(some(), 4).as_deref(),
            Some("2 of 4 workers, 1 of 2 servers; waiting for worker 1, worker 3, server 1")
        );
        assert_eq!(
            told(Vec::new(), 8).as_deref(),
            Some("0 of 8 workers, 0 of 2 servers; waiting for worker 0, worker 1, worker 2, worker 3 and 6 more")
        );
        assert_eq!(who_is_there(&status(Phase::Running, some()), 4, 2), None);
    }
}
