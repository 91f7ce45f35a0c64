//! Texts and tables in HTML.

use std::fmt::Write;

use gradlane_core::types::printable;

/// A text of at most `chars` characters that a browser shows as it is. Of a longer one, the beginning.
pub(super) fn text(text: &str, chars: usize) -> String {
    // Characters that are no text are made longer here, so that the limit is that of the page.
    let shown = printable(text);
    let is_whole = shown.chars().nth(chars).is_none();
    let mut escaped = String::new();
    for char in shown.chars().take(if is_whole { chars } else { chars.saturating_sub(1) }) {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    if !is_whole {
        escaped.push('…');
    }
    escaped
}

/// A column of a table of `T`: its head, and its cell as HTML.
pub(super) struct Column<T> {
    pub(super) head: &'static str,
    /// For people who rest the pointer on the head.
    pub(super) meaning: &'static str,
    pub(super) cell: fn(&T) -> String,
}

/// A table of the first `most` rows, and a line that counts the others, which are called `what`.
pub(super) fn table<T>(columns: &[Column<T>], rows: &[&T], most: usize, what: &str) -> String {
    let mut html = String::from("<div class=\"wide\"><table><thead><tr>");
    for Column { head, meaning, .. } in columns {
        let _ = write!(html, "<th title=\"{}\">{}</th>", text(meaning, 120), text(head, 20));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows.iter().take(most) {
        html.push_str("<tr>");
        for Column { cell, .. } in columns {
            let _ = write!(html, "<td>{}</td>", cell(row));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    if rows.len() > most {
        let _ = writeln!(html, "<p class=\"more\">and {} more {what}</p>", rows.len() - most);
    }
    html
}

/// A value that may be unknown.
pub(super) fn known<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), |value| text(&shown(value), 40))
}

/// A list with a heading; nothing if it is empty.
pub(super) fn list(heading: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{item}</li>\n")).collect();
    format!("<h2>{heading}</h2>\n<ul>\n{items}</ul>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_neither_a_tag_nor_an_attribute_nor_endless() {
        assert_eq!(text("<b a='\"'>&amp;", 99), "&lt;b a=&#39;&#34;&#39;&gt;&amp;amp;");
        assert_eq!(text("a\u{1b}[2J\n", 99), "a\\u{1b}[2J\\n");
        assert_eq!((text("abcd", 4), text("abcde", 4)), ("abcd".to_owned(), "abc…".to_owned()));
    }
}
