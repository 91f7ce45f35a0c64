use std::time::Duration;

use gradlane_core::types::{Cause, PartId, Role, Round, TensorKey, WorkerId};
use gradlane_core::wire::frame::{Health, Names, Waiting, WaitingTensor};

use super::render::{Order, Screen, render};
use crate::hostile;
use crate::look::tests::Job;
use crate::look::{Look, Reading};

const PIPE: Screen = Screen::PIPE;

#[test]
fn a_pipe_gets_one_plain_screen() {
    let job = Job::new(3, 2);
    let before = job.reading();
    job.passes(&[(1, Cause::Submit, 71), (1, Cause::Transfer, 2), (2, Cause::Credit, 3)]);
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(2), ..job.at_step(12) });
    let expected = "\
gradlane top  job night  epoch 1.3 running  3/3 workers 2/2 servers  step 12  200 ms
exposed ▇▇▇ 25 %  rest ▇▇▇▇▇▇▇▇ 75 %
VERDICT rank 1 late (submit) 73.0 ms a step
 RANK  HOST  STATE  STEP  LATE/step  CAUSE   BLOCKED  PUSH/s   PULL/s   LIMIT  RTT     LOSS    OPEN
 1     n1    alive  12    73.0 ms    submit  25 %     512 MiB  512 MiB  cwnd   210 us  0.25 %  0
 2     n2    alive  12    3.0 ms     credit  25 %     512 MiB  512 MiB  cwnd   210 us  0.25 %  0
 0     n0    alive  12    0.0 ms     -       25 %     512 MiB  512 MiB  cwnd   210 us  0.25 %  0
 SRV  HOST  STATE  IN/s     OUT/s    LANES  SUMS   PLACED  OPEN  LAST
 0    n0    alive  1.5 GiB  1.5 GiB  50 %   4 KiB  1 MiB   3     rank 1
 1    n1    alive  1.5 GiB  1.5 GiB  50 %   4 KiB  1 MiB   3     rank 1
";
    assert_eq!(render(&look, PIPE), expected);
}

#[test]
fn a_terminal_is_never_overrun_and_what_does_not_fit_is_counted() {
    let job = Job::new(40, 10);
    let before = job.reading();
    job.passes(&[(7, Cause::Queue, 29)]);
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(2), ..job.at_step(12) });
    for lines in 0..60 {
        for columns in [0, 20, 80, 200] {
            let text = render(&look, Screen { size: Some((columns, lines)), ..PIPE });
            assert!(text.lines().count() < usize::from(lines).max(1), "{lines}: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(columns)), "{columns}: {text}");
        }
    }
    let text = render(&look, Screen { size: Some((100, 20)), ..PIPE });
    assert!(text.contains("VERDICT rank 7 late (queue) 29.0 ms a step\n"), "{text}");
    assert!(text.contains(" more workers\n") && text.contains(" more servers\n"), "{text}");
    assert!(text.ends_with("q quit  s sort  t tensors  d dump  T timeline  p pause\n"), "{text}");
    let first = |screen| render(&look, screen).lines().find(|line| line.contains("alive")).unwrap().trim().to_owned();
    assert!(first(Screen { size: Some((100, 20)), ..PIPE }).starts_with("7 "), "the latest");
    assert!(first(Screen { size: Some((100, 20)), order: Order::Rank, ..PIPE }).starts_with("0 "));
    assert!(render(&look, Screen { is_paused: true, ..PIPE }).contains("  PAUSED\n"));
}

#[test]
fn time_is_divided_into_what_can_be_told_apart() {
    let shown = |data: &[u64], blocked: u64| {
        let job = Job::new(2, 1);
        let before = job.reading();
        job.spends(data, blocked);
        let look = Look::of(Some(&before), &job.at(12, 2));
        let narrow = render(&look, Screen { size: Some((20, 30)), ..PIPE });
        let lines = [render(&look, PIPE), narrow].map(|text| text.lines().nth(1).unwrap().to_owned());
        assert_eq!(lines[1], lines[0].chars().take(20).collect::<String>().trim_end());
        lines.into_iter().next().unwrap()
    };
    assert_eq!(shown(&[200, 160], 540), "data ▇ 9 %  exposed ▇▇▇ 27 %  rest ▇▇▇▇▇▇ 64 %");
    assert_eq!(shown(&[2_000, 0], 0), "data ▇▇▇▇▇ 50 %  exposed 0 %  rest ▇▇▇▇▇ 50 %", "one tells it");
    assert_eq!(shown(&[0, 0], 80), "exposed 4 %  rest ▇▇▇▇▇▇▇▇▇▇ 96 %", "no script tells its waits for data");
    assert_eq!(shown(&[0, 0], 4_000), "exposed ▇▇▇▇▇▇▇▇▇▇ 200 %  rest 0 %", "two threads wait at once");
}

#[test]
fn it_says_when_it_does_not_see_everybody() {
    let job = Job::new(2, 1);
    let before = job.reading();
    let mut now = Reading { at: Duration::from_secs(2), ..job.at_step(12) };
    now.told.remove(&(Role::Worker, 1));
    let text = render(&Look::of(Some(&before), &now), PIPE);
    assert!(text.contains("\n2 of 3 answered; missing: worker 1\n"), "{text}");
    let line = text.lines().find(|line| line.starts_with(" 1 ")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["1", "n1", "alive", "12", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);

    // One that is known to be lost is not waited for.
    now.status.members[1].health = Health::Dead;
    let text = render(&Look::of(Some(&before), &now), PIPE);
    assert!(!text.contains("answered") && text.contains(" 1/2 workers 1/1 servers"), "{text}");
}

#[test]
fn tensors_that_wait_have_a_line_each_up_to_three() {
    let mut reading = Job::new(2, 1).reading();
    let waiting = |index: u64| WaitingTensor {
        tensor: format!("layer{index}.weight"),
        told_by: "server 0".to_owned(),
        age: Duration::ZERO,
        waiting: Waiting {
            part: PartId { key: TensorKey(index), index: 0 },
            round: Round(812),
            waited: Duration::from_millis(312),
            missing: vec![WorkerId(3)],
            more: 0,
        },
    };
    reading.status.waits.tensors = (0..5).map(waiting).collect();
    let text = render(&Look::of(None, &reading), PIPE);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("WAITING")).collect();
    assert_eq!((lines.len(), lines[0]), (3, "WAITING layer0.weight r812 0.3 s for [3]"), "{text}");
    let all = render(&Look::of(None, &reading), Screen { all_tensors: true, ..PIPE });
    assert_eq!(all.lines().filter(|line| line.starts_with("WAITING")).count(), 5, "{all}");
    let noted = render(&Look::of(None, &reading), Screen { note: Some("1 of 2 members have written"), ..PIPE });
    assert!(noted.ends_with("1 of 2 members have written\n"), "{noted}");
}

#[test]
fn servers_that_are_silent_about_their_rounds_are_named() {
    let mut reading = Job::new(2, 2).reading();
    reading.status.waits.unheard = Names::first(["server 1".to_owned()].into_iter(), 1);
    let text = render(&Look::of(None, &reading), PIPE);
    assert!(text.contains("\nno answer about waiting tensors from server 1\nVERDICT "), "{text}");
}

#[test]
fn an_old_state_says_why_it_is_shown() {
    let reading = Job::new(2, 1).reading();
    let notice = Some("the coordinator has not answered for 7 s");
    for (size, cut) in [(None, 99), (Some((30, 20)), 30)] {
        let text = render(&Look::of(None, &reading), Screen { size, notice, ..PIPE });
        let expected: String = "NO ANSWER the coordinator has not answered for 7 s".chars().take(cut).collect();
        assert_eq!(text.lines().nth(1), Some(expected.trim_end()), "{text}");
    }
}

#[test]
fn no_name_forges_a_line() {
    hostile::check(|name| {
        let mut reading = Job::new(1, 1).reading();
        reading.status.view.job = name.to_owned();
        reading.status.view.members.iter_mut().for_each(|member| member.process.host = name.to_owned());
        reading.status.waits.unheard = Names::first([name.to_owned()].into_iter(), 1);
        render(&Look::of(None, &reading), Screen { note: Some(name), ..PIPE })
    });
}
