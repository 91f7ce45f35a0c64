//! Texts that people read: errors, warnings, what commands print, and the names of threads. They show no debug form of a type.

use super::source::root;
use super::{everything, report};

/// What a user wrote and what people write with brackets may be shown in its debug form: names and words in quotes, shapes.
const SHOWN: [&str; 19] = [
    "text",
    "shape",
    "job",
    "name",
    "key",
    "address",
    "problem",
    "word",
    "unit",
    "peer",
    "op",
    "other",
    "barrier",
    "self.spec.shape",
    "value",
    "field",
    "self.raw",
    "facts",
    "defect",
];

/// Files in which `{:?}` stands for such a thing, or whose debug form is only for programmers.
const SHOWN_IN: [&str; 16] = [
    "core/src/cluster/requests.rs",
    "core/src/cuda/event.rs",
    "core/src/cuda/kernels/module.rs",
    "core/src/cuda/stream.rs",
    "core/src/engine/submit.rs",
    "core/src/identity/credentials.rs",
    "core/src/identity/site.rs",
    "core/src/pipeline/layout.rs",
    "core/src/pipeline/placement.rs",
    "core/src/pipeline/registry.rs",
    "core/src/sched/ids.rs",
    "core/src/wire/limits.rs",
    "plugins/tensorflow-op/src/submit.rs",
    "plugins/tensorflow-op/src/tensor.rs",
    "python/src/errors.rs",
    "server/src/log.rs",
];

/// The macros whose lines are shown by default, or with the level `info`.
const LOGS: [&str; 3] = ["tracing::error!(", "tracing::warn!(", "tracing::info!("];

#[test]
fn no_text_for_people_shows_the_debug_form_of_a_type() {
    let mut wrong = Vec::new();
    for (path, text) in production() {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for (at, _) in line.match_indices(":?}") {
                let shown = line[..at].rsplit('{').next().unwrap_or_default();
                let is_for_people = match shown {
                    "" => !SHOWN_IN.contains(&path.as_str()),
                    named => !SHOWN.contains(&named),
                };
                let is_assertion =
                    ["assert", "panic!", "expect(", "unreachable!"].iter().any(|word| line.contains(word));
                if is_for_people && !is_assertion {
                    wrong.push(format!("{path}:{number}: {}", line.trim()));
                }
            }
        }
    }
    report("texts that show the debug form of a type: write what it means in words", wrong);
}

#[test]
fn no_line_of_the_log_shows_the_debug_form_of_a_type() {
    let mut wrong = Vec::new();
    for (path, text) in production() {
        for (at, log) in LOGS.iter().flat_map(|log| text.match_indices(log)) {
            let statement = &text[at..at + text[at..].find(';').unwrap_or(text.len() - at)];
            let fields = statement.split('"').step_by(2).collect::<String>();
            let is_debug = |(at, _): (usize, &str)| {
                fields[..at].ends_with(['(', ' ']) && fields[at + 1..].starts_with(|next: char| next.is_alphabetic())
            };
            if fields.match_indices('?').any(is_debug) {
                let line = text[..at].matches('\n').count() + 1;
                wrong.push(format!("{path}:{line}: {log} with a field in its debug form"));
            }
        }
    }
    report("lines of the log that show the debug form of a type", wrong);
}

/// Calls whose first text is the name of a thread.
const THREADS: [&str; 5] =
    ["OwnThread::start(", "start_watched(", "Timer::start(", "endpoint::start(", "Builder::new().name("];

#[test]
fn every_thread_has_a_name_that_tells_whose_it_is() {
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (path, text) in production() {
        // A call may be broken into lines.
        let code = text.replace('\n', " ").split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let code = code.replace(" .", ".").replace("( ", "(");
        for (at, call) in THREADS.iter().flat_map(|call| code.match_indices(call)) {
            let argument = code[at + call.len()..].trim_start_matches('&').trim_start_matches("format!(");
            let Some(name) = argument.strip_prefix('"').and_then(|rest| rest.split('"').next()) else { continue };
            found += 1;
            // Linux keeps 15 bytes. A name with braces is as long as what it shows.
            if !name.starts_with("gl-") || (!name.contains('{') && name.len() > 15) {
                wrong.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(found > 20, "{found} names of threads");
    report("names of threads: begin with gl-, and have at most 15 bytes", wrong);
}

/// Every production source, without its tests.
fn production() -> Vec<(String, String)> {
    let sources = everything().into_iter().filter(|source| !source.is_test && !source.path.contains("fuzz"));
    sources
        .map(|source| {
            let text = std::fs::read_to_string(root().join(&source.path)).expect("sources are readable UTF-8");
            let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            (source.path, before_tests)
        })
        .collect()
}
