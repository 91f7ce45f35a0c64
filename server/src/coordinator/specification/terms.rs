//! A coordinator that was started again knows nothing of the former job, and says so.

use super::*;

#[test]
fn members_of_the_former_job_are_refused_with_both_terms_and_the_new_job_forms_without_them() {
    let mut job = job(1);
    let former = |join: Join| Join { epoch: Some(Epoch { term: 2, number: 7 }), ..join };
    job.join(0, former(worker(0)));
    let error = job.refusal(0);
    assert_eq!(error, Error::OtherTerm { member: 2, coordinator: TERM });
    let text = error.to_string();
    assert!(text.contains("term 2") && text.contains("term 3") && text.contains("start all processes"), "{text}");
    job.join(SERVER, former(server(0)));
    assert_eq!(job.refusal(SERVER), error);

    job.join(1, worker(1));
    job.join(SERVER + 1, server(1));
    assert_eq!(job.ranks(), [1]);
    job.join(2, former(worker(0)));
    assert_eq!(job.refusal(2), error, "a job that runs refuses them, too");
}

#[test]
fn a_member_that_claims_a_job_which_has_not_formed_is_of_another_start() {
    let mut job = job(1);
    let epoch = Some(Epoch { term: TERM, number: 1 });
    job.join(0, Join { epoch, ..worker(0) });
    assert_eq!(job.refusal(0), Error::OtherTerm { member: TERM, coordinator: TERM });
}

#[test]
fn a_process_that_had_not_seen_its_job_form_joins_the_next_start_as_new() {
    let mut job = job(1);
    job.join(0, worker(0));
    job.join(SERVER, server(0));
    assert_eq!(job.coordinator.view().epoch, Epoch { term: TERM, number: 1 });
}

#[test]
fn a_member_that_reconnects_with_its_epoch_is_welcome() {
    let mut job = formed(2);
    job.disconnect(1);
    let epoch = Some(job.coordinator.view().epoch);
    job.join_as(7, 1, Join { epoch, ..worker(1) });
    assert_eq!(job.received(7), [Frame::View(job.coordinator.view())]);
}
