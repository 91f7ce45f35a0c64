//! Where results go and what is expected of them, as arguments.

use std::path::PathBuf;

use clap::Args;

use super::expect::Expectation;

/// Where results go and what is expected of them.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Record {
    /// Write everything that was measured to this file, as JSON.
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Fail with exit code 2 unless this holds, such as 'algbw>=2.0@4M', 'time<=150@4K' or 'ratio:gloo>=2@64K-256M'; may be repeated.
    ///
    /// METRIC is time, p50 or p99 (µs), algbw, busbw or wirebw (GB/s), cpu (seconds per GB), wrong, bound (the share of the
    /// memory-traffic bound that is reached), optimum (time / the least that the links allow), cost (time / that of the same contender
    /// undisturbed), ratio:PEER, which is our algbw divided by that of PEER in the same repetition, or cost:PEER, our cost divided by
    /// that of PEER; a metric that a row does not have is not asked of it. A comparison is >=, <=, > or <. After @ comes a size or FIRST-LAST;
    /// without it the expectation is of every row. `in:` or `out:` before the metric picks in place or out of place; without it both
    /// must hold. `NAME/` before everything picks one contender, such as quic/algbw>=1, or one of its rows by all that is written at
    /// its end, such as 'quic busy/p99<=900'; without it all of ours must hold. An expectation that no row answers fails.
    #[arg(long = "expect", value_name = "EXPECTATION")]
    pub(crate) expectations: Vec<Expectation>,
}

/// How the table is written, and what becomes of it.
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
