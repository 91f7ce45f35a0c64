//! A network path that can fall silent: a relay of datagrams between a server and whoever dials it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Stands before a server, at the server's port of another loopback address. Clones are the same path; it runs until the process ends.
#[derive(Clone)]
pub struct Outage(Arc<Path>);

struct Path {
    front: UdpSocket,
    server: SocketAddr,
    silent: AtomicBool,
    /// It stays silent, whoever dials.
    is_lasting: AtomicBool,
    dropped: AtomicU64,
}

impl Outage {
    /// Where it stands: Linux answers on all of 127.0.0.0/8.
    pub const HOST: &str = "127.0.0.2";

    /// A relay to the server that listens on 127.0.0.1 and announces `address`, which is at [`Self::HOST`].
    ///
    /// # Panics
    /// If the port is taken there.
    pub fn before(address: &str) -> Self {
        let front = UdpSocket::bind(address).expect("nobody else listens at this address of the host");
        let mut server = front.local_addr().expect("a bound socket has an address");
        server.set_ip([127, 0, 0, 1].into());
        let path = Path {
            front,
            server,
            silent: AtomicBool::new(false),
            is_lasting: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        };
        let relay = Self(Arc::new(path));
        let there = Arc::clone(&relay.0);
        std::thread::spawn(move || there.carry_to_server());
        relay
    }

    /// Drops everything in both directions until somebody dials anew, having given up the link before.
    pub fn fall_silent_until_dialled(&self) {
        self.0.silent.store(true, Ordering::SeqCst);
    }

    /// Drops everything in both directions from now on.
    pub fn fall_silent(&self) {
        self.0.is_lasting.store(true, Ordering::SeqCst);
        self.0.silent.store(true, Ordering::SeqCst);
    }

    /// How many datagrams were dropped.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::SeqCst)
    }
}

impl Path {
    fn carry_to_server(self: Arc<Self>) {
        let mut backs: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
        let mut datagram = vec![0; 1 << 16];
        while let Ok((bytes, client)) = self.front.recv_from(&mut datagram) {
            // The first byte of a QUIC Initial packet (RFC 9000, section 17.2.2): a handshake begins.
            if datagram[0] & 0xF0 == 0xC0 && !self.is_lasting.load(Ordering::SeqCst) {
                self.silent.store(false, Ordering::SeqCst);
            }
            let back = backs.entry(client).or_insert_with(|| {
                let back = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("there is a port"));
                let (path, socket) = (Arc::clone(&self), Arc::clone(&back));
                std::thread::spawn(move || path.carry_to_client(&socket, client));
                back
            });
            if self.passes() {
                let _ = back.send_to(&datagram[..bytes], self.server);
            }
        }
    }

    fn carry_to_client(&self, back: &UdpSocket, client: SocketAddr) {
        let mut datagram = vec![0; 1 << 16];
        while let Ok((bytes, _)) = back.recv_from(&mut datagram) {
            if self.passes() {
                let _ = self.front.send_to(&datagram[..bytes], client);
            }
        }
    }

    fn passes(&self) -> bool {
        let silent = self.silent.load(Ordering::SeqCst);
        self.dropped.fetch_add(u64::from(silent), Ordering::SeqCst);
        !silent
    }
}
