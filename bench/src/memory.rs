//! The memory-traffic bound: the least bytes that a road through memory must touch, and how fast this machine touches bytes, by copying.

use std::hint::black_box;
use std::sync::Barrier;

use crate::measure::{Samples, time};

/// How many bytes a reduction over `workers` touches, for each byte of one worker's tensor, where tensors lie in memory of their own
/// processes. Reads and writes count alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traffic {
    /// Through a server: every worker copies its contribution to where the server sees it (2 a worker), the server reads all and writes
    /// the sum (1 a worker and 1), every worker copies the sum (2 a worker).
    Server { workers: u32 },
    /// Among the workers alone, each of which adds a slice: every worker copies the others' slices to where they see them (2 less 2 of
    /// its own part), all contributions are read, the sum is written to where all see it and to its owner's tensor (1 a worker and
    /// 2), every worker copies the slices of the others (2 less 2 of its own part).
    Workers { workers: u32 },
}

impl Traffic {
    /// Bytes touched for each byte of one worker's tensor.
    pub(crate) fn touched(self) -> u32 {
        match self {
            Self::Server { workers } => 5 * workers + 1,
            Self::Workers { workers: 1 } => 2,
            Self::Workers { workers } => 5 * workers - 2,
        }
    }
}

/// Copies as many buffers as there are workers with a core, all at the same time, walking through as much memory as the case does.
pub(crate) struct Copier {
    buffers: Vec<ThreadBuffers>,
    /// Passes over the memory of a thread in one sample, so that a sample is long against the clock and the start of threads.
    passes: u64,
}

struct ThreadBuffers {
    from: Vec<u8>,
    to: Vec<u8>,
    /// Bytes that are copied in one go.
    run: usize,
}

/// Bytes that a thread copies in one sample, at least.
const SAMPLE_BYTES: u64 = 64 << 20;
/// More than any cache holds: larger buffers are copied no slower.
const THREAD_BYTES_MAX: u64 = 128 << 20;

impl Copier {
    /// For `workers` that take turns over `sets` tensors of `tensor_bytes` each.
    pub(crate) fn new(tensor_bytes: u64, sets: usize, workers: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(workers as usize);
        let bytes = (tensor_bytes * sets as u64).min(THREAD_BYTES_MAX);
        let memory = |content| vec![content; usize::try_from(bytes).expect("it fits in memory")];
        let run = usize::try_from(tensor_bytes.min(bytes)).expect("it fits in memory");
        let pair = |_| ThreadBuffers { from: memory(1), to: memory(2), run };
        Self { buffers: (0..threads).map(pair).collect(), passes: SAMPLE_BYTES.div_ceil(bytes) }
    }

    /// One sample: bytes read and written by all threads together, in GB/s.
    pub(crate) fn sample(&mut self) -> f64 {
        let touched: u64 = self.buffers.iter().map(|pair| 2 * pair.from.len() as u64 * self.passes).sum();
        let (passes, together) = (self.passes, Barrier::new(self.buffers.len()));
        let walk = |pair: &mut ThreadBuffers| {
            pair.pass();
            together.wait();
            time(|| (0..passes).for_each(|_| pair.pass()))
        };
        let walk = &walk;
        let slowest = std::thread::scope(|scope| {
            let threads: Vec<_> = self.buffers.iter_mut().map(|pair| scope.spawn(move || walk(pair))).collect();
            threads.into_iter().map(|thread| thread.join().expect("copying does not panic")).max().unwrap_or_default()
        });
        let mut speed = Samples::default();
        speed.push_speed(touched, slowest);
        speed.median()
    }
}

impl ThreadBuffers {
    fn pass(&mut self) {
        for (to, from) in self.to.chunks_mut(self.run).zip(self.from.chunks(self.run)) {
            black_box(to).copy_from_slice(black_box(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_two_workers_are_counted() {
        // Copies in 2 x 2, the server 2 + 1, copies out 2 x 2.
        assert_eq!(Traffic::Server { workers: 2 }.touched(), 11);
        // Half a tensor each is copied in (2), both are read (2), the sum is written twice (2), half is copied out (2).
        assert_eq!(Traffic::Workers { workers: 2 }.touched(), 8);
    }

    #[test]
    fn all_tensors_of_a_thread_are_copied() {
        let mut copier = Copier::new(4096, 3, 2);
        assert!(copier.sample() > 0.0);
        assert!(copier.buffers.iter().all(|pair| pair.to == pair.from && pair.to.len() == 4096 * 3));
    }
}
