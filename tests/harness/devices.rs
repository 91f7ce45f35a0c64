//! Ranks of a machine whose tensors lie on devices: the collective, the queue and the driver's code are the real ones, the libraries below
//! them the fakes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fakecuda::Control;
use gradlane_core::collective::order::Claim;
use gradlane_core::collective::{
    Collective, DeviceMemory, Goal, Hears, HostCollective, HostOptions, LocalRank, Memory, Operation, Traffic,
    device_collective,
};
use gradlane_core::config::{Config, NanCheck};
use gradlane_core::cuda::{Mark, OnIssue};
use gradlane_core::device::{CudaDevice, Device};
use gradlane_core::local::PrivateSocket;
use gradlane_core::mem::{Copies, DeviceRegion, Doubt, Ordinal};
use gradlane_core::runtime::Clock;
use gradlane_core::types::{
    DType, DeviceKind, Done, Epoch, Finding, Incarnation, Op, PartId, Priority, Ready, Round, TensorKey, Unmet,
    WorkerId,
};
use gradlane_core::{Error, Result};

use crate::cluster::PATIENCE;
use crate::fakes;

/// One rank, with a device of its own.
pub struct DeviceRank {
    /// What it reduces with.
    pub collective: HostCollective,
    /// What the framework of a user would do on its device.
    pub control: Control,
    /// Its device.
    pub device: Ordinal,
    /// Whether NCCL may still write memory of operations that have ended: a framework keeps it as long.
    pub doubt: Doubt,
    cuda: CudaDevice,
}

/// What a test wants done with memory of a device.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Names its tensor among all ranks.
    pub key: u64,
    /// Which part of the tensor it is.
    pub index: u32,
    /// What shall come of it.
    pub goal: Goal,
    /// How contributions are added.
    pub op: Op,
    /// Of which type they are.
    pub dtype: DType,
    /// This rank's weight.
    pub weight: f64,
}

impl Wanted {
    /// A sum of so many of these for everybody.
    pub const fn sum(key: u64, dtype: DType) -> Self {
        Self { key, index: 0, goal: Goal::AllReduce, op: Op::Sum, dtype, weight: 1.0 }
    }
}

/// Settings under which both libraries are the fakes.
pub fn config() -> Config {
    Config { cuda_lib: Some(fakes::fakecuda()), nccl_lib: Some(fakes::fakenccl()), ..Config::default() }
}

impl DeviceRank {
    /// Meets the other ranks; the first one brings the listening socket. An operation may take `step_timeout`.
    ///
    /// # Errors
    /// If they do not meet.
    pub fn join(
        (me, ranks): (usize, usize),
        (listener, path): (Option<PrivateSocket>, &Path),
        (control, device): (Control, u16),
        config: &Config,
        step_timeout: Duration,
    ) -> Result<Self> {
        let place = path.to_str().expect("a path of ours");
        let local = |rank: usize| LocalRank {
            rank: WorkerId(u32::try_from(rank).expect("few")),
            incarnation: Incarnation(100 + rank as u128),
            name: format!("worker {rank}"),
            place: "here".to_owned(),
            socket_path: place.to_owned(),
        };
        let (clock, doubt) = (Clock::start(), Doubt::default());
        let options = HostOptions {
            job: "devices".to_owned(),
            epoch: Epoch::default(),
            ranks: (0..ranks).map(local).collect(),
            me,
            group: (0..ranks).collect(),
            listener: listener.map(Arc::new),
            is_again: false,
            goes_on: false,
            join_timeout: PATIENCE,
            step_timeout,
            stall_warn: Duration::ZERO,
            hears: Hears::default(),
            on_lost: Box::new(|_| ()),
            oldest_every: 16,
            nan_check: NanCheck::Off,
            copies: Copies::default(),
            traffic: Traffic::default(),
            devices: device_collective(config),
            doubt: doubt.clone(),
            clock: Arc::new(move || clock.now()),
        };
        let collective = HostCollective::join(options, &|| None)?;
        Ok(Self { collective, control, device: Ordinal(device), doubt, cuda: CudaDevice::load(config)? })
    }

    /// Pins memory of the host, as copies of this device do, until the end.
    ///
    /// # Panics
    /// If there is none.
    pub fn pin(&self) {
        drop(self.cuda.lease(self.device, 4096, false).expect("little enough"));
    }

    /// Ends what it has in the order of an engine.
    pub fn leave(&self) {
        self.collective.shutdown();
        self.cuda.shutdown(&self.doubt);
    }

    /// Memory of the device with these bytes; its address.
    pub fn place(&self, data: &[u8]) -> u64 {
        let address = self.control.allocate(i32::from(self.device.0), data.len().max(1));
        self.control.produce(i32::from(self.device.0), 0, address, data);
        address
    }

    /// What lies there now.
    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        self.control.consume(i32::from(self.device.0), 0, address, len)
    }

    /// Where a stream of the device stands now.
    ///
    /// # Panics
    /// If the device failed.
    pub fn mark(&self, stream: u64) -> Mark {
        self.cuda.mark(self.device, stream).expect("the device is well")
    }

    /// Begins something in place, after all that was put into the default stream.
    pub fn begin(&self, wanted: &Wanted, runs: &[(u64, usize)]) -> Receiver<Result<f64>> {
        self.begin_after(wanted, runs, runs, self.mark(0))
    }

    /// Begins something after `mark`.
    pub fn begin_after(
        &self,
        wanted: &Wanted,
        source: &[(u64, usize)],
        destination: &[(u64, usize)],
        mark: Mark,
    ) -> Receiver<Result<f64>> {
        let Wanted { key, index, goal, op, dtype, weight } = wanted.clone();
        let regions = |runs: &[(u64, usize)]| {
            runs.iter().map(|(address, len)| DeviceRegion::new(self.device, *address, *len)).collect()
        };
        let (after, issued) = (vec![mark], OnIssue::nobody());
        let memory = DeviceMemory { source: regions(source), destination: regions(destination), after, issued };
        let claim = Claim {
            op,
            dtype,
            bytes: source.iter().map(|(_, len)| *len as u64).sum(),
            device: DeviceKind::Cuda,
            device_index: 0,
            failed: false,
            weight,
            priority: Priority(0),
            members: Claim::ALL_RANKS,
            ready: Ready::UNKNOWN,
        };
        let (part, finding) = (PartId { key: TensorKey(key), index }, Finding::default());
        let memory = Memory::Device(memory);
        let operation = Operation { part, round: Round(0), goal, failure: None, claim, memory, finding };
        let (sender, outcome) = unbounded();
        // A test that has failed no longer waits.
        self.collective.run(
            operation,
            Done::new(move |result: std::result::Result<f64, Unmet>| {
                drop(sender.send(result.map_err(Unmet::into_error)))
            }),
        );
        outcome
    }

    /// Begins something that others will wait for in vain, gives it up, and waits until all are told.
    ///
    /// # Panics
    /// If it ends otherwise.
    pub fn give_up(&self, key: u64) {
        let outcome = self.begin(&Wanted::sum(key, DType::F32), &[(self.place(&[0; 4]), 4)]);
        let part = PartId { key: TensorKey(key), index: 0 };
        self.collective.abandon(Goal::AllReduce.slot(part, Round(0)));
        assert_eq!(ended(&outcome), Err(Error::Cancelled));
    }

    /// Does something in place, and waits for it.
    ///
    /// # Errors
    /// What it ends with.
    pub fn reduce(&self, wanted: &Wanted, runs: &[(u64, usize)]) -> Result<f64> {
        ended(&self.begin(wanted, runs))
    }
}

/// How something ends.
///
/// # Errors
/// What it ends with.
///
/// # Panics
/// If it does not end.
pub fn ended(outcome: &Receiver<Result<f64>>) -> Result<f64> {
    outcome.recv_timeout(PATIENCE).expect("every operation ends")
}

/// A number as an element, in bytes.
pub fn element(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::I8 => (value as i8).to_le_bytes().to_vec(),
        DType::U8 => (value as u8).to_le_bytes().to_vec(),
    }
}

/// The class of an outcome, and the member that was lost, for a process to print.
pub fn told(outcome: &Result<f64>) -> String {
    match outcome {
        Ok(weight) => format!("ok {weight}"),
        Err(Error::PeerLost { member, cause, .. }) => format!("lost {member}: {cause}"),
        Err(Error::Device { device, what, cause, .. }) => format!("device {device}: {what}: {cause}"),
        Err(other) => format!("{:?} {other}", other.code()),
    }
}
