//! Whose turn it is to send: the connections of an endpoint share its interface in small turns, by what each has to send.
//!
//! A machine without time. Each connection has an account that what it sends raises, the less the more it has to send, and the lowest
//! account is next (start-time fair queueing; Goyal, Vin and Cheng, 1996). So connections come to their ends together, whatever each has
//! to carry: a server with twice the parts of another gets twice the share. If all got the same, those with little would be done early,
//! and then their peers' links would idle while the rest goes through the others alone.
//!
//! Whoever carries the most urgent goes before the others, but not without end: they still get a small share, because acknowledgements
//! travel with what they send.

use quinn_proto::ConnectionHandle;

/// What a connection has to send, as its owner knows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Share {
    /// Class of the most urgent.
    pub(super) urgency: u8,
    /// Bytes that quinn-proto has not got yet.
    pub(super) bytes: u64,
}

impl Share {
    /// How much of the interface it gets, in relation to others, when the most urgent of any is of class `urgency`.
    fn weight(&self, urgency: u8) -> f64 {
        let weight = (self.bytes + BYTES_ON_THE_WAY) as f64;
        if self.urgency < urgency { weight / LESS_URGENT } else { weight }
    }
}

fn most_urgent(waiting: &[(ConnectionHandle, Share)]) -> u8 {
    waiting.iter().map(|(_, share)| share.urgency).max().unwrap_or_default()
}

/// The accounts of all connections.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By handle.
    accounts: Vec<f64>,
    /// The account of whoever was last: who comes back after a pause has saved nothing.
    floor: f64,
}

impl Turns {
    /// Which of `waiting` is next; none if there are none.
    pub(super) fn next(&mut self, waiting: &[(ConnectionHandle, Share)]) -> Option<usize> {
        let urgency = most_urgent(waiting);
        let floor = self.floor;
        // Nobody owes more than a turn as its turns are now: of what it sent when it had little to send, or nobody else was there, each
        // byte weighed more.
        let account = |(handle, share): &(ConnectionHandle, Share)| {
            let account = self.accounts.get(handle.0).copied().unwrap_or(floor);
            account.clamp(floor, floor + TURN_BYTES / share.weight(urgency))
        };
        let accounts = waiting.iter().map(account).enumerate();
        let (place, lowest) = accounts.min_by(|a, b| a.1.total_cmp(&b.1))?;
        self.floor = lowest;
        Some(place)
    }

    /// The one of `waiting` that was next has sent so many bytes.
    pub(super) fn charge(&mut self, waiting: &[(ConnectionHandle, Share)], place: usize, bytes: usize) {
        let (handle, share) = waiting[place];
        if self.accounts.len() <= handle.0 {
            self.accounts.resize(handle.0 + 1, self.floor);
        }
        self.accounts[handle.0] = self.floor + bytes as f64 / share.weight(most_urgent(waiting));
    }

    /// Number `handle` will mean another connection.
    pub(super) fn forget(&mut self, handle: ConnectionHandle) {
        if let Some(account) = self.accounts.get_mut(handle.0) {
            *account = self.floor;
        }
    }
}

/// A connection whose bytes all are with quinn-proto still has some of them to send.
const BYTES_ON_THE_WAY: u64 = 256 << 10;
/// A batch of datagrams.
const TURN_BYTES: f64 = 65_536.0;
/// So much less does a connection send whose bytes are less urgent than those of another.
const LESS_URGENT: f64 = 64.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_with_as_much_to_send_take_turns() {
        assert_eq!(order(&[share(0, 1 << 20); 3], 6), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn who_has_more_to_send_gets_more_turns() {
        let sent = order(&[share(0, 3 * BYTES_ON_THE_WAY), share(0, BYTES_ON_THE_WAY)], 300);
        let first = sent.iter().filter(|place| **place == 0).count();
        assert!((199..=201).contains(&first), "4 to 2: {first} of 300");
    }

    #[test]
    fn who_carries_the_most_urgent_goes_first_and_nobody_starves() {
        let sent = order(&[share(1, 0), share(0, 0)], 650);
        let others = sent.iter().filter(|place| **place == 1).count();
        assert!((9..=11).contains(&others), "1 in 65: {others} of 650");
    }

    #[test]
    fn who_paused_has_saved_nothing() {
        let mut turns = Turns::default();
        let both = [(ConnectionHandle(0), share(0, 0)), (ConnectionHandle(1), share(0, 0))];
        for _ in 0..100 {
            let place = turns.next(&both[..1]).unwrap();
            turns.charge(&both[..1], place, BATCH);
        }
        let sent: Vec<usize> = (0..10).map(|_| turn(&mut turns, &both)).collect();
        assert!(sent.windows(2).all(|pair| pair[0] != pair[1]), "{sent:?}");
    }

    #[test]
    fn what_was_sent_while_there_was_little_to_send_is_not_held_against_it() {
        let mut turns = Turns::default();
        let alone = [(ConnectionHandle(0), share(0, 0))];
        for _ in 0..100 {
            turn(&mut turns, &alone);
        }
        let both = [(ConnectionHandle(0), share(0, 1 << 30)), (ConnectionHandle(1), share(0, 1 << 30))];
        let sent: Vec<usize> = (0..10).map(|_| turn(&mut turns, &both)).collect();
        assert!(sent.windows(2).all(|pair| pair[0] != pair[1]), "{sent:?}");
    }

    #[test]
    fn nobody_is_next_when_nobody_waits() {
        assert_eq!(Turns::default().next(&[]), None);
    }

    const BATCH: usize = 64 << 10;

    fn share(urgency: u8, bytes: u64) -> Share {
        Share { urgency, bytes }
    }

    fn order(shares: &[Share], turns: usize) -> Vec<usize> {
        let waiting: Vec<_> =
            shares.iter().enumerate().map(|(number, share)| (ConnectionHandle(number), *share)).collect();
        let mut machine = Turns::default();
        (0..turns).map(|_| turn(&mut machine, &waiting)).collect()
    }

    fn turn(turns: &mut Turns, waiting: &[(ConnectionHandle, Share)]) -> usize {
        let place = turns.next(waiting).unwrap();
        turns.charge(waiting, place, BATCH);
        place
    }
}
