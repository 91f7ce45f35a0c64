use gradlane_core::Error;
use gradlane_core::types::{Address, Epoch, Incarnation, JoinString, Member, NodeId, Round, Scheme, TensorKey, View};
use gradlane_core::wire::frame::Health;
use gradlane_core::wire::frame::{MemberStatus, Names, Progress};

use super::*;
use crate::hostile;

#[test]
fn each_member_has_a_line() {
    let text = text(&[answer(Phase::Running)], None);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "job night: running, 1 worker, 1 server, epoch 1.3");
    assert_eq!(lines[1], "led by process 60: gradlane run -n 1 -s 1 -- python train.py");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(lines[2]), "member health heard round pending in flight sums process address machine");
    assert_eq!(words(lines[3]), "worker 0 alive 0.2 s ago 7 2 64 B - n1 (pid 70) - -");
    assert_eq!(words(lines[4]), "server 0 alive 0.2 s ago 7 2 64 B 4 KiB in 2 parts n1 (pid 80) 10.0.0.1:9 0, shm");
    assert_eq!(lines[5..], ["the most loaded server has 1.50 times its share"]);
}

#[test]
fn a_job_that_does_not_answer_is_shown_beside_the_others() {
    let busy = Error::Timeout { what: "the coordinator".to_owned(), waited: Duration::from_secs(5) };
    let answers = [answer(Phase::Running), Answer { status: Err(busy), ..answer(Phase::Running) }];
    let shown = text(&answers, None);
    assert!(shown.contains("job night: does not answer: ") && shown.contains("job night: running"), "{shown}");
    let lines: Vec<serde_json::Value> =
        json(&answers).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[1]["job"], &lines[1]["leader_pid"]), (&"night".into(), &60.into()));
    assert!(lines[1]["error"].as_str().is_some_and(|error| error.contains("coordinator")));
    assert_eq!((exit_code(&answers), exit_code(&answers[1..]) == exit::SUCCESS), (exit::SUCCESS, false));
}

#[test]
fn the_table_fits_the_terminal() {
    let text = text(&[answer(Phase::Running), answer(Phase::Running)], Some(80));
    let table = text.lines().filter(|line| !line.starts_with("led by"));
    assert!(table.clone().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("job night")).count(), 2, "{text}");
}

#[test]
fn jobs_have_ended_if_all_of_them_said_so() {
    let (runs, ended) = (|| answer(Phase::Running), || answer(Phase::Ended));
    let silent = Answer { status: Err(Error::Cancelled), ..ended() };
    assert!(has_ended(&[ended(), answer(Phase::Aborted(Error::Cancelled))]));
    assert!(!has_ended(&[ended(), runs()]) && !has_ended(&[ended(), silent]));
}

#[test]
fn an_aborted_job_says_why() {
    assert!(text(&[answer(Phase::Aborted(Error::Cancelled))], None).contains("cause: cancelled by the caller"));
}

#[test]
fn a_job_that_holds_says_for_whom_and_for_how_long() {
    let held = |lost: &[&str]| {
        let lost = Names::first(lost.iter().map(|lost| (*lost).to_owned()), lost.len());
        let hold = Hold { there: 2, needed: 3, lost, patience: Duration::from_millis(593_400) };
        [Answer { leader: None, status: Ok(Status { hold: Some(hold), ..status(Phase::Running) }) }]
    };
    let lost = held(&["worker 1 on n1 (pid 7): killed"]);
    let line = "holds: 2 of 3 workers are there, waits 593 s more";
    let lines = text(&lost, None);
    assert!(lines.contains(&format!("\n{line}; lost: worker 1 on n1 (pid 7): killed\n")), "{lines}");
    assert!(text(&held(&[]), None).contains(&format!("\n{line}\n")));
    let read: serde_json::Value = serde_json::from_str(&json(&lost)).unwrap();
    assert_eq!((&read["hold"]["there"], &read["hold"]["needed"]), (&2.into(), &3.into()));
    assert_eq!(
        (&read["hold"]["patience_ms"], &read["hold"]["lost"][0]),
        (&593_400.into(), &"worker 1 on n1 (pid 7): killed".into())
    );
}

#[test]
fn no_name_forges_a_line() {
    hostile::check(|name| {
        let cause = Error::Unavailable { what: name.to_owned(), cause: name.to_owned() };
        let lost = Names::first([name.to_owned()].into_iter(), 1);
        let hold = Hold { there: 2, needed: 3, lost, patience: Duration::ZERO };
        let mut status = Status { hold: Some(hold), ..status(Phase::Aborted(cause.clone())) };
        status.view.job = name.to_owned();
        status.view.members[0].process.host = name.to_owned();
        status.view.members[0].process.addresses = vec![Address::new(Scheme::Quic, name)];
        let Answer { leader, .. } = answer(Phase::Running);
        let leader = leader.map(|leader| Running { job: name.to_owned(), command: name.to_owned(), ..leader });
        text(&[Answer { leader: leader.clone(), status: Ok(status) }, Answer { leader, status: Err(cause) }], None)
    });
}

#[test]
fn sizes_are_short() {
    for (size, shown) in [(0, "0"), (64, "64 B"), (4096, "4 KiB"), (4 << 20 | 1 << 18, "4.2 MiB"), (1536, "1.5 KiB")] {
        assert_eq!(bytes(size), shown);
    }
}

#[test]
fn programs_read_the_same_as_json() {
    let text = json(&[answer(Phase::Running), answer(Phase::Running)]);
    assert_eq!(text.lines().count(), 2, "a line a job");
    let read: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&read["phase"], &read["leader_pid"]), (&"running".into(), &60.into()));
    assert_eq!((&read["workers"], &read["servers"]), (&1.into(), &1.into()));
    assert_eq!(read["members"][0]["health"], "alive");
    assert_eq!(read["members"][0]["silent_ms"], 200);
    assert_eq!(read["members"][1]["address"], "10.0.0.1:9");
    assert_eq!((&read["imbalance"], &read["members"][1]["placed_parts"]), (&1.5.into(), &2.into()));
    assert_eq!((&read["members"][0]["machine"], &read["members"][1]["machine"]), (&serde_json::Value::Null, &0.into()));
    assert_eq!(read["members"][1]["shared_memory"], true);
}

fn answer(phase: Phase) -> Answer {
    let leader = Running {
        job: "night".to_owned(),
        join: JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] },
        operators: JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [3; 16] },
        pid: 60,
        command: "gradlane run -n 1 -s 1 -- python train.py".to_owned(),
    };
    Answer { leader: Some(leader), status: Ok(status(phase)) }
}

fn status(phase: Phase) -> Status {
    let member = |role, pid, addresses: &[(Scheme, &str)], machine| Member {
        process: Process {
            host: "n1".to_owned(),
            pid,
            addresses: addresses.iter().map(|(scheme, at)| Address::new(*scheme, *at)).collect(),
            machine,
            ..Process::new(role, Incarnation(1))
        },
        node: NodeId([0; 32]),
        index: 0,
        first_round: Round(0),
    };
    let members = vec![
        member(Role::Worker, 70, &[], MachineId::UNKNOWN),
        member(Role::Server, 80, &[(Scheme::Shm, "/run/socket"), (Scheme::Quic, "10.0.0.1:9")], MachineId(0xabc)),
    ];
    let progress = Progress { last: Some((TensorKey(1), Round(7))), pending: 2, bytes_in_flight: 64 };
    let health = MemberStatus {
        health: Health::Alive,
        silent: Duration::from_millis(200),
        progress,
        placed_bytes: 0,
        placed_parts: 0,
    };
    let loaded = MemberStatus { placed_bytes: 4096, placed_parts: 2, ..health.clone() };
    Status {
        view: View::plain("night", Epoch { term: 1, number: 3 }, phase, members),
        members: vec![health, loaded],
        imbalance_milli: 1500,
        hold: None,
        waits: Box::default(),
    }
}
