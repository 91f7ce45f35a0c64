//! The clock of a seed: its mode, the parameters that follow it, and when workers tick it. Most seeds have none.
//!
//! A round stands where a barrier could: behind the same step of every worker, and a worker leaves out rounds that others have closed. So nobody
//! waits for a worker that waits for it. All draws come from sequences of their own.

use gradlane_core::types::{Access, ClockKey, DType, Mode, Pace, Quorum, Rule, TensorSpec, Update};

use super::{Action, Parameter, Plan};
use crate::random::{Random, mix};
use crate::sim::faults::FaultClasses;

/// Tells the draws of clocks from others.
const CLOCKS: u64 = 0x636c_6f63_6b73;

/// The name of the clock.
pub(in crate::sim) const CLOCK: &str = "clock";

/// The bound of gradients that are clipped: below the norms of most rounds, and above some.
pub(in crate::sim) const CLIP: f64 = 100.0;

/// A clock and what follows it.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Clocked {
    /// The mode, with its clock.
    pub(in crate::sim) mode: Mode,
    /// Whether gradients are clipped.
    pub(in crate::sim) clips: bool,
    /// The lengths of the parameters, in elements.
    lengths: Vec<u64>,
    in_place: bool,
}

/// The clock of a job, in one of four seeds where everybody comes and stays, so that no round waits for a worker in vain.
pub(super) fn draw(seed: u64, workers: u32, classes: FaultClasses) -> Option<Clocked> {
    let FaultClasses { kills, long_pauses, long_partitions, dead_paths, drains, .. } = classes;
    let FaultClasses { intruders, refusals, steps, outlives, waits, comes, deadlines, .. } = classes;
    let loses_some = kills || long_pauses || long_partitions || dead_paths || drains;
    // Who gives a barrier up leaves others waiting there.
    let is_special = intruders || refusals || steps || outlives || waits || comes || deadlines;
    let draw = mix(seed ^ CLOCKS);
    // So many digits are exact in a float of 24 bits.
    if loses_some || is_special || workers > 4 || !draw.is_multiple_of(4) {
        return None;
    }
    let mut random = Random::new(draw);
    let k = random.between(1, u64::from(workers));
    let mode = random.pick(&["sync", "k_of_n", "k_of_n", "ssp"]);
    let text = match mode {
        "sync" => "sync:merge=sum".to_owned(),
        "k_of_n" => format!("k_of_n:k={k},merge=sum"),
        _ => format!("ssp:bound={}", random.between(0, 2)),
    };
    let clips = mode != "ssp" && random.chance(60);
    let lengths = (0..random.between(1, 3)).map(|_| random.pick(&[2, 40, 600])).collect();
    let mode = text.parse::<Mode>().expect("a mode").with_clock(ClockKey::of(CLOCK));
    Some(Clocked { mode, clips, lengths, in_place: random.chance(50) })
}

impl Clocked {
    /// The parameters that follow the clock. Those behind the first one are clipped, if any are.
    pub(super) fn parameters(&self) -> impl Iterator<Item = Parameter> {
        self.lengths.iter().enumerate().map(|(index, length)| {
            let is_clipped = self.clips && (index > 0 || self.lengths.len() == 1);
            let rule = if is_clipped { format!("sgd:lr=1,clip_norm={CLIP}") } else { "sgd:lr=1".to_owned() };
            let rule: Rule = rule.parse().expect("a rule");
            let spec = TensorSpec::parameter(format!("clocked{index}"), DType::F32, vec![*length]);
            let spec = spec.with_rule(rule).with_mode(self.mode);
            Parameter { spec, update: Update::Step, on_device: false, in_place: self.in_place }
        })
    }

    /// The workers that close a round, if the mode has rounds; `None` for all.
    pub(in crate::sim) fn quorum(&self) -> Option<usize> {
        match self.mode.rounds() {
            Some((_, Quorum::First(k), _)) => Some(k as usize),
            Some((_, Quorum::All, _)) | None => None,
        }
    }

    /// The rounds that a worker may be ahead of the slowest one, if the mode bounds them.
    pub(in crate::sim) fn bound(&self) -> Option<u64> {
        match self.mode.pace {
            Pace::Ssp { bound } => Some(u64::from(bound)),
            Pace::Async | Pace::Rounds { .. } => None,
        }
    }
}

impl Plan {
    /// The parameters that follow no clock.
    pub(super) fn unclocked(&self) -> usize {
        self.parameters.iter().filter(|parameter| parameter.spec.kind.mode().clock.is_none()).count()
    }

    /// Puts rounds of the clock between the actions of a worker: behind the same steps of all.
    pub(super) fn tick(&self, script: Vec<Action>) -> Vec<Action> {
        if self.clocked.is_none() {
            return script;
        }
        let all = || self.unclocked()..self.parameters.len();
        let uses = |access| all().map(move |parameter| Action::Use { parameter, access, timeout: None });
        let push = uses(Access::Push(Update::Step)).chain([Action::AwaitUses, Action::Tick]);
        let actions: Vec<Action> = push.chain(uses(Access::Pull)).chain([Action::AwaitUses]).collect();
        let mut rounds = (1..).map(|round| {
            let begin = Action::BeginRound { round, actions: actions.len() };
            std::iter::once(begin).chain(actions.iter().cloned())
        });
        let mut random = Random::new(mix(self.seed ^ CLOCKS ^ 1));
        let mut woven: Vec<Action> = uses(Access::Init).chain([Action::AwaitUses]).collect();
        for action in script {
            let is_boundary = matches!(action, Action::Await { .. });
            woven.push(action);
            if is_boundary {
                // As many for all, because all draw alike.
                woven.extend(rounds.by_ref().take(random.between(0, 2) as usize).flatten());
            }
        }
        woven.push(Action::LeaveClock);
        woven
    }
}
