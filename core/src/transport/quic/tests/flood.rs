//! One address stalls as many handshakes and enrolments as it can, or guesses secrets. Members and newcomers are served all the same.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quinn::{ClientConfig, Endpoint};
use tokio::task::JoinSet;

use super::*;

#[test]
fn stalled_handshakes_of_one_address_keep_nobody_out() {
    let coordinator = Coordinator::new("resnet");
    let hole = Hole::before(coordinator.listener.address());
    let flood = Flood::start(&coordinator, &hole.address);
    hole.full.soon();
    everybody_else_is_served(&coordinator);
    flood.end();
    hole.end();
}

#[test]
fn stalled_enrolments_of_one_address_keep_nobody_out() {
    let coordinator = Coordinator::new("resnet");
    let flood = Flood::start(&coordinator, coordinator.listener.address());
    (0..STALLED).for_each(|_| flood.silent.soon());
    everybody_else_is_served(&coordinator);
    flood.end();
}

#[test]
fn wrong_secrets_of_an_address_keep_nobody_of_it_out() {
    let coordinator = Coordinator::new("resnet");
    let wrong = crate::types::join::JoinString { secret: [9; 16], ..coordinator.join() };
    let is_refused = || {
        let error = Credentials::enroll(&wrong, Role::Worker, SOON).unwrap_err();
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("is not that of job")), "{error}");
    };
    let enrols = || drop(Credentials::enroll(&coordinator.join(), Role::Worker, SOON).unwrap());
    (0..30).for_each(|_| is_refused());
    enrols();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // It may be given up before it was heard, because there are so many.
                    let _ = Credentials::enroll(&wrong, Role::Worker, SOON);
                }
            });
        }
        (0..5).for_each(|_| enrols());
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_newcomer_that_says_nothing_is_given_up() {
    let settings = Settings { handshake_timeout: Duration::from_millis(500), ..Settings::default() };
    let coordinator = Coordinator::with("resnet", &settings);
    let tls = tls::newcomer(coordinator.join().ca_hash).unwrap();
    let told = raw(tls, coordinator.listener.address(), |dialed| async move {
        closing::connection_error(&dialed.connection.closed().await, "the coordinator")
    });
    let error = told.soon().unwrap();
    assert!(
        matches!(&error, Error::Protocol { problem, .. } if problem.contains("was not completed before its deadline")),
        "{error}"
    );
}

fn everybody_else_is_served(coordinator: &Coordinator) {
    let credentials = Credentials::enroll(&coordinator.join(), Role::Worker, SOON).unwrap();
    let (_link, events) = dial(coordinator, &credentials);
    assert!(matches!(events.soon(), ControlEvent::Connected));
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Up { node, .. } if node == credentials.node()));
}

/// More than there are places.
const STALLED: usize = 70;

/// Clients that want to enrol, and after the handshake say nothing. Who is turned away comes again.
struct Flood {
    /// Hears of each that has finished the handshake.
    silent: Due<()>,
    over: Arc<AtomicBool>,
    thread: crate::local::OwnThread,
}

impl Flood {
    fn start(coordinator: &Coordinator, address: &str) -> Self {
        let ((told, silent), over) = (channel(), Arc::new(AtomicBool::new(false)));
        let tls = tls::newcomer(coordinator.join().ca_hash).unwrap();
        let remote: SocketAddr = address.parse().unwrap();
        let ended = Arc::clone(&over);
        let serve = move |endpoint: Endpoint| async move {
            let mut clients = JoinSet::new();
            while !ended.load(Ordering::Relaxed) {
                while clients.len() < 2 * STALLED {
                    let connecting = endpoint.connect(remote, crate::identity::SERVER_NAME).unwrap();
                    let told = told.clone();
                    clients.spawn(async move {
                        if let Ok(connection) = connecting.await {
                            let _ = told.send(());
                            connection.closed().await;
                        }
                    });
                }
                // The pace of the attack, and how often it looks for its end.
                let _ = tokio::time::timeout(Duration::from_millis(20), clients.join_next()).await;
            }
            endpoint.close(0u32.into(), b"");
        };
        let socket = UdpSocket::bind(ATTACKER).unwrap();
        let client = ClientConfig::new(tls);
        let serve = move |mut endpoint: Endpoint| {
            endpoint.set_default_client_config(client);
            serve(endpoint)
        };
        let thread = endpoint::start("flood", socket, Settings::default().endpoint(), None, serve).unwrap();
        Self { silent: Due(silent), over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join(SOON);
    }
}

/// Passes datagrams on to a coordinator, and of its answers only those that are too short for a handshake, such as the request to prove
/// an address.
struct Hole {
    address: String,
    /// Hears when so many handshakes got stuck.
    full: Due<()>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Hole {
    fn before(coordinator: &str) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind(ATTACKER).unwrap());
        back.connect(coordinator).unwrap();
        let address = front.local_addr().unwrap().to_string();
        front.set_nonblocking(true).unwrap();
        back.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let ((told, full), over) = (channel(), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut client) = (vec![0; 1 << 16], None);
            // By the names that the clients gave their connections.
            let mut stalled = BTreeSet::new();
            while !ended.load(Ordering::Relaxed) {
                while let Ok((length, from)) = front.recv_from(&mut buffer) {
                    client = Some(from);
                    let _ = back.send(&buffer[..length]);
                }
                while let Ok(length) = back.recv(&mut buffer) {
                    let datagram = &buffer[..length];
                    match client {
                        Some(client) if length < 1_000 => drop(front.send_to(datagram, client)),
                        Some(_) | None => {
                            // RFC 9000, section 17.2: flags, version, then the length of the destination's name and the name.
                            let name = &datagram[6..6 + usize::from(datagram[5])];
                            if stalled.insert(name.to_vec()) && stalled.len() == STALLED {
                                told.send(()).unwrap();
                            }
                        }
                    }
                }
            }
        });
        Self { address, full: Due(full), over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Another address than that of everybody else.
const ATTACKER: &str = "127.0.0.2:0";
