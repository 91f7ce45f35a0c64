//! The memory-traffic bound: the least bytes that a reduction through memory must touch, and how fast a copy on this machine touches bytes.

use std::hint::black_box;
use std::sync::Barrier;

use crate::measure::{Samples, time};

/// How many bytes a reduction over `workers` touches for each byte of one worker's tensor. Each tensor lies in the private memory of its
/// process. Reads and writes count alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traffic {
    /// Through a server. Every worker copies its contribution into shared memory (2 per worker). The server reads all and writes the sum (1
    /// per worker, and 1). Every worker copies the sum (2 per worker).
    Server { workers: u32 },
    /// Among the workers alone; each adds one slice. Every worker copies the slices of the others into shared memory (2, less 2 for its own
    /// slice). Each worker reads all contributions to its slice, and writes the sum to shared memory and to its own tensor (1 per worker,
    /// and 2). Every worker copies the sums of the other slices (2, less 2 for its own slice).
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

/// Copies buffers on several threads at once: one thread per worker, but at most one per core. Touches as much memory as the case does.
pub(crate) struct Copier {
    buffers: Vec<ThreadBuffers>,
    /// Passes over the memory of a thread in one sample. A sample must last much longer than the resolution of the clock and the start of
    /// threads.
    passes: u64,
}

struct ThreadBuffers {
    from: Vec<u8>,
    to: Vec<u8>,
    /// Bytes of one copy.
    run: usize,
}

/// The least bytes that a thread copies in one sample.
const SAMPLE_BYTES: u64 = 64 << 20;
/// More than any cache holds, so that larger buffers would be copied no slower.
const THREAD_BYTES_MAX: u64 = 128 << 20;

impl Copier {
    /// Prepares copies as large as those of `workers` that use `sets` tensors of `tensor_bytes` in turns.
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
