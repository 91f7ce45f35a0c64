//! Connections to the servers of the view. They are dialled at once, and dialled again with back-off while the job lives.
//!
//! ```text
//!  (new in the view) ──► Dialling ──dialled──► Up ──lost──► Waiting ──the pause is over──► Dialling
//!                            └──────────failed──────────────► Waiting
//! ```
//! A server that leaves the view, or moves, is forgotten from any state. Reports carry the number of their attempt, so a late report about
//! a forgotten connection changes nothing.
//!
//! A server is *silent* from its first dial, or from the time at which it stopped answering on the connection that is lost, until it answers
//! an exchange or has kept a connection for `steady`. A connection alone does not end the silence: it may come up and go down for ever
//! without carrying anything. What waits for a silent server fails after the step timeout, unless it has a connection at that time.
//!
//! A server with a connection may be *stuck*: its process lives, and it answers nothing. A server that works answers each exchange within the
//! step timeout, if only with an error. So what was asked for longer ago than that and a margin fails, if nothing was answered meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use super::command::Dial;
use super::silence::{Silence, stuck};
use crate::config::{Bounds, DIAL_TIMEOUT};
use crate::error::Error;
use crate::types::{LinkId, Peer, ServerId, Time};

/// The pause after the first failure; doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Which connection leads to which server.
#[derive(Debug)]
pub(super) struct Links {
    servers: BTreeMap<ServerId, Link>,
    attempts: u64,
    bounds: Bounds,
}

#[derive(Debug)]
struct Link {
    to: Peer,
    state: LinkState,
    /// Number of the latest dial.
    attempt: u64,
    backoff: Duration,
    /// Absent if the server has answered since it was last lost.
    silence: Option<Silence>,
    /// When the server answered last.
    heard: Option<Time>,
    /// When it was asked first, of all that may be open; absent if nothing was asked since the last look.
    asked: Option<Time>,
    /// When to look whether it is stuck; absent if nothing was asked since the last look.
    look_at: Option<Time>,
}

#[derive(Debug)]
enum LinkState {
    Dialling,
    Up { link: LinkId, since: Time },
    Waiting { until: Time },
}

/// The changes of the links that a new view causes.
#[derive(Default, Debug)]
pub(super) struct Changes {
    pub(super) dials: Vec<Dial>,
    /// Servers that are no longer in the view.
    pub(super) gone: Vec<ServerId>,
    /// Links to servers that are gone or have moved.
    pub(super) closed: Vec<LinkId>,
}

impl Links {
    /// No servers.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { servers: BTreeMap::new(), attempts: 0, bounds }
    }

    /// The connection to `server`, if there is one now.
    pub(super) fn up(&self, server: ServerId) -> Option<LinkId> {
        self.servers.get(&server)?.up()
    }

    /// Follows a new view with these servers.
    pub(super) fn follow(&mut self, now: Time, servers: &BTreeMap<ServerId, Peer>) -> Changes {
        let mut changes = Changes::default();
        self.servers.retain(|server, link| {
            let stays = servers.get(server) == Some(&link.to);
            if !stays {
                changes.closed.extend(link.up());
            }
            if !servers.contains_key(server) {
                changes.gone.push(*server);
            }
            stays
        });
        for (server, to) in servers {
            if !self.servers.contains_key(server) {
                let (state, backoff, silence) =
                    (LinkState::Dialling, BACKOFF_MIN, Some(Silence::new(now, self.bounds.unreached)));
                let (to, heard, asked, look_at) = (to.clone(), None, None, None);
                let link = Link { to, state, attempt: 0, backoff, silence, heard, asked, look_at };
                self.servers.insert(*server, link);
                changes.dials.extend(self.dial(*server));
            }
        }
        changes
    }

    /// Servers whose pause is over, which must be dialled again.
    pub(super) fn due(&mut self, now: Time) -> Vec<Dial> {
        let is_due = |link: &Link| matches!(link.state, LinkState::Waiting { until } if until <= now);
        let due: Vec<ServerId> =
            self.servers.iter().filter(|(_, link)| is_due(link)).map(|(server, _)| *server).collect();
        due.into_iter().filter_map(|server| self.dial(server)).collect()
    }

    /// The next time at which a pause ends.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.servers.values().filter_map(|link| match link.state {
            LinkState::Waiting { until } => Some(until),
            LinkState::Dialling | LinkState::Up { .. } => None,
        });
        waiting.min()
    }

    /// The next time at which a server must be looked at that is silent or may be stuck.
    pub(super) fn overdue_at(&self) -> Option<Time> {
        let checks = self.servers.values().filter_map(|link| Some(link.silence()?.check_at));
        let looks = self.servers.values().filter_map(|link| link.look_at);
        checks.chain(looks).min()
    }

    /// The silent servers that must be looked at now, each with its silence and the error of what waited in vain.
    pub(super) fn overdue(&self, now: Time) -> Vec<(ServerId, Silence, Error)> {
        let silent = self.servers.iter().filter_map(|(server, link)| Some((*server, link, link.silence()?)));
        let overdue = silent.filter(|(_, _, silence)| silence.check_at <= now);
        overdue.map(|(server, link, silence)| (server, silence.clone(), silence.error(now, &link.to))).collect()
    }

    /// The silence of `server` was looked at. The next submission that waits for it is due at `next`.
    pub(super) fn checked(&mut self, now: Time, server: ServerId, next: Option<Time>) {
        if let Some(silence) = self.servers.get_mut(&server).and_then(|link| link.silence.as_mut()) {
            // A submission that is made from now on is not due before that.
            let latest = now + self.bounds.unreached;
            silence.check_at = next.map_or(latest, |next| next.min(latest));
        }
    }

    /// Why a submission that waits for `server` does not move, if the server does not answer.
    pub(super) fn unreachable(&self, now: Time, server: ServerId) -> Option<Error> {
        let link = self.servers.get(&server)?;
        Some(link.silence()?.error(now, &link.to))
    }

    /// An exchange begins.
    pub(super) fn asked(&mut self, now: Time, server: ServerId) {
        let look_at = now + self.bounds.stuck;
        if let Some(link) = self.servers.get_mut(&server) {
            link.asked.get_or_insert(now);
            link.look_at.get_or_insert(look_at);
        }
    }

    /// A server answered an exchange.
    pub(super) fn answered(&mut self, now: Time, server: ServerId) {
        if let Some(link) = self.servers.get_mut(&server) {
            link.silence = None;
            link.heard = Some(now);
        }
    }

    /// Servers of which it is time to look whether they are stuck.
    pub(super) fn to_look_at(&self, now: Time) -> Vec<ServerId> {
        let is_due = |link: &Link| link.look_at.is_some_and(|at| at <= now);
        self.servers.iter().filter(|(_, link)| is_due(link)).map(|(server, _)| *server).collect()
    }

    /// The error of what `server` has not answered, if the server is stuck. `oldest` is when the oldest exchange began that is open; absent if
    /// none is.
    pub(super) fn look(&mut self, now: Time, server: ServerId, oldest: Option<Time>) -> Option<Error> {
        let link = self.servers.get_mut(&server)?;
        let since = oldest.map(|oldest| link.heard.map_or(oldest, |heard| heard.max(oldest)));
        let due = since.map(|since| since + self.bounds.stuck);
        if oldest.is_none() {
            link.asked = None;
        }
        let is_stuck = due.is_some_and(|due| due <= now);
        // What was asked later than the oldest is looked at later.
        link.look_at = if is_stuck { Some(now + self.bounds.stuck) } else { due };
        since.filter(|_| is_stuck).map(|since| stuck(&link.to, now.since(since)))
    }

    /// An attempt succeeded. Returns whether it is the current attempt.
    pub(super) fn established(&mut self, now: Time, server: ServerId, attempt: u64, link: LinkId) -> bool {
        let Some(entry) = self.servers.get_mut(&server).filter(|entry| entry.is_dialling(attempt)) else {
            return false;
        };
        entry.state = LinkState::Up { link, since: now };
        entry.backoff = BACKOFF_MIN;
        true
    }

    /// The attempt failed, or its connection was lost, because of `cause`. Returns whether it was the current attempt.
    pub(super) fn lost(&mut self, now: Time, server: ServerId, attempt: u64, cause: Error) -> bool {
        let Some(entry) = self.servers.get_mut(&server).filter(|entry| entry.attempt == attempt) else {
            return false;
        };
        match entry.state {
            LinkState::Waiting { .. } => return false,
            LinkState::Up { since, .. } if since + self.bounds.steady <= now => entry.silence = None,
            LinkState::Dialling | LinkState::Up { .. } => {}
        }
        let since = entry.silent_since(now, self.bounds.silent);
        entry.silence.get_or_insert_with(|| Silence::new(since, self.bounds.unreached)).failed(now, cause);
        entry.state = LinkState::Waiting { until: now + entry.backoff };
        entry.backoff = (entry.backoff * 2).min(BACKOFF_MAX);
        true
    }

    /// Stops dialling servers.
    pub(super) fn stop(&mut self) {
        self.servers.retain(|_, link| !matches!(link.state, LinkState::Waiting { .. }));
    }

    fn dial(&mut self, server: ServerId) -> Option<Dial> {
        let link = self.servers.get_mut(&server)?;
        self.attempts += 1;
        (link.attempt, link.state) = (self.attempts, LinkState::Dialling);
        Some(Dial { server, attempt: link.attempt, to: link.to.clone(), timeout: DIAL_TIMEOUT })
    }
}

impl Link {
    fn up(&self) -> Option<LinkId> {
        match self.state {
            LinkState::Up { link, .. } => Some(link),
            LinkState::Dialling | LinkState::Waiting { .. } => None,
        }
    }

    /// Since when a server has not answered whose connection is lost now: since it was asked or answered last, but not longer than a
    /// connection may be silent, because until then it was alive.
    fn silent_since(&self, now: Time, quiet: Duration) -> Time {
        let Some(asked) = self.asked else { return now };
        let unanswered = self.heard.map_or(asked, |heard| heard.max(asked));
        now - now.since(unanswered).min(quiet)
    }

    /// Its silence, if it has no connection.
    fn silence(&self) -> Option<&Silence> {
        self.silence.as_ref().filter(|_| self.up().is_none())
    }

    fn is_dialling(&self, attempt: u64) -> bool {
        match self.state {
            LinkState::Dialling => self.attempt == attempt,
            LinkState::Up { .. } | LinkState::Waiting { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Address, NodeId, Scheme};

    const ONE: ServerId = ServerId(0);
    const STEP: Duration = Duration::from_secs(60);
    const STEADY: Duration = Duration::from_secs(20);
    const STUCK: Duration = Duration::from_secs(70);
    const QUIET: Duration = Duration::from_secs(10);
    const BOUNDS: Bounds = Bounds {
        step: STEP,
        unreached: STEP,
        silent: QUIET,
        steady: STEADY,
        stuck: STUCK,
        call: Duration::from_secs(72),
    };
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_that_is_not_reached_is_dialled_again_after_a_pause_that_doubles() {
        let mut links = Links::new(BOUNDS);
        let mut dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let mut now = Time::ZERO;
        for pause_ms in [50, 100, 200] {
            assert!(links.lost(now, ONE, dial.attempt, gone()));
            let due = now + Duration::from_millis(pause_ms);
            assert_eq!(next(&links), Some(due));
            now = due;
            dial = links.due(now).remove(0);
        }
        assert!(links.established(Time::ZERO, ONE, dial.attempt, LinkId(7)));
        assert_eq!((links.up(ONE), next(&links)), (Some(LinkId(7)), None));
    }

    #[test]
    fn a_server_that_moved_is_dialled_anew_and_a_report_about_its_old_place_changes_nothing() {
        let mut links = Links::new(BOUNDS);
        let old = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let new = links.follow(Time::ZERO, &servers("b")).dials.remove(0);
        assert!(!links.established(Time::ZERO, ONE, old.attempt, LinkId(1)));
        assert!(links.established(Time::ZERO, ONE, new.attempt, LinkId(2)));
        assert!(!links.lost(Time::ZERO, ONE, old.attempt, gone()));
        assert_eq!(links.up(ONE), Some(LinkId(2)));
    }

    #[test]
    fn a_server_that_left_the_view_is_forgotten_and_its_link_closed() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        links.established(Time::ZERO, ONE, dial.attempt, LinkId(1));
        let changes = links.follow(Time::ZERO, &BTreeMap::new());
        assert_eq!((changes.gone, changes.closed), (vec![ONE], vec![LinkId(1)]));
        assert!(!links.lost(Time::ZERO, ONE, dial.attempt, gone()));
        assert_eq!((links.up(ONE), next(&links)), (None, None));
    }

    #[test]
    fn a_connection_that_is_lost_before_it_was_reported_is_not_used() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        assert!(links.lost(Time::ZERO, ONE, dial.attempt, gone()));
        assert!(!links.established(Time::ZERO, ONE, dial.attempt, LinkId(1)));
        assert_eq!(links.up(ONE), None);
    }

    #[test]
    fn a_server_is_silent_from_its_first_dial_until_it_answers() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let due = Time::ZERO + STEP;
        assert_eq!(next(&links), Some(due));
        let [(ONE, silence, Error::ServerUnreachable { waited: STEP, server, .. })] = &links.overdue(due)[..] else {
            panic!("{:?}", links.overdue(due))
        };
        assert_eq!(silence.since, Time::ZERO);
        assert_eq!(server, "server 0 at a");
        links.checked(due, ONE, None);
        assert_eq!((links.overdue(due), next(&links)), (Vec::new(), Some(due + STEP)));
        links.established(due, ONE, dial.attempt, LinkId(1));
        assert_eq!((links.unreachable(due, ONE), next(&links)), (None, None), "it has a connection");
        links.answered(due, ONE);
        assert!(links.lost(due, ONE, dial.attempt, gone()));
        assert_eq!(links.overdue(due + STEP)[0].1.since, due, "a new silence");
    }

    #[test]
    fn connections_that_carry_nothing_do_not_end_a_silence() {
        let mut links = Links::new(BOUNDS);
        let mut dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let mut now = Time::ZERO;
        for _ in 0..10 {
            links.established(now, ONE, dial.attempt, LinkId(1));
            now = now + STEADY / 2;
            links.lost(now, ONE, dial.attempt, gone());
            now = now + BACKOFF_MAX;
            dial = links.due(now).remove(0);
        }
        assert_eq!(links.overdue(now)[0].1.since, Time::ZERO);
        links.established(now, ONE, dial.attempt, LinkId(1));
        let lost = now + STEADY;
        links.lost(lost, ONE, dial.attempt, gone());
        assert_eq!(links.overdue(lost + STEP)[0].1.since, lost, "it was up for long");
    }

    #[test]
    fn a_server_that_is_connected_is_stuck_if_it_answers_nothing_of_what_was_asked() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        links.established(Time::ZERO, ONE, dial.attempt, LinkId(1));
        links.answered(Time::ZERO, ONE);
        assert_eq!(next(&links), None, "nothing was asked");
        let at = |seconds: u64| Time::ZERO + SECOND * seconds as u32;
        links.asked(at(100), ONE);
        assert_eq!((next(&links), links.to_look_at(at(170))), (Some(at(170)), vec![ONE]));
        links.answered(at(120), ONE);
        assert_eq!(links.look(at(170), ONE, Some(at(110))), None, "it has answered another exchange meanwhile");
        assert_eq!(next(&links), Some(at(190)));
        let Some(Error::ServerUnreachable { server, waited, .. }) = links.look(at(190), ONE, Some(at(110))) else {
            panic!("it is stuck")
        };
        assert_eq!((server.as_str(), waited), ("server 0 at a", STUCK));
        assert_eq!(links.look(at(260), ONE, None), None);
        assert_eq!(next(&links), None, "nothing is open");
    }

    #[test]
    fn a_silence_is_counted_from_the_last_answer_and_not_from_the_loss_of_the_connection() {
        let at = |seconds: u32| Time::ZERO + SECOND * seconds;
        // Asked at, answered at, lost at, silent since.
        for (asked, answered, lost, since) in [
            (Some(100), None, 110, 100),
            (Some(100), Some(103), 110, 103),
            (Some(100), None, 150, 140),
            (None, None, 110, 110),
        ] {
            let mut links = Links::new(BOUNDS);
            let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
            links.established(Time::ZERO, ONE, dial.attempt, LinkId(1));
            links.answered(Time::ZERO, ONE);
            if let Some(asked) = asked {
                links.asked(at(asked), ONE);
            }
            if let Some(answered) = answered {
                links.answered(at(answered), ONE);
            }
            links.lost(at(lost), ONE, dial.attempt, gone());
            assert_eq!(links.overdue(at(lost) + STEP)[0].1.since, at(since), "lost at {lost}");
        }
    }

    #[test]
    fn an_error_names_the_port_and_a_firewall_before_anything_else() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("node7:9000")).dials.remove(0);
        links.lost(Time::ZERO, ONE, dial.attempt, gone());
        let unreached = links.unreachable(Time::ZERO + STEP, ONE).unwrap();
        let dial = links.due(Time::ZERO + STEP).remove(0);
        links.established(Time::ZERO + STEP, ONE, dial.attempt, LinkId(1));
        links.asked(Time::ZERO + STEP, ONE);
        let stuck = links.look(Time::ZERO + STEP + STUCK, ONE, Some(Time::ZERO + STEP)).unwrap();
        for error in [unreached, stuck] {
            let Error::ServerUnreachable { server, hint, .. } = &error else { panic!("{error}") };
            assert_eq!(server, "server 0 at node7:9000");
            let first = hint.split(',').next().unwrap();
            assert!(first.contains("firewall") && first.contains("UDP port 9000 of node7"), "{hint}");
        }
    }

    #[test]
    fn the_last_failure_is_the_cause_and_one_that_we_caused_is_none() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let refused = Error::Auth { problem: "expired".to_owned(), hint: "renew it".to_owned() };
        links.lost(Time::ZERO, ONE, dial.attempt, refused);
        let dial = links.due(Time::ZERO + SECOND).remove(0);
        links.lost(Time::ZERO + SECOND, ONE, dial.attempt, Error::Cancelled);
        let Some(Error::ServerUnreachable { cause, hint, .. }) = links.unreachable(Time::ZERO + SECOND, ONE) else {
            panic!("silent")
        };
        assert_eq!((cause.as_str(), hint.as_str()), ("expired", "renew it"));

        let dial = links.due(Time::ZERO + 2 * SECOND).remove(0);
        let [holder, times, hint] = ["server 0", "good until noon", "compare the clocks"].map(str::to_owned);
        links.lost(Time::ZERO + 2 * SECOND, ONE, dial.attempt, Error::CertExpired { holder, times, hint });
        let Some(Error::ServerUnreachable { cause, hint, .. }) = links.unreachable(Time::ZERO + 2 * SECOND, ONE) else {
            panic!("silent")
        };
        assert_eq!(cause, "the certificate of server 0 is not good now: good until noon");
        assert_eq!(hint, "compare the clocks");
    }

    #[test]
    fn nobody_waits_for_a_server_that_these_settings_do_not_reach() {
        let mut links = Links::new(BOUNDS);
        let dial = links.follow(Time::ZERO, &servers("a")).dials.remove(0);
        let [what, hint] = ["it shares no memory", "use transport = auto"].map(str::to_owned);
        links.lost(Time::ZERO, ONE, dial.attempt, Error::FailedPrecondition { what, hint });
        assert_eq!(next(&links), Some(Time::ZERO));
        let [(ONE, silence, Error::ServerUnreachable { cause, hint, .. })] = &links.overdue(Time::ZERO)[..] else {
            panic!("{:?}", links.overdue(Time::ZERO))
        };
        assert_eq!(
            (silence.patience, cause.as_str(), hint.as_str()),
            (Duration::ZERO, "it shares no memory", "use transport = auto")
        );
    }

    fn gone() -> Error {
        Error::Unavailable { what: "server 0".to_owned(), cause: "gone".to_owned() }
    }

    fn servers(at: &str) -> BTreeMap<ServerId, Peer> {
        let addresses = vec![Address::new(Scheme::Quic, at)];
        BTreeMap::from([(ONE, Peer { addresses, node: NodeId([0; 32]), name: "server 0".to_owned() })])
    }

    /// When there is something to do or to look at.
    fn next(links: &Links) -> Option<Time> {
        links.poll_timeout().into_iter().chain(links.overdue_at()).min()
    }
}
