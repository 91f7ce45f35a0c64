//! The flight recorder of a coordinator: what it has heard, decided and told last, with the causes. It is always on, in memory of a fixed size.
//!
//! The thread of the coordinator alone writes. A dump does not wait for that thread
//! ([`recording`](gradlane_core::runtime::recording)), so it tells what a coordinator did before it was stuck.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradlane_core::runtime::recording::{self, Copied, Recorded, Recorder as _, Ring, TEXT_MAX, WORDS, lines, words};
use gradlane_core::types::{Role, Time};
use gradlane_core::wire::Frame;
use serde_json::{Value, json};

use super::happened::sentence;
use crate::coordinator::Event;

/// The recorder of a coordinator, and where it is dumped.
pub(super) type Flight = recording::Flight<Recorder>;

/// The recorder of one coordinator.
#[derive(Debug)]
pub(super) struct Recorder {
    ring: Ring,
    texts: Mutex<Texts>,
}

/// The newest texts of events. They are numbered from 1.
#[derive(Clone, Default, Debug)]
struct Texts {
    last: u64,
    newest: VecDeque<String>,
}

/// A member by its role and its rank or index.
type Member = (Role, u32);

words! {
    /// What happened.
    enum Kind {
        /// A process joined, or connected again.
        Joined = "joined",
        /// A member leaves in order.
        Left = "left",
        /// A member gives up its work.
        GaveUp = "gave-up",
        /// The connection of a member has ended.
        Disconnected = "disconnected",
        /// The members of the job changed; the number is that of the epoch.
        View = "view",
        /// A worker has arrived at a barrier; the number is that of its request.
        Barrier = "barrier",
        /// A worker hears that its barrier is over.
        BarrierOver = "barrier-over",
        /// A worker is told of a boundary between steps; the number is that of the change, and the amount the last step before it.
        Boundary = "boundary",
        /// A worker hears that a boundary is over.
        BoundaryOver = "boundary-over",
        /// The declaration of a worker was refused.
        DeclarationRefused = "declaration-refused",
        /// The job is complete.
        Formed = "formed",
        /// An operator has given an order.
        Ordered = "ordered",
        /// A process was refused.
        Refused = "refused",
        /// A member is silent.
        Suspect = "suspect",
        /// A member is lost.
        Lost = "lost",
        /// A sum waits.
        Stalled = "stalled",
        /// The job ends.
        Ends = "ends",
        /// The job goes back to a checkpoint.
        Restores = "restores",
        /// The job forms again.
        FormsAgain = "forms-again",
        /// The workers wait behind their step for others.
        Holds = "holds",
        /// The job goes on without members that were lost.
        GoesOn = "goes-on",
        /// The sums of lost servers are recovered.
        Recovered = "recovered",
        /// A server has much more load than others.
        HotServer = "hot-server",
    }
}

impl Recorder {
    /// A recorder of the newest `events`. It records nothing if that is 0.
    pub(super) fn new(events: u32) -> Self {
        Self { ring: Ring::new(events), texts: Mutex::default() }
    }

    /// This process has a place in the job.
    pub(super) fn joined(&self, now: Time, member: Member, place: &str) {
        self.write(now, Kind::Joined, Some(member), (0, 0), Some(place));
    }

    /// The connection of a member has ended.
    pub(super) fn disconnected(&self, now: Time, member: Option<Member>, reason: &str) {
        self.write(now, Kind::Disconnected, member, (0, 0), Some(reason));
    }

    /// A member has said this.
    pub(super) fn heard(&self, now: Time, member: impl FnOnce() -> Option<Member>, frame: &Frame) {
        match frame {
            Frame::Leave => self.write(now, Kind::Left, member(), (0, 0), None),
            Frame::Fail { cause } => self.write(now, Kind::GaveUp, member(), (0, 0), Some(cause)),
            Frame::Barrier { request, name, .. } => {
                self.write(now, Kind::Barrier, member(), (*request, 0), Some(name));
            }
            _ => {}
        }
    }

    /// A member is told this.
    pub(super) fn told(&self, now: Time, member: impl FnOnce() -> Option<Member>, frame: &Frame) {
        match frame {
            Frame::View(view) => {
                let (number, workers) = (view.epoch.number.into(), view.workers().count() as u64);
                self.write(now, Kind::View, None, (number, workers), Some(&view.epoch.to_string()));
            }
            Frame::BarrierDone { request, outcome } => {
                let error = outcome.as_ref().err().map(ToString::to_string);
                self.write(now, Kind::BarrierOver, member(), (*request, 0), error.as_deref());
            }
            Frame::Boundary { change, limit, .. } => {
                self.write(now, Kind::Boundary, member(), (*change, limit.unwrap_or_default()), None);
            }
            Frame::Passed { change, outcome } => {
                let error = outcome.as_ref().err().map(ToString::to_string);
                self.write(now, Kind::BoundaryOver, member(), (*change, 0), error.as_deref());
            }
            Frame::Declared { request, outcome: Err(error) } => {
                self.write(now, Kind::DeclarationRefused, member(), (*request, 0), Some(&error.to_string()));
            }
            _ => {}
        }
    }

    /// This has happened to the job.
    pub(super) fn happened(&self, now: Time, event: &Event) {
        let kind = match event {
            Event::Recovered { .. } => Kind::Recovered,
            Event::Formed { .. } => Kind::Formed,
            Event::Ordered { .. } => Kind::Ordered,
            Event::Refused { .. } => Kind::Refused,
            Event::Suspect { .. } => Kind::Suspect,
            Event::Dead { .. } => Kind::Lost,
            Event::Ends { .. } => Kind::Ends,
            Event::Restores { .. } => Kind::Restores,
            Event::FormsAgain { .. } => Kind::FormsAgain,
            Event::Holds { .. } => Kind::Holds,
            Event::GoesOn { .. } => Kind::GoesOn,
            Event::HotServer { .. } => Kind::HotServer,
            Event::Stall { .. } => Kind::Stalled,
            Event::Finished(_) => return,
        };
        if self.is_on()
            && let Some(sentence) = sentence(event)
        {
            self.write(now, kind, None, (0, 0), Some(&sentence));
        }
    }

    fn write(&self, at: Time, kind: Kind, member: Option<Member>, (number, amount): (u64, u64), text: Option<&str>) {
        if !self.is_on() {
            return;
        }
        let text = text.map_or(0, |text| self.texts().number(text));
        let (role, index) = member.map_or((0, 0), |(role, index)| (code(role), index));
        let head = kind as u64 | role << 8 | u64::from(index) << 32;
        self.ring.write([at.0, head, number, amount, text, 0, 0]);
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl recording::Recorder for Recorder {
    fn is_on(&self) -> bool {
        self.ring.is_on()
    }

    fn copy(&self) -> Copied {
        let (newest, Texts { last, newest: texts }) = (self.ring.read(), self.texts().clone());
        Arc::new(move || {
            let first = last + 1 - texts.len() as u64;
            let text = |number: u64| texts.get(usize::try_from(number.checked_sub(first)?).ok()?);
            let events = lines(newest.events.iter().filter_map(|(_, words)| line(words, text)));
            Recorded::of(&newest, &["at_ns", "what", "member", "number", "amount", "text"], events, [])
        })
    }

    fn counts(&self) -> (u64, u64) {
        self.ring.counts()
    }
}

impl Texts {
    /// The number of a text. One that came lately is not kept twice, as the name of a barrier at which many arrive.
    fn number(&mut self, text: &str) -> u64 {
        let text: String = text.chars().take(TEXT_MAX).collect();
        if let Some(back) = self.newest.iter().rev().take(LATELY).position(|known| *known == text) {
            return self.last - back as u64;
        }
        if self.newest.len() >= TEXTS_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back(text);
        self.last += 1;
        self.last
    }
}

fn line<'a>(
    &[at, head, number, amount, text, ..]: &[u64; WORDS],
    find: impl Fn(u64) -> Option<&'a String>,
) -> Option<Value> {
    let kind = Kind::of(head & 0xff)?;
    let role = ROLES.iter().find(|role| code(**role) == head >> 8 & 0xff);
    let member = role.map(|role| format!("{role}-{}", head >> 32));
    Some(json!([at, kind.word(), member, number, amount, find(text)]))
}

/// The roles of members.
const ROLES: [Role; 2] = [Role::Worker, Role::Server];

/// The number of a role in an event; 0 for none.
fn code(role: Role) -> u64 {
    match role {
        Role::Worker => 1,
        Role::Server => 2,
        Role::Coordinator | Role::Observer | Role::Admin => 0,
    }
}

/// Texts that are kept. The text of an older event is missing.
const TEXTS_MAX: usize = 1 << 10;
/// How many texts are compared with a new one.
const LATELY: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gradlane_core::Error;
    use gradlane_core::types::{Epoch, Recipient, ServerId};

    use super::*;

    #[test]
    fn what_members_say_and_hear_is_told_with_its_causes() {
        let recorder = Recorder::new(64);
        let worker = || Some((Role::Worker, 3));
        let (name, timeout) = ("epoch end".to_owned(), Duration::from_secs(1));
        recorder.joined(Time(1), (Role::Server, 0), "n1 (pid 7)");
        recorder.heard(Time(2), worker, &Frame::Barrier { request: 5, name, timeout });
        recorder.told(Time(3), worker, &Frame::BarrierDone { request: 5, outcome: Ok(()) });
        recorder.told(Time(4), worker, &Frame::BarrierDone { request: 6, outcome: Err(Error::Cancelled) });
        recorder.told(Time(5), worker, &Frame::Boundary { change: 2, limit: Some(70), hold: None });
        recorder.told(Time(6), worker, &Frame::Passed { change: 2, outcome: Err(Error::Cancelled) });
        recorder.told(Time(7), worker, &Frame::Declared { request: 8, outcome: Err(Error::Cancelled) });
        recorder.heard(Time(8), worker, &Frame::Fail { cause: "a disk".to_owned() });
        recorder.heard(Time(9), worker, &Frame::Leave);
        recorder.disconnected(Time(10), worker(), "it was reset");
        let cancelled = Error::Cancelled.to_string();
        assert_eq!(
            events(&recorder),
            json!([
                [1, "joined", "server-0", 0, 0, "n1 (pid 7)"],
                [2, "barrier", "worker-3", 5, 0, "epoch end"],
                [3, "barrier-over", "worker-3", 5, 0, null],
                [4, "barrier-over", "worker-3", 6, 0, cancelled],
                [5, "boundary", "worker-3", 2, 70, null],
                [6, "boundary-over", "worker-3", 2, 0, cancelled],
                [7, "declaration-refused", "worker-3", 8, 0, cancelled],
                [8, "gave-up", "worker-3", 0, 0, "a disk"],
                [9, "left", "worker-3", 0, 0, null],
                [10, "disconnected", "worker-3", 0, 0, "it was reset"],
            ])
        );
    }

    #[test]
    fn what_happens_to_the_job_is_told_as_on_its_page() {
        let recorder = Recorder::new(64);
        let text = |text: &str| text.to_owned();
        let to = Recipient::Server(ServerId(1));
        recorder.happened(Time(1), &Event::Formed { epoch: Epoch { term: 1, number: 1 } });
        recorder
            .happened(Time(2), &Event::Dead { member: text("worker 2"), place: text("n2"), cause: text("silence") });
        recorder.happened(Time(3), &Event::Ordered { to, order: "stats" });
        recorder.happened(Time(4), &Event::Ordered { to, order: "drain" });
        assert_eq!(
            events(&recorder),
            json!([
                [1, "formed", null, 0, 0, "epoch 1.1: the job is complete"],
                [2, "lost", null, 0, 0, "worker 2 on n2 is lost: silence"],
                [4, "ordered", null, 0, 0, "an operator has given server-1 the order drain"],
            ])
        );
    }

    #[test]
    fn texts_are_bounded_and_those_of_old_events_are_missing() {
        let recorder = Recorder::new(4_096);
        let member = (Role::Worker, 0);
        for count in 0..3_000 {
            recorder.joined(Time(count), member, &count.to_string());
        }
        (0..500).for_each(|_| recorder.joined(Time(0), member, "the same"));
        let events = events(&recorder);
        let texts: Vec<&Value> = events.as_array().unwrap().iter().map(|event| &event[5]).collect();
        assert_eq!(
            (texts.len(), texts[0], texts[2_999], texts[3_499]),
            (3_500, &Value::Null, &"2999".into(), &"the same".into())
        );
        assert_eq!(texts.iter().filter(|text| text.is_null()).count(), 3_001 - TEXTS_MAX);
        recorder.joined(Time(0), member, &"x".repeat(9_000));
        assert_eq!(self::events(&recorder)[3_500][5].as_str().unwrap().len(), TEXT_MAX);
    }

    #[test]
    fn a_recorder_that_is_off_keeps_nothing() {
        let recorder = Recorder::new(0);
        recorder.joined(Time(1), (Role::Worker, 0), "n1");
        recorder.happened(Time(2), &Event::Ends { reason: "x" });
        assert_eq!((events(&recorder), recorder.texts().newest.len()), (json!([]), 0));
    }

    fn events(recorder: &Recorder) -> Value {
        serde_json::from_str(&format!("[{}]", recorder.read().events)).unwrap()
    }
}
