//! The requests that processes send to the node, well-formed and otherwise.

use gradlane_core::types::{
    Access, ClockKey, CodecSpec, DType, Encoding, Epoch, KeyPart, LinkId, Mode, Op, PartId, Participants, Round,
    RowAction, Shards, TableSpec, TensorKey, Version, Wait, Waited, WorkerId,
};
use gradlane_core::wire::{
    About, AnswerResidual, Body, Contribute, Contribution, Header, Hold, Request, ResidualAction, Restore, Rows, Sent,
    Service, Target, Use, Withdraw, checksum, samples,
};

use super::{World, key, pattern};
use crate::fuzz::input::Input;

impl World {
    pub(super) fn target(&self, input: &mut Input<'_>) -> Target {
        let Epoch { term, number } = self.view.epoch;
        let chosen = input.byte();
        let key = key(input);
        // Mostly of the present life of the name, and sometimes of one that has ended.
        let life = if chosen & 0x0e == 0x0e { 0 } else { self.ended.get(&key).copied().unwrap_or(0) };
        Target {
            epoch: Epoch { term, number: if chosen & 0x70 == 0x70 { number.wrapping_sub(1) } else { number } },
            part: PartId { key, index: life + u32::from(chosen & 1) },
            round: Round(u64::from(input.below(4))),
        }
    }

    pub(super) fn contribute(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let target = self.target(input);
        let form = input.byte();
        if form == 0xff {
            let service = Service::Unknown(input.byte().max(4));
            return self.open(link, Request::Unknown(About { service, ..target.about() }));
        }
        if form >= 0xe0 {
            return self.use_part(input);
        }
        if (0xd0..0xd8).contains(&form) {
            return self.use_residual(input, link, target);
        }
        if form >= 0xd8 {
            return self.restore(input, link, target);
        }
        // Mostly the same form, so that rounds complete.
        let (dtype, codec) = match form & 7 {
            0 => (DType::F16, CodecSpec::PLAIN),
            1 => (DType::F32, CodecSpec::BF16),
            2 => (DType::I32, CodecSpec::PLAIN),
            3 => (DType::F32, CodecSpec::of(Encoding::TopK)),
            4 => (DType::F32, "bf16:feedback=1".parse().expect("a codec")),
            _ => (DType::F32, CodecSpec::PLAIN),
        };
        let op = match form >> 3 & 7 {
            0 => Op::Mean,
            1 => Op::Max,
            2 => Op::WeightedMean,
            3 => Op::Broadcast { root: WorkerId(u32::from(form >> 6)) },
            _ => Op::Sum,
        };
        if op.check(dtype).is_err() {
            return;
        }
        let part_bytes = input.pick(&[256_u64, 256, 256, 64, 16, 40_000]) / dtype.bytes() * dtype.bytes();
        let codec = codec.for_op(op);
        let longest = gradlane_core::codec::body_bytes(codec, dtype, part_bytes).max();
        let shorter = if codec.varies() { u64::from(input.byte()) } else { 0 };
        let refused = shorter > 127;
        // Sometimes longer than it may be.
        let bytes = if refused { longest } else { (longest + 8).saturating_sub(shorter).min(longest + shorter) };
        let body = Body { bytes, codec, refused };
        let kind = input.byte();
        let who = self.links[&link];
        let contribution = match kind & 15 {
            0 | 1 => Contribution::Nothing,
            2 | 3 => Contribution::Resumed { body, landed: bytes.min(u64::from(kind >> 4) * 16) },
            4 => Contribution::First { body, checksum: Some(7) },
            5 | 6 => {
                let whole: Vec<u8> = pattern(who, &target, 0).take(usize::try_from(bytes).expect("small")).collect();
                Contribution::First { body, checksum: Some(checksum(0, &whole)) }
            }
            _ => Contribution::First { body, checksum: None },
        };
        let weight = if op == Op::WeightedMean { f64::from(kind >> 4) } else { 1.0 };
        let (urgency, participants) = (kind & 7, participants(input));
        let has_residual = contribution != Contribution::Nothing && codec.has_answer_feedback();
        let hold = match has_residual {
            true => input.pick(&[Hold::Before, Hold::TakenBack, Hold::TakenBack, Hold::No]),
            false => Hold::No,
        };
        let is_given = has_residual && hold != Hold::TakenBack && input.byte() & 1 == 0;
        let waited = Waited { device: Wait::from_code(kind), queue: Wait::from_code(kind >> 2), credit: Wait::MAX };
        let header = Contribute {
            target,
            dtype,
            op,
            participants,
            weight,
            urgency,
            waited,
            part_bytes,
            hold,
            is_given,
            contribution,
        };
        self.open(link, Request::Contribute(header));
    }

    /// A worker reads the residual of a part's answers, or gives one.
    fn use_residual(&mut self, input: &mut Input<'_>, link: LinkId, target: Target) {
        let codec = "bf16:feedback=1".parse().expect("a codec");
        let part_bytes = input.pick(&[256_u64, 256, 256, 64]);
        let whole: Vec<u8> = pattern(0, &target, 0).take(usize::try_from(part_bytes).expect("small")).collect();
        let action = match input.byte() & 7 {
            0 => ResidualAction::Read(Hold::No),
            1 => ResidualAction::Read(Hold::TakenBack),
            2 => ResidualAction::Give { checksum: 7 },
            _ => ResidualAction::Give { checksum: checksum(0, &whole) },
        };
        let header = AnswerResidual { target, participants: participants(input), codec, part_bytes, action };
        self.open(link, Request::AnswerResidual(header));
    }

    /// A worker brings a sum, of another server or made up.
    fn restore(&mut self, input: &mut Input<'_>, link: LinkId, target: Target) {
        let (dtype, op, participants) = (DType::F32, input.pick(&[Op::Sum, Op::Mean]), participants(input));
        let part_bytes = input.pick(&[256_u64, 256, 64, 0]);
        let codec = input.pick(&[CodecSpec::PLAIN, CodecSpec::PLAIN, CodecSpec::BF16, CodecSpec::of(Encoding::TopK)]);
        let longest = gradlane_core::codec::body_bytes(codec, dtype, part_bytes).max();
        let kind = input.byte();
        let bytes = if codec.varies() { u64::from(kind).min(longest + 1) } else { longest + u64::from(kind == 255) };
        let body = Body { bytes, codec, refused: false };
        let whole: Vec<u8> =
            pattern(self.links[&link], &target, 0).take(usize::try_from(bytes).expect("small")).collect();
        let checksum = match kind & 3 {
            0 => Some(7),
            1 => None,
            _ => Some(checksum(0, &whole)),
        };
        let contributors = (0..u32::from(kind >> 5)).map(WorkerId).collect();
        let divisor = f64::from(kind & 7);
        let header = Restore { target, dtype, op, participants, part_bytes, body, checksum, divisor, contributors };
        self.open(link, Request::Restore(header));
    }

    pub(super) fn withdraw(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let target = self.target(input);
        let error_bytes = u64::from(input.byte());
        let (dtype, op, participants) = (DType::F32, Op::Sum, participants(input));
        self.open(link, Request::Withdraw(Withdraw { target, dtype, op, participants, error_bytes }));
    }

    /// A header of any bytes that the decoder lets through.
    pub(super) fn raw(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let mut bytes = Header::Contribute(a_contribution()).encode();
        for _ in 0..input.below(6) {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
        }
        if let Ok(header) = Header::decode(&bytes, "a peer").and_then(|header| header.into_request("a peer")) {
            self.open(link, header);
        }
    }

    /// A use of a parameter. Its tensors have names of their own, and sometimes that of a sum.
    fn use_part(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.link(input) else { return };
        let target = self.target(input);
        let form = input.byte();
        let key = if form & 7 == 7 { target.part.key } else { TensorKey(target.part.key.0 + 2) };
        let target = Target { part: PartId { key, ..target.part }, ..target };
        let access = input.pick(&Access::ALL);
        let dtype = if form >> 3 & 7 == 0 { DType::BF16 } else { DType::F32 };
        let part_bytes = if form >> 6 == 0 { 64 } else { 256 };
        let who = self.links[&link];
        let checked = form & 64 != 0;
        let whole = || pattern(who, &target, 0).take(part_bytes).collect::<Vec<u8>>();
        let sent = match input.byte() & 15 {
            0 => Sent::Nothing { checked },
            _ if !access.sends() => Sent::Nothing { checked },
            1 => Sent::Whole { checksum: Some(7) },
            2 | 3 => Sent::Whole { checksum: Some(checksum(0, &whole())) },
            _ => Sent::Whole { checksum: None },
        };
        let part_bytes = part_bytes as u64;
        // Mostly that of the tensor, so that they agree.
        let text =
            ["sgd:lr=0.5,clip_norm=0.5", "adamw:warm_up=3", "rmsprop:centered=1,momentum=0.5"][(key.0 % 3) as usize];
        let text = format!("{text},ema=0.9,window=0.5,window_min=1");
        let needs_rule = access.steps() || access.average().is_some();
        let rule = (needs_rule || input.byte() & 15 != 0).then(|| text.parse().expect("a rule"));
        let mode = ["k_of_n:k=1", "async", "async:max_staleness=1"][(key.0 % 3) as usize];
        let mode = mode.parse::<Mode>().expect("a mode").with_clock(ClockKey(1));
        if form & 0x38 == 0x38 {
            return self.use_rows(link, target, input);
        }
        let (clock_at, basis) = (u64::from(input.below(5)), Version(u64::from(input.below(5))));
        let urgency = form & 7;
        let of_key = form & 2 != 0 && access.is_handled();
        let key = of_key.then(|| KeyPart { app: 1, key: key.0, offset: u64::from(target.part.index) * part_bytes });
        let header = Use { target, dtype, access, urgency, part_bytes, rule, mode, clock_at, basis, key, sent };
        // What no worker sends is refused where headers are read.
        if let Ok(Header::Use(header)) = Header::decode(&header.encode(), "a worker") {
            self.open(link, Request::Use(header));
        }
    }
}

impl World {
    /// A use of rows of a table. Its tensors have names of their own, and sometimes that of a parameter.
    fn use_rows(&mut self, link: LinkId, target: Target, input: &mut Input<'_>) {
        let form = input.byte();
        let key = if form & 15 == 15 { target.part.key } else { TensorKey(target.part.key.0 + 1000) };
        let target = Target { part: PartId { key, ..target.part }, ..target };
        let texts = [
            "sgd;dim=1,mode=sync",
            "adam;dim=2,after=2,rows=2048,codec=int8",
            "adagrad;dim=3,full=evict,rows=1024,ttl=2",
            "paddleadam;dim=2,score=2,codec=bf16,mode=ssp,ahead=1",
            "adam;dim=3,init=uniform,scale=1,bound=0.5,dtype=bf16",
            "sgd;dim=2,codec=fp16,dtype=fp16,mode=sync",
        ];
        let text = texts[(key.0 % texts.len() as u64) as usize];
        let action = input.pick(&RowAction::ALL);
        let spec: TableSpec = text.parse().expect("a table");
        let ids = match action {
            _ if action.has_ids() => u64::from(input.below(5)),
            _ if action.scans() => RowAction::page_bytes_min(&spec) + u64::from(input.byte()),
            _ => 0,
        };
        let header = Rows {
            target,
            action,
            urgency: form & 7,
            spec,
            shards: Shards::ALL,
            step: u64::from(input.below(9)),
            ids,
            checksum: (form & 16 != 0).then_some(7),
        };
        self.open(link, Request::Rows(header));
    }
}

/// Mostly all workers, so that they agree.
fn participants(input: &mut Input<'_>) -> Participants {
    let members = |ranks: &[u32]| Participants::of(ranks.iter().copied().map(WorkerId).collect());
    match input.byte() {
        0..8 => members(&[0, 1]),
        8..16 => members(&[0, 1]).with_receiver(WorkerId(1)),
        16..24 => Participants::ALL.with_receiver(WorkerId(0)),
        24..28 => members(&[1, 9]),
        _ => Participants::ALL,
    }
}

fn a_contribution() -> Contribute {
    let found = samples::headers().into_iter().find_map(|header| match header {
        Header::Contribute(header) => Some(header),
        _ => None,
    });
    let header = found.expect("there are contributions among the samples");
    let epoch = Epoch { term: 1, number: 1 };
    let part = PartId { key: TensorKey(0), index: 0 };
    Contribute { target: Target { epoch, part, round: Round(1) }, ..header }
}
