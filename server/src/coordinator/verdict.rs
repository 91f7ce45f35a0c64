//! The consequence of a loss for the job: a pure function of the policy, the roster and the lost members.
//!
//! | lost | policy `Abort` | policy `Continue` |
//! |---|---|---|
//! | before the job formed | free the seat | free the seat |
//! | a worker that left in order, while it was there | nothing | continue without it |
//! | the same, later | nothing | nothing |
//! | a worker | abort | continue without it |
//! | several workers, others stay | abort | continue without them |
//! | so many workers that too few are left | abort | abort; or continue without them, and hold, if the job waits for others |
//! | the same, and servers keep parameters | abort | abort: nobody is taken in |
//! | every worker | abort | abort: nobody is left |
//! | the last worker that works, others left in order | abort | continue: the job ends in order |
//! | a server, perhaps with workers, and jobs do not outlive servers | abort | abort: its sums are lost |
//! | a server, others are left, and the job outlives servers | abort | continue without it |
//! | the last server, or one of a job that keeps parameters | abort | abort: what it keeps is lost |
//! | any server, workers are left, and lost servers are restored | abort | restore: the members that are left form the job again |

use std::time::Duration;

use gradlane_core::config::{Config, OnServerLoss, OnWorkerLoss, Origin};
use gradlane_core::error::{Error, Result};
use gradlane_core::types::Role;
use gradlane_core::wire::frame::Health;

use super::roster::{Identity, Roster, Seat};

/// What the coordinator does when a member of a running job is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The job fails, and every member gets the cause.
    #[default]
    Abort,
    /// The job goes on with the workers that are left.
    Continue {
        /// The fewest workers that go on after a loss; those that left in order count.
        min_workers: u32,
        /// If fewer are left: how long they hold behind their step until others have come. `None` if the job ends then.
        rejoin: Option<Duration>,
        /// What the loss of a server means.
        on_server_loss: OnServerLoss,
    },
}

impl Policy {
    /// To go on with however many are left.
    pub const CONTINUE: Self = Self::Continue { min_workers: 1, rejoin: None, on_server_loss: OnServerLoss::Abort };

    /// The policy that a user chose, for a job that forms with so many workers.
    pub fn from_settings(config: &Config, workers: u32) -> Self {
        let (min_workers, rejoin) = match config.on_worker_loss {
            OnWorkerLoss::Abort => return Self::Abort,
            OnWorkerLoss::Continue => (config.min_workers, None),
            OnWorkerLoss::Wait => {
                let is_said = config.elastic.is_some() || *config.origin("min_workers") != Origin::Default;
                (if is_said { config.min_workers } else { workers }, Some(config.rejoin_timeout))
            }
        };
        Self::Continue { min_workers, rejoin, on_server_loss: config.on_server_loss }
    }

    /// What the loss of a server means.
    pub(super) fn on_server_loss(self) -> OnServerLoss {
        match self {
            Self::Abort => OnServerLoss::Abort,
            Self::Continue { on_server_loss, .. } => on_server_loss,
        }
    }

    /// How long workers that are too few hold until others have come, if they do.
    pub(super) fn rejoin(self) -> Option<Duration> {
        match self {
            Self::Abort => None,
            Self::Continue { rejoin, .. } => rejoin,
        }
    }

    /// The policy where so many workers had left in order before the job formed as it is: nobody waits for them.
    pub(super) fn without_leavers(self, left: u32) -> Self {
        match self {
            Self::Continue { min_workers, rejoin: rejoin @ Some(_), on_server_loss } => {
                Self::Continue { min_workers: min_workers.saturating_sub(left).max(1), rejoin, on_server_loss }
            }
            Self::Abort | Self::Continue { .. } => self,
        }
    }

    /// Checks it for a job of so many workers.
    ///
    /// # Errors
    /// [`Error::Config`] if more must be left than there are.
    pub(super) fn check(self, workers: u32) -> Result<()> {
        match self {
            Self::Continue { min_workers, .. } if min_workers > workers => Err(Error::Config {
                knob: "min_workers".to_owned(),
                problem: format!("is {min_workers}, and the job has {workers} workers"),
                hint: "give at most as many as there are".to_owned(),
            }),
            Self::Abort | Self::Continue { .. } => Ok(()),
        }
    }
}

/// A member that was lost.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Lost {
    pub(super) identity: Identity,
    /// The evidence.
    pub(super) cause: String,
}

/// The consequence of a loss.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// The job still forms: the seats are free for others.
    Free,
    /// The job does not need the lost members any more.
    Nothing,
    /// The job fails with this cause.
    Abort { cause: Error, reason: &'static str },
    /// The job goes on without these members, under a new view.
    Continue { without: Vec<Identity>, reason: &'static str },
    /// The members that are left form the job again, and hear this cause.
    Restore { cause: Error, reason: &'static str },
}

/// Decides the consequence of the loss of these members, all noticed at the same time. `keeps_parameters` says whether
/// servers have values that are nowhere else.
pub(super) fn verdict(policy: Policy, roster: &Roster, keeps_parameters: bool, loss: &[Lost]) -> Verdict {
    if !roster.is_sealed() {
        return Verdict::Free;
    }
    let needed = |lost: &&Lost| roster.seat(lost.identity).is_some_and(Seat::is_present);
    let needed: Vec<&Lost> = loss.iter().filter(needed).collect();
    let Some(first) = needed.first() else { return Verdict::Nothing };
    let abort = |lost: &Lost, reason| Verdict::Abort { cause: peer_lost(roster, lost), reason };
    // Who wants the job to go on has to hear why it does not.
    let explained = |lost: &Lost, reason: &'static str| {
        abort(&Lost { cause: format!("{}; {reason}", lost.cause), ..lost.clone() }, reason)
    };
    match policy {
        Policy::Abort => abort(first, "the policy of this job is to abort"),
        Policy::Continue { min_workers, rejoin, on_server_loss } => {
            let without: Vec<Identity> = needed.iter().map(|lost| lost.identity).collect();
            let stays_as = |role: Role, seat: &Seat| {
                let identity = seat.identity();
                identity.role == role && seat.health != Health::Dead && !without.contains(&identity)
            };
            let stays = |seat: &Seat| stays_as(Role::Worker, seat);
            let mut restored = None;
            if let Some(server) = needed.iter().find(|lost| lost.identity.role == Role::Server) {
                match on_server_loss {
                    OnServerLoss::Abort => return abort(server, "the sums of a server are lost with it"),
                    OnServerLoss::Continue if keeps_parameters => {
                        return explained(server, "the parameters of a server are lost with it");
                    }
                    OnServerLoss::Continue if !roster.seats().any(|seat| stays_as(Role::Server, seat)) => {
                        return explained(server, "no server is left");
                    }
                    OnServerLoss::Continue => {}
                    // Another one may come while the job forms.
                    OnServerLoss::Restore => restored = Some(server),
                }
            }
            let left = roster.seats().filter(|seat| stays(seat)).count();
            let are_few = left < min_workers as usize;
            match rejoin {
                _ if left == 0 => return abort(first, "no worker is left"),
                None if are_few => return explained(first, "fewer workers are left than min_workers"),
                Some(_) if are_few && keeps_parameters && restored.is_none() => {
                    return explained(first, "no other worker can come, because the job keeps parameters on servers");
                }
                None | Some(_) => {}
            }
            if let Some(server) = restored {
                let reason = "what a lost server kept comes back from a checkpoint";
                return Verdict::Restore { cause: state_lost(roster, server), reason };
            }
            let reason = if are_few { "others are left, and wait until more have come" } else { "others are left" };
            Verdict::Continue { without, reason }
        }
    }
}

/// The error for those who wait for a member that is lost.
pub(super) fn peer_lost(roster: &Roster, lost: &Lost) -> Error {
    Error::PeerLost { member: roster.name(lost.identity), host: place(roster, lost), cause: lost.cause.clone() }
}

fn state_lost(roster: &Roster, lost: &Lost) -> Error {
    Error::StateLost { member: roster.name(lost.identity), host: place(roster, lost), cause: lost.cause.clone() }
}

fn place(roster: &Roster, lost: &Lost) -> String {
    roster.seat(lost.identity).map(|seat| seat.member.place()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::{Address, Incarnation, LinkId, NodeId, Process, Scheme, Time};
    use gradlane_core::wire::frame::Join;

    use super::super::roster::{Change, Size};
    use super::*;

    const SERVER: u8 = 9;

    #[test]
    fn every_loss_has_its_verdict_under_every_policy() {
        let abort = "the policy of this job is to abort";
        // What was lost of workers 0 to 2 and a server, the workers that had left before, and what follows by `Abort` and `Continue`.
        type Case = (&'static str, &'static [u8], &'static [u8], &'static str, &'static str);
        let cases: [Case; 9] = [
            ("a worker", &[1], &[], abort, "others are left"),
            ("several workers", &[0, 2], &[], abort, "others are left"),
            ("a worker beside one that left", &[1], &[0], abort, "others are left"),
            ("the last that works", &[2], &[0, 1], abort, "others are left"),
            ("every worker", &[0, 1, 2], &[], abort, "no worker is left"),
            ("a server", &[SERVER], &[], abort, "the sums of a server are lost with it"),
            ("a worker and a server", &[1, SERVER], &[], abort, "the sums of a server are lost with it"),
            ("a worker that had left", &[1], &[1], "nothing", "nothing"),
            ("nobody", &[], &[], "nothing", "nothing"),
        ];
        for (what, lost, left, by_abort, by_continue) in cases {
            let roster = roster(left, true);
            for (policy, expected) in [(Policy::Abort, by_abort), (Policy::CONTINUE, by_continue)] {
                let reason = match decided(policy, &roster, &loss(lost)) {
                    Verdict::Abort { reason, .. }
                    | Verdict::Continue { reason, .. }
                    | Verdict::Restore { reason, .. } => reason,
                    Verdict::Nothing => "nothing",
                    Verdict::Free => "free",
                };
                assert_eq!(reason, expected, "{what}, {policy:?}");
            }
        }
    }

    #[test]
    fn a_job_goes_on_if_enough_workers_are_left_and_those_that_left_in_order_count() {
        let reason = |min_workers, left: &[u8], lost: &[u8]| match decided(
            Policy::Continue { min_workers, rejoin: None, on_server_loss: OnServerLoss::Abort },
            &roster(left, true),
            &loss(lost),
        ) {
            Verdict::Abort { reason, .. } | Verdict::Continue { reason, .. } | Verdict::Restore { reason, .. } => {
                reason
            }
            other => panic!("{other:?}"),
        };
        let too_few = "fewer workers are left than min_workers";
        let fine = "others are left";
        assert_eq!([1, 2, 3].map(|min_workers| reason(min_workers, &[], &[1])), [fine, fine, too_few]);
        assert_eq!(reason(2, &[], &[0, 1]), too_few);
        assert_eq!(reason(2, &[0], &[1]), fine);
        assert!(
            Policy::Continue { min_workers: 3, rejoin: None, on_server_loss: OnServerLoss::Abort }.check(3).is_ok()
        );
        let refused = Policy::Continue { min_workers: 4, rejoin: None, on_server_loss: OnServerLoss::Abort }
            .check(3)
            .unwrap_err();
        assert!(matches!(refused, Error::Config { knob, .. } if knob == "min_workers"));
    }

    #[test]
    fn a_job_that_waits_for_others_goes_on_with_too_few_unless_nobody_can_come() {
        let waits = |left_before| {
            Policy::Continue {
                min_workers: 3,
                rejoin: Some(Duration::from_secs(9)),
                on_server_loss: OnServerLoss::Abort,
            }
            .without_leavers(left_before)
        };
        let reason = |policy, left: &[u8], keeps_parameters, lost: &[u8]| match verdict(
            policy,
            &roster(left, true),
            keeps_parameters,
            &loss(lost),
        ) {
            Verdict::Abort { reason, .. } | Verdict::Continue { reason, .. } | Verdict::Restore { reason, .. } => {
                reason
            }
            other => panic!("{other:?}"),
        };
        let (fine, few) = ("others are left", "others are left, and wait until more have come");
        for (what, policy, left, keeps_parameters, lost, expected) in [
            ("a worker", waits(0), &[][..], false, &[1][..], few),
            ("several workers", waits(0), &[], false, &[0, 2], few),
            ("a worker beside one that left", waits(0), &[0], false, &[1], few),
            ("the last that works", waits(0), &[0, 1], false, &[2], few),
            ("a worker where one had left before", waits(1), &[], false, &[1], fine),
            ("a worker where all had left before", waits(7), &[], false, &[0, 1], fine),
            ("every worker", waits(0), &[], false, &[0, 1, 2], "no worker is left"),
            (
                "a worker, beside parameters",
                waits(0),
                &[],
                true,
                &[1],
                "no other worker can come, because the job keeps parameters on servers",
            ),
            ("one that need not be replaced, beside parameters", waits(1), &[], true, &[1], fine),
            ("a server", waits(0), &[], false, &[SERVER], "the sums of a server are lost with it"),
        ] {
            assert_eq!(reason(policy, left, keeps_parameters, lost), expected, "{what}");
        }
    }

    #[test]
    fn the_number_to_wait_for_is_the_fewest_that_were_said_or_that_with_which_the_job_forms() {
        let fewest = |settings: &[(&str, &str)]| {
            let given = settings.iter().chain(&[("on_worker_loss", "wait")]);
            let given = given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let (config, _) = Config::load(&given, [], None).unwrap();
            match Policy::from_settings(&config, 5) {
                Policy::Continue { min_workers, rejoin: Some(_), .. } => min_workers,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([fewest(&[]), fewest(&[("min_workers", "1")]), fewest(&[("elastic", "3:8")])], [5, 1, 3]);
    }

    #[test]
    fn a_job_outlives_servers_if_one_is_left_and_they_keep_no_parameters() {
        const SECOND: u8 = SERVER + 1;
        let outlives = Policy::Continue { min_workers: 2, rejoin: None, on_server_loss: OnServerLoss::Continue };
        let roster = roster_of(&[0, 1, 2, SERVER, SECOND], &[], true);
        let reason = |keeps_parameters, lost: &[u8]| match verdict(outlives, &roster, keeps_parameters, &loss(lost)) {
            Verdict::Abort { reason, .. } | Verdict::Continue { reason, .. } | Verdict::Restore { reason, .. } => {
                reason
            }
            other => panic!("{other:?}"),
        };
        for (what, keeps_parameters, lost, expected) in [
            ("a server", false, &[SECOND][..], "others are left"),
            ("a server and a worker", false, &[SERVER, 1], "others are left"),
            ("a server and too many workers", false, &[SERVER, 1, 2], "fewer workers are left than min_workers"),
            ("all servers", false, &[SERVER, SECOND], "no server is left"),
            ("a server with parameters", true, &[SECOND], "the parameters of a server are lost with it"),
            ("a worker", true, &[2], "others are left"),
        ] {
            assert_eq!(reason(keeps_parameters, lost), expected, "{what}");
        }
    }

    #[test]
    fn a_job_that_restores_servers_forms_again_whatever_they_keep_and_even_if_none_is_left() {
        const SECOND: u8 = SERVER + 1;
        let restores = |rejoin| Policy::Continue { min_workers: 2, rejoin, on_server_loss: OnServerLoss::Restore };
        let roster = roster_of(&[0, 1, 2, SERVER, SECOND], &[], true);
        let restored = "what a lost server kept comes back from a checkpoint";
        for (what, rejoin, lost, expected) in [
            ("a server", None, &[SECOND][..], restored),
            ("all servers", None, &[SERVER, SECOND], restored),
            ("a server and a worker", None, &[1, SERVER], restored),
            ("a server and too many workers", None, &[SERVER, 1, 2], "fewer workers are left than min_workers"),
            ("the same, and others may come", Some(Duration::from_secs(9)), &[SERVER, 1, 2], restored),
            ("a server and all workers", None, &[SERVER, 0, 1, 2], "no worker is left"),
            ("a worker", None, &[2], "others are left"),
        ] {
            for keeps_parameters in [false, true] {
                let decided = verdict(restores(rejoin), &roster, keeps_parameters, &loss(lost));
                let reason = match &decided {
                    Verdict::Abort { reason, .. }
                    | Verdict::Continue { reason, .. }
                    | Verdict::Restore { reason, .. } => reason,
                    other => panic!("{other:?}"),
                };
                assert_eq!(*reason, expected, "{what}");
                if let Verdict::Restore { cause, .. } = decided {
                    let name = roster.name(identity(*lost.iter().find(|lost| **lost >= SERVER).unwrap()));
                    assert!(matches!(&cause, Error::StateLost { member, .. } if *member == name), "{what}: {cause}");
                }
            }
        }
    }

    #[test]
    fn a_loss_before_the_job_formed_frees_the_seat() {
        for policy in [Policy::Abort, Policy::CONTINUE] {
            assert_eq!(decided(policy, &roster(&[], false), &loss(&[1, SERVER])), Verdict::Free);
        }
    }

    #[test]
    fn an_abort_names_the_first_that_was_lost_or_the_server_that_decided_it() {
        let cause = |policy| match decided(policy, &roster(&[], true), &loss(&[1, SERVER])) {
            Verdict::Abort { cause, .. } => cause.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(cause(Policy::Abort), "lost worker 1 on n1 (pid 1): evidence 1");
        assert_eq!(cause(Policy::CONTINUE), "lost server 0 on n9 (pid 9): evidence 9");
    }

    #[test]
    fn a_job_continues_without_exactly_those_that_it_still_needed() {
        let verdict = decided(Policy::CONTINUE, &roster(&[0], true), &loss(&[0, 2]));
        let Verdict::Continue { without, .. } = verdict else { panic!("{verdict:?}") };
        assert_eq!(without, [identity(2)], "worker 0 had left");
    }

    /// The verdict where servers keep no parameters.
    fn decided(policy: Policy, roster: &Roster, loss: &[Lost]) -> Verdict {
        verdict(policy, roster, false, loss)
    }

    /// Workers 0 to 2 and a server, of which `left` left in order.
    fn roster(left: &[u8], sealed: bool) -> Roster {
        roster_of(&[0, 1, 2, SERVER], left, sealed)
    }

    fn roster_of(members: &[u8], left: &[u8], sealed: bool) -> Roster {
        let servers = members.iter().filter(|member| **member >= SERVER).count() as u32;
        let mut roster = Roster::new(Size { workers: 3, servers });
        for number in members.iter().copied() {
            let identity = identity(number);
            let process = Process {
                host: format!("n{number}"),
                pid: number.into(),
                addresses: vec![Address::new(Scheme::Quic, "n:1")],
                ..Process::new(identity.role, Incarnation(number.into()))
            };
            let join = Join { process, requested: None, epoch: None, workers: 0, servers: 0 };
            roster.admit(Time::ZERO, LinkId(number.into()), identity.node, join).unwrap();
        }
        if sealed {
            roster.seal();
        }
        for number in left {
            assert!(roster.apply(Change::Leave(identity(*number))));
        }
        roster
    }

    fn loss(numbers: &[u8]) -> Vec<Lost> {
        let lost = |number: &u8| Lost { identity: identity(*number), cause: format!("evidence {number}") };
        numbers.iter().map(lost).collect()
    }

    fn identity(number: u8) -> Identity {
        let role = if number >= SERVER { Role::Server } else { Role::Worker };
        Identity { node: NodeId([number; 32]), role }
    }
}
