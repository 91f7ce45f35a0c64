//! How members and foreign texts are called in sentences.

use std::fmt::Display;

use gradlane_core::types::printable;

/// Workers by rank, such as `workers 0, 1 and 3`.
pub(super) fn named(ranks: &[u32]) -> String {
    all("worker", ranks)
}

/// Members of one role, such as `servers 0, 1 and 3`.
pub(super) fn all(role: &str, indexes: &[u32]) -> String {
    match indexes {
        [] => format!("no {role}"),
        [only] => format!("{role} {only}"),
        several => format!("{role}s {}", listed(several)),
    }
}

/// Things in one sentence, such as `0, 1 and 3`.
pub(super) fn listed(things: &[impl Display]) -> String {
    let words: Vec<String> = things.iter().map(ToString::to_string).collect();
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// The same at the begin of a sentence.
pub(super) fn begin(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Foreign text on one line, without what a terminal would obey, and not too long.
pub(super) fn plain(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

/// Characters of a foreign text.
const CHARS_MAX: usize = 400;
