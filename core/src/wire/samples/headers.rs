//! Samples of the headers of exchanges.

use std::time::Duration;

use super::values::{mode, participants};
use crate::types::{
    Access, Average, CodecSpec, DType, Effect, Encoding, Epoch, Fate, KeyPart, Mode, Op, Optimizer, PartId,
    Participants, Round, RowAction, Rule, Shards, TensorKey, Update, Version, Wait, Waited, WorkerId, WorkerSet,
};
use crate::wire::{
    AnswerResidual, Body, Contribute, Contribution, Contributors, Header, Hold, Reject, ResidualAction, Restore, Rows,
    RowsAnswer, Sent, Sum, Target, Use, Value, Withdraw,
};

/// Headers of each kind, with each form of what follows them.
pub fn headers() -> Vec<Header> {
    let body = Body::plain(4096);
    let contribute = Contribute {
        target: target(),
        dtype: DType::F32,
        op: Op::WeightedMean,
        participants: Participants::ALL,
        weight: 1.5,
        urgency: 6,
        waited: Waited::default(),
        part_bytes: 4096,
        hold: Hold::No,
        is_given: false,
        contribution: Contribution::First { body, checksum: Some(0xdead_beef) },
    };
    let with = |contribution| Header::Contribute(Contribute { contribution, ..contribute.clone() });
    let waited = Waited {
        device: Wait::of(Duration::from_micros(7)),
        queue: Wait::of(Duration::from_micros(18)),
        credit: Wait::MAX,
    };
    let fed_back = Body { bytes: 2048, codec: "bf16:feedback=1".parse().expect("a codec"), refused: false };
    let held = |hold| {
        let contribution = Contribution::First { body: fed_back, checksum: None };
        Header::Contribute(Contribute { hold, contribution, ..contribute.clone() })
    };
    let given = |hold| {
        let contribution = Contribution::First { body: fed_back, checksum: None };
        Header::Contribute(Contribute { hold, is_given: true, contribution, ..contribute.clone() })
    };
    let residual = AnswerResidual {
        target: target(),
        participants: Participants::ALL,
        codec: fed_back.codec,
        part_bytes: 4096,
        action: ResidualAction::Read(Hold::No),
    };
    let of = |participants| Header::Contribute(Contribute { participants, ..contribute.clone() });
    let sum = Sum {
        target: target(),
        attempt: 1,
        part_bytes: 4096,
        body,
        divisor: 2.0,
        contributors: Contributors::Due,
        early: false,
        checksum: true,
    };
    let topk = CodecSpec::of(Encoding::TopK);
    let shortened = |bytes| Body { bytes, codec: topk, refused: false };
    let refused = Body { bytes: 4096, codec: topk, refused: true };
    let some = Contributors::Only([1, 9].into_iter().map(WorkerId).collect());
    let reduction = (DType::F16, Op::Broadcast { root: WorkerId(5) });
    let withdraw = Withdraw {
        target: target(),
        dtype: reduction.0,
        op: reduction.1,
        participants: Participants::ALL,
        error_bytes: 77,
    };
    let restore = Restore {
        target: target(),
        dtype: DType::F32,
        op: Op::Mean,
        participants: Participants::ALL,
        part_bytes: 4096,
        body,
        checksum: Some(0xdead_beef),
        divisor: 2.0,
        contributors: [1, 9].into_iter().map(WorkerId).collect(),
    };
    let part_use = Use {
        target: target(),
        dtype: DType::F32,
        access: Access::PushPull(Update::Add),
        urgency: 6,
        part_bytes: 4096,
        rule: None,
        mode: Mode::ASYNC,
        clock_at: 0,
        basis: Version(0),
        key: None,
        sent: Sent::Whole { checksum: Some(0xdead_beef) },
    };
    let effect = Effect::accepted(Version(5));
    let value = Value { target: target(), effect, part_bytes: 4096, checksum: true };
    let rows = Rows {
        target: target(),
        action: RowAction::Push,
        urgency: 6,
        spec: "sgd:lr=0.1;dim=2,seed=7".parse().expect("a table"),
        shards: Shards { first: 512, count: 256 },
        step: 76,
        ids: 3,
        checksum: Some(0xdead_beef),
    };
    let answer = RowsAnswer { target: target(), version: Version(5), body_bytes: 4096, checksum: true };
    vec![
        Header::Contribute(contribute.clone()),
        with(Contribution::First { body, checksum: None }),
        with(Contribution::First {
            body: Body { bytes: 2048, codec: CodecSpec::BF16, refused: false },
            checksum: Some(6),
        }),
        with(Contribution::Resumed { body, landed: 1000 }),
        Header::Contribute(Contribute {
            dtype: reduction.0,
            op: reduction.1,
            weight: 1.0,
            contribution: Contribution::Nothing,
            ..contribute.clone()
        }),
        of(participants()),
        of(Participants::ALL.with_receiver(WorkerId(5))),
        Header::Withdraw(withdraw.clone()),
        Header::Withdraw(Withdraw { participants: participants(), ..withdraw }),
        Header::Restore(restore.clone()),
        Header::Restore(Restore {
            participants: participants(),
            body: shortened(300),
            checksum: None,
            contributors: WorkerSet::default(),
            ..restore
        }),
        Header::Sum(sum.clone()),
        Header::Sum(Sum { contributors: some, early: true, checksum: false, ..sum.clone() }),
        Header::Reject(Reject { about: target().about(), error_bytes: 9 }),
        Header::Use(part_use),
        Header::Use(Use { access: Access::Pull, sent: Sent::Nothing { checked: true }, ..part_use }),
        Header::Use(Use { access: Access::Push(Update::Step), rule: Some(Rule::of(Optimizer::AdamW)), ..part_use }),
        Header::Value(value),
        Header::Value(Value { part_bytes: 0, checksum: false, ..value }),
        Header::Reject(Reject { about: part_use.about(), error_bytes: 9 }),
        with(Contribution::First { body: shortened(300), checksum: None }),
        with(Contribution::First { body: refused, checksum: None }),
        Header::Sum(Sum { body: shortened(301), ..sum.clone() }),
        Header::Sum(Sum { body: refused, ..sum }),
        Header::Use(Use {
            access: Access::PullAverage(Average::Window),
            rule: Some("sgd:schedule=poly,steps=100,warm_up=5,window=0.5".parse().expect("a rule")),
            sent: Sent::Nothing { checked: false },
            ..part_use
        }),
        Header::Use(Use { clock_at: 6, basis: Version(4), mode: mode("k_of_n:k=3"), ..part_use }),
        Header::Use(Use {
            mode: mode("async:max_staleness=8,beyond=scale"),
            rule: Some(Rule::of(Optimizer::Sgd)),
            ..part_use
        }),
        Header::Value(Value { effect: Effect { fate: Fate::Scaled, lag: 9, ..effect }, ..value }),
        Header::Use(Use { key: Some(KeyPart { app: 3, key: u64::MAX, offset: 4096 }), ..part_use }),
        Header::Rows(rows),
        Header::Rows(Rows { action: RowAction::Look, checksum: None, ..rows }),
        Header::Rows(Rows { action: RowAction::Shrink, ids: 0, ..rows }),
        Header::Rows(Rows { action: RowAction::Changed, ids: 4096, ..rows }),
        Header::Rows(Rows { action: RowAction::Page, ids: 1 << 20, checksum: None, ..rows }),
        Header::Rows(Rows { action: RowAction::Restore, ..rows }),
        Header::RowsAnswer(answer),
        Header::RowsAnswer(RowsAnswer { body_bytes: 0, checksum: false, ..answer }),
        Header::Reject(Reject { about: rows.about(), error_bytes: 9 }),
        held(Hold::Before),
        held(Hold::TakenBack),
        given(Hold::No),
        given(Hold::Before),
        Header::AnswerResidual(residual.clone()),
        Header::AnswerResidual(AnswerResidual { action: ResidualAction::Read(Hold::TakenBack), ..residual.clone() }),
        Header::AnswerResidual(AnswerResidual {
            participants: participants(),
            codec: "int4:feedback=1".parse().expect("a codec"),
            action: ResidualAction::Give { checksum: 0xdead_beef },
            ..residual
        }),
        Header::Contribute(Contribute { waited, ..contribute }),
    ]
}

fn target() -> Target {
    Target {
        epoch: Epoch { term: 2, number: 3 },
        part: PartId { key: TensorKey(0x0102_0304_0506_0708), index: 9 },
        round: Round(77),
    }
}
