//! A whole job in one process: coordinator, servers and workers on loopback, joined by QUIC as in production.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::cluster::MemberConfig;
use gradlane_core::config::Config;
use gradlane_core::engine::{Engine, EngineOptions, Handle, Submission, process};
use gradlane_core::mem::Region;
use gradlane_core::transport::quic::{Credentials, QuicTransport, Settings};
use gradlane_core::types::{DType, JoinString, Op, Priority, Role, TensorSpec};
use gradlane_server::{Embedded, EmbeddedOptions};

/// How long a test waits for what must happen; far above what it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A job under test. Dropping it ends it.
pub struct Cluster {
    /// The workers, by rank. Before the servers, so that they end first.
    pub workers: Vec<Engine>,
    /// Coordinator and servers.
    pub embedded: Embedded,
}

impl Cluster {
    /// Starts a job with default settings.
    pub fn start(workers: u32, servers: u32) -> Self {
        Self::with(workers, servers, &[])
    }

    /// Starts a job with these settings, by knob name.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with(workers: u32, servers: u32, settings: &[(&str, &str)]) -> Self {
        let config = config(settings);
        let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers, servers }).expect("starts");
        let join = embedded.join_string().clone();
        let starting: Vec<_> = (0..workers)
            .map(|rank| {
                let (config, join) = (config.clone(), join.clone());
                std::thread::spawn(move || worker(&config, &join, Some(rank), workers))
            })
            .collect();
        let workers = starting.into_iter().map(|worker| worker.join().expect("no panic").expect("joins")).collect();
        Self { workers, embedded }
    }
}

/// Settings for a test: loopback, and times short enough to wait for.
pub fn config(settings: &[(&str, &str)]) -> Config {
    let mut arguments: BTreeMap<String, String> = [
        ("bind", "127.0.0.1:0"),
        ("form_timeout", "20s"),
        ("join_timeout", "20s"),
        ("step_timeout", "20s"),
        ("stall_warn", "5s"),
    ]
    .into_iter()
    .chain(settings.iter().copied())
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    arguments.retain(|_, value| !value.is_empty());
    Config::load(&arguments, [], None).expect("valid settings").0
}

/// Joins a job as a worker.
///
/// # Errors
/// Why it could not.
pub fn worker(config: &Config, join: &JoinString, rank: Option<u32>, workers: u32) -> Result<Engine> {
    let credentials = Arc::new(Credentials::enroll(join, Role::Worker, config.join_timeout)?);
    let transport = QuicTransport::new(&credentials, &Settings::from_config(config))?;
    let member = MemberConfig { requested: rank, workers, ..process::member(Role::Worker, config) };
    Engine::start(EngineOptions {
        config: config.clone(),
        member,
        coordinator: join.address.clone(),
        credentials,
        transport: Arc::new(transport),
    })
}

/// A tensor of a test, reduced in place. It must outlive its handles.
pub struct Tensor {
    /// Name, type and shape.
    pub spec: TensorSpec,
    /// The elements.
    pub data: Vec<f32>,
}

impl Tensor {
    /// A vector of f32.
    pub fn new(name: &str, data: Vec<f32>) -> Self {
        let spec = TensorSpec { name: name.to_owned(), dtype: DType::F32, shape: vec![data.len() as u64] };
        Self { spec, data }
    }

    /// Reduces it in place.
    ///
    /// # Errors
    /// As [`Engine::push_pull`].
    pub fn push_pull(&mut self, engine: &Engine, op: Op) -> Result<Handle> {
        self.submit(engine, op, 1.0, Priority::default())
    }

    /// Reduces it in place, with a weight and a priority.
    ///
    /// # Errors
    /// As [`Engine::push_pull`].
    pub fn submit(&mut self, engine: &Engine, op: Op, weight: f64, priority: Priority) -> Result<Handle> {
        let bytes = self.data.len() * size_of::<f32>();
        let address = self.data.as_mut_ptr().cast();
        let submission = Submission {
            tensor: self.spec.clone(),
            source: region(address, bytes),
            destination: region(address, bytes),
            op,
            weight,
            priority,
            timeout: None,
        };
        engine.push_pull(submission, |_| {})
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
