//! What a member says while the job forms: which processes are missing, or why the coordinator is not reached.

use super::{Member, MemberCommand, Standing};
use crate::error::Error;
use crate::types::Time;
use crate::wire::Frame;
use crate::wire::frame::Forming;

/// Attempts to connect that may fail in a row because this process gets no socket or thread.
const LOCAL_FAILURES_MAX: u32 = 3;

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

    /// The coordinator answered. It has one process speak for all that wait for the same.
    pub(super) fn handle_forming(&mut self, now: Time, Forming { speaks, missing, joined }: &Forming) {
        if !std::mem::take(&mut self.asked_status) {
            return self.fail_protocol("kind", "nobody asked for");
        }
        if matches!(self.standing, Standing::Joining) && *speaks {
            let absent = match missing.is_empty() {
                true => "other processes have not joined".to_owned(),
                false => format!("missing: {missing}"),
            };
            self.say(now, format!("{absent}; joined: {joined}"));
        }
    }

    fn say(&mut self, now: Time, reason: String) {
        self.commands.push_back(MemberCommand::SayWhy { waited: now.since(self.started), reason });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{acknowledged, at, commands, config, down};
    use super::*;
    use crate::cluster::MemberConfig;
    use crate::wire::frame::Names;

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
            member.handle_frame(heard, acknowledged(heard));
            member.handle_timeout(at(seconds));
            assert!(commands(&mut member).contains(&MemberCommand::Send(Frame::StatusRequest)));
            member.handle_frame(at(seconds), Frame::Forming(forming(true)));
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
        member.handle_connected(at(4));
        member.handle_timeout(at(5));
        commands(&mut member);
        member.handle_frame(at(5), Frame::Forming(forming(false)));
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

    #[test]
    fn a_status_that_nobody_asked_for_breaks_the_protocol() {
        let mut member = joining();
        member.handle_connected(at(1));
        member.handle_frame(at(1), Frame::Forming(forming(false)));
        assert_eq!(member.poll_timeout(), None, "it has ended");
    }

    /// The state of a job in which worker 1 has come and worker 0 and a server have not.
    fn forming(speaks: bool) -> Forming {
        let names = |names: &[&str]| Names::first(names.iter().map(|name| (*name).to_owned()), names.len());
        Forming { speaks, missing: names(&["worker 0", "server 0"]), joined: names(&["worker 1 on n1 (pid 11)"]) }
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
