//! Kernels in copies between a device and the host: they encode and decode bodies, and gather and scatter small runs. A copy engine moves
//! the bytes.
//!
//! Between the two, the bytes lie in a buffer in device memory. Kernels and copies of one direction share a stream, so one buffer is
//! enough: the next use of the buffer waits on the device for the last one. A kernel of 4 MiB takes about a tenth of the time of its copy.
//! A kernel that accesses host memory would need no buffer, but it would keep multiprocessors busy for as long as the bus takes, and it
//! would fail if the memory is not pinned.
//!
//! Codecs whose unit is a whole part do not share that buffer: see [`parts`](super::parts).
//!
//! The driver checks the addresses of copies, but not those that a kernel is given: memory that is not the device's is a fault there.

use std::cell::OnceCell;
use std::sync::Arc;

use super::copies::{copy_in, copy_out};
use super::parts::{self, Parts, body_bytes};
use crate::codec::{Coding, Seed};
use crate::cuda::{CodecKernels, Context, DeviceMemory, Kernels, Stream};
use crate::device::Transfer;
use crate::error::Result;
use crate::mem::{DeviceRegion, Region};
use crate::types::{CodecSpec, DType, Encoding, InCopies, Span};

/// The kernels of one direction, and the buffer between kernels and copies.
pub(super) struct Relay {
    kernels: Kernels,
    /// Loaded for the first body that is no cast.
    codecs: OnceCell<Result<CodecKernels>>,
    parts: Parts,
    buffer: DeviceMemory,
}

/// Size of the buffer: the wire form of 4 MiB of f32 in halves, enough for copies at the rate of the bus.
const BUFFER_BYTES: usize = 2 << 20;

/// The length from which a run is copied by itself. To submit a copy takes 5 to 7 µs whatever its length, and 256 KiB take 5 µs on the bus:
/// longer runs keep the copy engine busy, and shorter ones leave it idle.
const SMALL_BYTES_MAX: usize = 256 << 10;

/// Whether two runs that follow each other may go through the buffer together.
pub(super) fn are_small(one: &DeviceRegion, next: &DeviceRegion) -> bool {
    one.len() < SMALL_BYTES_MAX && next.len() < SMALL_BYTES_MAX
}

/// What kernels do with `dtype`. Residuals lie in host memory, so the host works with error feedback.
pub(super) fn in_copies(dtype: DType, codec: CodecSpec) -> InCopies {
    match parts::in_copies(codec) {
        _ if dtype != DType::F32 || codec.has_feedback() => InCopies::Nothing,
        InCopies::Nothing if cast(codec).is_some() || CodecKernels::know(codec) => InCopies::EncodeAndDecode,
        of_parts => of_parts,
    }
}

/// The type whose elements are the bodies of `codec`, if they are casts.
fn cast(codec: CodecSpec) -> Option<DType> {
    match codec.encoding() {
        Encoding::F16 => Some(DType::F16),
        Encoding::BF16 => Some(DType::BF16),
        _ => None,
    }
}

impl Relay {
    /// The fewest small runs that go through the buffer: a kernel and a copy are two submissions, so from three on they are fewer.
    pub(super) const RUNS_MIN: usize = 3;

    /// Loads the kernels that every device needs, and allocates the buffer.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) if the driver cannot compile the kernels,
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub(super) fn load(context: &Arc<Context>) -> Result<Self> {
        let (codecs, buffer) = (OnceCell::new(), context.memory(BUFFER_BYTES)?);
        Ok(Self { kernels: Kernels::load(context)?, codecs, parts: Parts::default(), buffer })
    }

    /// Whether it has loaded and allocated what a transfer needs.
    pub(super) fn is_ready(&self, transfer: &Transfer) -> bool {
        match transfer {
            Transfer::Encode { coding, .. } | Transfer::Decode { coding, .. } if parts::know(coding.codec) => {
                self.parts.are_ready(transfer)
            }
            Transfer::Encode { coding, .. } | Transfer::Decode { coding, .. } => {
                !CodecKernels::know(coding.codec) || self.codecs.get().is_some()
            }
            Transfer::Out { .. } | Transfer::In { .. } | Transfer::Within { .. } => true,
        }
    }

    fn codecs(&self, stream: &Stream) -> Result<&CodecKernels> {
        self.codecs.get_or_init(|| CodecKernels::load(stream.context())).as_ref().map_err(Clone::clone)
    }

    /// Submits kernels that bring `from`, run after run, to the buffer, encoded if there is a `coding`, and copies of the buffer to `to`.
    pub(super) fn copy_out(
        &self,
        stream: &Stream,
        from: &[DeviceRegion],
        to: &Region,
        coding: Option<(&Coding, Seed)>,
    ) -> Result<()> {
        if let Some((coding, seed)) = coding.filter(|(coding, _)| parts::know(coding.codec)) {
            return self.parts.copy_out(stream, from, to, coding, seed);
        }
        let (mut at, mut elements) = (0, 0);
        let form = Form::of(coding.map(|(coding, _)| coding));
        for batch in batches(from, &form) {
            let (places, filled) = self.places(&batch, &form);
            let runs = batch.iter().zip(&places);
            match coding {
                None => self.kernels.copy(stream, runs)?,
                Some((coding, seed)) => match cast(coding.codec).filter(|_| !coding.codec.is_stochastic()) {
                    Some(wire) => self.kernels.scale(stream, coding.divisor.recip(), (coding.dtype, wire), runs)?,
                    None => {
                        self.codecs(stream)?.encode(stream, coding, seed.from_element(elements), runs)?;
                        elements += batch.iter().map(|run| run.len() as u64 / coding.dtype.bytes()).sum::<u64>();
                    }
                },
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
        if let Some(coding) = coding.filter(|coding| parts::know(coding.codec)) {
            return self.parts.copy_in(stream, from, to, coding);
        }
        let mut at = 0;
        let form = Form::of(coding);
        for batch in batches(to, &form) {
            let (places, filled) = self.places(&batch, &form);
            copy_in(stream, &from.part(Span { offset: at, bytes: filled.len() as u64 }), &filled)?;
            at += filled.len() as u64;
            let runs = places.iter().zip(&batch);
            match coding {
                None => self.kernels.copy(stream, runs)?,
                Some(coding) => match cast(coding.codec) {
                    Some(wire) => self.kernels.scale(stream, 1.0, (wire, coding.dtype), runs)?,
                    None => self.codecs(stream)?.decode(stream, coding, runs)?,
                },
            }
        }
        Ok(())
    }

    /// Where each run of a batch lies in the buffer, and all of them together.
    fn places(&self, batch: &[DeviceRegion], form: &Form) -> (Vec<DeviceRegion>, DeviceRegion) {
        let mut filled = 0;
        let mut place = |run: &DeviceRegion| {
            let bytes = form.bytes(run.len());
            filled += bytes;
            self.buffer.region().part(Span { offset: filled - bytes, bytes })
        };
        let places = batch.iter().map(&mut place).collect();
        (places, self.buffer.region().part(Span { offset: 0, bytes: filled }))
    }
}

/// How runs lie in the buffer.
struct Form {
    coding: Option<Coding>,
    /// Bytes of a run that is encoded on its own, in a tensor.
    there: u64,
    /// At most so many bytes it has in the buffer.
    here: u64,
}

impl Form {
    /// Without a coding, bytes stay bytes.
    fn of(coding: Option<&Coding>) -> Self {
        let Some(coding) = coding else { return Self { coding: None, there: 1, here: 1 } };
        let unit = coding.codec().unit(u64::MAX);
        Self { coding: Some(*coding), there: unit.len * coding.dtype.bytes(), here: unit.bytes }
    }

    /// Bytes in the buffer of a run of so many bytes.
    fn bytes(&self, there: usize) -> u64 {
        self.coding.as_ref().map_or(there as u64, |coding| body_bytes(coding, there))
    }
}

/// Cuts and gathers the runs, in order, into batches whose form in the buffer fits it. A run is cut between what is encoded on its own.
fn batches(runs: &[DeviceRegion], Form { there, here, .. }: &Form) -> Vec<Vec<DeviceRegion>> {
    let units_max = BUFFER_BYTES as u64 / here;
    let (mut batches, mut room) = (Vec::new(), 0);
    for run in runs {
        let (mut offset, end) = (0, run.len() as u64);
        while offset < end {
            if room == 0 {
                batches.push(Vec::new());
                room = units_max;
            }
            let bytes = (room * there).min(end - offset);
            batches.last_mut().expect("pushed above").push(run.part(Span { offset, bytes }));
            offset += bytes;
            room -= bytes.div_ceil(*there);
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use fakecuda::Control;

    use super::*;
    use crate::codec::{Tools, Workspace, testing};
    use crate::cuda::{Mark, OnIssue, TopKKernels};
    use crate::device::cuda::tests::fake_device;
    use crate::device::{CudaDevice, Device, Varying};
    use crate::mem::Ordinal;
    use crate::mem::borrow::region_of;
    use crate::reduce;
    use crate::types::Done;

    #[test]
    fn a_device_encodes_and_decodes_as_the_host_does() {
        let world = World::start();
        let values: Vec<u8> = (0..1000_u32).flat_map(|index| (0.37 * index as f32 - 100.0).to_le_bytes()).collect();
        let address = world.control.allocate(0, values.len());
        let run = |offset: u64, bytes: usize| DeviceRegion::new(Ordinal(0), address + offset, bytes);
        // Not in the order of their addresses.
        let runs = || vec![run(400, 3600), run(0, 400)];
        for codec in [
            "fp16",
            "bf16",
            "bf16:stochastic=1",
            "int8:block=32",
            "int8:block=77,stochastic=1",
            "int4:block=33",
            "int4:stochastic=1",
            "fp8_e4m3",
            "fp8_e5m2:block=64,stochastic=1",
            "randomk:k=300000",
            "onebit",
            "onebit:scaling=0",
        ] {
            let codec: CodecSpec = codec.parse().unwrap();
            let divisor = if codec == CodecSpec::F16 { 4.0 } else { 1.0 };
            let coding = Coding { dtype: DType::F32, codec, divisor };
            // Each run has blocks of its own, and what is drawn goes on.
            let bodies = [on_the_host(&coding, 0, &values[400..]), on_the_host(&coding, 900, &values[..400])];
            let elements = bodies.each_ref().map(|body| back_on_the_host(&coding, body));
            world.control.produce(0, 0, address, &values);
            let mark = world.cuda.mark(Ordinal(0), 0).unwrap();
            let mut body = vec![0; bodies.concat().len()];
            let encoding = Transfer::Encode { from: runs(), to: region_of(&mut body), coding, seed: testing::SEED() };
            world.finish(encoding, &[mark]);
            assert!(body == bodies.concat(), "{codec}");
            world.finish(Transfer::Decode { from: region_of(&mut body), to: runs(), coding }, &[]);
            let found = world.control.consume(0, 0, address, 4000);
            assert!([&found[400..], &found[..400]].concat() == elements.concat(), "{codec}");
        }
    }

    #[test]
    fn draws_go_on_where_a_body_does_not_fit_the_buffer() {
        let world = World::start();
        let len = BUFFER_BYTES / 2 + 100;
        let values: Vec<u8> = (0..len).flat_map(|index| (index as f32).to_le_bytes()).collect();
        let address = world.control.allocate(0, values.len());
        world.control.produce(0, 0, address, &values);
        let codec = CodecSpec::BF16.with_stochastic();
        let coding = Coding { dtype: DType::F32, codec, divisor: 1.0 };
        let from = vec![DeviceRegion::new(Ordinal(0), address, values.len())];
        let mut body = vec![0; 2 * len];
        let mark = world.cuda.mark(Ordinal(0), 0).unwrap();
        world.finish(Transfer::Encode { from, to: region_of(&mut body), coding, seed: testing::SEED() }, &[mark]);
        assert!(body == on_the_host(&coding, 0, &values));
    }

    #[test]
    fn a_part_whose_body_is_longer_than_all_before_is_encoded_and_decoded_too() {
        let world = World::start();
        let longest = BUFFER_BYTES + 100;
        let values: Vec<u8> = (0..longest / 2).flat_map(|index| (index as f32).to_le_bytes()).collect();
        let address = world.control.allocate(0, values.len());
        let coding = Coding { dtype: DType::F32, codec: "randomk:k=500000".parse().unwrap(), divisor: 1.0 };
        // One that grows the memory, one that does not, and one that grows it again.
        for bytes in [1000, 40, values.len()] {
            world.control.produce(0, 0, address, &values);
            let run = || vec![DeviceRegion::new(Ordinal(0), address, bytes)];
            let due = on_the_host(&coding, 0, &values[..bytes]);
            let mut body = vec![0; due.len()];
            let mark = world.cuda.mark(Ordinal(0), 0).unwrap();
            let encoding = Transfer::Encode { from: run(), to: region_of(&mut body), coding, seed: testing::SEED() };
            world.finish(encoding, &[mark]);
            assert!(body == due, "{bytes} bytes");
            world.finish(Transfer::Decode { from: region_of(&mut body), to: run(), coding }, &[]);
            let mut elements = vec![0; bytes];
            coding.codec().decode(reduce::Kernels::portable(), &due, &mut elements).unwrap();
            assert!(world.control.consume(0, 0, address, bytes) == elements, "{bytes} bytes");
        }
    }

    #[test]
    fn a_device_tells_the_length_of_a_body_that_varies_or_that_its_codec_refuses_the_elements() {
        let world = World::start();
        let coding = |codec: &str| Coding { dtype: DType::F32, codec: codec.parse().unwrap(), divisor: 1.0 };
        let number = |at: u32| f32::from_bits(at.wrapping_mul(0x9e37_79b9) & 0x83ff_ffff | 0x3c00_0000);
        let numbers = |len: u32| (0..len).map(number).collect::<Vec<f32>>();
        let with_nan = || [numbers(3000), vec![f32::NAN]].concat();
        // Memory grows for the longest ones, and not for the others.
        for (codec, elements) in [
            ("topk", numbers(5000)),
            ("topk:k=100000", numbers(100)),
            ("topk:k=250000", numbers(300_000)),
            ("topk", vec![0.0; 2000]),
            ("topk", with_nan()),
            ("topk:count=5000", numbers(5000)),
            ("dithering", numbers(400_000)),
            ("dithering:norm=1,natural=1", numbers(5000)),
            ("dithering", with_nan()),
        ] {
            let (coding, len) = (coding(codec), elements.len());
            let values: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
            let due = testing::encoded(&*coding.codec(), reduce::Kernels::portable(), 1.0, &values, len as u64).ok();
            let address = world.control.allocate(0, values.len());
            world.control.produce(0, 0, address, &values);
            let run = || vec![DeviceRegion::new(Ordinal(0), address, values.len())];
            let varying = Varying::of(&coding, testing::SEED().round(), len as u64).unwrap();
            let mut room = vec![0; varying.room() as usize];
            let mark = world.cuda.mark(Ordinal(0), 0).unwrap();
            let encoding = Transfer::Encode { from: run(), to: region_of(&mut room), coding, seed: testing::SEED() };
            world.finish(encoding, &[mark]);
            let found = varying.told(&room).map(|bytes| room[..bytes as usize].to_vec());
            assert!(found == due, "{codec} of {len}");
            let Some(mut body) = due.filter(|_| TopKKernels::know(coding.codec)) else { continue };
            world.finish(Transfer::Decode { from: region_of(&mut body), to: run(), coding }, &[]);
            let mut back = vec![0; values.len()];
            coding.codec().decode(reduce::Kernels::portable(), &body, &mut back).unwrap();
            assert!(world.control.consume(0, 0, address, values.len()) == back, "{codec} of {len}");
        }
    }

    #[test]
    fn runs_are_cut_and_gathered_to_the_length_of_the_buffer() {
        let run = |bytes: usize| DeviceRegion::new(Ordinal(0), 0x1000, bytes);
        let lens = |form: &Form, runs: &[DeviceRegion]| {
            let batches = batches(runs, form);
            batches.iter().map(|batch| batch.iter().map(DeviceRegion::len).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let halves = Form { coding: None, there: 4, here: 2 };
        let full = 2 * BUFFER_BYTES;
        assert_eq!(lens(&halves, &[]), Vec::<Vec<usize>>::new());
        assert_eq!(lens(&halves, &[run(8), run(0), run(4)]), [vec![8, 4]]);
        assert_eq!(lens(&halves, &[run(8), run(full), run(4)]), [vec![8, full - 8], vec![8, 4]]);
        assert_eq!(lens(&halves, &[run(full), run(full + 4)]), [vec![full], vec![full], vec![4]]);
        let coding = Coding { dtype: DType::F32, codec: "int8:block=32".parse().unwrap(), divisor: 1.0 };
        let blocks = Form::of(Some(&coding));
        // As many blocks of 32 elements and a scale as fit.
        let full = BUFFER_BYTES / 36 * 128;
        assert_eq!(lens(&blocks, &[run(full + 4)]), [vec![full], vec![4]]);
        assert_eq!(lens(&blocks, &[run(4), run(full)]), [vec![4, full - 128], vec![128]], "an element takes a block");
        assert_eq!([blocks.bytes(128), blocks.bytes(132)], [36, 36 + 5]);
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
    fn only_what_kernels_know_is_encoded_on_a_device() {
        let of = |codec: &str| in_copies(DType::F32, codec.parse().unwrap());
        let known = [
            "fp16",
            "bf16",
            "bf16:stochastic=1",
            "int8:block=32",
            "int4:stochastic=1",
            "fp8_e4m3",
            "fp8_e5m2",
            "randomk",
            "onebit:scaling=0",
            "topk",
            "topk:count=3,warmup=5",
        ];
        assert!(known.into_iter().all(|codec| of(codec) == InCopies::EncodeAndDecode));
        assert_eq!(of("dithering:s=14,natural=1,norm=1"), InCopies::Encode);
        let unknown = [
            "none",
            "dithering:feedback=1",
            "lossless",
            "bf16:feedback=1",
            "int8:feedback=1",
            "onebit:feedback=1",
            "topk:feedback=1",
        ];
        assert!(unknown.into_iter().all(|codec| of(codec) == InCopies::Nothing));
        let of_f64 = [CodecSpec::F16, "int8".parse().unwrap()].map(|codec| in_copies(DType::F64, codec));
        assert_eq!(of_f64, [InCopies::Nothing; 2]);
    }

    /// The body of elements of which the first one has this index in its part.
    fn on_the_host(coding: &Coding, first: u64, elements: &[u8]) -> Vec<u8> {
        let mut body = vec![0; body_bytes(coding, elements.len()) as usize];
        let (kernels, seed) = (reduce::Kernels::portable(), testing::SEED().from_element(first));
        let tools = Tools { kernels, seed, workspace: &mut Workspace::default() };
        coding.codec().encode(tools, coding.divisor, elements, &mut body).unwrap();
        body
    }

    /// The elements of a body of 900 or 100 of them.
    fn back_on_the_host(coding: &Coding, body: &[u8]) -> Vec<u8> {
        let len = [3600, 400].into_iter().find(|bytes| body_bytes(coding, *bytes) == body.len() as u64);
        let mut elements = vec![0; len.unwrap()];
        coding.codec().decode(reduce::Kernels::portable(), body, &mut elements).unwrap();
        elements
    }

    struct World {
        control: Control,
        cuda: CudaDevice,
    }

    impl World {
        fn start() -> Self {
            let (control, cuda) = fake_device();
            Self { control, cuda }
        }

        fn finish(&self, transfer: Transfer, after: &[Mark]) {
            let (sender, outcome) = mpsc::channel();
            let done = Done::new(move |outcome| sender.send(outcome).unwrap());
            self.cuda.copy(transfer, after, OnIssue::nobody(), done);
            assert_eq!(outcome.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
        }
    }
}
