//! A UDP relay that remembers what passes: the view of somebody on the wire.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Forwards datagrams between its clients and one address. Dropping it ends it.
pub struct Relay {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

struct Shared {
    ended: AtomicBool,
    seen: Mutex<Vec<Vec<u8>>>,
}

impl Relay {
    /// Receives at `address` what is meant for `target`.
    ///
    /// # Panics
    /// If the address cannot be bound.
    pub fn start(address: SocketAddr, target: SocketAddr) -> Self {
        let shared = Arc::new(Shared { ended: AtomicBool::new(false), seen: Mutex::new(Vec::new()) });
        let threads = Arc::new(Mutex::new(Vec::new()));
        let listener = open(address);
        let (of_listener, returning) = (Arc::clone(&shared), Arc::clone(&threads));
        let thread = std::thread::spawn(move || {
            let mut upstream: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
            of_listener.pump(&listener, |datagram, client| {
                let socket = upstream.entry(client).or_insert_with(|| {
                    let socket = open(SocketAddr::new(target.ip(), 0));
                    let (there, back) =
                        (socket.try_clone().expect("a descriptor"), listener.try_clone().expect("a descriptor"));
                    let shared = Arc::clone(&of_listener);
                    let thread = std::thread::spawn(move || {
                        shared.pump(&there, |datagram, _| drop(back.send_to(datagram, client)));
                    });
                    returning.lock().expect(LOCK).push(thread);
                    socket
                });
                let _ = socket.send_to(datagram, target);
            });
        });
        threads.lock().expect(LOCK).push(thread);
        Self { shared, threads }
    }

    /// Everything that passed in both directions, datagram by datagram.
    pub fn recording(&self) -> Vec<Vec<u8>> {
        self.shared.seen.lock().expect(LOCK).clone()
    }

    /// Whether `pattern` was in a datagram that passed.
    pub fn saw(&self, pattern: &[u8]) -> bool {
        let seen = self.shared.seen.lock().expect(LOCK);
        seen.iter().any(|datagram| datagram.windows(pattern.len()).any(|window| window == pattern))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        loop {
            // Not locked while a thread is waited for: the listening thread adds to them.
            let Some(thread) = self.threads.lock().expect(LOCK).pop() else { return };
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn pump(&self, socket: &UdpSocket, mut pass: impl FnMut(&[u8], SocketAddr)) {
        let mut buffer = vec![0; 65_536];
        while !self.ended.load(Ordering::Relaxed) {
            // An error is the end of the time-out, or a datagram that nobody took.
            let Ok((length, sender)) = socket.recv_from(&mut buffer) else { continue };
            self.seen.lock().expect(LOCK).push(buffer[..length].to_vec());
            pass(&buffer[..length], sender);
        }
    }
}

fn open(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a free address");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("not zero");
    socket
}

const LOCK: &str = "nobody panics while holding it";
