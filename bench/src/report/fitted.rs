//! The table for a terminal: one line a row, as wide as the terminal at most. It leaves out what does not fit and says so; the lines for
//! pipes (see `columns.rs`) and the JSON file have everything.

use std::fmt::Write as _;

use gradlane_core::config::units::print_bytes;

use super::figures::{Figures, Place, Report, Row};
use super::screen::{note, short};
use crate::measure::Samples;

/// What is known of the rows before the first is there.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outline {
    /// The longest name of a row.
    pub(crate) name: usize,
    /// The contenders that are not ours.
    pub(crate) peers: Vec<String>,
    /// Whether rows have figures in place and out of place.
    pub(crate) both_places: bool,
    /// Whether rows differ in their type or operation.
    pub(crate) several_types: bool,
}

/// A column.
#[derive(Clone, PartialEq, Debug)]
enum Cell {
    Size,
    Type,
    Name,
    Place,
    Time,
    Spread,
    Algbw,
    /// Our algbw divided by that of this peer.
    Ratio(String),
    Cpu,
    Bound,
    Busbw,
    Wirebw,
}

/// A table for `columns` columns of text.
#[derive(Debug)]
pub(super) struct Fitted {
    cells: Vec<Cell>,
    left_out: Vec<String>,
    /// Whether ratios stand in lines of their own, because their columns do not fit.
    ratios_below: bool,
    name: usize,
    columns: usize,
}

impl Fitted {
    pub(super) fn new(outline: &Outline, columns: usize) -> Self {
        let mut table =
            Self { cells: vec![Cell::Size], left_out: Vec::new(), ratios_below: false, name: outline.name, columns };
        table.cells.extend(outline.several_types.then_some(Cell::Type));
        table.cells.push(Cell::Name);
        table.cells.extend(outline.both_places.then_some(Cell::Place));
        table.cells.extend([Cell::Time, Cell::Spread, Cell::Algbw]);
        let ratios: Vec<Cell> = outline.peers.iter().cloned().map(Cell::Ratio).collect();
        table.cells.extend(ratios.iter().cloned());
        if table.width() > columns {
            table.cells.retain(|cell| !ratios.contains(cell));
            table.ratios_below = !ratios.is_empty();
        }
        // Long names, such as those of collectives, take the room of the spread.
        if table.width() > columns {
            table.cells.retain(|cell| *cell != Cell::Spread);
            table.left_out.push(Cell::Spread.title());
        }
        for cell in [Cell::Cpu, Cell::Bound, Cell::Busbw, Cell::Wirebw] {
            table.cells.push(cell.clone());
            if table.width() > columns {
                table.cells.pop();
                table.left_out.push(cell.title());
            }
        }
        table
    }

    /// The lines above the rows.
    pub(super) fn heading(&self) -> String {
        let titles = self.cells.iter().map(|cell| self.padded(cell, &cell.title()));
        line(titles)
    }

    /// The lines of a row: one for each place.
    pub(super) fn row(&self, report: &Report, row: &Row) -> String {
        let mut text = String::new();
        for (place, figures) in [(Place::Out, &row.out_of_place), (Place::In, &row.in_place)] {
            let Some(figures) = figures else { continue };
            let cells = self.cells.iter().map(|cell| self.padded(cell, &cell.text(report, row, place, figures)));
            text.push_str(&line(cells));
            let ratios: Vec<String> = report
                .peers()
                .iter()
                .filter_map(|peer| ratio(report, row, peer, place).map(|ratio| format!("{ratio} x {peer}")))
                .collect();
            if self.ratios_below && !ratios.is_empty() {
                text.push_str(&note(&format!("  {}", ratios.join(", ")), Some(self.columns)));
            }
        }
        text
    }

    /// The lines below the rows that explain the columns.
    pub(super) fn trailer(&self, report: &Report) -> String {
        let mut text =
            "time: of one exchange on the slowest worker, median; +-: half the distance of the extremes; GB/s: bytes \
                        of a worker's tensor / time"
                .to_owned();
        if !report.peers().is_empty() {
            text.push_str("; x PEER: our GB/s / the peer's in the same repetition");
        }
        if !self.left_out.is_empty() {
            write!(text, "; for want of width without {}", self.left_out.join(", ")).expect("a string");
        }
        note(&format!("{text}; --help defines all"), Some(self.columns))
    }

    fn padded(&self, cell: &Cell, text: &str) -> String {
        let width = self.width_of(cell);
        if *cell == Cell::Name { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }

    fn width_of(&self, cell: &Cell) -> usize {
        match cell {
            Cell::Name => self.name.max(9),
            Cell::Ratio(peer) => (peer.chars().count() + 2).max(6),
            Cell::Size => 9,
            Cell::Type => 13,
            Cell::Place => 3,
            Cell::Time => 8,
            Cell::Spread => 5,
            Cell::Algbw | Cell::Busbw | Cell::Bound => 6,
            Cell::Cpu | Cell::Wirebw => 8,
        }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| self.width_of(cell) + GAP.len()).sum::<usize>() - GAP.len()
    }
}

impl Cell {
    fn title(&self) -> String {
        match self {
            Self::Size => "size".to_owned(),
            Self::Type => "type op".to_owned(),
            Self::Name => "contender".to_owned(),
            Self::Place => "to".to_owned(),
            Self::Time => "time".to_owned(),
            Self::Spread => "+-".to_owned(),
            Self::Algbw => "GB/s".to_owned(),
            Self::Ratio(peer) => format!("x {peer}"),
            Self::Cpu => "cpu s/GB".to_owned(),
            Self::Bound => "bound".to_owned(),
            Self::Busbw => "busbw".to_owned(),
            Self::Wirebw => "wirebw".to_owned(),
        }
    }

    fn text(&self, report: &Report, row: &Row, place: Place, figures: &Figures) -> String {
        let median =
            |samples: &Option<Samples>| samples.as_ref().map_or_else(String::new, |samples| short(samples.median()));
        match self {
            Self::Size => print_bytes(row.bytes),
            Self::Type => {
                let dtype = row.dtype.map_or("none", gradlane_core::types::DType::name);
                row.op.map_or_else(|| dtype.to_owned(), |op| format!("{dtype} {op}"))
            }
            Self::Name => row.name(),
            Self::Place => if place == Place::In { "in" } else { "out" }.to_owned(),
            Self::Time => time(figures.time_us.median()),
            Self::Spread => format!("{:.0}%", figures.time_us.spread() * 100.0),
            Self::Algbw => median(&figures.algbw),
            Self::Ratio(peer) => ratio(report, row, peer, place).unwrap_or_default(),
            Self::Cpu => median(&figures.cpu_per_gb),
            Self::Bound => figures.bound.as_ref().map_or_else(String::new, |bound| short(bound.reached.median())),
            Self::Busbw => median(&figures.busbw),
            Self::Wirebw => median(&figures.wirebw),
        }
    }
}

/// Our algbw divided by that of a peer; nothing in the peers' own rows.
fn ratio(report: &Report, row: &Row, peer: &str, place: Place) -> Option<String> {
    let ratio = report.ratio(row, peer, place).filter(|_| row.ours)?.median();
    Some(if ratio >= 100.0 {
        format!("{ratio:.0}")
    } else if ratio >= 10.0 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.2}")
    })
}

/// A time in microseconds with a unit that keeps it short.
fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let text = cells.collect::<Vec<_>>().join(GAP);
    format!("{}\n", text.trim_end())
}

/// Between two columns.
const GAP: &str = " ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::{report, row};

    fn lines(columns: usize, peers: &[&str]) -> String {
        let mut rows = vec![row("local", true, 64 << 20, 2.0), row("quic", true, 64 << 20, 0.5)];
        rows.extend(peers.iter().map(|peer| row(peer, false, 64 << 20, 1.0)));
        let report = report(rows);
        let outline = Outline { name: 6, peers: report.peers(), ..Outline::default() };
        let table = Fitted::new(&outline, columns);
        let rows: String = report.rows.iter().map(|row| table.row(&report, row)).collect();
        table.heading() + &rows + &table.trailer(&report)
    }

    #[test]
    fn every_line_fits_the_terminal() {
        let all = ["gloo", "mpi", "mpich", "impi", "oneccl"];
        for columns in [60, 80, 100, 200] {
            for peers in [&[][..], &all[..1], &all[..]] {
                let text = lines(columns, peers);
                assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
                for peer in peers {
                    assert!(text.contains(peer) && text.contains("0.50"), "{columns}:\n{text}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let narrow = lines(60, &["gloo"]);
        assert!(narrow.contains("without") && narrow.contains("wirebw"), "{narrow}");
        assert!(!lines(120, &["gloo"]).contains("for want of width"));
    }

    #[test]
    fn a_row_says_size_contender_time_and_how_it_compares() {
        let text = lines(80, &["gloo"]);
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1][..8], ["64", "MiB", "local", "33.55", "ms", "0%", "2.000", "2.00"]);
        assert_eq!(cells[3][..7], ["64", "MiB", "gloo", "67.11", "ms", "0%", "1.000"]);
    }
}
