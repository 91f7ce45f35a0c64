//! What a process of this machine can do at the socket of a server and in memory of its own, while others reduce through shared memory.

use std::fs::Permissions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::local::socket::FDS_MAX;
use gradlane_core::local::{Connection, Segment};
use gradlane_core::transport::shm::vandal::{GREETED_BYTES, Vandal, greet_with, greeting_text, waker};
use gradlane_core::types::Process;
use gradlane_core::wire::Request;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, all, config};
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::{rounds, skip};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, Resource, Rlimit, Uid};

use crate::actors::server as process;

use super::{beside, enrolled, push, server};

/// Kinds of messages, and where the words of a segment lie, as `core/src/transport/shm/layout.rs` has them.
const OPEN: u64 = 1;
const DATA: u64 = 3;
const ABANDON: u64 = 5;
const LENT: u64 = 8;
const SENT: usize = 128;
const STARVED: usize = 512;

/// What a member tells by its socket: why the link ends, and another segment.
const REASON: u8 = 1;
const SHOWN: u8 = 2;

#[test]
fn a_server_without_a_free_descriptor_does_not_spin_over_a_process_that_connects() {
    let runtime = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { config: config(Over::Shm, &[]), workers: 1, servers: 1 };
    let job = Embedded::start_coordinator(&options).unwrap();
    let server = process(Over::Shm, job.join_string(), 0, &[("runtime_dir", runtime.path().to_str().unwrap())]);
    let path = eventually("the server joins", || {
        let status = job.status().unwrap();
        status.view.servers().next().map(|member| socket_of(&member.process))
    });
    // It has that of this process.
    let usual = rustix::process::getrlimit(Resource::Nofile);
    let limit = |limit| {
        rustix::process::prlimit(Pid::from_raw(server.pid().cast_signed()), Resource::Nofile, limit).unwrap();
    };
    limit(Rlimit { current: Some(3), maximum: usual.maximum });
    let connect = || Connection::connect(Path::new(&path), PATIENCE).unwrap();
    let silent = connect();
    let before = processor_ticks(server.pid());
    crossbeam_channel::after(Duration::from_secs(1)).recv().unwrap();
    let spent = processor_ticks(server.pid()) - before;
    assert!(spent < 20, "{spent} hundredths of a second of processor time within a second");
    limit(usual);
    // Both are accepted now. They say nothing, so they are turned away.
    for connection in [connect(), silent] {
        assert!(connection.recv(&mut [0; 8], PATIENCE).unwrap().is_none());
    }
}

/// The processor time of a process, in hundredths of a second: `utime` and `stime` of proc_pid_stat(5).
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn garbage_and_silence_at_the_socket_disturb_no_sum() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let path = socket_path(&cluster);
    let connect = || Connection::connect(Path::new(&path), PATIENCE).unwrap();
    beside(&cluster, || {
        let file = tempfile::tempfile().unwrap();
        for garbage in [
            b"GET / HTTP/1.1\r\nHost: gradlane\r\n\r\n".to_vec(),
            vec![0],
            // A record of TLS that never ends, and one that no buffer holds.
            vec![0x16, 3, 1, 0xff, 0xff],
            vec![0x16; 70_000],
        ] {
            for fds in [0, 1, FDS_MAX] {
                let rude = connect();
                rude.send(&garbage, &vec![file.as_fd(); fds], PATIENCE).unwrap();
                while rude.recv(&mut [0; 1 << 10], PATIENCE).unwrap().is_some() {}
            }
        }
        // More than are greeted at once.
        let silent: Vec<Connection> = (0..100).map(|_| connect()).collect();
        for connection in silent {
            assert!(connection.recv(&mut [0; 8], PATIENCE).unwrap().is_none(), "who says nothing is turned away");
        }
    });
    let member = enrolled(&cluster);
    eventually("the socket is served", || Vandal::greet(&path, &member).ok());
}

#[test]
fn a_process_of_another_user_reaches_nobody() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip("needs root: to act as another user");
    }
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let path = socket_path(&cluster);
    let another = |act: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let act = || {
                let nobody = Uid::from_raw(65_534);
                // The kernel changes it for this thread only.
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                act();
            };
            scope.spawn(act).join().unwrap();
        });
    };
    another(&|| {
        let error = Connection::connect(Path::new(&path), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("Permission denied"), "{error}");
    });
    // The permissions of the directory are not the only protection.
    let open = |path: &Path| std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    open(Path::new(&path));
    open(Path::new(&path).parent().unwrap());
    beside(&cluster, || {
        another(&|| {
            let error = Connection::connect(Path::new(&path), PATIENCE).unwrap_err();
            assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("65534")), "{error}");
            // Who does not look is looked at.
            let kind = SocketType::SEQPACKET;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str()).unwrap()).unwrap();
            let (bytes, _) = rustix::net::recv(&socket, &mut [0; 8], RecvFlags::empty()).unwrap();
            assert_eq!(bytes, 0, "turned away without a word");
        });
    });
}

#[test]
fn a_member_of_another_job_gets_no_link() {
    let (cluster, other) = (Cluster::start(Over::Shm, 2, 1), Cluster::start(Over::Shm, 1, 1));
    beside(&cluster, || {
        let error = Vandal::greet(&socket_path(&cluster), &enrolled(&other)).err().expect("refused");
        assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("another job")), "{error}");
    });
}

#[test]
fn a_greeting_that_breaks_the_rules_is_refused_with_the_reason() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let (path, member) = (socket_path(&cluster), enrolled(&cluster));
    let file = tempfile::tempfile().unwrap();
    let waker = waker();
    let [right, short] = [GREETED_BYTES, 4096].map(|bytes| Segment::create_to_show(bytes).unwrap());
    let (right, short) = (right.fd(), short.fd());
    let writable = Segment::create(GREETED_BYTES).unwrap();
    let unsealed = shrinking_memory(GREETED_BYTES);
    let (file, waker, unsealed) = (file.as_fd(), waker.as_fd(), unsealed.as_fd());
    let other_layout = [greeting_text()[0], 0xff, 0xff, 0xff, 0xff];
    let cases: &[(&[u8], &[BorrowedFd<'_>], &str)] = &[
        (&greeting_text(), &[], "descriptors"),
        (&greeting_text(), &[right], "descriptors"),
        (&greeting_text(), &[right, waker, waker], "descriptors"),
        (&greeting_text(), &[waker, right], "waker"),
        (&greeting_text(), &[right, file], "waker"),
        (&greeting_text(), &[file, waker], "shared memory"),
        (&greeting_text(), &[unsealed, waker], "may change its length"),
        (&greeting_text(), &[writable.fd(), waker], "may be written by others"),
        (&greeting_text(), &[short, waker], "has 4096 bytes"),
        (&other_layout, &[right, waker], "layout"),
        (b"\x07nothing that is known", &[right, waker], "greeting"),
    ];
    beside(&cluster, || {
        for (text, fds, names) in cases {
            let error = greet_with(&path, &member, text, fds).expect_err(names);
            assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{names}: {error}");
            assert!(error.to_string().contains(names), "{names}: {error}");
        }
    });
}

#[test]
fn messages_that_break_the_rules_end_their_link_and_nothing_else() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let (path, member) = (socket_path(&cluster), enrolled(&cluster));
    let segment = Segment::create_to_show(8192).unwrap();
    let (cells, room) = (288, 128 << 10);
    let cases: &[(&[u64], &str)] = &[
        (&[DATA, 1, 0, 4], "not opened"),
        (&[ABANDON, 0], "not opened"),
        (&open(2), "after 0"),
        (&[&[OPEN, 1][..], &[0xaaaa; 8]].concat(), "magic"),
        (&[DATA, 1, cells, 4], "cell"),
        (&[DATA, 1, 0, room + 1], "length"),
        (&[DATA, 1, u64::MAX, u64::MAX], "cell"),
        (&[99, 1], "kind"),
        (&[ABANDON, 1, 0, 0, 0, 7], "reserved"),
        (&[LENT, 1, 0, 4, 5, 0], "not shown"),
        (&[LENT, 1, 0, 4, u64::MAX, 0], "segment"),
        (&[LENT, 1, 448, 4, 0, 0], "ticket"),
        (&[LENT, 1, 0, 8193, 7, 0], "outside"),
        (&[LENT, 1, 0, 4, 7, u64::MAX], "outside"),
        (&[LENT, 1, 0, 4, 7, 8189], "outside"),
    ];
    beside(&cluster, || {
        for (words, names) in cases {
            let vandal = Vandal::greet(&path, &member).unwrap();
            vandal.tell(&shown(7, 8192), &[segment.fd()], PATIENCE).unwrap();
            vandal.say(0, words);
            ends(&vandal, names);
        }
        for count in [5000, u64::MAX] {
            let vandal = Vandal::greet(&path, &member).unwrap();
            vandal.scribble(SENT, count);
            ends(&vandal, "ring");
        }
    });
}

#[test]
fn segments_that_cannot_be_shown_end_their_link_and_nothing_else() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let (path, member) = (socket_path(&cluster), enrolled(&cluster));
    let right = Segment::create_to_show(8192).unwrap();
    let writable = Segment::create(8192).unwrap();
    let unsealed = shrinking_memory(8192);
    let file = tempfile::tempfile().unwrap();
    let cases: &[(&[u8], &[BorrowedFd<'_>], &str)] = &[
        (b"GET / HTTP/1.1\r\n\r\n", &[], "message"),
        (&shown(1, 8192), &[], "message"),
        (&shown(1, 8192)[..9], &[right.fd()], "message"),
        (&shown(1, 8192), &[file.as_fd()], "shared memory"),
        (&shown(1, 8192), &[unsealed.as_fd()], "may change its length"),
        (&shown(1, 8192), &[writable.fd()], "may be written by others"),
        (&shown(1, u64::MAX), &[right.fd()], "has 8192 bytes"),
        (&shown(1, 4096), &[right.fd()], "has 8192 bytes"),
        (&[&[REASON][..], &[0xff; 100]].concat(), &[], ""),
        (&[0xff; 70_000], &[], "longer"),
    ];
    beside(&cluster, || {
        for (text, fds, names) in cases {
            let vandal = Vandal::greet(&path, &member).unwrap();
            vandal.tell(text, fds, PATIENCE).unwrap();
            ends(&vandal, names);
        }
        let twice = Vandal::greet(&path, &member).unwrap();
        for _ in 0..2 {
            twice.tell(&shown(1, 8192), &[right.fd()], PATIENCE).unwrap();
        }
        ends(&twice, "shown before");
    });
}

#[test]
fn a_waker_that_blocks_the_server_stops_nobody() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let vandal = Vandal::greet(&socket_path(&cluster), &enrolled(&cluster)).unwrap();
    beside(&cluster, || starve(&vandal));
}

#[test]
fn a_waker_that_begins_to_block_while_it_is_used_stops_nobody() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let vandal = Vandal::greet(&socket_path(&cluster), &enrolled(&cluster)).unwrap();
    beside(&cluster, || {
        starve(&vandal);
        let (late, over) = (crossbeam_channel::after(PATIENCE), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _stop = Stop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    vandal.toggle_waker();
                }
            });
            vandal.flood(1, &[ABANDON, 1], |count| count < 20_000 && late.try_recv().is_err()).unwrap();
        });
    });
}

/// Fills the waker, and waits for room, so that the server uses the waker after each message that it reads.
fn starve(vandal: &Vandal) {
    vandal.jam_waker();
    vandal.scribble(STARVED, 1);
    vandal.say(0, &open(1));
}

#[test]
fn a_worker_that_never_stops_talking_keeps_nobody_waiting() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    let vandal = Vandal::greet(&socket_path(&cluster), &enrolled(&cluster)).unwrap();
    vandal.say(0, &open(1));
    let (said, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop = Stop(&over);
        // An exchange may be given up however often.
        let flood = scope.spawn(|| {
            vandal.flood(1, &[ABANDON, 1], |count| {
                said.store(count, Ordering::Relaxed);
                !over.load(Ordering::Relaxed)
            })
        });
        eventually("rings full of messages", || (said.load(Ordering::Relaxed) > 5000).then_some(()));
        let sums = all(&cluster.workers, |engine| {
            (0..20).try_for_each(|round| rounds::begin(engine, "weight", round, 100_000)?.check())
        });
        assert_eq!(sums, vec![Ok(()); 2]);
        drop(stop);
        assert_eq!(flood.join().unwrap(), Ok(()));
    });
}

/// Ends what goes on until then, when it is dropped: also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server ends the link and tells why.
fn ends(vandal: &Vandal, names: &str) {
    let error = vandal.end_reason(PATIENCE).unwrap_or_else(|error| panic!("{names}: {error}"));
    assert!(matches!(error, Error::Protocol { .. }), "{names}: {error}");
    assert!(error.to_string().contains(names), "{names}: {error}");
}

/// The message that opens this exchange.
fn open(exchange: u64) -> Vec<u64> {
    let header = Request::Contribute(push()).encode();
    let words = header.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    [OPEN, exchange].into_iter().chain(words).collect()
}

/// What comes with another segment.
fn shown(segment: u32, bytes: u64) -> Vec<u8> {
    [SHOWN].into_iter().chain(segment.to_le_bytes()).chain(bytes.to_le_bytes()).collect()
}

/// Memory that its maker may cut while others read it.
fn shrinking_memory(bytes: u64) -> OwnedFd {
    let memory = rustix::fs::memfd_create(c"shrinking", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    memory
}

/// The socket of the server.
fn socket_path(cluster: &Cluster) -> String {
    socket_of(&server(cluster).process)
}

fn socket_of(process: &Process) -> String {
    process.socket_path().expect("it listens there").to_owned()
}
