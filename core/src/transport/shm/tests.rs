//! Links in shared memory within one process: the promises of every transport, and what only this one has to keep.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;

use super::layout::{LARGE_BYTES, LARGE_CELLS, Message, READ_AT, SENT_AT, message_at};
use super::link::Parts;
use super::*;
use crate::error::{Error, Result};
use crate::identity::{Authority, Credentials};
use crate::local::{Connection, PrivateSocket, SharedBacking};
use crate::mem::borrow::Staging;
use crate::mem::{Backing, Copies, Pool};
use crate::metrics::{Cell, Value, WorkerMetrics};
use crate::random::Random;
use crate::transport::contract::{self, Due, SOON, Server, Worker, World, connect, connected, pattern, sum_of};
use crate::transport::{Answer, Inbox, Incoming, Listener, Outgoing, Peer, Push, Torn, Transport};
use crate::types::{Address, Done, ExchangeId, LinkId, NodeId, Role, Scheme, ServerId};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Request, reject};

mod looks;

contract::promises!(Machine::new());

#[test]
fn more_exchanges_than_a_link_may_have_wait_for_their_turn() {
    let (server, worker) = connected(&Machine::new());
    let _echo = server.echo();
    let mut memory: Vec<(Vec<u8>, Vec<u8>)> =
        (0..1500u64).map(|seed| (pattern(100, seed as u8), vec![0; 100])).collect();
    let mut sums = Vec::new();
    for (id, (pushed, pulled)) in memory.iter_mut().enumerate() {
        worker.push(ExchangeId(id as u64), pushed);
        sums.push(worker.pull(ExchangeId(id as u64), pulled));
    }
    for sum in sums {
        sum_of(sum.soon());
    }
    assert!(memory.iter().all(|(pushed, pulled)| pushed == pulled));
}

#[test]
fn bytes_of_contributions_and_sums_are_counted() {
    let (server, worker) = connected(&Machine::new());
    let metrics = WorkerMetrics::default();
    worker.transport.measure(worker.link, Arc::new(metrics.link(ServerId(3))));
    let _echo = server.echo();
    for id in 0..2 {
        let (mut pushed, mut pulled) = (pattern(5000, 1), vec![0; 5000]);
        worker.push(ExchangeId(id), &mut pushed);
        sum_of(worker.pull(ExchangeId(id), &mut pulled).soon());
    }
    let both = Value::Family(vec![(vec!["3".to_owned()], 10_000)]);
    assert_eq!([metrics.link_sent_bytes.value(), metrics.link_received_bytes.value()], [both.clone(), both]);
}

#[test]
fn bodies_that_are_pushed_while_others_wait_for_room_come_back_whole() {
    let (server, worker) = connected(&Machine::new());
    let _echo = server.echo();
    // Whoever pushes sends what waits as well, at the same time as the thread of the link.
    for round in 0..30u64 {
        let mut memory: Vec<(Vec<u8>, Vec<u8>)> =
            (0..8u64).map(|seed| (pattern(2 << 20, (round + seed) as u8), vec![0; 2 << 20])).collect();
        let ids = (8 * round..).map(ExchangeId);
        let sums: Vec<_> = ids
            .zip(&mut memory)
            .map(|(id, (pushed, pulled))| {
                worker.push(id, pushed);
                worker.pull(id, pulled)
            })
            .collect();
        for sum in sums {
            sum_of(sum.soon());
        }
        assert!(memory.iter().all(|(pushed, pulled)| pushed == pulled), "round {round}");
    }
}

#[test]
fn whoever_waits_does_the_work_in_turn_with_the_thread_and_no_wake_up_is_lost() {
    let (server, worker) = connected(&Machine::new());
    let _echo = server.echo();
    // More than there is room for, so that both sides sleep again and again.
    for round in 0..100u64 {
        let (mut pushed, mut pulled) = (pattern(5 << 20, round as u8), vec![0; 5 << 20]);
        worker.push(ExchangeId(round), &mut pushed);
        let sum = worker.pull(ExchangeId(round), &mut pulled);
        let there = OnceCell::new();
        let enough = || there.get().is_some() || sum.0.try_recv().is_ok_and(|outcome| there.set(outcome).is_ok());
        worker.transport.poll(&enough, SOON);
        sum_of(there.into_inner().expect("in time"));
        assert_eq!(pushed, pulled, "round {round}");
    }
}

#[test]
fn who_helps_leaves_when_its_patience_ends_and_the_thread_goes_on() {
    let (server, worker) = connected(&Machine::new());
    let (mut pushed, mut pulled) = (pattern(4000, 1), vec![0; 4000]);
    worker.push(ExchangeId(1), &mut pushed);
    let sum = worker.pull(ExchangeId(1), &mut pulled);
    worker.transport.poll(&|| false, Duration::from_millis(1));
    assert!(sum.0.try_recv().is_err(), "nobody has answered");
    let _echo = server.echo();
    sum_of(sum.soon());
    assert_eq!(pushed, pulled);
}

#[test]
fn a_body_that_is_being_copied_when_its_link_ends_is_reported() {
    let world = Machine::new();
    let server = Server::new(&world);
    for _ in 0..30 {
        let worker = server.connect(world.transport());
        let mut body = pattern(3 << 20, 1);
        let mut again = body.clone();
        let (sent, sum) = std::thread::scope(|scope| {
            scope.spawn(|| worker.transport.disconnect(worker.link));
            (worker.push(ExchangeId(1), &mut body), worker.pull(ExchangeId(1), &mut again))
        });
        assert!(sent.soon().is_err() || sum.soon().is_err(), "nobody answers");
        worker.lost.soon();
        while !matches!(server.next(), Incoming::LinkDown { .. }) {}
    }
}

#[test]
fn what_the_server_puts_off_holds_nobody_else_up() {
    let (server, worker) = connected(&Machine::new());
    let mut put_off: Vec<Vec<u8>> = (0..4).map(|seed| pattern(24 << 20, seed)).collect();
    let mut sent = Vec::new();
    for (id, body) in put_off.iter_mut().enumerate() {
        sent.push(worker.push(ExchangeId(id as u64), body));
        server.opened();
    }
    server.still_serves(&worker);
    let mut large = pattern(8 << 20, 9);
    let through = worker.push(ExchangeId(77), &mut large);
    server.land();
    assert_eq!(through.soon(), Ok(()));
    worker.transport.shutdown(SOON);
    assert!(sent.iter().all(|sent| sent.soon() == Err(Error::Cancelled)));
}

#[test]
fn a_server_that_holds_bytes_holds_the_worker_up_until_it_lets_go() {
    let (server, worker) = connected(&Machine::new());
    let mut body = pattern(2 * LARGE_CELLS * LARGE_BYTES, 1);
    let sent = worker.push(ExchangeId(1), &mut body);
    let (exchange, _) = server.opened();
    server.send(Outgoing::Accept { exchange });
    let mut held = Vec::new();
    let take = || match server.next() {
        Incoming::Body { chunks, .. } => chunks,
        other => panic!("{other:?} where a body was due"),
    };
    while held.len() < LARGE_CELLS {
        held.extend(take());
    }
    assert_eq!(held.len(), LARGE_CELLS, "there is no room for more");
    assert!(sent.0.try_recv().is_err());
    let mut got: Vec<u8> = held.drain(..).flat_map(Vec::from).collect();
    while got.len() < body.len() {
        take().into_iter().for_each(|chunk| got.extend_from_slice(&chunk));
    }
    assert_eq!(sent.soon(), Ok(()));
    assert!(got == body);
}

#[test]
fn many_workers_reach_one_server() {
    let world = Machine::new();
    let server = Server::new(&world);
    let workers: Vec<Worker> = (0..40).map(|_| server.connect(world.transport())).collect();
    let _echo = server.echo();
    for round in 0..3u64 {
        for (index, worker) in workers.iter().enumerate() {
            let (mut pushed, mut pulled) = (pattern(10_000, index as u8), vec![0; 10_000]);
            worker.push(ExchangeId(round), &mut pushed);
            sum_of(worker.pull(ExchangeId(round), &mut pulled).soon());
            assert!(pushed == pulled);
        }
    }
}

#[test]
fn a_sum_in_memory_that_is_shown_is_read_where_it_lies() {
    let world = Machine::new();
    let (server, worker) = connected(&world);
    let pool = Pool::on(Arc::clone(&world.backing) as Arc<dyn Backing>);
    // More than there are tickets for.
    for round in 0..600u64 {
        let len = if round == 0 { 5 << 20 } else { 20_000 };
        let (mut pushed, mut pulled) = (pattern(len, round as u8), vec![0; len]);
        worker.push(ExchangeId(round), &mut pushed);
        let sum = worker.pull(ExchangeId(round), &mut pulled);
        let (exchange, body) = server.land();
        server.send(Outgoing::Answer { exchange, header: contract::sum_header(len as u64).into() });
        // Some of it lies elsewhere, and some is too little to be worth it.
        let (first, second) = body.split_at(len / 2);
        for (from, bytes) in [(&pool, first), (&server.pool, &second[..1000]), (&pool, &second[1000..])] {
            let mut block = from.lease(bytes.len());
            block.copy_from_slice(bytes);
            server.send(Outgoing::Block { exchange, block: block.freeze() });
        }
        server.send(Outgoing::End { exchange, checksum: 0 });
        sum_of(sum.soon());
        assert!(pushed == pulled, "round {round}");
        assert!(matches!(server.next(), Incoming::Answered { .. }));
    }
    assert!(pool.bytes_held() < 12 << 20, "what was read was used again: {pool:?}");
    worker.transport.shutdown(SOON);
    while !matches!(server.next(), Incoming::LinkDown { .. }) {}
    (server.listener.stop)(SOON);
    drop(server.listener);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn a_contribution_in_memory_that_is_shown_is_read_where_it_lies_and_its_sum_lands_there() {
    let world = Machine::new();
    let copies = Copies::default();
    let transport = Arc::new(ShmTransport::new(&world.credentials(Role::Worker), &copies).unwrap());
    let server = Server::new(&world);
    let worker = server.connect(transport);
    let pool = staging_pool();
    // More than there are tickets for.
    for round in 0..600u64 {
        let len = if round == 0 { 5 << 20 } else { 20_000 };
        let staging = staged(&pool, &pattern(len, round as u8));
        let sent = push(&worker, ExchangeId(round), &staging);
        let sum = pull(&worker, ExchangeId(round), &staging);
        let mut body = server.land();
        assert!(body.1[..] == pattern(len, round as u8), "round {round}");
        body.1.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
        server.answer(body);
        assert_eq!(sent.soon(), Ok(()));
        sum_of(sum.soon());
        let doubled: Vec<u8> = pattern(len, round as u8).iter().map(|byte| byte.wrapping_mul(2)).collect();
        assert!(looked_at(&staging) == doubled, "round {round}");
        assert!(matches!(server.next(), Incoming::Answered { .. }));
    }
    assert_eq!(copies.bytes(), 0);
    assert!(pool.bytes_held() < 12 << 20, "what was read was used again: {pool:?}");
    // Too little to be worth a ticket.
    let small = staged(&pool, &[7; 1000]);
    push(&worker, ExchangeId(1000), &small);
    assert_eq!((server.land().1[..] == [7; 1000], copies.bytes()), (true, 1000));
}

#[test]
fn what_is_staged_goes_over_any_link_and_is_leased_again_when_nobody_reads_it_any_more() {
    let world = Machine::new();
    let (server, mut worker) = connected(&world);
    let pool = staging_pool();
    let data = pattern(600_000, 3);
    let staging = staged(&pool, &data);
    // Given up by one attempt, torn in the next by the end of the link, while the server, which lives, holds what it was sent.
    let mut held = Vec::new();
    for (attempt, is_lost) in [(1, false), (2, true)] {
        let sent = push(&worker, ExchangeId(attempt), &staging);
        held.push(hold(&server, data.len()));
        assert_eq!(sent.soon(), Ok(()));
        let sum = pull(&worker, ExchangeId(attempt), &staging);
        if is_lost {
            worker.transport.disconnect(worker.link);
            worker.lost.soon();
            while !matches!(server.next(), Incoming::LinkDown { .. }) {}
            worker = server.connect(Arc::clone(&worker.transport));
        } else {
            worker.transport.abandon(worker.link, ExchangeId(attempt));
            assert!(matches!(server.next(), Incoming::Torn { .. }));
        }
        assert!(sum.soon().is_err());
    }
    let sent = push(&worker, ExchangeId(3), &staging);
    let sum = pull(&worker, ExchangeId(3), &staging);
    server.answer(server.land());
    assert_eq!(sent.soon(), Ok(()));
    sum_of(sum.soon());
    assert!(matches!(server.next(), Incoming::Answered { .. }));
    assert!(looked_at(&staging) == data);
    drop(staging);
    while let Some(chunks) = held.pop() {
        // The worker has looked at all its links at least once when the second is answered.
        (0..2).for_each(|_| server.still_serves(&worker));
        assert_eq!(pool.bytes_in_use(), pool.bytes_held(), "the server reads it");
        assert!(chunks.iter().flat_map(|chunk| chunk.iter()).eq(&data));
    }
    (0..2).for_each(|_| server.still_serves(&worker));
    assert_eq!(pool.bytes_in_use(), 0, "nobody reads it");
    let heap = staged(&Pool::new(), &data);
    push(&worker, ExchangeId(4), &heap);
    assert!(server.land().1[..] == data, "memory that cannot be shown is copied");
}

#[test]
fn a_sum_that_has_arrived_is_what_it_was_though_the_server_closed_the_link() {
    let world = Machine::new();
    let (server, transport) = (Server::new(&world), world.transport());
    let (connected, lost) = connect(&*transport, server.peer.clone());
    let worker = Worker { link: connected.soon().unwrap(), transport, lost };
    let Incoming::LinkUp { link, .. } = server.next() else { panic!("a link was to come up") };
    let pool = Pool::on(Arc::clone(&world.backing) as Arc<dyn Backing>);
    let (mut pushed, mut pulled) = (pattern(300_000, 5), vec![0; 300_000]);
    worker.push(ExchangeId(1), &mut pushed);
    let (exchange, body) = server.land();
    let mut sum = pool.lease(body.len());
    sum.copy_from_slice(&body);
    server.answer((exchange, sum));
    assert!(matches!(server.next(), Incoming::Answered { .. }));
    // Not as if the worker itself had cancelled the exchange.
    let reason = Error::Unavailable { what: "the server".to_owned(), cause: "it leaves".to_owned() };
    server.send(Outgoing::Disconnect { link, reason });
    assert!(matches!(server.next(), Incoming::LinkDown { .. }));
    worker.lost.soon();
    let mut others = pool.lease(300_000);
    others.fill(0xff);
    sum_of(worker.pull(ExchangeId(1), &mut pulled).soon());
    assert!(pulled == pushed, "memory of a sum that somebody reads was leased again");
}

#[test]
fn copies_into_the_segment_are_counted() {
    let world = Machine::new();
    let copies = Copies::default();
    let transport = Arc::new(ShmTransport::new(&world.credentials(Role::Worker), &copies).unwrap());
    let server = Server::new(&world);
    let worker = server.connect(transport);
    let _echo = server.echo();
    let (mut pushed, mut pulled) = (pattern(300_000, 1), vec![0; 300_000]);
    worker.push(ExchangeId(1), &mut pushed);
    sum_of(worker.pull(ExchangeId(1), &mut pulled).soon());
    assert_eq!(copies.bytes(), 300_000, "once on the way out; a sum is not copied but landed");
}

#[test]
fn a_worker_of_another_job_is_refused() {
    let (here, there) = (Machine::new(), Machine::new());
    let server = Server::new(&here);
    let error = connect(&*there.transport(), server.peer.clone()).0.soon().unwrap_err();
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("another job")), "{error}");
}

#[test]
fn a_worker_is_known_by_the_identity_of_its_certificate() {
    let world = Machine::new();
    let credentials = world.credentials(Role::Worker);
    let server = Server::new(&world);
    let transport = ShmTransport::new(&credentials, &Copies::default()).unwrap();
    connect(&transport, server.peer.clone()).0.soon().unwrap();
    assert!(matches!(server.next(), Incoming::LinkUp { node, .. } if node == credentials.node()));
}

#[test]
fn a_silent_process_at_the_socket_delays_no_one() {
    let world = Machine::new();
    let (server, worker) = connected(&world);
    let silent: Vec<Connection> =
        (0..8).map(|_| Connection::connect(Path::new(server.peer.at(Scheme::Shm).unwrap()), SOON).unwrap()).collect();
    let rude = Connection::connect(Path::new(server.peer.at(Scheme::Shm).unwrap()), SOON).unwrap();
    rude.send(b"GET / HTTP/1.1", &[], SOON).unwrap();
    server.still_serves(&worker);
    drop(silent);
}

#[test]
fn a_worker_that_breaks_the_protocol_costs_only_its_own_link() {
    let world = Machine::new();
    let (server, worker) = connected(&world);
    let open = |exchange, bytes| Message::Open { exchange, header: head(&contract::header(bytes)) };
    let data = |exchange, cell, bytes| Message::Data { exchange, cell, bytes };
    let sum = Message::Answer { exchange: 1, header: head(&contract::header(4)) };
    let messages: &[(&str, &[Message])] = &[
        ("an exchange that does not exist", &[data(1, 0, 4)]),
        ("an exchange out of turn", &[open(2, 4)]),
        ("an exchange twice", &[open(1, 4), open(1, 4)]),
        ("no header", &[Message::Open { exchange: 1, header: [0xaa; 64] }]),
        ("more than announced", &[open(1, 4), data(1, 0, 5)]),
        ("a cell in use", &[open(1, 8), data(1, 0, 4), data(1, 0, 4)]),
        ("what only servers say", &[open(1, 4), sum]),
        ("exchange 0", &[Message::Abandon { exchange: 0 }]),
    ];
    for (what, messages) in messages {
        let vandal = world.vandal(&server);
        for (number, message) in messages.iter().enumerate() {
            vandal.memory.write(number as u64, &message.encode());
        }
        vandal.memory.wake_reader();
        vandal.is_told_off(&server, what);
    }
    type Scribble = fn(&Vandal);
    let scribbles: &[(&str, Scribble)] = &[
        ("messages from nowhere", |vandal| vandal.memory.scribble(SENT_AT, 5000)),
        ("messages taken back", |vandal| vandal.memory.scribble(SENT_AT, u64::MAX)),
        ("a message of no kind", |vandal| {
            vandal.memory.scribble(message_at(0), 99);
            vandal.memory.scribble(SENT_AT, 1);
        }),
        ("a cell beyond the end", |vandal| {
            vandal.memory.write(0, &Message::Open { exchange: 1, header: head(&contract::header(4)) }.encode());
            vandal.memory.write(1, &Message::Data { exchange: 1, cell: 0, bytes: 4 }.encode());
            vandal.memory.scribble(message_at(1) + 16, u64::from(u32::MAX));
        }),
    ];
    for (what, scribble) in scribbles {
        let vandal = world.vandal(&server);
        scribble(&vandal);
        vandal.memory.wake_reader();
        vandal.is_told_off(&server, what);
    }
    server.still_serves(&worker);
}

#[test]
fn a_worker_that_claims_to_have_read_what_was_never_sent_loses_its_link() {
    let world = Machine::new();
    let (server, worker) = connected(&world);
    let vandal = world.vandal(&server);
    vandal.memory.scribble(READ_AT, 1 << 40);
    // Looked at only when the ring is full.
    let reason = (0..).find_map(|number| {
        let open = Message::Open { exchange: number + 1, header: head(&contract::header(0)) };
        vandal.memory.write(number, &open.encode());
        vandal.memory.wake_reader();
        loop {
            match server.next() {
                Incoming::Opened { exchange, .. } => {
                    contract::answer(exchange, server.pool.lease(0)).into_iter().for_each(|out| server.send(out));
                }
                Incoming::Answered { .. } => return None,
                Incoming::Torn { .. } => {}
                Incoming::LinkDown { reason, .. } => return Some(reason),
                other => panic!("{other:?}"),
            }
        }
    });
    let reason = reason.expect("the ring has an end");
    assert!(matches!(&reason, Error::Protocol { field, .. } if field == "ring"), "{reason}");
    server.still_serves(&worker);
}

#[test]
fn whatever_a_worker_scribbles_the_others_are_served() {
    let world = Machine::new();
    let (server, worker) = connected(&world);
    for seed in 0..60u64 {
        let vandal = world.vandal(&server);
        let mut random = Random::new(seed);
        let mut sent = 0;
        for _ in 0..100 {
            match random.below(4) {
                // A message that is nearly right.
                0 => {
                    let exchange = 1 + random.below(3);
                    let header = head(&contract::header(random.below(9000)));
                    let bytes = 1 + random.below(4096) as u32;
                    let message = match random.below(5) {
                        0 | 1 => Message::Open { exchange, header },
                        2 => Message::Data { exchange, cell: random.below(40) as u16, bytes },
                        3 => Message::Accept { exchange },
                        _ => Message::Abandon { exchange },
                    };
                    vandal.memory.write(sent, &message.encode());
                    sent += 1;
                }
                // Any word of the ring, or one that counts.
                1 => vandal.memory.scribble(message_at(sent) + 8 * random.below(16) as usize, random.bits()),
                2 => vandal.memory.scribble(8 * random.below(512) as usize, random.below(300)),
                _ => vandal.memory.wake_reader(),
            }
        }
        drop(vandal);
        loop {
            match server.next() {
                Incoming::LinkDown { .. } => break,
                Incoming::Opened { exchange, .. } => match random.below(3) {
                    0 => server.send(Outgoing::Accept { exchange }),
                    1 => {
                        contract::answer(exchange, server.pool.lease(100)).into_iter().for_each(|out| server.send(out))
                    }
                    _ => {}
                },
                Incoming::Body { .. } | Incoming::Torn { .. } | Incoming::Answered { .. } => {}
                other @ (Incoming::LinkUp { .. } | Incoming::ProcessEnded { .. }) => panic!("{other:?}"),
            }
        }
    }
    server.still_serves(&worker);
}

#[test]
fn a_server_that_breaks_the_protocol_is_left_with_a_typed_error() {
    let world = Machine::new();
    let answer = |bytes| Message::Answer { exchange: 1, header: head(&contract::header(bytes)) };
    let sum = |bytes| {
        let header = contract::sum_header(bytes).encode().try_into().expect("all workers due");
        Message::Answer { exchange: 1, header }
    };
    let data = |cell, bytes| Message::Data { exchange: 1, cell, bytes };
    let end = Message::End { exchange: 1, checksum: 0 };
    let cases: &[(&str, &[Message])] = &[
        ("a push as an answer", &[answer(100)]),
        ("two answers", &[sum(100), sum(100)]),
        ("bytes before the answer", &[data(0, 100)]),
        ("more than announced", &[sum(100), data(0, 101)]),
        ("an early end", &[sum(100), data(0, 99), end.clone()]),
        ("an end before the beginning", &[end]),
        ("what only workers say", &[Message::Abandon { exchange: 1 }]),
        ("an exchange that does not exist", &[Message::Accept { exchange: 2 }]),
    ];
    for (what, messages) in cases {
        let credentials = world.credentials(Role::Server);
        let socket = PrivateSocket::listen(world.directory.path()).unwrap();
        let addresses = vec![Address::new(Scheme::Shm, socket.path().display().to_string())];
        let peer = Peer { addresses, node: credentials.node(), name: "server 0".to_owned() };
        let transport = world.transport();
        let (linked, lost) = connect(&*transport, peer);
        let (parts, _) = welcome(&socket, &credentials).unwrap();
        let worker = Worker { transport, link: linked.soon().unwrap(), lost };
        let mut memory = pattern(100, 1);
        let sent = worker.push(ExchangeId(1), &mut memory);
        let sum = worker.pull(ExchangeId(1), &mut memory);
        assert_eq!(sent.soon(), Ok(()), "{what}");
        for (number, message) in messages.iter().enumerate() {
            parts.memory.write(number as u64, &message.encode());
        }
        parts.memory.wake_reader();
        let (_, reason) = worker.lost.soon();
        assert!(matches!(reason, Error::Protocol { .. }), "{what}: {reason}");
        assert!(sum.soon().is_err(), "{what}");
        assert!(worker.transport.capabilities(LinkId(1)).zero_copy);
    }
}

/// A side to which a link is added while its thread works, after it looked which links there are.
struct Joined {
    poller: poller::Poller,
    links: Mutex<Vec<Arc<link::Link>>>,
    late: Arc<link::Link>,
    turns: AtomicU32,
    added: mpsc::Sender<()>,
    heard: mpsc::Sender<u64>,
    over: AtomicBool,
}

impl poller::Side for Joined {
    fn poller(&self) -> &poller::Poller {
        &self.poller
    }

    fn links(&self) -> Vec<Arc<link::Link>> {
        self.links.lock().unwrap().clone()
    }

    fn turn(&self, links: &[Arc<link::Link>]) -> bool {
        // The first time that nothing came is followed by a short sleep, and the second time by a long one.
        if self.turns.fetch_add(1, Ordering::Relaxed) == 1 {
            self.poller.events.watch(&self.late).unwrap();
            self.links.lock().unwrap().push(Arc::clone(&self.late));
            self.poller.wake();
            self.added.send(()).unwrap();
        }
        let heard = |received: inbound::Received| self.heard.send(received.exchange()).unwrap();
        links.iter().filter(|link| link.drain(heard)).count() > 0
    }

    fn has_work(&self) -> bool {
        false
    }

    fn has_leisurely_work(&self) -> bool {
        false
    }

    fn happened(&self, _: events::Happening) {}

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

#[test]
fn a_link_that_is_made_while_the_thread_works_wakes_it() {
    let world = Machine::new();
    let socket = PrivateSocket::listen(world.directory.path()).unwrap();
    let (worker, server) = (world.credentials(Role::Worker), world.credentials(Role::Server));
    let (parts, peer) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| welcome(&socket, &server).unwrap().0);
        let parts = greeting::connect(&socket.path(), "server 0", &worker, &Copies::default(), |_| Ok(())).unwrap();
        (parts, peer.join().unwrap())
    });
    let ((added, is_added), (heard, hears)) = (mpsc::channel(), mpsc::channel());
    let late = Arc::new(link::Link::new(LinkId(1), "server 0".into(), parts));
    let (poller, links, turns) = (poller::Poller::new().unwrap(), Mutex::default(), AtomicU32::new(0));
    let side = Joined { poller, links, late, turns, added, heard, over: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        scope.spawn(|| poller::run(&side));
        is_added.recv_timeout(SOON).unwrap();
        peer.memory.write(0, &Message::Accept { exchange: 7 }.encode());
        peer.memory.wake_reader();
        let heard = hears.recv_timeout(SOON);
        side.over.store(true, Ordering::Relaxed);
        side.poller.wake();
        // Without this a thread that hears nothing would sleep for ever.
        peer.connection.close();
        assert_eq!(heard, Ok(7));
    });
}

fn welcome(socket: &PrivateSocket, credentials: &Credentials) -> Result<(Parts, crate::identity::PeerIdentity)> {
    loop {
        if let Some(connection) = socket.accept(SOON)? {
            return greeting::welcome(connection, credentials, &Copies::default(), |_| "worker".to_owned());
        }
    }
}

/// A worker that does with its segment what it likes.
struct Vandal {
    memory: memory::Memory,
    connection: Connection,
    link: LinkId,
}

impl Vandal {
    /// The server ends the link, for a reason that both sides hear.
    fn is_told_off(&self, server: &Server, what: &str) {
        let reason = loop {
            match server.next() {
                Incoming::LinkDown { link, reason } if link == self.link => break reason,
                Incoming::Opened { .. } | Incoming::Torn { .. } | Incoming::Body { .. } => {}
                other => panic!("{what}: {other:?}"),
            }
        };
        assert!(matches!(reason, Error::Protocol { .. }), "{what}: {reason}");
        let mut told = [0; 4096];
        let bytes = self.connection.recv(&mut told, SOON).unwrap().expect("a reason").bytes;
        assert_eq!(reject::from_body(&told[1..bytes], "the server").unwrap(), reason, "{what}");
    }
}

/// Memory that can be shown.
fn staging_pool() -> Pool {
    Pool::on(Arc::new(SharedBacking::new()))
}

/// A header of a request of all workers.
fn head(header: &Request) -> [u8; HEADER_BYTES] {
    header.encode().try_into().expect("nothing follows it")
}

fn staged(pool: &Pool, data: &[u8]) -> Staging {
    let mut lease = pool.lease(data.len());
    lease.copy_from_slice(data);
    Staging::new(lease)
}

#[expect(unsafe_code, reason = "staging memory is lent by address")]
fn looked_at(staging: &Staging) -> Vec<u8> {
    let region = staging.region();
    // SAFETY: no exchange is under way.
    unsafe { region.as_slice() }.to_vec()
}

fn push(worker: &Worker, id: ExchangeId, staging: &Staging) -> Due<Result<()>> {
    let (sender, due) = std::sync::mpsc::channel();
    let body = vec![staging.region()];
    let push = Push { header: contract::header(body[0].len() as u64), body, pull: None, look: None };
    worker.transport.push(worker.link, id, push, Done::new(move |outcome| drop(sender.send(outcome))));
    Due(due)
}

fn pull(worker: &Worker, id: ExchangeId, staging: &Staging) -> Due<std::result::Result<Answer, Torn>> {
    let (sender, due) = std::sync::mpsc::channel();
    worker.transport.pull(
        worker.link,
        id,
        vec![staging.region()],
        Done::new(move |outcome| drop(sender.send(outcome))),
    );
    Due(due)
}

/// The body of the next exchange, where it lies.
fn hold(server: &Server, len: usize) -> Vec<Bytes> {
    let (exchange, _) = server.opened();
    server.send(Outgoing::Accept { exchange });
    let mut held: Vec<Bytes> = Vec::new();
    while held.iter().map(Bytes::len).sum::<usize>() < len {
        match server.next() {
            Incoming::Body { chunks, .. } => held.extend(chunks),
            other => panic!("{other:?} where a body was due"),
        }
    }
    held
}

/// A job on this machine.
struct Machine {
    authority: Authority,
    directory: tempfile::TempDir,
    backing: Arc<SharedBacking>,
}

impl Machine {
    fn new() -> Self {
        let (directory, backing) = (tempfile::tempdir().unwrap(), Arc::default());
        Self { authority: Authority::create("test").unwrap(), directory, backing }
    }

    fn credentials(&self, role: Role) -> Credentials {
        self.authority.credentials(role).unwrap()
    }

    fn vandal(&self, server: &Server) -> Vandal {
        let path = Path::new(server.peer.at(Scheme::Shm).unwrap());
        let credentials = self.credentials(Role::Worker);
        let parts = greeting::connect(path, "the victim", &credentials, &Copies::default(), |_| Ok(())).unwrap();
        let link = loop {
            match server.next() {
                Incoming::LinkUp { link, .. } => break link,
                Incoming::LinkDown { .. } => {}
                other => panic!("{other:?} where a link was to come up"),
            }
        };
        Vandal { memory: parts.memory, connection: parts.connection, link }
    }
}

impl World for Machine {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.credentials(Role::Server);
        let listener =
            listener::bind(self.directory.path(), &credentials, &self.backing, &Copies::default(), inbox).unwrap();
        (listener, credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(ShmTransport::new(&self.credentials(Role::Worker), &Copies::default()).unwrap())
    }
}
