//! The results of one run: a report of rows, each with the figures of one contender in one case.
//!
//! The subcommands fill the [`Row`]s. This file does not know how they measure.

use gradlane_core::types::{DType, Op};

use crate::machine::Machine;
use crate::measure::Samples;

/// All results of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The subcommand.
    pub(crate) question: String,
    /// The lines in the head of the table, which describe what was measured.
    pub(crate) setting: Vec<String>,
    /// One for each contender and case.
    pub(crate) rows: Vec<Row>,
    /// The machine, and its load at the beginning.
    pub(crate) machine: Machine,
    /// Whether everything was measured.
    pub(crate) complete: bool,
    /// If all that is compared runs on this machine: what a user must know to read the ratios.
    pub(crate) one_machine: Option<OneMachine>,
}

/// The comparison that a run on one machine is about.
#[derive(Clone, Debug)]
pub(crate) struct OneMachine {
    /// The contender that a training job of the same processes would use.
    pub(crate) training: &'static str,
    pub(crate) workers: u32,
    pub(crate) cores: usize,
}

/// One contender in one case.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Such as `quic` or `gloo`.
    pub(crate) contender: String,
    /// Whether it is ours. Expectations apply to ours; ratios are ours divided by the others.
    pub(crate) ours: bool,
    /// Bytes of one tensor of one worker, or of all tensors of a model; of the larger buffer of a collective. A question without tensors defines its own size.
    pub(crate) bytes: u64,
    /// Elements in these bytes.
    pub(crate) count: u64,
    /// Their type; `None` where there are no elements.
    pub(crate) dtype: Option<DType>,
    /// How they are reduced; `None` where nothing is.
    pub(crate) op: Option<Op>,
    /// What the ranks did with them, such as `all-reduce`; `None` where they did nothing together.
    pub(crate) collective: Option<&'static str>,
    /// A word such as `busy`, which distinguishes rows that are equal otherwise.
    pub(crate) variant: String,
    /// The figures with the result in other memory than the contribution.
    pub(crate) out_of_place: Option<Figures>,
    /// The figures with the result in the memory of the contribution.
    pub(crate) in_place: Option<Figures>,
}

/// The figures of one row and place. All samples are one per repetition, except those of single exchanges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Time of an exchange, µs.
    pub(crate) time_us: Samples,
    /// Bytes of the tensor divided by the time, GB/s; `None` where no bytes move.
    pub(crate) algbw: Option<Samples>,
    /// What nccl-tests calls the bus bandwidth, GB/s.
    pub(crate) busbw: Option<Samples>,
    /// The speed of a worker's link, mean of the two directions, GB/s; `None` if no bytes were counted.
    pub(crate) wirebw: Option<Samples>,
    /// Bytes of bodies that a worker pushes or pulls in an exchange, the mean of both; `None` where nothing is encoded.
    pub(crate) body_bytes: Option<Samples>,
    /// User and system time of all processes of the job, in seconds per GB of tensor.
    pub(crate) cpu_per_gb: Option<Samples>,
    /// Present if all bytes go through memory.
    pub(crate) bound: Option<Bound>,
    /// Present if the rates of the links are known.
    pub(crate) optimum: Option<Optimum>,
    /// Time divided by the undisturbed time of the same contender in the same repetition. Present in rows with a disturbance.
    pub(crate) cost: Option<Samples>,
    /// Time of each exchange of every repetition, µs.
    pub(crate) exchanges: Samples,
    /// Batches during which the backlog ended, so that some of their exchanges ran without it.
    pub(crate) late: u64,
    /// Elements with a wrong value.
    pub(crate) wrong: u64,
    /// The place of the first of them.
    pub(crate) wrong_at: Option<String>,
}

/// Compares an exchange with the speed of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// Bytes that must be touched for each byte of one worker's tensor.
    pub(crate) touched: u32,
    /// The speed of a copy in the same repetition, GB/s of bytes touched.
    pub(crate) copy: Samples,
    /// The time in which a copy touches as many bytes, divided by the time of the exchange.
    pub(crate) reached: Samples,
}

/// Compares an exchange with the least time that the links allow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Optimum {
    /// The least time, µs, for the bytes of the tensors alone.
    pub(crate) time_us: f64,
    /// The time of the exchange divided by the least time for all bytes of frames.
    pub(crate) over: Samples,
}

impl Row {
    /// A row without figures; `variant` as in [`Row::variant`].
    pub(crate) fn new(contender: &str, ours: bool, variant: &str) -> Self {
        Self {
            contender: contender.to_owned(),
            ours,
            bytes: 0,
            count: 0,
            dtype: None,
            op: None,
            collective: None,
            variant: variant.to_owned(),
            out_of_place: None,
            in_place: None,
        }
    }

    /// A row of these speeds, GB/s, at which a sum of `bytes` bytes in place touched `touched` bytes.
    pub(crate) fn of_speeds(self, bytes: u64, dtype: DType, touched: u64, speeds: &Samples) -> Self {
        let times: Vec<f64> = speeds.values().iter().map(|speed| touched as f64 / speed / 1e3).collect();
        let figures = Figures { algbw: Some(speeds.clone()), ..Figures::of_times(Samples::from(times)) };
        let count = bytes / dtype.bytes();
        Self { bytes, count, dtype: Some(dtype), op: Some(Op::Sum), in_place: Some(figures), ..self }
    }

    /// Contender and variant.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.contender, self.variant).trim_end().to_owned()
    }

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

impl Figures {
    /// Figures of these times, µs.
    pub(crate) fn of_times(time_us: Samples) -> Self {
        Self { exchanges: time_us.clone(), time_us, ..Self::default() }
    }
}

/// The line in the head of a smoke run's table.
pub(crate) fn smoke_note(smoke: bool) -> Option<String> {
    smoke.then(|| "a smoke run: the figures mean nothing".to_owned())
}

impl Report {
    /// A report without rows, begun now.
    pub(crate) fn begin(question: &str, mut setting: Vec<String>) -> Self {
        if cfg!(debug_assertions) {
            setting.push("a build for tests, not a release: the figures are too low".to_owned());
        }
        Self { question: question.to_owned(), setting, machine: Machine::now(), ..Self::default() }
    }

    /// The algbw of `row` divided by that of `peer` in the same case, repetition by repetition.
    pub(crate) fn ratio(&self, row: &Row, peer: &str, place: Place) -> Option<Samples> {
        let theirs = self.rows.iter().find(|other| other.contender == peer && other.same_case(row))?;
        let (ours, theirs) = (row.figures(place)?, theirs.figures(place)?);
        let (ours, theirs) = (ours.algbw.as_ref()?, theirs.algbw.as_ref()?);
        (ours.len() == theirs.len()).then(|| ours.over(theirs))
    }

    /// The cost of `row` divided by that of `peer` in the same case, repetition by repetition.
    pub(crate) fn cost_ratio(&self, row: &Row, peer: &str, place: Place) -> Option<Samples> {
        let theirs = self.rows.iter().find(|other| other.contender == peer && other.same_case(row))?;
        let (ours, theirs) = (row.figures(place)?.cost.as_ref()?, theirs.figures(place)?.cost.as_ref()?);
        (ours.len() == theirs.len()).then(|| ours.over(theirs))
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
}

/// Where the result goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To other memory than the contribution.
    Out,
    /// To the memory of the contribution.
    In,
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
            algbw: Some(twice(algbw)),
            busbw: Some(twice(algbw)),
            cpu_per_gb: Some(twice(0.5)),
            exchanges: twice(bytes as f64 / algbw / 1e3),
            ..Figures::default()
        };
        Row {
            bytes,
            count: bytes / 4,
            dtype: Some(DType::F32),
            op: Some(Op::Sum),
            in_place: Some(figures),
            ..Row::new(contender, ours, "")
        }
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
