//! Groups: calls of a thread that go together (`ncclGroupStart`, `ncclGroupEnd`). A call outside of one is a group of its own.

use std::cell::RefCell;
use std::sync::Arc;

use crate::clock;
use crate::codes::{Failure, INVALID_USAGE, Outcome};
use crate::comm::Comm;
use crate::library::Library;
use crate::operation::Task;
use crate::settings::pass;

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Call>,
    /// Communicators that meet.
    meeting: Vec<Arc<Comm>>,
    failure: Option<Failure>,
}

struct Call {
    comm: Arc<Comm>,
    stream: usize,
    tasks: Vec<Task>,
}

/// What the end of a group leaves to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Done,
    /// Communicators say when it is done.
    Later,
}

pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Adds an operation. One that is wrong spoils the whole group.
pub(crate) fn add(comm: Arc<Comm>, stream: usize, task: Task) -> Outcome {
    let outcome = comm.check(&task, stream);
    GROUP.with_borrow_mut(|group| {
        if let Err(failure) = outcome {
            if !comm.blocks {
                comm.spoil(failure.clone());
            }
            group.failure.get_or_insert_with(|| failure.clone());
            return Err(failure);
        }
        match group.calls.iter_mut().find(|call| Arc::ptr_eq(&call.comm, &comm)) {
            Some(call) if call.stream != stream => {
                let text = "operations of one communicator in one group go to one stream here";
                let failure = Failure::new(INVALID_USAGE, text);
                group.failure = Some(failure.clone());
                Err(failure)
            }
            Some(call) => {
                call.tasks.push(task);
                Ok(())
            }
            None => {
                group.calls.push(Call { comm, stream, tasks: vec![task] });
                Ok(())
            }
        }
    })
}

/// A communicator that begins to meet: the end of the group waits for it if it blocks.
pub(crate) fn add_meeting(comm: Arc<Comm>) {
    GROUP.with_borrow_mut(|group| group.meeting.push(comm));
}

/// Ends the innermost group; with the outermost, everything begins.
pub(crate) fn end() -> Outcome<Ended> {
    let group = GROUP.with_borrow_mut(|group| {
        group.depth = group
            .depth
            .checked_sub(1)
            .ok_or_else(|| Failure::new(INVALID_USAGE, "ncclGroupEnd: not in a group call"))?;
        Ok(if group.depth == 0 { Some(std::mem::take(group)) } else { None })
    })?;
    let Some(Group { calls, meeting, failure, .. }) = group else { return Ok(Ended::Done) };
    let mut ended = Ended::Done;
    for comm in meeting {
        if comm.blocks {
            comm.wait_until_idle()?;
        } else {
            ended = Ended::Later;
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    for Call { comm, stream, tasks } in calls {
        if comm.blocks {
            comm.launch(stream, tasks)?;
        } else {
            ended = Ended::Later;
            clock::later();
            comm.in_a_thread(move |comm| {
                pass(Library::get().settings().launch);
                comm.launch(stream, tasks)
            });
        }
    }
    Ok(ended)
}
