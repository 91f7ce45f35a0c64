//! What two ranks do alone: send and receive, all those of a group side by side.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::codes::{Failure, INVALID_USAGE, Outcome};
use crate::meeting::Meeting;
use crate::operation::{Kind, Memory, Task};
use crate::shared::{LETTER, read, write};

/// A task and how far it is.
struct Underway<'a> {
    task: &'a Task,
    memory: Memory,
    bytes: usize,
    done: usize,
}

/// One direction between two ranks.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    from: usize,
    to: usize,
}

/// Does all of them. Those between the same two ranks go in the order of their calls.
pub(crate) fn exchange(meeting: &Meeting, tasks: &[(&Task, Memory)], aborted: &AtomicBool) -> Outcome {
    let mut all: Vec<Underway<'_>> = tasks.iter().map(|(task, memory)| Underway::new(task, *memory)).collect();
    let what = || "Send and Recv".to_owned();
    loop {
        let mut moved = false;
        for at in next(meeting, &all) {
            if can_move(meeting, all[at].way(meeting.rank), all[at].is_sent()) {
                step(meeting, &mut all[at])?;
                moved = true;
            }
        }
        if next(meeting, &all).is_empty() {
            return Ok(());
        }
        if !moved {
            // Somebody is missing as long as nothing at all can move.
            meeting.wait_for(&what, aborted, || {
                let ways = next(meeting, &all).into_iter().map(|at| (all[at].way(meeting.rank), all[at].is_sent()));
                let stuck: Vec<Way> =
                    ways.filter(|(way, sent)| !can_move(meeting, *way, *sent)).map(|(way, _)| way).collect();
                let all_stuck = stuck.len() == next(meeting, &all).len();
                let other = |way: &Way| if way.from == meeting.rank { way.to } else { way.from };
                stuck.first().filter(|_| all_stuck).map(other)
            })?;
        }
    }
}

/// The first unfinished task of each way, by index.
fn next(meeting: &Meeting, all: &[Underway<'_>]) -> Vec<usize> {
    let unfinished = (0..all.len()).filter(|at| all[*at].done < all[*at].bytes);
    let mut first: Vec<usize> = Vec::new();
    for at in unfinished {
        let is_there = |other: &usize| {
            all[*other].way(meeting.rank) == all[at].way(meeting.rank) && all[*other].is_sent() == all[at].is_sent()
        };
        if !first.iter().any(is_there) {
            first.push(at);
        }
    }
    first
}

fn can_move(meeting: &Meeting, Way { from, to }: Way, is_sent: bool) -> bool {
    let is_full = meeting.shared.is_full(from, to).load(Ordering::Acquire) == 1;
    is_full != is_sent
}

/// Moves one letter.
fn step(meeting: &Meeting, underway: &mut Underway<'_>) -> Outcome {
    let shared = &meeting.shared;
    let Way { from, to } = underway.way(meeting.rank);
    let head = |index: usize| shared.letter_head(from, to, index);
    let ours = [underway.bytes as u64, underway.task.dtype as u64];
    let len = LETTER.min(underway.bytes - underway.done);
    if underway.is_sent() {
        head(1).store(ours[0], Ordering::Release);
        head(2).store(ours[1], Ordering::Release);
        read(underway.memory.send + underway.done, shared.letter(from, to, len));
        shared.is_full(from, to).store(1, Ordering::Release);
    } else {
        let theirs = [1, 2].map(|index| head(index).load(Ordering::Acquire));
        if theirs != ours {
            let text = format!(
                "rank {to} receives {} bytes of {:?} from rank {from}, which sends {} bytes of type {}",
                ours[0], underway.task.dtype, theirs[0], theirs[1]
            );
            let failure = Failure::new(INVALID_USAGE, text);
            meeting.fail(&failure);
            return Err(failure);
        }
        write(underway.memory.receive + underway.done, shared.letter(from, to, len));
        shared.is_full(from, to).store(0, Ordering::Release);
    }
    underway.done += len;
    shared.tell();
    Ok(())
}

impl<'a> Underway<'a> {
    fn new(task: &'a Task, memory: Memory) -> Self {
        Self { task, memory, bytes: task.count * task.dtype.bytes(), done: 0 }
    }

    fn is_sent(&self) -> bool {
        matches!(self.task.kind, Kind::Send { .. })
    }

    fn way(&self, rank: usize) -> Way {
        match self.task.kind {
            Kind::Send { to } => Way { from: rank, to },
            Kind::Receive { from } => Way { from, to: rank },
            _ => unreachable!("a letter is sent or received"),
        }
    }
}
