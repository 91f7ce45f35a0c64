//! The table: the columns of nccl-tests in their order and width, then ours.

use std::fmt::Write as _;
use std::time::SystemTime;

use gradlane_core::types::DType;

use super::figures::{Figures, Place, Report, Row};
use super::fitted::{Fitted, Outline};
use super::reasons;
use super::record::Output;
use super::screen::{note, short};
use crate::measure::Samples;

/// Explains the columns, in the help of every subcommand that prints them.
pub(crate) const DEFINITIONS: &str = "\
Columns (n workers, S bytes, GB = 10^9 bytes):
  size     S: bytes of one worker's tensor (of all tensors of a model). In the other collectives, bytes of the larger of its two buffers:
           the contribution to a reduce-scatter, the result of an all-gather, either of an all-to-all; its own part is included
  count    elements of it
  time     microseconds of one exchange, on the slowest worker; median of the repetitions
  algbw    S / time, GB/s
  busbw    algbw x 2(n-1)/n for all-reduce, algbw x (n-1)/n for reduce-scatter, all-gather and all-to-all, as nccl-tests defines them:
           comparable with the speed of a link in a ring
  #wrong   elements with a wrong value; N/A with -c 0
  wirebw   bytes that a worker's link carried / time, GB/s, mean of the two directions, protocol overhead included: for an all-reduce
           about algbw with push-pull, busbw with a ring. On one host it is counted at the loopback interface, together with the traffic of
           other programs; `-` if nothing passes a network
  cpu      user and system seconds of all processes of the job (workers, servers, coordinator) per GB of S
  bound    all-reduce over shm and local: the share of the memory-traffic bound that is reached. The bound is the time in which copying
           touches as many bytes as the reduction must: 5n+1 for each byte of S over shm with a server (n workers copy in, 2 each; the server reads n and
           writes 1; n workers copy out, 2 each), 5n-2 over local (every worker keeps its own slice). Copying is measured in the same
           repetition, by as many threads as there are workers with a core, through as much memory; reads and writes both count.
           It may exceed 1, because bytes that are touched twice may still be in the cache
  ratios   our algbw divided by the peer's in the same repetition: median +- half the distance of the extremes
The JSON file has the samples of all repetitions, and the smallest and largest beside every median; -I prints these for the time.
Left group: the result goes to other memory than the contribution (out of place); right group: over it (in place).
With --inflight K, an exchange is K tensors of the size submitted at once, and time is the time of all of them divided by K.
Exit code: 0; 1 if a sum is wrong or the run failed; 2 if an expectation is missed or the arguments are wrong.";

/// Prints rows as they come: all columns on a pipe, a table that fits on a terminal.
#[derive(Debug)]
pub(crate) struct Columns {
    fitted: Option<Fitted>,
    /// The width of the terminal; `None` on a pipe.
    width: Option<usize>,
    timestamps: bool,
    iterations: bool,
    checked: bool,
}

impl Columns {
    /// A printer with the options of `output`.
    pub(crate) fn new(output: &Output, checked: bool, outline: &Outline) -> Self {
        let width = output.record.width();
        let fitted = width.map(|width| Fitted::new(outline, width));
        Self { fitted, width, timestamps: output.timestamps, iterations: output.each_row, checked }
    }

    /// The lines above the rows.
    pub(crate) fn heading(&self, report: &Report) -> String {
        let mut text = String::new();
        for line in &report.setting {
            text.push_str(&note(line, self.width));
        }
        if let Some(fitted) = &self.fitted {
            return text + &fitted.heading();
        }
        let stamp = if self.timestamps { " ".repeat(STAMP) } else { String::new() };
        let group = |name: &str| format!("{name:^32}");
        line_to(&mut text, &format!("#{stamp}{:55}{}  {}", "", group("out-of-place"), group("in-place")));
        let figures = format!("{:>9} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
        let units = format!("{:>9} {:>7} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        line_to(
            &mut text,
            &format!(
                "#{stamp}{:>13} {:>13} {:>9} {:>7} {:>7}   {figures}   {figures} {:>7} {:>7}  contender",
                "size", "count", "type", "redop", "root", "wirebw", "cpu"
            ),
        );
        line_to(
            &mut text,
            &format!(
                "#{stamp}{:>13} {:>13} {:>9} {:>7} {:>7}   {units}   {units} {:>7} {:>7}",
                "(B)", "(elements)", "", "", "", "(GB/s)", "(s/GB)"
            ),
        );
        text
    }

    /// One row.
    pub(crate) fn row(&self, report: &Report, row: &Row) -> String {
        let mut text = String::new();
        let stamp = if self.timestamps { format!("{:STAMP$}", clock()) } else { String::new() };
        if let Some(fitted) = &self.fitted {
            return fitted.row(report, row) + &self.details(row);
        }
        let main = row.in_place.as_ref().or(row.out_of_place.as_ref());
        let wirebw = main.and_then(|figures| figures.wirebw.as_ref());
        let redop = row.op.map_or_else(|| "none".to_owned(), |op| op.to_string());
        let name = row.name();
        let mut line = format!(
            " {stamp}{:>13} {:>13} {:>9} {redop:>7} {:>7}   {}   {} {:>7} {:>7}  {name}",
            row.bytes,
            row.count,
            row.dtype.map_or("none", DType::name),
            -1,
            self.group(row.out_of_place.as_ref()),
            self.group(row.in_place.as_ref()),
            wirebw.map_or_else(|| "-".to_owned(), |samples| short(samples.median())),
            main.and_then(|figures| figures.cpu_per_gb.as_ref())
                .map_or_else(|| "-".to_owned(), |cpu| short(cpu.median())),
        );
        for (figures, word) in [(&row.out_of_place, "out"), (&row.in_place, "in")] {
            if let Some(bound) = figures.as_ref().and_then(|figures| figures.bound.as_ref()) {
                let (touched, copy) = (bound.touched, bound.copy.median());
                write!(line, "  {word} {:.2} of bound ({touched} S / {copy:.1} GB/s)", bound.reached).expect(STRING);
            }
        }
        if row.ours {
            for peer in report.peers() {
                for (place, word) in [(Place::Out, "out"), (Place::In, "in")] {
                    if let Some(ratio) = report.ratio(row, &peer, place) {
                        write!(line, "  {word} {ratio:.2} x {peer}").expect(STRING);
                    }
                }
            }
        }
        line_to(&mut text, &line);
        text + &self.details(row)
    }

    /// The lines below a row that `-I` asks for.
    fn details(&self, row: &Row) -> String {
        let (mut text, name) = (String::new(), row.name());
        for (figures, place) in [(&row.out_of_place, "out-of-place"), (&row.in_place, "in-place")] {
            if let Some(figures) = figures.as_ref().filter(|_| self.iterations) {
                let at = |percent| figures.exchanges.percentile(percent);
                text.push_str(&note(
                    &format!(
                        "{name} {place}: exchanges {}, min {:.1}, p50 {:.1}, p99 {:.1}, max {:.1} us; time {:.1} ({:.1} to {:.1}) of {}",
                        figures.exchanges.len(),
                        at(0.0),
                        at(50.0),
                        at(99.0),
                        at(100.0),
                        figures.time_us.median(),
                        figures.time_us.min(),
                        figures.time_us.max(),
                        figures.time_us.len(),
                    ),
                    self.width,
                ));
                if figures.late > 0 {
                    let late = figures.late;
                    text.push_str(&note(
                        &format!("{name} {place}: the backlog was over before the end of {late} batches"),
                        self.width,
                    ));
                }
            }
        }
        text
    }

    /// The lines below the rows.
    pub(crate) fn trailer(&self, report: &Report) -> String {
        let (wrong, at) = report.wrong();
        let mut text = String::new();
        match (self.checked, wrong) {
            (false, _) => line_to(&mut text, "# Out of bounds values : not checked (-c 0)"),
            (true, 0) => line_to(&mut text, "# Out of bounds values : 0 OK"),
            (true, wrong) => {
                line_to(&mut text, &format!("# Out of bounds values : {wrong} FAILED; {}", at.unwrap_or_default()));
            }
        }
        let ours = report.rows.iter().filter(|row| row.ours);
        let busbw: Vec<f64> = ours
            .flat_map(|row| [row.out_of_place.as_ref(), row.in_place.as_ref()])
            .flatten()
            .filter_map(|figures| figures.busbw.as_ref())
            .map(Samples::median)
            .collect();
        if !busbw.is_empty() {
            let mean = busbw.iter().sum::<f64>() / busbw.len() as f64;
            line_to(&mut text, &format!("# Avg bus bandwidth    : {mean:.4}"));
        }
        reasons::lines(report).iter().for_each(|reason| text.push_str(&note(reason, self.width)));
        if let Some(fitted) = &self.fitted {
            text.push_str(&fitted.trailer(report));
        }
        text
    }

    fn group(&self, figures: Option<&Figures>) -> String {
        let Some(figures) = figures else { return format!("{:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-") };
        let wrong = if self.checked { figures.wrong.to_string() } else { "N/A".to_owned() };
        let median =
            |samples: &Option<Samples>| samples.as_ref().map_or_else(|| "-".to_owned(), |of| short(of.median()));
        format!(
            "{:>9} {:>7} {:>7} {wrong:>6}",
            format!("{:.1}", figures.time_us.median()),
            median(&figures.algbw),
            median(&figures.busbw)
        )
    }
}

const STRING: &str = "writing to a string does not fail";

fn line_to(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Width of the time of day and a space.
const STAMP: usize = 9;

/// The time of day, UTC.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn clock() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()) % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::{report, row};

    #[test]
    fn the_first_thirteen_columns_are_those_of_nccl_tests() {
        let report = report(vec![row("quic", true, 4 << 20, 2.0), row("gloo", false, 4 << 20, 0.5)]);
        let columns = Columns::new(&Output::default(), true, &Outline::default());
        let heading = columns.heading(&report);
        let names: Vec<&str> = heading.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
        let figures = ["time", "algbw", "busbw", "#wrong"];
        assert_eq!(names[..5], ["size", "count", "type", "redop", "root"]);
        assert_eq!((&names[5..9], &names[9..13]), (&figures[..], &figures[..]));
        let text = columns.row(&report, &report.rows[0]);
        let cells: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(cells[..5], ["4194304", "1048576", "float32", "sum", "-1"]);
        assert_eq!(cells[5..9], ["-"; 4], "not measured out of place");
        assert_eq!(cells[9..13], ["2097.2", "2.000", "2.000", "0"]);
        assert!(text.trim_end().ends_with("quic  in 4.00 ±0% x gloo"), "{text}");
    }
}
