//! The failure detector: decides from silence which member is suspect and which is dead. `verdict` decides what a death means.
//!
//! ```text
//!          any frame   silent > suspect   silent > dead   process ended   leave
//! Alive    Alive       Suspect            Dead            Dead            Left
//! Suspect  Alive       -                  Dead            Dead            Left
//! Dead     Dead        -                  -               -               -
//! Left     Left        -                  -               -               -
//! ```

use std::time::Duration;

use gradlane_core::types::Time;
use gradlane_core::wire::frame::Health;

use super::roster::{Identity, Line, Roster, Seat, SeenToEnd};

/// Watches the silence of all members, and the processes of which a member says that they ended.
#[derive(Debug)]
pub(super) struct FailureDetector {
    suspect_timeout: Duration,
    dead_timeout: Duration,
    /// No seat changes by silence before this time. Signs of life only delay it, so they need not change it.
    due: Option<Time>,
}

/// Somebody may know more of a process that has ended than that it has.
const BETTER_CAUSE: Duration = Duration::from_millis(100);

impl SeenToEnd {
    fn cause(&self) -> String {
        format!("its process ended, which {} saw", self.witness)
    }
}

/// A seat that was silent for too long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Silent {
    pub(super) identity: Identity,
    pub(super) silent: Duration,
    /// The evidence, if that is long enough to give it up.
    pub(super) cause: Option<String>,
}

impl FailureDetector {
    pub(super) fn new(suspect_timeout: Duration, dead_timeout: Duration) -> Self {
        assert!(suspect_timeout < dead_timeout, "a member is suspected before it is given up");
        Self { suspect_timeout, dead_timeout, due: None }
    }

    /// A member was seated.
    pub(super) fn watch(&mut self, now: Time) {
        self.look_at(now + self.suspect_timeout);
    }

    fn look_at(&mut self, due: Time) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// When to look at the seats.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// The system told `witness` that the process of a member has ended. Who knows more, such as its launcher or the process itself in its
    /// last frames, has [`BETTER_CAUSE`] to say it.
    pub(super) fn saw_end(&mut self, now: Time, seat: &mut Seat, witness: &str) {
        let until = now + BETTER_CAUSE;
        seat.seen_to_end.get_or_insert_with(|| SeenToEnd { witness: witness.to_owned(), until });
        self.look_at(until);
    }

    /// Whether this coordinator was asleep itself, because it looks this late. The members' signs of life wait in its sockets, so it cannot
    /// tell which of them were silent.
    pub(super) fn was_asleep(&self, now: Time) -> bool {
        self.due.is_some_and(|due| now.since(due) > self.suspect_timeout)
    }

    /// Finds the members that became suspect, and those to be given up.
    pub(super) fn sweep(&mut self, now: Time, roster: &mut Roster) -> Vec<Silent> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        if self.was_asleep(now) {
            roster.seats_mut().for_each(|seat| seat.heard = now);
        }
        let mut found = Vec::new();
        self.due = None;
        for seat in roster.seats_mut().filter(|seat| seat.is_present()) {
            let silent = now.since(seat.heard);
            match &seat.seen_to_end {
                Some(seen) if seen.until <= now => {
                    found.push(Silent { identity: seat.identity(), silent, cause: Some(seen.cause()) });
                    continue;
                }
                Some(seen) => self.look_at(seen.until),
                None => {}
            }
            let dead = silent >= self.dead_timeout;
            if dead || silent >= self.suspect_timeout && seat.health == Health::Alive {
                seat.health = Health::Suspect;
                let cause = dead.then(|| seat.evidence(silent));
                found.push(Silent { identity: seat.identity(), silent, cause });
            }
            if !dead {
                let next =
                    seat.heard + if seat.health == Health::Alive { self.suspect_timeout } else { self.dead_timeout };
                self.look_at(next);
            }
        }
        found
    }
}

impl Seat {
    /// Why a member counts as dead that was silent for this time.
    fn evidence(&self, silent: Duration) -> String {
        let seconds = silent.as_secs_f64();
        match &self.line {
            Line::Up(_) => format!("silent for {seconds:.1} s"),
            Line::Down(error) => format!("silent for {seconds:.1} s since its connection ended: {error}"),
        }
    }

    /// A sign of life.
    pub(super) fn lives(&mut self, now: Time) {
        self.heard = now;
        match self.health {
            Health::Alive | Health::Suspect => self.health = Health::Alive,
            Health::Dead | Health::Left => {}
        }
    }
}
