//! The arguments for links of limited rate, and how exchanges over them are repeated.

use std::collections::BTreeMap;

use clap::Args;

use super::link::{Link, Rate};
use crate::job;
use crate::team::orders::Repeat;

/// The effort of `iterations` exchanges, all of them timed and verified.
pub(super) fn exchanges(iterations: u32) -> Repeat {
    Repeat { in_place: true, warmup: 0, iterations, check: true, spoil: false }
}

/// The properties of the links.
#[derive(Args, Clone, Debug)]
pub(super) struct Shape {
    /// Rate of every link in each direction, such as 1gbit or 200mbit
    #[arg(long, default_value = "1gbit")]
    pub(super) rate: Rate,
    /// Bytes that may wait for a link before it drops packets
    #[arg(long, value_name = "BYTES", default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(16_000..))]
    pub(super) queue: u32,
    /// Largest packet of a link
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9000))]
    pub(super) mtu: u16,
    /// Congestion control of kernel TCP, for Gloo and for the plain transfer that checks the rate
    #[arg(long, default_value = "cubic", value_parser = ["cubic", "reno", "bbr"])]
    pub(super) tcp: String,
    /// A setting for all our processes, such as --set partition_bytes=1MiB. They do not read the environment. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(super) settings: Vec<String>,
}

impl Shape {
    /// The rate of a smoke run: so low that transfers do not depend on the speed of the machine.
    pub(super) fn slow_down(&mut self) {
        self.rate = self.rate.min(Rate::SLOW);
    }

    pub(super) fn link(&self) -> Link {
        Link { rate: self.rate, queue_bytes: self.queue, mtu: self.mtu, tcp: self.tcp.clone() }
    }

    pub(super) fn settings(&self) -> Result<BTreeMap<String, String>, String> {
        job::settings(&self.settings)
    }
}
