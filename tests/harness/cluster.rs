//! A whole job in one process: coordinator, servers and workers on loopback, joined as in production.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::cluster::MemberConfig;
use gradlane_core::config::Config;
use gradlane_core::device::Device;
use gradlane_core::engine::{Engine, EngineOptions, Handle, ParameterUse, Submission};
use gradlane_core::identity::Credentials;
use gradlane_core::mem::{Copies, Region};
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::runtime::process;
use gradlane_core::transport::Transport;
use gradlane_core::transport::router::Router;
use gradlane_core::types::{Access, JoinString, Op, Priority, Role, TensorSpec};
use gradlane_server::launch::entering::Found;
use gradlane_server::{Embedded, EmbeddedOptions};

use crate::element::Element;
use crate::over::Over;

/// How long a test waits for what must happen; far above what it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Settings under which a tensor of a few hundred kilobytes has many parts.
pub const SMALL_PARTS: [(&str, &str); 2] = [("partition_bytes", "64 KiB"), ("fuse_bytes", "16 KiB")];

/// A job under test. Dropping it ends it.
pub struct Cluster {
    /// The workers, by rank. Before the servers, so that they end first.
    pub workers: Vec<Engine>,
    /// Coordinator and servers.
    pub embedded: Embedded,
}

impl Cluster {
    /// Starts a job with default settings.
    pub fn start(over: Over, workers: u32, servers: u32) -> Self {
        Self::with(over, workers, servers, &[])
    }

    /// Starts a job with these settings, by knob name.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with(over: Over, workers: u32, servers: u32, settings: &[(&str, &str)]) -> Self {
        Self::with_devices(over, workers, servers, settings, |_| None)
    }

    /// Starts a job whose worker of each rank takes itself to be on the machine of this name, and reduces with the others there. `over` is
    /// how the sums of the machines travel. [`Over::Shm`] puts the servers on the first machine, and the other machines reach them over
    /// QUIC.
    ///
    /// # Panics
    /// If it does not start.
    pub fn on(over: Over, machines: &[&str], servers: u32, settings: &[(&str, &str)]) -> Self {
        Self::on_with_devices(over, machines, servers, settings, |_| None)
    }

    /// Starts a job whose worker of each rank reaches the device that `device` gives it.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with_devices(
        over: Over,
        workers: u32,
        servers: u32,
        settings: &[(&str, &str)],
        device: impl Fn(u32) -> Option<Arc<dyn Device>> + Sync,
    ) -> Self {
        Self::joined(workers, servers, &config(over, settings), |config, join, rank| {
            worker_with(config, join, Some(rank), workers, device(rank))
        })
    }

    /// As [`on`](Self::on) and [`with_devices`](Self::with_devices).
    ///
    /// # Panics
    /// If it does not start.
    pub fn on_with_devices(
        over: Over,
        machines: &[&str],
        servers: u32,
        settings: &[(&str, &str)],
        device: impl Fn(u32) -> Option<Arc<dyn Device>> + Sync,
    ) -> Self {
        let workers = u32::try_from(machines.len()).expect("a few");
        let beside_servers = [("transport", "auto"), ("machine", machines[0])];
        let placed = if over == Over::Shm { &beside_servers[..] } else { &[] };
        let config = config(over, &[&[("local_reduce", "auto")], placed, settings].concat());
        Self::joined(workers, servers, &config, |config, join, rank| {
            let machine = machines[rank as usize];
            let before = machines[..rank as usize].iter().filter(|other| **other == machine).count();
            let local_rank = Some(u32::try_from(before).expect("a few"));
            worker_with(
                &Config { machine: Some(machine.to_owned()), local_rank, ..config.clone() },
                join,
                Some(rank),
                workers,
                device(rank),
            )
        })
    }

    /// Starts a job whose worker of each rank carries its exchanges over what `wrap` makes of its transport.
    ///
    /// # Panics
    /// If it does not start.
    pub fn tapped(
        over: Over,
        workers: u32,
        servers: u32,
        settings: &[(&str, &str)],
        wrap: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport> + Sync,
    ) -> Self {
        Self::tapped_with_devices(over, workers, servers, settings, |_| None, wrap)
    }

    /// As [`tapped`](Self::tapped) and [`with_devices`](Self::with_devices).
    ///
    /// # Panics
    /// If it does not start.
    pub fn tapped_with_devices(
        over: Over,
        workers: u32,
        servers: u32,
        settings: &[(&str, &str)],
        device: impl Fn(u32) -> Option<Arc<dyn Device>> + Sync,
        wrap: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport> + Sync,
    ) -> Self {
        Self::joined(workers, servers, &config(over, settings), |config, join, rank| {
            enter(config, join, (Some(rank), workers), device(rank), |credentials, copies| {
                Ok(wrap(Arc::new(Router::new(config, credentials, copies)?)))
            })
        })
    }

    fn joined(
        workers: u32,
        servers: u32,
        config: &Config,
        worker: impl Fn(&Config, &JoinString, u32) -> Result<Engine> + Sync,
    ) -> Self {
        let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers, servers }).expect("starts");
        let start = |rank| worker(config, embedded.join_string(), rank).expect("joins");
        let workers = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..workers)
                .map(|rank| {
                    let start = &start;
                    scope.spawn(move || start(rank))
                })
                .collect();
            starting.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        Self { workers, embedded }
    }
}

/// Settings for a test: loopback, one transport, and times short enough to wait for.
pub fn config(over: Over, settings: &[(&str, &str)]) -> Config {
    let mut arguments: BTreeMap<String, String> = [
        ("bind", "127.0.0.1:0"),
        ("form_timeout", "20s"),
        ("join_timeout", "20s"),
        ("step_timeout", "20s"),
        ("stall_warn", "5s"),
    ]
    .into_iter()
    .chain(over.with(settings))
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    arguments.retain(|_, value| !value.is_empty());
    Config::load(&arguments, [], None).expect("valid settings").0
}

/// Joins a job as a worker, over the transports that the settings allow.
///
/// # Errors
/// Why it could not.
pub fn worker(config: &Config, join: &JoinString, rank: Option<u32>, workers: u32) -> Result<Engine> {
    worker_with(config, join, rank, workers, None)
}

/// The same with a device.
///
/// # Errors
/// Why it could not.
pub fn worker_with(
    config: &Config,
    join: &JoinString,
    rank: Option<u32>,
    workers: u32,
    device: Option<Arc<dyn Device>>,
) -> Result<Engine> {
    let router =
        |credentials: &Credentials, copies: &Copies| Ok(Arc::new(Router::new(config, credentials, copies)?) as _);
    enter(config, join, (rank, workers), device, router)
}

/// Joins a job as a worker over the transport that `transport` makes.
///
/// # Errors
/// Why it could not.
pub fn worker_over(
    config: &Config,
    join: &JoinString,
    rank: Option<u32>,
    workers: u32,
    transport: impl FnOnce(&Credentials, &Copies) -> Result<Arc<dyn Transport>>,
) -> Result<Engine> {
    enter(config, join, (rank, workers), None, transport)
}

fn enter(
    config: &Config,
    join: &JoinString,
    (rank, workers): (Option<u32>, u32),
    device: Option<Arc<dyn Device>>,
    transport: impl FnOnce(&Credentials, &Copies) -> Result<Arc<dyn Transport>>,
) -> Result<Engine> {
    let (_, credentials) = Found::from(join.clone()).enrol(config, Role::Worker, config.join_timeout)?;
    let credentials = Arc::new(credentials);
    let copies = Copies::default();
    let transport = transport(&credentials, &copies)?;
    let member = MemberConfig { requested: rank, workers, ..process::member(Role::Worker, config) };
    let coordinator = join.address.clone();
    let exporter = Exporter::by_settings(config)?;
    let config = config.clone();
    let options = EngineOptions { config, member, coordinator, credentials, transport, copies, device };
    Engine::start_shown(options, exporter.as_ref())
}

/// A tensor of a test, reduced in place. It must outlive its handles.
pub struct Tensor<T = f32> {
    /// Name, type and shape.
    pub spec: TensorSpec,
    /// The elements.
    pub data: Vec<T>,
}

impl<T: Element> Tensor<T> {
    /// A vector.
    pub fn new(name: &str, data: Vec<T>) -> Self {
        let shape = vec![data.len() as u64];
        Self::shaped(name, shape, data)
    }

    /// A tensor of any shape; nobody checks that it fits the elements.
    pub fn shaped(name: &str, shape: Vec<u64>, data: Vec<T>) -> Self {
        Self { spec: TensorSpec::new(name, T::DTYPE, shape), data }
    }

    /// A parameter: what servers keep under this name is changed by the elements, or read into them.
    pub fn parameter(name: &str, data: Vec<T>) -> Self {
        let shape = vec![data.len() as u64];
        Self { spec: TensorSpec::parameter(name, T::DTYPE, shape), data }
    }

    /// Begins to use it as a parameter.
    ///
    /// # Errors
    /// As [`Engine::access`].
    pub fn access(&mut self, engine: &Engine, access: Access) -> Result<Handle> {
        let memory = region(self.data.as_mut_ptr().cast(), size_of_val(self.data.as_slice())).into();
        let (tensor, priority) = (self.spec.clone(), Priority::default());
        let asked = ParameterUse { tensor, access, clock_at: 0, memory, into: None, priority, timeout: None };
        engine.access(asked, |_| {})
    }

    /// Uses it as a parameter, and waits for the version.
    ///
    /// # Errors
    /// As [`Engine::access`] and as its handle.
    ///
    /// # Panics
    /// If it ends well without a version.
    pub fn ask(&mut self, engine: &Engine, access: Access) -> Result<u64> {
        let handle = self.access(engine, access)?;
        handle.wait(Some(PATIENCE))?;
        Ok(handle.effect().expect("a use that ended well tells it").version.0)
    }

    /// Reduces it in place.
    ///
    /// # Errors
    /// As [`Engine::push_pull`].
    pub fn push_pull(&mut self, engine: &Engine, op: Op) -> Result<Handle> {
        engine.push_pull(self.submission(op), |_| {})
    }

    /// Reduces it in place and waits for the result.
    ///
    /// # Errors
    /// As [`Engine::push_pull`] and as its handle.
    pub fn reduce(&mut self, engine: &Engine, op: Op) -> Result<()> {
        self.push_pull(engine, op)?.wait(Some(PATIENCE))
    }

    /// Reduces it in place, with a weight and a priority.
    ///
    /// # Errors
    /// As [`Engine::push_pull`].
    pub fn submit(&mut self, engine: &Engine, op: Op, weight: f64, priority: Priority) -> Result<Handle> {
        engine.push_pull(Submission { weight, priority, ..self.submission(op) }, |_| {})
    }

    /// What reduces it into `result`, which has as many elements and must outlive the handle as well.
    pub fn submission_into(&mut self, op: Op, result: &mut [T]) -> Submission {
        assert_eq!(result.len(), self.data.len(), "as many elements");
        let destination = region(result.as_mut_ptr().cast(), size_of_val(result)).into();
        Submission { destination, ..self.submission(op) }
    }

    /// What reduces it in place, for tests that want something special of it.
    pub fn submission(&mut self, op: Op) -> Submission {
        let bytes = self.data.len() * size_of::<T>();
        let address = self.data.as_mut_ptr().cast();
        Submission {
            tensor: self.spec.clone(),
            source: region(address, bytes).into(),
            destination: region(address, bytes).into(),
            op,
            weight: 1.0,
            priority: Priority::default(),
            timeout: None,
        }
    }
}

#[expect(unsafe_code, reason = "a test's vector becomes a region")]
fn region(address: *mut u8, bytes: usize) -> Region {
    // SAFETY: the vector belongs to a `Tensor` whose owner waits for the handle before it touches or drops it.
    unsafe { Region::new(address, bytes) }
}

/// Runs `each` for all workers at once, one thread each, and collects what they return by rank.
///
/// # Panics
/// If one of them panics.
pub fn all<T: Send>(workers: &[Engine], each: impl Fn(&Engine) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter().map(|engine| scope.spawn(|| each(engine))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
