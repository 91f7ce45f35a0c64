//! A relay of UDP datagrams before a server: the network between it and its clients, as good or as bad as a test wants it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::Time;
use rustix::net::sockopt;

use super::path::{CLEAR, CUT, Conditions, Path};

/// Forwards datagrams between its clients and one server, with a socket of its own towards the server for each client. Dropping it ends
/// it.
pub struct Relay {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

struct Shared {
    front: UdpSocket,
    server: SocketAddr,
    clock: Clock,
    ended: AtomicBool,
    state: Mutex<State>,
    /// There is a datagram that arrives earlier than those before.
    earlier: Condvar,
}

struct State {
    /// From the clients to the server, and back.
    there: Path<SocketAddr>,
    back: Path<SocketAddr>,
    /// The sockets towards the server, by client.
    upstream: BTreeMap<SocketAddr, Arc<UdpSocket>>,
    cut_until_dialled: bool,
    /// What passed, if it is to be remembered.
    seen: Option<Vec<Vec<u8>>>,
}

impl Relay {
    /// Where relays stand: Linux answers on all of 127.0.0.0/8. A server that listens on 127.0.0.1 announces this host.
    pub const HOST: &str = "127.0.0.2";

    /// Stands at `announced`, before the server at the same port of 127.0.0.1.
    ///
    /// # Panics
    /// If the port is taken there.
    pub fn before(announced: &str) -> Self {
        let front: SocketAddr = announced.parse().expect("an address");
        Self::start(front, SocketAddr::from(([127, 0, 0, 1], front.port())), 0)
    }

    /// Receives at `front` what is meant for `server`. The seed decides what chance decides.
    ///
    /// # Panics
    /// If the address cannot be bound.
    pub fn start(front: SocketAddr, server: SocketAddr, seed: u64) -> Self {
        let state = State {
            there: Path::new(seed),
            back: Path::new(!seed),
            upstream: BTreeMap::new(),
            cut_until_dialled: false,
            seen: None,
        };
        let shared = Arc::new(Shared {
            front: open(front),
            server,
            clock: Clock::start(),
            ended: AtomicBool::new(false),
            state: Mutex::new(state),
            earlier: Condvar::new(),
        });
        let threads = Arc::new(Mutex::new(Vec::new()));
        let (listening, pacing) = (Arc::clone(&shared), Arc::clone(&shared));
        let returning = Arc::clone(&threads);
        let listener = std::thread::spawn(move || listening.listen(&returning));
        let pacer = std::thread::spawn(move || pacing.pace());
        threads.lock().expect(LOCK).extend([listener, pacer]);
        Self { shared, threads }
    }

    /// Where clients reach it.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn address(&self) -> String {
        self.shared.front.local_addr().expect("a bound socket has an address").to_string()
    }

    /// From now on these conditions hold on the way to the server, and back.
    pub fn set(&self, there: Conditions, back: Conditions) {
        let mut state = self.shared.state();
        state.cut_until_dialled = false;
        state.there.set(there);
        state.back.set(back);
    }

    /// Nothing arrives any more, in both directions.
    pub fn cut(&self) {
        self.set(CUT, CUT);
    }

    /// Nothing arrives until somebody dials anew, having given up the connection before.
    pub fn cut_until_dialled(&self) {
        self.cut();
        self.shared.state().cut_until_dialled = true;
    }

    /// Starts anew, as a router that forgets its table of addresses: the server sees each client at another address from now on.
    pub fn restart(&self) {
        self.shared.state().upstream.clear();
    }

    /// How many datagrams did not arrive in time, in order, once and whole.
    pub fn harmed(&self) -> u64 {
        let state = self.shared.state();
        state.there.harmed() + state.back.harmed()
    }

    /// Remembers what passes from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        self.shared.state().seen.get_or_insert_default();
        self
    }

    /// Everything that passed in both directions, datagram by datagram.
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        self.shared.state().seen.clone().unwrap_or_default()
    }

    /// Whether `pattern` was in a datagram that was recorded.
    pub fn saw(&self, pattern: &[u8]) -> bool {
        let state = self.shared.state();
        let mut seen = state.seen.iter().flatten();
        seen.any(|datagram| datagram.windows(pattern.len()).any(|window| window == pattern))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.earlier.notify_all();
        loop {
            // Not locked while a thread is waited for: the listening thread adds to them.
            let Some(thread) = self.threads.lock().expect(LOCK).pop() else { return };
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Carries what clients send.
    fn listen(self: Arc<Self>, threads: &Mutex<Vec<JoinHandle<()>>>) {
        let open_path = |state: &mut State, client| {
            let socket = Arc::new(open(SocketAddr::new(self.server.ip(), 0)));
            state.upstream.insert(client, Arc::clone(&socket));
            let shared = Arc::clone(&self);
            let thread = std::thread::spawn(move || shared.carry_back(&socket, client));
            threads.lock().expect(LOCK).push(thread);
        };
        let pass = |state: &mut State, now, datagram: &[u8], client| {
            if !state.upstream.contains_key(&client) {
                open_path(state, client);
            }
            if state.cut_until_dialled && is_initial(datagram) {
                state.cut_until_dialled = false;
                state.there.set(CLEAR);
                state.back.set(CLEAR);
            }
            state.there.offer(now, datagram, client);
        };
        self.receive(&self.front, |_| true, pass);
    }

    /// Carries what the server sends to one client, until a restart.
    fn carry_back(&self, socket: &Arc<UdpSocket>, client: SocketAddr) {
        let is_used = |state: &State| state.upstream.get(&client).is_some_and(|used| Arc::ptr_eq(used, socket));
        let pass = |state: &mut State, now, datagram: &[u8], _| state.back.offer(now, datagram, client);
        self.receive(socket, is_used, pass);
    }

    /// Hands each datagram that `socket` receives to `pass`, as long as it `is_used`.
    fn receive(
        &self,
        socket: &UdpSocket,
        is_used: impl Fn(&State) -> bool,
        mut pass: impl FnMut(&mut State, Time, &[u8], SocketAddr),
    ) {
        let mut buffer = vec![0; 1 << 16];
        while !self.ended.load(Ordering::Relaxed) {
            let received = socket.recv_from(&mut buffer);
            let mut state = self.state();
            if !is_used(&state) {
                return;
            }
            // An error is the end of the time-out, or a datagram that nobody took.
            let Ok((length, sender)) = received else { continue };
            let datagram = &buffer[..length];
            if let Some(seen) = &mut state.seen {
                seen.push(datagram.to_vec());
            }
            let (due, now) = (state.poll_timeout(), self.clock.now());
            pass(&mut state, now, datagram, sender);
            self.deliver(&mut state, now);
            if state.poll_timeout().is_some_and(|next| due.is_none_or(|due| next < due)) {
                self.earlier.notify_one();
            }
        }
    }

    /// Delivers what travels for a while, when it arrives.
    fn pace(&self) {
        let mut state = self.state();
        while !self.ended.load(Ordering::Relaxed) {
            let now = self.clock.now();
            self.deliver(&mut state, now);
            let pause = state.poll_timeout().map_or(LOOK_FOR_THE_END, |due| due.since(now).min(LOOK_FOR_THE_END));
            state = self.earlier.wait_timeout(state, pause).expect(LOCK).0;
        }
    }

    /// Sends on what has arrived by now. What cannot be sent is lost, as in any network.
    fn deliver(&self, state: &mut State, now: Time) {
        while let Some((datagram, client)) = state.there.arrived(now) {
            if let Some(socket) = state.upstream.get(&client) {
                let _ = socket.send_to(&datagram, self.server);
            }
        }
        while let Some((datagram, client)) = state.back.arrived(now) {
            let _ = self.front.send_to(&datagram, client);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(LOCK)
    }
}

impl State {
    fn poll_timeout(&self) -> Option<Time> {
        [self.there.poll_timeout(), self.back.poll_timeout()].into_iter().flatten().min()
    }
}

/// Whether a handshake begins: the first byte of a QUIC Initial packet (RFC 9000, section 17.2.2).
fn is_initial(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0xF0 == 0xC0)
}

fn open(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a free address");
    socket.set_read_timeout(Some(LOOK_FOR_THE_END)).expect("not zero");
    // A relay that loses what it should pass would be another network than the test's. Without the right to more, the usual must do.
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
    }
    socket
}

const BUFFER_BYTES: usize = 16 << 20;
const LOOK_FOR_THE_END: Duration = Duration::from_millis(50);
const LOCK: &str = "nobody panics while holding it";
