//! How figures and lines look: on a terminal they fit its width, and a pipe gets the lines whole.

use std::io::IsTerminal;

/// The narrowest width for which tables are laid out.
const COLUMNS_MIN: u16 = 60;

/// The columns that a table may use: `asked`, or those of the terminal on standard output; `None` on a pipe, where nothing wraps.
pub(crate) fn columns(asked: Option<u16>) -> Option<usize> {
    let stdout = std::io::stdout();
    let terminal = || stdout.is_terminal().then(|| terminal_size::terminal_size_of(&stdout)).flatten();
    let columns = asked.or_else(|| terminal().map(|(width, _)| width.0));
    columns.map(|columns| usize::from(columns.max(COLUMNS_MIN)))
}

/// `text` in lines that begin with `# ` and fit into `columns`; further lines are indented. One line without `columns`.
pub(crate) fn note(text: &str, columns: Option<usize>) -> String {
    let columns = columns.unwrap_or(usize::MAX);
    let mut lines = String::from("#");
    let mut used = 1;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used + 1 + length > columns && used > 1 {
            lines.push_str("\n#  ");
            used = 3;
        }
        lines.push(' ');
        lines.push_str(word);
        used += 1 + length;
    }
    lines.push('\n');
    lines
}

/// About three significant digits.
pub(super) fn short(figure: f64) -> String {
    match figure {
        figure if figure >= 1000.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.2}"),
        figure => format!("{figure:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_wraps_at_words_and_loses_none() {
        let text = "2 workers on one machine: a training job uses local";
        let wrapped = note(text, Some(24));
        assert!(wrapped.lines().all(|line| line.starts_with('#') && line.chars().count() <= 24), "{wrapped}");
        let words: Vec<&str> = wrapped.split_whitespace().filter(|word| *word != "#").collect();
        assert_eq!(words.join(" "), text);
        assert_eq!(note(text, None), format!("# {text}\n"), "one line on a pipe");
    }
}
