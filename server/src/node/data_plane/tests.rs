//! The data side of a server between a listener that the tests play and the threads that add.

use crossbeam_channel::{Receiver, unbounded};
use gradlane_core::Error;
use gradlane_core::transport::Inbox;
use gradlane_core::types::{Access, DType, LinkId, Phase, Update};
use gradlane_core::wire::{Contribute, Request, Sent, Use, checksum};

use super::*;
use crate::node::aggregate::tests::{again, checked, config, header, in_part, node, sized, view};
use crate::node::parameter::tests::to_do;
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
    let (node, routes) = (server.plane.node(), server.plane.routes());
    let (_, text) = get(&exporter, "/metrics");
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
    let plane = plane(config());
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
        let mut config = NodeConfig {
            memory_bytes_max: 1 << 30,
            block_bytes_max: BLOCK as u64,
            block_bytes_min: BLOCK as u64,
            ..config()
        };
        change(&mut config);
        let plane = plane(config);
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

fn plane(config: NodeConfig) -> Arc<DataPlane> {
    DataPlane::new(config, NonZeroUsize::new(2).unwrap(), Pool::new(), Clock::start(), None, None).unwrap()
}

fn part(round: u64) -> Contribute {
    sized(BYTES as u64, header(round))
}

fn link(rank: u32) -> LinkId {
    LinkId(u64::from(rank))
}
