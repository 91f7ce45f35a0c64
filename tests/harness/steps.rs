//! A worker that trains in steps, and says of each sum which workers are in it and what its bits are.
//!
//! It prints a line for each sum, `step <step> <name> [<ranks>] <CRC-32C>`, with the ranks of each part if they differ, and in the end `left <step>` if it has left the job behind that many
//! steps, or `done`. What a sum says of itself ([`digits`]) is checked here; who reads the lines compares those of several workers.

use std::collections::BTreeMap;

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::engine::{Engine, Step};
use gradlane_core::pipeline::partition::{Multiples, cut};
use gradlane_core::types::{DType, Op};
use gradlane_server::coordinator::CoordinatorConfig;

use crate::cluster::Tensor;
use crate::digits;

/// What a worker does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many steps.
    pub steps: u64,
    /// Elements of the parts of the large tensors.
    pub parts: Vec<usize>,
    /// The step in which it asks to leave the job.
    pub leaves: Option<u64>,
}

/// The elements of each part of a tensor of 32-bit floats, with the settings of this process, in a job on one machine whose workers
/// exchange alone.
///
/// # Errors
/// Which setting is wrong.
pub fn parts(elements: usize, servers: u32) -> Result<Vec<usize>> {
    let (config, _) = Config::from_process(&BTreeMap::new())?;
    let layout = CoordinatorConfig::from_config(&config, RANKS_MAX, servers).layout.with_large_parts();
    let multiples = Multiples { shares: servers.into(), turns: 1 };
    let bytes = |elements: usize| elements as u64 * 4;
    let parts = cut(bytes(elements), DType::F32, multiples, &layout);
    Ok(parts.map(|part| usize::try_from(part.bytes / 4).expect("a part of what is in memory")).collect())
}

/// More than a job of these tests has workers.
const RANKS_MAX: u32 = 8;
/// So many steps use the same name once, so that the coordinator has something to do meanwhile.
const NAME_LASTS: u64 = 3;

/// Makes all steps, or those before it leaves. Lines go to `say`.
///
/// # Errors
/// Why there is no sum.
///
/// # Panics
/// If a sum is wrong.
pub fn train(engine: &Engine, plan: &Plan, say: &impl Fn(&str)) -> Result<()> {
    for step in 0..plan.steps {
        match engine.begin_step()? {
            Step::Begun(_) => {}
            Step::Left => {
                say(&format!("left {step}"));
                return Ok(());
            }
            Step::FormsAgain(passage) => panic!("nobody comes to this job: {passage:?}"),
        }
        if plan.leaves == Some(step) {
            engine.ask_to_leave()?;
        }
        for Summed { name, mut ranks, crc } in sums(engine, step, &plan.parts)? {
            ranks.dedup();
            let ranks: Vec<String> = ranks.iter().map(|ranks| format!("{ranks:?}")).collect();
            let ranks = ranks.join("|").replace("]|[", "|");
            say(&format!("step {step} {name} {ranks} {crc:08x}"));
        }
    }
    engine.end_steps();
    // A worker that has left restores no sum for the others, should a server be lost right then.
    engine.arrive("end", None).wait(None)
}

/// What a worker says of a sum.
struct Summed {
    name: String,
    /// Those that are in it, by part.
    ranks: Vec<Vec<u32>>,
    /// The checksum of its bits.
    crc: u32,
}

/// The sums of a step, which are under way at the same time.
fn sums(engine: &Engine, step: u64, parts: &[usize]) -> Result<Vec<Summed>> {
    let elements = parts.iter().sum();
    let rank = engine.rank().0;
    let own = |name: &str, round: u64, len: usize| Tensor::new(name, digits::contribution(rank, name, round, len));
    let fresh = format!("since{}", step - step % NAME_LASTS);
    let mut tensors = [
        own("place", step, elements),
        own("beside", step, elements),
        own("mean", step, SMALL),
        own(&fresh, step % NAME_LASTS, SMALL),
    ];
    let mut beside = vec![0.0; elements];
    let [place, apart, mean, fresh] = &mut tensors;
    let begun = [
        place.push_pull(engine, Op::Sum),
        engine.push_pull(apart.submission_into(Op::Sum, &mut beside), |_| {}),
        mean.push_pull(engine, Op::Mean),
        fresh.push_pull(engine, Op::Sum),
    ];
    // The memory is the engine's until all of them have ended.
    let ended: Vec<Result<()>> = begun.into_iter().map(|handle| handle?.wait(None)).collect();
    ended.into_iter().collect::<Result<()>>()?;
    tensors[1].data = beside;
    let told = tensors.iter().map(|Tensor { spec, data }| {
        let name = spec.name.clone();
        let round = if name.starts_with("since") { step % NAME_LASTS } else { step };
        let ranks = match &*name {
            "place" | "beside" => digits::counted_by_part(data, parts, RANKS_MAX, &name, round),
            "mean" => digits::counted_in_mean(data, RANKS_MAX, &name, round).map(|ranks| vec![ranks]),
            _ => digits::counted(data, RANKS_MAX, &name, round).map(|ranks| vec![ranks]),
        };
        let ranks = ranks.unwrap_or_else(|wrong| panic!("{wrong}"));
        let bytes: Vec<u8> = data.iter().flat_map(|element| element.to_le_bytes()).collect();
        Summed { name, ranks, crc: crc32c::crc32c(&bytes) }
    });
    Ok(told.collect())
}

/// Elements of a tensor that shares a part with others.
const SMALL: usize = 1000;
