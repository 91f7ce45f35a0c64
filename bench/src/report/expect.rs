//! Expectations: thresholds from the command line, which decide the exit code.

use std::fmt;
use std::str::FromStr;

use gradlane_core::config::units::print_bytes;

use super::figures::{Figures, Place, Report, Row};
use crate::measure::Samples;
use crate::size::parse_size;

/// A threshold, such as `quic/in:algbw>=2.0@4M` or `ratio:gloo>=2@64K-256M`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Expectation {
    /// Its text on the command line.
    text: String,
    contender: Option<String>,
    place: Option<Place>,
    metric: Metric,
    comparison: Comparison,
    threshold: f64,
    sizes: Option<(u64, u64)>,
}

#[derive(Clone, PartialEq, Debug)]
enum Metric {
    Time,
    P50,
    P99,
    Algbw,
    Busbw,
    Wirebw,
    Cpu,
    Wrong,
    /// Time divided by the least time that the links allow.
    Optimum,
    /// The share of the memory-traffic bound that is reached.
    Bound,
    /// Time divided by that of the same contender undisturbed.
    Cost,
    /// Our cost divided by this peer's.
    CostRatio(String),
    /// Our algbw divided by this peer's.
    Ratio(String),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Comparison {
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// Longest first, because `>=` begins with `>`.
const COMPARISONS: [(&str, Comparison); 4] =
    [(">=", Comparison::AtLeast), ("<=", Comparison::AtMost), (">", Comparison::Above), ("<", Comparison::Below)];

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (symbol, comparison) =
            COMPARISONS.into_iter().find(|(symbol, _)| text.contains(symbol)).ok_or_else(|| {
                format!("{text:?} compares nothing; write METRIC>=VALUE@SIZE, such as algbw>=2.0@4M or ratio:gloo>=2")
            })?;
        let (left, right) = text.split_once(symbol).expect("it was found");
        let (contender, metric) = match left.split_once('/') {
            Some((contender, metric)) => (Some(contender.trim().to_owned()), metric),
            None => (None, left),
        };
        let metric = metric.trim();
        let (place, metric) = match (metric.strip_prefix("in:"), metric.strip_prefix("out:")) {
            (Some(metric), _) => (Some(Place::In), metric),
            (_, Some(metric)) => (Some(Place::Out), metric),
            (None, None) => (None, metric),
        };
        let (threshold, sizes) = match right.split_once('@') {
            Some((threshold, sizes)) => (threshold, Some(parse_sizes(sizes)?)),
            None => (right, None),
        };
        let threshold = threshold.trim().parse::<f64>().ok().filter(|threshold| threshold.is_finite());
        Ok(Self {
            text: text.to_owned(),
            contender,
            place,
            metric: metric.parse()?,
            comparison,
            threshold: threshold.ok_or_else(|| format!("{right:?} does not begin with a number"))?,
            sizes,
        })
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "time" => Self::Time,
            "p50" => Self::P50,
            "p99" => Self::P99,
            "algbw" => Self::Algbw,
            "busbw" => Self::Busbw,
            "wirebw" => Self::Wirebw,
            "cpu" => Self::Cpu,
            "wrong" => Self::Wrong,
            "optimum" => Self::Optimum,
            "bound" => Self::Bound,
            "cost" => Self::Cost,
            _ => match text.split_once(':') {
                Some(("ratio", peer)) if !peer.is_empty() => Self::Ratio(peer.to_owned()),
                Some(("cost", peer)) if !peer.is_empty() => Self::CostRatio(peer.to_owned()),
                Some(_) | None => {
                    return Err(format!(
                        "{text:?} is no metric; use time, p50, p99, algbw, busbw, wirebw, cpu, wrong, bound, optimum, cost, ratio:PEER \
                         or cost:PEER"
                    ));
                }
            },
        })
    }
}

fn parse_sizes(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first > last {
        return Err(format!("the sizes {text} end before they begin"));
    }
    Ok((first, last))
}

/// The result of an expectation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Verdict {
    /// The text of the expectation.
    pub(crate) text: String,
    /// Each figure that was compared: its row, its value, and whether the expectation holds.
    pub(crate) found: Vec<(String, f64, bool)>,
}

impl Verdict {
    /// Whether there is a figure and all figures hold.
    pub(crate) fn holds(&self) -> bool {
        !self.found.is_empty() && self.found.iter().all(|(_, _, holds)| *holds)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.holds() { "met" } else { "MISSED" };
        write!(f, "# Expectation {}: {word}", self.text)?;
        if self.found.is_empty() {
            return write!(f, ", because no row answers it");
        }
        for (place, figure, holds) in self.found.iter().filter(|(_, _, holds)| !*holds || self.found.len() == 1) {
            write!(f, "{} {place} is {figure:.3}", if *holds { ";" } else { "; not" })?;
        }
        Ok(())
    }
}

impl Expectation {
    /// Compares it with what was measured.
    pub(crate) fn judge(&self, report: &Report) -> Verdict {
        let mut found = Vec::new();
        for row in report.rows.iter().filter(|row| self.concerns(row)) {
            for place in [Place::Out, Place::In] {
                let wanted = self.place.is_none_or(|wanted| wanted == place);
                let figure = row.figures(place).filter(|_| wanted).and_then(|of| self.figure(report, row, place, of));
                if let Some(figure) = figure {
                    let words = if place == Place::In { "in place" } else { "out of place" };
                    let at = match row.dtype {
                        Some(_) => format!("{} of {} {words}", row.name(), print_bytes(row.bytes)),
                        None => format!("{} of {}", row.name(), row.bytes),
                    };
                    found.push((at, figure, self.comparison.holds(figure, self.threshold)));
                }
            }
        }
        Verdict { text: self.text.clone(), found }
    }

    fn concerns(&self, row: &Row) -> bool {
        let concerned = match &self.contender {
            Some(name) => *name == row.contender || *name == row.name(),
            None => row.ours,
        };
        concerned && self.sizes.is_none_or(|(first, last)| (first..=last).contains(&row.bytes))
    }

    fn figure(&self, report: &Report, row: &Row, place: Place, figures: &Figures) -> Option<f64> {
        let median = |samples: &Option<Samples>| samples.as_ref().map(Samples::median);
        match &self.metric {
            Metric::Time => Some(figures.time_us.median()),
            Metric::P50 => Some(figures.exchanges.percentile(50.0)),
            Metric::P99 => Some(figures.exchanges.percentile(99.0)),
            Metric::Algbw => median(&figures.algbw),
            Metric::Busbw => median(&figures.busbw),
            Metric::Wirebw => median(&figures.wirebw),
            Metric::Cpu => median(&figures.cpu_per_gb),
            Metric::Wrong => Some(figures.wrong as f64),
            Metric::Optimum => figures.optimum.as_ref().map(|optimum| optimum.over.median()),
            Metric::Bound => figures.bound.as_ref().map(|bound| bound.reached.median()),
            Metric::Cost => median(&figures.cost),
            Metric::Ratio(peer) => median(&report.ratio(row, peer, place)),
            Metric::CostRatio(peer) => median(&report.cost_ratio(row, peer, place)),
        }
    }
}

impl Comparison {
    fn holds(self, figure: f64, threshold: f64) -> bool {
        match self {
            Self::AtLeast => figure >= threshold,
            Self::AtMost => figure <= threshold,
            Self::Above => figure > threshold,
            Self::Below => figure < threshold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::{report, row};

    fn judge(text: &str) -> Verdict {
        let report = report(vec![row("quic", true, 4 << 20, 2.0), row("gloo", false, 4 << 20, 0.5)]);
        text.parse::<Expectation>().unwrap().judge(&report)
    }

    #[test]
    fn a_threshold_holds_or_is_missed() {
        assert!(judge("algbw>=2.0@4M").holds());
        assert!(!judge("algbw>2.0@4M").holds());
        assert!(judge("ratio:gloo>=4").holds());
        assert!(!judge("ratio:gloo>=4.1").holds());
        assert!(judge("gloo/in:algbw<=0.5@1M-8M").holds());
        assert!(judge("wrong<=0").holds());
    }

    #[test]
    fn an_expectation_that_nothing_answers_is_missed() {
        let verdict = judge("algbw>=0@8M");
        assert!(!verdict.holds());
        assert!(verdict.to_string().ends_with("MISSED, because no row answers it"), "{verdict}");
        assert!(!judge("ratio:mpi>=0").holds());
    }

    #[test]
    fn what_is_no_expectation_is_refused_with_an_example() {
        for (text, problem) in [
            ("algbw", "compares nothing"),
            ("speed>=1", "no metric"),
            ("algbw>=fast", "number"),
            ("algbw>=1@0", "0 bytes"),
            ("algbw>=1@4M-1M", "end before"),
            ("ratio:>=1", "no metric"),
            ("cost:<=1", "no metric"),
        ] {
            let found = text.parse::<Expectation>().unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
