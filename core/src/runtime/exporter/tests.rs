use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::budget::{PROBES_SAVED_MAX, SAVED_MAX, SHARE, SLICE};
use super::*;
use crate::metrics::{Instance, WorkerMetrics};
use crate::types::{Time, whole_ns};

#[test]
fn without_the_setting_nothing_is_shown() {
    assert!(Exporter::by_settings(&Config::default()).unwrap().is_none());
}

#[test]
fn a_wrong_name_is_refused_before_anything_listens() {
    let config = Config { metrics_hosts: vec!["n7:9400".to_owned()], ..config("127.0.0.1:0") };
    let Err(Error::Config { knob, problem, .. }) = Exporter::by_settings(&config) else { panic!("it is refused") };
    assert_eq!((knob.as_str(), problem.as_str()), ("metrics_hosts", "has \"n7:9400\", which is no host"));
}

#[test]
fn further_names_are_answered() {
    let config = Config { metrics_hosts: vec!["Metrics.Example".to_owned()], ..config("127.0.0.1:0") };
    let exporter = Exporter::by_settings(&config).unwrap().expect("a port is free");
    let asked = |host: &str| ask(&exporter, format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    assert!(asked("metrics.example:80").starts_with("HTTP/1.1 200 "));
    assert!(asked(&process::host()).starts_with("HTTP/1.1 200 "));
    assert!(asked("other.example").starts_with("HTTP/1.1 403 "));
}

#[test]
fn what_is_shown_is_read_until_it_is_dropped() {
    let exporter = exporter("127.0.0.1:0");
    assert!(get(&exporter, "/readyz").starts_with("HTTP/1.1 503 "), "nothing has joined yet");
    let counted = Arc::new(Counted::default());
    let exposure = exporter.show(Arc::clone(&counted) as Arc<dyn Shown>);
    counted.0.store(7, Ordering::Relaxed);
    assert!(get(&exporter, "/metrics").contains("gradlane_worker_submissions_total{rank=\"0\"} 7\n"));
    assert!(get(&exporter, "/readyz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(&exporter, "/healthz").ends_with("\r\n\r\nok\n"));
    drop(exposure);
    let text = get(&exporter, "/metrics");
    assert!(!text.contains("gradlane_worker"), "{text}");
    assert!(text.contains("gradlane_exporter_answers_total"), "{text}");
}

#[test]
fn it_listens_over_ipv6_where_the_host_has_it() {
    if TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let exporter = exporter("[::1]:0");
    assert!(get(&exporter, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    let foreign = ask(&exporter, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
}

#[test]
fn its_port_is_free_once_it_is_dropped() {
    let first = exporter("127.0.0.1:0");
    let address = first.address();
    // A connection that is still open, and one that waits for its end: both are left in the system for a while.
    let open = TcpStream::connect(address).unwrap();
    assert!(get(&first, "/healthz").contains("ok"));
    let exposure = first.show(Arc::new(Counted::default()));
    drop(first);
    assert!(TcpStream::connect(address).is_ok(), "something is shown yet");
    drop(exposure);
    let second = exporter(&address.to_string());
    assert_eq!(second.address(), address);
    drop(open);
}

#[test]
fn a_port_that_is_taken_is_no_failure() {
    let first = exporter("127.0.0.1:0");
    let config = config(&first.address().to_string());
    assert!(Exporter::by_settings(&config).unwrap().is_none());
    assert!(get(&first, "/healthz").contains("ok"), "the first is not disturbed");
}

#[test]
fn nothing_is_shown_to_other_hosts_unless_that_is_allowed() {
    for public in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        assert!(Exporter::by_settings(&config(public)).unwrap().is_none(), "{public}");
    }
    assert!(Exporter::by_settings(&config("localhost:0")).unwrap().is_some());
    let addresses = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
    for (all, expected) in [
        (&["127.0.0.1:9400"][..], false),
        (&["127.9.9.9:0", "[::1]:9400", "[::ffff:127.0.0.1]:1"], false),
        (&["0.0.0.0:9400"], true),
        (&["[::]:9400"], true),
        (&["10.0.0.9:9400"], true),
        (&["[::ffff:10.0.0.9]:9400"], true),
        (&["127.0.0.1:9400", "192.168.0.9:9400"], true),
    ] {
        assert_eq!(is_public(&addresses(all)), expected, "{all:?}");
    }
}

#[test]
fn a_worker_adds_its_local_rank_and_others_add_nothing() {
    assert_eq!(with_port_ahead("127.0.0.1:9400", 3).unwrap(), "127.0.0.1:9403");
    assert_eq!(with_port_ahead("[::1]:9400", 1).unwrap(), "[::1]:9401");
    assert_eq!(with_port_ahead("127.0.0.1:0", 3).unwrap(), "127.0.0.1:0", "any free one");
    let error = with_port_ahead("127.0.0.1:65534", 2).unwrap_err();
    assert!(matches!(&error, Error::Config { knob, .. } if knob == "metrics_bind"), "{error}");
    assert!(error.to_string().contains("65534"), "{error}");

    let free = exporter("127.0.0.1:0").address().port();
    for (role, local_rank, ahead) in [(ProcessRole::Worker, Some(0), 0), (ProcessRole::Server, Some(9), 0)] {
        let config = Config { role, local_rank, ..config(&format!("127.0.0.1:{free}")) };
        let exporter = Exporter::by_settings(&config).unwrap().expect("the port is free");
        assert_eq!(exporter.address().port(), free + ahead);
    }
}

#[test]
fn a_slow_request_ends_in_time_and_holds_nobody_up() {
    let exporter = Exporter::by_settings(&config("127.0.0.1:0")).unwrap().expect("a port is free");
    let clock = Clock::start();
    let mut slow = TcpStream::connect(exporter.address()).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: local").unwrap();
    // Others are answered meanwhile, but on a slow machine they may be late themselves.
    while !get(&exporter, "/healthz").contains("ok") {}
    let told = rest(&mut slow);
    assert!(told.starts_with("HTTP/1.1 408 "), "{told}");
    let took = clock.now().since(Time::ZERO);
    assert!(took >= serving::CONNECTION_TIME, "{took:?}");
}

#[test]
fn a_connection_that_says_nothing_or_half_a_request_ends() {
    let exporter = exporter("127.0.0.1:0");
    let mut silent = TcpStream::connect(exporter.address()).unwrap();
    silent.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut silent), "");
    let mut half = TcpStream::connect(exporter.address()).unwrap();
    half.write_all(b"GET /metrics HTT").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let told = rest(&mut half);
    assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
}

#[test]
fn a_request_may_come_in_single_bytes_and_its_answer_is_the_same() {
    let exporter = exporter("127.0.0.1:0");
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(rest(&mut stream).ends_with("\r\n\r\nok\n"));
}

#[test]
fn a_long_head_is_refused_though_the_rest_of_it_is_on_its_way() {
    let exporter = exporter("127.0.0.1:0");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    let told = ask(&exporter, request.as_bytes());
    assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
}

#[test]
fn requests_behind_the_first_are_not_answered() {
    let exporter = exporter("127.0.0.1:0");
    let both = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let told = ask(&exporter, both);
    assert!(told.ends_with("\r\n\r\nok\n"), "{told}");
}

#[test]
fn slow_connections_beyond_sixteen_make_room_the_oldest_first() {
    let exporter = exporter("127.0.0.1:0");
    let open = || TcpStream::connect(exporter.address()).unwrap();
    let mut slow: Vec<TcpStream> = (0..serving::CONNECTIONS_MAX).map(|_| open()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /hea").unwrap());
    for _ in 0..4 {
        assert!(get(&exporter, "/healthz").ends_with("\r\n\r\nok\n"));
    }
    let told = rest(&mut slow[0]);
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("too many connections"), "{told}");
    // An answer makes room for the next one, so all others have kept their places.
    for stream in &mut slow[1..] {
        stream.write_all(b"lthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(rest(stream).ends_with("\r\n\r\nok\n"));
    }
    let text = get(&exporter, "/metrics");
    assert!(text.contains("gradlane_exporter_connections_refused_total{version=\"0.1.0\"} 1\n"), "{text}");
}

#[test]
fn those_that_have_their_answer_and_do_not_leave_make_room() {
    let exporter = exporter("127.0.0.1:0");
    let mut open = Vec::new();
    for _ in 0..3 * serving::CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        open.push(stream);
    }
}

#[test]
fn it_is_dropped_in_time_while_connections_are_open_and_a_part_is_stuck() {
    let exporter = exporter("127.0.0.1:0");
    let (stuck, (asked, is_asked)) = (bounded::<()>(0), bounded(1));
    let exposure = exporter.show(Arc::new(Stuck { asked, held: stuck.1 }));
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    is_asked.recv().unwrap();
    let clock = Clock::start();
    drop(exposure);
    drop(exporter);
    let took = clock.now().since(Time::ZERO);
    assert!(took < Duration::from_secs(20), "the thread is left behind: {took:?}");
    drop(stuck.0);
}

#[test]
fn it_is_dropped_at_once_while_connections_are_open() {
    let exporter = exporter("127.0.0.1:0");
    let mut open: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
    drop(exporter);
    for stream in &mut open {
        let mut end = Vec::new();
        let _reset = stream.read_to_end(&mut end);
        assert!(end.is_empty());
    }
}

#[test]
fn a_thread_that_has_used_its_share_answers_after_a_pause() {
    let used = Used::default();
    let exporter = started("127.0.0.1:0", used.reader());
    assert!(get(&exporter, "/nothing").starts_with("HTTP/1.1 404 "));
    let clock = Clock::start();
    let too_much = Duration::from_micros(250);
    used.add(SAVED_MAX + too_much);
    // It knows what it has used after its turn at the latest, in which it accepts so many.
    for _ in 0..serving::CONNECTIONS_MAX + 2 {
        assert!(get(&exporter, "/nothing").starts_with("HTTP/1.1 404 "));
    }
    // One that asks within the slice after it ends the pause.
    let pause = too_much * SHARE;
    assert!(clock.now().since(Time::ZERO) >= pause);
    let held_back = held_back(&get(&exporter, "/metrics"));
    assert!(held_back >= pause, "it tells how long it has answered no others: {held_back:?}");
}

#[test]
fn probes_are_answered_while_all_others_wait() {
    let exporter = started("127.0.0.1:0", Box::new(|| Duration::from_secs(3600)));
    let _exposure = exporter.show(Arc::new(Counted::default()));
    let others = ["/metrics", "/nothing", "/job", "/"];
    let mut waiting: Vec<TcpStream> = Vec::new();
    for at in 0..3 * serving::CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        let path = others[at % others.len()];
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        waiting.push(stream);
        assert!(get(&exporter, "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(get(&exporter, "/readyz").starts_with("HTTP/1.1 200 OK\r\n"));
    }
    // Those that came first keep their places, because they are the next.
    let is_told = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let told = stream.read(&mut [0; 1]).is_ok();
        stream.set_nonblocking(false).unwrap();
        told
    };
    assert!(!waiting[..serving::CONNECTIONS_MAX - 1].iter_mut().any(is_told));
    let told = rest(&mut waiting[serving::CONNECTIONS_MAX]);
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
}

#[test]
fn those_who_ask_all_the_time_get_no_more_of_a_core_than_the_thread_earns() {
    // What each turn of the thread takes.
    let turn = SLICE / 2;
    let (used, clock) = (Used::default(), Clock::start());
    used.add(SAVED_MAX);
    let taking = used.clone();
    let exporter = started("127.0.0.1:0", Box::new(move || taking.add(turn)));
    for _ in 0..5 {
        // They leave before they are answered.
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    assert!(get(&exporter, "/healthz").contains("ok"), "who stays is answered");
    let (used, earned) = (used.read(), clock.now().since(Time::ZERO) / SHARE);
    assert!(used <= SAVED_MAX + PROBES_SAVED_MAX + (earned + turn * 2) * 2, "{used:?} of {earned:?}");
}

#[test]
fn pages_that_take_long_to_make_hold_nobody_back() {
    let used = Used::default();
    let exporter = started("127.0.0.1:0", used.reader());
    let _exposure = exporter.show(Arc::new(Long(used)));
    for _ in 0..3 {
        assert!(get(&exporter, "/metrics").contains("gradlane_worker_submissions_total"));
        assert!(get(&exporter, "/healthz").contains("ok"));
    }
    // The page is the first one, because the others have no time.
    assert!(get(&exporter, "/metrics").contains("gradlane_exporter_answers_total{version=\"0.1.0\"} 1\n"));
}

#[test]
fn it_is_dropped_at_once_while_it_holds_back() {
    let exporter = started("127.0.0.1:0", Box::new(|| Duration::from_secs(3600)));
    let address = exporter.address();
    let _waits = TcpStream::connect(address).unwrap();
    drop(exporter);
    assert!(TcpListener::bind(address).is_ok(), "its thread has ended");
}

/// A worker whose metrics are one number.
#[derive(Default)]
struct Counted(AtomicU64);

impl Shown for Counted {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        Standing::Ready
    }

    fn values(&self) -> Option<Instance> {
        let metrics = WorkerMetrics::default();
        WorkerMetrics::add(&metrics.submissions, self.0.load(Ordering::Relaxed));
        Some(metrics.instance(0))
    }
}

/// A part whose metrics take an hour of the thread.
struct Long(Used);

impl Shown for Long {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        Standing::Ready
    }

    fn values(&self) -> Option<Instance> {
        self.0.add(Duration::from_secs(3600));
        Some(WorkerMetrics::default().instance(0))
    }
}

/// A part that breaks the rule of [`Shown`].
struct Stuck {
    asked: Sender<()>,
    held: Receiver<()>,
}

impl Shown for Stuck {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        Standing::Ready
    }

    fn values(&self) -> Option<Instance> {
        let _ = self.asked.send(());
        let _ = self.held.recv();
        None
    }
}

fn config(bind: &str) -> Config {
    Config { metrics_bind: Some(bind.to_owned()), ..Config::default() }
}

/// An exporter at this address, which is free. Its connections may last as long as a slow machine takes.
pub(crate) fn exporter(bind: &str) -> Arc<Exporter> {
    started(bind, Box::new(thread_cpu))
}

/// The same, with this clock of its thread's processor time.
fn started(bind: &str, cpu: ThreadCpu) -> Arc<Exporter> {
    let listener = TcpListener::bind(bind).expect("it is free");
    let hosts = Hosts::new([process::host().as_str()]);
    Arc::new(Exporter::start(listener, hosts, Duration::from_secs(60), cpu).expect("it starts"))
}

/// The processor time of a thread, as a test counts it.
#[derive(Clone, Default)]
struct Used(Arc<AtomicU64>);

impl Used {
    fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    /// What it is then.
    fn add(&self, more: Duration) -> Duration {
        let more = whole_ns(more);
        Duration::from_nanos(self.0.fetch_add(more, Ordering::SeqCst) + more)
    }

    fn reader(&self) -> ThreadCpu {
        let used = self.clone();
        Box::new(move || used.read())
    }
}

/// For how long a page of metrics says that the thread has answered nobody.
fn held_back(page: &str) -> Duration {
    let line = page.lines().find(|line| line.starts_with("gradlane_exporter_held_back_seconds_total{")).expect(page);
    Duration::from_secs_f64(line.rsplit_once(' ').expect(line).1.parse().expect(line))
}

/// The answer to a request for a page.
pub(crate) fn get(exporter: &Exporter, path: &str) -> String {
    let host = exporter.address();
    ask(exporter, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
}

fn ask(exporter: &Exporter, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.write_all(request).unwrap();
    rest(&mut stream)
}

/// All that comes until the end of the connection.
fn rest(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
