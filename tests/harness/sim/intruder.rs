//! A member that sends what is well formed and wrong in its state: on the connections that its process has, under its own name.
//!
//! Everything here must be refused. The member may lose the connection for it; nobody else may notice.

use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::types::{
    Access, DType, Epoch, ExchangeId, LinkId, Mode, PartId, Phase, Round, Time, Version, View, WorkerId,
};
use gradlane_core::wire::frame::{AckTimes, Progress, Stall};
use gradlane_core::wire::{About, Contribute, Frame, Header, Reject, Sent, Service, Target, Use};

use super::checkers::Concern;
use super::workload::timing;
use super::world::{Context, Input, Who};

/// Farther ahead than a worker may be.
const ROUNDS_AHEAD: u64 = 1 << 17;

/// The number of everything that an intruder asks. What it is answered is for it and not for the member whose connection it uses.
pub(super) const REQUEST: u64 = u64::MAX;

/// Lets the process `who` send something wrong, where it has a connection to send it on.
pub(super) fn intrude(context: &mut Context, who: Who) {
    if let Who::Server(_) = who
        && context.random.chance(50)
    {
        return context.let_lie(who);
    }
    let exchange = context.some_exchange(who);
    match exchange {
        Some((exchange, _)) if context.random.chance(25) => {
            may_cost_the_link(context, exchange);
            context.let_misfit(who);
        }
        Some((exchange, link)) if context.random.chance(85) => push(context, exchange, link),
        Some(_) | None => say(context, who),
    }
}

/// A frame that this member may not send in this state.
fn say(context: &mut Context, who: Who) {
    let me = context.address(who);
    let Some(control) = context.control_of(me) else { return };
    let (request, name, timeout) = (REQUEST, "intruder".to_owned(), Duration::from_secs(1));
    let part = PartId { key: gradlane_core::types::TensorKey(7), index: 0 };
    let stall = |missing| Stall { part, round: Round(1), missing, waited: timing::STEP };
    let only_a_coordinator = [
        Frame::HeartbeatAck { sent: Time(u64::MAX), times: AckTimes::default() },
        Frame::Declared { request, outcome: Ok(Vec::new()) },
        Frame::Forget { key: part.key, error: Error::Cancelled },
        Frame::BarrierDone { request, outcome: Ok(()) },
        Frame::Refused(Error::Cancelled),
        Frame::StallNotice { tensor: name.clone(), stall: stall(Vec::new()), detail: String::new() },
        Frame::View(View::plain("sim", Epoch { term: u32::MAX, number: 1 }, Phase::Ended, Vec::new())),
    ];
    let frame = match (context.random.below(4), who) {
        (0, Who::Worker(_)) => Frame::Stall(stall(vec![WorkerId(0)])),
        (0, Who::Server(_) | Who::Coordinator) => Frame::Stall(stall(vec![WorkerId(u32::MAX)])),
        (1, Who::Server(_)) => Frame::Barrier { request, name, timeout },
        (2, Who::Server(_)) => Frame::Declare { request, tensors: Vec::new(), fuse: true },
        (3, _) => Frame::Heartbeat { sent: Time::ZERO, progress: Progress::default() },
        _ => only_a_coordinator[context.random.below(only_a_coordinator.len() as u64) as usize].clone(),
    };
    context.log.note(context.now, who, "intrudes", &[control], || format!("{frame:?}"));
    // It may cost the member its connection.
    let until = context.world + context.plan.settings.idle_timeout + timing::DIAL;
    context.witness.disturbed(Concern::Path(who, Who::Coordinator), context.world, until);
    let bytes = frame.encode();
    context.send_control(me, control, Input::Frame { control, bytes });
}

/// A header like one that this worker sent, but for a field, or one that only servers send.
fn push(context: &mut Context, like: ExchangeId, link: LinkId) {
    let Some(entry) = context.exchange(like) else { return };
    let worker = entry.worker;
    let sent = Header::decode(&entry.header, "a worker").expect("a worker sends what a server reads");
    let (target, is_use) = match &sent {
        Header::Contribute(header) => (header.target, false),
        Header::Use(header) => (header.target, true),
        Header::Withdraw(_)
        | Header::Restore(_)
        | Header::AnswerResidual(_)
        | Header::Sum(_)
        | Header::Value(_)
        | Header::Rows(_)
        | Header::RowsAnswer(_)
        | Header::Reject(_)
        | Header::Unknown(_) => return,
    };
    let body = context.whole_body_of(like);
    let Target { epoch, round, .. } = target;
    let tensor = context.random.below(context.plan.tensors.len() as u64) as usize;
    // If there is one, of a tensor that nobody has pushed yet.
    let untouched = (0..context.plan.tensors.len()).filter(|tensor| !context.witness.is_submitted(*tensor));
    let untouched: Vec<usize> = untouched.collect();
    let tensor = if untouched.is_empty() { tensor } else { untouched[tensor % untouched.len()] };
    let part = PartId { key: context.plan.tensors[tensor].spec.key(), index: 0 };
    let about = |target| match sent {
        Header::Use(header) => Header::Use(Use { target, ..header }),
        Header::Contribute(header) => Header::Contribute(Contribute { target, ..header }),
        other => other,
    };
    let wrong = match context.random.below(6) {
        0 => Header::Reject(Reject { about: target.about(), error_bytes: body.len() as u64 }),
        1 => Header::Unknown(About { service: Service::Unknown(u8::MAX), ..target.about() }),
        // A use of a later round would be the member's own, and make its next ones stragglers. A server keeps no parameter of this name.
        2 if is_use => Header::Use(pull_of(Target { part, ..target })),
        kind if kind == 2 || kind == 5 && !is_use && !untouched.is_empty() => {
            about(Target { part, round: Round(round.0 + ROUNDS_AHEAD), ..target })
        }
        3 => about(Target { epoch: Epoch { number: epoch.number + 1, ..epoch }, ..target }),
        _ => about(Target { epoch: Epoch { term: epoch.term + 1, ..epoch }, ..target }),
    };
    context.log.note(context.now, worker.who, "intrudes", &[like.0], || format!("{wrong:?}, {} bytes", body.len()));
    may_cost_the_link(context, like);
    context.open_ghost(worker, link, wrong.encode(), body, Duration::ZERO);
}

/// A worker may lose its link to a server for what it sends there.
fn may_cost_the_link(context: &mut Context, like: ExchangeId) {
    let Some(entry) = context.exchange(like) else { return };
    let (worker, server) = (entry.worker.who, entry.server.who);
    let until = context.world + context.plan.settings.idle_timeout + timing::DIAL;
    context.witness.disturbed(Concern::Path(worker, server), context.world, until);
}

fn pull_of(target: Target) -> Use {
    let sent = Sent::Nothing { checked: false };
    Use {
        target,
        dtype: DType::F32,
        access: Access::Pull,
        urgency: 0,
        part_bytes: 64,
        rule: None,
        mode: Mode::ASYNC,
        clock_at: 0,
        basis: Version(0),
        key: None,
        sent,
    }
}
