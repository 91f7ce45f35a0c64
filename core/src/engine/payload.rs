//! The payload of a task: the memory of the part's tensors, or a message.

use super::memory::Memory;
use crate::codec::{Coding, Seed};
use crate::collective;
use crate::cuda::{Mark, OnIssue};
use crate::device::Transfer;
use crate::mem::borrow::{OwnedBytes, Staging};
use crate::mem::{DeviceRegion, Ordinal, Region};
use crate::types::Span;
use crate::wire::Body;

/// The payload of a task, and the engine's memory that the task holds.
pub(super) struct Payload {
    content: Content,
    /// Between COMPRESS and DECOMPRESS.
    wire: Option<Wire>,
    /// Where the sum lands, if it lands beside the contribution.
    beside: Option<Staging>,
}

/// Memory in which the ranks of the machine reduce a part, so that the contribution stays as it is.
struct Aside {
    memory: Staging,
    /// Whether it holds what goes on to the next stage. Before, the contribution does.
    is_filled: bool,
}

/// Memory for the wire form of a contribution, and later of its sum.
struct Wire {
    memory: Staging,
    /// Bytes of the contribution, at the front of the memory.
    bytes: usize,
}

/// The data of a task, run after run in piece order.
enum Content {
    /// Tensors in host memory: sent in place, and the sum lands in its destination or beside its contribution.
    Host { source: Vec<Region>, destination: Vec<Region>, aside: Option<Aside> },
    /// Tensors in memory of one device, staged on their way to the network and back.
    Device(OnDevice),
    /// Why this worker withdraws from a round, for the server. It lives as long as the task, hence longer than its exchanges.
    Message(OwnedBytes),
    /// A sum that came earlier, for a server that does not have it.
    Kept(Region),
}

/// Tensors in memory of one device.
pub(super) struct OnDevice {
    source: Runs,
    destination: Runs,
    /// The contribution, and later the sum, between COPYD2H and COPYH2D.
    staging: Option<Staged>,
}

/// Memory of the host for a part of a device.
struct Staged {
    memory: Staging,
    /// Bytes in which the sum may land, at the front of the memory.
    bytes: usize,
    /// Bytes of the contribution, at the front of the memory.
    sent: usize,
}

/// Runs of a device's memory, and what comes before their use.
#[derive(Default)]
struct Runs {
    regions: Vec<DeviceRegion>,
    after: Vec<Mark>,
}

impl Payload {
    /// Tensors with this memory, source and destination, in piece order; all of one kind and on one device.
    pub(super) fn load(pieces: impl Iterator<Item = (Memory, Memory)>) -> Self {
        let (mut host, mut runs) = ((Vec::new(), Vec::new()), (Runs::default(), Runs::default()));
        for (from, to) in pieces {
            unload(from, &mut host.0, &mut runs.0);
            unload(to, &mut host.1, &mut runs.1);
        }
        let content = match runs.0.regions.is_empty() {
            true => Content::Host { source: host.0, destination: host.1, aside: None },
            false => Content::Device(OnDevice { source: runs.0, destination: runs.1, staging: None }),
        };
        Self { content, wire: None, beside: None }
    }

    /// These bytes.
    pub(super) fn message(bytes: Vec<u8>) -> Self {
        Self { content: Content::Message(OwnedBytes::new(bytes)), wire: None, beside: None }
    }

    /// This sum, which came earlier.
    pub(super) fn kept(sum: Region) -> Self {
        Self { content: Content::Kept(sum), wire: None, beside: None }
    }

    /// The memory in which a whole sum has landed, which is the engine's. Nothing writes there any more.
    ///
    /// # Panics
    /// If it has landed in the caller's memory.
    pub(super) fn arrived(&self) -> Region {
        match (&self.wire, &self.content) {
            (Some(wire), _) => wire.memory.region(),
            (None, Content::Device(there)) => there.staged(),
            (None, Content::Host { aside: Some(aside), .. }) => aside.memory.region(),
            (None, Content::Host { .. } | Content::Message(_) | Content::Kept(_)) => {
                self.beside().expect("what is kept lands beside")
            }
        }
    }

    /// The regions to push.
    ///
    /// # Panics
    /// If the tensors are on a device and were not staged.
    pub(super) fn contribution(&self) -> Vec<Region> {
        match (&self.wire, &self.content) {
            (Some(wire), _) => vec![wire.memory.region().split_at(wire.bytes).0],
            (None, Content::Device(there)) => vec![there.contribution()],
            (None, Content::Host { .. } | Content::Message(_) | Content::Kept(_)) => self.elements(),
        }
    }

    /// The regions in which the sum lands.
    ///
    /// # Panics
    /// If the tensors are on a device and were not staged.
    pub(super) fn landing(&self) -> Vec<Region> {
        self.wire.as_ref().map_or_else(|| self.result(), |wire| vec![wire.memory.region()])
    }

    /// The regions that COMPRESS encodes.
    ///
    /// # Panics
    /// If the tensors are on a device and were not staged.
    pub(super) fn elements(&self) -> Vec<Region> {
        match &self.content {
            Content::Host { aside: Some(aside), .. } if aside.is_filled => vec![aside.memory.region()],
            Content::Host { source, .. } => again(source),
            Content::Device(there) => vec![there.staged()],
            Content::Message(letter) => vec![letter.region()],
            Content::Kept(sum) => vec![sum.again()],
        }
    }

    /// The regions into which DECOMPRESS decodes the sum.
    ///
    /// # Panics
    /// If the tensors are on a device and were not staged.
    pub(super) fn result(&self) -> Vec<Region> {
        match &self.content {
            Content::Host { aside: Some(aside), .. } => vec![aside.memory.region()],
            Content::Host { destination, .. } => again(destination),
            Content::Device(there) => vec![there.staged()],
            Content::Message(_) | Content::Kept(_) => Vec::new(),
        }
    }

    /// What LAND copies, and where it goes.
    ///
    /// # Panics
    /// If no sum has landed in memory of the engine.
    pub(super) fn to_land(&self) -> (Region, Vec<Region>) {
        match &self.content {
            Content::Host { destination, aside: Some(aside), .. } => (aside.memory.region(), again(destination)),
            Content::Host { destination, aside: None, .. } => {
                (self.beside().expect("what passes LAND has landed"), again(destination))
            }
            Content::Device(_) | Content::Message(_) | Content::Kept(_) => {
                unreachable!("only tensors on the host land")
            }
        }
    }

    /// Whether the ranks of the machine have memory of the engine to reduce it in.
    pub(super) fn is_aside(&self) -> bool {
        matches!(self.content, Content::Host { aside: Some(_), .. })
    }

    /// Lets the ranks of the machine reduce it in this memory.
    pub(super) fn set_aside(&mut self, memory: Staging) {
        if let Content::Host { aside, .. } = &mut self.content {
            *aside = Some(Aside { memory, is_filled: false });
        }
    }

    /// Lets go of all memory of the engine. It moves its contribution from now on.
    pub(super) fn start_over(&mut self) {
        (self.wire, self.beside) = (None, None);
        if let Content::Host { aside, .. } = &mut self.content {
            *aside = None;
        }
    }

    /// Whether a device has encoded the contribution, so that the sum lands encoded where it is staged.
    pub(super) fn is_encoded_in_place(&self) -> bool {
        self.wire.is_none() && matches!(self.content, Content::Device(_))
    }

    /// Sets the memory of which the first `bytes` bytes are pushed, and in which the sum lands.
    pub(super) fn set_wire(&mut self, memory: Staging, bytes: u64) {
        self.wire = Some(Wire { memory, bytes: usize::try_from(bytes).expect("within the memory") });
    }

    /// Returns that memory.
    pub(super) fn drop_wire(&mut self) {
        self.wire = None;
    }

    /// Lets the sum land in this memory, beside the contribution. Returns its region.
    pub(super) fn set_beside(&mut self, memory: Staging) -> Region {
        self.beside.insert(memory).region()
    }

    /// The memory in which the sum lands beside the contribution, if there is some.
    pub(super) fn beside(&self) -> Option<Region> {
        self.beside.as_ref().map(Staging::region)
    }

    /// Notes that the whole sum has landed: if it lies beside a contribution that was staged or encoded, its memory takes the place of the
    /// contribution's. In the place of host tensors it is copied later.
    pub(super) fn landed(&mut self) {
        let Some(beside) = self.beside.take() else { return };
        match (&mut self.wire, &mut self.content) {
            (Some(wire), _) => wire.memory = beside,
            (None, Content::Device(there)) => there.staged_mut().memory = beside,
            (None, Content::Host { aside: Some(aside), .. }) => aside.memory = beside,
            (None, Content::Host { .. } | Content::Message(_) | Content::Kept(_)) => self.beside = Some(beside),
        }
    }

    /// Returns the memory in which the sum has landed.
    pub(super) fn drop_beside(&mut self) {
        self.beside = None;
    }

    /// The memory for a reduction among the ranks of a machine.
    pub(super) fn memory(&self) -> collective::Memory {
        match &self.content {
            Content::Host { .. } => collective::Memory::Host { source: self.elements(), destination: self.result() },
            Content::Device(OnDevice { source, destination, .. }) => {
                let after = source.after.iter().chain(&destination.after).cloned().collect();
                let (source, destination) = (source.regions_again(), destination.regions_again());
                let issued = OnIssue::nobody();
                collective::Memory::Device(collective::DeviceMemory { source, destination, after, issued })
            }
            Content::Message(_) | Content::Kept(_) => unreachable!("what goes to a server alone meets no other rank"),
        }
    }

    /// The memory for a reduction of the PCIe groups on the host; empty if this rank holds no part of it.
    pub(super) fn staged_memory(&self) -> collective::Memory {
        let staged = || match &self.content {
            Content::Device(there @ OnDevice { staging: Some(_), .. }) => vec![there.staged()],
            Content::Device(OnDevice { staging: None, .. })
            | Content::Host { .. }
            | Content::Message(_)
            | Content::Kept(_) => Vec::new(),
        };
        collective::Memory::Host { source: staged(), destination: staged() }
    }

    /// Returns the staging memory, if there is any.
    pub(super) fn unstage(&mut self) {
        if let Content::Device(there) = &mut self.content {
            there.staging = None;
        }
    }

    /// Records that the contribution lies in the memory of the result now.
    pub(super) fn contribute_result(&mut self) {
        match &mut self.content {
            Content::Host { aside: Some(aside), .. } => aside.is_filled = true,
            Content::Host { source, destination, aside: None } => *source = again(destination),
            Content::Device(OnDevice { source, destination, .. }) => *source = destination.again(),
            Content::Message(_) | Content::Kept(_) => {}
        }
    }

    /// The device data of a task in COPYD2H or COPYH2D.
    pub(super) fn on_device(&mut self) -> &mut OnDevice {
        match &mut self.content {
            Content::Device(there) => there,
            Content::Host { .. } | Content::Message(_) | Content::Kept(_) => {
                unreachable!("only tensors on a device are copied")
            }
        }
    }
}

impl OnDevice {
    /// Which device.
    pub(super) fn device(&self) -> Ordinal {
        self.source.regions.first().expect("a part has a piece").device()
    }

    /// Stages the part in `memory`, whose first `bytes` its sum may use. Encodes it if `coding` is given, into the first `room` bytes. Returns
    /// the copy of the contribution, and the marks before it.
    pub(super) fn stage(
        &mut self,
        memory: Staging,
        bytes: u64,
        room: u64,
        coding: Option<(Coding, Seed)>,
    ) -> (Transfer, Vec<Mark>) {
        let to = memory.region().part(Span { offset: 0, bytes: room });
        let bytes = usize::try_from(bytes).expect("within the memory");
        self.staging = Some(Staged { memory, bytes, sent: bytes });
        let Runs { regions: from, after } = self.source.again();
        let transfer = match coding {
            Some((coding, seed)) => Transfer::Encode { from, to, coding, seed },
            None => Transfer::Out { from, to },
        };
        (transfer, after)
    }

    /// Notes that the contribution has so many bytes.
    ///
    /// # Panics
    /// If nothing is staged.
    pub(super) fn set_sent(&mut self, bytes: u64) {
        self.staged_mut().sent = usize::try_from(bytes).expect("within the memory");
    }

    /// Bytes of the elements.
    pub(super) fn elements_bytes(&self) -> usize {
        self.source.regions.iter().map(DeviceRegion::len).sum()
    }

    /// Notes that the elements of the sum lie in this memory now.
    pub(super) fn stage_decoded(&mut self, memory: Staging) {
        let bytes = memory.region().len();
        self.staging = Some(Staged { memory, bytes, sent: bytes });
    }

    /// The copy of the contribution that its codec has refused.
    ///
    /// # Panics
    /// If nothing is staged.
    pub(super) fn plain(&self) -> Transfer {
        Transfer::Out { from: self.source.regions_again(), to: self.staged() }
    }

    /// The copy of the staged sum to its destination, and the marks before it. If `coding` is given, this body has landed.
    ///
    /// # Panics
    /// If nothing is staged.
    pub(super) fn to_device(&self, coding: Option<(Coding, Body)>) -> (Transfer, Vec<Mark>) {
        let Runs { regions: to, after } = self.destination.again();
        let from = self.staged();
        let transfer = match coding {
            Some((coding, body)) if !body.refused => {
                Transfer::Decode { from: from.part(Span { offset: 0, bytes: body.bytes }), to, coding }
            }
            Some(_) | None => Transfer::In { from, to },
        };
        (transfer, after)
    }

    fn contribution(&self) -> Region {
        let Staged { memory, sent, .. } = self.staging.as_ref().expect(STAGED);
        memory.region().split_at(*sent).0
    }

    fn staged(&self) -> Region {
        let Staged { memory, bytes, .. } = self.staging.as_ref().expect(STAGED);
        memory.region().split_at(*bytes).0
    }

    fn staged_mut(&mut self) -> &mut Staged {
        self.staging.as_mut().expect(STAGED)
    }
}

const STAGED: &str = "staged from COPYD2H to COPYH2D";

impl Runs {
    /// The same again, for another stage.
    fn again(&self) -> Self {
        Self { regions: self.regions_again(), after: self.after.clone() }
    }

    fn regions_again(&self) -> Vec<DeviceRegion> {
        self.regions.iter().map(DeviceRegion::again).collect()
    }
}

fn unload(memory: Memory, host: &mut Vec<Region>, runs: &mut Runs) {
    match memory {
        Memory::Host(region) => host.push(region),
        Memory::Device { region, after } => {
            runs.regions.push(region);
            // The tensors of a batch share a mark, and each wait is a call of the driver.
            if !runs.after.last().is_some_and(|last| last.is(&after)) {
                runs.after.push(after);
            }
        }
    }
}

/// The same regions for another stage.
fn again(regions: &[Region]) -> Vec<Region> {
    regions.iter().map(Region::again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Pool;

    #[test]
    fn what_a_task_moves_lies_where_its_tensors_lie() {
        let there = |address: u64| {
            let memory = || Memory::Device { region: DeviceRegion::new(Ordinal(1), address, 8), after: Mark::Reached };
            (memory(), memory())
        };
        let mut payload = Payload::load([there(64), there(256)].into_iter());
        let on = payload.on_device();
        assert_eq!((on.source.regions.len(), on.destination.after.len(), on.device()), (2, 1, Ordinal(1)));
        let mut bytes = [0_u8; 8];
        let here = crate::mem::borrow::region_of(&mut bytes);
        let payload = Payload::load(std::iter::once((here.again().into(), here.again().into())));
        let lens = |payload: &Payload| {
            [payload.elements(), payload.contribution(), payload.landing(), payload.result()]
                .map(|runs| runs.iter().map(Region::len).collect::<Vec<_>>())
        };
        assert_eq!(lens(&payload), [[8]; 4]);
        let mut payload = payload;
        payload.set_wire(Staging::new(Pool::new().lease(6)), 4);
        assert_eq!(lens(&payload), [[8], [4], [6], [8]]);
    }
}
