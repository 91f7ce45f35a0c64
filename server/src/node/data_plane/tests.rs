//! The data side of a server between a listener that the tests play and the threads that add.

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};
use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::metrics::TraceCounts;
use gradlane_core::runtime::recording::Recorder as _;
use gradlane_core::runtime::timeline::{Clocks, Window};
use gradlane_core::transport::Inbox;
use gradlane_core::transport::Incoming;
use gradlane_core::types::{Access, DType, KeyPart, LinkId, Phase, Role, ServerId, Update};
use gradlane_core::wire::{Contribute, Request, Sent, Use, checksum};

use super::*;
use crate::handle;
use crate::node::aggregate::tests::{again, checked, config, header, in_part, node, sized, view};
use crate::node::parameter::tests::to_do;
use crate::node::recorder::Recorder;
use crate::node::trace::{Means, Place};
use crate::scrape::{exporter, get};

const BYTES: usize = 4 << 20;
const BLOCK: usize = 256 << 10;

#[test]
fn the_sum_of_what_all_have_sent_leaves_before_they_have_sent_the_rest() {
    let server = Played::new(2, |_| {});
    let ones = checksum(0, &1.0_f32.to_le_bytes().repeat(BYTES / 4));
    let checked = checked(ones, part(0));
    let [one, two] = [server.open(0, checked), server.open(1, part(0))];
    server.bring(one, 0..BYTES / 2);
    server.bring(two, 0..BLOCK);
    server.hears_until(|heard| heard.bytes(one) == BLOCK && heard.bytes(two) == BLOCK);
    server.bring(two, BLOCK..BYTES);
    server.bring(one, BYTES / 2..BYTES);
    let heard = server.hears_until(|heard| heard.ended.len() == 2);
    assert_eq!(heard.bytes(one), BYTES - BLOCK, "the rest");
    assert_eq!(heard.ended[&one], checksum(0, &2.0_f32.to_le_bytes().repeat(BYTES / 4)));
}

#[test]
fn a_contribution_that_breaks_off_is_continued_where_it_was() {
    let server = Played::new(2, |_| {});
    let [torn, other] = [server.open(0, part(0)), server.open(1, part(0))];
    server.bring(other, 0..BYTES);
    server.bring(torn, 0..BLOCK + 3);
    server.hears_until(|heard| heard.bytes(torn) == BLOCK);
    server.tell(Incoming::Torn { exchange: torn, reason: Error::Cancelled });
    let again = server.open(0, again(BLOCK as u64, part(0)));
    server.bring_bytes(again, vec![0xff; BLOCK]);
    server.bring(again, BLOCK..BYTES);
    let heard = server.hears_until(|heard| heard.ended.len() == 2);
    assert_eq!(heard.ended[&again], checksum(0, &2.0_f32.to_le_bytes().repeat(BYTES / 4)));
}

#[test]
fn a_parameter_is_changed_by_its_lane_and_read_from_its_blocks() {
    let server = Played::new(2, |_| {});
    let ones = checksum(0, &1.0_f32.to_le_bytes().repeat(BYTES / 4));
    let of = |access, round, sent| Use { part_bytes: BYTES as u64, sent, ..to_do(access, round) };
    let whole = |checksum| Sent::Whole { checksum };
    let init = server.ask(0, Request::Use(of(Access::Init, 0, whole(Some(ones)))));
    server.bring(init, 0..BYTES);
    server.hears_until(|heard| heard.ended.contains_key(&init));
    let push = server.ask(1, Request::Use(of(Access::PushPull(Update::Add), 0, whole(Some(ones)))));
    server.bring(push, 0..BYTES);
    let heard = server.hears_until(|heard| heard.ended.contains_key(&push));
    let pull = server.ask(0, Request::Use(of(Access::Pull, 1, Sent::Nothing { checked: true })));
    let again = server.hears_until(|heard| heard.ended.contains_key(&pull));
    let twos = checksum(0, &2.0_f32.to_le_bytes().repeat(BYTES / 4));
    assert_eq!((heard.bytes(init), heard.bytes(push), heard.ended[&push]), (0, BYTES, twos));
    assert_eq!((again.bytes(pull), again.ended[&pull]), (BYTES, twos));
    [init, push, pull].into_iter().for_each(|exchange| server.tell(Incoming::Answered { exchange }));
    assert_eq!(server.plane.progress().bytes_in_flight, BYTES as u64, "the value");
    assert_eq!(server.plane.stats.copied_bytes(), 2 * BYTES as u64, "each body once, into its place");
}

#[test]
fn metrics_are_shown_while_the_locks_are_held() {
    let (server, exporter) = (Played::new(2, |_| {}), exporter());
    let _exposure = exporter.show(Arc::clone(&server.plane.probe) as _);
    assert!(!get(&exporter, "/metrics").1.contains("gradlane_server_"), "it has no index yet");
    server.plane.probe.joined(0);
    server.plane.handle_member(MemberEvent::Joined { index: 0, view: view(2, 1, Phase::Running) });
    let exchange = server.open(0, part(0));
    server.bring(exchange, 0..BLOCK);
    let booked = server.plane.progress().bytes_in_flight;
    assert!(booked >= BYTES as u64, "{booked}");
    let (node, routes) = (server.plane.node(), server.plane.routes());
    let (_, text) = get(&exporter, "/metrics");
    for (name, value) in [("sum_bytes", booked), ("sum_limit_bytes", 1 << 30), ("waiting_rounds", 0)] {
        assert!(text.contains(&format!("gradlane_server_{name}{{server=\"0\"}} {value}\n")), "{name}: {text}");
    }
    assert!(text.contains("gradlane_server_lane_parts{server=\"0\",lane=\"1\"} "), "{text}");
    let events = "gradlane_server_trace_events_total{server=\"0\",sink=\"recorder\"} ";
    assert!(text.contains(events) && !text.contains(&format!("{events}0\n")), "{text}");
    assert!(text.contains(&format!("gradlane_server_received_bytes_total{{server=\"0\"}} {BLOCK}\n")), "{text}");
    assert_eq!(get(&exporter, "/readyz"), (200, "server: ready\n".to_owned()));
    drop((node, routes));
    server.plane.break_down(Error::Cancelled);
    assert_eq!(get(&exporter, "/readyz"), (503, "server: failed\n".to_owned()));
}

#[test]
fn two_rounds_of_all_parts_and_a_block_for_each_lane_are_all_the_memory_it_takes() {
    for (dtype, growth) in [(DType::F32, 2), (DType::BF16, 3)] {
        let server = Played::new(2, |_| {});
        for round in 0..4 {
            for index in 0..3 {
                let of = |rank| server.open(rank, Contribute { dtype, ..in_part(index, part(round)) });
                let exchanges = [of(0), of(1)];
                exchanges.iter().for_each(|exchange| server.bring(*exchange, 0..BYTES));
                server.hears_until(|heard| heard.ended.len() == 2);
                exchanges.into_iter().for_each(|exchange| server.tell(Incoming::Answered { exchange }));
            }
        }
        let (_, held) = server.plane.memory_bytes();
        // A sum that is kept until the next is made, and the next; half-size floats grow in full-size ones.
        let bound = growth * 3 * BYTES + 2 * BLOCK;
        assert!(held <= bound as u64, "{dtype}: {held} bytes instead of {bound}");
        assert_eq!(server.plane.stats.copied_bytes(), 0, "nothing was copied on its way");
    }
}

#[test]
fn only_what_came_before_its_turn_in_rank_order_is_copied() {
    let server = Played::new(2, |config| config.deterministic = true);
    for (round, order) in [[0, 1], [1, 0]].into_iter().enumerate() {
        for rank in order {
            let exchange = server.open(rank, part(round as u64));
            server.bring(exchange, 0..BYTES);
        }
        server.hears_until(|heard| heard.ended.len() == 2);
    }
    assert_eq!(server.plane.stats.copied_bytes(), BYTES as u64, "the second rank's part of the second round");
}

#[test]
fn a_panic_under_the_lock_of_a_server_ends_it_with_its_cause() {
    let plane = plane(config(), None);
    let (sender, watching) = unbounded();
    let listener = Listener {
        addresses: Vec::new(),
        outbox: Box::new(|_| panic!("planted")),
        stop: Box::new(|_| ()),
        watch: Box::new(move |ended| drop(sender.send(ended))),
    };
    plane.attach(listener, Reporter::to_nobody());
    plane.handle_member(MemberEvent::View(view(1, 1, Phase::Running)));
    let inbox = plane.inbox();
    inbox(Incoming::LinkUp { link: link(0), node: node(0), address: String::new() });
    let open = || Incoming::Opened { link: link(0), exchange: ExchangeId(1), header: Request::Contribute(part(0)) };
    inbox(open());
    let ended = plane.wait(None).expect("it waits for the end").unwrap_err();
    assert!(matches!(&ended, Error::Internal { what } if what.ends_with("panicked: planted")), "{ended}");
    inbox(open());
    plane.progress();
    (watching.recv().unwrap())(Error::Cancelled);
    assert_eq!(plane.wait(None), Some(Err(ended)), "the first cause counts");
}

#[test]
fn what_a_server_waits_for_is_dumped_while_its_lock_is_held() {
    let server = Played::new(2, |_| {});
    let one = server.open(0, part(0));
    server.bring(one, 0..BYTES);
    let two = server.open(1, part(0));
    server.bring(two, 0..BLOCK);
    let flight = &server.plane.flight;
    // Threads of their own may add what came.
    while flight.recorder.read().others["open"][0]["whole"] != serde_json::json!([0]) {
        std::thread::yield_now();
    }
    let stuck = server.plane.node();
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read(flight.dump(dir.path(), "a test", None).unwrap()).unwrap();
    drop(stuck);
    let dump: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&dump["open"][0]["begun"], &dump["open"][0]["due"]), (&vec![1].into(), &serde_json::json!([])));
    let events: Vec<&str> = dump["events"].as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
    let expected = ["linked", "begun", "came", "whole", "flows"];
    let found: Vec<&str> = expected.into_iter().filter(|what| events.contains(what)).collect();
    assert_eq!(found, expected, "{events:?}");
}

#[test]
fn a_pull_that_the_handle_of_a_key_refuses_is_recorded_as_refused() {
    /// Nobody may pull.
    struct Deaf;
    impl Handle for Deaf {
        fn pull(&self, _: &handle::Request, _: &[u8]) -> std::result::Result<Option<Vec<u8>>, handle::Failure> {
            Err("no pull".into())
        }
    }
    let server = Played::with(1, Some(Arc::new(Deaf)), |_| {});
    let (dir, trace) = (tempfile::tempdir().unwrap(), &server.plane.trace);
    let clocks = Clocks { own: Clock::start(), job: None };
    trace.equip(Means { bytes_max: 1 << 20, clocks, counts: TraceCounts::default() });
    trace.start(Place { place: dir.path().to_owned(), window: Window::default() });
    trace.joined(ServerId(0));
    let init = to_do(Access::Init, 0);
    let body = vec![0; usize::try_from(init.part_bytes).unwrap()];
    let init = server.ask(0, Request::Use(init));
    server.bring_bytes(init, body);
    server.hears_until(|heard| heard.ended.contains_key(&init));
    server.tell(Incoming::Answered { exchange: init });
    let key = Some(KeyPart { app: 3, key: 9, offset: 0 });
    let pull = server.ask(0, Request::Use(Use { key, ..to_do(Access::Pull, 1) }));
    let refused = |outgoing: Outgoing| matches!(outgoing, Outgoing::Reject { exchange, .. } if exchange == pull);
    while !refused(server.sent.recv_timeout(Duration::from_secs(60)).expect("the pull is refused")) {}
    let recorder = &server.plane.flight.recorder;
    // The lane tells the recorder after it has sent.
    while !recorder.read().events.contains("refused") {
        std::thread::yield_now();
    }
    server.tell(Incoming::Answered { exchange: pull });
    let recorded = recorder.read();
    let events: Vec<serde_json::Value> = serde_json::from_str(&format!("[{}]", recorded.events)).unwrap();
    let of_pull = events.iter().filter(|event| event[6] == pull.0 && event[2] == 0);
    let of_pull: Vec<_> = of_pull.map(|event| (event[1].as_str().unwrap(), event[7].as_str().unwrap())).collect();
    assert_eq!(of_pull, [("came", "pull"), ("to-answer", "pull"), ("refused", "TensorState")]);
    assert_eq!(recorded.others["uses"], serde_json::json!([]));
    server.plane.stop_timeline();
    let spans = std::fs::read(dir.path().join("server-0/comm.json")).unwrap();
    let spans: Vec<serde_json::Value> = serde_json::from_slice(&spans).unwrap();
    let spans = spans.iter().filter(|span| span["ph"] == "X").map(|span| (&span["name"], &span["args"]["outcome"]));
    let of_pull: Vec<_> = spans.skip(2).collect();
    assert_eq!(of_pull, [(&"USE".into(), &"refused".into())]);
}

/// A server whose listener is the test. Contributions are ones.
struct Played {
    plane: Arc<DataPlane>,
    inbox: Inbox,
    sent: Receiver<Outgoing>,
    exchanges: std::cell::Cell<u64>,
}

/// What a server sent.
#[derive(Default)]
struct Heard {
    bytes: BTreeMap<ExchangeId, usize>,
    ended: BTreeMap<ExchangeId, u32>,
}

impl Heard {
    fn bytes(&self, exchange: ExchangeId) -> usize {
        self.bytes.get(&exchange).copied().unwrap_or(0)
    }
}

impl Played {
    fn new(workers: u32, change: impl FnOnce(&mut NodeConfig)) -> Self {
        Self::with(workers, None, change)
    }

    fn with(workers: u32, handle: Option<Arc<dyn Handle>>, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = NodeConfig {
            memory_bytes_max: 1 << 30,
            block_bytes_max: BLOCK as u64,
            block_bytes_min: BLOCK as u64,
            ..config()
        };
        change(&mut config);
        let plane = plane(config, handle.as_ref());
        let (sink, sent) = unbounded();
        let outbox = Box::new(move |outgoing| drop(sink.send(outgoing)));
        plane.attach(
            Listener { addresses: Vec::new(), outbox, stop: Box::new(|_| ()), watch: Box::new(|_| ()) },
            Reporter::to_nobody(),
        );
        plane.handle_member(MemberEvent::View(view(workers, 1, Phase::Running)));
        let inbox = plane.inbox();
        for rank in 0..workers {
            inbox(Incoming::LinkUp { link: link(rank), node: node(rank), address: String::new() });
        }
        Self { plane, inbox, sent, exchanges: std::cell::Cell::new(0) }
    }

    fn tell(&self, incoming: Incoming) {
        (self.inbox)(incoming);
    }

    fn open(&self, rank: u32, header: Contribute) -> ExchangeId {
        self.ask(rank, Request::Contribute(header))
    }

    fn ask(&self, rank: u32, header: Request) -> ExchangeId {
        self.exchanges.set(self.exchanges.get() + 1);
        let exchange = ExchangeId(self.exchanges.get());
        self.tell(Incoming::Opened { link: link(rank), exchange, header });
        exchange
    }

    /// These bytes of a contribution arrive, in pieces.
    fn bring(&self, exchange: ExchangeId, range: std::ops::Range<usize>) {
        let ones = 1.0_f32.to_le_bytes().repeat(BYTES / 4);
        self.bring_bytes(exchange, ones[range].to_vec());
    }

    fn bring_bytes(&self, exchange: ExchangeId, bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        for from in (0..bytes.len()).step_by(50_001) {
            let chunks = vec![bytes.slice(from..(from + 50_001).min(bytes.len()))];
            self.tell(Incoming::Body { exchange, chunks });
        }
    }

    /// Listens until it has heard enough; what it heard since the last time.
    fn hears_until(&self, enough: impl Fn(&Heard) -> bool) -> Heard {
        let mut heard = Heard::default();
        while !enough(&heard) {
            match self.sent.recv_timeout(Duration::from_secs(60)).expect("more is to be heard") {
                Outgoing::Block { exchange, block } => *heard.bytes.entry(exchange).or_default() += block.len(),
                Outgoing::End { exchange, checksum } => {
                    heard.ended.insert(exchange, checksum);
                }
                Outgoing::Accept { .. } | Outgoing::Answer { .. } | Outgoing::Grant { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        heard
    }
}

fn plane(config: NodeConfig, handle: Option<&Arc<dyn Handle>>) -> Arc<DataPlane> {
    let clock = Clock::start();
    let flight = Flight::new(&Config::default(), Role::Server, clock, Recorder::new(1 << 10));
    DataPlane::new(config, NonZeroUsize::new(2).unwrap(), Pool::new(), clock, Arc::new(flight), None, handle).unwrap()
}

fn part(round: u64) -> Contribute {
    sized(BYTES as u64, header(round))
}

fn link(rank: u32) -> LinkId {
    LinkId(u64::from(rank))
}
