//! Orders of operators that are under way: which members have to answer, and until when.
//!
//! ```text
//!  begun ──all of its recipients have answered──► answered
//!    ├──one of them cannot obey, is lost or is late──► answered with that error
//!    └──the operator's connection ended──► (forgotten)
//! ```
//! A member that connects again is told again what it has not answered. A change of a learning rate is told to each server until that server
//! has it, also when the operator has heard that it took too long: otherwise servers would apply different rates for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{ControlAnswer, ControlCommand, LinkId, Recipient, ServerId, Time};

/// The machine.
#[derive(Default, Debug)]
pub(super) struct Controls {
    /// The number of the last order.
    number: u64,
    open: BTreeMap<u64, Open>,
    /// The changes of learning rates that a server has not answered.
    rates: BTreeMap<ServerId, BTreeMap<u64, ControlCommand>>,
}

/// An order that is under way.
#[derive(Debug)]
struct Open {
    link: LinkId,
    request: u64,
    command: ControlCommand,
    /// Who has not answered.
    waits: BTreeSet<Recipient>,
    since: Time,
    until: Time,
}

/// The end of an operator's wait.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) link: LinkId,
    pub(super) request: u64,
    pub(super) outcome: Result<ControlAnswer>,
}

impl Controls {
    /// An operator has given an order to `recipients`. Returns its number, with which they are told.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are [`ORDERS_MAX`] under way.
    ///
    /// # Panics
    /// Without recipients, because nobody would answer.
    pub(super) fn begin(
        &mut self,
        now: Time,
        (link, request): (LinkId, u64),
        wait: Duration,
        command: &ControlCommand,
        recipients: impl IntoIterator<Item = Recipient>,
    ) -> Result<u64> {
        if self.open.len() >= ORDERS_MAX {
            return Err(Error::Exhausted {
                what: "orders of operators under way".to_owned(),
                limit: ORDERS_MAX.to_string(),
                hint: "wait for the answers to some of them".to_owned(),
            });
        }
        let waits: BTreeSet<Recipient> = recipients.into_iter().collect();
        assert!(!waits.is_empty(), "somebody has to answer");
        // Later than those of a coordinator that led this job before.
        self.number = now.0.max(self.number + 1);
        let number = self.number;
        if let ControlCommand::SetRate { .. } = command {
            for recipient in &waits {
                if let Recipient::Server(server) = recipient {
                    self.rates.entry(*server).or_default().insert(number, command.clone());
                }
            }
        }
        let until = now + wait.min(WAIT_MAX);
        self.open.insert(number, Open { link, request, command: command.clone(), waits, since: now, until });
        Ok(number)
    }

    /// Whether this request is under way.
    pub(super) fn knows(&self, link: LinkId, request: u64) -> bool {
        self.open.values().any(|open| (open.link, open.request) == (link, request))
    }

    /// A recipient has obeyed, or cannot. What nobody waits for is ignored.
    pub(super) fn handle_outcome(
        &mut self,
        recipient: Recipient,
        number: u64,
        outcome: Result<ControlAnswer>,
    ) -> Option<Answer> {
        if let Recipient::Server(server) = recipient
            && let Some(told) = self.rates.get_mut(&server)
        {
            told.remove(&number);
        }
        let open = self.open.get_mut(&number)?;
        if !open.waits.remove(&recipient) || (outcome.is_ok() && !open.waits.is_empty()) {
            return None;
        }
        self.end(number, outcome)
    }

    /// What a member that has connected has not answered, in order.
    pub(super) fn told(&self, recipient: Recipient) -> BTreeMap<u64, ControlCommand> {
        let waits = self.open.iter().filter(|(_, open)| open.waits.contains(&recipient));
        let mut told: BTreeMap<u64, ControlCommand> =
            waits.map(|(number, open)| (*number, open.command.clone())).collect();
        if let Recipient::Server(server) = recipient {
            let rates = self.rates.get(&server).into_iter().flatten();
            told.extend(rates.map(|(number, command)| (*number, command.clone())));
        }
        told
    }

    /// A member is lost, or has left, because of `cause`.
    pub(super) fn lose(&mut self, recipient: Recipient, cause: &Error) -> Vec<Answer> {
        if let Recipient::Server(server) = recipient {
            self.rates.remove(&server);
        }
        self.end_where(|open| open.waits.contains(&recipient), |_| cause.clone())
    }

    /// The connection of an operator has ended.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.open.retain(|_, open| open.link != link);
    }

    /// Ends the waits that are out of time.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Answer> {
        self.end_where(
            |open| open.until <= now,
            |open| {
                let silent: Vec<String> = open.waits.iter().map(Recipient::to_string).collect();
                let what = format!("{}: no answer from {}", open.command.word(), silent.join(", "));
                Error::Timeout { what, waited: now.since(open.since) }
            },
        )
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.open.values().map(|open| open.until).min()
    }

    /// The job is over.
    pub(super) fn fail_all(&mut self, cause: &Error) -> Vec<Answer> {
        self.rates.clear();
        self.end_where(|_| true, |_| cause.clone())
    }

    fn end_where(&mut self, is_one: impl Fn(&Open) -> bool, error: impl Fn(&Open) -> Error) -> Vec<Answer> {
        let ended = self.open.iter().filter(|(_, open)| is_one(open));
        let ended: Vec<(u64, Error)> = ended.map(|(number, open)| (*number, error(open))).collect();
        ended.into_iter().filter_map(|(number, error)| self.end(number, Err(error))).collect()
    }

    fn end(&mut self, number: u64, outcome: Result<ControlAnswer>) -> Option<Answer> {
        let Open { link, request, .. } = self.open.remove(&number)?;
        Some(Answer { link, request, outcome })
    }
}

/// Orders under way at once. Each has the fields of one command, so all of them have at most half a MiB.
pub(super) const ORDERS_MAX: usize = 64;
/// How long an operator waits at most. A save of large parameters takes minutes.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use gradlane_core::types::WorkerId;

    use super::*;

    const OPERATOR: LinkId = LinkId(7);
    const SERVERS: [Recipient; 2] = [Recipient::Server(ServerId(0)), Recipient::Server(ServerId(1))];
    const WORKER: Recipient = Recipient::Worker(WorkerId(3));
    const DONE: Result<ControlAnswer> = Ok(ControlAnswer::Done);

    fn begin(controls: &mut Controls, request: u64, command: &ControlCommand, recipients: &[Recipient]) -> Result<u64> {
        let recipients = recipients.iter().copied();
        controls.begin(Time(100), (OPERATOR, request), Duration::from_nanos(50), command, recipients)
    }

    fn answer(request: u64, outcome: Result<ControlAnswer>) -> Answer {
        Answer { link: OPERATOR, request, outcome }
    }

    fn rate() -> ControlCommand {
        ControlCommand::SetRate { tensor: "w".to_owned(), rate: 0.5, step: Some(4) }
    }

    #[test]
    fn an_order_is_answered_when_all_have_obeyed() {
        let mut controls = Controls::default();
        let number = begin(&mut controls, 1, &rate(), &SERVERS).unwrap();
        assert!(controls.knows(OPERATOR, 1) && !controls.knows(OPERATOR, 2) && !controls.knows(LinkId(8), 1));
        assert_eq!(controls.handle_outcome(SERVERS[1], number, DONE), None);
        assert_eq!(controls.handle_outcome(SERVERS[1], number, DONE), None, "said again");
        assert_eq!(controls.handle_outcome(SERVERS[0], number, DONE), Some(answer(1, DONE)));
        assert_eq!(controls.handle_outcome(SERVERS[0], number, DONE), None);
        assert_eq!(controls.poll_timeout(), None);
    }

    #[test]
    fn the_first_who_cannot_obey_ends_the_wait() {
        let mut controls = Controls::default();
        let number = begin(&mut controls, 1, &rate(), &SERVERS).unwrap();
        let failed = Err(Error::Cancelled);
        assert_eq!(controls.handle_outcome(SERVERS[0], number, failed.clone()), Some(answer(1, failed)));
        assert_eq!(controls.handle_outcome(SERVERS[1], number, DONE), None);
    }

    #[test]
    fn who_is_late_or_lost_is_named() {
        let mut controls = Controls::default();
        let log = ControlCommand::Log { filter: "debug".to_owned() };
        begin(&mut controls, 1, &log, &[WORKER]).unwrap();
        begin(&mut controls, 2, &rate(), &SERVERS).unwrap();
        assert_eq!((controls.poll_timeout(), controls.expire(Time(149))), (Some(Time(150)), Vec::new()));
        let lost = Error::PeerLost { member: "worker 3".to_owned(), host: "n3".to_owned(), cause: "x".to_owned() };
        assert_eq!(controls.lose(WORKER, &lost), [answer(1, Err(lost))]);
        let what = "set: no answer from server-0, server-1".to_owned();
        let late = Error::Timeout { what, waited: Duration::from_nanos(50) };
        assert_eq!(controls.expire(Time(150)), [answer(2, Err(late))]);
        assert_eq!(controls.poll_timeout(), None);
    }

    #[test]
    fn a_member_that_comes_back_is_told_what_it_has_not_answered() {
        let mut controls = Controls::default();
        let drain = begin(&mut controls, 1, &ControlCommand::Drain, &SERVERS[..1]).unwrap();
        let set = begin(&mut controls, 2, &rate(), &SERVERS).unwrap();
        let told = [(drain, ControlCommand::Drain), (set, rate())].into();
        assert_eq!(controls.told(SERVERS[0]), told);
        assert_eq!(controls.told(SERVERS[1]), [(set, rate())].into());
        assert_eq!(controls.told(WORKER), BTreeMap::new());
        controls.handle_outcome(SERVERS[1], set, DONE);
        assert_eq!(controls.told(SERVERS[1]), BTreeMap::new());
    }

    #[test]
    fn a_server_is_told_a_rate_until_it_has_it_though_nobody_waits() {
        let mut controls = Controls::default();
        let set = begin(&mut controls, 1, &rate(), &SERVERS).unwrap();
        assert_eq!(controls.expire(Time(150)).len(), 1);
        assert_eq!(controls.told(SERVERS[0]), [(set, rate())].into());
        controls.handle_outcome(SERVERS[0], set, DONE);
        assert_eq!(controls.told(SERVERS[0]), BTreeMap::new());
        controls.lose(SERVERS[1], &Error::Cancelled);
        assert_eq!(controls.told(SERVERS[1]), BTreeMap::new());
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let mut controls = Controls::default();
        for request in 0..ORDERS_MAX as u64 {
            begin(&mut controls, request, &ControlCommand::Stats, &[WORKER]).unwrap();
        }
        let refused = begin(&mut controls, 100, &ControlCommand::Stats, &[WORKER]);
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
        controls.forget(OPERATOR);
        assert!(begin(&mut controls, 100, &ControlCommand::Stats, &[WORKER]).is_ok());
        assert_eq!(controls.fail_all(&Error::Cancelled), [answer(100, Err(Error::Cancelled))]);
    }

    #[test]
    fn numbers_grow_also_over_a_coordinator_that_was_started_again() {
        let mut controls = Controls::default();
        let first = begin(&mut controls, 1, &ControlCommand::Stats, &[WORKER]).unwrap();
        let second = begin(&mut controls, 2, &ControlCommand::Stats, &[WORKER]).unwrap();
        assert_eq!((first, second), (100, 101));
    }
}
