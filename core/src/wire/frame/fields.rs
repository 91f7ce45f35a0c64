//! The fields of frames. For each type, writing and reading stand side by side, in the order of its declaration.

use super::{AckTimes, Forming, Health, Hold, Join, MemberStatus, Names, Progress, Stall, Status, Waits};
use crate::error::Result;
use crate::types::{
    Address, DType, Epoch, Incarnation, MachineId, Member, NodeId, PartId, Participants, Phase, Process, Role, Scheme,
    TensorKey, Time, View, Wiring, WorkerId, WorkerSet,
};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{ADDRESS_BYTES_MAX, ADDRESSES_MAX, MEMBERS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::wire::reject::{decode_error, encode_error};

pub(super) fn read_bool(reader: &mut Reader<'_>, field: &str) -> Result<bool> {
    match reader.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        code => Err(reader.bad(field, format!("is {code}"))),
    }
}

/// A type that is written in only one way.
pub(super) trait Field: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self>;
}

impl Field for Join {
    fn write(&self, writer: &mut Writer) {
        self.process.write(writer);
        writer.option(self.requested.as_ref(), |writer, index| writer.u32(*index));
        writer.option(self.epoch.as_ref(), |writer, epoch| epoch.write(writer));
        writer.u32(self.workers);
        writer.u32(self.servers);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            process: Process::read(reader)?,
            requested: reader.option("requested index", |reader| reader.u32("requested index"))?,
            epoch: reader.option("epoch", Epoch::read)?,
            workers: reader.u32("number of workers")?,
            servers: reader.u32("number of servers")?,
        })
    }
}

impl Field for Process {
    fn write(&self, writer: &mut Writer) {
        self.role.write(writer);
        writer.u128(self.incarnation.0);
        writer.text(&self.host, TEXT_BYTES_MAX);
        writer.u32(self.pid);
        writer.list(&self.addresses, |writer, address| address.write(writer));
        writer.u64(self.machine.0);
        self.wiring.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            role: Role::read(reader)?,
            incarnation: Incarnation(reader.u128("incarnation")?),
            host: reader.text(TEXT_BYTES_MAX, "host")?,
            pid: reader.u32("process id")?,
            addresses: reader.list(ADDRESSES_MAX, "addresses", Address::read)?,
            machine: MachineId(reader.u64("machine")?),
            wiring: Wiring::read(reader)?,
        })
    }
}

/// An address whose scheme is unknown here is read as any other, so that it spoils neither the frame nor the addresses beside it.
impl Field for Address {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.scheme.code());
        writer.text(&self.at, ADDRESS_BYTES_MAX);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (scheme, at) = (Scheme::from_code(reader.u8("scheme")?), reader.text(ADDRESS_BYTES_MAX, "address")?);
        if at.is_empty() {
            return Err(reader.bad("address", format!("of {scheme} is empty")));
        }
        Ok(Self { scheme, at })
    }
}

impl Field for Epoch {
    fn write(&self, writer: &mut Writer) {
        writer.u32(self.term);
        writer.u32(self.number);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { term: reader.u32("term")?, number: reader.u32("epoch")? })
    }
}

impl Field for Role {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    /// Members are workers and servers. The coordinator is not a member of the view that it makes.
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let code = reader.u8("role")?;
        match Self::from_code(code) {
            Some(role @ (Self::Worker | Self::Server)) => Ok(role),
            Some(Self::Coordinator | Self::Observer | Self::Admin) | None => {
                Err(reader.bad("role", format!("is {code}")))
            }
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
                Ok((TensorKey(reader.u64("last tensor")?), reader.round("last round")?))
            })?,
            pending: reader.u32("pending submissions")?,
            bytes_in_flight: reader.u64("bytes in flight")?,
        })
    }
}

impl Field for AckTimes {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.received.0);
        writer.u64(self.answered.0);
        writer.u64(self.began_unix_ns);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let received = Time(reader.u64("receipt")?);
        let answered = Time(reader.u64("answer")?);
        if answered < received {
            return Err(reader.bad("answer", "was sent before its heartbeat came".to_owned()));
        }
        Ok(Self { received, answered, began_unix_ns: reader.u64("begin of a clock")? })
    }
}

impl Field for Participants {
    fn write(&self, writer: &mut Writer) {
        writer.option(self.members(), write_workers);
        writer.option(self.receiver().as_ref(), |writer, receiver| writer.u32(receiver.0));
    }

    /// Whether they have a meaning is for the declaration of their tensor to say.
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let members = reader.option("members", |reader| read_workers(reader, "members"))?;
        let all = members.map_or(Self::ALL, Self::of);
        let receiver = reader.option("receiver", |reader| reader.u32("receiver"))?;
        Ok(receiver.map_or(all.clone(), |receiver| all.with_receiver(WorkerId(receiver))))
    }
}

pub(super) fn write_workers(writer: &mut Writer, workers: &WorkerSet) {
    writer.list_len(workers.as_bytes().len());
    writer.raw(workers.as_bytes());
}

pub(super) fn read_workers(reader: &mut Reader<'_>, field: &str) -> Result<WorkerSet> {
    let bytes = reader.list_len(WorkerSet::WORKERS_MAX / 8, field)?;
    let bytes = reader.raw(bytes, field)?;
    WorkerSet::from_bytes(bytes).ok_or_else(|| reader.bad(field, "are no set"))
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
            round: reader.round("round")?,
            missing: reader.list(MEMBERS_MAX, "missing ranks", |reader| reader.u32("missing rank").map(WorkerId))?,
            waited: reader.duration("waiting time")?,
        })
    }
}

impl Field for View {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.job, usize::MAX);
        self.epoch.write(writer);
        self.phase.write(writer);
        writer.u32(self.formed_before);
        writer.u32(self.formed_servers);
        writer.u8(u8::from(self.formed_together));
        writer.u8(u8::from(self.recovers));
        writer.list(&self.members, |writer, member| member.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            job: reader.text(NAME_BYTES_MAX, "job")?,
            epoch: Epoch::read(reader)?,
            phase: Phase::read(reader)?,
            formed_before: reader.u32("how often it had formed")?,
            formed_servers: reader.u32("number of servers")?,
            formed_together: read_bool(reader, "whether it formed on one machine")?,
            recovers: read_bool(reader, "whether it recovers")?,
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
            Self::FormsAgain => writer.u8(5),
            Self::Restores(cause) => {
                writer.u8(6);
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
            5 => Ok(Self::FormsAgain),
            6 => Ok(Self::Restores(decode_error(reader)?)),
            code => Err(reader.bad("phase", format!("is {code}"))),
        }
    }
}

impl Field for Member {
    fn write(&self, writer: &mut Writer) {
        self.process.write(writer);
        writer.raw(&self.node.0);
        writer.u32(self.index);
        writer.u64(self.first_round.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            process: Process::read(reader)?,
            node: NodeId(reader.bytes32("node identity")?),
            index: match reader.u32("member index")? {
                index if (index as usize) < MEMBERS_MAX => index,
                index => return Err(reader.bad("member index", format!("is {index}, not below {MEMBERS_MAX}"))),
            },
            first_round: reader.round("first round")?,
        })
    }
}

impl Field for Wiring {
    fn write(&self, writer: &mut Writer) {
        writer.u32(self.pcie_group);
        writer.flag(self.holds);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { pcie_group: reader.u32("PCIe group")?, holds: reader.flag("whether it holds parts")? })
    }
}

impl Field for Status {
    fn write(&self, writer: &mut Writer) {
        self.view.write(writer);
        writer.list(&self.members, |writer, member| member.write(writer));
        writer.u64(self.imbalance_milli);
        writer.option(self.hold.as_ref(), |writer, hold| hold.write(writer));
        self.waits.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let view = View::read(reader)?;
        let members = reader.list(MEMBERS_MAX, "member states", MemberStatus::read)?;
        if members.len() != view.members.len() {
            return Err(reader.bad("member states", format!("are {} of {}", members.len(), view.members.len())));
        }
        Ok(Self {
            view,
            members,
            imbalance_milli: reader.u64("imbalance")?,
            hold: reader.option("hold", Hold::read)?,
            waits: Box::new(Waits::read(reader)?),
        })
    }
}

impl Field for Forming {
    fn write(&self, writer: &mut Writer) {
        writer.flag(self.speaks);
        self.missing.write(writer);
        self.joined.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let speaks = reader.flag("whether it speaks for all")?;
        Ok(Self { speaks, missing: Names::read(reader)?, joined: Names::read(reader)? })
    }
}

impl Field for Names {
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.listed, |writer, name| writer.text(name, NAME_BYTES_MAX));
        writer.u32(self.more);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let listed = reader.list(Self::LISTED_MAX, "names", |reader| reader.text(NAME_BYTES_MAX, "name"))?;
        Ok(Self { listed, more: reader.u32("count of names")? })
    }
}

impl Field for MemberStatus {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.health as u8);
        writer.duration(self.silent);
        self.progress.write(writer);
        writer.u64(self.placed_bytes);
        writer.u64(self.placed_parts);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let health = match reader.u8("health")? {
            1 => Health::Alive,
            2 => Health::Suspect,
            3 => Health::Dead,
            4 => Health::Left,
            code => return Err(reader.bad("health", format!("is {code}"))),
        };
        Ok(Self {
            health,
            silent: reader.duration("silence")?,
            progress: Progress::read(reader)?,
            placed_bytes: reader.u64("placed bytes")?,
            placed_parts: reader.u64("placed parts")?,
        })
    }
}
