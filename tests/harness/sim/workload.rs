//! From a seed to a plan: how large the job is, what every worker does, and how its parts are set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::pipeline::LayoutConfig;
use gradlane_core::types::{
    CodecSpec, DType, Defect, DeviceKind, InCopies, Op, Participants, Priority, TensorSpec, Time, WorkerId,
};

use super::faults::{self, Fault, FaultClasses};
use super::oracle::Memo;
use super::topology::Topology;
use crate::random::{Random, mix};

mod action;
mod barriers;
mod outliving;
mod parameters;
mod rounds;
mod stepping;
mod store;
pub(super) mod timing;

pub(super) use self::action::Action;
pub(super) use self::parameters::Parameter;
pub(super) use self::rounds::{CLIP, CLOCK, Clocked};
pub(super) use self::store::Asking;

/// Everything that a seed decides before the first event.
#[derive(Debug)]
pub(super) struct Plan {
    /// The seed.
    pub(super) seed: u64,
    /// The mistake that the machines make.
    pub(super) defect: Option<Defect>,
    /// How many workers.
    pub(super) workers: u32,
    /// Where they run.
    pub(super) topology: Topology,
    /// How many servers.
    pub(super) servers: u32,
    /// Which faults may happen.
    pub(super) classes: FaultClasses,
    /// Timeouts and sizes.
    pub(super) settings: Settings,
    /// What is reduced.
    pub(super) tensors: Vec<Tensor>,
    /// What servers keep; last those that follow the clock.
    pub(super) parameters: Vec<Parameter>,
    /// The clock, if there is one.
    pub(super) clocked: Option<Clocked>,
    /// How often every tensor is reduced.
    pub(super) steps: u64,
    /// How many steps a worker may be ahead of its unresolved ones.
    pub(super) depth: u64,
    /// What goes wrong, by time.
    pub(super) faults: Vec<(Time, Fault)>,
    /// What each worker process does, by process number.
    pub(super) scripts: Vec<Vec<Action>>,
    /// The workers that are asked to leave: so long after they have begun which step.
    pub(super) leavers: BTreeMap<u32, (u64, Duration)>,
    /// The step within which workers rest, between two loops over steps.
    rests_in: Option<u64>,
    /// Whether workers submit several tensors in one call.
    batches: bool,
    /// What the oracle computed.
    pub(super) memo: Memo,
    /// Who declares a tensor differently, if anybody does: worker process and tensor.
    pub(super) mismatch: Option<(u32, usize)>,
    /// Who leaves out a tensor in the last step in which all others reduce it, if anybody does: worker process and tensor.
    pub(super) forgets: Option<(u32, usize)>,
}

/// Settings of all processes.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// How tensors are cut.
    pub(super) layout: LayoutConfig,
    /// A worker's bytes in flight.
    pub(super) credit_bytes: u64,
    /// Bytes of a server.
    pub(super) memory_bytes_max: u64,
    /// Whether bodies carry checksums.
    pub(super) checksum: bool,
    /// Whether sums are made in the order of ranks.
    pub(super) deterministic: bool,
    /// Most bytes of a contribution in one block of a sum.
    pub(super) block_bytes_max: u64,
    /// Whether processes ask for their own number as rank.
    pub(super) fixed_ranks: bool,
    /// After this long without a packet a connection is given up.
    pub(super) idle_timeout: Duration,
    /// Latency of a message, at least and at most, in milliseconds.
    pub(super) latency_ms: (u64, u64),
}

/// Numbers of the lists of names that are used once.
const ONE_SHOT_LISTS: u32 = 1000;
/// Tells the draw whether names end from others.
const ENDING: u64 = 0x656e_6469_6e67;
/// Tells the draws of process sets from others.
const SETS: u64 = 0x7365_7473;
/// Tells the draw whether bodies vary in length from others.
const SPARSE: u64 = 0x0073_7061_7273_6500;
/// Tells the draws of sums that nobody uses from others.
const UNUSED: u64 = 0x756e_7573_6564;

/// One tensor of the job.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Its declaration.
    pub(super) spec: TensorSpec,
    /// Tensors of one list are reduced alike and may share parts.
    pub(super) list: u32,
    /// How urgent.
    pub(super) priority: Priority,
    /// Whether the sum lands on the contribution.
    pub(super) in_place: bool,
    /// The only step in which it is reduced, if it is a name that is used once.
    pub(super) only_step: Option<u64>,
    /// Whether its name ends after that step, and comes again for another tensor.
    pub(super) ends: bool,
    /// Whether it lies in memory of a device.
    pub(super) on_device: bool,
    /// Whether that device knows its codec.
    pub(super) in_copies: InCopies,
    /// Whether its sums depend on the order of the ranks.
    pub(super) rough: bool,
}

impl Plan {
    /// The plan of `seed`.
    pub(super) fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut random = Random::new(seed);
        let servers = random.pick(&[1, 1, 2, 2, 3]);
        let mut classes = FaultClasses::draw(&mut random);
        let servers = outliving::draw(seed, &mut classes, servers);
        // See [`oracle::factor`](super::oracle).
        let apart = classes.survivors.then(|| random.between(2, 3) as usize + usize::from(random.chance(30)));
        let mut topology = Topology::draw(&mut random, apart);
        stepping::draw(seed, &mut classes, &mut topology);
        let workers = topology.workers();
        let steps = random.between(2, 7);
        let depth = random.between(1, 3);
        let deterministic = random.chance(30);
        let mut tensors = tensors(&mut random, &topology, deterministic, classes.survivors);
        if mix(seed ^ SPARSE).is_multiple_of(4) {
            make_sparse(&mut tensors);
        }
        if classes.one_shot_names {
            add_one_shot_names(&mut tensors, steps, random.between(1, 6));
        }
        let mut settings = settings(&mut random, &tensors, &topology, deterministic, classes);
        let mut parameters = parameters::draw(seed, workers, topology.device, &settings);
        // A job with parameters does not go on without one of its servers, and takes nobody in.
        parameters.retain(|_| !classes.outlives && !classes.waits);
        let clocked = rounds::draw(seed, workers, classes);
        parameters.extend(clocked.iter().flat_map(Clocked::parameters));
        settings.memory_bytes_max += memory_of(&parameters, workers, classes);
        settings.memory_bytes_max += held_bytes(&tensors);
        let mismatch = (classes.mismatch && workers > 1)
            .then(|| (random.below(u64::from(workers)) as u32, random.below(tensors.len() as u64) as usize));
        let forgets = (classes.subsets && workers > 1 && !topology.has_teams())
            .then(|| (random.below(u64::from(workers)) as u32, random.below(tensors.len() as u64) as usize));
        let mut plan = Self {
            seed,
            defect,
            workers,
            topology,
            servers,
            classes,
            settings,
            tensors,
            parameters,
            clocked,
            steps,
            depth,
            faults: {
                let drawn = faults::schedule(classes, workers, servers, &mut random);
                [drawn, stepping::newcomers(seed, classes), outliving::losses(seed, classes, servers)].concat()
            },
            rests_in: stepping::rests_in(seed, classes, steps),
            leavers: stepping::leavers(seed, classes, workers, steps),
            scripts: Vec::new(),
            batches: random.chance(40),
            memo: Memo::default(),
            mismatch,
            forgets,
        };
        let barriers: BTreeSet<u64> = (0..steps).filter(|_| random.chance(25)).collect();
        if mix(seed ^ ENDING).is_multiple_of(2) {
            plan.end_one_shot_names();
        }
        if workers > 1 && mix(seed ^ SETS).is_multiple_of(3) {
            plan.draw_participants();
        }
        plan.scripts = (0..workers).map(|worker| plan.script(&mut random, worker, &barriers)).collect();
        let scripts = std::mem::take(&mut plan.scripts);
        let woven = |(worker, script)| plan.ask_store(worker, plan.tick(plan.use_parameters(worker, script)));
        plan.scripts = (0..).zip(scripts).map(woven).collect();
        plan
    }

    /// Whether workers may take back what error feedback has kept of a sum.
    pub(super) fn holds_feedback(&self) -> bool {
        mix(self.seed ^ UNUSED).is_multiple_of(2)
    }

    /// Whether this worker does not use the sums of a round. Mostly all workers agree.
    pub(super) fn is_unused(&self, round: u64, worker: u32) -> bool {
        let draw = |of: u64| mix(self.seed ^ UNUSED ^ ((round + 1) << 16) ^ of);
        draw(0).is_multiple_of(2) && !draw(u64::from(worker) + 1).is_multiple_of(8)
    }

    /// The names that are used once come again, for other tensors, as soon as they have ended.
    fn end_one_shot_names(&mut self) {
        // Those that fail, or that some worker does not use, do not end.
        let special = [self.mismatch, self.forgets].map(|who| who.map(|(_, tensor)| tensor));
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            if let Some(step) = tensor.only_step.filter(|_| !special.contains(&Some(index))) {
                let (_, number) = tensor.spec.name.split_once('.').expect("named by step and number");
                tensor.spec.name = format!("again{}.{number}", step % self.depth);
                tensor.ends = true;
            }
        }
    }

    /// Gives the tensors of some lists to some workers only, or their sums to one worker. Tensors of one name follow each other, and have the
    /// same participants.
    fn draw_participants(&mut self) {
        // Members are ranks, and what each worker does is decided before it has one.
        self.settings.fixed_ranks = true;
        let (seed, workers) = (self.seed, u64::from(self.workers));
        // There a round of a set takes so long that the other workers stall on its members.
        let is_slow = self.classes.refusals && self.settings.latency_ms.1 > 100;
        for tensor in &mut self.tensors {
            let of = if tensor.only_step.is_some() { tensor.spec.key().0 } else { u64::from(tensor.list) };
            let draw = mix(seed ^ SETS ^ of);
            // Devices of one machine reduce for all its ranks only, if there is no server.
            if draw.is_multiple_of(4) || tensor.on_device && self.topology.is_one_machine() {
                continue;
            }
            let is_member = |rank: &u64| mix(draw ^ rank).is_multiple_of(2);
            let mut members: Vec<u64> = (0..workers).filter(is_member).collect();
            if members.is_empty() {
                members.push((draw >> 8) % workers);
            }
            let receiver = members[(draw >> 16) as usize % members.len()];
            let [all, some] = [Participants::ALL, Participants::of(members.iter().map(|rank| worker(*rank)).collect())];
            tensor.spec.participants = match (draw >> 24) % 4 {
                0 => all.with_receiver(worker((draw >> 16) % workers)),
                _ if is_slow => all,
                1 => some.with_receiver(worker(receiver)),
                _ => some,
            };
        }
    }

    /// The ranks that take part in the rounds of a tensor.
    pub(super) fn members(&self, tensor: usize) -> impl Iterator<Item = u32> + Clone {
        let participants = &self.tensors[tensor].spec.participants;
        (0..self.workers).filter(|rank| participants.contains(WorkerId(*rank)))
    }

    /// Whether a worker takes part in the rounds of a tensor.
    fn uses(&self, worker: u32, tensor: usize) -> bool {
        let participants = &self.tensors[tensor].spec.participants;
        // Without fixed ranks everybody takes part in everything.
        participants.is_everybody() || participants.contains(WorkerId(worker))
    }

    /// Whether the ranks of a machine reduce a tensor among themselves.
    pub(super) fn meets(&self, tensor: usize) -> bool {
        let Tensor { spec, on_device, .. } = &self.tensors[tensor];
        if spec.participants.is_everybody() {
            return spec.dtype != DType::F16 || self.topology.is_one_machine();
        }
        let Some(first) = self.members(tensor).next() else { return false };
        let has_server = !self.topology.is_one_machine();
        let team = self.topology.team(first);
        team.len() > 1 && self.members(tensor).all(|rank| team.contains(&rank)) && !(*on_device && has_server)
    }

    /// How a round of a tensor is reduced: alike for all tensors of a list, so that they may share parts.
    pub(super) fn op(&self, tensor: usize, round: u64) -> Op {
        let Tensor { spec, list, rough, .. } = &self.tensors[tensor];
        if *rough {
            return Op::Sum;
        }
        let draw = mix(self.seed ^ (u64::from(*list) << 32) ^ round);
        let narrow = matches!(spec.dtype, DType::I8 | DType::U8);
        match draw % 8 {
            0..=2 => Op::Sum,
            // A mean of 8-bit integers has no room for the digits of several workers.
            3 | 4 if !narrow => Op::Mean,
            3 | 4 => Op::Sum,
            5 if spec.dtype.is_float() && !self.classes.survivors => Op::WeightedMean,
            5 => Op::Max,
            6 => Op::Min,
            _ => {
                let root = (draw >> 8) as u32 % self.members(tensor).count() as u32;
                let root = self.members(tensor).nth(root as usize).expect("below their number");
                Op::Broadcast { root: WorkerId(root) }
            }
        }
    }

    /// The weight of a rank in a round of a tensor: 1 unless the reduction asks for weights; never 0 for all ranks.
    pub(super) fn weight(&self, tensor: usize, round: u64, rank: u32) -> u64 {
        if self.op(tensor, round) != Op::WeightedMean {
            return 1;
        }
        let list = u64::from(self.tensors[tensor].list);
        let draw = |of: u64| mix(self.seed ^ (list << 40) ^ (round << 8) ^ of);
        let weight = draw(u64::from(rank)) % 4;
        // Of a process set, the first member has a weight.
        if !self.tensors[tensor].spec.participants.is_everybody() {
            let is_first = self.members(tensor).next() == Some(rank);
            return if is_first { weight.max(1) } else { weight };
        }
        // Ranks of a machine with several are their process's number.
        let of_machine = self.topology.weight(rank, draw(0xff));
        of_machine.unwrap_or(if rank == 0 { weight.max(1) } else { weight })
    }

    /// Whether all workers reduce a tensor in a step.
    fn is_due(&self, tensor: usize, step: u64) -> bool {
        if let Some(only) = self.tensors[tensor].only_step {
            return only == step;
        }
        // Those that share a part with it then wait in vain, so all workers must: a member alone would fall behind the others.
        let is_of_all = self.tensors[tensor].spec.participants.members().is_none();
        !(self.classes.subsets && is_of_all && mix(self.seed ^ (tensor as u64) << 8 ^ step).is_multiple_of(4))
    }

    /// How often all workers reduce a tensor.
    pub(super) fn rounds(&self, tensor: usize) -> u64 {
        (0..self.steps).filter(|step| self.is_due(tensor, *step)).count() as u64
    }

    fn script(&self, random: &mut Random, worker: u32, barriers: &BTreeSet<u64>) -> Vec<Action> {
        let mut script = Vec::new();
        let mut lists: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let lasting = self.tensors.iter().enumerate().filter(|(_, tensor)| tensor.only_step.is_none());
        let lasting = lasting.filter(|(index, _)| self.uses(worker, *index));
        for (index, tensor) in lasting {
            lists.entry(tensor.list).or_default().push(index);
        }
        let mut lists: Vec<Vec<usize>> = lists.into_values().collect();
        random.shuffle(&mut lists);
        for mut tensors in lists {
            // Who does not declare lets the first submission do so.
            if random.chance(70) {
                random.shuffle(&mut tensors);
                script.push(Action::Declare { tensors, fuse: random.chance(75) });
            }
        }
        let mut rounds = vec![0; self.tensors.len()];
        for step in 0..self.steps {
            if self.classes.steps {
                script.push(Action::Step);
            }
            if let Some(before) = step.checked_sub(self.depth) {
                script.push(Action::Await { round: before });
                let over =
                    |tensor: &usize| self.tensors[*tensor].ends && self.tensors[*tensor].only_step == Some(before);
                let tensors: Vec<usize> =
                    (0..self.tensors.len()).filter(over).filter(|tensor| self.uses(worker, *tensor)).collect();
                if !tensors.is_empty() {
                    script.push(Action::Undeclare { tensors });
                }
            }
            let is_due = |tensor: &usize| self.is_due(*tensor, step) && self.uses(worker, *tensor);
            let mut order: Vec<usize> = (0..self.tensors.len()).filter(is_due).collect();
            random.shuffle(&mut order);
            // What it submits after that is between two loops.
            let mut rests_at = self.rests_at(worker, step, order.len());
            while let Some(first) = order.pop() {
                if rests_at.take_if(|left| order.len() < *left).is_some() {
                    script.push(Action::Rest);
                }
                if self.forgets == Some((worker, first)) && rounds[first] + 1 == self.rounds(first) {
                    rounds[first] += 1;
                    continue;
                }
                let batch = self.batch(random, first, &rounds, &mut order);
                let timeout = (self.classes.deadlines && random.chance(10)).then(|| random.millis(20, 4000));
                let members: Vec<(usize, u64)> = batch.iter().map(|tensor| (*tensor, rounds[*tensor])).collect();
                batch.iter().for_each(|tensor| rounds[*tensor] += 1);
                script.push(match members[..] {
                    [(tensor, round)] => Action::Submit { tensor, round, timeout },
                    _ => Action::SubmitAll { members: members.clone(), timeout },
                });
                // Nothing comes before what is given up in the first step. Before a barrier, nothing comes after it that would tell the others.
                let is_before_barrier = barriers.contains(&step);
                let percent = if is_before_barrier {
                    70
                } else if step == 0 {
                    40
                } else {
                    12
                };
                for (tensor, round) in members {
                    if self.classes.cancels && random.chance(percent) {
                        if random.chance(if is_before_barrier { 10 } else { 70 }) {
                            script.push(Action::Think(random.millis(0, 300)));
                        }
                        script.push(Action::Cancel { tensor, round });
                    }
                }
            }
            if rests_at.is_some() {
                script.push(Action::Rest);
            }
            if random.chance(40) {
                script.push(Action::Think(random.millis(0, 700)));
            }
            if barriers.contains(&step) {
                script.push(self.barrier(random, step));
            }
        }
        if self.classes.steps {
            script.push(Action::Rest);
        }
        script.push(Action::Await { round: self.steps });
        script
    }

    /// The tensors that a worker submits with `first` in one call: some of those left in this step that are reduced alike.
    fn batch(&self, random: &mut Random, first: usize, rounds: &[u64], left: &mut Vec<usize>) -> Vec<usize> {
        let mut batch = vec![first];
        if self.batches && random.chance(60) {
            let kind = |tensor: usize| (self.tensors[tensor].list, rounds[tensor]);
            let forgotten = |tensor: usize| self.forgets.is_some_and(|(_, forgotten)| forgotten == tensor);
            batch.extend(left.extract_if(.., |tensor| kind(*tensor) == kind(first) && !forgotten(*tensor)));
        }
        batch
    }
}

fn worker(rank: u64) -> WorkerId {
    WorkerId(rank as u32)
}

fn tensors(random: &mut Random, topology: &Topology, deterministic: bool, survivors: bool) -> Vec<Tensor> {
    let workers = topology.workers();
    let mut tensors = Vec::new();
    let mut position = 0;
    for list in 0..random.between(1, 3) as u32 {
        let dtype = random.pick(&[
            DType::F32,
            DType::F32,
            DType::F64,
            DType::F16,
            DType::BF16,
            DType::I32,
            DType::I64,
            DType::I8,
            DType::U8,
        ]);
        let on_device = topology.device == DeviceKind::Cuda && random.chance(70);
        // Where machines add for themselves, the order in which their sums are added depends on who owns a part.
        let in_order = !topology.has_teams() || topology.is_one_machine() && !on_device;
        let rough = deterministic && in_order && dtype.is_float() && random.chance(50);
        // What is lost is fed back across changes of the workers only where some survive.
        let is_encoded = !rough && CodecSpec::F16.encodes(dtype) && random.chance(if survivors { 80 } else { 40 });
        let codec = if is_encoded { random.pick(&[CodecSpec::F16, CodecSpec::BF16]) } else { CodecSpec::PLAIN };
        // All numbers are exact in their wire form, so that nothing is lost, whether it is fed back or not.
        let codec = if is_encoded && (list > 0 || survivors) { fed_back(codec) } else { codec };
        let knows = on_device && random.chance(50);
        let in_copies = if knows { InCopies::EncodeAndDecode } else { InCopies::Nothing };
        for index in 0..random.between(1, 4) {
            // Of at least so many that every rank shows in the result, unless there is none.
            let elements: u64 = random.pick(&[0, 1, 3, 17, 64, 100, 130, 300, 700]);
            let elements = if elements == 0 { 0 } else { elements.max(u64::from(workers)) };
            let shape = if random.chance(30) { vec![elements, 1] } else { vec![elements] };
            let spec = TensorSpec::new(format!("list{list}.{index}"), dtype, shape).with_codec(codec);
            let priority = Priority::of_position(position);
            tensors.push(Tensor {
                spec,
                list,
                priority,
                in_place: random.chance(60),
                only_step: None,
                ends: false,
                on_device,
                in_copies,
                rough,
            });
            position += 1;
        }
    }
    tensors
}

/// The same codec with error feedback.
fn fed_back(codec: CodecSpec) -> CodecSpec {
    format!("{codec}:feedback=1").parse().expect("every codec has it but the plain one")
}

/// The tensors that can be are sent by their largest elements, in bodies of any length: by as many as are not zero in a contribution. One of
/// three is sent without loss instead, whatever its type.
fn make_sparse(tensors: &mut [Tensor]) {
    let [quarter, fed_back] =
        ["topk:k=250000", "topk:k=250000,feedback=1"].map(|text| text.parse::<CodecSpec>().expect("in millionths"));
    for (at, tensor) in tensors.iter_mut().enumerate().filter(|(_, tensor)| !tensor.rough) {
        let codec = match tensor.spec.kind.codec().has_feedback() {
            // No device has kernels for it.
            _ if at % 3 == 2 => {
                tensor.in_copies = InCopies::Nothing;
                CodecSpec::LOSSLESS
            }
            _ if !fed_back.encodes(tensor.spec.dtype) => continue,
            true => fed_back,
            false => quarter,
        };
        if at % 3 == 1 {
            // As if there were no kernels that decode.
            tensor.in_copies = tensor.in_copies.min(InCopies::Encode);
        }
        tensor.spec = tensor.spec.clone().with_codec(codec);
    }
}

/// Adds names that are used in one step only, as the broadcast of an optimizer's state uses them.
fn add_one_shot_names(tensors: &mut Vec<Tensor>, steps: u64, per_step: u64) {
    for (step, index) in (0..steps).flat_map(|step| (0..per_step).map(move |index| (step, index))) {
        let spec = TensorSpec::new(format!("once{step}.{index}"), DType::F32, vec![64]);
        let (list, priority) = (ONE_SHOT_LISTS + tensors.len() as u32, Priority::of_position(tensors.len()));
        tensors.push(Tensor {
            spec,
            list,
            priority,
            in_place: true,
            only_step: Some(step),
            ends: false,
            on_device: false,
            in_copies: InCopies::Nothing,
            rough: false,
        });
    }
}

/// What the parameters need of a server beside its sums. If servers have too little memory, it is for the values only.
fn memory_of(parameters: &[Parameter], workers: u32, classes: FaultClasses) -> u64 {
    let values: u64 = parameters.iter().map(Parameter::bytes).sum();
    // Of each worker a change that is on its way and the answer to the use before.
    if classes.refusals { values } else { values * (1 + 3 * u64::from(workers)) }
}

/// What residuals need of a server if what was there before each answer is kept too.
fn held_bytes(tensors: &[Tensor]) -> u64 {
    let fed_back = tensors.iter().filter(|tensor| tensor.spec.kind.codec().has_answer_feedback());
    fed_back.map(|tensor| tensor.spec.bytes().expect("small")).sum()
}

fn settings(
    random: &mut Random,
    tensors: &[Tensor],
    topology: &Topology,
    deterministic: bool,
    classes: FaultClasses,
) -> Settings {
    let partition_bytes = random.pick(&[512, 1024, 4096]);
    let credit_bytes = random.pick(&[300, 1000, 4000, 1 << 20]);
    let model: u64 = tensors.iter().map(|tensor| tensor.spec.bytes().expect("small")).sum();
    // Sums of the last step or accumulators of this one, which are twice as large for f16, and what the workers may have on its way.
    let tight = 4 * model + u64::from(topology.workers()) * credit_bytes.max(partition_bytes);
    Settings {
        layout: LayoutConfig {
            partition_bytes,
            fuse_bytes: random.pick(&[0, 128, 512]),
            part_bytes_min: random.pick(&[128, 512]),
            pipeline_bytes_min: random.pick(&[256, partition_bytes]),
        },
        credit_bytes,
        memory_bytes_max: if classes.refusals {
            model / 2
        } else if random.chance(30) {
            tight
        } else {
            1 << 30
        },
        checksum: random.chance(80),
        deterministic,
        // Where it matters who shares a machine, ranks are known beforehand.
        fixed_ranks: random.chance(50) || topology.has_teams(),
        idle_timeout: random.millis(1000, 10_000),
        latency_ms: random.pick(&[(0, 2), (0, 20), (1, 100), (5, 400)]),
        block_bytes_max: random.pick(&[64, 256, 1024]),
    }
}
