//! What a member says while the job forms: which processes are missing, or why the coordinator is not reached.

use std::collections::BTreeSet;

use super::{Member, MemberCommand, Standing};
use crate::error::Error;
use crate::types::{Role, Time};
use crate::wire::Frame;
use crate::wire::frame::Status;

/// Attempts to connect that may fail in a row because this process gets no socket or thread.
const LOCAL_FAILURES_MAX: u32 = 3;
/// The most missing processes that are named one by one.
const NAMES_MAX: usize = 8;

impl Member {
    /// The driver could not begin to connect: this process gets no socket or thread, or its credentials are not usable. A fault of this
    /// process lasts, so a process that joins gives up after a few attempts.
    pub fn handle_undialled(&mut self, now: Time, error: Error) {
        self.local_failures += 1;
        if matches!(self.standing, Standing::Joining) && self.local_failures >= LOCAL_FAILURES_MAX {
            return self.fail(error);
        }
        self.line_lost(now, error);
    }

    /// When to say next why the job has not formed yet.
    pub(super) fn says_why_at(&self) -> Option<Time> {
        let says = matches!(self.standing, Standing::Joining) && !self.config.warn_after.is_zero();
        says.then(|| self.said_why.unwrap_or(self.started) + self.config.warn_after)
    }

    /// Says why the job has not formed yet, if it is time. A coordinator that is reached is asked who is missing.
    pub(super) fn say_why(&mut self, now: Time) {
        if self.says_why_at().is_none_or(|at| now < at) {
            return;
        }
        self.said_why = Some(now);
        if self.line.is_up() && !self.asked_status {
            self.asked_status = true;
            return self.send(Frame::StatusRequest);
        }
        let (coordinator, trouble) = (&self.config.coordinator, self.line.trouble());
        self.say(now, format!("the coordinator at {coordinator} is not reached: {trouble}"));
    }

    /// The coordinator answered with the state of the job.
    pub(super) fn handle_status(&mut self, now: Time, status: &Status) {
        if !std::mem::take(&mut self.asked_status) {
            return self.fail_protocol("kind", "nobody asked for");
        }
        // One process speaks for all that wait for the same: the first of the members.
        let is_first = status.view.members.first().is_some_and(|first| self.is_me(first));
        if matches!(self.standing, Standing::Joining) && is_first {
            let reason = self.missing(status);
            self.say(now, reason);
        }
    }

    fn say(&mut self, now: Time, reason: String) {
        self.commands.push_back(MemberCommand::SayWhy { waited: now.since(self.started), reason });
    }

    /// Who is missing, as far as this process knows how large the job is, and who has come.
    fn missing(&self, status: &Status) -> String {
        let members = &status.view.members;
        let came = |role: Role| -> BTreeSet<u32> {
            members.iter().filter(|member| member.process.role == role).map(|member| member.index).collect()
        };
        let missing = |role: Role, size: u32| {
            let came = came(role);
            (0..size).filter(move |index| !came.contains(index)).map(move |index| format!("{role} {index}"))
        };
        let absent: Vec<String> =
            missing(Role::Worker, self.config.workers).chain(missing(Role::Server, self.config.servers)).collect();
        let present: Vec<String> =
            members.iter().map(|member| format!("{} on {}", member.name(), member.place())).collect();
        let present = if present.is_empty() { "nobody".to_owned() } else { listed(&present) };
        match absent.is_empty() {
            true => format!("other processes have not joined; joined: {present}"),
            false => format!("missing: {}; joined: {present}", listed(&absent)),
        }
    }
}

/// The first names of a list, and how many more there are.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeFrom;
    use std::time::Duration;

    use super::super::tests::{at, commands, config, down, view};
    use super::*;
    use crate::cluster::MemberConfig;
    use crate::types::{Phase, View};

    #[test]
    fn a_process_that_reaches_no_coordinator_says_why_after_a_while_and_again() {
        let mut member = joining();
        member.handle_disconnected(at(0), down());
        assert_eq!(said(&mut member, 4), None);
        let reason = "the coordinator at n0:7000 is not reached: connect: connection refused";
        for seconds in [5, 10] {
            assert_eq!(said(&mut member, seconds), Some((seconds, reason.to_owned())));
        }
    }

    #[test]
    fn a_process_that_waits_for_others_says_who_is_missing() {
        let mut member = joining();
        member.handle_connected(at(1));
        commands(&mut member);
        for seconds in [5, 10] {
            let heard = at(seconds - 1);
            member.handle_frame(heard, Frame::HeartbeatAck { sent: heard });
            member.handle_timeout(at(seconds));
            assert!(commands(&mut member).contains(&MemberCommand::Send(Frame::StatusRequest)));
            member.handle_frame(at(seconds), Frame::Status(forming(1..)));
            let (waited, reason) = said(&mut member, seconds).expect("it was told");
            assert_eq!(
                (waited, reason.split(" on ").next()),
                (seconds, Some("missing: worker 0, server 0; joined: worker 1"))
            );
        }
    }

    #[test]
    fn of_the_processes_that_wait_for_others_the_first_one_speaks() {
        let mut member = joining();
    #[test]
    fn attempts_that_fail_in_this_process_count_only_in_a_row() {
        let mut member = joining();
        commands(&mut member);
        let mut now = at(0);
        for attempt in 1..3 * LOCAL_FAILURES_MAX {
            match attempt % LOCAL_FAILURES_MAX {
                0 => member.handle_disconnected(now, down()),
                _ => member.handle_undialled(now, down()),
            }
            assert_eq!(commands(&mut member), [], "attempt {attempt}");
            now = member.poll_timeout().unwrap();
            member.handle_timeout(now);
            commands(&mut member);
        }
    }

        member.handle_connected(at(4));
        member.handle_timeout(at(5));
        commands(&mut member);
        member.handle_frame(at(5), Frame::Status(forming(0..)));
        assert_eq!(commands(&mut member), []);
    }

    #[test]
    fn a_coordinator_that_takes_the_connection_and_answers_nothing_is_told_of() {
        let mut member = joining();
        member.handle_connected(at(4));
        member.handle_timeout(at(5));
        commands(&mut member);
        let (_, reason) = said(&mut member, 10).expect("nothing came");
        assert!(reason.contains("not reached"), "{reason}");
    }

    #[test]
    fn a_process_that_gets_no_socket_or_thread_ends_after_a_few_attempts() {
        let mut member = joining();
        commands(&mut member);
        let mut now = at(0);
        for _ in 1..LOCAL_FAILURES_MAX {
            member.handle_undialled(now, down());
            assert_eq!(commands(&mut member), []);
            now = member.poll_timeout().unwrap();
            member.handle_timeout(now);
            assert!(commands(&mut member).contains(&MemberCommand::Dial));
        }
        member.handle_undialled(now, down());
        let failed = crate::cluster::MemberEvent::Failed(down());
        assert!(commands(&mut member).contains(&MemberCommand::Event(failed)));
    }

    #[test]
    fn a_status_that_nobody_asked_for_breaks_the_protocol() {
        let mut member = joining();
        member.handle_connected(at(1));
        member.handle_frame(at(1), Frame::Status(forming(0..)));
        assert_eq!(member.poll_timeout(), None, "it has ended");
    }

    /// The state of a job in which these workers have joined, of two; this process is worker 1.
    fn forming(workers: RangeFrom<usize>) -> Status {
        let formed = view(0);
        let members = formed.members[workers].to_vec();
        Status { view: View { phase: Phase::Forming, members, ..formed }, members: Vec::new(), imbalance_milli: 1000 }
    }

    fn joining() -> Member {
        Member::new(MemberConfig { warn_after: Duration::from_secs(5), ..config() }, at(0))
    }

    /// What it says at this time: after how many seconds, and why.
    fn said(member: &mut Member, seconds: u64) -> Option<(u64, String)> {
        member.handle_timeout(at(seconds));
        commands(member).into_iter().find_map(|command| match command {
            MemberCommand::SayWhy { waited, reason } => Some((waited.as_secs(), reason)),
            _ => None,
        })
    }
}
