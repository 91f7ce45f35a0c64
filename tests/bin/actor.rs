//! A process that a test directs: a worker of a job, or the `gradlane-server` command.
//!
//! - `puppet` joins as a worker, says `joined <rank>`, then does what standard input says, one order a line, and answers each with
//!   `ok` or `failed <code> <error>`:
//!   `fed <codec> <round>` (a sum of a tensor of that name, with that codec; first says the CRC-32C of the sum), `beside <name> <round>` (a large sum into other memory; first says which ranks are in it), `large <name> <round>` (the same in place), `sum <name> <round>`, `pair <name> <round>` (a sum of ranks 0 and 1), `row <name> <step>` (a push of a row of a table whose pushes wait for all workers), `barrier <name> <milliseconds>`, `shutdown <milliseconds>`; or with a number: `metric <name>`.
//! - `train <rounds> [<rank> <mishap>]` joins as a worker, says `joined <rank> <pid>`, reduces so many rounds (0: without end), and
//!   leaves. After its first round the worker of `rank` exits with the code `mishap` instead, or with `stuck` does nothing any more, for
//!   which the others wait a second. The exit code is 1 after an error, which standard error tells.
//! - `steps <count> <elements> <servers> [<step>]` joins as a worker of a job with so many servers, says `joined <rank>`, and trains in
//!   steps ([`gradlane_tests::steps`]) with large tensors of so many elements. In the given step it asks to leave the job. The exit code is 1 after an error, which standard error tells.
//! - `devices <words>` is one rank of a machine with devices (`gradlane_tests::device_actor`).
//! - anything else is the command line of `gradlane-server`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::config::Launcher;
use gradlane_core::config::{Config, Origin};
use gradlane_core::engine::{Engine, RowsUse, Scan};
use gradlane_core::types::{Priority, RowAction, ShrinkBounds, StoreAsk, TensorSpec};
use gradlane_server::launch::entering::Found;
use gradlane_tests::{cluster, device_actor, feedback, rounds, steps};

fn main() {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let words: Vec<&str> = argv.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let code = match words[..] {
        ["puppet"] => outcome(join().and_then(|engine| obey(&engine))),
        ["train", rounds, ref mishap @ ..] => outcome(join().and_then(|engine| train(&engine, number(rounds), mishap))),
        ["steps", steps, elements, servers, ref leaves @ ..] => {
            let leaves = leaves.first().map(|step| number(step));
            let parts = steps::parts(number(elements), number(servers)).unwrap_or_else(|error| panic!("{error}"));
            let plan = steps::Plan { steps: number(steps), parts, leaves };
            outcome(join().and_then(|engine| train_in_steps(&engine, &plan)))
        }
        ["devices", ref words @ ..] => {
            device_actor::play(words, &say);
            0
        }
        _ => {
            let this = std::env::current_exe().expect("the system tells").into_os_string();
            gradlane_server::cli::main(argv.into_iter(), &[this])
        }
    };
    std::process::exit(code);
}

fn outcome(outcome: Result<i32>) -> i32 {
    outcome.unwrap_or_else(|error| {
        // In one piece: the others may write to the same place.
        let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
        1
    })
}

fn join() -> Result<Engine> {
    let (config, _) = Config::from_process(&BTreeMap::from([("role".to_owned(), "worker".to_owned())]))?;
    let join = Found::by_settings(&config, config.join_timeout)?.join;
    // A worker that nobody gave a rank asks for one, and does not know the size of the job either.
    let unplaced = *config.origin("rank") == Origin::Launcher(Launcher::Single);
    let (rank, size) = if unplaced { (None, None) } else { (config.rank, config.size) };
    cluster::worker(&config, &join, rank, size.unwrap_or(0))
}

fn obey(engine: &Engine) -> Result<i32> {
    say(&format!("joined {}", engine.rank().0));
    for line in std::io::stdin().lines() {
        let line = line.expect("the test writes text");
        if let Some(metric) = line.strip_prefix("metric ") {
            say(&engine.metrics().instance(0).number(metric).expect("a metric").to_string());
            continue;
        }
        let done = match line.split(' ').collect::<Vec<_>>()[..] {
            ["sum", name, round] => rounds::begin(engine, name, number(round), ELEMENTS).and_then(|sum| sum.check()),
            ["pair", name, round] => {
                rounds::begin_of_two(engine, name, number(round), ELEMENTS).and_then(|sum| sum.check())
            }
            [order @ ("beside" | "large"), name, round] => {
                let to = if order == "beside" { rounds::To::Beside } else { rounds::To::Place };
                let ranks = rounds::reduce_counted(engine, name, number(round), LARGE, to);
                ranks.map(|ranks| say(&format!("sum of {ranks:?}")))
            }
            ["fed", codec, round] => {
                let spec = codec.parse().expect("the test knows the codecs");
                feedback::reduce(engine, codec, spec, number(round), FED).map(|sum| {
                    let bytes: Vec<u8> = sum.iter().flat_map(|element| element.to_le_bytes()).collect();
                    say(&format!("sum {:08x}", crc32c::crc32c(&bytes)));
                })
            }
            ["row", name, step] => push_row(engine, name, number(step)),
            ["barrier", name] => engine.arrive(name, None).wait(None),
            ["add", key] => {
                let ask = StoreAsk::Add { key: key.to_owned(), amount: 1 };
                engine.ask_store(ask, None).map(|answer| say(&format!("{answer:?}")))
            }
            ["undeclare", name] => engine.undeclare(&[name.to_owned()], None),
            ["barrier", name, timeout] => engine.arrive(name, Some(milliseconds(timeout))).wait(None),
            ["shutdown", grace] => engine.shutdown(milliseconds(grace)),
            _ => panic!("{line:?} is no order"),
        };
        say(&match done {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("failed {:?} {error}", error.code()),
        });
    }
    Ok(0)
}

fn push_row(engine: &Engine, name: &str, step: u64) -> Result<()> {
    let push = RowsUse {
        tensor: TensorSpec::table(name, "sgd:lr=1;dim=2,mode=sync".parse().expect("the spec of a table")),
        action: RowAction::Push,
        step,
        ids: &[5],
        gradients: &[1.0, 2.0],
        marks: &[],
        scan: Scan::default(),
        bounds: ShrinkBounds::KEEP,
        priority: Priority::default(),
        timeout: None,
    };
    engine.use_rows(push)?.handle().wait(None)
}

fn train(engine: &Engine, count: u32, mishap: &[&str]) -> Result<i32> {
    let rank = engine.rank().0;
    say(&format!("joined {rank} {}", std::process::id()));
    for round in (0..).take_while(|round| count == 0 || *round < count.into()) {
        rounds::begin(engine, "weight", round, ELEMENTS)?.check()?;
        match mishap {
            [unlucky, _] if number::<u32>(unlucky) != rank => {}
            [_, "stuck"] => drop(crossbeam_channel::never::<()>().recv()),
            [_, code] => std::process::exit(number(code)),
            _ => {}
        }
    }
    let grace = if mishap.ends_with(&["stuck"]) { Duration::from_secs(1) } else { cluster::PATIENCE };
    engine.shutdown(grace)?;
    Ok(0)
}

fn train_in_steps(engine: &Engine, plan: &steps::Plan) -> Result<i32> {
    say(&format!("joined {}", engine.rank().0));
    steps::train(engine, plan, &say)?;
    engine.shutdown(cluster::PATIENCE)?;
    say("done");
    Ok(0)
}

fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("the test reads it");
}

fn milliseconds(word: &str) -> Duration {
    Duration::from_millis(number(word))
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

/// Of each tensor: parts of 1 MiB and more than one of them are other tests' concern.
const ELEMENTS: usize = 50_000;

/// Of a tensor with error feedback: one part.
const FED: usize = 5_000;

/// So many that a fault can come while a sum is under way.
const LARGE: usize = 2_000_000;
