//! The arguments for the files of results and for expectations.

use std::path::PathBuf;

use clap::Args;

use super::expect::Expectation;
use super::screen;

/// The files of results, and expectations.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Record {
    /// Write everything that was measured to this file, as JSON.
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Fail with exit code 2 unless this holds. Examples: 'algbw>=2.0@4M', 'time<=150@4K', 'ratio:gloo>=2@64K-256M'. May be repeated.
    ///
    /// An expectation is METRIC, a comparison and a value; NAME/ and then in: or out: may stand before it, @SIZES behind it. METRIC is
    /// time, p50 or p99 (µs), algbw, busbw or wirebw (GB/s), cpu (seconds per GB), wrong, bound (the share of the memory-traffic bound that
    /// is reached), optimum (time / the least time that the links allow), cost (time / the undisturbed time of the same contender),
    /// ratio:PEER (our algbw / that of PEER in the same repetition), or cost:PEER (our cost / that of PEER). Rows without the metric are
    /// skipped. The comparison is >=, <=, > or <. SIZES is a size or FIRST-LAST; without it the expectation applies to every row. in: or
    /// out: picks in place or out of place; without it both must hold. NAME picks one contender, such as quic/algbw>=1, or one of its rows
    /// by the full name at its end, such as 'quic busy/p99<=900'; without it all of ours must hold. An expectation that matches no row
    /// fails.
    #[arg(long = "expect", value_name = "EXPECTATION")]
    pub(crate) expectations: Vec<Expectation>,
    /// Make the table as wide as this at most. Default: as wide as the terminal; on a pipe, all columns, one line a row.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(60..=1000))]
    pub(crate) columns: Option<u16>,
}

impl Record {
    /// The columns that tables and lines may use; `None` on a pipe.
    pub(crate) fn width(&self) -> Option<usize> {
        screen::columns(self.columns)
    }
}

/// How the table is printed, and the arguments of [`Record`].
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Output {
    #[command(flatten)]
    pub(crate) record: Record,
    /// Add a line for each row: fastest, median, 99th percentile and slowest exchange, and the time with its extremes.
    #[arg(short = 'I', long = "percentiles")]
    pub(crate) each_row: bool,
    /// Begin each row with the time of day, UTC.
    #[arg(short = 'S', long = "timestamps")]
    pub(crate) timestamps: bool,
}
