//! Uses of parameters and tables.

use super::*;

#[test]
fn a_use_of_a_table_that_waits_for_the_push_of_another_worker_names_it() {
    let push = |rank: u32, number: u64| {
        worker(rank).uses("rows", ("t", number), 8, Ended::Open).handed("t", 0, number, 11).of(3)
    };
    let table = server(0).used(("t", 0, 7), 0, 12, "held", &[2]).used(("t", 0, 9), 1, 14, "held", &[2]);
    let text = explained(&[push(0, 7), push(1, 9), worker(2).uses("parameter", ("p", 4), 9, Ended::Well).of(3), table]);
    assert_in_order(
        &text,
        &[
            "Worker 2 held the job up, as far as servers say.\n",
            "Server 0 lets uses of workers 0 and 1 wait until worker 2 pushes to part 0 of `t`, since 8.0 s before its dump.\n",
            "Worker 0 waits for use 7 of table `t`, submitted 12.0 s before its dump. Its part 0 was handed over to server 0, which lets it wait \
             until worker 2 pushes.\n",
            "Worker 1 waits for use 9 of table `t`, submitted 12.0 s before its dump. Its part 0 was handed over to server 0, which lets it wait \
             until worker 2 pushes.\n",
        ],
    );
    assert!(!text.contains("Worker 2 waits"), "{text}");
}

#[test]
fn workers_that_a_server_counts_without_their_ranks_are_counted() {
    for (others, names) in [(0, "1 and 2"), (1, "1, 2 and 1 other"), (36, "1, 2 and 36 others")] {
        let mut table = server(0).used(("t", 0, 7), 0, 12, "held", &[1, 2]);
        table.0["uses"][0]["missing_others"] = others.into();
        let text = explained(&[worker(0).uses("rows", ("t", 7), 8, Ended::Open).handed("t", 0, 7, 11).of(100), table]);
        assert_in_order(
            &text,
            &[
                &format!("Workers {names} held the job up, as far as servers say.\n"),
                &format!("Server 0 lets uses of worker 0 wait until workers {names} push to part 0 of `t`, since"),
                &format!("which lets it wait until workers {names} push.\n"),
            ],
        );
    }
}

#[test]
fn what_a_server_knows_of_a_use_is_told() {
    let told = |server: Case, says: &str| {
        let waits = worker(0).uses("parameter", ("p", 3), 10, Ended::Open).handed("p", 1, 3, 11).of(1);
        let expected = format!(
            "No sum waits in these dumps, but uses of what servers keep do.\nWorker 0 waits for use 3 of parameter `p`, submitted 10.0 s before \
             its dump. Its part 1 was handed over to server 0, {says}.\n"
        );
        let text = explained(&[waits, server]);
        assert!(text.contains(&expected), "{says}: {text}");
    };
    let with = |progress: &str| server(0).used(("p", 1, 3), 0, 12, progress, &[]);
    told(server(1), "of which there is no dump");
    told(server(0).used(("p", 0, 3), 0, 12, "waits", &[]), "which has never seen any of it");
    told(with("begun"), "which does not have all of it");
    told(with("waits"), "which has all of it and has not answered");
    told(with("held"), "which has all of it and has not answered");
    told(with("to-answer"), "which has all of it and is to answer");
    told(with("answered"), "which has begun to answer");
    let mut clocked = with("waits");
    clocked.0["uses"][0]["clock_at"] = 9.into();
    told(clocked, "which lets it wait until round 9 of its clock is closed");
    let ended = server(0).used(("p", 0, 3), 0, 12, "waits", &[]).happens_to("came", ("p", 1, 3), 0, "pull");
    told(ended, "which is done with it");
    told(with("begun").cut(), "which does not have all of it");
    told(server(0).used(("p", 0, 3), 0, 12, "waits", &[]).cut(), "which does not say more");
    told(server(0), "which does not say more");
    let mut older = server(0).used(("p", 0, 3), 0, 12, "waits", &[]);
    older.0["unix_ns"] = (10 * SECOND).into();
    told(older, "whose dump is older");
}

#[test]
fn a_use_that_failed_waits_in_vain_and_one_that_was_not_handed_over_waits_for_no_server() {
    let late = worker(0).uses("rows", ("t", 3), 10, Ended::Failed).handed("t", 0, 3, 11).of(1);
    let text = explained(&[late, server(0).used(("t", 1, 3), 0, 12, "waits", &[])]);
    assert!(text.contains("Its part 0 was handed over to server 0, which has never seen any of it."), "{text}");
    let text = explained(&[worker(0).uses("residual", ("w", 3), 10, Ended::Open).of(1)]);
    let expected = "Worker 0 waits for use 3 of the residual of `w`, submitted 10.0 s before its dump. No part of it waits for a server.";
    assert!(text.contains(expected), "{text}");
    let text = explained(&[worker(0).uses("rows", ("t", 3), 10, Ended::Open).cut().of(1)]);
    assert!(text.contains("Its events do not tell where it is."), "{text}");
}

#[test]
fn a_use_that_failed_does_not_hide_one_that_waits() {
    let failed = || worker(0).uses("parameter", ("p", 3), 5, Ended::Failed).of(1);
    let text = explained(&[failed().uses("parameter", ("p", 4), 15, Ended::Open)]);
    assert_in_order(
        &text,
        &[
            "No sum waits in these dumps, but uses of what servers keep do.\n",
            "Worker 0 waits for use 4 of parameter `p`, submitted 5.0 s before its dump.",
        ],
    );
    let text = explained(&[failed()]);
    assert_in_order(
        &text,
        &[
            "No sum waits in these dumps.\n",
            "Worker 0 has waited in vain for use 3 of parameter `p`, submitted 15.0 s before its dump.",
        ],
    );
}

#[test]
fn a_sum_that_failed_does_not_hide_uses_that_wait_for_a_worker() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Failed).of(2),
        worker(1).sum("w", 2, 5, Ended::Well).of(2),
        server(0).used(("t", 0, 7), 0, 12, "waits", &[1]),
    ]);
    assert!(text.contains("Worker 1 held the job up, as far as servers say.\n"), "{text}");
}

#[test]
fn a_use_whose_end_is_lost_among_the_events_does_not_wait() {
    let mut ended = worker(0).uses("parameter", ("p", 3), 10, Ended::Well).handed("p", 0, 3, 11).of(1);
    ended.0["events"].as_array_mut().unwrap().retain(|event| event[1] != "resolved");
    let text = explained(&[ended]);
    assert!(text.contains("No sum waits in these dumps.\n") && !text.contains("waits for use"), "{text}");
}

#[test]
fn all_tensors_of_a_use_that_waits_do() {
    let mut both = worker(0).uses("parameter", ("p", 3), 10, Ended::Open).of(1);
    let id = both.0["open"][0]["id"].clone();
    both.submitted("parameter", "q", 3, 10 * SECOND);
    both.0["events"][1][4] = id;
    let Of::Worker(worker) = Dump::parse(&both.text()).unwrap().of else { panic!("it is of a worker") };
    let open: Vec<&str> = worker.uses.iter().filter(|(_, used)| used.is_open).map(|(of, _)| &*of.tensor).collect();
    assert_eq!(open, ["p", "q"]);
}

#[test]
fn a_use_of_a_residual_and_the_sum_of_the_same_round_are_told_apart() {
    let residual = || worker(0).uses("residual", ("w", 3), 8, Ended::Failed).handed("w", 0, 3, 9).of(1);
    let server = || server(0).used(("w", 1, 3), 0, 12, "waits", &[]).open(("w", 1, 3), 12, [&[0], &[], &[]]);
    let use_is_lost = "Worker 0 has waited in vain for use 3 of the residual of `w`, submitted 12.0 s before its dump. Its part 0 was handed over \
                       to server 0, which has never seen any of it.";
    let sum_is_lost = "Worker 0 handed part 0 of `w` round 3 over to server 0, 5.0 s before its dump, and server 0 has never seen any of it.";
    let both = residual().sum("w", 3, 14, Ended::Open).handed("w", 0, 3, 15);
    assert_in_order(&explained(&[both, server()]), &[sum_is_lost, use_is_lost]);
    let sum_ended = residual().sum("w", 3, 14, Ended::Well).handed("w", 0, 3, 15);
    let text = explained(&[sum_ended, server()]);
    assert!(text.contains(use_is_lost) && !text.contains(sum_is_lost), "{text}");
}

#[test]
fn a_worker_that_only_uses_parameters_has_submitted_something() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Open).of(2),
        worker(1).sum("w", 2, 5, Ended::Well).uses("parameter", ("p", 4), 9, Ended::Well).of(2),
    ]);
    assert!(text.contains("The last submission of worker 1 was `p` round 4, 11.0 s before its dump."), "{text}");
}

impl Case {
    /// A use at a server, of this worker, that began at this second, and the workers for which it waits.
    pub(super) fn used(
        mut self,
        (tensor, part, round): (&str, u64, u64),
        rank: u32,
        second: u64,
        progress: &str,
        missing: &[u32],
    ) -> Self {
        let used = json!({
            "tensor": TensorKey::of(tensor).to_string(), "part": part, "round": round, "worker": rank, "of": "table", "action": "push",
            "progress": progress, "began_ns": second * SECOND, "clock_at": null, "missing": missing,
        });
        self.0.as_object_mut().unwrap().entry("uses").or_insert_with(|| json!([]));
        list(&mut self.0, "uses", used);
        self
    }

    /// A use of a worker that is submitted at this second.
    pub(super) fn uses(mut self, operation: &str, (tensor, number): (&str, u64), second: u64, ended: Ended) -> Self {
        let at = second * SECOND;
        let id = self.submitted(operation, tensor, number, at);
        match ended {
            Ended::Well | Ended::Failed => self.resolved(id, at, ended),
            Ended::Open => {
                let open = json!({
                    "id": id, "tensor": tensor, "round": number, "submitted_ns": at, "operation": operation, "server": 0, "parts": 1,
                    "handed_over": 1, "answered": 0,
                });
                list(&mut self.0, "open", open);
            }
        }
        self
    }
}
