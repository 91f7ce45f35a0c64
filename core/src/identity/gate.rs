//! The gate in front of handshakes and enrolments: decides which peer gets a place, and for how long. Time is an argument.
//!
//! A peer costs processor time and memory before it has proven its identity. So each address has a bucket of tokens, handshakes and enrolments
//! need places, and each place has a deadline. Four rules let honest peers in beside hostile ones:
//!
//! - A peer that proves its identity, by a certificate or by the join secret, gets its token back. So honest hosts with many processes are not
//!   slowed down. Peers that guess or stay silent are.
//! - The address of a peer that has not answered yet may be forged. Such a peer takes tokens from the upper half of the bucket only. Then it has
//!   to answer first ([`Verdict::Prove`]). So a forger cannot use up the tokens of an honest peer at the forged address.
//! - When all places are taken, a place whose peer has stalled is given to the next peer. One address cannot fill all places with peers that
//!   have not stalled yet, because its bucket holds too few tokens.
//! - Addresses at which a peer has proven its identity have places of their own. So a flood from other addresses keeps no member out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::types::Time;
use crate::wire::limits;

/// The decisions about peers that want to connect or to enrol.
#[derive(Debug)]
pub(crate) struct Gate {
    buckets: BTreeMap<Origin, Bucket>,
    /// The last time at which full buckets were dropped.
    swept: Time,
    /// Addresses at which a peer has proven its identity.
    known: BTreeSet<Origin>,
    /// Handshakes of peers at unknown addresses.
    strangers: Places,
    /// Handshakes of peers at known addresses.
    reserved: Places,
    /// Enrolments.
    newcomers: Places,
    /// Places that were named so far.
    places: u64,
    handshake_timeout: Duration,
}

/// The decision about a peer that wants to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Its handshake begins.
    Try(Admitted),
    /// The peer has to prove first that its address is real.
    Prove,
    /// There is no place for the peer now.
    TurnAway,
}

/// A place that was given to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    pub(crate) place: Place,
    /// The deadline of the peer. It is disconnected then.
    pub(crate) until: Time,
    /// The place of a stalled peer that is disconnected now, in favour of this one.
    pub(crate) instead_of: Option<Place>,
}

/// Names a place; never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place(u64);

impl Gate {
    /// A gate that gives each handshake `handshake_timeout`.
    pub(crate) fn new(handshake_timeout: Duration) -> Self {
        Self {
            buckets: BTreeMap::new(),
            swept: Time::ZERO,
            known: BTreeSet::new(),
            strangers: Places::new(HANDSHAKES_MAX),
            reserved: Places::new(RESERVED_MAX),
            newcomers: Places::new(NEWCOMERS_MAX),
            places: 0,
            handshake_timeout,
        }
    }

    /// A peer at `remote` wants to connect. `has_answered` says whether it has shown that the address is its own.
    pub(crate) fn arrive(&mut self, now: Time, remote: IpAddr, has_answered: bool) -> Verdict {
        let origin = Origin::of(remote);
        self.sweep(now);
        let is_known = self.known.contains(&origin);
        let bucket = self.buckets.get(&origin).copied();
        let tokens = bucket.map_or(BURST, |bucket| bucket.tokens(now));
        let is_crowded = !is_known && self.strangers.held.len() >= HANDSHAKES_MAX / 2;
        let is_tracked = bucket.is_some() || self.buckets.len() < BUCKETS_MAX;
        if !has_answered && (is_crowded || tokens <= BURST / 2 || !is_tracked) {
            return Verdict::Prove;
        }
        if tokens == 0 {
            return Verdict::TurnAway;
        }
        let place = self.name();
        let reserved = if is_known { self.reserved.take(now, place) } else { None };
        let Some(instead_of) = reserved.or_else(|| self.strangers.take(now, place)) else {
            return Verdict::TurnAway;
        };
        if !is_tracked {
            // All addresses in the table are real, and none is better to forget than another.
            self.buckets.pop_first();
        }
        self.buckets.entry(origin).or_default().spend(now);
        Verdict::Try(Admitted { place, until: now + self.handshake_timeout, instead_of })
    }

    /// A peer whose handshake began at `began` wants to enrol. `None` if there is no place for it now.
    pub(crate) fn enrol(&mut self, now: Time, began: Time) -> Option<Admitted> {
        let place = self.name();
        let instead_of = self.newcomers.take(now, place)?;
        Some(Admitted { place, until: began + NEWCOMER_SHARE * self.handshake_timeout, instead_of })
    }

    /// A place is free again. Does nothing if the place was given to another peer before.
    pub(crate) fn leave(&mut self, place: Place) {
        for places in [&mut self.strangers, &mut self.reserved, &mut self.newcomers] {
            places.held.remove(&place);
        }
    }

    /// The newcomer in this place is refused. It counts as stalled once it has had time to receive the reason. So refused newcomers keep no
    /// other newcomer out.
    pub(crate) fn give_way(&mut self, now: Time, place: Place) {
        if let Some(since) = self.newcomers.held.get_mut(&place) {
            *since = now - (STALLED_AFTER - HEARS_WITHIN);
        }
    }

    /// A peer at `remote` has shown a certificate of the job, or has proven that it knows the secret.
    pub(crate) fn proven(&mut self, remote: IpAddr) {
        let origin = Origin::of(remote);
        if let Some(bucket) = self.buckets.get_mut(&origin) {
            bucket.give_back();
        }
        if self.known.len() < KNOWN_MAX {
            self.known.insert(origin);
        }
    }

    fn name(&mut self) -> Place {
        self.places += 1;
        Place(self.places)
    }

    /// Forgets full buckets, because an address without a bucket has all tokens too. Does so at most once in [`SWEEP_EVERY`].
    fn sweep(&mut self, now: Time) {
        if now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.buckets.retain(|_, bucket| bucket.tokens(now) < BURST);
        }
    }
}

/// One host: an IPv4 address, or an IPv6 network, because an IPv6 host can choose 64 bits of its address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Origin(IpAddr);

impl Origin {
    fn of(remote: IpAddr) -> Self {
        match remote.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into())
            }
            address @ (IpAddr::V4(_) | IpAddr::V6(_)) => Self(address),
        }
    }
}

/// The tokens of an address, stored as the time at which the bucket is full again (the generic cell rate algorithm).
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: Time,
}

impl Bucket {
    fn tokens(self, now: Time) -> u32 {
        let missing = self.full_at.since(now).as_nanos().div_ceil(REFILL.as_nanos());
        BURST.saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    fn spend(&mut self, now: Time) {
        self.full_at = self.full_at.max(now) + REFILL;
    }

    fn give_back(&mut self) {
        self.full_at = self.full_at - REFILL;
    }
}

/// Places of one kind, with the time since which each is held.
#[derive(Debug)]
struct Places {
    held: BTreeMap<Place, Time>,
    max: usize,
}

impl Places {
    fn new(max: usize) -> Self {
        Self { held: BTreeMap::new(), max }
    }

    /// Gives `place` to a peer. If all places are taken, the peer that stalled first loses its place, which is returned. `None` if no peer has
    /// stalled.
    fn take(&mut self, now: Time, place: Place) -> Option<Option<Place>> {
        let mut instead_of = None;
        if self.held.len() >= self.max {
            let (oldest, since) = self.held.iter().min_by_key(|(_, since)| **since)?;
            if now.since(*since) < STALLED_AFTER {
                return None;
            }
            let oldest = *oldest;
            self.held.remove(&oldest);
            instead_of = Some(oldest);
        }
        self.held.insert(place, now);
        Some(instead_of)
    }
}

/// Limits how often a repeated event is logged.
#[derive(Debug, Default)]
pub(crate) struct Repeated {
    logged: Option<Time>,
    unlogged: u64,
}

impl Repeated {
    /// The event happened again. If it should be logged now, returns how many events were not logged since the last log.
    pub(crate) fn happened(&mut self, now: Time) -> Option<u64> {
        if self.logged.is_some_and(|logged| now.since(logged) < LOG_EVERY) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Handshakes under way at once, of peers at unknown addresses. It is more than one address can hold with peers that have not stalled, which is
/// 60: its burst of 40, and 20 more within `STALLED_AFTER`.
const HANDSHAKES_MAX: usize = 64;
const _: () = assert!(BURST as u128 + STALLED_AFTER.as_nanos() / REFILL.as_nanos() < HANDSHAKES_MAX as u128);
/// Handshakes under way at once, of peers at known addresses. All members dial a coordinator again that was cut off.
const RESERVED_MAX: usize = 64;
/// Enrolments under way at once.
const NEWCOMERS_MAX: usize = 64;
/// A peer that holds a place for this long has stalled. A handshake takes some round trips, and an enrolment one more.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The time of a newcomer from its first packet until it has received the answer, in handshake timeouts.
const NEWCOMER_SHARE: u32 = 2;
/// Time for a refused newcomer to receive the reason.
const HEARS_WITHIN: Duration = Duration::from_millis(200);
/// Tokens of a full bucket, and the time in which one token comes back: 20 a second.
const BURST: u32 = 40;
const REFILL: Duration = Duration::from_millis(50);
/// Buckets that are remembered. More addresses than this do not try to connect within two seconds, unless they are hostile.
const BUCKETS_MAX: usize = 4_096;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Known addresses that are remembered.
const KNOWN_MAX: usize = 2 * limits::MEMBERS_MAX;
/// How often the log names a peer that was refused.
const LOG_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 4] = [10, 0, 0, 1];
    const THERE: [u8; 4] = [10, 0, 0, 2];

    /// What the attempt is answered with, without its place.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Answer {
        Try,
        Prove,
        TurnAway,
    }
    use Answer::{Prove, Try, TurnAway};

    #[test]
    fn an_address_has_a_burst_and_then_so_many_attempts_a_second() {
        // Attempts in a row after so many milliseconds, whether the peer has answered, and the verdict on each.
        let mut gate = Drilled::new();
        for (after, attempts, has_answered, due) in [
            (0, 20, false, Try),
            (0, 1, false, Prove),
            (0, 20, true, Try),
            (0, 5, true, TurnAway),
            (49, 1, true, TurnAway),
            (1, 1, true, Try),
            (0, 1, true, TurnAway),
            (100, 2, true, Try),
            (0, 1, true, TurnAway),
            (0, 1, false, Prove),
            (3_000, 20, false, Try),
        ] {
            gate.pass(after);
            for attempt in 0..attempts {
                assert_eq!(gate.attempt(HERE, has_answered), due, "attempt {attempt} after {after} ms more");
                gate.done();
            }
        }
        assert_eq!(gate.attempt(THERE, false), Try, "another address has a bucket of its own");
    }

    #[test]
    fn a_forged_address_costs_its_owner_nothing_that_it_needs() {
        let mut gate = Drilled::new();
        for _ in 0..10_000 {
            gate.attempt(HERE, false);
        }
        for _ in 0..BURST / 2 {
            assert_eq!(gate.attempt(HERE, true), Try, "its owner answers");
        }
    }

    #[test]
    fn a_peer_that_proves_itself_costs_its_address_nothing() {
        let mut gate = Drilled::new();
        for _ in 0..1_000 {
            assert_eq!(gate.attempt(HERE, true), Try);
            gate.done();
            gate.gate.proven(HERE.into());
        }
    }

    #[test]
    fn a_stalled_peer_gives_way_and_a_fresh_one_does_not() {
        let mut gate = Drilled::new();
        for address in 0..HANDSHAKES_MAX {
            assert_eq!(gate.attempt([10, 0, 1, address as u8], true), Try);
        }
        gate.pass(999);
        assert_eq!(gate.attempt(HERE, true), TurnAway, "nobody has stalled");
        gate.pass(1);
        let Verdict::Try(admitted) = gate.gate.arrive(gate.now, HERE.into(), true) else {
            panic!("the first has stalled")
        };
        assert_eq!(admitted.instead_of, Some(Place(1)));
        assert_eq!(admitted.until, gate.now + Duration::from_secs(3));
    }

    #[test]
    fn one_address_never_keeps_another_out() {
        let mut gate = Drilled::new();
        for _ in 0..1_000 {
            gate.pass(10);
            gate.attempt(HERE, true);
            let Verdict::Try(admitted) = gate.gate.arrive(gate.now, THERE.into(), true) else { panic!("kept out") };
            gate.gate.leave(admitted.place);
            gate.gate.proven(THERE.into());
            gate.gate.known.clear();
        }
    }

    #[test]
    fn members_have_places_that_no_flood_takes() {
        let mut gate = Drilled::new();
        gate.gate.proven(HERE.into());
        for address in 0..=255 {
            gate.attempt([10, 0, 1, address], true);
        }
        assert_eq!(gate.attempt(THERE, true), TurnAway);
        assert_eq!(gate.attempt(HERE, false), Try, "need not even prove its address");
    }

    #[test]
    fn newcomers_have_places_of_their_own_and_one_deadline() {
        let mut gate = Drilled::new();
        let began = gate.now;
        for _ in 0..NEWCOMERS_MAX {
            let admitted = gate.gate.enrol(gate.now, began).expect("there are places");
            assert_eq!((admitted.until, admitted.instead_of), (began + Duration::from_secs(6), None));
        }
        assert_eq!(gate.gate.enrol(gate.now, began), None);
        assert_eq!(gate.attempt(HERE, true), Try, "a handshake needs no place of theirs");
        gate.pass(1_000);
        let next = gate.gate.enrol(gate.now, began).expect("the first has stalled");
        assert_eq!(next.instead_of, Some(Place(1)));
        gate.gate.leave(next.place);
        assert!(gate.gate.enrol(gate.now, began).is_some_and(|admitted| admitted.instead_of.is_none()));
    }

    #[test]
    fn refused_newcomers_keep_no_other_out() {
        let mut gate = Drilled::new();
        let began = gate.now;
        let places: Vec<Place> =
            (0..NEWCOMERS_MAX).map(|_| gate.gate.enrol(gate.now, began).expect("there are places").place).collect();
        gate.pass(1);
        gate.gate.give_way(gate.now, places[7]);
        assert_eq!(gate.gate.enrol(gate.now, began), None, "it has not heard why");
        gate.pass(200);
        let next = gate.gate.enrol(gate.now, began).expect("the refused one gives way");
        assert_eq!(next.instead_of, Some(places[7]));
        assert_eq!(gate.gate.enrol(gate.now, began), None, "nobody else has stalled");
    }

    #[test]
    fn what_is_remembered_of_addresses_is_bounded() {
        let mut gate = Drilled::new();
        for address in 0..2 * BUCKETS_MAX as u32 {
            gate.attempt(address.to_be_bytes(), false);
            gate.done();
        }
        assert_eq!(gate.gate.buckets.len(), BUCKETS_MAX);
        assert_eq!(gate.attempt(HERE, false), Prove, "an address for which there is no room");
        assert_eq!(gate.attempt(HERE, true), Try, "a real one makes room");
        assert_eq!(gate.gate.buckets.len(), BUCKETS_MAX);
        gate.pass(5_000);
        gate.attempt(HERE, true);
        assert_eq!(gate.gate.buckets.len(), 1, "full ones are forgotten");
    }

    #[test]
    fn a_host_is_one_origin_however_many_addresses_it_has() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn what_happens_often_is_logged_seldom_and_counted() {
        let mut refused = Repeated::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        assert_eq!(
            [0, 1, 9, 10, 11, 30].map(|second| refused.happened(at(second))),
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }

    struct Drilled {
        gate: Gate,
        now: Time,
        last: Option<Place>,
    }

    impl Drilled {
        fn new() -> Self {
            Self { gate: Gate::new(Duration::from_secs(3)), now: Time(1_000_000_000_000), last: None }
        }

        fn pass(&mut self, milliseconds: u64) {
            self.now = self.now + Duration::from_millis(milliseconds);
        }

        fn attempt(&mut self, from: [u8; 4], has_answered: bool) -> Answer {
            match self.gate.arrive(self.now, from.into(), has_answered) {
                Verdict::Try(admitted) => {
                    self.last = Some(admitted.place);
                    Try
                }
                Verdict::Prove => Prove,
                Verdict::TurnAway => TurnAway,
            }
        }

        /// The last peer that was admitted is done.
        fn done(&mut self) {
            if let Some(place) = self.last.take() {
                self.gate.leave(place);
            }
        }
    }
}
