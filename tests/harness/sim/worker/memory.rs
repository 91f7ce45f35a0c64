//! The memory of a worker: of its tensors, on the host and on its device, and what is staged between the two.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use gradlane_core::mem;
use gradlane_core::types::{DeviceKind, Span};

use super::super::checkers::Checker;
use super::super::world::{Address, Context};

/// A run of bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sim) struct Region {
    /// Which buffer.
    pub(in crate::sim) buffer: usize,
    /// Which of its bytes.
    pub(in crate::sim) span: Span,
}

impl Region {
    /// Its first bytes.
    pub(super) fn first(self, bytes: u64) -> Self {
        Self { span: Span { bytes, ..self.span }, ..self }
    }
}

/// A tensor's memory, or memory in which a part is staged. Clones are the same memory, which lives as long as one of them. So an exchange
/// that keeps memory for too long reads bytes that exist, and is found.
#[derive(Clone)]
pub(in crate::sim) struct Buffer(Rc<Held>);

struct Held {
    bytes: Box<[Cell<u8>]>,
    is_lent: Cell<bool>,
    place: DeviceKind,
}

impl Buffer {
    /// Memory with this content, which the worker may touch.
    pub(in crate::sim) fn new(bytes: Vec<u8>, place: DeviceKind) -> Self {
        let bytes = bytes.into_iter().map(Cell::new).collect();
        Self(Rc::new(Held { bytes, is_lent: Cell::new(true), place }))
    }

    /// Whether the worker may touch it.
    pub(in crate::sim) fn is_lent(&self) -> bool {
        self.0.is_lent.get()
    }

    /// The worker may not touch it any more.
    pub(super) fn give_back(&self) {
        self.0.is_lent.set(false);
    }

    /// Whether an exchange may read or write it.
    pub(super) fn is_held(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Where it lies.
    pub(in crate::sim) fn place(&self) -> DeviceKind {
        self.0.place
    }

    /// Its content.
    pub(super) fn content(&self) -> Vec<u8> {
        self.0.bytes.iter().map(Cell::get).collect()
    }

    fn run(&self, span: Span) -> &[Cell<u8>] {
        &self.0.bytes[span.offset as usize..span.end() as usize]
    }

    /// Some of its bytes as the transports of the product know memory.
    #[expect(unsafe_code, reason = "an exchange reads and writes the memory where it lies")]
    pub(in crate::sim) fn lend(&self, span: Span) -> mem::Region {
        let run = self.run(span);
        // SAFETY: the exchange keeps a clone of this buffer as long as it uses the region. A world runs on one thread, and no reference to
        // the bytes lives from one event to the next, because they are cells.
        unsafe { mem::Region::new(run.as_ptr().cast::<u8>().cast_mut(), run.len()) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.bytes.len())
    }
}

/// Memory of the worker's own for a part as it travels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded {
    /// All of it. The sum may need more than the contribution.
    pub(super) lease: Region,
    /// How many bytes the contribution has.
    pub(super) sent: u64,
}

/// What a task moves.
#[derive(Debug)]
pub(super) enum Payload {
    /// Tensors: where contribution and result lie, where both are staged, if they are, whether or not a device encodes them, and where both
    /// are as they travel, if they are encoded on the host. Where the sum lands, if it lands beside the contribution.
    Pieces {
        source: Vec<Region>,
        destination: Vec<Region>,
        staging: Option<Encoded>,
        body: Option<Encoded>,
        beside: Option<Region>,
        /// Where the ranks of the machine reduce it, if not in its tensors, and whether they have.
        aside: Option<(Region, bool)>,
    },
    /// Why this worker withdraws from a round.
    Message(Vec<u8>),
    /// A sum that it kept, for a server that does not have it.
    Kept(Vec<u8>),
}

impl Payload {
    /// What is pushed.
    pub(super) fn contribution(&self) -> Vec<Region> {
        let sent = |encoded: &Encoded| vec![encoded.lease.first(encoded.sent)];
        match self {
            Self::Pieces { body: Some(body), .. } => sent(body),
            Self::Pieces { staging: Some(staging), .. } => sent(staging),
            Self::Pieces { .. } => self.elements(),
            Self::Message(_) | Self::Kept(_) => Vec::new(),
        }
    }

    /// Where the sum lands.
    pub(super) fn landing(&self) -> Vec<Region> {
        if let Self::Pieces { beside: Some(beside), .. } = self {
            return vec![*beside];
        }
        self.body().map_or_else(|| self.result(), |body| vec![body.lease])
    }

    /// What is encoded.
    pub(super) fn elements(&self) -> Vec<Region> {
        match self {
            Self::Pieces { staging: Some(staging), .. } => vec![staging.lease],
            Self::Pieces { aside: Some((aside, true)), .. } => vec![*aside],
            Self::Pieces { source, staging: None, .. } => source.clone(),
            Self::Message(_) | Self::Kept(_) => Vec::new(),
        }
    }

    /// Where the sum goes when it is decoded.
    pub(super) fn result(&self) -> Vec<Region> {
        match self {
            Self::Pieces { staging: Some(staging), .. } => vec![staging.lease],
            Self::Pieces { aside: Some((aside, _)), .. } => vec![*aside],
            Self::Pieces { destination, staging: None, .. } => destination.clone(),
            Self::Message(_) | Self::Kept(_) => Vec::new(),
        }
    }

    /// Keeps the part in this memory between COMPRESS and DECOMPRESS; what it was in before.
    pub(super) fn set_body(&mut self, encoded: Option<Encoded>) -> Option<Encoded> {
        match self {
            Self::Pieces { body, .. } => std::mem::replace(body, encoded),
            Self::Message(_) | Self::Kept(_) => None,
        }
    }

    /// Where the sum lands beside the contribution, if it does so.
    pub(super) fn beside(&mut self) -> Option<&mut Option<Region>> {
        match self {
            Self::Pieces { beside, .. } => Some(beside),
            Self::Message(_) | Self::Kept(_) => None,
        }
    }

    /// The whole sum has landed. Where it lies beside what was encoded or staged, its memory takes that place; returns what was there.
    pub(super) fn landed(&mut self) -> Option<Region> {
        let Self::Pieces { staging, body, beside, aside, .. } = self else { return None };
        match (body, staging, aside) {
            (Some(body), _, _) => Some(std::mem::replace(&mut body.lease, beside.take()?)),
            (None, Some(staging), _) => Some(std::mem::replace(&mut staging.lease, beside.take()?)),
            (None, None, Some((aside, _))) => Some(std::mem::replace(aside, beside.take()?)),
            (None, None, None) => None,
        }
    }

    fn body(&self) -> Option<Encoded> {
        match self {
            Self::Pieces { body, .. } => *body,
            Self::Message(_) | Self::Kept(_) => None,
        }
    }

    /// What the ranks of a machine reduce, from where and to where.
    pub(super) fn tensors(&self) -> (Vec<Region>, Vec<Region>) {
        match self {
            Self::Pieces { aside: Some(_), .. } => (self.elements(), self.result()),
            Self::Pieces { source, destination, .. } => (source.clone(), destination.clone()),
            Self::Message(_) | Self::Kept(_) => unreachable!("what goes to a server alone meets no other rank"),
        }
    }

    /// What the PCIe groups of a machine reduce on its host: nothing where this rank has nothing of it.
    pub(super) fn staged(&self) -> Vec<Region> {
        match self {
            Self::Pieces { staging, .. } => staging.iter().map(|staging| staging.lease).collect(),
            Self::Message(_) | Self::Kept(_) => Vec::new(),
        }
    }

    /// Keeps the part in this memory between the device and the network.
    pub(super) fn stage(&mut self, staged: Encoded) {
        if let Self::Pieces { staging, .. } = self {
            *staging = Some(staged);
        }
    }

    /// Bytes of the elements, if they were encoded in the copy that staged them, or not at all.
    pub(super) fn encoded_by_device(&self) -> Option<u64> {
        match self {
            Self::Pieces { source, staging: Some(_), body: None, .. } => Some(length(source)),
            Self::Pieces { .. } | Self::Message(_) | Self::Kept(_) => None,
        }
    }

    /// What it was staged in, which is not needed any more.
    pub(super) fn unstage(&mut self) -> Option<Region> {
        match self {
            Self::Pieces { staging, .. } => staging.take().map(|staging| staging.lease),
            Self::Message(_) | Self::Kept(_) => None,
        }
    }

    /// From now on the contribution lies where the result goes.
    pub(super) fn contribute_result(&mut self) {
        match self {
            Self::Pieces { aside: Some((_, is_filled)), .. } => *is_filled = true,
            Self::Pieces { source, destination, .. } => source.clone_from(destination),
            Self::Message(_) | Self::Kept(_) => {}
        }
    }

    /// What LAND copies, and where it goes.
    pub(super) fn to_land(&self) -> (Vec<Region>, Vec<Region>) {
        match self {
            Self::Pieces { aside: Some((aside, _)), destination, .. } => (vec![*aside], destination.clone()),
            Self::Pieces { .. } | Self::Message(_) | Self::Kept(_) => (self.landing(), self.result()),
        }
    }

    /// Where the ranks of its machine reduce it, if not in its tensors.
    pub(super) fn aside(&mut self) -> Option<&mut Option<(Region, bool)>> {
        match self {
            Self::Pieces { aside, .. } => Some(aside),
            Self::Message(_) | Self::Kept(_) => None,
        }
    }
}

/// How many bytes lie in these regions.
pub(super) fn length(regions: &[Region]) -> u64 {
    regions.iter().map(|region| region.span.bytes).sum()
}

/// What lies in these regions, which are `place`'s.
pub(super) fn gather(
    context: &mut Context,
    me: Address,
    memory: &[Buffer],
    from: &[Region],
    place: DeviceKind,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Region { buffer, span } in from {
        check(context, me, &memory[*buffer], place, "read");
        bytes.extend(memory[*buffer].run(*span).iter().map(Cell::get));
    }
    bytes
}

/// Writes these bytes into regions, which are `place`'s.
pub(super) fn scatter(
    context: &mut Context,
    me: Address,
    memory: &[Buffer],
    into: &[Region],
    bytes: &[u8],
    place: DeviceKind,
) {
    let mut rest = bytes;
    for Region { buffer, span } in into {
        check(context, me, &memory[*buffer], place, "written");
        let (run, after) = rest.split_at(span.bytes as usize);
        memory[*buffer].run(*span).iter().zip(run).for_each(|(cell, byte)| cell.set(*byte));
        rest = after;
    }
}

/// Memory is touched only while it is lent, that of a device only by the device.
pub(in crate::sim) fn check(context: &mut Context, me: Address, buffer: &Buffer, place: DeviceKind, how: &str) {
    let text = if !buffer.is_lent() {
        format!("{}: memory that was given back is {how}", me.who)
    } else if buffer.place() != place {
        format!("{}: {} memory is {how} as that of {place}", me.who, buffer.place())
    } else {
        return;
    };
    context.witness.fail(context.now, Checker::Memory, text);
}
