use super::*;
use crate::identity::Authority;
use crate::transport::contract::{self, World, connect, connected};
use crate::transport::mem::MemNetwork;
use crate::types::{NodeId, Role};

contract::promises!(Job::new(TransportChoice::Auto, TransportChoice::Auto));

#[test]
fn a_server_of_this_machine_is_reached_through_shared_memory_unless_a_setting_forbids_it() {
    for (ours, theirs, capabilities) in [
        (TransportChoice::Auto, TransportChoice::Auto, Capabilities::SHARED_MEMORY),
        (TransportChoice::Shm, TransportChoice::Auto, Capabilities::SHARED_MEMORY),
        (TransportChoice::Quic, TransportChoice::Auto, Capabilities::NETWORK),
        (TransportChoice::Auto, TransportChoice::Quic, Capabilities::NETWORK),
    ] {
        let (server, worker) = connected(&Job::new(ours, theirs));
        assert_eq!(worker.transport.capabilities(worker.link), capabilities, "{ours:?} to {theirs:?}");
        server.still_serves(&worker);
    }
}

#[test]
fn a_missing_socket_leads_to_quic_only_with_the_automatic_choice() {
    let job = Job::new(TransportChoice::Auto, TransportChoice::Auto);
    let server = contract::Server::new(&job);
    let quic = Address::new(Scheme::Quic, server.peer.at(Scheme::Quic).unwrap());
    let peer = Peer { addresses: vec![quic, Address::new(Scheme::Shm, "/nowhere/socket")], ..server.peer.clone() };
    let transport = job.transport();
    let link = connect(&*transport, peer.clone()).0.soon().unwrap();
    assert_eq!(transport.capabilities(link), Capabilities::NETWORK);
    let stubborn = Job { ours: TransportChoice::Shm, ..job };
    let transport = stubborn.transport();
    let refused = Arc::new(Mutex::new(None));
    let told = Arc::clone(&refused);
    let (sender, done) = std::sync::mpsc::channel();
    let report = Done::new(move |outcome: Result<LinkId>| {
        *told.lock().unwrap() = outcome.err();
        sender.send(()).unwrap();
    });
    transport.connect(peer, Duration::ZERO, Box::new(|_, _| ()), report);
    done.recv_timeout(contract::SOON).unwrap();
    assert!(matches!(*refused.lock().unwrap(), Some(Error::Unavailable { .. })), "{refused:?}");
}

#[test]
fn with_shared_memory_alone_a_server_elsewhere_is_an_error() {
    let job = Job::new(TransportChoice::Shm, TransportChoice::Quic);
    let server = contract::Server::new(&job);
    let error = connect(&*job.transport(), server.peer.clone()).0.soon().unwrap_err();
    assert!(matches!(&error, Error::FailedPrecondition { hint, .. } if hint.contains("transport = auto")), "{error}");
}

#[test]
fn of_two_addresses_with_one_scheme_the_first_that_works_is_used() {
    let world = Third::new();
    let server = contract::Server::new(&world);
    let router = world.router();
    let [nowhere, other] = ["nowhere", "other"].map(|at| Address::new(Scheme::Mem, at));
    let there = Address::new(Scheme::Mem, server.peer.at(Scheme::Mem).unwrap());
    for addresses in [vec![nowhere.clone(), there.clone()], vec![there, nowhere.clone()]] {
        connect(&router, Peer { addresses, ..server.peer.clone() }).0.soon().unwrap();
    }
    let error = connect(&router, Peer { addresses: vec![nowhere, other], ..server.peer.clone() }).0.soon().unwrap_err();
    assert!(matches!(&error, Error::Unavailable { cause, .. } if cause.ends_with("mem://other")), "{error}");
}

#[test]
fn ways_over_a_network_share_the_patience_and_near_ones_are_asked_once() {
    let [shm, quic, other] = [(Scheme::Shm, "/s"), (Scheme::Quic, "a:1"), (Scheme::Quic, "b:1")]
        .map(|(scheme, at)| Address::new(scheme, at));
    let router = Job::new(TransportChoice::Auto, TransportChoice::Auto).router();
    let ways = |addresses: &[&Address]| {
        let addresses = addresses.iter().copied().cloned().collect();
        let peer = Peer { addresses, node: NodeId([1; 32]), name: "server 0".to_owned() };
        let ways = router.ways(&peer, Duration::from_secs(8));
        ways.into_iter().map(|way| (way.address.at, way.patience.as_secs())).collect::<Vec<_>>()
    };
    let way = |at: &str, seconds| (at.to_owned(), seconds);
    assert_eq!(ways(&[&quic, &shm]), [way("/s", 0), way("a:1", 8)]);
    assert_eq!(ways(&[&other, &shm, &quic]), [way("/s", 0), way("b:1", 4), way("a:1", 4)]);
    assert_eq!(ways(&[&shm, &shm]), [way("/s", 0), way("/s", 8)]);
}

#[test]
fn a_peer_without_any_address_of_use_is_an_error_that_names_both_sides() {
    let router = Job::new(TransportChoice::Auto, TransportChoice::Auto).router();
    let addresses = vec![Address::new(Scheme::from_code(9), "x"), Address::new(Scheme::Mem, "a")];
    let peer = Peer { addresses, node: NodeId([1; 32]), name: "server 0".to_owned() };
    let Err(Error::FailedPrecondition { what, hint }) = connect(&router, peer).0.soon() else { panic!("no way") };
    assert!(what.contains("it offers scheme-9://x, mem://a") && hint.contains("shm, quic"), "{what}: {hint}");
}

#[test]
fn an_id_names_the_transport_that_gave_it() {
    for (place, id) in [(0, 0), (2, 1), (TRANSPORTS_MAX - 1, u64::MAX >> PLACE_BITS)] {
        let mut event = Incoming::Opened { link: LinkId(id), exchange: ExchangeId(id), header: contract::header(0) };
        map_ids(&mut event, |id| outer(place, id));
        let Incoming::Opened { link, exchange, .. } = event else { unreachable!("it was one") };
        assert_eq!((inner(link.0), inner(exchange.0)), ((place, id), (place, id)));
    }
    let router = Job::new(TransportChoice::Quic, TransportChoice::Quic).router();
    let stranger = LinkId(outer(1, 1));
    assert_eq!(router.capabilities(stranger), Capabilities::NETWORK);
    router.disconnect(stranger);
    router.abandon(stranger, ExchangeId(1));
}

/// The promises are kept by a third transport of the same table too.
mod third {
    use super::*;

    contract::promises!(Third::new());
}

/// A job whose router and listener have a third transport, within this process. The test connects by it.
struct Third {
    job: Job,
    network: MemNetwork,
}

impl Third {
    fn new() -> Self {
        Self { job: Job::new(TransportChoice::Auto, TransportChoice::Auto), network: MemNetwork::new().unwrap() }
    }

    fn router(&self) -> Router {
        let Router { mut table, choice } = self.job.router();
        table.push(Entry::new(Scheme::Mem, self.network.transport(NodeId([8; 32]))));
        Router::of(table, choice)
    }
}

impl World for Third {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.job.authority.credentials(Role::Server).unwrap();
        let mut listeners = Listeners::new(inbox);
        let settings = Settings::default().for_server();
        listeners.add(quic::bind("127.0.0.1:0", &credentials, &settings, listeners.inbox()).unwrap());
        let shm = bind_shm(
            &self.job.config(TransportChoice::Auto),
            &credentials,
            &Arc::default(),
            &Copies::default(),
            || listeners.inbox(),
        );
        listeners.add(shm.unwrap());
        listeners.add(self.network.listen("server", credentials.node(), listeners.inbox()).unwrap());
        let together = listeners.together();
        let schemes: Vec<Scheme> = together.addresses.iter().map(|address| address.scheme).collect();
        assert_eq!(schemes, [Scheme::Quic, Scheme::Shm, Scheme::Mem]);
        let addresses = together.addresses.iter().filter(|address| address.scheme == Scheme::Mem).cloned().collect();
        (Listener { addresses, ..together }, credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.router())
    }
}

struct Job {
    authority: Arc<Authority>,
    directory: Arc<tempfile::TempDir>,
    ours: TransportChoice,
    theirs: TransportChoice,
}

impl Job {
    fn new(ours: TransportChoice, theirs: TransportChoice) -> Self {
        let authority = Arc::new(Authority::create("test").unwrap());
        Self { authority, directory: Arc::new(tempfile::tempdir().unwrap()), ours, theirs }
    }

    fn router(&self) -> Router {
        let credentials = self.authority.credentials(Role::Worker).unwrap();
        Router::new(&self.config(self.ours), &credentials, &Copies::default()).unwrap()
    }

    fn config(&self, transport: TransportChoice) -> Config {
        let runtime_dir = Some(self.directory.path().to_owned());
        Config { bind: "127.0.0.1:0".to_owned(), transport, runtime_dir, ..Config::default() }
    }
}

impl World for Job {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.authority.credentials(Role::Server).unwrap();
        let config = self.config(self.theirs);
        let listener = bind(&config, &credentials, &Arc::default(), &Copies::default(), inbox).unwrap();
        (listener, credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.router())
    }
}
