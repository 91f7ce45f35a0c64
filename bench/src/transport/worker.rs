//! A worker of raw exchanges: the transport as the engine uses it, without the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use gradlane_core::identity::Credentials;
use gradlane_core::mem::{Copies, Pool, Region};
use gradlane_core::transport::mem::MemNetwork;
use gradlane_core::transport::router::Router;
use gradlane_core::transport::{Answer, Listener, Peer, Pull, Push, Torn, Transport};
use gradlane_core::types::{
    Address, DType, Done, Epoch, ExchangeId, JoinString, LinkId, NodeId, Op, PartId, Participants, Role, TensorKey,
    Waited,
};
use gradlane_core::wire::{Body, Contribute, Contribution, Hold, Request, Target};
use serde::{Deserialize, Serialize};

use super::store::{self, ECHO, KEEP, MEETING};
use crate::job::config;
use crate::job::{JOIN, SETTINGS};
use crate::team::buffers::Set;
use crate::team::orders::{Case, Mode};
use crate::team::rank::Exchanger;

/// An argument of a joining worker: the [`Endpoint`]s of the stores as a JSON list. Without it the worker has a store in its own process.
pub(super) const ENDPOINTS: &str = "endpoints";
/// An argument of a joining worker: how many bytes of a tensor travel in one exchange.
pub(super) const PART_BYTES: &str = "part_bytes";

/// An argument of a joining worker: how many connections it makes to each store. Default: one.
pub(super) const CONNECTIONS: &str = "connections";

/// Where a store listens, and its node identity.
#[derive(Serialize, Deserialize)]
pub(super) struct Endpoint {
    /// As `scheme://place`.
    addresses: Vec<String>,
    node: [u8; 32],
}

impl Endpoint {
    pub(super) fn of(listener: &Listener, node: NodeId) -> Self {
        Self { addresses: listener.addresses.iter().map(Address::to_string).collect(), node: node.0 }
    }

    fn peer(&self, name: String) -> gradlane_core::Result<Peer> {
        let addresses = self.addresses.iter().map(|text| text.parse()).collect::<gradlane_core::Result<_>>()?;
        Ok(Peer { addresses, node: NodeId(self.node), name })
    }
}

/// A worker that is connected to all stores.
pub(crate) struct RawWorker {
    transport: Arc<dyn Transport>,
    /// The first link to each store, then the second to each, and so on.
    links: Vec<LinkId>,
    exchanges: u64,
    part_bytes: usize,
    /// The store in the worker's own process, if it has one.
    _store: Option<Listener>,
}

/// One exchange to make.
struct Step {
    server: usize,
    header: Contribute,
    body: Vec<Region>,
    into: Vec<Region>,
}

impl Exchanger for RawWorker {
    fn join(_rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |error: gradlane_core::Error| error.to_string();
        let given = |name: &str| with.get(name).map_or("", String::as_str);
        let part_bytes = given(PART_BYTES).parse().map_err(|cause| format!("{PART_BYTES}: {cause}"))?;
        let (transport, endpoints, store): (Arc<dyn Transport>, Vec<Endpoint>, _) = if with.contains_key(ENDPOINTS) {
            let config = config(&serde_json::from_str(given(SETTINGS)).map_err(|cause| format!("settings: {cause}"))?)?;
            let join: JoinString = given(JOIN).parse().map_err(text)?;
            let credentials = Credentials::enroll(&join, Role::Worker, config.join_timeout).map_err(text)?;
            let transport = Router::new(&config, &credentials, &Copies::default()).map_err(text)?;
            let endpoints = serde_json::from_str(given(ENDPOINTS)).map_err(|cause| format!("endpoints: {cause}"))?;
            (Arc::new(transport), endpoints, None)
        } else {
            let network = MemNetwork::new().map_err(text)?;
            let node = NodeId([1; 32]);
            let listener = store::open(ranks, Pool::new(), |inbox| network.listen("store", node, inbox))?;
            let endpoint = Endpoint::of(&listener, node);
            (Arc::new(network.transport(NodeId([2; 32]))), vec![endpoint], Some(listener))
        };
        let connections = match given(CONNECTIONS) {
            "" => 1,
            number => number.parse().map_err(|cause| format!("{CONNECTIONS}: {cause}"))?,
        };
        let mut links = Vec::new();
        for (index, endpoint) in (0..connections).flat_map(|_: usize| endpoints.iter().enumerate()) {
            let peer = endpoint.peer(format!("store {index}")).map_err(text)?;
            let (sender, connected) = channel();
            let done = Done::new(move |outcome| drop(sender.send(outcome)));
            transport.connect(peer, PATIENCE, Box::new(|_, _| {}), done);
            let link = connected.recv_timeout(PATIENCE).map_err(|_| "connecting never ended".to_owned())?;
            links.push(link.map_err(text)?);
        }
        Ok(Self { transport, links, exchanges: 0, part_bytes, _store: store })
    }

    fn prepare(&mut self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
        match case.mode {
            Mode::PushPull | Mode::PushOnly | Mode::PullOnly => self.go(case.mode, set, in_place),
            Mode::PushThenPull => {
                self.go(Mode::PushOnly, set, in_place)?;
                self.go(Mode::PullOnly, set, in_place)
            }
        }
    }

    fn provide(&mut self, case: &Case, set: &mut Set) -> Result<(), String> {
        if case.mode == Mode::PullOnly { self.go(Mode::PushOnly, set, false) } else { Ok(()) }
    }

    fn settle(&mut self, case: &Case, set: &mut Set) -> Result<(), String> {
        if case.mode == Mode::PushOnly { self.go(Mode::PullOnly, set, false) } else { Ok(()) }
    }

    fn meet(&mut self) -> Result<(), String> {
        let part = PartId { key: MEETING, index: 0 };
        let header = Contribute { contribution: Contribution::Nothing, ..header(part, 0) };
        self.run(vec![Step { server: 0, header, body: Vec::new(), into: Vec::new() }])
    }

    fn leave(self) -> Result<(), String> {
        self.transport.shutdown(Duration::from_secs(2));
        Ok(())
    }
}

impl RawWorker {
    /// The exchanges of all parts of all tensors of a set.
    fn go(&mut self, mode: Mode, set: &mut Set, in_place: bool) -> Result<(), String> {
        let number = set.number as u64;
        let mut steps = Vec::new();
        for (tensor, (mut source, mut sum)) in (0..).zip(set.regions(in_place)) {
            for index in 0.. {
                let at = source.len().min(self.part_bytes);
                let (body, rest) = source.split_at(at);
                let (into, room) = sum.split_at(at);
                let part = PartId { key: TensorKey(number << 32 | tensor), index };
                let push = header(part, at as u64);
                let (header, body, into) = match mode {
                    Mode::PushPull | Mode::PushThenPull => (push, vec![body], vec![into]),
                    Mode::PushOnly => {
                        (Contribute { target: Target { round: KEEP, ..push.target }, ..push }, vec![body], Vec::new())
                    }
                    Mode::PullOnly => {
                        (Contribute { contribution: Contribution::Nothing, ..push }, Vec::new(), vec![into])
                    }
                };
                let server = (tensor as usize + index as usize) % self.links.len();
                steps.push(Step { server, header, body, into });
                (source, sum) = (rest, room);
                if source.is_empty() {
                    break;
                }
            }
        }
        self.run(steps)
    }

    fn run(&mut self, steps: Vec<Step>) -> Result<(), String> {
        let (sender, ended) = channel();
        let due = 2 * steps.len();
        for Step { server, header, body, into } in steps {
            self.exchanges += 1;
            let id = ExchangeId(self.exchanges);
            let pushed = sender.clone();
            let done = Done::new(move |outcome| drop(pushed.send(outcome)));
            let header = Request::Contribute(header);
            let link = self.links[server];
            let pull = Some(Pull { into, done: pulled(sender.clone()) });
            self.transport.push(link, id, Push { header, body, pull, look: None }, done);
        }
        let mut outcome = Ok(());
        for _ in 0..due {
            let one = ended.recv_timeout(PATIENCE).map_err(|_| "an exchange does not end".to_owned());
            outcome = outcome.and(one.and_then(|end| end.map_err(|error| error.to_string())));
            if outcome.is_err() {
                // The memory of the set is free afterwards.
                self.transport.shutdown(PATIENCE);
                break;
            }
        }
        outcome
    }
}

fn pulled(sender: Sender<gradlane_core::Result<()>>) -> Done<Answer, Torn> {
    Done::new(move |outcome: Result<_, Torn>| {
        let outcome = match outcome {
            Ok(Answer::Response(_)) => Ok(()),
            Ok(Answer::Reject(error)) => Err(error),
            Err(torn) => Err(torn.error),
        };
        // After the first failure nobody receives this.
        let _ = sender.send(outcome);
    })
}

fn header(part: PartId, part_bytes: u64) -> Contribute {
    Contribute {
        target: Target { epoch: Epoch::default(), part, round: ECHO },
        dtype: DType::U8,
        op: Op::Sum,
        participants: Participants::ALL,
        weight: 1.0,
        urgency: 0,
        waited: Waited::default(),
        part_bytes,
        hold: Hold::No,
        is_given: false,
        contribution: Contribution::First { body: Body::plain(part_bytes), checksum: None },
    }
}

/// Longer than any exchange that makes progress.
const PATIENCE: Duration = Duration::from_secs(60);
