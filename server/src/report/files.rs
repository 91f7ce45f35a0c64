//! The directory of the setting `report`, and the reports that people name.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use gradlane_core::local::confined;
use gradlane_core::{Error, Result};

use super::Report;
use crate::private_file;

/// A directory in which reports can be written.
#[derive(Clone, Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// The directory, which is made if it is not there, with those above it.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made, or if this process cannot write in it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        confined::make(path, format_args!("the directory {} of the setting report", path.display()))?;
        let failed = |cause: std::io::Error| Error::Io {
            what: format!("writing in the directory {} of the setting report", path.display()),
            cause: cause.to_string(),
        };
        // The process may change its own directory until the end of the job.
        let path = path.canonicalize().map_err(failed)?;
        tempfile::tempfile_in(&path).map_err(failed)?;
        Ok(Self(path))
    }

    /// Writes a report: `JOB-DATE.json` for programs, and `JOB-DATE.txt` for people. Where there are such files, the name gets a number. Returns the
    /// first path. No reader sees a part of a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn write(&self, report: &Report) -> Result<PathBuf> {
        let date = report.began.replace(['-', ':'], "");
        let stem = format!("{}-{date}", plain(&report.job));
        let (json, text) = self.claim(&stem)?;
        let written =
            private_file::write(&json, report.to_json()).and_then(|()| private_file::write(&text, report.page()));
        if let Err(error) = written {
            // Empty files would look like reports.
            for path in [&json, &text] {
                let _ = fs::remove_file(path);
            }
            return Err(error);
        }
        Ok(json)
    }

    /// Two names that no other file has and that no other process gets: empty files, which are replaced by the whole ones.
    fn claim(&self, stem: &str) -> Result<(PathBuf, PathBuf)> {
        for number in 1..=NAMES_MAX {
            let stem = if number == 1 { stem.to_owned() } else { format!("{stem}-{number}") };
            let json = self.0.join(format!("{stem}.json"));
            let text = self.0.join(format!("{stem}.txt"));
            if !text.exists() && new(&json)? {
                if new(&text)? {
                    return Ok((json, text));
                }
                let _ = fs::remove_file(&json);
            }
        }
        Err(Error::Exhausted {
            what: format!("names for reports of the job {stem} in {}", self.0.display()),
            limit: NAMES_MAX.to_string(),
            hint: "move some of these reports elsewhere".to_owned(),
        })
    }
}

/// Makes an empty file; returns whether there was none.
fn new(path: &Path) -> Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::Io { what: format!("making {}", path.display()), cause: error.to_string() }),
    }
}

/// The reports among the files of a directory, for whoever does not need one. What is none is left out.
pub(crate) fn among(paths: &[PathBuf]) -> Vec<Report> {
    paths.iter().filter_map(|path| read_file(path).ok()).collect()
}

/// Reads a report: a file, or a directory that has one.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::NotFound`] for a directory without a report; [`Error::InvalidArgument`] for several reports, and
/// for what is none, or none of this version.
pub(crate) fn read(path: &Path) -> Result<Report> {
    let failed =
        |cause: std::io::Error| Error::Io { what: format!("reading {}", path.display()), cause: cause.to_string() };
    if fs::metadata(path).map_err(failed)?.is_dir() {
        let names = fs::read_dir(path).map_err(failed)?.map(|entry| entry.map(|entry| entry.path()));
        let mut paths: Vec<PathBuf> = names.collect::<std::io::Result<_>>().map_err(failed)?;
        // A draft begins with a point.
        paths.retain(|path| {
            path.extension().is_some_and(|end| end == "json")
                && !path.file_name().unwrap_or_default().as_encoded_bytes().starts_with(b".")
        });
        paths.sort();
        return match &paths[..] {
            [] => Err(Error::NotFound {
                what: format!("a report in {}", path.display()),
                hint: "give the JSON file that a job with the setting report has written".to_owned(),
            }),
            [one] => read_file(one),
            several => Err(Error::InvalidArgument {
                what: format!("{} has {} files that may be reports", path.display(), several.len()),
                hint: format!("name one of them; the last is {}", several[several.len() - 1].display()),
            }),
        };
    }
    read_file(path)
}

fn read_file(path: &Path) -> Result<Report> {
    let failed =
        |cause: std::io::Error| Error::Io { what: format!("reading {}", path.display()), cause: cause.to_string() };
    let refused = |problem: String| Error::InvalidArgument {
        what: format!("{} {problem}", path.display()),
        hint: "give the JSON file that a job with the setting report has written".to_owned(),
    };
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(refused(format!("is longer than {} MiB, and so no report", BYTES_MAX >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused("is no text, and so no report".to_owned()))?;
    Report::parse(&text).map_err(refused)
}

/// The name of a job as a part of a file's name. A job of this process has such a name already.
fn plain(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    job.chars().map(plain).collect::<String>().trim_start_matches('.').to_owned()
}

/// Of jobs that began in one second.
const NAMES_MAX: u32 = 1000;
/// A report of 4096 workers and as many servers has less.
const BYTES_MAX: u64 = 256 << 20;
