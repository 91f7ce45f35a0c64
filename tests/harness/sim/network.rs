//! What lies between the processes: control connections, links and exchanges, and what becomes of bytes on their way.
//!
//! The network knows frames and headers as bytes only. A connection that is lost is noticed by each side in its own time; what was sent
//! before may arrive meanwhile, or never. Bodies and answers come in pieces. An exchange may break off before its header, within its body,
//! after its body, or within its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use gradlane_core::Error;
use gradlane_core::types::{ExchangeId, LinkId, Span, Time};
use gradlane_core::wire::header::HEADER_BYTES;
use gradlane_core::wire::{Contribute, Reply, Request, Use};

use super::body::Body;
use super::checkers::{Checker, Concern};
use super::liar;
use super::worker::Buffer;
use super::workload::{Plan, timing};
use super::world::{Address, Context, Input, Who};
use crate::random::Random;

/// All connections of the world.
#[derive(Debug, Default)]
pub(super) struct Network {
    controls: BTreeMap<u64, Control>,
    links: BTreeMap<LinkId, Link>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Until when nothing passes from one process to another.
    blocked: BTreeMap<(Who, Who), Time>,
    /// Servers whose next answer is no answer to its push.
    liars: BTreeSet<Who>,
    /// Workers whose next body has another length than its header says.
    misfits: BTreeSet<Who>,
    numbers: u64,
}

/// A connection of a member to the coordinator. What is sent one way arrives in its order.
#[derive(Debug)]
struct Control {
    ends: [Address; 2],
    /// The latest arrival, by receiving end.
    arrivals: [Time; 2],
    severed: bool,
}

/// A connection of a worker to a server.
#[derive(Debug)]
struct Link {
    worker: Address,
    server: Address,
    severed: bool,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Its connection.
    pub(super) link: LinkId,
    /// Who pushes.
    pub(super) worker: Address,
    /// Who sums.
    pub(super) server: Address,
    /// As it was sent.
    pub(super) header: Vec<u8>,
    body: Body,
    answer: Answer,
    /// Where it will break off, if it will.
    pub(super) doom: Option<Doom>,
    /// Whether it is nobody's: a replay, a duplicate, or an intruder's.
    ghost: bool,
}

/// What a server sends back: a header, a body, and a checksum perhaps.
#[derive(Debug, Default)]
struct Answer {
    stream: Vec<u8>,
    is_whole: bool,
    /// How many bytes of it the worker sees, once the last of them have arrived.
    told: usize,
    arrival: Time,
    /// Nothing of it arrives any more.
    is_cut: bool,
    /// The server lies: this is no answer to the push.
    is_forged: bool,
}

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamEnd {
    /// All of it was sent.
    Whole,
    /// The sender gave it up.
    Reset,
}

/// Where an exchange breaks off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doom {
    /// The server never hears of it.
    BeforeHeader,
    /// The server waits for the rest of the body.
    WithinBody,
    /// The body arrived, and perhaps the server has looked at all of it.
    AfterBody,
    /// Some of the sum landed.
    WithinAnswer,
    /// The server handed everything over, nothing arrived.
    AnswerLost,
}

impl Network {
    /// Where an exchange will break off, for the log.
    pub(super) fn doom(&self, exchange: ExchangeId) -> Option<Doom> {
        self.exchanges.get(&exchange)?.doom
    }
}

impl Context {
    /// Lets nothing pass from one process to another until then. Connections that cannot survive that die.
    pub(super) fn block(&mut self, from: Who, to: Who, length: Duration) {
        let until = self.world + length;
        self.network.blocked.insert((from, to), until);
        let idle = self.plan.settings.idle_timeout;
        self.witness.disturbed(Concern::Path(from, to), self.world, until.max(self.world + idle) + timing::DIAL);
        if length > idle {
            self.lose(from, to, true);
        }
    }

    /// Loses the connections between two processes; `silent` if each side learns of it by the other's silence only.
    pub(super) fn lose(&mut self, one: Who, other: Who, silent: bool) {
        let idle = self.plan.settings.idle_timeout;
        self.witness.disturbed(Concern::Path(one, other), self.world, self.world + idle + timing::DIAL);
        let joins = |a: Address, b: Address| (a.who, b.who) == (one, other) || (b.who, a.who) == (one, other);
        let controls: Vec<u64> =
            self.network.controls.iter().filter(|(_, c)| joins(c.ends[0], c.ends[1])).map(|(id, _)| *id).collect();
        for control in controls {
            self.sever_control(control, silent);
        }
        let links: Vec<LinkId> =
            self.network.links.iter().filter(|(_, link)| joins(link.worker, link.server)).map(|(id, _)| *id).collect();
        for link in links {
            self.sever_link(link, silent);
        }
    }

    /// A process is gone: whoever is connected to it finds out by silence.
    pub(super) fn lose_all(&mut self, gone: Address) {
        let controls: Vec<u64> =
            self.network.controls.iter().filter(|(_, c)| c.ends.contains(&gone)).map(|(id, _)| *id).collect();
        for control in controls {
            self.sever_control(control, true);
        }
        let of = |link: &Link| link.worker == gone || link.server == gone;
        let links: Vec<LinkId> = self.network.links.iter().filter(|(_, link)| of(link)).map(|(id, _)| *id).collect();
        for link in links {
            self.sever_link(link, true);
        }
    }

    fn patience(&mut self, silent: bool) -> Duration {
        let idle = self.plan.settings.idle_timeout;
        if silent { idle + self.random.millis(0, 200) } else { self.random.millis(0, idle.as_millis() as u64) }
    }

    fn sever_control(&mut self, control: u64, silent: bool) {
        let Some(Control { ends, severed, .. }) = self.network.controls.get_mut(&control) else { return };
        if silent {
            *severed = true;
        }
        let ends = *ends;
        for end in ends {
            let after = self.patience(silent);
            self.post(end, after, Input::ControlClosed { control, error: lost() });
        }
    }

    fn sever_link(&mut self, link: LinkId, silent: bool) {
        let Some(Link { worker, server, severed }) = self.network.links.get_mut(&link) else { return };
        if silent {
            *severed = true;
        }
        let (worker, server) = (*worker, *server);
        for end in [worker, server] {
            let after = self.patience(silent);
            self.post(end, after, Input::LinkLost { link, error: lost() });
        }
    }

    // Control connections.

    /// A member dials the coordinator.
    pub(super) fn dial_control(&mut self, member: Address) -> u64 {
        let control = self.number();
        let coordinator = self.address(Who::Coordinator);
        let ends = [member, coordinator];
        self.network.controls.insert(control, Control { ends, arrivals: [Time::ZERO; 2], severed: false });
        self.post(member, timing::DIAL, Input::ControlFailed { control });
        self.send_control(member, control, Input::ControlDialled { control, from: member });
        control
    }

    /// The youngest control connection of a member that can still carry something.
    pub(super) fn control_of(&self, member: Address) -> Option<u64> {
        let mut controls = self.network.controls.iter().rev();
        controls.find(|(_, control)| control.ends[0] == member && !control.severed).map(|(number, _)| *number)
    }

    /// The youngest exchange that a worker opened, and its link, if that can still carry something.
    pub(super) fn some_exchange(&self, worker: Who) -> Option<(ExchangeId, LinkId)> {
        let mut exchanges = self.network.exchanges.iter().rev();
        let (id, exchange) =
            exchanges.find(|(_, exchange)| exchange.worker == self.address(worker) && !exchange.ghost)?;
        (!self.network.links[&exchange.link].severed).then_some((*id, exchange.link))
    }

    /// Sends on a control connection, in order.
    pub(super) fn send_control(&mut self, from: Address, control: u64, input: Input) {
        let Some(Control { ends, severed: false, .. }) = self.network.controls.get(&control) else { return };
        let side = usize::from(ends[0] == from);
        let to = ends[side];
        let arrival = self.arrival(from.who, to.who);
        let entry = self.network.controls.get_mut(&control).expect("found above");
        let arrival = arrival.max(entry.arrivals[side]);
        entry.arrivals[side] = arrival;
        self.post_at(to, arrival, input);
    }

    // Links and exchanges.

    /// A worker dials a server process.
    pub(super) fn dial_link(&mut self, worker: Address, server: Who) -> LinkId {
        let link = LinkId(self.number());
        let server = self.address(server);
        self.network.links.insert(link, Link { worker, server, severed: false });
        self.post(worker, timing::DIAL, Input::LinkFailed { link });
        self.carry(link, worker, server, Input::LinkDialled { link, from: worker });
        link
    }

    /// Sends to the other end of a link; what concerns different exchanges may arrive in any order.
    pub(super) fn send_link(&mut self, from: Address, link: LinkId, input: Input) {
        let Some(Link { worker, server, .. }) = self.network.links.get(&link) else { return };
        let to = if *worker == from { *server } else { *worker };
        self.carry(link, from, to, input);
    }

    /// Opens an exchange with a body that lies in `memory`, which the worker lends. Without a `memory` it is a replay, which is nobody's:
    /// nothing of it is reported to the worker.
    pub(super) fn open_exchange(
        &mut self,
        worker: Address,
        link: LinkId,
        sent: &Request,
        pieces: Vec<Bytes>,
        memory: Option<Vec<Buffer>>,
    ) -> ExchangeId {
        let id = ExchangeId(self.number());
        let server = self.network.links[&link].server;
        let classes = self.plan.classes;
        let is_replay = memory.is_none();
        let healthy = self.healed() || is_replay;
        let dooms = [Doom::BeforeHeader, Doom::WithinBody, Doom::AfterBody, Doom::WithinAnswer, Doom::AnswerLost];
        let doom = (!healthy && classes.resets && self.random.chance(15)).then(|| self.random.pick(&dooms));
        if let (Request::Contribute(Contribute { target, .. }), Some(Doom::AnswerLost)) = (sent, doom) {
            self.witness.loses_answer(worker.who, target.part.key, target.round.0);
        }
        let mut body = Body::new(pieces, memory.unwrap_or_default());
        if let Request::Contribute(Contribute { target, .. }) | Request::Use(Use { target, .. }) = sent
            && !healthy
            && classes.corruption
            && self.plan.settings.checksum
            && self.random.chance(1)
        {
            body.damage(&mut self.random);
            self.witness.damaged(target.part.key, target.round.0);
        }
        if !is_replay && body.bytes() > 0 && self.network.misfits.remove(&worker.who) {
            body.misfit(&mut self.random);
        }
        let header = sent.encode().to_vec();
        let answer = Answer::default();
        let exchange = Exchange { link, worker, server, header, body, answer, doom, ghost: is_replay };
        self.network.exchanges.insert(id, exchange);
        // Handed over at once, or only when the server takes the body in. Without a body there is nothing that a server would take in.
        if !is_replay && (sent.body_bytes() == 0 || self.random.chance(50)) {
            let after = self.random.millis(0, 3);
            self.post(worker, after, Input::Pushed { exchange: id });
        }
        if doom == Some(Doom::BeforeHeader) {
            let after = self.patience(false).min(Duration::from_millis(500));
            self.post(worker, after, Input::ExchangeTorn { exchange: id, error: reset() });
        } else {
            self.carry(link, worker, server, Input::Opened { exchange: id });
        }
        if !healthy && classes.duplicates && self.random.chance(5) {
            self.duplicate(id);
        }
        id
    }

    /// What opened an exchange arrives once more, as a straggler of a lost connection does.
    fn duplicate(&mut self, of: ExchangeId) {
        let Exchange { link, worker, header, body, .. } = &self.network.exchanges[&of];
        let (link, worker, header, body) = (*link, *worker, header.clone(), body.whole());
        let late = self.random.millis(0, 3000);
        self.open_ghost(worker, link, header, body, late);
    }

    /// Opens an exchange that is nobody's, with these bytes as its header.
    pub(super) fn open_ghost(&mut self, worker: Address, link: LinkId, header: Vec<u8>, body: Vec<u8>, late: Duration) {
        let id = ExchangeId(self.number());
        let Link { server, severed, .. } = self.network.links[&link];
        let (body, answer) = (Body::new(vec![body.into()], Vec::new()), Answer::default());
        let exchange = Exchange { link, worker, server, header, body, answer, doom: None, ghost: true };
        self.network.exchanges.insert(id, exchange);
        if !severed {
            let arrival = self.arrival(worker.who, server.who) + late;
            self.post_at(server, arrival, Input::Opened { exchange: id });
        }
    }

    /// The server accepts the body: it comes in pieces. What was acknowledged may lie unread for a while.
    pub(super) fn accept(&mut self, id: ExchangeId) {
        let Some(exchange) = self.network.exchanges.get(&id) else { return };
        let (link, worker, server) = (exchange.link, exchange.worker, exchange.server);
        let (bytes, doom) = (exchange.body.bytes(), exchange.doom);
        let until = if doom == Some(Doom::WithinBody) && bytes > 0 { self.random.below(bytes) } else { bytes };
        let (mut offset, mut arrival, mut read) = (0, self.world, self.world);
        while offset < until && !self.network.links[&link].severed {
            let length = (1 + self.random.below(bytes)).min(until - offset);
            arrival = arrival.max(self.arrival(worker.who, server.who));
            let most = if self.random.chance(10) { 400 } else { 5 };
            read = read.max(arrival + self.random.millis(0, most));
            self.post_at(server, read, Input::Body { exchange: id, span: Span { offset, bytes: length } });
            offset += length;
        }
        if offset == bytes {
            let latency = self.arrival(server.who, worker.who).since(self.world);
            self.post_at(worker, arrival + latency, Input::Pushed { exchange: id });
            self.post_at(worker, arrival + latency, Input::Returned { exchange: id });
        }
        if let Some(Doom::WithinBody | Doom::AfterBody) = doom {
            self.tear_both(id);
        }
    }

    /// Bytes of a body, perhaps not as they were sent, and whether they are its last ones. They are read where they lie.
    pub(super) fn body_of(&mut self, id: ExchangeId, span: Span) -> (Vec<u8>, bool) {
        let body = &self.network.exchanges[&id].body;
        let (bytes, is_last, is_kept) = (body.copy(span), span.end() == body.bytes(), body.is_kept_for_too_long());
        if is_kept {
            let text = format!("exchange {} sends from memory that was given back", id.0);
            self.witness.fail(self.now, Checker::Memory, text);
        }
        (bytes, is_last)
    }

    /// All of a body, as it was sent.
    pub(super) fn whole_body_of(&self, id: ExchangeId) -> Vec<u8> {
        self.network.exchanges[&id].body.whole()
    }

    /// Nothing refers to the memory of a body any more: what is on its way is a copy.
    pub(super) fn release_body(&mut self, id: ExchangeId) {
        if let Some(exchange) = self.network.exchanges.get_mut(&id) {
            exchange.body.release();
        }
    }

    /// The worker sends no more of a body. What the server has not read is lost, unless it is all there is.
    pub(super) fn cut_body(&mut self, id: ExchangeId) {
        let Some(Exchange { link, worker, server, .. }) = self.network.exchanges.get(&id) else { return };
        let (link, worker, server) = (*link, *worker, *server);
        self.carry(link, worker, server, Input::BodyCut { exchange: id });
    }

    /// The server does not want the rest of a body.
    pub(super) fn stop_body(&mut self, id: ExchangeId) {
        let Some(Exchange { link, worker, server, .. }) = self.network.exchanges.get(&id) else { return };
        let (link, worker, server) = (*link, *worker, *server);
        self.carry(link, server, worker, Input::Stopped { exchange: id });
    }

    /// The server sends the header of its answer, or a lie in its place.
    pub(super) fn begin_answer(&mut self, id: ExchangeId, reply: &Reply) {
        let Some(exchange) = self.network.exchanges.get_mut(&id) else { return };
        let (who, worker) = (exchange.server.who, exchange.worker.who);
        let lies = !exchange.ghost && exchange.doom.is_none() && self.network.liars.remove(&who);
        match reply {
            Reply::Response(response) if lies => {
                let lie = liar::lie(&mut self.random, response);
                self.witness.lied(worker, response.target());
                self.log.note(self.now, who, "lies", &[id.0], || lie.what);
                self.write_answer(id, lie.bytes);
                self.finish_answer(id);
                self.network.exchanges.get_mut(&id).expect("found above").answer.is_forged = true;
            }
            reply => self.write_answer(id, reply.encode()),
        }
    }

    /// Whether an answer is a lie.
    pub(super) fn is_forged(&self, id: ExchangeId) -> bool {
        self.network.exchanges[&id].answer.is_forged
    }

    /// The server sends the next bytes of the sum or the value.
    pub(super) fn write_block(&mut self, id: ExchangeId, block: &[u8]) {
        let mut block = block.to_vec();
        if self.corrupts_answers() {
            flip(&mut self.random, &mut block);
        }
        self.write_answer(id, block);
    }

    /// The server sends the next bytes of its answer.
    pub(super) fn write_answer(&mut self, id: ExchangeId, bytes: Vec<u8>) {
        let Some(exchange) = self.network.exchanges.get_mut(&id) else { return };
        if !exchange.answer.is_forged && !bytes.is_empty() {
            exchange.answer.stream.extend(bytes);
            self.carry_answer(id);
        }
    }

    /// The server has sent all of its answer.
    pub(super) fn finish_answer(&mut self, id: ExchangeId) {
        let Some(exchange) = self.network.exchanges.get_mut(&id) else { return };
        let server = exchange.server;
        if !exchange.answer.is_forged {
            exchange.answer.is_whole = true;
            self.carry_answer(id);
            let after = self.random.millis(0, 30);
            self.post(server, after, Input::Answered { exchange: id });
        }
    }

    /// Lets the worker see what the server has sent by now. A stream keeps its order, and comes in pieces that are cut anywhere.
    fn carry_answer(&mut self, id: ExchangeId) {
        let exchange = &self.network.exchanges[&id];
        let (link, worker, server, doom) = (exchange.link, exchange.worker, exchange.server, exchange.doom);
        if self.network.links[&link].severed || exchange.answer.is_cut {
            return;
        }
        let (sent, is_whole, told) = (exchange.answer.stream.len(), exchange.answer.is_whole, exchange.answer.told);
        if doom == Some(Doom::AnswerLost) {
            if is_whole {
                let after = self.random.millis(0, 300);
                self.post(worker, after, Input::ExchangeTorn { exchange: id, error: reset() });
            }
            return;
        }
        // Mostly within what follows the header.
        let is_cut = doom == Some(Doom::WithinAnswer) && (is_whole || sent > told && told >= HEADER_BYTES);
        let first = if sent > told + 1 && (is_cut || self.random.chance(20)) {
            told + self.random.below((sent - told) as u64) as usize
        } else {
            sent
        };
        let end = if is_cut { Some(StreamEnd::Reset) } else { is_whole.then_some(StreamEnd::Whole) };
        let pieces = [(first, end.filter(|_| is_cut || first == sent)), (sent, end)];
        for (bytes, end) in pieces.into_iter().take(if first == sent || is_cut { 1 } else { 2 }) {
            let latency = self.arrival(server.who, worker.who);
            let answer = &mut self.network.exchanges.get_mut(&id).expect("found above").answer;
            answer.arrival = answer.arrival.max(latency);
            (answer.told, answer.is_cut) = (bytes, is_cut);
            let at = answer.arrival;
            self.post_at(worker, at, Input::Answer { exchange: id, bytes, end });
        }
    }

    /// Bytes of an answer that have arrived.
    pub(super) fn answer_of(&self, id: ExchangeId, from: usize, until: usize) -> Vec<u8> {
        self.network.exchanges[&id].answer.stream[from..until].to_vec()
    }

    /// One side gives an exchange up: the other hears of it.
    pub(super) fn reset_exchange(&mut self, from: Address, id: ExchangeId) {
        let Some(exchange) = self.network.exchanges.get(&id) else { return };
        let (link, worker, server) = (exchange.link, exchange.worker, exchange.server);
        let to = if from == worker { server } else { worker };
        self.carry(link, from, to, Input::ExchangeTorn { exchange: id, error: reset() });
    }

    /// An exchange, as long as the world remembers it.
    pub(super) fn exchange(&self, id: ExchangeId) -> Option<&Exchange> {
        self.network.exchanges.get(&id)
    }

    /// The next body that this worker sends has another length than its header says.
    pub(super) fn let_misfit(&mut self, worker: Who) {
        self.network.misfits.insert(worker);
    }

    /// The next sum or value that this server sends is a lie.
    pub(super) fn let_lie(&mut self, server: Who) {
        self.network.liars.insert(server);
    }

    fn corrupts_answers(&mut self) -> bool {
        !self.healed() && self.plan.classes.corruption && self.plan.settings.checksum && self.random.chance(2)
    }

    fn tear_both(&mut self, id: ExchangeId) {
        let exchange = &self.network.exchanges[&id];
        for end in [exchange.worker, exchange.server] {
            let after = self.random.millis(0, 300);
            self.post(end, after, Input::ExchangeTorn { exchange: id, error: reset() });
        }
    }

    fn carry(&mut self, link: LinkId, from: Address, to: Address, input: Input) {
        if !self.network.links[&link].severed {
            let arrival = self.arrival(from.who, to.who);
            self.post_at(to, arrival, input);
        }
    }

    fn arrival(&mut self, from: Who, to: Who) -> Time {
        let (least, most) = self.plan.settings.latency_ms;
        // Most messages are quick; a few take long, so that what was sent later overtakes them.
        let latency = if self.random.chance(80) {
            self.random.millis(least, least + (most - least) / 8 + 1)
        } else {
            self.random.millis(least, most)
        };
        let opened = self.network.blocked.get(&(from, to)).copied().unwrap_or_default();
        self.world.max(opened) + latency
    }

    fn number(&mut self) -> u64 {
        self.network.numbers += 1;
        self.network.numbers
    }
}

/// Changes one bit.
pub(super) fn flip(random: &mut Random, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
}

/// The settings of the network, in a line.
pub(super) fn describe(plan: &Plan) -> String {
    let (least, most) = plan.settings.latency_ms;
    format!("latency {least}-{most} ms, idle {:.1} s", plan.settings.idle_timeout.as_secs_f64())
}

fn lost() -> Error {
    Error::Unavailable { what: "the peer".to_owned(), cause: "connection lost".to_owned() }
}

fn reset() -> Error {
    Error::Unavailable { what: "the exchange".to_owned(), cause: "stream reset".to_owned() }
}
