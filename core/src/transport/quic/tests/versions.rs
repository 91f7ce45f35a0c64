//! A build of another version at the other end: both sides hear at once that they do not fit, each in its own words, and from no byte
//! whose meaning the versions may differ in.

use quinn::Endpoint;

use super::super::admission::AdmissionControl;
use super::super::tls::Admission;
use super::*;
use crate::types::Address;
use crate::wire::VERSION;
use crate::wire::header::HEADER_BYTES;

#[test]
fn a_coordinator_and_a_node_of_another_version_part_at_once() {
    for version in OTHERS {
        // The greeting, and a frame behind a greeting of this version; neither goes on as one of ours would.
        for said in [vec![version, 0xee, 0xee], vec![VERSION, 3, 0, 0, 0, version, 0xee, 0xee]] {
            let coordinator = Coordinator::new("resnet");
            let told = tell(coordinator.listener.address(), &coordinator.authority, said);
            assert_eq!(both(told.soon().unwrap()), [version, VERSION]);
            coordinator.up();
            let ControlIncoming::Down { reason, .. } = coordinator.events.soon() else { panic!("it is shut out") };
            assert_eq!(both(reason), [VERSION, version]);
        }
    }
}

#[test]
fn a_node_and_a_coordinator_of_another_version_part_at_once() {
    for version in OTHERS {
        let authority = Authority::create("resnet").unwrap();
        let frame = vec![3, 0, 0, 0, version, 0xee, 0xee];
        let (address, told) = answering(&authority.credentials(Role::Coordinator).unwrap(), frame);
        let (events, sender) = events();
        let _link = ControlLink::dial(&address, &authority.credentials(Role::Worker).unwrap(), SOON, sender).unwrap();
        assert!(matches!(events.soon(), ControlEvent::Connected));
        let ControlEvent::Closed(reason) = events.soon() else { panic!("it cannot stay") };
        assert_eq!(both(reason), [VERSION, version]);
        assert_eq!(both(told.soon()), [version, VERSION]);
    }
}

#[test]
fn a_server_and_a_worker_of_another_version_part_at_once() {
    for (version, length) in cases() {
        let world = Loopback::new();
        let server = Server::new(&world);
        let told = tell(server.peer.at(Scheme::Quic).unwrap(), &world.authority, header_of(version, length));
        assert_eq!(both(told.soon().unwrap()), [version, VERSION], "{length} bytes");
        let link = server.up();
        let Incoming::LinkDown { link: down, .. } = server.next() else { panic!("nothing was opened") };
        assert_eq!(down, link);
    }
}

#[test]
fn a_worker_and_a_server_of_another_version_part_at_once() {
    for (version, length) in cases() {
        let world = Loopback::new();
        let credentials = world.credentials(Role::Server);
        let (address, told) = answering(&credentials, header_of(version, length));
        let addresses = vec![Address::new(Scheme::Quic, address)];
        let peer = Peer { addresses, node: credentials.node(), name: "server 0".to_owned() };
        let transport = world.transport();
        let (connected, lost) = connect(&*transport, peer);
        let worker = Worker { link: connected.soon().unwrap(), transport, lost };
        let mut memory = contract::pattern(1000, 1);
        let _sent = worker.push(ExchangeId(1), &mut memory);
        let torn = worker.pull(ExchangeId(1), &mut memory).soon().expect_err("its answer means nothing here");
        assert_eq!(both(torn.error), [VERSION, version], "{length} bytes");
        assert_eq!(both(told.soon()), [version, VERSION], "{length} bytes");
    }
}

/// Headers of other versions, as long as ours and shorter.
fn cases() -> impl Iterator<Item = (u8, usize)> {
    OTHERS.into_iter().flat_map(|version| [HEADER_BYTES, 40].map(|length| (version, length)))
}

/// Begins as every header does; what follows the version is in nobody's layout.
fn header_of(version: u8, length: usize) -> Vec<u8> {
    let begin = &contract::header(1000).encode()[..4];
    [begin, &[version], &vec![0xee; length - 5]].concat()
}

/// What an error says that this side has, and the other.
fn both(error: Error) -> [u8; 2] {
    match &error {
        Error::Incompatible { field, ours, theirs, .. } if field == "protocol version" => {
            [ours, theirs].map(|version| version.parse().unwrap())
        }
        other => panic!("{other}"),
    }
}

/// Sends `bytes` to `address` on a member's stream and ends it; why the connection was closed then.
fn tell(address: &str, authority: &Authority, bytes: Vec<u8>) -> Due<Result<Error>> {
    let tls = tls::client(&authority.credentials(Role::Worker).unwrap()).unwrap();
    raw(tls, address, move |dialed| async move {
        let (mut sender, _receiver) = dialed.stream;
        sender.write_all(&bytes).await.unwrap();
        let _ = sender.finish();
        closing::connection_error(&dialed.connection.closed().await, "the other end")
    })
}

/// Where somebody listens who answers the first stream with `bytes`, and why the connection was closed then.
fn answering(credentials: &Credentials, bytes: Vec<u8>) -> (String, Due<Error>) {
    listening(credentials, Admission::Members, bytes)
}

/// As [`answering`], for peers that `admission` lets in.
pub(super) fn listening(credentials: &Credentials, admission: Admission<'_>, bytes: Vec<u8>) -> (String, Due<Error>) {
    let (sender, told) = channel();
    let settings = Settings::default();
    let (_, config) = AdmissionControl::new(credentials, &settings, admission).unwrap();
    let socket = socket::bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let serve = move |endpoint: Endpoint| async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        connection.set_max_concurrent_bi_streams(quinn::VarInt::from_u32(1));
        let (mut answer, _receiver) = connection.accept_bi().await.unwrap();
        answer.write_all(&bytes).await.unwrap();
        let _ = answer.finish();
        sender.send(closing::connection_error(&connection.closed().await, "the other end")).unwrap();
    };
    endpoint::start("another-build", socket, settings.endpoint(), Some(config), serve).unwrap();
    (address, Due(told))
}

/// An older one and a newer one.
const OTHERS: [u8; 2] = [VERSION - 1, VERSION + 1];
