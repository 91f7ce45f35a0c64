//! What a node does beside summing: admission, withdrawals in pieces, routes, links, its life.

use std::time::Duration;

use gradlane_core::error::Code;
use gradlane_core::types::{Access, Epoch, Incarnation};
use gradlane_core::wire::{Contribute, Service, Target, Use, limits, reject};

use super::*;
use crate::node::aggregate::tests::{config, header, node, slot, view, withdraw};
use crate::node::command::{Receipt, Step, Work};
use crate::node::parameter::tests::{part as parameter, to_do};

#[test]
fn a_withdrawal_is_admitted_before_anything_is_stored_of_it() {
    let long = Withdraw { error_bytes: limits::REJECT_BYTES_MAX, ..withdraw(0) };
    let stale = Target { epoch: Epoch { term: 0, number: 9 }, ..long.target };
    for (rank, header, code) in
        [(5, long.clone(), Code::Unauthenticated), (1, Withdraw { target: stale, ..long.clone() }, Code::Fenced)]
    {
        let mut node = joined(2);
        open(&mut node, rank, 1, Request::Withdraw(header));
        assert_eq!(rejected(&mut node), [(1, code)], "and not accepted");
        assert_eq!(node.progress().bytes_in_flight, 0);
    }
    let mut stranger = Node::new(config());
    open(&mut stranger, 0, 1, Request::Withdraw(long));
    assert_eq!(rejected(&mut stranger), [(1, Code::Unavailable)], "before the first view");
}

#[test]
fn withdrawals_beyond_the_reserve_of_their_process_share_the_budget_with_the_sums() {
    let mut node = with(2, NodeConfig { memory_bytes_max: 120, ..config() });
    let accepted = |exchange| [Command::Accept { exchange: ExchangeId(exchange) }];
    let long = Withdraw { error_bytes: limits::REJECT_BYTES_MAX, ..withdraw(0) };
    for (exchange, header, booked) in [(1, long.clone(), 0), (2, withdraw(0), 99)] {
        open(&mut node, 1, exchange, Request::Withdraw(header));
        assert_eq!(commands(&mut node), accepted(exchange));
        assert_eq!(node.progress().bytes_in_flight, booked);
    }
    open(&mut node, 1, 3, Request::Withdraw(withdraw(0)));
    assert_eq!(rejected(&mut node), [(3, Code::ResourceExhausted)]);
    open(&mut node, 0, 4, contribute(header(0)));
    assert_eq!((rejected(&mut node), node.progress().bytes_in_flight), (vec![], 99 + 16));
    open(&mut node, 0, 5, Request::Withdraw(long));
    assert_eq!(commands(&mut node), accepted(5), "the reserve of another process");
    node.handle_torn(ExchangeId(2));
    assert_eq!(node.progress().bytes_in_flight, 16);
    node.handle_torn(ExchangeId(1));
    open(&mut node, 1, 6, Request::Withdraw(withdraw(0)));
    assert_eq!((commands(&mut node).as_slice(), node.progress().bytes_in_flight), (accepted(6).as_slice(), 16));
}

#[test]
fn a_withdrawal_whose_sender_leaves_the_membership_is_refused_and_its_memory_freed() {
    for (change, code) in [
        ((|view: &mut View| view.members[1].process.incarnation = Incarnation(9)) as fn(&mut View), Code::Fenced),
        (|view: &mut View| view.phase = Phase::Ended, Code::FailedPrecondition),
        (|view: &mut View| view.members.truncate(1), Code::Fenced),
    ] {
        let mut node = joined(2);
        open(&mut node, 1, 1, Request::Withdraw(withdraw(0)));
        commands(&mut node);
        let mut next = view(2, 2, Phase::Running);
        change(&mut next);
        node.handle_member(MemberEvent::View(next));
        assert_eq!((rejected(&mut node), node.progress().bytes_in_flight), (vec![(1, code)], 0));
        node.handle_body(Time::ZERO, ExchangeId(1), &[Bytes::from_static(&[7; 99])]);
        assert_eq!(commands(&mut node), [], "what else it brings is ignored");
    }
}

#[test]
fn a_withdrawal_that_is_no_error_is_refused() {
    let mut node = joined(2);
    open(&mut node, 1, 1, Request::Withdraw(withdraw(0)));
    commands(&mut node);
    node.handle_body(Time::ZERO, ExchangeId(1), &[Bytes::from_static(&[0xff; 99])]);
    assert_eq!(rejected(&mut node), [(1, Code::Aborted)]);
}

#[test]
fn a_server_that_is_expected_again_tells_workers_which_one_was_lost() {
    let [member, host, lost] = ["server 1", "n1", "kill"].map(str::to_owned);
    let cause = Error::StateLost { member, host, cause: lost };
    let mut node = joined(2);
    node.handle_member(MemberEvent::View(view(2, 2, Phase::Restores(cause.clone()))));
    node.handle_member(MemberEvent::Failed(cause.clone()));
    assert!(node.forms_again());
    open(&mut node, 1, 1, contribute(header(0)));
    let [Command::Reject { error, .. }] = &commands(&mut node)[..] else { panic!("it is refused") };
    assert_eq!(*error, cause);
    let mut other = joined(2);
    other.handle_member(MemberEvent::Failed(Error::Cancelled));
    assert!(!other.forms_again(), "its job is over");
}

#[test]
fn a_route_is_there_from_the_step_that_receives_until_nothing_more_is_needed() {
    type End = (&'static str, fn(&mut Node));
    let ended: [End; 4] = [
        ("whole", |node| node.handle_receipt(Time::ZERO, route(), ExchangeId(1), Receipt::Whole.into())),
        ("torn", |node| node.handle_torn(ExchangeId(1))),
        ("answered", |node| node.handle_answered(ExchangeId(1))),
        ("job ended", |node| node.handle_member(MemberEvent::Left)),
    ];
    for (name, end) in ended {
        let mut node = joined(2);
        open(&mut node, 0, 1, contribute(header(0)));
        let receives =
            |command: &Command| matches!(command, Command::Step(Work::Sum { step: Step::Receive { .. }, .. }));
        assert!(commands(&mut node).iter().any(receives));
        end(&mut node);
        let unroutes = commands(&mut node).iter().filter(|command| matches!(command, Command::Unroute { .. })).count();
        assert_eq!(unroutes, 1, "{name}");
        node.handle_torn(ExchangeId(1));
        assert!(!commands(&mut node).contains(&Command::Unroute { exchange: ExchangeId(1) }), "once: {name}");
    }
}

#[test]
fn a_service_that_this_version_lacks_is_refused() {
    let mut node = joined(1);
    let service = Service::Unknown(9);
    open(&mut node, 0, 1, Request::Unknown(About { service, ..header(0).target.about() }));
    assert_eq!(rejected(&mut node), [(1, service.refusal("").code())]);
    assert!(disconnected(&mut node).is_empty());
}

#[test]
fn a_process_has_one_link_and_the_newest_counts() {
    let mut this = joined(1);
    (0..3).for_each(|link| this.handle_link_up(LinkId(link), node(0)));
    assert_eq!(disconnected(&mut this), [0, 1]);
    this.handle_opened(Time::ZERO, LinkId(0), ExchangeId(1), &contribute(header(0)));
    assert_eq!(rejected(&mut this), [(1, Code::Unavailable)]);
    this.handle_opened(Time::ZERO, LinkId(2), ExchangeId(2), &contribute(header(0)));
    assert_eq!(rejected(&mut this), []);
}

#[test]
fn processes_that_are_not_in_the_job_have_few_links_and_take_none_of_a_worker() {
    let mut this = joined(1);
    this.handle_link_up(LinkId(0), node(0));
    (1..=STRANGERS_MAX as u32 + 2).for_each(|link| this.handle_link_up(LinkId(link.into()), node(100 + link)));
    assert_eq!(disconnected(&mut this), [1, 2]);
    assert_eq!(this.links.len(), 1 + STRANGERS_MAX);
}

#[test]
fn a_server_that_was_shut_out_tells_workers_that_it_is_gone() {
    let mut node = joined(2);
    open(&mut node, 0, 1, contribute(header(0)));
    let fenced = Error::Fenced { current: Epoch { term: 1, number: 7 } };
    node.handle_member(MemberEvent::Failed(fenced.clone()));
    assert_eq!(rejected(&mut node), [(1, Code::Unavailable)]);
    assert_eq!(node.state(), &ServerState::Failed(fenced));
}

#[test]
fn a_server_that_leaves_a_job_that_goes_on_has_the_work_of_workers_tried_again() {
    let mut node = joined(2);
    open(&mut node, 0, 1, contribute(header(0)));
    node.handle_member(MemberEvent::Left);
    assert_eq!(rejected(&mut node), [(1, Code::Unavailable)], "what waits");
    open(&mut node, 1, 2, contribute(header(0)));
    open(&mut node, 1, 3, Request::Withdraw(withdraw(0)));
    assert_eq!(rejected(&mut node), [(2, Code::Unavailable), (3, Code::Unavailable)], "what comes later");
    assert_eq!(node.state(), &ServerState::Stopped);
}

#[test]
fn a_server_that_leaves_with_the_end_of_the_job_says_that_it_has_ended() {
    let mut node = joined(2);
    node.handle_member(MemberEvent::View(view(2, 2, Phase::Ended)));
    node.handle_member(MemberEvent::Left);
    open(&mut node, 0, 1, contribute(header(0)));
    assert_eq!(rejected(&mut node), [(1, Code::FailedPrecondition)]);
}

#[test]
fn its_life_follows_the_membership() {
    let mut node = Node::new(config());
    assert_eq!(node.state(), &ServerState::Joining);
    node.handle_member(MemberEvent::Joined { index: 3, view: view(1, 1, Phase::Running) });
    assert_eq!(node.state(), &ServerState::Running);
    node.handle_drain();
    assert_eq!(node.state(), &ServerState::Draining);
    open(&mut node, 0, 1, contribute(header(0)));
    let [Command::Reject { error, .. }] = &commands(&mut node)[..] else { panic!("begun while it drains") };
    assert!(error.to_string().contains("server 3 is draining"), "{error}");
    node.handle_member(MemberEvent::Left);
    assert_eq!(node.state(), &ServerState::Stopped);
}

#[test]
fn a_withdrawal_in_pieces_fails_the_round() {
    let mut node = joined(2);
    open(&mut node, 0, 1, contribute(header(0)));
    let body = Bytes::from(reject::to_body(&Error::Internal { what: "a long story".to_owned() }));
    open(&mut node, 1, 2, Request::Withdraw(Withdraw { error_bytes: body.len() as u64, ..withdraw(0) }));
    let (first, rest) = (body.slice(..1), body.slice(1..));
    node.handle_body(Time::ZERO, ExchangeId(2), &[first]);
    assert_eq!(rejected(&mut node), []);
    node.handle_body(Time::ZERO + Duration::from_secs(1), ExchangeId(2), &[rest]);
    let both = [(1, Code::DeadlineExceeded), (2, Code::DeadlineExceeded)];
    assert_eq!(rejected(&mut node), both, "who waits, and who withdrew");
}

#[test]
fn what_all_workers_may_have_sent_unread_fits_into_the_memory_for_it() {
    let unread_bytes_max = 4 << 20;
    let mut this = Node::new(NodeConfig { unread_bytes_max, ..config() });
    this.handle_link_up(LinkId(1), node(0));
    this.handle_link_up(LinkId(2), node(9));
    assert_eq!(granted(&mut this), [], "nobody is known to be a worker");
    this.handle_member(MemberEvent::View(view(4, 1, Phase::Running)));
    assert_eq!(granted(&mut this), [(1, 1 << 20)], "a quarter, and nothing for a stranger");
    this.handle_link_up(LinkId(3), node(0));
    this.handle_link_up(LinkId(4), node(3));
    assert_eq!(granted(&mut this), [(3, 1 << 20), (4, 1 << 20)]);
    this.handle_member(MemberEvent::View(view(2, 2, Phase::Running)));
    assert_eq!(granted(&mut this), [], "those that were lost may still have sent something");
}

#[test]
fn no_share_is_so_small_that_a_link_stands_still_or_larger_than_is_of_use() {
    for (unread_bytes_max, share) in [(0, 64 << 10), (u64::MAX, 256 << 20)] {
        let mut this = with(1, NodeConfig { unread_bytes_max, ..config() });
        this.handle_link_up(LinkId(1), node(0));
        assert_eq!(granted(&mut this), [(1, share)]);
    }
}

#[test]
fn a_part_is_of_one_kind_and_who_takes_it_for_another_is_refused_alone() {
    let mut node = joined(3);
    let sum = Use { part_bytes: 16, ..to_do(Access::Pull, 0) };
    let sum = Use { target: Target { part: slot(0).part, ..sum.target }, ..sum };
    open(&mut node, 0, 1, contribute(header(0)));
    commands(&mut node);
    open(&mut node, 1, 2, Request::Use(sum));
    let [Command::Reject { error, about, .. }] = &commands(&mut node)[..] else { panic!("a sum was read") };
    assert!(matches!(error, Error::Protocol { field, .. } if field == "kind"), "{error}");
    assert_eq!(about.service, Service::Parameter);
    open(&mut node, 0, 3, Request::Use(to_do(Access::Init, 0)));
    assert_eq!(commands(&mut node).len(), 1, "its body is received");
    let of_parameter = Target { part: parameter(), ..header(0).target };
    let withdrawal = Withdraw { target: of_parameter, ..withdraw(0) };
    for (exchange, request) in
        [(4, contribute(Contribute { target: of_parameter, ..header(0) })), (5, Request::Withdraw(withdrawal))]
    {
        open(&mut node, 1, exchange, request);
        assert_eq!(rejected(&mut node), [(exchange, Code::Aborted)]);
    }
    assert_eq!(node.progress().pending, 2, "those that were there go on");
}

#[test]
fn uses_are_admitted_like_contributions() {
    let stale = Target { epoch: Epoch { term: 0, number: 9 }, ..to_do(Access::Init, 0).target };
    for (rank, header, code) in [
        (5, to_do(Access::Init, 0), Code::Unauthenticated),
        (1, Use { target: stale, ..to_do(Access::Init, 0) }, Code::Fenced),
        (1, to_do(Access::Pull, 0), Code::FailedPrecondition),
    ] {
        let mut node = joined(2);
        open(&mut node, rank, 1, Request::Use(header));
        assert_eq!(rejected(&mut node), [(1, code)]);
        assert_eq!((node.progress().bytes_in_flight, node.progress().pending), (0, 0));
    }
}

#[test]
fn it_is_drained_when_no_service_has_anything_open() {
    let mut node = joined(1);
    open(&mut node, 0, 1, Request::Use(to_do(Access::Init, 0)));
    node.handle_drain();
    assert!(!node.is_drained());
    node.handle_receipt(Time::ZERO, Route::Parameter { part: parameter() }, ExchangeId(1), Receipt::Whole.into());
    assert!(!node.is_drained(), "its answer is under way");
    node.handle_answered(ExchangeId(1));
    assert!(node.is_drained());
}

#[test]
fn a_service_is_named_in_the_dispatch_alone() {
    let names = ["dense", "sum", "aggregat", "accumulat", "parameter", "value", "contribut", "use(", "service::"];
    let code = include_str!("../machine.rs").lines().map(|line| line.split("//").next().unwrap_or_default());
    let named = |line: &&str| names.iter().any(|name| line.to_lowercase().contains(name));
    assert_eq!(code.filter(named).collect::<Vec<_>>(), [""; 0], "only `services` names a service");
}

fn route() -> Route {
    Route::Sum { slot: slot(0), worker: WorkerId(0) }
}

fn joined(workers: u32) -> Node {
    with(workers, config())
}

fn with(workers: u32, config: NodeConfig) -> Node {
    let mut node = Node::new(config);
    node.handle_member(MemberEvent::View(view(workers, 1, Phase::Running)));
    node
}

fn open(this: &mut Node, rank: u32, exchange: u64, header: Request) {
    this.handle_link_up(LinkId(rank.into()), node(rank));
    this.handle_opened(Time::ZERO, LinkId(rank.into()), ExchangeId(exchange), &header);
}

fn contribute(header: Contribute) -> Request {
    Request::Contribute(header)
}

/// The commands, but for what is granted.
fn commands(node: &mut Node) -> Vec<Command> {
    let commands = std::iter::from_fn(|| node.next_command());
    commands.filter(|command| !matches!(command, Command::Grant { .. })).collect()
}

fn granted(node: &mut Node) -> Vec<(u64, u64)> {
    let commands = std::iter::from_fn(|| node.next_command());
    let grants = commands.filter_map(|command| match command {
        Command::Grant { link, unread_bytes_max } => Some((link.0, unread_bytes_max)),
        _ => None,
    });
    grants.collect()
}

fn rejected(node: &mut Node) -> Vec<(u64, Code)> {
    let reject = |command: Command| match command {
        Command::Reject { exchange, error, .. } => Some((exchange.0, error.code())),
        Command::Step(_)
        | Command::Short { .. }
        | Command::Measured { .. }
        | Command::Timed { .. }
        | Command::Stalled { .. }
        | Command::Archive(_)
        | Command::Obeyed { .. }
        | Command::Accept { .. }
        | Command::Unroute { .. }
        | Command::Grant { .. }
        | Command::Disconnect { .. } => None,
    };
    let mut rejected: Vec<(u64, Code)> = commands(node).into_iter().filter_map(reject).collect();
    rejected.sort_by_key(|(exchange, _)| *exchange);
    rejected
}

fn disconnected(this: &mut Node) -> Vec<u64> {
    let commands = std::iter::from_fn(|| this.next_command());
    let links = commands.filter_map(|command| match command {
        Command::Disconnect { link, .. } => Some(link.0),
        _ => None,
    });
    links.collect()
}
