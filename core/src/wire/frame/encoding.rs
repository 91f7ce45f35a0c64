//! A frame's bytes: `u8` version, `u8` kind, then its fields in the order of the declarations in [`frame`](super).
//!
//! The kinds below 128 go to the coordinator, the others come from it. Kinds and the order of fields never change within a version.
//! The reader checks everything that one frame can show: lengths, codes, and that the bytes of a part can exist. The state machine that
//! gets the frame checks whether ranks, keys and epochs make sense.

use super::fields::{Field, read_bool};
use super::recovery::{read_sums, write_sums};
use super::{AckTimes, Forming, Frame, Hold, Join, Progress, Stall, Status, Waiting};
use crate::error::Result;
use crate::types::{
    CheckpointAsk, Checkpointed, Closing, Control, ControlAnswer, ControlCommand, Epoch, Holdings, NodeId, Order,
    PartLayout, Passage, Setup, Squares, Stats, StepReport, StoreAnswer, StoreAsk, TensorKey, TensorSpec, Tick, Ticked,
    Time, View, WorkersKey, Written,
};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{CERTIFICATE_BYTES_MAX, NAME_BYTES_MAX, PARTS_MAX, TENSORS_MAX, TEXT_BYTES_MAX};
use crate::wire::reject::{decode_error, encode_error};
use crate::wire::{VERSION, check_version};

impl Frame {
    /// The frame's bytes on the wire, without the `u32` length that precedes them.
    ///
    /// Free texts longer than [`TEXT_BYTES_MAX`] are cut. Names and lists are not cut, because a cut name would be another tensor. The
    /// caller keeps them within [`limits`](crate::wire::limits), else the reader refuses the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(VERSION);
        writer.u8(self.kind());
        match self {
            Self::Join(join) => join.write(&mut writer),
            Self::Heartbeat { sent, progress } => {
                writer.u64(sent.0);
                progress.write(&mut writer);
            }
            Self::Metrics(stats) => stats.write(&mut writer),
            Self::Setup(setup) => setup.write(&mut writer),
            Self::Declare { request, tensors, fuse } => {
                writer.u64(*request);
                writer.list(tensors, |writer, tensor| tensor.write(writer));
                writer.u8(u8::from(*fuse));
            }
            Self::Undeclare { request, names } => {
                writer.u64(*request);
                writer.list(names, |writer, name| writer.text(name, usize::MAX));
            }
            Self::Barrier { request, name, timeout } => {
                writer.u64(*request);
                writer.text(name, usize::MAX);
                writer.duration(*timeout);
            }
            Self::Store { request, ask } => {
                writer.u64(*request);
                ask.write(&mut writer);
            }
            Self::Steps(report) => report.write(&mut writer),
            Self::Holdings(holdings) => holdings.write(&mut writer),
            Self::Tick { request, tick } => {
                writer.u64(*request);
                tick.write(&mut writer);
            }
            Self::Checkpoint { request, ask } => {
                writer.u64(*request);
                ask.write(&mut writer);
            }
            Self::Obeyed { order, outcome } => {
                writer.u64(*order);
                write_outcome(&mut writer, outcome, |writer, written| written.write(writer));
            }
            Self::Control { request, control } => {
                writer.u64(*request);
                control.write(&mut writer);
            }
            Self::Commanded { number: numbered, outcome } | Self::Controlled { request: numbered, outcome } => {
                writer.u64(*numbered);
                write_outcome(&mut writer, outcome, |writer, answer| answer.write(writer));
            }
            Self::Command { number, command } => {
                writer.u64(*number);
                command.write(&mut writer);
            }
            Self::Squares(squares) => squares.write(&mut writer),
            Self::Restored { epoch } => epoch.write(&mut writer),
            Self::Stall(stall) => stall.write(&mut writer),
            Self::Waits(waits) => writer.list(waits, |writer, waiting| waiting.write(writer)),
            Self::Leave | Self::StatusRequest | Self::Renew => {}
            Self::Fail { cause } => writer.text(cause, TEXT_BYTES_MAX),
            Self::Saw { node, pid } => {
                writer.raw(&node.0);
                writer.u32(*pid);
            }
            Self::View(view) => view.write(&mut writer),
            Self::Refused(error) => encode_error(error, &mut writer),
            Self::HeartbeatAck { sent, times } => {
                writer.u64(sent.0);
                times.write(&mut writer);
            }
            Self::Declared { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |writer, parts| {
                    writer.list(parts, |writer, part| part.write(writer))
                });
            }
            Self::Undeclared { request } => writer.u64(*request),
            Self::Ended { keys, below } => {
                writer.list(keys, |writer, key| writer.u64(key.0));
                writer.u32(*below);
            }
            Self::Forget { key, error } => {
                writer.u64(key.0);
                encode_error(error, &mut writer);
            }
            Self::BarrierDone { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |_, ()| {});
            }
            Self::StoreDone { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |writer, answer| answer.write(writer));
            }
            Self::Boundary { change, limit, hold } => {
                writer.u64(*change);
                writer.option(limit.as_ref(), |writer, limit| writer.u64(*limit));
                writer.option(hold.as_ref(), |writer, hold| hold.write(writer));
            }
            Self::Passed { change, outcome } => {
                writer.u64(*change);
                write_outcome(&mut writer, outcome, |writer, passage| passage.write(writer));
            }
            Self::Ticked { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |writer, ticked| ticked.write(writer));
            }
            Self::Checkpointed { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |writer, checkpointed| checkpointed.write(writer));
            }
            Self::Order(order) => order.write(&mut writer),
            Self::Close(closing) => closing.write(&mut writer),
            Self::Restore { epoch, sums, lost } => {
                epoch.write(&mut writer);
                write_sums(&mut writer, sums);
                write_sums(&mut writer, lost);
            }
            Self::StallNotice { tensor, stall, detail } => {
                writer.text(tensor, usize::MAX);
                stall.write(&mut writer);
                writer.text(detail, TEXT_BYTES_MAX);
            }
            Self::Status(status) => status.write(&mut writer),
            Self::Forming(forming) => forming.write(&mut writer),
            Self::Renewed { outcome } => write_outcome(&mut writer, outcome, |writer, certificate| {
                writer.list_len(certificate.len());
                writer.raw(certificate);
            }),
            Self::WorkersKey(key) => writer.raw(&key.0),
        }
        writer.into_bytes()
    }

    /// Reads a frame that `peer` sent. `bytes` holds all bytes that the `u32` length announced.
    ///
    /// # Errors
    /// [`Incompatible`](crate::Error::Incompatible) for another version, [`Protocol`](crate::Error::Protocol) naming the field for anything
    /// else.
    pub fn decode(bytes: &[u8], peer: &str) -> Result<Self> {
        let mut reader = Reader::new(bytes, peer);
        check_version(reader.u8("version")?, peer)?;
        let frame = match reader.u8("kind")? {
            kind::JOIN => Self::Join(Join::read(&mut reader)?),
            kind::HEARTBEAT => {
                Self::Heartbeat { sent: Time(reader.u64("clock")?), progress: Progress::read(&mut reader)? }
            }
            kind::METRICS => Self::Metrics(Stats::read(&mut reader)?),
            kind::SETUP => Self::Setup(Setup::read(&mut reader)?),
            kind::DECLARE => Self::Declare {
                request: reader.u64("request")?,
                tensors: reader.list(TENSORS_MAX, "tensors", TensorSpec::read)?,
                fuse: read_bool(&mut reader, "fuse")?,
            },
            kind::UNDECLARE => Self::Undeclare {
                request: reader.u64("request")?,
                names: reader.list(TENSORS_MAX, "names", |reader| reader.text(NAME_BYTES_MAX, "tensor name"))?,
            },
            kind::BARRIER => Self::Barrier {
                request: reader.u64("request")?,
                name: reader.text(NAME_BYTES_MAX, "barrier name")?,
                timeout: reader.duration("timeout")?,
            },
            kind::STORE => Self::Store { request: reader.u64("request")?, ask: StoreAsk::read(&mut reader)? },
            kind::SQUARES => Self::Squares(Squares::read(&mut reader)?),
            kind::STEPS => Self::Steps(StepReport::read(&mut reader)?),
            kind::HOLDINGS => Self::Holdings(Holdings::read(&mut reader)?),
            kind::TICK => Self::Tick { request: reader.u64("request")?, tick: Tick::read(&mut reader)? },
            kind::CHECKPOINT => {
                Self::Checkpoint { request: reader.u64("request")?, ask: CheckpointAsk::read(&mut reader)? }
            }
            kind::OBEYED => {
                Self::Obeyed { order: reader.u64("order")?, outcome: read_outcome(&mut reader, Written::read)? }
            }
            kind::CONTROL => Self::Control { request: reader.u64("request")?, control: Control::read(&mut reader)? },
            kind::COMMANDED => Self::Commanded {
                number: reader.u64("number of a command")?,
                outcome: read_outcome(&mut reader, ControlAnswer::read)?,
            },
            kind::CONTROLLED => Self::Controlled {
                request: reader.u64("request")?,
                outcome: read_outcome(&mut reader, ControlAnswer::read)?,
            },
            kind::COMMAND => Self::Command {
                number: reader.u64("number of a command")?,
                command: ControlCommand::read(&mut reader)?,
            },
            kind::RESTORED => Self::Restored { epoch: Epoch::read(&mut reader)? },
            kind::STALL => Self::Stall(Stall::read(&mut reader)?),
            kind::WAITS => Self::Waits(reader.list(Waiting::TOLD_MAX, "waiting rounds", Waiting::read)?),
            kind::LEAVE => Self::Leave,
            kind::FAIL => Self::Fail { cause: reader.text(TEXT_BYTES_MAX, "cause")? },
            kind::SAW => Self::Saw { node: NodeId(reader.bytes32("node identity")?), pid: reader.u32("process")? },
            kind::STATUS_REQUEST => Self::StatusRequest,
            kind::RENEW => Self::Renew,
            kind::VIEW => Self::View(View::read(&mut reader)?),
            kind::REFUSED => Self::Refused(decode_error(&mut reader)?),
            kind::HEARTBEAT_ACK => {
                Self::HeartbeatAck { sent: Time(reader.u64("clock")?), times: AckTimes::read(&mut reader)? }
            }
            kind::DECLARED => Self::Declared {
                request: reader.u64("request")?,
                outcome: read_outcome(&mut reader, |reader| reader.list(PARTS_MAX, "parts", PartLayout::read))?,
            },
            kind::UNDECLARED => Self::Undeclared { request: reader.u64("request")? },
            kind::ENDED => Self::Ended {
                keys: reader.list(TENSORS_MAX, "tensors", |reader| Ok(TensorKey(reader.u64("tensor key")?)))?,
                below: reader.u32("first part")?,
            },
            kind::FORGET => {
                Self::Forget { key: TensorKey(reader.u64("tensor key")?), error: decode_error(&mut reader)? }
            }
            kind::BARRIER_DONE => {
                Self::BarrierDone { request: reader.u64("request")?, outcome: read_outcome(&mut reader, |_| Ok(()))? }
            }
            kind::STORE_DONE => Self::StoreDone {
                request: reader.u64("request")?,
                outcome: read_outcome(&mut reader, StoreAnswer::read)?,
            },
            kind::BOUNDARY => Self::Boundary {
                change: reader.u64("change")?,
                limit: reader.option("limit", |reader| reader.u64("limit"))?,
                hold: reader.option("hold", Hold::read)?,
            },
            kind::PASSED => {
                Self::Passed { change: reader.u64("change")?, outcome: read_outcome(&mut reader, Passage::read)? }
            }
            kind::TICKED => {
                Self::Ticked { request: reader.u64("request")?, outcome: read_outcome(&mut reader, Ticked::read)? }
            }
            kind::CHECKPOINTED => Self::Checkpointed {
                request: reader.u64("request")?,
                outcome: read_outcome(&mut reader, Checkpointed::read)?,
            },
            kind::ORDER => Self::Order(Order::read(&mut reader)?),
            kind::CLOSE => Self::Close(Closing::read(&mut reader)?),
            kind::RESTORE => Self::Restore {
                epoch: Epoch::read(&mut reader)?,
                sums: read_sums(&mut reader, "sums to restore")?,
                lost: read_sums(&mut reader, "lost sums")?,
            },
            kind::STALL_NOTICE => Self::StallNotice {
                tensor: reader.text(NAME_BYTES_MAX, "tensor name")?,
                stall: Stall::read(&mut reader)?,
                detail: reader.text(TEXT_BYTES_MAX, "detail")?,
            },
            kind::STATUS => Self::Status(Status::read(&mut reader)?),
            kind::FORMING => Self::Forming(Forming::read(&mut reader)?),
            kind::RENEWED => Self::Renewed { outcome: read_outcome(&mut reader, read_certificate)? },
            kind::WORKERS_KEY => Self::WorkersKey(WorkersKey(reader.bytes32("workers' key")?)),
            code => return Err(reader.bad("kind", format!("is {code}"))),
        };
        reader.finish()?;
        Ok(frame)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Join(_) => kind::JOIN,
            Self::Heartbeat { .. } => kind::HEARTBEAT,
            Self::Metrics(_) => kind::METRICS,
            Self::Setup(_) => kind::SETUP,
            Self::Declare { .. } => kind::DECLARE,
            Self::Undeclare { .. } => kind::UNDECLARE,
            Self::Barrier { .. } => kind::BARRIER,
            Self::Store { .. } => kind::STORE,
            Self::Squares(_) => kind::SQUARES,
            Self::Steps(_) => kind::STEPS,
            Self::Holdings(_) => kind::HOLDINGS,
            Self::Tick { .. } => kind::TICK,
            Self::Checkpoint { .. } => kind::CHECKPOINT,
            Self::Obeyed { .. } => kind::OBEYED,
            Self::Control { .. } => kind::CONTROL,
            Self::Commanded { .. } => kind::COMMANDED,
            Self::Controlled { .. } => kind::CONTROLLED,
            Self::Command { .. } => kind::COMMAND,
            Self::Restored { .. } => kind::RESTORED,
            Self::Stall(_) => kind::STALL,
            Self::Waits(_) => kind::WAITS,
            Self::Leave => kind::LEAVE,
            Self::Fail { .. } => kind::FAIL,
            Self::Saw { .. } => kind::SAW,
            Self::StatusRequest => kind::STATUS_REQUEST,
            Self::Renew => kind::RENEW,
            Self::View(_) => kind::VIEW,
            Self::Refused(_) => kind::REFUSED,
            Self::HeartbeatAck { .. } => kind::HEARTBEAT_ACK,
            Self::Declared { .. } => kind::DECLARED,
            Self::Undeclared { .. } => kind::UNDECLARED,
            Self::Ended { .. } => kind::ENDED,
            Self::Forget { .. } => kind::FORGET,
            Self::BarrierDone { .. } => kind::BARRIER_DONE,
            Self::StoreDone { .. } => kind::STORE_DONE,
            Self::Boundary { .. } => kind::BOUNDARY,
            Self::Passed { .. } => kind::PASSED,
            Self::Ticked { .. } => kind::TICKED,
            Self::Checkpointed { .. } => kind::CHECKPOINTED,
            Self::Order(_) => kind::ORDER,
            Self::Close(_) => kind::CLOSE,
            Self::Restore { .. } => kind::RESTORE,
            Self::StallNotice { .. } => kind::STALL_NOTICE,
            Self::Status(_) => kind::STATUS,
            Self::Forming(_) => kind::FORMING,
            Self::Renewed { .. } => kind::RENEWED,
            Self::WorkersKey(_) => kind::WORKERS_KEY,
        }
    }
}

/// The codes of the frames.
mod kind {
    pub(super) const JOIN: u8 = 1;
    pub(super) const HEARTBEAT: u8 = 2;
    pub(super) const DECLARE: u8 = 3;
    pub(super) const BARRIER: u8 = 4;
    pub(super) const STALL: u8 = 5;
    pub(super) const LEAVE: u8 = 6;
    pub(super) const STATUS_REQUEST: u8 = 7;
    pub(super) const FAIL: u8 = 8;
    pub(super) const UNDECLARE: u8 = 9;
    pub(super) const RENEW: u8 = 10;
    pub(super) const SAW: u8 = 11;
    pub(super) const STORE: u8 = 12;
    pub(super) const STEPS: u8 = 13;
    pub(super) const HOLDINGS: u8 = 14;
    pub(super) const RESTORED: u8 = 15;
    pub(super) const TICK: u8 = 16;
    pub(super) const CHECKPOINT: u8 = 20;
    pub(super) const OBEYED: u8 = 21;
    pub(super) const SQUARES: u8 = 17;
    pub(super) const CONTROL: u8 = 22;
    pub(super) const COMMANDED: u8 = 23;
    pub(super) const METRICS: u8 = 24;
    pub(super) const WAITS: u8 = 25;
    pub(super) const SETUP: u8 = 26;
    pub(super) const VIEW: u8 = 129;
    pub(super) const REFUSED: u8 = 130;
    pub(super) const HEARTBEAT_ACK: u8 = 131;
    pub(super) const DECLARED: u8 = 132;
    pub(super) const FORGET: u8 = 133;
    pub(super) const BARRIER_DONE: u8 = 134;
    pub(super) const STALL_NOTICE: u8 = 135;
    pub(super) const STATUS: u8 = 136;
    pub(super) const UNDECLARED: u8 = 137;
    pub(super) const ENDED: u8 = 138;
    pub(super) const RENEWED: u8 = 139;
    pub(super) const WORKERS_KEY: u8 = 140;
    pub(super) const FORMING: u8 = 141;
    pub(super) const STORE_DONE: u8 = 142;
    pub(super) const BOUNDARY: u8 = 143;
    pub(super) const PASSED: u8 = 144;
    pub(super) const RESTORE: u8 = 145;
    pub(super) const TICKED: u8 = 146;
    pub(super) const CLOSE: u8 = 147;
    pub(super) const CHECKPOINTED: u8 = 150;
    pub(super) const ORDER: u8 = 151;
    pub(super) const CONTROLLED: u8 = 152;
    pub(super) const COMMAND: u8 = 153;
}

fn write_outcome<T>(writer: &mut Writer, outcome: &Result<T>, ok: impl FnOnce(&mut Writer, &T)) {
    match outcome {
        Ok(value) => {
            writer.u8(0);
            ok(writer, value);
        }
        Err(error) => {
            writer.u8(1);
            encode_error(error, writer);
        }
    }
}

fn read_outcome<T>(reader: &mut Reader<'_>, ok: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<Result<T>> {
    match reader.u8("outcome")? {
        0 => ok(reader).map(Ok),
        1 => decode_error(reader).map(Err),
        code => Err(reader.bad("outcome", format!("is {code}"))),
    }
}

fn read_certificate(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    let len = reader.list_len(CERTIFICATE_BYTES_MAX, "certificate")?;
    reader.raw(len, "certificate").map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests;
