//! Every queue between a peer and a machine, its bound, and what happens when it is full.
//!
//! A queue is a channel or a `VecDeque`. The test finds them in the sources of transports, drivers and servers, and demands a row here. So who
//! adds a queue has to say what bounds it. Where the bound is a limit of the queue itself, the row names the test that fills it.

use super::source::{Source, read};

/// A row of the table.
struct Queue {
    /// Where it is.
    file: &'static str,
    /// Part of the line that makes or declares it.
    line: &'static str,
    /// What it holds at most, and what happens then.
    bound: &'static str,
}

const QUEUES: [Queue; 67] = [
    // Of the control links.
    queue(
        "core/src/transport/quic/control/frames.rs",
        "let (sender, receiver) = unbounded_channel()",
        "64 MiB of frames for a peer, and 1 GiB for all peers of a listener \
         (links_that_are_not_read_hold_no_more_together_than_one_process_can_bear); then the link ends with `Exhausted`. Answers to \
         observers: one.",
    ),
    queue(
        "core/src/transport/quic/control/listener.rs",
        "let (commands, inbox) = mpsc::unbounded_channel()",
        "the answers to the frames that wait, because a frame's room is given back behind its answers",
    ),
    queue(
        "core/src/transport/quic/control/listener.rs",
        "mpsc::channel(ARRIVALS_MAX)",
        "64 connections; then further ones keep their places at the gate",
    ),
    queue(
        "core/src/runtime/membership.rs",
        "let (inputs, received) = unbounded()",
        "64 frames of the coordinator (a_link_is_read_no_further_while_many_of_its_frames_wait), then the link is not read; calls of this process",
    ),
    queue(
        "core/src/runtime/membership.rs",
        "inputs: crossbeam_channel::bounded(0).0",
        "nothing: nobody receives from it",
    ),
    queue(
        "core/src/runtime/timeline.rs",
        "let (until, ends) = bounded(0)",
        "nothing: its end says that the file ends. 131,072 events wait elsewhere, then further ones are counted as lost",
    ),
    queue(
        "core/src/runtime/status.rs",
        "let (sender, received) = unbounded()",
        "64 frames of the coordinator, then the link is not read",
    ),
    queue(
        "core/src/runtime/operator.rs",
        "let (sender, received) = unbounded()",
        "64 frames of the coordinator, then the link is not read",
    ),
    queue(
        "server/src/coordinator/driver.rs",
        "let (inputs, received) = unbounded()",
        "64 frames of each link (a_link_is_read_no_further_while_many_of_its_frames_wait), then that link is not read; events of links, which are bounded",
    ),
    queue("server/src/coordinator/driver.rs", "crossbeam_channel::bounded(1)", "one answer"),
    queue("server/src/coordinator/driver/apart.rs", "let (sender, done) = bounded(1)", "one answer"),
    queue(
        "server/src/coordinator/driver/disk.rs",
        "let (work, received) = unbounded",
        "three pieces of work: one save or load is under way, and a refused one (two_savers_at_once_do_not_meet)",
    ),
    queue(
        "server/src/node/table/tombs.rs",
        "ring: VecDeque<(u64, u64)>",
        "65,536 removals and a quarter of the rows (removals_are_known_as_far_back_as_there_is_room); the oldest go",
    ),
    queue(
        "server/src/node/archive.rs",
        "let (jobs, received) = unbounded",
        "one piece of work: a server does one order at a time",
    ),
    queue(
        "server/src/coordinator/driver/questions.rs",
        "Questions(Mutex<VecDeque<(LinkId, Waiting)>>)",
        "one of each link (a_request_for_the_status_waits_until_the_one_before_is_answered)",
    ),
    queue(
        "server/src/coordinator/connections.rs",
        "commands: VecDeque<Command>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "server/src/coordinator/roster.rs",
        "fenced: VecDeque<(NodeId, Incarnation)>",
        "as many as there are members; then the oldest is forgotten",
    ),
    queue(
        "server/src/coordinator/lately.rs",
        "news: VecDeque<(Time, T)>",
        "names that ended and rounds that were closed within twice `dead_timeout`, each of which takes its workers a round trip",
    ),
    // Of enrolment.
    queue("core/src/transport/quic/enroll.rs", "let (sender, outcome) = mpsc::channel()", "one outcome"),
    queue("core/src/transport/quic/endpoint.rs", "let (started, starting) = bounded(1)", "one outcome"),
    // Of QUIC's data.
    queue(
        "core/src/transport/quic/commands.rs",
        "let (sender, receiver) = mpsc::unbounded_channel()",
        "calls of this process: a few for each exchange, and exchanges are bounded by the streams of the links",
    ),
    queue(
        "core/src/transport/quic/data/arena.rs",
        "ends: VecDeque<BytesMut>",
        "2,048 slots and 128 blocks, 160 MiB; then datagrams are copied (a_byte_kept_of_each_batch_pins_no_more_slots_than_there_may_be)",
    ),
    queue(
        "core/src/transport/quic/data/worker.rs",
        "let (returning, returned) = unbounded()",
        "one proof for each push under way",
    ),
    // Of shared memory.
    queue(
        "core/src/transport/shm/outbound.rs",
        "backlog: VecDeque<Words>",
        "four messages for each exchange that a link may have; then the link ends with `Protocol`",
    ),
    queue(
        "core/src/transport/shm/outbound.rs",
        "pieces: VecDeque<Piece>",
        "the bytes of one exchange, which this process owns",
    ),
    queue("core/src/transport/shm/outbound.rs", "Option<(VecDeque<Piece>, bool)>", "the same, given back"),
    queue("core/src/transport/shm/outbound.rs", "fn has_at_most(", "the same, looked at"),
    queue("core/src/transport/shm/outbound.rs", "fn cut(", "the same, cut"),
    queue("core/src/transport/shm/cells.rs", "busy: VecDeque<u16>", "the cells of a link; then nothing is sent"),
    queue(
        "core/src/transport/shm/client_tables.rs",
        "queued: VecDeque<ExchangeId>",
        "pushes of this process, bounded by its credit",
    ),
    queue("core/src/transport/shm/client_state.rs", "let (sender, returned) = mpsc::channel()", "one proof"),
    queue(
        "core/src/transport/shm/landing.rs",
        "chunks: VecDeque<Bytes>",
        "the bytes of one answer, which lie in the cells of the link",
    ),
    queue(
        "core/src/transport/shm/server_tables.rs",
        "events: VecDeque<Incoming>",
        "what one reading of the rings found: it is delivered before the next; a ring has a fixed length",
    ),
    // In one process, for tests.
    queue("core/src/transport/mem.rs", "let (calls, inbox) = unbounded()", "no peer: all ends are in one process"),
    queue("core/src/transport/mem.rs", "let (reply, taken) = mpsc::channel()", "one answer"),
    queue("core/src/transport/mem.rs", "let (reply, done) = mpsc::channel()", "one answer"),
    queue("core/src/transport/mem.rs", "let (reply, _) = mpsc::channel()", "one answer"),
    queue("core/src/transport/mem.rs", "let (sender, returned) = mpsc::channel()", "one proof"),
    // Of a server's node.
    queue(
        "server/src/node/machine.rs",
        "commands: VecDeque<Command>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "server/src/node/aggregate/aggregator.rs",
        "commands: VecDeque<Command>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "server/src/node/parameter/machine.rs",
        "commands: VecDeque<Command>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "server/src/node/table/machine.rs",
        "commands: VecDeque<Command>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "server/src/node/names.rs",
        "order: VecDeque<(TensorKey, u32)>",
        "as many names as a job may have; then the oldest is forgotten",
    ),
    queue(
        "server/src/node/lanes.rs",
        "jobs: VecDeque<Job>",
        "bodies that the node has accepted, within its budget of memory",
    ),
    queue(
        "server/src/node/accumulator/contribution.rs",
        "staged: VecDeque<Staged>",
        "a body that the node has accepted, within its budget of memory",
    ),
    // Between the ranks of a machine, which belong to one user, and of a member's own calls.
    queue(
        "core/src/collective/order.rs",
        "failures: VecDeque<(Slot, Failure)>",
        "one for each operation that was announced, and a rank announces what it submitted, within `submit_bytes_max`",
    ),
    queue(
        "core/src/collective/order.rs",
        "latest: VecDeque<Latest>",
        "one for each operation that an input makes ready: the driver drains them before the next",
    ),
    queue(
        "core/src/collective/agreement.rs",
        "unsaid: VecDeque<Announcement>",
        "one for each operation of this process, which waits while the leader's ring is full",
    ),
    queue(
        "core/src/collective/agreement.rs",
        "acts: VecDeque<Act<L>>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue(
        "core/src/collective/host/seat.rs",
        "requests: Mutex<VecDeque<R>>",
        "calls of this process: one for each operation, and the end of each rank",
    ),
    queue(
        "core/src/collective/nccl/work.rs",
        "queue: VecDeque<Vec<(Ordered, Done<()>)>>",
        "operations of this process; the leader orders no more than the device has room for",
    ),
    queue(
        "core/src/collective/nccl/work.rs",
        "crossbeam_channel::bounded(0)",
        "one outcome of a call on another thread",
    ),
    queue(
        "core/src/cluster/declarations.rs",
        "waiting: VecDeque<u64>",
        "calls of this process that wait for an answer",
    ),
    queue(
        "core/src/cluster/declarations.rs",
        "undeclared_first: VecDeque<TensorKey>",
        "as many names as a job may have; then the oldest is forgotten",
    ),
    queue(
        "core/src/cluster/offsets.rs",
        "intervals: VecDeque<Interval>",
        "64 answers to heartbeats; then the oldest is forgotten",
    ),
    queue(
        "core/src/cluster/member.rs",
        "commands: VecDeque<MemberCommand>",
        "the commands of one input: the driver drains them before the next",
    ),
    queue("core/src/runtime/timer.rs", "let (bell, rung) = bounded(1)", "one ring; another one is not needed"),
    queue("server/src/launch/waiting.rs", "let (stop, stopped) = bounded(0)", "nothing: it tells an end"),
    // Of commands and launchers: from signals and children of this process.
    queue("server/src/launch/supervision.rs", "commands: VecDeque<Command>", "the commands of one input"),
    queue(
        "server/src/coordinator/driver/gathered.rs",
        "earlier: VecDeque<Kept>",
        "two readings; then the older one is dropped (once_a_second_the_job_is_kept_and_its_rates_go_to_the_history)",
    ),
    queue(
        "server/src/coordinator/driver/happened.rs",
        "Happened(VecDeque<(Time, String)>)",
        "12 sentences; then the oldest is dropped (the_newest_are_kept_and_counts_take_the_place_of_each_other)",
    ),
    queue(
        "server/src/coordinator/driver/recorder.rs",
        "newest: VecDeque<String>",
        "1,024 texts of 2,000 characters; then the oldest is dropped (texts_are_bounded_and_those_of_old_events_are_missing)",
    ),
    queue(
        "server/src/look/history.rs",
        "steps: VecDeque<(u64, Time)>",
        "those of 5 s at one a second; then the oldest is dropped (a_step_is_as_long_as_those_of_the_last_seconds_on_average)",
    ),
    queue(
        "server/src/look/history.rs",
        "points: VecDeque<Point>",
        "300 points; then the oldest is dropped (it_keeps_a_point_a_second_for_five_minutes)",
    ),
    queue("server/src/launch/supervisor.rs", "let (events, received) = unbounded()", "ends of children, and signals"),
    queue("core/src/transport/fuzzing.rs", "let (give_back, returned) =", "one proof; inputs of tests"),
    queue("core/src/transport/quic/vandal.rs", "bounded(1)", "one answer; attacks of tests"),
];

/// Folders in which queues hold what users and the system do, and nothing of peers.
const WITHOUT_PEERS: [&str; 2] = ["server/src/cli/", "server/src/signals.rs"];

const fn queue(file: &'static str, line: &'static str, bound: &'static str) -> Queue {
    Queue { file, line, bound }
}

#[test]
fn every_queue_between_a_peer_and_a_machine_has_a_bound() {
    const FOLDERS: [&str; 6] = [
        "core/src/identity",
        "core/src/transport",
        "core/src/collective",
        "core/src/cluster",
        "core/src/runtime",
        "server/src",
    ];
    // Channels of all crates by the end of their names, and fields, arguments and results.
    const SIGNS: [&str; 5] = ["unbounded()", "channel()", "VecDeque<", "bounded(1)", "bounded(0)"];
    // Uses of a queue that has its row where it is made.
    const ELSEWHERE: [&str; 2] = ["commands::channel()", "fn lock("];
    let mut wrong = Vec::new();
    let mut used = [false; QUEUES.len()];
    for Source { path, code, is_test, .. } in FOLDERS.into_iter().flat_map(read) {
        if is_test || WITHOUT_PEERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for (number, line) in (1..).zip(code.lines()) {
            let line = without_types(line);
            let is_bounded_channel = line.contains("channel(") && line.contains("_MAX)");
            let is_queue = is_bounded_channel || SIGNS.iter().any(|sign| line.contains(sign));
            if !is_queue || ELSEWHERE.iter().any(|sign| line.contains(sign)) {
                continue;
            }
            let row = QUEUES.iter().position(|queue| queue.file == path && line.contains(queue.line));
            match row {
                Some(row) => used[row] = true,
                None => wrong.push(format!("{path}:{number}: {}", line.trim())),
            }
        }
    }
    super::report("queues without a bound: add a row to QUEUES", wrong);
    let unused = QUEUES.iter().zip(used).filter(|(_, used)| !used);
    super::report("rows without a queue", unused.map(|(row, _)| format!("{}: {}", row.file, row.line)).collect());
    assert!(QUEUES.iter().all(|queue| !queue.bound.is_empty()));
}

/// A line without the types of calls: `unbounded::<Vec<u8>>()` is `unbounded()`.
fn without_types(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("::<") {
        text.push_str(before);
        let mut depth = 1;
        let end = after.find(|letter| {
            depth += i32::from(letter == '<') - i32::from(letter == '>');
            depth == 0
        });
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    text + rest
}

#[test]
fn a_queue_is_found_whatever_types_it_names() {
    assert_eq!(without_types("let (a, b) = unbounded::<Vec<u8>>();"), "let (a, b) = unbounded();");
    assert_eq!(without_types("channel::<()>(2) + bounded::<u8>(1)"), "channel(2) + bounded(1)");
}
