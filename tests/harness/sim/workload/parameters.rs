//! The parameters of a seed: which ones, how large, and what every worker does to them between its other actions.
//!
//! All draws come from sequences of their own, so a seed without parameters is what it would be if there were none in any.

use std::time::Duration;

use gradlane_core::types::{Access, DType, DeviceKind, Rule, TensorSpec, Update};

use super::{Action, Plan, Settings, timing};
use crate::random::{Random, mix};

/// Tells the draws of parameters from others.
const PARAMETERS: u64 = 0x7061_7261_6d73;

/// Tells the draws of rules from others.
const RULES: u64 = 0x72_756c_6573;

/// Most uses of a worker, but for its last ones: fewer than its digit can count.
const USES_MAX: usize = 40;
/// As many where messages take long.
const SLOW_USES_MAX: usize = 10;
/// Fewest uses that may be drawn, also where each takes long.
const USES_MIN: usize = 2;

/// One parameter of the job.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Parameter {
    /// Its declaration.
    pub(in crate::sim) spec: TensorSpec,
    /// How workers change it.
    pub(in crate::sim) update: Update,
    /// Whether it lies in memory of a device.
    pub(in crate::sim) on_device: bool,
    /// Whether the value of a push_pull lands on the change.
    pub(in crate::sim) in_place: bool,
}

impl Parameter {
    /// Bytes of it.
    pub(in crate::sim) fn bytes(&self) -> u64 {
        self.spec.bytes().expect("small")
    }
}

/// The parameters of a job: none in two of three seeds.
pub(super) fn draw(seed: u64, workers: u32, device: DeviceKind, settings: &Settings) -> Vec<Parameter> {
    let draw = mix(seed ^ PARAMETERS);
    if !draw.is_multiple_of(3) {
        return Vec::new();
    }
    let mut random = Random::new(draw);
    // The second one, where there is one, is assigned and not added to.
    let updates: &[Update] = random.pick(&[&[Update::Add], &[Update::Add, Update::Assign], &[Update::Assign]]);
    let parameter = |(index, update): (usize, &Update)| {
        // So many digits are exact in a float of 24 bits.
        let dtype = if workers <= 4 { random.pick(&[DType::F32, DType::I64]) } else { DType::I64 };
        // From a part that is not full to two full ones and a rest.
        let bytes = settings.layout.partition_bytes * random.between(0, 2) + random.pick(&[8, 120, 400]);
        let spec = TensorSpec::parameter(format!("parameter{index}"), dtype, vec![bytes / dtype.bytes()]);
        let on_device = device == DeviceKind::Cuda && random.chance(60);
        let in_place = random.chance(50);
        // Half of those to which floats are added are changed by gradients in its place.
        if *update == Update::Add && dtype == DType::F32 && mix(draw ^ RULES).is_multiple_of(2) {
            let rule: Rule = "sgd:lr=1".parse().expect("a rule");
            return Parameter { spec: spec.with_rule(rule), update: Update::Step, on_device, in_place };
        }
        Parameter { spec, update: *update, on_device, in_place }
    };
    updates.iter().enumerate().map(parameter).collect()
}

impl Plan {
    /// Puts uses of the parameters between the actions of a worker. Everybody begins with an init and ends with a pull.
    pub(super) fn use_parameters(&self, worker: u32, script: Vec<Action>) -> Vec<Action> {
        if self.unclocked() == 0 {
            return script;
        }
        let mut random = Random::new(mix(self.seed ^ PARAMETERS ^ u64::from(worker + 1)));
        let mut woven = Vec::new();
        let all = || 0..self.unclocked();
        // Some come late.
        let first = if random.chance(70) { 0 } else { random.below(script.len() as u64 / 2 + 1) as usize };
        let percent = random.pick(&[15, 40, 70]);
        let uses_max = self.uses_max();
        for (at, action) in script.into_iter().enumerate() {
            if at == first {
                woven.extend(all().map(|parameter| Action::Use { parameter, access: Access::Init, timeout: None }));
                if random.chance(50) {
                    woven.push(Action::AwaitUses);
                }
            }
            let is_between = !matches!(action, Action::Cancel { .. });
            let used = woven.iter().filter(|action| matches!(action, Action::Use { .. })).count();
            if at >= first && is_between && used < uses_max && random.chance(percent) {
                self.use_some(&mut random, &mut woven);
            }
            woven.push(action);
        }
        woven.push(Action::AwaitUses);
        woven.extend(all().map(|parameter| Action::Use { parameter, access: Access::Pull, timeout: None }));
        woven.push(Action::AwaitUses);
        if mix(self.seed ^ PARAMETERS ^ 0x656e_6473).is_multiple_of(2) {
            woven.push(Action::UndeclareParameters);
        }
        woven
    }

    /// How many uses of a worker end within half a step timeout. The other workers stall on one that makes more of them and waits for them
    /// before it submits what all reduce. If there is little credit, the parts of a use travel one after the other.
    fn uses_max(&self) -> usize {
        let Settings { credit_bytes, latency_ms: (_, most), layout, .. } = &self.settings;
        let bytes = self.parameters[..self.unclocked()].iter().map(Parameter::bytes).max().unwrap_or(0);
        let part_bytes = layout.part_bytes_min;
        let turns = bytes.div_ceil(part_bytes).div_ceil((credit_bytes / part_bytes).max(1)).max(1);
        // Most messages take an eighth of the longest latency.
        let one = Duration::from_millis(most / 8 * 2 + most / 5 + 1) * turns as u32;
        let uses = (timing::STEP / 2).as_millis() / one.as_millis();
        (uses as usize).clamp(USES_MIN, if *most > 20 { SLOW_USES_MAX } else { USES_MAX })
    }

    /// A few uses of one parameter, which a worker may give up or wait for.
    fn use_some(&self, random: &mut Random, script: &mut Vec<Action>) {
        let parameter = random.below(self.unclocked() as u64) as usize;
        let update = self.parameters[parameter].update;
        for _ in 0..random.between(1, 2) {
            let push = Access::Push(update);
            let access = random.pick(&[push, push, Access::PushPull(update), Access::PushPull(update), Access::Pull]);
            // An init that comes late changes nothing.
            let access = if random.chance(4) { Access::Init } else { access };
            let timeout = (self.classes.deadlines && random.chance(10)).then(|| random.millis(20, 4000));
            script.push(Action::Use { parameter, access, timeout });
            if self.classes.cancels && random.chance(12) {
                if random.chance(70) {
                    script.push(Action::Think(random.millis(0, 300)));
                }
                script.push(Action::CancelUse { parameter });
            }
        }
        if random.chance(30) {
            script.push(Action::AwaitUses);
        } else if random.chance(10) {
            script.push(Action::Think(Duration::from_millis(random.below(50))));
        }
    }
}
