use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::types::{Cause, PartId, Role, Round, TensorKey, WorkerId};
use gradlane_core::wire::frame::{Health, Waiting, WaitingTensor};

use super::*;
use crate::look::Reading;
use crate::look::tests::Job;

#[test]
fn a_small_job_is_one_page() {
    let job = Job::new(2, 1);
    let before = job.reading();
    job.passes(&[(1, Cause::Submit, 71), (1, Cause::Transfer, 2)]);
    let mut now = Reading { at: Duration::from_secs(2), ..job.at_step(12) };
    now.told.remove(&(Role::Worker, 0));
    now.status.members[0].health = Health::Suspect;
    now.status.waits.tensors = vec![waiting("layer4.weight")];
    let around = Around {
        points: (0..3).map(|second| Point { second, step: Some(0.2), exposed: Some(0.25), bytes: None }).collect(),
        second: 2,
        events: vec![(Duration::from_secs(61), "worker 0 on n0 (pid 7) is silent for 1.2 s".to_owned())],
        version: "1.2.3",
        settings: 0xabc,
        ..Around::default()
    };
    let page = page(&Look::of(Some(&before), &now), &around);
    let (head, body) = page.split_once("</style>").expect("a style");
    assert!(head.starts_with("<!doctype html>\n") && head.contains("http-equiv=\"refresh\" content=\"2\""), "{head}");
    assert!(head.contains("<title>night: epoch 1.3 running</title>"), "{head}");
    assert_eq!(without_tags(body), BODY);
    let widths: Vec<&str> = body.match_indices("width:").map(|(at, _)| &body[at..at + 11]).collect();
    let expected = ["width:1.3em", "width:3.8em", "width:1.5em", "width:2.5em"];
    assert_eq!(widths, expected, "shares of the time, a delay of 73 of 250 ms, and lanes of a half");
}

const BODY: &str = "\
job night
epoch 1.3 running · 2/2 workers · 1/1 servers · step 12 · 200 ms a step
exposed 25 % rest 75 %
verdict: rank 1 late (submit) 73.0 ms a step
⚠ 2 of 3 answered; missing: worker 0
step 200 ms|the last 5 min, at most 200 ms
exposed 25 %|the last 5 min, at most 25 %
sent and received -|the last 5 min, at most 0/s
Workers
rank|host|state|step|late/step|cause|blocked|push/s|pull/s|limit|loss|open
1|n1|alive|12|73.0 ms|submit|25 %|512 MiB|512 MiB|cwnd|0.25 %|0
0|n0|suspect|12|0.0 ms|-|-|-|-|-|-|-
Servers
server|host|state|in/s|out/s|lanes|sums|placed|open|last
0|n0|alive|1.5 GiB|1.5 GiB|50 %|4 KiB|1 MiB|3|rank 1
Waiting tensors
layer4.weight r812 0.3 s for [1, 2 and 7 more]
Last events
61 s ago worker 0 on n0 (pid 7) is silent for 1.2 s
gradlane 1.2.3 · settings 0000000000000abc · /job /metrics
";

#[test]
fn a_page_is_small_whatever_a_job_has() {
    let job = Job::new(2_000, 200);
    let before = job.reading();
    job.passes(&[(1_999, Cause::Queue, 71)]);
    let mut now = Reading { at: Duration::from_secs(2), ..job.at_step(u64::MAX) };
    for member in &mut now.status.view.members {
        member.process.host = "\"".repeat(1_000);
    }
    now.status.view.job = "\"".repeat(1_000);
    now.told = BTreeMap::from([((Role::Worker, 1_999), now.told[&(Role::Worker, 1_999)].clone())]);
    let sentence = || "'".repeat(10_000);
    now.status.waits.tensors = vec![waiting(&sentence()); 32];
    let point = |second| Point { second, step: Some(2.7 * second as f32), exposed: Some(0.3), bytes: Some(1e9) };
    let around = Around {
        troubles: vec![sentence(); 99],
        points: (0..300).map(point).collect(),
        second: 299,
        events: vec![(Duration::from_secs(10_000), sentence()); 99],
        ..Around::default()
    };
    let page = page(&Look::of(Some(&before), &now), &around);
    assert!(page.len() <= 64 << 10, "{}", page.len());
    assert!(page.contains("and 1968 more workers") && page.contains("and 168 more servers"), "{page}");
    assert!(page.contains("1 of 2200 answered; missing: ") && page.contains(" and 2167 more</p>"), "{page}");
}

#[test]
fn names_cannot_add_to_the_page() {
    let evil = "<script>alert(1)</script>\" onload='x' &lt; \u{1b}[2J\n";
    let mut now = Job::new(1, 1).reading();
    now.status.view.job = evil.to_owned();
    now.status.view.members.iter_mut().for_each(|member| member.process.host = evil.to_owned());
    let events = vec![(Duration::ZERO, evil.to_owned())];
    now.status.waits.tensors = vec![waiting(evil)];
    let around = Around { troubles: vec![evil.to_owned()], events, ..Around::default() };
    let page = page(&Look::of(None, &now), &around);
    for forbidden in ["<script", "\" onload", "'x'", "\u{1b}"] {
        assert!(!page.contains(forbidden), "{forbidden}: {page}");
    }
    assert_eq!(
        page.matches("&lt;script&gt;").count(),
        7,
        "the job twice, two hosts, a trouble, a tensor and an event: {page}"
    );
}

#[test]
fn a_page_names_nothing_that_is_elsewhere() {
    let page = page(&Look::of(None, &Job::new(1, 1).reading()), &Around::default());
    for elsewhere in ["://", "url(", "@import", "src=", "<script", "<link", "<img", "<iframe", "<form"] {
        assert!(!page.contains(elsewhere), "{elsewhere}: {page}");
    }
}

fn waiting(tensor: &str) -> WaitingTensor {
    WaitingTensor {
        tensor: tensor.to_owned(),
        told_by: "server 0".to_owned(),
        age: Duration::from_millis(100),
        waiting: Waiting {
            part: PartId { key: TensorKey(1), index: 0 },
            round: Round(812),
            waited: Duration::from_millis(200),
            missing: vec![WorkerId(1), WorkerId(2)],
            more: 7,
        },
    }
}

/// The texts, with `|` between cells.
fn without_tags(html: &str) -> String {
    let cells =
        html.replace("</th><th", "</th>|<th").replace("</td><td>", "</td>|<td>").replace("<small>the", "|<small>the");
    let mut text = String::new();
    let mut is_in_tag = false;
    for char in cells.chars() {
        match char {
            '<' => is_in_tag = true,
            '>' => is_in_tag = false,
            char if !is_in_tag => text.push(char),
            _ => {}
        }
    }
    text.lines().filter(|line| !line.is_empty()).map(|line| line.to_owned() + "\n").collect()
}
