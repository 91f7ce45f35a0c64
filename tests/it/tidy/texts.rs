//! Texts that people read: errors, warnings and what commands print. They show no debug form of a type.

use super::source::root;
use super::{everything, report};

/// What a user wrote and what people write with brackets may be shown in its debug form: names and words in quotes, shapes.
const SHOWN: [&str; 18] = [
    "text",
    "shape",
    "job",
    "name",
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
const SHOWN_IN: [&str; 18] = [
    "core/src/cluster/requests.rs",
    "core/src/cuda/event.rs",
    "core/src/cuda/kernels.rs",
    "core/src/cuda/stream.rs",
    "core/src/engine/submit.rs",
    "core/src/pipeline/layout.rs",
    "core/src/pipeline/placement.rs",
    "core/src/pipeline/registry.rs",
    "core/src/pipeline/registry/comparing.rs",
    "core/src/sched/ids.rs",
    "core/src/transport/credentials.rs",
    "core/src/transport/site.rs",
    "core/src/wire/limits.rs",
    "plugins/tensorflow-op/src/submit.rs",
    "plugins/tensorflow-op/src/tensor.rs",
    "python/src/errors.rs",
    "server/src/coordinator/registry.rs",
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
