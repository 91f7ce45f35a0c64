//! A rank of ours: takes orders from standard input. An [`Exchanger`] decides how it exchanges.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use rustix::time::{ClockId, clock_gettime};

use super::buffers::{Buffers, Set};
use super::orders::{Answer, Case, Measured, Order, Repeat};
use crate::measure::time;

/// An argument of a joining rank: the network interface whose bytes it counts. Default: [`LOOPBACK`].
pub(crate) const INTERFACE: &str = "interface";
/// The interface of processes of one host.
pub(crate) const LOOPBACK: &str = "lo";

/// One way to exchange tensors.
pub(crate) trait Exchanger: Sized {
    /// Joins the other ranks.
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String>;

    /// Prepares a case before its first exchange.
    fn prepare(&mut self, case: &Case) -> Result<(), String>;

    /// Exchanges all tensors of a case and returns when the last sum is there.
    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String>;

    /// Does the work before the timed exchanges of this set, such as pushing the tensors that will be pulled.
    fn provide(&mut self, _case: &Case, _set: &mut Set) -> Result<(), String> {
        Ok(())
    }

    /// Does the work between the timed exchanges and the verification, such as pulling the tensors that were pushed.
    fn settle(&mut self, _case: &Case, _set: &mut Set) -> Result<(), String> {
        Ok(())
    }

    /// Begins the backlog of a case.
    fn load(&mut self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    /// Waits for the end of the backlog. Returns whether it had ended already.
    fn unload(&mut self) -> Result<bool, String> {
        Ok(false)
    }

    /// Bytes of bodies that it has pushed and pulled so far, if it counts them.
    fn body_bytes(&self) -> Option<u64> {
        None
    }

    /// A barrier of all ranks.
    fn meet(&mut self) -> Result<(), String>;

    /// Leaves.
    fn leave(self) -> Result<(), String>;
}

/// A receiver of orders: one rank, or all ranks of a process.
pub(crate) trait Obedient: Sized {
    /// Joins the other ranks, if there are any.
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String>;

    /// Prepares a case.
    fn prepare(&mut self, case: Case) -> Result<(), String>;

    /// Measures the case once.
    fn repeat(&mut self, repeat: &Repeat) -> Result<Measured, String>;

    /// Leaves.
    fn leave(self) -> Result<(), String>;
}

/// Carries out orders until standard input ends.
///
/// # Errors
/// If it cannot continue. The error of a failed order is also its answer.
pub(crate) fn obey<O: Obedient>() -> Result<(), String> {
    let mut member: Option<O> = None;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|cause| format!("standard input: {cause}"))?;
        let order: Order = serde_json::from_str(&line).map_err(|cause| format!("{line:?} is no order: {cause}"))?;
        let answer = match (order, &mut member) {
            (Order::Join { rank, ranks, with }, _) => O::join(rank, ranks, &with).map(|joined| {
                member = Some(joined);
                Answer::Done
            }),
            (Order::Prepare(case), Some(member)) => member.prepare(case).map(|()| Answer::Done),
            (Order::Repeat(repeat), Some(member)) => member.repeat(&repeat).map(Answer::Measured),
            (Order::Usage, _) => Ok(Answer::Usage { cpu_seconds: cpu_seconds() }),
            (Order::Prepare(_) | Order::Repeat(_), None) => Err("the rank has not joined".to_owned()),
        };
        say(&answer.unwrap_or_else(|error| Answer::Failed { error }))?;
    }
    match member {
        Some(member) => member.leave(),
        None => Ok(()),
    }
}

/// The loop of a process that serves ranks: reports its processor time on request, until standard input ends.
///
/// # Errors
/// If it cannot read or write.
pub(crate) fn obey_as_helper() -> Result<(), String> {
    for line in io::stdin().lock().lines() {
        line.map_err(|cause| format!("standard input: {cause}"))?;
        say(&Answer::Usage { cpu_seconds: cpu_seconds() })?;
    }
    Ok(())
}

/// One rank.
pub(crate) struct Member<E> {
    exchanger: E,
    rank: u32,
    ranks: u32,
    interface: String,
    work: Option<(Case, Buffers)>,
}

impl<E: Exchanger> Member<E> {
    /// A rank with this exchanger, which counts the bytes of this network interface.
    pub(crate) fn new(exchanger: E, rank: u32, ranks: u32, interface: &str) -> Self {
        Self { exchanger, rank, ranks, interface: interface.to_owned(), work: None }
    }
}

impl<E: Exchanger> Obedient for Member<E> {
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let interface = with.get(INTERFACE).map_or(LOOPBACK, String::as_str);
        Ok(Self::new(E::join(rank, ranks, with)?, rank, ranks, interface))
    }

    fn prepare(&mut self, case: Case) -> Result<(), String> {
        // Frees the memory of the case before first.
        self.work = None;
        self.exchanger.prepare(&case)?;
        let buffers = Buffers::new(&case, self.rank, self.ranks);
        self.work = Some((case, buffers));
        Ok(())
    }

    fn repeat(&mut self, repeat: &Repeat) -> Result<Measured, String> {
        let Some((case, buffers)) = &mut self.work else { return Err("no case was prepared".to_owned()) };
        let in_place = repeat.in_place;
        let mut measured = Measured::default();
        for index in 0..repeat.warmup as usize {
            let set = index % buffers.len();
            self.exchanger.provide(case, buffers.set(set))?;
            self.exchanger.exchange(case, buffers.set(set), in_place)?;
            if repeat.check {
                buffers.fill_set(set);
            }
        }
        let mut left = repeat.iterations as usize;
        while left > 0 {
            let whole = !repeat.check && case.backlog_bytes == 0;
            let batch = if whole { left } else { left.min(buffers.len()) };
            left -= batch;
            for index in 0..batch.min(buffers.len()) {
                self.exchanger.provide(case, buffers.set(index))?;
            }
            // Before the barrier, because it takes longer than a small exchange, and ranks would not start together.
            let wire_before = wire_bytes(&self.interface)?;
            self.exchanger.meet()?;
            self.exchanger.load(case)?;
            let bodies_before = self.exchanger.body_bytes();
            let cpu_before = cpu_seconds();
            for index in 0..batch {
                let set = index % buffers.len();
                let mut outcome = Ok(());
                let taken = time(|| outcome = self.exchanger.exchange(case, buffers.set(set), in_place));
                outcome?;
                measured.seconds.push(taken.as_secs_f64());
            }
            measured.cpu_seconds += cpu_seconds() - cpu_before;
            let wire = wire_bytes(&self.interface)?;
            measured.received_bytes += wire.0.saturating_sub(wire_before.0);
            measured.sent_bytes += wire.1.saturating_sub(wire_before.1);
            if let (Some(before), Some(now)) = (bodies_before, self.exchanger.body_bytes()) {
                *measured.body_bytes.get_or_insert_default() += now - before;
            }
            measured.late += u64::from(self.exchanger.unload()?);
            for index in 0..batch.min(buffers.len()) {
                self.exchanger.settle(case, buffers.set(index))?;
            }
            if repeat.spoil && left == 0 {
                buffers.spoil(in_place);
            }
            for index in 0..if repeat.check { batch } else { 0 } {
                let (wrong, at) = buffers.verify(index, in_place);
                measured.wrong += wrong;
                measured.wrong_at = measured.wrong_at.or(at);
                buffers.fill_set(index);
            }
        }
        Ok(measured)
    }

    fn leave(self) -> Result<(), String> {
        self.exchanger.leave()
    }
}

fn say(answer: &Answer) -> Result<(), String> {
    let line = serde_json::to_string(answer).expect("answers are plain");
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|cause| format!("standard output: {cause}"))
}

/// Processor time of this process, user and system, all threads.
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// Bytes that an interface of this process's network namespace received and sent.
fn wire_bytes(interface: &str) -> Result<(u64, u64), String> {
    let text = std::fs::read_to_string("/proc/self/net/dev").map_err(|cause| format!("/proc/self/net/dev: {cause}"))?;
    counters(&text, interface).ok_or_else(|| format!("there is no network interface {interface}"))
}

/// Received and sent bytes of `interface` in the text of `/proc/net/dev`, whose lines are `name: bytes packets … (8 received) bytes …`.
fn counters(text: &str, interface: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let counts: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some((*counts.first()?, *counts.get(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_whole_name() {
        let text = "Inter-| Receive\n  lo: 1 2 3 4 5 6 7 8 9 10\n lo0: 11 2 3 4 5 6 7 8 19 10\n";
        assert_eq!(counters(text, "lo"), Some((1, 9)));
        assert_eq!(counters(text, "lo0"), Some((11, 19)));
        assert_eq!(counters(text, "eth0"), None);
        assert!(wire_bytes("lo").is_ok(), "of this machine");
    }
}
