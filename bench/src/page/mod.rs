//! Makes a page of results: a Markdown file with a table and a picture for each JSON file.

mod bars;
mod markdown;
mod picture;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use crate::report::Conclusion;
use clap::Args;
use source::{Content, Source};

/// Make a Markdown page with SVG pictures from JSON files that other subcommands wrote with -J.
///
/// Text files (.txt) among them are copied into the page unchanged.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The files, in the order of the page.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The page; pictures go into the same folder.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "bench/results/README.md")]
    out: PathBuf,
}

/// Writes the page.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    match make(arguments) {
        Ok(()) => Conclusion::Good,
        Err(problem) => Conclusion::Failed(problem),
    }
}

fn make(arguments: &Arguments) -> Result<(), String> {
    write_page(&arguments.out, &arguments.files, &[])?;
    println!("{}", arguments.out.display());
    Ok(())
}

/// Makes the page `out` from these files, with `notes` at its top.
///
/// # Errors
/// The file that cannot be read or written, and why.
pub(crate) fn write_page(out: &Path, files: &[PathBuf], notes: &[String]) -> Result<(), String> {
    let folder = out.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let sources: Vec<Source> = files.iter().map(|file| Source::read(file)).collect::<Result<_, _>>()?;
    let mut pictures = Vec::new();
    for source in &sources {
        if let Content::Results(results) = &source.content {
            for (name, picture) in
                picture::draw(&source.name, results).into_iter().chain(bars::draw(&source.name, results))
            {
                write(&folder.join(&name), &picture)?;
                pictures.push((source.name.clone(), name));
            }
        }
    }
    write(out, &markdown::page(&sources, &pictures, notes))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|cause| format!("{}: {cause}", file.display()))
}
