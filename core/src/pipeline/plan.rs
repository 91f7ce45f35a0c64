//! Which stages a part passes on this rank. Only this module derives the stages from the topology.
//!
//! | topology | stages |
//! |---|---|
//! | one process | none: scale and complete |
//! | one machine, several ranks | ALL_REDUCE |
//! | one machine, several PCIe groups | REDUCE, COPYD2H, PCIE_REDUCE, COPYH2D, BROADCAST; in host memory ALL_REDUCE |
//! | machines with one rank each, without devices | PUSH, PULL |
//! | the same with devices | COPYD2H, PUSH, PULL, COPYH2D |
//! | machines with several ranks, without devices | REDUCE, PUSH, PULL, BROADCAST |
//! | the same with devices | REDUCE, COPYD2H, PUSH, PULL, COPYH2D, BROADCAST |
//! | the same in several PCIe groups | REDUCE, COPYD2H, PCIE_REDUCE, PUSH, PULL, PCIE_BROADCAST, COPYH2D, BROADCAST |
//!
//! This is the table for tensors of all workers. A tensor of a process set, or one whose sums have one receiver, passes other stages. If all
//! its members share a machine, it passes ALL_REDUCE and needs no server, also where other tensors need one. Otherwise each member exchanges
//! its own contribution.
//!
//! Ranks of one machine without a local collective count as machines with one rank each.
//!
//! A use of a parameter passes COPYD2H (in device memory), PUSH and PULL, and COPYH2D if its value comes back. It does so on every topology,
//! also where sums need no server, because each rank uses parameters by itself ([`Duty::Client`]).
//!
//! A pipeline has the stages that any part of its rank may need. The stages that one part passes are its [`Route`]. Tensors in host memory
//! pass no copies, even where there are devices, and ignore PCIe groups. Tensors without a codec pass no COMPRESS and no DECOMPRESS. Only
//! sums that must not overwrite their contributions pass LAND, at the end. Every pipeline that pushes has these three stages, and one
//! that only reduces on its machine has LAND; the table leaves them out. If the ranks of a machine reduce among themselves before they
//! push, each rank exchanges whole the parts that it owns, and no others: see [`Duty`].
//!
//! # Where a codec works
//! | part | encoded | decoded |
//! |---|---|---|
//! | in host memory | COMPRESS, before PUSH | DECOMPRESS, after PULL |
//! | on a device that knows the codec, unless `nan_check` looks at contributions | in COPYD2H | in COPYH2D |
//! | on a device that knows how to encode, likewise | in COPYD2H | DECOMPRESS |
//! | otherwise on a device, or in several PCIe groups | COMPRESS, after the host has added the groups | DECOMPRESS |
//! | where nothing is pushed | nowhere | nowhere |
//!
//! A device that has kernels for a codec applies it in its copies: the casts, the codecs with blocks, bf16 that is rounded by chance,
//! `onebit`, `randomk` and `topk`, all of f32. Then only the body crosses the PCIe bus, and no processor touches it: a cast halves the bytes of both
//! copies, and `int4` leaves an eighth. A separate stage before COPYD2H would keep encoded parts in device memory while they wait for their
//! copies, and that memory belongs to the training job. Residuals lie in host memory, so the host encodes with error feedback. PCIe groups
//! copy plain elements, because the host adds the contributions of the groups. The ranks of a machine reduce before the codec works, so a
//! machine's sum is encoded once. A codec saves bytes between machines. On one machine it is not applied, so sums there have no rounding by
//! the codec.
//!
//! A device knows the length of a body of `topk` or `dithering` only when it has made it. A thread that waited for the length would leave the
//! device idle. So as many bytes are copied to the host as the body can have, and its length behind them. Where the codec refuses a
//! contribution, the elements follow in a second copy.
//!
//! What devices do not do, the host does:
//! - `dithering`: a device encodes, and the host decodes sums. Where a code begins is known only when all codes before it were read, so a
//!   kernel would be one thread that reads a part.
//! - `lossless`: a device could bring the bytes of elements into planes. But as many bytes would cross the bus, because only DEFLATE makes
//!   them fewer, which reads a stream from its begin to its end.
//!
//! A kernel does not check what it decodes. If a server sends a body that no encoder makes, DECOMPRESS ends with an error, and a device
//! gets numbers without meaning. A check would make the host read each body.

use std::fmt;

use super::stage::Stage;
use super::topology::Topology;
use crate::types::{DeviceKind, InCopies};

/// The duty of a rank for one part, if several ranks of its machine reduce the part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Duty {
    /// All stages. It reduces with the others, or with nobody if the pipeline has no REDUCE, and exchanges the result.
    Owner,
    /// It holds the sum of its PCIe group, and another rank of its machine exchanges the part. It passes all stages but those of the
    /// exchange.
    Holder,
    /// Other ranks hold the part and exchange it. It passes only the stages that the ranks of the machine do together.
    Member,
    /// Nothing on this rank is reduced on a device, so it passes no REDUCE and no BROADCAST. It exchanges its own contribution. Where
    /// nothing is exchanged, it brings the contribution to PCIE_REDUCE.
    Alone,
    /// As `Alone`, but the sum goes to another rank. This rank passes no stages after PULL.
    Giver,
    /// It uses a parameter by itself. It passes the copies and the exchange, on every topology, and stops after PULL if no value comes back.
    Client {
        /// Whether the value comes back.
        receives: bool,
    },
    /// The members of its tensor share the machine and are not all workers, or the sum has one receiver. It passes ALL_REDUCE only.
    Together,
}

/// Which of the stages of its rank a part passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// What the rank does with the part.
    pub duty: Duty,
    /// The kind of memory that holds its tensors.
    pub memory: DeviceKind,
    /// Whether it passes COMPRESS; see [`Pipeline::in_copies`].
    pub compressed: bool,
    /// Whether it passes DECOMPRESS.
    pub decompressed: bool,
    /// Whether its sum lands beside its contribution and passes LAND.
    pub lands: bool,
    /// Whether the ranks of its machine reduce it in memory of the engine, so that each of them has its contribution until the sum is there.
    /// Then it passes LAND as well.
    pub aside: bool,
}

impl Route {
    /// The route of a part in this memory, whose body is plain or encoded by a device.
    pub const fn new(duty: Duty, memory: DeviceKind) -> Self {
        Self { duty, memory, compressed: false, decompressed: false, lands: false, aside: false }
    }

    /// The route of a part in host memory.
    pub const fn host(duty: Duty) -> Self {
        Self::new(duty, DeviceKind::Host)
    }

    /// The route of a part in memory of a device.
    pub const fn device(duty: Duty) -> Self {
        Self::new(duty, DeviceKind::Cuda)
    }

    /// The same route, with COMPRESS and DECOMPRESS.
    #[must_use]
    pub const fn coded(self) -> Self {
        Self { compressed: true, decompressed: true, ..self }
    }
}

/// The stages that the parts of a rank pass, in order; empty where there is nothing to reduce.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

impl Pipeline {
    /// The stages of a rank in `topology`.
    pub fn for_role(topology: &Topology) -> Self {
        let together = topology.local_collective && (topology.local_ranks > 1 || topology.machines == 1);
        let pushes = topology.machines > 1 || (topology.local_ranks > 1 && !together);
        let groups = together && topology.pcie_groups > 1 && topology.device == DeviceKind::Cuda;
        let staged = topology.device == DeviceKind::Cuda && (pushes || groups);
        let needed = |stage: &Stage| match stage {
            // Where there are servers, only process sets on one machine need it.
            Stage::AllReduce => together,
            Stage::Reduce | Stage::Broadcast => together && pushes || groups,
            Stage::CopyD2H | Stage::CopyH2D => staged,
            Stage::PcieReduce => groups,
            Stage::PcieBroadcast => groups && pushes,
            Stage::Compress | Stage::Push | Stage::Pull | Stage::Decompress => pushes,
            Stage::Land => pushes || together,
        };
        Self::of(Stage::ALL.into_iter().filter(needed).collect())
    }

    /// A pipeline of these stages.
    ///
    /// # Panics
    /// If they are not in the order of [`Stage::ALL`], or only one of PUSH and PULL is among them.
    pub fn of(stages: Vec<Stage>) -> Self {
        assert!(stages.is_sorted_by(|a, b| a < b), "stages out of order: {stages:?}");
        assert_eq!(stages.contains(&Stage::Push), stages.contains(&Stage::Pull), "an exchange is a PUSH and a PULL");
        Self { stages }
    }

    /// The stages in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The first stage of a part; `None` if there is nothing to do.
    pub fn first(&self, route: Route) -> Option<Stage> {
        self.passed(route).next()
    }

    /// The stage after `stage`; `None` after the last.
    pub fn after(&self, stage: Stage, route: Route) -> Option<Stage> {
        self.passed(route).find(|later| *later > stage)
    }

    /// The first stage that the ranks of a machine do together with a part of this rank; `None` if there is none.
    pub fn first_meeting(&self, route: Route) -> Option<Stage> {
        self.passed(route).find(|stage| stage.is_collective())
    }

    /// The next stage at which the other ranks of its machine wait for a part of this rank that has passed `stage`; `None` if there is
    /// none.
    pub fn meeting_after(&self, stage: Stage, route: Route) -> Option<Stage> {
        self.passed(route).find(|later| *later > stage && later.is_collective())
    }

    /// Whether a part that has passed `stage` has its sum: the sum that its rank, and other ranks that get it from there, wait for.
    pub fn has_sum_after(&self, stage: Stage) -> bool {
        let ends_exchange = stage == Stage::Pull || stage.follows_pull();
        if self.pushes() { ends_exchange } else { ends_exchange || stage == Stage::PcieReduce }
    }

    /// What copies do with parts in `memory` and their codec, of what their device `can` do. COMPRESS and DECOMPRESS do the rest.
    pub fn in_copies(&self, memory: DeviceKind, can: InCopies) -> InCopies {
        match memory {
            DeviceKind::Cuda if !self.contains(Stage::PcieReduce) => can,
            DeviceKind::Cuda | DeviceKind::Host => InCopies::Nothing,
        }
    }

    fn passed(&self, route: Route) -> impl Iterator<Item = Stage> {
        let Route { duty, memory, compressed, decompressed, lands, aside } = route;
        let pushes = self.pushes();
        let is_client = matches!(duty, Duty::Client { .. });
        let is_duty = move |stage: &Stage| match (duty, stage) {
            (Duty::Owner, _) => true,
            (Duty::Holder, stage) => !stage.is_for_owner(),
            (Duty::Member, stage) => stage.is_collective() || *stage == Stage::Land,
            (Duty::Alone, Stage::PcieReduce) => !pushes,
            (Duty::Alone, stage) => !matches!(stage, Stage::Reduce | Stage::PcieBroadcast | Stage::Broadcast),
            (Duty::Giver, stage) => {
                stage.precedes_push() && !matches!(stage, Stage::Reduce | Stage::PcieReduce) || stage.is_exchange()
            }
            (Duty::Client { receives }, stage) => {
                stage.is_exchange() || *stage == Stage::CopyD2H || *stage == Stage::CopyH2D && receives
            }
            (Duty::Together, stage) => matches!(stage, Stage::AllReduce | Stage::Land),
        };
        let (at_once, grouped) = (self.contains(Stage::AllReduce) && !pushes, self.contains(Stage::PcieReduce));
        let is_needed = move |stage: &Stage| match memory {
            _ if duty == Duty::Together => true,
            memory if is_client => memory == DeviceKind::Cuda || stage.is_exchange(),
            DeviceKind::Cuda => *stage != Stage::AllReduce || at_once && !grouped,
            DeviceKind::Host if at_once => matches!(stage, Stage::AllReduce | Stage::Land),
            DeviceKind::Host => !stage.is_staging() && *stage != Stage::AllReduce,
        };
        // Parameters need servers also where sums need none.
        let stages: &[Stage] = if is_client { &Stage::ALL } else { &self.stages };
        let is_chosen = move |stage: &Stage| match stage {
            Stage::Compress => compressed,
            Stage::Decompress => decompressed,
            Stage::Land => lands || aside,
            _ => true,
        };
        stages.iter().copied().filter(is_duty).filter(is_needed).filter(is_chosen)
    }

    /// Whether parts pass `stage`.
    pub fn contains(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }

    /// Whether the ranks of a machine reduce among themselves before their contributions go on.
    pub fn reduces(&self) -> bool {
        self.contains(Stage::Reduce)
    }

    /// Whether contributions go to servers.
    pub fn pushes(&self) -> bool {
        self.contains(Stage::Push)
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return f.write_str("nothing to reduce");
        }
        let kinds = [Route::device(Duty::Owner), Route::host(Duty::Owner)].map(|route| {
            let stages = self.passed(route.coded());
            // Stages that only tensors with a codec pass are in brackets.
            let name = |stage: Stage| if stage.is_coding() { format!("[{stage}]") } else { stage.to_string() };
            stages.map(name).collect::<Vec<_>>().join(" -> ")
        });
        let [on_devices, on_host] = &kinds;
        f.write_str(on_devices)?;
        match self.contains(Stage::AllReduce) && self.contains(Stage::Reduce) && !self.pushes() {
            true => write!(f, "; in host memory {on_host}"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topology_has_its_stages() {
        use DeviceKind::{Cuda, Host};
        // machines, local ranks, PCIe groups, device, local collective; then the stages.
        let exchange = "[COMPRESS] -> PUSH -> PULL -> [DECOMPRESS]";
        let table = [
            (1, 1, 1, Host, false, "nothing to reduce"),
            (1, 1, 1, Cuda, false, "nothing to reduce"),
            (1, 8, 1, Cuda, true, "ALL_REDUCE"),
            (1, 8, 1, Host, true, "ALL_REDUCE"),
            (
                1,
                8,
                2,
                Cuda,
                true,
                "REDUCE -> COPYD2H -> PCIE_REDUCE -> COPYH2D -> BROADCAST; in host memory ALL_REDUCE",
            ),
            (1, 8, 2, Host, true, "ALL_REDUCE"),
            (4, 1, 1, Cuda, false, "COPYD2H -> exchange -> COPYH2D"),
            (4, 1, 1, Cuda, true, "COPYD2H -> exchange -> COPYH2D"),
            (4, 1, 1, Host, false, "exchange"),
            (4, 8, 1, Cuda, true, "REDUCE -> COPYD2H -> exchange -> COPYH2D -> BROADCAST"),
            (
                4,
                8,
                2,
                Cuda,
                true,
                "REDUCE -> COPYD2H -> PCIE_REDUCE -> exchange -> PCIE_BROADCAST -> COPYH2D -> BROADCAST",
            ),
            (4, 8, 1, Host, true, "REDUCE -> exchange -> BROADCAST"),
            (4, 8, 2, Host, true, "REDUCE -> exchange -> BROADCAST"),
            (1, 4, 1, Host, false, "exchange"),
            (1, 4, 1, Cuda, false, "COPYD2H -> exchange -> COPYH2D"),
            (2, 4, 2, Cuda, false, "COPYD2H -> exchange -> COPYH2D"),
        ];
        for (machines, local_ranks, pcie_groups, device, local_collective, stages) in table {
            let topology = Topology { machines, local_ranks, pcie_groups, device, local_collective };
            assert_eq!(Pipeline::for_role(&topology).to_string(), stages.replace("exchange", exchange), "{topology}");
        }
    }

    #[test]
    fn a_part_leaves_after_the_last_stage() {
        let pipeline = Pipeline::for_role(&Topology::flat(2, DeviceKind::Cuda));
        let route = Route::device(Duty::Owner);
        assert_eq!(pipeline.first(route), Some(Stage::CopyD2H));
        assert_eq!(pipeline.after(Stage::CopyD2H, route), Some(Stage::Push));
        assert_eq!(pipeline.after(Stage::CopyH2D, route), None);
    }

    #[test]
    fn only_memory_of_devices_is_copied_and_only_by_who_exchanges_it() {
        let topology =
            Topology { machines: 2, local_ranks: 2, local_collective: true, ..Topology::single(DeviceKind::Cuda) };
        let pipeline = Pipeline::for_role(&topology);
        let passed = |route| pipeline.passed(route).map(Stage::name).collect::<Vec<_>>().join(" ");
        assert_eq!(passed(Route::device(Duty::Owner)), "REDUCE COPYD2H PUSH PULL COPYH2D BROADCAST");
        assert_eq!(passed(Route::device(Duty::Member)), "REDUCE BROADCAST");
        assert_eq!(passed(Route::device(Duty::Alone)), "COPYD2H PUSH PULL COPYH2D");
        assert_eq!(passed(Route::host(Duty::Owner)), "REDUCE PUSH PULL BROADCAST");
        assert_eq!(passed(Route::host(Duty::Member)), "REDUCE BROADCAST");
        assert_eq!(passed(Route::host(Duty::Alone)), "PUSH PULL");
        let flat = Pipeline::for_role(&Topology::flat(2, DeviceKind::Cuda));
        assert_eq!(flat.first(Route::host(Duty::Owner)), Some(Stage::Push));
    }

    #[test]
    fn only_the_owner_of_a_part_exchanges_it_and_only_partners_reduce_it() {
        let topology =
            Topology { machines: 2, local_ranks: 2, local_collective: true, ..Topology::single(DeviceKind::Host) };
        let pipeline = Pipeline::for_role(&topology);
        let passed = |duty| pipeline.passed(Route::host(duty)).collect::<Vec<Stage>>();
        assert_eq!(passed(Duty::Owner), [Stage::Reduce, Stage::Push, Stage::Pull, Stage::Broadcast]);
        assert_eq!(passed(Duty::Member), [Stage::Reduce, Stage::Broadcast]);
        assert_eq!(passed(Duty::Alone), [Stage::Push, Stage::Pull]);
        let meeting = |stage, duty| pipeline.meeting_after(stage, Route::host(duty));
        for stage in [Stage::Reduce, Stage::Push, Stage::Pull] {
            assert_eq!(meeting(stage, Duty::Owner), Some(Stage::Broadcast));
        }
        assert_eq!(meeting(Stage::Broadcast, Duty::Owner), None);
        assert_eq!(meeting(Stage::Push, Duty::Alone), None);
        let flat = Pipeline::for_role(&Topology::flat(2, DeviceKind::Host));
        assert_eq!(flat.meeting_after(Stage::Push, Route::host(Duty::Owner)), None);
    }

    #[test]
    fn groups_meet_on_the_host_where_each_has_a_holder() {
        let one =
            Topology { local_ranks: 4, pcie_groups: 2, local_collective: true, ..Topology::single(DeviceKind::Cuda) };
        let [one, several] = [1, 2].map(|machines| Pipeline::for_role(&Topology { machines, ..one }));
        let passed = |pipeline: &Pipeline, route| pipeline.passed(route).map(Stage::name).collect::<Vec<_>>().join(" ");
        let device = |pipeline, duty| passed(pipeline, Route::device(duty));
        assert_eq!(device(&one, Duty::Owner), "REDUCE COPYD2H PCIE_REDUCE COPYH2D BROADCAST");
        assert_eq!(device(&one, Duty::Holder), device(&one, Duty::Owner));
        assert_eq!(device(&one, Duty::Member), "REDUCE PCIE_REDUCE BROADCAST");
        assert_eq!(device(&one, Duty::Alone), "COPYD2H PCIE_REDUCE COPYH2D");
        for duty in [Duty::Owner, Duty::Holder, Duty::Member, Duty::Alone] {
            assert_eq!(passed(&one, Route::host(duty)), "ALL_REDUCE");
        }
        let whole = "REDUCE COPYD2H PCIE_REDUCE PUSH PULL PCIE_BROADCAST COPYH2D BROADCAST";
        assert_eq!(device(&several, Duty::Owner), whole);
        assert_eq!(device(&several, Duty::Holder), whole.replace("PUSH PULL ", ""));
        assert_eq!(device(&several, Duty::Member), "REDUCE PCIE_REDUCE PCIE_BROADCAST BROADCAST");
        assert_eq!(device(&several, Duty::Alone), "COPYD2H PUSH PULL COPYH2D");
        assert_eq!(passed(&several, Route::host(Duty::Owner)), "REDUCE PUSH PULL BROADCAST");
        assert_eq!(passed(&several, Route::host(Duty::Member)), "REDUCE BROADCAST");
        let meeting = |stage| several.meeting_after(stage, Route::device(Duty::Owner));
        let meetings = [Stage::CopyD2H, Stage::Push, Stage::CopyH2D].map(meeting);
        assert_eq!(meetings, [Stage::PcieReduce, Stage::PcieBroadcast, Stage::Broadcast].map(Some));
    }

    #[test]
    fn only_parts_with_a_codec_are_encoded_and_only_by_the_rank_that_exchanges_them() {
        let topology = Topology {
            machines: 2,
            local_ranks: 4,
            pcie_groups: 2,
            local_collective: true,
            ..Topology::single(DeviceKind::Cuda)
        };
        let pipeline = Pipeline::for_role(&topology);
        let passed = |route| pipeline.passed(route).map(Stage::name).collect::<Vec<_>>().join(" ");
        assert_eq!(passed(Route::host(Duty::Owner).coded()), "REDUCE COMPRESS PUSH PULL DECOMPRESS BROADCAST");
        assert_eq!(passed(Route::host(Duty::Member).coded()), "REDUCE BROADCAST");
        assert_eq!(passed(Route::host(Duty::Alone).coded()), "COMPRESS PUSH PULL DECOMPRESS");
        let [to_server, and_back] = ["REDUCE COPYD2H PCIE_REDUCE", "PCIE_BROADCAST COPYH2D BROADCAST"];
        let coded = format!("{to_server} COMPRESS PUSH PULL DECOMPRESS {and_back}");
        assert_eq!(passed(Route::device(Duty::Owner).coded()), coded);
        assert_eq!(passed(Route::device(Duty::Owner)), format!("{to_server} PUSH PULL {and_back}"));
        assert_eq!(passed(Route::device(Duty::Holder).coded()), passed(Route::device(Duty::Holder)));
        let meeting = |stage| pipeline.meeting_after(stage, Route::device(Duty::Owner).coded());
        assert_eq!([Stage::Compress, Stage::Decompress].map(meeting), [Some(Stage::PcieBroadcast); 2]);
        assert!(pipeline.has_sum_after(Stage::Decompress) && !pipeline.has_sum_after(Stage::Compress));
    }

    #[test]
    fn a_sum_comes_to_its_place_last_where_its_contribution_is_kept() {
        let topology =
            Topology { machines: 2, local_ranks: 2, local_collective: true, ..Topology::single(DeviceKind::Host) };
        let pipeline = Pipeline::for_role(&topology);
        let passed = |pipeline: &Pipeline, route| {
            let stages = pipeline.passed(route);
            stages.map(Stage::name).collect::<Vec<_>>().join(" ")
        };
        let aside = |duty| passed(&pipeline, Route { aside: true, ..Route::host(duty) });
        assert_eq!(aside(Duty::Owner), "REDUCE PUSH PULL BROADCAST LAND");
        assert_eq!(aside(Duty::Member), "REDUCE BROADCAST LAND");
        assert_eq!(aside(Duty::Together), "ALL_REDUCE LAND");
        let lands = |duty| passed(&pipeline, Route { lands: true, ..Route::host(duty) });
        assert_eq!([Duty::Alone, Duty::Giver].map(lands), ["PUSH PULL LAND", "PUSH PULL"]);
        let together = Pipeline::for_role(&Topology { machines: 1, ..topology });
        assert_eq!(passed(&together, Route { aside: true, ..Route::host(Duty::Owner) }), "ALL_REDUCE LAND");
    }

    #[test]
    fn a_device_encodes_in_its_copies_unless_the_host_adds_what_it_copies() {
        use DeviceKind::{Cuda, Host};
        use InCopies::{Encode, EncodeAndDecode, Nothing};
        let flat = Pipeline::for_role(&Topology::flat(2, Cuda));
        let all = [Nothing, Encode, EncodeAndDecode];
        assert_eq!(all.map(|can| flat.in_copies(Cuda, can)), all);
        assert_eq!(all.map(|can| flat.in_copies(Host, can)), [Nothing; 3], "no device copies it");
        let groups = Topology { local_ranks: 4, pcie_groups: 2, local_collective: true, ..Topology::single(Cuda) };
        let several = Pipeline::for_role(&Topology { machines: 2, ..groups });
        assert_eq!(all.map(|can| several.in_copies(Cuda, can)), [Nothing; 3]);
        let route = Route { decompressed: true, ..Route::device(Duty::Owner) };
        let passed = flat.passed(route).map(Stage::name).collect::<Vec<_>>().join(" ");
        assert_eq!(passed, "COPYD2H PUSH PULL DECOMPRESS COPYH2D", "a device that only encodes");
    }

    #[test]
    #[should_panic(expected = "an exchange is a PUSH and a PULL")]
    fn there_is_no_push_without_a_pull() {
        let _ = Pipeline::of(vec![Stage::Push]);
    }
}
