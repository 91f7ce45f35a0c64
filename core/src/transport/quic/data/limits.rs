//! What holds the sending on a connection, as time by cause. A machine without a clock.
//!
//! The thread of a transport works in turns. The state in which a connection is at the end of a turn is taken to last until the end of its next
//! turn, because what ends it, such as an acknowledgement or a contribution, begins that turn.
//!
//! quinn-proto does not say whether it has bytes left that it may not send. Two things tell. What was written and is more than the bytes of all
//! datagrams since then has not left. And if quinn-proto sends a full datagram in a turn in which nothing was written, these bytes lay there
//! before: then the wait that this turn ends was one for the congestion window, or for the pace of the packets.

use std::time::Instant;

use super::driver::{FULL_BYTES, TurnEnd};
use crate::types::{LinkLimit, whole_ns};

/// The times of one connection.
#[derive(Debug)]
pub(super) struct Limits {
    /// When its last turn was.
    since: Instant,
    state: State,
    /// At least so many bytes that were written have not left.
    unsent: u64,
    /// Whether something was written since the last turn.
    wrote: bool,
    /// Whether a full datagram left since then.
    sent_full: bool,
    nanoseconds: [u64; LinkLimit::ALL.len()],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It has more to send, and goes on as soon as the thread comes back to it.
    GoesOn,
    /// It is held by this.
    Held(LinkLimit),
    /// The next turn tells whether it has something to send. If not, this is what holds it.
    Unclear(LinkLimit),
}

/// What a connection may have to send at the end of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// Nothing: all is acknowledged.
    Nothing,
    /// Only what quinn-proto has and was not acknowledged, sent or not.
    Unacknowledged,
    /// Bytes that quinn-proto did not take, because the connection has as many unacknowledged as it may.
    Window,
    /// Bytes that quinn-proto did not take, because the server does not want them yet.
    Flow,
}

impl Limits {
    /// Of a connection that begins now.
    pub(super) fn new(now: Instant) -> Self {
        let state = State::Held(LinkLimit::App);
        Self { since: now, state, unsent: 0, wrote: false, sent_full: false, nanoseconds: [0; LinkLimit::ALL.len()] }
    }

    /// quinn-proto took so many bytes of exchanges.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.unsent += bytes;
        self.wrote |= bytes > 0;
    }

    /// Datagrams of so many bytes left.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.unsent = self.unsent.saturating_sub(bytes);
        self.sent_full |= bytes >= FULL_BYTES as u64;
    }

    /// A turn ended. `is_starved` says whether parts wait for credit.
    pub(super) fn had_turn(&mut self, now: Instant, end: TurnEnd, left: Left, is_starved: bool) {
        let (wrote, sent_full) = (std::mem::take(&mut self.wrote), std::mem::take(&mut self.sent_full));
        let held = match self.state {
            State::GoesOn => None,
            State::Held(by) => Some(by),
            State::Unclear(_) if sent_full && !wrote => Some(LinkLimit::Cwnd),
            State::Unclear(by) => Some(by),
        };
        if let Some(by) = held {
            self.count(now, by);
        }
        let idle = if is_starved { LinkLimit::Credit } else { LinkLimit::App };
        if left == Left::Nothing {
            // What an abandoned exchange had written is dropped.
            self.unsent = 0;
        }
        self.since = self.since.max(now);
        self.state = match (end, left) {
            (TurnEnd::GoesOn, _) => State::GoesOn,
            (TurnEnd::SocketFull, _) => State::Held(LinkLimit::Socket),
            (TurnEnd::Dry, Left::Flow) => State::Held(LinkLimit::Flow),
            (TurnEnd::Dry, Left::Window) => State::Held(LinkLimit::Cwnd),
            (TurnEnd::Dry, Left::Unacknowledged) if self.unsent > 0 => State::Held(LinkLimit::Cwnd),
            (TurnEnd::Dry, Left::Unacknowledged) => State::Unclear(idle),
            (TurnEnd::Dry, Left::Nothing) => State::Held(idle),
        };
    }

    /// The times until `now`, as far as they are clear.
    pub(super) fn nanoseconds_until(&mut self, now: Instant) -> [u64; LinkLimit::ALL.len()] {
        if let State::Held(by) = self.state {
            self.count(now, by);
        }
        self.nanoseconds
    }

    /// Whether the link is held by nothing that it waits for.
    pub(super) fn is_idle(&self) -> bool {
        self.state == State::Held(LinkLimit::App)
    }

    fn count(&mut self, now: Instant, by: LinkLimit) {
        self.nanoseconds[by as usize] += whole_ns(now.saturating_duration_since(self.since));
        self.since = self.since.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WROTE: fn(&mut Limits) = |limits| limits.wrote(10_000);
    const SENT: fn(&mut Limits) = |limits| limits.sent(11_000);
    const SENT_SOME: fn(&mut Limits) = |limits| limits.sent(4_000);
    const ACKNOWLEDGED: fn(&mut Limits) = |limits| limits.sent(60);
    const NOTHING: fn(&mut Limits) = |_| {};

    #[test]
    fn what_a_turn_finds_counts_until_the_next() {
        for (end, left, is_starved, held) in [
            (TurnEnd::Dry, Left::Nothing, false, Some(LinkLimit::App)),
            (TurnEnd::Dry, Left::Nothing, true, Some(LinkLimit::Credit)),
            (TurnEnd::Dry, Left::Unacknowledged, false, Some(LinkLimit::App)),
            (TurnEnd::Dry, Left::Unacknowledged, true, Some(LinkLimit::Credit)),
            (TurnEnd::Dry, Left::Window, true, Some(LinkLimit::Cwnd)),
            (TurnEnd::Dry, Left::Flow, true, Some(LinkLimit::Flow)),
            (TurnEnd::SocketFull, Left::Window, true, Some(LinkLimit::Socket)),
            (TurnEnd::GoesOn, Left::Window, true, None),
        ] {
            let times = times(&[(NOTHING, end, left, is_starved), (ACKNOWLEDGED, TurnEnd::Dry, Left::Nothing, false)]);
            let expected: Vec<LinkLimit> = held.into_iter().collect();
            assert_eq!(times, expected, "{end:?}, {left:?}, starved {is_starved}");
        }
    }

    #[test]
    fn bytes_that_were_written_and_have_not_left_wait_for_the_window() {
        let dry = |act, left| (act, TurnEnd::Dry, left, false);
        let wholly: fn(&mut Limits) = |limits| {
            WROTE(limits);
            SENT(limits);
        };
        let partly: fn(&mut Limits) = |limits| {
            WROTE(limits);
            SENT_SOME(limits);
        };
        for (act, left, held) in [
            (wholly, Left::Unacknowledged, LinkLimit::App),
            (partly, Left::Unacknowledged, LinkLimit::Cwnd),
            // It was abandoned.
            (partly, Left::Nothing, LinkLimit::App),
        ] {
            assert_eq!(times(&[dry(act, left), dry(NOTHING, Left::Nothing)]), [held]);
        }
        let turns = [dry(partly, Left::Unacknowledged), dry(SENT_SOME, Left::Unacknowledged), dry(SENT, Left::Nothing)];
        assert_eq!(times(&turns), [LinkLimit::Cwnd, LinkLimit::Cwnd]);
    }

    #[test]
    fn what_is_clear_is_known_before_the_next_turn() {
        for (left, seconds, is_idle) in
            [(Left::Window, 2, false), (Left::Unacknowledged, 0, false), (Left::Nothing, 2, true)]
        {
            let now = now();
            let mut limits = Limits::new(now);
            limits.had_turn(now, TurnEnd::Dry, left, false);
            assert_eq!(limits.is_idle(), is_idle);
            let sum = |times: [u64; 5]| times.iter().sum::<u64>() / 1_000_000_000;
            assert_eq!(sum(limits.nanoseconds_until(now + Duration::from_secs(2))), seconds, "{left:?}");
            limits.had_turn(now + Duration::from_secs(3), TurnEnd::Dry, Left::Nothing, false);
            assert_eq!(sum(limits.nanoseconds), 3, "no time counts twice");
        }
    }

    #[test]
    fn what_leaves_though_nothing_was_written_lay_there_before() {
        let unclear = (NOTHING, TurnEnd::Dry, Left::Unacknowledged, false);
        for (next, held) in [(SENT, LinkLimit::Cwnd), (ACKNOWLEDGED, LinkLimit::App), (WROTE, LinkLimit::App)] {
            assert_eq!(times(&[unclear, (next, TurnEnd::Dry, Left::Nothing, false)]), [held]);
        }
    }

    type Turn = (fn(&mut Limits), TurnEnd, Left, bool);

    /// What held the connection after each of these turns but the last, without the turns after which nothing did. Before each turn a second
    /// passes.
    fn times(turns: &[Turn]) -> Vec<LinkLimit> {
        let mut now = now();
        let mut limits = Limits::new(now);
        let mut held = Vec::new();
        for (at, (act, end, left, is_starved)) in turns.iter().enumerate() {
            let before = limits.nanoseconds;
            if at > 0 {
                now += Duration::from_secs(1);
            }
            act(&mut limits);
            limits.had_turn(now, *end, *left, *is_starved);
            held.extend(
                LinkLimit::ALL.into_iter().filter(|by| limits.nanoseconds[*by as usize] > before[*by as usize]),
            );
        }
        held
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do; there is no other way to make one")]
    fn now() -> Instant {
        Instant::now()
    }
}
