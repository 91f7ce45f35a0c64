//! Finds circles between the files and folders of a crate.
//!
//! Every folder is looked at by itself. Its entries are its files and its sub-folders, and its own `mod.rs`; an entry *uses* another one
//! if any file in the first names an item of any file in the second. Where the entries of no folder go in a circle, no files do.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// The module that a path leads to, from the crate's root.
type Module = Vec<String>;

/// An entry of a folder: the name of a file or sub-folder, or `None` for the folder's own `mod.rs`.
type Entry = Option<String>;

/// The circles of a crate whose production code is `sources`, each as the folder and what its entries use.
pub(super) fn circles(sources: &[Source]) -> Vec<String> {
    let files = Files::new(sources);
    let mut uses: BTreeMap<Module, BTreeMap<Entry, BTreeMap<Entry, String>>> = BTreeMap::new();
    for source in sources {
        for (place, target) in files.references(source) {
            let Some((folder, from, to)) = crossing(&source.module, &target) else { continue };
            uses.entry(folder).or_default().entry(from).or_default().entry(to).or_insert(place);
        }
    }
    uses.iter().filter_map(|(folder, uses)| describe(folder, uses)).collect()
}

/// The folder in which a reference between two files leads from one entry to another; `None` within one file.
fn crossing(from: &[String], to: &[String]) -> Option<(Module, Entry, Entry)> {
    let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    let entry = |module: &[String]| module.get(common).cloned();
    (from != to).then(|| (from[..common].to_vec(), entry(from), entry(to)))
}

fn describe(folder: &[String], uses: &BTreeMap<Entry, BTreeMap<Entry, String>>) -> Option<String> {
    // Take away every entry that uses no other one that is left. What cannot be taken away is in a circle or uses one that is.
    let mut left: BTreeSet<&Entry> =
        uses.iter().flat_map(|(from, to)| std::iter::once(from).chain(to.keys())).collect();
    let uses_none = |entry: &Entry, left: &BTreeSet<&Entry>| {
        uses.get(entry).is_none_or(|used| used.keys().all(|used| !left.contains(used)))
    };
    while let Some(free) = left.iter().copied().find(|entry| uses_none(entry, &left)) {
        left.remove(free);
    }
    // Take away every entry that is used by none of those that are left.
    let is_used = |entry: &Entry, left: &BTreeSet<&Entry>| left.iter().any(|user| uses[*user].contains_key(entry));
    while let Some(free) = left.iter().copied().find(|entry| !is_used(entry, &left)) {
        left.remove(free);
    }
    let name = |entry: &Entry| entry.clone().unwrap_or_else(|| "mod.rs".to_owned());
    let line = |entry: &&Entry| {
        let used = uses[*entry].iter().filter(|(used, _)| left.contains(used));
        let used: Vec<String> = used.map(|(used, place)| format!("{} ({place})", name(used))).collect();
        format!("{} uses {}", name(entry), used.join(", "))
    };
    let lines: Vec<String> = left.iter().map(line).collect();
    (!lines.is_empty()).then(|| format!("in {}/:\n    {}", folder.join("/"), lines.join("\n    ")))
}

/// What is needed to find the file that defines an item.
struct Files {
    modules: BTreeSet<Module>,
    /// By module and name: the path that is given out under this name.
    reexports: BTreeMap<(Module, String), Module>,
}

impl Files {
    fn new(sources: &[Source]) -> Self {
        let modules = sources.iter().map(|source| source.module.clone()).collect();
        let mut files = Self { modules, reexports: BTreeMap::new() };
        for source in sources {
            for path in source.reexports() {
                let absolute = files.absolute(&source.module, &path);
                if let (Some(absolute), Some(name)) = (absolute, path.last()) {
                    files.reexports.insert((source.module.clone(), name.clone()), absolute);
                }
            }
        }
        files
    }

    /// The files that `source` names, each with its place. What `mod.rs` only gives out is not used there.
    fn references(&self, source: &Source) -> Vec<(String, Module)> {
        let named = source.references("crate").into_iter().map(|reference| (reference.line, reference.path));
        let children =
            self.modules.iter().filter(|module| module.split_last().is_some_and(|(_, parent)| parent == source.module));
        let below = children.flat_map(|child| {
            let name = child.last().expect("a child has a name");
            let below = source.relative(name).into_iter();
            below.map(|(line, path)| (line, [source.module.clone(), vec![name.clone()], path].concat()))
        });
        let given_out = source.reexports().into_iter().filter_map(|path| {
            let name = path.last()?;
            let target = self.absolute(&source.module, &path)?;
            source.uses_word(name).then_some((1, target))
        });
        let found = named.chain(below).chain(given_out).map(|(line, path)| (format!("line {line}"), self.file(&path)));
        found.filter(|(_, file)| *file != source.module).collect()
    }

    /// The file in which the item at `path` is defined.
    fn file(&self, path: &[String]) -> Module {
        let mut at: Module = Vec::new();
        for (index, name) in path.iter().enumerate() {
            let deeper = [at.clone(), vec![name.clone()]].concat();
            if self.modules.contains(&deeper) {
                at = deeper;
            } else if let Some(elsewhere) = self.reexports.get(&(at.clone(), name.clone())) {
                return self.file(&[elsewhere.clone(), path[index + 1..].to_vec()].concat());
            } else {
                break;
            }
        }
        at
    }

    /// A path that stands in `module`, from the crate's root; `None` for one that leads to another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => self.absolute(module, rest),
            "super" => self.absolute(module.split_last()?.1, rest),
            _ => {
                let here = [module.to_vec(), path.to_vec()].concat();
                self.modules.contains(&here[..=module.len()]).then_some(here)
            }
        }
    }
}

#[test]
fn two_files_that_name_each_other_are_a_circle_and_a_facade_is_none() {
    let source = |module: &[&str], code: &str| Source {
        path: module.join("/"),
        module: module.iter().map(|name| (*name).to_owned()).collect(),
        is_test: false,
        lines: 1,
        code: code.to_owned(),
    };
    let facade = source(&["m"], "mod a; mod b; pub use a::A; pub use b::B;");
    let fine = [source(&[], ""), facade, source(&["m", "a"], "pub struct A;"), source(&["m", "b"], "use super::A;")];
    assert_eq!(circles(&fine), Vec::<String>::new());

    let facade = source(&["m"], "mod a; mod b; pub use a::A; pub use b::B;");
    let wrong = [source(&[], ""), facade, source(&["m", "a"], "use super::B;"), source(&["m", "b"], "use super::A;")];
    let found = circles(&wrong);
    assert_eq!(found, ["in m/:\n    a uses b (line 1)\n    b uses a (line 1)"]);

    let parent = source(&["m"], "mod a; use a::A; pub struct M;");
    let found = circles(&[source(&[], ""), parent, source(&["m", "a"], "use super::M;")]);
    assert_eq!(found, ["in m/:\n    mod.rs uses a (line 1)\n    a uses mod.rs (line 1)"]);
}
