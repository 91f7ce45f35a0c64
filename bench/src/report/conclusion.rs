//! The end of a run: writes its files, compares expectations, and chooses the exit code.

use std::fs;
use std::io;
use std::path::Path;

use super::expect::Verdict;
use super::figures::Report;
use super::json;
use super::record::Record;
use super::screen::note;
use crate::table::Table;

/// How a run ends.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Conclusion {
    /// Everything was right and every expectation was met.
    Good,
    /// An expectation was missed: exit code 2.
    Missed,
    /// A result was wrong: exit code 1.
    Wrong(String),
    /// The run could not start or did not end: exit code 1.
    Failed(String),
    /// The user's command ended with this exit code.
    Exited(u8),
}

impl Conclusion {
    /// Prints the table of a question and concludes its report, unless there is none.
    pub(crate) fn of(measured: Result<(String, Report), Self>, record: &Record) -> Self {
        match measured {
            Ok((table, mut report)) => {
                print!("{table}");
                report.conclude(record)
            }
            Err(conclusion) => conclusion,
        }
    }
}

impl Report {
    /// What the run was like, as notes above its table.
    pub(crate) fn above(&self, table: &Table, record: &Record) -> String {
        let width = record.width();
        let mut text: String = self.setting[1..].iter().map(|line| note(line, width)).collect();
        text.push_str(&table.within(width));
        text
    }

    /// Prints the end of the table, writes the files that `record` asks for, and says how the run ends.
    pub(crate) fn conclude(&mut self, record: &Record) -> Conclusion {
        self.complete = true;
        let verdicts: Vec<Verdict> = record.expectations.iter().map(|expectation| expectation.judge(self)).collect();
        if let Some(path) = &record.json
            && let Err(problem) = self.write_json(path, &verdicts)
        {
            return Conclusion::Failed(format!("{} cannot be written: {problem}", path.display()));
        }
        for verdict in &verdicts {
            println!("{verdict}");
        }
        match self.wrong() {
            (0, _) if verdicts.iter().all(Verdict::holds) => Conclusion::Good,
            (0, _) => Conclusion::Missed,
            (wrong, at) => Conclusion::Wrong(format!("{wrong} elements; {}", at.unwrap_or_default())),
        }
    }

    /// Writes the results so far to the file that `record` names. If the run breaks off, these remain.
    ///
    /// # Errors
    /// Why the file cannot be written.
    pub(crate) fn save(&self, record: &Record) -> Result<(), String> {
        let Some(path) = &record.json else { return Ok(()) };
        self.write_json(path, &[]).map_err(|problem| format!("{} cannot be written: {problem}", path.display()))
    }

    fn write_json(&self, path: &Path, verdicts: &[Verdict]) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(&json::of(self, verdicts))?;
        text.push('\n');
        // The file is replaced at once: a reader, or a kill in between, leaves either the old file or the new one.
        let new = path.with_extension("json.new");
        fs::write(&new, text)?;
        fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{report, row};
    use super::*;

    #[test]
    fn a_wrong_sum_is_worse_than_a_missed_expectation() {
        let mut rows = vec![row("quic", true, 4096, 1.0)];
        let record = Record { expectations: vec!["algbw>=2".parse().unwrap()], ..Record::default() };
        assert_eq!(report(rows.clone()).conclude(&Record::default()), Conclusion::Good);
        assert_eq!(report(rows.clone()).conclude(&record), Conclusion::Missed);
        rows[0].in_place.as_mut().unwrap().wrong = 3;
        assert!(matches!(report(rows).conclude(&record), Conclusion::Wrong(_)));
    }
}
