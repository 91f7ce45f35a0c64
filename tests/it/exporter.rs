//! Metrics and probes over HTTP, of every process of a job.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::identity::Credentials;
use gradlane_core::types::{Op, Role};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_session::{EmbeddedPlan, Found, JoinRequest, Session};
use gradlane_tests::cluster::{PATIENCE, Tensor, config};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::{Process, environment, signal};

use crate::actors::{ACTOR, coordinator, server, worker};

#[test]
fn every_process_of_a_job_shows_its_metrics_and_is_ready_once_it_can_work() {
    let home = tempfile::tempdir().unwrap();
    let ports = ports(4);
    let bind = |index: usize| format!("127.0.0.1:{}", ports[index]);
    let (_coordinator, join) = coordinator(home.path(), 2, 1, &[("metrics_bind", &bind(0))]);
    let over = Over::Quic;
    let _server = server(over, &join, 0, &[("metrics_bind", &bind(1))]);

    let waiting = until(ports[0], "/metrics", "gradlane_coordinator_servers_joined{job_name=\"default\"} 1");
    for (name, expected) in [("members_missing", 2), ("workers_joined", 0), ("workers_expected", 2), ("running", 0)] {
        assert_eq!(value(&waiting, &format!("gradlane_coordinator_{name}{{")), expected, "{name}");
    }
    assert_eq!(get(ports[0], "/readyz"), (200, "coordinator: ready\n".to_owned()), "it takes members in");
    assert_eq!(get(ports[1], "/readyz"), (503, "server: joining\n".to_owned()));
    assert_eq!(get(ports[1], "/healthz"), (200, "ok\n".to_owned()));
    assert!(!get(ports[1], "/metrics").1.contains("gradlane_server_"), "it has no index yet");

    let start = |rank: u32| {
        let rank_bind = bind(2 + rank as usize);
        worker(over, &["puppet"], &join, Some(rank), 2, &[("metrics_bind", &rank_bind)])
    };
    let mut first = start(0);
    until(ports[2], "/readyz", "worker: joining");
    let mut second = start(1);
    assert_eq!([first.line(), second.line()], ["joined 0", "joined 1"]);
    for port in &ports {
        eventually("it is ready", || (get(*port, "/readyz").0 == 200).then_some(()));
    }

    for round in 0..3 {
        for puppet in [&mut first, &mut second] {
            puppet.order(&format!("sum weight {round}"));
        }
        assert_eq!([first.line(), second.line()], ["ok", "ok"]);
    }
    let bytes = |port, name: &str| value(&get(port, "/metrics").1, name);
    let pushed: Vec<u64> = (0..2).map(|rank| bytes(ports[2 + rank], "gradlane_worker_push_bytes_total{")).collect();
    assert_eq!(pushed[0], pushed[1]);
    assert_eq!(bytes(ports[1], "gradlane_server_received_bytes_total{server=\"0\"}"), pushed[0] + pushed[1]);
    assert_eq!(bytes(ports[3], "gradlane_worker_submissions_total{rank=\"1\"}"), 3);

    // The coordinator counts those that it refuses.
    let late = Credentials::enroll(&join, Role::Worker, PATIENCE).err();
    assert!(matches!(late, Some(Error::FailedPrecondition { .. })), "{late:?}");
    let text = until(ports[0], "/metrics", "gradlane_coordinator_running{job_name=\"default\"} 1");
    assert!(value(&text, "gradlane_coordinator_enrolments_refused_total{") >= 1, "{text}");
    for (name, expected) in [("members_missing", 0), ("workers_joined", 2), ("epoch", 1), ("losses_total", 0)] {
        assert_eq!(value(&text, &format!("gradlane_coordinator_{name}{{")), expected, "{name}");
    }
    assert!(value(&text, "gradlane_coordinator_frames_total{") > 3, "{text}");

    // The coordinator's address shows the whole job, and says who is silent.
    let sample = "gradlane_worker_submissions_total{rank=\"1\",role=\"worker\",index=\"1\"} 3\n";
    until(ports[0], "/job", sample);
    let received = "gradlane_server_received_bytes_total{server=\"0\",role=\"server\",index=\"0\"}";
    let text = until(ports[0], "/job", &format!("{received} {}\n", pushed[0] + pushed[1]));
    assert!(text.starts_with("# 3 of 3 members answered\n"), "{text}");
    let of = "rank=\"1\",role=\"worker\",index=\"1\"";
    until(ports[0], "/job", &format!("gradlane_worker_link_rtt_seconds{{{of},server=\"0\"}} 0."));
    let text = until(ports[0], "/job", &format!("gradlane_worker_clock_error_seconds{{{of}}} 0."));
    for sample in [
        format!("gradlane_worker_link_connects_total{{{of},server=\"0\"}} 1\n"),
        format!("gradlane_worker_link_limited_seconds_total{{{of},server=\"0\",by=\"app\"}} "),
        format!("gradlane_worker_stage_duration_seconds_count{{{of},stage=\"PUSH\"}} "),
        format!("process_cpu_seconds_total{{{of}}} "),
        "process_open_fds{server=\"0\",role=\"server\",index=\"0\"} ".to_owned(),
    ] {
        assert!(text.contains(&sample), "{sample}: {text}");
    }
    let seen = "gradlane_coordinator_member_last_seen_seconds{job_name=\"default\",role=\"worker\",index=\"1\"} ";
    until(ports[0], "/metrics", seen);
    assert_eq!(get(ports[1], "/job").0, 404, "a server knows itself alone");
    until(ports[0], "/metrics", "gradlane_coordinator_members_answered{job_name=\"default\"} 3");
    signal(second.pid(), "STOP");
    let text = until(ports[0], "/job", "# 2 of 3 members answered; missing: worker 1\n");
    assert!(!text.contains("rank=\"1\",role"), "what it told is old: {text}");
    signal(second.pid(), "CONT");
    until(ports[0], "/job", "# 3 of 3 members answered\n");

    // If a worker is lost, the others are not ready any more.
    signal(second.pid(), "KILL");
    until(ports[2], "/readyz", "worker: failed");
    assert_eq!(get(ports[2], "/readyz").0, 503);
    assert_eq!(get(ports[2], "/healthz").0, 200, "the process lives");
}

matrix! {
    [locally, over_shm, over_quic]:
        a_whole_job_is_scraped_while_it_trains;
}

fn a_whole_job_is_scraped_while_it_trains(over: Over) {
    // The launcher, two workers, and a server.
    let ports = ports(4);
    let bind = format!("127.0.0.1:{}", ports[0]);
    let line = ["run", "-n", "2", "-s", "1", "--metrics-bind", &bind, "--", ACTOR, "train", "0"];
    let mut launcher = Process::start(Path::new(ACTOR), &line, Path::new("/tmp"), &environment(&over.settings()));
    let mut ranks: Vec<String> = (0..2).map(|_| launcher.line()).collect();
    ranks.sort();
    assert!(ranks[0].starts_with("joined 0 ") && ranks[1].starts_with("joined 1 "), "{ranks:?}");
    for port in &ports {
        until(*port, "/readyz", "ready");
    }
    for (port, name) in [
        (ports[1], "gradlane_worker_resolved_total{rank=\"0\"}"),
        (ports[2], "gradlane_worker_resolved_total{rank=\"1\"}"),
        (ports[0], "gradlane_coordinator_frames_total{"),
    ] {
        let before = value(&get(port, "/metrics").1, name);
        eventually(&format!("{name} grows"), || (value(&get(port, "/metrics").1, name) > before).then_some(()));
    }
    assert!(get(ports[3], "/metrics").1.contains("gradlane_server_received_bytes_total{server=\"0\"} "));
    launcher.signal("TERM");
    assert_eq!(launcher.end().code, Some(128 + 15));
    for port in &ports {
        eventually("its port is free", || TcpListener::bind(("127.0.0.1", *port)).ok().map(drop));
    }
}

#[test]
fn a_process_with_several_parts_shows_them_at_one_port_which_is_free_after_the_last() {
    let port = ports(1)[0];
    let bind = format!("127.0.0.1:{port}");
    let config = config(Over::Quic, &[("metrics_bind", &bind)]);
    let plan = EmbeddedPlan {
        bind: "127.0.0.1:0".to_owned(),
        workers: 1,
        servers: 2,
        job: "night".to_owned(),
        coordinator_only: false,
    };
    let embedded = gradlane_session::Embedded::start(plan, config.clone()).unwrap();
    let (code, told) = get(port, "/readyz");
    assert_eq!((code, &*told), (503, "coordinator: ready\nserver: joining\nserver: joining\n"));

    let request = JoinRequest { rank: None, workers: 1, servers: 2, patience: PATIENCE, software: BTreeMap::new() };
    let found = Found::from(embedded.join().clone());
    let session = Session::join_beside(&embedded, found, request, config).unwrap();
    let ready = "coordinator: ready\nserver: ready\nserver: ready\nworker: ready\n";
    assert_eq!(until(port, "/readyz", ready), ready);
    let mut tensor = Tensor::new("weight", vec![1.0_f32; 1000]);
    session.submit(tensor.submission(Op::Sum), None, |_| {}).unwrap().wait(None).unwrap();
    let (_, text) = get(port, "/metrics");
    for name in [
        "gradlane_worker_submissions_total{rank=\"0\"} 1\n",
        "gradlane_server_received_bytes_total{server=\"0\"} ",
        "gradlane_server_received_bytes_total{server=\"1\"} ",
        "gradlane_coordinator_running{job_name=\"night\"} 1\n",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert_eq!(text.matches("# TYPE gradlane_server_received_bytes_total counter\n").count(), 1, "once for both");

    session.shutdown(PATIENCE).unwrap();
    let (_, text) = get(port, "/metrics");
    assert!(!text.contains("gradlane_worker_") && text.contains("gradlane_coordinator_"), "{text}");
    embedded.stop(PATIENCE).unwrap();
    drop(TcpListener::bind(("127.0.0.1", port)).expect("its port is free"));
}

#[test]
fn a_job_of_one_and_a_session_by_itself_are_shown_too() {
    let port = ports(1)[0];
    let config = config(Over::Quic, &[("metrics_bind", &format!("127.0.0.1:{port}"))]);
    let alone = Session::alone(&config).unwrap();
    assert_eq!(get(port, "/readyz"), (200, "worker: ready\n".to_owned()));
    assert!(get(port, "/metrics").1.contains("gradlane_worker_pushes_total{rank=\"0\"} 0\n"));
    alone.shutdown(PATIENCE).unwrap();

    let without = EmbeddedOptions { config: Config { metrics_bind: None, ..config.clone() }, workers: 1, servers: 1 };
    let other = Embedded::start(without).unwrap();
    let request = JoinRequest { rank: None, workers: 1, servers: 1, patience: PATIENCE, software: BTreeMap::new() };
    let session = Session::join(Found::from(other.join_string().clone()), request, config).unwrap();
    assert_eq!(get(port, "/readyz"), (200, "worker: ready\n".to_owned()), "the port was free");
    drop(session);
    drop(TcpListener::bind(("127.0.0.1", port)).expect("it is free again"));
}

#[test]
fn a_port_that_is_taken_stops_no_training_and_the_warning_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let line = ["run", "-n", "1", "--metrics-bind", &bind, "--", ACTOR, "train", "3"];
    let settings = environment(&Over::Quic.settings());
    let ended = Process::start(Path::new(ACTOR), &line, Path::new("/tmp"), &settings).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let warning = ended.complaints.lines().find(|line| line.contains("metrics are not shown"));
    assert!(warning.is_some_and(|line| line.contains(&bind) && line.contains("metrics_bind")), "{ended:?}");
}

#[test]
fn ports_beyond_the_last_are_refused_before_anything_is_started() {
    let line = ["run", "-n", "3", "--metrics-bind", "127.0.0.1:65534", "--", ACTOR, "train", "3"];
    let ended = Process::start(Path::new(ACTOR), &line, Path::new("/tmp"), &[]).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.complaints.contains("metrics_bind") && ended.complaints.contains("65534"), "{ended:?}");
    assert_eq!(ended.output, [""; 0]);
}

/// The page once it has this text.
fn until(port: u16, path: &str, wanted: &str) -> String {
    eventually(&format!("{path} says {wanted}"), || {
        let (_, body) = ask(port, path)?;
        body.contains(wanted).then_some(body)
    })
}

/// The status and the body of a page.
pub(crate) fn get(port: u16, path: &str) -> (u16, String) {
    ask(port, path).unwrap_or_else(|| panic!("nobody answers at {port}"))
}

/// `None` if nobody listens.
fn ask(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    match head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()? {
        // This thread was too slow.
        408 => ask(port, path),
        status => Some((status, body.to_owned())),
    }
}

/// The value of the one sample whose line begins like this.
fn value(text: &str, start: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(start));
    let line = lines.next().unwrap_or_else(|| panic!("no {start} in {text}"));
    assert_eq!(lines.next(), None, "one of {start}");
    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
}

/// So many free ports that follow each other. They are below those that the system gives out by itself.
pub(crate) fn ports(count: u16) -> Vec<u16> {
    use std::sync::atomic::{AtomicU16, Ordering};
    /// Tests of one process do not ask for the same ones.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 20_000 + (std::process::id() % 500) as u16 * 20;
    let block = || {
        let first = start + NEXT.fetch_add(count, Ordering::Relaxed);
        let ports: Vec<u16> = (first..first + count).collect();
        ports.iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).then_some(ports)
    };
    std::iter::repeat_with(block).take(100).flatten().next().expect("some ports are free")
}
