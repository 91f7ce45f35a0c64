//! One shaped link: its rate, its queue, and what its counters say.
//!
//! A token bucket (`tc tbf`) at both ends limits the bytes of Ethernet frames: with its headers a full datagram in a frame of 1,500 bytes
//! counts 1,514. The kernel counts each segment of a packet that it has not segmented yet with its own headers, so offloads do not falsify
//! the rate. They stay on, because real hosts have them on.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// What a link is like, in both directions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) rate: Rate,
    /// Bytes that may wait for one direction of the link; the link drops the rest.
    pub(crate) queue_bytes: u32,
    pub(crate) mtu: u16,
    /// Congestion control of kernel TCP.
    pub(crate) tcp: String,
}

impl Link {
    /// The commands of `tc` that limit the rate at which bytes leave through `device`.
    pub(super) fn shape(&self, device: &str) -> String {
        let (rate, burst, queue) = (self.rate.bits_per_second(), self.burst_bytes(), self.queue_bytes);
        format!("qdisc add dev {device} root handle 1: tbf rate {rate}bit burst {burst}b limit {queue}b\n")
    }

    /// The bytes that may leave at once after a pause. At least the largest packet that the kernel hands down unsegmented (64 KiB and the
    /// headers of its segments), because the bucket would otherwise have to segment it. At least a millisecond of the rate, so that a timer
    /// that fires late loses nothing.
    pub(crate) fn burst_bytes(&self) -> u32 {
        let millisecond = self.rate.bits_per_second() / 8 / 1000;
        u32::try_from(millisecond).unwrap_or(u32::MAX).clamp(80_000, 8_000_000)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, queue_bytes, mtu, tcp } = self;
        write!(f, "{rate}, queue {queue_bytes} B, burst {} B, MTU {mtu}, TCP {tcp}", self.burst_bytes())
    }
}

/// Bits a second, written as `tc` does: `1gbit`, `200mbit`, `64kbit`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) struct Rate(u64);

impl Rate {
    pub(crate) const SLOW: Self = Self(200_000_000);

    pub(crate) fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    pub(crate) fn bits_per_second(self) -> u64 {
        self.0
    }

    pub(crate) fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HINT: &str = "write it like 1gbit or 200mbit, from 1mbit to 100gbit";
        let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = match unit.to_ascii_lowercase().as_str() {
            "gbit" => 1e9,
            "mbit" => 1e6,
            "kbit" => 1e3,
            _ => return Err(format!("{text:?} is no rate: {HINT}")),
        };
        let number: f64 = number.parse().map_err(|_| format!("{text:?} is no rate: {HINT}"))?;
        let bits = number * unit;
        if !(1e6..=1e11).contains(&bits) {
            return Err(format!("{text} is out of range: {HINT}"));
        }
        Ok(Self(bits as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabits = self.0 as f64 / 1e6;
        if megabits >= 1000.0 { write!(f, "{}gbit", megabits / 1000.0) } else { write!(f, "{megabits}mbit") }
    }
}

/// The counters at both ends of a machine's link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Traffic {
    /// Sent by the machine, in frames.
    pub(crate) sent: Count,
    /// Received by the machine, in frames.
    pub(crate) received: Count,
}

/// One direction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Count {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    /// Packets for which the queue had no room.
    pub(crate) dropped: u64,
}

impl Count {
    /// What was added since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            packets: self.packets - before.packets,
            dropped: self.dropped - before.dropped,
        }
    }
}

impl Traffic {
    /// Parses the output of `tc -s -j qdisc show` at both ends.
    pub(super) fn parse(near: &str, device: &str, far: &str, port: &str) -> Result<Self, String> {
        Ok(Self { sent: count(near, device)?, received: count(far, port)? })
    }

    /// What was added since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { sent: self.sent.since(before.sent), received: self.received.since(before.received) }
    }
}

#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    bytes: u64,
    packets: u64,
    drops: u64,
}

fn count(shown: &str, device: &str) -> Result<Count, String> {
    let found: Vec<Qdisc> = serde_json::from_str(shown).map_err(|error| format!("tc printed no JSON: {error}"))?;
    let shaped = found.into_iter().find(|qdisc| qdisc.dev == device && qdisc.kind == "tbf");
    let Qdisc { bytes, packets, drops, .. } = shaped.ok_or_else(|| format!("{device} is not shaped: {shown}"))?;
    Ok(Count { bytes, packets, dropped: drops })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_as_tc_writes_it() {
        assert_eq!("1gbit".parse::<Rate>().unwrap().bits_per_second(), 1_000_000_000);
        assert_eq!("2.5Gbit".parse::<Rate>().unwrap().to_string(), "2.5gbit");
        assert_eq!("200mbit".parse::<Rate>().unwrap().bytes_per_second(), 25e6);
    }

    #[test]
    fn a_wrong_rate_is_refused_with_a_hint() {
        for wrong in ["", "0gbit", "1", "1gb", "fastbit", "-1mbit", "1e3mbit", "500gbit"] {
            let problem = wrong.parse::<Rate>().unwrap_err();
            assert!(problem.ends_with("from 1mbit to 100gbit"), "{problem}");
        }
    }

    #[test]
    fn the_counters_of_both_ends_make_the_traffic_of_a_machine() {
        let near = r#"[{"kind":"noqueue","dev":"lo","bytes":0,"packets":0,"drops":0},
                       {"kind":"tbf","handle":"1:","dev":"eth0","bytes":70,"packets":2,"drops":1}]"#;
        let far = r#"[{"kind":"tbf","dev":"port0","bytes":1,"packets":1,"drops":0},
                      {"kind":"tbf","dev":"port1","bytes":90,"packets":3,"drops":0}]"#;
        let traffic = Traffic::parse(near, "eth0", far, "port1").unwrap();
        assert_eq!(traffic.sent, Count { bytes: 70, packets: 2, dropped: 1 });
        assert_eq!(traffic.received, Count { bytes: 90, packets: 3, dropped: 0 });
        assert!(Traffic::parse(near, "eth1", far, "port1").unwrap_err().contains("eth1 is not shaped"));
    }
}
