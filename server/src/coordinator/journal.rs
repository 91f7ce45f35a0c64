//! What a coordinator writes down, so that one that starts after it knows the job.
//!
//! A coordinator is a machine: the same inputs at the same times lead to the same state. So the journal holds inputs, and a coordinator that
//! starts again replays them ([`Coordinator::recover`](super::Coordinator::recover)). It leaves out what changes nothing that lasts, such as
//! heartbeats, and what members ask again after a reconnection, such as reads that wait. Silence is not repeated, but what was concluded
//! from it.
//!
//! The first record is the job as it formed. A job that has not formed is not written down: its members join again.

use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{ClockKey, ClockStep, Incarnation, NodeId, Role, Time, View};
use gradlane_core::wire::Frame;

use super::roster::{Identity, Size};

/// One input.
#[derive(Clone, PartialEq, Debug)]
pub struct Record(pub(super) Entry);

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Entry {
    /// The job has formed with these members, or expects them to form it again. `form` is that of the coordinator's settings.
    Formed { at: Time, form: String, view: View },
    /// A connection speaks for this member.
    Up(Identity),
    /// It has ended.
    Down(Identity),
    /// A member has said something.
    Said { at: Time, member: Identity, frame: Frame },
    /// These members were found lost at the same time, for these causes.
    Lost { at: Time, lost: Vec<(Identity, String)> },
    /// Something was too late.
    Late { at: Time },
    /// The sums of lost servers are recovered.
    Recovered { at: Time },
    /// Another coordinator goes on with the job.
    TakenUp { at: Time },
    /// The coordinator was asleep, as long as its process was stopped, and woke up.
    WokeUp { at: Time },
    /// A process has come, and so many wait to be taken in.
    Came { at: Time, waiting: Size },
    /// A process that waited is gone, and so many still wait.
    Gone { waiting: Size },
    /// Before the job formed as it is, so many workers had left in order, and these were lost.
    Before { left: u32, lost: Vec<String> },
    /// The key-value store had this when the job formed again.
    Kept { key: String, value: Vec<u8> },
    /// The values of the job are those of a checkpoint, and this is added to the rounds of its clocks.
    WentBack { bases: Vec<ClockStep> },
    /// What this life of a member hears if it has missed that the job forms again.
    Farewell { member: Identity, life: Incarnation, frame: Frame },
}

/// Whether a frame of a member changes anything that lasts.
pub(super) fn lasts(frame: &Frame) -> bool {
    match frame {
        Frame::Store { ask, .. } => ask.is_change(),
        frame => matches!(
            frame,
            Frame::Declare { .. }
                | Frame::Undeclare { .. }
                | Frame::Barrier { .. }
                | Frame::Tick { .. }
                | Frame::Squares(_)
                | Frame::Steps(_)
                | Frame::Leave
                | Frame::Fail { .. }
        ),
    }
}

impl Record {
    /// The time at which the input came, if that counts.
    pub(super) fn at(&self) -> Option<Time> {
        match self.0 {
            Entry::Formed { at, .. }
            | Entry::Said { at, .. }
            | Entry::Lost { at, .. }
            | Entry::Late { at }
            | Entry::Recovered { at }
            | Entry::TakenUp { at }
            | Entry::WokeUp { at }
            | Entry::Came { at, .. } => Some(at),
            Entry::Up(_)
            | Entry::Down(_)
            | Entry::Gone { .. }
            | Entry::Before { .. }
            | Entry::Kept { .. }
            | Entry::WentBack { .. }
            | Entry::Farewell { .. } => None,
        }
    }

    /// Its bytes in the journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match &self.0 {
            Entry::Formed { at, form, view } => {
                bytes.push(code::FORMED);
                put_time(&mut bytes, *at);
                put(&mut bytes, form.as_bytes());
                put(&mut bytes, &Frame::View(view.clone()).encode());
            }
            Entry::Up(member) => {
                bytes.push(code::UP);
                put_member(&mut bytes, *member);
            }
            Entry::Down(member) => {
                bytes.push(code::DOWN);
                put_member(&mut bytes, *member);
            }
            Entry::Said { at, member, frame } => {
                bytes.push(code::SAID);
                put_time(&mut bytes, *at);
                put_member(&mut bytes, *member);
                put(&mut bytes, &frame.encode());
            }
            Entry::Lost { at, lost } => {
                bytes.push(code::LOST);
                put_time(&mut bytes, *at);
                for (member, cause) in lost {
                    put_member(&mut bytes, *member);
                    put(&mut bytes, cause.as_bytes());
                }
            }
            Entry::Late { at } => {
                bytes.push(code::LATE);
                put_time(&mut bytes, *at);
            }
            Entry::Recovered { at } => {
                bytes.push(code::RECOVERED);
                put_time(&mut bytes, *at);
            }
            Entry::TakenUp { at } => {
                bytes.push(code::TAKEN_UP);
                put_time(&mut bytes, *at);
            }
            Entry::WokeUp { at } => {
                bytes.push(code::WOKE_UP);
                put_time(&mut bytes, *at);
            }
            Entry::Came { at, waiting } => {
                bytes.push(code::CAME);
                put_time(&mut bytes, *at);
                put_size(&mut bytes, *waiting);
            }
            Entry::Gone { waiting } => {
                bytes.push(code::GONE);
                put_size(&mut bytes, *waiting);
            }
            Entry::Before { left, lost } => {
                bytes.push(code::BEFORE);
                bytes.extend(left.to_le_bytes());
                lost.iter().for_each(|lost| put(&mut bytes, lost.as_bytes()));
            }
            Entry::Kept { key, value } => {
                bytes.push(code::KEPT);
                put(&mut bytes, key.as_bytes());
                put(&mut bytes, value);
            }
            Entry::WentBack { bases } => {
                bytes.push(code::WENT_BACK);
                bytes.extend((bases.len() as u32).to_le_bytes());
                for ClockStep { clock, step, samples } in bases {
                    bytes.extend([clock.0, *step, *samples].into_iter().flat_map(u64::to_le_bytes));
                }
            }
            Entry::Farewell { member, life, frame } => {
                bytes.push(code::FAREWELL);
                put_member(&mut bytes, *member);
                bytes.extend(life.0.to_le_bytes());
                put(&mut bytes, &frame.encode());
            }
        }
        bytes
    }

    /// The record with these bytes.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if they are damaged; [`Error::Incompatible`] if another version has written them.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let entry = read(&mut rest).ok_or_else(|| damaged("a record makes no sense"))??;
        if rest.is_empty() { Ok(Self(entry)) } else { Err(damaged("a record is too long")) }
    }
}

/// The error of a journal that cannot be used.
pub(super) fn damaged(what: &str) -> Error {
    Error::FailedPrecondition {
        what: format!("the journal of the coordinator is damaged: {what}"),
        hint: "start the coordinator without --resume, and all other processes of the job again".to_owned(),
    }
}

/// Reads an entry. `None` where bytes are missing or have no meaning.
fn read(rest: &mut &[u8]) -> Option<Result<Entry>> {
    let entry = match take(rest, 1)?[0] {
        code::FORMED => {
            let (at, form) = (read_time(rest)?, String::from_utf8(read_bytes(rest)?.to_vec()).ok()?);
            match Frame::decode(read_bytes(rest)?, JOURNAL) {
                Ok(Frame::View(view)) => Entry::Formed { at, form, view },
                Ok(_) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        code::UP => Entry::Up(read_member(rest)?),
        code::DOWN => Entry::Down(read_member(rest)?),
        code::SAID => {
            let (at, member) = (read_time(rest)?, read_member(rest)?);
            match Frame::decode(read_bytes(rest)?, JOURNAL) {
                Ok(frame) => Entry::Said { at, member, frame },
                Err(error) => return Some(Err(error)),
            }
        }
        code::LOST => {
            let (at, mut lost) = (read_time(rest)?, Vec::new());
            while !rest.is_empty() {
                lost.push((read_member(rest)?, String::from_utf8(read_bytes(rest)?.to_vec()).ok()?));
            }
            Entry::Lost { at, lost }
        }
        code::LATE => Entry::Late { at: read_time(rest)? },
        code::RECOVERED => Entry::Recovered { at: read_time(rest)? },
        code::TAKEN_UP => Entry::TakenUp { at: read_time(rest)? },
        code::WOKE_UP => Entry::WokeUp { at: read_time(rest)? },
        code::CAME => Entry::Came { at: read_time(rest)?, waiting: read_size(rest)? },
        code::GONE => Entry::Gone { waiting: read_size(rest)? },
        code::BEFORE => {
            let (left, mut lost) = (read_count(rest)?, Vec::new());
            while !rest.is_empty() {
                lost.push(String::from_utf8(read_bytes(rest)?.to_vec()).ok()?);
            }
            Entry::Before { left, lost }
        }
        code::KEPT => {
            let key = String::from_utf8(read_bytes(rest)?.to_vec()).ok()?;
            Entry::Kept { key, value: read_bytes(rest)?.to_vec() }
        }
        code::WENT_BACK => {
            let (count, mut bases) = (read_count(rest)?, Vec::new());
            for _ in 0..count {
                let clock = ClockKey(read_u64(rest)?);
                bases.push(ClockStep { clock, step: read_u64(rest)?, samples: read_u64(rest)? });
            }
            Entry::WentBack { bases }
        }
        code::FAREWELL => {
            let (member, life) =
                (read_member(rest)?, Incarnation(u128::from_le_bytes(take(rest, 16)?.try_into().ok()?)));
            match Frame::decode(read_bytes(rest)?, JOURNAL) {
                Ok(frame) => Entry::Farewell { member, life, frame },
                Err(error) => return Some(Err(error)),
            }
        }
        _ => return None,
    };
    Some(Ok(entry))
}

/// Who the bytes come from, in errors.
const JOURNAL: &str = "the journal of the coordinator";

mod code {
    pub(super) const FORMED: u8 = 1;
    pub(super) const UP: u8 = 2;
    pub(super) const DOWN: u8 = 3;
    pub(super) const SAID: u8 = 4;
    pub(super) const LOST: u8 = 5;
    pub(super) const LATE: u8 = 6;
    pub(super) const CAME: u8 = 7;
    pub(super) const GONE: u8 = 8;
    pub(super) const KEPT: u8 = 9;
    pub(super) const FAREWELL: u8 = 10;
    pub(super) const RECOVERED: u8 = 11;
    pub(super) const BEFORE: u8 = 12;
    pub(super) const TAKEN_UP: u8 = 13;
    pub(super) const WOKE_UP: u8 = 14;
    pub(super) const WENT_BACK: u8 = 15;
}

fn put(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend(u32::try_from(content.len()).expect("a frame and a text are short").to_le_bytes());
    bytes.extend(content);
}

fn put_time(bytes: &mut Vec<u8>, time: Time) {
    bytes.extend(time.0.to_le_bytes());
}

fn put_member(bytes: &mut Vec<u8>, member: Identity) {
    bytes.extend(member.node.0);
    bytes.push(u8::from(member.role == Role::Server));
}

fn put_size(bytes: &mut Vec<u8>, Size { workers, servers }: Size) {
    bytes.extend(workers.to_le_bytes());
    bytes.extend(servers.to_le_bytes());
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

fn read_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = read_count(rest)?;
    take(rest, len as usize)
}

fn read_count(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn read_u64(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

fn read_time(rest: &mut &[u8]) -> Option<Time> {
    let nanos = read_u64(rest)?;
    // A machine adds timeouts to its times.
    if nanos < TIME_MAX.as_nanos() as u64 { Some(Time(nanos)) } else { None }
}

fn read_member(rest: &mut &[u8]) -> Option<Identity> {
    let node = NodeId(take(rest, 32)?.try_into().ok()?);
    let role = match take(rest, 1)?[0] {
        0 => Role::Worker,
        1 => Role::Server,
        _ => return None,
    };
    Some(Identity { node, role })
}

fn read_size(rest: &mut &[u8]) -> Option<Size> {
    Some(Size { workers: read_count(rest)?, servers: read_count(rest)? })
}

/// No job lasts as long.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use gradlane_core::wire::samples;

    use super::*;

    #[test]
    fn every_record_comes_back_and_none_that_is_cut() {
        for record in records() {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Ok(record.clone()));
            for len in 0..bytes.len() {
                // A list of losses may end after each of them.
                let cut = Record::decode(&bytes[..len]);
                let may_end = matches!(record.0, Entry::Lost { .. } | Entry::Before { .. });
                assert!(cut.is_err() || may_end, "{record:?} cut at {len}: {cut:?}");
            }
            assert!(Record::decode(&[&bytes[..], &[0]].concat()).is_err(), "{record:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_damaged_and_another_version_is_named() {
        for bytes in [&[][..], &[0], &[9], &[code::UP], &[code::LATE, 255, 255, 255, 255, 255, 255, 255, 255]] {
            assert!(matches!(Record::decode(bytes), Err(Error::FailedPrecondition { .. })), "{bytes:?}");
        }
        let said = Record(Entry::Said { at: Time(1), member: member(Role::Worker), frame: Frame::Leave });
        let mut bytes = said.encode();
        let version = bytes.len() - 2;
        bytes[version] += 1;
        assert!(matches!(Record::decode(&bytes), Err(Error::Incompatible { .. })));
    }

    fn records() -> Vec<Record> {
        let view = samples::frames().into_iter().find_map(|frame| match frame {
            Frame::View(view) => Some(view),
            _ => None,
        });
        let formed = Entry::Formed { at: Time(1), form: "form".to_owned(), view: view.expect("one is a view") };
        let [worker, server] = [Role::Worker, Role::Server].map(member);
        let lost = vec![(worker, "killed".to_owned()), (server, String::new())];
        let said = |frame| Entry::Said { at: Time(2), member: worker, frame };
        let others = [
            Entry::Up(worker),
            Entry::Down(server),
            Entry::Lost { at: Time(3), lost },
            Entry::Late { at: Time(4) },
            Entry::TakenUp { at: Time(6) },
            Entry::WokeUp { at: Time(7) },
            Entry::Came { at: Time(5), waiting: Size { workers: 2, servers: 1 } },
            Entry::Gone { waiting: Size { workers: 1, servers: 0 } },
            Entry::WentBack { bases: vec![ClockStep { clock: ClockKey(7), step: 9, samples: 3 }] },
            Entry::Before { left: 1, lost: vec!["worker 2".to_owned(), String::new()] },
        ];
        let asked = samples::frames().into_iter().filter(lasts).map(said);
        [formed].into_iter().chain(others).chain(asked).map(Record).collect()
    }

    fn member(role: Role) -> Identity {
        Identity { node: NodeId([7; 32]), role }
    }
}
