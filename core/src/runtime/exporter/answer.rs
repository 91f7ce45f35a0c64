//! Writes the answers to requests: the pages, and why there is none.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::request::{Page, Refusal, Verdict};
use super::shown::{Gathered, Shown, Standing};
use crate::metrics::{Instance, prometheus};

/// A page. `exporter` are the exporter's own metrics.
pub(super) fn page(page: Page, shown: &[Arc<dyn Shown>], exporter: impl FnOnce() -> Instance) -> Answer {
    match page {
        Page::Metrics => {
            let mut instances: Vec<Instance> = shown.iter().filter_map(|shown| shown.values()).collect();
            instances.push(exporter());
            Answer { status: "200 OK", kind: PROMETHEUS, body: prometheus(&instances) }
        }
        Page::Front => front(shown),
        Page::Job => job(shown),
        Page::Health => Answer::plain("200 OK", "ok"),
        Page::Readiness => readiness(shown),
    }
}

/// The bytes of an answer, whose connection ends behind it. `page` is what was asked for, if it is not refused.
pub(super) fn answer(verdict: Verdict, page: impl FnOnce(Page) -> Answer) -> Vec<u8> {
    let Answer { status, kind, body } = verdict.outcome.map_or_else(refused, page);
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n",
        body.len()
    );
    if let Err(Refusal::OtherMethod) = verdict.outcome {
        text.push_str("Allow: GET, HEAD\r\n");
    }
    if kind == HTML {
        text.push_str(HTML_ONLY);
    }
    text.push_str("\r\n");
    if verdict.wants_body {
        text.push_str(&body);
    }
    text.into_bytes()
}

/// What is answered.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    status: &'static str,
    kind: &'static str,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn plain(status: &'static str, body: impl Into<String>) -> Self {
        let mut body = body.into();
        if !body.ends_with('\n') {
            body.push('\n');
        }
        Self { status, kind: "text/plain; charset=utf-8", body }
    }

    /// The same, `age` after it was made. What shows a whole job says so, if that is a second or more.
    pub(super) fn aged(mut self, page: Page, age: Duration) -> Self {
        let seconds = age.as_secs();
        if seconds == 0 {
            return self;
        }
        match page {
            Page::Job if self.kind == PROMETHEUS => {
                self.body = self.body.replacen('\n', &format!("; {seconds} s ago\n"), 1)
            }
            Page::Front => {
                let note = format!("<body>\n<p class=\"note warn\">⚠ this page is {seconds} s old</p>\n");
                self.body = self.body.replacen("<body>\n", &note, 1);
            }
            Page::Job | Page::Metrics | Page::Health | Page::Readiness => {}
        }
        self
    }
}

/// The page of the job that a coordinator of this process leads.
fn front(shown: &[Arc<dyn Shown>]) -> Answer {
    match shown.iter().find_map(|shown| shown.page()) {
        Some(body) => Answer { status: "200 OK", kind: HTML, body },
        None => Answer::plain(
            "404 Not Found",
            "no coordinator is in this process; ask the one of the job for /; here are /metrics, /healthz and /readyz",
        ),
    }
}

/// The members of the jobs that coordinators of this process lead. The first line says whether it has all of them.
fn job(shown: &[Arc<dyn Shown>]) -> Answer {
    let mut all: Option<Gathered> = None;
    for Gathered { instances, missing } in shown.iter().filter_map(|shown| shown.gathered()) {
        let all = all.get_or_insert_default();
        all.instances.extend(instances);
        all.missing.extend(missing);
    }
    let Some(Gathered { instances, missing }) = all else {
        return Answer::plain("404 Not Found", "no coordinator is in this process; ask the one of the job for /job");
    };
    let (answered, members) = (instances.len(), instances.len() + missing.len());
    let missing = if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) };
    let body = format!("# {answered} of {members} members answered{missing}\n{}", prometheus(&instances));
    Answer { status: "200 OK", kind: PROMETHEUS, body }
}

/// A line for each part of this process. All of them must be ready. A process without any has not begun to join.
fn readiness(shown: &[Arc<dyn Shown>]) -> Answer {
    let standings = || shown.iter().map(|shown| (shown.name(), shown.standing()));
    let mut body = String::new();
    for (name, standing) in standings() {
        writeln!(body, "{name}: {}", standing.word()).expect("a String takes all");
    }
    if shown.is_empty() {
        body.push_str(Standing::Joining.word());
    }
    let is_ready = !shown.is_empty() && standings().all(|(_, standing)| standing == Standing::Ready);
    Answer::plain(if is_ready { "200 OK" } else { "503 Service Unavailable" }, body)
}

fn refused(refusal: Refusal) -> Answer {
    let (status, why) = match refusal {
        Refusal::Malformed => ("400 Bad Request", "this is no request of HTTP/1.1 with one Host field"),
        Refusal::OtherHost => {
            ("403 Forbidden", "this host has another name; the setting metrics_hosts adds names under which it answers")
        }
        Refusal::NoPage => ("404 Not Found", "there are /, /metrics, /job, /healthz and /readyz"),
        Refusal::OtherMethod => ("405 Method Not Allowed", "use GET or HEAD"),
        Refusal::Slow => ("408 Request Timeout", "the request did not come in time"),
        Refusal::Long => ("431 Request Header Fields Too Large", "the head of a request may have 8 KiB and 64 fields"),
        Refusal::OtherVersion => ("505 HTTP Version Not Supported", "use HTTP/1.1"),
        Refusal::Busy => ("503 Service Unavailable", "too many connections are open; ask again"),
    };
    Answer::plain(status, why)
}

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
/// A browser runs no script of the page, and loads nothing for it, whatever is in it. The page can stand in no frame of another site.
const HTML_ONLY: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                         frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{ExporterMetrics, WorkerMetrics};

    #[test]
    fn metrics_come_with_their_type_and_their_length() {
        let (head, body) = get(Page::Metrics, &[worker(Standing::Ready)]);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert!(body.contains("gradlane_worker_submissions_total{rank=\"3\"} 0\n"), "{body}");
        assert!(body.contains("gradlane_exporter_answers_total{version=\"9\"} 0\n"), "{body}");
    }

    #[test]
    fn the_page_of_a_job_shows_all_members_and_says_who_is_missing() {
        let (head, body) = get(Page::Job, &[worker(Standing::Ready)]);
        assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("coordinator"), "{head}{body}");
        let member = |index: u32| WorkerMetrics::default().instance(index).of_member("worker", index);
        for (missing, line) in [
            (vec![], "# 2 of 2 members answered\n"),
            (vec!["worker 5", "server 0"], "# 2 of 4 members answered; missing: worker 5, server 0\n"),
        ] {
            let missing = missing.into_iter().map(str::to_owned).collect();
            let gathered = Gathered { instances: vec![member(0), member(1)], missing };
            let (head, body) = get(Page::Job, &[worker(Standing::Ready), Arc::new(Coordinator(gathered))]);
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(body.starts_with(line), "{body}");
            let sample = "gradlane_worker_pushes_total{rank=\"1\",role=\"worker\",index=\"1\"} 0\n";
            assert!(body.contains(sample) && !body.contains("rank=\"3\""), "members alone: {body}");
        }
    }

    #[test]
    fn a_page_for_people_comes_with_a_policy_by_which_it_loads_nothing() {
        let (head, body) = get(Page::Front, &[worker(Standing::Ready)]);
        assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("coordinator"), "{head}{body}");
        assert!(!head.contains("Content-Security-Policy"), "{head}");
        let (head, body) = get(Page::Front, &[worker(Standing::Ready), Arc::new(Coordinator(Gathered::default()))]);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
        let policy = "\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; ";
        assert!(head.contains(policy) && !head.contains("script-src"), "{head}");
        assert_eq!(body, "<!doctype html><body>\n");
    }

    #[test]
    fn a_whole_job_says_how_old_it_is() {
        let coordinator: [Arc<dyn Shown>; 1] =
            [Arc::new(Coordinator(Gathered { instances: vec![], missing: vec!["worker 5".to_owned()] }))];
        let aged = |asked, shown: &[Arc<dyn Shown>], age| {
            page(asked, shown, || ExporterMetrics::default().instance(9)).aged(asked, Duration::from_millis(age)).body
        };
        let job = "# 0 of 1 members answered; missing: worker 5";
        assert_eq!(aged(Page::Job, &coordinator, 999), format!("{job}\n"));
        assert_eq!(aged(Page::Job, &coordinator, 12_900), format!("{job}; 12 s ago\n"));
        assert_eq!(aged(Page::Front, &coordinator, 999), "<!doctype html><body>\n");
        let note = "<p class=\"note warn\">⚠ this page is 12 s old</p>\n";
        assert_eq!(aged(Page::Front, &coordinator, 12_900), format!("<!doctype html><body>\n{note}"));
        for (asked, shown) in [(Page::Metrics, &coordinator[..]), (Page::Job, &[]), (Page::Front, &[])] {
            assert_eq!(aged(asked, shown, 12_900), aged(asked, shown, 0), "{asked:?}");
        }
    }

    #[test]
    fn a_part_without_a_place_has_no_values() {
        let (head, body) = get(Page::Metrics, &[worker(Standing::Joining)]);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(!body.contains("gradlane_worker"), "{body}");
    }

    #[test]
    fn a_process_is_ready_if_all_its_parts_are() {
        use Standing::{Ended, Ending, Failed, Joining, Ready};
        for (standings, ready, told) in [
            (&[][..], false, "joining\n"),
            (&[Ready], true, "worker: ready\n"),
            (&[Ready, Ready], true, "worker: ready\nworker: ready\n"),
            (&[Ready, Joining], false, "worker: ready\nworker: joining\n"),
            (&[Ending], false, "worker: ending\n"),
            (&[Ended], false, "worker: ended\n"),
            (&[Failed], false, "worker: failed\n"),
        ] {
            let shown: Vec<_> = standings.iter().map(|standing| worker(*standing)).collect();
            let (head, body) = get(Page::Readiness, &shown);
            let status = if ready { "200 OK" } else { "503 Service Unavailable" };
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{standings:?}: {head}");
            assert_eq!(body, told, "{standings:?}");
            let (head, _) = get(Page::Health, &shown);
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{standings:?}: it lives: {head}");
        }
    }

    #[test]
    fn a_head_has_the_length_of_the_body_that_it_leaves_out() {
        for outcome in [Ok(Page::Metrics), Ok(Page::Readiness), Err(Refusal::NoPage)] {
            let whole = text(Verdict { outcome, wants_body: true }, &[]);
            let head = text(Verdict { outcome, wants_body: false }, &[]);
            assert!(head.ends_with("\r\n\r\n") && whole.starts_with(&head) && whole.len() > head.len(), "{head}");
        }
    }

    #[test]
    fn a_refusal_says_why_and_what_is_allowed() {
        for (refusal, status) in [
            (Refusal::Malformed, "400 Bad Request"),
            (Refusal::OtherHost, "403 Forbidden"),
            (Refusal::NoPage, "404 Not Found"),
            (Refusal::OtherMethod, "405 Method Not Allowed"),
            (Refusal::Slow, "408 Request Timeout"),
            (Refusal::Long, "431 Request Header Fields Too Large"),
            (Refusal::OtherVersion, "505 HTTP Version Not Supported"),
            (Refusal::Busy, "503 Service Unavailable"),
        ] {
            let text = text(Verdict { outcome: Err(refusal), wants_body: true }, &[]);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            assert_eq!(text.contains("\r\nAllow: GET, HEAD\r\n"), refusal == Refusal::OtherMethod, "{text}");
            assert!(text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() > 5), "{text}");
        }
    }

    struct Worker(Standing);

    impl Shown for Worker {
        fn name(&self) -> &'static str {
            "worker"
        }

        fn standing(&self) -> Standing {
            self.0
        }

        fn values(&self) -> Option<Instance> {
            (self.0 != Standing::Joining).then(|| WorkerMetrics::default().instance(3))
        }
    }

    struct Coordinator(Gathered);

    impl Shown for Coordinator {
        fn name(&self) -> &'static str {
            "coordinator"
        }

        fn standing(&self) -> Standing {
            Standing::Ready
        }

        fn values(&self) -> Option<Instance> {
            None
        }

        fn gathered(&self) -> Option<Gathered> {
            Some(self.0.clone())
        }

        fn page(&self) -> Option<String> {
            Some("<!doctype html><body>\n".to_owned())
        }
    }

    fn worker(standing: Standing) -> Arc<dyn Shown> {
        Arc::new(Worker(standing))
    }

    fn get(page: Page, shown: &[Arc<dyn Shown>]) -> (String, String) {
        let text = text(Verdict { outcome: Ok(page), wants_body: true }, shown);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (format!("{head}\r\n"), body.to_owned())
    }

    fn text(verdict: Verdict, shown: &[Arc<dyn Shown>]) -> String {
        let page = |asked| page(asked, shown, || ExporterMetrics::default().instance(9));
        String::from_utf8(answer(verdict, page)).expect("text")
    }
}
