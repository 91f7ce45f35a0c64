//! Workers with a device each, for tests of whole engines. Driver and NCCL are the fakes.

use std::sync::Arc;

use fakecuda::Control;
use gradlane_core::config::Config;
use gradlane_core::device::{CudaDevice, Device};
use gradlane_core::engine::{Engine, Memory, Submission};
use gradlane_core::mem::{DeviceRegion, Ordinal};
use gradlane_core::types::{DType, Op, Priority, TensorSpec};
use gradlane_tests::cluster::{Cluster, config};
use gradlane_tests::fakes;
use gradlane_tests::over::Over;

/// Elements of a tensor: more than a part, and no round number.
pub(crate) const LEN: usize = 100_003;

/// What one rank has of a device. It keeps the device's context, as a framework does: an engine of the test before may still let go of it.
pub(crate) struct Seat {
    pub(crate) control: Control,
    device: Ordinal,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.control.release(i32::from(self.device.0));
            fakes::leave(self.device.0);
        }
    }
}

impl Seat {
    pub(crate) fn place(&self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let address = self.control.allocate(i32::from(self.device.0), bytes.len());
        self.control.produce(i32::from(self.device.0), 0, address, &bytes);
        address
    }

    pub(crate) fn values(&self, address: u64) -> Vec<f32> {
        let bytes = self.control.consume(i32::from(self.device.0), 0, address, 4 * LEN);
        bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Its number.
    pub(crate) fn ordinal(&self) -> i32 {
        i32::from(self.device.0)
    }

    /// What becomes of what lies there, after all that was put into the default stream.
    pub(crate) fn submission(
        &self,
        engine: &Engine,
        name: &str,
        op: Op,
        places: (u64, u64),
        priority: Priority,
    ) -> Submission {
        Submission { priority, ..self.submission_after(0, engine, name, op, places) }
    }

    /// The same, after all that was put into this stream.
    pub(crate) fn submission_after(
        &self,
        stream: u64,
        engine: &Engine,
        name: &str,
        op: Op,
        (source, destination): (u64, u64),
    ) -> Submission {
        Submission {
            tensor: TensorSpec::new(name, DType::F32, vec![LEN as u64]),
            source: self.memory(engine, source, LEN, stream),
            destination: self.memory(engine, destination, LEN, stream),
            op,
            weight: 1.0,
            priority: Priority(0),
            timeout: None,
        }
    }

    /// So many floats there, after all that was put into this stream.
    pub(crate) fn memory(&self, engine: &Engine, address: u64, len: usize, stream: u64) -> Memory {
        let after = engine.device().expect("it was given one").mark(self.device, stream).unwrap();
        Memory::Device { region: DeviceRegion::new(self.device, address, 4 * len), after }
    }
}

/// Workers on the machines of these names, with a device each, and a server.
pub(crate) fn start(over: Over, machines: &[&str], settings: &[(&str, &str)]) -> (Cluster, Vec<Seat>) {
    let seat = |_: &&str| {
        let (control, ordinal) = fakes::used_device();
        control.retain(i32::from(ordinal));
        Seat { control, device: Ordinal(ordinal) }
    };
    let seats: Vec<Seat> = machines.iter().map(seat).collect();
    let [cuda, nccl] = [fakes::fakecuda(), fakes::fakenccl()].map(|path| path.to_str().unwrap().to_owned());
    let settings = [&[("cuda_lib", cuda.as_str()), ("nccl_lib", nccl.as_str())], settings].concat();
    let config: Config = config(over, &settings);
    let device = |_| Some(Arc::new(CudaDevice::load(&config).unwrap()) as Arc<dyn Device>);
    (Cluster::on_with_devices(over, machines, 1, &settings, device), seats)
}

/// What a counter has come to, over all workers.
pub(crate) fn total(cluster: &Cluster, name: &str) -> u64 {
    let value = |engine: &Engine| engine.metrics().instance(0).number(name).unwrap();
    cluster.workers.iter().map(value).sum()
}
