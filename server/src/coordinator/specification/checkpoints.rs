//! Checkpoints: one at a time, whole or not at all, over reconnections and losses.

use gradlane_core::types::{
    CheckpointAsk, Checkpointed, ClockKey, ClockStep, Contents, LoadAsk, Missing, Order, SaveAsk, TableFile, Task,
    Written,
};

use super::*;

#[test]
fn a_save_is_answered_when_the_server_has_written_and_the_manifest_is_there() {
    let mut job = with_parameter();
    job.frame(0, save(5));
    let number = begun(&mut job);
    job.coordinator.handle_disk(number, Ok(directory()));
    let [Frame::Order(Order { number: told, task: Task::Save { directory, checkpoint: 3, plan } })] =
        &job.received(SERVER)[..]
    else {
        panic!("an order")
    };
    assert_eq!((*told, directory.as_str(), plan.parts.len(), plan.tensors.len()), (number, "p/checkpoint-3", 1, 1));
    job.frame(SERVER, obeyed(number));
    let Some(DiskTask::Publish { contents, keep: Some(2) }) = job.disk() else { panic!("a manifest") };
    assert_eq!((contents.checkpoint, contents.tables.len(), contents.notes.as_str()), (3, 1, "n"));
    assert_eq!(job.received(0), [], "it is not whole yet");
    job.coordinator.handle_disk(number, Ok(Found::Published));
    let [Frame::Checkpointed { request: 5, outcome: Ok(Checkpointed { checkpoint: 3, files: 3, .. }) }] =
        &job.received(0)[..]
    else {
        panic!("an answer")
    };
}

#[test]
fn a_second_one_is_refused_and_whoever_asks_again_gets_the_same_answer() {
    let mut job = with_parameter();
    job.frame(0, save(5));
    let number = begun(&mut job);
    job.frame(1, save(8));
    let refused = answer(&mut job, 1).unwrap_err();
    assert!(refused.to_string().starts_with("worker 0 is saving a checkpoint in p"), "{refused}");
    job.disconnect(0);
    job.join_as(7, 0, worker(0));
    job.received(7);
    job.frame(7, save(5));
    assert_eq!(job.received(7), [], "it is under way");
    job.coordinator.handle_disk(number, Err(Error::Cancelled));
    assert_eq!(answer(&mut job, 7), Err(Error::Cancelled));
    job.frame(7, save(5));
    assert_eq!(answer(&mut job, 7), Err(Error::Cancelled));
    assert_eq!(job.disk(), None, "it does not begin again");
}

#[test]
fn a_server_that_was_away_gets_its_order_again_and_its_answer_counts_once() {
    let mut job = with_parameter();
    job.frame(0, save(5));
    let number = begun(&mut job);
    job.disconnect(SERVER);
    job.coordinator.handle_disk(number, Ok(directory()));
    job.join_as(8, SERVER as u8, server(0));
    assert!(matches!(job.received(8).last(), Some(Frame::Order(order)) if order.number == number));
    job.frame(8, obeyed(number));
    job.frame(8, obeyed(number));
    job.frame(8, obeyed(number + 7));
    assert!(matches!(job.disk(), Some(DiskTask::Publish { .. })));
    assert_eq!(job.disk(), None);
}

#[test]
fn a_save_that_fails_leaves_nothing_and_the_next_one_may_begin() {
    for server_fails in [true, false] {
        let mut job = with_parameter();
        job.frame(0, save(5));
        let number = begun(&mut job);
        job.coordinator.handle_disk(number, Ok(directory()));
        if server_fails {
            job.frame(SERVER, Frame::Obeyed { order: number, outcome: Err(Error::Cancelled) });
        } else {
            job.beat_until(70, &[0, 1, SERVER]);
        }
        assert_eq!(job.disk(), Some(DiskTask::GiveUp));
        let error = answer(&mut job, 0).unwrap_err();
        let text = "saving a checkpoint in p: server 0 have not answered: not done after 60.0 s";
        assert!(server_fails && error == Error::Cancelled || error.to_string() == text, "{error}");
        job.frame(0, save(6));
        assert_ne!(begun(&mut job), number);
    }
}

#[test]
fn a_load_is_applied_when_all_servers_have_read_and_clocks_go_on_from_what_was_saved() {
    let mut job = with_parameter();
    job.frame(0, load(5, Missing::Refuse, false));
    let Some(DiskTask::Find { path, checkpoint: None, if_any: false }) = job.disk() else { panic!("a search") };
    assert_eq!(path, "p");
    let number = job.number;
    job.coordinator.handle_disk(number, Ok(whole(&["w"])));
    let [Frame::Order(Order { task: Task::Read { with_state: true, plan, .. }, .. })] = &job.received(SERVER)[..]
    else {
        panic!("an order")
    };
    assert_eq!(plan.parts.len(), 1);
    job.frame(SERVER, obeyed(number));
    let applies = Task::Apply { bases: vec![ClockStep { clock: ClockKey(9), step: 40, samples: 0 }] };
    assert_eq!(job.received(SERVER), [Frame::Order(Order { number, task: applies })]);
    assert_eq!(job.received(0), []);
    assert_eq!(job.disk(), None);
    job.frame(SERVER, obeyed(number));
    assert_eq!(job.disk(), Some(DiskTask::GoOn));
    let loaded = answer(&mut job, 0).unwrap();
    assert_eq!((loaded.checkpoint, loaded.tensors, loaded.notes.as_str()), (3, 1, "n"));
}

#[test]
fn where_nothing_was_saved_yet_nothing_is_loaded_if_that_was_asked() {
    let mut job = with_parameter();
    let ask = CheckpointAsk::Load(LoadAsk { if_any: true, ..load_of(Missing::Refuse, false) });
    job.frame(0, Frame::Checkpoint { request: 5, ask });
    assert!(matches!(job.disk(), Some(DiskTask::Find { if_any: true, .. })));
    let number = job.number;
    job.coordinator.handle_disk(number, Ok(Found::Nothing));
    assert_eq!(answer(&mut job, 0), Ok(Checkpointed::nothing()));
    assert_eq!(job.received(SERVER), []);
}

#[test]
fn what_a_checkpoint_lacks_or_has_beside_is_refused_or_not_as_was_asked() {
    for (saved, missing, ignore_extra, refused) in [
        (&["w", "x"][..], Missing::Refuse, false, Some("parameter x of checkpoint 3 in this job is not there")),
        (&["w", "x"], Missing::Refuse, true, None),
        (&["x"], Missing::Refuse, true, Some("parameter w in checkpoint 3 of p is not there")),
        (&["x"], Missing::Zero, true, None),
        (&["x"], Missing::Leave, true, Some("no parameter of this job has elements")),
    ] {
        let mut job = with_parameter();
        job.frame(0, load(5, missing, ignore_extra));
        job.disk();
        let number = job.number;
        job.coordinator.handle_disk(number, Ok(whole(saved)));
        match refused {
            Some(text) => {
                let error = answer(&mut job, 0).unwrap_err();
                assert!(error.to_string().starts_with(text), "{error}");
                assert_eq!(job.received(SERVER), []);
            }
            None => assert!(matches!(job.received(SERVER)[..], [Frame::Order(_)]), "{saved:?}"),
        }
    }
}

#[test]
fn a_load_that_a_server_refuses_is_cancelled_on_all() {
    let mut job = with_parameter();
    job.frame(0, load(5, Missing::Refuse, false));
    job.disk();
    let number = job.number;
    job.coordinator.handle_disk(number, Ok(whole(&["w"])));
    job.received(SERVER);
    job.frame(SERVER, Frame::Obeyed { order: number, outcome: Err(Error::Cancelled) });
    assert_eq!(answer(&mut job, 0), Err(Error::Cancelled));
    job.frame(SERVER, obeyed(number));
    assert_eq!(job.received(SERVER), [], "what comes late is not applied");
}

#[test]
fn nobody_saves_what_is_not_there_and_no_worker_says_what_servers_say() {
    let mut job = formed(2);
    job.frame(0, save(5));
    let error = answer(&mut job, 0).unwrap_err();
    assert!(error.to_string().starts_with("no parameter of this job lives on servers"), "{error}");
    job.frame(1, obeyed(3));
    assert!(matches!(job.closed(1), Error::Protocol { .. }));
}

#[test]
fn a_save_ends_with_the_cause_of_the_job() {
    let mut job = with_parameter();
    job.frame(0, save(5));
    begun(&mut job);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(answer(&mut job, 0), Err(lost(1, "killed")));
}

#[test]
fn a_job_with_a_table_is_saved_if_the_worker_says_that_tables_are_saved_apart() {
    let mut job = with_parameter();
    let tensors = vec![TensorSpec::table("rows", "sgd;dim=2".parse().unwrap())];
    job.frame(0, Frame::Declare { request: 5, tensors, fuse: false });
    for link in [0, 1, SERVER] {
        job.received(link);
    }
    job.frame(0, save(6));
    let answers = job.received(0);
    let refused = |frame: &Frame| format!("{frame:?}").contains("save tables by Table.save");
    assert!(matches!(&answers[..], [refusal] if refused(refusal)), "{answers:?}");
    let apart = SaveAsk { tables_apart: true, ..save_ask() };
    job.frame(0, Frame::Checkpoint { request: 7, ask: CheckpointAsk::Save(apart) });
    assert!(job.received(0).is_empty(), "it is under way");
}

/// A job of two workers and a server, with one parameter.
fn with_parameter() -> Job {
    let mut job = formed(2);
    let tensors = vec![TensorSpec::parameter("w", DType::F32, vec![4])];
    job.frame(0, Frame::Declare { request: 1, tensors, fuse: false });
    for link in [0, 1, SERVER] {
        job.received(link);
    }
    job
}

fn save(request: u64) -> Frame {
    Frame::Checkpoint { request, ask: CheckpointAsk::Save(save_ask()) }
}

fn save_ask() -> SaveAsk {
    let (path, notes) = ("p".to_owned(), "n".to_owned());
    SaveAsk { path, keep: Some(2), notes, tables_apart: false, wait: 60 * SECOND }
}

fn load(request: u64, missing: Missing, ignore_extra: bool) -> Frame {
    Frame::Checkpoint { request, ask: CheckpointAsk::Load(load_of(missing, ignore_extra)) }
}

fn load_of(missing: Missing, ignore_extra: bool) -> LoadAsk {
    LoadAsk {
        path: "p".to_owned(),
        checkpoint: None,
        missing,
        ignore_extra,
        with_state: true,
        if_any: false,
        wait: 60 * SECOND,
    }
}

/// The number of the save that begins.
fn begun(job: &mut Job) -> u64 {
    assert_eq!(job.disk(), Some(DiskTask::Begin { path: "p".to_owned() }));
    job.number
}

fn directory() -> Found {
    Found::Begun { checkpoint: 3, directory: "p/checkpoint-3".to_owned() }
}

fn whole(tensors: &[&str]) -> Found {
    let saved = |name: &&str| TensorSpec::parameter(*name, DType::F32, vec![4]);
    let contents = Contents {
        checkpoint: 3,
        tensors: tensors.iter().map(saved).collect(),
        tables: Vec::new(),
        steps: vec![ClockStep { clock: ClockKey(9), step: 40, samples: 0 }],
        notes: "n".to_owned(),
    };
    Found::Whole { directory: "p/checkpoint-3".to_owned(), contents }
}

fn obeyed(order: u64) -> Frame {
    let table = Some(TableFile { name: "server-0.json".to_owned(), bytes: 1, checksum: 2 });
    Frame::Obeyed { order, outcome: Ok(Written { table, files: 2, bytes: 16, rounds: Vec::new() }) }
}

fn answer(job: &mut Job, link: u64) -> gradlane_core::Result<Checkpointed> {
    let is_answer = |frame| if let Frame::Checkpointed { outcome, .. } = frame { Some(outcome) } else { None };
    job.received(link).into_iter().find_map(is_answer).expect("an answer")
}

impl Job {
    /// The next work with files, whose number is noted.
    fn disk(&mut self) -> Option<DiskTask> {
        self.drain();
        let Disk { number, task } = self.disks.pop()?;
        self.number = number;
        Some(task)
    }
}
