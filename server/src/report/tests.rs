use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::metrics::{Instance, ServerMetrics, Value, WorkerMetrics};
use gradlane_core::types::{
    self, Cause, Epoch, Incarnation, Member, NodeId, Phase, Process, Role, Round, Time, View, whole_ns,
};
use gradlane_core::wire::frame::{Health, MemberStatus, Progress, Status};

use super::compare::compare;
use super::files::{Directory, read};
use super::making::{Known, Told};
use super::{Report, Setting, Setup};

mod comparing;

#[test]
fn a_report_says_who_held_the_job_up_and_has_every_number() {
    let report = Job::default().report();
    assert_eq!(report.verdict, "rank 1 late (submit) 40.0 ms a step");
    assert_eq!((report.steps, report.duration_ns, report.formation), (100, 10_000_000_000, 1));
    assert_eq!((report.end.how.as_str(), report.end.reason.as_deref()), ("ended", None));
    assert_eq!(report.exposed, Some(0.25));
    assert_eq!((report.push_pull.count, report.push_pull.mean_ns()), (200, Some(3_000_000)));
    assert_eq!((report.round.count, report.round.mean_ns()), (100, Some(2_000_000)));
    let late: BTreeMap<String, u64> = [("submit".to_owned(), 4_000_000_000)].into();
    assert_eq!((&report.ranks[1].late_ns, report.ranks[1].late_in_step_ns), (&late, Some(40_000_000)));
    assert_eq!((report.ranks[0].late_ns.len(), report.ranks[0].push_bytes), (0, Some(4096)));
    assert_eq!((report.servers[0].received_bytes, report.servers[0].sums), (Some(8192), 100));
    assert_eq!(report.servers[0].lanes_busy, Some(0.5));
    let told: Vec<_> = report.members.iter().map(|member| member.told_before_end_ns).collect();
    assert_eq!((told, report.silent.len()), (vec![Some(1_000_000_000); 3], 0));
    assert_eq!(report.members[1].metrics["push_bytes"], 4096);
    assert_eq!(report.members[2].metrics["late_nanoseconds{1,submit}"], 4_000_000_000);
}

#[test]
fn what_servers_and_processes_count_besides_is_no_delay_of_a_worker() {
    let job = Job { servers: 2, late: Duration::ZERO, ..Job::default() };
    let report = job.report_with(|told| {
        let server = ServerMetrics::default();
        server.round_duration_nanoseconds.add(Duration::from_millis(2));
        server.late_nanoseconds.add(1, Cause::Sum, Duration::from_secs(5));
        told.get_mut(&(Role::Server, 1)).unwrap().last = Arc::new(server.instance(1));
        let worker = told.get_mut(&(Role::Worker, 1)).unwrap();
        let delayed = job.delayed(1, 9_000_000_000);
        (worker.first, worker.last) = (Arc::clone(&delayed), delayed);
    });
    assert_eq!((report.servers[0].behind_ns, report.servers[1].behind_ns), (0, 5_000_000_000));
    assert!(report.ranks.iter().all(|rank| rank.late_ns.is_empty()), "{:?}", report.ranks);
    assert_eq!(report.verdict, "server 1 is behind with its additions, 50.0 ms a step");

    let late = Job::default();
    let before_the_job = late.report_with(|told| {
        let worker = told.get_mut(&(Role::Worker, 1)).unwrap();
        (worker.first, worker.last) = (late.delayed(1, 9_000_000_000), late.delayed(1, 9_000_000_000));
    });
    assert_eq!(before_the_job.verdict, "rank 1 late (submit) 40.0 ms a step");
    let in_the_job = late.report_with(|told| {
        let worker = told.get_mut(&(Role::Worker, 1)).unwrap();
        (worker.first, worker.last) = (late.delayed(1, 0), late.delayed(1, 9_000_000_000));
    });
    assert!(in_the_job.verdict.ends_with(": its threads wait for a core, 1.0 s in a second"), "{}", in_the_job.verdict);
}

#[test]
fn a_report_is_read_as_it_was_written() {
    let report = Job::default().report();
    assert_eq!(Report::parse(&report.to_json()), Ok(report));
}

#[test]
fn the_page_is_short_and_the_verdict_is_first() {
    let job =
        Job { ended: Phase::Aborted(Error::Cancelled), losses: vec!["worker 1 on n1".to_owned()], ..Job::default() };
    let page = job.report().page();
    let expected = format!(
        "\
VERDICT rank 1 late (submit) 40.0 ms a step
job night failed after 10.0 s; it began 2026-11-30T16:08:48Z
reason: {}
lost worker 1 on n1
2 workers and 1 servers on n0, n1
100 steps, 100 ms each; workers waited 25 % of it
push_pull: 200 operations, mean 3.0 ms, p50 about 2.0 ms, p99 about 4.0 ms
round: 100 sums of parts, mean 2.0 ms, p50 about 2.0 ms, p99 about 4.0 ms
rank 1 on n1: late 40.0 ms a step (submit 100 %), waited 25 %, sent 4 KiB, got 4 KiB; told 1.0 s before the end
rank 0 on n0: waited 25 %, sent 4 KiB, got 4 KiB; told 1.0 s before the end
server 0 on n0: 100 sums, got 8 KiB, sent 8 KiB, lanes busy 50 %
all: gradlane 0.1.0, kernel 6.1, credit_bytes=8 MiB (argument)
workers: torch 2.13
",
        Error::Cancelled
    );
    assert_eq!(page, expected);
}

#[test]
fn a_page_of_a_large_job_counts_what_it_leaves_out() {
    let job = Job { workers: 900, losses: (0..30).map(|rank| format!("worker {rank}")).collect(), ..Job::default() };
    let page = job.report().page();
    assert!(page.lines().count() <= 24, "{page}");
    assert!(page.contains("and 896 more workers\n") && page.contains("and 26 more were lost\n"), "{page}");
}

#[test]
fn members_that_told_nothing_are_named() {
    let job = Job { silent: vec![(Role::Worker, 1), (Role::Server, 0)], ..Job::default() };
    let report = job.report();
    assert_eq!((report.verdict.as_str(), report.steps), ("no sum of several workers ended", 100));
    let page = report.page();
    assert!(page.contains("\n1 of 3 members told their metrics; not worker 1, server 0\n"), "{page}");
    assert!(page.contains("rank 1 on n1: told nothing\n") && page.contains("server 0 on n0: told nothing\n"), "{page}");
}

#[test]
fn a_job_that_never_formed_has_a_report() {
    let waited = Duration::from_secs(10);
    let ended = Phase::Aborted(Error::NotFormed { missing: vec!["worker 1".to_owned()], waited });
    let job = Job { workers: 0, servers: 0, formed: None, ended, ..Job::default() };
    let report = job.report();
    assert_eq!((report.formation, report.steps, report.step_ns(), report.exposed), (0, 0, None, None));
    assert_eq!((report.duration_ns, report.end.how.as_str()), (12_000_000_000, "failed"));
    assert!(report.page().contains(", and never formed\nreason: "), "{}", report.page());
    assert_eq!(Report::parse(&report.to_json()), Ok(report));
}

#[test]
fn a_job_failed_if_processes_fail_after_they_have_left() {
    let failures = vec!["worker 0 exited with code 3".to_owned(), "worker 1 exited with code 3".to_owned()];
    let left = Job { failures, ..Job::default() };
    let end = left.report().end;
    assert_eq!((end.how.as_str(), end.reason.unwrap().as_str()), ("failed", &*left.failures.join("; ")));
    let again = Job { ended: Phase::FormsAgain, ..left };
    assert_eq!(again.report().end.how, "forms again", "it goes on without them");
}

#[test]
fn a_coordinator_that_took_over_says_that_times_are_not_whole() {
    let report = Job { formed: None, is_resumed: true, ..Job::default() }.report();
    assert!(!report.whole && report.page().contains("another coordinator led the job before"), "{}", report.page());
}

#[test]
fn a_page_names_the_processes_that_differ_from_the_others() {
    let report = Job { workers: 4, torch: vec!["2.13", "2.12", "2.13"], ..Job::default() }.report();
    assert_eq!(report.members[1].setup.as_ref().unwrap().versions["torch"], "2.12");
    let page = report.page();
    assert!(page.ends_with("\nworkers 0, 2, 3: torch 2.13\nworker 1: torch 2.12\n"), "{page}");

    let told_nothing = Job { silent: vec![(Role::Worker, 1)], ..Job::default() }.report();
    assert_eq!(told_nothing.members[1].setup, None);
    assert!(told_nothing.page().ends_with("\nworker 0: torch 2.13\n"), "{}", told_nothing.page());

    let torch: Vec<&str> = (0..60).map(|rank| &"2.00112233445566778899"[..4 + rank % 15]).collect();
    let page = Job { workers: 60, torch, ..Job::default() }.report().page();
    assert!(page.ends_with("\nand 8 more groups of processes with other versions or settings\n"), "{page}");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let job = Job { host: "n\x1b[2J\n".to_owned(), losses: vec!["a\x07".to_owned()], ..Job::default() };
    let report = Job { torch: vec!["2\x1b[2J\n", "2\x07"], ..job }.report();
    let page = report.page();
    assert!(page.chars().all(|char| char == '\n' || !char.is_control()), "{page:?}");
    assert_eq!(page.lines().filter(|line| line.starts_with("rank ")).count(), 2, "{page}");
}

#[test]
fn a_foreign_report_cannot_steer_the_terminal() {
    let a = Job::default().report();
    let mut b = a.clone();
    b.verdict = "\x1b[2J".to_owned();
    b.setup.settings.insert("a\x07".to_owned(), Setting { value: "b\n".to_owned(), origin: "c\r".to_owned() });
    let text = compare(&a, &Report::parse(&b.to_json()).unwrap()).text();
    assert!(text.contains("setting a\\u{7} of the coordinator: default -> b\\n\n"), "{text}");
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
    let newer = Report { schema: 3, setup: running(&[("gradlane", &"9\n".repeat(100))]), ..a };
    let error = Report::parse(&newer.to_json()).unwrap_err();
    assert!(error.len() < 120 && !error.contains('\n'), "{error}");
}

#[test]
fn what_is_no_report_is_refused_with_the_reason() {
    let good = Job::default().report().to_json();
    for (text, problem) in [
        (good[..good.len() / 2].to_owned(), "is cut off"),
        (String::new(), "is cut off"),
        ("{".to_owned(), "is cut off"),
        ("no".to_owned(), "is no report"),
        ("[]".to_owned(), "is no report: it does not say so"),
        ("{\"form\": \"gradlane report\"}".to_owned(), "names no schema"),
        (good.replace("\"schema\": 2", "\"schema\": 3"), "has schema 3, and this is 2; compare it with Gradlane 0.1.0"),
        (good.replace("\"steps\": 100", "\"steps\": -1"), "is no whole report"),
    ] {
        let error = Report::parse(&text).unwrap_err();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn a_report_never_takes_the_name_of_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Directory::open(&dir.path().join("not/there")).unwrap();
    let report = Job::default().report();
    let first = directory.write(&report).unwrap();
    let second = directory.write(&report).unwrap();
    std::fs::write(first.with_file_name("night-20261130T160848Z-3.txt"), "mine").unwrap();
    let third = directory.write(&report).unwrap();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let names = [&first, &second, &third].map(|path| name(path));
    assert_eq!(names, ["", "-2", "-4"].map(|end| format!("night-20261130T160848Z{end}.json")));
    assert_eq!(std::fs::read_to_string(first.with_extension("txt")).unwrap(), report.page());
    assert_eq!(std::fs::read_to_string(first.with_file_name("night-20261130T160848Z-3.txt")).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(first.parent().unwrap()).unwrap().count(), 7, "no draft is left");
    assert_eq!(read(&second), Ok(report));
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_and_so_is_one_without_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [&file, &file.join("below")] {
        let error = Directory::open(path).unwrap_err();
        assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("setting report"), "{error}");
    }
    assert!(matches!(read(&dir.path().join("nothing")), Err(Error::Io { .. })));
    assert!(matches!(read(&file), Err(Error::InvalidArgument { what, .. }) if what.contains("is cut off")));
    assert!(matches!(read(dir.path()), Err(Error::NotFound { .. })));
    let directory = Directory::open(dir.path()).unwrap();
    let report = Job::default().report();
    directory.write(&report).unwrap();
    assert_eq!(read(dir.path()), Ok(report.clone()));
    directory.write(&report).unwrap();
    let error = read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("has 2 files") && error.contains("Z.json"), "{error}");
}

/// A job that has ended, whose metrics are counted as its processes count them. Each worker is on a host of its own.
pub(crate) struct Job {
    workers: u32,
    servers: u32,
    steps: u64,
    /// From its formation to its end.
    seconds: u64,
    /// How late rank 1 was in each round.
    late: Duration,
    formed: Option<Time>,
    ended: Phase,
    is_resumed: bool,
    losses: Vec<String>,
    /// The processes that failed after they had left.
    failures: Vec<String>,
    silent: Vec<(Role, u32)>,
    credit: Option<&'static str>,
    /// The version of PyTorch of each worker; those beyond have the last.
    torch: Vec<&'static str>,
    /// How names of hosts begin.
    host: String,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            workers: 2,
            servers: 1,
            steps: 100,
            seconds: 10,
            late: Duration::from_millis(40),
            formed: Some(Time(3_000_000_000)),
            ended: Phase::Ended,
            is_resumed: false,
            losses: Vec::new(),
            failures: Vec::new(),
            silent: Vec::new(),
            credit: Some("8 MiB"),
            torch: vec!["2.13"],
            host: "n".to_owned(),
        }
    }
}

impl Job {
    pub(crate) fn report(&self) -> Report {
        self.report_with(|_| {})
    }

    /// The report, where members have told something else.
    fn report_with(&self, change: impl FnOnce(&mut BTreeMap<(Role, u32), Told>)) -> Report {
        let formed = Time(3_000_000_000);
        let now = formed + Duration::from_secs(self.seconds);
        let at = formed + self.told_after();
        let workers = (0..self.workers).map(|rank| ((Role::Worker, rank), self.worker(rank)));
        let servers = (0..self.servers).map(|index| ((Role::Server, index), self.server(index)));
        let told = workers.clone().chain(servers.clone()).filter(|(member, _)| !self.silent.contains(member));
        let told = told.map(|(member, instance)| (member, Arc::new(instance)));
        let mut told = told.map(|(member, last)| (member, Told { at, first: Arc::clone(&last), last })).collect();
        change(&mut told);
        let members = workers.map(|(member, _)| member).chain(servers.map(|(member, _)| member));
        let setups = members.filter(|member| !self.silent.contains(member)).map(|member| (member, self.setup(member)));
        Report::of(&Known {
            status: &self.status(),
            told: &told,
            losses: &self.losses,
            failures: &self.failures,
            formed: self.formed,
            began: Time(1_000_000_000),
            now,
            // 2026-11-30T16:08:48Z where the job has formed.
            origin_unix_ns: 1_796_054_925_000_000_000,
            is_resumed: self.is_resumed,
            setup: &self.setup((Role::Coordinator, 0)),
            setups: &setups.collect(),
        })
    }

    fn setup(&self, (role, index): (Role, u32)) -> Setup {
        let torch = self.torch.get(index as usize).or(self.torch.last());
        let torch = torch.filter(|_| role == Role::Worker).map(|version| ("torch", *version));
        let versions: Vec<_> = [("gradlane", "0.1.0"), ("kernel", "6.1")].into_iter().chain(torch).collect();
        let mut setup = running(&versions);
        if let Some(credit) = self.credit {
            let setting = Setting { value: credit.to_owned(), origin: "argument".to_owned() };
            setup.settings.insert("credit_bytes".to_owned(), setting);
        }
        setup
    }

    /// When members told their metrics, after the formation of the job.
    fn told_after(&self) -> Duration {
        Duration::from_secs(self.seconds - 1)
    }

    fn worker(&self, rank: u32) -> Instance {
        let metrics = WorkerMetrics::default();
        WorkerMetrics::set(&metrics.rounds, self.steps);
        let blocked = self.told_after() / 4;
        WorkerMetrics::add(&metrics.caller_blocked_nanoseconds, blocked.as_nanos() as u64);
        WorkerMetrics::add(&metrics.push_bytes, 4096);
        WorkerMetrics::add(&metrics.pull_bytes, 4096);
        (0..self.steps).for_each(|_| metrics.push_pull_duration_nanoseconds.add(Duration::from_millis(3)));
        metrics.instance(rank).of_member("worker", rank)
    }

    /// A worker whose threads have waited so long for a core.
    fn delayed(&self, rank: u32, nanoseconds: u64) -> Arc<Instance> {
        let mut worker = self.worker(rank);
        for (name, value) in &mut worker.values {
            if *name == "run_delay_nanoseconds" {
                *value = Value::Plain(nanoseconds);
            }
        }
        Arc::new(worker)
    }

    fn server(&self, index: u32) -> Instance {
        let metrics = ServerMetrics::default();
        ServerMetrics::add(&metrics.received_bytes, 8192);
        ServerMetrics::add(&metrics.sent_bytes, 8192);
        metrics.late_nanoseconds.show(self.workers as usize);
        metrics.lane_busy_nanoseconds.add(0, whole_ns(self.told_after()) / 2);
        ServerMetrics::add(&metrics.steps, self.steps);
        for _ in 0..self.steps {
            metrics.round_duration_nanoseconds.add(Duration::from_millis(2));
            metrics.late_nanoseconds.add(1, Cause::Submit, self.late);
        }
        metrics.instance(index).of_member("server", index)
    }

    fn status(&self) -> Status {
        let workers = (0..self.workers).map(|rank| (Role::Worker, rank));
        let servers = (0..self.servers).map(|index| (Role::Server, index));
        let members = workers.chain(servers).map(|(role, index)| {
            let process =
                Process { host: format!("{}{index}", self.host), pid: 7, ..Process::new(role, Incarnation(1)) };
            Member { process, node: NodeId([0; 32]), index, first_round: Round(0) }
        });
        let members: Vec<Member> = members.collect();
        let status = MemberStatus {
            health: Health::Left,
            silent: Duration::ZERO,
            progress: Progress::default(),
            placed_bytes: 0,
            placed_parts: 0,
        };
        Status {
            members: vec![status; members.len()],
            view: View {
                job: "night".to_owned(),
                epoch: Epoch { term: 1, number: 3 },
                phase: self.ended.clone(),
                formed_before: 0,
                formed_servers: self.servers,
                formed_together: false,
                recovers: false,
                members,
            },
            imbalance_milli: 1000,
            hold: None,
            waits: Box::default(),
        }
    }
}

/// What a process tells that runs this.
fn running(versions: &[(&str, &str)]) -> Setup {
    let versions = versions.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
    Setup::of(&types::Setup { versions, settings: Vec::new() })
}
