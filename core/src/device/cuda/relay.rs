//! Kernels in copies between a device and the host: they encode and decode the wire form, and gather and scatter small runs. A copy engine
//! moves the bytes.
//!
//! Between the two, the bytes lie in a buffer in device memory. Kernels and copies of one direction share a stream, so one buffer is
//! enough: the next use of the buffer waits on the device for the last one. A kernel of 4 MiB takes about a tenth of the time of its copy.
//! A kernel that accesses host memory would need no buffer, but it would keep multiprocessors busy for as long as the bus takes, and it
//! would fail if the memory is not pinned.
//!
//! The driver checks the addresses of copies, but not those that a kernel is given: memory that is not the device's is a fault there.

use std::sync::Arc;

use super::copies::{copy_in, copy_out};
use crate::codec::Coding;
use crate::cuda::{Context, DeviceMemory, Kernels, Stream};
use crate::error::Result;
use crate::mem::{DeviceRegion, Region};
use crate::types::{CodecSpec, DType, Span};

/// The kernels of one direction, and the buffer between kernels and copies.
pub(super) struct Relay {
    kernels: Kernels,
    buffer: DeviceMemory,
}

/// Size of the buffer: the wire form of 4 MiB of f32, enough for copies at the rate of the bus.
const BUFFER_BYTES: usize = 2 << 20;

/// The length from which a run is copied by itself. To submit a copy takes 5 to 7 µs whatever its length, and 256 KiB take 5 µs on the bus:
/// longer runs keep the copy engine busy, and shorter ones leave it idle.
const SMALL_BYTES_MAX: usize = 256 << 10;

/// Whether two runs that follow each other may go through the buffer together.
pub(super) fn are_small(one: &DeviceRegion, next: &DeviceRegion) -> bool {
    one.len() < SMALL_BYTES_MAX && next.len() < SMALL_BYTES_MAX
}

/// The type whose elements are an encoding of `dtype`, if a kernel casts to it and back.
pub(super) fn wire(dtype: DType, codec: CodecSpec) -> Option<DType> {
    const KERNELS: [(CodecSpec, DType); 2] = [(CodecSpec::F16, DType::F16), (CodecSpec::BF16, DType::BF16)];
    // There is no kernel for f64.
    let cast = KERNELS.into_iter().find(|(made, _)| *made == codec && dtype == DType::F32);
    cast.map(|(_, wire)| wire)
}

impl Relay {
    /// The fewest small runs that go through the buffer: a kernel and a copy are two submissions, so from three on they are fewer.
    pub(super) const RUNS_MIN: usize = 3;

    /// Loads the kernels and allocates the buffer.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) if the driver cannot compile the kernels,
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub(super) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { kernels: Kernels::load(context)?, buffer: context.memory(BUFFER_BYTES)? })
    }

    /// Submits kernels that bring `from`, run after run, to the buffer, encoded if there is a `coding`, and copies of the buffer to `to`.
    pub(super) fn copy_out(
        &self,
        stream: &Stream,
        from: &[DeviceRegion],
        to: &Region,
        coding: Option<&Coding>,
    ) -> Result<()> {
        let mut at = 0;
        let cast = Cast::of(coding);
        for batch in batches(from, cast) {
            let (places, filled) = self.places(&batch, cast);
            let runs = batch.iter().zip(&places);
            match coding {
                Some(coding) => {
                    self.kernels.scale(stream, coding.divisor.recip(), (coding.dtype, wire_of(coding)), runs)?;
                }
                None => self.kernels.copy(stream, runs)?,
            }
            copy_out(stream, &filled, to.part(Span { offset: at, bytes: filled.len() as u64 }))?;
            at += filled.len() as u64;
        }
        Ok(())
    }

    /// Submits copies of `from` to the buffer, and kernels that bring it to `to`, run after run, decoded if there is a `coding`.
    pub(super) fn copy_in(
        &self,
        stream: &Stream,
        from: &Region,
        to: &[DeviceRegion],
        coding: Option<&Coding>,
    ) -> Result<()> {
        let mut at = 0;
        let cast = Cast::of(coding);
        for batch in batches(to, cast) {
            let (places, filled) = self.places(&batch, cast);
            copy_in(stream, &from.part(Span { offset: at, bytes: filled.len() as u64 }), &filled)?;
            at += filled.len() as u64;
            let runs = places.iter().zip(&batch);
            match coding {
                Some(coding) => self.kernels.scale(stream, 1.0, (wire_of(coding), coding.dtype), runs)?,
                None => self.kernels.copy(stream, runs)?,
            }
        }
        Ok(())
    }

    /// Where each run of a batch lies in the buffer, and all of them together.
    fn places(&self, batch: &[DeviceRegion], cast: Cast) -> (Vec<DeviceRegion>, DeviceRegion) {
        let mut filled = 0;
        let mut place = |run: &DeviceRegion| {
            let bytes = run.len() as u64 / cast.there * cast.here;
            filled += bytes;
            self.buffer.region().part(Span { offset: filled - bytes, bytes })
        };
        let places = batch.iter().map(&mut place).collect();
        (places, self.buffer.region().part(Span { offset: 0, bytes: filled }))
    }
}

/// Bytes of an element in a tensor, and of its form in the buffer.
#[derive(Clone, Copy)]
struct Cast {
    there: u64,
    here: u64,
}

impl Cast {
    /// Without a coding, bytes stay bytes.
    fn of(coding: Option<&Coding>) -> Self {
        let cast = |coding: &Coding| Self { there: coding.dtype.bytes(), here: wire_of(coding).bytes() };
        coding.map_or(Self { there: 1, here: 1 }, cast)
    }
}

fn wire_of(coding: &Coding) -> DType {
    wire(coding.dtype, coding.codec).expect("`route` refuses what a device does not encode")
}

/// Cuts and gathers the runs, in order, into batches whose form in the buffer fits it.
fn batches(runs: &[DeviceRegion], Cast { there, here }: Cast) -> Vec<Vec<DeviceRegion>> {
    let bytes_max = BUFFER_BYTES as u64 / here * there;
    let (mut batches, mut room) = (Vec::new(), 0);
    for run in runs {
        let (mut offset, end) = (0, run.len() as u64);
        while offset < end {
            if room == 0 {
                batches.push(Vec::new());
                room = bytes_max;
            }
            let bytes = room.min(end - offset);
            batches.last_mut().expect("pushed above").push(run.part(Span { offset, bytes }));
            offset += bytes;
            room -= bytes;
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::codec;
    use crate::config::Config;
    use crate::cuda::{OnIssue, fake};
    use crate::device::{CudaDevice, Device, Transfer};
    use crate::mem::Ordinal;
    use crate::mem::borrow::region_of;
    use crate::reduce;
    use crate::types::Done;

    #[test]
    fn a_device_encodes_and_decodes_as_the_host_does() {
        let (control, _driver) = fake::driver();
        let config = Config { cuda_lib: Some(fakecuda::library()), ..Config::default() };
        let cuda = CudaDevice::load(&config).unwrap();
        let values: Vec<u8> = (0..1000_u32).flat_map(|index| (0.37 * index as f32 - 100.0).to_le_bytes()).collect();
        let address = control.allocate(0, values.len());
        let run = |offset: u64, bytes: usize| DeviceRegion::new(Ordinal(0), address + offset, bytes);
        // Not in the order of their addresses.
        let runs = || vec![run(400, 3600), run(0, 400)];
        let given = [&values[400..], &values[..400]].concat();
        for (codec, divisor) in [(CodecSpec::F16, 4.0), (CodecSpec::BF16, 1.0)] {
            let kernels = reduce::Kernels::portable();
            let coder = codec::of(codec, DType::F32).unwrap();
            let expected = codec::testing::encoded(&*coder, kernels, divisor, &given, 1000).unwrap();
            let mut elements = vec![0; 4000];
            coder.decode(kernels, &expected, &mut elements).unwrap();

            let coding = Coding { dtype: DType::F32, codec, divisor };
            control.produce(0, 0, address, &values);
            let mark = cuda.mark(Ordinal(0), 0).unwrap();
            let mut body = vec![0; 2000];
            finish(&cuda, Transfer::Encode { from: runs(), to: region_of(&mut body), coding }, &[mark]);
            assert_eq!(body, expected, "{codec}");
            finish(&cuda, Transfer::Decode { from: region_of(&mut body), to: runs(), coding }, &[]);
            let found = control.consume(0, 0, address, 4000);
            assert_eq!([&found[400..], &found[..400]].concat(), elements, "{codec}");
        }
    }

    #[test]
    fn runs_are_cut_and_gathered_to_the_length_of_the_buffer() {
        let run = |bytes: usize| DeviceRegion::new(Ordinal(0), 0x1000, bytes);
        let lens = |runs: &[DeviceRegion]| {
            let batches = batches(runs, Cast { there: 4, here: 2 });
            batches.iter().map(|batch| batch.iter().map(DeviceRegion::len).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let full = 2 * BUFFER_BYTES;
        assert_eq!(lens(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(lens(&[run(8), run(0), run(4)]), [vec![8, 4]]);
        assert_eq!(lens(&[run(8), run(full), run(4)]), [vec![8, full - 8], vec![8, 4]]);
        assert_eq!(lens(&[run(full), run(full + 4)]), [vec![full], vec![full], vec![4]]);
    }

    #[test]
    fn small_runs_that_follow_each_other_go_together() {
        let run = |bytes: usize| DeviceRegion::new(Ordinal(0), 0x1000, bytes);
        let (small, large) = (|| run(SMALL_BYTES_MAX - 1), || run(SMALL_BYTES_MAX));
        let runs = [small(), large(), small(), small(), run(0), large(), large()];
        let stretches: Vec<usize> = runs.chunk_by(are_small).map(<[_]>::len).collect();
        assert_eq!(stretches, [1, 1, 3, 1, 1]);
    }

    #[test]
    fn only_what_a_kernel_casts_is_encoded_on_a_device() {
        assert_eq!(wire(DType::F32, CodecSpec::F16), Some(DType::F16));
        assert_eq!(wire(DType::F32, CodecSpec::BF16), Some(DType::BF16));
        assert_eq!([wire(DType::F64, CodecSpec::F16), wire(DType::F32, CodecSpec::PLAIN)], [None; 2]);
    }

    fn finish(cuda: &CudaDevice, transfer: Transfer, after: &[crate::cuda::Mark]) {
        let (sender, outcome) = mpsc::channel();
        cuda.copy(transfer, after, OnIssue::nobody(), Done::new(move |outcome| sender.send(outcome).unwrap()));
        assert_eq!(outcome.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
    }
}
