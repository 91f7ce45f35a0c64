//! A process that is one rank of a machine with devices, directed by a test.
//!
//! Its arguments are its position, the number of ranks, how long an operation may take in milliseconds, and the socket path of the first;
//! the first listens itself and says where. It says `joined`, and then does what standard input says, one order a line:
//! - `sum <key>`, of floats, and `mean <key>`, of integers below zero: reduces, checks and says how it ended;
//! - `begin <key>`: says `issued` once that is on its device, and then how it ended; `begin-late` does so after a kernel that takes hours;
//! - `hold`: fills the queue with something that does not go on, and says `held`; then
//!   - `crowd <count>`: begins so many operations, and says `ready` once the first rank knows of them;
//!   - `tensor <parts>`: does the same with so many parts of 4 MiB of one tensor;
//!   - `finish`: lets all go on, checks them and says how many they were, in how many groups, with how many calls of `ncclAllReduce`;
//!   - `go-on [<count>]`: lets so many go on, or all, and says `going`;
//!   - `abort`: ends the job and says `aborted`;
//!   - `outcomes`: says how they ended;
//! - `abort-slowly`: lets NCCL go on with what is under way when it is aborted, and says `slow`; then
//!   - `reuse`: does as a framework whose operation has failed: writes something else to its memory and says `reused`, or `kept` if it must
//!     not yet;
//!   - `stop`: lets NCCL stop, waits until it has, and says whether what was written there is `intact`;
//! - `contexts`: waits until NCCL has ended its communicators, and says how many contexts it made because a thread had none;
//! - `leave`: leaves the others and says what is left; then
//!   - `threads`: waits until the thread that issues to NCCL has ended, and says which ones are left of those that end communicators;
//! - `pin`: pins memory of the host and says `pinned`; `end`: ends everything, says `ended`, and takes no more orders.

use std::path::PathBuf;
use std::time::Duration;

use gradlane_core::collective::Collective;
use gradlane_core::local::PrivateSocket;
use gradlane_core::types::{DType, Op};

use crate::device_crowd::{Crowd, Finished, end_of_job};
use crate::devices::{DeviceRank, Wanted, config, element, ended, told};
use crate::fakes;
use crate::patience::eventually;

/// Plays the part until standard input ends. `say` writes a line.
///
/// # Panics
/// If an order is not understood, or a result is wrong.
pub fn play(words: &[&str], say: &dyn Fn(&str)) {
    let [rank, ranks, step_ms, path] = words else { panic!("{words:?} are no words for a rank") };
    let (rank, ranks): (usize, usize) = (number(rank), number(ranks));
    let listener = (rank == 0).then(|| PrivateSocket::listen(&std::env::temp_dir()).expect("listens"));
    let path = listener.as_ref().map_or_else(|| PathBuf::from(path), |listener| listener.path().to_owned());
    if rank == 0 {
        say(path.to_str().expect("a path of ours"));
    }
    let control = fakecuda::Control::open(&fakes::fakecuda());
    control.initialize();
    let device = (control, u16::try_from(rank).expect("few"));
    let patience = Duration::from_millis(number(step_ms));
    let member = DeviceRank::join((rank, ranks), (listener, &path), device, &config(), patience).expect("joins");
    let nccl = fakenccl::Control::open(&fakes::fakenccl());
    say("joined");
    let mut crowd: Option<Crowd<'_>> = None;
    let mut lent = 0;
    for line in std::io::stdin().lines() {
        let line = line.expect("the test writes text");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["sum", key] => {
                let expected = element(DType::F32, all(ranks)).repeat(LEN);
                say(&reduced(&member, &Wanted::sum(number(key), DType::F32), &contribution(rank), &expected));
            }
            ["mean", key] => {
                let wanted = Wanted { op: Op::Mean, ..Wanted::sum(number(key), DType::I32) };
                let data = element(DType::I32, -f64::from(1_u32 << rank)).repeat(LEN);
                let expected = element(DType::I32, (-all(ranks) / ranks as f64).floor()).repeat(LEN);
                say(&reduced(&member, &wanted, &data, &expected));
            }
            [begin @ ("begin" | "begin-late"), key] => {
                let runs = [(member.place(&contribution(rank)), 4 * LEN)];
                lent = runs[0].0;
                let stream = member.control.user_stream(i32::from(member.device.0));
                if begin == "begin-late" {
                    member.control.lag(stream, HOURS_US);
                    member.control.produce(i32::from(member.device.0), stream, runs[0].0, &contribution(rank));
                }
                let before = nccl.counter("ncclAllReduce");
                let wanted = Wanted::sum(number(key), DType::F32);
                let outcome = member.begin_after(&wanted, &runs, &runs, member.mark(stream));
                eventually("it is on the device", || (nccl.counter("ncclAllReduce") > before).then_some(()));
                say("issued");
                say(&told(&ended(&outcome)));
            }
            ["hold"] => {
                crowd = Some(Crowd::held(&member, &nccl, (rank, ranks)));
                say("held");
            }
            ["abort"] => {
                member.collective.abort(end_of_job());
                say("aborted");
            }
            ["crowd" | "tensor" | "finish" | "go-on" | "outcomes", ..] => {
                direct(crowd.as_mut().expect("the queue is held"), &line, say);
            }
            ["abort-slowly"] => {
                nccl.set("ABORT_US", &HOURS_US.to_string());
                say("slow");
            }
            ["reuse"] if member.doubt.exists() => say("kept"),
            ["reuse"] => {
                member.control.produce(i32::from(member.device.0), 0, lent, &another(rank));
                say("reused");
            }
            ["stop"] => {
                nccl.set("ABORT_US", "0");
                eventually("it has stopped", || (nccl.counter("live_comms") == 0).then_some(()));
                eventually("nothing is in doubt", || (!member.doubt.exists()).then_some(()));
                let is_intact = member.bytes(lent, 4 * LEN) == another(rank);
                say(if is_intact { "intact" } else { "written" });
            }
            ["contexts"] => {
                eventually("it has ended", || (nccl.counter("live_comms") == 0).then_some(()));
                say(&format!("{} contexts", nccl.counter("contexts_made")));
            }
            ["pin"] => {
                member.pin();
                say("pinned");
            }
            ["end"] => break,
            ["leave"] => {
                member.collective.shutdown();
                say(&format!("left, {} communicators are alive", nccl.counter("live_comms")));
            }
            ["threads"] => {
                eventually("the queue has ended", || (!threads_of_nccl().contains(&ISSUER.to_owned())).then_some(()));
                say(&format!("left are {:?}", threads_of_nccl()));
            }
            _ => panic!("{line:?} is no order"),
        }
    }
    member.leave();
    drop(member);
    say("ended");
}

fn direct(crowd: &mut Crowd<'_>, order: &str, say: &dyn Fn(&str)) {
    match order.split(' ').collect::<Vec<_>>()[..] {
        ["crowd", count] => {
            crowd.submit(number(count));
            say("ready");
        }
        ["tensor", parts] => {
            crowd.submit_tensor(number(parts));
            say("ready");
        }
        ["finish"] => {
            let Finished { exact, groups, all_reduces } = crowd.finish();
            say(&format!("{exact} exact in {groups} groups with {all_reduces} ncclAllReduce"));
        }
        ["go-on"] => {
            crowd.go_on(None);
            say("going");
        }
        ["go-on", count] => {
            crowd.go_on(Some(number(count)));
            say("going");
        }
        ["outcomes"] => say(&crowd.outcomes()),
        _ => panic!("{order:?} is no order"),
    }
}

/// The thread of a queue.
const ISSUER: &str = "gl-nccl";

/// The names of the threads that call NCCL.
fn threads_of_nccl() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists the threads of a process");
    // A thread may end meanwhile.
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).ok();
    let names = threads.filter_map(|thread| name(thread.ok()?)).map(|name| name.trim_end().to_owned());
    names.filter(|name| name.starts_with(ISSUER)).collect()
}

const LEN: usize = 1001;
const HOURS_US: u64 = 10_000_000_000;

/// How it ended, after a look at what came of it.
fn reduced(member: &DeviceRank, wanted: &Wanted, data: &[u8], expected: &[u8]) -> String {
    let address = member.place(data);
    let outcome = member.reduce(wanted, &[(address, data.len())]);
    if outcome.is_ok() {
        assert!(member.bytes(address, data.len()) == expected, "a wrong result");
    }
    told(&outcome)
}

/// What all contributions add up to.
fn all(ranks: usize) -> f64 {
    (1 << ranks) as f64 - 1.0
}

/// What a framework writes next where a contribution was.
fn another(rank: usize) -> Vec<u8> {
    element(DType::F32, -f64::from(1_u32 << rank)).repeat(LEN)
}

fn contribution(rank: usize) -> Vec<u8> {
    element(DType::F32, f64::from(1_u32 << rank)).repeat(LEN)
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}
