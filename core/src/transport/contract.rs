//! What every transport promises, as tests that run against each of them.
//!
//! The server's side is played by the test itself, event by event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;

use super::{Answer, Inbox, Incoming, Listener, Outgoing, Peer, Pull, Push, Torn, Transport};
use crate::error::{Error, Result};
use crate::mem::borrow::region_of;
use crate::mem::{Lease, Pool};
use crate::types::{
    CodecSpec, DType, Done, Encoding, Epoch, ExchangeId, LinkId, NodeId, Op, PartId, Participants, Round, TensorKey,
    Waited, WorkerId,
};
use crate::wire::{
    self, Body as WireBody, Contribute, Contribution, Contributors, Hold, Request, Response, Sum, Target, Withdraw,
};

/// A transport under test and its listeners.
pub(super) trait World {
    /// Opens a listener under an identity of its own.
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId);

    /// A worker.
    fn transport(&self) -> Arc<dyn Transport>;
}

/// Makes a test of each promise for the world that `$world` builds.
macro_rules! promises {
    ($world:expr; $($promise:ident)*) => {
        $(
            #[test]
            fn $promise() {
                $crate::transport::contract::$promise(&$world);
            }
        )*
    };
    ($world:expr) => {
        $crate::transport::contract::promises! { $world;
            a_sum_comes_back_byte_for_byte
            a_sum_lands_in_place_of_what_was_pushed
            many_exchanges_run_at_once
            a_push_without_a_body_asks_for_the_sum_only
            a_push_may_say_where_its_answer_lands
            a_push_without_a_body_may_say_where_its_answer_lands
            a_push_on_a_link_that_is_gone_ends_its_pull_too
            a_sum_of_some_workers_says_which
            a_reject_carries_the_error
            why_a_round_is_given_up_arrives_and_is_answered
            an_answer_that_has_arrived_outlives_the_listener
            a_sum_may_begin_before_the_contribution_is_whole
            a_sum_that_breaks_off_tells_how_much_landed_and_the_error_comes_with_the_repeat
            an_early_answer_refuses_the_rest_of_the_body
            an_abandoned_exchange_is_cancelled_on_both_sides
            an_exchange_may_be_abandoned_at_any_moment
            a_push_may_be_abandoned_while_its_body_is_under_way
            a_server_that_stops_tears_what_is_under_way
            a_worker_that_disconnects_tears_its_exchanges_then_its_link
            a_sum_of_another_length_does_not_touch_the_memory
            bodies_of_a_codec_of_any_length_are_as_long_as_their_headers_say
            a_changed_body_is_told_from_a_whole_one
            a_server_with_another_identity_is_refused
            what_was_never_pushed_cannot_be_pulled
            an_exchange_is_known_on_its_link_alone
            shutdown_leaves_nothing_waiting
        }
    };
}
pub(super) use promises;

pub(super) fn a_sum_comes_back_byte_for_byte(world: &dyn World) {
    let (server, worker) = connected(world);
    let _echo = server.echo();
    for len in [0, 4096, 4 << 20, 16 << 20] {
        let (mut pushed, mut pulled) = (pattern(len, 7), vec![0; len]);
        let id = ExchangeId(len as u64);
        let sent = worker.push(id, &mut pushed);
        let sum = worker.pull(id, &mut pulled);
        assert_eq!(sent.soon(), Ok(()), "{len} bytes");
        assert_eq!(sum_of(sum.soon()).divisor, 2.5, "{len} bytes");
        assert!(pushed == pulled, "{len} bytes differ");
    }
}

pub(super) fn a_sum_lands_in_place_of_what_was_pushed(world: &dyn World) {
    let (server, worker) = connected(world);
    let mut memory = pattern(100_000, 3);
    let id = ExchangeId(1);
    let sent = worker.push(id, &mut memory);
    let sum = worker.pull(id, &mut memory);
    let mut body = server.land();
    body.1.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
    server.answer(body);
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    let doubled: Vec<u8> = pattern(100_000, 3).iter().map(|byte| byte.wrapping_mul(2)).collect();
    assert!(memory == doubled);
}

pub(super) fn many_exchanges_run_at_once(world: &dyn World) {
    let (server, first) = connected(world);
    let second = server.connect(world.transport());
    let _echo = server.echo();
    let mut memory: Vec<(Vec<u8>, Vec<u8>)> = (0..96).map(|seed| (pattern(50_000, seed), vec![0; 50_000])).collect();
    let mut sums = Vec::new();
    for (id, (pushed, pulled)) in memory.iter_mut().enumerate() {
        let worker = if id % 2 == 0 { &first } else { &second };
        worker.push(ExchangeId(id as u64), pushed);
        sums.push(worker.pull(ExchangeId(id as u64), pulled));
    }
    for sum in sums {
        sum_of(sum.soon());
    }
    assert!(memory.iter().all(|(pushed, pulled)| pushed == pulled));
}

pub(super) fn a_push_may_say_where_its_answer_lands(world: &dyn World) {
    is_answered_in_place(world, header(400));
}

pub(super) fn a_push_without_a_body_may_say_where_its_answer_lands(world: &dyn World) {
    let contribution = Contribution::Nothing;
    is_answered_in_place(world, Request::Contribute(Contribute { contribution, ..contribute(400) }));
}

fn is_answered_in_place(world: &dyn World, header: Request) {
    let (server, worker) = connected(world);
    let (mut memory, sends) = (pattern(400, 3), header.body_bytes() > 0);
    let (sent, sum) = worker.exchange(ExchangeId(1), header, &mut memory);
    let exchange = if sends { server.land().0 } else { server.opened().0 };
    let mut body = server.pool.lease(400);
    body.fill(9);
    server.answer((exchange, body));
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    assert!(memory.iter().all(|byte| *byte == 9));
}

pub(super) fn a_push_on_a_link_that_is_gone_ends_its_pull_too(world: &dyn World) {
    let (_server, worker) = connected(world);
    worker.transport.disconnect(worker.link);
    let mut memory = pattern(400, 3);
    let (sent, sum) = worker.exchange(ExchangeId(1), header(400), &mut memory);
    assert!(sent.soon().is_err());
    let torn = sum.soon().expect_err("nobody answers");
    assert_eq!(torn.landed, 0);
}

pub(super) fn a_push_without_a_body_asks_for_the_sum_only(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, mut memory) = (ExchangeId(1), vec![0; 400]);
    let header = Request::Contribute(Contribute { contribution: Contribution::Nothing, ..contribute(400) });
    let sent = worker.push_with(id, header.clone(), &mut []);
    let sum = worker.pull(id, &mut memory);
    let (exchange, seen) = server.opened();
    assert_eq!(seen, header);
    let mut body = server.pool.lease(400);
    body.fill(9);
    server.answer((exchange, body));
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    assert_eq!(memory, [9; 400]);
}

pub(super) fn a_sum_of_some_workers_says_which(world: &dyn World) {
    let (server, worker) = connected(world);
    // The largest set a job can have is the longest header.
    for ranks in [vec![1, 9], (0..4095).step_by(2).collect(), vec![]] {
        for len in [0, 400] {
            let mut memory = pattern(len, 1);
            let sent = worker.push(ExchangeId(1), &mut memory);
            let answer = worker.pull(ExchangeId(1), &mut memory);
            let contributors = Contributors::Only(ranks.iter().copied().map(WorkerId).collect());
            // What has no body is not accepted.
            let exchange = if len > 0 { server.land().0 } else { server.opened().0 };
            let mut body = server.pool.lease(len);
            body.fill(9);
            let header = Sum { contributors: contributors.clone(), ..sum_header(len as u64) };
            server.send(Outgoing::Answer { exchange, header: header.into() });
            server.send(Outgoing::Block { exchange, block: body.freeze() });
            server.send(Outgoing::End { exchange, checksum: 0 });
            assert_eq!(sent.soon(), Ok(()));
            assert_eq!(sum_of(answer.soon()).contributors, contributors);
            assert_eq!(memory, vec![9; len]);
            assert!(matches!(server.next(), Incoming::Answered { .. }));
        }
    }
}

pub(super) fn a_reject_carries_the_error(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, mut memory) = (ExchangeId(1), pattern(400, 1));
    let sent = worker.push(id, &mut memory);
    let sum = worker.pull(id, &mut memory);
    let error = Error::Fenced { current: Epoch { term: 1, number: 2 } };
    let (exchange, _) = server.land();
    server.send(Outgoing::Reject { exchange, about: target().about(), error: error.clone() });
    assert_eq!(sent.soon(), Ok(()));
    assert!(matches!(sum.soon(), Ok(Answer::Reject(told)) if told == error));
    assert!(matches!(server.next(), Incoming::Answered { .. }));
}

pub(super) fn why_a_round_is_given_up_arrives_and_is_answered(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, error) = (ExchangeId(1), Error::Cancelled);
    // An odd length: it is no tensor.
    let mut letter = wire::reject::to_body(&Error::Internal { what: "12345".to_owned() });
    let error_bytes = letter.len() as u64;
    let participants = Participants::of([0, 2].map(WorkerId).into_iter().collect());
    let withdraw = Withdraw { target: target(), dtype: DType::I32, op: Op::Sum, participants, error_bytes };
    let given_up = Request::Withdraw(withdraw);
    let sent = worker.push_with(id, given_up.clone(), &mut letter);
    let sum = worker.pull(id, &mut []);
    let (exchange, seen) = server.opened();
    assert_eq!(seen, given_up);
    server.send(Outgoing::Accept { exchange });
    let mut read = Vec::new();
    while read.len() < letter.len() {
        match server.next() {
            Incoming::Body { chunks, .. } => chunks.iter().for_each(|chunk| wire::append(&mut read, chunk)),
            other => panic!("{other:?} where a body was due"),
        }
    }
    assert_eq!(read, letter);
    server.send(Outgoing::Reject { exchange, about: target().about(), error: error.clone() });
    assert_eq!(sent.soon(), Ok(()));
    assert!(matches!(sum.soon(), Ok(Answer::Reject(told)) if told == error));
}

pub(super) fn an_answer_that_has_arrived_outlives_the_listener(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, mut pushed, mut pulled) = (ExchangeId(1), pattern(4 << 20, 1), vec![0; 4 << 20]);
    let sent = worker.push(id, &mut pushed);
    let sum = worker.pull(id, &mut pulled);
    server.answer(server.land());
    assert!(matches!(server.next(), Incoming::Answered { .. }));
    (server.listener.stop)(Duration::from_secs(1));
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    assert!(pushed == pulled);
}

pub(super) fn a_sum_may_begin_before_the_contribution_is_whole(world: &dyn World) {
    const LEN: usize = 3 << 20;
    let (server, worker) = connected(world);
    let mut memory = pattern(LEN, 4);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, pushed) = server.opened();
    server.send(Outgoing::Answer { exchange, header: Sum { early: true, ..sum_header(LEN as u64) }.into() });
    let block = |byte| {
        let mut block = server.pool.lease(LEN / 2);
        block.fill(byte);
        Outgoing::Block { exchange, block: block.freeze() }
    };
    server.send(block(1));
    server.send(Outgoing::Accept { exchange });
    let mut body = Body::new(&server.pool, &pushed);
    while !body.is_whole() {
        match server.next() {
            Incoming::Body { chunks, .. } => body.take(&chunks),
            other => panic!("{other:?} where a body was due"),
        }
    }
    assert!(body.memory[..] == pattern(LEN, 4));
    server.send(block(2));
    server.send(Outgoing::End { exchange, checksum: 0 });
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    assert!(memory[..LEN / 2].iter().all(|byte| *byte == 1) && memory[LEN / 2..].iter().all(|byte| *byte == 2));
    assert!(matches!(server.next(), Incoming::Answered { .. }));
}

pub(super) fn a_sum_that_breaks_off_tells_how_much_landed_and_the_error_comes_with_the_repeat(world: &dyn World) {
    let (server, worker) = connected(world);
    let mut memory = pattern(8000, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, mut body) = server.land();
    body.fill(1);
    let mut first = server.pool.lease(4000);
    first.fill(1);
    server.send(Outgoing::Answer { exchange, header: sum_header(8000).into() });
    server.send(Outgoing::Block { exchange, block: first.freeze() });
    server.send(Outgoing::Reject { exchange, about: target().about(), error: Error::Cancelled });
    assert_eq!(sent.soon(), Ok(()));
    let torn = sum.soon().expect_err("half a sum is none");
    assert!(torn.error.retryable(), "{torn:?}");
    let landed = usize::try_from(torn.landed).unwrap();
    assert!(landed <= 4000 && memory[landed..] == pattern(8000, 1)[landed..], "{landed} bytes landed, no more");
    server.torn(exchange);
    server.still_serves(&worker);
}

pub(super) fn an_early_answer_refuses_the_rest_of_the_body(world: &dyn World) {
    let (server, worker) = connected(world);
    // More than any window of a transport holds, so that the body cannot have been handed over.
    let (id, mut pushed, mut pulled) = (ExchangeId(1), pattern(24 << 20, 1), vec![0; 24 << 20]);
    let sent = worker.push(id, &mut pushed);
    let sum = worker.pull(id, &mut pulled);
    let (exchange, _) = server.opened();
    let mut body = server.pool.lease(24 << 20);
    body.fill(5);
    server.answer((exchange, body));
    assert_eq!(sent.soon(), Ok(()), "the server needs no more of it");
    sum_of(sum.soon());
    assert!(pulled.iter().all(|byte| *byte == 5));
    assert!(matches!(server.next(), Incoming::Answered { .. }));
}

pub(super) fn an_abandoned_exchange_is_cancelled_on_both_sides(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, mut memory) = (ExchangeId(1), pattern(100_000, 1));
    let sent = worker.push(id, &mut memory);
    let sum = worker.pull(id, &mut memory);
    let (exchange, body) = server.land();
    assert_eq!(sent.soon(), Ok(()));
    worker.transport.abandon(worker.link, id);
    assert_torn(sum.soon(), &Error::Cancelled);
    assert!(matches!(server.next(), Incoming::Torn { exchange: torn, .. } if torn == exchange));
    server.answer((exchange, body));
    worker.transport.abandon(worker.link, id);
    server.still_serves(&worker);
}

pub(super) fn an_exchange_may_be_abandoned_at_any_moment(world: &dyn World) {
    let (_server, worker) = connected(world);
    for id in 0..100 {
        let (mut pushed, mut pulled) = (pattern(4000, 1), pattern(4000, 2));
        let sent = worker.push(ExchangeId(id), &mut pushed);
        let sum = worker.pull(ExchangeId(id), &mut pulled);
        worker.transport.abandon(worker.link, ExchangeId(id));
        assert_torn(sum.soon(), &Error::Cancelled);
        assert!(matches!(sent.soon(), Ok(()) | Err(Error::Cancelled)));
    }
}

pub(super) fn a_push_may_be_abandoned_while_its_body_is_under_way(world: &dyn World) {
    let (server, worker) = connected(world);
    let (id, mut memory) = (ExchangeId(1), pattern(24 << 20, 1));
    let sent = worker.push(id, &mut memory);
    let (exchange, _) = server.opened();
    worker.transport.abandon(worker.link, id);
    assert_eq!(sent.soon(), Err(Error::Cancelled));
    server.send(Outgoing::Accept { exchange });
    server.torn(exchange);
    server.still_serves(&worker);
}

pub(super) fn a_server_that_stops_tears_what_is_under_way(world: &dyn World) {
    let (server, worker) = connected(world);
    let (mut memory, mut later) = (pattern(100_000, 1), pattern(100_000, 2));
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    server.land();
    assert_eq!(sent.soon(), Ok(()));
    let also_sent = worker.push(ExchangeId(2), &mut later);
    server.land();
    assert_eq!(also_sent.soon(), Ok(()));
    (server.listener.stop)(SOON);
    let torn = sum.soon().expect_err("the server is gone");
    assert!(torn.landed == 0 && torn.error.retryable(), "{torn:?}");
    let (link, reason) = worker.lost.soon();
    assert_eq!(link, worker.link);
    assert!(reason.retryable(), "{reason:?}");
    assert!(worker.pull(ExchangeId(2), &mut later).soon().is_err(), "what was pushed before is torn as well");
    assert!(worker.push(ExchangeId(3), &mut later).soon().is_err());
    let events: Vec<Incoming> = server.events.try_iter().collect();
    let torn = events.iter().filter(|event| matches!(event, Incoming::Torn { .. })).count();
    assert_eq!(torn, 2, "{events:?}");
    assert!(matches!(events.last(), Some(Incoming::LinkDown { .. })), "{events:?}");
}

pub(super) fn a_worker_that_disconnects_tears_its_exchanges_then_its_link(world: &dyn World) {
    let (server, worker) = connected(world);
    let mut memory = pattern(1000, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, _) = server.land();
    assert_eq!(sent.soon(), Ok(()));
    worker.transport.disconnect(worker.link);
    assert!(sum.soon().is_err());
    assert_eq!(worker.lost.soon().0, worker.link);
    assert!(matches!(server.next(), Incoming::Torn { exchange: torn, .. } if torn == exchange));
    assert!(matches!(server.next(), Incoming::LinkDown { .. }));
}

pub(super) fn a_sum_of_another_length_does_not_touch_the_memory(world: &dyn World) {
    let (server, worker) = connected(world);
    let mut memory = pattern(400, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, _) = server.land();
    server.answer((exchange, server.pool.lease(404)));
    assert_eq!(sent.soon(), Ok(()));
    let torn = sum.soon().expect_err("404 bytes do not fit");
    assert!(matches!(&torn.error, Error::Protocol { field, .. } if field == "length"), "{torn:?}");
    assert_eq!(torn.landed, 0);
    assert_eq!(memory, pattern(400, 1));
}

pub(super) fn bodies_of_a_codec_of_any_length_are_as_long_as_their_headers_say(world: &dyn World) {
    const PART: usize = 300_000;
    let (server, worker) = connected(world);
    let codec = CodecSpec::of(Encoding::TopK);
    let body = |bytes: usize, refused| WireBody { bytes: bytes as u64, codec, refused };
    let cases = [(1, false, 1), (7_001, false, 299_999), (PART, true, 13), (90_000, false, PART), (5, false, PART + 1)];
    for (id, (pushed, refused, bytes)) in (1..).zip(cases) {
        let mut memory = pattern(PART, 1);
        let contribution = Contribution::First { body: body(pushed, refused), checksum: None };
        let part = Contribute { dtype: DType::F32, contribution, ..contribute(PART as u64) };
        let sent = worker.push_with(ExchangeId(id), Request::Contribute(part), &mut memory[..pushed]);
        let sum = worker.pull(ExchangeId(id), &mut memory);
        let (exchange, landed) = server.land();
        assert!(landed[..] == pattern(PART, 1)[..pushed], "{pushed} bytes");
        let mut block = server.pool.lease(bytes);
        block.fill(9);
        let checksum = wire::checksum(0, &block);
        let header = Sum { checksum: true, body: body(bytes, bytes == PART), ..sum_header(PART as u64) };
        server.send(Outgoing::Answer { exchange, header: header.clone().into() });
        server.send(Outgoing::Block { exchange, block: block.freeze() });
        server.send(Outgoing::End { exchange, checksum });
        assert_eq!(sent.soon(), Ok(()));
        if bytes <= PART {
            assert_eq!(sum_of(sum.soon()), header);
            assert!(memory[..bytes].iter().all(|byte| *byte == 9) && memory[bytes..] == pattern(PART, 1)[bytes..]);
            assert!(matches!(server.next(), Incoming::Answered { .. }));
        } else {
            let torn = sum.soon().expect_err("one byte does not fit");
            assert!(matches!(&torn.error, Error::Protocol { field, .. } if field == "length"), "{torn:?}");
            assert!(torn.landed == 0 && memory == pattern(PART, 1));
        }
    }
}

pub(super) fn a_changed_body_is_told_from_a_whole_one(world: &dyn World) {
    let (server, worker) = connected(world);
    let mut memory = pattern(400, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, body) = server.land();
    server.send(Outgoing::Answer { exchange, header: Sum { checksum: true, ..sum_header(400) }.into() });
    server.send(Outgoing::Block { exchange, block: body.freeze() });
    server.send(Outgoing::End { exchange, checksum: 1 });
    assert_eq!(sent.soon(), Ok(()));
    let torn = sum.soon().expect_err("its checksum is not 1");
    assert!(matches!(torn.error, Error::Checksum { round: Round(3), .. }), "{torn:?}");
    assert_eq!(torn.landed, 400);
}

pub(super) fn a_server_with_another_identity_is_refused(world: &dyn World) {
    let server = Server::new(world);
    let peer = Peer { node: NodeId([1; 32]), ..server.peer.clone() };
    let error = connect(&*world.transport(), peer).0.soon().expect_err("not this node");
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("010101010101")), "{error}");
}

pub(super) fn what_was_never_pushed_cannot_be_pulled(world: &dyn World) {
    let (_server, worker) = connected(world);
    let torn = worker.pull(ExchangeId(9), &mut []).soon().expect_err("it was not pushed");
    assert!(matches!(torn.error, Error::FailedPrecondition { .. }), "{torn:?}");
    worker.transport.abandon(worker.link, ExchangeId(9));
}

pub(super) fn an_exchange_is_known_on_its_link_alone(world: &dyn World) {
    let server = Server::new(world);
    let worker = server.connect(world.transport());
    let other = server.connect(Arc::clone(&worker.transport));
    let mut memory = pattern(1000, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let torn = other.pull(ExchangeId(1), &mut []).soon().expect_err("it was pushed on another link");
    assert!(matches!(torn.error, Error::FailedPrecondition { .. }), "{torn:?}");
    other.transport.abandon(other.link, ExchangeId(1));
    let sum = worker.pull(ExchangeId(1), &mut memory);
    server.answer(server.land());
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
}

pub(super) fn shutdown_leaves_nothing_waiting(world: &dyn World) {
    let (server, worker) = connected(world);
    let (mut memory, mut large) = (pattern(1000, 1), pattern(24 << 20, 1));
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    server.land();
    assert_eq!(sent.soon(), Ok(()));
    let sending = worker.push(ExchangeId(2), &mut large);
    server.opened();
    worker.transport.shutdown(SOON);
    assert_eq!(sending.0.try_recv(), Ok(Err(Error::Cancelled)));
    assert_torn(sum.0.try_recv().unwrap(), &Error::Cancelled);
    assert!(worker.push(ExchangeId(3), &mut memory).soon().is_err());
    assert!(worker.pull(ExchangeId(3), &mut memory).soon().is_err());
}

/// Far longer than anything here takes.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A report that is due.
pub(super) struct Due<T>(pub(super) Receiver<T>);

impl<T> Due<T> {
    pub(super) fn soon(&self) -> T {
        self.0.recv_timeout(SOON).expect("every operation reports, and reports in time")
    }
}

/// A listener whose events the test answers.
pub(super) struct Server {
    pub(super) listener: Listener,
    pub(super) peer: Peer,
    pub(super) events: Receiver<Incoming>,
    pub(super) pool: Pool,
}

impl Server {
    pub(super) fn new(world: &dyn World) -> Self {
        let (sender, events) = channel();
        let (listener, node) = world.listen(Box::new(move |event| drop(sender.send(event))));
        let peer = Peer { addresses: listener.addresses.clone(), node, name: "server 0".to_owned() };
        Self { listener, peer, events, pool: Pool::new() }
    }

    pub(super) fn connect(&self, transport: Arc<dyn Transport>) -> Worker {
        let (connected, lost) = connect(&*transport, self.peer.clone());
        let link = connected.soon().expect("the server listens");
        assert!(matches!(self.next(), Incoming::LinkUp { .. }));
        Worker { transport, link, lost }
    }

    pub(super) fn send(&self, outgoing: Outgoing) {
        (self.listener.outbox)(outgoing);
    }

    pub(super) fn next(&self) -> Incoming {
        self.events.recv_timeout(SOON).expect("an event is due")
    }

    pub(super) fn opened(&self) -> (ExchangeId, Request) {
        match self.next() {
            Incoming::Opened { exchange, header, .. } => (exchange, header),
            other => panic!("{other:?} where an exchange was to open"),
        }
    }

    pub(super) fn land(&self) -> (ExchangeId, Lease) {
        let (exchange, header) = self.opened();
        self.send(Outgoing::Accept { exchange });
        let mut body = Body::new(&self.pool, &header);
        while !body.is_whole() {
            match self.next() {
                Incoming::Body { exchange: of, chunks } if of == exchange => body.take(&chunks),
                other => panic!("{other:?} where a body was due"),
            }
        }
        (exchange, body.memory)
    }

    pub(super) fn answer(&self, (exchange, body): (ExchangeId, Lease)) {
        answer(exchange, body).into_iter().for_each(|outgoing| self.send(outgoing));
    }

    /// Waits until the exchange is torn, whatever came of its body before.
    pub(super) fn torn(&self, exchange: ExchangeId) {
        loop {
            match self.next() {
                Incoming::Torn { exchange: torn, .. } if torn == exchange => return,
                Incoming::Body { .. } => {}
                other => panic!("{other:?} where the exchange was to be torn"),
            }
        }
    }

    /// From now on answers each exchange with its own body, until the listener is dropped.
    pub(super) fn echo(self) -> Arc<Listener> {
        let listener = Arc::new(self.listener);
        let weak = Arc::downgrade(&listener);
        std::thread::spawn(move || {
            let mut bodies = BTreeMap::new();
            for event in self.events {
                let outgoing = match event {
                    Incoming::Opened { exchange, header, .. } => {
                        let body = Body::new(&self.pool, &header);
                        if body.is_whole() {
                            answer(exchange, body.memory)
                        } else {
                            bodies.insert(exchange, body);
                            vec![Outgoing::Accept { exchange }]
                        }
                    }
                    Incoming::Body { exchange, chunks } => {
                        let body = bodies.get_mut(&exchange).unwrap();
                        body.take(&chunks);
                        if !body.is_whole() {
                            continue;
                        }
                        answer(exchange, bodies.remove(&exchange).unwrap().memory)
                    }
                    Incoming::LinkUp { .. }
                    | Incoming::LinkDown { .. }
                    | Incoming::ProcessEnded { .. }
                    | Incoming::Torn { .. }
                    | Incoming::Answered { .. } => continue,
                };
                let Some(listener) = weak.upgrade() else { return };
                outgoing.into_iter().for_each(&listener.outbox);
            }
        });
        listener
    }

    pub(super) fn still_serves(&self, worker: &Worker) {
        let (id, mut memory) = (ExchangeId(u64::MAX), pattern(5000, 2));
        let sent = worker.push(id, &mut memory);
        let sum = worker.pull(id, &mut memory);
        self.answer(self.land());
        assert_eq!(sent.soon(), Ok(()));
        sum_of(sum.soon());
        assert!(matches!(self.next(), Incoming::Answered { .. }));
    }
}

/// A body that is received.
struct Body {
    memory: Lease,
    filled: usize,
}

impl Body {
    fn new(pool: &Pool, header: &Request) -> Self {
        Self { memory: pool.lease(usize::try_from(header.body_bytes()).unwrap()), filled: 0 }
    }

    fn take(&mut self, chunks: &[Bytes]) {
        for chunk in chunks {
            self.memory[self.filled..][..chunk.len()].copy_from_slice(chunk);
            self.filled += chunk.len();
        }
    }

    fn is_whole(&self) -> bool {
        self.filled == self.memory.len()
    }
}

/// A worker with one link.
pub(super) struct Worker {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) link: LinkId,
    pub(super) lost: Due<(LinkId, Error)>,
}

impl Worker {
    pub(super) fn push(&self, id: ExchangeId, body: &mut [u8]) -> Due<Result<()>> {
        self.push_with(id, header(body.len() as u64), body)
    }

    pub(super) fn push_with(&self, id: ExchangeId, header: Request, body: &mut [u8]) -> Due<Result<()>> {
        let (sender, due) = channel();
        let push = push_of(header, body);
        self.transport.push(self.link, id, push, Done::new(move |outcome| drop(sender.send(outcome))));
        Due(due)
    }

    /// Pushes `memory`, or nothing if the header says so, and says that the answer lands there.
    fn exchange(
        &self,
        id: ExchangeId,
        header: Request,
        memory: &mut [u8],
    ) -> (Due<Result<()>>, Due<std::result::Result<Answer, Torn>>) {
        let ((sender, pushed), (answers, answered)) = (channel(), channel());
        let into = vec![region_of(memory)];
        let done = Done::new(move |outcome| drop(answers.send(outcome)));
        let body: &mut [u8] = if header.body_bytes() > 0 { memory } else { &mut [] };
        let push = Push { pull: Some(Pull { into, done }), ..push_of(header, body) };
        self.transport.push(self.link, id, push, Done::new(move |outcome| drop(sender.send(outcome))));
        (Due(pushed), Due(answered))
    }

    pub(super) fn pull(&self, id: ExchangeId, into: &mut [u8]) -> Due<std::result::Result<Answer, Torn>> {
        let (sender, due) = channel();
        let (first, second) = region_of(into).split_at(into.len() / 2);
        self.transport.pull(self.link, id, vec![first, second], Done::new(move |outcome| drop(sender.send(outcome))));
        Due(due)
    }
}

type Lost = Due<(LinkId, Error)>;

pub(super) fn connect(transport: &dyn Transport, peer: Peer) -> (Due<Result<LinkId>>, Lost) {
    let (sender, connected) = channel();
    let (lost_sender, lost) = channel();
    let on_loss = Box::new(move |link, reason| drop(lost_sender.send((link, reason))));
    transport.connect(peer, SOON, on_loss, Done::new(move |outcome| drop(sender.send(outcome))));
    (Due(connected), Due(lost))
}

pub(super) fn connected(world: &dyn World) -> (Server, Worker) {
    let server = Server::new(world);
    let worker = server.connect(world.transport());
    (server, worker)
}

pub(super) fn answer(exchange: ExchangeId, body: Lease) -> Vec<Outgoing> {
    let header = Sum { checksum: true, divisor: 2.5, ..sum_header(body.len() as u64) };
    let checksum = wire::checksum(0, &body);
    vec![
        Outgoing::Answer { exchange, header: header.into() },
        Outgoing::Block { exchange, block: body.freeze() },
        Outgoing::End { exchange, checksum },
    ]
}

pub(super) fn push_of(header: Request, body: &mut [u8]) -> Push {
    // In two runs, as a part of two fused tensors is.
    let (first, second) = region_of(body).split_at(body.len() / 3);
    Push { header, body: vec![first, second], pull: None, look: None }
}

pub(super) fn header(bytes: u64) -> Request {
    Request::Contribute(contribute(bytes))
}

pub(super) fn contribute(bytes: u64) -> Contribute {
    Contribute {
        target: target(),
        dtype: DType::I32,
        op: Op::Sum,
        participants: Participants::ALL,
        weight: 1.0,
        urgency: 3,
        waited: Waited::default(),
        part_bytes: bytes,
        hold: Hold::No,
        is_given: false,
        contribution: Contribution::First { body: WireBody::plain(bytes), checksum: None },
    }
}

/// What answers [`header`].
pub(super) fn sum_header(bytes: u64) -> Sum {
    Sum {
        target: target(),
        attempt: 0,
        part_bytes: bytes,
        body: WireBody::plain(bytes),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    }
}

pub(super) fn target() -> Target {
    Target { epoch: Epoch { term: 1, number: 1 }, part: PartId { key: TensorKey(5), index: 2 }, round: Round(3) }
}

pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ seed).collect()
}

pub(super) fn sum_of(outcome: std::result::Result<Answer, Torn>) -> Sum {
    match outcome {
        Ok(Answer::Response(Response::Sum(header))) => header,
        other => panic!("{other:?} where a sum was due"),
    }
}

fn assert_torn(outcome: std::result::Result<Answer, Torn>, error: &Error) {
    match outcome {
        Err(torn) if torn.error == *error => {}
        other => panic!("{other:?} where {error:?} was due"),
    }
}
