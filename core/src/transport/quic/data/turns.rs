//! Which connection of an endpoint sends next. A machine without time.
//!
//! Each connection has an account. Sending raises the account, by less if the connection has more to send. The connection with the lowest
//! account is next (start-time fair queueing; Goyal, Vin and Cheng, 1996). So all connections finish at about the same time: a server with
//! twice the parts of another one gets twice the share. With equal shares, the links of servers with few parts would be idle at the end,
//! while all other bytes go over the remaining links.
//!
//! The connection with the most urgent bytes goes before the others. The others still get a share, for two reasons. Acknowledgements travel
//! with the datagrams that they send. And a link that is idle because the urgent bytes go to another peer delays everything that comes later.
//!
//! A turn is one batch of datagrams. While the first connection sends its batch, the link of the peer that comes last carries nothing, so a
//! batch is a small part of all that is to be sent. Large batches cost less processor time a byte, which decides when there is much to send.

use quinn_proto::ConnectionHandle;

/// How much a connection has to send.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Share {
    /// The class of its most urgent bytes.
    pub(super) urgency: u8,
    /// Its weight among connections of the same urgency: the bytes that it has to send.
    pub(super) bytes: u64,
    /// Bytes of all exchanges that are open.
    pub(super) open: u64,
}

impl Share {
    /// Its share of the interface relative to others. `urgency` is the class of the most urgent bytes of all connections.
    fn weight(&self, urgency: u8) -> f64 {
        let weight = (self.bytes + BYTES_ON_THE_WAY) as f64;
        if self.urgency < urgency { weight / LESS_URGENT } else { weight }
    }

    /// How much it sends in one turn.
    pub(super) fn batch_bytes(&self) -> usize {
        (self.open / TURNS).clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX) as usize
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
    /// The account of the connection that sent last. No account is below it, so a connection gains nothing by a pause.
    floor: f64,
}

impl Turns {
    /// Which of `waiting` is next; none if there are none.
    pub(super) fn next(&mut self, waiting: &[(ConnectionHandle, Share)]) -> Option<usize> {
        let urgency = most_urgent(waiting);
        let floor = self.floor;
        // An account is at most one turn above the floor. A connection that sent when it had little to send, or while no other one was
        // waiting, would otherwise owe too much, because each of its bytes weighed more then.
        let account = |(handle, share): &(ConnectionHandle, Share)| {
            let account = self.accounts.get(handle.0).copied().unwrap_or(floor);
            account.clamp(floor, floor + BATCH_BYTES_MAX as f64 / share.weight(urgency))
        };
        let accounts = waiting.iter().map(account).enumerate();
        let (place, lowest) = accounts.min_by(|a, b| a.1.total_cmp(&b.1))?;
        self.floor = lowest;
        Some(place)
    }

    /// The connection at `place` of `waiting` has sent `bytes` bytes.
    pub(super) fn charge(&mut self, waiting: &[(ConnectionHandle, Share)], place: usize, bytes: usize) {
        let (handle, share) = waiting[place];
        if self.accounts.len() <= handle.0 {
            self.accounts.resize(handle.0 + 1, self.floor);
        }
        self.accounts[handle.0] = self.floor + bytes as f64 / share.weight(most_urgent(waiting));
    }

    /// `handle` will name another connection.
    pub(super) fn forget(&mut self, handle: ConnectionHandle) {
        if let Some(account) = self.accounts.get_mut(handle.0) {
            *account = self.floor;
        }
    }
}

/// Bytes that quinn-proto was given and may not have sent; counted for each connection.
const BYTES_ON_THE_WAY: u64 = 256 << 10;
/// The least number of turns in which open exchanges are sent, unless a turn would be shorter than the shortest batch.
const TURNS: u64 = 128;
/// 16 datagrams of a path of 1,500 bytes: less would cost much more processor time (`bench/DECISIONS.md`).
const BATCH_BYTES_MIN: u64 = 24 << 10;
/// The largest batch: more than the system takes in one call.
const BATCH_BYTES_MAX: u64 = 64 << 10;
/// A connection whose bytes are less urgent than those of another one gets this fraction of its share.
const LESS_URGENT: f64 = 4.0;

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
        assert!((129..=131).contains(&others), "1 in 5: {others} of 650");
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

    #[test]
    fn a_batch_is_a_small_part_of_what_is_open() {
        let batch = |open| Share { open, ..share(0, 0) }.batch_bytes();
        assert_eq!([batch(0), batch(1 << 20), batch(3 << 20)], [24 << 10; 3]);
        assert_eq!(batch(5 << 20), 40 << 10);
        assert_eq!([batch(8 << 20), batch(u64::MAX)], [64 << 10; 2]);
    }

    const BATCH: usize = 64 << 10;

    fn share(urgency: u8, bytes: u64) -> Share {
        Share { urgency, bytes, open: bytes }
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
