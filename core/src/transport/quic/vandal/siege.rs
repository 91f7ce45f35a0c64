//! Many connections that mean no good, from one address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::closing::{CLOSE_ORDERLY, STREAM_GIVEN_UP};
use super::super::settings::Settings;
use super::super::{endpoint, socket, tls};
use super::{internal, parse};
use crate::error::Result;
use crate::identity::{Credentials, SERVER_NAME};
use crate::local::OwnThread;

/// What an attacker shows at the door. The hash is that of the victims' authority, which the attacker believes to speak with.
#[derive(Clone, Debug)]
pub enum Pass {
    /// No certificate, as if it were a member.
    Nothing([u8; 32]),
    /// No certificate, as a process that wants to enrol.
    Newcomer([u8; 32]),
    /// This certificate.
    Certificate(Arc<Credentials>),
}

/// What it does on a connection that it gets. It ends none by itself, unless the manner says so.
#[derive(Clone, Debug)]
pub enum Manner {
    /// Nothing.
    Idle,
    /// Opens all streams that it may, and begins each with these bytes.
    Hoard(Vec<u8>),
    /// Sends one of these bytes each second.
    Trickle(Vec<u8>),
    /// Sends the first bytes, and then the others again and again, as fast as it may. Reads what comes, or nothing.
    Pour {
        /// Sent once.
        first: Vec<u8>,
        /// Sent again and again.
        again: Vec<u8>,
        /// Whether it reads.
        reads: bool,
    },
    /// Opens a stream, begins it with these bytes and gives it up, again and again, as fast as it may.
    Churn(Vec<u8>),
    /// Sends these bytes as all that it has to say, and waits for the answer.
    Say(Vec<u8>),
    /// Sends these bytes, drops the connection and comes again.
    Flit(Vec<u8>),
}

/// An attack under way. Dropping it ends it.
pub struct Siege {
    counts: Arc<Counts>,
    thread: OwnThread,
}

#[derive(Default)]
struct Counts {
    over: AtomicBool,
    attempts: AtomicU64,
    admitted: AtomicU64,
    streams: AtomicU64,
}

/// How to attack.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The victim, `ip:port`.
    pub address: String,
    /// The attacker.
    pub from: IpAddr,
    /// What it shows.
    pub pass: Pass,
    /// What it does then.
    pub manner: Manner,
    /// How many connections it has or tries to have at once.
    pub at_once: usize,
    /// How many attempts it makes in a second.
    pub rate: u32,
}

impl Siege {
    /// Begins to attack.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the attacker gets no socket or thread.
    pub fn start(plan: Plan) -> Result<Self> {
        let client = ClientConfig::new(plan.pass.tls()?);
        let remote = parse(&plan.address)?;
        let socket = socket::bind(SocketAddr::new(plan.from, 0), 1 << 20)?;
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        // Timers are no finer than this.
        let batch = (plan.rate / 100).max(1);
        let pace = Duration::from_secs(1) * batch / plan.rate;
        let serve = move |mut endpoint: Endpoint| async move {
            endpoint.set_default_client_config(client);
            let mut clients = JoinSet::new();
            while !shared.over.load(Ordering::Relaxed) {
                while clients.try_join_next().is_some() {}
                for _ in 0..batch.min(u32::try_from(plan.at_once - clients.len()).unwrap_or(batch)) {
                    clients.spawn(visit(endpoint.clone(), remote, plan.manner.clone(), Arc::clone(&shared)));
                }
                sleep(pace).await;
            }
            endpoint.close(CLOSE_ORDERLY, b"");
        };
        let thread = endpoint::start("gl-siege", socket, Settings::default().endpoint(), None, serve)?;
        Ok(Self { counts, thread })
    }

    /// How often it tried to connect.
    pub fn attempts(&self) -> u64 {
        self.counts.attempts.load(Ordering::Relaxed)
    }

    /// How often it was let in, so that it got a stream.
    pub fn admitted(&self) -> u64 {
        self.counts.admitted.load(Ordering::Relaxed)
    }

    /// How many streams it opened and gave up.
    pub fn streams(&self) -> u64 {
        self.counts.streams.load(Ordering::Relaxed)
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        self.counts.over.store(true, Ordering::Relaxed);
        self.thread.join(Duration::from_secs(2));
    }
}

impl Pass {
    fn tls(&self) -> Result<Arc<QuicClientConfig>> {
        match self {
            Self::Nothing(authority) => tls::without_certificate(*authority, tls::ALPN),
            Self::Newcomer(authority) => tls::newcomer(*authority),
            Self::Certificate(credentials) => tls::client(credentials),
        }
    }
}

async fn visit(endpoint: Endpoint, remote: SocketAddr, manner: Manner, counts: Arc<Counts>) {
    counts.attempts.fetch_add(1, Ordering::Relaxed);
    let Ok(connecting) = endpoint.connect(remote, SERVER_NAME) else { return };
    let Ok(connection) = connecting.await else { return };
    let Ok((mut sender, mut receiver)) = connection.open_bi().await else { return };
    counts.admitted.fetch_add(1, Ordering::Relaxed);
    let mut streams = Vec::new();
    match manner {
        Manner::Idle => {}
        Manner::Hoard(bytes) => {
            let _ = sender.write_all(&bytes).await;
            while let Ok(Ok(mut stream)) = timeout(Duration::from_secs(1), connection.open_bi()).await {
                let _ = stream.0.write_all(&bytes).await;
                streams.push(stream);
            }
        }
        Manner::Trickle(bytes) => {
            for byte in bytes {
                if sender.write_all(&[byte]).await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        }
        Manner::Pour { first, again, reads } => {
            let pour = async {
                let _ = sender.write_all(&first).await;
                while sender.write_all(&again).await.is_ok() {}
            };
            let read = async { while reads && matches!(receiver.read_chunk(1 << 16, true).await, Ok(Some(_))) {} };
            tokio::join!(pour, read);
        }
        Manner::Churn(bytes) => {
            while let Ok((mut sender, mut receiver)) = connection.open_bi().await {
                if sender.write_all(&bytes).await.is_err() {
                    break;
                }
                let _ = sender.reset(STREAM_GIVEN_UP);
                let _ = receiver.stop(STREAM_GIVEN_UP);
                counts.streams.fetch_add(1, Ordering::Relaxed);
            }
        }
        Manner::Say(bytes) => {
            let _ = sender.write_all(&bytes).await;
            let _ = sender.finish();
            let _ = receiver.read_to_end(1 << 16).await;
            connection.close(CLOSE_ORDERLY, b"");
        }
        Manner::Flit(bytes) => {
            let _ = sender.write_all(&bytes).await;
            connection.close(CLOSE_ORDERLY, b"");
        }
    }
    connection.closed().await;
}

/// The first packets of so many handshakes whose clients will never answer.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if there is no socket or thread.
pub fn initials(count: usize) -> Result<Vec<Vec<u8>>> {
    let io = |error: std::io::Error| internal(&error);
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
    sink.set_read_timeout(Some(LOOK_FOR_THE_END)).map_err(io)?;
    let siege = Siege::start(Plan {
        address: sink.local_addr().map_err(io)?.to_string(),
        from: Ipv4Addr::LOCALHOST.into(),
        pass: Pass::Nothing([0; 32]),
        manner: Manner::Idle,
        at_once: count,
        rate: 100_000,
    })?;
    let (mut found, mut buffer) = (BTreeMap::new(), vec![0; 1 << 16]);
    while found.len() < count {
        let Ok(length) = sink.recv(&mut buffer) else { continue };
        // RFC 9000, section 17.2: flags, version, then the length of the destination's name and the name. An Initial that is sent again
        // has the same.
        let datagram = &buffer[..length];
        found.insert(Vec::from(&datagram[6..6 + usize::from(datagram[5])]), Vec::from(datagram));
    }
    drop(siege);
    Ok(found.into_values().collect())
}

const LOOK_FOR_THE_END: Duration = Duration::from_millis(20);
