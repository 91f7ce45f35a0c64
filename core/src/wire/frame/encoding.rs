//! A frame's bytes: `u8` version, `u8` kind, then its fields in the order of the declarations in [`frame`](super).
//!
//! The kinds below 128 go to the coordinator, the others come from it. Kinds and the order of fields never change within a version.
//! What is read is checked as far as one frame can tell: lengths, codes, and that the bytes of a part can exist. Whether ranks, keys
//! and epochs mean anything is for the machine that gets the frame.

use super::{Frame, Health, Join, MemberStatus, Progress, Stall, Status};
use crate::error::{Error, Result};
use crate::types::{
    DType, Epoch, Incarnation, Member, NodeId, PartId, PartLayout, Phase, Piece, Role, Round, ServerId, Span,
    TensorKey, TensorSpec, Time, View, WorkerId,
};
use crate::wire::VERSION;
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{
    DIMENSIONS_MAX, MEMBERS_MAX, NAME_BYTES_MAX, PART_BYTES_MAX, PARTS_MAX, TENSORS_MAX, TEXT_BYTES_MAX,
};
use crate::wire::reject::{decode_error, encode_error};

impl Frame {
    /// The frame's bytes on the wire, without the `u32` length that precedes them.
    ///
    /// Free texts longer than [`TEXT_BYTES_MAX`] are cut. Names and lists are not: a cut name would be another tensor, so whoever
    /// makes the frame keeps them within [`limits`](crate::wire::limits), else the reader refuses it.
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
            Self::Declare { request, tensors, fuse } => {
                writer.u64(*request);
                writer.list(tensors, |writer, tensor| tensor.write(writer));
                writer.u8(u8::from(*fuse));
            }
            Self::Barrier { request, name, timeout } => {
                writer.u64(*request);
                writer.text(name, usize::MAX);
                writer.duration(*timeout);
            }
            Self::Stall(stall) => stall.write(&mut writer),
            Self::Leave | Self::StatusRequest => {}
            Self::View(view) => view.write(&mut writer),
            Self::Refused(error) => encode_error(error, &mut writer),
            Self::HeartbeatAck { sent } => writer.u64(sent.0),
            Self::Declared { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |writer, parts| {
                    writer.list(parts, |writer, part| part.write(writer))
                });
            }
            Self::Forget { key, error } => {
                writer.u64(key.0);
                encode_error(error, &mut writer);
            }
            Self::BarrierDone { request, outcome } => {
                writer.u64(*request);
                write_outcome(&mut writer, outcome, |_, ()| {});
            }
            Self::StallNotice { tensor, stall, detail } => {
                writer.text(tensor, usize::MAX);
                stall.write(&mut writer);
                writer.text(detail, TEXT_BYTES_MAX);
            }
            Self::Status(status) => status.write(&mut writer),
        }
        writer.into_bytes()
    }

    /// Reads a frame that `peer` sent; `bytes` is all that the `u32` length announced.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for another version, [`Error::Protocol`] naming the field for anything else.
    pub fn decode(bytes: &[u8], peer: &str) -> Result<Self> {
        let mut reader = Reader::new(bytes, peer);
        let version = reader.u8("version")?;
        if version != VERSION {
            return Err(Error::Incompatible {
                field: "protocol version".to_owned(),
                ours: VERSION.to_string(),
                peer: peer.to_owned(),
                theirs: version.to_string(),
            });
        }
        let frame = match reader.u8("kind")? {
            kind::JOIN => Self::Join(Join::read(&mut reader)?),
            kind::HEARTBEAT => {
                Self::Heartbeat { sent: Time(reader.u64("clock")?), progress: Progress::read(&mut reader)? }
            }
            kind::DECLARE => Self::Declare {
                request: reader.u64("request")?,
                tensors: reader.list(TENSORS_MAX, "tensors", TensorSpec::read)?,
                fuse: read_bool(&mut reader, "fuse")?,
            },
            kind::BARRIER => Self::Barrier {
                request: reader.u64("request")?,
                name: reader.text(NAME_BYTES_MAX, "barrier name")?,
                timeout: reader.duration("timeout")?,
            },
            kind::STALL => Self::Stall(Stall::read(&mut reader)?),
            kind::LEAVE => Self::Leave,
            kind::STATUS_REQUEST => Self::StatusRequest,
            kind::VIEW => Self::View(View::read(&mut reader)?),
            kind::REFUSED => Self::Refused(decode_error(&mut reader)?),
            kind::HEARTBEAT_ACK => Self::HeartbeatAck { sent: Time(reader.u64("clock")?) },
            kind::DECLARED => Self::Declared {
                request: reader.u64("request")?,
                outcome: read_outcome(&mut reader, |reader| reader.list(PARTS_MAX, "parts", PartLayout::read))?,
            },
            kind::FORGET => {
                Self::Forget { key: TensorKey(reader.u64("tensor key")?), error: decode_error(&mut reader)? }
            }
            kind::BARRIER_DONE => {
                Self::BarrierDone { request: reader.u64("request")?, outcome: read_outcome(&mut reader, |_| Ok(()))? }
            }
            kind::STALL_NOTICE => Self::StallNotice {
                tensor: reader.text(NAME_BYTES_MAX, "tensor name")?,
                stall: Stall::read(&mut reader)?,
                detail: reader.text(TEXT_BYTES_MAX, "detail")?,
            },
            kind::STATUS => Self::Status(Status::read(&mut reader)?),
            code => return Err(reader.bad("kind", format!("is {code}"))),
        };
        reader.finish()?;
        Ok(frame)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Join(_) => kind::JOIN,
            Self::Heartbeat { .. } => kind::HEARTBEAT,
            Self::Declare { .. } => kind::DECLARE,
            Self::Barrier { .. } => kind::BARRIER,
            Self::Stall(_) => kind::STALL,
            Self::Leave => kind::LEAVE,
            Self::StatusRequest => kind::STATUS_REQUEST,
            Self::View(_) => kind::VIEW,
            Self::Refused(_) => kind::REFUSED,
            Self::HeartbeatAck { .. } => kind::HEARTBEAT_ACK,
            Self::Declared { .. } => kind::DECLARED,
            Self::Forget { .. } => kind::FORGET,
            Self::BarrierDone { .. } => kind::BARRIER_DONE,
            Self::StallNotice { .. } => kind::STALL_NOTICE,
            Self::Status(_) => kind::STATUS,
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
    pub(super) const VIEW: u8 = 129;
    pub(super) const REFUSED: u8 = 130;
    pub(super) const HEARTBEAT_ACK: u8 = 131;
    pub(super) const DECLARED: u8 = 132;
    pub(super) const FORGET: u8 = 133;
    pub(super) const BARRIER_DONE: u8 = 134;
    pub(super) const STALL_NOTICE: u8 = 135;
    pub(super) const STATUS: u8 = 136;
}

/// A type with one way to be written: the two directions stand side by side, field by field.
trait Field: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self>;
}

impl Field for Join {
    fn write(&self, writer: &mut Writer) {
        self.role.write(writer);
        writer.u128(self.incarnation.0);
        writer.option(self.requested.as_ref(), |writer, index| writer.u32(*index));
        writer.text(&self.host, TEXT_BYTES_MAX);
        writer.u32(self.pid);
        writer.text(&self.address, TEXT_BYTES_MAX);
        writer.u32(self.workers);
        writer.u32(self.servers);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            role: Role::read(reader)?,
            incarnation: Incarnation(reader.u128("incarnation")?),
            requested: reader.option("requested index", |reader| reader.u32("requested index"))?,
            host: reader.text(TEXT_BYTES_MAX, "host")?,
            pid: reader.u32("process id")?,
            address: reader.text(TEXT_BYTES_MAX, "address")?,
            workers: reader.u32("number of workers")?,
            servers: reader.u32("number of servers")?,
        })
    }
}

impl Field for Role {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    /// Members are workers and servers; the coordinator is no member of the view it makes.
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("role")?;
        match Self::from_code(code) {
            Some(role @ (Self::Worker | Self::Server)) => Ok(role),
            Some(Self::Coordinator) | None => Err(reader.bad("role", format!("is {code}"))),
        }
    }
}

impl Field for Progress {
    fn write(&self, writer: &mut Writer) {
        writer.option(self.last.as_ref(), |writer, (key, round)| {
            writer.u64(key.0);
            writer.u64(round.0);
        });
        writer.u32(self.pending);
        writer.u64(self.bytes_in_flight);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            last: reader.option("last tensor", |reader| {
                Ok((TensorKey(reader.u64("last tensor")?), Round(reader.u64("last round")?)))
            })?,
            pending: reader.u32("pending submissions")?,
            bytes_in_flight: reader.u64("bytes in flight")?,
        })
    }
}

impl Field for TensorSpec {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.name, usize::MAX);
        self.dtype.write(writer);
        writer.list(&self.shape, |writer, dimension| writer.u64(*dimension));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            name: reader.text(NAME_BYTES_MAX, "tensor name")?,
            dtype: DType::read(reader)?,
            shape: reader.list(DIMENSIONS_MAX, "shape", |reader| reader.u64("dimension"))?,
        })
    }
}

impl Field for DType {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("dtype")?;
        Self::from_code(code).ok_or_else(|| reader.bad("dtype", format!("is {code}")))
    }
}

impl Field for PartLayout {
    fn write(&self, writer: &mut Writer) {
        self.part.write(writer);
        self.dtype.write(writer);
        writer.u32(self.server.0);
        writer.list(&self.pieces, |writer, piece| {
            writer.u64(piece.tensor.0);
            writer.u64(piece.span.offset);
            writer.u64(piece.span.bytes);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let layout = Self {
            part: PartId::read(reader)?,
            dtype: DType::read(reader)?,
            server: ServerId(reader.u32("server")?),
            pieces: reader.list(TENSORS_MAX, "pieces", |reader| {
                let tensor = TensorKey(reader.u64("tensor key")?);
                let span = Span { offset: reader.u64("piece offset")?, bytes: reader.u64("piece length")? };
                Ok(Piece { tensor, span })
            })?,
        };
        if layout.pieces.is_empty() {
            return Err(reader.bad("pieces", "are none"));
        }
        let element = layout.dtype.bytes();
        if layout.pieces.iter().any(|Piece { span, .. }| {
            span.offset.checked_add(span.bytes).is_none() || span.offset % element != 0 || span.bytes % element != 0
        }) {
            return Err(reader.bad("pieces", format!("do not lie on elements of {}", layout.dtype)));
        }
        let bytes = layout.pieces.iter().try_fold(0_u64, |bytes, piece| bytes.checked_add(piece.span.bytes));
        if bytes.is_none_or(|bytes| bytes > PART_BYTES_MAX) {
            return Err(reader.bad("pieces", format!("are longer than {PART_BYTES_MAX} bytes")));
        }
        Ok(layout)
    }
}

impl Field for PartId {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.key.0);
        writer.u32(self.index);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { key: TensorKey(reader.u64("part key")?), index: reader.u32("part index")? })
    }
}

impl Field for Stall {
    fn write(&self, writer: &mut Writer) {
        self.part.write(writer);
        writer.u64(self.round.0);
        writer.list(&self.missing, |writer, worker| writer.u32(worker.0));
        writer.duration(self.waited);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            part: PartId::read(reader)?,
            round: Round(reader.u64("round")?),
            missing: reader.list(MEMBERS_MAX, "missing ranks", |reader| reader.u32("missing rank").map(WorkerId))?,
            waited: reader.duration("waiting time")?,
        })
    }
}

impl Field for View {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.job, usize::MAX);
        writer.u32(self.epoch.term);
        writer.u32(self.epoch.number);
        self.phase.write(writer);
        writer.list(&self.members, |writer, member| member.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            job: reader.text(NAME_BYTES_MAX, "job")?,
            epoch: Epoch { term: reader.u32("term")?, number: reader.u32("epoch")? },
            phase: Phase::read(reader)?,
            members: reader.list(MEMBERS_MAX, "members", Member::read)?,
        })
    }
}

impl Field for Phase {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Forming => writer.u8(1),
            Self::Running => writer.u8(2),
            Self::Ended => writer.u8(3),
            Self::Aborted(cause) => {
                writer.u8(4);
                encode_error(cause, writer);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.u8("phase")? {
            1 => Ok(Self::Forming),
            2 => Ok(Self::Running),
            3 => Ok(Self::Ended),
            4 => Ok(Self::Aborted(decode_error(reader)?)),
            code => Err(reader.bad("phase", format!("is {code}"))),
        }
    }
}

impl Field for Member {
    fn write(&self, writer: &mut Writer) {
        self.role.write(writer);
        writer.u32(self.index);
        writer.raw(&self.node.0);
        writer.u128(self.incarnation.0);
        writer.text(&self.host, TEXT_BYTES_MAX);
        writer.u32(self.pid);
        writer.text(&self.address, TEXT_BYTES_MAX);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            role: Role::read(reader)?,
            index: reader.u32("member index")?,
            node: NodeId(reader.bytes32("node identity")?),
            incarnation: Incarnation(reader.u128("incarnation")?),
            host: reader.text(TEXT_BYTES_MAX, "host")?,
            pid: reader.u32("process id")?,
            address: reader.text(TEXT_BYTES_MAX, "address")?,
        })
    }
}

impl Field for Status {
    fn write(&self, writer: &mut Writer) {
        self.view.write(writer);
        writer.list(&self.members, |writer, member| member.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let view = View::read(reader)?;
        let members = reader.list(MEMBERS_MAX, "member states", MemberStatus::read)?;
        if members.len() != view.members.len() {
            return Err(reader.bad("member states", format!("are {} of {}", members.len(), view.members.len())));
        }
        Ok(Self { view, members })
    }
}

impl Field for MemberStatus {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.health as u8);
        writer.duration(self.silent);
        self.progress.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let health = match reader.u8("health")? {
            1 => Health::Alive,
            2 => Health::Suspect,
            3 => Health::Dead,
            4 => Health::Left,
            code => return Err(reader.bad("health", format!("is {code}"))),
        };
        Ok(Self { health, silent: reader.duration("silence")?, progress: Progress::read(reader)? })
    }
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

fn read_bool(reader: &mut Reader<'_>, field: &str) -> Result<bool> {
    match reader.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        code => Err(reader.bad(field, format!("is {code}"))),
    }
}

#[cfg(test)]
mod tests;
