//! How fast are rows of tables read and changed?

mod contender;
mod job;
mod memory;
mod oracle;
mod redis;
mod store;

use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::codec::Seed;
use gradlane_core::types::{DType, PartId, Round, TableSpec, TensorKey};

use self::contender::{Case, Contender};
use self::job::Job;
use self::memory::Memory;
use self::oracle::Oracle;
use self::redis::Redis;
use self::store::Store;
use crate::job::road::Road;
use crate::measure::{Samples, time};
use crate::progress::Progress;
use crate::report::{Conclusion, Figures, Record, Report, Row, smoke_note};
use crate::table::Table;

/// How fast are rows of tables read and changed?
///
/// One worker pulls and pushes rows by ids, through servers that are processes of this host. All contenders take turns in one run, with the
/// same ids and gradients: `store` is what a server does, without any transport; `memory` copies the same rows out of an array, and adds the
/// gradients to rows and squares in place, as one thread can; with --redis, `redis` reads and replaces the rows as strings, by one MGET and one
/// MSET of all distinct ids. A push of ours computes Adagrad.
///
/// M/s are ids in a second by the median, p50 and p99 are those of single uses in µs. "of memory" and "of redis" are the time of the other
/// divided by ours, turn by turn; ± is half the distance between the slowest and the fastest. All rows are verified in the end, to the bit.
///
/// In the JSON file and with --expect, algbw is the bytes of rows in a second. Contenders have names such as `shm-1`, for one server, and rows
/// such as 'shm-1 pull 4096x16 even'; peers are `memory` and `redis`: 'shm-1/ratio:redis>=1.5'.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Ids of one use, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 65_536], value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ids: Vec<u32>,
    /// Elements of a row, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 128], value_parser = clap::value_parser!(u32).range(1..=4096))]
    dim: Vec<u32>,
    /// How ids are drawn, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Spread::Even, Spread::Zipf])]
    spread: Vec<Spread>,
    /// Rows that there are before anything is measured.
    #[arg(long, default_value_t = 250_000, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    universe: u32,
    /// Numbers of servers, separated by commas; each is a contender for each road.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=16))]
    servers: Vec<u32>,
    /// How bytes travel, separated by commas: shm or quic.
    #[arg(long, value_delimiter = ',', value_parser = Road::parse, default_values = ["shm", "quic"])]
    road: Vec<&'static Road>,
    /// How rows travel: none, bf16, fp16 or int8.
    #[arg(long, default_value = "none")]
    codec: String,
    /// How servers keep rows: f32, bf16 or fp16.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// The port of a Redis on 127.0.0.1 (redis-server) to compare with. Its keys are removed in the end.
    #[arg(long, value_name = "PORT")]
    redis: Option<u16>,
    /// Turns of each contender.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(5..))]
    turns: u32,
    /// Give up a process that is silent for so many seconds.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    #[command(flatten)]
    record: Record,
    /// Verify every row, but with few of them and few turns: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

/// How ids are drawn.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Spread {
    /// Each as often as any other.
    Even,
    /// The n-th most frequent one by 1 / n^1.05.
    Zipf,
}

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    Conclusion::of(measure(arguments), &arguments.record)
}

/// What is kept of a contender in a case.
#[derive(Default)]
struct Times {
    pull: Samples,
    push: Samples,
}

fn measure(arguments: &Arguments) -> Result<(String, Report), Conclusion> {
    let failed = |why: String| Conclusion::Failed(why);
    let (turns, universe) = if arguments.smoke { (5, 2000) } else { (arguments.turns, u64::from(arguments.universe)) };
    let patience = Duration::from_secs(arguments.patience);
    let mut setting = vec![
        format!("gradlane-bench table, {}", env!("CARGO_PKG_VERSION")),
        format!(
            "{universe} rows, kept as {}, rows travel as {}, {turns} turns; a push is Adagrad; all rows verified",
            arguments.dtype, arguments.codec
        ),
    ];
    setting.extend(smoke_note(arguments.smoke));
    let mut report = Report::begin("table", setting);
    let mut table =
        Table::new(["contender", "use", "ids", "dim", "spread", "M/s", "p50", "p99", "of memory", "of redis"]);
    let progress = Progress::begin();
    for dim in &arguments.dim {
        let Arguments { codec, dtype, .. } = arguments;
        let text = format!("adagrad:lr=0.01;dim={dim},init=uniform,scale=0.1,seed=7,codec={codec},dtype={dtype}");
        let spec: TableSpec = text.parse().map_err(|error: gradlane_core::Error| failed(error.to_string()))?;
        let mut memory = Memory::new(spec, universe);
        let mut ours: Vec<Box<dyn Contender>> = vec![Box::new(Store::new(spec))];
        for road in &arguments.road {
            for servers in &arguments.servers {
                progress.say(format!("starting {} with {servers} servers", road.name));
                ours.push(Box::new(Job::start(road, *servers, spec, patience).map_err(failed)?));
            }
        }
        let mut redis = arguments.redis.map(|port| Redis::connect(port, spec, patience)).transpose().map_err(failed)?;
        fill(&mut ours, universe, *dim as usize).map_err(failed)?;
        let mut oracle = Oracle::new(spec);
        for (ids, spread) in
            arguments.ids.iter().flat_map(|ids| arguments.spread.iter().map(move |spread| (ids, spread)))
        {
            progress.say(format!("{ids} ids of {dim}, {spread:?}"));
            let case = Case::draw(*ids as usize, *dim as usize, *spread, universe);
            let mut peers: Vec<&mut dyn Contender> = vec![&mut memory];
            peers.extend(redis.as_mut().map(|redis| redis as &mut dyn Contender));
            let times = contest(&case, &mut ours, &mut peers, turns).map_err(failed)?;
            let wrong = oracle.verify(&case, turns + 1, &mut ours).map_err(failed)?;
            let variant = |way: &str| format!("{way} {ids}x{dim} {}", format!("{spread:?}").to_lowercase());
            let names: Vec<(String, bool)> = ours
                .iter()
                .map(|ours| (ours.name(), true))
                .chain(peers.iter().map(|peer| (peer.name(), false)))
                .collect();
            for way in ["pull", "push"] {
                let of = |index: usize| if way == "pull" { &times[index].pull } else { &times[index].push };
                for (index, (name, is_ours)) in names.iter().enumerate() {
                    let ratio = |peer: &str| {
                        let theirs = names.iter().position(|(name, is_ours)| name == peer && !is_ours);
                        theirs
                            .filter(|_| *is_ours)
                            .map_or_else(String::new, |peer| of(peer).over(of(index)).to_string())
                    };
                    let us = of(index);
                    table.push([
                        name.clone(),
                        way.to_owned(),
                        ids.to_string(),
                        dim.to_string(),
                        format!("{spread:?}").to_lowercase(),
                        format!("{:.2}", f64::from(*ids) / us.median()),
                        format!("{:.0}", us.median()),
                        format!("{:.0}", us.percentile(99.0)),
                        ratio("memory"),
                        ratio("redis"),
                    ]);
                    let bytes = u64::from(*ids) * spec.shard_bytes();
                    let speeds: Vec<f64> = us.values().iter().map(|us| bytes as f64 / us / 1e3).collect();
                    let figures = Figures {
                        algbw: Some(Samples::from(speeds)),
                        wrong: if *is_ours { wrong[index].0 } else { 0 },
                        wrong_at: if *is_ours { wrong[index].1.clone() } else { None },
                        ..Figures::of_times(us.clone())
                    };
                    report.rows.push(Row {
                        bytes,
                        count: bytes / DType::F32.bytes(),
                        dtype: Some(DType::F32),
                        in_place: Some(figures),
                        ..Row::new(name, *is_ours, &variant(way))
                    });
                }
            }
        }
        if let Some(redis) = redis {
            redis.leave().map_err(failed)?;
        }
    }
    drop(progress);
    Ok((report.above(&table, &arguments.record), report))
}

/// Gives each id below the universe its row.
fn fill(ours: &mut [Box<dyn Contender>], universe: u64, dim: usize) -> Result<(), String> {
    const AT_ONCE: usize = 1 << 16;
    let ids: Vec<u64> = (0..universe).collect();
    let mut rows = vec![0.0; AT_ONCE.min(ids.len()) * dim];
    for ours in ours {
        for ids in ids.chunks(AT_ONCE) {
            ours.pull(ids, &mut rows[..ids.len() * dim])?;
        }
    }
    Ok(())
}

/// The times of all contenders, those of ours first, in µs. One turn goes before those that count.
fn contest(
    case: &Case,
    ours: &mut [Box<dyn Contender>],
    peers: &mut [&mut dyn Contender],
    turns: u32,
) -> Result<Vec<Times>, String> {
    let mut times: Vec<Times> = (0..ours.len() + peers.len()).map(|_| Times::default()).collect();
    let mut rows = vec![0.0; case.gradients.len()];
    for turn in 0..=turns {
        let all = ours.iter_mut().map(|ours| &mut **ours as &mut dyn Contender);
        let all = all.chain(peers.iter_mut().map(|peer| &mut **peer as &mut dyn Contender));
        for (contender, times) in all.zip(&mut times) {
            let mut outcome = Ok(());
            // Redis has the rows of its last MSET, so that comes first.
            let push = time(|| outcome = contender.push(&case.ids, &case.gradients));
            outcome?;
            let mut outcome = Ok(());
            let pull = time(|| outcome = contender.pull(&case.ids, &mut rows));
            outcome?;
            if turn > 0 {
                times.pull.push(pull.as_secs_f64() * 1e6);
                times.push.push(push.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

impl Case {
    fn draw(count: usize, dim: usize, spread: Spread, universe: u64) -> Self {
        let seed = Seed::of(PartId { key: TensorKey(count as u64), index: 0 }, Round(0));
        let share = |index: usize| (seed.draw(index as u64) >> 11) as f64 / (1_u64 << 53) as f64;
        let ids = match spread {
            Spread::Even => (0..count).map(|index| (share(index) * universe as f64) as u64).collect(),
            Spread::Zipf => {
                let mut sums = Vec::with_capacity(universe as usize);
                let mut sum = 0.0;
                for rank in 0..universe {
                    sum += ((rank + 1) as f64).powf(-1.05);
                    sums.push(sum);
                }
                (0..count).map(|index| sums.partition_point(|part| *part <= share(index) * sum) as u64).collect()
            }
        };
        // Powers of two add up exactly in whatever order.
        let gradients = (0..count * dim).map(|index| if index % 3 == 0 { 0.5 } else { -0.25 }).collect();
        Self { ids, gradients }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_below_the_universe_and_as_frequent_as_they_should_be() {
        for spread in [Spread::Even, Spread::Zipf] {
            let case = Case::draw(20_000, 1, spread, 1000);
            assert!(case.ids.iter().all(|id| *id < 1000));
            let first = case.ids.iter().filter(|id| **id == 0).count();
            assert_eq!(first > 1000, spread == Spread::Zipf, "{first}");
        }
    }
}
