//! A job of one worker: every reduction of one contribution is that contribution.

use std::sync::Arc;

use super::asked::Submission;
use super::batch::Open;
use super::followed::{ALONE_BOUND, Followed};
use super::handle::{Ended, Handle, HandleBackend};
use super::limit::Limit;
use super::local_finite::{FiniteCheck, look};
use super::memory::Memory;
use super::metrics::Metrics;
use super::submit::check;
use crate::cuda::{Mark, Marks, OnIssue};
use crate::device::{Device, Transfer};
use crate::error::{Error, Result};
use crate::runtime::Clock;
use crate::types::{Demand, Done, Op, Time};
use crate::worker::Liveness;

/// Reduces tensors without a server and without an engine, all or none. The handle has the number `id` and resolves when all of them are
/// done: host memory when this returns, memory of a device when it has copied. `followed` counts the streams that wait for them, and `metrics`
/// the operations. `then` runs when the handle resolves, as that of [`Engine::push_pull`](super::Engine::push_pull).
///
/// If `finite` looks at tensors in memory of a device, nothing is copied and no stream can wait before the device has come to all of them.
///
/// # Errors
/// [`Error::InvalidArgument`] for what [`Engine::push_pull`](super::Engine::push_pull) refuses, and for a reduction without meaning here:
/// a weighted mean whose only weight is zero, a root that does not exist. Also the error of an earlier operation of which nobody was told.
/// [`Error::NotFinite`] if `finite` refuses a tensor in host memory; the handle tells it of a tensor in memory of a device.
pub fn reduce_alone(
    id: u64,
    submissions: Vec<Submission>,
    device: Option<&Arc<dyn Device>>,
    (followed, metrics): (&Arc<Followed>, &Arc<Metrics>),
    finite: &FiniteCheck,
    then: impl FnOnce(u64) + Send + 'static,
) -> Result<Handle> {
    followed.check()?;
    for Submission { tensor, source, destination, op, weight, .. } in &submissions {
        check(tensor, source, destination, Demand::Reduce { op: *op, weight: *weight }, device)?;
        check_alone(*op, *weight)?;
        tensor.participants.check_size(&tensor.name, 1)?;
    }
    let unseen = finite.check(&submissions)?;
    let names = submissions.first().map_or("", |submission| submission.tensor.name.as_str());
    let names: Arc<str> = names.into();
    let (clock, tensors) = (Clock::start(), submissions.len() as u64);
    Metrics::add(&metrics.submissions, tensors);
    let limit = Limit::new(clock, ALONE_BOUND, "tensor", Arc::clone(&names));
    let is_on_device = submissions.iter().any(|submission| submission.source.device().is_some());
    let backend = is_on_device.then(|| Arc::new(Copying(Arc::clone(followed))) as Arc<dyn HandleBackend>);
    if is_on_device {
        let memory = submissions.iter().flat_map(|submission| [&submission.source, &submission.destination]);
        followed.expect(id, memory.filter_map(Memory::after).cloned().collect());
    }
    let (there, counts) = (Arc::clone(followed), Arc::clone(metrics));
    let ended = move |Ended { id, outcome, is_followed }: Ended<'_>| {
        counts.count_resolved(outcome, tensors, clock.now().since(Time::ZERO));
        there.forget(id);
        then(id);
        if is_followed {
            there.end(id, outcome, &names);
        }
    };
    let (handle, done) = Handle::new(id, backend, Arc::clone(followed), ended);
    let open = Arc::new(Open::new(submissions.len(), is_on_device.then(|| handle.issue()), done));
    match device {
        Some(device) if !unseen.is_empty() => {
            let there = Arc::clone(device);
            look(unseen, &**device, Done::new(move |outcome| copy_all(submissions, Some(&there), &open, outcome)));
        }
        Some(_) | None => copy_all(submissions, device, &open, Ok(())),
    }
    Ok(handle.limited(limit))
}

/// Copies every contribution to its result, unless all of them fail with the error of this look at them.
fn copy_all(submissions: Vec<Submission>, device: Option<&Arc<dyn Device>>, open: &Arc<Open>, looked: Result<()>) {
    for Submission { source, destination, .. } in submissions {
        if let Err(error) = &looked {
            Open::member(open).err(error.clone());
            continue;
        }
        let issued = Open::issue_of_member(open).map_or_else(OnIssue::nobody, |issue| {
            OnIssue::new(move |mark| {
                let mut marks = Marks::default();
                marks.add(mark);
                issue(marks);
            })
        });
        copy(source, destination, device, issued, Open::member(open));
    }
}

/// What a handle asks in a job of one worker, whose operations are copies of a device.
struct Copying(Arc<Followed>);

impl HandleBackend for Copying {
    fn cancel(&self, _id: u64) {
        // A copy that a device was asked for ends by itself.
    }

    fn free_memory(&self, _id: u64) {
        // Nobody keeps account of it.
    }

    fn liveness(&self, _id: u64) -> Liveness {
        self.0.works_alone()
    }
}

fn copy(source: Memory, destination: Memory, device: Option<&Arc<dyn Device>>, issued: OnIssue, done: Done<()>) {
    match (source, destination, device) {
        (Memory::Device { region: from, .. }, Memory::Device { region: to, .. }, _) if from == to => {
            issued.issued(Mark::Reached);
            done.ok(());
        }
        (Memory::Device { region: from, after }, Memory::Device { region: to, after: and }, Some(device)) => {
            device.copy(Transfer::Within { from, to }, &[after, and], issued, done);
        }
        (Memory::Host(source), Memory::Host(mut destination), _) => {
            destination.copy_from(&source);
            done.ok(());
        }
        (Memory::Host(_) | Memory::Device { .. }, _, _) => unreachable!("both are of one kind, as was checked"),
    }
}

fn check_alone(op: Op, weight: f64) -> Result<()> {
    match op {
        Op::Sum | Op::Mean | Op::Min | Op::Max => Ok(()),
        Op::WeightedMean if weight > 0.0 => Ok(()),
        Op::WeightedMean => Err(Error::InvalidArgument {
            what: format!("a weighted mean whose weights sum to {weight}"),
            hint: "at least one worker needs a weight above zero".to_owned(),
        }),
        Op::Broadcast { root } if root.0 == 0 => Ok(()),
        Op::Broadcast { root } => Err(Error::InvalidArgument {
            what: format!("a broadcast from {root}, which does not exist in a job of one worker"),
            hint: "give 0 as the root".to_owned(),
        }),
    }
}
