//! What was measured, and how it is shown: columns as those of nccl-tests, JSON, expectations.
//!
//! The subcommands fill [`Row`]s; nothing here knows how they were measured.

mod columns;
mod expect;
mod json;

use std::fs;
use std::io;
use std::path::Path;

use gradlane_core::types::{DType, Op};

pub(crate) use columns::{Columns, DEFINITIONS};
pub(crate) use expect::{Expectation, Place, Verdict};

use crate::arguments::Output;
use crate::measure::Samples;

/// All that one run found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The subcommand.
    pub(crate) question: String,
    /// What was asked, in words, for the head of the table: one line each.
    pub(crate) setting: Vec<String>,
    /// One for each contender and case.
    pub(crate) rows: Vec<Row>,
    /// More that belongs into the JSON file, by name.
    pub(crate) extra: serde_json::Map<String, serde_json::Value>,
}

/// One contender in one case.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Such as `quic` or `gloo`.
    pub(crate) contender: String,
    /// Whether it is ours: expectations are of ours, ratios are ours divided by the others.
    pub(crate) ours: bool,
    /// Bytes of one tensor of one worker, or of all tensors of a model.
    pub(crate) bytes: u64,
    /// Elements of it.
    pub(crate) count: u64,
    /// Their type.
    pub(crate) dtype: DType,
    /// How they are reduced; `None` where nothing is.
    pub(crate) op: Option<Op>,
    /// What is particular about the row, such as `busy`; distinguishes rows that have everything else in common.
    pub(crate) variant: String,
    /// With the result in other memory than the contribution.
    pub(crate) out_of_place: Option<Figures>,
    /// With the result over the contribution.
    pub(crate) in_place: Option<Figures>,
}

/// The figures of one row and place. Everything but the exchanges has one sample a repetition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Time of an exchange, µs.
    pub(crate) time_us: Samples,
    /// Bytes of the tensor divided by the time, GB/s.
    pub(crate) algbw: Samples,
    /// What nccl-tests calls the bus bandwidth, GB/s.
    pub(crate) busbw: Samples,
    /// What a worker's link carried, mean of the two directions, GB/s; `None` if it carried nothing or nobody counted.
    pub(crate) wirebw: Option<Samples>,
    /// User and system time of all processes of the job, in seconds per GB of tensor.
    pub(crate) cpu_per_gb: Samples,
    /// Time divided by the least that the links allow, where that is known.
    pub(crate) over_optimum: Option<Samples>,
    /// Time of each exchange of every repetition, µs.
    pub(crate) exchanges: Samples,
    /// Batches during which the backlog under which they were measured ended.
    pub(crate) late: u64,
    /// Elements that were not what they had to be.
    pub(crate) wrong: u64,
    /// Where the first of them was.
    pub(crate) wrong_at: Option<String>,
}

impl Row {
    /// Its figures for `place`.
    pub(crate) fn figures(&self, place: Place) -> Option<&Figures> {
        match place {
            Place::Out => self.out_of_place.as_ref(),
            Place::In => self.in_place.as_ref(),
        }
    }

    fn same_case(&self, other: &Self) -> bool {
        (self.bytes, self.dtype, self.op, &self.variant) == (other.bytes, other.dtype, other.op, &other.variant)
    }
}

impl Report {
    /// The algbw of `row` divided by that of `peer` in the same case, repetition by repetition.
    pub(crate) fn ratio(&self, row: &Row, peer: &str, place: Place) -> Option<Samples> {
        let theirs = self.rows.iter().find(|other| other.contender == peer && other.same_case(row))?;
        let (ours, theirs) = (row.figures(place)?, theirs.figures(place)?);
        (ours.algbw.len() == theirs.algbw.len()).then(|| ours.algbw.over(&theirs.algbw))
    }

    /// The contenders that are not ours, in the order of their first row.
    pub(crate) fn peers(&self) -> Vec<String> {
        let mut peers: Vec<String> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.ours) {
            if !peers.contains(&row.contender) {
                peers.push(row.contender.clone());
            }
        }
        peers
    }

    /// How many elements were wrong, and where the first of them was.
    pub(crate) fn wrong(&self) -> (u64, Option<String>) {
        let figures =
            || self.rows.iter().flat_map(|row| [Place::Out, Place::In].into_iter().filter_map(|at| row.figures(at)));
        (figures().map(|figures| figures.wrong).sum(), figures().find_map(|figures| figures.wrong_at.clone()))
    }

    /// Prints the end of the table, writes the files that `output` asks for, and says how the run ends.
    pub(crate) fn conclude(&self, output: &Output) -> Conclusion {
        let verdicts: Vec<Verdict> = output.expectations.iter().map(|expectation| expectation.judge(self)).collect();
        if let Some(path) = &output.json
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

    fn write_json(&self, path: &Path, verdicts: &[Verdict]) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(&json::of(self, verdicts))?;
        text.push('\n');
        fs::write(path, text)
    }
}

/// How a run ends.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Conclusion {
    /// Everything was right and every expectation was met.
    Good,
    /// An expectation was missed: exit code 2.
    Missed,
    /// A result was wrong: exit code 1.
    Wrong(String),
    /// The run could not be made or did not end: exit code 1.
    Failed(String),
    /// A command of the user was run and ended with this exit code.
    Exited(u8),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of these rows.
    pub(crate) fn report(rows: Vec<Row>) -> Report {
        Report { question: "push-pull".to_owned(), rows, ..Report::default() }
    }

    /// A row in place, twice measured.
    pub(crate) fn row(contender: &str, ours: bool, bytes: u64, algbw: f64) -> Row {
        let twice = |figure: f64| Samples::from(vec![figure, figure]);
        let figures = Figures {
            time_us: twice(bytes as f64 / algbw / 1e3),
            algbw: twice(algbw),
            busbw: twice(algbw),
            wirebw: None,
            cpu_per_gb: twice(0.5),
            over_optimum: None,
            exchanges: twice(bytes as f64 / algbw / 1e3),
            late: 0,
            wrong: 0,
            wrong_at: None,
        };
        Row {
            contender: contender.to_owned(),
            ours,
            bytes,
            count: bytes / 4,
            dtype: DType::F32,
            op: Some(Op::Sum),
            variant: String::new(),
            out_of_place: None,
            in_place: Some(figures),
        }
    }

    #[test]
    fn a_wrong_sum_is_worse_than_a_missed_expectation() {
        let mut rows = vec![row("quic", true, 4096, 1.0)];
        let output = Output { expectations: vec!["algbw>=2".parse().unwrap()], ..Output::default() };
        assert_eq!(report(rows.clone()).conclude(&Output::default()), Conclusion::Good);
        assert_eq!(report(rows.clone()).conclude(&output), Conclusion::Missed);
        rows[0].in_place.as_mut().unwrap().wrong = 3;
        assert!(matches!(report(rows).conclude(&output), Conclusion::Wrong(_)));
    }

    #[test]
    fn ratios_are_of_the_same_case() {
        let report =
            report(vec![row("quic", true, 4096, 1.0), row("gloo", false, 8192, 9.0), row("gloo", false, 4096, 0.5)]);
        let ratio = report.ratio(&report.rows[0], "gloo", Place::In).unwrap();
        assert_eq!(ratio.median(), 2.0);
        assert!(report.ratio(&report.rows[0], "gloo", Place::Out).is_none());
        assert_eq!(report.peers(), ["gloo"]);
    }
}
