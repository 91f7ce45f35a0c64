//! Reads Rust sources as far as the tidy tests need: which words stand in the code of a file, and which modules it names. No parser:
//! comments, texts and test modules are blanked, and the rest is read word by word.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One file of a crate.
pub(super) struct Source {
    /// From the root of the repository.
    pub(super) path: String,
    /// Its module, from the crate's root: `["wire", "header"]`; empty for the root itself.
    pub(super) module: Vec<String>,
    /// Whether it is compiled for tests only.
    pub(super) is_test: bool,
    /// How long it is.
    pub(super) lines: usize,
    /// The text with everything that is not production code blanked; lines and columns are kept.
    pub(super) code: String,
}

/// A path to a module, as it stands in the code.
#[derive(Debug, PartialEq)]
pub(super) struct Reference {
    /// Counts from 1.
    pub(super) line: usize,
    /// From the root of the crate that is named, such as `["wire", "header"]`.
    pub(super) path: Vec<String>,
}

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live one folder below the root").to_owned()
}

/// The sources below `folder`, in the order of their names.
pub(super) fn read(folder: &str) -> Vec<Source> {
    let files = files(&root().join(folder), "rs");
    let mut tests = BTreeSet::new();
    let mut sources: Vec<Source> = files.iter().map(|file| source(folder, file, &mut tests)).collect();
    for source in &mut sources {
        source.is_test = tests.iter().any(|test| source.module.starts_with(test));
    }
    sources
}

/// The files below `folder` with this extension, in the order of their names.
pub(super) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.expect("readable").path();
        let skipped = path.file_name().is_some_and(|name| name == "target" || name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !skipped {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

impl Source {
    /// The lines on which `text` stands in the code.
    pub(super) fn lines_with<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(text).map(|(at, _)| self.line(at))
    }

    /// The modules named after `prefix`, which is the name of a crate or `crate`, and for `crate` those named by `super` too.
    pub(super) fn references(&self, prefix: &str) -> Vec<Reference> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices(&format!("{prefix}::")) {
            let part_of_a_word = self.code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            // A visibility says who may name an item; it names nothing itself.
            let visibility = self.code[..at].ends_with("pub(in ");
            if !part_of_a_word && !visibility {
                let paths = paths(&self.code[at + prefix.len() + 2..]);
                found.extend(paths.into_iter().map(|path| Reference { line: self.line(at), path }));
            }
        }
        if prefix == "crate" {
            self.supers(&mut found);
        }
        found
    }

    /// The paths named after `child::`, a module right below this one, with their lines. What is only given out (`pub use`) is left out.
    pub(super) fn relative(&self, child: &str) -> Vec<(usize, Vec<String>)> {
        let own = without_reexports(&self.code);
        let mut found = Vec::new();
        for (at, _) in own.match_indices(&format!("{child}::")) {
            let before = &own[..at];
            let before = before.strip_suffix("self::").unwrap_or(before);
            let is_whole = !before.ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
            if is_whole {
                let paths = paths(&own[at + child.len() + 2..]);
                found.extend(paths.into_iter().map(|path| (self.line(at), path)));
            }
        }
        found
    }

    /// Whether the code names `word`, other than to give it out.
    pub(super) fn uses_word(&self, word: &str) -> bool {
        let own = without_reexports(&self.code);
        let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
        let whole = |at: usize| !own[..at].ends_with(is_letter) && !own[at + word.len()..].starts_with(is_letter);
        own.match_indices(word).any(|(at, _)| whole(at))
    }

    /// What stands in `pub use`, path by path as written.
    pub(super) fn reexports(&self) -> Vec<Vec<String>> {
        let statements = reexports(&self.code).into_iter();
        statements.flat_map(|(start, end)| paths(&self.code[start..end])).collect()
    }

    fn supers(&self, found: &mut Vec<Reference>) {
        let mut rest = 0;
        while let Some(at) = self.code[rest..].find("super::").map(|at| rest + at) {
            let mut after = &self.code[at..];
            let mut module = &self.module[..];
            while let Some(next) = after.strip_prefix("super::") {
                after = next;
                module = module.split_last().map_or(module, |(_, parent)| parent);
            }
            for path in paths(after) {
                let path = module.iter().cloned().chain(path).collect();
                found.push(Reference { line: self.line(at), path });
            }
            rest = self.code.len() - after.len();
        }
    }

    fn line(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }
}

fn source(folder: &str, file: &Path, tests: &mut BTreeSet<Vec<String>>) -> Source {
    let text = std::fs::read_to_string(file).expect("sources are readable UTF-8");
    let inside = file.strip_prefix(root().join(folder)).expect("found below it").with_extension("");
    let mut module: Vec<String> =
        inside.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    let code = without_tests(&without_prose(&text), |name| {
        tests.insert(module.iter().cloned().chain([name.to_owned()]).collect());
    });
    let path = file.strip_prefix(root()).expect("found below it").display().to_string();
    Source { path, module, is_test: false, lines: text.lines().count(), code }
}

/// Blanks comments, texts and characters.
fn without_prose(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = prose(rest);
        match length {
            0 => code.push(first),
            _ => code.extend(rest[..length].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' })),
        }
        rest = &rest[length.max(first.len_utf8())..];
    }
    code
}

/// Bytes of the comment, text or character that `rest` begins with; 0 for code.
fn prose(rest: &str) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    if let Some(text) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = text.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        return end.map_or(rest.len(), |end| end + 2);
    }
    // A character, unlike a lifetime, ends with a quote.
    let mut letters = rest.char_indices();
    match (letters.next(), letters.next(), letters.next()) {
        (Some((_, '\'')), Some((_, '\\')), _) => until("'", 3),
        (Some((_, '\'')), Some(_), Some((end, '\''))) => end + 1,
        _ => 0,
    }
}

/// Blanks what follows `#[cfg(test)]` up to the end of the item; names modules that lie in files of their own.
fn without_tests(code: &str, mut elsewhere: impl FnMut(&str)) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item[MARK.len()..].find([';', '{']).map_or(item.len(), |end| MARK.len() + end);
        let head = item[..end].trim_end();
        let end = match item[end..].chars().next() {
            Some('{') => end + braces(&item[end..]),
            Some(_) | None => {
                if let Some(name) = head.rsplit_once("mod ").map(|(_, name)| name) {
                    elsewhere(name.trim());
                }
                end
            }
        };
        kept.extend(item[..end].chars().filter(|letter| *letter == '\n'));
        rest = &item[end..];
    }
    kept.push_str(rest);
    kept
}

/// Bytes up to the brace that closes the one that `text` begins with.
fn braces(text: &str) -> usize {
    let mut depth = 0;
    let closing = text.char_indices().find(|(_, letter)| {
        depth += i32::from(*letter == '{') - i32::from(*letter == '}');
        depth == 0
    });
    closing.map_or(text.len(), |(at, _)| at + 1)
}

/// Where the use trees of `pub use` and `pub(…) use` begin and end.
fn reexports(code: &str) -> Vec<(usize, usize)> {
    let starts = code.match_indices("use ").map(|(at, word)| (at, at + word.len()));
    let is_given_out = |before: &str| {
        let before = before.trim_end();
        before.ends_with("pub")
            || before.rsplit_once("pub(").is_some_and(|(_, scope)| scope.find(')') == Some(scope.len() - 1))
    };
    let given_out = starts.filter(|(at, _)| is_given_out(&code[..*at]));
    given_out.map(|(_, start)| (start, code[start..].find(';').map_or(code.len(), |end| start + end))).collect()
}

/// Blanks what is only given out.
fn without_reexports(code: &str) -> String {
    let mut kept = code.to_owned();
    for (start, end) in reexports(code) {
        let blank: String = code[start..end].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(start..end, &blank);
    }
    kept
}

/// The paths of a use tree or expression, such as `a::b` or `{a::{b, c}, d}`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if text.starts_with('{') {
        let inner = &text[1..braces(text) - 1];
        return split(inner).into_iter().flat_map(paths).collect();
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        _ if word.is_empty() => Vec::new(),
        Some(rest) => {
            let below = paths(rest);
            let alone = if below.is_empty() { vec![Vec::new()] } else { below };
            alone.into_iter().map(|path| std::iter::once(word.to_owned()).chain(path).collect()).collect()
        }
        None => vec![vec![word.to_owned()]],
    }
}

/// Splits at the commas outside of braces.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    })
    .collect()
}

#[test]
fn comments_texts_and_characters_are_no_code() {
    let text = "a /* b */ \"c \\\" d\" 'e' '\\'' r#\"f\" g\"# &'life h // i\nj";
    let words: Vec<String> = without_prose(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["a", "&'life", "h", "j"]);
}

#[test]
fn test_modules_are_no_production_code() {
    let mut elsewhere = Vec::new();
    let code = without_tests("a\n#[cfg(test)]\nmod t { b {} }\n#[cfg(test)]\nmod u;\nc", |name| {
        elsewhere.push(name.to_owned());
    });
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", ";", "c"]);
    assert_eq!(elsewhere, ["u"]);
}

#[test]
fn every_way_to_name_a_module_is_a_reference() {
    let code = "use crate::{a, b::{c, D}};\nuse super::super::e::F;\nlet x = crate::g::h(1); use mycrate::no;";
    let source = Source {
        path: String::new(),
        module: vec!["m".to_owned(), "n".to_owned()],
        is_test: false,
        lines: 3,
        code: code.to_owned(),
    };
    let found: Vec<String> =
        source.references("crate").iter().map(|found| format!("{} {}", found.line, found.path.join("::"))).collect();
    assert_eq!(found, ["1 a", "1 b::c", "1 b::D", "3 g::h", "2 e::F"]);
}
