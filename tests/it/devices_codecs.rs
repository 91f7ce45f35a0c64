//! Codecs of tensors on devices: what a device encodes and decodes in its copies has the bits of what the host does, and only bodies are
//! copied.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fakecuda::Control;
use gradlane_core::config::Config;
use gradlane_core::cuda::Mark;
use gradlane_core::device::{CudaDevice, Device};
use gradlane_core::engine::{Batch, BatchSubmission, Engine, Member, Memory, Submission};
use gradlane_core::mem::{DeviceRegion, Ordinal};
use gradlane_core::types::{CodecSpec, Op, Priority};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::fakes;
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::over::Over;
use gradlane_tests::random::mix;

/// Those for which there is a kernel that encodes.
const CODECS: [&str; 15] = [
    "fp16",
    "bf16",
    "bf16:stochastic=1",
    "int8",
    "int8:block=33,stochastic=1",
    "int4",
    "int4:block=4096,stochastic=1",
    "fp8_e4m3:stochastic=1",
    "fp8_e5m2:block=32",
    "fp8_e5m2:stochastic=1",
    "topk",
    "topk:k=200000",
    "topk:count=50,warmup=1",
    "dithering",
    "dithering:s=9,natural=1,norm=1",
];
/// Two parts, the last one shorter, and no whole number of blocks.
const LEN: usize = 17_003;
/// Two rounds of sums, because each draws other numbers.
const OPS: [Op; 3] = [Op::Sum, Op::Sum, Op::Max];
/// Of tensors that share parts, if their codec lets them.
const SMALL: [usize; 9] = [1, 33, 100, 7, 2, 64, 500, 31, 3];

#[test]
fn sums_of_device_tensors_have_the_bits_of_those_in_host_memory() {
    let due = sums_of(&Cluster::with(Over::Quic, 2, 2, &SMALL_PARTS), |_| Place::Host);
    let device = |_| Some(TestDevice::start() as Arc<dyn Device>);
    let cluster = Cluster::with_devices(Over::Shm, 2, 2, &SMALL_PARTS, device);
    assert_same(&sums_of(&cluster, |_| Place::HostDevice), &due, "a device in host memory");
    let cards = [Card::new(), Card::new()];
    let cluster = Cluster::with_devices(Over::Quic, 2, 2, &SMALL_PARTS, |_| Some(cuda()));
    assert_same(&sums_of(&cluster, |rank| Place::Card(&cards[rank])), &due, "a CUDA device");
}

#[test]
fn of_the_largest_elements_of_a_device_few_more_bytes_are_copied_than_sent() {
    let cards = [Card::new(), Card::new()];
    let cluster = Cluster::with_devices(Over::Quic, 2, 1, &[], |_| Some(cuda()));
    all(&cluster.workers, |engine| {
        let card = &cards[engine.rank().0 as usize];
        let value = |at: usize| (at * 7_919 % 10_007) as f32 - 5_000.0;
        let Tensor { spec, data } = Tensor::new("w", (0..LEN).map(value).collect());
        let tensor = Tensor { spec: spec.with_codec("topk".parse().unwrap()), data };
        let elements = reduced(engine, &Place::Card(card), tensor, Op::Mean);
        let sent = elements.iter().filter(|element| **element != 0.0).count();
        let metrics = engine.metrics();
        let [out, pushed] = [&metrics.d2h_bytes, &metrics.push_bytes].map(|bytes| bytes.load(Relaxed));
        let [back, pulled] = [&metrics.h2d_bytes, &metrics.pull_bytes].map(|bytes| bytes.load(Relaxed));
        assert_eq!(sent, LEN.div_ceil(100), "both workers have the same elements");
        assert!(pushed < out && out < pushed + pushed / 5 + 20, "{pushed} bytes are sent of {out}");
        assert_eq!(back, pulled, "of a sum the length is known");
    });
}

#[test]
fn small_tensors_of_a_device_have_the_sums_of_those_in_host_memory() {
    let due = small_sums_of(&Cluster::start(Over::Quic, 2, 1), |_| Place::Host);
    let cards = [Card::new(), Card::new()];
    let cluster = Cluster::with_devices(Over::Quic, 2, 1, &[], |_| Some(cuda()));
    assert_same(&small_sums_of(&cluster, |rank| Place::Card(&cards[rank])), &due, "a CUDA device");
}

/// Where tensors lie.
enum Place<'a> {
    Host,
    HostDevice,
    Card(&'a Card),
}

/// The sums of each worker: of every codec and operation.
fn sums_of<'a>(cluster: &Cluster, place: impl Fn(usize) -> Place<'a> + Sync) -> Vec<Vec<Sum>> {
    all(&cluster.workers, |engine| {
        let rank = engine.rank().0;
        let each = CODECS.into_iter().flat_map(|codec| OPS.into_iter().enumerate().map(move |form| (codec, form)));
        let sum = |(codec, (round, op)): (&'static str, (usize, Op))| {
            let tensor = tensor(&format!("w {codec}"), codec, LEN, rank, round as u64);
            let metrics = engine.metrics();
            let counted = || [&metrics.d2h_bytes, &metrics.push_bytes].map(|bytes| bytes.load(Relaxed));
            let before = counted();
            let place = place(rank as usize);
            let elements = reduced(engine, &place, tensor, op);
            let [copied, pushed] = [0, 1].map(|count| counted()[count] - before[count]);
            match place {
                Place::Host => assert_eq!(copied, 0),
                // Of a part that the codec refuses, the elements are copied too.
                _ if varies(codec) => assert!(copied >= pushed, "{codec}: {pushed} bytes of {copied}"),
                Place::HostDevice | Place::Card(_) => assert_eq!(copied, pushed, "{codec}: only bodies are copied"),
            }
            assert!(varies(codec) || pushed <= 2 * LEN as u64, "{codec}: {pushed} bytes of {LEN} elements");
            Sum { what: format!("{codec}, {op}"), elements }
        };
        each.map(sum).collect()
    })
}

/// Whether the length of bodies depends on their elements.
fn varies(codec: &str) -> bool {
    codec.parse::<CodecSpec>().unwrap().varies()
}

fn reduced(engine: &Engine, place: &Place<'_>, mut tensor: Tensor, op: Op) -> Vec<f32> {
    match place {
        Place::Host => tensor.reduce(engine, op).unwrap(),
        Place::HostDevice => {
            engine.push_pull(tensor.on_device(op), |_| {}).unwrap().wait(Some(PATIENCE)).unwrap();
        }
        Place::Card(card) => {
            let address = card.lent(&tensor.data);
            let [source, destination] = [(); 2].map(|()| card.memory(address, LEN));
            let submission = Submission { source, destination, ..tensor.submission(op) };
            engine.reduce(submission, Some(PATIENCE)).unwrap();
            return card.taken(address, LEN);
        }
    }
    tensor.data
}

/// The sums of each worker: of every codec, the tensors of a batch one behind the other.
fn small_sums_of<'a>(cluster: &Cluster, place: impl Fn(usize) -> Place<'a> + Sync) -> Vec<Vec<Sum>> {
    all(&cluster.workers, |engine| {
        let rank = engine.rank().0;
        let sum = |codec: &'static str| {
            let mut tensors: Vec<Tensor> =
                (0..).zip(SMALL).map(|(at, len)| tensor(&format!("{codec} {at}"), codec, len, rank, at)).collect();
            let batch = Batch::new(tensors.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
            let reduce = |members| {
                let submission = BatchSubmission { batch: &batch, members, op: Op::Sum, weight: 1.0, timeout: None };
                engine.reduce_all(submission, Some(PATIENCE)).unwrap();
            };
            let gathered =
                |tensors: &[Tensor]| tensors.iter().flat_map(|tensor| tensor.data.clone()).collect::<Vec<_>>();
            let elements = match place(rank as usize) {
                Place::Card(card) => {
                    let start = card.lent(&gathered(&tensors));
                    let mut address = start;
                    let member = |len: usize| {
                        let [source, destination] = [(); 2].map(|()| card.memory(address, len));
                        address += 4 * len as u64;
                        Member { source, destination, priority: Priority(0) }
                    };
                    reduce(SMALL.into_iter().map(member).collect());
                    card.taken(start, SMALL.iter().sum())
                }
                Place::Host | Place::HostDevice => {
                    let members = tensors.iter_mut().map(|tensor| {
                        let Submission { source, destination, priority, .. } = tensor.submission(Op::Sum);
                        Member { source, destination, priority }
                    });
                    reduce(members.collect());
                    gathered(&tensors)
                }
            };
            Sum { what: codec.to_owned(), elements }
        };
        CODECS.into_iter().map(sum).collect()
    })
}

/// What came of a tensor.
struct Sum {
    what: String,
    elements: Vec<f32>,
}

/// Equal in all bits. A NaN may have any payload, which devices do not keep.
fn assert_same(found: &[Vec<Sum>], due: &[Vec<Sum>], on: &str) {
    for (found, due) in found.iter().flatten().zip(due.iter().flatten()) {
        assert_eq!((found.what.as_str(), found.elements.len()), (due.what.as_str(), due.elements.len()));
        for (at, (found, due)) in found.elements.iter().zip(&due.elements).enumerate() {
            let is_same = found.to_bits() == due.to_bits() || found.is_nan() && due.is_nan();
            assert!(is_same, "{on}: element {at} is {found:e}, not {due:e}");
        }
    }
    assert_eq!(found.iter().flatten().count(), due.iter().flatten().count());
}

/// Numbers of many sizes; in one block and another some that are none, or infinite.
fn tensor(name: &str, codec: &str, len: usize, rank: u32, salt: u64) -> Tensor {
    let value = |at: usize| {
        let bits = mix(at as u64 | u64::from(rank) << 32 | salt << 40);
        match at {
            5_000 => f32::NAN,
            9_000 => f32::INFINITY,
            // Blocks of zeros, and of numbers that are nearly zero.
            10_000..11_000 => 0.0,
            11_000..12_000 => f32::from_bits(bits as u32 & 0x807f_ffff),
            _ => f32::from_bits(bits as u32 & 0x81ff_ffff | 0x3c00_0000),
        }
    };
    let Tensor { spec, data } = Tensor::new(name, (0..len).map(value).collect());
    Tensor { spec: spec.with_codec(codec.parse().unwrap()), data }
}

/// A device of the driver that stands for CUDA's, which no other test uses meanwhile.
struct Card {
    control: Control,
    device: Ordinal,
}

impl Card {
    fn new() -> Self {
        let (control, device) = fakes::used_device();
        Self { control, device: Ordinal(device) }
    }

    /// Memory of the device with these elements, until it is taken.
    fn lent(&self, elements: &[f32]) -> u64 {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        let address = self.control.allocate(self.ordinal(), bytes.len());
        self.control.produce(self.ordinal(), 0, address, &bytes);
        assert!(self.control.consume(self.ordinal(), 0, address, bytes.len()) == bytes, "they are there");
        address
    }

    fn memory(&self, address: u64, len: usize) -> Memory {
        Memory::Device { region: DeviceRegion::new(self.device, address, 4 * len), after: Mark::Reached }
    }

    /// The elements that lie there. Gives the memory back.
    fn taken(&self, address: u64, len: usize) -> Vec<f32> {
        let bytes = self.control.consume(self.ordinal(), 0, address, 4 * len);
        self.control.free(address);
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn ordinal(&self) -> i32 {
        i32::from(self.device.0)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        fakes::leave(self.device.0);
    }
}

fn cuda() -> Arc<dyn Device> {
    let config = Config { cuda_lib: Some(fakes::fakecuda()), ..Config::default() };
    Arc::new(CudaDevice::load(&config).unwrap())
}
