//! The `gradlane-server` binary as a user starts it: whole jobs of processes, their exit codes, and that nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use gradlane_core::identity::Credentials;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{JoinString, Role, Time};

#[test]
fn a_job_of_programs_that_never_join_ends_with_them() {
    for servers in ["0", "1"] {
        let output =
            run(&["run", "-n", "2", "-s", servers, "--", "sh", "-c", "echo rank $GRADLANE_RANK of $GRADLANE_SIZE"]);
        let mut lines: Vec<_> = output.stdout.lines().map(Result::unwrap).collect();
        lines.sort();
        assert_eq!(lines, ["rank 0 of 2", "rank 1 of 2"], "{output:?}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn the_launcher_has_the_exit_code_of_the_first_worker_that_fails() {
    let script = "test $GRADLANE_RANK = 1 && exit 3; exec sleep 30";
    let output = run(&["run", "-n", "2", "-s", "1", "--grace", "0", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("gradlane: worker 1 exited with code 3"), "{output:?}");
}

#[test]
fn a_job_says_once_why_it_failed_however_many_processes_it_has() {
    let script = "test $GRADLANE_RANK = 1 && exit 3; while :; do sleep 0.1; done";
    for servers in ["0", "3"] {
        let output = run(&["run", "-n", "3", "-s", servers, "--grace", "0", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let told = stderr(&output);
        assert_eq!(told.matches("worker 1 exited with code 3").count(), 1, "{told}");
        assert!(told.lines().count() <= 2, "{told}");
    }
}

#[test]
fn a_worker_that_fails_before_an_elastic_job_has_formed_is_not_started_again() {
    let script = "echo started; test $GRADLANE_RANK = 1 && exit 3; while :; do sleep 0.1; done";
    let line = ["run", "-n", "2", "-s", "1", "--elastic", "1:2", "--restarts", "5", "--grace", "0"];
    let output = run(&[&line[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(output.stdout.lines().count(), 2, "{output:?}");
    assert!(stderr(&output).contains("gradlane: worker 1 exited with code 3\n"), "{output:?}");
}

#[test]
fn an_elastic_job_that_cannot_be_is_refused_before_anything_starts() {
    for (line, due) in [
        ("run -n 5 -s 1 --elastic 2:4", "setting size: is 5, not within the 2 to 4 of elastic"),
        ("run -n 2 -s 0 --elastic 2:4", "setting servers: is 0"),
        ("run -n 2 -s 1 --restarts 3", "setting elastic: is not set, but 3 restarts are"),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--", "echo", "started"]).collect();
        let output = run(&words);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {output:?}");
        assert!(stderr(&output).contains(due), "{line}: {output:?}");
    }
}

#[test]
fn what_killed_launchers_left_is_removed_by_the_next_one() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().to_str().unwrap().to_owned();
    let place = format!("runtime_dir={folder}");
    let line = ["run", "-n", "1", "-o", &place, "--", "sh", "-c", "echo started; exec sleep 300"];
    let mut launcher = command(home.path(), &line).stdout(Stdio::piped()).spawn().unwrap();
    let mut started = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut started).unwrap();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let left = home.path().join(format!("gradlane-run-{}.join", launcher.id()));
    assert!(left.exists(), "a killed launcher cannot tidy up");
    let next = command(home.path(), &["run", "-n", "1", "-o", &place, "--", "true"]).output().unwrap();
    assert!(next.status.success() && !left.exists(), "{next:?}");
}

#[test]
fn a_program_that_does_not_exist_has_the_shells_exit_code() {
    let output = run(&["run", "-n", "1", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert_eq!(stderr(&output), "gradlane: program /nonexistent/program does not exist; check its name and PATH\n");
}

#[test]
fn a_signal_ends_the_whole_job_within_two_seconds() {
    let home = tempfile::tempdir().unwrap();
    let script = "echo $$; trap '' TERM; while :; do sleep 0.1; done";
    let mut launcher = command(home.path(), &["run", "-n", "2", "-s", "1", "--", "sh", "-c", script]);
    let mut launcher = launcher.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let workers: [String; 2] = std::array::from_fn(|_| lines.next().expect("both workers start"));

    let clock = Clock::start();
    signal(&launcher, "INT");
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 2));
    assert!(clock.now() < Time::ZERO + Duration::from_secs(2));
    for worker in workers {
        assert!(!lives(&worker), "worker {worker} is left behind");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_launcher_that_is_killed_leaves_nobody_behind() {
    let home = tempfile::tempdir().unwrap();
    let mut launcher =
        command(home.path(), &["run", "-n", "1", "-s", "1", "--", "sh", "-c", "echo $$; exec sleep 300"]);
    let mut launcher = launcher.stdout(Stdio::piped()).spawn().unwrap();
    let mut worker = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut worker).unwrap();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    eventually(|| !lives(worker.trim()));
}

#[test]
fn status_finds_the_job_of_a_launcher_by_itself() {
    let home = tempfile::tempdir().unwrap();
    let mut launcher =
        command(home.path(), &["run", "-n", "1", "-s", "1", "--", "sh", "-c", "echo there; exec sleep 300"]);
    let mut launcher = launcher.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let status = || command(home.path(), &["status", "--json"]).output().unwrap();
    let found = status();
    let leader = format!("\"leader_pid\":{}", launcher.id());
    assert!(String::from_utf8_lossy(&found.stdout).contains(&leader), "{found:?}");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let none = status();
    assert!(stderr(&none).contains("none runs here"), "{none:?}");
    assert_ne!(none.status.code(), Some(0), "{none:?}");
}

#[test]
fn a_job_that_does_not_form_names_who_is_missing() {
    let home = tempfile::tempdir().unwrap();
    // The server comes while the coordinator waits, also on a machine that is busy.
    let limits = ["-o", "join_timeout=20s", "-o", "form_timeout=4s"];
    let arguments = ["coordinator", "--bind", "127.0.0.1:0", "-n", "1", "-s", "1"];
    let coordinator = command(home.path(), &[&arguments[..], &limits].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let server = command(home.path(), &[&["server"], &limits[..]].concat()).stderr(Stdio::piped()).spawn().unwrap();
    for output in [coordinator.wait_with_output().unwrap(), server.wait_with_output().unwrap()] {
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(stderr(&output).contains("missing worker 0"), "{output:?}");
    }
}

#[test]
fn a_role_ends_within_two_seconds_of_a_signal_even_if_nobody_answers() {
    let home = tempfile::tempdir().unwrap();
    let mut server = command(home.path(), &["server", "--log", "info"]).spawn().unwrap();
    let mut coordinator = command(home.path(), &["coordinator", "-n", "1", "-s", "1", "--job", "other"]);
    let mut coordinator = coordinator.stdout(Stdio::piped()).spawn().unwrap();
    assert!(announced(&mut coordinator).starts_with("gradlane1."));
    let join_file = home.path().join(".gradlane/jobs/other/join");
    assert!(join_file.exists());

    for role in [&mut server, &mut coordinator] {
        let clock = Clock::start();
        signal(role, "TERM");
        let code = role.wait().unwrap().code();
        // A server that was interrupted before it watched its signals ends by the signal itself.
        assert!(matches!(code, Some(143) | None), "{code:?}");
        assert!(clock.now() < Time::ZERO + Duration::from_secs(2));
    }
    assert!(!join_file.exists(), "what was announced is taken back");
}

#[test]
fn every_start_of_a_coordinator_has_secrets_of_its_own_unless_it_resumes() {
    let home = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        let mut coordinator = command(home.path(), &[&["coordinator", "-n", "1", "-s", "1"], more].concat());
        let mut coordinator = coordinator.stdout(Stdio::piped()).spawn().unwrap();
        let join = announced(&mut coordinator);
        // As a crash: nothing is tidied up.
        coordinator.kill().unwrap();
        coordinator.wait().unwrap();
        // The port differs from start to start.
        join.split('.').rev().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = start(&[]);
    let second = start(&[]);
    assert!(first[0] != second[0] && first[1] != second[1], "neither secret nor authority is used again");
    assert_eq!(start(&["--resume"]), second, "a job that is taken up again keeps both");
    assert_ne!(start(&[]), second);
}

#[test]
fn the_join_string_never_gets_into_the_output_of_a_coordinator() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("join-file");
    let arguments = ["coordinator", "-n", "1", "-s", "1", "--log", "trace", "--join-file", file.to_str().unwrap()];
    let mut coordinator = command(home.path(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    let join = announced(&mut coordinator);
    let secret = join.rsplit('.').next().unwrap();
    signal(&coordinator, "TERM");
    let output = coordinator.wait_with_output().unwrap();
    for text in [String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output)] {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(!file.exists(), "it ends with the job");
}

#[test]
fn a_second_coordinator_of_one_name_is_refused_while_the_first_one_runs() {
    let home = tempfile::tempdir().unwrap();
    let line = ["coordinator", "-n", "1", "-s", "1"];
    let mut first = command(home.path(), &line).stdout(Stdio::piped()).spawn().unwrap();
    let join = announced(&mut first);
    let second = command(home.path(), &line).output().unwrap();
    assert!(!second.status.success(), "{second:?}");
    let complaint = stderr(&second);
    assert!(complaint.contains(&format!("process {}", first.id())) && complaint.contains("--job"), "{complaint}");
    let published = std::fs::read_to_string(home.path().join(".gradlane/jobs/default/join")).unwrap();
    assert!(published.starts_with(&join), "the first one's file is untouched");
    signal(&first, "TERM");
    first.wait().unwrap();
}

#[test]
fn a_token_lets_in_one_server_and_no_worker() {
    let home = tempfile::tempdir().unwrap();
    let mut coordinator = command(home.path(), &["coordinator", "-n", "1", "-s", "2", "--bind", "127.0.0.1:0"]);
    let mut coordinator = coordinator.stdout(Stdio::piped()).spawn().unwrap();
    let own: JoinString = announced(&mut coordinator).parse().unwrap();
    let made = command(home.path(), &["token", "new", "--role", "server"]).output().unwrap();
    let path = String::from_utf8(made.stdout).unwrap();
    let path = path.trim_end().strip_prefix("GRADLANE_JOIN_FILE=").unwrap();
    let token: JoinString = std::fs::read_to_string(path).unwrap().parse().unwrap();
    assert_eq!((&token.address, token.ca_hash), (&own.address, own.ca_hash));
    assert_ne!(token.secret, own.secret);

    let enrol = |role| Credentials::enroll(&token, role, Duration::from_secs(10)).map(drop);
    let refusal = |outcome: gradlane_core::Result<()>| outcome.unwrap_err().to_string();
    assert!(refusal(enrol(Role::Worker)).contains("is for a server, not for a worker"));
    enrol(Role::Server).unwrap();
    assert!(refusal(enrol(Role::Server)).contains("used up"));

    signal(&coordinator, "TERM");
    coordinator.wait().unwrap();
    let nobody = command(home.path(), &["token", "new", "--role", "server"]).output().unwrap();
    assert!(!nobody.status.success() && stderr(&nobody).contains("coordinator of job default"), "{nobody:?}");
}

#[test]
fn a_coordinator_of_dmlc_variables_needs_no_argument() {
    let home = tempfile::tempdir().unwrap();
    // Free a moment ago, which is the best that a port given by number can be.
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port().to_string();
    let dmlc = [
        ("DMLC_PS_ROOT_URI", "127.0.0.1"),
        ("DMLC_PS_ROOT_PORT", port.as_str()),
        ("DMLC_NUM_WORKER", "1"),
        ("DMLC_NUM_SERVER", "1"),
    ];
    let spawn = |role: &str| {
        let mut command = command(home.path(), &[]);
        command.envs(dmlc).env("DMLC_ROLE", role).stdout(Stdio::piped()).spawn().unwrap()
    };
    let (mut server, mut scheduler) = (spawn("server"), spawn("scheduler"));
    let status = || {
        let mut command = command(home.path(), &["status", "--json"]);
        command.envs(dmlc).stdout(Stdio::piped()).output().unwrap()
    };
    eventually(|| String::from_utf8_lossy(&status().stdout).contains("\"servers\":1"));
    for role in [&mut server, &mut scheduler] {
        signal(role, "TERM");
        role.wait().unwrap();
    }
}

/// The lines that systemd starts, with the settings of the example.
#[test]
fn the_units_of_systemd_start_what_they_say() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let read = |file: &str| std::fs::read_to_string(deploy.join(file)).unwrap();
    let home = tempfile::tempdir().unwrap();
    let settings = read("example.env");
    let settings = settings.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    let settings: Vec<(&str, &str)> = settings.filter(|(name, _)| *name != "GRADLANE_BIND").collect();
    let start = |unit: &str| {
        let text = read(unit);
        let line =
            text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/gradlane-server ")).unwrap();
        let line = line.replace("/var/lib/gradlane", home.path().to_str().unwrap()).replace("%i", "resnet");
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let mut command = command(home.path(), &arguments);
        command.envs(settings.iter().copied()).env("GRADLANE_JOB", "resnet");
        command.env("GRADLANE_BIND", "127.0.0.1:0").env("GRADLANE_FORM_TIMEOUT", "300ms");
        command.env("GRADLANE_JOIN_TIMEOUT", "500ms");
        command.env("GRADLANE_STATE_DIR", home.path()).output().unwrap()
    };
    let early = start("gradlane-server@.service");
    assert!(stderr(&early).contains("resnet.join"), "the file that it lacks: {early:?}");
    let alone = start("gradlane-coordinator@.service");
    assert_eq!(alone.status.code(), Some(75), "it may be started again: {alone:?}");
    assert!(stderr(&alone).contains("did not"), "nobody came: {alone:?}");
}

fn run(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    command(home.path(), arguments).output().unwrap()
}

/// The join string in the file that a coordinator names on its standard output.
fn announced(coordinator: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(coordinator.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let path = line.trim_end().strip_prefix("GRADLANE_JOIN_FILE=").unwrap_or_else(|| panic!("{line:?}"));
    std::fs::read_to_string(path).unwrap().lines().next().unwrap().to_owned()
}

/// The binary with nothing in its environment but a home directory and the shell's search path.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradlane-server"));
    command.args(arguments).env_clear().env("HOME", home).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn signal(process: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", process.id())]).status().unwrap();
    assert!(status.success());
}

/// A process does what it was told some time after it was told.
fn eventually(condition: impl Fn() -> bool) {
    let clock = Clock::start();
    while !condition() {
        assert!(clock.now() < Time::ZERO + Duration::from_secs(20), "it never came true");
        crossbeam_channel::after(Duration::from_millis(20)).recv().expect("a timer fires");
    }
}

fn lives(pid: &str) -> bool {
    let mut stat = String::new();
    let read = std::fs::File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read_to_string(&mut stat));
    read.is_ok() && stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
